"""The accuracy gate: limits on KL divergence and perplexity, what was measured, and whether the model may be used.

    Gate       the limits, as a recipe has them
    Verdict    one measurement held against them, as an artefact records it:

    {"passed": true,
     "limits": {"max_kl": 0.1, "max_perplexity_ratio": 1.2, "tokens": 640, "window": 64},
     "kl": {"value": 0.05, "low": 0.04, "high": 0.06},                  nats, KL(source ‖ artefact), with its 95 % interval
     "perplexity_ratio": {"value": 1.05, "low": 1.03, "high": 1.07},    artefact / source, on the same tokens
     "predicted": 630, "text": "own", "tokens_digest": BLAKE3 of the tokens,
     "source": "model.gguf", "subject": BLAKE3, "reason": ""}

A figure passes if its whole interval does: a measurement too short to tell is no pass. `kl` and `perplexity_ratio` are null
where nothing could be measured, and `reason` says why. `subject` is the digest of the files it is about (`subject_of`).

Models are run by `evaluate`, far above whoever needs a verdict. So the function that measures is handed down, as a `Measure`,
from where the program is put together (`flyweight.api`); without one no gate is passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from flyweight.foundation.errors import GateError, MalformedError, UnsupportedError
from flyweight.foundation.manifest import is_digest

_MOST_TOKENS = 1 << 20
_HUGE = 1e305
LEAST_WINDOWS = 8
"""Below that the spread between windows is not known well enough to speak of an interval."""
OVERRIDE = "--allow-ungated, or allow_ungated=True in Python, overrides this"


class Interval(NamedTuple):
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ({self.low:.4f} … {self.high:.4f})"


@dataclass(frozen=True, slots=True)
class Gate:
    """Limits, and how much text they are held against. At least one limit is set."""

    max_kl: float | None = None
    max_perplexity_ratio: float | None = None
    tokens: int = 640
    window: int = 64

    def __post_init__(self) -> None:
        limits = (self.max_kl, self.max_perplexity_ratio)
        if limits == (None, None):
            raise UnsupportedError("a gate needs max_kl or max_perplexity_ratio", code="E_RECIPE")
        for limit in limits:
            if limit is not None and (type(limit) not in (int, float) or not 0 < limit < _HUGE):
                raise UnsupportedError(f"a limit of a gate must be a number above 0, not {limit!r}", code="E_RECIPE")
        if any(type(count) is not int for count in (self.tokens, self.window)) or not (
            self.window >= 2 and LEAST_WINDOWS * self.window <= self.tokens <= _MOST_TOKENS
        ):
            raise UnsupportedError(
                f"a gate needs at least {LEAST_WINDOWS} windows of at least 2 tokens, at most {_MOST_TOKENS} tokens in all, "
                f"not {self.tokens!r} tokens in windows of {self.window!r}",
                code="E_RECIPE",
            )

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Gate:
        """From the table of a recipe. Unknown keys are errors: a misspelt limit must not be no limit."""
        known = [item.name for item in fields(cls)]
        if unknown := sorted(set(table) - set(known)):
            raise UnsupportedError(f"unknown keys of a gate: {', '.join(unknown)}", code="E_RECIPE", hint=f"known: {known}")
        return cls(**table)

    def as_json(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)}


INT3 = Gate(max_kl=0.1, max_perplexity_ratio=1.2)
"""What three bits may cost where a recipe says nothing else. docs/decisions/0102-int3-gate.md has the reasons."""


@dataclass(frozen=True, slots=True)
class Verdict:
    limits: Gate
    kl: Interval | None = None
    perplexity_ratio: Interval | None = None
    predicted: int = 0
    text: str = ""
    """Where the tokens are from: "own", drawn from the source model, or "file"."""
    tokens_digest: str = ""
    source: str = ""
    subject: str = ""
    reason: str = ""
    """Why nothing was measured."""

    @property
    def passed(self) -> bool:
        found = ((self.limits.max_kl, self.kl), (self.limits.max_perplexity_ratio, self.perplexity_ratio))
        return not self.reason and all(limit is None or (x is not None and x.high <= limit) for limit, x in found)

    def about(self, subject: str) -> Verdict:
        """The same of these files."""
        return replace(self, subject=subject)

    def as_json(self) -> dict[str, Any]:
        said = {item.name: getattr(self, item.name) for item in fields(self)}
        figures = {
            name: None if x is None else x._asdict()
            for name, x in (("kl", self.kl), ("perplexity_ratio", self.perplexity_ratio))
        }
        return {"passed": self.passed} | said | {"limits": self.limits.as_json()} | figures

    @classmethod
    def read(cls, document: Any, *, file: str, code: str) -> Verdict:
        """From untrusted JSON. Saying that it passed where its own figures do not is a contradiction."""
        try:
            said = dict(document)
            passed = said.pop("passed")
            texts = [said[key] for key in ("text", "tokens_digest", "source", "subject", "reason")]
            digests = [said[key] for key in ("tokens_digest", "subject") if said[key]]
            if not all(type(text) is str for text in texts) or not all(map(is_digest, digests)):
                raise ValueError("a digest or a text has the wrong form")
            if type(said["predicted"]) is not int or said["predicted"] < 0:
                raise ValueError("'predicted' is not a count")
            figures = {key: _interval(said[key]) for key in ("kl", "perplexity_ratio")}
            found = cls(**said | figures | {"limits": Gate.of(said["limits"])})
            if passed is not found.passed:
                raise ValueError(f"'passed' is {passed!r}, but its figures say {found.passed!r}")
        except (TypeError, ValueError, KeyError, UnsupportedError) as error:
            raise MalformedError(f"its accuracy record is malformed: {error}", code=code, file=file) from None
        return found

    def require(self, *, file: str | None = None) -> None:
        """GateError unless it passed."""
        if not self.passed:
            raise GateError(self.complaint, file=file, hint=OVERRIDE, gate=self.as_json())

    @property
    def complaint(self) -> str:
        """What is wrong, with figures."""
        if self.reason:
            return f"its accuracy could not be measured: {self.reason}"
        said = [
            f"{title} {found}, the limit is {limit:g}"
            for title, found, limit in (
                ("KL divergence", self.kl, self.limits.max_kl),
                ("perplexity ratio", self.perplexity_ratio, self.limits.max_perplexity_ratio),
            )
            if limit is not None and (found is None or found.high > limit)
        ]
        return f"not accurate enough compared with {self.source}: {'; '.join(said)}; over {self.predicted} tokens"


def _interval(said: Any) -> Interval | None:
    if said is None:
        return None
    numbers = [said[key] for key in Interval._fields]
    if len(said) != len(numbers) or not all(type(x) in (int, float) and -_HUGE < x < _HUGE for x in numbers):
        raise ValueError("a figure is not three numbers")
    found = Interval(*map(float, numbers))
    if not found.low <= found.value <= found.high:
        raise ValueError("a figure lies outside its interval")
    return found


def subject_of(digests: Mapping[str, str]) -> str:
    """What a verdict is about: files and the BLAKE3 of what each holds, in one. Compressing a file does not make it another."""
    from blake3 import blake3

    plain = sorted((file.removesuffix(".zst"), digest) for file, digest in digests.items())
    return blake3("".join(f"{file}\0{digest}\n" for file, digest in plain).encode()).hexdigest()


class Measure(Protocol):
    """Runs both models over the same tokens: those of a text, or such as the source model itself says.

    What cannot be run is a verdict too, one that does not pass.
    """

    def __call__(
        self,
        source: Path | str,
        artefact: Path | str,
        gate: Gate,
        *,
        text: Path | str | None = None,
        threads: int | None = None,
        max_ram: int | None = None,
    ) -> Verdict: ...
