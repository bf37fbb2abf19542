"""A call that finds no memory, in its own thread or in a helper, raises MemoryError or does without; the process lives."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flyweight import kernels

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("failing_malloc.c needs glibc and a C compiler")
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("the sanitizers have a malloc of their own")
    built = tmp_path_factory.mktemp("shim") / "failing_malloc.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", built, HERE / "failing_malloc.c"], check=True)
    return built


@pytest.mark.skipif(kernels.available() == ("reference",), reason="the native kernels are not built")
def test_every_allocation_may_fail(shim: Path) -> None:
    driver = [sys.executable, str(HERE / "allocation_driver.py")]
    result = subprocess.run(driver, env=os.environ | {"LD_PRELOAD": str(shim)}, capture_output=True, text=True, check=True)
    report: dict[str, dict[str, int]] = json.loads(result.stdout)
    assert len(report) == 8
    for call, outcomes in report.items():
        assert outcomes.keys() <= {"done", "MemoryError", "no allocation failed"}, (call, outcomes, result.stderr[-500:])
        assert outcomes.keys() >= {"done", "MemoryError", "no allocation failed"}, (call, outcomes)
