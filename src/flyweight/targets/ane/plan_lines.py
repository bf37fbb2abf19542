"""A plan in few lines: weights that differ only in the numbers of their names, such as the layers of a model, are one line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from flyweight.codecs import without_per_tensor
from flyweight.targets.ane.facts.fact import Fact
from flyweight.targets.ane.gates import Outcome
from flyweight.targets.ane.weight_plan import Plan, WeightPlan


@dataclass(frozen=True, slots=True)
class Line:
    """Weights of one shape, codec and outcome."""

    name: str
    """With * for every number that differs within the line."""
    weights: tuple[WeightPlan, ...]

    @property
    def first(self) -> WeightPlan:
        return self.weights[0]

    @property
    def count(self) -> int:
        return len(self.weights)

    @property
    def dense(self) -> int:
        return sum(weight.dense for weight in self.weights)

    @property
    def moved(self) -> int | None:
        return _sum([weight.moved for weight in self.weights])

    @property
    def compressed(self) -> int | None:
        return _sum([weight.compressed for weight in self.weights])

    @property
    def seconds(self) -> float | None:
        return _sum([weight.time.seconds for weight in self.weights])

    @property
    def pieces(self) -> int | None:
        """What the compiler splits each of them into, at most."""
        counts = [weight.budget.pieces if weight.budget else None for weight in self.weights]
        return None if None in counts else max(count for count in counts if count is not None)


_Number = TypeVar("_Number", int, float)


def _sum(numbers: Sequence[_Number | None]) -> _Number | None:
    """None where one of them is."""
    known = [number for number in numbers if number is not None]
    return sum(known[1:], known[0]) if known and len(known) == len(numbers) else None


def plan_lines(plan: Plan, *, each: bool = False) -> list[Line]:
    """In the order of the model; with `each`, a line for every weight."""
    if each:
        return [Line(weight.use.name, (weight,)) for weight in plan.weights]
    groups: dict[object, list[WeightPlan]] = {}
    for weight in plan.weights:
        alike = replace(
            weight.use, name=_pattern(weight.use.name), codec=without_per_tensor(weight.use.codec), zero_fraction=None
        )
        groups.setdefault((alike, weight.decision.outcome, weight.decision.gate), []).append(weight)
    return [Line(_joined([weight.use.name for weight in group]), tuple(group)) for group in groups.values()]


def _pattern(name: str) -> str:
    return re.sub(r"\d+", "*", name)


def _joined(names: list[str]) -> str:
    """The names as one: numbers that all of them share stay."""
    pieces = [re.split(r"(\d+)", name) for name in names]
    return "".join(column[0] if len(set(column)) == 1 else "*" for column in zip(*pieces, strict=True))


@dataclass(frozen=True, slots=True)
class Finding:
    """Why weights do not stream, and what would help."""

    outcome: Outcome
    gate: Fact[Any] | None
    reason: str
    change: str
    tensors: int


def findings(plan: Plan) -> list[Finding]:
    """One for each gate that decided, the most frequent first."""
    counted = Counter(
        (weight.decision.outcome, weight.decision.gate, weight.decision.reason, weight.decision.change)
        for weight in plan.weights
        if weight.decision.outcome is not Outcome.STREAMS
    )
    return [Finding(*key, count) for key, count in counted.most_common()]


@dataclass(frozen=True, slots=True)
class Difference:
    """Weights that the two profiles decide differently."""

    tensors: int
    outcome: Outcome
    other: Outcome
    fact: Fact[Any] | None
    """The disputed fact that decides in one of them."""


def differences(plan: Plan) -> list[Difference]:
    counted = Counter(
        (weight.decision.outcome, weight.other.outcome, weight.decision.gate or weight.other.gate)
        for weight in plan.weights
        if weight.profiles_differ
    )
    return [Difference(count, *key) for key, count in counted.most_common()]


def facts_of(plan: Plan) -> list[Fact[Any]]:
    """What the plan rests on, each fact once."""
    return list(dict.fromkeys(fact for weight in plan.weights for fact in weight.facts))
