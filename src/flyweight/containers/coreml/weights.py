"""The weights of a program: which operations make them, and what they are called.

A weight is a constant in a weight file, or the last of `constexpr` operations that feed each other. It is called as
its output is. What several functions share is one weight; two weights of one name in different functions get the function's
name before their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from flyweight.containers.coreml.constexprs import MAX_DEPTH, Form, Reader
from flyweight.containers.coreml.program import CONSTEXPR, Operation, Program
from flyweight.foundation.cursor import check_name
from flyweight.foundation.errors import MalformedError
from flyweight.foundation.protobuf import Message


@dataclass(frozen=True)
class Weight:
    name: str
    operations: list[Operation]
    """The last operation of each place where the program has it."""


Producers = dict[tuple[str, str], Operation]


@dataclass(frozen=True)
class ProgramWeights:
    weights: list[Weight]
    producers: Producers
    """Constants and `constexpr` operations by function and output."""
    inner: frozenset[int]
    """Where operations begin whose results only other `constexpr` operations use."""


def find_weights(program: Program) -> ProgramWeights:
    """Nothing of the weight files is read."""
    operations = list(program.holding_weights())
    producers: Producers = {}
    for operation in operations:
        for name, _ in operation.outputs:
            if producers.setdefault((operation.scope, name), operation) is not operation:
                raise MalformedError(
                    "two operations of one function have this output",
                    code="E_DUPLICATE",
                    file=program.message.file,
                    tensor=name,
                )
    used = {
        (operation.scope, name)
        for operation in operations
        if operation.kind.startswith(CONSTEXPR)
        for key in operation.bindings
        for name in operation.names_of(key)
    }
    inner = [operation for operation in operations if any((operation.scope, name) in used for name, _ in operation.outputs)]
    if inner:
        elsewhere = _names_used_elsewhere(program)
        inner = [o for o in inner if all((o.scope, name) not in elsewhere for name, _ in o.outputs)]
    starts = frozenset(operation.message.start for operation in inner)
    _check_circles(operations, producers, starts)
    return ProgramWeights(_named(program, operations, producers, starts), producers, starts)


def _check_circles(operations: list[Operation], producers: Producers, inner: frozenset[int]) -> None:
    """Every result that only `constexpr` operations use goes into a weight, unless they use each other's."""
    left = {operation.message.start: operation for operation in operations if operation.message.start in inner}
    reached = [operation for operation in operations if operation.message.start not in inner]
    while reached:
        operation = reached.pop()
        for name in chain.from_iterable(map(operation.names_of, operation.bindings)):
            made = producers.get((operation.scope, name))
            if made is not None and left.pop(made.message.start, None) is not None:
                reached.append(made)
    for operation in left.values():
        raise operation.malformed("operations that use each other's results in a circle", "E_CIRCLE")


def _named(program: Program, operations: list[Operation], producers: Producers, inner: frozenset[int]) -> list[Weight]:
    contents = _Contents(producers)
    by_content: dict[int, Weight] = {}
    names: set[str] = set()
    for operation in operations:
        if operation.message.start in inner:
            continue
        content = contents.number(operation)
        if content not in by_content:
            name = check_name(operation.name, file=program.message.file)
            if name in names:
                name = f"{operation.scope}/{name}"
            if name in names:
                raise MalformedError("two weights have this name", code="E_DUPLICATE", file=program.message.file, tensor=name)
            names.add(name)
            by_content[content] = Weight(name, [])
        by_content[content].operations.append(operation)
    return list(by_content.values())


class _Contents:
    """Numbers for operations: the same for two that make the same of the same blobs, whatever they are called."""

    def __init__(self, producers: Producers) -> None:
        self.producers = producers
        self._numbers: dict[tuple[object, ...], int] = {}
        self._of: dict[int, int | None] = {}
        """By where an operation begins; None: being worked out, as happens in a circle, which reading refuses."""

    def number(self, operation: Operation, depth: int = 0) -> int:
        start = operation.message.start
        if (known := self._of.setdefault(start, None)) is not None:
            return known
        values: list[object] = [operation.kind]
        for key, message in sorted(operation.attributes.items()):
            if key != "name":
                values += key, message.raw
        for key, bindings in sorted(operation.bindings.items()):
            for binding in bindings:
                values += key, self._bound(operation, binding, depth)
        self._of[start] = number = self._numbers.setdefault(tuple(values), len(self._numbers))
        return number

    def _bound(self, operation: Operation, binding: Message, depth: int) -> object:
        made = self.producers.get((operation.scope, name := binding.text(1)))
        in_circle = made is not None and self._of.get(made.message.start, 0) is None
        if made is None or in_circle or depth > MAX_DEPTH:
            return binding.raw
        return self.number(made, depth + 1), [output for output, _ in made.outputs].index(name)


def _names_used_elsewhere(program: Program) -> set[tuple[str, str]]:
    """Names that operations other than `constexpr` ones, and results of blocks, refer to."""
    return {(scope, name) for scope, function in program.functions.items() for name in _used_in(function.map(3))}


def _used_in(blocks: Mapping[str, Message], depth: int = 0) -> Iterator[str]:
    for block in blocks.values():
        yield from block.texts(2)
        for message in block.all(3):
            if not message.text(1).startswith(CONSTEXPR):
                for argument in message.map(2).values():
                    yield from (name for binding in argument.all(1) if (name := binding.text(1)))
            if depth < 16:
                yield from _used_in({str(at): inner for at, inner in enumerate(message.all(4))}, depth + 1)


def read_forms(program: Program, found: ProgramWeights) -> dict[str, Form]:
    """How each weight is stored."""
    reader = Reader(program, found.producers)
    forms = {weight.name: reader.weight(weight.operations[0]) for weight in found.weights}
    program.check_overlaps()
    return forms
