"""Programs of Core ML packages (MIL): a message of functions, blocks and operations, read where they lie.

    Model          1 version of the format · 2 description · 502 program (an older kind of model has another number)
    Program        2 functions, by name
    Function       1 inputs · 2 opset · 3 blocks, by opset
    Block          1 inputs · 2 outputs · 3 operations
    Operation      1 kind · 2 inputs, by name · 3 outputs · 4 blocks · 5 attributes, by name
    Argument       1 bindings: 1 the name of an output, or 2 a value
    Value          2 type · 3 immediate value · 5 blob: 1 file, 2 offset
    type           1 tensor: 1 element type · 2 rank · 3 dimensions: 1 constant: 1 size
    immediate      1 tensor: 1 floats · 2 ints · 4 strings · 7 bytes, each with 1 its values

Only operations that hold weights are looked into: constants in a weight file, and `constexpr` operations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from math import prod
from typing import NamedTuple

from flyweight.containers.coreml.element_types import OF_PROGRAM, ElementType, nbytes
from flyweight.containers.coreml.weight_file import WeightFile
from flyweight.foundation.cursor import Budget, check_shape
from flyweight.foundation.errors import LimitError, MalformedError, UnsupportedError
from flyweight.foundation.limits import MAX_RANK
from flyweight.foundation.manifest import Extent
from flyweight.foundation.protobuf import Message
from flyweight.sources import Bundle

FOLDER = "Data/com.apple.CoreML/"
MODEL = FOLDER + "model.mlmodel"
"""The program, as its file is called in every package written here."""
WEIGHTS = FOLDER + "weights/weight.bin"
MODEL_PATH = "@model_path/"
MAX_MODEL_BYTES = 1 << 30
PROGRAM = 502
CONST, CONSTEXPR = "const", "constexpr_"
_MAX_BLOCK_DEPTH = 16
_MAX_INTEGERS_NBYTES = 1024
"""Of a value that is looked at number by number: an axis, at most a shape."""
_MAX_SPARE_BYTES = 8
"""Behind an immediate value: coremltools has some behind one of three bits an element."""
_OPERATION_NBYTES = 4096
"""What an operation that holds weights takes in memory; rounded up."""
_KINDS = {
    200: "a pipeline classifier", 201: "a pipeline regressor", 202: "a pipeline", 300: "a GLM regressor",
    301: "a support vector regressor", 302: "a tree ensemble", 303: "a neural network regressor", 400: "a GLM classifier",
    401: "a support vector classifier", 402: "a tree ensemble", 403: "a neural network classifier", 500: "a neural network",
    501: "an item similarity recommender", 555: "a custom model", 556: "a linked model",
}  # fmt: skip
"""What a model that is no program may be, by the number of its field."""


class Value(NamedTuple):
    """An array: where its bytes are, or its numbers where the program has these as text does."""

    kind: ElementType
    shape: tuple[int, ...]
    extent: Extent | None = None
    integers: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return prod(self.shape)


class Operation:
    """An operation of a block. `scope` is the function it is in."""

    def __init__(self, message: Message, kind: str, scope: str) -> None:
        self.message, self.kind, self.scope = message, kind, scope

    @cached_property
    def outputs(self) -> list[tuple[str, Message]]:
        """Names and types."""
        return [(made.text(1), made.require(2, "type of an output")) for made in self.message.few(3)]

    @cached_property
    def attributes(self) -> Mapping[str, Message]:
        return self.message.map(5)

    @cached_property
    def bindings(self) -> Mapping[str, list[Message]]:
        return {key: argument.few(1) for key, argument in self.message.map(2).items()}

    @property
    def is_in_weight_file(self) -> bool:
        """Of a constant."""
        value = self.value("val")
        return value is not None and any(field.number == 5 for field in value)

    @property
    def name(self) -> str:
        return self.outputs[0][0] if self.outputs else ""

    def names_of(self, key: str) -> list[str]:
        """The outputs that an input is bound to; none where it is a value."""
        return [name for binding in self.bindings.get(key, ()) if (name := binding.text(1))]

    def value(self, key: str) -> Message | None:
        """An attribute, or an input that is given as a value."""
        bindings = self.bindings.get(key, [])
        if len(bindings) + (key in self.attributes) > 1:
            raise self.malformed(f"{key} is given more than once")
        if key in self.attributes:
            return self.attributes[key]
        value = bindings[0].one(2) if bindings else None
        if value is not None and bindings[0].text(1):
            raise self.malformed(f"{key} is both a name and a value")
        return value

    def malformed(self, problem: str, code: str = "E_PROGRAM") -> MalformedError:
        return MalformedError(
            f"{self.kind}: {problem}", code=code, file=self.message.file, offset=self.message.start, tensor=self.name or None
        )

    def unsupported(self, problem: str) -> UnsupportedError:
        return UnsupportedError(f"{self.kind}: {problem}", code="E_CONSTEXPR", file=self.message.file, tensor=self.name or None)


def _mentions_weight_file(message: Message) -> bool:
    """Whether an input or attribute of an operation, not of operations inside it, is a value in a weight file."""
    path = MODEL_PATH.encode()
    return message.data.find(path, message.start, message.end) >= 0 and any(
        field.number in (2, 5) and message.data.find(path, field.start, field.end) >= 0 for field in message
    )


def typed(message: Message) -> tuple[ElementType, tuple[int, ...]] | None:
    """Element type and shape of a tensor type; None of what is no tensor or has no fixed shape."""
    tensor = message.one(1)
    if tensor is None:
        return None
    code, dims = tensor.integer(1), list[int]()
    for dimension in tensor.all(3):
        constant = dimension.one(1)
        if constant is None:
            return None
        dims.append(constant.integer(1))
        if len(dims) > MAX_RANK:
            break  # refused below, whatever follows
    if code not in OF_PROGRAM:
        raise UnsupportedError(f"an element type of number {code}", code="E_DTYPE", file=message.file, offset=message.start)
    return OF_PROGRAM[code], check_shape(dims, file=message.file)


class Program:
    """The program of a package. `folder` is where its model file lies in the bundle."""

    def __init__(self, bundle: Bundle, model: str) -> None:
        self.bundle, self.model, self.folder = bundle, model, model.rpartition("/")[0]
        source = bundle[model]
        if source.size > MAX_MODEL_BYTES:
            raise LimitError(f"the program has {source.size} bytes; the limit is {MAX_MODEL_BYTES}", file=source.name)
        self.message = Message(bytes(source.read(0, source.size)), file=source.name)
        self.version = self.message.integer(1)
        self.weight_files: dict[str, WeightFile] = {}
        self.program = self._program()
        self.functions = self.program.map(2)
        self.opsets = {name: function.text(2) for name, function in self.functions.items()}

    def _program(self) -> Message:
        if (program := self.message.one(PROGRAM)) is not None:
            return program
        kind = next((_KINDS[field.number] for field in self.message if field.number in _KINDS), "no ML program")
        raise UnsupportedError(
            f"the package is {kind}; only ML programs have weights that can be read", code="E_COREML_KIND",
            file=self.message.file, hint="convert the model again with coremltools and convert_to='mlprogram'",
        )  # fmt: skip

    def holding_weights(self) -> Iterator[Operation]:
        """Every operation that may hold weights, of all functions, those in inner blocks included."""
        budget = Budget()
        for name, function in self.functions.items():
            for operation in self._operations(function, name, 0):
                budget.spend(_OPERATION_NBYTES, "so many operations", file=self.message.file)
                yield operation

    def _operations(self, function: Message, scope: str, depth: int) -> Iterator[Operation]:
        for block in function.map(3).values():
            yield from self._of_block(block, scope, depth)

    def _of_block(self, block: Message, scope: str, depth: int) -> Iterator[Operation]:
        if depth > _MAX_BLOCK_DEPTH:
            raise LimitError(f"blocks are nested more than {_MAX_BLOCK_DEPTH} deep", code="E_DEPTH", file=block.file)
        for message in block.all(3):
            operation = Operation(message, kind := message.text(1), scope)
            if kind.startswith(CONSTEXPR) or (kind == CONST and operation.is_in_weight_file):
                yield operation
            elif not kind:
                raise operation.malformed("an operation of no kind")
            elif kind != CONST and _mentions_weight_file(message):
                raise operation.unsupported("a value in a weight file that is no constant of its own")
            for inner in message.all(4):
                yield from self._of_block(inner, scope, depth + 1)

    def names(self, without: Collection[int]) -> Iterator[str]:
        """Of inputs and outputs, in all functions and blocks, but for operations that begin at `without`."""
        for function in self.functions.values():
            yield from (given.text(1) for given in function.all(1))
            for block in function.map(3).values():
                yield from self._names_in(block, without)

    def _names_in(self, block: Message, without: Collection[int]) -> Iterator[str]:
        yield from (given.text(1) for given in block.all(1))
        for message in block.all(3):
            if message.start not in without:
                yield from (made.text(1) for made in message.all(3))
            for inner in message.all(4):
                yield from self._names_in(inner, without)

    # Values

    def value(self, message: Message, operation: Operation) -> Value:
        """An array. MalformedError where its bytes are not what its type says."""
        known = typed(message.require(2, "type of a value"))
        if known is None:
            raise operation.malformed("a value has no type of fixed shape")
        kind, shape = known
        blob, immediate = message.one(5), message.one(3)
        if blob is not None and immediate is not None:
            raise operation.malformed("a value that is both in the program and in a weight file")
        if blob is not None:
            extent = self._blob(blob, kind, shape, operation)
        elif immediate is not None and (tensor := immediate.one(1)) is not None:
            if (integers := tensor.one(2)) is not None:
                if len(integers) > _MAX_INTEGERS_NBYTES:
                    raise operation.unsupported("so many integers in the program")
                return Value(kind, shape, integers=tuple(integers.integers(1)))
            extent = self._immediate(tensor, operation)
        else:
            raise operation.malformed("a value that is neither in the program nor in a weight file")
        wanted = nbytes(kind, prod(shape))
        if not wanted <= extent.nbytes <= wanted + (_MAX_SPARE_BYTES if blob is None else 0):
            raise operation.malformed(
                f"{kind.label}{list(shape)} takes {wanted} bytes, but there are {extent.nbytes}", "E_SIZE"
            )
        return Value(kind, shape, extent._replace(nbytes=wanted))

    def _blob(self, blob: Message, kind: ElementType, shape: tuple[int, ...], operation: Operation) -> Extent:
        path, offset = blob.text(1), blob.integer(2)
        file = f"{self.folder}/{path.removeprefix(MODEL_PATH)}".lstrip("/")
        if not path.startswith(MODEL_PATH) or file not in self.bundle or file == self.model:
            raise operation.malformed(f"the weight file '{path}' is not in the package", "E_WEIGHTS_MISSING")
        if file not in self.weight_files:
            self.weight_files[file] = WeightFile(self.bundle[file], file)
        stored = self.weight_files[file].blob(offset)
        if stored.kind.bits != kind.bits or (stored.kind != kind and {stored.kind.label, kind.label} != {"u8", "bool"}):
            raise operation.malformed(
                f"the program says {kind.label}, but the blob at {offset} is {stored.kind.label}", "E_DTYPE"
            )
        return stored.extent

    def _immediate(self, tensor: Message, operation: Operation) -> Extent:
        """Where the bytes of a value lie in the program itself."""
        if (raw := tensor.one(7)) is not None:  # 1: the bytes
            found = raw.one(1)
            return Extent(self.model, found.start, len(found)) if found is not None else Extent(self.model, 0, 0)
        if (floats := tensor.one(1)) is not None:
            runs = [field for field in floats if field.number == 1]
            if len(runs) == 1:  # packed, or a single number
                return Extent(self.model, runs[0].start, runs[0].end - runs[0].start)
            if not runs:
                return Extent(self.model, 0, 0)
        raise operation.unsupported("an immediate value that is no run of bytes")

    def are_equal(self, one: Value, other: Value) -> bool:
        """Whether two arrays are one blob, or the same bytes in the program itself."""
        if one == other:
            return True
        if (
            one[:2] != other[:2]
            or one.extent is None
            or other.extent is None
            or {one.extent.file, other.extent.file} != {self.model}
        ):
            return False
        data = self.message.data
        return data[one.extent.offset : one.extent.end] == data[other.extent.offset : other.extent.end]

    def check_overlaps(self) -> None:
        for file in self.weight_files.values():
            file.check_overlaps()
