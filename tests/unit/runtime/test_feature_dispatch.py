"""The order of the SQUIZD specification, and the reasons that are given for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import flyweight
from flyweight.kernels import active
from flyweight.runtime.feature_dispatch import Machine, augments, dispatch
from support.toys import write_toy_llama

LINUX = Machine("Linux", "x86_64", False, "avx2")
MAC = Machine("Darwin", "arm64", True, "neon")


@pytest.mark.parametrize(
    ("flags", "machine", "chosen"),
    [
        (set(), LINUX, "NumPy"),
        ({"INT4"}, LINUX, "INT4"),
        ({"INT2"}, LINUX, "INT2"),
        ({"INT2", "INT4"}, LINUX, "INT2"),
        ({"TCA_TBE"}, LINUX, "TCA_TBE"),
        ({"ASTC"}, LINUX, "NumPy"),
        ({"ANE_COREML", "INT4"}, LINUX, "INT4"),
        ({"SPARSE", "EAGLE"}, LINUX, "NumPy"),
        ({"INT4"}, LINUX._replace(kernels="reference"), "NumPy"),
        ({"ANE_COREML", "INT4"}, MAC, "INT4"),
    ],
)
def test_the_first_way_that_can_be_taken(flags: set[str], machine: Machine, chosen: str) -> None:
    routes = dispatch(flags, machine)
    assert [route.path for route in routes] == ["ANE_COREML", "ASTC", "TCA_TBE", "INT2", "INT4", "NumPy"]
    assert [route.path for route in routes if route.chosen] == [chosen]
    assert all(route.reason for route in routes)


def test_reasons_name_what_is_missing() -> None:
    reasons = {route.path: route.reason for route in dispatch({"ANE_COREML", "ASTC"}, LINUX)}
    assert "this is Linux on x86_64" in reasons["ANE_COREML"]
    assert "software" in reasons["ASTC"]
    assert "avx2" in reasons["NumPy"]
    without = MAC._replace(has_coremltools=False)
    assert "coremltools" in dispatch({"ANE_COREML"}, without)[0].reason
    assert "extract" in dispatch({"ANE_COREML"}, MAC)[0].reason
    assert [a.present for a in augments({"EAGLE"})] == [False, True]


def test_inspect_says_it(tmp_path: Path) -> None:
    flyweight.convert(write_toy_llama(tmp_path / "toy"), tmp_path / "m.squizd", quant="int4")

    def run(*arguments: object) -> str:
        command = [sys.executable, "-m", "flyweight", "inspect", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    document = json.loads(run(tmp_path / "m.squizd", "--json"))
    assert document["facts"]["flags"] == ["INT4"]
    assert document["facts"]["layers"] == 2
    chosen = [route["path"] for route in document["dispatch"] if route["chosen"]]
    assert chosen == ["NumPy" if active() == "reference" else "INT4"]
    text = run(tmp_path / "m.squizd", "--tensors")
    assert "tabled(bits=4, length=" in text
    assert ", id=" not in text
    assert f"→ {chosen[0]}" in text
    assert "dispatch" not in json.loads(run(tmp_path / "toy", "--json"))
