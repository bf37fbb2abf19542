"""Every codec that encodes lives in a Hugging Face directory: converted to, opened, verified, compared, run, and left again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import flyweight
from flyweight.cli import cli
from flyweight.codecs import CODECS
from flyweight.containers.hf import INDEX
from flyweight.foundation.errors import FlyweightError
from flyweight.runtime import open_model
from support.toys import CONFIG, VOCABULARY, safetensors_bytes, tokenizer_files, write_files

HIDDEN, INTERMEDIATE, HEADS = 256, 512, 4
"""Rows that every block and group there is divides."""
STATED = {"quant_method": "flyweight", "version": 1}
ENCODERS = [kind.name for kind in CODECS if kind.encodes and kind.name != "raw"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer of f32, some blocks of which are zero, so that masks and sparse codecs have something to leave out."""
    random = np.random.default_rng(11)

    def matrix(rows: int, columns: int) -> np.ndarray:
        values = (random.standard_normal((rows, columns)) * 0.05).astype(np.float32)
        values[:, : columns // 4] = 0
        return values

    layer = "model.layers.0."
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (HIDDEN, HIDDEN), "self_attn.v_proj": (HIDDEN, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (INTERMEDIATE, HIDDEN), "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }  # fmt: skip
    tensors = {"model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN), "lm_head.weight": matrix(VOCABULARY, HIDDEN)}
    tensors |= {f"{layer}{name}.weight": matrix(*shape) for name, shape in shapes.items()}
    norms = ("model.norm", f"{layer}input_layernorm", f"{layer}post_attention_layernorm")
    tensors |= {f"{name}.weight": np.ones(HIDDEN, np.float32) for name in norms}
    config = CONFIG | {
        "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_hidden_layers": 1, "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS, "torch_dtype": "float32",
    }  # fmt: skip
    files = {"config.json": json.dumps(config, indent=2).encode(), **tokenizer_files()}
    return write_files(
        tmp_path_factory.mktemp("hf") / "model", files | {"model.safetensors": safetensors_bytes(tensors, {"format": "pt"})}
    )


def run(*arguments: object) -> str:
    done = CliRunner().invoke(cli, list(map(str, arguments)))
    assert done.exit_code == 0, (arguments, done.output, done.exception)
    return done.stdout


@pytest.mark.parametrize("codec", ENCODERS)
def test_a_model_in_any_codec_is_a_model(codec: str, model: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    report = flyweight.convert(model, made, to="hf", quant=codec, allow_ungated=True)
    stored = [tensor for tensor in report.tensors if tensor.codec.partition("(")[0] == codec]
    assert stored, "no tensor got the codec"
    assert json.loads((made / "config.json").read_bytes())["quantization_config"] == STATED
    assert (made / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()

    described = json.loads(run("inspect", made, "--json"))
    assert described["format"] == "hf"
    assert codec in {tensor["codec"]["name"] for tensor in described["tensors"]}
    assert flyweight.verify(made, strict=True).ok

    sharded = tmp_path / "sharded"
    flyweight.convert(made, sharded, to="hf", shard_bytes=100_000)
    index = json.loads((sharded / INDEX).read_bytes())["weight_map"]
    assert len(set(index.values())) > 1
    assert flyweight.diff(made, sharded).identical
    with flyweight.open(sharded) as checkpoint:
        assert all(len({e.file for e in entry.extents.values()}) == 1 for entry in checkpoint.manifest.entries.values())

    plain = tmp_path / "plain"
    flyweight.convert(sharded, plain, to="hf", quant="dense", dtype="f32")
    assert flyweight.diff(plain, made).identical
    assert "quantization_config" not in json.loads((plain / "config.json").read_bytes())
    flyweight.convert(made, tmp_path / "m.gguf", quant="dense", dtype="f32")
    assert flyweight.diff(tmp_path / "m.gguf", plain).identical

    run("run", made, "abc", "--raw", "--max-tokens", 2, "--exact", "--allow-ungated")
    text = tmp_path / "text"
    text.write_text("abc ab " * 40)
    scores = [json.loads(run("eval", m, "--text", text, "--context", 16, "--json")) for m in (made, plain)]
    assert scores[0]["perplexity"]["value"] == pytest.approx(scores[1]["perplexity"]["value"], rel=0.02)
    with open_model(made, int8=False, allow_ungated=True) as ours, open_model(plain, int8=False) as theirs:
        tokens = np.arange(3, 9)
        found, wanted = (m.decoder.forward(tokens, m.cache(), every=True) for m in (ours, theirs))
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


def test_what_is_copied_or_decoded_by_default_stays_plain(model: Path, tmp_path: Path) -> None:
    """Other tools open what `convert` to a directory makes, unless a codec is asked for."""
    flyweight.convert(model, tmp_path / "m.gguf", quant="q8_0")
    flyweight.convert(tmp_path / "m.gguf", tmp_path / "from-gguf", to="hf")
    flyweight.convert(model, tmp_path / "copy", to="hf")
    assert (tmp_path / "copy" / "config.json").read_bytes() == (model / "config.json").read_bytes()
    for name in ("from-gguf", "copy"):
        with flyweight.open(tmp_path / name) as made:
            assert {entry.codec.name for entry in made.manifest.entries.values()} == {"raw"}
        assert "quantization_config" not in json.loads((tmp_path / name / "config.json").read_bytes())


@pytest.mark.parametrize(
    ("stated", "code"),
    [(STATED, "E_DESCRIPTION"), (STATED | {"version": 2}, "E_QUANT_METHOD"), (STATED | {"bits": 4}, "E_QUANT_METHOD")],
)
def test_a_statement_without_its_descriptions_is_refused(
    model: Path, tmp_path: Path, stated: dict[str, object], code: str
) -> None:
    """A tool that rewrote the files has dropped their metadata, and codes look like plain tensors."""
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    config = json.loads(files["config.json"]) | {"quantization_config": stated}
    spoilt = write_files(tmp_path / "spoilt", files | {"config.json": json.dumps(config).encode()})
    with pytest.raises(FlyweightError) as caught:
        flyweight.open(spoilt)
    assert caught.value.code == code
