"""docs/formats/coreml.md is enough to read a package: this reader takes its tables from it and shares no code with others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from struct import unpack_from
from typing import Any

import numpy as np
import pytest

from support import GOLDEN, ROOT

PAGE = (ROOT / "docs" / "formats" / "coreml.md").read_text(encoding="utf-8")
PACKAGES = sorted((GOLDEN / "coreml").glob("*.mlpackage"))
FOLDER = "Data/com.apple.CoreML"

Array = np.ndarray[Any, Any]
Fields = dict[int, list[Any]]
"""Of a message: numbers, or bytes, by the number of the field."""


# The tables of the page -----------------------------------------------------------------------------


def table(heading: str) -> list[list[str]]:
    """The rows, without the line of dashes, of the table that begins with `heading`."""
    lines = PAGE[PAGE.index(heading) :].split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return [row for row in rows if set("".join(row)) != {"-"}]


FIELDS = {
    message: {name: int(number) for number, name in re.findall(r"(\d+) `(\w+)`", text)}
    for message, text in table("| message | fields")[1:]
}
TYPES = {
    int(program): (name, int(bits), None if blob == "–" else int(blob), immediate.strip("`"))
    for name, bits, program, blob, immediate in table("| type | bits")[1:]
    if bits != "–"
}
OPSETS = dict(zip(*(row[1:] for row in table("| `specificationVersion`")[:2]), strict=True))


# Protobuf -------------------------------------------------------------------------------------------


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def parsed(data: bytes) -> Fields:
    fields: Fields = {}
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
        else:
            length, at = varint(data, at) if tag & 7 == 2 else ({1: 8, 5: 4}[tag & 7], at)
            value, at = data[at : at + length], at + length
        fields.setdefault(tag >> 3, []).append(value)
    return fields


class Message:
    """A message whose fields are called as on the page."""

    def __init__(self, kind: str, data: bytes) -> None:
        self.names, self.fields = FIELDS[kind], parsed(data)

    def all(self, name: str) -> list[Any]:
        return self.fields.get(self.names[name], [])

    def one(self, name: str, default: Any = None) -> Any:
        return self.all(name)[-1] if self.all(name) else default

    def text(self, name: str) -> str:
        return str(self.one(name, b""), "utf-8")

    def map(self, name: str) -> dict[str, bytes]:
        entries = map(parsed, self.all(name))
        return {str(entry.get(1, [b""])[0], "utf-8"): entry.get(2, [b""])[0] for entry in entries}


# Arrays ---------------------------------------------------------------------------------------------


def unpacked(stream: bytes, kind: str, bits: int, count: int) -> Array:
    """Elements of a blob, or of the bytes of an immediate value."""
    if bits >= 8:
        return np.frombuffer(stream, np.dtype(f"<{kind[0]}{bits // 8}"), count)
    wide = np.unpackbits(np.frombuffer(stream, np.uint8), bitorder="little")[: count * bits].reshape(count, bits)
    codes = np.packbits(wide, axis=1, bitorder="little")[:, 0]
    return codes if kind[0] == "u" else ((codes << 8 - bits).view(np.int8) >> 8 - bits)


def immediate(tensor: Message, kind: str, bits: int, field: str, count: int) -> Array:
    raw = Message("RepeatedValues", tensor.one(field)).one("values", b"")
    if field in ("bytes", "floats"):
        return unpacked(raw, kind, bits, count)
    if isinstance(raw, int):
        return np.array([raw])
    numbers, at = [], 0
    while at < len(raw):
        number, at = varint(raw, at)
        numbers.append(number - (number >> 63 << 64))
    return np.array(numbers, bool if kind == "bool" else f"<{kind[0]}{bits // 8}")


class Package:
    def __init__(self, path: Path) -> None:
        manifest = json.loads((path / "Manifest.json").read_text())
        root = manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"]
        self.folder = (path / "Data" / root).parent
        whole = Message("Model", (path / "Data" / root).read_bytes())
        pipeline = whole.one("pipeline")
        self.models = [Message("Model", data) for data in parsed(pipeline)[1]] if pipeline else [whole]

    def blob(self, value: Message, code: int | None) -> bytes:
        reference = Message("BlobFileValue", value.one("blobFileValue"))
        data = (self.folder / reference.text("fileName").removeprefix("@model_path/")).read_bytes()
        assert unpack_from("<I", data, 4) == (2,)
        sentinel, kind, size, start, _ = unpack_from("<IIQQQ", data, offset := reference.one("offset"))
        assert (sentinel, kind, start) == (0xDEADBEEF, code, offset + 64)
        return data[start : start + size]

    def array(self, data: bytes) -> Array | None:
        """None of what is no array of numbers."""
        value = Message("Value", data)
        tensor = Message("TensorType", Message("ValueType", value.one("type")).one("tensorType"))
        if tensor.one("dataType") not in TYPES:
            return None
        kind, bits, code, field = TYPES[tensor.one("dataType")]
        constants = [Message("Dimension", dimension).one("constant") for dimension in tensor.all("dimensions")]
        shape = tuple(Message("ConstantDimension", constant).one("size", 0) for constant in constants)
        if value.one("blobFileValue") is not None:
            return unpacked(self.blob(value, code), kind, bits, prod(shape)).reshape(shape)
        content = Message("TensorValue", Message("ImmediateValue", value.one("immediateValue")).one("tensor"))
        return immediate(content, kind, bits, field, prod(shape)).reshape(shape)

    def values(self) -> Iterator[tuple[str, Array]]:
        """Every constant by its name, as in values.npz."""
        for index, model in enumerate(self.models):
            version = str(model.one("specificationVersion"))
            for name, data in Message("Program", model.one("mlProgram")).map("functions").items():
                function = Message("Function", data)
                assert function.text("opset") == OPSETS[version]
                known: dict[str, Array] = {}
                self._run(Message("Block", function.map("block_specializations")[OPSETS[version]]), known)
                scope = f"{index}/{name}" if len(self.models) > 1 else name
                yield from ((f"{scope}/{output}", value) for output, value in known.items())

    def _run(self, block: Message, known: dict[str, Array]) -> None:
        for data in block.all("operations"):
            operation = Message("Operation", data)
            kind, given = operation.text("type"), dict[str, Array]()
            if kind == "const" or kind.startswith("constexpr_"):
                for key, value in operation.map("attributes").items():
                    given[key] = self.array(value)
                for key, argument in operation.map("inputs").items():
                    binding = Message("Binding", Message("Argument", argument).one("arguments"))
                    given[key] = self.array(binding.one("value")) if binding.one("value") else known[binding.text("name")]
                made = OPERATORS[kind](**{key: value for key, value in given.items() if value is not None})
                outputs = [Message("NamedValueType", output).text("name") for output in operation.all("outputs")]
                known |= zip(outputs, made if isinstance(made, tuple) else (made,), strict=True)
            for inner in operation.all("blocks"):
                self._run(Message("Block", inner), known)


# Operators ------------------------------------------------------------------------------------------


def spread(array: Array, shape: tuple[int, ...]) -> Array:
    """One number of each block, repeated over the block."""
    for axis, length in enumerate(shape):
        array = np.repeat(array, length // array.shape[axis], axis)
    return array


def affine_dequantize(quantized_data: Array, scale: Array, zero_point: Array, axis: Array) -> Array:
    along = [1] * quantized_data.ndim
    along[int(axis)] = -1
    shifted = quantized_data.astype(np.float32) - zero_point.astype(np.float32).reshape(along)
    return (shifted * scale.astype(np.float32).reshape(along)).astype(scale.dtype)


def shift_scale(data: Array, scale: Array, offset: Array | None = None) -> Array:
    shifted = data.astype(scale.dtype)
    if offset is not None:
        shifted = shifted - spread(offset, data.shape).astype(scale.dtype)
    return shifted * spread(scale, data.shape)


def lut_to_dense(indices: Array, lut: Array, shape: Array | None = None, vector_axis: Array | None = None) -> Array:
    if shape is not None:
        bits = lut.size.bit_length() - 1
        return lut[unpacked(indices.tobytes(), "u", bits, prod(map(int, shape)))].reshape(tuple(shape))
    tables = spread(lut, indices.shape)
    vectors = np.take_along_axis(tables, indices[..., None, None].astype(np.intp), axis=-2)[..., 0, :]
    axis = int(vector_axis) % indices.ndim if vector_axis is not None else indices.ndim - 1
    wide = tuple(length * (lut.shape[-1] if at == axis else 1) for at, length in enumerate(indices.shape))
    return np.moveaxis(vectors, -1, axis + 1).reshape(wide)


def sparse_to_dense(nonzero_data: Array, mask: Array, shape: Array | None = None) -> Array:
    if shape is not None:
        mask = unpacked(mask.tobytes(), "u", 1, prod(map(int, shape))).reshape(tuple(shape))
    dense = np.zeros(mask.shape, nonzero_data.dtype)
    dense[mask == 1] = nonzero_data
    return dense


def lut_to_sparse(
    indices_mask: Array, indices_nonzero_data: Array, lut: Array, vector_axis: Array | None = None
) -> tuple[Array, Array]:
    dense = lut_to_dense(sparse_to_dense(indices_nonzero_data, indices_mask), lut, vector_axis=vector_axis)
    mask = spread(indices_mask, dense.shape)
    return mask, dense[mask == 1]


def sparse_shift_scale(data_mask: Array, nonzero_data: Array, scale: Array, offset: Array | None = None) -> tuple[Array, Array]:
    return data_mask, shift_scale(sparse_to_dense(nonzero_data, data_mask), scale, offset)[data_mask == 1]


TEXT = np.array("text")
"""Instead of a constant that is no array of numbers."""
OPERATORS: dict[str, Callable[..., Any]] = {
    "const": lambda val=TEXT: val,
    "constexpr_affine_dequantize": affine_dequantize,
    "constexpr_blockwise_shift_scale": shift_scale,
    "constexpr_lut_to_dense": lut_to_dense,
    "constexpr_sparse_to_dense": sparse_to_dense,
    "constexpr_lut_to_sparse": lut_to_sparse,
    "constexpr_sparse_blockwise_shift_scale": sparse_shift_scale,
    "constexpr_cast": lambda source_val: source_val.astype(np.float32),
}


def test_the_page_names_every_operator() -> None:
    named = set(re.findall(r"\| `(constexpr_\w+)`", PAGE))
    assert named | {"const"} == set(OPERATORS)


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: path.stem)
def test_values_are_those_of_coremltools(path: Path) -> None:
    ours = dict(Package(path).values())
    with np.load(GOLDEN / "coreml" / "values.npz") as golden:
        theirs = {key.removeprefix(f"{path.stem}/"): golden[key] for key in golden if key.startswith(f"{path.stem}/")}
    assert theirs
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype, name
        assert ours[name].shape == value.shape, name
        assert ours[name].tobytes() == value.tobytes(), name


def test_the_page_names_every_refusal() -> None:
    folder = ROOT / "src" / "flyweight" / "containers" / "coreml"
    codes = {code for path in folder.glob("*.py") for code in re.findall(r'"(E_[A-Z_]+)"', path.read_text("utf-8"))}
    assert codes - set(re.findall(r"`(E_[A-Z_]+)`", PAGE)) == set()


def test_types_of_the_page_are_what_weight_files_hold() -> None:
    """Every number of a blob once, and none twice in programs."""
    blobs = [blob for _, _, blob, _ in TYPES.values() if blob is not None]
    assert sorted(blobs) == list(range(1, 18))
