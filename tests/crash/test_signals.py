"""Ctrl-C and SIGTERM stop a run cleanly: their exit codes, no output, and `--resume` ends in the same bytes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.toys import write_sparse_model

LAYERS, ROWS, COLUMNS = 80, 512, 2048


@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 7)])
def test_interrupted_run_resumes(tmp_path: Path, stop: signal.Signals, code: int) -> None:
    source, target = write_sparse_model(tmp_path / "m.safetensors", LAYERS, ROWS, COLUMNS), tmp_path / "out.safetensors"
    command = [
        sys.executable,
        "-m",
        "flyweight",
        "convert",
        str(source),
        str(target),
        "--quant",
        "q8_0",
        "--jobs",
        "1",
        "--json",
    ]

    def journaled() -> int:
        return sum(path.read_bytes().count(b"\n") for path in tmp_path.glob(".out.safetensors.partial-*/journal.jsonl"))

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        while run.poll() is None and journaled() < 4:
            time.sleep(0.002)
        run.send_signal(stop)
        _, errors = run.communicate(timeout=60)
    assert run.returncode == code, errors
    assert "Traceback" not in errors
    assert not target.exists()
    resumed = subprocess.run([*command, "--resume"], capture_output=True, text=True, timeout=120)
    assert resumed.returncode == 0, resumed.stderr
    assert 0 < json.loads(resumed.stdout)["resumed"] < LAYERS
    bytes_resumed = target.read_bytes()
    assert subprocess.run([*command, "--force"], capture_output=True, timeout=120).returncode == 0
    assert target.read_bytes() == bytes_resumed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.safetensors", "out.safetensors"]
