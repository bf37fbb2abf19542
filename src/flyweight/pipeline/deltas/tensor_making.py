"""One tensor of a fine-tune as records of a delta: written, read back, rebuilt.

What is written of a tensor is rebuilt at once, so that what a file promises (the digest of the result) has been seen to hold,
and so that the error of what is lossy is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from blake3 import blake3

from flyweight import kernels
from flyweight.checkpoint import Checkpoint
from flyweight.checkpoint.tensor_bytes import elements_of, stored_elements
from flyweight.codecs.casts import astype
from flyweight.deltas import KINDS
from flyweight.deltas.changes import result_dtype
from flyweight.deltas.in_order import in_order
from flyweight.deltas.kind import Additive, Array, Elements, Kind, Record, array_spec, ranges
from flyweight.deltas.kinds.low_rank_delta import LowRankDelta
from flyweight.deltas.low_rank_fit import NO_LOW_RANK
from flyweight.deltas.wdelta_file import DTYPE_NAMES, FileArray
from flyweight.deltas.wdelta_writing import RecordWriter, Written
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, OutputError, UnsupportedError
from flyweight.foundation.manifest import Entry, Extent
from flyweight.foundation.tensor import RAW, TensorSpec
from flyweight.pipeline.conversion_report import squares
from flyweight.sources import FileSource

AUTO, EXACT, LOW_RANK = "auto", "exact", "lowrank"
PUBLIC = ("sparse", "quantized", "int4")
"""The strategies of the public tool, which reads files of nothing else."""
_AT_ONCE = 4
"""Chunks that are rebuilt at a time."""
_PIECE = 1 << 20
_F32 = np.dtype(np.float32)


class Wish(NamedTuple):
    """How tensors are to be stored."""

    strategy: str
    budget: float
    options: Mapping[str, Any]
    products: Mapping[str, LowRankDelta] | None = None
    """What tensors are stored as, bit for bit, if all others are stored exactly."""

    @property
    def is_exact(self) -> bool:
        return self.products is not None or self.strategy == EXACT or (self.strategy == AUTO and self.budget == 0)


class Made(NamedTuple):
    """What the header says of a tensor, the bytes of its records, and what is left of the difference."""

    line: dict[str, Any]
    nbytes: int
    error: float


class TensorMaker:
    """Makes the records of tensors, one after the other, in the file at `path` that `writer` writes."""

    def __init__(self, base: Checkpoint, tuned: Checkpoint, wish: Wish, writer: RecordWriter, path: Path) -> None:
        self.base, self.tuned, self.wish = base, tuned, wish
        self._writer, self._path = writer, path

    def must_be_named(self, entry: Entry) -> bool:
        """Whether a tensor is stored though it did not change, or equals another: the public reader drops what a delta does not
        name, and knows no tensor that is the same as another."""
        return self.wish.strategy in PUBLIC and _sums(entry)

    def make(self, entry: Entry, before: Entry | None, about: Mapping[str, Any], *, unchanged: bool) -> Made:
        """The records of a tensor, made from `before`; `about` is what the header says of it however it is stored."""
        if before is None:
            return self._exact(entry, None, {**about, "new": True})
        if self.wish.products is not None and entry.name in self.wish.products:
            return self._lossy(LOW_RANK, entry, before, about, {"stored": self.wish.products[entry.name]})
        if self.wish.is_exact or entry.spec != before.spec or not (_sums(entry) and _sums(before)):
            return self._exact(entry, before, about)
        if unchanged:
            return self._lossy("sparse", entry, before, about, {"unchanged": True})
        if self.wish.strategy == AUTO:
            return self._smallest(entry, before, about)
        if self.wish.strategy == LOW_RANK:
            return self._low_rank(entry, before, about)
        return self._lossy(self.wish.strategy, entry, before, about, self.wish.options)

    def _low_rank(self, entry: Entry, before: Entry, about: Mapping[str, Any]) -> Made:
        """A product; or exactly, what no small product is near to: vectors, and differences like noise."""
        try:
            return self._lossy(LOW_RANK, entry, before, about, {"budget": self.wish.budget, **self.wish.options})
        except UnsupportedError as error:
            if error.code != NO_LOW_RANK:
                raise
            return self._exact(entry, before, about)

    def _smallest(self, entry: Entry, before: Entry, about: Mapping[str, Any]) -> Made:
        """Of all kinds within the budget the smallest. Each is tried in the same place, and the best is made again."""
        start, options = self._writer.at, {"budget": self.wish.budget}

        def made_by(strategy: str) -> Made:
            self._writer.at = start
            lossy = issubclass(KINDS[strategy], Additive)
            return self._lossy(strategy, entry, before, about, options) if lossy else self._exact(entry, before, about)

        best, size = EXACT, made_by(EXACT).nbytes
        for strategy in KINDS.lines:
            try:
                made = made_by(strategy)
            except UnsupportedError:  # a difference that is not finite, or that has no small rank
                continue
            if made.error <= self.wish.budget and made.nbytes < size:
                best, size = strategy, made.nbytes
        return made_by(best)

    def _exact(self, entry: Entry, before: Entry | None, about: Mapping[str, Any]) -> Made:
        kind, parts, written, rebuilt = KINDS[EXACT], dict[str, Any](), list[Written](), blake3()
        for part, part_spec in entry.parts.items():
            spec, own = array_spec(part_spec), dict[str, Any]()
            tuned = stored_elements(self.tuned, entry, part, spec)
            base = stored_elements(self.base, before, part, spec)
            prefix = "" if entry.codec == RAW else f"{part}."
            records = self._put(entry.name, kind.make(base, tuned, spec, own), prefix)
            for piece in self._rebuilt(kind, spec, own, records, base, spec.dtype):
                rebuilt.update(piece.array.view(np.uint8).data)
            written += records
            parts[part] = {"shape": list(part_spec.shape), "dtype": DTYPE_NAMES[part_spec.dtype], **own}
        if rebuilt.hexdigest() != about["digest"]:
            raise OutputError("its values changed while the delta was made", code="E_SOURCE_CHANGED", tensor=entry.name)
        return self._made(EXACT, {**about, **(parts["data"] if entry.codec == RAW else {"parts": parts})}, written, 0.0)

    def _lossy(self, strategy: str, entry: Entry, before: Entry, about: Mapping[str, Any], options: Mapping[str, Any]) -> Made:
        kind, spec, own = KINDS[strategy], TensorSpec(entry.spec.shape, DType.F32), dict[str, Any]()
        base, tuned = elements_of(self.base, before), elements_of(self.tuned, entry)
        try:
            written = self._put(entry.name, kind.make(base, tuned, spec, own, **options), "")
        except FlyweightError as error:
            raise error.at(tensor=entry.name) from None
        digest, noise, signal = blake3(), 0.0, 0.0
        for piece in self._rebuilt(kind, spec, own, written, base, result_dtype(before.spec.dtype), tuned):
            digest.update(piece.array.view(np.uint8).data)
            noise, signal = noise + piece.noise, signal + piece.signal
        left = sqrt(noise / signal) if signal else inf if noise else 0.0
        return self._made(strategy, {**about, "dtype": "float32", "digest": digest.hexdigest(), **own}, written, left)

    def _put(self, tensor: str, records: Iterator[Record], prefix: str) -> list[Written]:
        return [self._writer.put(tensor, record._replace(field=prefix + record.field)) for record in records]

    def _rebuilt(
        self,
        kind: type[Kind],
        spec: TensorSpec,
        about: Mapping[str, Any],
        written: Sequence[Written],
        base: Elements,
        to: DType,
        tuned: Elements | None = None,
    ) -> Iterator[_Piece]:
        """The array that the records give, a few chunks at a time, and how far that is from `tuned`."""
        source = FileSource(self._path)
        places = zip(kind.fields, written, strict=True)
        arrays = {field: FileArray(source, Extent("", each.offset, each.nbytes), each.dtype) for field, each in places}
        delta = kind(spec, about, arrays)
        delta.check()

        def rebuild(where: tuple[int, int]) -> _Piece:
            before, out = base(*where), np.empty(where[1] - where[0], to.storage)
            delta.rebuild(*where, before, out)
            if tuned is None:
                return _Piece(out)
            wanted = tuned(*where)
            return _Piece(out, _apart(out, wanted), _apart(before, wanted))

        return in_order(rebuild, ranges(spec.size, _AT_ONCE))

    def _made(self, strategy: str, about: Mapping[str, Any], written: Sequence[Written], error: float) -> Made:
        source, stored = FileSource(self._path), blake3()
        for each in written:
            for at in range(each.offset, each.offset + each.nbytes, _PIECE):
                stored.update(source.read(at, min(_PIECE, each.offset + each.nbytes - at)))
        first = {"strategy": strategy, "shape": about["shape"], "dtype": about["dtype"]}
        refs = {each.field: {"_ref": each.field} for each in written}
        return Made(
            {**first, **about, "stored_digest": stored.hexdigest(), **refs}, sum(each.nbytes for each in written), error
        )


class _Piece(NamedTuple):
    """A range of an array that was rebuilt, and the squares of what it, and the base, are from the fine-tune."""

    array: Array
    noise: float = 0.0
    signal: float = 0.0


def _apart(a: Array, b: Array) -> float:
    """‖a − b‖²."""
    difference = np.empty((1, len(a)), np.float32)
    if not a.dtype == b.dtype == DType.BF16.numpy:
        a, b = astype(a, _F32), astype(b, _F32)
    kernels.difference(a.reshape(1, -1), b.reshape(1, -1), difference)
    return squares(difference[0])


def _sums(entry: Entry) -> bool:
    """Whether numbers can be added to a tensor and give one of its own type."""
    return entry.codec == RAW and result_dtype(entry.spec.dtype) is entry.spec.dtype
