"""Run one conversion many times, each in a forked child that dies, or meets an error, at its N-th write-path call.

The calls are those that change the file system. `kill` sends SIGKILL to the child right before the N-th of
them, which is what a kill -9 between two system calls does; `raise` makes the call fail with an errno.
Prints one JSON line per point: what the destination looked like afterwards, and whether `resume`
then ended in the expected bytes.

    python driver.py MODE SOURCE DESTINATION EXPECTED OPTIONS(JSON) [ERRNO]
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import flyweight
from flyweight.pipeline import staging

CALLS = ["mkdir", "posix_fallocate", "ftruncate", "pwrite", "write", "fsync", "link", "replace", "rename", "unlink", "rmdir"]


def tree(path: Path) -> dict[str, str] | None:
    """Content of a file or directory by digest; None if absent."""
    if not path.exists():
        return None
    files = sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path]
    return {str(f.relative_to(path.parent)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def arm(mode: str, point: int, code: int) -> Callable[[], int]:
    """Count write-path calls; act at number `point`. Returns a reader of the count."""
    seen = 0

    def trap(call: Callable[..., Any]) -> Callable[..., Any]:
        def trapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == point:
                if mode == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError(code, os.strerror(code))
            return call(*args, **kwargs)

        return trapped

    for name in CALLS:
        setattr(os, name, trap(getattr(os, name)))
    staging._renameat2 = trap(staging._renameat2)
    return lambda: seen


def attempt(mode: str, point: int, code: int, work: Callable[[], object]) -> tuple[int, int]:
    """Exit status of a forked child that works under the trap, and the calls it counted (if it lived)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        count = arm(mode, point, code)
        status = 0
        try:
            work()
        except OSError:
            status = 6
        except flyweight.FlyweightError as error:
            status = error.exit_code
        os.fdopen(writing, "w").write(str(count()))
        os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        counted = pipe.read()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), int(counted or 0)


def main() -> None:
    mode, source, destination, expected_path, options = sys.argv[1:6]
    code = getattr(errno, sys.argv[6]) if len(sys.argv) > 6 else 0
    target, expected = Path(destination), tree(Path(expected_path))
    arguments = {"source": source, "destination": destination, "jobs": 1, **json.loads(options)}
    forced = bool(arguments.get("force"))
    staged = target.parent / f".{target.name}.partial"

    def reset() -> None:
        for path in (target, staged):
            if path.is_dir():
                shutil.rmtree(path)
            elif path.exists():
                path.unlink()
        if forced and Path(expected_path).is_dir():
            target.mkdir()
            (target / "old").write_bytes(b"the old state")
        elif forced:
            target.write_bytes(b"the old state")

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
        after = "complete" if normal(state) == normal(expected) else "old" if state == old else "half"
        again, _ = attempt("kill", 0, 0, partial(flyweight.convert, **arguments, resume=True))
        # Killed in its last breath, a run has published and forgotten its journal: resuming then finds the output complete.
        ended = (again == 0 and not staged.exists()) or (after == "complete" and again == 6)
        resumed = ended and normal(tree(target)) == normal(expected)
        print(json.dumps({"point": point, "status": status, "after": after, "resumed": resumed}), flush=True)


def normal(state: dict[str, str] | None) -> list[tuple[str, str]] | None:
    """Digests by name relative to the output's own root, so that two destinations compare."""
    return None if state is None else sorted((name.partition("/")[2], digest) for name, digest in state.items())


if __name__ == "__main__":
    main()
