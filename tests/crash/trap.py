"""A forked child that dies, or meets an error, at its N-th call that changes the file system.

`kill` sends SIGKILL right before that call, which is what a kill -9 between two system calls does; `raise` makes it fail with
an errno. A `plain` file system has neither renameat2(2) with flags nor hard links, as exFAT.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from typing import Any

import flyweight
from flyweight.writing import folder, signature

signature(b"")  # has the user's key made, once, so that no child counts it
CREATES = os.O_CREAT
CALLS = [
    "open",
    "mkdir",
    "posix_fallocate",
    "ftruncate",
    "pwrite",
    "write",
    "fsync",
    "link",
    "replace",
    "rename",
    "unlink",
    "rmdir",
]


def arm(mode: str, point: int, code: int) -> Callable[[], int]:
    """Count write-path calls; act at number `point`. Returns a reader of the count."""
    seen, opened = 0, os.open

    def trap(call: Callable[..., Any]) -> Callable[..., Any]:
        def trapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal seen
            if call is opened and not args[1] & CREATES:
                return call(*args, **kwargs)
            seen += 1
            if seen == point:
                if mode == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError(code, os.strerror(code))
            return call(*args, **kwargs)

        return trapped

    for name in CALLS:
        setattr(os, name, trap(getattr(os, name)))
    folder._renameat2 = trap(folder._renameat2)
    return lambda: seen


def make_plain() -> None:
    """From here on this process, and its children, have a file system that can only rename."""

    def link(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    os.link = link
    folder._renameat2 = lambda *_: False


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
