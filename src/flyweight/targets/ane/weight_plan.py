"""The plan: what a target does with every weight of a model, what that costs, and what to change.

    plan_weights(uses, engine) -> Plan

A `WeightPlan` has the decision of the engine's profile and that of the other one, so that a report can say where they differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flyweight.codecs import codec_for, known
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import TensorSpec
from flyweight.targets.ane.consequences import Budget, Note, budget, winograd, zero_skip
from flyweight.targets.ane.engine_form import EngineForm, dense_form, engine_form
from flyweight.targets.ane.facts.engine import Engine
from flyweight.targets.ane.facts.fact import Fact, Profile
from flyweight.targets.ane.gates import Decision, Outcome, decide
from flyweight.targets.ane.named_forms import CANDIDATES, codec_of_form
from flyweight.targets.ane.roofline import Estimate, SpeedUp, dispatch_time, layer_time, speed_up
from flyweight.targets.ane.stream_size import SIZE_MODEL, dense_bytes, segment_bytes, streamed_bytes
from flyweight.targets.ane.weight_use import WeightUse

_AT_FULL_WIDTH = (Outcome.FOLDS, Outcome.DENSE, Outcome.NO_FORM)


@dataclass(frozen=True, slots=True)
class WeightPlan:
    use: WeightUse
    form: EngineForm | None
    kernel_format: Fact[int] | None
    decision: Decision
    other: Decision
    """What the other profile decides."""
    compressed: int | None
    """Bytes in its form; None where the engine has none for it."""
    moved: int | None
    """Bytes that cross the stream at each use: compressed, or dense fp16. None where that cannot be told or none does."""
    budget: Budget | None
    time: Estimate
    notes: tuple[Note, ...] = ()

    @property
    def dense(self) -> int:
        return dense_bytes(self.use.spec.size)

    @property
    def bandwidth(self) -> float | None:
        """Bytes a second that the estimate comes to."""
        return self.moved / self.time.seconds if self.moved and self.time.seconds else None

    @property
    def profiles_differ(self) -> bool:
        return self.decision.outcome is not self.other.outcome

    @property
    def facts(self) -> tuple[Fact[Any], ...]:
        """Everything the plan rests on."""
        found: list[Fact[Any]] = [*self.decision.facts, *self.time.facts]
        found += [self.kernel_format] if self.kernel_format else []
        found += [SIZE_MODEL, self.budget.cap] if self.budget else []
        found += [fact for note in self.notes for fact in note.facts]
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Total:
    """Of the weights of one outcome."""

    tensors: int = 0
    weights: int = 0
    dense: int = 0
    """Bytes as fp16."""
    moved: int = 0

    def plus(self, plan: WeightPlan) -> Total:
        return Total(
            self.tensors + 1, self.weights + plan.use.spec.size, self.dense + plan.dense, self.moved + (plan.moved or 0)
        )


@dataclass(frozen=True, slots=True)
class Plan:
    engine: Engine
    weights: tuple[WeightPlan, ...] = ()
    totals: Mapping[Outcome, Total] = field(default_factory=dict)

    @property
    def moved(self) -> int:
        """Bytes that cross the stream when every weight is used once, as far as that can be told."""
        return sum(total.moved for total in self.totals.values())

    @property
    def dense(self) -> int:
        """The same weights as fp16."""
        return sum(plan.dense for plan in self.weights if plan.moved is not None)

    @property
    def left_out(self) -> int:
        """Weights that no bytes are counted for: refused, undecided, or not of a kernel."""
        return sum(plan.moved is None for plan in self.weights)

    @property
    def seconds(self) -> float | None:
        """One pass over the weights whose bytes are counted, with one dispatch; None where a rate is unknown."""
        times = [plan.time.seconds for plan in self.weights if plan.moved is not None]
        known = [time for time in times if time is not None]
        if not known or len(known) < len(times):
            return None
        return sum(known) + (dispatch_time(self.engine).value or 0.0)

    @property
    def speed_up(self) -> SpeedUp | None:
        """How much faster than the same weights as fp16; None where nothing is moved."""
        return speed_up(self.engine, self.moved / self.dense) if self.moved else None

    @property
    def segment_bytes(self) -> int | None:
        """What the compiled weights take; None where the number of engines is unknown, which copies of codebooks depend on."""
        engines = self.engine.engines.value
        forms = [
            plan.form if plan.decision.outcome is Outcome.STREAMS and plan.form else dense_form(plan.use.spec.size)
            for plan in self.weights
            if plan.moved is not None
        ]
        return None if engines is None else segment_bytes(forms, engines)

    def as_json(self) -> dict[str, Any]:
        """Facts are listed once, and weights refer to them by number."""
        numbers: dict[Fact[Any], int] = {}
        weights = [_weight_json(plan, numbers) for plan in self.weights]
        totals = {
            outcome.value: {"tensors": t.tensors, "weights": t.weights, "dense_bytes": t.dense, "moved_bytes": t.moved}
            for outcome, t in self.totals.items()
        }
        return {
            "target": self.engine.target.name,
            "profile": self.engine.profile.value,
            "totals": totals,
            "moved_bytes": self.moved,
            "dense_bytes": self.dense,
            "segment_bytes": self.segment_bytes,
            "seconds": self.seconds,
            "speed_up": self.speed_up and {"least": self.speed_up.least, "most": self.speed_up.most},
            "weights": weights,
            "facts": [fact.as_json() for fact in numbers],
        }


def plan_weights(uses: Iterable[WeightUse], engine: Engine) -> Plan:
    """Weights that are alike but for their names are planned once."""
    known: dict[WeightUse, WeightPlan] = {}
    plans, totals = [], dict.fromkeys(Outcome, Total())
    for use in uses:
        alike = replace(use, name="")
        if alike not in known:
            known[alike] = plan_weight(alike, engine)
        plan = replace(known[alike], use=use)
        plans.append(plan)
        totals[plan.decision.outcome] = totals[plan.decision.outcome].plus(plan)
    return Plan(engine, tuple(plans), {outcome: total for outcome, total in totals.items() if total.tensors})


def plan_weight(use: WeightUse, engine: Engine) -> WeightPlan:
    form = use.form
    decision = decide(use, form, engine)
    opposite = Profile.DISPUTED if engine.profile is Profile.SEED else Profile.SEED
    other = decide(use, form, replace(engine, profile=opposite))
    if decision.outcome is Outcome.NO_FORM:
        decision = replace(decision, change=f"convert it: {_nearest_form(use, engine)}, or it becomes dense fp16")
    compressed = None if form is None else streamed_bytes(form)
    if decision.outcome is Outcome.STREAMS:
        moved = compressed
    else:
        moved = dense_bytes(use.spec.size) if decision.outcome in _AT_FULL_WIDTH else None
    time = Estimate(None) if moved is None else layer_time(engine, use.flops, moved)
    cap = None if moved is None else budget(decision, moved, engine)
    notes = () if form is None else tuple(note for rule in (zero_skip, winograd) if (note := rule(use, form, engine)))
    number = None if form is None else form.kernel_format(engine.profile)
    return WeightPlan(use, form, number, decision, other, compressed, moved, cap, time, notes)


def _nearest_form(use: WeightUse, engine: Engine) -> str:
    """The form that streams and has about as many bits a weight."""
    bits = _stored_bits(use)
    streaming = []
    for name in CANDIDATES:
        form = engine_form(use.spec, codec_of_form(name), use.channel_axis)
        if form is not None and not form.is_sparse and decide(use, form, engine).outcome is Outcome.STREAMS:
            streaming.append((abs(8 * streamed_bytes(form) / use.spec.size - bits), name))
    return f"{min(streaming)[1]} is the nearest that streams" if streaming else "no form is known to stream"


def _stored_bits(use: WeightUse) -> float:
    """Bits a weight as stored; 16 where the codec is not known here or does not fit."""
    if not known(use.codec):
        return 16.0
    codec = codec_for(use.codec)
    try:
        layout = codec.layout(TensorSpec(use.spec.shape, codec.decoded_dtype(use.spec.dtype)))
    except UnsupportedError:
        return 16.0
    return 8 * sum(part.nbytes for part in layout.values()) / use.spec.size


def _weight_json(plan: WeightPlan, numbers: dict[Fact[Any], int]) -> dict[str, Any]:
    decision, cap = plan.decision, plan.budget
    return {
        "name": plan.use.name,
        "shape": list(plan.use.spec.shape),
        "codec": plan.use.codec.as_json(),
        "op": plan.use.op,
        "form": plan.form and str(plan.form),
        "kernel_format": plan.kernel_format and plan.kernel_format.value,
        "outcome": decision.outcome.value,
        "gate": decision.gate and decision.gate.about,
        "reason": decision.reason,
        "change": decision.change,
        "other_profile": plan.other.outcome.value,
        "dense_bytes": plan.dense,
        "compressed_bytes": plan.compressed,
        "moved_bytes": plan.moved,
        "cap_bytes": cap and cap.cap.value,
        "pieces": cap and cap.pieces,
        "seconds": plan.time.seconds,
        "limit": plan.time.limit,
        "bytes_per_second": plan.bandwidth,
        "notes": [note.text for note in plan.notes],
        "facts": [numbers.setdefault(fact, len(numbers)) for fact in plan.facts],
    }
