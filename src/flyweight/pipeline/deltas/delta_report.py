"""What was done for a delta, for people and programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TensorDelta:
    """One tensor of the fine-tune."""

    name: str
    strategy: str
    """`unchanged` and `same`, which take no bytes, or how it is stored."""
    nbytes: int
    delta_nbytes: int
    error: float
    """What is left of the difference, as a share of its Euclidean norm."""
    parent: str | None = None
    """Its name in the base, if that is another."""


@dataclass(frozen=True, slots=True)
class CreateReport:
    base: str
    tuned: str
    destination: str
    strategy: str
    nbytes: int
    tuned_nbytes: int
    seconds: float
    tensors: tuple[TensorDelta, ...]
    removed: tuple[str, ...]
    """Tensors of the base that the fine-tune has not."""
    files: tuple[str, ...]
    removed_files: tuple[str, ...]

    @property
    def ratio(self) -> float:
        return self.tuned_nbytes / self.nbytes

    @property
    def error(self) -> float:
        """The greatest of all tensors'."""
        return max((tensor.error for tensor in self.tensors), default=0.0)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": round(self.ratio, 3), "error": self.error}
