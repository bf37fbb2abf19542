"""Hostile GGUF files, whole and split."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from support.fuzz_cases import Case
from support.raw_files import GgufTensor, KeyValue, gguf_file, gguf_string

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARRAY, U64, I64, F64 = range(13)
TYPE_F32, TYPE_Q4_0, TYPE_Q4_K, TYPE_I8 = 0, 2, 12, 24


def lone(raw: bytes, code: str, *, exit_code: int = 3) -> Case:
    return Case({"model.gguf": raw}, code, exit_code=exit_code)


def keys(*pairs: KeyValue, code: str, **more: Any) -> Case:
    return lone(gguf_file(pairs, **more), code)


def tensors(*table: GgufTensor, code: str, data: bytes = b"", exit_code: int = 3, head: Iterable[KeyValue] = ()) -> Case:
    return lone(gguf_file(head, table, data), code, exit_code=exit_code)


def array(item: int, count: int, rest: bytes = b"") -> bytes:
    return struct.pack("<IQ", item, count) + rest


def nested(depth: int) -> bytes:
    return array(ARRAY, 1) * (depth - 1) + array(U8, 1, b"\0")


def part(number: int, count: int, total: int, *names: str, more: Iterable[KeyValue] = ()) -> bytes:
    """A part of a split model; each tensor is four floats."""
    split = [
        KeyValue("split.no", U16, number),
        KeyValue("split.count", U16, count),
        KeyValue("split.tensors.count", I32, total),
    ]
    table = [GgufTensor(name, (8,), TYPE_F32, 32 * i) for i, name in enumerate(names)]
    return gguf_file([*more, *split], table, bytes(32 * len(names)))


def name(number: int, count: int) -> str:
    return f"m-{number:05d}-of-{count:05d}.gguf"


def split(*parts: bytes, code: str, count: int | None = None, opened: int = 1, is_directory: bool = False) -> Case:
    count = len(parts) if count is None else count
    files = {name(i, count): raw for i, raw in enumerate(parts, 1)}
    return Case(files, code, is_directory=is_directory, opened="" if is_directory else name(opened, count))


ALIGNED = KeyValue("general.alignment", U32, 64)
W = GgufTensor("w", (8,), TYPE_F32, 0)

HOSTILE: dict[str, Case] = {
    # the frame
    "magic only": lone(b"GGUF", "E_TRUNCATED"),
    "header cut": lone(gguf_file()[:20], "E_TRUNCATED"),
    "version 0": lone(gguf_file(version=0), "E_GGUF_VERSION", exit_code=4),
    "version 1": lone(gguf_file(version=1), "E_GGUF_VERSION", exit_code=4),
    "version 2^31+1": lone(gguf_file(version=2**31 + 1), "E_GGUF_VERSION", exit_code=4),
    "big-endian": lone(b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(8), "E_GGUF_BIG_ENDIAN", exit_code=4),
    "2^63 metadata keys": lone(gguf_file(key_count=2**63), "E_LIMIT"),
    "100,000 metadata keys in a short file": lone(gguf_file(key_count=100_000), "E_TRUNCATED"),
    "2^62 tensors": lone(gguf_file(tensor_count=2**62), "E_LIMIT"),
    "a million tensors in a short file": lone(gguf_file(tensor_count=1_000_000), "E_TRUNCATED"),
    # metadata
    "array of 2^63 items in 49 bytes": keys(KeyValue("k", ARRAY, array(U8, 2**63)), code="E_LIMIT", alignment=1),
    "array of 16 million strings in a short file": keys(KeyValue("k", ARRAY, array(STR, 16 * 2**20)), code="E_TRUNCATED"),
    "array longer than the file": keys(KeyValue("k", ARRAY, array(I64, 1000)), code="E_TRUNCATED"),
    "string of 2^63 bytes": keys(KeyValue("k", STR, gguf_string("x", length=2**63)), code="E_TRUNCATED"),
    "string of 2^64-1 bytes": keys(KeyValue("k", STR, gguf_string("x", length=2**64 - 1)), code="E_TRUNCATED"),
    "string one byte too long": lone(
        gguf_file([KeyValue("k", STR, gguf_string("x", length=2))], alignment=1), "E_TRUNCATED"
    ),
    "string in an array beyond the file": keys(
        KeyValue("k", ARRAY, array(STR, 2, gguf_string("a") + gguf_string("b", length=2**40))), code="E_TRUNCATED"
    ),
    "key of 2^63 bytes": lone(gguf_file(key_count=1, alignment=1) + gguf_string("k", length=2**63) + bytes(16), "E_TRUNCATED"),
    "key of 70,000 bytes": keys(KeyValue("k" * 70_000, U8, 1), code="E_LIMIT"),
    "empty key": keys(KeyValue("", U8, 1), code="E_KEY"),
    "key twice": keys(KeyValue("k", U8, 1), KeyValue("k", U8, 1), code="E_DUPLICATE_KEY"),
    "key not UTF-8": keys(KeyValue(b"\xff", U8, 1), code="E_UTF8"),
    "string not UTF-8": keys(KeyValue("k", STR, gguf_string(b"\xed\xa0\x80")), code="E_UTF8"),
    "string in an array not UTF-8": keys(
        KeyValue("k", ARRAY, array(STR, 2, gguf_string("a") + gguf_string(b"\xff"))), code="E_UTF8"
    ),
    "value type 13": keys(KeyValue("k", 13, b"\0" * 8), code="E_GGUF_VALUE_TYPE"),
    "value type 2^32-1": keys(KeyValue("k", 2**32 - 1, b"\0" * 8), code="E_GGUF_VALUE_TYPE"),
    "array of value type 13": keys(KeyValue("k", ARRAY, array(13, 1, bytes(8))), code="E_GGUF_VALUE_TYPE"),
    "bool 2": keys(KeyValue("k", BOOL, b"\x02"), code="E_BOOL"),
    "bool 255 in an array": keys(KeyValue("k", ARRAY, array(BOOL, 3, b"\0\x01\xff")), code="E_BOOL"),
    "arrays nested five deep": keys(KeyValue("k", ARRAY, nested(5)), code="E_ARRAY_DEPTH"),
    "arrays nested 50,000 deep": keys(KeyValue("k", ARRAY, nested(50_000)), code="E_ARRAY_DEPTH"),
    "array of arrays of two types": keys(
        KeyValue("k", ARRAY, array(ARRAY, 2, array(U8, 1, b"\0") + array(I8, 1, b"\0"))), code="E_GGUF_VALUE_TYPE"
    ),
    "array of 2^40 arrays": keys(KeyValue("k", ARRAY, array(ARRAY, 2**40)), code="E_LIMIT"),
    # alignment
    "alignment 0": keys(KeyValue("general.alignment", U32, 0), code="E_ALIGNMENT"),
    "alignment 24": keys(KeyValue("general.alignment", U32, 24), code="E_ALIGNMENT"),
    "alignment 2^31": keys(KeyValue("general.alignment", U32, 2**31), code="E_ALIGNMENT"),
    "alignment signed": keys(KeyValue("general.alignment", I32, 32), code="E_ALIGNMENT"),
    "alignment as text": keys(KeyValue("general.alignment", STR, "32"), code="E_ALIGNMENT"),
    # tensors
    "tensor table cut": lone(gguf_file([], [W, W])[:-40], "E_TRUNCATED"),
    "tensor twice": tensors(W, W._replace(offset=32), code="E_DUPLICATE", data=bytes(64)),
    "tensor with an empty name": tensors(W._replace(name=""), code="E_NAME", data=bytes(32)),
    "tensor name of 2,000 bytes": tensors(W._replace(name="w" * 2000), code="E_LIMIT", data=bytes(32)),
    "tensor name of 2^63 bytes": lone(
        gguf_file(tensor_count=1, alignment=1) + gguf_string("w", length=2**63) + bytes(32), "E_TRUNCATED"
    ),
    "tensor name not UTF-8": tensors(W._replace(name=b"\xc3\x28"), code="E_UTF8", data=bytes(32)),
    "rank 5": tensors(W._replace(dims=(1,) * 5), code="E_RANK", data=bytes(32)),
    "rank 2^32-1": tensors(W._replace(rank=2**32 - 1), code="E_RANK", data=bytes(32)),
    "element count wraps to 4": tensors(
        W._replace(dims=(4194305, 4194305, 211106198978564)), code="E_SHAPE", data=bytes(32)
    ),
    "2^63-1 rows of two": tensors(W._replace(dims=(2**63 - 1, 2), kind=TYPE_I8), code="E_SHAPE", data=bytes(32)),
    "dimension 2^64-1": tensors(W._replace(dims=(2**64 - 1,)), code="E_SHAPE", data=bytes(32)),
    "type 4, withdrawn": tensors(W._replace(kind=4), code="E_GGUF_TYPE", data=bytes(32), exit_code=4),
    "type 2^32-1": tensors(W._replace(kind=2**32 - 1), code="E_GGUF_TYPE", data=bytes(32), exit_code=4),
    "row of 31 weights in blocks of 32": tensors(W._replace(dims=(31,), kind=TYPE_Q4_0), code="E_ROW", data=bytes(32)),
    "row of 128 weights in blocks of 256": tensors(W._replace(dims=(128, 2), kind=TYPE_Q4_K), code="E_ROW", data=bytes(160)),
    "scalar in blocks": tensors(W._replace(dims=(), kind=TYPE_Q4_0), code="E_ROW", data=bytes(32)),
    "declared more than there is": tensors(W._replace(dims=(4096, 4096)), code="E_PAST_END", data=bytes(32)),
    "one byte short": lone(gguf_file([], [W], bytes(31)), "E_PAST_END"),
    "no data at all": lone(gguf_file([], [W], alignment=1), "E_PAST_END"),
    "offset not aligned": tensors(W, GgufTensor("v", (8,), TYPE_F32, 33), code="E_ALIGNMENT", data=bytes(96)),
    "offset not aligned to 64": tensors(
        W, GgufTensor("v", (8,), TYPE_F32, 32), code="E_ALIGNMENT", data=bytes(256), head=[ALIGNED]
    ),
    "offset 2^64-32": tensors(W._replace(offset=2**64 - 32), code="E_PAST_END", data=bytes(32)),
    "first tensor not at the start": tensors(W._replace(offset=32), code="E_HOLE", data=bytes(64)),
    "two tensors on the same bytes": tensors(W, W._replace(name="v"), code="E_OVERLAP", data=bytes(32)),
    "tensor inside another": tensors(
        W._replace(dims=(32,)), GgufTensor("v", (8,), TYPE_F32, 64), code="E_OVERLAP", data=bytes(128)
    ),
    "hole between tensors": tensors(W, GgufTensor("v", (8,), TYPE_F32, 64), code="E_HOLE", data=bytes(96)),
    "trailing archive": tensors(W, code="E_TRAILING", data=bytes(32) + b"PK\x03\x04"),
    "trailing bytes and no tensors": lone(gguf_file() + bytes(64), "E_TRAILING"),
    # splits
    "split, other parts missing": split(part(0, 2, 2, "a"), code="E_SPLIT_MISSING", count=2),
    "split into 65,535 with the rest missing": split(part(0, 65535, 1, "a"), code="E_SHARDS", count=65535),
    "split named otherwise": Case({"model.gguf": part(0, 2, 2, "a")}, "E_SPLIT"),
    "split name disagrees about the count": Case({name(1, 3): part(0, 2, 2, "a"), name(2, 2): part(1, 2, 2, "b")}, "E_SPLIT"),
    "two parts with the same number": split(part(0, 2, 2, "a"), part(0, 2, 2, "b"), code="E_SPLIT"),
    "parts in the wrong order": split(part(1, 2, 2, "a"), part(0, 2, 2, "b"), code="E_SPLIT"),
    "parts disagree about the count": split(part(0, 2, 2, "a"), part(1, 3, 2, "b"), code="E_SPLIT"),
    "part that is not split": split(part(0, 2, 2, "a"), gguf_file([], [W], bytes(32)), code="E_SPLIT"),
    "part that is truncated": split(part(0, 2, 2, "a"), part(1, 2, 2, "b")[:-1], code="E_PAST_END"),
    "tensor in two parts": split(part(0, 2, 2, "a"), part(1, 2, 2, "a"), code="E_DUPLICATE"),
    "split of more tensors than there are": split(part(0, 2, 3, "a"), part(1, 2, 3, "b"), code="E_SPLIT"),
    "split with a negative total": split(part(0, 2, -1, "a"), part(1, 2, -1, "b"), code="E_SPLIT"),
    "split count as text": lone(gguf_file([KeyValue("split.count", STR, "2")]), "E_SPLIT"),
    "parts disagree about a key": split(
        part(0, 2, 2, "a", more=[KeyValue("k", U8, 1)]), part(1, 2, 2, "b", more=[KeyValue("k", U8, 2)]), code="E_SPLIT"
    ),
    "second part opened, first missing": Case({name(2, 2): part(1, 2, 2, "b")}, "E_SPLIT_MISSING"),
    "directory of an incomplete split": split(
        part(0, 3, 3, "a"), part(1, 3, 3, "b"), code="E_SPLIT_MISSING", count=3, is_directory=True
    ),
    "directory of two whole files": Case(
        {name(1, 2): gguf_file([], [W], bytes(32)), name(2, 2): gguf_file([], [W], bytes(32))}, "E_SPLIT", is_directory=True
    ),
}  # fmt: skip
