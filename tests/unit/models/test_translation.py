"""Tensor names, row orders and switches of every family, against tables written down here."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight import models
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.manifest import Entry, Manifest, Typed
from flyweight.foundation.tensor import RAW, TensorSpec
from flyweight.models import Transform
from flyweight.models.dialects import DIALECTS
from flyweight.models.dialects.hf_dialect import HuggingFace
from flyweight.models.transform import Stored
from support.tiny_models import LAYER_NAMES, SHAPES, TINY, as_gguf, hf_manifest, no_read, round_trip

OUTER_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


@pytest.mark.parametrize("model_type", LAYER_NAMES)
def test_every_tensor_is_renamed_as_written_down(model_type: str) -> None:
    manifest = hf_manifest(model_type)
    there = models.translate(manifest, "gguf", no_read)
    expected = {
        hf: gguf for hf, gguf in OUTER_NAMES.items() if hf != "lm_head.weight" or not TINY[model_type]["tie_word_embeddings"]
    }
    for layer in range(2):
        expected |= {f"model.layers.{layer}.{hf}": f"blk.{layer}.{gguf}" for hf, gguf in LAYER_NAMES[model_type].items()}
    assert {source: renamed.name for source, renamed in there.tensors.items()} == expected
    back = round_trip(manifest)
    assert {source: renamed.name for source, renamed in back.tensors.items()} == {v: k for k, v in expected.items()}
    assert not there.dropped
    assert not back.dropped


@pytest.mark.parametrize("model_type", LAYER_NAMES)
def test_transforms_of_both_directions_cancel(model_type: str) -> None:
    manifest = hf_manifest(model_type)
    there, back = models.translate(manifest, "gguf", no_read), round_trip(manifest)
    changed = set()
    for source, renamed in there.tensors.items():
        undo = back.tensors[renamed.name].transform
        if renamed.transform is None:
            assert undo is None
            continue
        assert undo is not None
        inner = re.sub(r"model\.layers\.\d+\.", "", source)
        changed.add(inner)
        rows = SHAPES.get(inner, (8,))[0]
        first, second = renamed.transform.rows(rows), undo.rows(rows)
        assert renamed.transform.add + undo.add == 0
        if first is not None:
            assert second is not None
            np.testing.assert_array_equal(first[second], np.arange(rows))
    if model_type in ("llama", "mistral"):
        assert changed == {"self_attn.q_proj.weight", "self_attn.k_proj.weight"}
    elif model_type.startswith("gemma"):
        assert all(name.endswith("norm.weight") for name in changed)
        assert len(changed) == (5 if model_type == "gemma2" else 7)
    else:
        assert not changed


def test_llama_rows_are_interleaved_head_by_head() -> None:
    transform = (
        models.translate(hf_manifest("llama"), "gguf", no_read).tensors["model.layers.1.self_attn.k_proj.weight"].transform
    )
    assert transform == Transform(heads=2)
    # Two heads of four rows: halves (0, 1 | 2, 3) become pairs.
    assert transform.rows(8).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(heads=st.integers(1, 9), half=st.integers(1, 16))
def test_rows_agree_with_the_reshape_of_a_matrix(heads: int, half: int) -> None:
    rows = heads * half * 2
    gguf = np.arange(rows * 3).reshape(rows, 3)
    hf = gguf.reshape(heads, half, 2, 3).swapaxes(1, 2).reshape(gguf.shape)
    np.testing.assert_array_equal(gguf[Transform(heads, inverse=True).rows(rows)], hf)
    np.testing.assert_array_equal(hf[Transform(heads).rows(rows)], gguf)


def test_rows_that_do_not_fit_the_heads_are_malformed() -> None:
    with pytest.raises(MalformedError, match="7 rows"):
        Transform(heads=2).rows(7)


def test_same_dialect_changes_nothing() -> None:
    manifest = hf_manifest("llama")
    same = models.translate(manifest, "hf", no_read)
    assert {name: renamed.name for name, renamed in same.tensors.items()} == {name: name for name in manifest.entries}
    assert same.files == manifest.files
    assert all(renamed.transform is None for renamed in same.tensors.values())


def test_mistral_comes_back_as_mistral_and_an_unmarked_file_as_llama() -> None:
    there = models.translate(hf_manifest("mistral"), "gguf", no_read)
    assert there.metadata["general.architecture"] == Typed("str", "llama")
    assert json.loads(round_trip(hf_manifest("mistral")).files["config.json"])["model_type"] == "mistral"
    unmarked = hf_manifest("mistral")
    back = round_trip(unmarked, without=("flyweight.model_type",))
    assert json.loads(back.files["config.json"])["architectures"] == ["LlamaForCausalLM"]


def entry(name: str, *shape: int) -> Entry:
    spec = TensorSpec(shape, DType.F32)
    return Entry(name, spec, RAW, {"data": spec})


def with_entries(manifest: Manifest, *extra: Entry, without: str = "") -> Manifest:
    entries = {name: e for name, e in manifest.entries.items() if name != without} | {e.name: e for e in extra}
    return Manifest(manifest.format, entries, manifest.metadata, manifest.files, manifest.dialect)


def test_an_unknown_tensor_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError) as caught:
        models.translate(with_entries(hf_manifest("llama"), entry("model.vision.patch", 2, 2)), "gguf", no_read)
    assert caught.value.tensor == "model.vision.patch"


def test_a_missing_tensor_is_malformed() -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(MalformedError) as caught:
        models.translate(with_entries(hf_manifest("qwen3"), without=name), "gguf", no_read)
    assert (caught.value.tensor, caught.value.code) == (name, "E_TENSORS")


def test_a_layer_beyond_the_configuration_is_refused() -> None:
    with pytest.raises(UnsupportedError):
        models.translate(with_entries(hf_manifest("llama"), entry("model.layers.2.mlp.up_proj.weight", 12, 8)), "gguf", no_read)


def test_a_shape_against_the_configuration_is_malformed() -> None:
    with pytest.raises(MalformedError, match=r"9×8.*8×8"):
        models.translate(
            with_entries(hf_manifest("llama"), entry("model.layers.0.self_attn.o_proj.weight", 9, 8)), "gguf", no_read
        )


def test_a_tied_output_is_dropped_with_a_reason() -> None:
    manifest = with_entries(hf_manifest("gemma2"), entry("lm_head.weight", 20, 8))
    there = models.translate(manifest, "gguf", no_read)
    assert "tied" in there.dropped["lm_head.weight"]
    assert "output.weight" not in {renamed.name for renamed in there.tensors.values()}


def test_an_output_that_is_not_tied_must_be_there() -> None:
    with pytest.raises(MalformedError) as caught:
        models.translate(with_entries(hf_manifest("llama"), without="lm_head.weight"), "gguf", no_read)
    assert caught.value.tensor == "lm_head.weight"


def test_buffers_of_old_checkpoints_are_dropped_with_a_reason() -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    there = models.translate(with_entries(hf_manifest("llama"), entry(name, 2)), "gguf", no_read)
    assert name in there.dropped


def test_llama_biases_come_together_and_are_interleaved() -> None:
    biases = [
        entry(f"model.layers.{i}.self_attn.{p}_proj.bias", n)
        for i in range(2)
        for p, n in (("q", 8), ("k", 8), ("v", 8), ("o", 8))
    ]
    manifest = with_entries(hf_manifest("llama"), *biases)
    there = models.translate(manifest, "gguf", no_read)
    assert there.tensors["model.layers.0.self_attn.q_proj.bias"] == models.Renamed("blk.0.attn_q.bias", Transform(heads=2))
    assert there.tensors["model.layers.0.self_attn.o_proj.bias"].transform is None
    assert json.loads(round_trip(manifest).files["config.json"])["attention_bias"] is True
    assert json.loads(round_trip(hf_manifest("llama")).files["config.json"])["attention_bias"] is False
    with pytest.raises(UnsupportedError, match="attention_bias"):
        models.translate(with_entries(hf_manifest("llama"), *biases[:3]), "gguf", no_read)
    with pytest.raises(MalformedError) as caught:
        models.translate(with_entries(hf_manifest("llama"), *biases[:4]), "gguf", no_read)
    assert caught.value.tensor == "model.layers.1.self_attn.q_proj.bias"


@pytest.mark.parametrize(
    ("name", "dense"),
    [
        ("model.embed_tokens.weight", True),
        ("token_embd.weight", True),
        ("lm_head.weight", True),
        ("output.weight", True),
        ("model.norm.weight", True),
        ("output_norm.weight", True),
        ("model.layers.3.input_layernorm.weight", True),
        ("blk.3.attn_q_norm.weight", True),
        ("blk.3.post_ffw_norm.weight", True),
        ("blk.3.attn_q.bias", True),
        ("rope_freqs.weight", True),
        ("model.layers.3.self_attn.q_proj.weight", False),
        ("blk.3.attn_output.weight", False),
        ("model.layers.3.self_attn.o_proj.weight", False),
        ("blk.3.ffn_down.weight", False),
    ],
)
def test_what_stays_dense(name: str, dense: bool) -> None:
    assert models.dense_by_default(name) is dense


def test_family_of_both_dialects() -> None:
    for family in models.FAMILIES:
        found = models.family_of(hf_manifest(family.model_type), no_read)
        assert found is family
    gguf = Manifest("gguf", {}, {"general.architecture": Typed("str", "gemma3")}, {}, "gguf")
    assert models.family_of(gguf, no_read).model_type == "gemma3_text"
    assert models.family_of(Manifest("gguf", {}, {"general.architecture": Typed("str", "mamba")}, {}, "gguf"), no_read) is None
    assert models.family_of(Manifest("hf", {}, {}, {}, "hf"), no_read) is None


def test_each_family_is_in_the_table_by_its_model_type() -> None:
    assert [family.model_type for family in models.FAMILIES] == list(models.FAMILIES.lines) == list(TINY)


class Toy(HuggingFace):
    """A third dialect: names of its own, q and k interleaved, norms with 2 added."""

    name = "toy"

    def stored(self, name: str, config: models.Config) -> Stored:
        heads = {"q_proj": config.dims.heads, "k_proj": config.dims.kv_heads}.get(name.split(".")[-2], 0)
        return Stored(f"toy/{name}", heads, 2.0 if name.endswith("norm.weight") else 0.0)


def test_a_third_dialect_is_one_line_and_the_others_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DIALECTS.lines, "toy", "toy:TOY")
    monkeypatch.setitem(DIALECTS._made, "toy", Toy())
    for model_type, interleaved in (("gemma2", 0), ("llama", 2)):
        hf = hf_manifest(model_type)
        gguf, _ = as_gguf(hf, models.translate(hf, "gguf", no_read))
        made = models.translate(gguf, "toy", no_read)
        norm, query = made.tensors["output_norm.weight"], made.tensors["blk.1.attn_q.weight"]
        # GGUF has 1 + w of Gemma and rows of Llama that are interleaved already.
        assert norm == models.Renamed("toy/model.norm.weight", Transform(add=1.0 if model_type == "gemma2" else 2.0))
        changed = None if interleaved else Transform(heads=2)
        assert query == models.Renamed("toy/model.layers.1.self_attn.q_proj.weight", changed)
        entries = {r.name: Entry(r.name, e.spec, e.codec, e.parts) for n, r in made.tensors.items() for e in [gguf.entries[n]]}
        toy = Manifest("toy", entries, made.metadata, made.files, "toy")
        again = models.translate(toy, "gguf", no_read)
        assert {key: again.metadata[key] for key in gguf.metadata} == gguf.metadata
        assert again.tensors[norm.name].transform == Transform(add=-norm.transform.add)
        assert models.blueprint(toy, no_read).pairs


def test_no_dialect_knows_another() -> None:
    package = Path(models.__file__).parent
    for path in package.rglob("*.py"):
        if "gguf" not in path.name and path.parent.name in ("dialects", "models"):
            code = [line for line in path.read_text("utf-8").splitlines() if "import" in line or " == " in line]
            assert path.name == "__init__.py" or not [line for line in code if "gguf" in line.lower()], path
        assert "hf_dialect" not in path.read_text("utf-8") or path.name in ("hf_dialect.py", "__init__.py"), path


def test_an_unknown_family_names_the_known_ones() -> None:
    strange = Manifest("hf", {}, {}, {"config.json": b'{"model_type": "rwkv"}'}, "hf")
    with pytest.raises(UnsupportedError, match=r"gemma2.*llama.*qwen3"):
        models.translate(strange, "gguf", no_read)
    with pytest.raises(UnsupportedError, match="mamba"):
        models.translate(Manifest("gguf", {}, {"general.architecture": Typed("str", "mamba")}, {}, "gguf"), "hf", no_read)
    with pytest.raises(UnsupportedError, match="tensor names"):
        models.translate(Manifest("safetensors", {}, {}, {}, "flax"), "hf", no_read)
    with pytest.raises(UnsupportedError, match="numbers instead of names"):
        models.translate(Manifest("uqff_blob", {}, {}, {}, ""), "hf", no_read)
