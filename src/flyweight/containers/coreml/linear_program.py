"""A program made for tensors that have none: every matrix of floats is the weight of a `linear` operation.

    x_<columns>_<type>   an input of one row for each width and element type that a matrix has
    <name>_product       what that input, times a matrix, is; with its bias, where the model has one of that name

All other tensors are constants that nothing uses. Names of a program have only letters, digits and underscores, so those that
are others are in the metadata of the model, which is what a safetensors file would have, and:

    flyweight.names      {"<name in the program>": "<name>"}, as JSON
    flyweight.program    "linear": this is such a program, which is made again, not copied, when its weights are
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from flyweight.containers.coreml import constexpr_writing
from flyweight.containers.coreml.constexpr_writing import IOS18, value_type
from flyweight.containers.coreml.constexprs import FLOATS
from flyweight.containers.coreml.element_types import TYPES, ElementType
from flyweight.containers.coreml.program import PROGRAM, WEIGHTS
from flyweight.containers.coreml.program_writing import WeightsOfProgram, operation, tensor_type
from flyweight.containers.safetensors import header_metadata
from flyweight.foundation import strict_json
from flyweight.foundation.cursor import check_name
from flyweight.foundation.errors import MalformedError
from flyweight.foundation.manifest import Entry, Manifest
from flyweight.foundation.protobuf import Pieces, field, map_field, number_field, packed_field

NAMES, MADE_HERE = "flyweight.names", "flyweight.program"
SPECIFICATION, OPSET = 9, "CoreML8"
_BIAS, _WEIGHT = ".bias", ".weight"
_ARRAY_TYPES = {"f16": 65552, "f32": 65568}
_UNSAFE = re.compile("[^A-Za-z0-9_]")
_RESERVED = (
    "any", "bool", "program", "func", "tensor", "list", "dict", "tuple", "true", "false", "string", "bf16", "fp16", "fp32",
    "fp64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "state",
)  # fmt: skip
"""Words of the language that programs are written in; coremltools calls nothing so."""


def plain_name(name: str) -> str:
    """A tensor's name as one of a program: it begins with a letter."""
    return re.sub("^(?![A-Za-z])", "var_", _UNSAFE.sub("_", name))


def linear_program(manifest: Manifest) -> tuple[Pieces, WeightsOfProgram]:
    """The model, and where the weights go."""
    entries, weights = manifest.entries, WeightsOfProgram(WEIGHTS, _RESERVED)
    called = {name: weights.unused(plain_name(name)) for name in entries}
    rows: dict[tuple[int, str], str] = {}
    operations: list[Pieces] = []
    inputs: dict[str, tuple[ElementType, tuple[int, ...]]] = {}
    outputs: dict[str, tuple[ElementType, tuple[int, ...]]] = {}
    for name, entry in entries.items():
        operations += constexpr_writing.write(constexpr_writing.Weight(entry, called[name], IOS18, weights))
    for name, entry in entries.items():
        kind, shape = value_type(entry), entry.spec.shape
        if len(shape) != 2 or kind.label not in FLOATS or 0 in shape:
            continue
        if (shape[1], kind.label) not in rows:
            rows[shape[1], kind.label] = weights.unused(f"x_{shape[1]}_{kind.label}")
        row, product = rows[shape[1], kind.label], weights.unused(f"{called[name]}_product")
        inputs[row], outputs[product] = (kind, (1, shape[1])), (kind, (1, shape[0]))
        bound: dict[str, str | Pieces] = {"x": row, "weight": called[name]}
        if bias := _bias_of(name, entry, entries):
            bound["bias"] = called[bias]
        operations.append(operation("linear", {product: tensor_type(*outputs[product])}, inputs=bound))
    if not outputs:  # a function has a result
        kind = TYPES["f32"]
        x, same = weights.unused("x"), weights.unused("x_same")
        inputs[x] = outputs[same] = kind, (1,)
        operations.append(operation("identity", {same: tensor_type(kind, (1,))}, inputs={"x": x}))
    block = Pieces((*(field(2, name) for name in outputs), *operations))
    declared = [field(1, field(1, name), field(2, tensor_type(*known))) for name, known in inputs.items()]
    function = Pieces((*declared, field(2, OPSET), map_field(3, OPSET, block)))
    program = Pieces((number_field(1, 1), map_field(2, "main", function)))
    description = Pieces(
        (
            *(field(1, _feature(name, *known)) for name, known in inputs.items()),
            *(field(10, _feature(name, *known)) for name, known in outputs.items()),
            field(100, *(map_field(100, key, value) for key, value in _user_defined(manifest, called).items())),
        )
    )
    return Pieces((number_field(1, SPECIFICATION), field(2, description), field(PROGRAM, program))), weights


def _bias_of(name: str, entry: Entry, entries: Mapping[str, Entry]) -> str | None:
    bias = name.removesuffix(_WEIGHT) + _BIAS
    known = entries.get(bias) if name.endswith(_WEIGHT) else None
    fits = known is not None and known.spec.shape == entry.spec.shape[:1] and value_type(known) == value_type(entry)
    return bias if fits else None


def _feature(name: str, kind: ElementType, shape: tuple[int, ...]) -> Pieces:
    array = Pieces((packed_field(1, shape), number_field(2, _ARRAY_TYPES[kind.label])))
    return Pieces((field(1, name), field(3, field(5, array))))


def _user_defined(manifest: Manifest, called: Mapping[str, str]) -> dict[str, str]:
    other = {safe: name for name, safe in called.items() if safe != name}
    names = {NAMES: strict_json.dumps(other).decode()} if other else {}
    return {**header_metadata(manifest), **names, MADE_HERE: "linear"}


def names_in(user_defined: Mapping[str, str], file: str) -> Mapping[str, str]:
    """Names of tensors by those that the program has, where they differ."""
    if (text := user_defined.get(NAMES)) is None:
        return {}
    names = strict_json.loads(text.encode(), file=file)
    if not isinstance(names, dict) or not all(type(name) is str for name in names.values()):
        raise MalformedError(f"{NAMES} is not an object of names", code="E_NAMES", file=file)
    return {safe: check_name(name, file=file) for safe, name in names.items()}
