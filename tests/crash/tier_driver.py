"""Build one tier many times, each in a forked child that dies at its N-th write-path call.

Prints one JSON line per point: what a start then runs from, whether it has the values of the arrays, and whether building again
ends with the tier and leaves nothing else behind.

    python tier_driver.py DIRECTORY TIER WHERE MODE [ERRNO]         WHERE is `cache` or `in-place`
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
from trap import attempt

from flyweight.tiers import build, open_best
from flyweight.tiers.keeping import leftovers
from flyweight.writing import signature


def values(root: Path, tier: str) -> tuple[str, dict[str, np.ndarray]]:
    checkpoint, choice = open_best(root, tier=tier, build=False)
    with checkpoint:
        return choice.tier, {name: np.array(checkpoint[name]) for name in checkpoint}


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in expected)


def main() -> None:
    root, name, in_place, mode = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "in-place", sys.argv[4]
    code = getattr(errno, sys.argv[5]) if len(sys.argv) > 5 else 0
    user = root.with_name("user")
    os.environ |= {"XDG_CACHE_HOME": str(user / "cache"), "XDG_STATE_HOME": str(user / "state")}
    signature(b"")  # have a key
    fresh = shutil.copytree(root, root.with_name("fresh"))
    build(root, name)
    arrays, expected = values(root, "arrays")[1], values(root, name)[1]

    def reset() -> None:
        shutil.rmtree(root)
        shutil.rmtree(user / "cache", ignore_errors=True)
        shutil.copytree(fresh, root)

    reset()
    status, total = attempt("kill", 0, 0, lambda: build(root, name, in_place=in_place, jobs=1))
    assert status == 0, status
    print(json.dumps({"total": total}), flush=True)
    for point in range(1, total + 1):
        reset()
        before = sorted(os.listdir(root))
        status, _ = attempt(mode, point, code, lambda: build(root, name, in_place=in_place, jobs=1))
        line = {"point": point, "status": status, "untouched": sorted(os.listdir(root)) == before}
        tier, found = values(root, "auto")
        line |= {"ran": tier, "right": same(found, expected if tier == name else arrays)}
        build(root, name, in_place=in_place)
        ended, found = values(root, "auto")
        left = [path.name for path in root.glob(".*.partial*")] + leftovers()
        print(json.dumps(line | {"ended": ended, "resumed": same(found, expected) and not left}), flush=True)


if __name__ == "__main__":
    main()
