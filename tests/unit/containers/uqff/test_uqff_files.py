"""Which files are one model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flyweight.checkpoint import open_checkpoint
from flyweight.containers.uqff.uqff_files import members
from flyweight.foundation.errors import FlyweightError
from flyweight.sources import MemoryBundle, open_bundle
from support.uqff_files import BLOBS, blob_file, gguf, named_directory, named_file, plain, residual, version

MODELS = {
    "a file without a number": ({"x.uqff"}, ("x.uqff",)),
    "shards from 0 on": ({"x-0.uqff", "x-1.uqff", "x-2.uqff"}, ("x-0.uqff", "x-1.uqff", "x-2.uqff")),
    "shards by number, not by name": (
        {f"x-{number}.uqff" for number in range(12)}, tuple(f"x-{number}.uqff" for number in range(12)),
    ),
    "a number that no 0 begins": ({"llama-3.uqff"}, ("llama-3.uqff",)),
    "a number with a zero before it": ({"x-00.uqff"}, ("x-00.uqff",)),
    "nothing but a number": ({"-0.uqff"}, ("-0.uqff",)),
    "no name at all": ({".uqff"}, (".uqff",)),
}  # fmt: skip


@pytest.mark.parametrize(("names", "shards"), MODELS.values(), ids=MODELS)
def test_shards_of_one_model(names: set[str], shards: tuple[str, ...]) -> None:
    assert members(MemoryBundle(dict.fromkeys(sorted(names), b""))).shards == shards


TWO = {
    "other stems": ("x-0.uqff", "y-0.uqff"),
    "one with a number and one without": ("x.uqff", "x-0.uqff"),
    "a stem that ends in a number": ("x-1.uqff", "x-1-0.uqff"),
    "numbers without a 0": ("x-1.uqff", "x-2.uqff"),
}


@pytest.mark.parametrize("names", TWO.values(), ids=TWO)
def test_of_two_models_one_is_chosen_by_its_path(names: tuple[str, str], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_bytes(blob_file([BLOBS["gguf"]]))
    with pytest.raises(FlyweightError) as caught:
        open_checkpoint(tmp_path)
    assert caught.value.code == "E_CHOICE"
    for name in names:
        assert members(open_bundle(tmp_path / name)).shards == (name,)
        with open_checkpoint(tmp_path / name) as checkpoint:
            assert list(checkpoint) == ["layers.0.weight"]


def test_any_shard_opens_all(tmp_path: Path) -> None:
    for name, data in named_directory(version() | gguf("lm_head")).items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "q-1.uqff").write_bytes(named_file(plain("model.embed_tokens")))
    with open_checkpoint(tmp_path) as whole:
        expected = whole.manifest
    assert set(expected.entries) == {"lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"}
    for shard in ("q-0.uqff", "q-1.uqff"):
        with open_checkpoint(tmp_path / shard) as checkpoint:
            assert checkpoint.manifest == expected


def test_a_file_among_others_that_are_nobodys(tmp_path: Path) -> None:
    """Without a config.json beside it, what lies there is not part of a model, and is not even opened."""
    (tmp_path / "x.uqff").write_bytes(blob_file([BLOBS["gguf"]]))
    os.mkfifo(tmp_path / "notes.txt")
    (tmp_path / "passwords").symlink_to("/etc/passwd")
    with open_checkpoint(tmp_path / "x.uqff") as checkpoint:
        assert list(checkpoint) == ["layers.0.weight"]
        assert not checkpoint.manifest.files


@pytest.mark.parametrize("container", ["uqff", "uqff_blob"])
@pytest.mark.parametrize("bundle", [MemoryBundle({"config.json": b"{}"}), MemoryBundle({"x.json": b"{}"}, is_directory=False)])
def test_no_layers_at_all(container: str, bundle: MemoryBundle) -> None:
    from flyweight.containers import container_named

    with pytest.raises(FlyweightError) as caught:
        container_named(container).parse(bundle)
    assert caught.value.code == "E_NO_WEIGHTS"


def test_a_layer_counts_for_more_than_a_plain_tensor(tmp_path: Path) -> None:
    files = named_directory(version() | gguf("lm_head")) | {
        "residual.safetensors": residual("lm_head.weight", "model.norm.weight")
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.manifest.entries["lm_head.weight"].codec.name == "q8_0"
        assert list(checkpoint) == ["lm_head.weight", "model.norm.weight"]
