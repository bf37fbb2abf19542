"""The seal of a tier: what its sentinel says, so that it can be trusted at a glance.

    {"format": "flyweight tier", "version": 1, "tier": "packed", "by": "flyweight 0.1.0",
     "source":  {"digest": BLAKE3, "files": {"tensors/a__q.npy": [size, mtime, ctime], …}},
     "weights": {"digest": BLAKE3, "files": {"flyweight_packed.safetensors": [size, mtime, ctime]}},
     "ungated": ""}

Two digests say what it was built from and what it is; the stamps beside them when they were last found true. While no stamp
has changed nothing is read. If one has (the directory was copied, or someone wrote into it) the digest is taken again: the same
bytes get new stamps, other bytes are not the tier. A file whose bits rot keeps its stamps: `cache verify` reads everything.

`ungated` is what the accuracy gate says against weights of three bits that were built from or into all the same; it is empty
where there is nothing to say.

Squish's own sentinels are empty. What they stand beside was made from who knows what, and is not used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from flyweight import __version__, strict_json
from flyweight.checkpoint import Checkpoint
from flyweight.errors import FlyweightError, MalformedError
from flyweight.limits import MAX_JSON_BYTES
from flyweight.manifest import Entry
from flyweight.sources import Bundle, FileSource, open_bundle
from flyweight.tiers.table import FRESH, Tier

__all__ = ["Proof", "Seal", "Stamp", "content_digest", "describe", "read_seal", "source_digest", "stamps", "write_seal"]

Stamp = tuple[int, int, int]
"""Size, and the times of the last change of content and of anything: no program can set the third."""

_FORMAT, _VERSION = "flyweight tier", 1
_DIGEST = re.compile(r"[0-9a-f]{64}")
_DECIDING = ("manifest.json", "flyweight.json", ".squish_int4_ready")
"""Files beside the arrays that say which of them count."""
_FOLDER = "tensors"


class Proof(NamedTuple):
    digest: str
    files: Mapping[str, Stamp]


class Seal(NamedTuple):
    tier: str
    source: Proof
    weights: Proof
    ungated: str = ""

    def text(self) -> bytes:
        document = {"format": _FORMAT, "version": _VERSION, "tier": self.tier, "by": f"flyweight {__version__}"}
        proofs = {"source": self.source, "weights": self.weights}
        said = {name: {"digest": p.digest, "files": {f: list(s) for f, s in p.files.items()}} for name, p in proofs.items()}
        return strict_json.dumps(document | said | {"ungated": self.ungated}, indent=1) + b"\n"


# The sentinel -----------------------------------------------------------------------------------


def read_seal(root: Path, tier: Tier) -> Seal | None:
    """What a sentinel says, or None if there is none or it is not of ours: empty, torn, of another version."""
    with suppress(FlyweightError, OSError):
        with closing(FileSource(root / tier.sentinel)) as source:
            if source.size > MAX_JSON_BYTES:
                return None
            raw = bytes(source.read(0, source.size))
        match strict_json.loads(raw, file=tier.sentinel):
            case {
                "format": str(form), "version": int(version), "tier": str(name), "source": source, "weights": weights,
                "ungated": str(ungated),
            } if (form, version, name) == (_FORMAT, _VERSION, tier.name):  # fmt: skip
                from_, into = _proof(source), _proof(weights)
                if from_ and into:
                    return Seal(name, from_, into, ungated)
    return None


def _proof(said: Any) -> Proof | None:
    match said:
        case {"digest": str(digest), "files": dict(files)} if _DIGEST.fullmatch(digest):
            if all(type(s) is list and len(s) == 3 and all(type(n) is int for n in s) for s in files.values()):
                return Proof(digest, {file: (s[0], s[1], s[2]) for file, s in files.items()})
    return None


def write_seal(root: Path, tier: Tier, seal: Seal) -> None:
    """Put the sentinel there in one step, after everything it vouches for is on disk."""
    place = root / tier.sentinel
    fresh = root / FRESH
    with open(fresh, "wb") as file:
        file.write(seal.text())
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, place)
    folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# Stamps -----------------------------------------------------------------------------------------


def stamps(root: Path, place: str) -> dict[str, Stamp]:
    """The stamps of a file, or of every file in a folder and those below it; empty if it is not there."""
    try:
        folder = os.open(root / place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except NotADirectoryError:
        return {place: _stamp(os.stat(root / place))}
    except FileNotFoundError:
        return {}
    found: dict[str, Stamp] = {}
    try:
        with os.scandir(folder) as entries:  # by its descriptor: a thousand paths need not be walked
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    found |= stamps(root, f"{place}/{entry.name}")
                    continue
                with suppress(FileNotFoundError):  # a link to nothing
                    found[f"{place}/{entry.name}"] = _stamp(entry.stat())
    finally:
        os.close(folder)
    return found


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def source_stamps(root: Path) -> dict[str, Stamp]:
    """The stamps of everything that decides which values the arrays have."""
    found: dict[str, Stamp] = {}
    for place in (*_DECIDING, _FOLDER):
        found |= stamps(root, place)
    return found


# Digests ----------------------------------------------------------------------------------------


def _digest_of(lines: Iterable[object]) -> str:
    from blake3 import blake3

    return blake3(strict_json.dumps(list(lines))).hexdigest()


def _all_digests(bundle: Bundle, runs: Iterable[tuple[str, int, int]]) -> list[str]:
    """The BLAKE3 of each run of bytes: file, offset, length."""
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 8), thread_name_prefix="digest") as pool:
        return list(pool.map(lambda run: bundle[run[0]].digest(*run[1:]), runs))


def source_digest(root: Path) -> str:
    """The digest of the arrays and of what decides about them. An array that flyweight.json knows otherwise is an error."""
    with closing(open_bundle(root)) as bundle:
        files = sorted(f for f in bundle if f in _DECIDING or f.startswith(f"{_FOLDER}/"))
        made = dict(zip(files, _all_digests(bundle, ((file, 0, bundle[file].size) for file in files)), strict=True))
        for file, digest in _recorded(bundle).items():
            if made.get(file, digest) != digest:
                raise MalformedError(
                    "its bytes are not those flyweight.json has the digest of", code="E_DIGEST", file=bundle[file].name,
                    hint="`flyweight verify` names every damaged array; convert the model again",
                )  # fmt: skip
    return _digest_of(made.items())


def _recorded(bundle: Bundle) -> Mapping[str, str]:
    from flyweight.containers.npy_dir.record import RECORD, read_record

    if RECORD not in bundle or bundle[RECORD].size > MAX_JSON_BYTES:
        return {}
    source = bundle[RECORD]
    return read_record(source.read(0, source.size), source.name).files


def describe(entries: Iterable[Entry], parts: Mapping[str, Mapping[str, str]]) -> str:
    """The digest of a model's tensors: what each is, and the digest of each of its parts."""
    ordered = sorted(entries, key=lambda entry: entry.name)
    return _digest_of([e.name, str(e.spec), e.codec.as_json(), dict(sorted(parts[e.name].items()))] for e in ordered)


def content_digest(checkpoint: Checkpoint) -> str:
    """`describe` of what is stored, every byte of it read."""
    entries = list(checkpoint.manifest.entries.values())
    runs = [(entry.name, part, extent) for entry in entries for part, extent in entry.extents.items()]
    found = _all_digests(checkpoint.bundle, (extent for _, _, extent in runs))
    parts: dict[str, dict[str, str]] = {entry.name: {} for entry in entries}
    for (name, part, _), digest in zip(runs, found, strict=True):
        parts[name][part] = digest
    return describe(entries, parts)
