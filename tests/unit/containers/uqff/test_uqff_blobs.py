"""0.x: numbers that become names, and names that become numbers."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

import flyweight
from flyweight.checkpoint import open_checkpoint, read_checkpoint
from flyweight.containers import recognise
from flyweight.foundation.errors import FlyweightError
from flyweight.sources import MemoryBundle
from support.toys import CONFIG as TOY
from support.toys import llama_tensors, safetensors_bytes, write_files, write_toy_llama
from support.uqff_files import BLOBS, CONFIG, MODULES, RESIDUAL, blob_directory, blob_file, residual, taken_apart


def manifest(files: dict[str, bytes]) -> Any:
    bundle = MemoryBundle(files)
    return read_checkpoint(bundle, recognise(bundle)).manifest


def test_names_follow_from_the_config() -> None:
    entries = manifest(blob_directory()).entries
    assert {f"{module}.weight" for module in MODULES} < set(entries)
    assert entries["lm_head.weight"].codec.name == "q8_0"
    assert entries["model.layers.0.mlp.up_proj.weight"].codec.name == "mxfp4_split"
    assert entries["model.layers.0.mlp.down_proj.bias"].spec.shape == (2,)


@pytest.mark.parametrize(
    "config", [None, {}, CONFIG | {"num_hidden_layers": 2}, CONFIG | {"model_type": "unheard_of"}, CONFIG | {"model_type": 7}]
)
def test_numbers_stay_where_the_config_does_not_tell(config: dict[str, Any] | None) -> None:
    found = manifest(blob_directory(config=config))
    assert {f"layers.{number}.weight" for number in range(8)} < set(found.entries)
    assert found.dialect == ""


def test_keys_are_numbers_and_not_words() -> None:
    blobs = [BLOBS["gguf"]] * 15
    entries = manifest({"q.uqff": blob_file({key: blobs[int(key)] for key in sorted(map(str, range(15)))})}).entries
    assert list(entries) == [f"layers.{number}.weight" for number in range(15)]


def test_a_head_of_its_own_is_not_tied() -> None:
    files = blob_directory(config=CONFIG | {"tie_word_embeddings": True})
    assert manifest(files).files["config.json"].file == "config.json"
    tied = files | {RESIDUAL: residual("model.embed_tokens.weight", "model.norm.weight")}
    assert json.loads(manifest(tied).files["config.json"])["tie_word_embeddings"] is False


@pytest.mark.parametrize(("quant", "packed"), [("q8_0", 0x000103), ("hqq4", 0x000103), ("f8q8", 0x000200), ("mxfp4", 0x000200)])
def test_layers_are_numbered_as_mistralrs_does(quant: str, packed: int, tmp_path: Path) -> None:
    flyweight.convert(write_toy_llama(tmp_path / "toy", layers=2), tmp_path / "out", to="uqff0", quant=quant)
    (path,) = (tmp_path / "out").glob("*.uqff")
    assert path.name == f"{quant}-0.uqff"
    keys, data = taken_apart(path.read_bytes())
    assert "__metadata__" not in keys
    assert sorted(map(int, keys)) == list(range(15))
    for about in keys.values():
        begin, end = about["data_offsets"]
        assert (about["dtype"], about["shape"]) == ("U8", [end - begin])
        assert struct.unpack_from("<I", data, begin) == (packed,)
    with open_checkpoint(tmp_path / "out") as checkpoint:
        assert "model.layers.1.mlp.down_proj.weight" in checkpoint
        assert checkpoint.manifest.entries["model.embed_tokens.weight"].codec.name == "raw"
    plain, _ = taken_apart((tmp_path / "out" / RESIDUAL).read_bytes())
    assert {"model.embed_tokens.weight", "model.norm.weight"} <= plain.keys()
    assert not any("proj" in name for name in plain)


def test_a_tied_head_is_written_as_a_layer(tmp_path: Path) -> None:
    tensors = {name: array for name, array in llama_tensors().items() if name != "lm_head.weight"}
    config = {**TOY, "tie_word_embeddings": True}
    files = {"config.json": json.dumps(config).encode(), "model.safetensors": safetensors_bytes(tensors)}
    flyweight.convert(write_files(tmp_path / "tied", files), tmp_path / "out", to="uqff0", quant="q8_0")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False
    with open_checkpoint(tmp_path / "out") as checkpoint:
        assert checkpoint.manifest.entries["lm_head.weight"].codec.name == "q8_0"
        assert checkpoint["lm_head.weight"].shape == checkpoint["model.embed_tokens.weight"].shape


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"model_type": "unheard_of"}, "E_FAMILY"),
        ({"num_hidden_layers": 10**12}, "E_FAMILY"),
        ({"num_hidden_layers": 5}, "E_LAYER_MISSING"),
    ],
)
def test_a_model_that_has_no_numbers(change: dict[str, Any], code: str, tmp_path: Path) -> None:
    source = write_toy_llama(tmp_path / "toy")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(FlyweightError) as caught:
        flyweight.convert(source, tmp_path / "out", to="uqff0", quant="q8_0")
    assert (caught.value.code, caught.value.exit_code) == (code, 4)
    assert not (tmp_path / "out").exists()
