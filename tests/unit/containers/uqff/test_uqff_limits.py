"""Tensors beyond 4 GiB and models in many shards. Large files are sparse: nothing of them is on the disk but their headers."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flyweight
from flyweight import cli
from flyweight.checkpoint import open_checkpoint
from flyweight.containers import container_named
from flyweight.containers.container import Placement
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.manifest import Entry, Manifest
from flyweight.foundation.tensor import CodecSpec, TensorSpec
from support.raw_files import safetensors_file, tensor_json
from support.toys import write_files, write_toy_llama
from support.uqff_files import CONFIG, MODULES, gguf, gguf_blob, named_directory, u32, version

GIB = 2**30
COLUMNS = 1 << 16
ROW_NBYTES = COLUMNS // 32 * 34
ROWS = -(-5 * GIB // ROW_NBYTES)
"""Of q8_0, which then takes 5 GiB."""


def sparse_q8_0(folder: Path) -> Path:
    """A Llama of one layer in 1.x whose output head takes 5 GiB."""
    named = version()
    for module in MODULES[1:]:
        named |= gguf(module)
    named |= {key: value for key, value in gguf("lm_head").items() if key not in ("lm_head.weight", "lm_head.weight.shape")}
    named["lm_head.weight.shape"] = "U32", [2], u32(ROWS, COLUMNS)
    small = b"".join(raw for _, _, raw in named.values())
    table: dict[str, Any] = {}
    at = 0
    for key, (dtype, shape, raw) in named.items():
        table[key] = tensor_json(dtype, shape, at, at + len(raw))
        at += len(raw)
    table["lm_head.weight"] = tensor_json("U8", [ROWS * ROW_NBYTES], at, at + ROWS * ROW_NBYTES)
    raw = safetensors_file(table, small)
    write_files(folder, named_directory() | {"q-0.uqff": raw})
    os.truncate(folder / "q-0.uqff", len(raw) + ROWS * ROW_NBYTES)
    return folder


def sparse_f32(folder: Path) -> Path:
    """The same, plain and in a Hugging Face directory."""
    shapes = {f"{module}.weight": [2, 32] for module in MODULES} | {
        "lm_head.weight": [5 * 2**13, 2**15],
        "model.norm.weight": [4],
    }
    table, at = {}, 0
    for name, shape in shapes.items():
        nbytes = 4 * int(np.prod(shape))
        table[name] = tensor_json("F32", shape, at, at + nbytes)
        at += nbytes
    raw = safetensors_file(table)
    write_files(folder, {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": raw})
    os.truncate(folder / "model.safetensors", len(raw) + at)
    return folder


def test_a_length_that_mistral_rs_cut_to_32_bits_is_read_as_what_it_was(tmp_path: Path) -> None:
    nbytes = ROWS * ROW_NBYTES
    blob = gguf_blob(shape=(ROWS, COLUMNS), data=b"", length=nbytes % 2**32)
    raw = safetensors_file({"0": tensor_json("U8", [len(blob) + nbytes], 0, len(blob) + nbytes)}, blob)
    write_files(tmp_path, {"q-0.uqff": raw})
    os.truncate(tmp_path / "q-0.uqff", len(raw) + nbytes)
    with open_checkpoint(tmp_path / "q-0.uqff") as checkpoint:
        (entry,) = checkpoint.manifest.entries.values()
    assert (entry.spec.shape, entry.extents["blocks"].nbytes) == ((ROWS, COLUMNS), nbytes)


@pytest.mark.parametrize("make", [sparse_q8_0, sparse_f32])
def test_5_gib_are_refused_in_0_x_before_anything_is_written(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = make(tmp_path / "source")
    monkeypatch.setattr(sys, "argv", ["flyweight", "convert", str(source), str(tmp_path / "out"), "--to", "uqff0"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    said = capsys.readouterr().err
    assert (stop.value.code, os.listdir(tmp_path)) == (4, ["source"])
    assert "E_LENGTH" in said
    assert "lm_head.weight" in said
    assert "--to uqff" in said


def test_5_gib_are_planned_and_read_in_1_x(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = sparse_q8_0(tmp_path / "source")
    monkeypatch.setattr(sys, "argv", ["flyweight", "convert", str(source), str(tmp_path / "out"), "--to", "uqff", "--dry-run"])
    cli.main()
    capsys.readouterr()
    assert os.listdir(tmp_path) == ["source"]

    container = container_named("uqff")
    with open_checkpoint(source) as opened:
        files = {name: opened.read(content) for name, content in opened.manifest.files.items()}
        placed = container.place(Manifest("uqff", opened.manifest.entries, {}, files, "hf"), "out")
    written = sparse(placed, tmp_path / "written")
    (shard,) = written.glob("*.uqff")
    assert 5 * GIB < shard.stat().st_size < 5 * GIB + 2**20
    assert shard.stat().st_blocks * 512 < 2**20

    extent = placed.manifest.entries["lm_head.weight"].extents["blocks"]
    with shard.open("r+b") as file:  # the last block: a scale of 1, and codes of 3
        file.seek(extent.end - 34)
        file.write(b"\x00\x3c" + b"\x03" * 32)
    with open_checkpoint(written) as checkpoint:
        assert dict(checkpoint.manifest.entries) == dict(placed.manifest.entries)
        last = checkpoint.slab("lm_head.weight", ROWS - 1, ROWS)
        assert bytes(last.parts["blocks"].reshape(-1)[-34:]) == b"\x00\x3c" + b"\x03" * 32


def sparse(placed: Placement, folder: Path) -> Path:
    """The files of a placement without their tensors."""
    folder.mkdir()
    for name, image in placed.images.items():
        with (folder / name).open("wb") as file:
            file.truncate(image.nbytes)
            for offset, chunk in image.chunks:
                file.seek(offset)
                file.write(chunk)
    return folder


# Shards -------------------------------------------------------------------------------------------


def layer(name: str, nbytes: int) -> Entry:
    rows = nbytes // ROW_NBYTES
    parts = {"blocks": TensorSpec((rows, ROW_NBYTES), DType.U8)}
    return Entry(f"{name}.weight", TensorSpec((rows, COLUMNS), DType.F32), CodecSpec("q8_0"), parts)


@pytest.mark.parametrize(("container", "names"), [("uqff", "abc"), ("uqff_blob", MODULES)])
def test_shards_split_at_10_gib(container: str, names: tuple[str, ...]) -> None:
    """A shard is closed when the next layer would make it larger; only a layer that is larger by itself is in one."""
    sizes = (4 * GIB - 2**20, 4 * GIB - 2**20, 4 * GIB - 2**20, *[2**20] * 5)
    entries = {entry.name: entry for entry in map(layer, names, sizes)}
    manifest = Manifest(container, entries, {}, {"config.json": json.dumps(CONFIG).encode()}, "hf")
    placed = container_named(container).place(manifest, "out")
    shards = {name: image.nbytes for name, image in placed.images.items() if name.endswith(".uqff")}
    assert list(shards) == ["q8_0-0.uqff", "q8_0-1.uqff"]
    assert all(nbytes < 10 * GIB for nbytes in shards.values())
    assert min(shards.values()) > 3 * GIB


def test_a_layer_that_is_larger_than_a_shard() -> None:
    entries = {entry.name: entry for entry in (layer("a", 2**20), layer("b", 11 * GIB), layer("c", 2**20))}
    placed = container_named("uqff").place(Manifest("uqff", entries, {}, {}, "hf"), "out")
    shards = [image.nbytes for name, image in placed.images.items() if name.endswith(".uqff")]
    assert [nbytes > 10 * GIB for nbytes in shards] == [False, True, False]


@pytest.mark.parametrize("to", ["uqff", "uqff0"])
def test_shards_are_read_back_whichever_is_opened(to: str, tmp_path: Path) -> None:
    source = write_toy_llama(tmp_path / "toy")
    flyweight.convert(source, tmp_path / "whole", to=to, quant="q8_0")
    flyweight.convert(source, tmp_path / "cut", to=to, quant="q8_0", shard_bytes=10_000)
    shards = sorted((tmp_path / "cut").glob("*.uqff"))
    assert len(shards) > 2
    with open_checkpoint(tmp_path / "whole") as whole:
        expected = {name: whole[name].tobytes() for name in whole}
    for path in (tmp_path / "cut", *shards):
        with open_checkpoint(path) as checkpoint:
            assert {name: checkpoint[name].tobytes() for name in checkpoint} == expected
    shards[1].unlink()
    with pytest.raises(FlyweightError) as caught:
        open_checkpoint(shards[0])
    assert caught.value.code == "E_SHARD_MISSING"
    flyweight.convert(tmp_path / "whole", tmp_path / "again", to=to, shard_bytes=10_000)
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").glob("*.uqff")}.keys() == {p.name for p in shards}


def test_a_version_of_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    """Two shards whose version tensors agree, byte for byte, over a gigabyte each."""
    for number in range(2):
        table = {"uqff.version.major": tensor_json("U32", [GIB // 4], 0, GIB)}
        path = tmp_path / f"q-{number}.uqff"
        path.write_bytes(safetensors_file(table))
        os.truncate(path, path.stat().st_size + GIB)
    with pytest.raises(FlyweightError) as caught:
        open_checkpoint(tmp_path)
    assert caught.value.code == "E_LAYER"


def test_a_force_replaces_a_model_and_nothing_else(tmp_path: Path) -> None:
    source, out = write_toy_llama(tmp_path / "toy"), tmp_path / "out"
    flyweight.convert(source, out, to="uqff", quant="q8_0")
    for to, quant in (("uqff", "afq4"), ("uqff0", "fp8"), ("hf", None)):
        with pytest.raises(FlyweightError):
            flyweight.convert(source, out, to=to, quant=quant)
        flyweight.convert(source, out, to=to, quant=quant, force=True)
        suffixes = {path.suffix for path in out.iterdir()}
        assert (".uqff" in suffixes) == (to != "hf")
    flyweight.convert(source, out, to="uqff", quant="q8_0", force=True)
    (out / "thesis.txt").write_text("years of work")
    before = {path.name for path in out.iterdir()}
    with pytest.raises(FlyweightError) as caught:
        flyweight.convert(source, out, to="uqff", quant="q8_0", force=True)
    assert caught.value.code == "E_NOT_A_MODEL"
    assert {path.name for path in out.iterdir()} == before


def test_a_name_of_a_file_is_no_directory(tmp_path: Path) -> None:
    with pytest.raises(FlyweightError) as caught:
        flyweight.convert(write_toy_llama(tmp_path / "toy"), tmp_path / "x.uqff", to="uqff", quant="q8_0")
    assert caught.value.code == "E_NAME"
    assert os.listdir(tmp_path) == ["toy"]
