"""Runs verbs in processes of their own, each with one failing allocation, and prints what came of it.

    LD_PRELOAD=failing_malloc.so python memory_driver.py LEAST_BYTES MOST_POINTS MODEL...

Every verb is run once to import what it needs and once to count its allocations; then a copy of this process is made for
each of them, or for MOST_POINTS evenly spread, in which that one fails. Copies that read are also given little address space,
in which the interpreter itself runs out of memory. One line of JSON for each verb and model.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

from flyweight.cli import main

library = ctypes.CDLL(None)
library.failing_malloc_set.argtypes = (ctypes.c_long, ctypes.c_size_t)
library.failing_malloc_set.restype = ctypes.c_long
NEVER = 2**62
PATIENCE = 60
SPARE = [step << 18 for step in range(0, 96, 8)]


def run(arguments: list[str], failing: int, least: int) -> tuple[int, int]:
    """Exit code and number of allocations."""
    sys.argv = ["flyweight", *arguments]
    code: object = 0
    library.failing_malloc_set(failing, least)
    try:
        main()
    except SystemExit as stop:
        code = stop.code
    return int(str(code or 0)), int(library.failing_malloc_set(-1, NEVER))


def run_apart(arguments: list[str], failing: int, least: int, spare: int | None = None) -> str:
    """What a process of its own ends with: `exit 5`, or `signal 11`; with `spare`, it gets only so much more address space."""
    child = os.fork()
    if child == 0:
        signal.alarm(PATIENCE)
        if spare is not None:
            limit = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE") + spare
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        os._exit(run(arguments, failing, least)[0])
    status = os.waitpid(child, 0)[1]
    return f"exit {os.WEXITSTATUS(status)}" if os.WIFEXITED(status) else f"signal {os.WTERMSIG(status)}"


def content(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def attack(verb: list[str], out: Path | None, least: int, most: int) -> dict[str, object]:
    """Each allocation of a verb fails once. `broken` has what must not be: other exits, half an output, a lost resumption."""

    def clean() -> None:
        if out is not None:
            shutil.rmtree(out.parent, ignore_errors=True)
            out.parent.mkdir()

    for _ in range(2):
        clean()
        code, count = run(verb, -1, least)
        assert code == 0, verb
    whole = content(out) if out else {}
    ends: dict[str, int] = {}
    broken: list[str] = []
    resumed = 0
    points = [(f"allocation {at}", partial(run_apart, verb, at, least)) for at in range(0, count, count // most + 1)]
    points += [(f"{spare >> 10} KiB to spare", partial(run_apart, verb, -1, NEVER, spare)) for spare in SPARE if out is None]
    # A squeezed conversion was seen to hang, for a cause that is not known: squeezing is not for what has workers.
    for at, tried in points:
        clean()
        end = tried()
        ends[end] = ends.get(end, 0) + 1
        if end not in ("exit 0", "exit 5"):
            broken.append(f"{at}: {end}")
        elif out is not None and out.exists():  # also where the report of it could not be printed any more
            if content(out) != whole:
                broken.append(f"{at}: half an output")
        elif out is not None and os.listdir(out.parent):
            resumed += 1
            if run_apart([*verb, "--resume"], -1, NEVER) != "exit 0" or content(out) != whole:
                broken.append(f"{at}: it does not go on with --resume")
    return {"verb": verb, "allocations": count, "ends": ends, "resumed": resumed, "broken": broken}


if __name__ == "__main__":
    least, most, *models = sys.argv[1:]
    answers = os.dup(1)
    silent = os.open(os.environ.get("DRIVER_LOG", os.devnull), os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    with tempfile.TemporaryDirectory() as home:
        for model in models:
            out = Path(home) / "out" / "made.safetensors"
            for verb, made in (
                (["inspect", model, "--json"], None),
                (["verify", model], None),
                (["convert", model, str(out), "--jobs", "2", "-q", "--allow-ungated"], out),
            ):
                os.write(answers, json.dumps(attack(verb, made, int(least), int(most))).encode() + b"\n")
