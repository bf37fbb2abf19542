"""Matrices in every form that products take, with the weights they decode to and the magnitudes of their error bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from flyweight import kernels
from flyweight.codecs import ggml
from flyweight.kernels.products.stored_matrix import WIDTHS

SCALES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
FLOATS = ("f32", "f16", "bf16", "palette4", "e4m3", "hqq4", "hqq8")
"""Forms whose activations are never int8."""


@dataclass(frozen=True)
class Weights:
    """A matrix, the weights it decodes to, and two magnitudes per weight (docs/formats/matvec.md)."""

    matrix: kernels.Matrix
    decoded: np.ndarray
    summed: np.ndarray
    """What the kernel adds up for a weight: |scale · code| + |bias|."""
    stored: np.ndarray
    """The same with the code as stored: what decoding rounds against."""
    steps: float = 1.0
    """What a product of scale and activation that underflows is multiplied with, at most."""

    is_turned: bool = False
    """Whether it is multiplied with rotated activations; `summed` and `stored` are then of the rotated weights."""

    @property
    def form(self) -> str:
        return self.matrix.form

    def product(self, x: np.ndarray, int8: bool = False, threads: int = 1, **more: Any) -> np.ndarray:
        out = np.full((len(x), self.matrix.rows), 7.0, np.float32)
        kernels.multiply([self.matrix], x, out, int8=int8, threads=threads, **more)
        return out


def decoded_blocks(name: str, blocks: np.ndarray, zeroed: tuple[int, ...] = ()) -> np.ndarray:
    size, nbytes = kernels.BLOCKS[name]
    some = blocks.reshape(-1, nbytes).copy()
    for at in zeroed:
        some[:, at : at + 2] = 0
    values = np.empty((len(some), size), np.float32)
    with np.errstate(all="ignore"):
        kernels.definition(f"decode_{name}")(some, values)
    return values.reshape(len(blocks), blocks.shape[1] // nbytes * size).astype(np.float64)


CENTRES = {"q4_0": 8, "q5_0": 16, "q3_k": 4, "q6_k": 32}
BIASED = {**dict.fromkeys(("q4_1", "q5_1", "q4_k", "q5_k"), ((2,), (0,))), "q2_k": ((82,), (80,))}


def blocks_of(name: str, rng: np.random.Generator, rows: int, runs: int, scales: np.ndarray) -> Weights:
    nbytes = kernels.BLOCKS[name][1]
    blocks = rng.integers(0, 256, (rows * runs, nbytes), dtype=np.uint8)
    for at, kind in next(codec for codec in ggml.CODECS if codec.name == name).scales:
        blocks[:, at : at + 2] = rng.choice(scales, (len(blocks), 1)).astype(kind).view(np.uint8)
    if name == "mxfp4":  # powers of two about as large
        chosen = abs(rng.choice(scales, len(blocks)))
        blocks[:, 0] = np.where(chosen > 0, np.frexp(chosen)[1] + 127, 0)
    blocks = blocks.reshape(rows, runs * nbytes)
    w = decoded_blocks(name, blocks)
    summed = abs(w)
    if name in BIASED:
        summed = sum(abs(decoded_blocks(name, blocks, zeroed)) for zeroed in BIASED[name])
    elif name in CENTRES:  # |s·q| + |s·centre| ≤ |s·(q − centre)| + 2·|s|·centre, s being the step of that weight's block
        summed = summed + 2 * CENTRES[name] * steps_of(name, blocks)
    return Weights(kernels.matrix(name, blocks=blocks), w, summed, summed)


def steps_of(name: str, blocks: np.ndarray) -> np.ndarray:
    """|s| of every weight of a form s·(q − centre): that of a block whose codes are all zero, by its centre."""
    nbytes = kernels.BLOCKS[name][1]
    empty = blocks.reshape(-1, nbytes).copy()
    kept = {"q4_0": slice(0, 2), "q5_0": slice(0, 2), "q3_k": slice(96, 110), "q6_k": slice(192, 210)}[name]
    zero = np.ones(nbytes, bool)
    zero[kept] = False
    empty[:, zero] = 0
    return abs(decoded_blocks(name, empty.reshape(blocks.shape))) / CENTRES[name]


def affine(bits: int, kind: str, group: int, rng: np.random.Generator, rows: int, columns: int, scales: np.ndarray) -> Weights:
    codes = rng.integers(0, 1 << bits, (rows, columns), dtype=np.uint8)
    scale = rng.choice(scales, (rows, columns // group)).astype(SCALES[kind])
    bias = (rng.choice(scales, scale.shape) * -(2.0 ** (bits - 1))).astype(SCALES[kind])
    s, b = (np.repeat(part.astype(np.float64), group, axis=1) for part in (scale, bias))
    q = codes.astype(np.float64)
    with np.errstate(all="ignore"):
        w = (s * q).astype(np.float32) + b.astype(np.float32)
    centre = 128 if bits == 8 else 0
    matrix = kernels.matrix(f"affine{bits}", codes=stream(codes, bits), scale=scale, bias=bias)
    return Weights(matrix, w.astype(np.float64), abs(s * (q - centre)) + abs(b + centre * s), abs(s * q) + abs(b))


def stream(codes: np.ndarray, bits: int) -> np.ndarray:
    """Rows of codes as little streams."""
    every = np.unpackbits(codes[:, :, None], axis=2, count=bits, bitorder="little")
    return np.packbits(every.reshape(len(codes), codes.shape[1] * bits), axis=1, bitorder="little")


def stepped(bits: int, group: int, rng: np.random.Generator, rows: int, columns: int, scales: np.ndarray) -> Weights:
    codes = rng.integers(0, 1 << bits, (rows, columns), dtype=np.uint8)
    numbers = rng.integers(0, 64, (rows, 2 * -(-columns // group)), dtype=np.uint8)
    scale = rng.choice(scales, (rows, 2)).astype(np.float16)
    each = scale.astype(np.float64)[:, :, None] * numbers.reshape(rows, numbers.shape[1] // 2, 2).transpose(0, 2, 1)
    s, m = (np.repeat(each[:, i], group, axis=1)[:, :columns] for i in range(2))
    q = codes.astype(np.float64)
    w = ((s * q).astype(np.float32) - m.astype(np.float32)).astype(np.float64)
    centre = 128 if bits == 8 else 0
    matrix = kernels.matrix(f"stepped{bits}", codes=stream(codes, bits), steps=stream(numbers, 6), scale=scale, length=group)
    return Weights(matrix, w, abs(s * (q - centre)) + abs(centre * s - m), abs(s * q) + abs(m))


def symmetric8(kind: str, group: int, rng: np.random.Generator, rows: int, columns: int, scales: np.ndarray) -> Weights:
    codes = rng.integers(0, 256, (rows, columns), dtype=np.uint8)
    scale = rng.choice(scales, (rows, columns // group)).astype(SCALES[kind])
    w = codes.view(np.int8) * np.repeat(scale.astype(np.float64), group, axis=1)
    return Weights(kernels.matrix("symmetric8", codes=codes, scale=scale), w, abs(w), abs(w))


def entries_of(rng: np.random.Generator, rows: int, runs: int, scales: np.ndarray, shift: float) -> np.ndarray:
    """Entries as a file holds them: an id, a scale and a zero; (rows, 4 · runs)."""
    table = rng.integers(0, 2**32, (rows, runs, 4), dtype=np.uint32)
    table[..., 2] = rng.choice(scales, (rows, runs)).astype(np.float32).view(np.uint32)
    table[..., 3] = (rng.choice(scales, (rows, runs)) * shift).astype(np.float32).view(np.uint32)
    return table.reshape(rows, 4 * runs)


def half_of(rng: np.random.Generator, rows: int, blocks: int) -> np.ndarray:
    """Which blocks are kept: half of them, anywhere."""
    return rng.permutation(rows * blocks).reshape(rows, blocks) % 2 == 0


def tabled(
    bits: int, length: int, rng: np.random.Generator, rows: int, columns: int, scales: np.ndarray, block: int = 0
) -> Weights:
    """With a block, a mask over it: half the blocks are dropped, and their pairs and codes are zero."""
    runs = -(-columns // length) if length else 1
    codes = rng.integers(0, 1 << bits, (rows, columns), dtype=np.uint8)
    table = entries_of(rng, rows if length else 1, runs, scales, 3.0 if bits == 4 else -1.5)
    masked = {}
    if block:
        kept = half_of(rng, rows, -(-columns // block))
        codes[~np.repeat(kept, block, axis=1)[:, :columns]] = 0
        table.reshape(rows, runs, 4)[~np.repeat(kept, block // length, axis=1)[:, :runs], 2:] = 0
        masked = {"block": block, "mask": np.packbits(kept, axis=1, bitorder="little")}
    per_row = np.broadcast_to(table, (rows, table.shape[1]))
    s, z = (
        np.repeat(np.ascontiguousarray(per_row[:, at::4]).view(np.float32).astype(np.float64), length or columns, axis=1)
        for at in (2, 3)
    )
    s, z = s[:, :columns], z[:, :columns]
    centre = 8 if bits == 4 else 0
    q = (codes ^ np.uint8(centre)).astype(np.float64) - centre
    packed = sum(codes[:, at :: 8 // bits] << np.uint8(at * bits) for at in range(8 // bits)).astype(np.uint8)
    w = ((s * q).astype(np.float32) + z.astype(np.float32)).astype(np.float64)
    matrix = kernels.matrix(f"tabled{bits}", codes=packed, entries=table, length=length, **masked)
    return Weights(matrix, w, abs(s * (q + centre)) + abs(z - centre * s), abs(s * q) + abs(z))


def e4m3_of(codes: np.ndarray) -> np.ndarray:
    return codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)


def finite_e4m3(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Every byte but the two that are NaN."""
    return rng.choice(np.flatnonzero(np.arange(256) & 0x7F != 0x7F), shape).astype(np.uint8)


def f8q8(rng: np.random.Generator, rows: int, runs: int) -> Weights:
    """Its scales are every byte that is a number: zero, the least subnormal, the greatest."""
    blocks = rng.integers(0, 256, (rows, runs, 33), dtype=np.uint8)
    blocks[:, :, 0] = finite_e4m3(rng, (rows, runs))
    w = blocks[:, :, 1:].view(np.int8) * (e4m3_of(blocks[:, :, :1]).astype(np.float32) / np.float32(416))
    decoded = w.astype(np.float32).astype(np.float64).reshape(rows, 32 * runs)
    return Weights(kernels.matrix("f8q8", blocks=blocks.reshape(rows, 33 * runs)), decoded, abs(decoded), abs(decoded))


def e2m1(rng: np.random.Generator, rows: int, runs: int, exponents: tuple[int, int]) -> Weights:
    """Codes, and exponents from the first to below the last."""
    codes = rng.integers(0, 256, (rows, 16 * runs), dtype=np.uint8)
    scale = rng.integers(*exponents, (rows, runs), dtype=np.uint8)
    magnitudes = np.float64([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    nibbles = np.stack([codes & 15, codes >> 4], axis=2).reshape(rows, 32 * runs)
    signs = np.where(nibbles & 8, -1.0, 1.0)
    w = signs * magnitudes[nibbles & 7] * np.repeat(2.0 ** (scale.astype(np.float64) - 127), 32, axis=1)
    return Weights(kernels.matrix("e2m1", codes=codes, scale=scale), w, abs(w), abs(w))


def e4m3(rng: np.random.Generator, rows: int, columns: int, scales: np.ndarray) -> Weights:
    codes = finite_e4m3(rng, (rows, columns))
    scale = rng.choice(scales, (rows, 1)).astype(np.float32)
    w = e4m3_of(codes) * scale
    return Weights(kernels.matrix("e4m3", codes=codes, scale=scale), w, abs(w), abs(w))


def hqq(bits: int, kind: str, group: int, rng: np.random.Generator, groups: int, columns: int, scales: np.ndarray) -> Weights:
    """Groups across the rows: row r has the scales and zeros of group r % groups."""
    rows = group * groups
    q = rng.integers(0, 1 << bits, (rows, columns), dtype=np.uint8)
    scale = rng.choice(scales, (groups, columns)).astype(SCALES[kind])
    zero = rng.uniform(0, 2.0**bits, (groups, columns)).astype(SCALES[kind])
    codes = q[: rows // 2] << 4 | q[rows // 2 :] if bits == 4 else q
    s, z = (np.tile(part.astype(np.float64), (group, 1)) for part in (scale, zero))
    w = ((q - z).astype(np.float32) * s.astype(np.float32)).astype(np.float64)
    summed = abs(s * q) + abs(s * z)
    matrix = kernels.matrix(f"hqq{bits}", codes=codes, scale=scale, zero=zero)
    return Weights(matrix, w, summed, summed, 2.0 ** (bits + 1))


def woven(bits: int, rng: np.random.Generator, rows: int, columns: int, scales: np.ndarray) -> Weights:
    """Two strips and a bit of another, where there are rows enough."""
    codes = rng.integers(0, 256, (rows, columns * bits // 8), dtype=np.uint8)
    scale = rng.choice(scales, (rows, 1)).astype(np.float16)
    tables = kernels.WOVEN_TABLES[bits].view(np.uint8).reshape(1, 96)
    levels = kernels.woven_levels(kernels.unpack_woven(codes, bits), bits).astype(np.float64)
    w = kernels.rotate(levels) * kernels.rotation_signs(columns) * (scale.astype(np.float64) / 8)
    s = abs(scale.astype(np.float64))
    matrix = kernels.matrix(f"woven{bits}", codes=codes, scale=scale, tables=tables)
    return Weights(matrix, w, (abs(levels + 128) + 128) * s, abs(levels) * s, is_turned=True)


def floats(form: str, rng: np.random.Generator, rows: int, columns: int, scales: np.ndarray) -> Weights:
    if form == "palette4":
        codes = rng.integers(0, 256, (rows, columns // 2), dtype=np.uint8)
        table = (rng.standard_normal(16) * rng.choice(scales)).astype(np.float32)
        w = table[np.stack([codes & 15, codes >> 4], axis=2).reshape(rows, columns)].astype(np.float64)
        return Weights(kernels.matrix(form, codes=codes, table=table), w, abs(w), abs(w))
    values = rng.standard_normal((rows, columns)) * rng.choice(scales, (rows, 1))
    stored = values.astype(SCALES[form])
    w = stored.astype(np.float64)
    return Weights(kernels.matrix(form, weights=stored), w, abs(w), abs(w))


ORDINARY = np.float64([1e-4, 3e-3, 0.0117, -0.02])
HOSTILE = np.float64([0.0, -0.0, 2.0**-24, -(2.0**-24), 2.0**-14, 1.0, 500.0, -500.0])


def every_form(rows: int, runs: int, scales: np.ndarray, seed: int = 0) -> Iterator[Weights]:
    """All forms, all scale types, groups of 32, 64, 96, 128 and a whole row."""
    rng = np.random.default_rng(seed)
    for name in (form for form in kernels.FORMS if form in kernels.BLOCKS):
        yield blocks_of(name, rng, rows, runs, scales)
    for kind in SCALES:
        for group in (32, 64, 96, 128):
            for bits in WIDTHS if group == 64 else (4, 8):
                yield affine(bits, kind, group, rng, rows, group * runs, scales)
        for group, columns in ((32, 32 * runs), (32 * runs, 32 * runs), (64, 64 * runs)):
            yield symmetric8(kind, group, rng, rows, columns, scales)
    for bits in WIDTHS:
        for group in (32, 4096, *((64, 96) if bits in (3, 4) else ())):
            yield stepped(bits, group, rng, rows, 32 * runs, scales)
    for kind in SCALES:
        for bits, group in ((4, 64), (8, 64), (4, 8), (8, 24), (4, 136)):
            yield hqq(bits, kind, group, rng, -(-rows // group), 32 * runs, scales)
    for bits in (2, 3, 4):
        yield woven(bits, rng, rows, 64 * runs, scales)
    yield f8q8(rng, rows, runs)
    for exponents in ((110, 125), (0, 4), (120, 150)):
        yield e2m1(rng, rows, runs, exponents)
    yield e4m3(rng, rows, 32 * runs, scales)
    for form in ("f32", "f16", "bf16", "palette4"):
        yield floats(form, rng, rows, 32 * runs, scales)
    for bits in (4, 2):
        for length in (0, 32, 64, 128, 192, 4096):
            yield tabled(bits, length, rng, rows, 64 * runs, scales)


def every_mask(rows: int, runs: int, scales: np.ndarray, seed: int = 0) -> Iterator[Weights]:
    """Forms that skip blocks; blocks of one and of several runs, the last of a row whole or short, or longer than the row."""
    rng = np.random.default_rng(seed)
    for length, block in ((32, 32), (32, 128), (64, 64), (128, 128), (64, 192), (96, 96), (128, 4096)):
        for bits in (4, 2):
            yield tabled(bits, length, rng, rows, 64 * runs, scales, block)
    for form in ("f32", "f16", "bf16"):
        for block in (32, 64, 96, 4096):
            dense = floats(form, rng, rows, 64 * runs, scales)
            kept = half_of(rng, rows, -(-64 * runs // block))
            every = np.repeat(kept, block, axis=1)[:, : 64 * runs]
            stored = np.where(every, dense.matrix.parts[0], dense.matrix.parts[0].dtype.type(0)).view(SCALES[form])
            matrix = kernels.matrix(form, weights=stored, block=block, mask=np.packbits(kept, axis=1, bitorder="little"))
            w = np.where(every, dense.decoded, 0)
            yield Weights(matrix, w, abs(w), abs(w))


def modes(weights: Weights) -> tuple[bool, ...]:
    return (False,) if weights.form in FLOATS else (False, True)
