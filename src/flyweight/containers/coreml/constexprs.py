"""The `constexpr` operations of Core ML as codecs, read.

    constexpr_affine_dequantize, constexpr_blockwise_shift_scale        blockwise; of another one's values: scaled
    constexpr_cast                                                      plain f16 of which f32 is made
    constexpr_lut_to_dense                                              palette; its table may be a blockwise_shift_scale
    constexpr_sparse_to_dense                                           sparse, of plain values
      of constexpr_lut_to_sparse                                        sparse_codes of a palette
      of constexpr_sparse_blockwise_shift_scale                         sparse_codes of blockwise

iOS 16 has the arrays as attributes, flat and with a shape beside them; iOS 18 as inputs that have the shapes of what they stand
for. `constexpr_writing` is the inverse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from flyweight.containers.coreml.element_types import ElementType
from flyweight.containers.coreml.program import CONST, Operation, Program, Value, typed
from flyweight.foundation.cursor import Cursor, check_shape
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.manifest import Entry, Extent
from flyweight.foundation.tensor import RAW, CodecSpec, Param, TensorSpec, code_stream

FLOATS = ("f16", "f32")
INTEGERS = ("i4", "u4", "i8", "u8")
CAST = "constexpr_cast"
MAX_DEPTH = 4
"""Of operations on each other's results."""


class Stored(NamedTuple):
    spec: TensorSpec
    extent: Extent


@dataclass(frozen=True)
class Form:
    """What an operation makes: its shape and element type, and how that is stored."""

    shape: tuple[int, ...]
    kind: ElementType
    codec: CodecSpec
    parts: Mapping[str, Stored]
    mask: Value | None = field(default=None, compare=False)
    """Of sparse values: where they belong."""

    def entry(self, name: str) -> Entry:
        dtype = self.kind.dtype if self.codec == RAW or self.is_plainly_sparse else DType.F32
        assert dtype is not None
        layout = {part: stored.spec for part, stored in self.parts.items()}
        return Entry(
            name,
            TensorSpec(self.shape, dtype),
            self.codec,
            layout,
            {part: stored.extent for part, stored in self.parts.items()},
        )

    @property
    def is_plainly_sparse(self) -> bool:
        return self.codec.params.get("inner") == RAW


def plain(value: Value, operation: Operation) -> Form:
    if value.kind.dtype is None or value.extent is None:
        raise operation.unsupported(f"a plain constant of {value.kind.label}")
    return Form(value.shape, value.kind, RAW, {"data": Stored(TensorSpec(value.shape, value.kind.dtype), value.extent)})


def as_stream(value: Value, operation: Operation) -> Stored:
    """An array of integers as the bit stream it is stored as."""
    if value.extent is None:
        raise operation.unsupported("an array of integers that is no run of bytes")
    return Stored(code_stream(value.shape, value.kind.bits), value.extent)


def as_bytes(value: Value, operation: Operation) -> Stored:
    """The same without rows."""
    stored = as_stream(value, operation)
    return stored._replace(spec=TensorSpec((stored.spec.nbytes,), DType.U8))


def as_array(value: Value, shape: tuple[int, ...], operation: Operation) -> Stored:
    if value.kind.dtype is None or value.extent is None:
        raise operation.unsupported(f"an array of {value.kind.label} where numbers are wanted")
    return Stored(TensorSpec(shape, value.kind.dtype), value.extent)


def block_text(shape: tuple[int, ...], blocks: tuple[int, ...]) -> str:
    """The parameter `block` for so many blocks along each axis: their lengths from the first axis on, 0 for a whole axis."""
    lengths = [0] if len(shape) == 1 else []  # a vector is one row
    lengths += [0 if count == 1 else length // count for length, count in zip(shape, blocks, strict=True)]
    while lengths and not lengths[-1]:
        lengths.pop()
    return "x".join(map(str, lengths))


class Reader:
    """Turns operations into forms. `producers` are the operations that others of a function may refer to, by output."""

    def __init__(self, program: Program, producers: Mapping[tuple[str, str], Operation]) -> None:
        self.program, self.producers = program, producers
        self._depth = 0

    def weight(self, operation: Operation) -> Form:
        """What an operation makes for others than `constexpr` ones."""
        made = self.read(operation)
        if made.mask is not None:
            raise operation.unsupported("its results are used other than to be made dense")
        return made

    def read(self, operation: Operation) -> Form:
        self._depth += 1
        try:
            made = self._read(operation)
            self._check_type(operation, made)
        except FlyweightError as error:
            raise error.at(tensor=operation.name or None) from None
        finally:
            self._depth -= 1
        return made

    def _read(self, operation: Operation) -> Form:
        if operation.kind == CONST:
            if (value := operation.value("val")) is None:
                raise operation.malformed("it has no value")
            return plain(self.program.value(value, operation), operation)
        if self._depth > MAX_DEPTH:
            raise operation.unsupported(f"operations on each other's results more than {MAX_DEPTH} deep")
        if operation.kind not in _FORMS:
            raise operation.unsupported("an operation that is not known")
        return _FORMS[operation.kind](self, operation)

    def _check_type(self, operation: Operation, made: Form) -> None:
        if made.mask is not None:  # its outputs are checked by what makes them dense
            return
        if len(operation.outputs) != 1:
            raise operation.malformed(f"it has {len(operation.outputs)} outputs")
        said = typed(operation.outputs[0][1])
        if operation.kind == CAST and said is not None:
            said = made.kind, said[1]  # what is stored is the weight
        if said != (made.kind, made.shape):
            shown = f"{said[0].label}{list(said[1])}" if said else "no tensor of a fixed shape"
            raise operation.malformed(f"its output is {shown}, but it makes {made.kind.label}{list(made.shape)}", "E_SHAPE")

    # Arguments

    def array(self, operation: Operation, key: str) -> Value:
        if (found := self.optional(operation, key)) is None:
            raise operation.malformed(f"there is no {key}")
        return found

    def optional(self, operation: Operation, key: str) -> Value | None:
        """An array that is an attribute, an input given as a value, or a constant that an input refers to."""
        if (value := operation.value(key)) is not None:
            return self.program.value(value, operation)
        if (made := self.maker(operation, key)) is None:
            return None
        if made.kind != CONST or (value := made.value("val")) is None:
            raise operation.unsupported(f"{key} is the result of {made.kind}")
        return self.program.value(value, made)

    def maker(self, operation: Operation, key: str) -> Operation | None:
        """The operation whose output an input is bound to."""
        names = operation.names_of(key)
        if not names:
            return None
        if (made := self.producers.get((operation.scope, names[0]))) is None or made is operation:
            raise operation.malformed(f"{key} is '{names[0]}', which is no constant of the program")
        return made

    def computed(self, operation: Operation, key: str) -> Operation | None:
        """What makes an argument that is not constant by itself."""
        made = self.maker(operation, key) if operation.value(key) is None else None
        return None if made is None or made.kind == CONST else made

    def integer(self, operation: Operation, key: str, default: int | None = None) -> int:
        value = self.optional(operation, key)
        if value is None and default is not None:
            return default
        if value is None or len(value.integers) != 1:
            raise operation.malformed(f"{key} is not one integer")
        return value.integers[0]

    def is_zero(self, value: Value) -> bool:
        """Whether a value that lies in the program is 0."""
        extent = value.extent
        in_program = extent is not None and extent.file == self.program.model
        return extent is not None and in_program and not any(self.program.message.data[extent.offset : extent.end])

    def dims(self, operation: Operation) -> tuple[int, ...]:
        """The attribute `shape` of iOS 16: u32 numbers as bytes."""
        value = self.array(operation, "shape")
        if value.extent is None or value.kind.label != "u32" or len(value.shape) != 1:
            raise operation.malformed("shape must be a row of u32")
        cursor = Cursor(self.program.bundle[value.extent.file], value.extent.offset, value.extent.end)
        return check_shape(cursor.scalars("u32", cursor.count(value.size, 4, 8, "dimensions")))


# Forms --------------------------------------------------------------------------------------------


def _cast(reader: Reader, operation: Operation) -> Form:
    value = reader.array(operation, "source_val")
    if value.kind.label != "f16":
        raise operation.unsupported(f"values of {value.kind.label}")
    return plain(value, operation)


def _affine_dequantize(reader: Reader, operation: Operation) -> Form:
    """A single zero point of 0 is none."""
    data, scale = reader.array(operation, "quantized_data"), reader.array(operation, "scale")
    zero: Value | None = reader.array(operation, "zero_point")
    axis, rank = reader.integer(operation, "axis", 0), len(data.shape)
    if not -rank <= axis < rank:
        raise operation.malformed(f"axis {axis} of {rank}")
    if scale.shape not in ((), data.shape[axis % rank : axis % rank + 1]):
        raise operation.malformed(f"scale{list(scale.shape)} along axis {axis} of data{list(data.shape)}", "E_SHAPE")
    if zero is not None and zero.shape == () and reader.is_zero(zero):
        zero = None
    blocks = tuple(length if at == axis % rank and scale.shape else 1 for at, length in enumerate(data.shape))
    return _blockwise(operation, data, scale, zero, blocks)


def _blockwise_shift_scale(reader: Reader, operation: Operation) -> Form:
    scale, offset = reader.array(operation, "scale"), reader.optional(operation, "offset")
    if (inner := reader.computed(operation, "data")) is not None:
        return _scaled(operation, reader.read(inner), scale, offset)
    data = reader.array(operation, "data")
    return _blockwise(operation, data, scale, offset, scale.shape)


def _blockwise(
    operation: Operation, data: Value, scale: Value, offset: Value | None, blocks: tuple[int, ...], stored: Stored | None = None
) -> Form:
    """`stored`: codes that are not those of `data`, of which only type and shape are taken."""
    _check_blocks(operation, data.shape, blocks, "scale")
    if scale.kind.label not in FLOATS or data.kind.label not in (*INTEGERS, *FLOATS):
        raise operation.unsupported(f"{data.kind.label} values with a scale of {scale.kind.label}")
    integers = data.kind.label in INTEGERS
    codes = stored or (as_stream(data, operation) if integers else as_array(data, data.shape, operation))
    parts = {"codes": codes, "scale": as_array(scale, blocks, operation)}
    params = {"data": data.kind.label, "block": block_text(data.shape, blocks), "scale": scale.kind.label, "offset": ""}
    if offset is not None:
        if offset.shape != scale.shape:
            raise operation.malformed(f"offset{list(offset.shape)} beside scale{list(scale.shape)}")
        params["offset"] = "data" if offset.kind == data.kind else offset.kind.label
        if params["offset"] not in ("data", *FLOATS):
            raise operation.unsupported(f"an offset of {offset.kind.label} for data of {data.kind.label}")
        narrow = offset.kind.bits < 8
        parts["offset"] = as_stream(offset, operation) if narrow else as_array(offset, blocks, operation)
    return Form(data.shape, scale.kind, CodecSpec("blockwise", params), parts)


def _scaled(operation: Operation, inner: Form, scale: Value, offset: Value | None) -> Form:
    if offset is not None:
        raise operation.unsupported("an offset of values that are compressed already")
    _check_blocks(operation, inner.shape, scale.shape, "scale")
    if scale.kind.label not in FLOATS or inner.kind.label not in ("i8", "u8", scale.kind.label):
        raise operation.unsupported(f"a scale of {scale.kind.label} for values of {inner.kind.label}")
    params: dict[str, Param] = {"block": block_text(inner.shape, scale.shape), "scale": scale.kind.label, "inner": inner.codec}
    return Form(
        inner.shape, scale.kind, CodecSpec("scaled", params),
        {"scale": as_array(scale, scale.shape, operation), **_within(inner.parts)},
    )  # fmt: skip


def _within(parts: Mapping[str, Stored]) -> dict[str, Stored]:
    return {f"inner.{name}": stored for name, stored in parts.items()}


def _check_blocks(operation: Operation, shape: tuple[int, ...], blocks: tuple[int, ...], what: str) -> None:
    if len(blocks) != len(shape) or any(count < 1 or length % count for length, count in zip(shape, blocks, strict=True)):
        raise operation.malformed(f"{what} of {list(blocks)} blocks for values of {list(shape)}", "E_SHAPE")


def _lut_to_dense(reader: Reader, operation: Operation) -> Form:
    indices = reader.array(operation, "indices")
    if operation.value("shape") is None:
        return _palette(reader, operation, indices, indices.shape)
    table, shape = reader.array(operation, "lut"), reader.dims(operation)
    bits = _bits_of(operation, table.shape[0] if len(table.shape) == 1 else 0)
    count = TensorSpec(shape, DType.U8).size
    if indices.kind.label != "u8" or indices.size != (count * bits + 7) // 8:
        raise operation.malformed(f"{indices.size} bytes of indices, of {bits} bits, for {count} values", "E_SIZE")
    parts = {"indices": as_bytes(indices, operation), "tables": as_array(table, (*(1 for _ in shape), 1 << bits, 1), operation)}
    return Form(shape, _table_kind(operation, table), _palette_codec(bits, table=table.kind.label), parts)


def _bits_of(operation: Operation, entries: int) -> int:
    bits = entries.bit_length() - 1
    if bits not in (1, 2, 3, 4, 6, 8) or entries != 1 << bits:
        raise operation.malformed(f"a table of {entries} values", "E_TABLE")
    return bits


def _table_kind(operation: Operation, table: Value) -> ElementType:
    if table.kind.label not in (*FLOATS, "i8", "u8"):
        raise operation.unsupported(f"a table of {table.kind.label}")
    return table.kind


def _palette_codec(bits: int, **params: int | str) -> CodecSpec:
    defaults: dict[str, int | str] = {"group": 0, "axis": 0, "vector": 1, "vector_axis": -1, "table": "f16"}
    return CodecSpec(
        "palette", {"bits": bits, **defaults, "scale": "", "offset": "", "scale_per": "table", "axes": 1, **params}
    )


def _palette(reader: Reader, operation: Operation, indices: Value, places: tuple[int, ...]) -> Form:
    """`places`: the shape of the indices, or of the mask that says where they belong."""
    scale, offset = None, None
    if (made := reader.computed(operation, "lut")) is not None:
        if made.kind != "constexpr_blockwise_shift_scale":
            raise operation.unsupported(f"a table that is the result of {made.kind}")
        table, scale, offset = reader.array(made, "data"), reader.array(made, "scale"), reader.optional(made, "offset")
    else:
        table = reader.array(operation, "lut")
    if len(table.shape) != len(places) + 2:
        raise operation.malformed(f"a table{list(table.shape)} for indices{list(places)}", "E_SHAPE")
    *tables, entries, vector = table.shape
    bits = _bits_of(operation, entries)
    if indices.kind.label != f"u{bits}":
        raise operation.malformed(f"indices of {indices.kind.label} into tables of {entries}", "E_TABLE")
    axis = reader.integer(operation, "vector_axis", 0) if vector > 1 else 0
    if not -len(places) <= axis < max(len(places), 1):
        raise operation.malformed(f"vectors along axis {axis} of {len(places)}")
    axis %= max(len(places), 1)
    shape = tuple(length * vector if at == axis else length for at, length in enumerate(places))
    _check_blocks(operation, places, tuple(tables), "a table")
    grouped = [at for at, count in enumerate(tables) if count > 1]
    if len(grouped) > 1:
        several = range(grouped[0], grouped[-1] + 1)
        if vector > 1 or any(tables[at] != places[at] for at in several):
            raise operation.unsupported("tables for blocks along more than one axis that are not of one place each")
    params: dict[str, int | str] = {"table": table.kind.label, "vector": vector, "vector_axis": axis if vector > 1 else -1}
    if grouped:
        params |= {"axis": grouped[0], "group": shape[grouped[0]] // tables[grouped[0]]}
        params["axes"] = grouped[-1] - grouped[0] + 1
    parts = {"indices": as_bytes(indices, operation), "tables": as_array(table, table.shape, operation)}
    if scale is None:
        return Form(shape, _table_kind(operation, table), _palette_codec(bits, **params), parts)
    if scale.shape == (*tables, 1, 1):
        params["scale_per"] = "table"
    elif scale.size == 1 and len(scale.shape) == len(table.shape):
        params["scale_per"] = "tensor"
    else:
        raise operation.unsupported(f"a scale{list(scale.shape)} for tables{list(table.shape)}")
    if scale.kind.label not in FLOATS or table.kind.label not in ("i8", "u8", scale.kind.label):
        raise operation.unsupported(f"a scale of {scale.kind.label} for tables of {table.kind.label}")
    params["scale"] = scale.kind.label
    parts["scale"] = as_array(scale, scale.shape, operation)
    if offset is not None:
        if offset.kind != table.kind or offset.shape != scale.shape or table.kind.label not in ("i8", "u8"):
            raise operation.unsupported(
                f"an offset{list(offset.shape)} of {offset.kind.label} for tables of {table.kind.label}"
            )
        params["offset"] = offset.kind.label
        parts["offset"] = as_array(offset, offset.shape, operation)
    return Form(shape, scale.kind, _palette_codec(bits, **params), parts)


def _sparse_to_dense(reader: Reader, operation: Operation) -> Form:
    if (values := reader.computed(operation, "nonzero_data")) is not None:
        return _sparse_codes(reader, operation, values)
    kept, mask = reader.array(operation, "nonzero_data"), reader.array(operation, "mask")
    if operation.value("shape") is not None:
        shape = reader.dims(operation)
        if mask.kind.label != "u8" or mask.size != (TensorSpec(shape, DType.U8).size + 7) // 8:
            raise operation.malformed(f"a mask of {mask.size} bytes for values of {list(shape)}", "E_SIZE")
    else:
        shape = mask.shape
        if mask.kind.label != "u1":
            raise operation.malformed(f"a mask of {mask.kind.label}")
    if len(kept.shape) != 1 or kept.kind.label not in (*FLOATS, "i8", "u8"):
        raise operation.unsupported(f"nonzero values of {kept.kind.label}{list(kept.shape)}")
    parts = {"mask": as_bytes(mask, operation), **_within({"data": as_array(kept, kept.shape, operation)})}
    codec = CodecSpec("sparse", {"form": "stream", "stored": kept.size, "index": "u32", "inner": RAW})
    return Form(shape, kept.kind, codec, parts)


def _sparse_codes(reader: Reader, operation: Operation, values: Operation) -> Form:
    """The dense form of what an operation keeps sparse."""
    made = reader.read(values)
    if made.mask is None:
        raise operation.unsupported(f"nonzero values that are the result of {values.kind}")
    same_mask = (
        operation.names_of("mask") == [values.outputs[0][0]]
        if reader.computed(operation, "mask") is values
        else reader.program.are_equal(reader.array(operation, "mask"), made.mask)
    )
    if not same_mask or operation.names_of("nonzero_data") != [values.outputs[-1][0]]:
        raise operation.unsupported("mask and values that do not belong together")
    return Form(made.shape, made.kind, made.codec, made.parts)


def _lut_to_sparse(reader: Reader, operation: Operation) -> Form:
    mask, kept = reader.array(operation, "indices_mask"), reader.array(operation, "indices_nonzero_data")
    return _around(operation, mask, kept, _palette(reader, operation, kept, mask.shape))


def _sparse_blockwise_shift_scale(reader: Reader, operation: Operation) -> Form:
    mask, kept = reader.array(operation, "data_mask"), reader.array(operation, "nonzero_data")
    scale, offset = reader.array(operation, "scale"), reader.optional(operation, "offset")
    dense = kept._replace(shape=mask.shape)
    is_stream = kept.kind.label in INTEGERS
    stored = as_stream(kept, operation) if is_stream else as_array(kept, kept.shape, operation)
    inner = _blockwise(operation, dense, scale, offset, scale.shape, stored)
    return _around(operation, mask, kept, inner)


def _around(operation: Operation, mask: Value, kept: Value, inner: Form) -> Form:
    if mask.kind.label != "u1" or len(kept.shape) != 1:
        raise operation.malformed(f"a mask of {mask.kind.label} for values of {list(kept.shape)}")
    codec = CodecSpec("sparse_codes", {"stored": kept.size, "inner": inner.codec})
    return Form(inner.shape, inner.kind, codec, {"mask": as_bytes(mask, operation), **_within(inner.parts)}, mask)


_FORMS: dict[str, Callable[[Reader, Operation], Form]] = {
    CAST: _cast,
    "constexpr_affine_dequantize": _affine_dequantize,
    "constexpr_blockwise_shift_scale": _blockwise_shift_scale,
    "constexpr_lut_to_dense": _lut_to_dense,
    "constexpr_sparse_to_dense": _sparse_to_dense,
    "constexpr_lut_to_sparse": _lut_to_sparse,
    "constexpr_sparse_blockwise_shift_scale": _sparse_blockwise_shift_scale,
}
