"""`awq`: other weights of the same function, quantized with less error of what they compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flyweight
from flyweight.calibration import calibrate
from flyweight.calibration.sampling import Text
from flyweight.checkpoint import open_checkpoint
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.pipeline import convert
from flyweight.pipeline.channel_scales import rescaled, scales_of
from flyweight.pipeline.conversion import open_conversion, plan
from flyweight.runtime import open_model
from support import GOLDEN
from support.command_line import flyweight as command
from support.toys import toy_llama_files, write_files

WORDS = Text("words.txt", "abc ab a b 12 c! " * 400)
DECODERS = GOLDEN / "decoders"
FAMILIES = ["llama", "gemma2", "gemma3_text", "mistral", "phi3", "qwen2", "qwen3"]
SCALED = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj")
O_PROJ = "model.layers.0.self_attn.o_proj.weight"
TOKENS = np.arange(24) % 7 + 1


class Uneven:
    """Inputs of which some channels are much larger than others."""

    def __init__(self, columns: dict[str, int], *, gram: bool = False) -> None:
        self.inputs = {}
        for name, count in columns.items():
            importance = np.random.default_rng(count).lognormal(0, 2, count).astype(np.float32)
            self.inputs[name] = InputStatistics(importance, np.diag(importance) if gram else None)

    def inputs_of(self, name: str) -> InputStatistics | None:
        return self.inputs.get(name)


@pytest.fixture(scope="module", params=[np.float32, "bf16"])
def toy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("awq")
    whole = write_files(place / "toy", toy_llama_files(dtype=np.float32))
    if request.param == np.float32:
        return whole
    convert(whole, place / "toy-bf16", dtype="bf16")
    return place / "toy-bf16"


def layers_of(model: Path) -> int:
    with open_model(model) as opened:
        return opened.decoder.config.dims.layers


def columns_of(model: Path) -> dict[str, int]:
    with flyweight.open(model) as source:
        return {name: source[name].shape[1] for name in source if source[name].ndim == 2}


def uneven(toy: Path, **options: Any) -> Uneven:
    return Uneven(columns_of(toy), **options)


def logits(path: Path | Any) -> np.ndarray:
    with open_model(path, kv="f32", int8=False, allow_ungated=True) as model:
        return model.decoder.forward(TOKENS, model.decoder.cache("f32"), every=True)


def test_the_function_is_the_same(toy: Path, tmp_path: Path) -> None:
    """To the rounding of sums in f32, whatever the norms are stored in: their weights are exact, and scales follow them."""
    with open_conversion(toy, tmp_path / "out", to="hf", quant="int8", statistics=uneven(toy)) as job:
        made = rescaled(job)
        with open_checkpoint(toy) as source:
            for name in source:
                changed = not np.array_equal(source[name], made.checkpoint[name])
                assert changed == any(part in name for part in (*SCALED, "layernorm")), name
                assert made.checkpoint.manifest.entries[name].spec.shape == source.manifest.entries[name].spec.shape
        before = logits(toy)
        assert np.abs(logits(made.checkpoint) - before).max() < 1e-4 * np.abs(before).max()


@pytest.mark.parametrize("source", ["hf", "gguf"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str, source: str, tmp_path: Path) -> None:
    """With norms of 1 + w, fused matrices, norms behind matrices; quantized rows in the order of GGUF."""
    model, statistics = DECODERS / family, uneven(DECODERS / family)
    quant = "int4-g16"
    if source == "gguf":
        model, quant = tmp_path / "model.gguf", "q4_0"
        convert(DECODERS / family, model, quant="q8_0")
    with open_conversion(model, tmp_path / "out", to=source, quant=quant, statistics=statistics) as job:
        before, made = logits(model), rescaled(job)
        norms = [name for name in job.checkpoint if not np.array_equal(job.checkpoint[name], made.checkpoint[name])]
        assert any("norm" in name for name in norms)
        assert source == "gguf" or made.notes[-1] == f"channels of {3 * layers_of(model)} inputs scaled"
        assert np.abs(logits(made.checkpoint) - before).max() < 1e-4 * np.abs(before).max()


@pytest.mark.parametrize(("to", "quant"), [("gguf", "q4_0"), ("hf", "int4"), ("mlx", "4bit")])
@pytest.mark.parametrize("gram", [False, True])
def test_less_error_where_inputs_are_large(toy: Path, tmp_path: Path, to: str, quant: str, gram: bool) -> None:
    """Of what matrices compute, with the division undone; `o_proj` has the same bytes."""
    statistics, lost, kept = uneven(toy, gram=gram), [], []
    names = ["model.layers.1.mlp.gate_proj.weight", "model.layers.1.post_attention_layernorm.weight", O_PROJ]
    own = ["blk.1.ffn_gate.weight", "blk.1.ffn_norm.weight", "blk.0.attn_output.weight"] if to == "gguf" else names
    for awq in (False, True):
        out = tmp_path / f"{awq}.{to}"
        convert(toy, out, to=to, quant=quant, statistics=statistics, awq=awq)
        with flyweight.open(toy) as source, flyweight.open(out) as made:
            matrix, norm = (source[name].astype(np.float32) for name in names[:2])
            scales = norm / made[own[1]].astype(np.float32)
            assert awq == (scales.max() > 2 * scales.min())
            error = made[own[0]].astype(np.float32) / scales - matrix
            lost.append(float((np.square(error) @ statistics.inputs[names[0]].importance).sum()))
            kept.append(made[own[2]].astype(np.float32))
    assert lost[1] < 0.95 * lost[0]
    assert np.array_equal(*kept)


def test_only_what_is_quantized_is_scaled(toy: Path, tmp_path: Path) -> None:
    """An input all of whose matrices are quantized, and, where a matrix gives it, that matrix too."""
    recipe = tmp_path / "some.toml"
    recipe.write_text(
        """[[rules]]
match = ["*q_proj.weight", "*k_proj.weight", "*down_proj.weight", "*gate_proj.weight", "*layers.1.mlp.up_proj.weight"]
codec = "affine"
params = { bits = 4, group = 32 }

[[rules]]
match = "*"
codec = "keep"
"""
    )
    convert(toy, tmp_path / "out", to="hf", recipe=recipe, statistics=uneven(toy), awq=True)
    with flyweight.open(toy) as source, flyweight.open(tmp_path / "out") as made:
        norms = [name for name in source if "norm" in name]
        changed = [name for name in norms if not np.array_equal(source[name], made[name])]
        assert changed == ["model.layers.1.post_attention_layernorm.weight"]
        for name in ("model.layers.1.self_attn.v_proj.weight", "model.layers.0.mlp.up_proj.weight"):
            assert np.array_equal(source[name], made[name])


def test_scales() -> None:
    scales = scales_of(np.array([1, 2**10, 0, 1], np.float32))
    assert np.isclose(scales[1] / scales[0], 2.0)
    assert np.isclose(np.log(scales).mean(), 0, atol=1e-6)
    assert scales[2] < scales[0] == scales[3]
    assert np.array_equal(scales_of(np.zeros(5, np.float32)), np.ones(5, np.float32))


def test_what_is_refused(toy: Path, tmp_path: Path) -> None:
    for options, code in (
        ({"quant": "int4"}, "E_STATISTICS"),
        ({"quant": "keep", "statistics": uneven(toy)}, "E_AWQ"),
        ({"quant": "int4", "statistics": Uneven({})}, "E_AWQ"),
    ):
        with pytest.raises(FlyweightError) as refused:
            convert(toy, tmp_path / "out", to="hf", awq=True, **options)
        assert refused.value.code == code
        assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="no place"):
        plan(toy, tmp_path / "out", quant="int4", awq=True)


def test_the_command_line(toy: Path, tmp_path: Path) -> None:
    stats = tmp_path / "toy.stats"
    calibrate(toy, stats, texts=[WORDS], tokens=1024, window=32)
    given = ["--quant", "q8_0", "--stats", str(stats), "--awq"]
    done = command("convert", str(toy), str(tmp_path / "out.gguf"), *given)
    assert done.code == 0
    assert "channels of 6 inputs scaled" in done.said
    assert np.abs(logits(tmp_path / "out.gguf") - logits(toy)).max() < 0.05 * np.abs(logits(toy)).max()
    for arguments, code, said in (
        ([*given, "--dry-run"], 0, "channels of 6 inputs scaled"),
        (["--quant", "q8_0", "--awq"], 2, "--awq needs statistics"),
        ([*given, "--plan-out", str(tmp_path / "plan.json")], 2, "--awq goes without --plan-out"),
    ):
        done = command("convert", str(toy), str(tmp_path / "other.gguf"), *arguments)
        assert (done.code, said in done.said) == (code, True), done.said
