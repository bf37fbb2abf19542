"""docs/formats/uqff.md is enough to read a file: this reader takes its tables from the page and shares no code with others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from struct import unpack_from
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import flyweight
from flyweight.containers.uqff.layer_order import layer_modules
from support import ROOT

PAGE = (ROOT / "docs" / "formats" / "uqff.md").read_text(encoding="utf-8")
FILES = ROOT / "tests" / "golden" / "uqff"
SHARDS = sorted(path for path in FILES.glob("*/*/*.uqff") if not path.stem.endswith("-1") and path.parent.name != "wide")
"""The first shard of every file, but of those with K types, which another page specifies."""
OLD, NEW = ([path for path in SHARDS if path.parts[-3].startswith(major)] for major in "01")

ELEMENTS: dict[str, Any] = {
    **{name: np.dtype(f"<{name[0]}{int(name[1:]) // 8}") for name in ("u8", "u32", "i16", "i32", "i64", "f16", "f32", "f64")},
    "bf16": ml_dtypes.bfloat16,
    "f8_e4m3": ml_dtypes.float8_e4m3fn,
}
Fields = dict[str, np.ndarray]


# The tables of the page -----------------------------------------------------------------------------


def table(heading: str) -> list[list[str]]:
    """The rows, without the line of dashes, of the table that begins with `heading`."""
    lines = PAGE[PAGE.index(heading) :].split("\n\n")[0].splitlines()
    rows = [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in rows if set("".join(row)) != {"-"}]


def fields_of_types() -> dict[int, dict[str, str]]:
    return {int(number): dict(re.findall(r"`(\w+)` (\w+)", text)) for number, _, text in table("| type | name | fields")[1:]}


FIELDS = fields_of_types()
CODES = dict(enumerate(table("| code of an element type")[1][1:]))
BLOCKS = {int(number): (name, int(size)) for number, name, _, size in list(zip(*table("| `dtype` | 0"), strict=True))[1:]}


def modules(config: dict[str, Any]) -> Iterator[str]:
    """The layers of a model in the order of their numbers."""
    for kinds, text, _ in table("| `model_type` | modules")[1:]:
        if config["model_type"] in kinds.split(", "):
            of_layer, of_expert = (list(paths(part)) for part in (*text.split("; for each of"), "")[:2])
            yield "lm_head"
            for layer in range(config["num_hidden_layers"]):
                yield from (f"model.layers.{layer}.{name}" for name in of_layer)
                for expert in range(config["num_local_experts"] if of_expert else 0):
                    yield from (f"model.layers.{layer}.{name.replace('<e>', str(expert))}" for name in of_expert)
            return
    raise AssertionError(config["model_type"])


def paths(text: str) -> Iterator[str]:
    """Modules: one without dots is in the folder of the one before it."""
    folder = ""
    for word in re.findall(r"`([\w.<>]+)`", text):
        if "." in word:
            folder = word[: word.rindex(".") + 1]
        if folder:
            yield folder + word.rpartition(".")[2]


# Files ------------------------------------------------------------------------------------------------


def read_shards(first: Path) -> dict[str, np.ndarray]:
    others = (first.with_name(f"{first.stem.removesuffix('-0')}-{number}.uqff") for number in range(1, 9))
    return {key: value for path in (first, *others) if path.exists() for key, value in read_safetensors(path).items()}


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    raw = path.read_bytes()
    (length,) = unpack_from("<Q", raw)
    names = {"F8_E4M3": "f8_e4m3", "BF16": "bf16"}
    tensors = {}
    for key, about in json.loads(raw[8 : 8 + length]).items():
        if key != "__metadata__":
            begin, end = (8 + length + at for at in about["data_offsets"])
            dtype = ELEMENTS[names.get(about["dtype"], about["dtype"].lower())]
            tensors[key] = np.frombuffer(raw[begin:end], dtype).reshape(about["shape"])
    return tensors


class Stream:
    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def take(self, length: int) -> bytes:
        self.at += length
        assert self.at <= len(self.raw)
        return self.raw[self.at - length : self.at]

    def number(self, kind: str) -> Any:
        return np.frombuffer(self.take(ELEMENTS[kind].itemsize), ELEMENTS[kind])[0]

    def dims(self) -> np.ndarray:
        return np.array([self.number("u32") for _ in range(self.number("u32"))], np.int64)

    def tensor(self) -> np.ndarray:
        length, code = int(self.number("u32")), int(self.number("u32"))
        shape = self.dims()
        return np.frombuffer(self.take(length), ELEMENTS[CODES[code]]).reshape(shape)


def read_numbered(path: Path) -> Iterator[tuple[int, Fields, np.ndarray | None]]:
    """The layers of the first generation: type, fields, bias."""
    layers = {int(key): value.tobytes() for key, value in read_shards(path).items()}
    for number in range(len(layers)):
        stream = Stream(layers[number])
        assert stream.take(4)[1:] == bytes([1, 0, 0])
        kind = stream.number("u8")
        length = int(stream.number("u32")) if kind == 0 else 0
        has_bias = stream.number("u8") != 0
        found: Fields = {}
        for field, form in FIELDS[kind].items():
            if form == "tensor":
                found[field] = stream.tensor()
            elif form == "dims":
                found[field] = stream.dims()
            elif form == "bytes":
                found[field] = np.frombuffer(stream.take(length or 33 * int(found["num_blocks"])), np.uint8)
            else:
                found[field] = stream.number(form)
        bias = stream.tensor() if has_bias else None
        assert stream.at == len(stream.raw)
        yield kind, found, bias


def read_old(path: Path) -> dict[str, np.ndarray]:
    config = json.loads((path.parent / "config.json").read_text())
    tensors = {}
    for module, (kind, fields, bias) in zip(modules(config), read_numbered(path), strict=True):
        tensors[module + ".weight"] = DECODERS[kind](fields)
        if bias is not None:
            tensors[module + ".bias"] = bias
    return tensors | {k: v for k, v in read_safetensors(path.with_name("residual.safetensors")).items() if k not in tensors}


def read_new(path: Path) -> dict[str, np.ndarray]:
    stored = read_shards(path)
    version = [int(stored[f"uqff.version.{part}"][()]) for part in ("major", "minor", "patch")]
    assert f"{version[0]}.{version[1]}" == path.parts[-3]
    tensors = {}
    for key, kind in stored.items():
        if not key.endswith(".weight.format"):
            continue
        weight = key.removesuffix(".format")
        keys = {field: weight if field == "weight" else f"{weight}.{field}" for field in FIELDS[int(kind)]}
        for field, form in FIELDS[int(kind)].items():
            if form in ELEMENTS:
                assert stored[keys[field]].shape == ()
                assert stored[keys[field]].dtype == ELEMENTS[form]
        tensors[weight] = DECODERS[int(kind)]({field: stored[name] for field, name in keys.items()})
        bias = weight.removesuffix("weight") + "bias"
        tensors |= {bias: stored[bias]} if bias in stored else {}
    return tensors | {k: v for k, v in read_safetensors(path.with_name("residual.safetensors")).items() if k not in tensors}


# Types ------------------------------------------------------------------------------------------------


def halves(raw: np.ndarray) -> np.ndarray:
    return raw.copy().view("<f2").astype(np.float32)


def nibbles(raw: np.ndarray) -> np.ndarray:
    return np.concatenate([raw & 15, raw >> 4], axis=1).astype(np.float32)


def gguf(fields: Fields) -> np.ndarray:
    name, size = BLOCKS[int(fields["dtype"])]
    blocks = fields["weight"].reshape(-1, size)
    if name == "f32":
        return blocks.copy().view("<f4").reshape(fields["shape"])
    scale = halves(blocks[:, :2])
    if name in ("q8_0", "q8_1"):
        values = scale * blocks[:, -32:].view(np.int8)
    elif name in ("q4_0", "q5_0"):
        values = scale * (nibbles(blocks[:, -16:]) + 16 * fifth_bits(blocks[:, 2:-16]) - (8 if name == "q4_0" else 16))
    else:
        assert name in ("q4_1", "q5_1")
        values = scale * (nibbles(blocks[:, -16:]) + 16 * fifth_bits(blocks[:, 4:-16])) + halves(blocks[:, 2:4])
    return values.reshape(fields["shape"])


def fifth_bits(raw: np.ndarray) -> np.ndarray:
    """One bit an element, or none."""
    return np.unpackbits(raw, axis=1, bitorder="little").astype(np.float32) if raw.size else np.zeros((len(raw), 1), np.float32)


def hqq(fields: Fields) -> np.ndarray:
    bits, rows = int(fields["bits"]), int(fields["group_size"])
    assert fields["axis"] == 0
    packed = fields["weight"]
    codes = np.concatenate([packed >> shift & (1 << bits) - 1 for shift in range(8 - bits, -1, -bits)])[:rows]
    return ((codes.astype(np.float32) - fields["zeros"]) * fields["scales"]).reshape(fields["shape"])


def fp8(fields: Fields) -> np.ndarray:
    assert CODES[int(fields["dtype"])] == "f8_e4m3"
    return fields["weight"].astype(np.float32) * fields["dequant_w_scale"]


def afq(fields: Fields) -> np.ndarray:
    bits, group = int(fields["bits"]), int(fields["group_size"])
    stream = np.unpackbits(fields["weight"].view(np.uint8), axis=-1, bitorder="little")
    codes = stream.reshape(*stream.shape[:-1], -1, bits) @ (1 << np.arange(bits))
    scale, bias = (np.repeat(fields[key].astype(np.float32), group, axis=-1) for key in ("scales", "biases"))
    return codes.astype(np.float32) * scale + bias


def f8q8(fields: Fields) -> np.ndarray:
    blocks = fields["weight"].reshape(int(fields["num_blocks"]), 33)
    scale = blocks[:, :1].view(ml_dtypes.float8_e4m3fn).astype(np.float32) / np.float32(416)
    values = blocks[:, 1:].view(np.int8) * scale
    return values.reshape(-1)[: np.prod(fields["shape"])].reshape(fields["shape"])


def mxfp4(fields: Fields) -> np.ndarray:
    magnitudes = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    codes = np.stack([fields["weight"] & 15, fields["weight"] >> 4], axis=-1).reshape(len(fields["weight"]), -1)
    values = magnitudes[codes & 7] * np.where(codes & 8, np.float32(-1), np.float32(1))
    return values * np.repeat(np.exp2(fields["scales"].astype(np.float32) - 127), 32, axis=1)


DECODERS: dict[int, Any] = {0: gguf, 1: lambda fields: fields["weight"], 2: hqq, 3: fp8, 4: afq, 5: f8q8, 6: mxfp4}


# Tests ------------------------------------------------------------------------------------------------


def name_of(path: Path) -> str:
    return "-".join(path.parts[-3:])


def compare(path: Path, tensors: dict[str, np.ndarray]) -> None:
    with flyweight.open(path) as checkpoint:
        assert set(checkpoint) == set(tensors)
        for name, values in tensors.items():
            stored = checkpoint[name]
            assert stored.shape == values.shape
            assert (np.asarray(stored, np.float32) == values.astype(np.float32)).all(), name


@pytest.mark.parametrize("path", OLD, ids=name_of)
def test_first_generation(path: Path) -> None:
    compare(path, read_old(path))


@pytest.mark.parametrize("path", NEW, ids=name_of)
def test_second_generation(path: Path) -> None:
    compare(path, read_new(path))


@pytest.mark.parametrize(
    "name", ["small/q4_0-0.uqff", "small/fp8-0.uqff", "small/hqq4-0.uqff", "small/afq4-0.uqff", "bias/q4_0-0.uqff"]
)
def test_names_of_numbers_are_right(name: str) -> None:
    """Both generations were made from one model by one rule, apart from promotion: the same values are under the same names."""
    old, new = read_old(FILES / "0.1.3" / name), read_new(FILES / "1.2" / name)
    alike = [key for key in old if key.endswith("_proj.weight")]
    assert len(alike) == 7
    assert all((old[key] == new[key]).all() for key in alike)


def test_experts_are_stacked_in_the_order_of_the_page() -> None:
    old, new = (read(FILES / version / "experts/q4_0-0.uqff") for read, version in ((read_old, "0.1.3"), (read_new, "1.2")))
    block = "model.layers.0.block_sparse_moe.experts"
    for part, stacked in zip(("w1", "w3", "w2"), ("gate_proj", "up_proj", "down_proj"), strict=True):
        experts = np.stack([old[f"{block}.{expert}.{part}.weight"] for expert in range(2)])
        assert (experts == new[f"{block}.{stacked}.weight"]).all()


def test_the_files_have_every_type_that_the_tool_writes() -> None:
    old = {kind for path in OLD for kind, *_ in read_numbered(path)}
    new = {int(kind) for path in NEW for key, kind in read_shards(path).items() if key.endswith(".weight.format")}
    assert old == {0, 2, 3, 4}
    assert new == {0, 1, 2, 3, 4, 5, 6}


WITHOUT_EXPERTS = ", ".join(row[0] for row in table("| `model_type` | modules")[1:] if "<" not in row[1]).split(", ")


@pytest.mark.parametrize("kind", WITHOUT_EXPERTS)
def test_the_page_has_the_order_that_is_read(kind: str) -> None:
    config = {"model_type": kind, "num_hidden_layers": 2}
    assert layer_modules(config) == list(modules(config))
