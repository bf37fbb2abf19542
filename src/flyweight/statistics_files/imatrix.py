"""The importance matrices of llama.cpp: Σ x² or its mean for every matrix, by the names of GGUF.

GGUF, general.type "imatrix", two f32 tensors for each matrix, and what they are of:

    <matrix>.in_sum2   (1, columns)   Σ x²
    <matrix>.counts    (1, 1)         how many x
    imatrix.datasets [str]   imatrix.chunk_count u32   imatrix.chunk_size u32: tokens of a chunk

.dat, which it wrote before, all of it little-endian:

    i32 entries, for each:   i32 length, name   i32 calls   i32 columns   f32 (columns,): calls · mean x²
    i32 chunks   i32 length, name of the text   both may be missing
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flyweight.containers.container import Image
from flyweight.containers.gguf import Gguf
from flyweight.foundation.cursor import Cursor, check_name, utf8
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, MalformedError, UnsupportedError
from flyweight.foundation.limits import MAX_NAME_BYTES, MAX_TENSORS_PER_FILE
from flyweight.foundation.manifest import Entry, Extent, Manifest, Typed
from flyweight.foundation.tensor import RAW, TensorSpec
from flyweight.sources import Bundle, FileSource, Source, open_bundle
from flyweight.statistics_files.statistics_form import Gathered, Names, Wanted
from flyweight.statistics_files.stored import Measured, StoredStatistics, checked_importance

Array = np.ndarray[Any, Any]

_CODE = "E_STATISTICS"
_SUM, _COUNT = ".in_sum2", ".counts"
_F32 = TensorSpec((1,), DType.F32)
_LEAST_ENTRY = 17
_MOST_TOKENS = 2**53


# GGUF -------------------------------------------------------------------------------------------


class ImatrixForm:
    """As llama.cpp writes it now."""

    gives_gram = False

    def __init__(self, stored_names: Mapping[str, str]) -> None:
        self._called = stored_names

    def parts(self, names: Names, columns: int, *, gram: bool) -> dict[str, TensorSpec]:
        sums = {self._called[name] + _SUM: TensorSpec((1, columns), DType.F32) for name in names}
        return sums | {self._called[name] + _COUNT: TensorSpec((1, 1), DType.F32) for name in names}

    def layout(self, file: str, wanted: Wanted) -> tuple[Image, Mapping[str, Extent]]:
        specs: dict[str, TensorSpec] = {}
        for names, columns in wanted.inputs.items():
            specs |= self.parts(names, columns, gram=False)
        entries = {name: Entry(name, spec, RAW, {"data": spec}) for name, spec in sorted(specs.items())}
        metadata = {
            "general.type": Typed("str", "imatrix"),
            "imatrix.datasets": Typed("[str]", list(wanted.texts)),
            "imatrix.chunk_count": Typed("u32", wanted.windows),
            "imatrix.chunk_size": Typed("u32", wanted.window),
        }
        placement = Gguf().place(Manifest("gguf", entries, metadata, dialect="gguf"), file)
        placed = placement.manifest.entries
        return placement.images[file], {name: entry.extents["data"] for name, entry in placed.items()}

    def values(self, gathered: Gathered) -> Iterator[tuple[str, Iterator[Array]]]:
        sums = (gathered.importance.astype(np.float64) * gathered.tokens).astype("<f4")
        for name in gathered.names:
            yield self._called[name] + _SUM, iter([sums])
            yield self._called[name] + _COUNT, iter([np.array([gathered.tokens], "<f4")])


def is_gguf(source: Source) -> bool:
    return source.size >= 4 and bytes(source.read(0, 4)) == b"GGUF"


def read_imatrix(path: Path) -> StoredStatistics:
    with closing(open_bundle(path)) as bundle:
        try:
            return _read_gguf(bundle, path)
        except FlyweightError as error:
            raise error.at(file=str(path)) from None


def _read_gguf(bundle: Bundle, path: Path) -> StoredStatistics:
    manifest = Gguf().parse(bundle)
    if manifest.value("general.type") != "imatrix":
        raise UnsupportedError(
            "a GGUF file that is a model, not an importance matrix", code=_CODE,
            hint="`flyweight calibrate MODEL -o FILE` gathers statistics of a model",
        )  # fmt: skip
    found: dict[str, Measured] = {}
    for entry in manifest.entries.values():
        name = entry.name.removesuffix(_SUM)
        if name == entry.name:
            if not entry.name.endswith(_COUNT) or entry.name.removesuffix(_COUNT) + _SUM not in manifest.entries:
                raise _malformed("it is neither sums of squares nor the count of any", entry.name)
            continue
        count = manifest.entries.get(name + _COUNT)
        if count is None:
            raise _malformed("sums of squares without a count", entry.name)
        if (
            entry.spec.dtype is not DType.F32
            or entry.spec.rows != 1
            or count.spec.dtype is not DType.F32
            or count.spec.size != 1
        ):
            raise UnsupportedError(
                f"it is {entry.spec} with counts {count.spec}: statistics of experts, or in another type than f32", code=_CODE,
                tensor=entry.name,
            )  # fmt: skip
        sums, (tokens,) = _numbers(bundle, entry), _numbers(bundle, count)
        if not 0 < tokens < _MOST_TOKENS:  # nor NaN
            raise _malformed(f"a count of {tokens:g}", count.name)
        found[name] = Measured(checked_importance(sums / tokens, name=entry.name), int(tokens))
    keys = {"datasets": "imatrix.datasets", "windows": "imatrix.chunk_count", "window": "imatrix.chunk_size"}
    return _statistics(path, found, {name: manifest.value(key) for name, key in keys.items()})


def _numbers(bundle: Bundle, entry: Entry) -> Array:
    extent = entry.extents["data"]
    with np.errstate(invalid="ignore"):
        return np.frombuffer(bundle[extent.file].read(extent.offset, extent.nbytes), "<f4").astype(np.float64)


# .dat -------------------------------------------------------------------------------------------


class ImatrixDatForm:
    """As llama.cpp wrote it before; `--output-format dat` of its imatrix tool still does."""

    gives_gram = False

    def __init__(self, stored_names: Mapping[str, str], windows: int) -> None:
        self._called, self._calls = stored_names, windows

    def parts(self, names: Names, columns: int, *, gram: bool) -> dict[str, TensorSpec]:
        return {self._called[name]: replace(_F32, shape=(columns,)) for name in names}

    def layout(self, file: str, wanted: Wanted) -> tuple[Image, Mapping[str, Extent]]:
        specs: dict[str, TensorSpec] = {}
        for names, columns in wanted.inputs.items():
            specs |= self.parts(names, columns, gram=False)
        chunks, extents, at = [(0, struct.pack("<i", len(specs)))], {}, 4
        for name, spec in sorted(specs.items()):
            raw = name.encode()
            head = struct.pack("<i", len(raw)) + raw + struct.pack("<ii", self._calls, spec.size)
            chunks.append((at, head))
            extents[name] = Extent(file, at + len(head), spec.nbytes)
            at += len(head) + spec.nbytes
        text = ", ".join(wanted.texts).encode()
        chunks.append((at, struct.pack("<ii", self._calls, len(text)) + text))
        return Image(at + 8 + len(text), tuple(chunks)), extents

    def values(self, gathered: Gathered) -> Iterator[tuple[str, Iterator[Array]]]:
        for name in gathered.names:
            yield self._called[name], iter([(gathered.importance * np.float32(self._calls)).astype("<f4")])


def is_dat(source: Source) -> bool:
    """Whether it begins as one does: with a number of entries, and the name of a matrix."""
    if source.size < 4 + _LEAST_ENTRY:
        return False
    entries, length = (int.from_bytes(source.read(at, 4), "little") for at in (0, 4))
    likely = 0 < entries <= MAX_TENSORS_PER_FILE and 0 < length <= min(MAX_NAME_BYTES, source.size - 8)
    return likely and bytes(source.read(8, length)).isascii() and b".weight" in bytes(source.read(8, length))


def read_dat(path: Path) -> StoredStatistics:
    with closing(FileSource(path)) as source:
        cursor, found = Cursor(source), dict[str, Measured]()
        for _ in range(cursor.count(cursor.u32("the number of entries"), _LEAST_ENTRY, MAX_TENSORS_PER_FILE, "entries")):
            name = check_name(_text(cursor, "a name"), file=source.name)
            calls, columns = cursor.u32("a number of calls"), cursor.u32("a number of columns")
            if name in found or not 0 < calls < 2**31 or not columns:
                raise cursor.malformed(f"'{name}' appears twice, or has no calls or columns", _CODE)
            cursor.spend(4 * columns, "importance")
            with np.errstate(invalid="ignore"):  # of a signalling NaN, which is refused as any other
                values = np.frombuffer(cursor.take(4 * columns, "importance"), "<f4").astype(np.float64)
            try:
                found[name] = Measured(checked_importance(values / calls, name=name), 0)
            except FlyweightError as error:
                raise error.at(file=source.name) from None
        about: dict[str, Any] = {}
        if cursor.remaining:
            about = {"windows": cursor.u32("the number of chunks"), "datasets": [_text(cursor, "the name of the text")]}
        if cursor.remaining:
            raise cursor.malformed(f"{cursor.remaining} bytes follow the end", _CODE)
    return _statistics(path, found, about)


def _text(cursor: Cursor, what: str) -> str:
    length = cursor.count(cursor.u32(f"the length of {what}"), 1, 4 * MAX_NAME_BYTES, f"bytes of {what}")
    return utf8(cursor.take(length, what), what, file=cursor.source.name, offset=cursor.offset)


# Both -------------------------------------------------------------------------------------------


def _statistics(path: Path, found: Mapping[str, Measured], about: Mapping[str, Any]) -> StoredStatistics:
    matrices = {name: (0, len(measured.importance)) for name, measured in found.items()}
    return StoredStatistics(str(path), "gguf", matrices, found, about=about)


def _malformed(message: str, tensor: str) -> MalformedError:
    return MalformedError(message, code=_CODE, tensor=tensor)
