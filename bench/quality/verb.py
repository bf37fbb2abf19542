"""A verb of the command line as a user types it, in a process of its own, so that seconds and peak memory are honest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Ran", "flyweight"]


@dataclass(frozen=True)
class Ran:
    document: Any
    seconds: float
    peak_bytes: int


def flyweight(*arguments: str | Path, expect: tuple[int, ...] = (0,)) -> Ran:
    """Run a verb with --json."""
    command = [sys.executable, "-m", "flyweight", *map(str, arguments), "--json"]
    print("$ flyweight", *map(str, arguments), flush=True)
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    if process.returncode not in expect:
        sys.exit(f"exit {process.returncode}")
    return Ran(json.loads(output), seconds, usage.ru_maxrss * 1024)
