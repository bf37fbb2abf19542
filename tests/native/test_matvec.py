"""Products stay within the bound of docs/formats/matvec.md, on every instruction set, whatever the batch and the threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from flyweight import kernels
from flyweight.codecs import ggml
from flyweight.kernels import reference, reference_matvec

U = 2.0**-24
SCALES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Weights:
    """Arguments of a product, the weights they decode to, and two magnitudes per weight (docs/formats/matvec.md)."""

    kernel: str
    arguments: tuple[object, ...]
    decoded: np.ndarray
    summed: np.ndarray
    """What the kernel adds up for a weight: |scale · code| + |bias|."""
    stored: np.ndarray
    """The same with the code as stored: what decoding rounds against."""
    run: int = 32

    def product(self, x: np.ndarray, int8: bool = False, threads: int = 1) -> np.ndarray:
        out = np.full((len(x), len(self.decoded)), 7.0, np.float32)
        mode = (int8,) if kernels.MATVEC[self.kernel] else ()
        getattr(kernels, self.kernel)(*self.arguments, x, out, *mode, threads)
        return out


def decoded_blocks(name: str, blocks: np.ndarray, zeroed: tuple[int, ...] = ()) -> np.ndarray:
    size, nbytes = kernels.BLOCKS[name]
    some = blocks.reshape(-1, nbytes).copy()
    for at in zeroed:
        some[:, at : at + 2] = 0
    values = np.empty((len(some), size), np.float32)
    with np.errstate(all="ignore"):
        getattr(reference, f"decode_{name}")(some, values)
    return values.reshape(len(blocks), blocks.shape[1] // nbytes * size).astype(np.float64)


def blocks_of(name: str, rng: np.random.Generator, rows: int, runs: int, scales: np.ndarray) -> Weights:
    nbytes = kernels.BLOCKS[name][1]
    blocks = rng.integers(0, 256, (rows * runs, nbytes), dtype=np.uint8)
    for at, kind in next(codec for codec in ggml.CODECS if codec.name == name).scales:
        blocks[:, at : at + 2] = rng.choice(scales, (len(blocks), 1)).astype(kind).view(np.uint8)
    blocks = blocks.reshape(rows, runs * nbytes)
    w = decoded_blocks(name, blocks)
    summed = abs(decoded_blocks(name, blocks, (2,))) + abs(decoded_blocks(name, blocks, (0,))) if name == "q4_k" else abs(w)
    return Weights(f"matvec_{name}", (blocks,), w, summed, summed)


def affine(bits: int, kind: str, group: int, rng: np.random.Generator, rows: int, columns: int, scales: np.ndarray) -> Weights:
    codes = rng.integers(0, 1 << bits, (rows, columns), dtype=np.uint8)
    scale = rng.choice(scales, (rows, columns // group)).astype(SCALES[kind])
    bias = (rng.choice(scales, scale.shape) * -(2.0 ** (bits - 1))).astype(SCALES[kind])
    s, b = (np.repeat(part.astype(np.float64), group, axis=1) for part in (scale, bias))
    q = codes.astype(np.float64)
    with np.errstate(all="ignore"):
        w = (s * q).astype(np.float32) + b.astype(np.float32)
    centre = 128 if bits == 8 else 0
    packed = codes[:, 0::2] | codes[:, 1::2] << 4 if bits == 4 else codes
    arguments = (packed, scale, bias, group)
    stored = abs(s * q) + abs(b)
    return Weights(
        f"matvec_affine{bits}", arguments, w.astype(np.float64), abs(s * (q - centre)) + abs(b + centre * s), stored, group
    )


def symmetric8(kind: str, group: int, rng: np.random.Generator, rows: int, columns: int, scales: np.ndarray) -> Weights:
    codes = rng.integers(0, 256, (rows, columns), dtype=np.uint8)
    scale = rng.choice(scales, (rows, columns // group)).astype(SCALES[kind])
    w = codes.view(np.int8) * np.repeat(scale.astype(np.float64), group, axis=1)
    return Weights("matvec_symmetric8", (codes, scale, group), w, abs(w), abs(w))


def floats(kernel: str, rng: np.random.Generator, rows: int, columns: int, scales: np.ndarray) -> Weights:
    values = rng.standard_normal((rows, columns)) * rng.choice(scales, (rows, 1))
    if kernel == "matvec_palette4":
        codes = rng.integers(0, 256, (rows, columns // 2), dtype=np.uint8)
        table = (rng.standard_normal(16) * rng.choice(scales)).astype(np.float32)
        w = table[np.stack([codes & 15, codes >> 4], axis=2).reshape(rows, columns)].astype(np.float64)
        return Weights(kernel, (codes, table), w, abs(w), abs(w))
    stored = values.astype(ml_dtypes.bfloat16 if kernel == "matvec_bf16" else np.float16)
    w = stored.astype(np.float64)
    return Weights(kernel, (stored,), w, abs(w), abs(w))


ORDINARY = np.float64([1e-4, 3e-3, 0.0117, -0.02])
HOSTILE = np.float64([0.0, -0.0, 2.0**-24, -(2.0**-24), 2.0**-14, 1.0, 500.0, -500.0])


def every_form(rows: int, runs: int, scales: np.ndarray, seed: int = 0) -> Iterator[Weights]:
    """All forms, all scale types, groups of 32, 64, 128 and a whole row."""
    rng = np.random.default_rng(seed)
    for name in ("q4_0", "q8_0", "q4_k", "q6_k"):
        yield blocks_of(name, rng, rows, runs, scales)
    for kind in SCALES:
        for group in (32, 64, 128):
            for bits in (4, 8):
                yield affine(bits, kind, group, rng, rows, group * runs, scales)
        for group, columns in ((32, 32 * runs), (32 * runs, 32 * runs), (64, 64 * runs)):
            yield symmetric8(kind, group, rng, rows, columns, scales)
    for kernel in ("matvec_bf16", "matvec_f16", "matvec_palette4"):
        yield floats(kernel, rng, rows, 32 * runs, scales)


def modes(weights: Weights) -> tuple[bool, ...]:
    return (False, True) if kernels.MATVEC[weights.kernel] else (False,)


def bound(weights: Weights, x: np.ndarray, int8: bool) -> np.ndarray:
    """The bound of docs/formats/matvec.md, per product and row."""
    columns = x.shape[1]
    groups = columns // weights.run
    depth = columns / 32 + groups / 8 + weights.run / 8 + 24
    if kernels.active() == "reference":
        depth = columns + 8  # any order of the sum
    gamma = depth * U / (1 - depth * U)
    magnitude, step = abs(x).astype(np.float64), np.zeros(x.shape)
    if int8:
        step = (
            np.repeat(abs(x).reshape(len(x), -1, 32).max(axis=2, initial=0) / 127.0, 32, axis=1) * (0.5 + 2.0**-14) + 2.0**-120
        )
    summed, stored = weights.summed.T, weights.stored.T
    lost = columns * (2.0**-120 if int8 else 2.0**-149)
    return gamma * ((magnitude + step) @ summed) + 2 * U * (magnitude @ stored) + step @ abs(weights.decoded).T + lost


def assert_bounded(weights: Weights, x: np.ndarray, int8: bool, found: np.ndarray) -> None:
    exact = x.astype(np.float64) @ weights.decoded.T
    error = abs(found - exact)
    allowed = bound(weights, x, int8)
    assert (error <= allowed).all(), (weights.kernel, int8, float((error / allowed).max()))


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
    """The bound grows with columns / 32, not with columns: long rows of one sign show a sum that goes astray."""
    for weights in every_form(3, 64, ORDINARY):
        x = np.random.default_rng(2).uniform(0.5, 1.0, (2, weights.decoded.shape[1])).astype(np.float32)
        for int8 in modes(weights):
            assert_bounded(weights, x, int8, weights.product(x, int8))


def test_a_batch_equals_its_single_products(isa: str) -> None:
    for weights in every_form(5, 3, ORDINARY):
        x = np.random.default_rng(3).standard_normal((16, weights.decoded.shape[1])).astype(np.float32)
        for int8 in modes(weights):
            single = np.concatenate([weights.product(x[i : i + 1], int8) for i in range(16)])
            for count in range(1, 17):
                assert np.array_equal(weights.product(x[:count], int8).view(np.uint32), single[:count].view(np.uint32))


def test_any_number_of_threads_gives_the_same(isa: str) -> None:
    for weights in every_form(1500, 3, ORDINARY):
        x = np.random.default_rng(4).standard_normal((2, weights.decoded.shape[1])).astype(np.float32)
        for int8 in modes(weights):
            one = weights.product(x, int8)
            for threads in (2, 3, 8):
                assert np.array_equal(weights.product(x, int8, threads), one), weights.kernel


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
        if weights.kernel not in ("matvec_q8_0", "matvec_affine4", "matvec_affine8", "matvec_symmetric8"):
            continue
        stored = [part.copy() if isinstance(part, np.ndarray) else part for part in weights.arguments]
        if weights.kernel == "matvec_q8_0":
            stored[0][1, 0:2] = np.float16([value]).view(np.uint8)
        else:
            stored[1][1, 0] = value
        spoilt = Weights(weights.kernel, tuple(stored), weights.decoded, weights.summed, weights.stored, weights.run)
        for int8 in modes(weights):
            found = spoilt.product(np.ones((2, weights.decoded.shape[1]), np.float32), int8)
            assert not np.isfinite(found[:, 1]).any()
            assert np.isfinite(found[:, 0::2]).all()


def test_zero_rows_and_zero_columns(isa: str) -> None:
    for weights in every_form(0, 2, ORDINARY):
        assert weights.product(np.ones((2, weights.decoded.shape[1]), np.float32), threads=2).shape == (2, 0)
    out = np.full((2, 3), 7.0, np.float32)
    kernels.matvec_q4_0(np.zeros((3, 0), np.uint8), np.zeros((2, 0), np.float32), out)
    assert (out == 0).all()


def test_stays_inside(isa: str, fenced) -> None:
    for weights in every_form(3, 1, ORDINARY):
        arguments = tuple(fenced(a.shape, a.dtype, a) if isinstance(a, np.ndarray) else a for a in weights.arguments)
        columns = weights.decoded.shape[1]
        x = fenced((3, columns), np.float32, np.random.default_rng(9).standard_normal((3, columns)))
        mode = (True,) if kernels.MATVEC[weights.kernel] else ()
        for flags in {mode, mode and (False,)}:
            out = fenced((3, 3), np.float32)
            getattr(kernels, weights.kernel)(*arguments, x, out, *flags)
            assert_bounded(weights, x, flags == (True,), out)


def test_int8_activations_are_what_the_reference_says(isa: str) -> None:
    """Seen through a weight of one: the code of each activation times its scale, exactly."""
    rng = np.random.default_rng(10)
    x = (rng.standard_normal((4, 64)) * [[1.0], [1e-37], [1e-45], [1e37]]).astype(np.float32)
    codes, scale = reference_matvec.quantize_activations(x)
    expected = codes.astype(np.float32) * np.repeat(scale, 32, axis=1)
    found = np.empty((4, 64), np.float32)
    kernels.matvec_symmetric8(np.eye(64, dtype=np.uint8), np.ones((64, 1), np.float32), 64, x, found, int8=True)
    assert np.array_equal(found, expected)
