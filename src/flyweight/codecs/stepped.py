"""`stepped`: the arithmetic of the K types for rows of any length.

    w = (d · step) · q − m · minimum        q of `bits` bits; step and minimum of 6 bits for each group, d and m for each row

    codes    u8 (…, ⌈columns · bits / 8⌉)      a little-endian stream of codes for each row
    steps    u8 (…, ⌈12 · groups / 8⌉)         a stream of six-bit numbers: step, minimum, step, minimum …
    scale    f16 (…, 2)                        d and m

That takes bits + 12 / group + 32 / columns bits a weight. A group is `group` neighbours in a row; the last may be short. Values
are f32: d · step and m · minimum are rounded, then each operation above, in the order written.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flyweight import kernels
from flyweight.codecs import packing
from flyweight.codecs.affine import Affine
from flyweight.codecs.casts import astype
from flyweight.codecs.codec import Array, Codec, Filler, Parts
from flyweight.codecs.lines import Lines, Steps
from flyweight.codecs.value_checks import require_f32, require_integers
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.tensor import Layout, TensorSpec

GREATEST = 63
"""The greatest step, and minimum."""
_SMALLEST = np.float32(2.0**-24)


@dataclass(frozen=True)
class Stepped(Codec):
    bits: int = 4
    group: int = 32

    name = "stepped"
    rounds = True
    searched_by = "clip"
    has_lines = True

    def __post_init__(self) -> None:
        require_integers(self, "bits", least=2, most=8)
        require_integers(self, "group", least=1)

    def layout(self, spec: TensorSpec) -> Layout:
        require_f32(self, spec)
        rows, columns = spec.shape[:-1], spec.columns
        return {
            "codes": TensorSpec((*rows, -(-columns * self.bits // 8)), DType.U8),
            "steps": TensorSpec((*rows, -(-self._groups(spec) * 12 // 8)), DType.U8),
            "scale": TensorSpec((*rows, 2), DType.F16),
        }

    def _groups(self, spec: TensorSpec) -> int:
        return -(-spec.columns // self.group)

    @cached_property
    def affine(self) -> Affine:
        """The same grids with a scale and a bias of their own, which quantizers find."""
        return Affine(self.bits, self.group)

    # Values

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        lines = self.lines(spec, parts)
        scale, bias = (np.ascontiguousarray(part.T) for part in (lines.scale, lines.bias))
        codes = np.ascontiguousarray(parts["codes"]).reshape(spec.rows, -(-spec.columns * self.bits // 8))
        kernels.decode_scale_bias(codes, self.bits, scale, bias, self.group, out.reshape(spec.rows, spec.columns))

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        """The grid from the least value of each group, or zero, to the greatest, as it can be stored, and its nearest codes."""
        self.layout(spec)
        values = self.affine.finite_rows(spec, array)
        low, high = self.affine.extremes(values)
        low = np.minimum(low, np.float32(0))
        with np.errstate(over="ignore"):
            scale = (high - low) / np.float32(self.affine.levels)
        return self._nearest(spec, values, scale, low)

    def filled_by(self, filler: Filler, spec: TensorSpec, array: Array, inputs: InputStatistics | None = None) -> Parts:
        if filler.takes(self) or not filler.takes(self.affine):
            return super().filled_by(filler, spec, array, inputs)
        self.layout(spec)
        found = self.affine.lines(spec, filler.fill(array, self.affine, spec, inputs))
        return self._nearest(spec, self.affine.finite_rows(spec, array), found.scale.T, found.bias.T)

    def _nearest(self, spec: TensorSpec, values: Array, scale: Array, bias: Array) -> Parts:
        """Parts on the lines nearest to these, (rows, groups)."""
        lower = np.maximum(-bias, np.float32(0))
        (d, steps), (m, minimums) = (self._steps(part) for part in (scale, lower))
        self._require_range(d, m)
        codes = np.empty(values.shape, np.uint8)
        grid = np.ascontiguousarray(d * steps), np.ascontiguousarray(-(m * minimums))
        kernels.grid_codes(values, *grid, self.group, True, self.affine.levels, codes)
        return self._parts(spec, codes, d, m, steps, minimums)

    @staticmethod
    def _steps(wanted: Array) -> tuple[Array, Array]:
        """What all groups of a row have in common, (rows, 1), and how many of it each has."""
        top = wanted.max(axis=1, keepdims=True, initial=0)
        if not np.isfinite(top).all():
            raise _too_large()
        common = astype(astype(top / np.float32(GREATEST), DType.F16.numpy), DType.F32.numpy)
        common = np.where(top > 0, np.maximum(common, _SMALLEST), np.float32(0))
        steps = np.divide(wanted, common, out=np.zeros_like(wanted), where=common > 0)
        return common, np.clip(np.rint(steps), 0, GREATEST)

    def _parts(self, spec: TensorSpec, codes: Array, d: Array, m: Array, steps: Array, minimums: Array) -> Parts:
        self._require_range(d, m)
        scale = astype(np.concatenate([d, m], axis=1), DType.F16.numpy)
        pairs = np.stack([steps, minimums], axis=2).astype(np.uint8).reshape(spec.rows, 2 * self._groups(spec))
        made = {"codes": packing.pack("little", codes, self.bits), "steps": packing.pack("little", pairs, 6), "scale": scale}
        return {name: np.ascontiguousarray(made[name]).reshape(want.shape) for name, want in self.layout(spec).items()}

    @staticmethod
    def _require_range(d: Array, m: Array) -> None:
        """What f16 holds times 63 steps and 255 codes is far from the end of f32."""
        if not (np.isfinite(d).all() and np.isfinite(m).all()):
            raise _too_large()

    # The lines its codes lie on

    def alone(self, spec: TensorSpec) -> int:
        return spec.columns

    def lines(self, spec: TensorSpec, parts: Parts) -> Steps:
        groups = self._groups(spec)
        packed = np.ascontiguousarray(parts["steps"]).reshape(spec.rows, -(-groups * 12 // 8))
        pairs = packing.unpack("little", packed, 6, 2 * groups).reshape(spec.rows, groups, 2).astype(np.float32)
        both = astype(np.ascontiguousarray(parts["scale"]).reshape(spec.rows, 2), DType.F32.numpy)
        d, m, steps, minimums = (
            np.ascontiguousarray(part.T) for part in (both[:, :1], both[:, 1:], pairs[..., 0], pairs[..., 1])
        )
        levels = np.arange(self.affine.levels + 1, dtype=np.float32)[None]
        return Steps(levels, self.group, d * steps, -(m * minimums), DType.F16, True, GREATEST, d, m, steps, minimums)

    def from_lines(self, spec: TensorSpec, lines: Lines, codes: Array) -> Parts:
        assert isinstance(lines, Steps)
        assert lines.m is not None
        assert lines.minimums is not None
        return self._parts(spec, codes, lines.d.T, lines.m.T, lines.steps.T, lines.minimums.T)

    def check_values(self, spec: TensorSpec, parts: Parts) -> str | None:
        scale = parts["scale"]
        with np.errstate(invalid="ignore"):
            return None if np.isfinite(scale).all() else "part 'scale' has NaN or infinite values"

    # Products

    def product(self, spec: TensorSpec, parts: Parts) -> kernels.Matrix | None:
        if self.group % 32:
            return None
        codes, steps, scale = parts["codes"], parts["steps"], parts["scale"]
        return kernels.matrix(f"stepped{self.bits}", codes=codes, steps=steps, scale=scale, length=self.group)


def _too_large() -> UnsupportedError:
    return UnsupportedError("the weights are too large for f16 scales", code="E_RANGE", hint="choose the codec affine")
