"""What the engine's compiler makes of a codec: the form of a weight in its terms.

A form is dense, affine (int8 with one scale for each output channel), blockwise, a palette, or sparse, and sparse may stand
before any of them. A codec that is none of these (ggml blocks, say) has no form here: such a weight has to be converted.

    codec                                   form
    raw                                     fp16
    blockwise(data=i8|u8, a channel)        int8 or uint8, with a zero point where there is an offset
    blockwise(data=i4|u4, a channel)        int4: no palette, so the guide knows no kernel format for it
    blockwise(smaller blocks)               blockwise
    palette                                 a palette of 1 to 8 bits, of so many codebooks, of vectors
    scaled(inner=palette)                   the same with scales
    sparse(inner), sparse_codes(inner)      a mask, and the values or codes of the inner form where it is set
    fp8(format=e4m3)                        e4m3
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from flyweight.codecs import codec_for, known
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.tensor import CodecSpec, Layout, TensorSpec
from flyweight.targets.ane.facts.fact import Fact, Profile, unknown
from flyweight.targets.ane.facts.kernel_format import ENTRY_BYTES, palette_format_of, scalar_format_of

BITS = {"fp16": 16, "int8": 8, "uint8": 8, "int4": 4, "uint4": 4, "e4m3": 8}
_ELEMENTS = {"i8": "int8", "u8": "uint8", "i4": "int4", "u4": "uint4"}


@dataclass(frozen=True, slots=True)
class EngineForm:
    weights: int
    channels: int
    """Output channels."""
    element: str
    """The type of the weights, or of the entries of a palette: fp16, int8, uint8, int4, uint4, e4m3."""
    bits: int
    """Of a stored weight or index."""
    tables: int = 0
    """Codebooks; 0: no palette."""
    vector: int = 1
    """Weights that one index names."""
    along_channels: bool = True
    """Whether vectors, and groups that share a codebook, run along output channels."""
    scales: int = 0
    is_blockwise: bool = False
    """Whether scales are neither one for all nor one for each output channel."""
    zero_points: bool = False
    stored: int | None = None
    """Weights that a mask keeps; None: there is no mask."""

    @property
    def is_palette(self) -> bool:
        return self.tables > 0

    @property
    def is_sparse(self) -> bool:
        return self.stored is not None

    @property
    def is_dense(self) -> bool:
        return self.element == "fp16" and not (self.is_palette or self.is_sparse or self.scales)

    @property
    def is_affine(self) -> bool:
        return not self.is_palette and self.element in _ELEMENTS.values()

    @property
    def density(self) -> float | None:
        """The share of weights that a mask keeps."""
        return None if self.stored is None else self.stored / max(self.weights, 1)

    @property
    def lut_bytes(self) -> int:
        """Of one codebook."""
        return (ENTRY_BYTES[self.element] << self.bits) * self.vector if self.is_palette else 0

    def kernel_format(self, profile: Profile) -> Fact[int]:
        if self.is_palette:
            return palette_format_of(self.bits, self.element, profile)
        if self.element == "uint4":
            return unknown("the enum has int4 only").named("kernel format of uint4")
        return scalar_format_of(self.element, profile)

    def __str__(self) -> str:
        if self.is_palette:
            tables = f", {self.tables} codebooks" if self.tables > 1 else ""
            vectors = f", vectors of {self.vector}" if self.vector > 1 else ""
            name = f"{self.bits}-bit palette of {self.element}{tables}{vectors}"
            name += " with scales" if self.scales else ""
            name += " and zero points" if self.zero_points else ""
        else:
            blocks = "blockwise " if self.is_blockwise else ""
            points = " with zero points" if self.zero_points else ""
            name = f"{blocks}{self.element}{points}"
        return name if self.density is None else f"sparse {name}, {self.density:.0%} kept"


def dense_form(weights: int) -> EngineForm:
    """What is left of a weight that folds."""
    return EngineForm(weights, 1, "fp16", 16)


def is_engine_codec(codec: CodecSpec) -> bool:
    """Whether tensors in this codec can have a form of the engine."""
    return known(codec) and bool(_READERS.get(codec.name))


def engine_form(spec: TensorSpec, codec: CodecSpec, channel_axis: int = 0) -> EngineForm | None:
    """The form of a tensor of this shape in this codec; None where the engine has none."""
    if not is_engine_codec(codec) or not spec.shape or not spec.size:
        return None
    try:
        complete = codec_for(codec)
        layout = complete.layout(TensorSpec(spec.shape, complete.decoded_dtype(spec.dtype)))
        return _READERS[codec.name](_Stored(spec, complete.spec, layout, channel_axis % len(spec.shape)))
    except FlyweightError:
        return None


@dataclass(frozen=True, slots=True)
class _Stored:
    spec: TensorSpec
    codec: CodecSpec
    layout: Layout
    channel_axis: int

    @property
    def channels(self) -> int:
        return self.spec.shape[self.channel_axis]

    def runs_along_channels(self, blocks: tuple[int, ...]) -> bool:
        """Whether only the output channels are cut into blocks, given how many there are along each axis."""
        return all(count == 1 for axis, count in enumerate(blocks) if axis != self.channel_axis)

    def is_blockwise(self, blocks: tuple[int, ...]) -> bool:
        return not self.runs_along_channels(blocks) or blocks[self.channel_axis] not in (1, self.channels)

    @property
    def inner(self) -> _Stored:
        """The tensor as if the inner codec stored it whole."""
        codec = self.codec.params["inner"]
        assert isinstance(codec, CodecSpec)
        complete = codec_for(codec)
        layout = complete.layout(TensorSpec(self.spec.shape, complete.decoded_dtype(self.spec.dtype)))
        return _Stored(self.spec, complete.spec, layout, self.channel_axis)

    def text(self, key: str) -> str:
        return str(self.codec.params[key])

    def inner_form(self) -> EngineForm | None:
        inner = self.inner
        reader = _READERS.get(inner.codec.name)
        return reader(inner) if reader else None


def _raw(tensor: _Stored) -> EngineForm | None:
    """f32 and bf16 are rounded to fp16 by the compiler."""
    if tensor.spec.dtype.kind != "f":
        return None
    return EngineForm(tensor.spec.size, tensor.channels, "fp16", 16)


def _blockwise(tensor: _Stored) -> EngineForm | None:
    element = _ELEMENTS.get(tensor.text("data"))
    if element is None:
        return None
    scale = tensor.layout["scale"]
    return EngineForm(
        tensor.spec.size,
        tensor.channels,
        element,
        BITS[element],
        scales=scale.size,
        is_blockwise=tensor.is_blockwise(scale.shape),
        zero_points="offset" in tensor.layout,
    )


def _palette(tensor: _Stored) -> EngineForm | None:
    """A scale for each codebook is part of its entries."""
    codec, tables = tensor.codec, tensor.layout["tables"]
    vector, vector_axis = codec.integer("vector"), codec.integer("vector_axis") % len(tensor.spec.shape)
    return EngineForm(
        tensor.spec.size,
        tensor.channels,
        _ELEMENTS.get(tensor.text("table"), "fp16"),
        codec.integer("bits"),
        tables=tables.size // ((1 << codec.integer("bits")) * vector),
        vector=vector,
        along_channels=tensor.runs_along_channels(tables.shape[:-2]) and (vector == 1 or vector_axis == tensor.channel_axis),
        scales=tensor.layout["scale"].size if "scale" in tensor.layout else 0,
        zero_points="offset" in tensor.layout,
    )


def _scaled(tensor: _Stored) -> EngineForm | None:
    inner = tensor.inner_form()
    scale = tensor.layout["scale"]
    return inner and replace(inner, scales=scale.size, is_blockwise=tensor.is_blockwise(scale.shape))


def _sparse(tensor: _Stored) -> EngineForm | None:
    inner = tensor.inner_form()
    return inner and replace(inner, stored=tensor.codec.integer("stored"))


def _fp8(tensor: _Stored) -> EngineForm | None:
    """E5M2 is a format of transfers, not of weights."""
    if tensor.text("format") != "e4m3":
        return None
    scale = tensor.layout["scale"]
    blockwise = scale.size > 1 and (len(scale.shape) != len(tensor.spec.shape) or tensor.is_blockwise(scale.shape))
    return EngineForm(tensor.spec.size, tensor.channels, "e4m3", 8, scales=scale.size, is_blockwise=blockwise)


_READERS: dict[str, Callable[[_Stored], EngineForm | None]] = {
    "raw": _raw,
    "blockwise": _blockwise,
    "palette": _palette,
    "scaled": _scaled,
    "sparse": _sparse,
    "sparse_codes": _sparse,
    "fp8": _fp8,
}
