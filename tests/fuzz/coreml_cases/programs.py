"""Programs that lie: messages that are none, bombs, operations that go in a circle or share names, types that cannot be."""

from __future__ import annotations

from collections.abc import Iterable

from support.coreml_files import (
    F16,
    FILE,
    I8,
    SHAPE,
    Forms,
    blob_value,
    block,
    bytes_value,
    const,
    description,
    entry,
    function,
    halves,
    message,
    model,
    number,
    of_operations,
    operation,
    output,
    package,
    program,
    tensor_type,
    text_value,
    typed,
    used,
    varint,
)
from support.fuzz_cases import Case

__all__ = ["CASES", "of", "raw_model"]


ONE_SCALE = bytes_value(F16, (1, 1), halves(1))


def raw_model(raw: bytes, code: str = "E_PROTOBUF", exit_code: int = 3) -> Case:
    return Case(package(raw, Forms().file), code, is_directory=True, exit_code=exit_code)


def of(operations: Iterable[bytes], code: str = "E_PROGRAM", exit_code: int = 3, *, forms: Forms | None = None) -> Case:
    """A program of these operations, and the weight file they were made with."""
    return Case(of_operations(operations, (forms or Forms()).file), code, is_directory=True, exit_code=exit_code)


def in_program(raw: bytes, code: str = "E_PROTOBUF") -> Case:
    """Bytes as the program of a model."""
    return raw_model(number(1, 9) + message(502, raw), code)


def in_block(raw: bytes, code: str = "E_PROTOBUF") -> Case:
    """Bytes as the block of a function."""
    return in_program(entry(2, "main", message(2, "CoreML8") + entry(3, "CoreML8", raw)), code)


def value(raw: bytes, code: str = "E_PROGRAM", exit_code: int = 3) -> Case:
    """Bytes as the value of a constant that a blob of 64 f16 is there for."""
    forms = Forms()
    forms.blob(F16, SHAPE)
    return of([const("w", raw)], code, exit_code, forms=forms)


def shaped(*shape: int, code: str, kind: int = F16, exit_code: int = 3) -> Case:
    return value(blob_value(kind, shape, 64), code, exit_code)


def deep(levels: int) -> bytes:
    """Blocks in blocks."""
    raw = block([])
    for _ in range(levels):
        raw = message(3, message(1, "cond"), message(4, raw))
    return raw


def nested(field: int, levels: int) -> bytes:
    raw = b""
    for _ in range(levels):
        raw = message(field, raw)
    return raw


def chain(length: int) -> list[bytes]:
    """Operations each on the result of the one before."""
    forms = Forms()
    made = [
        forms.dense("blockwise_shift_scale", {"data": f"n{at + 1}", "scale": ONE_SCALE}, name=f"n{at}") for at in range(length)
    ]
    return [*made[::-1], used("n0")]


def circle(*names: str) -> list[bytes]:
    forms = Forms()
    following = [*names[1:], names[0]]
    return [
        forms.dense("blockwise_shift_scale", {"data": after, "scale": ONE_SCALE}, name=name)
        for name, after in zip(names, following, strict=True)
    ]


BLOB = blob_value(F16, SHAPE, 64)
AT_64, AT_NONE = message(5, message(1, FILE), number(2, 64)), message(5, message(1, FILE))
ELEVEN = b"\x80" * 10 + b"\x01"
_PLAIN = Forms()
PLAIN = _PLAIN.plain()


def plain(*more: bytes, code: str, exit_code: int = 3) -> Case:
    """A sound constant, and more."""
    return of([*PLAIN, *more], code, exit_code, forms=_PLAIN)


_MESSAGES: dict[str, Case] = {
    "number of eleven bytes": raw_model(b"\x08" + ELEVEN),
    "tag of eleven bytes": raw_model(ELEVEN + b"\0"),
    "length of eleven bytes": raw_model(b"\x12" + ELEVEN),
    "number cut short": raw_model(b"\x08\x80", "E_TRUNCATED"),
    "tag cut short": raw_model(b"\x80", "E_TRUNCATED"),
    "field number 0": raw_model(b"\x02\x00"),
    "group": raw_model(b"\x0b\x0c"),
    "end of a group": raw_model(b"\x0c"),
    "field of kind 6": raw_model(b"\x0e"),
    "field of kind 7": raw_model(b"\x0f"),
    "length beyond the file": raw_model(b"\x12\x7f", "E_TRUNCATED"),
    "length of 2^64 - 1": raw_model(b"\x12" + varint(2**64 - 1), "E_TRUNCATED"),
    "eight bytes that are four": raw_model(b"\x09" + bytes(4), "E_TRUNCATED"),
    "length beyond the message around it": in_program(b"\x12\x05\x0a\x0a", "E_TRUNCATED"),
    "program that is a number": raw_model(number(1, 9) + number(502, 1)),
    "program that is there twice": raw_model(number(1, 9) + message(502, program({})) * 2),
    "version that is a text": raw_model(message(1, "9") + message(502, program({}))),
    "version that is there twice": raw_model(number(1, 9) * 2 + message(502, program({}))),
    "description that is there twice": raw_model(model({}) + message(2, description())),
    "function that is there twice": in_program(entry(2, "main", function([])) * 2),
    "function of no name that is there twice": in_program(message(2) * 2),
    "function called in bytes that are no text": in_program(message(2, message(1, b"\xff\xfe"))),
    "function whose name is a number": in_program(message(2, number(1, 1))),
    "opset that is there twice": in_program(entry(2, "main", message(2, "CoreML8") * 2)),
    "opset that is no text": in_program(entry(2, "main", message(2, b"\xff"))),
    "block that is there twice": in_program(entry(2, "main", entry(3, "CoreML8", b"") * 2)),
    "70,000 functions": in_program(b"".join(entry(2, f"{n:x}") for n in range(70_000)), "E_BUDGET"),
    "one function 1,000 times": in_program(entry(2, "main") * 1000),
    "metadata that is there twice": raw_model(number(1, 9) + message(2, message(100) * 2) + message(502)),
    "metadata that is no text": raw_model(number(1, 9) + message(2, message(100, entry(100, "k", b"\xff"))) + message(502)),
    "operations of no kind, a million": in_block(b"\x1a\x00" * 10**6, "E_PROGRAM"),
    "operation of no kind": in_block(operation("", output("w")), "E_PROGRAM"),
    "operation whose kind is a number": in_block(message(3, number(1, 5))),
    "operation whose kind is no text": in_block(message(3, message(1, b"\xc3\x28"))),
    "operation whose kind is there twice": in_block(message(3, message(1, "const"), message(1, "const"))),
    "operation that is a number": in_block(number(3, 1)),
    "600,000 decoding operations": in_block(message(3, message(1, "constexpr_")) * 600_000, "E_BUDGET"),
    "blocks 17 deep": in_block(deep(18), "E_DEPTH"),
    "blocks 1,000 deep": in_block(deep(1000), "E_DEPTH"),
    "blocks that are numbers": in_block(message(3, message(1, "cond"), number(4, 1))),
    "messages 10,000 deep": in_block(nested(3, 10_000)),
}  # fmt: skip

_ATTRIBUTES = b"".join(entry(5, f"{n:x}", b"") for n in range(70_000))
_BINDINGS = entry(2, "data", message(1) * 70_000)
_DIMS = message(3, message(1, number(1, 1)))


def constexpr(*fields: bytes, code: str, exit_code: int = 3) -> Case:
    """An operation of a known kind with these fields behind its output."""
    made = message(3, message(1, "v"), message(2, tensor_type(F16, SHAPE)))
    return plain(message(3, message(1, "constexpr_blockwise_shift_scale"), made, *fields), code=code, exit_code=exit_code)


_OPERATIONS: dict[str, Case] = {
    "two outputs of one name": plain(*PLAIN, code="E_DUPLICATE"),
    "output of no name": of([operation("const", output(""), attributes={"val": BLOB})], "E_NAME", forms=_PLAIN),
    "output of a name with NUL": of([const("a\0b", BLOB)], "E_NAME", forms=_PLAIN),
    "output of a name of 2,000 bytes": of([const("a" * 2000, BLOB)], "E_NAME", forms=_PLAIN),
    "constant of no outputs": of([operation("const", {}, attributes={"val": BLOB})], "E_NAME", forms=_PLAIN),
    "constant of two outputs": of(
        [operation("const", {**output("w"), **output("v")}, attributes={"val": BLOB})], forms=_PLAIN
    ),
    "constant of another type than its output": of([const("w", BLOB, I8)], "E_SHAPE", forms=_PLAIN),
    "constant of another shape than its output": of([const("w", BLOB, F16, (16, 4))], "E_SHAPE", forms=_PLAIN),
    "output without a type": of([message(3, message(1, "constexpr_x"), message(3, message(1, "w")))], "E_PROTOBUF"),
    "output whose type is there twice": of(
        [message(3, message(1, "constexpr_x"), message(3, message(1, "w"), message(2, tensor_type(F16, ())) * 2))], "E_PROTOBUF"
    ),
    "decoding operation that is not known": of([operation("constexpr_x", output("w"))], "E_CONSTEXPR", 4),
    "decoding operation of 70,000 attributes": constexpr(_ATTRIBUTES, code="E_BUDGET"),
    "decoding operation of 70,000 bindings": constexpr(_BINDINGS, code="E_BUDGET"),
    "decoding operation of 70,000 outputs": constexpr(
        *[message(3, message(1, "v"), message(2, tensor_type(F16, ())))] * 70_000, code="E_BUDGET"
    ),
    "decoding operation with an attribute twice": constexpr(entry(5, "name", text_value("w")) * 2, code="E_PROTOBUF"),
    "decoding operation with an input twice": constexpr(entry(2, "data", message(1, message(1, "x"))) * 2, code="E_PROTOBUF"),
    "decoding operation of two bindings": constexpr(
        entry(2, "data", message(1, message(1, "w")) * 2), entry(2, "scale", message(1, message(1, "w")) * 2),
        code="E_PROGRAM",
    ),
    "decoding operation of an attribute that is an input": constexpr(
        entry(2, "data", message(1, message(1, "w"))), entry(5, "data", BLOB), entry(5, "scale", BLOB), code="E_PROGRAM"
    ),
    "decoding operation of an input that is a name and a value": constexpr(
        entry(2, "data", message(1, message(1, "w"), message(2, BLOB))), entry(5, "scale", BLOB), code="E_PROGRAM"
    ),
    "ordinary operation with a value in the weight file": plain(
        operation("linear", output("z", F16, (1, 4)), {"x": "x", "weight": BLOB}), code="E_CONSTEXPR", exit_code=4
    ),
    "operations in a circle of two": of(circle("a", "b"), "E_CIRCLE"),
    "operations in a circle of three": of(circle("a", "b", "c"), "E_CIRCLE"),
    "operation on itself": of(circle("a"), "E_CIRCLE"),
    "operations in a circle that others use": of(circle("w", "v"), "E_CONSTEXPR", 4),
    "operations in a circle that a weight is made of": of(
        [*circle("u", "v"), Forms().dense("blockwise_shift_scale", {"data": "u", "scale": ONE_SCALE})],
        "E_CONSTEXPR", 4,
    ),
    "chain of 6 operations": of(chain(6), "E_CONSTEXPR", 4),
    "chain of 1,500 operations": of(chain(1500), "E_CONSTEXPR", 4),
    "weight of another function": Case(
        package(
            model(
                {
                    "main": function([const("v", BLOB)]),
                    "other": function([_PLAIN.dense("blockwise_shift_scale", {"data": "v", "scale": ONE_SCALE})]),
                }
            ),
            _PLAIN.file,
        ),
        "E_PROGRAM", is_directory=True,
    ),
}  # fmt: skip

_VALUES: dict[str, Case] = {
    "value that is nothing": value(typed(F16, SHAPE, message(5)), "E_WEIGHTS_MISSING"),
    "value in the program and in the weight file": value(typed(F16, SHAPE, AT_64, message(3))),
    "value without a type": value(AT_64, "E_PROTOBUF"),
    "value of type 0": shaped(*SHAPE, kind=0, code="E_DTYPE", exit_code=4),
    "value of type 99": shaped(*SHAPE, kind=99, code="E_DTYPE", exit_code=4),
    "value of type 2^64 - 1": shaped(*SHAPE, kind=2**64 - 1, code="E_DTYPE", exit_code=4),
    "value of texts": shaped(*SHAPE, kind=2, code="E_DTYPE"),
    "value of another type than its blob": shaped(*SHAPE, kind=13, code="E_DTYPE"),
    "value of 63 elements": shaped(63, code="E_SIZE"),
    "value of 65 elements": shaped(65, code="E_SIZE"),
    "value of no elements": shaped(0, code="E_SIZE"),
    "value of rank 9": shaped(*[1] * 9, code="E_RANK"),
    "value of a dimension of 2^62 twice": shaped(2**62, 2**62, code="E_SHAPE"),
    "value of a dimension of 2^64 - 1": shaped(2**64 - 1, code="E_SHAPE"),
    "value of a dimension of 2^62 and one of 0": shaped(2**62, 0, code="E_SHAPE"),
    "value of 3 GiB": shaped(3 << 29, code="E_SIZE"),
    "value of 70,000 dimensions": value(
        message(2, message(1, number(1, F16), _DIMS * 70_000)) + AT_64, "E_RANK"
    ),
    "value of an unknown dimension": value(message(2, message(1, number(1, F16), message(3, message(2)))) + AT_NONE),
    "value of a dimension that is nothing": value(message(2, message(1, number(1, F16), message(3))) + AT_NONE),
    "value of a list": value(message(2, message(2, message(1, tensor_type(F16, SHAPE)))) + AT_NONE),
    "value of lists 5,000 deep": value(message(2, nested(2, 5000)) + AT_NONE),
    "value whose blob is there twice": value(
        typed(F16, SHAPE, AT_64, AT_64), "E_PROTOBUF"
    ),
    "value whose blob is a number": value(typed(F16, SHAPE, number(5, 64)), "E_PROTOBUF"),
    "value whose file is no text": value(typed(F16, SHAPE, message(5, message(1, b"\xff"), number(2, 64))), "E_PROTOBUF"),
    "value whose offset is a text": value(typed(F16, SHAPE, message(5, message(1, FILE), message(2, "64"))), "E_PROTOBUF"),
    "value of no offset": value(typed(F16, SHAPE, AT_NONE), "E_ALIGNMENT"),
}  # fmt: skip

CASES: dict[str, Case] = {**_MESSAGES, **_OPERATIONS, **_VALUES}
