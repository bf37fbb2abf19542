"""`flyweight ane lut` and `flyweight ane record`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from flyweight.sources import FileSource
from flyweight.targets.ane.records.activation_functions import ACTIVATIONS, build
from flyweight.targets.ane.records.activation_record import ActivationRecord
from flyweight.targets.ane.records.kernel_unit import Descriptor, KernelUnit
from support.command_line import flyweight
from support.toys import safetensors_bytes


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.safetensors"
    weights = np.random.default_rng(1).normal(size=(300, 64)).astype(np.float16)
    path.write_bytes(safetensors_bytes({"up.weight": weights, "wide": np.ones((4, 4), np.float32)}))
    return path


def test_lut_shows_the_record_and_its_error() -> None:
    done = flyweight("ane", "lut", "sigmoid")
    done.check()
    assert done.code == 0
    assert "-9.9375 … 8.32031" in done.said
    assert done.said.count("3.355e-03") == 2  # ours and the device's


def test_lut_as_json_and_as_a_file(tmp_path: Path) -> None:
    out = tmp_path / "tanh.bin"
    document = flyweight("ane", "lut", "tanh", "--json", "-o", out).json()
    assert bytes.fromhex(document["record"]) == out.read_bytes() == build("tanh").to_bytes()
    assert document["values"] == list(build("tanh").knots)
    assert document["device_error"]["provenance"] == "measured"
    source = FileSource(out)
    assert ActivationRecord.read(source) == build("tanh")
    source.close()
    again = flyweight("ane", "lut", "tanh", "-o", out)
    assert again.code == 6
    assert "E_EXISTS" in again.said


@pytest.mark.parametrize(("options", "size"), [((), 86), (("--deltas",), 150), (("--profile", "disputed"), 86)])
def test_lut_readings(options: tuple[str, ...], size: int) -> None:
    document = flyweight("ane", "lut", "log", "--json", *options).json()
    assert len(document["record"]) == 2 * size
    assert document["clamps"] == [0, None]  # infinity, which JSON has not


def test_lut_of_every_function() -> None:
    document = flyweight("ane", "lut", "--all", "--json").json()
    assert [each["function"] for each in document["functions"]] == list(ACTIVATIONS)
    table = flyweight("ane", "lut", "--all")
    table.check()
    assert all(name in table.said for name in ACTIVATIONS)


@pytest.mark.parametrize("arguments", [(), ("sigmoid", "--all"), ("--all", "-o", "x"), ("sigmoide",)])
def test_lut_usage(arguments: tuple[str, ...]) -> None:
    assert flyweight("ane", "lut", *arguments).code == 2


def test_record_of_a_tensor(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "up.unit"
    done = flyweight("ane", "record", model, "up.weight", "--target", "M1", "--activation", "silu", "-o", out)
    done.check()
    assert done.code == 0
    assert "KernelCfg of H13 (0xC800): 0x82 (inferred)" in done.said
    assert "24 more channel groups" in done.said
    source = FileSource(out)
    unit = KernelUnit.read(source)
    source.close()
    assert unit.activation == build("silu")
    assert "".join(f"{line.rstrip()}\n" for line in unit.descriptor.text().splitlines()) in done.said


def test_record_as_json(model: Path) -> None:
    document = flyweight("ane", "record", model, "up.weight", "--target", "m1", "--json").json()
    descriptor = Descriptor.from_text(document["text"])
    assert document["bytes"] == descriptor.nbytes
    assert document["sections"]["weights"] == descriptor.weights._asdict()
    assert document["engines"]["value"] == 4
    assert len(document["channel_groups"]) == descriptor.ocgs.groups == 40
    assert document["channel_groups"][10] == {"engine": 1, "offset": 9600, "channels": 8, "first_channel": 1}
    assert document["kernel_config"]["value"] == 0x82


def test_engines_follow_the_profile(model: Path) -> None:
    arguments = ("ane", "record", model, "up.weight", "--target", "M1", "--profile", "disputed", "--json")
    assert flyweight(*arguments).json()["engines"]["value"] == 16


@pytest.mark.parametrize(
    ("tensor", "options", "code", "name"),
    [
        ("up.weigth", ("--target", "M1"), 2, "E_TENSOR"),
        ("wide", ("--target", "M1"), 4, "E_FORM"),
        ("up.weight", ("--target", "M0"), 2, "E_TARGET"),
        ("up.weight", ("--target", "H12"), 4, "E_UNKNOWN_FACT"),
        ("up.weight", ("--target", "M1", "--activation", "relu"), 2, "E_ACTIVATION"),
        ("up.weight", (), 2, "E_USAGE"),
    ],
)
def test_record_refusals(model: Path, tensor: str, options: tuple[str, ...], code: int, name: str) -> None:
    done = flyweight("ane", "record", model, tensor, *options, "--json")
    done.check(as_json=True)
    assert (done.code, done.error()["code"]) == (code, name)


def test_a_register_without_a_known_layout_is_said_to_be_unknown(model: Path) -> None:
    done = flyweight("ane", "record", model, "up.weight", "--target", "H18")
    assert "no source has its layout" in done.said
    document = json.loads(flyweight("ane", "record", model, "up.weight", "--target", "H18", "--json").stdout)
    assert document["kernel_config"] is None
