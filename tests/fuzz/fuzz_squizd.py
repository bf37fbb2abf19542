"""Fuzzing of SQUIZD files: mutations that know the format, through everything that reads one.

    python tests/fuzz/fuzz_squizd.py --executions 1000000 --seed 1 --jobs 2
    python tests/fuzz/fuzz_squizd.py --flips --jobs 2

Every execution breaks a small file of some kind: bytes, fields with all checksums made right again, the directory as JSON,
the archive of an appendix, splices of two files, cuts. The file is probed, parsed, proven, decoded and audited. Only
FlyweightError may escape; one execution may take a second and the process 512 MB; what parses lies inside its file; and a
file with a directory that was changed without its digests is never found sound. A file that breaks a promise is kept.

With `--flips`, every bit of a file of each kind is flipped, one at a time, and each must be found; in a tensor's block, in
that tensor.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from flyweight.checkpoint import Checkpoint
from flyweight.containers.squizd import Squizd
from flyweight.containers.squizd.audit import audit
from flyweight.containers.squizd.reading import read
from flyweight.errors import FlyweightError
from flyweight.manifest import Manifest
from squizd_files import (
    FLAG,
    KINDS,
    NAME,
    archive,
    bare,
    bundle,
    directory_of,
    edited,
    int4,
    layered,
    manifest,
    member,
    npcl,
    patched,
    redigested,
    resealed,
    table,
    with_appendix,
    written,
)

__all__ = ["Outcome", "fuzz"]

MAX_SECONDS, MAX_BYTES = 1.0, 512 << 20
NUMBERS = [0, 1, 2, 3, 7, 8, 16, 63, 64, 255, 256, 320, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63, 2**64 - 1]
VALUES: list[Any] = [
    *NUMBERS, 2**64, 10**30, -1, -64, 0.5, 64.0, -0.0, True, False, None, "", "x", "..", "a\0b", "a/b", "draft.x", "INT4",
    "INT2", "TCAW", "ASTW", "NPCL", "f16", "bf16", "i64", "model.mlpackage.zip", "model.layers.1.x.weight", "0" * 64, [], {},
    [4, 4], [12, 12], [1] * 9, [0, 8], [2, 0], [2**31, 2**31], {"offset": 64},
]  # fmt: skip
HEADER_FIELDS = [(4, "H"), (6, "I"), (10, "H"), (12, "H"), (14, "I"), (18, "Q"), (26, "Q"), (128, "I"), (132, "I"), (136, "I"),
                 (140, "I"), (144, "Q"), (160, "Q"), (168, "Q"), (176, "I"), (180, "I"), (184, "Q"), (192, "Q")]  # fmt: skip
INDEX_FIELDS = [(0, "I"), (4, "Q"), (12, "Q"), (20, "Q"), (28, "I")]
MAGICS = (b"SQDX", b"INT4", b"INT2", b"TCAW", b"ASTW", b"NPCL", b"SCZT", b"EGDH", b"ANLX", b"PK\x01\x02", b"PK\x05\x06")

PAIRS = table((7, 0.5, 0.25), (8, 0.5, 0.25))
ROUNDS = PAIRS + table(*[(1 << 63 | 7, 0.5, 0.25)] * 4, *[(1 << 63 | 8, 0.5, 0.25)] * 8)
ASTW = struct.pack("<4sIII", b"ASTW", 8, 8, 4) + bytes(64)
TCAW = struct.pack("<4sIIIQQQ", b"TCAW", 4, 16, 100, 0, 64, 0) + bytes(24 + 64 + 8)
BARE = [
    bare((layered(int4(4, 8), int4(4, 16)), ROUNDS), (layered(npcl([2, 2], bytes(16)), int4(3, 5), int4(1, 1)), PAIRS)),
    bare((layered(ASTW, npcl([3], bytes(6), code=1)), table((9, 1.0, 0.0))), flags=FLAG["ASTC"]),
    bare((layered(TCAW, npcl([2], bytes(4), code=2)), table()), flags=FLAG["TCA_TBE"]),
    bare(
        (int4(4, 8), table((7, 1.0, 0.0)) + bytes(40)), flags=FLAG["INT4"] | FLAG["ANE_COREML"],
        tail=struct.pack("<4sQ", b"ANLX", len(archive(member("a")))) + archive(member("a")),
    ),
]  # fmt: skip
WHOLE = [written(manifest(**kind, layers=1)) for kind in KINDS.values()]
ZIPPED = archive(member("Manifest.json", b"{}"), member("Data/weight.bin", bytes(300), deflated=True), member("Data/x", b"abc"))


class Outcome(NamedTuple):
    executions: int
    codes: Counter[str]
    slowest: float


Random = random.Random

# Mutations ------------------------------------------------------------------------------------


def bytes_changed(rng: Random, raw: bytes) -> bytes:
    made = bytearray(raw)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(made))
        match rng.randrange(4):
            case 0:
                made[at] ^= 1 << rng.randrange(8)
            case 1:
                made[at] = rng.randrange(256)
            case 2:
                size = rng.choice((1, 2, 4, 8))
                made[at : at + size] = (rng.choice(NUMBERS) & (1 << 8 * size) - 1).to_bytes(size, "little")
            case _:
                other = rng.randrange(len(made))
                made[at : at + 16], made[other : other + 16] = made[other : other + 16], made[at : at + 16]
    return bytes(made)


def field_changed(rng: Random, raw: bytes) -> bytes:
    """A number of the header, the index, or what follows a magic."""
    match rng.randrange(3):
        case 0:
            at, kind = rng.choice(HEADER_FIELDS)
        case 1:
            at, kind = rng.choice(INDEX_FIELDS)
            at += 256 + 32 * rng.randrange(2)
        case _:
            places = [at for magic in MAGICS if (at := raw.find(magic, 256)) >= 0]
            at, kind = rng.choice(places) + 4 * rng.randrange(0, 8), rng.choice("IQ")
    size = struct.calcsize(kind)
    value = int.from_bytes(raw[at : at + size], "little") + rng.choice((-64, -16, -1, 1, 16, 64))
    value = rng.choice((value, 1 << rng.randrange(64), rng.choice(NUMBERS)))
    new = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
    return patched(raw, at, new) if at + size <= len(raw) else raw


def repaired(raw: bytes, repair: Callable[[bytes], bytes]) -> bytes:
    """With right checksums, where there is still a directory to hold them."""
    try:
        return repair(raw)
    except (AssertionError, KeyError, TypeError, ValueError, IndexError):
        return raw


def _places(node: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    found, todo = [], [node]
    while todo:
        one = todo.pop()
        for key, value in one.items() if isinstance(one, dict) else enumerate(one):
            found.append((one, key))
            if isinstance(value, dict | list):
                todo.append(value)
    return found


def json_changed(rng: Random, raw: bytes) -> bytes:
    document = directory_of(raw)
    document["metadata"].pop("room", None)
    for _ in range(rng.randint(1, 2)):
        places = _places(document)
        holder, key = rng.choice(places)
        match rng.randrange(6):
            case 0:
                del holder[key]
            case 1:
                donor, where = rng.choice(places)
                holder[key] = json.loads(json.dumps(donor[where]))
            case 2 if type(holder[key]) is int:
                holder[key] += rng.choice((-64, -16, -1, 1, 4, 16, 64))
            case 3 if isinstance(holder, list):
                holder.append(json.loads(json.dumps(holder[key])))
            case _:
                holder[key] = json.loads(json.dumps(rng.choice(VALUES)))
        if not document:
            break
    text = json.dumps(document, separators=(",", ":")).encode()
    if rng.randrange(8) == 0:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice((b"", b"[", b"}", b",", b'"', b"\xff", b"-", b"9" * 30)) + text[at + 1 :]
    return repaired(raw, lambda raw: edited(raw, text))


def spliced(rng: Random, raw: bytes) -> bytes:
    other = rng.choice((*WHOLE, *BARE))
    begin = rng.randrange(len(other))
    piece = other[begin : begin + rng.choice((16, 32, 64, 256, 1024))]
    at = rng.choice((begin, rng.randrange(len(raw)) & -64))
    return raw[:at] + piece + raw[at + rng.choice((0, len(piece))) :]


def cut(rng: Random, raw: bytes) -> bytes:
    at = rng.randrange(len(raw))
    return rng.choice((raw[:at], raw + bytes(rng.randint(1, 100)), raw[:at] + bytes(rng.randint(1, 64)) + raw[at:]))


def archive_changed(rng: Random, _: bytes) -> bytes:
    made = bytearray(ZIPPED)
    for _ in range(rng.randint(1, 3)):
        magic = rng.choice((b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"))
        at = made.find(magic, rng.randrange(len(made)))
        at = at + rng.randrange(46) if at >= 0 else rng.randrange(len(made))
        made[at % len(made)] = rng.choice((0, 1, 8, 0x2F, 0x5C, 0xFF, rng.randrange(256)))
    zipped = bytes(made)
    if rng.randrange(8) == 0:
        zipped = cut(rng, zipped)
    return with_appendix(WHOLE[0], zipped)


# Promises -------------------------------------------------------------------------------------


class BrokenPromiseError(AssertionError):
    pass


def promise(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenPromiseError(what)


def execute(raw: bytes, *, damaged: bool) -> str:
    """Everything that reads a file. Returns the code it ends in."""
    container, files = Squizd(), bundle(raw)
    container.probe(files)
    found = read(files[NAME], NAME)  # what `parse` and `audit` begin with, done once for both
    findings = list(audit(found))
    promise(bool(findings) or not damaged, "damage was not found")
    try:
        found.report.raise_first(NAME)
    except FlyweightError as error:
        return error.code
    parsed = Manifest(container.name, found.entries, found.metadata, found.files, container.dialect)
    spans = []
    for entry in parsed.entries.values():
        promise(entry.parts.keys() == entry.extents.keys(), "parts without a place")
        for part, extent in entry.extents.items():
            promise(extent.nbytes == entry.parts[part].nbytes, "a part of another size")
            spans.append((extent.offset, extent.end))
    spans += [(extent.offset, extent.end) for extent in parsed.files.values() if not isinstance(extent, bytes)]
    spans = sorted(span for span in spans if span[0] < span[1])
    promise(not spans or (spans[0][0] >= 256 and max(stop for _, stop in spans) <= len(raw)), "an extent outside the file")
    promise(all(before[1] <= after[0] for before, after in pairwise(spans)), "extents overlap")
    checkpoint = Checkpoint(files, container, parsed)
    code = "parsed"
    for name in checkpoint:
        try:
            checkpoint[name]
        except FlyweightError as error:
            code = f"parsed, {error.code}"
    return code


def mutated(rng: Random) -> tuple[bytes, bool]:
    """A broken file, and whether its digests still are those of the file it was."""
    if rng.randrange(5) == 0:
        raw = rng.choice(BARE)
        return rng.choice((bytes_changed, field_changed, field_changed, spliced, cut))(rng, raw), False
    raw = rng.choice(WHOLE)
    match rng.randrange(8):
        case 0:
            made = rng.choice((bytes_changed, spliced, cut))(rng, raw)
            return made, made != raw and made not in WHOLE and made not in BARE
        case 1:
            return repaired(bytes_changed(rng, raw), resealed), False
        case 2 | 3:
            return repaired(field_changed(rng, raw), rng.choice((redigested, resealed))), False
        case 4:
            return archive_changed(rng, raw), False
        case 5:
            return repaired(spliced(rng, raw), rng.choice((redigested, resealed))), False
        case _:
            return json_changed(rng, raw), False


def fuzz(executions: int, seed: int, keep: Path | None = None) -> Outcome:
    """Raises whatever escapes; the file that did it is written to `keep`."""
    rng, codes, slowest = random.Random(seed), Counter[str](), 0.0
    for number in range(executions):
        raw, damaged = mutated(rng)
        start = time.thread_time()
        try:
            codes[execute(raw, damaged=damaged)] += 1
            spent = time.thread_time() - start
            promise(spent < MAX_SECONDS, f"one execution took {spent:.1f} s")
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10 if keep else 0
            promise(peak < MAX_BYTES, f"the process took {peak >> 20} MB")
        except BaseException:
            if keep:
                (keep / f"squizd-{seed}-{number}.squizd").write_bytes(raw)
            raise
        slowest = max(slowest, spent)
    return Outcome(executions, codes, slowest)


def flips(raw: bytes) -> Outcome:
    """Every bit, one at a time."""
    owners = {
        at: one["name"] for one in directory_of(raw)["tensors"] for at in range(one["offset"], one["offset"] + one["length"])
    }
    codes, slowest, made = Counter[str](), 0.0, bytearray(raw)
    for bit in range(8 * len(raw)):
        at, start = bit // 8, time.thread_time()
        made[at] ^= 1 << bit % 8
        found = [finding for finding in Squizd().audit(bundle(bytes(made))) if finding.level == "error" or at not in owners]
        made[at] ^= 1 << bit % 8
        promise(bool(found), f"bit {bit % 8} of byte {at} was not found")
        promise(at not in owners or owners[at] in {finding.tensor for finding in found}, f"byte {at} was not located")
        codes[found[0].code] += 1
        slowest = max(slowest, time.thread_time() - start)
    return Outcome(8 * len(raw), codes, slowest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executions", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes, with the seeds that follow the first")
    parser.add_argument("--keep", type=Path, default=Path(), help="where a file that breaks a promise goes")
    parser.add_argument("--flips", action="store_true", help="flip every bit of a file of each kind instead")
    given = parser.parse_args()
    share, start = -(-given.executions // given.jobs), time.perf_counter()
    with ProcessPoolExecutor(given.jobs) as pool:
        if given.flips:
            tasks = [pool.submit(flips, raw) for raw in WHOLE]
        else:
            tasks = [pool.submit(fuzz, share, given.seed + job, given.keep) for job in range(given.jobs)]
        outcomes = [task.result() for task in tasks]
    seconds = time.perf_counter() - start
    executions, codes = sum(one.executions for one in outcomes), sum((one.codes for one in outcomes), Counter[str]())
    slowest = max(one.slowest for one in outcomes)
    print(f"{executions:,} executions in {seconds:.0f} s, {executions / seconds:,.0f}/s, the slowest {1000 * slowest:.0f} ms")
    print("\n".join(f"{count:>10,}  {code}" for code, count in codes.most_common()))


if __name__ == "__main__":
    main()
