"""Facts about the engine: a value, how it is known, and who says so.

Apple documents none of this. What is known was written down by people who measured, traced or read, and they contradict one
another here and there. So no table of this package holds a bare value: a cell is a `Fact`, and a cell nobody has filled is
unknown. Rules take facts, and what they decide carries them along.

    provenance   the value was …
    seed         stated by the guide, the text this model of the engine began with
    measured     measured on the device, or traced in the compiler
    inferred     derived from other facts; the note says how
    disputed     contradicted by another source: `counter` has its reading
    unknown      given by nobody; there is no value, and a plan says "cannot tell"

There are two profiles. `seed` reads what is disputed as the guide does, `disputed` as its opponents do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Generic, TypeVar

T = TypeVar("T")

SOURCES = {
    "guide": "ane-guide, second edition, which describes compiler build 9.509",
    "ANEForge": "ANEForge: the tables, cost model and benchmark results of the guide's code",
    "M6 study": "Apple-Neural-Engine-Microarchitecture-Study-M6: traces of compiler 10.26.6, measurements on M4 and M6",
    "hwx": "coreml_to_ane_hwx: register maps of compiled programs, per-generation status of each field",
    "palette note": "a public note on palette widths, from the names and messages in the compiler",
    "disassembly": "the palette setters of four descriptor versions, which agree with the traces of the M6 study",
    "coremltools": "coremltools 9.0 and the reports of its users",
}
"""Who says something. A source may name a chapter: `guide ch.25`."""


class Provenance(Enum):
    SEED = "seed"
    MEASURED = "measured"
    INFERRED = "inferred"
    DISPUTED = "disputed"
    UNKNOWN = "unknown"


class Profile(Enum):
    """How disputed facts are read."""

    SEED = "seed"
    DISPUTED = "disputed"


@dataclass(frozen=True, slots=True)
class Counter(Generic[T]):
    """What another source says of a disputed fact."""

    value: T
    source: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    about: str
    """What the value is of, such as `streaming master (0x48f) of H13`; tables fill it in when they are asked."""
    value: T | None
    provenance: Provenance
    source: str
    note: str = ""
    counter: Counter[T] | None = None

    def __post_init__(self) -> None:
        if (self.value is None) != (self.provenance is Provenance.UNKNOWN):
            raise ValueError(f"{self.about}: a value needs a provenance, and only what is unknown has none")
        if (self.counter is None) != (self.provenance is not Provenance.DISPUTED):
            raise ValueError(f"{self.about}: what is disputed, and nothing else, has a counter-claim")
        for source in (self.source, *([self.counter.source] if self.counter else [])):
            if source.partition(" ch.")[0] not in SOURCES and self.known:
                raise ValueError(f"{self.about}: '{source}' is no source")

    @property
    def known(self) -> bool:
        return self.value is not None

    def named(self, about: str) -> Fact[T]:
        return replace(self, about=about)

    def under(self, profile: Profile) -> Fact[T]:
        """The fact as a profile reads it; the other reading is then the counter-claim."""
        if profile is Profile.SEED or self.counter is None or self.value is None:
            return self
        return replace(
            self,
            value=self.counter.value,
            source=self.counter.source,
            note=self.counter.note,
            counter=Counter(self.value, self.source, self.note),
        )

    def as_json(self) -> dict[str, Any]:
        counter = self.counter and {"value": _plain(self.counter.value), "source": self.counter.source}
        return {
            "about": self.about,
            "value": _plain(self.value),
            "provenance": self.provenance.value,
            "source": self.source,
            **({"note": self.note} if self.note else {}),
            **(
                {"counter": counter | ({"note": self.counter.note} if self.counter.note else {})}
                if counter and self.counter
                else {}
            ),
        }


def _plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else value


def seed(value: T, source: str = "guide ch.25", note: str = "") -> Fact[T]:
    return Fact("", value, Provenance.SEED, source, note)


def measured(value: T, source: str, note: str = "") -> Fact[T]:
    return Fact("", value, Provenance.MEASURED, source, note)


def inferred(value: T, source: str, note: str) -> Fact[T]:
    return Fact("", value, Provenance.INFERRED, source, note)


def disputed(value: T, source: str, counter: Counter[T], note: str = "") -> Fact[T]:
    return Fact("", value, Provenance.DISPUTED, source, note, counter)


def unknown(note: str = "") -> Fact[Any]:
    return Fact("", None, Provenance.UNKNOWN, "", note)
