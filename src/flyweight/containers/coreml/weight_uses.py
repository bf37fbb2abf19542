"""What a program does with its weights: the operations that have one as an operand, and their strides, dilations and groups."""

from __future__ import annotations

from collections.abc import Iterator

from flyweight.containers.container import Use
from flyweight.containers.coreml.program import CONST, CONSTEXPR, Program
from flyweight.containers.coreml.weights import find_weights
from flyweight.foundation.protobuf import Message

_MAX_BLOCK_DEPTH = 16


def weight_uses(program: Program) -> dict[str, list[Use]]:
    """By name of the weight as the program has it."""
    uses: dict[str, list[Use]] = {}
    of_output = {(o.scope, o.name): weight.name for weight in find_weights(program).weights for o in weight.operations}
    for scope, function in program.functions.items():
        for block in function.map(3).values():
            for kind, arguments, constants in _operations(block, {}, 0):
                for argument in arguments.values():
                    for binding in argument.all(1):
                        weight = of_output.get((scope, binding.text(1)))
                        if weight is not None:
                            uses.setdefault(weight, []).append(_use(kind, arguments, constants))
    return uses


def _operations(
    block: Message, constants: dict[str, tuple[int, ...]], depth: int
) -> Iterator[tuple[str, dict[str, Message], dict[str, tuple[int, ...]]]]:
    """Operations other than constants, their arguments, and the integers that are known so far by name."""
    for message in block.all(3):
        kind = message.text(1)
        if kind == CONST:
            for made in message.all(3):
                if (integers := _integers(message.map(5).get("val"))) is not None:
                    constants[made.text(1)] = integers
        elif not kind.startswith(CONSTEXPR):
            yield kind, message.map(2), constants
            if depth < _MAX_BLOCK_DEPTH:
                for inner in message.all(4):
                    yield from _operations(inner, constants, depth + 1)


def _integers(value: Message | None) -> tuple[int, ...] | None:
    """Integers that a value in the program is, few as strides are."""
    if value is None or len(value) > 256:
        return None
    immediate = value.one(3)
    tensor = immediate.one(1) if immediate is not None else None
    integers = tensor.one(2) if tensor is not None else None
    return tuple(integers.integers(1)) if integers is not None else None


def _use(kind: str, arguments: dict[str, Message], constants: dict[str, tuple[int, ...]]) -> Use:
    def numbers(key: str) -> tuple[int, ...]:
        if key not in arguments:
            return ()
        for binding in arguments[key].all(1):
            name = binding.text(1)
            return constants.get(name, ()) if name else _integers(binding.one(2)) or ()
        return ()

    return Use(kind, numbers("strides"), numbers("dilations"), (numbers("groups") or (1,))[0])
