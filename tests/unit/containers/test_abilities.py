"""What the pipeline owes a container that seals, proves, audits and embeds files, shown with the smallest that does.

A file is "SEAL", u32 length of the table, the table in JSON, then a block of "TENSOR" and f32 values for each tensor,
then files:

    {"tensors": {name: [shape, offset, BLAKE3 of the block]}, "files": {name: [offset, bytes]}}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from blake3 import blake3

import flyweight
from flyweight import containers
from flyweight.containers.carried import Carried
from flyweight.containers.container import Chunks, Container, Finding, Image, Placement
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError
from flyweight.foundation.lazy_table import Table
from flyweight.foundation.manifest import Entry, Extent, Manifest
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.sources import Bundle
from support.toys import toy_llama_files, write_toy_llama

HEAD = b"TENSOR"


class Sealed(Container):
    name, title, dialect, is_directory, suffix = "sealed", "a test", "hf", False, ".sealed"
    codecs = (Carried("raw", dtypes=(DType.F32,)),)
    embeds = {}

    def _table(self, bundle: Bundle) -> dict[str, Any]:
        source = bundle[bundle.single or ""]
        document: dict[str, Any] = json.loads(bytes(source.read(8, int.from_bytes(source.read(4, 4), "little"))))
        return document

    def probe(self, bundle: Bundle) -> bool:
        return bundle.single is not None and bytes(bundle[bundle.single].read(0, 4)) == b"SEAL"

    def parse(self, bundle: Bundle) -> Manifest:
        table, file = self._table(bundle), bundle.single or ""
        entries = {}
        for name, (shape, offset, _) in table["tensors"].items():
            spec = TensorSpec(tuple(shape), DType.F32)
            entries[name] = Entry(name, spec, RAW, {"data": spec}, {"data": Extent(file, offset + len(HEAD), spec.nbytes)})
        files = {name: Extent(file, *place) for name, place in table["files"].items()}
        return Manifest(self.name, entries, {}, files, "hf")

    def carries(self, spec: TensorSpec, codec: CodecSpec) -> bool:
        return codec == RAW and spec.dtype is DType.F32

    def place(self, manifest: Manifest, name: str, shard_bytes: int | None = None) -> Placement:
        at, chunks, entries, digests = 1 << 13, [], {}, {}
        table: dict[str, Any] = {"tensors": {}, "files": {}}
        for entry in manifest.entries.values():
            table["tensors"][entry.name] = [entry.spec.shape, at, "?" * 64]
            chunks.append((at, HEAD))
            entries[entry.name] = replace(entry, extents={"data": Extent(name, at + len(HEAD), entry.spec.nbytes)})
            digests[entry.name] = Extent(name, at, len(HEAD) + entry.spec.nbytes)
            at += len(HEAD) + entry.spec.nbytes
        for file, content in manifest.files.items():
            assert isinstance(content, bytes)
            table["files"][file] = [at, len(content)]
            chunks.append((at, content))
            at += len(content)
        text = json.dumps(table).encode()
        chunks.insert(0, (0, b"SEAL" + len(text).to_bytes(4, "little") + text))
        assert len(text) < 1 << 13
        return Placement(replace(manifest, entries=entries), {name: Image(at, chunks)}, digests=digests)

    def finish(self, placement: Placement, digests: Mapping[str, str], read: Callable[[Extent], bytes]) -> Mapping[str, Chunks]:
        [file] = placement.images
        length = int.from_bytes(read(Extent(file, 4, 4)), "little")
        table = json.loads(read(Extent(file, 8, length)))
        assert list(digests) == list(table["tensors"])
        for name, digest in digests.items():
            table["tensors"][name][2] = digest
        return {file: [(8, json.dumps(table).encode())]}

    def check_block(self, bundle: Bundle, entry: Entry) -> None:
        extent = entry.extents["data"]
        if bytes(bundle[extent.file].read(extent.offset - len(HEAD), len(HEAD))) != HEAD:
            raise MalformedError("no head", code="E_HEAD", offset=extent.offset - len(HEAD))

    def audit(self, bundle: Bundle) -> Iterator[Finding]:
        source = bundle[bundle.single or ""]
        for name, (shape, offset, digest) in self._table(bundle)["tensors"].items():
            if blake3(source.read(offset, len(HEAD) + 4 * int(np.prod(shape)))).hexdigest() != digest:
                yield Finding("error", "E_DIGEST", "the block is not what was sealed", name, offset)


@pytest.fixture
def sealed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    lines = {"sealed": "hooks:Sealed", **containers.CONTAINERS.lines}
    monkeypatch.setitem(sys.modules, "flyweight.containers.hooks", sys.modules[__name__])
    monkeypatch.setattr(containers, "CONTAINERS", Table("flyweight.containers", lines, make=lambda kind: kind()))
    source, target = write_toy_llama(tmp_path / "toy"), tmp_path / "m.sealed"
    flyweight.convert(source, target, to="sealed", dtype="f32")
    return target


def spoil(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0xFF
    path.write_bytes(raw)


def test_what_was_written_is_sealed(sealed: Path) -> None:
    report = flyweight.verify(sealed)
    assert (report.ok, report.malformed, report.findings) == (True, False, ())


@pytest.mark.parametrize("finished", [0, 1, 7, 20])
def test_an_interrupted_run_resumes_to_the_same_seal(sealed: Path, tmp_path: Path, finished: int) -> None:
    def stop(name: str, nbytes: int, total: int) -> None:
        nonlocal finished
        finished -= 1
        if finished < 0:
            raise KeyboardInterrupt

    target = tmp_path / "again.sealed"
    arguments: dict[str, Any] = {"to": "sealed", "dtype": "f32", "jobs": 1}
    with pytest.raises(KeyboardInterrupt):
        flyweight.convert(tmp_path / "toy", target, **arguments, progress=stop)
    assert not target.exists()
    report = flyweight.convert(tmp_path / "toy", target, **arguments, resume=True)
    assert report.resumed > 0
    assert target.read_bytes() == sealed.read_bytes()


def test_known_side_files_are_embedded_and_come_out_again(sealed: Path, tmp_path: Path) -> None:
    plan = flyweight.convert(tmp_path / "toy", tmp_path / "noted.sealed", to="sealed", dtype="f32")
    assert {note for note in plan.notes if "side file" in note} == {
        "side file README.md is not copied",
        "side file extra/notes.bin.txt is not copied",
    }
    flyweight.convert(sealed, tmp_path / "back", to="hf")
    files = {path.name: path.read_bytes() for path in (tmp_path / "back").iterdir()}
    expected = toy_llama_files(dtype=ml_dtypes.bfloat16)
    assert set(files) == {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
    assert all(files[name] == expected[name] for name in ("tokenizer.json", "tokenizer_config.json"))
    assert json.loads(files["config.json"])["torch_dtype"] == "float32"
    assert flyweight.diff(tmp_path / "toy", tmp_path / "back").identical


def test_every_flaw_is_listed_and_the_rest_is_still_read(sealed: Path) -> None:
    with flyweight.open(sealed) as checkpoint:
        places = {name: entry.extents["data"].offset for name, entry in checkpoint.manifest.entries.items()}
    first, second, *_ = places
    spoil(sealed, places[first])
    spoil(sealed, places[second] - 1)  # its head
    report = flyweight.verify(sealed)
    assert report.malformed
    assert not report.ok
    assert [(f.code, f.tensor, f.offset) for f in report.findings] == [
        ("E_DIGEST", name, places[name] - len(HEAD)) for name in (first, second)
    ]
    assert report.tensors == len(places)


def test_nothing_unproven_is_used(sealed: Path, tmp_path: Path) -> None:
    with flyweight.open(sealed) as checkpoint:
        extent = checkpoint.manifest.entries["model.norm.weight"].extents["data"]
    spoil(sealed, extent.offset - 1)
    with flyweight.open(sealed) as checkpoint:
        assert checkpoint["lm_head.weight"].any()
        for use in (checkpoint.encoded, lambda name: checkpoint.slab(name, 0, 1), checkpoint.__getitem__):
            with pytest.raises(MalformedError, match="no head") as caught:
                use("model.norm.weight")
            assert (caught.value.code, caught.value.tensor) == ("E_HEAD", "model.norm.weight")
    for target in ("copy.sealed", "plain.safetensors"):
        with pytest.raises(MalformedError, match="no head"):
            flyweight.convert(sealed, tmp_path / target, to=Path(target).suffix[1:])
