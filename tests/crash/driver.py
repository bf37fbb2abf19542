"""Run one conversion many times, each in a forked child that dies, or meets an error, at its N-th write-path call.

`trap` has the calls and what happens at them.
Prints one JSON line per point: what the destination looked like afterwards, and whether `resume`
then ended in the expected bytes.

    python driver.py MODE SOURCE DESTINATION EXPECTED OLD OPTIONS(JSON) [ERRNO]
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import sys
from functools import partial
from pathlib import Path

from trap import attempt, make_plain

import flyweight
from flyweight import measuring

CHECK_TOKENS = 512


def tree(path: Path) -> dict[str, str] | None:
    """Content of a file or directory by digest; None if absent."""
    if not path.exists():
        return None
    files = sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path]
    return {str(f.relative_to(path.parent)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def main() -> None:
    mode, source, destination, expected_path, old_path, options = sys.argv[1:7]
    code = getattr(errno, sys.argv[7]) if len(sys.argv) > 7 else 0
    target, expected = Path(destination), tree(Path(expected_path))
    arguments = {"source": source, "destination": destination, "jobs": 1, **json.loads(options)}
    if arguments.pop("plain", False):
        make_plain()
    measuring.CHECK_TOKENS = CHECK_TOKENS

    def reset() -> None:
        for path in target.parent.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if arguments.get("force"):
            shutil.copytree(old_path, target) if Path(old_path).is_dir() else shutil.copy(old_path, target)

    flyweight.open(source).close()
    reset()
    old = tree(target)
    status, total = attempt("kill", 0, 0, partial(flyweight.convert, **arguments))
    assert status == 0, status
    assert normal(tree(target)) == normal(expected)
    print(json.dumps({"total": total}), flush=True)
    for point in range(1, total + 1):
        reset()
        status, _ = attempt(mode, point, code, partial(flyweight.convert, **arguments))
        state = tree(target)
        aside = state is None and [normal(tree(path)) for path in target.parent.glob(".*.partial-*/replaced")] == [normal(old)]
        after = "complete" if normal(state) == normal(expected) else "old" if state == old else "aside" if aside else "half"
        again, _ = attempt("kill", 0, 0, partial(flyweight.convert, **arguments, resume=True))
        # Killed in its last breath, a run has published and forgotten its journal: resuming then finds the output complete.
        ended = again == 0 or (after == "complete" and again == 6)
        resumed = ended and list(target.parent.iterdir()) == [target] and normal(tree(target)) == normal(expected)
        print(json.dumps({"point": point, "status": status, "after": after, "resumed": resumed}), flush=True)


def normal(state: dict[str, str] | None) -> list[tuple[str, str]] | None:
    """Digests by name relative to the output's own root, so that two destinations compare."""
    return None if state is None else sorted((name.partition("/")[2], digest) for name, digest in state.items())


if __name__ == "__main__":
    main()
