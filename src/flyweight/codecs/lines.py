"""The lines behind the codes of a tensor: what a code decodes to depends on its group alone.

    ŵ = scale · level[code] + bias              levels ascending, a scale and a bias for each group of a row

A codec of this kind gives the lines that some parts hold (`Codec.lines`), and parts for other codes on other lines
(`Codec.from_lines`). Whoever moves lines asks them what can be stored: `near` gives the nearest scale and bias that can.

Arrays are turned, (groups, rows), so that a group is a row of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import numpy as np

from flyweight.codecs.casts import astype
from flyweight.foundation.dtypes import DType

if TYPE_CHECKING:
    from flyweight.codecs.codec import Array


@dataclass
class Lines:
    """Free lines: scale and bias are numbers of their own."""

    levels: Array
    """f32 (1, n)"""
    group: int
    """Columns of a group; the last of a row may have fewer."""
    scale: Array
    bias: Array
    """f32 (groups, rows), as decoding has them."""
    dtype: DType
    """What both are stored as."""
    has_bias: bool
    tied: int = field(default=1, kw_only=True)
    """How many rows share their lines: those of one number modulo rows / tied. Scale and bias repeat them."""

    def near(self, scale: Array, bias: Array) -> tuple[Array, Array]:
        """The nearest that can be stored."""
        return _as(scale, self.dtype), _as(bias, self.dtype) if self.has_bias else bias

    def some(self, groups: slice) -> Lines:
        """Some of the groups, in the same memory: who moves them moves these."""
        part = copy(self)
        part.scale, part.bias = self.scale[groups], self.bias[groups]
        return part

    @staticmethod
    def joined(pieces: Sequence[Lines]) -> Lines:
        """Of groups one after the other in the same rows."""
        return _concatenated(pieces, 0)

    @staticmethod
    def beside(pieces: Sequence[Lines]) -> Lines:
        """Of the same groups in rows one after the other; of tied rows, each of those that share lines in its place."""
        tied = pieces[0].tied
        if tied == 1:
            return _concatenated(pieces, 1)
        whole = copy(pieces[0])
        for name in ("scale", "bias"):
            parts = [getattr(piece, name) for piece in pieces]
            joined = np.concatenate([part.reshape(len(part), tied, -1) for part in parts], axis=2)
            setattr(whole, name, joined.reshape(len(joined), -1))
        return whole

    def over_tied(self, sums: Array) -> Array:
        """Sums of each row, (rows,), added up over all that share lines."""
        if self.tied == 1:
            return sums
        return np.tile(sums.reshape(self.tied, -1).sum(axis=0), self.tied)


@dataclass
class Zeros(Lines):
    """ŵ = scale · (level[code] − zero): the bias is −scale · zero, and the zero is what is stored."""

    zeros: DType | tuple[int, int] = field(kw_only=True)
    """The type of zeros; or the least and the greatest, of whole numbers."""

    def near(self, scale: Array, bias: Array) -> tuple[Array, Array]:
        scale = _as(scale, self.dtype)
        with np.errstate(all="ignore"):
            zero = np.where(scale != 0, -bias / scale, np.float32(0))
            zero = _as(zero, self.zeros) if isinstance(self.zeros, DType) else np.clip(np.rint(zero), *self.zeros)
            return scale, np.asarray(-scale * zero)


@dataclass
class Powers(Lines):
    """Scales are powers of two, and there is no bias."""

    least: int = field(kw_only=True)
    greatest: int = field(kw_only=True)
    """Of the exponents."""

    def near(self, scale: Array, bias: Array) -> tuple[Array, Array]:
        with np.errstate(all="ignore"):
            mantissa, exponent = np.frexp(np.where(scale > 0, scale, np.float32(0)))
            above = exponent + (mantissa > 0.75) - 1
            return np.ldexp(np.float32(1), np.clip(above, self.least, self.greatest)), bias


@dataclass
class Steps(Lines):
    """Scales are steps of a scale that a block of groups has in common, and so may biases be, downwards.

    scale = d · step, bias = −m · minimum: steps from −greatest − 1 or from 0 to greatest, minimums from 0 to greatest.
    """

    greatest: int
    d: Array
    """f32 (blocks, rows), as f16 holds it."""
    m: Array | None
    steps: Array
    """f32 (groups, rows)"""
    minimums: Array | None

    @property
    def least(self) -> int:
        return 0 if self.has_bias else -self.greatest - 1

    has_all_groups: bool = True
    """Of those that have d and m in common."""

    def some(self, groups: slice) -> Steps:
        part = copy(self)
        part.scale, part.bias, part.steps = self.scale[groups], self.bias[groups], self.steps[groups]
        part.minimums = None if self.minimums is None else self.minimums[groups]
        part.has_all_groups = len(part.scale) == len(self.scale)
        return part

    def near_shared(self, scale: Array) -> Array:
        """The nearest d or m that can be stored."""
        return _as(scale, self.dtype)

    def follow(self) -> None:
        """Scales and biases of what steps and minimums are now."""
        times = len(self.steps) // len(self.d)
        self.scale[...] = np.repeat(self.d, times, axis=0) * self.steps
        if self.m is not None and self.minimums is not None:
            self.bias[...] = -(np.repeat(self.m, times, axis=0) * self.minimums)


def _concatenated(pieces: Sequence[Lines], axis: int) -> Lines:
    whole = copy(pieces[0])
    for each in fields(whole):
        if each.name != "levels" and isinstance(getattr(whole, each.name), np.ndarray):
            setattr(whole, each.name, np.concatenate([getattr(piece, each.name) for piece in pieces], axis))
    return whole


def _as(values: Array, dtype: DType) -> Array:
    """Rounded to a stored type; to infinity where it leaves that, for the caller to refuse."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(astype(astype(values, dtype.numpy), DType.F32.numpy))
