"""As `driver`, for the verbs of deltas: a file that grows while it is made, and models that are made of deltas.

After each point the same run is tried again, undisturbed: it must end in the expected bytes, with nothing beside them.

    python delta_driver.py MODE VERB FOLDER FORCE STRIDE [ERRNO]

Every STRIDE-th point is tried.

FOLDER has base, tuned, one.wdelta, two.wdelta, expected/ and old/ with what VERB makes, and an empty folder `out`.
"""

from __future__ import annotations

import errno
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from driver import normal, tree
from trap import attempt

from flyweight.pipeline.deltas.applying import apply_delta, squash_deltas
from flyweight.pipeline.deltas.creating import create_delta


def works(folder: Path, target: Path, force: bool) -> dict[str, Callable[[], object]]:
    base, one, two = folder / "base", folder / "one.wdelta", folder / "two.wdelta"
    return {
        "create": lambda: create_delta(base, folder / "tuned", target, force=force),
        "apply": lambda: apply_delta(base, [one], target, force=force, jobs=1),
        "squash": lambda: squash_deltas(base, [one, two], target, force=force),
    }


def main() -> None:
    mode, verb, place, forced, stride = sys.argv[1:6]
    code = getattr(errno, sys.argv[6]) if len(sys.argv) > 6 else 0
    folder, force = Path(place), forced == "force"
    (expected_path,), (old_path,) = (folder / "expected").iterdir(), (folder / "old").iterdir()
    target, expected = folder / "out" / expected_path.name, tree(expected_path)
    work = works(folder, target, force)[verb]

    def reset() -> None:
        for path in target.parent.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if force:
            shutil.copytree(old_path, target) if old_path.is_dir() else shutil.copy(old_path, target)

    reset()
    old = tree(target)
    status, total = attempt("kill", 0, 0, work)
    assert status == 0, status
    assert normal(tree(target)) == normal(expected)
    print(json.dumps({"total": total}), flush=True)
    for point in range(1, total + 1, int(stride)):
        reset()
        status, _ = attempt(mode, point, code, work)
        state = tree(target)
        after = "complete" if normal(state) == normal(expected) else "old" if state == old else "half"
        left = [path.name for path in target.parent.iterdir() if path != target]
        again, _ = attempt("kill", 0, 0, work)
        ended = again == 0 or (after == "complete" and not force and again == 6)
        done = ended and list(target.parent.iterdir()) == [target] and normal(tree(target)) == normal(expected)
        print(json.dumps({"point": point, "status": status, "after": after, "left": left, "done": done}), flush=True)


main()
