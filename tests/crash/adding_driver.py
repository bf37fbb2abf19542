"""As `driver`, for four bits added in place: the directory is there before, during and after.

Each point ends one run early and then tries one of three ways on, in turn: to resume it, to start over, to add another
form instead. Prints per point which values the directory had, whether it verified, and whether the way on ended in
exactly the files of an undisturbed run.

    python adding_driver.py MODE DIRECTORY FORM OTHER_FORM [ERRNO]
"""

from __future__ import annotations

import errno
import json
import shutil
import sys
from functools import partial
from pathlib import Path

from driver import normal, tree
from trap import attempt

import flyweight
from flyweight.pipeline.adding import add_form

WAYS = ("resume", "again", "other")


def values(path: Path) -> list[tuple[str, str, bytes]]:
    """What a reader gets."""
    with flyweight.open(path) as model:
        return [(name, str(model.manifest.entries[name].codec), model[name].tobytes()) for name in model]


def main() -> None:
    mode, directory, form, other = sys.argv[1:5]
    code = getattr(errno, sys.argv[5]) if len(sys.argv) > 5 else 0
    source, target = Path(directory), Path(directory).with_name("target")

    def reset() -> None:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)

    def add(name: str, *, resume: bool = False) -> partial[object]:
        return partial(add_form, target, name, jobs=1, resume=resume)

    expected = {}
    for name in (other, form):
        reset()
        status, total = attempt("kill", 0, 0, add(name))
        assert status == 0, status
        expected[name] = normal(tree(target))
    old, new = values(source), values(target)
    assert old != new
    print(json.dumps({"total": total}), flush=True)
    for point in range(1, total + 1):
        reset()
        status, _ = attempt(mode, point, code, add(form))
        after = {str(old): "old", str(new): "complete"}.get(str(values(target)), "half")
        sound = flyweight.verify(target).ok
        way = WAYS[point % 3] if after == "old" else "resume"  # the other form is refused once this one counts
        wanted = other if way == "other" else form
        again, _ = attempt("kill", 0, 0, add(wanted, resume=way == "resume"))
        ended = again == 0 and normal(tree(target)) == expected[wanted]
        print(
            json.dumps({"point": point, "status": status, "after": after, "sound": sound, "way": way, "ended": ended}),
            flush=True,
        )


main()
