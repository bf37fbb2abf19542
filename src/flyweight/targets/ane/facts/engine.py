"""`Engine`: one target as one profile reads it. Rules ask it, and every answer is a fact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from flyweight.targets.ane.facts import codegen, hal
from flyweight.targets.ane.facts.engine_targets import ENGINES, PerTarget, Target, target_facts
from flyweight.targets.ane.facts.fact import Fact, Profile
from flyweight.targets.ane.facts.rates import SPARSE_FROM, WINOGRAD_LOSS, ZERO_SKIP_TIMES, rate_facts

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Engine:
    target: Target
    profile: Profile = Profile.SEED

    def __str__(self) -> str:
        return f"{self.target} ({self.profile.value})"

    def read(self, table: PerTarget[T]) -> Fact[T]:
        return table.of(self.target).under(self.profile)

    def gate(self, offset: int) -> Fact[bool]:
        return self.read(hal.GATES[offset])

    def limit(self, offset: int) -> Fact[int]:
        return self.read(hal.LIMITS[offset])

    @property
    def engines(self) -> Fact[int]:
        return self.read(ENGINES)

    def general(self, fact: Fact[T]) -> Fact[T]:
        """A fact that is the same for every target."""
        return fact.under(self.profile)

    def facts(self) -> Iterator[Fact[Any]]:
        """Everything the tables say about this target, unknowns included."""
        tables: tuple[PerTarget[Any], ...] = (
            *hal.offsets().values(),
            hal.ACTIVATION_LUT_BYTES,
            hal.PALETTE_LUT_BYTES,
            *codegen.CAPABILITIES.values(),
            *codegen.PALETTE_WIDTHS.values(),
            codegen.FP8_ENCODER,
            codegen.BLOCKWISE_TAKEN,
            codegen.INT8_MOVES_LESS,
        )
        yield from (fact.under(self.profile) for fact in target_facts(self.target))
        yield from map(self.read, tables)
        for fact in (
            codegen.VECTOR_SIZES,
            codegen.VECTOR_AXIS,
            codegen.QUANTIZED_PALETTE_ENTRIES,
            codegen.SCALAR_PALETTES_STREAM,
            codegen.INT4_SCALAR,
            codegen.ACCUMULATOR,
            hal.LUT_BYTES_THAT_FIT,
            SPARSE_FROM,
            WINOGRAD_LOSS,
        ):
            yield self.general(fact)
        yield from rate_facts(self.target)
        if skipped := ZERO_SKIP_TIMES.get(self.target.name):
            yield skipped.named(f"time at densities where the array is the limit, of {self.target}")
