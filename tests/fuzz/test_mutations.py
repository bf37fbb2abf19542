"""Any damage to a valid file ends in our error tree, or in a manifest that stays inside its files."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight.containers.container import Container
from flyweight.containers.gguf import Gguf
from flyweight.containers.hf import HfDirectory
from flyweight.containers.npy_dir.npy_directory import NpyDirectory
from flyweight.containers.safetensors import Safetensors
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.manifest import Extent
from flyweight.sources import MemoryBundle, MemorySource
from flyweight.sources.zstd import ZstdSource
from support import sample_files

try:
    from compression import zstd
except ModuleNotFoundError:
    from backports import zstd

Files = dict[str, bytes]

INTERESTING = [
    b"\0",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\xff" * 4,
    b"\xff" * 8,
    b"\0" * 8,
    b"\0" * 7 + b"\x80",
    b'"',
    b"{",
    b"]",
    b"-",
    b"9" * 20,
]


@st.composite
def damaged(draw: st.DrawFn, files: Files) -> Files:
    """One to three edits of one file: overwrite, insert, delete, truncate, or repeat a run of bytes."""
    name = draw(st.sampled_from(sorted(files)))
    raw = bytearray(files[name])
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(raw) - 1, 0)))
        length = draw(st.integers(0, 16))
        edit = draw(st.sampled_from(["set", "insert", "delete", "truncate", "repeat"]))
        piece = draw(st.sampled_from(INTERESTING) | st.binary(min_size=1, max_size=8))
        if edit == "set":
            raw[at : at + len(piece)] = piece
        elif edit == "insert":
            raw[at:at] = piece
        elif edit == "delete":
            del raw[at : at + length]
        elif edit == "truncate":
            del raw[at:]
        else:
            raw[at:at] = raw[at : at + length]
    return files | {name: bytes(raw)}


def check(container: Container, files: Files, *, is_directory: bool) -> None:
    bundle = MemoryBundle(files, is_directory=is_directory)
    container.probe(bundle)
    try:
        manifest = container.parse(bundle)
    except FlyweightError:
        return
    spans: dict[str, list[tuple[int, int]]] = {}
    for entry in manifest.entries.values():
        assert entry.parts.keys() == entry.extents.keys()
        for part, extent in entry.extents.items():
            assert extent.nbytes == entry.parts[part].nbytes
            assert 0 <= extent.offset <= extent.end <= len(files[extent.file])
            spans.setdefault(extent.file, []).append((extent.offset, extent.end))
    for runs in spans.values():
        runs.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(runs))
    for name, extent in manifest.files.items():
        assert extent == Extent(name, 0, len(files[name]))


EXAMPLES = settings(max_examples=400, deadline=None, derandomize=True)


@EXAMPLES
@given(damaged(sample_files.safetensors()))
def test_safetensors(files: Files) -> None:
    check(Safetensors(), files, is_directory=False)


@EXAMPLES
@given(damaged(sample_files.safetensors_described()))
def test_safetensors_with_descriptions(files: Files) -> None:
    check(Safetensors(), files, is_directory=False)


@EXAMPLES
@given(damaged(sample_files.hf_directory()))
def test_hf_directory(files: Files) -> None:
    check(HfDirectory(), files, is_directory=True)


@EXAMPLES
@given(damaged(sample_files.gguf()))
def test_gguf(files: Files) -> None:
    check(Gguf(), files, is_directory=False)


@EXAMPLES
@given(damaged(sample_files.gguf_parts()))
def test_gguf_parts(files: Files) -> None:
    check(Gguf(), files, is_directory=True)


@EXAMPLES
@given(damaged(sample_files.npy_dir()))
def test_npy_dir(files: Files) -> None:
    check(NpyDirectory(), files, is_directory=True)


@EXAMPLES
@given(damaged({"x": zstd.compress(bytes(range(256)) * 20)}))
def test_zstd(files: Files) -> None:
    try:
        source = ZstdSource(MemorySource(files["x"]))
        assert len(source.read(0, source.size)) == source.size
    except FlyweightError:
        return


@given(st.binary(max_size=64))
@EXAMPLES
def test_random_bytes(raw: bytes) -> None:
    for container, name in ((Safetensors(), "x.safetensors"), (Gguf(), "x.gguf")):
        check(container, {name: raw}, is_directory=False)
        check(container, {name: b"GGUF\x03\0\0\0" + raw}, is_directory=False)


def test_every_truncation() -> None:
    """Exhaustive, since each cut lands in a different field."""
    for container, files in ((Safetensors(), sample_files.safetensors_described()), (Gguf(), sample_files.gguf())):
        ((name, raw),) = files.items()
        for length in range(len(raw)):
            check(container, {name: raw[:length]}, is_directory=False)
