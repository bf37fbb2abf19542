"""`diff`: two checkpoints of any formats, tensor by tensor.

When the two name their tensors differently both are brought to Hugging Face names, with the row
moves that go with them, so that a GGUF and the directory it came from compare equal. Tensors are
compared as stored where that is possible, as values otherwise, slab by slab in bounded memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from flyweight.checkpoint import Checkpoint, open_checkpoint
from flyweight.codecs import known
from flyweight.containers.container import Finding
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.tensor import has_rows
from flyweight.models import Renamed, rename_tensors
from flyweight.pipeline.conversion_report import Drift
from flyweight.pipeline.draft import without_draft
from flyweight.pipeline.rows import decode_rows, read_rows, slabs


@dataclass(frozen=True, slots=True)
class TensorDiff:
    """`status`: identical (every value equal), close (differs), shape, only_a, only_b, opaque (unknown codec, bytes differ)."""

    name: str
    status: str
    snr_db: float | None = None
    cosine: float | None = None
    max_error: float | None = None
    relative_error: float | None = None
    differing: int = 0
    weights: int = 0
    detail: str = ""

    def as_json(self) -> dict[str, Any]:
        fields = {slot: getattr(self, slot) for slot in self.__slots__}
        return {key: None if isinstance(v, float) and not isfinite(v) else v for key, v in fields.items()}


@dataclass(frozen=True, slots=True)
class DiffReport:
    a: str
    b: str
    tensors: tuple[TensorDiff, ...]
    findings: tuple[tuple[str, Finding], ...] = ()
    """What is wrong with other weights that lie beside those compared, after the side: a or b."""

    @property
    def identical(self) -> bool:
        equal = all(tensor.status == "identical" for tensor in self.tensors)
        return equal and not any(finding.level == "error" for _, finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        tensors = [tensor.as_json() for tensor in self.tensors]
        findings = [{"side": side} | asdict(finding) for side, finding in self.findings]
        return {"a": self.a, "b": self.b, "identical": self.identical, "tensors": tensors, "findings": findings}


def diff(
    a: Path | str,
    b: Path | str,
    *,
    deltas: Sequence[Path | str] = (),
    progress: Callable[[str, int, int], None] | None = None,
) -> DiffReport:
    """Compare two checkpoints, the first with deltas on it."""
    with open_checkpoint(a, deltas=deltas, checks_digests=True) as first, open_checkpoint(b, checks_digests=True) as second:
        same_naming = first.manifest.dialect == second.manifest.dialect
        both_draft = all(without_draft(c.manifest) is not c.manifest for c in (first, second))
        names_a, names_b = (_names(checkpoint, same_naming, both_draft) for checkpoint in (first, second))
        results = []
        for name in names_a | names_b:
            if name not in names_b:
                results.append(TensorDiff(name, "only_a"))
            elif name not in names_a:
                results.append(TensorDiff(name, "only_b"))
            else:
                results.append(_compare(name, first, names_a[name], second, names_b[name]))
            if progress is not None:
                progress(name, 1, len(names_a | names_b))
        return DiffReport(str(a), str(b), tuple(results))


def _names(checkpoint: Checkpoint, as_they_are: bool, with_draft: bool) -> dict[str, tuple[str, Renamed]]:
    """Common name → (own name, how it maps). A draft head is no part of the model: two are compared, one is left out."""
    compared = checkpoint.manifest if with_draft else without_draft(checkpoint.manifest)
    if as_they_are:
        return {name: (name, Renamed(name, None)) for name in compared.entries}
    renamed = rename_tensors(compared, "hf", checkpoint.read)
    return {target.name: (name, target) for name, target in renamed.items()}


def _compare(name: str, a: Checkpoint, in_a: tuple[str, Renamed], b: Checkpoint, in_b: tuple[str, Renamed]) -> TensorDiff:
    (name_a, way_a), (name_b, way_b) = in_a, in_b
    entry_a, entry_b = a.manifest.entries[name_a], b.manifest.entries[name_b]
    if entry_a.spec.shape != entry_b.spec.shape:
        return TensorDiff(name, "shape", detail=f"{entry_a.spec} and {entry_b.spec}")
    weights = entry_a.spec.size
    stored_alike = entry_a.codec == entry_b.codec and entry_a.spec == entry_b.spec and way_a.transform == way_b.transform
    if not (known(entry_a.codec) and known(entry_b.codec)):
        equal = stored_alike and _same_bytes(a, name_a, b, name_b)
        for checkpoint, codec in ((a, entry_a.codec), (b, entry_b.codec)):
            if codec.is_foreign and not equal:
                raise codec.unreadable().at(file=checkpoint.bundle.name, tensor=name)
        return TensorDiff(name, "identical" if equal else "opaque", weights=weights, detail="" if equal else "unknown codec")
    drift = Drift()
    by_rows = has_rows(entry_a.spec, entry_a.parts) and has_rows(entry_b.spec, entry_b.parts)
    try:
        for start, stop in slabs(entry_a.spec, by_rows):
            slab_a = read_rows(a, name_a, start, stop, way_a.transform)
            slab_b = read_rows(b, name_b, start, stop, way_b.transform)
            drift.add(decode_rows(slab_a, way_a.transform), decode_rows(slab_b, way_b.transform))
    except FlyweightError as error:
        raise error.at(tensor=name) from None
    if drift.differing == 0:
        return TensorDiff(name, "identical", weights=weights)
    return TensorDiff(
        name,
        "close",
        snr_db=drift.snr_db,
        cosine=drift.cosine,
        max_error=drift.max_error,
        relative_error=drift.relative_error,
        differing=drift.differing,
        weights=weights,
    )


def _same_bytes(a: Checkpoint, name_a: str, b: Checkpoint, name_b: str) -> bool:
    parts_a, parts_b = a.encoded(name_a).parts, b.encoded(name_b).parts
    return set(parts_a) == set(parts_b) and all(
        np.array_equal(part.reshape(-1).view(np.uint8), parts_b[key].reshape(-1).view(np.uint8))
        for key, part in parts_a.items()
    )
