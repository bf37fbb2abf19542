"""Operations, values and types of programs, made. `program` has their layout.

Bytes of weights are holes: arrays of ten elements and more are blobs of the weight file, smaller ones lie in the program, as
coremltools has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from flyweight.containers.coreml.element_types import TYPES, ElementType, nbytes
from flyweight.containers.coreml.program import CONST, MODEL_PATH
from flyweight.containers.coreml.weight_file import WeightFileLayout
from flyweight.foundation.cursor import SCALARS
from flyweight.foundation.manifest import Extent
from flyweight.foundation.protobuf import Hole, Pieces, field, map_field, number_field, packed_field

_FEWEST_IN_BLOBS = 10
_FILE = MODEL_PATH + "weights/weight.bin"


def tensor_type(kind: ElementType, shape: Iterable[int]) -> Pieces:
    dims = [field(3, field(1, number_field(1, length))) for length in shape]
    rank = number_field(2, len(dims)) if dims else b""
    return field(1, number_field(1, kind.mil), rank, *dims)


def _immediate(kind: ElementType, shape: Iterable[int], number: int, content: Pieces) -> Pieces:
    return Pieces((field(2, tensor_type(kind, shape)), field(3, field(1, field(number, content)))))


def text_value(text: str) -> Pieces:
    return _immediate(TYPES["string"], (), 4, field(1, text))


def integer_value(value: int) -> Pieces:
    return _immediate(TYPES["i32"], (), 2, packed_field(1, (value,)))


def zero_value(kind: ElementType) -> Pieces:
    """One zero of a type of a byte."""
    return _immediate(kind, (), 7, field(1, b"\0"))


def dims_value(shape: tuple[int, ...]) -> Pieces:
    """A shape, as operations of iOS 16 have it."""
    return _immediate(TYPES["u32"], (len(shape),), 7, field(1, b"".join(map(SCALARS["u32"].pack, shape))))


class WeightsOfProgram:
    """Places arrays: in the weight file, or in holes of the program. Extents of the former are in `extents`."""

    def __init__(self, file: str, names: Iterable[str] = ()) -> None:
        self.layout = WeightFileLayout(file)
        self._names = set(names)
        self.extents: dict[tuple[str, str], Extent] = {}
        self.in_program: dict[tuple[str, str], int] = {}
        """The arrays that are holes, and their bytes."""
        self.shared: set[str] = set()
        """Tensors that the program has in several places: they are blobs, whatever their size."""
        self._offsets: dict[tuple[str, str], int] = {}

    def unused(self, name: str) -> str:
        """A name for a new output: this one, with a number behind it where the program has one of that name."""
        unused, number = name, 1
        while unused in self._names:
            number += 1
            unused = f"{name}_{number}"
        self._names.add(unused)
        return unused

    def value(self, kind: ElementType, shape: tuple[int, ...], key: tuple[str, str]) -> Pieces:
        """A value whose bytes are those of `key`: a tensor and its part."""
        count = prod(shape)
        if count >= _FEWEST_IN_BLOBS or key[0] in self.shared:
            return self.blob(kind, shape, key)
        self.in_program[key] = nbytes(kind, count)
        number = 1 if kind.label == "f32" else 7
        return _immediate(kind, shape, number, field(1, Hole(key, nbytes(kind, count))))

    def blob(self, kind: ElementType, shape: tuple[int, ...], key: tuple[str, str]) -> Pieces:
        """The same, in the weight file whatever its size."""
        if key not in self._offsets:
            self._offsets[key], self.extents[key] = self.layout.add(kind, prod(shape))
        return Pieces((field(2, tensor_type(kind, shape)), field(5, field(1, _FILE), number_field(2, self._offsets[key]))))


def operation(
    kind: str,
    outputs: Mapping[str, Pieces],
    *,
    inputs: Mapping[str, str | Pieces] | None = None,
    attributes: Mapping[str, Pieces] | None = None,
    name: str = "",
) -> Pieces:
    """An operation as a field of its block. An input is the name of an output, or a value."""
    bound = {
        key: field(1, field(1, given)) if isinstance(given, str) else field(1, field(2, given))
        for key, given in (inputs or {}).items()
    }
    attributes = {**(attributes or {}), "name": text_value(name or next(iter(outputs)))}
    return field(
        3,
        field(1, kind),
        *(map_field(2, key, argument) for key, argument in bound.items()),
        *(field(3, field(1, made), field(2, typed)) for made, typed in outputs.items()),
        *(map_field(5, key, value) for key, value in attributes.items()),
    )


def constant(name: str, kind: ElementType, shape: tuple[int, ...], value: Pieces) -> Pieces:
    return operation(CONST, {name: tensor_type(kind, shape)}, attributes={"val": value})
