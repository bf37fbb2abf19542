"""`delta log` and `delta inspect`: what deltas say of themselves, without reading weights."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flyweight.checkpoint.model_opening import MAX_CHAIN, base_place, read_delta, too_long
from flyweight.deltas.changes import Delta
from flyweight.deltas.recognition import is_delta
from flyweight.sources import open_bundle


@dataclass(frozen=True, slots=True)
class DeltaSummary:
    path: str
    nbytes: int
    strategy: str
    exact: bool
    base: str
    """What it was made from, and where that is now; None if it is not there, or the file does not say."""
    base_path: str | None
    result: str
    strategies: dict[str, int]
    """How many tensors are stored in which way; `unchanged` are the base's."""
    tensors: tuple[dict[str, Any], ...]
    files: tuple[str, ...]
    removed_files: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def inspect_delta(path: Path | str) -> DeltaSummary:
    with closing(open_bundle(path)) as bundle:
        delta = read_delta(bundle)
        return _summary(delta, str(path), sum(source.size for source in bundle.values()))


def delta_log(path: Path | str) -> Iterator[DeltaSummary]:
    """A delta and those it is made on, the newest first, as far as they say where they are."""
    seen = set[str]()
    while len(seen) < MAX_CHAIN and (real := os.path.realpath(path)) not in seen:
        seen.add(real)
        summary = inspect_delta(path)
        yield summary
        if summary.base_path is None or not is_delta_at(summary.base_path):
            return
        path = summary.base_path
    raise too_long(str(path))


def is_delta_at(path: Path | str) -> bool:
    with closing(open_bundle(path)) as bundle:
        return is_delta(bundle)


def _summary(delta: Delta, path: str, nbytes: int) -> DeltaSummary:
    place = base_place(delta)
    counts = Counter(change.strategy for change in delta.changes.values())
    counts["unchanged"] += len(delta.kept or ())
    tensors = (
        {"name": c.name, "strategy": c.strategy, "shape": list(c.spec.shape), "nbytes": c.nbytes, "parent": c.parent or c.twin}
        for c in delta.changes.values()
    )
    return DeltaSummary(
        path=path,
        nbytes=nbytes,
        strategy=delta.strategy,
        exact=delta.is_exact,
        base=delta.parent.name,
        base_path=str(place) if place is not None and os.path.exists(place) else None,
        result=delta.result.name,
        strategies={name: count for name, count in counts.items() if count},
        tensors=tuple(tensors),
        files=tuple(delta.patches),
        removed_files=delta.removed_files,
    )
