"""Experts between the generations of UQFF, which hold them apart and in stacks: files that mistral.rs wrote, and hard ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import flyweight
from flyweight.foundation.errors import UnsupportedError
from support.raw_files import safetensors_file, tensor_json
from support.toys import write_files

GOLDEN = Path(__file__).parents[2] / "golden" / "uqff"
APART, STACKED = GOLDEN / "0.1.3" / "experts", GOLDEN / "1.2" / "experts" / "q4_0-0.uqff"
EXPERTS = "model.layers.0.block_sparse_moe.experts"
NAMES = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def test_experts_are_stacked_and_cut_without_a_change_of_a_byte(tmp_path: Path) -> None:
    report = flyweight.convert(APART, tmp_path / "new", to="uqff")
    assert {tensor.action for tensor in report.tensors} == {"remux"}
    with flyweight.open(APART) as old, flyweight.open(tmp_path / "new") as new:
        for matrix, stack in NAMES.items():
            stacked = new.encoded(f"{EXPERTS}.{stack}.weight")
            assert stacked.spec.shape[0] == 2
            for number in range(2):
                alone = old.encoded(f"{EXPERTS}.{number}.{matrix}.weight")
                assert alone.codec == stacked.codec
                assert stacked.parts["blocks"].reshape(2, -1)[number].tobytes() == alone.parts["blocks"].tobytes()
    flyweight.convert(tmp_path / "new", tmp_path / "old", to="uqff0")
    assert (tmp_path / "old" / "q4_0-0.uqff").read_bytes() == (APART / "q4_0-0.uqff").read_bytes()


def test_stacks_become_the_matrices_of_a_hugging_face_directory(tmp_path: Path) -> None:
    flyweight.convert(STACKED, tmp_path / "hf", to="hf")
    with flyweight.open(STACKED) as uqff, flyweight.open(tmp_path / "hf") as hf:
        for matrix, stack in NAMES.items():
            whole = uqff[f"{EXPERTS}.{stack}.weight"]
            assert all(np.array_equal(hf[f"{EXPERTS}.{number}.{matrix}.weight"], whole[number]) for number in range(2))


@pytest.mark.parametrize("quant", ["q8_0", "afq4"])
def test_experts_of_a_hugging_face_directory_are_quantized_in_stacks(quant: str, tmp_path: Path) -> None:
    flyweight.convert(STACKED, tmp_path / "hf", to="hf")
    flyweight.convert(tmp_path / "hf", tmp_path / "out", to="uqff", quant=quant)
    flyweight.convert(tmp_path / "hf", tmp_path / "same", to="uqff")
    with flyweight.open(tmp_path / "hf") as hf, flyweight.open(tmp_path / "out") as out:
        stack = out[f"{EXPERTS}.up_proj.weight"]
        for number in range(2):
            expert = hf[f"{EXPERTS}.{number}.w3.weight"]
            assert np.abs(stack[number] - expert).max() <= np.abs(expert).max() / 8
    with flyweight.open(tmp_path / "same") as same:  # plain, in layers as loaders look for them there
        assert same.manifest.entries[f"{EXPERTS}.up_proj.weight"].extents["data"].file.endswith(".uqff")


def test_a_saved_plan_stacks_experts_too(tmp_path: Path) -> None:
    plan = flyweight.plan(APART, tmp_path / "planned", to="uqff")
    flyweight.execute(plan, tmp_path / "planned")
    flyweight.convert(APART, tmp_path / "at once", to="uqff")
    for name in ("q4_0-0.uqff", "residual.safetensors"):
        assert (tmp_path / "planned" / name).read_bytes() == (tmp_path / "at once" / name).read_bytes()


def directory(folder: Path, shapes: dict[str, list[int]]) -> Path:
    table, at = {}, 0
    for name, shape in shapes.items():
        nbytes = 4 * int(np.prod(shape))
        table[name] = tensor_json("F32", shape, at, at + nbytes)
        at += nbytes
    config = {"model_type": "mixtral", "num_hidden_layers": 1, "num_local_experts": 2}
    write_files(folder, {"config.json": json.dumps(config).encode(), "model.safetensors": safetensors_file(table, bytes(at))})
    return folder


@pytest.mark.parametrize(
    "shapes",
    [
        {f"{EXPERTS}.0.w1.weight": [4, 32], f"{EXPERTS}.2.w1.weight": [4, 32]},
        {f"{EXPERTS}.0.w1.weight": [4, 32], f"{EXPERTS}.1.w1.weight": [4, 64]},
        {f"{EXPERTS}.0.w1.weight": [4, 32], f"{EXPERTS}.0.w1.bias": [4]},
        {f"{EXPERTS}.0.w9.weight": [4, 32]},
        {f"{EXPERTS}.gate_up_proj": [2, 4, 32]},
    ],
    ids=["gap", "shapes", "bias", "unknown matrix", "another arrangement"],
)
def test_what_cannot_be_stacked_is_refused(shapes: dict[str, list[int]], tmp_path: Path) -> None:
    source = directory(tmp_path / "source", shapes)
    with pytest.raises(UnsupportedError) as caught:
        flyweight.convert(source, tmp_path / "out", to="uqff")
    assert caught.value.code == "E_EXPERTS"
    assert not (tmp_path / "out").exists()
