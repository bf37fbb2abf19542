"""What `--force` may replace: a model, or files that the new output writes itself; never something else.

A file is replaced if it is empty, or a model by its content, or has the name of a side file. A directory is replaced if all
that is in it are plain files of this user, and each is accounted for:

    the new output writes a file of that name, or a killed run of this user left it
    or it is a model, and the file is one that its tensors are in, or has a name of `SIDE_FILES`, or one that its format owns

Anything else that is found is named and refused, and nothing is touched.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, suppress
from fnmatch import fnmatchcase
from pathlib import Path

from flyweight.checkpoint import open_checkpoint
from flyweight.containers import mlpackage, recognise
from flyweight.containers.abilities import OwnsFiles
from flyweight.deltas.recognition import is_delta
from flyweight.foundation.errors import FlyweightError, OutputError
from flyweight.sources import open_bundle
from flyweight.writing import Folder, Tree, content, is_temporary

SIDE_FILES = (
    "config.json", "generation_config.json", "tokenizer*", "vocab.*", "merges.txt", "added_tokens.json", "*.tiktoken",
    "special_tokens_map.json", "spiece.model", "sentencepiece.bpe.model", "chat_template*", "*.jinja", "configuration.json",
    "preprocessor_config.json", "processor_config.json", "quantize_config.json", "quantization_config.json", "params.json",
    "README.md", "LICENSE*", "NOTICE*", "USE_POLICY.md", ".gitattributes", mlpackage.NAME,
)  # fmt: skip
"""Names that files beside weights have."""
_WEIGHTS = ("model*.safetensors", "model.safetensors.index.json")
"""What weights are called in a model directory."""
_SENTINEL = ".ready"
"""What says that a tier of single arrays is complete; it is written when the arrays have appeared."""
_FIRST_LOOK, _MOST_FILES = 1000, 200_000
_NAMED = 4
_WHAT_NOW = "write elsewhere, or move that away first"


def require_apart(destination: Path, inputs: Iterable[Path | str]) -> None:
    """Refuse to replace what is being read, or what it is in."""
    try:
        there = os.stat(destination)
    except OSError:
        return
    for path in inputs:
        real = Path(os.path.realpath(path))
        for place in (real, *real.parents):
            with suppress(OSError):
                if os.path.samestat(os.stat(place), there):
                    relation = "is the source" if place == real else "contains the source"
                    raise OutputError(
                        f"{relation} {path}, so it is not replaced", code="E_SOURCE_INSIDE", file=str(destination),
                        hint="write elsewhere",
                    )  # fmt: skip


def require_replaceable(parent: Folder, name: str, written: Collection[str]) -> list[str]:
    """The files of the directory `name`, all of them accounted for; none for a file. OutputError E_NOT_A_MODEL otherwise."""
    status, place = parent.status(name), parent.path / name
    if status is None:
        return []
    if stat.S_ISDIR(status.st_mode):
        return _accounted(parent, name, written)
    parent.require_own_file(name)
    if status.st_size and not _matches(name, SIDE_FILES):
        try:
            with closing(open_bundle(place)) as bundle:
                if not is_delta(bundle):
                    recognise(bundle)
        except FlyweightError:
            raise OutputError(
                "is not a model, so --force does not replace it", code="E_NOT_A_MODEL", file=str(place), hint=_WHAT_NOW
            ) from None
    return []


def _accounted(parent: Folder, name: str, written: Collection[str]) -> list[str]:
    """A first look at some of the files refuses a home, or a disk of photos, without going through all of it."""
    place = parent.path / name
    for most in (_FIRST_LOOK, _MOST_FILES):
        with parent.folder(name) as there:
            found = content(there, most)
            strange = _strange(there, place, found.names, written)
        if strange or found.complete:
            break
    if strange or not found.complete:
        listed = ", ".join(strange[:_NAMED]) + (", …" if len(strange) > _NAMED else "")
        count = f"{len(strange)}{'' if found.complete else ' or more'}"
        raise OutputError(
            f"not replaced: {count} files in it belong to no model or are not regular files of yours ({listed})",
            code="E_NOT_A_MODEL",
            file=str(place),
            hint=_WHAT_NOW,
        )
    return found.names


def _strange(there: Folder, place: Path, names: list[str], written: Collection[str]) -> list[str]:
    foreign = set(_not_own_files(there, names))
    unwritten = {file for file in names if file not in written and file != _SENTINEL and not is_temporary(file)}
    weights, patterns = _of_model(place) if unwritten and not foreign else (set(), [])
    known = {file for file in unwritten if weights and (file in weights or _matches(file, patterns))}
    return [file for file in names if file in foreign or (file in unwritten and file not in known)]


def _not_own_files(root: Folder, names: Iterable[str]) -> Iterator[str]:
    with closing(Tree(root)) as tree:
        for name in names:
            if not name.endswith("/"):
                with tree.at(name) as (folder, last):
                    status = folder.status(last)
                if status is None or not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                    yield name


def _of_model(place: Path) -> tuple[set[str], list[str]]:
    """The files that tensors of a model are in, and patterns of names that others may have; none if it cannot be read."""
    try:
        with open_checkpoint(place) as model:
            weights = {extent.file for entry in model.manifest.entries.values() for extent in entry.extents.values()}
            own = model.container.own_files if isinstance(model.container, OwnsFiles) else ()
    except (FlyweightError, OSError):
        return set(), []
    folders = ("", *(name for name in own if name.endswith("/")))
    return weights, [*own, *(folder + name for folder in folders for name in (*SIDE_FILES, *_WEIGHTS[: bool(folder) * 2]))]


def _matches(name: str, patterns: Iterable[str]) -> bool:
    parts = name.split("/")
    return any(
        len(parts) == pattern.count("/") + 1 and all(map(fnmatchcase, parts, pattern.split("/"))) for pattern in patterns
    )
