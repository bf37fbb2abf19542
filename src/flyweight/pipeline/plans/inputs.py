"""What a conversion reads, by place and identity, and whether it is still the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from flyweight.checkpoint import Checkpoint
from flyweight.foundation.errors import OutputError
from flyweight.sources import Identity, Source, open_bundle

SOURCE, STATISTICS = "source", "statistics"
"""The input that is converted, and what is known of its matrices; others are called by the option that names them."""


class Input(NamedTuple):
    """A file or directory that is read."""

    path: str
    files: Mapping[str, Identity]
    """Those that matter, by their names in it."""
    deltas: tuple[str, ...] = ()
    """The deltas that are on it."""


def input_of(checkpoint: Checkpoint, *, digests: bool = False) -> Input:
    """The files of a checkpoint; with `digests`, for which all is read, a copy elsewhere is the same."""
    found = _input(checkpoint.bundle.name, checkpoint.files(), checkpoint.source, digests)
    return found._replace(deltas=checkpoint.delta_places)


def input_at(path: Path | str, *, digests: bool = False) -> Input:
    """Every file at a path."""
    with closing(open_bundle(path)) as bundle:
        return _input(path, bundle, bundle.__getitem__, digests)


def _input(path: Path | str, files: Iterable[str], source_of: Callable[[str], Source], digests: bool) -> Input:
    sources = ((file, source_of(file)) for file in sorted(files))
    return Input(os.path.abspath(path), {file: _by_digest(found) if digests else found.identity for file, found in sources})


def _by_digest(source: Source) -> Identity:
    return Identity(source.size, source.digest())


def require_same(inputs: Mapping[str, Input], checkpoint: Checkpoint) -> None:
    """OutputError E_SOURCE_CHANGED unless each input is what it was when a plan was made; `checkpoint` is the source."""
    for name, given in inputs.items():
        if name == SOURCE:
            _require_same(given, checkpoint.files(), checkpoint.source)
        else:
            with closing(open_bundle(given.path)) as bundle:
                _require_same(given, set(bundle), bundle.__getitem__)


def _require_same(given: Input, files: set[str], source_of: Callable[[str], Source]) -> None:
    for file in sorted(files ^ given.files.keys()):
        raise _changed(os.path.join(given.path, file), "is not there any more" if file in given.files else "was not there")
    for file, expected in given.files.items():
        source = source_of(file)
        found = source.identity
        if found != expected and expected.is_digest:
            found = _by_digest(source)
        if found != expected:
            wanted, there = (f"{size} bytes, stamp {stamp}" for size, stamp in (expected, found))
            raise _changed(source.name, f"is another: the plan was made for {wanted}, there are {there}")


def _changed(file: str, message: str) -> OutputError:
    return OutputError(message, code="E_SOURCE_CHANGED", file=file, hint="make the plan again")
