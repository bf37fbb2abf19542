"""What is in a block of ggml, apart from how its bits lie: scales, steps, minimums and codes.

    w = d · level[code] + m                                   simple types; m only where there is one
    w = (d · step) · level[code] − m · minimum                types with a step, and perhaps a minimum, for each group

Each type is a `Form`: where its fields lie, as docs/formats/ggml-blocks.md has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flyweight.kernels.blocks.layout import IQ4_VALUES, f16_field, planes_of, to_planes
from flyweight.kernels.checks import Array


class Planes(NamedTuple):
    """Bytes of a block that hold `bits` bits of each of some numbers, from bit `shift` of the number on; see `planes_of`."""

    at: int
    stop: int
    run: int
    bits: int
    shift: int = 0

    def read(self, blocks: Array) -> Array:
        return planes_of(blocks[:, self.at : self.stop], self.run, self.bits) << np.uint8(self.shift)

    def write(self, blocks: Array, numbers: Array) -> None:
        own = (numbers >> np.uint8(self.shift)) & np.uint8((1 << self.bits) - 1)
        blocks[:, self.at : self.stop] = to_planes(own, self.run, self.bits)


class SixBitPairs(NamedTuple):
    """The eight steps and eight minimums of six bits of q4_k and q5_k, in twelve bytes.

    Bytes 0–3 hold steps 0–3 and bytes 4–7 minimums 0–3 in their low six bits; bytes 8–11 hold the low four bits of
    steps 4–7 (low nibble) and of minimums 4–7, whose top two bits are the ones left above.
    """

    at: int

    def read(self, blocks: Array) -> Array:
        first, second, third = (blocks[:, self.at + 4 * i : self.at + 4 * i + 4] for i in range(3))
        steps = [first & 0x3F, (third & 0x0F) | (first >> 6 << 4)]
        return np.concatenate([*steps, second & 0x3F, (third >> 4) | (second >> 6 << 4)], axis=1)

    def write(self, blocks: Array, numbers: Array) -> None:
        s, m = numbers[:, :8], numbers[:, 8:]
        third = s[:, 4:] & 15 | m[:, 4:] << 4
        blocks[:, self.at : self.at + 12] = np.concatenate(
            [s[:, :4] | s[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6, third], axis=1
        )


@dataclass(frozen=True, slots=True)
class Fields:
    """Of some blocks: f32 (blocks, 1) and (blocks, groups), codes u8 (blocks, elements) from the least level up."""

    d: Array
    codes: Array
    m: Array | None = None
    steps: Array | None = None
    minimums: Array | None = None

    @property
    def scale(self) -> Array:
        """Of each group."""
        return self.d if self.steps is None else self.d * self.steps

    @property
    def bias(self) -> Array | None:
        if self.m is None or self.minimums is None:
            return self.m
        return np.asarray(-(self.m * self.minimums))


@dataclass(frozen=True, eq=False, slots=True)
class Form:
    levels: Array
    """f32, ascending."""
    codes: tuple[Planes, ...]
    d: int = 0
    """Where the f16 scale is."""
    m: int | None = None
    """Where the f16 minimum, or scale of minimums, is."""
    steps: tuple[Planes | SixBitPairs, ...] = ()
    """Of the steps; behind them the minimums, where there is an m."""
    zero: int = 0
    """The number that stands for a step of 0; negative steps are the numbers below it. 128: bytes of two's complement."""
    greatest: int = 0
    """The greatest step; the least is −greatest − 1, or 0 where there are minimums, which go as far."""
    flip: int = 0
    """Bits of a code that are stored the other way round."""

    def read(self, blocks: Array) -> Fields:
        codes = _joined(self.codes, blocks) ^ np.uint8(self.flip)
        d, m = f16_field(blocks, self.d), None if self.m is None else f16_field(blocks, self.m)
        if not self.steps:
            return Fields(d, codes, m)
        numbers = _joined(self.steps, blocks)
        if self.m is not None:
            steps, minimums = np.split(numbers.astype(np.float32), 2, axis=1)
            return Fields(d, codes, m, steps, minimums)
        signed = numbers ^ np.uint8(0x80) if self.zero == 128 else numbers
        return Fields(d, codes, None, signed.astype(np.float32) - np.float32(self.zero))

    def write(self, blocks: Array, fields: Fields) -> None:
        """Scales that f16 holds."""
        blocks[:, self.d : self.d + 2] = fields.d.astype("<f2").view(np.uint8)
        if self.m is not None and fields.m is not None:
            blocks[:, self.m : self.m + 2] = fields.m.astype("<f2").view(np.uint8)
        self.write_codes(blocks, fields.codes)
        if fields.steps is not None:
            numbers = fields.steps + np.float32(self.zero)
            if fields.minimums is not None:
                numbers = np.concatenate([numbers, fields.minimums], axis=1)
            stored = numbers.astype(np.uint8)
            _write(self.steps, blocks, stored ^ np.uint8(0x80) if self.zero == 128 else stored)

    def write_codes(self, blocks: Array, codes: Array) -> None:
        _write(self.codes, blocks, codes ^ np.uint8(self.flip))


def _joined(planes: tuple[Planes | SixBitPairs, ...], blocks: Array) -> Array:
    joined = planes[0].read(blocks)
    for plane in planes[1:]:
        joined = joined | plane.read(blocks)
    return joined


def _write(planes: tuple[Planes | SixBitPairs, ...], blocks: Array, numbers: Array) -> None:
    for plane in planes:
        plane.write(blocks, numbers)


def _whole(least: int, greatest: int) -> Array:
    return np.arange(least, greatest + 1, dtype=np.float32)


FORMS: dict[str, Form] = {
    "q4_0": Form(_whole(-8, 7), (Planes(2, 18, 16, 4),)),
    "q4_1": Form(_whole(0, 15), (Planes(4, 20, 16, 4),), m=2),
    "q5_0": Form(_whole(-16, 15), (Planes(6, 22, 16, 4), Planes(2, 6, 1, 1, 4))),
    "q5_1": Form(_whole(0, 31), (Planes(8, 24, 16, 4), Planes(4, 8, 1, 1, 4)), m=2),
    "q8_0": Form(_whole(-128, 127), (Planes(2, 34, 32, 8),), flip=0x80),
    "iq4_nl": Form(IQ4_VALUES, (Planes(2, 18, 16, 4),)),
    "q2_k": Form(_whole(0, 3), (Planes(16, 80, 32, 2),), 80, 82, (Planes(0, 16, 16, 4),), greatest=15),
    "q3_k": Form(
        _whole(-4, 3), (Planes(32, 96, 32, 2), Planes(0, 32, 32, 1, 2)), 108, None,
        (Planes(96, 104, 8, 4), Planes(104, 108, 4, 2, 4)), zero=32, greatest=31,
    ),
    "q4_k": Form(_whole(0, 15), (Planes(16, 144, 32, 4),), 0, 2, (SixBitPairs(4),), greatest=63),
    "q5_k": Form(
        _whole(0, 31), (Planes(48, 176, 32, 4), Planes(16, 48, 32, 1, 4)), 0, 2, (SixBitPairs(4),), greatest=63
    ),
    "q6_k": Form(
        _whole(-32, 31), (Planes(0, 128, 64, 4), Planes(128, 192, 32, 2, 4)), 208, None, (Planes(192, 208, 16, 8),), zero=128,
        greatest=127,
    ),
    "iq4_xs": Form(
        IQ4_VALUES, (Planes(8, 136, 16, 4),), 0, None, (Planes(4, 8, 1, 4), Planes(2, 4, 1, 2, 4)), zero=32, greatest=31
    ),
}  # fmt: skip
"""The types whose values are `scale · level[code] + bias`, a scale and a bias for each group of a block."""
