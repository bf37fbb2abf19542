"""16-byte blocks of two-dimensional LDR ASTC to their red texels.

A block, bit 0 the lowest of its first byte:

    0–10    mode: size of the weight grid, range of a weight, one plane of weights or two
    11–12   partitions − 1
    13–16   one partition: the colour endpoint mode (CEM), end points from bit 17
    13–28   more: pattern (10 bits), CEM selector (2), CEM (4, the rest under the weights), end points from bit 29
    –127    weights, downwards from bit 127; under them the rest of the CEM, then the channel of the second plane (2)

    texel = (257 · e₀ · (64 − i) + 257 · e₁ · i + 32) >> 6        UNORM16; i the weight there, 0–64

Only red is ever computed: the other channels of a texture of weights repeat it. Tables and rules are those of the Khronos Data
Format specification, chapter ASTC; docs/formats/astc.md says which of its cases are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from flyweight.kernels.checks import Array

Ranges = tuple[tuple[int, int], ...]

# A range of integers is digit · 2^bits + low bits, with a digit to the base 1 (none), 3 or 5: (base, bits), smallest first.
WEIGHT_RANGES = ((1, 1), (3, 0), (1, 2), (5, 0), (3, 1), (1, 3), (5, 1), (3, 2), (1, 4), (5, 2), (3, 3), (1, 5))
COLOUR_RANGES = (
    *((3, 1), (1, 3), (5, 1), (3, 2), (1, 4), (5, 2), (3, 3), (1, 5), (5, 3)),
    *((3, 4), (1, 6), (5, 4), (3, 5), (1, 7), (5, 5), (3, 6), (1, 8)),
)
# Bits of the shared digits that follow the low bits of each integer of a group.
DIGIT_BITS = {1: (0,), 3: (2, 2, 1, 2, 1), 5: (3, 2, 2)}
# How an integer with a digit is widened: where its bits go (a the lowest; it inverts the rest), and what the digit counts.
WEIGHT_SPREAD = {(3, 1): ("", 50), (5, 1): ("", 28), (3, 2): ("b000b0b", 23), (5, 2): ("b0000b0", 13), (3, 3): ("cb000cb", 11)}
COLOUR_SPREAD = {
    (3, 1): ("", 204),
    (5, 1): ("", 113),
    (3, 2): ("b000b0bb0", 93),
    (5, 2): ("b0000bb00", 54),
    (3, 3): ("cb000cbcb", 44),
    (5, 3): ("cb0000cbc", 26),
    (3, 4): ("dcb000dcb", 22),
    (5, 4): ("dcb0000dc", 13),
    (3, 5): ("edcb000ed", 11),
    (5, 5): ("edcb0000e", 6),
    (3, 6): ("fedcb000f", 5),
}
DIGIT_ALONE = {3: (0, 32, 63), 5: (0, 16, 32, 47, 63)}
# Bits 10–0 of a mode, and what its fields W and H are added to. D: two planes, P and xyz: the range; x or y is set.
MODES = (
    ("DPWWHHz00xy", 4, 2),
    ("DPWWHHz01xy", 8, 2),
    ("DPHHWWz10xy", 2, 8),
    ("DP0HWWz11xy", 2, 6),
    ("DP1WHHz11xy", 2, 2),
    ("DP00HHzxy00", 12, 2),
    ("DP01WWzxy00", 2, 12),
    ("DP1100zxy00", 6, 10),
    ("DP1101zxy00", 10, 6),
    ("HH10WWzxy00", 6, 6),
)
MOST_WEIGHTS, LEAST_WEIGHT_BITS, MOST_WEIGHT_BITS, MOST_COLOURS = 64, 24, 96, 18
HDR_MODES = (2, 3, 7, 11, 14, 15)
_LONGEST = 512
"""More bits than any sequence would take if it were not cut off."""


def texels(blocks: Array, width: int, height: int) -> tuple[Array, Array]:
    """The red texels, UNORM16, of each block, 0 where it is illegal, and which are. (n, height, width) int32, (n,) bool"""
    bits = np.unpackbits(blocks, axis=1, bitorder="little").astype(np.int32)
    mode = _number(bits[:, :11])
    grid = _modes()[mode]
    across, down, kind, planes, weight_bits, mode_serves = grid.T
    parts = _number(bits[:, 11:13]) + 1
    void = mode & 0x1FF == 0x1FC

    cem, extra = _endpoint_modes(bits, parts, weight_bits)
    channel = _number(_from(bits, 128 - weight_bits - extra - 2, 2))
    used = np.arange(4) < parts[:, None]
    counts = (cem // 4 + 1) * 2 * used
    colours = counts.sum(axis=1)
    start = np.where(parts > 1, 29, 17)
    left = 128 - weight_bits - start - extra - 2 * (planes - 1)
    range_of = (_sizes(COLOUR_RANGES)[:, np.minimum(colours, MOST_COLOURS)] <= left).sum(axis=0) - 1

    legal = mode_serves & (across <= width) & (down <= height) & (colours <= MOST_COLOURS) & (range_of >= 0)
    legal &= ~(np.isin(cem, HDR_MODES) & used).any(axis=1) & ((planes == 1) | (parts < 4))
    illegal = np.where(void, ~_void_serves(bits), legal == 0)

    stored = _integers(_from(bits, start, 128), np.maximum(range_of, 0), colours, MOST_COLOURS, COLOUR_RANGES, _colours)
    ends = _red_ends(stored, cem, np.cumsum(counts, axis=1) - counts)
    stored = _integers(bits[:, ::-1], kind, across * down * planes, MOST_WEIGHTS, WEIGHT_RANGES, _weights)
    weight = _infill(stored, grid, np.where((planes == 2) & (channel == 0), 1, 0), width, height)
    owner = _owners(_number(bits[:, 13:23]), parts, width, height)
    low, high = (np.take_along_axis(end, owner.reshape(len(bits), -1), 1).reshape(owner.shape) * 257 for end in ends)
    found = low * (64 - weight) + high * weight + 32 >> 6
    found = np.where(void[:, None, None], _number(bits[:, 64:80])[:, None, None], found)
    return np.where(illegal[:, None, None], 0, found), illegal


# The mode, and what follows from it ---------------------------------------------------------------


@cache
def _modes() -> Array:
    """Of every mode: grid width, grid height, range, planes, bits of weights, whether it is legal (else some mode that is)."""
    bit = np.arange(2048)[:, None] >> np.arange(10, -1, -1) & 1  # as the patterns are written
    table = np.tile([2, 2, 0, 1, LEAST_WEIGHT_BITS, 0], (2048, 1))
    for pattern, width, height in MODES:
        letters = np.array(list(pattern))
        field = {letter: _number(bit[:, letters == letter][:, ::-1]) for letter in "DPWHxyz"}
        found = bit[:, letters == "1"].all(axis=1) & ~bit[:, letters == "0"].any(axis=1) & (field["x"] + field["y"] > 0)
        across, down = width + field["W"], height + field["H"]
        kind = field["x"] * 4 + field["y"] * 2 + field["z"] - 2 + 6 * field["P"]
        planes = 1 + field["D"]
        count = np.where(found, across * down * planes, 0)
        size = _sizes(WEIGHT_RANGES, 2 * 15 * 15)[np.where(found, kind, 0), count]
        found &= (count <= MOST_WEIGHTS) & (size >= LEAST_WEIGHT_BITS) & (size <= MOST_WEIGHT_BITS)
        every = np.broadcast_arrays(across, down, kind, planes, size, 1)
        table[found] = np.stack(every, axis=1)[found]
    return table.astype(np.int32)


@cache
def _sizes(ranges: Ranges, most: int = MOST_COLOURS) -> Array:
    """Bits that 0 … `most` integers of each range take. (ranges, most + 1)"""
    count = np.arange(most + 1)
    digit = {1: 0 * count, 3: -(-8 * count // 5), 5: -(-7 * count // 3)}
    return np.stack([digit[base] + bits * count for base, bits in ranges])


def _endpoint_modes(bits: Array, parts: Array, weight_bits: Array) -> tuple[Array, Array]:
    """The CEM of four partitions, used or not, and how many of its bits lie under the weights. (n, 4), (n,)"""
    selector = _number(bits[:, 23:25])
    extra = np.where((parts > 1) & (selector > 0), 3 * parts - 4, 0)
    field = np.concatenate([bits[:, 25:29], _from(bits, 128 - weight_bits - extra, 8)], axis=1)
    low = np.stack([_number(_from(field, parts + 2 * part, 2)) for part in range(4)], axis=1)
    mixed = 4 * (selector[:, None] - 1 + field[:, :4]) + low
    same = np.where(parts > 1, _number(bits[:, 25:29]), _number(bits[:, 13:17]))[:, None]
    return np.where(extra[:, None] > 0, mixed, same), extra


def _void_serves(bits: Array) -> Array:
    """Whether an extent of one colour is LDR, its reserved bits are set, and its corners are in order or all ones."""
    left, right, top, bottom = (_number(bits[:, at : at + 13]) for at in (12, 25, 38, 51))
    ordered = (left < right) & (top < bottom)
    return np.asarray((_number(bits[:, 9:12]) == 0b110) & (ordered | bits[:, 12:64].all(axis=1)))


# Sequences of integers ----------------------------------------------------------------------------


def _integers(stream: Array, kind: Array, count: Array, most: int, ranges: Ranges, wide: Callable[[int, int], Array]) -> Array:
    """The first `most` integers of each stream, widened; bits beyond those of `count` integers are zeros. (n, most)"""
    out = np.zeros((len(stream), most), np.int32)
    size = _sizes(ranges, MOST_WEIGHTS)[kind, np.minimum(count, MOST_WEIGHTS)]
    stream = np.where(np.arange(_LONGEST) < size[:, None], np.pad(stream, ((0, 0), (0, _LONGEST - 128))), 0)
    for index in np.unique(kind):
        base, bits = ranges[index]
        rows = kind == index
        low, shared = _places(base, bits, most)
        digits = _digits(base)[_number(stream[rows][:, shared])].reshape(rows.sum(), -1)[:, :most]
        out[rows] = wide(base, bits)[digits << bits | _number(stream[rows][:, low])]
    return out


@cache
def _places(base: int, bits: int, most: int) -> tuple[Array, Array]:
    """Where the low bits of each integer stand in a stream, and the digits of each group. (most, bits), (groups, …)"""
    low: list[list[int]] = []
    shared: list[list[int]] = []
    at = 0
    while len(low) < most:
        group: list[int] = []
        for width in DIGIT_BITS[base]:
            low.append(list(range(at, at + bits)))
            group += range(at + bits, at + bits + width)
            at += bits + width
        shared.append(group)
    return np.array(low[:most], int).reshape(most, bits), np.array(shared, int).reshape(len(shared), -1)


@cache
def _digits(base: int) -> Array:
    """The digits that the shared bits of a group stand for. (2 ** bits, digits)"""
    return np.array({1: [(0,)], 3: [_trits(t) for t in range(256)], 5: [_quints(q) for q in range(128)]}[base], np.int32)


def _trits(t: int) -> tuple[int, ...]:
    if t >> 2 & 7 == 7:
        c, t3, t4 = t >> 5 << 2 | t & 3, 2, 2
    elif t >> 5 & 3 == 3:
        c, t3, t4 = t & 31, t >> 7, 2
    else:
        c, t3, t4 = t & 31, t >> 5 & 3, t >> 7
    if c & 3 == 3:
        return _below_three(c >> 2 & 3), c >> 4, 2, t3, t4
    if c >> 2 & 3 == 3:
        return c & 3, 2, 2, t3, t4
    return _below_three(c & 3), c >> 2 & 3, c >> 4, t3, t4


def _below_three(pair: int) -> int:
    return pair & 2 or pair


def _quints(q: int) -> tuple[int, ...]:
    middle, top = q >> 3 & 3, q >> 5 & 3
    if q >> 1 & 3 == 3 and top == 0:
        return 4, 4, 4 if q & 1 else middle
    c, q2 = (middle << 3 | (~top & 3) << 1 | q & 1, 4) if q >> 1 & 3 == 3 else (q & 31, top)
    return (c >> 3, 4, q2) if c & 7 == 5 else (c & 7, c >> 3, q2)


@cache
def _weights(base: int, bits: int) -> Array:
    """Every weight of a range, 0–64."""
    wide = _widened(base, bits, 6, WEIGHT_SPREAD) if bits else np.array(DIGIT_ALONE[base])
    return wide + (wide > 32)


@cache
def _colours(base: int, bits: int) -> Array:
    """Every colour of a range, 0–255."""
    return _widened(base, bits, 8, COLOUR_SPREAD)


def _widened(base: int, bits: int, width: int, spread: dict[tuple[int, int], tuple[str, int]]) -> Array:
    """Bits alone repeat from the top; with a digit they are spread, and its share added."""
    value = np.arange(base << bits)
    if base == 1:
        times = -(-width // bits)
        return np.asarray(sum(value << bits * at for at in range(times)) >> bits * times - width)
    pattern, share = spread[base, bits]
    mixed = np.zeros_like(value)
    for letter in pattern:
        mixed = mixed << 1 | (0 if letter == "0" else value >> ord(letter) - ord("a") & 1)
    flip = (value & 1) * ((4 << width - 1) - 1)
    return flip & 1 << width - 1 | ((value >> bits) * share + mixed ^ flip) >> 2


# End points, weights, partitions ------------------------------------------------------------------


def _red_ends(stored: Array, cem: Array, first: Array) -> tuple[Array, Array]:
    """The red of both end points of four partitions, 0–255. (n, 4) each"""
    padded = np.concatenate([stored, np.zeros((len(stored), 32), np.int32)], axis=1)
    v0, v1, v2, v3, v4, v5 = (np.take_along_axis(padded, first + at, 1) for at in range(6))
    (b0, d0), (_, d2), (b4, d4) = _base_and_offset(v0, v1), _base_and_offset(v2, v3), _base_and_offset(v4, v5)
    base = v0 >> 2 | v1 & 0xC0
    falls, offset_falls = v1 + v3 + v5 < v0 + v2 + v4, d0 + d2 + d4 < 0
    cases = (
        ((0, 4), v0, v1),
        ((1,), base, base + (v1 & 0x3F)),
        ((5,), b0, b0 + d0),
        ((6, 10), v0 * v3 >> 8, v0),
        ((8, 12), np.where(falls, v1 + v5 >> 1, v0), np.where(falls, v0 + v4 >> 1, v1)),
        ((9, 13), np.where(offset_falls, b0 + d0 + b4 + d4 >> 1, b0), np.where(offset_falls, b0 + b4 >> 1, b0 + d0)),
    )
    chosen = [np.isin(cem, modes) for modes, _, _ in cases]
    low, high = (np.select(chosen, [case[end] for case in cases]).clip(0, 255) for end in (1, 2))
    return low, high


def _base_and_offset(base: Array, offset: Array) -> tuple[Array, Array]:
    """A bit of the offset goes to the base; the rest is signed, −32 to 31."""
    return base >> 1 | offset & 0x80, (offset >> 1 & 0x3F ^ 0x20) - 0x20


def _infill(stored: Array, grid: Array, plane: Array, width: int, height: int) -> Array:
    """The weight at every texel, between those of the grid, in sixteenths. (n, height, width)"""
    across, down, _, planes, _, _ = (part[:, None, None] for part in grid.T)
    x, y = _sixteenths(width, across, np.arange(width)), _sixteenths(height, down, np.arange(height)[:, None])
    fx, fy = x & 15, y & 15
    both = fx * fy + 8 >> 4
    at = (x >> 4) + (y >> 4) * across
    padded = np.concatenate(
        [stored, np.zeros((len(stored), 32), np.int32)], axis=1
    )  # a neighbour beyond the grid counts nothing
    total = np.full(1, 8)
    for step, factor in ((0, 16 - fx - fy + both), (1, fx - both), (across, fy - both), (across + 1, both)):
        index = (at + step) * planes + plane[:, None, None]
        total = total + factor * np.take_along_axis(padded, index.reshape(len(stored), width * height), 1).reshape(index.shape)
    return np.asarray(total >> 4)


def _sixteenths(texels_across: int, grid_across: Array, at: Array) -> Array:
    step = (1024 + texels_across // 2) // (texels_across - 1)
    return np.asarray(step * at * (grid_across - 1) + 32 >> 6)


def _owners(pattern: Array, parts: Array, width: int, height: int) -> Array:
    """The partition of every texel. (n, height, width)"""
    seed = (pattern + (parts - 1) * 1024).astype(np.uint32)
    mixed = _hash(seed)
    doubled = 2 if width * height < 31 else 1
    x, y = doubled * np.arange(width), doubled * np.arange(height)[:, None]
    steep, flat = np.where(seed & 2, 4, 5), np.where(parts == 3, 6, 5)
    shifts = np.where(seed & 1, steep, flat), np.where(seed & 1, flat, steep)
    heights = []
    for part in range(4):
        slope = [(mixed >> 8 * part + 4 * axis & 15).astype(np.int32) ** 2 >> shifts[axis] for axis in (0, 1)]
        offset = (mixed >> 14 - 4 * part).astype(np.int64)[:, None, None]
        plane = slope[0][:, None, None] * x + slope[1][:, None, None] * y + offset & 63
        heights.append(np.where((part < parts)[:, None, None], plane, 0))
    owner = np.argmax(heights, axis=0)  # the first of equal ones
    return np.where((parts > 1)[:, None, None], owner, 0)


def _hash(seed: Array) -> Array:
    seed = seed ^ seed >> 15
    seed = seed - (seed << 17)
    seed = seed + (seed << 7)
    seed = seed + (seed << 4)
    seed = seed ^ seed >> 5
    seed = seed + (seed << 16)
    seed = seed ^ seed >> 7
    seed = seed ^ seed >> 3
    seed = seed ^ seed << 6
    return np.asarray(seed ^ seed >> 17)


# Bits ---------------------------------------------------------------------------------------------


def _number(bits: Array) -> Array:
    """The number whose bits, lowest first, are the last axis."""
    return np.asarray(bits @ (1 << np.arange(bits.shape[-1], dtype=np.int32)))


def _from(bits: Array, start: Array, count: int) -> Array:
    """`count` bits from `start` on, zeros past the end. (n, count)"""
    padded = np.concatenate([bits, np.zeros((len(bits), count), np.int32)], axis=1)
    return np.take_along_axis(padded, start[:, None] + np.arange(count), 1)
