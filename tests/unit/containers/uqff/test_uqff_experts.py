"""Experts that cannot be stacked or cut as they are: refused, before anything is written and in little memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import flyweight
from flyweight.foundation.errors import FlyweightError
from support.toys import safetensors_bytes, write_files
from support.uqff_files import (
    MATRICES,
    MIXTURE,
    Q8_0,
    Named,
    experts_apart,
    experts_stacked,
    fp8,
    fp8_blob,
    gguf,
    gguf_blob,
    hqq_blob,
    stack,
    u32,
)


def fp8_stack(matrix: str) -> Named:
    module = f"{MIXTURE}.experts.{matrix}"
    return fp8(module) | {f"{module}.weight": ("F8_E4M3", [2, 2, 32], bytes(128))}


def no_rows(experts: int) -> Named:
    module = f"{MIXTURE}.experts.up_proj"
    shape = {f"{module}.weight": ("U8", [0], b""), f"{module}.weight.shape": ("U32", [3], u32(experts, 0, 32))}
    return gguf(module) | shape


REFUSED = {
    "experts that have a scale each": (experts_apart(*[fp8_blob()] * 6), "uqff", "E_EXPERTS"),
    "experts whose codes cannot be cut": (experts_apart(*[hqq_blob()] * 6), "uqff", "E_EXPERTS"),
    "experts of two types": (experts_apart(*[gguf_blob(), fp8_blob()] * 3), "uqff", "E_EXPERTS"),
    "experts of two shapes": (
        experts_apart(*[gguf_blob()] * 3, *[gguf_blob(shape=(1, 32), data=Q8_0[:34])] * 3),
        "uqff",
        "E_EXPERTS",
    ),
    "a stack that shares one scale": (experts_stacked(*map(fp8_stack, MATRICES)), "uqff0", "E_EXPERTS"),
    "a stack and one of its experts": (
        experts_stacked(*map(stack, MATRICES), gguf(f"{MIXTURE}.experts.1.w3")),
        "uqff0",
        "E_EXPERTS",
    ),
    "four thousand million experts of no bytes": (experts_stacked(no_rows(2**32 - 1)), "uqff0", "E_BUDGET"),
    "the same, to another format": (experts_stacked(no_rows(2**32 - 1)), "hf", "E_BUDGET"),
}


@pytest.mark.parametrize(("files", "to", "code"), REFUSED.values(), ids=REFUSED)
def test_experts_that_stay_as_they_are(files: dict[str, bytes], to: str, code: str, tmp_path: Path) -> None:
    source = write_files(tmp_path / "source", files)
    with pytest.raises(FlyweightError) as caught:
        flyweight.convert(source, tmp_path / "out", to=to)
    assert caught.value.code == code
    assert not (tmp_path / "out").exists()


def test_what_the_hint_says_can_be_done(tmp_path: Path) -> None:
    blobs = [fp8_blob(scales=(scale, 9.0, 7.0)) for scale in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)]
    source = write_files(tmp_path / "source", experts_apart(*blobs))
    flyweight.convert(source, tmp_path / "plain", to="hf")
    flyweight.convert(tmp_path / "plain", tmp_path / "out", to="uqff", quant="q8_0")
    with flyweight.open(source) as apart, flyweight.open(tmp_path / "out") as there:
        for matrix, name in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
            for number in range(2):
                expert = apart[f"{MIXTURE}.experts.{number}.{matrix}.weight"]
                near = there[f"{MIXTURE}.experts.{name}.weight"][number]
                assert np.abs(near - expert).max() <= np.abs(expert).max() / 127  # half a step of q8_0, and its f16 scale


def test_numbers_of_experts_are_ascii(tmp_path: Path) -> None:
    """Others would be the number of an expert that is there."""
    tensors = {f"{MIXTURE}.experts.{expert}.w1.weight": np.ones((2, 32), np.float32) for expert in (*range(14), "1\u0663")}
    source = write_files(tmp_path / "source", {"config.json": b"{}", "model.safetensors": safetensors_bytes(tensors)})
    with pytest.raises(FlyweightError) as caught:
        flyweight.convert(source, tmp_path / "out", to="uqff")
    assert caught.value.code == "E_EXPERTS"
