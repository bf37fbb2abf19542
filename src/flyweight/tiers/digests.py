"""Stamps (size, times, inode) and digests of files.

A stamp is a file's `Identity`: its size, its two times of change and its inode. While no stamp has changed nothing is read;
where one has, the digest is taken again. A bit that rots changes no stamp.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from flyweight.checkpoint import Checkpoint
from flyweight.containers.npy_dir.tier_places import DECIDING, FOLDER, RECORD
from flyweight.foundation import strict_json
from flyweight.foundation.errors import MalformedError
from flyweight.foundation.manifest import Entry
from flyweight.sources import Bundle, Identity, open_bundle
from flyweight.tiers.tier_table import Tier

Stamps = Mapping[str, Identity]

_MAX_DEPTH = 8
"""As deep as a model's directory is looked into."""


# Stamps -----------------------------------------------------------------------------------------


def stamps(root: Path, place: str, depth: int = 0) -> dict[str, Identity]:
    """The stamps of a file, or of every file in a folder and those below it; empty if it is not there."""
    try:
        folder = os.open(root / place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return {}
    except OSError:  # not a directory, or a link
        with suppress(FileNotFoundError):
            return {place: Identity.of_file(os.stat(root / place))}
        return {}
    found: dict[str, Identity] = {}
    try:
        with os.scandir(folder) as entries:  # by its descriptor: a thousand paths need not be walked
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if depth < _MAX_DEPTH:
                        found |= stamps(root, f"{place}/{entry.name}", depth + 1)
                    continue
                with suppress(OSError):  # a link to nothing, or to itself
                    found[f"{place}/{entry.name}"] = Identity.of_file(entry.stat())
    finally:
        os.close(folder)
    return found


def source_stamps(root: Path) -> dict[str, Identity]:
    """The stamps of everything that decides which values the arrays have."""
    found: dict[str, Identity] = {}
    for place in (*DECIDING, FOLDER.rstrip("/")):
        found |= stamps(root, place)
    return found


def weights_stamps(home: Path, tier: Tier) -> dict[str, Identity]:
    return {file: stamp for file, stamp in stamps(home, tier.place).items() if file != tier.sentinel}


def fingerprint(found: Stamps) -> str:
    """Many stamps as one word, which is the same while none of them changes."""
    from blake3 import blake3

    return blake3(repr(sorted((file, *stamp) for file, stamp in found.items())).encode("utf-8", "surrogateescape")).hexdigest()


# Digests ----------------------------------------------------------------------------------------


def digest_of(lines: Iterable[object]) -> str:
    from blake3 import blake3

    return blake3(strict_json.dumps(list(lines))).hexdigest()


def _all_digests(bundle: Bundle, runs: Iterable[tuple[str, int, int]]) -> list[str]:
    """The BLAKE3 of each run of bytes: file, offset, length."""
    from concurrent.futures import ThreadPoolExecutor  # a start that reads nothing needs none

    with ThreadPoolExecutor(min(os.cpu_count() or 1, 8), thread_name_prefix="digest") as pool:
        return list(pool.map(lambda run: bundle[run[0]].digest(*run[1:]), runs))


def _whole_files(bundle: Bundle, files: list[str]) -> dict[str, str]:
    return dict(zip(files, _all_digests(bundle, ((file, 0, bundle[file].size) for file in files)), strict=True))


def source_digest(root: Path) -> str:
    """The digest of the arrays and of what decides about them. An array that flyweight.json knows otherwise is an error."""
    with closing(open_bundle(root)) as bundle:
        found = _whole_files(bundle, sorted(f for f in bundle if f in DECIDING or f.startswith(FOLDER)))
        for file, digest in _recorded(bundle).items():
            if found.get(file, digest) != digest:
                raise MalformedError(
                    f"the bytes do not match the digest in {RECORD}", code="E_DIGEST", file=bundle[file].name,
                    hint="`flyweight verify` names every damaged array; convert the model again",
                )  # fmt: skip
    return digest_of([_written(file), digest] for file, digest in found.items())


def _written(file: str) -> str:
    """A name as JSON can have it, whose bytes need not be UTF-8."""
    return os.fsencode(file).decode("utf-8", "backslashreplace")


def _recorded(bundle: Bundle) -> Mapping[str, str]:
    from flyweight.containers.npy_dir.flyweight_json import read_record

    return read_record(bundle[RECORD], only_files=True).files if RECORD in bundle else {}


def described(entries: Iterable[Entry], parts: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Tensor → what it is and the digest of each of its parts."""
    ordered = sorted(entries, key=lambda entry: entry.name)
    return {e.name: [str(e.spec), _sorted(e.codec.as_json()), _sorted(parts[e.name])] for e in ordered}


def _sorted(value: Any) -> Any:
    """With keys in one order: a format need not keep that of a codec's parameters."""
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list | tuple) else value


def content(checkpoint: Checkpoint) -> dict[str, Any]:
    """`described` of what is stored, every byte of it read."""
    entries = list(checkpoint.manifest.entries.values())
    runs = [(entry.name, part, extent) for entry in entries for part, extent in entry.extents.items()]
    found = _all_digests(checkpoint.bundle, (extent for _, _, extent in runs))
    parts: dict[str, dict[str, str]] = {entry.name: {} for entry in entries}
    for (name, part, _), digest in zip(runs, found, strict=True):
        parts[name][part] = digest
    return described(entries, parts)


def files_without_weights(checkpoint: Checkpoint) -> dict[str, str]:
    """The digest of each file of a model that no tensor lies in: its config, its tokenizer, whatever was put there."""
    weights = {extent.file for entry in checkpoint.manifest.entries.values() for extent in entry.extents.values()}
    return _whole_files(checkpoint.bundle, sorted(file for file in checkpoint.bundle if file not in weights))


def content_digest(tensors: Mapping[str, Any], files: Mapping[str, str]) -> str:
    """The digest of a tier: its tensors, and for one that is a whole model the files without weights."""
    lines: list[object] = [[name, *what] for name, what in tensors.items()]
    return digest_of(lines + [[_written(file), digest] for file, digest in files.items()])
