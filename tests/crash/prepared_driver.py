"""Run a verb in forked children: once to see which names it touches, then with each of them prepared by a stranger.

    python prepared_driver.py WORK OUTSIDE CASES(JSON)

Each case is {"argv": [...], "inputs": [...], "place": …, "kind": …}; without a kind the names are traced. Prints one JSON line
per case. `WORK` is made anew from `WORK.template` for each; `OUTSIDE` holds what nobody may change.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flyweight
from flyweight import cli
from flyweight.writing import folder, signature

STRANGER = 12345
SECONDS = 20
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
AT_FDCWD = -1
FOLDERS = {
    "os.mkdir": [(0, 2)], "os.remove": [(0, 1)], "os.rmdir": [(0, 1)], "os.rename": [(0, 2), (1, 3)], "os.link": [(1, 3)],
    "os.symlink": [(1, 2)], "os.truncate": [(0, None)], "os.chmod": [(0, 2)], "os.utime": [(0, 3)],
}  # fmt: skip
"""Audit events: where in their arguments a path is, and the descriptor it is relative to."""


def trace() -> set[str]:
    """From here on, every path that this process creates, opens for writing, renames or removes."""
    touched: set[str] = set()
    calling = threading.local()

    def note(path: Any, dir_fd: Any) -> None:
        if isinstance(path, (str, bytes)):
            base = os.readlink(f"/proc/self/fd/{dir_fd}") if isinstance(dir_fd, int) and dir_fd > AT_FDCWD else os.getcwd()
            touched.add(os.path.normpath(os.path.join(base, os.fsdecode(path))))

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and args[2] & WRITES:
            note(args[0], getattr(calling, "dir_fd", None))
        for path, descriptor in FOLDERS.get(event, ()):
            note(args[path], None if descriptor is None else args[descriptor])

    def with_folder(call: Callable[..., int]) -> Callable[..., int]:
        def opening(*args: Any, dir_fd: int | None = None, **kwargs: Any) -> int:  # the event of open(2) lacks it
            calling.dir_fd = dir_fd
            try:
                return call(*args, dir_fd=dir_fd, **kwargs)
            finally:
                calling.dir_fd = None

        return opening

    def with_names(call: Callable[..., bool]) -> Callable[..., bool]:
        def renaming(old: folder.Folder, name: str, new: folder.Folder, new_name: str, flags: int) -> bool:
            note(name, old.descriptor)
            note(new_name, new.descriptor)
            return call(old, name, new, new_name, flags)

        return renaming

    sys.addaudithook(hook)
    os.open = with_folder(os.open)
    folder._renameat2 = with_names(folder._renameat2)
    return touched


def prepare(place: Path, kind: str, outside: Path) -> None:
    """What a stranger put there; whatever was there is gone."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    if kind == "link to a file":
        place.symlink_to(outside / "file")
    elif kind == "link to a directory":
        place.symlink_to(outside / "directory")
    elif kind == "link to nothing":
        place.symlink_to(outside / "new")
    elif kind == "fifo":
        os.mkfifo(place)
    elif kind == "directory":
        place.mkdir()
    elif kind == "directory of another":
        place.mkdir(0o777)
        (place / "file").write_bytes(b"precious")
        os.chown(place, STRANGER, STRANGER)
    elif kind == "file of another":
        place.write_bytes(b"precious")
        os.chown(place, STRANGER, STRANGER)
    else:
        raise ValueError(kind)


def state(root: Path) -> dict[str, list[int]]:
    """Every file below, with what changes if it is written to, replaced or given away."""
    found = {}
    for path in (root, *root.rglob("*")):
        status = path.lstat()
        fields = [status.st_ino, status.st_mode, status.st_uid, status.st_size, status.st_mtime_ns]
        found[str(path.relative_to(root))] = fields
    return found


def run(argv: list[str], work: Path, traced: bool) -> tuple[int, str, list[str]]:
    """Exit status (negative: a signal), what it wrote to stderr, and the names it touched if they are traced."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        status = 99
        with open(work.with_name("stderr"), "wb") as errors, open(os.devnull, "r+b") as null:
            os.dup2(null.fileno(), 0)
            os.dup2(null.fileno(), 1)
            os.dup2(errors.fileno(), 2)
        os.chdir(work)
        sys.argv = ["flyweight", *argv]
        touched = trace() if traced else set()
        try:
            cli.main()
            status = 0
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else 98
        except BaseException:  # noqa: BLE001  whatever it is, the test wants to see it
            traceback.print_exc()
        os.write(writing, json.dumps(sorted(touched)).encode())
        os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        touched_names = pipe.read()
    _, status = os.waitpid(child, 0)
    return (
        os.waitstatus_to_exitcode(status),
        work.with_name("stderr").read_text("utf-8", "replace"),
        json.loads(touched_names or "[]"),
    )


def import_everything() -> None:
    """Once, and not in every child."""
    for name in ("rich.console", "rich.progress", "rich.table"):
        importlib.import_module(name)
    for info in pkgutil.walk_packages(flyweight.__path__, "flyweight."):
        if info.name != "flyweight.__main__":
            importlib.import_module(info.name)


def main() -> None:
    import_everything()
    work, outside, cases = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text())
    signature(b"")
    for case in cases:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        for name in case["inputs"]:
            item = work.with_name("template") / name
            shutil.copytree(item, work / name) if item.is_dir() else shutil.copy(item, work / name)
        place = work / case.get("place", "")
        if "kind" in case:
            prepare(place, case["kind"], outside)
            prepared = {name: fields for name, fields in state(work).items() if (work / name).is_relative_to(place)}
        before = state(work), state(outside)
        began = time.monotonic()
        status, errors, touched = run(case["argv"], work, "kind" not in case)
        after = state(work), state(outside)
        line = {"status": status, "errors": errors[-2000:], "seconds": round(time.monotonic() - began, 2), "touched": touched}
        line |= {
            "outside_changed": before[1] != after[1],
            "changed": sorted(n for n in before[0] | after[0] if before[0].get(n) != after[0].get(n)),
        }
        if "kind" in case:
            line["kept"] = all(after[0].get(name) == fields for name, fields in prepared.items())
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
