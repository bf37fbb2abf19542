"""Hostile UQFF 1.x: versions, layers and fields that contradict each other, shards and files around that lead elsewhere."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from support.fuzz_cases import Case, Special, fifo, link_to
from support.raw_files import safetensors_file
from support.uqff_files import (
    CONFIG,
    RESIDUAL,
    Named,
    afq,
    f8q8,
    fp8,
    gguf,
    hqq,
    mxfp4,
    named_directory,
    named_file,
    plain,
    residual,
    u32,
    version,
)

Tensor = tuple[str, list[int], bytes]
MAJOR, MINOR, PATCH = (f"uqff.version.{part}" for part in ("major", "minor", "patch"))
REPORT = "uqff_report.json"


def file(tensors: Named, code: str, exit_code: int = 3) -> Case:
    return Case({"q.uqff": named_file(tensors)}, code, exit_code=exit_code)


def versioned(change: dict[str, Tensor | None], code: str = "E_VERSION", exit_code: int = 3) -> Case:
    """A good layer under a version of which some tensors are replaced or (None) missing."""
    tensors = version() | gguf("a") | change
    return file({key: value for key, value in tensors.items() if value is not None}, code, exit_code)


def layer(named: Named, code: str = "E_LAYER", exit_code: int = 3, **fields: Tensor | None) -> Case:
    """A layer `a` with some fields replaced, added or (None) missing; `weight` is the weight itself."""
    tensors = dict[str, Any](version() | named)
    for field, value in fields.items():
        tensors["a.weight" if field == "weight" else f"a.weight.{field}"] = value
    return file({key: value for key, value in tensors.items() if value is not None}, code, exit_code)


def shards(files: Mapping[str, Named], code: str, *, special: Mapping[str, Special] | None = None, exit_code: int = 3) -> Case:
    made = {name: named_file(tensors) for name, tensors in files.items()}
    around = {"config.json": json.dumps(CONFIG).encode(), RESIDUAL: residual()}
    return Case(made | around, code, is_directory=True, special=special or {}, exit_code=exit_code)


def beside(files: Mapping[str, bytes], code: str, *, special: Mapping[str, Special] | None = None) -> Case:
    """A good model with these files added or in place of its own."""
    made = named_directory()
    for name in special or {}:
        made.pop(name, None)
    return Case({**made, **files}, code, is_directory=True, special=special or {})


def by_path(files: Mapping[str, bytes], code: str, *, special: Mapping[str, Special] | None = None) -> Case:
    """A good shard, opened by its path, with these files beside it."""
    return Case({"q-0.uqff": named_file(version() | gguf("a")), **files}, code, special=special or {}, opened="q-0.uqff")


def scalar(dtype: str, raw: bytes, shape: list[int] | None = None) -> Tensor:
    return dtype, shape or [], raw


def dims(*values: int) -> Tensor:
    return "U32", [len(values)], u32(*values)


def array(dtype: str, *shape: int, size: int) -> Tensor:
    count = 1
    for dim in shape:
        count *= dim
    return dtype, [*shape], bytes(count * size)


def many_layers(count: int) -> bytes:
    """Plain layers of one byte each."""
    lines = [
        f'"uqff.version.{part}":{{"dtype":"U32","shape":[],"data_offsets":[{4 * n},{4 * n + 4}]}}'
        for n, part in enumerate(("major", "minor", "patch"))
    ]
    for n in range(count):
        at = 12 + 2 * n
        lines.append(f'"{n}.weight.format":{{"dtype":"U8","shape":[],"data_offsets":[{at},{at + 1}]}}')
        lines.append(f'"{n}.weight":{{"dtype":"U8","shape":[1],"data_offsets":[{at + 1},{at + 2}]}}')
    return safetensors_file(f"{{{','.join(lines)}}}".encode(), u32(1, 2, 0) + b"\x01\x07" * count)


ONE = u32(1)

HOSTILE: dict[str, Case] = {
    # the file
    "empty file": Case({"q.uqff": b""}, "E_TRUNCATED"),
    "file of a length alone": Case({"q.uqff": struct.pack("<Q", 2)}, "E_TRUNCATED"),
    "header of 2^64 - 1 bytes": Case({"q.uqff": struct.pack("<Q", 2**64 - 1) + b"{}"}, "E_HEADER_SIZE"),
    "header of 99 MB in 20 bytes": Case({"q.uqff": struct.pack("<Q", 99_000_000) + b"{}" + bytes(10)}, "E_TRUNCATED"),
    "header that is a list": Case({"q.uqff": safetensors_file(b"[]")}, "E_HEADER"),
    "header nested 200,000 deep": Case({"q.uqff": safetensors_file(b'{"a":' + b"[" * 200_000)}, "E_JSON_DEPTH"),
    "file that is GGUF": Case({"q.uqff": b"GGUF" + bytes(60)}, "E_GGUF_VERSION", exit_code=4),
    "no tensors at all": Case({"q.uqff": safetensors_file({})}, "E_VERSION"),
    "bytes after the tensors": Case({"q.uqff": named_file(version() | gguf("a")) + b"PK\x03\x04"}, "E_TRAILING"),
    "file cut by a byte": Case({"q.uqff": named_file(version() | gguf("a"))[:-1]}, "E_PAST_END"),
    "300,000 layers": Case({"q.uqff": many_layers(300_000)}, "E_BUDGET"),
    # the version
    "no version": versioned(dict.fromkeys((MAJOR, MINOR, PATCH))),
    "no major version": versioned({MAJOR: None}),
    "no minor version": versioned({MINOR: None}),
    "no patch version": versioned({PATCH: None}),
    "version 1.3.0": versioned({MINOR: scalar("U32", u32(3))}, exit_code=4),
    "version 2.0.0": versioned({MAJOR: scalar("U32", u32(2))}, exit_code=4),
    "version 0.2.0 with names": versioned({MAJOR: scalar("U32", u32(0))}, exit_code=4),
    "version of 2^32 - 1": versioned({MAJOR: scalar("U32", u32(2**32 - 1))}, exit_code=4),
    "version of u8": versioned({MAJOR: scalar("U8", b"\x01")}, "E_LAYER"),
    "version of i64": versioned({MAJOR: scalar("I64", struct.pack("<q", 1))}, "E_LAYER"),
    "version of f32": versioned({MAJOR: scalar("F32", struct.pack("<f", 1))}, "E_LAYER"),
    "version of rank 2": versioned({MAJOR: scalar("U32", ONE, [1, 1])}, "E_LAYER"),
    "version of two numbers": versioned({MAJOR: scalar("U32", u32(1, 1), [2])}, "E_LAYER"),
    "version of no number": versioned({MAJOR: scalar("U32", b"", [0])}, "E_LAYER"),
    # layers
    "format 7": layer(gguf("a"), "E_LAYER_TYPE", 4, format=scalar("U8", b"\x07")),
    "format 255": layer(gguf("a"), "E_LAYER_TYPE", 4, format=scalar("U8", b"\xff")),
    "format of u32": layer(gguf("a"), format=scalar("U32", u32(0))),
    "format of rank 2": layer(gguf("a"), format=scalar("U8", b"\0", [1, 1])),
    "format of no bytes": layer(gguf("a"), format=scalar("U8", b"", [0])),
    "format of a megabyte": layer(gguf("a"), format=scalar("U8", bytes(2**20), [2**20])),
    "layer without a weight": layer(plain("a"), weight=None),
    "layer of another format than its fields": layer(gguf("a"), format=scalar("U8", b"\x04")),
    "layer with an empty name": file(
        version() | {key.removeprefix("a"): value for key, value in gguf("a").items() if key != "a.weight"}, "E_LAYER"
    ),
    # type 0
    "gguf without a type": layer(gguf("a"), dtype=None),
    "gguf without a shape": layer(gguf("a"), shape=None),
    "gguf of an unknown type": layer(gguf("a"), "E_GGML_TYPE", 4, dtype=scalar("U32", u32(16))),
    "gguf of the type 2^32 - 1": layer(gguf("a"), "E_GGML_TYPE", 4, dtype=scalar("U32", u32(2**32 - 1))),
    "gguf whose type is u8": layer(gguf("a"), dtype=scalar("U8", b"\x08")),
    "gguf of a shape of rank 9": layer(gguf("a"), shape=dims(*[1] * 9)),
    "gguf of a shape in two dimensions": layer(gguf("a"), shape=("U32", [1, 2], u32(2, 32))),
    "gguf of a scalar shape": layer(gguf("a"), shape=scalar("U32", u32(64))),
    "gguf of a shape of u64": layer(gguf("a"), shape=("I64", [2], struct.pack("<2q", 2, 32))),
    "gguf whose dimensions multiply beyond 2^64": layer(gguf("a"), "E_SHAPE", shape=dims(*[2**32 - 32] * 3)),
    "gguf of columns that are no whole blocks": layer(gguf("a"), shape=dims(2, 33)),
    "gguf of no dimensions": layer(gguf("a"), shape=("U32", [0], b"")),
    "gguf of more rows than bytes": layer(gguf("a"), shape=dims(2**20, 32)),
    "gguf whose bytes have two dimensions and are too few": layer(gguf("a"), weight=array("U8", 2, 33, size=1)),
    "gguf whose bytes are i8": layer(gguf("a"), weight=array("I8", 68, size=1)),
    # type 2
    "hqq without zeros": layer(hqq("a"), zeros=None),
    "hqq without an axis": layer(hqq("a"), axis=None),
    "hqq of bits 5": layer(hqq("a"), bits=scalar("U8", b"\x05")),
    "hqq of bits in u32": layer(hqq("a"), bits=scalar("U32", u32(4))),
    "hqq of axis 2": layer(hqq("a"), axis=scalar("U8", b"\x02")),
    "hqq of group 0": layer(hqq("a"), "E_CODEC_PARAMS", group_size=scalar("U32", u32(0))),
    "hqq of a group in u8": layer(hqq("a"), group_size=scalar("U8", b"\x40")),
    "hqq of group 2^32 - 1": layer(hqq("a"), "E_CODEC_PARAMS", group_size=scalar("U32", u32(2**32 - 1))),
    "hqq of another shape": layer(hqq("a"), "E_PART_SHAPE", shape=dims(4, 32)),
    "hqq with scales of another shape": layer(hqq("a"), scales=array("F32", 1, 2, size=4)),
    "hqq with scales of i16": layer(hqq("a"), scales=array("I16", 1, 1, size=2), zeros=array("I16", 1, 1, size=2)),
    "hqq with codes of i8": layer(hqq("a"), "E_PART_SHAPE", weight=array("I8", 32, 1, size=1)),
    # type 3
    "fp8 whose weight is u8": layer(fp8("a"), weight=array("U8", 2, 32, size=1)),
    "fp8 whose weight is e5m2": layer(fp8("a"), weight=("F8_E5M2", [2, 32], bytes(64))),
    "fp8 without a scale": layer(fp8("a"), dequant_w_scale=None),
    "fp8 with a scale of f16": layer(fp8("a"), dequant_w_scale=scalar("F16", b"\0\x38")),
    "fp8 with a scale per row": layer(fp8("a"), dequant_w_scale=array("F32", 2, size=4)),
    "fp8 of another type": layer(fp8("a"), dtype=scalar("U32", u32(6))),
    # type 4
    "afq of bits 5": layer(afq("a"), bits=scalar("U8", b"\x05")),
    "afq of bits 40": layer(afq("a"), bits=scalar("U8", b"\x28")),
    "afq of group 0": layer(afq("a"), group_size=scalar("U8", b"\0")),
    "afq of group 255": layer(afq("a"), group_size=scalar("U8", b"\xff")),
    "afq of a group in u32": layer(afq("a"), group_size=scalar("U32", u32(32))),
    "afq without biases": layer(afq("a"), biases=None),
    "afq with codes of i32": layer(afq("a"), "E_PART_SHAPE", weight=array("I32", 2, 4, size=4)),
    "afq with fewer codes": layer(afq("a"), "E_PART_SHAPE", weight=array("U32", 2, 3, size=4)),
    "afq with scales of fewer rows": layer(afq("a"), "E_PART_SHAPE", scales=array("F32", 1, 1, size=4)),
    "afq with scales of f64": layer(afq("a"), scales=array("F64", 2, 1, size=8)),
    # types 5 and 6
    "f8q8 of a block too many": layer(f8q8("a"), num_blocks=scalar("U32", u32(3))),
    "f8q8 of 2^32 - 1 blocks": layer(f8q8("a"), num_blocks=scalar("U32", u32(2**32 - 1))),
    "f8q8 of a byte too few": layer(f8q8("a"), weight=array("U8", 65, size=1)),
    "mxfp4 without scales": layer(mxfp4("a"), scales=None),
    "mxfp4 with scales of another shape": layer(mxfp4("a"), "E_PART_SHAPE", scales=array("U8", 2, 2, size=1)),
    "mxfp4 of a scalar": layer(mxfp4("a"), weight=scalar("U8", b"\0")),
    # shards
    "shards of two versions": shards(
        {"q-0.uqff": version() | gguf("a"), "q-1.uqff": version(1, 1) | gguf("b")}, "E_DUPLICATE"
    ),
    "shards of which one has a version of a megabyte": shards(
        {"q-0.uqff": version() | gguf("a"), "q-1.uqff": {MAJOR: array("U8", 2**20, size=1)} | gguf("b")}, "E_LAYER"
    ),
    "layer in two shards": shards({"q-0.uqff": version() | gguf("a"), "q-1.uqff": gguf("a")}, "E_DUPLICATE"),
    "field in two shards": shards(
        {"q-0.uqff": version() | gguf("a"), "q-1.uqff": {"a.weight.shape": dims(2, 32)}}, "E_DUPLICATE"
    ),
    "shards 0 and 2": shards({"q-0.uqff": version() | gguf("a"), "q-2.uqff": gguf("b")}, "E_SHARD_MISSING"),
    "shard 1 alone": shards({"q-1.uqff": gguf("b")}, "E_VERSION"),
    "two models": shards({"q-0.uqff": version() | gguf("a"), "r-0.uqff": version() | gguf("a")}, "E_CHOICE", exit_code=4),
    "shard of another generation": shards(
        {"q-0.uqff": version() | gguf("a"), "q-1.uqff": {"0": array("U8", 4, size=1)} | version(0, 2)}, "E_DUPLICATE"
    ),
    "shard that is a link out of the directory": shards(
        {"q-0.uqff": version() | gguf("a")}, "E_LINK", special={"q-1.uqff": link_to("../../../../../../etc/passwd")}
    ),
    "first shard that is a link out of the directory": shards({}, "E_LINK", special={"q-0.uqff": link_to("/etc/passwd")}),
    "shard that is a device": shards({"q-0.uqff": version() | gguf("a")}, "E_LINK", special={"q-1.uqff": link_to("/dev/zero")}),
    "first shard that is a FIFO": shards({}, "E_NOT_A_FILE", special={"q-0.uqff": fifo}),
    # a shard by its path
    "shards 0 and 2, opened by the path of one": by_path({"q-2.uqff": named_file(gguf("b"))}, "E_SHARD_MISSING"),
    "index that leads elsewhere": by_path(
        {"model.safetensors.index.json": b'{"weight_map": {"a": "../../../etc/passwd"}}'}, "E_SHARD_NAME"
    ),
    "index that is no JSON": by_path({"model.safetensors.index.json": b"{"}, "E_JSON"),
    "weights beside that are empty": by_path({"model.safetensors": b""}, "E_TRUNCATED"),
    "config beside that is a FIFO": by_path({}, "E_NOT_A_FILE", special={"config.json": fifo}),
    "residual beside that is a device": by_path({}, "E_LINK", special={RESIDUAL: link_to("/dev/zero")}),
    # the files around
    "residual that is a link out of the directory": beside({}, "E_LINK", special={RESIDUAL: link_to("/etc/passwd")}),
    "config that is a link out of the directory": beside({}, "E_LINK", special={"config.json": link_to("/etc/passwd")}),
    "config that is a FIFO": beside({}, "E_NOT_A_FILE", special={"config.json": fifo}),
    "tokenizer that is a FIFO": beside({}, "E_NOT_A_FILE", special={"tokenizer.json": fifo}),
    "residual cut by a byte": beside({RESIDUAL: residual()[:-1]}, "E_PAST_END"),
    "residual of tensors that overlap": beside(
        {RESIDUAL: safetensors_file({n: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]} for n in "ab"}, bytes(4))},
        "E_OVERLAP",
    ),
}  # fmt: skip
