"""The corpus in the repository: the smallest inputs that together reach the code all of them reach.

Code is counted in arcs, from one line of Flyweight to the next in the same function. An input is added when it has an arc that
no seed and no smaller input has, so the folder stays a small part of what a long run finds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import flyweight
from fuzz.framing import Input, pack, unpack
from fuzz.seeds import seeds
from fuzz.targets import TARGETS

__all__ = ["MOST_BYTES", "arcs", "grow"]

MOST_BYTES = 100 << 10
"""Of one target."""
_PACKAGE = str(Path(flyweight.__file__).parent)

Arc = tuple[CodeType, int, int]


def arcs(target: str, given: Input) -> set[Arc]:
    """Where an execution goes."""
    seen: set[Arc] = set()

    def entered(frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        code, last = frame.f_code, 0

        def stepped(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal last
            if event == "line":
                seen.add((code, last, frame.f_lineno))
                last = frame.f_lineno
            return stepped

        return stepped

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        TARGETS[target](given)
    except Exception:  # noqa: BLE001  a finding reaches code as well
        pass
    finally:
        sys.settrace(before)
    return seen


def grow(target: str, found: Iterable[Input], folder: Path) -> int:
    """Add what reaches new code, smallest first. Returns how many inputs were added."""
    reached: set[Arc] = set()
    for given in seeds(target):
        reached |= arcs(target, given)
    folder.mkdir(parents=True, exist_ok=True)
    kept = sorted(folder.iterdir())
    nbytes = sum(path.stat().st_size for path in kept)
    for path in kept:
        reached |= arcs(target, unpack(path.read_bytes()))
    added = 0
    for given in sorted(found, key=lambda one: one.nbytes):
        raw = pack(given.files, is_directory=given.is_directory)
        if nbytes + len(raw) > MOST_BYTES:
            break
        new = arcs(target, given) - reached
        if new:
            reached |= new
            nbytes += len(raw)
            added += 1
            (folder / sha256(raw).hexdigest()[:16]).write_bytes(raw)
    return added
