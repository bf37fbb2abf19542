"""Memory that runs out while a model is opened, verified or converted: exit 5, and no half of an output.

What fails is chosen from outside, by a malloc in front of the C library's (`failing_malloc.c`) and by RLIMIT_AS, so the
interpreter, NumPy and the kernels meet it where they really allocate. `FLYWEIGHT_POINTS=100000` makes every allocation fail
once, instead of some of them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import flyweight
from support.toys import write_toy_llama

HERE = Path(__file__).parent
LEAST = 1024
"""Bytes: below, it is the interpreter's own small objects, which RLIMIT_AS lets fail."""
POINTS = os.environ.get("FLYWEIGHT_POINTS", "20")
FORMS = {
    "toy": None,
    "model.gguf": {"quant": "q4_0"},
    "model.safetensors": {},
    "model.squizd": {"quant": "int4"},
    "npy-dir": {"to": "npy_dir", "quant": "int8"},
    "mlx-dir": {"to": "mlx", "quant": "int4"},
}

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler for the failing malloc"
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("memory")
    toy = write_toy_llama(home / "toy", layers=1)
    for name, options in FORMS.items():
        if options is not None:
            flyweight.convert(toy, home / name, **options)  # type: ignore[arg-type]
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", home / "failing_malloc.so", HERE / "failing_malloc.c"]
    subprocess.run(command, check=True, timeout=60)
    return home


@pytest.mark.parametrize("form", FORMS)
def test_every_end_is_clean(models: Path, form: str) -> None:
    environment = os.environ | {"LD_PRELOAD": str(models / "failing_malloc.so"), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, HERE / "memory_driver.py", str(LEAST), POINTS, models / form]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [verb["verb"][0] for verb in found] == ["inspect", "verify", "convert"]
    for verb in found:
        assert verb["broken"] == [], verb
        assert verb["ends"]["exit 5"] > 0
    assert found[2]["resumed"] > 0
