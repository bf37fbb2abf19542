"""A program with other operations in the place of those that made its weights; all else is copied byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flyweight.containers.coreml import constexpr_writing
from flyweight.containers.coreml.element_types import TYPES, ElementType
from flyweight.containers.coreml.program import MODEL, PROGRAM, WEIGHTS, Operation, Program, typed
from flyweight.containers.coreml.program_writing import WeightsOfProgram
from flyweight.containers.coreml.weights import ProgramWeights, find_weights
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.manifest import Entry
from flyweight.foundation.protobuf import BYTES, Field, Message, Pieces, field
from flyweight.foundation.tensor import RAW
from flyweight.sources import MemoryBundle

_Change = Callable[[Message, Field], list[Pieces]]
"""What takes the place of a field."""


def rewritten(model: bytes, entries: Mapping[str, Entry]) -> tuple[Pieces, WeightsOfProgram]:
    """The program `model` with these weights, and where they go."""
    program = Program(MemoryBundle({MODEL: model}), MODEL)
    found = find_weights(program)
    names = {weight.name for weight in found.weights}
    for name in names ^ entries.keys():
        missing = "a weight of the program is missing" if name in names else "the program of the package has no such weight"
        raise UnsupportedError(missing, code="E_PROGRAM", tensor=name, hint="convert the whole package, with the names it has")
    return _Rewriter(program, found, entries).run()


class _Rewriter:
    def __init__(self, program: Program, found: ProgramWeights, entries: Mapping[str, Entry]) -> None:
        self.program, self.entries = program, entries
        self.weights = WeightsOfProgram(WEIGHTS, program.names(without=found.inner))
        self.dropped = found.inner
        self.roots: dict[int, tuple[str, Operation]] = {}
        for weight in found.weights:
            self.roots |= {operation.message.start: (weight.name, operation) for operation in weight.operations}
            if len(weight.operations) > 1:
                self.weights.shared.add(weight.name)

    def run(self) -> tuple[Pieces, WeightsOfProgram]:
        return self._copy(self.program.message, {PROGRAM: self._program}), self.weights

    def _copy(self, message: Message, changes: Mapping[int, _Change]) -> Pieces:
        """A message with the fields of these numbers changed."""
        items: list[bytes | Pieces] = []
        begin = message.start
        for item in message:
            if item.number in changes and item.kind == BYTES:
                items += message.data[begin : item.begin], *changes[item.number](message.sub(item), item)
                begin = item.end
        items.append(message.data[begin : message.end])
        return Pieces(items)

    def _program(self, message: Message, item: Field) -> list[Pieces]:
        return [field(item.number, self._copy(message, {2: self._function}))]

    def _function(self, entry: Message, item: Field) -> list[Pieces]:
        scope = entry.text(1)
        opset = (entry.one(2) or Message(b"")).text(2)

        def block(message: Message, item: Field) -> list[Pieces]:
            return [field(item.number, self._copy(message, {2: lambda m, i: [field(i.number, self._block(m, scope, opset))]}))]

        def function(message: Message, item: Field) -> list[Pieces]:
            return [field(item.number, self._copy(message, {3: block}))]

        return [field(item.number, self._copy(entry, {2: function}))]

    def _block(self, block: Message, scope: str, opset: str) -> Pieces:
        def operation(message: Message, item: Field) -> list[Pieces]:
            if message.start in self.roots:
                return self._made(*self.roots[message.start], opset)
            if message.start in self.dropped:
                return []
            return [field(item.number, self._copy(message, {4: inner}))]

        def inner(message: Message, item: Field) -> list[Pieces]:
            return [field(item.number, self._block(message, scope, opset))]

        return self._copy(block, {3: operation})

    def _made(self, name: str, operation: Operation, opset: str) -> list[Pieces]:
        entry = self.entries[name]
        known = typed(operation.outputs[0][1])
        made = constexpr_writing.value_type(entry), entry.spec.shape
        generation = constexpr_writing.generation(opset)
        weight = constexpr_writing.Weight(entry, operation.name, generation, self.weights)
        if entry.codec == RAW and made == (TYPES["f16"], entry.spec.shape) and known == (TYPES["f32"], entry.spec.shape):
            return constexpr_writing.write_cast(weight)
        if known != made:
            raise UnsupportedError(
                f"the program wants {_shown(known)}, and this would be {_shown(made)}", code="E_PROGRAM_TYPE", tensor=name,
                hint="give --dtype, or a recipe, with the element type that the program has",
            )  # fmt: skip
        return constexpr_writing.write(weight)


def _shown(known: tuple[ElementType, tuple[int, ...]] | None) -> str:
    return f"{known[0].label}{list(known[1])}" if known else "what has no fixed shape"
