"""1.x: versions, scalars and names, as files have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import flyweight
from flyweight.checkpoint import open_checkpoint, read_checkpoint
from flyweight.containers import container_named, recognise
from flyweight.sources import MemoryBundle
from support.toys import write_toy_llama
from support.uqff_files import (
    CONFIG,
    FP8,
    LAYERS,
    RESIDUAL,
    Named,
    afq,
    gguf,
    named_directory,
    named_file,
    plain,
    residual,
    taken_apart,
    version,
)


def manifest(files: dict[str, bytes]) -> Any:
    bundle = MemoryBundle(files)
    assert recognise(bundle).name == "uqff"
    return read_checkpoint(bundle, recognise(bundle)).manifest


@pytest.mark.parametrize("numbers", [(1, 0, 7), (1, 1, 0), (1, 2, 0), (1, 2, 9)])
def test_versions_that_are_read(numbers: tuple[int, int, int]) -> None:
    files = named_directory(version(*numbers) | gguf("lm_head"))
    assert "lm_head.weight" in manifest(files).entries
    bundle = MemoryBundle(files)
    container: Any = container_named("uqff")
    assert container.summary(bundle)["uqff_version"] == ".".join(map(str, numbers))


def test_a_version_may_stand_in_every_shard() -> None:
    files = named_directory(version() | gguf("a")) | {"q-1.uqff": named_file(version() | gguf("b"))}
    assert {"a.weight", "b.weight"} < set(manifest(files).entries)


def test_fields_may_lie_in_other_shards_than_their_layer() -> None:
    fields: Named = afq("a")
    first = {key: value for key, value in fields.items() if key.endswith((".format", ".scales"))}
    rest = {key: value for key, value in fields.items() if key not in first}
    files = named_directory(version() | first) | {"q-1.uqff": named_file(rest)}
    extents = manifest(files).entries["a.weight"].extents
    assert {part: extent.file for part, extent in extents.items()} == {
        "codes": "q-1.uqff", "scale": "q-0.uqff", "bias": "q-1.uqff",
    }  # fmt: skip


def test_numbers_may_be_names() -> None:
    assert set(manifest(named_directory(version() | gguf("7"))).entries) == {"7.weight", "model.norm.weight"}


def test_tensors_of_no_layer_are_told() -> None:
    files = named_directory(version() | gguf("a") | {"b.weight.scales": ("F32", [1], bytes(4))})
    bundle = MemoryBundle(files)
    container: Any = container_named("uqff")
    found = dict(container.warnings(bundle, manifest(files)))
    assert "b.weight.scales" in found["E_UNUSED"]


def test_a_head_beside_a_plain_embedding_is_not_tied() -> None:
    around = {RESIDUAL: residual("model.embed_tokens.weight")}
    tied = named_directory(version() | gguf("lm_head"), config={"tie_word_embeddings": True}) | around
    assert json.loads(manifest(tied).files["config.json"])["tie_word_embeddings"] is False
    embedded = named_directory(version() | gguf("model.embed_tokens"), config={"tie_word_embeddings": True})
    assert manifest(embedded).files["config.json"].file == "config.json"


def test_rows_as_gguf_has_them() -> None:
    note = {"_mistralrs_qk_rope_layout": "adjacent"}
    assert manifest(named_directory(config=CONFIG | note)).dialect == "hf_adjacent"
    assert manifest(named_directory(config=CONFIG | {"_mistralrs_qk_rope_layout": "half_split"})).dialect == "hf"


def test_what_is_written(tmp_path: Path) -> None:
    flyweight.convert(write_toy_llama(tmp_path / "toy", layers=1), tmp_path / "out", to="uqff", quant="fp8")
    keys, data = taken_apart((tmp_path / "out" / "fp8-0.uqff").read_bytes())
    assert keys.pop("__metadata__")["uqff.version"] == "1.2.0"
    module = "model.layers.0.self_attn.q_proj.weight"
    forms = {key.removeprefix(module): (about["dtype"], len(about["shape"])) for key, about in keys.items() if module in key}
    assert forms == {
        "": ("F8_E4M3", 2), ".format": ("U8", 0), ".dtype": ("U32", 0), ".dequant_w_scale": ("F32", 0),
        ".dequant_x_scale": ("F32", 0), ".quant_scale": ("F32", 0),
    }  # fmt: skip
    begin, end = keys[f"{module}.format"]["data_offsets"]
    assert data[begin:end] == bytes([FP8])
    versions = [data[slice(*keys[f"uqff.version.{part}"]["data_offsets"])] for part in ("major", "minor", "patch")]
    assert versions == [b"\1\0\0\0", b"\2\0\0\0", b"\0\0\0\0"]
    report = json.loads((tmp_path / "out" / "uqff_report.json").read_text())
    (output,) = report["outputs"]
    assert (output["quant"], output["shards"], output["layers"]) == ("fp8", ["fp8-0.uqff"], len(output["layer_details"]))


@pytest.mark.parametrize("kind", LAYERS)
def test_a_name_is_kept(kind: str, tmp_path: Path) -> None:
    for name, data in named_directory(version() | LAYERS[kind]("some.where\u00e9") | plain("b")).items():
        (tmp_path / name).write_bytes(data)
    with open_checkpoint(tmp_path) as checkpoint:
        assert list(checkpoint) == ["b.weight", "model.norm.weight", "some.where\u00e9.weight"]
