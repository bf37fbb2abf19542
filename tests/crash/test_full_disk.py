"""A real full disk: a small tmpfs in a mount namespace of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import flyweight
from support.toys import write_toy_llama

SCRIPT = """
import json, os, shutil, sys
import flyweight
from flyweight.pipeline import conversion
source, disk, blind, name, options = sys.argv[1], sys.argv[2], sys.argv[3] == "blind", sys.argv[4], json.loads(sys.argv[5])
if blind:  # the pre-check sees room, as when another process takes it afterwards: the file system itself must say no
    conversion.shutil = type("Lying", (), {"disk_usage": staticmethod(lambda p: type("U", (), {"free": 1 << 40}))})
try:
    flyweight.convert(source, disk + "/" + name, **options)
    print(json.dumps({"exit": 0}))
except flyweight.FlyweightError as error:
    print(json.dumps({"exit": error.exit_code, "code": error.code, "hint": error.hint, "left": os.listdir(disk)}))
"""

ADDING = """
import json, os, shutil, sys
import flyweight
from flyweight.pipeline import conversion
from flyweight.pipeline.adding import add_form
source, disk, blind = sys.argv[1], sys.argv[2], sys.argv[3] == "blind"
model = disk + "/model"
shutil.copytree(source, model)
with open(disk + "/filler", "wb") as filler:
    filler.write(bytes(max(shutil.disk_usage(disk).free - 40_000, 0)))
if blind:
    conversion.shutil = type("Lying", (), {"disk_usage": staticmethod(lambda p: type("U", (), {"free": 1 << 40}))})
before = sorted(os.listdir(model) + os.listdir(model + "/tensors"))
try:
    add_form(model, "int4")
    print(json.dumps({"exit": 0}))
except flyweight.FlyweightError as error:
    left = sorted(os.listdir(model) + os.listdir(model + "/tensors")) == before and flyweight.verify(model, strict=True).ok
    print(json.dumps({"exit": error.exit_code, "code": error.code, "hint": error.hint, "old": left}))
"""


def namespace(script: list[str], disk: Path, size: str = "64k") -> list[str]:
    """Run `script` with a small tmpfs mounted on `disk`, in a private mount namespace."""
    mount = f'mount -t tmpfs -o size={size} tmpfs {disk} && exec "$@"'
    flags = ["--mount"] if os.geteuid() == 0 else ["--mount", "--user", "--map-root-user"]
    return ["unshare", *flags, "sh", "-c", mount, "sh", *script]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Where a small tmpfs can be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    if shutil.which("unshare") is None or subprocess.run(namespace(["true"], place), capture_output=True).returncode:
        pytest.skip("no right to mount a tmpfs here")
    return place


OUTPUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gguf": ("out.gguf", {}),
    "coreml": ("out.mlpackage", {"to": "coreml"}),
    "uqff": ("out", {"to": "uqff", "quant": "q8_0"}),
    "uqff0": ("out", {"to": "uqff0", "quant": "q8_0", "shard_bytes": 20_000}),
}


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("mode", ["checked", "blind"])
def test_full_tmpfs_leaves_nothing(tmp_path: Path, disk: Path, mode: str, output: str) -> None:
    source, (name, options) = write_toy_llama(tmp_path / "toy"), OUTPUTS[output]
    command = namespace([sys.executable, "-c", SCRIPT, str(source), str(disk), mode, name, json.dumps(options)], disk)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert "write elsewhere" in result.pop("hint")
    assert result == {"exit": 5, "code": "E_DISK", "left": []}


@pytest.mark.parametrize("mode", ["checked", "blind"])
def test_full_tmpfs_leaves_a_directory_as_it_was(tmp_path: Path, disk: Path, mode: str) -> None:
    flyweight.convert(write_toy_llama(tmp_path / "toy"), tmp_path / "eights", to="npy_dir", quant="int8")
    command = namespace([sys.executable, "-c", ADDING, str(tmp_path / "eights"), str(disk), mode], disk, "2m")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert "write elsewhere" in result.pop("hint")
    assert result == {"exit": 5, "code": "E_DISK", "old": True}
