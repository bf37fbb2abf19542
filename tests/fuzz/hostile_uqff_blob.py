"""Hostile UQFF 0.x: lengths, types and settings that lie, keys that are no numbers, shards that do not belong together."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from support.fuzz_cases import Case, Special, fifo, link_to
from support.raw_files import safetensors_file, tensor_json
from support.uqff_files import (
    BIAS,
    BLOBS,
    CONFIG,
    RESIDUAL,
    Blob,
    afq_blob,
    blob_directory,
    blob_file,
    f8q8_blob,
    fp8_blob,
    gguf_blob,
    head,
    hqq_blob,
    mxfp4_blob,
    named_file,
    plain_blob,
    residual,
    tensor,
    u32,
)

U8, U32, F16, F32, F8 = 0, 1, 4, 6, 9
GOOD = BLOBS["gguf"]


def layer(blob: Blob, code: str, exit_code: int = 3) -> Case:
    """A file of one layer."""
    return Case({"q.uqff": blob_file([blob])}, code, exit_code=exit_code)


def keys(*names: str, code: str = "E_KEY") -> Case:
    """Good layers under these keys."""
    return Case({"q.uqff": blob_file(dict.fromkeys(names, GOOD))}, code)


def shards(files: Mapping[str, bytes], code: str, *, special: Mapping[str, Special] | None = None, exit_code: int = 3) -> Case:
    around = {"config.json": json.dumps(CONFIG).encode(), RESIDUAL: residual()}
    return Case({**files, **around}, code, is_directory=True, special=special or {}, exit_code=exit_code)


def beside(files: Mapping[str, bytes], code: str, **more: Any) -> Case:
    """A good model with these files added or in place of its own."""
    return Case({**blob_directory(), **files}, code, is_directory=True, **more)


def without(blob: Blob, count: int) -> Blob:
    return blob[: len(blob) - count]


def many_layers(count: int) -> bytes:
    """Layers of one byte each."""
    blob = plain_blob(tensor(U8, (1,), b"\x01"))
    size = len(blob)
    lines = (f'"{n}":{{"dtype":"U8","shape":[{size}],"data_offsets":[{n * size},{n * size + size}]}}' for n in range(count))
    return safetensors_file(f"{{{','.join(lines)}}}".encode(), blob * count)


NAN = struct.pack("<f", float("nan"))

HOSTILE: dict[str, Case] = {
    # the head of a layer
    "layer of no bytes": layer(b"", "E_TRUNCATED"),
    "layer of a version alone": layer(u32(0x103), "E_TRUNCATED"),
    "layer that ends after its type": layer(head(1), "E_TRUNCATED"),
    "layer of version 1.0.0": layer(head(1, 0x010000) + plain_blob()[5:], "E_VERSION", 4),
    "layer of version 65535.255.255": layer(head(1, 2**32 - 1) + plain_blob()[5:], "E_VERSION", 4),
    "layer of type 7": layer(head(7) + plain_blob()[5:], "E_LAYER_TYPE", 4),
    "layer of type 255": layer(head(255) + plain_blob()[5:], "E_LAYER_TYPE", 4),
    "byte after the layer": layer(GOOD + b"\0", "E_TRAILING"),
    "second layer after the layer": layer(GOOD + GOOD, "E_TRAILING"),
    "archive after the layer": layer(GOOD + b"PK\x03\x04" + bytes(40), "E_TRAILING"),
    # biases
    "bias that is not there": layer(gguf_blob(has_bias=1), "E_TRUNCATED"),
    "bias that is not there, flag 255": layer(afq_blob(has_bias=255), "E_TRUNCATED"),
    "bias without a flag": layer(gguf_blob(bias=BIAS, has_bias=0), "E_TRAILING"),
    "bias cut by a byte": layer(without(gguf_blob(bias=BIAS), 1), "E_TRUNCATED"),
    "bias of 4 GiB": layer(gguf_blob(bias=tensor(F32, (2,), bytes(8), length=2**32 - 4)), "E_SIZE"),
    "two biases": layer(plain_blob(bias=BIAS + BIAS, has_bias=2), "E_TRAILING"),
    # tensors
    "tensor of more bytes than its shape": layer(plain_blob(tensor(F32, (2, 2), bytes(20))), "E_SIZE"),
    "tensor of fewer bytes than its shape": layer(plain_blob(tensor(F32, (2, 2), bytes(12))), "E_SIZE"),
    "tensor of bytes that are not there": layer(plain_blob(tensor(U8, (2**20,), b"x", length=2**20)), "E_TRUNCATED"),
    "tensor of 4 GiB in 30 bytes": layer(plain_blob(tensor(U8, (2**32 - 1,), b"x", length=2**32 - 1)), "E_TRUNCATED"),
    "tensor of type 10": layer(plain_blob(tensor(10, (4,), bytes(3))), "E_DTYPE"),
    "tensor of type 13": layer(plain_blob(tensor(13, (4,), bytes(4))), "E_DTYPE"),
    "tensor of type 255": layer(plain_blob(tensor(255, (4,), bytes(4))), "E_DTYPE"),
    "tensor of type 2^32 - 1": layer(plain_blob(tensor(2**32 - 1, (4,), bytes(4))), "E_DTYPE"),
    "tensor of rank 9": layer(plain_blob(tensor(U8, (1,) * 9, b"x")), "E_LIMIT"),
    "tensor of rank 2^32 - 1": layer(plain_blob(u32(4, F32, 2**32 - 1) + bytes(64)), "E_LIMIT"),
    "tensor whose dimensions multiply beyond 2^64": layer(plain_blob(tensor(U8, (2**32 - 1,) * 3, b"x")), "E_SHAPE"),
    "tensor whose dimensions wrap to 4": layer(
        plain_blob(tensor(U8, (4194305, 4194305, 211106198), bytes(4), length=4)), "E_SHAPE"
    ),
    "tensor of no rows and too many columns": layer(plain_blob(tensor(F32, (0, 2**32 - 1, 2**32 - 1), b"")), "E_SHAPE"),
    # type 0
    "blocks cut by a byte": layer(without(GOOD, 1), "E_TRUNCATED"),
    "blocks of a length that lies upwards": layer(gguf_blob(length=2**31), "E_TRUNCATED"),
    "blocks of a length that lies downwards": layer(gguf_blob(length=34), "E_TRAILING"),
    "blocks of half the rows": layer(gguf_blob(data=bytes(34)), "E_LAYER"),
    "blocks of twice the rows": layer(gguf_blob(shape=(1, 32)), "E_LAYER"),
    "blocks of the type 4, which is gone": layer(gguf_blob(4), "E_GGML_TYPE", 4),
    "blocks of the type 16": layer(gguf_blob(16), "E_GGML_TYPE", 4),
    "blocks of the type 39": layer(gguf_blob(39), "E_GGML_TYPE", 4),
    "blocks of the type 2^32 - 1": layer(gguf_blob(2**32 - 1), "E_GGML_TYPE", 4),
    "columns that are no whole blocks": layer(gguf_blob(shape=(2, 33)), "E_LAYER"),
    "columns that are no whole blocks of 256": layer(gguf_blob(12, data=bytes(144)), "E_LAYER"),
    "blocks of a scalar": layer(gguf_blob(shape=()), "E_LAYER"),
    "blocks of rank 9": layer(gguf_blob(shape=(1,) * 9), "E_LIMIT"),
    "blocks of rank 2^32 - 1": layer(gguf_blob(rank=2**32 - 1), "E_LIMIT"),
    "blocks whose dimensions multiply beyond 2^64": layer(gguf_blob(shape=(2**32 - 32,) * 3), "E_SHAPE"),
    "length without what is beyond 32 bits, of bytes that are not there": layer(
        gguf_blob(0, (2**30 + 16,), bytes(64)), "E_TRUNCATED"
    ),
    "the same, of 2^58 elements": layer(gguf_blob(0, (2**29, 2**29), b"", length=0), "E_TRUNCATED"),
    "plain numbers of another size": layer(gguf_blob(0, data=bytes(64)), "E_LAYER"),
    # type 2
    "hqq of bits 5": layer(hqq_blob(bits=5), "E_LAYER"),
    "hqq of bits 0": layer(hqq_blob(bits=0), "E_LAYER"),
    "hqq of axis 2": layer(hqq_blob(axis=2), "E_LAYER"),
    "hqq of axis 255": layer(hqq_blob(axis=255), "E_LAYER"),
    "hqq of group 0": layer(hqq_blob(group=0), "E_CODEC_PARAMS"),
    "hqq of group 2^32 - 1": layer(hqq_blob(group=2**32 - 1), "E_CODEC_PARAMS"),
    "hqq of group 63": layer(hqq_blob(group=63), "E_CODEC_PARAMS"),
    "hqq of group 128, more than there is": layer(hqq_blob(group=128), "E_PART_SHAPE"),
    "hqq of another shape": layer(hqq_blob(shape=(4, 32)), "E_PART_SHAPE"),
    "hqq of a shape of rank 9": layer(hqq_blob(shape=(1,) * 9), "E_LIMIT"),
    "hqq with scales of another shape": layer(hqq_blob(scales=tensor(F32, (1, 2)), zeros=tensor(F32, (1, 2))), "E_PART_SHAPE"),
    "hqq with zeros of another shape": layer(hqq_blob(zeros=tensor(F32, (1, 2))), "E_LAYER"),
    "hqq with scales of bytes": layer(hqq_blob(scales=tensor(U8, (1, 1)), zeros=tensor(U8, (1, 1))), "E_LAYER"),
    "hqq with codes of u32": layer(hqq_blob(weight=tensor(U32, (32, 1))), "E_PART_SHAPE"),
    "hqq with codes of fewer rows": layer(hqq_blob(weight=tensor(U8, (31, 1))), "E_PART_SHAPE"),
    "hqq of 3 bits in bytes": layer(hqq_blob(bits=3), "E_PART_SHAPE"),
    "hqq cut in its settings": layer(without(hqq_blob(), 2), "E_TRUNCATED"),
    # type 3
    "fp8 whose weight is u8": layer(fp8_blob(weight=tensor(U8, (2, 32))), "E_LAYER"),
    "fp8 of another type": layer(fp8_blob(code=6), "E_LAYER"),
    "fp8 cut in its scales": layer(without(fp8_blob(), 5), "E_TRUNCATED"),
    # type 4
    "afq of bits 5": layer(afq_blob(bits=5), "E_LAYER"),
    "afq of bits 40": layer(afq_blob(bits=40), "E_LAYER"),
    "afq of group 0": layer(afq_blob(group=0), "E_LAYER"),
    "afq of group 255": layer(afq_blob(group=255), "E_LAYER"),
    "afq with codes of bytes": layer(afq_blob(weight=tensor(U8, (2, 16))), "E_PART_SHAPE"),
    "afq with more scales than codes": layer(afq_blob(scales=tensor(F32, (2, 2)), biases=tensor(F32, (2, 2))), "E_PART_SHAPE"),
    "afq with a scalar for scales": layer(afq_blob(scales=tensor(F32, ())), "E_LAYER"),
    "afq with scales of u8": layer(afq_blob(scales=tensor(U8, (2, 1))), "E_LAYER"),
    "afq with biases of another type": layer(afq_blob(biases=tensor(F16, (2, 1), bytes(4))), "E_PART_SHAPE"),
    "afq with so many scales that the columns overflow": layer(
        afq_blob(scales=tensor(F32, (0, 2**32 - 1, 2**26), b""), group=128), "E_SHAPE"
    ),
    # type 5
    "f8q8 of fewer blocks than the shape": layer(f8q8_blob(blocks=1, data=bytes(33)), "E_LAYER"),
    "f8q8 of more blocks than the shape": layer(f8q8_blob(blocks=3, data=bytes(99)), "E_LAYER"),
    "f8q8 of blocks that are not there": layer(f8q8_blob(blocks=2**32 - 1), "E_TRUNCATED"),
    # type 6
    "mxfp4 with codes of f16": layer(mxfp4_blob(weight=tensor(F16, (2, 8), bytes(32))), "E_PART_SHAPE"),
    "mxfp4 with scales of f32": layer(mxfp4_blob(scales=tensor(F32, (2, 1))), "E_PART_SHAPE"),
    "mxfp4 of fewer scales": layer(mxfp4_blob(scales=tensor(U8, (1, 1))), "E_PART_SHAPE"),
    "mxfp4 of columns that are no blocks": layer(mxfp4_blob(weight=tensor(U8, (2, 15))), "E_PART_SHAPE"),
    "mxfp4 of a scalar": layer(mxfp4_blob(weight=tensor(U8, ())), "E_LAYER"),
    # keys
    "key 00": keys("0", "00"),
    "key 01": keys("0", "01"),
    "key -1": keys("0", "-1"),
    "key +1": keys("0", "+1"),
    "key 1e3": keys("0", "1e3"),
    "key with a blank": keys("0", " 1"),
    "key of a superscript": keys("0", "\u00b2"),
    "key of an Arabic digit": keys("0", "\u0663"),
    "key of a full-width digit": keys("0", "\uff11"),
    "key beyond 10^10": keys("0", "10000000001"),
    "key of 400 digits": keys("0", "1" * 400),
    "key that is a name": keys("0", "model.norm.weight"),
    "key 9999999999": keys("0", "9999999999", code="E_LAYER_MISSING"),
    "keys with a gap": keys("0", "2", code="E_LAYER_MISSING"),
    "keys from 1 on": keys("1", "2", code="E_LAYER_MISSING"),
    "key twice": Case(
        {"q.uqff": safetensors_file(b'{"0":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"0":{"dtype":"U8","shape":[1],'
                                    b'"data_offsets":[0,1]}}', b"x")}, "E_JSON_DUPLICATE",
    ),
    "layer of i8": Case({"q.uqff": named_file({"0": ("I8", [len(GOOD)], GOOD)})}, "E_LAYER"),
    "layer of two dimensions": Case({"q.uqff": named_file({"0": ("U8", [len(GOOD), 1], GOOD)})}, "E_LAYER"),
    "layers that overlap": Case(
        {"q.uqff": safetensors_file({str(n): tensor_json("U8", [len(GOOD)], 0, len(GOOD)) for n in range(2)}, GOOD)},
        "E_OVERLAP",
    ),
    "300,000 layers": Case({"q.uqff": many_layers(300_000)}, "E_BUDGET"),
    # shards
    "layer in two shards": shards({"q-0.uqff": blob_file([GOOD]), "q-1.uqff": blob_file([GOOD])}, "E_DUPLICATE"),
    "shards 0 and 2": shards({"q-0.uqff": blob_file([GOOD]), "q-2.uqff": blob_file({"1": GOOD})}, "E_SHARD_MISSING"),
    "shards 1 and 2": shards({"q-1.uqff": blob_file([GOOD]), "q-2.uqff": blob_file({"1": GOOD})}, "E_CHOICE", exit_code=4),
    "shard of names after one of numbers": shards(
        {"q-0.uqff": blob_file([GOOD]), "q-1.uqff": blob_file({"lm_head.weight": GOOD})}, "E_KEY"
    ),
    "last shard empty": shards({"q-0.uqff": blob_file([GOOD]), "q-1.uqff": b""}, "E_TRUNCATED"),
    "a model with shards and one of the same name without": shards(
        {"q.uqff": blob_file([GOOD]), "q-0.uqff": blob_file([GOOD])}, "E_CHOICE", exit_code=4
    ),
    "shard that is a link out of the directory": shards(
        {"q-0.uqff": blob_file([GOOD])}, "E_LINK", special={"q-1.uqff": link_to("/etc/passwd")}
    ),
    "shard that is a FIFO": shards({"q-0.uqff": blob_file([GOOD])}, "E_NOT_A_FILE", special={"q-1.uqff": fifo}),
    # the files around
    "residual cut by a byte": beside({RESIDUAL: residual()[:-1]}, "E_PAST_END"),
    "residual that is empty": beside({RESIDUAL: b""}, "E_TRUNCATED"),
    "residual with a header of 2^63": beside({RESIDUAL: struct.pack("<Q", 2**63) + b"{}"}, "E_HEADER_SIZE"),
    "residual with typed metadata that is no JSON": beside(
        {RESIDUAL: named_file({}, {"flyweight.metadata": "{"})}, "E_JSON"
    ),
    "residual that is a link out of the directory": Case(
        blob_directory() | {"config.json": b"{}"}, "E_LINK", is_directory=True,
        special={"tokenizer.json": link_to("/etc/passwd")},
    ),
    "index of shards that are not there": shards(
        {"q-0.uqff": blob_file([GOOD]), "model.safetensors.index.json": b'{"weight_map": {"a": "../../etc/passwd"}}'},
        "E_SHARD_NAME",
    ),
}  # fmt: skip
