"""Floats of 8 and 4 bits with scales.

    fp8           w = q · s, or q / s with `divide`; q is E4M3 (to ±448) or E5M2 (to ±57344), one s per block of rows × columns
    fp8_scalar    w = q · s; q is E4M3, one s per tensor, beside two numbers that mistral.rs stores with it
    mxfp4_split   w = q · 2^(s − 127); q is E2M1, one byte s per 32 columns; the blocks of ggml's mxfp4, in two arrays

Blocks of fp8 cover `rows` × `columns` of the flattened matrix (0: all of them): 0 × 0 is one scale per tensor, 1 × 0 one per
channel. docs/formats/floats.md has the layout.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flyweight import kernels
from flyweight.codecs import microscaled
from flyweight.codecs.casts import as_float, astype
from flyweight.codecs.codec import Array, Codec, Parts
from flyweight.codecs.lines import Lines
from flyweight.codecs.value_checks import FLOATS, require_f32, require_finite, require_integers, require_one_of
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import Layout, TensorSpec

_FORMATS = {"e4m3": DType.F8_E4M3, "e5m2": DType.F8_E5M2}
_TOP = {"e4m3": 448.0, "e5m2": 57344.0}


@dataclass(frozen=True)
class Fp8(Codec):
    format: str = "e4m3"
    rows: int = 1
    columns: int = 0
    scale: str = "f32"
    divide: bool = False

    name = "fp8"

    def __post_init__(self) -> None:
        require_one_of(self, format=_FORMATS, scale=FLOATS, divide=(True, False))
        require_integers(self, "rows", "columns", zero="all")

    def layout(self, spec: TensorSpec) -> Layout:
        require_f32(self, spec)
        down, across = self._blocks(spec)
        # One scale per row keeps the tensor's own axes, so that rows can be cut out of every part.
        shape = (*spec.shape[:-1], across) if self.rows == 1 else (down, across)
        return {"codes": TensorSpec(spec.shape, _FORMATS[self.format]), "scale": TensorSpec(shape, FLOATS[self.scale])}

    def _blocks(self, spec: TensorSpec) -> tuple[int, int]:
        """Blocks down and across."""
        return -(-spec.rows // (self.rows or max(spec.rows, 1))), -(-spec.columns // (self.columns or max(spec.columns, 1)))

    def _per_row(self, spec: TensorSpec, scale: Array) -> Array:
        """(rows, blocks across) float32."""
        wide = np.asarray(scale, np.float32).reshape(self._blocks(spec))
        return np.ascontiguousarray(np.repeat(wide, self.rows or max(spec.rows, 1), axis=0)[: spec.rows])

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        codes = np.ascontiguousarray(parts["codes"]).view(np.uint8).reshape(spec.rows, spec.columns)
        scale, span = self._per_row(spec, parts["scale"]), self.columns or max(spec.columns, 1)
        values = out.reshape(spec.rows, spec.columns)
        kernels.table_decode(codes, _TABLES[self.format], np.ones_like(scale) if self.divide else scale, span, values)
        if self.divide:
            with np.errstate(all="ignore"):
                values /= np.repeat(scale, min(span, spec.columns), axis=1)[:, : spec.columns]

    def product(self, spec: TensorSpec, parts: Parts) -> kernels.Matrix | None:
        if self.format != "e4m3" or self.columns or self.divide:
            return None
        return kernels.matrix("e4m3", codes=parts["codes"].view(np.uint8), scale=self._per_row(spec, parts["scale"]))

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        """The greatest magnitude of a block takes the greatest code; every other value the nearest."""
        layout = self.layout(spec)
        rows = as_float(array).reshape(spec.rows, spec.columns)
        scale = self._fit(spec, rows)
        codes = np.empty((spec.rows, spec.columns), np.uint8)
        span = self.columns or max(spec.columns, 1)
        kernels.fp8_codes(rows, self._per_row(spec, scale), span, self.divide, self.format == "e5m2", codes)
        return {
            "codes": codes.view(layout["codes"].dtype.numpy).reshape(spec.shape),
            "scale": scale.reshape(layout["scale"].shape),
        }

    def _fit(self, spec: TensorSpec, rows: Array) -> Array:
        """The stored number of each block, never one that reaches nothing: such a block is as good as zero."""
        down, across = self._blocks(spec)
        peaks = np.empty((spec.rows, across), np.float32)
        kernels.magnitudes(rows, self.columns or max(spec.columns, 1), peaks)
        require_finite(np.isfinite(peaks).all())
        peak = np.zeros((down, across))
        if rows.size:
            peak[...] = np.maximum.reduceat(peaks, np.arange(0, spec.rows, self.rows or spec.rows), axis=0)
        kind = FLOATS[self.scale].numpy
        with np.errstate(all="ignore"):
            exact = _TOP[self.format] / peak if self.divide else peak / _TOP[self.format]
            stored = np.where(peak > 0, exact, 1).astype(kind)
            wide_stored, top = stored.astype(np.float32), np.float32(_TOP[self.format])
            reach = top / wide_stored if self.divide else top * wide_stored
        if not np.isfinite(reach).all():
            raise UnsupportedError(f"the weights are too large for {self.scale} scales", code="E_RANGE", hint="use f32 scales")
        stored[reach == 0] = 1
        return stored

    def check_values(self, spec: TensorSpec, parts: Parts) -> str | None:
        complaint = super().check_values(spec, parts)
        if complaint is None and self.divide and (parts["scale"] == 0).any():
            return "part 'scale' divides by zero"
        return complaint


_TABLES = {
    name: np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float32).reshape(1, 256)
    for name, dtype in _FORMATS.items()
}


class Fp8Scalar(Codec):
    """`x_scale` and `quant_scale` are kept as they are found. Decoding uses neither."""

    name = "fp8_scalar"
    copies_if_whole = 3  # as read, as f32, and as codes

    def layout(self, spec: TensorSpec) -> Layout:
        require_f32(self, spec)
        number = TensorSpec((), DType.F32)
        return {"codes": TensorSpec(spec.shape, DType.F8_E4M3), "scale": number, "x_scale": number, "quant_scale": number}

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        shape = spec.rows, spec.columns
        codes = np.ascontiguousarray(parts["codes"]).view(np.uint8).reshape(shape)
        scale = np.full((spec.rows, 1), parts["scale"], np.float32)
        kernels.table_decode(codes, _TABLES["e4m3"], scale, spec.columns, out.reshape(shape))

    def product(self, spec: TensorSpec, parts: Parts) -> kernels.Matrix:
        scale = np.full((spec.rows, 1), parts["scale"], np.float32)
        return kernels.matrix("e4m3", codes=parts["codes"].view(np.uint8), scale=scale)

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        """The greatest magnitude of the tensor takes the greatest code; every other value the nearest."""
        rows, peak = as_float(array).reshape(spec.rows, spec.columns), self.peak(spec, array)
        top = np.float32(_TOP["e4m3"])
        with np.errstate(over="ignore", divide="ignore"):
            scale = peak / top
            if np.isinf(scale * top):
                raise UnsupportedError("the weights are too large for an f32 scale", code="E_RANGE")
            if np.isinf(np.float32(1) / scale):  # so small that they are as good as zero
                scale = np.float32(1)
        codes = np.empty(rows.shape, np.uint8)
        if rows.size:
            kernels.fp8_codes(rows, np.full((spec.rows, 1), scale), spec.columns, False, False, codes)
        return self.store(spec, codes, scale, np.float32(1) / scale)

    def peak(self, spec: TensorSpec, array: Array) -> np.float32:
        """The greatest magnitude, finite."""
        self.layout(spec)  # refuses what cannot be stored
        peaks = np.zeros((spec.rows, 1), np.float32)
        if spec.size:
            kernels.magnitudes(as_float(array).reshape(spec.rows, spec.columns), spec.columns, peaks)
        require_finite(np.isfinite(peaks).all())
        return np.float32(peaks.max(initial=0))

    def store(self, spec: TensorSpec, codes: Array, scale: np.float32, quant_scale: np.float32) -> Parts:
        """The parts for codes as bytes. mistral.rs gives activations the scale of the weights."""
        numbers = {"scale": scale, "x_scale": scale, "quant_scale": quant_scale}
        parts = {name: np.asarray(number, np.float32) for name, number in numbers.items()}
        return {"codes": codes.view(DType.F8_E4M3.numpy).reshape(spec.shape)} | parts


class Mxfp4Split(Codec):
    name = "mxfp4_split"
    has_lines = True

    def layout(self, spec: TensorSpec) -> Layout:
        if not spec.shape or spec.columns % 32 or spec.dtype is not DType.F32:
            raise UnsupportedError(f"{self.name} decodes to f32 rows of whole blocks of 32, not to {spec}", code="E_SPEC")
        return {
            "codes": TensorSpec((*spec.shape[:-1], spec.columns // 2), DType.U8),
            "scale": TensorSpec((*spec.shape[:-1], spec.columns // 32), DType.U8),
        }

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        pairs = parts["codes"].reshape(-1, 16)
        nibbles = np.stack([pairs & 0x0F, pairs >> 4], axis=2).reshape(-1, 32)
        blocks = np.empty((len(nibbles), 17), np.uint8)
        blocks[:, 0] = parts["scale"].reshape(-1)
        blocks[:, 1:] = nibbles[:, :16] | nibbles[:, 16:] << 4
        kernels.decode_mxfp4(blocks, out.reshape(-1, 32))

    def product(self, spec: TensorSpec, parts: Parts) -> kernels.Matrix:
        return kernels.matrix("e2m1", codes=parts["codes"], scale=parts["scale"])

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        self.layout(spec)
        values = astype(np.asarray(array), DType.F32.numpy).reshape(-1, 32)
        blocks = np.empty((len(values), 17), np.uint8)
        kernels.encode_mxfp4(values, blocks)
        parts = self._store(spec, blocks[:, 0], np.concatenate([blocks[:, 1:] & 0x0F, blocks[:, 1:] >> 4], axis=1))
        if (complaint := self.check_values(spec, parts)) is not None:
            raise UnsupportedError(f"the values cannot be stored as {self.name}: {complaint}", code="E_BLOCK_RANGE")
        return parts

    def _store(self, spec: TensorSpec, exponents: Array, codes: Array) -> Parts:
        """The parts for an exponent and 32 codes of each block."""
        parts = {"codes": codes[:, 0::2] | codes[:, 1::2] << 4, "scale": np.ascontiguousarray(exponents)}
        return {
            name: part.reshape(want.shape) for (name, want), part in zip(self.layout(spec).items(), parts.values(), strict=True)
        }

    def encode_weighted(self, spec: TensorSpec, array: Array, importance: Array | None) -> Parts:
        """As `encode`; importance chooses among the exponents around that one."""
        parts = self.encode(spec, array)
        if importance is None or not spec.size:
            return parts
        values = astype(np.asarray(array), DType.F32.numpy).reshape(-1, microscaled.BLOCK)
        return self._store(spec, *microscaled.searched(values, parts["scale"].reshape(-1, 1), importance, spec))

    def alone(self, spec: TensorSpec) -> int:
        return microscaled.BLOCK

    def lines(self, spec: TensorSpec, parts: Parts) -> Lines:
        return microscaled.lines_of(np.asarray(parts["scale"]), spec.rows)

    def from_lines(self, spec: TensorSpec, lines: Lines, codes: Array) -> Parts:
        return self._store(spec, *microscaled.stored(lines.scale, codes))

    def check_values(self, spec: TensorSpec, parts: Parts) -> str | None:
        return "a scale is 255, which means NaN" if (parts["scale"] == 0xFF).any() else None
