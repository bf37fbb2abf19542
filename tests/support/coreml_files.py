"""Core ML packages written byte by byte, sharing no code with the package, so that tests can also write wrong ones.

Messages are bytes: `message(field, …)`, `number(field, value)`. A weight is a list of operations; every form of it is (4, 16),
which all forms can store. `WeightFile` collects blobs and says where the record of each is.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

MODEL = "Data/com.apple.CoreML/model.mlmodel"
WEIGHTS = "Data/com.apple.CoreML/weights/weight.bin"
MANIFEST = "Manifest.json"
FILE = "@model_path/weights/weight.bin"
SHAPE = (4, 16)
SENTINEL = 0xDEADBEEF

# Element types: their numbers in programs, in weight files, and their bits.
STRING, F16, F32, I8, I32, I64, I4 = 2, 10, 11, 21, 23, 24, 25
U8, U32, U4, U2, U1, U3 = 31, 33, 35, 36, 37, 39
BLOB_CODES = {F16: 1, F32: 2, U8: 3, I8: 4, 5: 5, I4: 8, U1: 9, U2: 10, U4: 11, U3: 12, I32: 14, U32: 15}
BITS = {F16: 16, F32: 32, U8: 8, I8: 8, I4: 4, U1: 1, U2: 2, U4: 4, U3: 3, I32: 32, U32: 32}


# Protocol buffers ---------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    value %= 1 << 64
    made = b""
    while value > 127:
        made, value = made + bytes([value % 128 + 128]), value // 128
    return made + bytes([value])


def number(field: int, value: int) -> bytes:
    return varint(8 * field) + varint(value)


def message(field: int, *content: bytes | str) -> bytes:
    """Text, bytes or a message as a field."""
    raw = b"".join(item.encode() if isinstance(item, str) else item for item in content)
    return varint(8 * field + 2) + varint(len(raw)) + raw


def entry(field: int, key: str, *content: bytes | str) -> bytes:
    """Of a map."""
    return message(field, message(1, key), message(2, *content))


Field = tuple[int, int, "bytes | int"]
"""Number, kind and content."""


def split(raw: bytes) -> list[Field] | None:
    """The fields of a message; None of what is none."""
    fields, at = list[Field](), 0
    while at < len(raw):
        tag, at = _number_at(raw, at)
        kind = tag & 7
        if kind == 0:
            value, at = _number_at(raw, at)
            fields.append((tag >> 3, kind, value))
            continue
        length = {1: 8, 5: 4}.get(kind, -1)
        if kind == 2:
            length, at = _number_at(raw, at)
        if length < 0:
            return None
        fields.append((tag >> 3, kind, raw[at : at + length]))
        at += length
    return fields if at == len(raw) and all(0 < field < 1 << 14 for field, _, _ in fields) else None


def _number_at(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(raw) and shift < 70:
        value |= (raw[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if raw[at - 1] < 128:
            return value, at
    return 0, len(raw) + 1


def joined(fields: Iterable[Field]) -> bytes:
    """The inverse of `split`."""
    parts = []
    for field, kind, content in fields:
        if isinstance(content, int):
            parts.append(number(field, content))
        else:
            parts.append(message(field, content) if kind == 2 else varint(8 * field + kind) + content)
    return b"".join(parts)


def without_weights(raw: bytes, path: Sequence[int] = (502, 2, 2, 3, 2, 3)) -> bytes:
    """A model, every operation that makes a weight left out; `path` are the fields that lead to operations."""
    kept: list[Field] = []
    for field, kind, content in split(raw) or ():
        if field == path[0] and isinstance(content, bytes):
            if len(path) == 1:
                if _makes_a_weight(content):
                    continue
                content = without_weights(content, (4, 3))
            else:
                content = without_weights(content, path[1:])
        kept.append((field, kind, content))
    return joined(kept)


def _makes_a_weight(raw: bytes) -> bool:
    kind = next((content for field, _, content in split(raw) or () if field == 1 and isinstance(content, bytes)), b"")
    return kind.startswith(b"constexpr_") or (kind == b"const" and b"@model_path/" in raw)


# The weight file ----------------------------------------------------------------------------------


def record(code: int, size: int, start: int, *, spare: int = 0, sentinel: int = SENTINEL) -> bytes:
    return struct.pack("<IIQQQ32x", sentinel, code, size, start, spare)


class WeightFile:
    """Blobs one behind the other, 64 bytes apart at least."""

    def __init__(self) -> None:
        self.raw = bytearray(64)
        self.count = 0

    def add(self, kind: int, count: int, raw: bytes) -> int:
        """The offset of the record."""
        self.raw += bytes(-len(self.raw) % 64)
        offset, bits = len(self.raw), count * BITS.get(kind, 16)
        self.raw += record(BLOB_CODES[kind], len(raw), offset + 64, spare=-bits % 8) + raw
        self.count += 1
        return offset

    def __bytes__(self) -> bytes:
        return struct.pack("<II", self.count, 2) + bytes(self.raw[8:])


# Values -------------------------------------------------------------------------------------------


def tensor_type(kind: int, shape: Iterable[int], *, rank: int | None = None) -> bytes:
    dims = [message(3, message(1, number(1, length) if length else b"")) for length in shape]
    return message(1, number(1, kind), number(2, len(dims) if rank is None else rank), *dims)


def typed(kind: int, shape: Iterable[int], *content: bytes) -> bytes:
    """A value of a type."""
    return message(2, tensor_type(kind, shape)) + b"".join(content)


def blob_value(kind: int, shape: Iterable[int], offset: int, file: str = FILE) -> bytes:
    return typed(kind, shape, message(5, message(1, file), number(2, offset)))


def bytes_value(kind: int, shape: Iterable[int], raw: bytes) -> bytes:
    return typed(kind, shape, message(3, message(1, message(7, message(1, raw)))))


def floats_value(shape: Iterable[int], *values: float) -> bytes:
    return typed(F32, shape, message(3, message(1, message(1, message(1, struct.pack(f"<{len(values)}f", *values))))))


def integer_value(*values: int, shape: Sequence[int] = ()) -> bytes:
    return typed(I32, shape, message(3, message(1, message(2, message(1, *map(varint, values))))))


def text_value(text: str) -> bytes:
    return typed(STRING, (), message(3, message(1, message(4, message(1, text)))))


def dims_value(*shape: int) -> bytes:
    return bytes_value(U32, (len(shape),), struct.pack(f"<{len(shape)}I", *shape))


# Operations ---------------------------------------------------------------------------------------

Outputs = Mapping[str, bytes]
Given = Mapping[str, "str | bytes"]
"""Inputs or attributes: the name of an output, or a value."""


def output(name: str, kind: int = F16, shape: Iterable[int] = SHAPE) -> dict[str, bytes]:
    return {name: tensor_type(kind, shape)}


def operation(
    kind: str, outputs: Outputs, inputs: Given | None = None, attributes: Given | None = None, *, blocks: Sequence[bytes] = ()
) -> bytes:
    """A field of a block."""
    bound = [
        entry(2, key, message(1, message(1 if isinstance(given, str) else 2, given))) for key, given in (inputs or {}).items()
    ]
    made = [message(3, message(1, name), message(2, known)) for name, known in outputs.items()]
    stated = {"name": text_value(next(iter(outputs), "x")), **(attributes or {})}
    inner = [message(4, block) for block in blocks]
    return message(3, message(1, kind), *bound, *made, *inner, *(entry(5, key, value) for key, value in stated.items()))


def const(name: str, value: bytes, kind: int = F16, shape: Iterable[int] = SHAPE) -> bytes:
    return operation("const", output(name, kind, shape), attributes={"val": value})


def used(weight: str, name: str = "y") -> bytes:
    return operation("linear", output(name, F16, (1, 4)), {"x": "x", "weight": weight})


def halves(count: int) -> bytes:
    """f16 numbers, none of them special."""
    return struct.pack(f"<{count}e", *(0.5 + at / 64 for at in range(count)))


def codes(count: int, bits: int = 8) -> bytes:
    """A stream of codes, spare bits zero."""
    stream = sum((5 * at % (1 << bits)) << bits * at for at in range(count))
    return stream.to_bytes((count * bits + 7) // 8, "little")


_SIZE = prod(SHAPE)
MASK = b"\x0f\x81" * 4
"""24 of 64."""
KEPT = 24


class Forms:
    """Every form of a weight called `w`. Arrays that a method does not take are sound ones."""

    def __init__(self) -> None:
        self.file = WeightFile()

    def blob(self, kind: int, shape: Sequence[int], raw: bytes | None = None) -> bytes:
        count = prod(shape)
        if raw is None:
            raw = halves(count) if kind == F16 else codes(count, BITS[kind])
        return blob_value(kind, shape, self.file.add(kind, count, raw))

    def plain(self, name: str = "w", kind: int = F16, shape: Sequence[int] = SHAPE) -> list[bytes]:
        return [const(name, self.blob(kind, shape), kind, shape)]

    def dense(self, kind: str, arguments: Given, made: int = F16, shape: Sequence[int] = SHAPE, name: str = "w") -> bytes:
        return operation(f"constexpr_{kind}", output(name, made, shape), arguments)

    def ios16(self, kind: str, arguments: Given, made: int = F16, shape: Sequence[int] = SHAPE, name: str = "w") -> bytes:
        return operation(f"constexpr_{kind}", output(name, made, shape), attributes=arguments)

    # iOS 16

    def affine(self, **changed: bytes) -> list[bytes]:
        arguments = {
            "quantized_data": self.blob(I8, SHAPE), "zero_point": bytes_value(I8, (4,), bytes(4)),
            "scale": bytes_value(F16, (4,), halves(4)), "axis": integer_value(0), **changed,
        }  # fmt: skip
        return [self.ios16("affine_dequantize", arguments)]

    def flat_lut(self, **changed: bytes) -> list[bytes]:
        arguments = {"indices": self.blob(U8, (32,)), "lut": self.blob(F16, (16,)), "shape": dims_value(*SHAPE), **changed}
        return [self.ios16("lut_to_dense", arguments)]

    def flat_sparse(self, **changed: bytes) -> list[bytes]:
        arguments = {
            "nonzero_data": self.blob(F16, (KEPT,)), "mask": bytes_value(U8, (8,), MASK), "shape": dims_value(*SHAPE),
            **changed,
        }  # fmt: skip
        return [self.ios16("sparse_to_dense", arguments)]

    # iOS 18

    def blockwise(self, kind: int = I8, blocks: Sequence[int] = (4, 2), shifts: bool = False, **changed: bytes) -> list[bytes]:
        arguments = {"data": self.blob(kind, SHAPE), "scale": self.blob(F16, blocks)}
        if shifts:
            arguments["offset"] = self.blob(kind, blocks)
        return [self.dense("blockwise_shift_scale", {**arguments, **changed})]

    def lut(self, bits: int = 4, tables: Sequence[int] = (1, 1), vector: int = 1, **changed: str | bytes) -> list[bytes]:
        kind = {1: U1, 2: U2, 3: U3, 4: U4, 8: U8}[bits]
        places = (SHAPE[0] // vector, SHAPE[1])
        arguments: dict[str, str | bytes] = {"indices": self.blob(kind, places)}
        if "lut" not in changed:
            arguments["lut"] = self.blob(F16, (*tables, 1 << bits, vector))
        if vector > 1:
            arguments["vector_axis"] = integer_value(0)
        return [self.dense("lut_to_dense", {**arguments, **changed})]

    def lut_of_integers(self) -> list[bytes]:
        table = {"data": self.blob(I8, (1, 1, 16, 1)), "scale": self.blob(F16, (1, 1, 1, 1))}
        made = operation("constexpr_blockwise_shift_scale", output("table", F16, (1, 1, 16, 1)), table)
        return [made, *self.lut(lut="table")]

    def scaled(self, **changed: bytes) -> list[bytes]:
        table = self.blob(F16, (1, 1, 16, 1))
        inner = self.dense("lut_to_dense", {"indices": self.blob(U4, SHAPE), "lut": table}, name="inner")
        arguments: dict[str, str | bytes] = {"data": "inner", "scale": self.blob(F16, (4, 1)), **changed}
        return [inner, self.dense("blockwise_shift_scale", arguments)]

    def sparse(self, **changed: bytes) -> list[bytes]:
        arguments = {"nonzero_data": self.blob(F16, (KEPT,)), "mask": self.blob(U1, SHAPE, MASK), **changed}
        return [self.dense("sparse_to_dense", arguments)]

    def _around(self, kind: str, arguments: Mapping[str, bytes], last: Given | None = None) -> list[bytes]:
        outputs = {**output("w_mask", U1), **output("w_values", F16, (KEPT,))}
        bound: dict[str, str | bytes] = {"mask": "w_mask", "nonzero_data": "w_values", **(last or {})}
        return [operation(f"constexpr_{kind}", outputs, arguments), self.dense("sparse_to_dense", bound)]

    def sparse_blockwise(self, last: Given | None = None, **changed: bytes) -> list[bytes]:
        arguments = {
            "data_mask": self.blob(U1, SHAPE, MASK), "nonzero_data": self.blob(I8, (KEPT,)), "scale": self.blob(F16, (4, 1)),
            **changed,
        }  # fmt: skip
        return self._around("sparse_blockwise_shift_scale", arguments, last)

    def sparse_lut(self, last: Given | None = None, **changed: bytes) -> list[bytes]:
        arguments = {
            "indices_mask": self.blob(U1, SHAPE, MASK), "indices_nonzero_data": self.blob(U4, (KEPT,)),
            "lut": self.blob(F16, (1, 1, 16, 1)), **changed,
        }  # fmt: skip
        return self._around("lut_to_sparse", arguments, last)


FORMS: dict[str, tuple[str, Any]] = {
    "plain f16": ("CoreML5", Forms.plain),
    "plain i8": ("CoreML8", lambda forms: forms.plain(kind=I8)),
    "affine": ("CoreML6", Forms.affine),
    "flat lut": ("CoreML7", Forms.flat_lut),
    "flat sparse": ("CoreML6", Forms.flat_sparse),
    "blockwise i8": ("CoreML8", Forms.blockwise),
    "blockwise u4 with an offset": ("CoreML8", lambda forms: forms.blockwise(U4, (4, 1), shifts=True)),
    "lut of 4 bits": ("CoreML8", Forms.lut),
    "lut of 3 bits in groups": ("CoreML8", lambda forms: forms.lut(3, (2, 1))),
    "lut of pairs": ("CoreML8", lambda forms: forms.lut(2, vector=2)),
    "lut of integers": ("CoreML8", Forms.lut_of_integers),
    "lut with scales": ("CoreML9", Forms.scaled),
    "sparse": ("CoreML8", Forms.sparse),
    "sparse blockwise": ("CoreML8", Forms.sparse_blockwise),
    "sparse lut": ("CoreML8", Forms.sparse_lut),
}
"""Opset and operations of a weight `w` in every form."""


# Packages -----------------------------------------------------------------------------------------


def block(operations: Iterable[bytes], outputs: Iterable[str] = ("y",)) -> bytes:
    return b"".join((*(message(2, name) for name in outputs), *operations))


def function(operations: Iterable[bytes], opset: str = "CoreML8") -> bytes:
    declared = message(1, message(1, "x"), message(2, tensor_type(F16, (1, 16))))
    return declared + message(2, opset) + entry(3, opset, block(operations))


def program(functions: Mapping[str, bytes]) -> bytes:
    return number(1, 1) + b"".join(entry(2, name, body) for name, body in functions.items())


def description(metadata: Mapping[str, str] | None = None) -> bytes:
    return message(100, *(entry(100, key, value) for key, value in (metadata or {}).items()))


def model(functions: Mapping[str, bytes], metadata: Mapping[str, str] | None = None, *, version: int = 9) -> bytes:
    return number(1, version) + message(2, description(metadata)) + message(502, program(functions))


def item(path: str, name: str = "") -> dict[str, str]:
    return {"author": "com.apple.CoreML", "description": "", "name": name or path.rpartition("/")[2], "path": path}


def manifest(**changed: Any) -> dict[str, Any]:
    items = {"A": item("com.apple.CoreML/model.mlmodel"), "B": item("com.apple.CoreML/weights")}
    return {"fileFormatVersion": "1.0.0", "itemInfoEntries": items, "rootModelIdentifier": "A", **changed}


def package(raw: bytes, weights: bytes | WeightFile | None = None, stated: object = None) -> dict[str, bytes]:
    """The files of a package. `stated` is its manifest: a document, or its bytes."""
    if not isinstance(stated, bytes):
        stated = json.dumps(manifest() if stated is None else stated).encode()
    files = {MANIFEST: stated, MODEL: raw}
    return files if weights is None else {**files, WEIGHTS: bytes(weights)}


def of_operations(operations: Iterable[bytes], file: WeightFile, opset: str = "CoreML8") -> dict[str, bytes]:
    return package(model({"main": function([*operations, used("w")], opset)}), file)


def of_form(name: str) -> dict[str, bytes]:
    opset, make = FORMS[name]
    forms = Forms()
    return of_operations(make(forms), forms.file, opset)


def of_every_form() -> dict[str, bytes]:
    """One program of iOS 18 with a weight in each form, called after it."""
    forms, operations = Forms(), list[bytes]()
    for number_of, (opset, make) in enumerate(FORMS.values()):
        if opset >= "CoreML8":
            operations += [_renamed(raw, f"{number_of:x}") for raw in make(forms)]
    return package(model({"main": function([*operations, used("1")], "CoreML8")}), forms.file)


def _renamed(raw: bytes, name: str) -> bytes:
    """An operation with another name of one letter for `w`, wherever it stands for itself or begins another."""
    for old in ("w", "w_mask", "w_values", "table", "inner"):
        new = name + old[1:]
        raw = raw.replace(message(1, old), message(1, new))
    return raw


def nested_blocks() -> dict[str, bytes]:
    """A weight in each branch of a condition, and one before it."""
    forms = Forms()
    branches = [block([*forms.plain(name), used(name, f"{name}_y")], (f"{name}_y",)) for name in "uv"]
    choice = operation("cond", output("y", F16, (1, 4)), {"pred": "p"}, blocks=branches)
    return of_operations([*forms.plain(), choice], forms.file)


def two_functions() -> dict[str, bytes]:
    """Functions that share a weight, and have one each of the same name."""
    forms = Forms()
    shared = forms.plain("shared")
    first, second = ([*shared, *forms.blockwise(), used("w")] for _ in range(2))
    return package(model({"main": function(first), "other": function(second)}), forms.file)


def few_elements() -> dict[str, bytes]:
    """Weights that lie in the program itself."""
    table = bytes_value(F16, (1, 1, 2, 1), halves(2))
    forms = Forms()
    return of_operations(forms.lut(1, lut=table), forms.file)


SOUND = {
    **{f"of {name}": of_form(name) for name in FORMS},
    "of every form": of_every_form(),
    "of nested blocks": nested_blocks(),
    "of two functions": two_functions(),
    "of few elements": few_elements(),
}
"""Packages that are whole."""
