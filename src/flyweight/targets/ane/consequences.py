"""What else follows from a weight's form: the budget it is split by, skipped zeros, and the loss of Winograd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flyweight.targets.ane.engine_form import EngineForm
from flyweight.targets.ane.facts import codegen, hal, rates
from flyweight.targets.ane.facts.engine import Engine
from flyweight.targets.ane.facts.fact import Fact, seed
from flyweight.targets.ane.gates import Decision, Outcome
from flyweight.targets.ane.weight_use import WeightUse


@dataclass(frozen=True, slots=True)
class Budget:
    """The cap that a weight is sized against, and the pieces the compiler splits it into; None: cannot tell."""

    cap: Fact[int]
    pieces: int | None


def budget(decision: Decision, nbytes: int, engine: Engine) -> Budget:
    """A weight that streams has the relaxed cap, any other the dense one."""
    cap = engine.limit(hal.STREAMED_CAP if decision.outcome is Outcome.STREAMS else hal.DENSE_CAP)
    return Budget(cap, None if cap.value is None else max(-(-nbytes // cap.value), 1))


@dataclass(frozen=True, slots=True)
class Note:
    text: str
    facts: tuple[Fact[Any], ...]


_FORMAT_INDEPENDENT: Fact[bool] = seed(True, note="weights that fold skip zeros too").named("zero-skip of any storage")
_NO_SPARSE_WINOGRAD: Fact[bool] = seed(True).named("Winograd takes neither sparse nor unity weights")


def zero_skip(use: WeightUse, form: EngineForm, engine: Engine) -> Note | None:
    """What the zeros of a weight save in the multiply array, besides the bytes."""
    zeros = 1 - form.density if form.density is not None else use.zero_fraction
    if not zeros:
        return None
    skips, threshold = engine.read(codegen.ZERO_SKIP), engine.general(rates.SPARSE_FROM)
    if skips.value is None:
        return Note(f"{zeros:.0%} zeros: whether they are skipped is unknown", (skips,))
    told = "are skipped, which helps where arithmetic is the limit" if skips.value else "are multiplied like any weight"
    text = f"{zeros:.0%} zeros {told}"
    facts: tuple[Fact[Any], ...] = (skips, _FORMAT_INDEPENDENT)
    if not form.is_sparse and threshold.value is not None and zeros > threshold.value:
        text += "; stored with a mask it would stream only what is not zero"
        facts = (*facts, threshold)
    times = rates.ZERO_SKIP_TIMES.get(engine.target.name)
    if skips.value and times is not None:
        nearest = min(times.value or (), key=lambda row: abs(row.density - (1 - zeros)))
        text += f"; at {nearest.density:.0%} density the array took {nearest.time:.2f} of the time"
        facts = (*facts, times.named(f"time of skipped zeros on {engine.target}"))
    return Note(text, facts)


def winograd(use: WeightUse, form: EngineForm, engine: Engine) -> Note | None:
    """For a 3×3 kernel and its like: whether its form takes it off the Winograd path."""
    if use.op != "conv" or not _has_winograd_shape(use):
        return None
    enabled = engine.gate(hal.WINOGRAD)
    if enabled.value is None:
        return Note("whether Winograd would run it is unknown", (enabled,))
    if not enabled.value:
        return Note("Winograd is not there to lose", (enabled,))
    if form.is_sparse:
        loss = engine.general(rates.WINOGRAD_LOSS)
        return Note(f"its mask takes it off the Winograd path; measured: {loss.value}", (enabled, _NO_SPARSE_WINOGRAD, loss))
    if form.element in ("e4m3", "uint8"):
        return Note(f"{form.element} weights do not take the Winograd path", (enabled, _EXCLUDED_TYPES))
    return Note("its form stays eligible for Winograd", (enabled, _NO_SPARSE_WINOGRAD))


_EXCLUDED_TYPES: Fact[bool] = seed(True, "guide ch.20", "underlying types 5 and 2").named(
    "Winograd takes neither e4m3 nor uint8"
)


def _has_winograd_shape(use: WeightUse) -> bool:
    """One axis of 3, the other below 6, no depth, stride 1."""
    if len(use.kernel) != 2 or not use.unit_stride or not use.undilated:
        return False
    return 3 in use.kernel and max(use.kernel) < 6
