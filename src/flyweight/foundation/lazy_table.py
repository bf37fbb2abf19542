"""A table of objects by name, each imported when it is first used.

    CODECS: Table[type[Codec]] = Table("flyweight.codecs", {"raw": "raw:Raw", "affine": "affine:Affine"})

    CODECS["raw"]          flyweight.codecs.raw.Raw, and no other module is imported
    "raw" in CODECS        nothing is imported
    for codec in CODECS    in the order of the lines, as far as the loop goes

So a program that opens one file of one format starts with the code of that format alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Table(Generic[T]):
    """Lines are name → "module:attribute", the module below `package`; `make` turns what is found there into the thing."""

    def __init__(self, package: str, lines: Mapping[str, str], make: Callable[[Any], T] = lambda found: found) -> None:
        self.lines = lines
        self._package, self._make = package, make
        self._made: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._made:
            module, _, attribute = self.lines[name].partition(":")
            self._made[name] = self._make(getattr(import_module(f"{self._package}.{module}"), attribute))
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self.lines

    def __iter__(self) -> Iterator[T]:
        return map(self.__getitem__, self.lines)

    def __len__(self) -> int:
        return len(self.lines)


def lazy_exports(package: str, lines: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose names are imported when first used."""
    table: Table[Any] = Table(package, lines)

    def exported(name: str) -> Any:
        if name not in table:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return table[name]

    return exported
