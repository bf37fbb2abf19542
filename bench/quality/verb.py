"""A verb of the command line as a user types it, in a process of its own, so that seconds and peak memory are honest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

__all__ = ["Ran", "flyweight", "timed"]


@dataclass(frozen=True)
class Ran:
    document: Any
    seconds: float
    peak_bytes: int


def timed(command: list[str], *, quiet: bool = False, expect: tuple[int, ...] = (0,)) -> Ran:
    """A program of somebody else's; its output is the document."""
    started = time.perf_counter()
    errors = subprocess.DEVNULL if quiet else None
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    if process.returncode not in expect:
        sys.exit(f"exit {process.returncode}: {' '.join(command)}")
    return Ran(output, seconds, usage.ru_maxrss * 1024)


def flyweight(*arguments: str | Path, expect: tuple[int, ...] = (0,)) -> Ran:
    """Run a verb with --json."""
    print("$ flyweight", *map(str, arguments), flush=True)
    ran = timed([sys.executable, "-m", "flyweight", *map(str, arguments), "--json"], expect=expect)
    return replace(ran, document=json.loads(ran.document))
