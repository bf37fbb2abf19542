"""What an output costs that is taken for its source: measured before it appears, and kept in its metadata.

    flyweight.check = "kl=0.00231 kl_low=0.0022 kl_high=0.00242 perplexity=… source_perplexity=… perplexity_ratio=… …
                       tokens=2032 source=model.gguf"

The record is ASCII without quotes and without backslashes, and is padded with spaces to one length, so that in every format it
takes as many bytes as the text that holds its place until something is known (`RESERVED`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import isnan
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote

from flyweight.foundation.accuracy_gate import Interval
from flyweight.foundation.manifest import Typed

KEY = "flyweight.check"
_NBYTES = 384
_MOST_OF_A_TEXT = 96
RESERVED = Typed("str", "not known yet".ljust(_NBYTES))
_ANOTHER = 1.0
"""A KL divergence of which a model is another one."""
_FIGURES = ("kl", "perplexity", "source_perplexity", "perplexity_ratio")


@dataclass(frozen=True, slots=True)
class SourceCheck:
    source: str
    """What it was held against."""
    kl: Interval | None = None
    """KL(source ‖ output) in nats a token."""
    perplexity: Interval | None = None
    source_perplexity: Interval | None = None
    perplexity_ratio: Interval | None = None
    predicted: int = 0
    """How many tokens of text it was measured on."""
    reason: str = ""
    """Why nothing was measured."""

    @property
    def same_model(self) -> bool:
        return self.kl is not None and self.kl.high <= _ANOTHER

    def as_json(self) -> dict[str, Any]:
        figures = {name: None if (x := getattr(self, name)) is None else x._asdict() for name in _FIGURES}
        return asdict(self) | figures | {"same_model": self.same_model}

    def typed(self) -> Typed:
        """As metadata have it."""
        return Typed("str", " ".join(f"{key}={value}" for key, value in self._fields().items()).ljust(_NBYTES))

    def _fields(self) -> dict[str, str]:
        said = {"reason": _plain(self.reason)} if self.reason else {}
        for name in _FIGURES:
            if (found := getattr(self, name)) is not None:
                said |= {name + end: f"{value:.6g}" for end, value in zip(_ENDS, found, strict=True)}
        return said | {"tokens": str(self.predicted), "source": _plain(Path(self.source).name)}

    @classmethod
    def recorded(cls, metadata: Mapping[str, Typed]) -> SourceCheck | None:
        """What metadata of whatever origin say of it, if anything that makes sense."""
        typed = metadata.get(KEY)
        if typed is None or typed.type != "str" or len(typed.value) > _NBYTES:
            return None
        said = dict(pair.partition("=")[::2] for pair in typed.value.split())
        try:
            figures = {name: _interval(said, name) for name in _FIGURES if name in said}
            found = cls(
                unquote(said["source"]), **figures, predicted=int(said["tokens"]), reason=unquote(said.get("reason", ""))
            )
        except (KeyError, ValueError):
            return None
        return found if found.reason or len(figures) == len(_FIGURES) else None


_ENDS = ("", "_low", "_high")


def _interval(said: Mapping[str, str], name: str) -> Interval:
    figures = [float(said[name + end]) for end in _ENDS]
    if any(map(isnan, figures)):
        raise ValueError("not a figure")
    return Interval(*figures)


def _plain(text: str) -> str:
    """What every format holds as it is, cut where an escape ends."""
    kept = text[:_MOST_OF_A_TEXT]
    while len(quote(kept, errors="replace")) > _MOST_OF_A_TEXT:
        kept = kept[:-1]
    return quote(kept, errors="replace")


class CheckAgainstSource(Protocol):
    """Runs both models over the same text. What cannot be run is an answer too, with its reason."""

    def __call__(
        self,
        source: Path | str,
        artefact: Path | str,
        *,
        threads: int | None = None,
        max_ram: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> SourceCheck: ...
