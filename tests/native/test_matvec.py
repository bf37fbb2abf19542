"""Products stay within the bound of docs/formats/matvec.md, on every instruction set, whatever the batch and the threads."""

from __future__ import annotations

import itertools
import os
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

from flyweight import kernels
from flyweight.kernels.products import activations, multiplying
from support.product_weights import (
    HOSTILE,
    ORDINARY,
    Weights,
    affine,
    blocks_of,
    e4m3,
    every_form,
    every_mask,
    f8q8,
    floats,
    hqq,
    modes,
)

U = 2.0**-24
SETS = ("baseline", "avx2", "avx512", "avx512vnni", "avx512bf16")
MANY = 12
"""From so many activations on weights are put ready for all of them, in another order of summation."""


def bound(weights: Weights, x: np.ndarray, int8: bool) -> np.ndarray:
    """The bound of docs/formats/matvec.md, per product and row."""
    columns = x.shape[1]
    depth = columns / 8 + columns / 1024 + 24 if len(x) >= MANY else columns / 16 + 32
    if kernels.active() == "reference":
        depth = columns + 8  # any order of the sum
    gamma = depth * U / (1 - depth * U)
    lost_in_rotation, decoded = np.zeros(x.shape), weights.decoded
    if weights.is_turned:  # seven roundings, of sums of at most 64 values
        lost_in_rotation = np.repeat(7 * U * abs(x).astype(np.float64).reshape(len(x), -1, 64).sum(axis=2) / 8, 64, axis=1)
        x = (kernels.rotate(x.astype(np.float64) * kernels.rotation_signs(columns)) / 8).astype(np.float32)
        decoded = weights.stored
    magnitude, step = abs(x).astype(np.float64) + lost_in_rotation, 2 * lost_in_rotation
    if int8:
        step += half_steps(x, weights.form)
    summed, stored = weights.summed.T, weights.stored.T
    lost = columns * (2.0**-120 if int8 else 2.0**-149 * weights.steps)
    return gamma * ((magnitude + step) @ summed) + 2 * U * (magnitude @ stored) + step @ abs(decoded).T + lost


def half_steps(x: np.ndarray, form: str) -> np.ndarray:
    """h: how far an activation is from what its code stands for."""
    few = len(x) < MANY
    _, scale = activations.quantize_few(x, multiplying.IN_BYTE.get(form, 1)) if few else activations.quantize_many(x)
    return (0.5 + 2.0**-20) * scale.astype(np.float64) + 2.0**-21 * abs(x) + 2.0**-120


def assert_bounded(weights: Weights, x: np.ndarray, int8: bool, found: np.ndarray) -> None:
    exact = x.astype(np.float64) @ weights.decoded.T
    error = abs(found - exact)
    allowed = bound(weights, x, int8)
    assert (error <= allowed).all(), (weights.matrix, int8, float((error / allowed).max()))


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("runs", [1, 2, 3, 9])
@pytest.mark.parametrize("scales", [ORDINARY, HOSTILE], ids=["ordinary", "hostile"])
def test_within_the_bound(isa: str, rows: int, runs: int, scales: np.ndarray) -> None:
    rng = np.random.default_rng(rows)
    for weights in every_form(rows, runs, scales, seed=runs):
        columns = weights.decoded.shape[1]
        x = (rng.standard_normal((3, columns)) * [[1.0], [1e-30], [1e4]]).astype(np.float32)
        for int8 in modes(weights):
            assert_bounded(weights, x, int8, weights.product(x, int8))


def test_the_reference_too() -> None:
    before = kernels.active()
    kernels.use("reference")
    try:
        for weights in every_form(5, 3, ORDINARY):
            columns = weights.decoded.shape[1]
            x = np.random.default_rng(1).standard_normal((3, columns)).astype(np.float32)
            for int8 in modes(weights):
                assert_bounded(weights, x, int8, weights.product(x, int8))
    finally:
        kernels.use(before)


def test_long_rows(isa: str) -> None:
    """The bound grows with a part of the columns: long rows of one sign show a sum that goes astray."""
    for weights in every_form(3, 64, ORDINARY):
        x = np.random.default_rng(2).uniform(0.5, 1.0, (2, weights.decoded.shape[1])).astype(np.float32)
        for int8 in modes(weights):
            assert_bounded(weights, x, int8, weights.product(x, int8))


def test_a_batch_equals_its_single_products(isa: str) -> None:
    for weights in every_form(5, 3, ORDINARY):
        x = np.random.default_rng(3).standard_normal((MANY, weights.decoded.shape[1])).astype(np.float32)
        for int8 in modes(weights):
            single = np.concatenate([weights.product(x[i : i + 1], int8) for i in range(MANY)])
            for count in range(1, MANY):
                assert np.array_equal(weights.product(x[:count], int8).view(np.uint32), single[:count].view(np.uint32))


@pytest.mark.parametrize(("runs", "scales"), [(1, ORDINARY), (3, HOSTILE), (9, ORDINARY), (70, ORDINARY)], ids=str)
def test_masked_rows(isa: str, runs: int, scales: np.ndarray) -> None:
    """Within the bound for any batch, a batch as its single products, and the same with any number of threads."""
    rng = np.random.default_rng(runs)
    for weights in every_mask(9, runs, scales, seed=runs):
        x = (rng.standard_normal((MANY + 3, 64 * runs)) * 10.0 ** rng.integers(-3, 3, (MANY + 3, 1))).astype(np.float32)
        for int8 in modes(weights):
            assert_bounded(weights, x, int8, weights.product(x, int8))
            single = np.concatenate([weights.product(x[i : i + 1], int8) for i in range(6)])
            assert_bounded(weights, x[:6], int8, single)
            for threads in (1, 2, 8):
                assert np.array_equal(weights.product(x[:6], int8, threads).view(np.uint32), single.view(np.uint32))


def test_what_is_dropped_is_not_read(isa: str) -> None:
    """Neither weights nor activations: a NaN there touches nothing."""
    for weights in every_mask(4, 3, ORDINARY):
        mask = np.unpackbits(weights.matrix.parts[-1], axis=1, bitorder="little")
        x = np.random.default_rng(1).standard_normal((2, 192)).astype(np.float32)
        clean = {int8: weights.product(x, int8) for int8 in modes(weights)}
        x[:, 150] = np.nan
        kept = mask[:, 150 // weights.matrix.block] == 1
        for int8 in modes(weights):
            found = weights.product(x, int8)
            assert np.isnan(found[:, kept]).all()
            assert np.array_equal(found[:, ~kept], clean[int8][:, ~kept])


@pytest.mark.parametrize("rows", [3, 8, 27])
@pytest.mark.parametrize("runs", [1, 9, 40])
def test_many_at_once(isa: str, rows: int, runs: int) -> None:
    """Panels of eight rows and what is left, spans of 32 chunks and what is left; and any number of threads gives the same."""
    for weights in every_form(rows, runs, ORDINARY):
        columns = weights.decoded.shape[1]
        x = np.random.default_rng(11).standard_normal((18, columns)).astype(np.float32)
        for int8 in modes(weights):
            found = weights.product(x, int8)
            assert_bounded(weights, x, int8, found)
            for threads in (2, 8):
                assert np.array_equal(weights.product(x, int8, threads), found)


def test_any_number_of_threads_gives_the_same(isa: str) -> None:
    for weights in every_form(1500, 3, ORDINARY):
        x = np.random.default_rng(4).standard_normal((2, weights.decoded.shape[1])).astype(np.float32)
        for int8 in modes(weights):
            one = weights.product(x, int8)
            for threads in (2, 3, 8):
                assert np.array_equal(weights.product(x, int8, threads), one), weights.matrix


def test_callers_do_not_disturb_each_other(isa: str) -> None:
    """Callers at once: one has the threads, the others work alone, all get the same."""
    weights = blocks_of("q8_0", np.random.default_rng(5), 2000, 16, ORDINARY)
    x = np.random.default_rng(6).standard_normal((4, 512)).astype(np.float32)
    expected = weights.product(x)
    with ThreadPoolExecutor(4) as pool:
        results = [pool.submit(weights.product, x, False, 2) for _ in range(200)]
        assert all(np.array_equal(result.result(), expected) for result in results)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_multiplies(isa: str) -> None:
    """The parent's threads are not in the child, which must not wait for them."""
    weights = blocks_of("q4_0", np.random.default_rng(7), 3000, 8, ORDINARY)
    x = np.ones((1, 256), np.float32)
    expected = weights.product(x, threads=2)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(weights.product(x, threads=2), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_activation_that_is_not_finite(isa: str, value: float) -> None:
    """All products of its row are not finite; with int8 they are NaN. Its neighbours in the batch are untouched."""
    for weights in every_form(3, 3, ORDINARY):
        x = np.random.default_rng(8).standard_normal((3, weights.decoded.shape[1])).astype(np.float32)
        for int8 in modes(weights):
            clean = weights.product(x, int8)
            spoilt = x.copy()
            spoilt[1, 17] = value
            found = weights.product(spoilt, int8)
            assert not np.isfinite(found[1]).any()
            assert np.isnan(found[1]).all() or not int8
            assert np.array_equal(found[0::2], clean[0::2])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_scale_that_is_not_finite(isa: str, value: float) -> None:
    """Its row is not finite, the others are."""
    for weights in every_form(3, 2, ORDINARY):
        if weights.form not in ("q8_0", "q4_0", "affine4", "affine8", "symmetric8", "e4m3"):
            continue
        stored = [part.copy() for part in weights.matrix.parts]
        if len(stored) == 1:
            stored[0][1, 0:2] = np.float16([value]).view(np.uint8)
        else:
            spoilt_scale = stored[1].view(ml_dtypes.bfloat16) if stored[1].dtype == np.uint16 else stored[1]
            spoilt_scale[1, 0] = value
        spoilt = kernels.Matrix(weights.form, tuple(stored))
        for int8 in modes(weights):
            found = np.empty((2, 3), np.float32)
            kernels.multiply([spoilt], np.ones((2, weights.decoded.shape[1]), np.float32), found, int8=int8)
            assert not np.isfinite(found[:, 1]).any()
            assert np.isfinite(found[:, 0::2]).all()


@pytest.mark.parametrize("nan", [0x7F, 0xFF])
@pytest.mark.parametrize("count", [1, MANY])
def test_bytes_that_are_nan(isa: str, nan: int, count: int) -> None:
    """A weight or a scale of E4M3 that is NaN makes its row NaN and no other."""
    rng = np.random.default_rng(nan)
    for weights in (e4m3(rng, 3, 320, ORDINARY), f8q8(rng, 3, 10)):
        stored = [part.copy() for part in weights.matrix.parts]
        stored[0][1, 33 * 9 if weights.form == "f8q8" else 319] = nan
        for int8 in modes(weights):
            found = np.empty((count, 3), np.float32)
            kernels.multiply([kernels.Matrix(weights.form, tuple(stored))], np.ones((count, 320), np.float32), found, int8=int8)
            assert np.isnan(found[:, 1]).all()
            assert np.isfinite(found[:, 0::2]).all()


def test_zero_rows_and_zero_columns(isa: str) -> None:
    for weights in every_form(0, 2, ORDINARY):
        assert weights.product(np.ones((2, weights.decoded.shape[1]), np.float32), threads=2).shape == (2, 0)
    out = np.full((2, 3), 7.0, np.float32)
    kernels.multiply([kernels.matrix("q4_0", blocks=np.zeros((3, 0), np.uint8))], np.zeros((2, 0), np.float32), out)
    assert (out == 0).all()


@pytest.mark.parametrize("count", [1, 3, 14])
def test_stays_inside(isa: str, fenced, count: int) -> None:
    for weights in (*every_form(9, 1, ORDINARY), *every_mask(9, 3, ORDINARY)):
        parts = tuple(fenced(part.shape, part.dtype, part) for part in weights.matrix.parts)
        fenced_matrix = kernels.Matrix(weights.form, parts, length=weights.matrix.length, block=weights.matrix.block)
        columns = weights.decoded.shape[1]
        x = fenced((count, columns), np.float32, np.random.default_rng(9).standard_normal((count, columns)))
        for int8 in modes(weights):
            out = fenced((count, fenced_matrix.rows), np.float32)
            kernels.multiply([fenced_matrix], x, out, int8=int8)
            assert_bounded(weights, x, int8, out)


ODD_SIZES = np.array([[1.0], [1e-37], [1e-45], [1e37]])
"""What rows are multiplied with: some have scales that are subnormal, some codes that are all zero."""


@pytest.mark.parametrize(("form", "in_byte"), [("symmetric8", 1), ("e2m1", 2), ("tabled2", 4)])
def test_few_activations_are_what_the_definition_says(isa: str, form: str, in_byte: int) -> None:
    """Seen through a weight of one: the code of each activation times its scale, exactly."""
    x = (np.random.default_rng(10).standard_normal((4, 64)) * ODD_SIZES).astype(np.float32)
    ones = np.eye(64, dtype=np.uint8)
    if form == "symmetric8":
        matrix = kernels.matrix(form, codes=ones, scale=np.ones((64, 1), np.float32))
    elif form == "e2m1":  # code 2 is one
        matrix = kernels.matrix(form, codes=ones[:, ::2] * 2 | ones[:, 1::2] * 32, scale=np.full((64, 2), 127, np.uint8))
    else:
        entries = np.tile(np.array([0, 0, np.float32(1).view(np.uint32), 0], np.uint32), (64, 1))
        codes = ones[:, ::4] | ones[:, 1::4] << 2 | ones[:, 2::4] << 4 | ones[:, 3::4] << 6
        matrix = kernels.matrix(form, codes=codes, entries=entries, length=64)
    found = np.empty((4, 64), np.float32)
    kernels.multiply([matrix], x, found, int8=True)
    codes, scale = activations.quantize_few(x, in_byte)
    assert np.array_equal(found, codes.astype(np.float32) * scale)


@pytest.mark.parametrize("count", [1, 5, 20])
def test_several_matrices_are_one_product(isa: str, count: int) -> None:
    """Any forms together, with a gain, a bias and what was there: each equals the matrix alone."""
    rng = np.random.default_rng(12)
    several = [
        blocks_of("q4_k", rng, 5, 1, ORDINARY),
        affine(4, "f16", 64, rng, 9, 256, ORDINARY),
        floats("bf16", rng, 3, 256, ORDINARY),
    ]
    x = rng.standard_normal((count, 256)).astype(np.float32)
    gain, bias = rng.uniform(0.5, 2, 256).astype(np.float32), rng.standard_normal(17).astype(np.float32)
    before = rng.standard_normal((count, 17)).astype(np.float32)
    for int8 in (False, True):
        out = before.copy()
        kernels.multiply([w.matrix for w in several], x, out, gain=gain, eps=1e-5, bias=bias, add=True, int8=int8)
        alone = np.concatenate([w.product(x, int8, gain=gain, eps=1e-5) for w in several], axis=1)
        assert np.array_equal(out, before + (alone + bias))
        halves = np.concatenate(
            [kernels_product(w.matrix[a:b], x, int8) for w in several for a, b in ((0, 2), (2, None))], axis=1
        )
        whole = np.concatenate([w.product(x, int8) for w in several], axis=1)
        allowed = np.concatenate([bound(w, x, int8) for w in several], axis=1)  # rows may go another way, each within it
        assert (abs(halves - whole) <= 2 * allowed).all()


def kernels_product(matrix: kernels.Matrix, x: np.ndarray, int8: bool) -> np.ndarray:
    out = np.empty((len(x), matrix.rows), np.float32)
    kernels.multiply([matrix], x, out, int8=int8)
    return out


def test_normalisation(isa: str) -> None:
    """Seen through a weight of one: within columns/32 + 10 roundings of x · gain / √(mean x² + eps)."""
    rng = np.random.default_rng(13)
    for columns in (32, 576, 4096):
        x = rng.standard_normal((3, columns)).astype(np.float32) * np.float32([[1], [1e-8], [1e8]])
        gain = rng.uniform(0.5, 2, columns).astype(np.float32)
        eye = kernels.matrix("f32", weights=np.eye(64, columns, dtype=np.float32))
        found = np.empty((3, 64), np.float32)
        kernels.multiply([eye], x, found, gain=gain, eps=1e-6)
        wide = x.astype(np.float64)
        exact = wide * gain / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-6)
        limit = (columns / 32 + 10) * U * abs(exact[:, :64]) if columns >= 64 else None
        if limit is not None:
            assert (abs(found - exact[:, :64]) <= limit).all()


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_the_gate_is_within_its_bound(isa: str, activation: str) -> None:
    """Seen through weights of one. silu: 4 units; gelu_tanh: its argument has 5 roundings, and e^−t multiplies them by |t|."""
    z = np.concatenate([np.linspace(-120, 120, 4001), [0.0, -0.0, 1e-30, -1e-30, 3e4, -3e4]]).astype(np.float32).reshape(-1, 1)
    x = np.repeat(z, 32, axis=1)
    x[:, 1:] = 1.0
    gate = kernels.matrix("f32", weights=np.eye(1, 32, dtype=np.float32))
    up = kernels.matrix("f32", weights=np.eye(2, 32, dtype=np.float32)[1:])
    found = np.empty((len(z), 1), np.float32)
    kernels.gated(gate, up, x, found, activation=activation, int8=False)
    wide = z.astype(np.float64)
    t = wide if activation == "silu" else np.sqrt(8 / np.pi) * (wide + 0.044715 * wide**3)
    with np.errstate(over="ignore"):
        exact = wide / (1 + np.exp(-t))
    allowed = (
        (8 + (0 if activation == "silu" else 6 * np.minimum(abs(t), 90))) * U * abs(exact) + 2.0**-120 * abs(wide) + 2.0**-149
    )
    assert (abs(found - exact) <= allowed).all(), float((abs(found - exact) / allowed).max())


@pytest.mark.parametrize("count", [1, 3, 20])
def test_gated_is_two_products(isa: str, count: int) -> None:
    rng = np.random.default_rng(14)
    blocks, across = blocks_of("q4_0", rng, 70, 18, ORDINARY), hqq(4, "f32", 64, rng, 3, 576, ORDINARY)
    other_blocks, other_across = blocks_of("q5_1", rng, 70, 18, ORDINARY), hqq(8, "f16", 64, rng, 3, 576, ORDINARY)
    mixed = across, blocks_of("q5_1", rng, 192, 18, ORDINARY)
    x = rng.standard_normal((count, 576)).astype(np.float32)
    gain = rng.uniform(0.5, 2, 576).astype(np.float32)
    pairs = ((blocks, other_blocks), (across, other_across), mixed, mixed[::-1])
    for (gate, up), int8 in itertools.product(pairs, (False, True)):
        z = gate.product(x, int8, gain=gain).astype(np.float64)
        expected = z / (1 + np.exp(-z)) * up.product(x, int8, gain=gain)
        found = []
        for threads in (1, 2, 8):
            found.append(np.empty((count, gate.matrix.rows), np.float32))
            kernels.gated(gate.matrix, up.matrix, x, found[-1], gain=gain, int8=int8, threads=threads)
        assert (abs(found[0] - expected) <= 9 * U * abs(expected)).all()  # silu's own 8, and the product's rounding
        assert all(np.array_equal(other, found[0]) for other in found[1:])
