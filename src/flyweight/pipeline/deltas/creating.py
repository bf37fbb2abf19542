"""`delta create`: what makes a base into a fine-tune, as a .wdelta file.

Tensors are taken in the order of their names, one at a time, in ranges. What is written of one is read back and rebuilt, so
that what a file promises (the digest of the result) has been seen to hold, and so that the error of what is lossy is known.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from blake3 import blake3

from flyweight.checkpoint import Checkpoint, open_checkpoint
from flyweight.checkpoint.overlay import elements_of, stored_bytes, stored_elements, tensor_digest
from flyweight.containers.container import Image
from flyweight.deltas import KINDS
from flyweight.deltas.delta import result_dtype
from flyweight.deltas.file_patch import make_patch
from flyweight.deltas.in_order import in_order
from flyweight.deltas.kind import Additive, Array, Elements, Kind, Record, array_spec, ranges
from flyweight.deltas.wdelta_file import DTYPE_NAMES, FILE, FLYWEIGHT, MAX_FILE_BYTES, METADATA, FileArray
from flyweight.deltas.wdelta_writing import RecordWriter, Written
from flyweight.foundation import typed_json
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import ArgumentError, FlyweightError, UnsupportedError
from flyweight.foundation.manifest import Entry, Extent
from flyweight.foundation.tensor import RAW, TensorSpec
from flyweight.pipeline.deltas.delta_report import CreateReport, TensorDelta
from flyweight.pipeline.deltas.pairing import parents
from flyweight.pipeline.execution import Progress
from flyweight.pipeline.output.replacing import require_apart
from flyweight.pipeline.output.staging import Staging
from flyweight.pipeline.plans.arguments import as_path
from flyweight.sources import FileSource

AUTO, EXACT = "auto", "exact"
_TENSOR_HEADER = 2048
_HEADER = 1 << 16
"""What the header takes at most for a tensor, beside its name, and for everything else: records are written behind it."""
_AT_ONCE = 4
"""Chunks that are rebuilt at a time."""


def create_delta(
    base: Path | str | Checkpoint,
    tuned: Path | str | Checkpoint,
    destination: Path | str,
    *,
    strategy: str = EXACT,
    budget: float | None = None,
    force: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> CreateReport:
    """Write what makes `base` into `tuned`, models of any format, to a .wdelta file.

    `strategy` is exact, which gives every bit back; a lossy one for the floating weights; or auto: for each tensor the smallest
    of all that leaves at most `budget` of the difference, as a share of its Euclidean norm. `options` are of the strategy.
    """
    started = time.perf_counter()
    destination = Path(os.path.abspath(as_path("destination", destination)))
    _check_arguments(strategy, budget)
    if force:
        require_apart(destination, [place for place in (base, tuned) if not isinstance(place, Checkpoint)])
    with ExitStack() as opened:
        pair = [
            place if isinstance(place, Checkpoint) else opened.enter_context(open_checkpoint(place, checks_digests=True))
            for place in (base, tuned)
        ]
        making = _Making(pair[0], pair[1], _Wish(strategy, budget or 0.0, options), destination, progress)
        staging = Staging(destination, [destination.name], is_directory=False, fingerprint="", resume=False, force=force)
        try:
            nbytes = making.write(staging)
            staging.publish()
        except BaseException:
            staging.discard()
            raise
        finally:
            staging.close()
    return CreateReport(
        base=pair[0].bundle.name, tuned=pair[1].bundle.name, destination=str(destination), strategy=strategy, nbytes=nbytes,
        tuned_nbytes=pair[1].manifest.nbytes, seconds=round(time.perf_counter() - started, 3), tensors=tuple(making.reports),
        removed=tuple(making.removed), files=tuple(making.files), removed_files=tuple(making.removed_files),
    )  # fmt: skip


class _Wish(NamedTuple):
    strategy: str
    budget: float
    options: Mapping[str, Any]


def _check_arguments(strategy: str, budget: float | None) -> None:
    known = (AUTO, *KINDS.lines)
    if strategy not in known:
        from flyweight.foundation.errors import nearest

        raise ArgumentError(f"no strategy named '{strategy}'{nearest(strategy, known)}", hint=f"known: {', '.join(known)}")
    if budget is not None and not 0 <= budget < 1:
        raise ArgumentError(f"a budget is a share of the difference, from 0 to 1, not {budget}")


class _Making:
    """One delta in the making."""

    def __init__(self, base: Checkpoint, tuned: Checkpoint, wish: _Wish, destination: Path, progress: Progress | None) -> None:
        self.base, self.tuned, self.wish, self.destination, self.progress = base, tuned, wish, destination, progress
        for checkpoint in (base, tuned):
            checkpoint.manifest.require_readable()
        self.reports: list[TensorDelta] = []
        self.removed: list[str] = []
        self.files: list[str] = []
        self.removed_files: list[str] = []
        self._total = tuned.manifest.nbytes

    def write(self, staging: Staging) -> int:
        name = self.destination.name
        staging.allocate({name: Image(0, ())})
        entries = self.tuned.manifest.entries
        room = (
            _HEADER
            + sum(_TENSOR_HEADER + 6 * len(tensor) for tensor in entries)
            + 6 * sum(map(len, self.base.manifest.entries))
        )
        room += sum(6 * len(file) + 256 for file in (*self.tuned.manifest.files, *self.base.manifest.files))
        self._writer = RecordWriter(lambda at, data: staging.write(name, at, data), room)
        self._path = staging.out / name
        header = self._tensors()
        header[FLYWEIGHT] |= self._side_files()
        nbytes = self._writer.finish(header, lambda at, nbytes: staging.read(Extent(name, at, nbytes)))
        staging.cut(name, nbytes)
        return nbytes

    # Tensors --------------------------------------------------------------------------------------

    def _tensors(self) -> dict[str, Any]:
        digests, before = _digests(self.tuned), _digests(self.base)
        made_from = parents(self.base, self.tuned, digests, before)
        kept, described, twins = dict[str, str](), dict[str, dict[str, Any]](), dict[tuple[Any, ...], str]()
        seal = hashlib.sha256()
        for name in sorted(self.tuned.manifest.entries):
            entry, parent = self.tuned.manifest.entries[name], made_from.get(name)
            before_entry = None if parent is None else self.base.manifest.entries[parent]
            key = entry.spec, entry.codec, digests[name]
            same = before_entry is not None and digests[name] == before[parent or ""] and _alike(entry, before_entry)
            about = _described(entry) | {"digest": digests[name]}
            if parent is not None:
                about |= {"parent_digest": before[parent]} | ({"parent": parent} if parent != name else {})
                spec = self.base.manifest.entries[parent].spec
                about["parent_spec"] = {"shape": list(spec.shape), "dtype": DTYPE_NAMES[spec.dtype]}
            nbytes, error = 0, 0.0
            if same and parent == name and not self._must_be_named(entry):
                kept[name] = digests[name]
                strategy = "unchanged"
            elif same and not self._must_be_named(entry):
                described[name] = {"strategy": "same", **about}
                strategy = "same"
            elif not same and key in twins:
                about = _described(entry) | {"digest": digests[name]}
                described[name] = {"strategy": "same", **about, "twin": twins[key]}
                strategy = "same"
            else:
                described[name], nbytes, error = self._change(entry, before_entry, about, same)
                strategy = described[name]["strategy"]
                twins[key] = name
                seal.update(name.encode())
                for piece in stored_bytes(self.base, parent) if parent is not None else ():
                    seal.update(piece)
            self.reports.append(TensorDelta(name, strategy, entry.nbytes, nbytes, error, parent if parent != name else None))
            if self.progress is not None:
                self.progress(name, entry.nbytes, self._total)
        gone = set(made_from.values())
        self.removed = [name for name in self.base.manifest.entries if name not in gone]
        return {
            "parent_hash": seal.hexdigest(),
            "strategy": self.wish.strategy,
            "tensors": described,
            FLYWEIGHT: {
                "version": 1,
                "parent": self._parent(),
                "result": self._result(),
                "kept": kept,
                "removed": self.removed,
            },
        }

    def _must_be_named(self, entry: Entry) -> bool:
        """The public reader drops tensors that a delta does not name."""
        return self.wish.strategy in ("sparse", "quantized", "int4") and _sums(entry)

    def _change(
        self, entry: Entry, before: Entry | None, about: dict[str, Any], same: bool
    ) -> tuple[dict[str, Any], int, float]:
        """What the header says of a tensor whose records are written; their bytes, and the error."""
        if before is None:
            about["new"] = True
        exact = self.wish.strategy == EXACT or (self.wish.strategy == AUTO and self.wish.budget == 0)
        if before is None or exact or entry.spec.shape != before.spec.shape or not (_sums(entry) and _sums(before)):
            return self._exact(entry, before, about)
        if same:
            return self._lossy("sparse", entry, before, about, {"unchanged": True})
        if self.wish.strategy == AUTO:
            return self._smallest(entry, before, about)
        return self._lossy(self.wish.strategy, entry, before, about, self.wish.options)

    def _smallest(self, entry: Entry, before: Entry, about: dict[str, Any]) -> tuple[dict[str, Any], int, float]:
        """Of all kinds within the budget the smallest. Each is made, and made again if one after it was no better."""
        start = self._writer.at
        trials: dict[str, Callable[[], tuple[dict[str, Any], int, float]]] = {
            strategy: lambda strategy=strategy: self._lossy(strategy, entry, before, dict(about), {"budget": self.wish.budget})  # type: ignore[misc]
            for strategy in KINDS.lines
            if issubclass(KINDS[strategy], Additive)
        }
        trials[EXACT] = lambda: self._exact(entry, before, dict(about))
        sizes = {}
        for strategy, trial in trials.items():
            self._writer.at = start
            try:
                _, nbytes, error = trial()
            except UnsupportedError:  # a difference that is not finite, or no rank that is small enough
                continue
            if error <= self.wish.budget:
                sizes[strategy] = nbytes
        self._writer.at = start
        return trials[min(sizes, key=sizes.__getitem__)]()

    def _exact(self, entry: Entry, before: Entry | None, about: dict[str, Any]) -> tuple[dict[str, Any], int, float]:
        kind, parts = KINDS[EXACT], dict[str, Any]()
        stored, written, rebuilt = blake3(), list[Written](), blake3()
        for part, part_spec in entry.parts.items():
            spec = array_spec(part_spec)
            tuned = stored_elements(self.tuned, entry, part, spec)
            base = stored_elements(self.base, before, part, spec)
            own: dict[str, Any] = {}
            prefix = "" if entry.codec == RAW else f"{part}."
            records = list(self._put(entry.name, kind.make(base, tuned, spec, own), prefix))
            written += records
            for piece in self._rebuilt(kind, spec, own, records, base, spec.dtype):
                rebuilt.update(piece.view(np.uint8).data)
            parts[part] = {"shape": list(part_spec.shape), "dtype": DTYPE_NAMES[part_spec.dtype], **own}
        if rebuilt.hexdigest() != about["digest"]:
            raise UnsupportedError("its values changed while the delta was made", code="E_SOURCE_CHANGED", tensor=entry.name)
        about |= parts["data"] if entry.codec == RAW else {"codec": entry.codec.as_json(), "parts": parts}
        return self._line(EXACT, about, written, stored), sum(each.nbytes for each in written), 0.0

    def _lossy(
        self, strategy: str, entry: Entry, before: Entry, about: dict[str, Any], options: Mapping[str, Any]
    ) -> tuple[dict[str, Any], int, float]:
        kind, spec = KINDS[strategy], TensorSpec(entry.spec.shape, DType.F32)
        base, tuned = elements_of(self.base, before), elements_of(self.tuned, entry)
        own: dict[str, Any] = {}
        try:
            written = list(self._put(entry.name, kind.make(base, tuned, spec, own, **options), ""))
        except FlyweightError as error:
            raise error.at(tensor=entry.name) from None
        digest, noise, signal = blake3(), 0.0, 0.0
        pieces = self._rebuilt(kind, spec, own, written, base, result_dtype(before.spec.dtype))
        for (start, stop), piece in zip(ranges(spec.size, _AT_ONCE), pieces, strict=True):
            digest.update(piece.view(np.uint8).data)
            wanted, there = tuned(start, stop).astype(np.float32), base(start, stop).astype(np.float32)
            noise += float(np.square(piece.astype(np.float32) - wanted).sum(dtype=np.float64))
            signal += float(np.square(wanted - there).sum(dtype=np.float64))
        about |= {"dtype": "float32", "digest": digest.hexdigest(), **own}
        share = sqrt(noise / signal) if signal else 0.0 if not noise else float("inf")
        return self._line(strategy, about, written, blake3()), sum(each.nbytes for each in written), share

    def _put(self, tensor: str, records: Iterable[Record], prefix: str) -> Iterator[Written]:
        for record in records:
            yield self._writer.put(tensor, record._replace(field=prefix + record.field))

    def _rebuilt(
        self,
        kind: type[Kind],
        spec: TensorSpec,
        about: Mapping[str, Any],
        written: Sequence[Written],
        base: Elements,
        dtype: DType,
    ) -> Iterator[Array]:
        """The array that the records give, a few chunks at a time."""
        source = FileSource(self._path)
        arrays = {
            field: FileArray(source, Extent("", each.offset, each.nbytes), each.dtype)
            for field, each in zip(kind.fields, written, strict=True)
        }
        delta = kind(spec, about, arrays)
        delta.check()

        def rebuild(where: tuple[int, int]) -> Array:
            out = np.empty(where[1] - where[0], dtype.storage)
            delta.rebuild(*where, base(*where), out)
            return out

        return in_order(rebuild, ranges(spec.size, _AT_ONCE))

    def _line(self, strategy: str, about: Mapping[str, Any], written: Sequence[Written], stored: Any) -> dict[str, Any]:
        source = FileSource(self._path)
        for each in written:
            for at in range(each.offset, each.offset + each.nbytes, 1 << 20):
                stored.update(source.read(at, min(1 << 20, each.offset + each.nbytes - at)))
        shown = {key: about[key] for key in ("shape", "dtype")}
        rest = {key: value for key, value in about.items() if key not in shown}
        refs = {each.field: {"_ref": each.field} for each in written}
        return {"strategy": strategy, **shown, **rest, "stored_digest": stored.hexdigest(), **refs}

    # Around the tensors ---------------------------------------------------------------------------

    def _parent(self) -> dict[str, Any]:
        place = os.path.relpath(_place(self.base), self.destination.parent)
        found = {"name": os.path.basename(_place(self.base)), "format": self.base.manifest.format}
        return found | {"path": place, "tensors": len(self.base.manifest.entries)}

    def _result(self) -> dict[str, Any]:
        before, after = self.base.manifest, self.tuned.manifest
        if after.metadata != before.metadata:
            self._writer.put_bytes(METADATA, typed_json.dumps(after.metadata).encode())
        found = {"name": os.path.basename(_place(self.tuned)), "format": after.format}
        return found | ({"dialect": after.dialect} if after.dialect != before.dialect else {})

    def _side_files(self) -> dict[str, Any]:
        before, after, files = self.base.manifest.files, self.tuned.manifest.files, dict[str, Any]()
        for name, content in after.items():
            size = len(content) if isinstance(content, bytes) else content.nbytes
            if size > MAX_FILE_BYTES and name in before and _same_file(self.base, self.tuned, name):
                continue
            if size > MAX_FILE_BYTES:
                hint = f"a delta holds side files of up to {MAX_FILE_BYTES >> 20} MB: move it out of the directory"
                raise UnsupportedError(f"the side file '{name}' has {size} bytes", code="E_DELTA_FILE", hint=hint)
            new = self.tuned.read(content)
            old = self.base.read(before[name]) if name in before else b""
            if name in before and old == new:
                continue
            self._writer.put_bytes(FILE + name, make_patch(old, new))
            files[name] = {"nbytes": len(new), "digest": blake3(new).hexdigest()}
        self.files, self.removed_files = list(files), [name for name in before if name not in after]
        return {"files": files, "removed_files": self.removed_files}


def _place(checkpoint: Checkpoint) -> str:
    """Where a checkpoint is: that of deltas, where the last of them is."""
    return checkpoint.delta_places[-1] if checkpoint.delta_places else os.path.abspath(checkpoint.bundle.name)


def _digests(checkpoint: Checkpoint) -> dict[str, str]:
    names = list(checkpoint.manifest.entries)
    return dict(zip(names, in_order(lambda name: tensor_digest(checkpoint, name), names), strict=True))


def _same_file(a: Checkpoint, b: Checkpoint, name: str) -> bool:
    one, other = a.manifest.files[name], b.manifest.files[name]
    assert isinstance(one, Extent)
    assert isinstance(other, Extent)
    return one.nbytes == other.nbytes and a.source(one.file).digest(one.offset, one.nbytes) == b.source(other.file).digest(
        other.offset, other.nbytes
    )


def _described(entry: Entry) -> dict[str, Any]:
    codec = {} if entry.codec == RAW else {"codec": entry.codec.as_json()}
    return {"shape": list(entry.spec.shape), "dtype": DTYPE_NAMES[entry.spec.dtype]} | codec


def _alike(a: Entry, b: Entry) -> bool:
    return (a.spec, a.codec) == (b.spec, b.codec) and dict(a.parts) == dict(b.parts)


def _sums(entry: Entry) -> bool:
    """Whether numbers can be added to a tensor and give one of its own type."""
    return entry.codec == RAW and result_dtype(entry.spec.dtype) is entry.spec.dtype
