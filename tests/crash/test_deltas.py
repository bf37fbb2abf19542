"""Deltas made and applied by runs that are killed, or meet a full disk: the old state or nothing or all, and no hang."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crash.test_full_disk import disk, namespace
from flyweight.pipeline.deltas.applying import apply_delta, squash_deltas
from flyweight.pipeline.deltas.creating import create_delta
from support.toys import write_files
from support.wdelta_files import BASE, safetensors

__all__ = ["disk"]

DRIVER = Path(__file__).with_name("delta_driver.py")


def prepared(root: Path, verb: str) -> None:
    """What the driver needs; the old state is another output."""
    tensors = {"a": np.arange(6, dtype=np.float32), "b": np.arange(4, dtype=np.uint8)}
    models = {
        "base": tensors,
        "middle": tensors | {"a": tensors["a"] + np.float32(1)},
        "tuned": tensors | {"a": tensors["a"] * np.float32(2), "b": tensors["b"][::-1]},
    }
    base, middle, tuned = (
        write_files(root / name, {"config.json": f'{{"name": "{name}"}}'.encode(), "model.safetensors": safetensors(arrays)})
        for name, arrays in models.items()
    )
    create_delta(base, middle, root / "one.wdelta")
    create_delta(middle, tuned, root / "two.wdelta")
    for folder in ("expected", "old", "out"):
        (root / folder).mkdir()
    name = "x" if verb == "apply" else "x.wdelta"
    expected, old = root / "expected" / name, root / "old" / name
    if verb == "apply":
        apply_delta(base, [root / "one.wdelta"], expected)
        apply_delta(base, [root / "one.wdelta", root / "two.wdelta"], old)
        return
    create_delta(base, middle, old)
    if verb == "create":
        create_delta(base, tuned, expected)
    else:
        squash_deltas(base, [root / "one.wdelta", root / "two.wdelta"], expected)


def sweep(root: Path, mode: str, verb: str, force: str, stride: int, *code: str) -> list[dict[str, Any]]:
    prepared(root, verb)
    command = [sys.executable, str(DRIVER), mode, verb, str(root), force, str(stride), *code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    header, *points = map(json.loads, done.stdout.splitlines())
    assert len(points) == -(-header["total"] // stride) > 8
    return points


@pytest.mark.parametrize(("verb", "force", "stride"), [("create", "force", 1), ("squash", "new", 2), ("apply", "new", 3)])
def test_kill_at_every_write_path_call(memory_path: Path, verb: str, force: str, stride: int) -> None:
    """`apply` is a conversion, and those are killed at every call elsewhere."""
    points = sweep(memory_path, "kill", verb, force, stride)
    assert {point["status"] for point in points} == {-9}
    assert {point["after"] for point in points} == {"old", "complete"}
    assert [point for point in points if not point["done"]] == []


def test_no_space_at_every_write_path_call(memory_path: Path) -> None:
    points = sweep(memory_path, "raise", "create", "new", 2, "ENOSPC")
    assert [point for point in points if point["after"] == "half" or not point["done"]] == []
    assert {point["status"] for point in points if point["after"] != "complete"} <= {5, 6}


FULL = """
import json, os, sys
import flyweight
from flyweight.pipeline.deltas.applying import apply_delta, squash_deltas
from flyweight.pipeline.deltas.creating import create_delta
root, disk = sys.argv[1], sys.argv[2]
ended = {}
for verb, work in {
    "create": lambda: create_delta(root + "/base", root + "/tuned", disk + "/x.wdelta"),
    "apply": lambda: apply_delta(root + "/base", [root + "/one.wdelta"], disk + "/x"),
    "squash": lambda: squash_deltas(root + "/base", [root + "/one.wdelta"], disk + "/x.wdelta"),
}.items():
    try:
        work()
        ended[verb] = 0, "", os.listdir(disk)
    except flyweight.FlyweightError as error:
        ended[verb] = error.exit_code, error.code, os.listdir(disk)
print(json.dumps(ended))
"""


def test_a_full_disk_is_said_and_left_as_it_was(tmp_path: Path, disk: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("base", "tuned"):
        write_files(
            tmp_path / name, BASE | {"model.safetensors": safetensors({"w": rng.standard_normal(200_000).astype("f4")})}
        )
    create_delta(tmp_path / "base", tmp_path / "tuned", tmp_path / "one.wdelta")
    command = namespace([sys.executable, "-c", FULL, str(tmp_path), str(disk)], disk, "256k")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {verb: [5, "E_DISK", []] for verb in ("create", "apply", "squash")}
