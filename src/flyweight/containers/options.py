"""Options of `convert` that only one format has, as data: the format declares them, the command line shows and reads them.

    class Extras:
        sub_block: int | None = field(default=None, metadata=option("--sub-block", count(0), "N", "Weights that share …"))

An instance of such a class is what a user asks for, in Python as on the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable


def _no_word(_: str) -> bool:
    return False


class Option(NamedTuple):
    flag: str
    read: Callable[[str], object]
    """The value from its text, or ValueError with a sentence; `Path` stands for a file or directory that is there."""
    metavar: str | None
    help: str
    words: Callable[[str], bool] = _no_word
    """Which values are no path, where `read` is `Path`."""

    @property
    def name(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")


class OptionGroup(NamedTuple):
    """What the command line shows under the title of a format."""

    title: str
    quants: Sequence[str]
    """Names that `--quant` takes for it, if it has some of its own."""
    options: Sequence[Option] = ()
    extras: type[Extras] | None = None
    """Made of the values of `options`."""
    add: Option | None = None
    """Adds a form to SOURCE in place; its value is the form."""


class Extras(Protocol):
    """What a user asks of one format alone."""

    format: ClassVar[str]
    """The name of the container."""

    def conflict(self, quant: str | None, has_recipe: bool) -> str | None:
        """Why these wishes do not go together, or None."""

    @property
    def draft(self) -> Path | None:
        """A checkpoint that is a draft head, to be embedded."""

    @property
    def inputs(self) -> Mapping[str, Path]:
        """All that is read besides the source, by the option that names it."""

    @property
    def made(self) -> Mapping[str, str]:
        """What is made of the source besides, by the option that asks for it, and as that says."""

    def files(self, make_package: Callable[[str], bytes]) -> Mapping[str, bytes]:
        """Side files to embed, read now. `make_package` makes the archive of a Core ML package for a target."""


@runtime_checkable
class NamesTarget(Protocol):
    """Wishes that name a machine for which forms are chosen, unless a quantization or a recipe is given."""

    @property
    def target(self) -> str | None: ...
    @property
    def profile(self) -> str | None:
        """Whose reading of disputed facts is taken."""

    @property
    def max_error(self) -> float | None:
        """The relative RMS error that a weight may have."""


def option(
    flag: str, read: Callable[[str], object], metavar: str | None, text: str, words: Callable[[str], bool] = _no_word
) -> dict[str, Option]:
    """The metadata of a field that is an option."""
    return {"option": Option(flag, read, metavar, text, words)}


def options_of(extras: type[Any]) -> tuple[Option, ...]:
    return tuple(item.metadata["option"] for item in fields(extras))


def share(text: str) -> float:
    """A number between 0 and 1, which are none."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1:
        raise ValueError(f"{text!r} is no number between 0 and 1")
    return number


def count(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ValueError(f"{text!r} is not a number of {least} or more")
        return int(text)

    return read
