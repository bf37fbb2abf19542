"""The 28 targets of the compiler, the products they are in, and facts that differ from target to target.

A target is a name such as `H13`; its suffix is a variant of the generation (g, s, c, d: more engines; a: another build).
The compiler names generations A13 to A18, after no product: the M1 is of generation A13.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from flyweight.foundation.errors import ArgumentError, nearest
from flyweight.targets.ane.facts.fact import Counter, Fact, disputed, measured, seed, unknown

T = TypeVar("T")


class Generation(Enum):
    PRE_A13 = "before A13"
    A13 = "A13"
    A14 = "A14"
    A15 = "A15"
    A16 = "A16"
    A17 = "A17"
    A18 = "A18"
    SMALL = "small"
    REFERENCE = "reference"
    """Models of the compiler's authors, in no product."""


FROM_A13 = (Generation.A13, Generation.A14, Generation.A15, Generation.A16, Generation.A17, Generation.A18)


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    generation: Generation

    def __str__(self) -> str:
        return self.name


_NAMES = {
    Generation.PRE_A13: "H11 H12 M9 T0",
    Generation.A13: "H13 H13g T1",
    Generation.A14: "H14 H14g H14c",
    Generation.A15: "H15 H15g H15c",
    Generation.A16: "H16 H16g H16s H16c",
    Generation.A17: "H17 H17a H17g H17s H17c H17d",
    Generation.A18: "H18",
    Generation.SMALL: "M11",
    Generation.REFERENCE: "U1 U2 U3",
}
TARGETS = {name: Target(name, generation) for generation, names in _NAMES.items() for name in names.split()}

PRODUCTS: Mapping[str, Fact[str]] = {
    product: seed(target, "guide", die).named(f"target of {product}")
    for product, target, die in (
        ("M1", "H13", "T8103"),
        ("M1 Pro", "H13g", "T600x"),
        ("M1 Max", "H13g", "T600x"),
        ("M1 Ultra", "H13g", "T600x"),
        ("M2", "H14", "T8112"),
        ("M2 Pro", "H14g", "T602x"),
        ("M2 Max", "H14g", "T602x"),
        ("M2 Ultra", "H14g", "T602x"),
        ("M3", "H15", "T8122"),
        ("M3 Pro", "H15g", "T603x"),
        ("M3 Max", "H15g", "T603x"),
        ("M3 Ultra", "H15g", "T603x"),
        ("M4", "H16", "T8132"),
        ("M4 Pro", "H16g", "T604x"),
        ("M4 Max", "H16g", "T604x"),
        ("M5", "H17", "T8142"),
        ("M5 Pro", "H17s", "T605x"),
        ("M5 Max", "H17s", "T605x"),
    )
}
M_CHIPS = ("M1", "M2", "M3", "M4", "M5")


def products_of(target: Target) -> tuple[str, ...]:
    return tuple(product for product, fact in PRODUCTS.items() if fact.value == target.name)


def target_named(name: str) -> Target:
    """A target by its name, or a product's, or a generation's (its first target); case, spaces and dashes do not count."""
    wanted = _folded(name)
    if wanted in _BY_NAME:
        return _BY_NAME[wanted]
    known = [*TARGETS, *PRODUCTS]
    raise ArgumentError(
        f"there is no Neural Engine target '{name}'{nearest(wanted, [*_BY_NAME])}",
        code="E_TARGET",
        hint=f"known: {', '.join(known)}; `flyweight ane targets` lists them",
    )


def _folded(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).lower()


_BY_NAME = {
    **{generation.value.lower(): TARGETS[names.split()[0]] for generation, names in _NAMES.items() if generation in FROM_A13},
    **{_folded(product): TARGETS[str(fact.value)] for product, fact in PRODUCTS.items()},
    **{_folded(name): target for name, target in TARGETS.items()},
}


@dataclass(frozen=True, slots=True)
class PerTarget(Generic[T]):
    """One fact for every target: by generation, with exceptions. What no cell gives is unknown."""

    title: str
    generations: Mapping[Generation, Fact[T]] = field(default_factory=dict)
    targets: Mapping[str, Fact[T]] = field(default_factory=dict)

    def of(self, target: Target) -> Fact[T]:
        found = self.targets.get(target.name) or self.generations.get(target.generation) or unknown("no source gives it")
        return found.named(f"{self.title} of {target.name}")


def every(fact: Fact[T], generations: Iterable[Generation] = tuple(Generation)) -> Mapping[Generation, Fact[T]]:
    """The same cell in many generations."""
    return MappingProxyType(dict.fromkeys(generations, fact))


# Facts of the targets themselves -------------------------------------------------------------------

_SIXTEEN: Counter[int] = Counter(
    16, "M6 study", "16 engines in every target from H13 on; the count left the table with build 10.26"
)


def _engines(**counts: int) -> dict[str, Fact[int]]:
    return {
        name: seed(count, "guide ch.4", "the M6 study agrees")
        if count == _SIXTEEN.value
        else disputed(count, "guide ch.4", _SIXTEEN)
        for name, count in counts.items()
    }


ENGINES: PerTarget[int] = PerTarget(
    "engines (0x238)",
    every(seed(4, "guide ch.4"), [Generation.REFERENCE]),
    {
        "H11": disputed(4, "ANEForge", Counter(8, "M6 study")),
        "H12": unknown("the guide says 1 to 4, the M6 study 8"),
        "M9": disputed(1, "guide ch.4", Counter(2, "M6 study")),
        "T0": unknown("the guide says 1 to 4"),
        "M11": seed(1, "guide ch.4"),
        **_engines(H13=4, H13g=8, T1=4, H14=4, H14g=8, H14c=32, H15=4, H15g=8, H15c=32, H16=4, H16g=8, H16s=16, H16c=32),
        **_engines(H17=4, H17a=4, H17g=8, H17s=16, H17c=32, H17d=64, H18=4),
    },
)

CPU_SUBTYPE: PerTarget[int] = PerTarget(
    "cpusubtype",
    {
        generation: seed(number, "guide")
        for generation, number in zip((*FROM_A13, Generation.SMALL), (4, 5, 6, 7, 9, 10, 8), strict=True)
    },
    {"H11": seed(1, "guide"), "H12": seed(3, "guide ch.35"), "T0": seed(2, "guide ch.35")},
)

DESCRIPTOR_VERSION: PerTarget[int] = PerTarget(
    "table-descriptor version",
    {
        Generation.A13: disputed(
            5,
            "guide ch.25",
            Counter(7, "hwx", "version 5 is H11; the M6 study agrees"),
            "other chapters of the guide say 7 and 10",
        ),
        **{
            generation: measured(version, "hwx", "the M6 study agrees")
            for generation, version in zip((*FROM_A13[1:], Generation.SMALL), (11, 8, 17, 19, 20, 10), strict=True)
        },
    },
    {"H11": measured(5, "hwx"), "H12": measured(6, "hwx"), "T0": measured(4, "hwx")},
)

CLOCK: PerTarget[float] = PerTarget(
    "highest clock in GHz",
    targets={
        name: measured(clock, "ANEForge")
        for name, clock in {
            "H11": 1.26, "H13": 1.428, "H13g": 1.464, "T1": 1.428, "H14": 1.938, "H15": 2.064, "H15c": 2.364, "H16": 2.160,
            "H16s": 2.364, "H17": 2.172, "H17s": 2.364, "H17c": 2.364, "H17d": 2.364, "M11": 0.5,
        }.items()
    },
)  # fmt: skip


def target_facts(target: Target) -> tuple[Fact[Any], ...]:
    return tuple(table.of(target) for table in (ENGINES, CPU_SUBTYPE, DESCRIPTOR_VERSION, CLOCK))
