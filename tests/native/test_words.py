"""The kernels of whole words equal their definition: exponent coding, masks, byte tables."""

from __future__ import annotations

import numpy as np
import pytest

from flyweight import kernels

WORDS = list(kernels.WORDS)
COUNTS = [0, 1, 5, 63, 64, 65, 127, 128, 4095, 4096, 4097, 9000]


def agree(kernel: str, inputs: tuple[object, ...], outputs: list[np.ndarray]) -> None:
    """Native outputs, every byte of them written, equal the definition's."""
    expected = [np.zeros_like(out) for out in outputs]
    with np.errstate(all="ignore"):
        kernels.definition(kernel)(*inputs, *expected)
    for out in outputs:
        out.reshape(-1).view(np.uint8)[...] = 0xA5
    getattr(kernels, kernel)(*inputs, *outputs)
    for found, wanted in zip(outputs, expected, strict=True):
        nan = np.isnan(found) & np.isnan(wanted) if found.dtype == np.float32 else np.zeros(found.shape, bool)
        assert ((found.view(f"u{found.itemsize}") == wanted.view(f"u{found.itemsize}")) | nan).all()


def some_words(name: str, count: int, seed: int) -> np.ndarray:
    """Weights, any words at all, and zeros."""
    rng = np.random.default_rng(seed)
    word = kernels.WORDS[name]
    weights = (rng.standard_normal(count) * 0.02).astype({"bf16": np.float32}.get(name, np.dtype(f"f{word.dtype.itemsize}")))
    bits = (weights.view(np.uint32) >> 16).astype(np.uint16) if name == "bf16" else weights.view(word.dtype)
    anything = rng.integers(0, 1 << 8 * word.dtype.itemsize, count, dtype=word.dtype)
    kind = rng.integers(0, 12, count)
    return np.where(kind == 0, anything, np.where(kind == 1, word.dtype.type(0), bits)).reshape(1, count)


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("count", COUNTS)
def test_exponent_coding(isa: str, fenced, name: str, count: int) -> None:
    word = kernels.WORDS[name]
    groups, runs = -(-count // 64), -(-count // 4096)
    words = fenced((1, count), word.dtype, some_words(name, count, count))
    agree(f"lossless_count_{name}", (words,), [fenced((1, 256), np.uint64)])
    for base in (0, 4, 116, 249):
        for room in (0, 7, count):
            planes, low = fenced((groups, word.planes), np.uint64), fenced((groups, 64 * word.low), np.uint8)
            escapes, counts = fenced((1, room), np.uint8), fenced((1, runs), np.uint32)
            agree(f"lossless_encode_{name}", (words, base), [planes, low, escapes, counts])
        starts = fenced((1, runs), np.uint32, np.cumsum(counts, axis=1) - counts)
        out = fenced((1, count), word.dtype)
        agree(f"lossless_decode_{name}", (planes, low, starts, escapes, base), [fenced((1, runs), np.uint32), out])
        if base <= (1 << word.exponent) - 7:
            assert np.array_equal(out, words)


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("seed", range(4))
def test_any_bytes_decode_alike(isa: str, fenced, name: str, seed: int) -> None:
    """Starts that point anywhere, escapes that are not there."""
    rng = np.random.default_rng(seed)
    word, count = kernels.WORDS[name], 9001
    planes = fenced((141, word.planes), np.uint64, rng.integers(0, 1 << 64, (141, word.planes), np.uint64))
    low = fenced((141, 64 * word.low), np.uint8, rng.integers(0, 256, (141, 64 * word.low)))
    starts = fenced((1, 3), np.uint32, rng.choice(np.uint32([0, 3, 400, 2**32 - 1]), (1, 3)))
    escapes = fenced((1, 500), np.uint8, rng.integers(0, 256, (1, 500)))
    outputs = [fenced((1, 3), np.uint32), fenced((1, count), word.dtype)]
    agree(f"lossless_decode_{name}", (planes, low, starts, escapes, int(rng.integers(0, 250))), outputs)


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("density", [0.0, 0.1, 0.5, 1.0])
def test_expand(isa: str, fenced, bits: int, density: float) -> None:
    rng = np.random.default_rng(bits)
    word = np.dtype(f"u{bits // 8}")
    for columns in [0, 1, 7, 8, 9, 64, 200]:
        for spare in (0, 3):
            nbytes = -(-columns // 8) + spare
            mask = fenced((5, nbytes), np.uint8, np.packbits(rng.random((5, nbytes, 8)) < density, axis=2)[:, :, 0])
            for count in (0, 3, 5 * columns // 2, 5 * columns + 1):
                values = fenced((1, count), word, rng.integers(1, 1 << bits, (1, count), dtype=word))
                agree("expand", (mask, values), [fenced((5, columns), word)])


@pytest.mark.parametrize("group", [1, 2, 31, 128, 1000])
def test_table(isa: str, fenced, group: int) -> None:
    rng = np.random.default_rng(group)
    table = fenced((1, 256), np.float32, rng.standard_normal((1, 256)))
    table[0, 7], table[0, 8] = np.nan, -0.0
    for columns in [0, 1, 5, 63, 64, 65, 257]:
        groups = -(-columns // group)
        codes = fenced((3, columns), np.uint8, rng.integers(0, 256, (3, columns)))
        scale = fenced((3, groups), np.float32, rng.standard_normal((3, groups)))
        agree("table_decode", (codes, table, scale, group), [fenced((3, columns), np.float32)])
