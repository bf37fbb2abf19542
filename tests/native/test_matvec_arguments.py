"""Matrices, products and gates whose parts do not fit each other are refused, the same by every set and the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flyweight import kernels

SETS = ("baseline", "avx2", "avx512", "avx512vnni", "avx512bf16")


def u8(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.uint8)


def u32(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.uint32)


def f32(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def f16(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float16)


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("form", "parts", "error"),
    [
        ("q9_0", {"blocks": u8(2, 36)}, ValueError),
        ("q4_0", {"codes": u8(2, 36)}, TypeError),
        ("q4_0", {"blocks": u8(2, 35)}, ValueError),
        ("q4_0", {"blocks": u8(4, 36)[::2]}, ValueError),
        ("q4_0", {"blocks": f32(2, 9)}, TypeError),
        ("q4_0", {"blocks": b"bytes"}, TypeError),
        ("q4_k", {"blocks": u8(2, 143)}, ValueError),
        ("affine4", {"codes": u8(2, 32), "scale": f32(2, 4), "bias": f32(2, 4)}, ValueError),
        ("affine4", {"codes": u8(2, 32), "scale": f32(2, 2), "bias": f32(2, 1)}, ValueError),
        ("affine4", {"codes": u8(2, 32), "scale": f32(1, 2), "bias": f32(1, 2)}, ValueError),
        ("affine4", {"codes": u8(2, 32), "scale": f32(2, 2), "bias": f32(2, 2).astype(np.float16)}, TypeError),
        ("affine4", {"codes": u8(2, 32), "scale": f32(2, 0), "bias": f32(2, 0)}, ValueError),
        ("affine8", {"codes": u8(2, 64), "scale": np.zeros((2, 2)), "bias": np.zeros((2, 2))}, TypeError),
        ("symmetric8", {"codes": u8(2, 64), "scale": f32(2, 4)}, ValueError),
        ("bf16", {"weights": np.zeros((2, 40), np.uint16)}, ValueError),
        ("bf16", {"weights": f32(2, 64)}, TypeError),
        ("tabled4", {"codes": u8(2, 32), "entries": u32(2, 8), "length": 64}, ValueError),
        ("tabled4", {"codes": u8(2, 32), "entries": u32(2, 8), "length": 16}, ValueError),
        ("tabled4", {"codes": u8(2, 32), "entries": u32(1, 4), "length": 64}, ValueError),
        ("tabled4", {"codes": u8(2, 32), "entries": u32(2, 4), "length": 0}, ValueError),
        ("tabled4", {"codes": u8(2, 32), "entries": f32(2, 4), "length": 64}, TypeError),
        ("tabled4", {"codes": u8(2, 32), "entries": u32(2, 8), "length": 32, "block": 32}, TypeError),
        ("tabled4", {"codes": u8(2, 32), "entries": u32(2, 8), "length": 32, "block": 48, "mask": u8(2, 1)}, ValueError),
        ("tabled4", {"codes": u8(2, 32), "entries": u32(2, 4), "length": 64, "block": 32, "mask": u8(2, 1)}, ValueError),
        ("tabled4", {"codes": u8(2, 32), "entries": u32(2, 8), "length": 32, "block": 32, "mask": u8(2, 2)}, ValueError),
        ("tabled4", {"codes": u8(2, 32), "entries": u32(1, 4), "block": 32, "mask": u8(2, 1)}, ValueError),
        ("tabled2", {"codes": u8(2, 12), "entries": u32(1, 4)}, ValueError),
        ("q4_0", {"blocks": u8(2, 36), "block": 32, "mask": u8(2, 1)}, ValueError),
        ("f32", {"weights": f32(2, 64), "block": 16, "mask": u8(2, 1)}, ValueError),
        ("f32", {"weights": f32(2, 64), "block": 32, "mask": f32(2, 1)}, TypeError),
        ("hqq4", {"codes": u8(4, 32), "scale": f32(2, 32), "zero": f32(2, 32)}, ValueError),
        ("hqq4", {"codes": u8(4, 32), "scale": f32(1, 31), "zero": f32(1, 31)}, ValueError),
        ("hqq4", {"codes": u8(4, 32), "scale": f32(1, 32), "zero": f32(1, 1)}, ValueError),
        ("hqq4", {"codes": u8(4, 32), "scale": f32(0, 32), "zero": f32(0, 32)}, ValueError),
        ("hqq8", {"codes": u8(8, 32), "scale": f32(1, 32), "zero": f32(1, 32).astype(np.float16)}, TypeError),
        ("hqq8", {"codes": u8(8, 32), "scale": u8(1, 32), "zero": u8(1, 32)}, TypeError),
        ("hqq8", {"codes": u8(7, 32), "scale": f32(1, 32), "zero": f32(1, 32)}, ValueError),
        ("affine3", {"codes": u8(2, 13), "scale": f32(2, 1), "bias": f32(2, 1)}, ValueError),
        ("affine7", {"codes": u8(2, 56), "scale": f32(2, 3), "bias": f32(2, 3)}, ValueError),
        ("stepped3", {"codes": u8(2, 12), "steps": u8(2, 2), "scale": f16(2, 2)}, ValueError),
        ("stepped3", {"codes": u8(2, 12), "steps": u8(2, 2), "scale": f16(2, 2), "length": 16}, ValueError),
        ("stepped3", {"codes": u8(2, 12), "steps": u8(2, 3), "scale": f16(2, 2), "length": 32}, ValueError),
        ("stepped5", {"codes": u8(2, 60), "steps": u8(2, 3), "scale": f16(2, 2), "length": 32}, ValueError),
        ("stepped4", {"codes": u8(2, 16), "steps": u8(1, 2), "scale": f16(2, 2), "length": 32}, ValueError),
        ("stepped4", {"codes": u8(2, 16), "steps": u8(2, 2), "scale": f16(2, 1), "length": 32}, ValueError),
        ("stepped4", {"codes": u8(2, 16), "steps": u8(2, 2), "scale": f32(2, 2), "length": 32}, TypeError),
        ("stepped4", {"codes": u8(2, 16), "steps": f32(2, 2), "scale": f16(2, 2), "length": 32}, TypeError),
        ("f8q8", {"blocks": u8(2, 34)}, ValueError),
        ("woven4", {"codes": u8(2, 16), "scale": f32(2, 1).astype(np.float16), "tables": u8(1, 96)}, ValueError),
        ("woven3", {"codes": u8(2, 24), "scale": f32(1, 1).astype(np.float16), "tables": u8(1, 96)}, ValueError),
        ("woven2", {"codes": u8(2, 16), "scale": f32(2, 1).astype(np.float16), "tables": u8(1, 64)}, ValueError),
        ("woven2", {"codes": u8(2, 16), "scale": f32(2, 1), "tables": u8(1, 96)}, TypeError),
        ("e2m1", {"codes": u8(2, 32), "scale": u8(2, 1)}, ValueError),
        ("e2m1", {"codes": u8(2, 32), "scale": u8(1, 2)}, ValueError),
        ("e2m1", {"codes": u8(2, 32), "scale": f32(2, 2)}, TypeError),
        ("e4m3", {"codes": u8(2, 64), "scale": f32(2, 2)}, ValueError),
        ("e4m3", {"codes": u8(2, 64), "scale": f32(1, 1)}, ValueError),
        ("e4m3", {"codes": u8(2, 64), "scale": f32(2, 1).astype(np.float16)}, TypeError),
        ("symmetric8", {"codes": u8(2, 64), "scale": u8(2, 2)}, TypeError),
        ("palette4", {"codes": u8(2, 32), "table": f32(15)}, ValueError),
        ("palette4", {"codes": u8(2, 32), "table": f32(32)[::2]}, ValueError),
    ],
)
def test_refused_matrices(form: str, parts: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        kernels.matrix(form, **parts)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"x": f32(1, 32)}, ValueError),
        ({"x": f32(0, 64), "out": f32(0, 2)}, ValueError),
        ({"x": f32(2, 64)}, ValueError),
        ({"x": np.zeros((1, 64))}, TypeError),
        ({"x": np.zeros((1, 64), ">f4")}, TypeError),
        ({"x": f32(64)}, ValueError),
        ({"x": None}, TypeError),
        ({"x": f32(2, 64)[::2]}, None),
        ({"x": f32(1, 128)[:, ::2]}, ValueError),
        ({"x": u8(257)[1:].view(np.float32).reshape(1, 64)}, ValueError),
        ({"out": f32(1, 3)}, ValueError),
        ({"out": read_only(f32(1, 2))}, ValueError),
        ({"gain": f32(63)}, ValueError),
        ({"gain": f32(1, 64)}, ValueError),
        ({"bias": f32(3)}, ValueError),
        ({"bias": np.zeros(2)}, TypeError),
        ({"threads": 0}, ValueError),
        ({"threads": 257}, ValueError),
        ({"matrices": []}, ValueError),
        ({"matrices": [kernels.matrix("q4_0", blocks=u8(1, 36)), kernels.matrix("q4_0", blocks=u8(1, 18))]}, ValueError),
    ],
)
def test_refused_products(isa: str, changed: dict[str, Any], error: type[Exception] | None) -> None:
    arguments = {"matrices": [kernels.matrix("q4_0", blocks=u8(2, 36))], "x": f32(1, 64), "out": f32(1, 2)} | changed
    if error is None:
        return kernels.multiply(**arguments)
    with pytest.raises(error):
        kernels.multiply(**arguments)
    kernels.use("reference")  # the fixture restores
    with pytest.raises(error):
        kernels.multiply(**arguments)
    return None


def test_refused_gates(isa: str) -> None:
    gate, up = kernels.matrix("q4_0", blocks=u8(2, 18)), kernels.matrix("q4_0", blocks=u8(3, 18))
    with pytest.raises(ValueError, match="differ in rows"):
        kernels.gated(gate, up, f32(1, 32), f32(1, 2))
    with pytest.raises(ValueError, match="activation"):
        kernels.gated(gate, gate, f32(1, 32), f32(1, 2), activation="relu")
