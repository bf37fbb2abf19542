"""Products by instructions of their own: AVX-512 VNNI gives the bits of AVX2, BF16 rounds many activations and says how much.

The bound of every set is asserted in test_matvec.py. Here is what docs/formats/matvec.md promises beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

from flyweight import kernels
from flyweight.codecs import ggml
from flyweight.foundation.ggml_types import ggml_types_with
from flyweight.kernels.products.activations import quantize_many
from flyweight.kernels.products.stored_matrix import STEPPED, WIDTHS

SETS = ("avx512vnni", "avx512bf16")
BLOCKS = ggml_types_with("product")
MANY = 12


def blocks_of(name: str, rng: np.random.Generator, rows: int, columns: int) -> kernels.Matrix:
    size, nbytes = kernels.BLOCKS[name]
    blocks = rng.integers(0, 256, (rows * columns // size, nbytes), dtype=np.uint8)
    for at, kind in next(codec for codec in ggml.CODECS if codec.name == name).scales:
        blocks[:, at : at + 2] = rng.uniform(-0.02, 0.02, (len(blocks), 1)).astype(kind).view(np.uint8)
    if name == "mxfp4":
        blocks[:, 0] = rng.integers(100, 130, len(blocks))
    return kernels.matrix(name, blocks=blocks.reshape(rows, -1))


def codes_of(form: str, rng: np.random.Generator, rows: int, columns: int, group: int) -> kernels.Matrix:
    codes = rng.integers(0, 256, (rows, columns * int(form[-1]) // 8), dtype=np.uint8)
    scale, bias = rng.uniform(-0.02, 0.02, (2, rows, columns // group)).astype(np.float16)
    parts = {"codes": codes, "scale": scale}
    return kernels.matrix(form, **parts if form == "symmetric8" else {**parts, "bias": bias})


def matrices(rows: int, columns: int) -> Iterator[kernels.Matrix]:
    rng = np.random.default_rng(rows + columns)
    for name in BLOCKS:
        yield blocks_of(name, rng, rows, columns)
    for form, bits in STEPPED.items():
        steps = rng.integers(0, 256, (rows, columns // 64 * 3), dtype=np.uint8)
        scale, codes = (
            rng.uniform(0, 1e-3, (rows, 2)).astype(np.float16),
            rng.integers(0, 256, (rows, columns * bits // 8), np.uint8),
        )
        yield kernels.matrix(form, codes=codes, steps=steps, scale=scale, length=32)
    for form in (*(f"affine{bits}" for bits in WIDTHS), "symmetric8"):
        for group in (32, 64, columns):
            yield codes_of(form, rng, rows, columns, group)
    blocks = rng.integers(0, 0x7F, (rows, columns // 32 * 33), dtype=np.uint8)
    yield kernels.matrix("f8q8", blocks=blocks)
    codes, scale = rng.integers(0, 256, (rows, columns // 2), np.uint8), rng.integers(100, 130, (rows, columns // 32), np.uint8)
    yield kernels.matrix("e2m1", codes=codes, scale=scale)


def product(matrix: kernels.Matrix, x: np.ndarray, int8: bool, by: str) -> np.ndarray:
    out = np.empty((len(x), matrix.rows), np.float32)
    kernels.use(by)
    kernels.multiply([matrix], x, out, int8=int8)
    return out


SHAPES = [(1, 256), (7, 512), (8, 256), (27, 256), (33, 1280)]


@pytest.mark.parametrize("count", [1, 3, 11])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_equal_to_avx2_bit_for_bit(isa: str, count: int, rows: int, columns: int) -> None:
    """Sums of whole numbers are exact and all else has the same order."""
    x = np.random.default_rng(count).standard_normal((count, columns)).astype(np.float32)
    for matrix in matrices(rows, columns):
        ours, plain = (product(matrix, x, int8=True, by=by) for by in (isa, "avx2"))
        assert np.array_equal(ours.view(np.uint32), plain.view(np.uint32)), matrix


@pytest.mark.parametrize("count", [MANY, 18])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_panels_of_any_rows_give_the_same_bits(isa: str, count: int, rows: int, columns: int) -> None:
    """Sixteen rows, eight, or fewer: a row is that of a matrix which has no other."""
    x = np.random.default_rng(count).standard_normal((count, columns)).astype(np.float32)
    for matrix in matrices(rows, columns):
        whole = product(matrix, x, int8=True, by=isa)
        alone = np.concatenate([product(matrix[i : i + 1], x, int8=True, by=isa) for i in range(rows)], axis=1)
        assert np.array_equal(whole.view(np.uint32), alone.view(np.uint32)), matrix


def test_many_activations_are_what_the_definition_says(isa: str) -> None:
    """Seen through a weight of one: the code of each activation, in two bytes, times its scale, exactly."""
    x = np.random.default_rng(10).standard_normal((MANY, 64)).astype(np.float32)
    x[0::3], x[1::3] = x[0::3] * np.float32(1e-37), x[1::3] * np.float32(1e37)
    ones = kernels.matrix("symmetric8", codes=np.eye(64, dtype=np.uint8), scale=np.ones((64, 1), np.float32))
    codes, scale = quantize_many(x)
    assert np.array_equal(product(ones, x, int8=True, by=isa), codes.astype(np.float32) * scale)


@pytest.mark.parametrize("rows", [1, 6, 9])
def test_bf16_rounds_many_activations(isa: str, rows: int) -> None:
    """Within 2⁻⁸ of Σ|w·x| and what a sum loses, on the set that multiplies bf16; all other products are those of f32."""
    rng = np.random.default_rng(rows)
    for columns in (32, 96, 1280):
        weights = rng.standard_normal((rows, columns)).astype(ml_dtypes.bfloat16)
        matrix = kernels.matrix("bf16", weights=weights)
        for count, scale in ((1, 1.0), (MANY - 1, 1.0), (MANY, 1.0), (19, 1e-3), (MANY, 2.0**-130)):
            x = (rng.standard_normal((count, columns)) * scale).astype(np.float32)
            rounded, exact = (product(matrix, x, int8=int8, by=isa) for int8 in (True, False))
            if isa != "avx512bf16" or count < MANY:
                assert np.array_equal(rounded, exact)
                continue
            w = weights.astype(np.float64)
            depth = (columns / 8 + columns / 1024 + 24) * 2.0**-24
            added, lost = abs(x.astype(np.float64)) @ abs(w).T, abs(x).sum() + abs(w).sum() + columns
            bound = (depth / (1 - depth) * (1 + 2.0**-8) + 2.0**-8) * added + 2.0**-126 * lost
            assert (abs(rounded - x.astype(np.float64) @ w.T) <= bound).all()
            assert (rounded != exact).any() or columns == 32
