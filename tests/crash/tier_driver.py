"""Build one tier many times, each in a forked child that dies at its N-th write-path call.

Prints one JSON line per point: what a start then runs from, whether it has the values of the arrays, and whether a start that
may build ends with the tier.

    python tier_driver.py DIRECTORY TIER MODE [ERRNO]
"""

from __future__ import annotations

import errno
import json
import shutil
import sys
from pathlib import Path

import numpy as np
from trap import attempt

from flyweight.tiers import build, open_best, tier_named


def values(root: Path, tier: str, may_build: bool) -> tuple[str, dict[str, np.ndarray]]:
    checkpoint, choice = open_best(root, tier=tier, build=may_build)
    with checkpoint:
        return choice.tier, {name: np.array(checkpoint[name]) for name in checkpoint}


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in expected)


def main() -> None:
    root, name, mode = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    code = getattr(errno, sys.argv[4]) if len(sys.argv) > 4 else 0
    arrays = values(root, "arrays", False)[1]
    build(root, name)
    expected = values(root, name, False)[1]
    fresh = root.with_name("fresh")
    shutil.rmtree(root / tier_named(name).place) if tier_named(name).is_folder else (root / tier_named(name).place).unlink()
    (root / tier_named(name).sentinel).unlink(missing_ok=True)
    root.rename(fresh)

    def reset() -> None:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(fresh, root)

    reset()
    status, total = attempt("kill", 0, 0, lambda: build(root, name, jobs=1))
    assert status == 0, status
    print(json.dumps({"total": total}), flush=True)
    for point in range(1, total + 1):
        reset()
        status, _ = attempt(mode, point, code, lambda: build(root, name, jobs=1))
        tier, found = values(root, "auto", False)
        right = same(found, expected if tier == name else arrays)
        after, built = values(root, name, True)
        left = [p.name for p in root.glob(".*.partial")]
        line = {"point": point, "status": status, "ran": tier, "right": right}
        print(json.dumps(line | {"ended": after, "resumed": same(built, expected) and not left}), flush=True)


if __name__ == "__main__":
    main()
