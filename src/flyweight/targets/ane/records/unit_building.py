"""Kernel units of compressed tensors: which parts of a codec go into which section.

    codec                             weights                       pal                  scale
    raw of f16                        f16 numbers
    blockwise(data=i8|u8)             bytes                                              a channel's, or the tensor's for all
    palette(bits=4|8)                 indices                       tables along axis 0  a table's, for each of its channels
    scaled(inner=palette)             as the palette                as the palette       a channel's, or the tensor's for all
    sparse(form=mask|stream) of f16   a channel's mask, its values

Axis 0 of a tensor is its output channels. Each begins on a byte, and the channels of an engine lie one after the other
(`channel_groups`). There is no section for offsets, so they must all be 0, and no known type number for indices of other
widths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from flyweight.codecs import codec_for, packing
from flyweight.codecs.casts import astype
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.tensor import CodecSpec, EncodedTensor
from flyweight.targets.ane.facts.kernel_format import ENTRY_BYTES, TYPE_NUMBERS
from flyweight.targets.ane.records.activation_record import RECORD_BYTES, ActivationRecord
from flyweight.targets.ane.records.channel_groups import ChannelTable, channel_table, channels_per_group
from flyweight.targets.ane.records.engine_numbers import Array
from flyweight.targets.ane.records.kernel_unit import Descriptor, Lut, Ocgs, Pal, Vector, Weights, placed

_F16 = DType.F16.numpy
_INDEX_TYPES = {4: "uint4", 8: "uint8"}
_TABLE_TYPES = {"f16": "fp16", "i8": "int8", "u8": "uint8"}
_PALETTE_FORMATS = {"int8": 1, "uint8": 2, "fp16": 4}
"""Kernel formats of the entries' types."""
_HINT = "store it as f16, int8 with a scale for each channel, a palette of 4 or 8 bits, or sparse f16"


@dataclass(frozen=True)
class StoredWeights:
    """A tensor in the engine's terms: the bytes of each output channel, and what they need."""

    element: str
    """The type of a weight, or of a palette's entry."""
    typeno: int
    bits: int
    channel_nbytes: Array
    """Bytes of each channel."""
    channel: Callable[[int], Array]
    """The bytes of one of them."""
    tables: Array | None = None
    """Of a palette: (tables, entries)."""
    scale: Array | None = None
    """(channels,) f16."""
    sparse: bool = False
    kernel_elements: int = 1
    """Width × height × depth of a convolution's kernel."""


def stored_weights(tensor: EncodedTensor) -> StoredWeights:
    """UnsupportedError for a codec or a shape that has no such form."""
    reader = _READERS.get(tensor.codec.name)
    if reader is None:
        raise UnsupportedError(f"the engine has no form for {tensor.codec}", code="E_FORM", hint=_HINT)
    if len(tensor.spec.shape) < 2 or not tensor.spec.size:
        raise UnsupportedError(f"{tensor.spec} is no matrix or kernel with output channels", code="E_FORM")
    codec = codec_for(tensor.codec)
    layout = codec.layout(tensor.spec)
    stored = {name: (part.shape, part.dtype) for name, part in tensor.parts.items()}
    if stored != {name: (part.shape, part.dtype.storage) for name, part in layout.items()}:
        raise MalformedError(f"the parts are not those of {tensor.codec} for {tensor.spec}", code="E_PART_SHAPE")
    weights = reader(EncodedTensor(tensor.spec, codec.spec, tensor.parts))
    return replace(weights, kernel_elements=prod(tensor.spec.shape[2:]))


def describe(
    stored: StoredWeights,
    engines: int,
    *,
    unit: int = 1,
    per_group: int | None = None,
    activation: bool = False,
    bias: bool = False,
) -> tuple[Descriptor, ChannelTable]:
    """The descriptor and the channel groups of weights; no weight is copied.

    Without `per_group`, a group has as many channels as the kernel's size lets it have.
    """
    groups, nbytes = channel_table(stored.channel_nbytes, engines, per_group or channels_per_group(stored.kernel_elements))
    channels = len(stored.channel_nbytes)
    half = Vector(TYPE_NUMBERS["fp16"], channels)
    descriptor = Descriptor(
        unit,
        Lut(TYPE_NUMBERS["lookup table"], 16, RECORD_BYTES) if activation else None,
        _pal(stored),
        Ocgs(engines, len(groups)),
        half if stored.scale is not None else None,
        half if bias else None,
        Weights(stored.typeno, stored.bits, nbytes),
    )
    return descriptor, groups


def unit_pieces(
    stored: StoredWeights, engines: int, *, unit: int = 1, per_group: int | None = None,
    activation: ActivationRecord | None = None, bias: Array | None = None,
) -> Iterator[bytes | memoryview]:  # fmt: skip
    """The bytes of the unit, a channel of weights at a time; `KernelUnit.read` is the inverse."""
    channels = len(stored.channel_nbytes)
    if bias is not None and bias.shape != (channels,):
        raise UnsupportedError(f"a bias has one number for each of {channels} channels, not {bias.shape}", code="E_FORM")
    descriptor, groups = describe(
        stored, engines, unit=unit, per_group=per_group, activation=activation is not None, bias=bias is not None
    )
    contents: dict[str, Iterable[bytes | memoryview]] = {"ocgs": [groups.to_bytes()], "weights": _weights(stored, groups)}
    if activation is not None:
        contents["lut"] = [activation.to_bytes()]
    for name, array in (("pal", stored.tables), ("scale", stored.scale), ("bias", bias)):
        if array is not None:
            contents[name] = [_bytes(array if name == "pal" else astype(array, _F16)).data]
    return placed(descriptor, contents)


def _weights(stored: StoredWeights, groups: ChannelTable) -> Iterator[bytes | memoryview]:
    """The channels in the order of engines and groups, with the gaps before an engine's first."""
    end = 0
    for engine, own in enumerate(groups.engines):
        for group, channels in zip(own, groups.channels_of(engine), strict=True):
            yield bytes(group.offset - end)
            yield from (stored.channel(channel).data for channel in channels)
            end = group.offset + int(stored.channel_nbytes[channels.start : channels.stop : channels.step].sum())


def _pal(stored: StoredWeights) -> Pal | None:
    if stored.tables is None:
        return None
    tables, entries = stored.tables.shape
    return Pal(_PALETTE_FORMATS[stored.element], stored.bits, tables, entries * ENTRY_BYTES[stored.element])


# Forms ---------------------------------------------------------------------------------------------


def _raw(tensor: EncodedTensor) -> StoredWeights:
    _require_f16(tensor)
    rows = _bytes(tensor.parts["data"]).reshape(tensor.spec.shape[0], -1)
    return StoredWeights("fp16", TYPE_NUMBERS["fp16"], 16, _sizes(rows), rows.__getitem__)


def _blockwise(tensor: EncodedTensor) -> StoredWeights:
    element = {"i8": "int8", "u8": "uint8"}.get(str(tensor.codec.params["data"]))
    if element is None:
        raise UnsupportedError(f"{tensor.codec}: the engine's affine weights are bytes", code="E_FORM", hint=_HINT)
    _require_no_offset(tensor)
    rows = _bytes(tensor.parts["codes"]).reshape(tensor.spec.shape[0], -1)
    scale = _scale_of_channels(tensor.parts["scale"], len(rows))
    return StoredWeights(element, TYPE_NUMBERS[element], 8, _sizes(rows), rows.__getitem__, scale=scale)


def _palette(tensor: EncodedTensor) -> StoredWeights:
    codec = tensor.codec
    bits, element = codec.integer("bits"), _TABLE_TYPES.get(str(codec.params["table"]))
    if bits not in _INDEX_TYPES or element is None or codec.integer("vector") != 1:
        raise UnsupportedError(
            f"{tensor.codec}: units hold palettes of 4 or 8 bits, of single f16, i8 or u8 entries",
            code="E_FORM",
            hint="how vectors of channels are dealt to engines is not known",
        )
    _require_no_offset(tensor)
    shape, channels = tensor.parts["tables"].shape, tensor.spec.shape[0]
    tables = tensor.parts["tables"].reshape(-1, shape[-2])
    if len(tables) != shape[0]:
        raise UnsupportedError(f"{tensor.codec}: tables of a unit belong to output channels", code="E_FORM")
    scale = None
    if "scale" in tensor.parts:
        stored = tensor.parts["scale"].reshape(-1)
        of_channel = np.arange(channels) // (codec.integer("group") or channels)
        scale = _scale_of_channels(stored[of_channel] if len(stored) > 1 else stored, channels)
    count = tensor.spec.size // channels
    indices = tensor.parts["indices"]

    def channel(number: int) -> Array:
        first, end = number * count * bits, (number + 1) * count * bits
        stream: Array = indices[first // 8 : -(-end // 8)]
        if first % 8 == 0 and end % 8 == 0:
            return stream
        skipped = first % 8 // bits
        codes = packing.unpack("little", stream[None], bits, skipped + count)[:, skipped:]
        packed: Array = packing.pack("little", np.ascontiguousarray(codes), bits)[0]
        return packed

    sizes = np.full(channels, packing.packed_width("little", bits, count))
    return StoredWeights(element, TYPE_NUMBERS[_INDEX_TYPES[bits]], bits, sizes, channel, tables, scale)


def _scaled(tensor: EncodedTensor) -> StoredWeights:
    parts = {name.removeprefix("inner."): part for name, part in tensor.parts.items() if name != "scale"}
    inner = tensor.codec.params["inner"]
    if not isinstance(inner, CodecSpec) or _READERS.get(inner.name) is not _palette or "scale" in parts:
        raise UnsupportedError(f"{tensor.codec}: units hold one scale, of a palette or of bytes", code="E_FORM", hint=_HINT)
    stored = _palette(EncodedTensor(tensor.spec, inner, parts))
    return replace(stored, scale=_scale_of_channels(tensor.parts["scale"], tensor.spec.shape[0]))


def _sparse(tensor: EncodedTensor) -> StoredWeights:
    _require_f16(tensor)
    if "mask" not in tensor.parts or "inner.data" not in tensor.parts:
        raise UnsupportedError(
            f"{tensor.codec}: sparse weights of a unit are a mask and plain f16 values", code="E_FORM", hint=_HINT
        )
    channels = tensor.spec.shape[0]
    count = tensor.spec.size // channels
    is_stream = tensor.parts["mask"].ndim == 1
    columns = tensor.spec.size if is_stream else tensor.spec.columns
    mask = tensor.parts["mask"].reshape(-1, -(-columns // 8))
    values = tensor.parts["inner.data"]

    def bits(number: int) -> Array:
        """Whether each weight of a channel is kept."""
        if is_stream:
            first = number * count
            some = np.unpackbits(mask[0, first // 8 : -(-(first + count) // 8)], bitorder="little")
            return some[first % 8 : first % 8 + count]
        rows = mask[number * (count // columns) : (number + 1) * (count // columns)]
        return np.unpackbits(rows, axis=1, bitorder="little")[:, :columns].reshape(-1)

    kept = np.array([np.count_nonzero(bits(number)) for number in range(channels)], np.int64)
    ends = np.cumsum(kept)
    if ends[-1] != len(values):
        raise MalformedError(f"the mask keeps {ends[-1]} values, but {len(values)} are stored", code="E_PART_VALUES")

    def channel(number: int) -> Array:
        own = values[ends[number] - kept[number] : ends[number]]
        return np.concatenate([np.packbits(bits(number), bitorder="little"), _bytes(own)])

    sizes = -(-count // 8) + _F16.itemsize * kept
    return StoredWeights("fp16", TYPE_NUMBERS["fp16"], 16, sizes, channel, sparse=True)


_READERS: Mapping[str, Callable[[EncodedTensor], StoredWeights]] = {
    "raw": _raw,
    "blockwise": _blockwise,
    "palette": _palette,
    "scaled": _scaled,
    "sparse": _sparse,
}


def _require_f16(tensor: EncodedTensor) -> None:
    if tensor.spec.dtype is not DType.F16:
        raise UnsupportedError(
            f"dense weights of the engine are f16, not {tensor.spec.dtype}",
            code="E_FORM",
            hint="convert with --dtype f16 first",
        )


def _require_no_offset(tensor: EncodedTensor) -> None:
    if "offset" in tensor.parts and np.any(tensor.parts["offset"]):
        raise UnsupportedError(f"{tensor.codec}: there is no section for offsets", code="E_FORM", hint=_HINT)


def _scale_of_channels(scale: Array, channels: int) -> Array:
    if scale.dtype != _F16 or scale.size not in (1, channels) or scale.size != scale.shape[0]:
        raise UnsupportedError(
            "scales of a unit are f16, one for each output channel or one for all", code="E_FORM", hint=_HINT
        )
    return np.broadcast_to(scale.reshape(-1), (channels,))


def _sizes(rows: Array) -> Array:
    return np.full(len(rows), rows.shape[1])


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
