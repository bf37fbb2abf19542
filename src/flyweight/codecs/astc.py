"""`astc`: a matrix as an ASTC LDR texture, which texture hardware decodes by itself.

    w = zero + scale · t        t = the red of a texel, UNORM16, / 65535; each operation rounded to f32

Parts: `blocks`, u8, the bitstream as hardware takes it, 16 bytes for width × height texels, row after row of blocks; `pair`,
one entry of a SQUIZD scale table as four u32: id (u64), scale, zero (f32). Decoding is ours and needs nothing; encoding is a
search, which the package astc-encoder-py does. docs/formats/astc.md has the rules, what they cost and what they are for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from flyweight import kernels
from flyweight.codecs.codec import Array, Codec, Parts
from flyweight.codecs.value_checks import require_f32, require_finite, require_integers
from flyweight.foundation.astc_footprints import FOOTPRINTS
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.tensor import Layout, TensorSpec

_BLOCK = 16  # bytes
_EFFORT = 60.0  # the encoder's "medium": up to 1.7 dB more than "fast" in 2 to 15 times the time (docs/formats/astc.md)
_RUN = 1 << 16  # texels decoded at a time where values come in runs
_STRIP = 1 << 18  # texels encoded at a time: the encoder wants four f32 of each


@dataclass(frozen=True)
class Astc(Codec):
    width: int = 4
    height: int = 4
    id: int = 0

    name = "astc"
    per_tensor = frozenset({"id"})
    decodes_any_bytes = False
    copies_if_whole = 4

    def __post_init__(self) -> None:
        if type(self.width) is not int or type(self.height) is not int or (self.width, self.height) not in FOOTPRINTS:
            legal = ", ".join(f"{width}×{height}" for width, height in FOOTPRINTS)
            raise ValueError(f"width and height must be one of {legal}, not {self.width!r}×{self.height!r}")
        require_integers(self, "id", most=2**63 - 1)

    def layout(self, spec: TensorSpec) -> Layout:
        require_f32(self, spec)
        down, across = -(-spec.rows // self.height), -(-spec.columns // self.width)
        return {"blocks": TensorSpec((down, across * _BLOCK), DType.U8), "pair": TensorSpec((4,), DType.U32)}

    # Values

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        """MalformedError for an illegal block: hardware would show magenta there, which is no weight."""
        self._decode_rows(parts, 0, out.reshape(spec.rows, spec.columns))

    def decoded_runs(self, spec: TensorSpec, parts: Parts) -> Iterator[Array]:
        step = self._whole_rows(spec, _RUN)
        for first in range(0, spec.rows if spec.size else 0, step):
            values = np.empty((min(step, spec.rows - first), spec.columns), np.float32)
            self._decode_rows(parts, first, values)
            yield values.reshape(-1)

    def _decode_rows(self, parts: Parts, first: int, values: Array) -> None:
        """Into `values`, from row `first`, a multiple of the block's height."""
        identity, scale, zero = _unpaired(parts["pair"])
        if identity != self.id:
            raise MalformedError(f"the scale belongs to tensor {identity:#x}, not to {self.id:#x}", code="E_PART_VALUES")
        down, across = -(-len(values) // self.height), -(-values.shape[1] // self.width)
        above = first // self.height
        blocks = np.ascontiguousarray(parts["blocks"][above : above + down], np.uint8)
        illegal = np.empty((down, across), np.uint8)
        kernels.astc_decode(blocks, self.width, self.height, float(scale), float(zero), values, illegal)
        if illegal.any():
            row, column = (int(place[0]) for place in illegal.nonzero())
            raise MalformedError(f"block {column} of row {above + row} is not a legal LDR block", code="E_ASTC_BLOCK")

    def _whole_rows(self, spec: TensorSpec, texels: int) -> int:
        """About as many rows as hold so many texels, in whole blocks."""
        return max(texels // max(spec.columns * self.height, 1), 1) * self.height

    def check_values(self, spec: TensorSpec, parts: Parts) -> str | None:
        _, scale, zero = _unpaired(parts["pair"])
        with np.errstate(over="ignore", invalid="ignore"):
            if not (np.isfinite(scale) and np.isfinite(zero) and np.isfinite(zero + scale)):
                return "part 'pair' has a scale or a zero that is NaN or infinite, or whose sum is"
        if scale < 0:
            return "part 'pair' has a negative scale"
        try:
            for _ in self.decoded_runs(spec, parts):
                pass
        except MalformedError as error:
            return error.message
        return None

    # Encoding

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        """Zero is the least value, scale the way to the greatest; the blocks are what the encoder finds for what is between."""
        layout = self.layout(spec)
        with np.errstate(over="ignore"):  # beyond f32 is infinite, and refused
            wide = np.asarray(array, np.float32).reshape(spec.rows, spec.columns)
            low, high = (wide.min(), wide.max()) if wide.size else (np.float32(0), np.float32(0))
            scale = high - low
        require_finite(np.isfinite([low, high]).all())
        if not np.isfinite(scale):
            raise UnsupportedError("the range of the weights is too large for an f32 scale", code="E_RANGE")
        blocks = np.empty(layout["blocks"].shape, np.uint8)
        if wide.size:
            self._compress(spec, wide, low, scale, blocks)
        return {"blocks": blocks, "pair": _paired(self.id, scale, low)}

    def _compress(self, spec: TensorSpec, wide: Array, low: np.float32, scale: np.float32, blocks: Array) -> None:
        """Strip by strip: no block depends on another."""
        encoder = _encoder()
        config = encoder.ASTCConfig(encoder.ASTCProfile.LDR, self.width, self.height, 1, _EFFORT)
        context, grey = encoder.ASTCContext(config), encoder.ASTCSwizzle.from_str("RRR1")
        step = self._whole_rows(spec, _STRIP)
        for first in range(0, spec.rows, step):
            strip = wide[first : first + step]
            texels = np.zeros((*strip.shape, 4), np.float32)
            if scale > 0:
                np.divide(strip - low, scale, out=texels[..., 0])
            image = encoder.ASTCImage(encoder.ASTCType.F32, spec.columns, len(strip), 1, texels.tobytes())
            compressed = np.frombuffer(context.compress(image, grey), np.uint8)
            blocks[first // self.height :][: -(-len(strip) // self.height)] = compressed.reshape(-1, blocks.shape[1])


def _paired(identity: int, scale: np.float32, zero: np.float32) -> Array:
    """[u64 id][f32 scale][f32 zero], little-endian. (4,) u32; −0 becomes 0."""
    pair = np.empty(4, "<u4")
    pair[:2].view("<u8")[0] = identity
    pair[2:].view("<f4")[:] = scale, zero + np.float32(0)
    return pair


def _unpaired(pair: Array) -> tuple[int, np.float32, np.float32]:
    whole = np.require(pair, "<u4", ["C", "A"])
    scale, zero = whole[2:].view("<f4")
    return int(whole[:2].view("<u8")[0]), scale, zero


def _encoder() -> Any:
    try:
        import astc_encoder
    except ModuleNotFoundError as error:
        if error.name != "astc_encoder":  # a fault of its own
            raise
        raise UnsupportedError(
            "encoding as astc needs the package 'astc-encoder-py'", code="E_EXTRA", hint="pip install 'flyweight[astc]'"
        ) from None
    return astc_encoder
