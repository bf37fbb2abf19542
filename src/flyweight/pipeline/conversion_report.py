"""The report of a conversion: what was done to each tensor, and its error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import inf, isfinite, log10, nan, sqrt
from typing import Any

import numpy as np

from flyweight import kernels
from flyweight.codecs import Array
from flyweight.codecs.casts import as_float, astype
from flyweight.foundation.dtypes import DType
from flyweight.foundation.manifest import Entry
from flyweight.foundation.tensor import RAW

_RUN = 1 << 14


def squares(a: Array) -> float:
    """a · a: runs of 16 K in float32 (relative error at worst 2^14 · 2^-24, in practice 1e-6), summed in double."""
    whole = a.size - a.size % _RUN
    runs = np.einsum("ij,ij->i", a[:whole].reshape(-1, _RUN), a[:whole].reshape(-1, _RUN))
    return float(runs.sum(dtype=np.float64)) + float(a[whole:] @ a[whole:])


@dataclass(slots=True)
class Drift:
    """How far values moved, gathered slab by slab."""

    signal: float = 0.0
    noise: float = 0.0
    other: float = 0.0
    max_error: float = 0.0
    count: int = 0
    differing: int = 0

    def add(self, reference: Array, values: Array) -> None:
        """Compare a slab. NaN in the same place counts as equal, anywhere else as an infinite error."""
        self.count += reference.size
        if reference.dtype.itemsize <= 4 and values.dtype.itemsize <= 4 and reference.dtype.kind not in "iu":
            x, y, measured = as_float(reference), astype(values, DType.F32.numpy), np.empty((1, 5))
            kernels.error_sums(x.reshape(1, -1), y.reshape(1, -1), measured)
            *sums, largest, differing = measured[0].tolist()
            if isfinite(largest):
                self._gather(sums, largest, int(differing))
                return
        self._add_exactly(reference, values)

    @np.errstate(all="ignore")
    def _add_exactly(self, reference: Array, values: Array) -> None:
        """In double precision, with NaN and infinity sorted out."""
        x, y = (a.astype(np.float64, copy=False).reshape(-1) for a in (reference, values))
        differs = ~((x == y) | (np.isnan(x) & np.isnan(y)))
        error = np.abs(np.where(differs, x - y, 0.0))
        error = np.where(np.isnan(error), inf, error)
        x, y = (np.nan_to_num(a, posinf=0, neginf=0) for a in (x, y))
        sums = [float(a @ a) for a in (error, x, y)]
        self._gather(sums, float(error.max(initial=0)), int(np.count_nonzero(differs)))

    def _gather(self, sums: list[float], max_error: float, differing: int) -> None:
        noise, signal, other = sums
        self.noise += noise
        self.signal += signal
        self.other += other
        self.max_error = max(self.max_error, max_error)
        self.differing += differing

    @property
    def relative_error(self) -> float:
        """‖x − y‖ / ‖x‖."""
        if self.noise == 0:
            return 0.0
        return sqrt(self.noise / self.signal) if self.signal else inf

    @property
    def snr_db(self) -> float:
        error = self.relative_error
        return inf if error == 0 else -20 * log10(error) if error < inf else -inf

    @property
    def cosine(self) -> float:
        """By the law of cosines, from the difference: near 1 a product of long vectors has lost what counts."""
        a, b = sqrt(self.signal), sqrt(self.other)
        if a * b == 0 or self.noise == inf:
            return 1.0 if self.noise == 0 else 0.0
        return max(-1.0, min(1.0, 1 - (self.noise - (a - b) ** 2) / (2 * a * b)))


@dataclass(frozen=True, slots=True)
class TensorReport:
    name: str
    action: str
    codec: str
    weights: int
    nbytes: int
    bits_per_weight: float
    relative_error: float
    """‖x − y‖ / ‖x‖ and the largest |x − y|; NaN where they were not measured."""
    max_error: float

    @classmethod
    def of(cls, action: str, target: Entry, drift: Drift | None) -> TensorReport:
        return cls(
            name=target.name,
            action=action,
            codec=target.spec.dtype.label if target.codec == RAW else str(target.codec),
            weights=target.spec.size,
            nbytes=target.nbytes,
            bits_per_weight=round(target.bits_per_weight, 4),
            relative_error=drift.relative_error if drift else nan,
            max_error=drift.max_error if drift else nan,
        )


@dataclass(frozen=True, slots=True)
class ConversionReport:
    source: str
    destination: str
    format: str
    recipe: str
    nbytes: int
    seconds: float
    resumed: int
    """Tensors taken over from an interrupted run."""
    tensors: tuple[TensorReport, ...]
    notes: tuple[str, ...] = field(default=())
    gate: Mapping[str, Any] | None = None
    """The verdict of the accuracy gate, if there was one."""
    check: Mapping[str, Any] | None = None
    """What the result costs beside its source, if that was measured."""

    @property
    def bits_per_weight(self) -> float:
        weights = sum(tensor.weights for tensor in self.tensors)
        return 8 * sum(tensor.nbytes for tensor in self.tensors) / weights if weights else 0.0

    @property
    def relative_error(self) -> float:
        """Root mean square of the tensors' relative errors, weighted by their size."""
        weights = sum(tensor.weights for tensor in self.tensors)
        return sqrt(sum(t.weights * t.relative_error**2 for t in self.tensors) / weights) if weights else 0.0

    @property
    def max_error(self) -> float:
        return max((tensor.max_error for tensor in self.tensors), default=0.0)

    def as_json(self) -> dict[str, Any]:
        summary = {
            "bits_per_weight": round(self.bits_per_weight, 4),
            "relative_error": self.relative_error,
            "max_error": self.max_error,
        }
        return asdict(self) | summary
