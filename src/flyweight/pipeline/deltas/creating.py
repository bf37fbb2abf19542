"""`delta create`: what makes a base into a fine-tune, as a .wdelta file. Tensors are taken in the order of their names."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from blake3 import blake3

from flyweight.checkpoint import Checkpoint, open_checkpoint
from flyweight.checkpoint.overlay import Overlay
from flyweight.checkpoint.tensor_bytes import stored_bytes, tensor_digest
from flyweight.containers.container import Image
from flyweight.deltas import KINDS
from flyweight.deltas.file_patch import make_patch
from flyweight.deltas.in_order import in_order
from flyweight.deltas.kinds.low_rank_delta import LowRankDelta
from flyweight.deltas.wdelta_file import DTYPE_NAMES, FILE, FLYWEIGHT, MAX_FILE_BYTES, METADATA
from flyweight.deltas.wdelta_writing import RecordWriter
from flyweight.foundation import typed_json
from flyweight.foundation.errors import ArgumentError, UnsupportedError, nearest
from flyweight.foundation.manifest import Entry, Extent
from flyweight.foundation.tensor import RAW
from flyweight.pipeline.deltas.delta_report import CreateReport, TensorDelta
from flyweight.pipeline.deltas.pairing import parents
from flyweight.pipeline.deltas.tensor_making import AUTO, EXACT, LOW_RANK, TensorMaker, Wish
from flyweight.pipeline.execution import Progress
from flyweight.pipeline.output.replacing import require_apart
from flyweight.pipeline.output.staging import Staging, published
from flyweight.pipeline.plans.arguments import as_path

DEFAULT_RANK = 16
"""Of low-rank deltas, as of most LoRA adapters."""
_PART_HEADER = 1536
_HEADER = 1 << 16
"""What the header takes at most for a part of a tensor or a side file, beside names and codecs, and for everything else."""


def create_delta(
    base: Path | str | Checkpoint,
    tuned: Path | str | Checkpoint,
    destination: Path | str,
    *,
    strategy: str = EXACT,
    budget: float | None = None,
    products: Mapping[str, LowRankDelta] | None = None,
    force: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> CreateReport:
    """Write what makes `base` into `tuned`, models of any format, to a .wdelta file.

    `strategy` is exact, which gives every bit back; a lossy one for the floating weights; or auto: for each tensor the smallest
    of all that leaves at most `budget` of the difference, as a share of its Euclidean norm. `options` are of the strategy.
    Where `products` are given, those tensors are stored as these products, bit for bit, and every other exactly.
    """
    started = time.perf_counter()
    destination = Path(os.path.abspath(as_path("destination", destination)))
    _check_arguments(strategy, budget, options)
    if strategy == LOW_RANK and budget is None:
        options.setdefault("rank", DEFAULT_RANK)
    if force:
        require_apart(destination, [place for place in (base, tuned) if not isinstance(place, Checkpoint)])
    with ExitStack() as opened:
        pair = [
            place if isinstance(place, Checkpoint) else opened.enter_context(open_checkpoint(place, checks_digests=True))
            for place in (base, tuned)
        ]
        making = _Making(pair[0], pair[1], Wish(strategy, budget or 0.0, options, products), destination, progress)
        staging = Staging(destination, [destination.name], is_directory=False, fingerprint="", resume=False, force=force)
        with published(staging):
            nbytes = making.write(staging)
    return CreateReport(
        base=_shown(pair[0]), tuned=_shown(pair[1]), destination=str(destination), strategy=strategy, nbytes=nbytes,
        tuned_nbytes=pair[1].manifest.nbytes, seconds=round(time.perf_counter() - started, 3), tensors=tuple(making.reports),
        removed=tuple(making.removed), files=tuple(making.files), removed_files=tuple(making.removed_files),
    )  # fmt: skip


def _check_arguments(strategy: str, budget: float | None, options: Mapping[str, Any]) -> None:
    known = (AUTO, *KINDS.lines)
    if strategy not in known:
        raise ArgumentError(f"no strategy named '{strategy}'{nearest(strategy, known)}", hint=f"known: {', '.join(known)}")
    if budget is not None and not 0 <= budget < 1:
        raise ArgumentError(f"a budget is a share of the difference, from 0 to 1, not {budget}")
    if budget and strategy not in (AUTO, LOW_RANK):
        raise ArgumentError(f"strategy {strategy} takes no budget", hint="use auto or lowrank")
    for name in options.keys() - (KINDS[strategy].options if strategy != AUTO else ()):
        raise ArgumentError(f"strategy {strategy} has no option '{name:.40}'")


class _Making:
    """One delta in the making."""

    def __init__(self, base: Checkpoint, tuned: Checkpoint, wish: Wish, destination: Path, progress: Progress | None) -> None:
        self.base, self.tuned, self.wish, self.destination, self.progress = base, tuned, wish, destination, progress
        for checkpoint in (base, tuned):
            checkpoint.manifest.require_readable()
        self.reports: list[TensorDelta] = []
        self.removed: list[str] = []
        self.files: list[str] = []
        self.removed_files: list[str] = []

    def write(self, staging: Staging) -> int:
        name = self.destination.name
        staging.allocate({name: Image(0, ())})
        self._writer = RecordWriter(lambda at, data: staging.write(name, at, data), self._most_header())
        maker = TensorMaker(self.base, self.tuned, self.wish, self._writer, staging.out / name)
        with closing(_ParentHash(self.base)) as hashed:
            header = self._tensors(maker, hashed)
        header[FLYWEIGHT] |= self._side_files()
        nbytes = self._writer.finish(header, lambda at, nbytes: staging.read(Extent(name, at, nbytes)))
        staging.cut(name, nbytes)
        return nbytes

    def _most_header(self) -> int:
        """What the header can take at most: records are written behind it. A character takes up to six bytes."""
        models = (self.base.manifest, self.tuned.manifest)
        names = sum(len(name) for model in models for name in (*model.entries, *model.files))
        tensors = sum(len(entry.parts) * _PART_HEADER + len(str(entry.codec.as_json())) for entry in models[1].entries.values())
        return _HEADER + 4 * 6 * names + tensors + sum(len(model.files) * _PART_HEADER for model in models)

    # Tensors --------------------------------------------------------------------------------------

    def _tensors(self, maker: TensorMaker, hashed: _ParentHash) -> dict[str, Any]:
        digests, before = _digests(self.tuned), _digests(self.base)
        made_from = parents(self.base, self.tuned, digests, before)
        kept, described, twins = dict[str, str](), dict[str, dict[str, Any]](), dict[tuple[Any, ...], str]()
        for name in self._order(maker, made_from):
            entry, parent = self.tuned.manifest.entries[name], made_from.get(name)
            old = None if parent is None else self.base.manifest.entries[parent]
            unchanged = old is not None and digests[name] == before[old.name] and _alike(entry, old)
            about = _described(entry) | {"digest": digests[name]}
            nbytes, error, strategy = 0, 0.0, "same"
            named = maker.must_be_named(entry)
            twin = twins.get((entry.spec, entry.codec, digests[name]))
            if twin is not None and not unchanged and not named:
                described[name] = {"strategy": "same", **about, "digest": described[twin]["digest"], "twin": twin}
            elif unchanged and parent == name and not named:
                kept[name], strategy = digests[name], "unchanged"
            elif unchanged and parent != name:
                described[name] = {"strategy": "same", **about, "parent": parent, "parent_digest": digests[name]}
            else:
                if old is not None:
                    about |= {"parent": old.name} if old.name != name else {}
                    about |= {"parent_spec": _spec_of(old), "parent_digest": before[old.name]}
                    hashed.add(name, old.name)
                described[name], nbytes, error = maker.make(entry, old, about, unchanged=unchanged)
                twins[entry.spec, entry.codec, digests[name]], strategy = name, described[name]["strategy"]
            self.reports.append(TensorDelta(name, strategy, entry.nbytes, nbytes, error, parent if parent != name else None))
            if self.progress is not None:
                self.progress(name, entry.nbytes, self.tuned.manifest.nbytes)
        used = set(made_from.values())
        self.removed = [name for name in self.base.manifest.entries if name not in used]
        ours = {"version": 1, "parent": self._parent(), "result": self._result(), "kept": kept, "removed": self.removed}
        tensors = dict(sorted(described.items()))
        return {"parent_hash": hashed.hexdigest(), "strategy": self.wish.strategy, "tensors": tensors, FLYWEIGHT: ours}

    def _order(self, maker: TensorMaker, made_from: Mapping[str, str]) -> list[str]:
        """By name, but tensors of one file of the base together, as the public reader hashes a base of several files."""
        entries, base = self.tuned.manifest.entries, self.base.manifest.entries

        def file_of(name: str) -> str | None:
            return next(iter(base[made_from[name]].extents.values())).file if name in made_from else None

        named = (name for name in sorted(entries) if maker.must_be_named(entries[name]))
        rank = {file: at for at, file in enumerate(dict.fromkeys(map(file_of, named)))}
        return sorted(entries, key=lambda name: (rank.get(file_of(name), len(rank)), name))

    # Around the tensors ---------------------------------------------------------------------------

    def _parent(self) -> dict[str, Any]:
        place = os.path.relpath(_place(self.base), self.destination.parent)
        found = {"name": os.path.basename(_place(self.base)), "format": self.base.manifest.format}
        return found | {"path": place, "tensors": len(self.base.manifest.entries)}

    def _result(self) -> dict[str, Any]:
        before, after = self.base.manifest, self.tuned.manifest
        found = {"name": _result_name(self.tuned), "format": after.format}
        if after.metadata != before.metadata:
            metadata = typed_json.dumps(after.metadata).encode()
            self._writer.put_bytes(METADATA, metadata)
            found["metadata_digest"] = blake3(metadata).hexdigest()
        return found | ({"dialect": after.dialect} if after.dialect != before.dialect else {})

    def _side_files(self) -> dict[str, Any]:
        before, after, files = self.base.manifest.files, self.tuned.manifest.files, dict[str, Any]()
        left = MAX_FILE_BYTES
        for name, content in after.items():
            if name in before and _same_file(self.base, self.tuned, name):
                continue
            left -= len(content) if isinstance(content, bytes) else content.nbytes
            if left < 0:
                hint = f"a delta holds {MAX_FILE_BYTES >> 20} MB of side files that differ: move '{name}' out of the directory"
                raise UnsupportedError("the side files that differ are too large", code="E_DELTA_FILE", hint=hint)
            new = self.tuned.read(content)
            old = self.base.read(before[name]) if name in before else b""
            self._writer.put_bytes(FILE + name, make_patch(old, new))
            files[name] = {"nbytes": len(new), "digest": blake3(new).hexdigest()}
        self.files, self.removed_files = list(files), [name for name in before if name not in after]
        return {"files": files, "removed_files": self.removed_files}


class _ParentHash:
    """The SHA-256 of names and tensors, in the order in which they are added, computed beside everything else."""

    def __init__(self, base: Checkpoint) -> None:
        self._base, self._digest = base, hashlib.sha256()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="parent hash")
        self._last: Future[None] | None = None

    def add(self, name: str, parent: str) -> None:
        self._last = self._thread.submit(self._add, name, parent, self._last)

    def _add(self, name: str, parent: str, before: Future[None] | None) -> None:
        if before is not None:
            before.result()  # of an error that came before, nobody else tells
        self._digest.update(name.encode())
        for piece in stored_bytes(self._base, parent):
            self._digest.update(piece)

    def hexdigest(self) -> str:
        if self._last is not None:
            self._last.result()
        return self._digest.hexdigest()

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)


def _place(checkpoint: Checkpoint) -> str:
    """Where a checkpoint is: that of deltas, where the last of them is."""
    return checkpoint.delta_places[-1] if checkpoint.delta_places else os.path.abspath(checkpoint.bundle.name)


def _shown(checkpoint: Checkpoint) -> str:
    """The same for people: as it was given."""
    return checkpoint.delta_places[-1] if checkpoint.delta_places else checkpoint.bundle.name


def _result_name(tuned: Checkpoint) -> str:
    """What deltas make has the name that the last of them has for it."""
    own = tuned.delta.result.name if isinstance(tuned, Overlay) else ""
    return own or os.path.basename(_place(tuned))


def _digests(checkpoint: Checkpoint) -> dict[str, str]:
    names = list(checkpoint.manifest.entries)
    return dict(zip(names, in_order(lambda name: tensor_digest(checkpoint, name), names), strict=True))


def _same_file(a: Checkpoint, b: Checkpoint, name: str) -> bool:
    digests = set()
    for checkpoint in (a, b):
        content = checkpoint.manifest.files[name]
        if isinstance(content, bytes):
            digests.add(blake3(content).hexdigest())
        else:
            digests.add(checkpoint.source(content.file).digest(content.offset, content.nbytes))
    return len(digests) == 1


def _spec_of(entry: Entry) -> dict[str, Any]:
    return {"shape": list(entry.spec.shape), "dtype": DTYPE_NAMES[entry.spec.dtype]}


def _described(entry: Entry) -> dict[str, Any]:
    return _spec_of(entry) | ({} if entry.codec == RAW else {"codec": entry.codec.as_json()})


def _alike(a: Entry, b: Entry) -> bool:
    return (a.spec, a.codec) == (b.spec, b.codec) and dict(a.parts) == dict(b.parts)
