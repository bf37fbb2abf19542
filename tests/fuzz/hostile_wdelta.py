"""Hostile .wdelta files, each beside the base that it is opened on: the header, records, what only ours have, payloads."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from blake3 import blake3

from support.fuzz_cases import Case, fifo, link_to
from support.wdelta_files import (
    BASE,
    MAGIC,
    NAME,
    PUBLIC,
    SPARSE,
    TUNED,
    Field,
    array,
    as_public,
    drifted,
    edited,
    int4,
    low_rank,
    made_of,
    public,
    signs,
    sparse,
    taken_apart,
    v1_hash,
    with_records,
    written,
)

OURS = made_of(BASE, TUNED)
U32, U64 = (struct.Struct(f"<{letter}").pack for letter in "IQ")


def lone(raw: bytes, code: str, *, exit_code: int = 3, **special: Any) -> Case:
    files = {NAME: raw} | {f"base/{name}": data for name, data in BASE.items()}
    return Case(files, code, opened=NAME, base="base", exit_code=exit_code, special=special)


def header(change: Callable[[dict[str, Any]], object] | bytes, code: str, *, exit_code: int = 3) -> Case:
    return lone(edited(OURS, change), code, exit_code=exit_code)


def text(old: bytes, new: bytes, code: str) -> Case:
    raw, _ = taken_apart(OURS)
    assert old in raw
    return header(raw.replace(old, new, 1), code)


def tensor(code: str, name: str = "c.bias", *, exit_code: int = 3, **fields: Any) -> Case:
    """Fields of a tensor's description replaced; those of "absent" removed."""

    def change(document: dict[str, Any]) -> None:
        about = document["tensors"][name]
        about |= fields
        for key in [key for key, value in fields.items() if value == "absent"]:
            del about[key]

    return header(change, code, exit_code=exit_code)


def own(code: str, *, exit_code: int = 3, **fields: Any) -> Case:
    return header(lambda document: document["flyweight"].update(fields), code, exit_code=exit_code)


def parent(path: object, code: str, *, exit_code: int = 1, **special: Any) -> Case:
    """A delta that is opened by itself, and says that its base is elsewhere."""
    raw = edited(OURS, lambda document: document["flyweight"]["parent"].update(path=path))
    files = {NAME: raw} | {f"base/{name}": data for name, data in BASE.items()}
    return Case(files, code, opened=NAME, exit_code=exit_code, special=special)


def records(change: Callable[[list[Field]], list[Field]], code: str, *, exit_code: int = 3) -> Case:
    return lone(with_records(OURS, change), code, exit_code=exit_code)


def replaced(of: str, array_field: str, code: str, **fields: Any) -> Case:
    """What is said in front of an array."""
    key = of.encode(), array_field.encode()
    return records(lambda every: [r._replace(**fields) if (r.tensor, r.field) == key else r for r in every], code)


def payload(
    tensor: str, field: str, change: Callable[[bytes], bytes], code: str, *, digest: bool = True, is_bare: bool = False
) -> Case:
    """Another array, and where it ends, their digest right; without digests where the file `is_bare`."""
    key, (head, every) = tensor.encode(), taken_apart(OURS)
    arrays = {bytes(record.field): record.data for record in every if record.tensor == key}
    arrays[field.encode()] = change(arrays[field.encode()])
    if field == "chunks" and arrays[b"ends"]:
        arrays[b"ends"] = U64(len(arrays[b"chunks"]))
    mine = [Field(key, name, data, "uint64" if name == b"ends" else "uint8") for name, data in arrays.items()]
    document = json.loads(head)
    if digest:
        document["tensors"][tensor]["stored_digest"] = blake3(b"".join(arrays.values())).hexdigest()
    if not is_bare:
        return lone(written(document, [record for record in every if record.tensor != key] + mine), code)
    document["tensors"] = {tensor: document["tensors"][tensor]}
    return lone(as_public(written(document, mine)), code)


def file(
    name: str, code: str, patch: bytes | None = None, *, nbytes: Any = 2, digest: str | None = None, exit_code: int = 3
) -> Case:
    """A side file more."""
    stored = zlib.compress(np.array([1, 2, 0, 0], "<u4").tobytes() + b"{}") if patch is None else patch
    head, every = taken_apart(OURS)
    every = [record for record in every if record.field != f"file:{name}".encode()]
    document = json.loads(head)
    document["flyweight"]["files"][name] = {"nbytes": nbytes, "digest": blake3(b"{}").hexdigest() if digest is None else digest}
    return lone(written(document, [*every, Field("", f"file:{name}", stored)]), code, exit_code=exit_code)


def steps(*numbers: int, literals: bytes = b"") -> bytes:
    """A patch: of each step the bytes of literals, from where to copy and how many bytes."""
    table = np.array(numbers, "<u4").reshape(-1, 3).T
    return zlib.compress(U32(table.shape[1]) + table.tobytes() + literals)


def metadata(raw: bytes, code: str, *, right: bool = True) -> Case:
    head, every = taken_apart(OURS)
    document = json.loads(head)
    if right:
        document["flyweight"]["result"]["metadata_digest"] = blake3(raw).hexdigest()
    every = [record for record in every if record.field != b"metadata"]
    return lone(written(document, [*every, Field("", "metadata", raw)]), code)


def described(about: Any, *stored: Field, code: str, exit_code: int = 3, name: str = "c.bias") -> Case:
    """A file of the public kind with one tensor."""
    return lone(public({name: about}, list(stored)), code, exit_code=exit_code)


def twins(**pairs: str) -> bytes:
    """Tensors of a file of the public kind that say they are others of it."""
    about = {"strategy": "same", "shape": [8], "dtype": "float32"}
    tensors = {name: {**about, "twin": twin} for name, twin in pairs.items()}
    return written({"parent_hash": v1_hash([]), "strategy": "exact", "tensors": tensors})


def huge(strategy: str) -> bytes:
    """336 bytes for which the public reader allocates 3 GiB."""
    about = {
        "strategy": strategy,
        "shape": [1 << 29, 3],
        "dtype": "float32",
        "n_elements": 3 << 29,
        "n_cols": 3,
        "sparsity": 0.9,
    }
    stored = {
        "sparse": [array("c.bias", "indices", [0], "int64"), array("c.bias", "values", [1.0], "float32")],
        "quantized": [array("c.bias", "scales", [1.0], "float16"), array("c.bias", "packed_signs", [0], "uint8")],
    }
    return public({"c.bias": about}, stored[strategy])


def coded(codec: str, part: str, shape: list[int], dtype: str, code: str) -> Case:
    """A tensor of 32 numbers in a codec, new, with one part that is what is said, and stored so."""
    raw = bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize)
    fields = {f"{part}.tables": b"", f"{part}.chunks": raw, f"{part}.ends": b""}
    stored = [Field("x", field, data, "uint64" if field.endswith("ends") else "uint8") for field, data in fields.items()]
    about = {
        "strategy": "exact", "shape": [1, 32], "dtype": "float32", "codec": {"name": codec, "params": {}}, "new": True,
        "digest": blake3(raw).hexdigest(), "parts": {part: {"shape": shape, "dtype": dtype, "coding": "plain"}},
        **{field: {"_ref": field} for field in fields},
    }  # fmt: skip
    head, every = taken_apart(OURS)
    document = json.loads(head)
    document["tensors"]["x"] = about
    return lone(written(document, [*every, *stored]), code)


ONE = [array("c.bias", "indices", [1], "int64"), array("c.bias", "values", [1.0], "float32")]
DEEP = b"[" * 200 + b"]" * 200

PAYLOADS: dict[str, tuple[str, str, Callable[[bytes], bytes]]] = {
    "table beyond the last": ("E_DELTA", "tables", lambda raw: b"\xff" + raw[1:]),
    "tables cut": ("E_PART_VALUES", "tables", lambda raw: raw[:-3]),
    "tables of zeros": ("E_PART_VALUES", "tables", lambda raw: bytes(len(raw))),
    "no tables": ("E_DELTA", "tables", lambda _: b""),
    "frequencies beyond 4096": ("E_PART_VALUES", "tables", lambda raw: raw[:256] + b"\xff\xff" * 40),
    "chunk of no states": ("E_DELTA", "chunks", lambda raw: raw[:100]),
    "chunk of 2^32-1 words": ("E_DELTA", "chunks", lambda raw: b"\xff" * 4 + raw[4:]),
    "chunk of a megabyte": ("E_DELTA", "chunks", lambda raw: raw + bytes(1 << 20)),
    "states of zeros": ("E_PART_VALUES", "chunks", lambda raw: raw[:4] + bytes(128) + raw[132:]),
    "states of ones": ("E_PART_VALUES", "chunks", lambda raw: raw[:4] + b"\xff" * 128 + raw[132:]),
    "low bits more": ("E_PART_VALUES", "chunks", lambda raw: raw + bytes(9)),
    "ends beyond the chunks": ("E_DELTA", "ends", lambda _: U64(2**64 - 1)),
    "ends before the chunks": ("E_DELTA", "ends", lambda _: U64(1)),
}
"""The error where no digest tells it before, the array, and what is done to it."""

HOSTILE: dict[str, Case] = {
    # the frame
    "magic only": lone(MAGIC, "E_TRUNCATED"),
    "cut in the length": lone(OURS[:13], "E_TRUNCATED"),
    "cut in the header": lone(OURS[:200], "E_TRUNCATED"),
    "cut in the records": lone(OURS[:-500], "E_RECORD"),
    "without its last byte": lone(OURS[:-1], "E_RECORD"),
    "three bytes more": lone(OURS + b"abc", "E_TRUNCATED"),
    "version 0": lone(written(taken_apart(OURS)[0], taken_apart(OURS)[1], version=0), "E_VERSION", exit_code=4),
    "version 3": lone(written(taken_apart(OURS)[0], taken_apart(OURS)[1], version=3), "E_VERSION", exit_code=4),
    "header of 4 GiB": lone(OURS[:11] + U32(2**32 - 1) + OURS[15:], "E_HEADER_SIZE"),
    "header of no bytes": lone(written(b"", b"", length=0), "E_JSON"),
    "another header than its digest": lone(OURS.replace(b"exact", b"exacT", 1), "E_CHECKSUM"),
    "no digest of the header": lone(written(*taken_apart(OURS), digest=False), "E_CHECKSUM"),
    "public, checksum wrong": lone(PUBLIC["sparse"][:-1] + b"!", "E_CHECKSUM"),
    # the header's text
    "not JSON": header(b"wdelta", "E_JSON"),
    "a list": header(b"[]", "E_HEADER"),
    "not UTF-8": header(b'{"\xff": 1}', "E_UTF8"),
    "key twice": text(b'"strategy": "exact"', b'"strategy": "exact", "strategy": "exact"', "E_JSON_DUPLICATE"),
    "nested 200 deep": text(b'"kept": {', b'"deep": ' + DEEP + b', "kept": {', "E_JSON_DEPTH"),
    "NaN": text(b'"version": 1', b'"version": NaN', "E_JSON"),
    "lone surrogate in a name": text(b'"c.bias"', b'"\\ud800"', "E_UTF8"),
    "integer of 900 digits": text(b'"nbytes": 59', b'"nbytes": ' + b"9" * 900, "E_DELTA_FILE"),
    "five million lists": header(b'{"parent_hash":"","flyweight":[' + b"[]," * 5_000_000 + b"0]}", "E_BUDGET"),
    "no tensors": header(lambda document: document.pop("tensors"), "E_HEADER"),
    "tensors are a list": header(lambda document: document.update(tensors=[]), "E_HEADER"),
    "a hash that is a number": header(lambda document: document.update(parent_hash=1), "E_HEADER"),
    # tensors
    "a tensor is a list": header(lambda document: document["tensors"].update({"c.bias": []}), "E_DELTA"),
    "a tensor without a name": header(
        lambda document: document["tensors"].update({"": document["tensors"]["c.bias"]}), "E_NAME"
    ),
    "NUL in a name": header(lambda document: document["tensors"].update({"\0": document["tensors"]["c.bias"]}), "E_NAME"),
    "unknown strategy": tensor("E_STRATEGY", strategy="magic", exit_code=4),
    "unknown type": tensor("E_DTYPE", dtype="float99"),
    "type of the public tool's reader": tensor("E_DELTA", dtype="complex64"),
    "negative dimension": tensor("E_SHAPE", shape=[-8]),
    "dimension true": tensor("E_SHAPE", shape=[True]),
    "dimension 8.0": tensor("E_SHAPE", shape=[8.0]),
    "shape of 2^80 elements": tensor("E_SHAPE", shape=[2**40, 2**40]),
    "shape of 2^50 elements": tensor("E_DELTA", shape=[2**50]),
    "shape of nine dimensions": tensor("E_RANK", shape=[1] * 9),
    "one element more": tensor("E_DIGEST", shape=[9]),
    "coding unknown": tensor("E_DELTA", coding="zip"),
    "coding a list": tensor("E_DELTA", coding=[]),
    "coding of floats on integers": tensor("E_DELTA", "e.ids", coding="words"),
    "reference to another field": tensor("E_DELTA", tables={"_ref": "chunks"}),
    "reference to nothing": tensor("E_DELTA", more={"_ref": "more"}),
    "reference that is a number": tensor("E_DELTA", tables={"_ref": 1}),
    "no reference": tensor("E_DELTA", chunks="absent"),
    "digest of 63 digits": tensor("E_DELTA", digest="0" * 63),
    "no digest": tensor("E_DELTA", digest="absent"),
    "digest of another result": tensor("E_DIGEST", digest="0" * 64),
    "parent is a number": tensor("E_DELTA", parent=1),
    "parent that is not there": tensor("E_PARENT", parent="nobody", exit_code=1),
    "parent of another shape": tensor("E_PARENT", parent_spec={"shape": [9], "dtype": "float32"}, exit_code=1),
    "parent_spec is a text": tensor("E_DELTA", parent_spec="f32"),
    "another name for a tensor of another digest": tensor("E_PARENT", "l.new_name", digest="0" * 64, exit_code=1),
    "twin of itself": tensor("E_DELTA", "m.twin", twin="m.twin"),
    "twin of nobody": tensor("E_DELTA", "m.twin", twin="nobody"),
    "twin of another shape": tensor("E_DELTA", "m.twin", twin="c.bias"),
    "same as two": tensor("E_DELTA", "m.twin", parent="c.bias"),
    "same as none": tensor("E_DELTA", "m.twin", twin="absent"),
    "public, twin of itself": lone(twins(a="a"), "E_DELTA"),
    "public, twins in a ring": lone(twins(a="b", b="c", c="a"), "E_DELTA"),
    "public, twin of nobody": lone(twins(a="nobody"), "E_DELTA"),
    "codec of no name": tensor("E_DELTA", codec={"params": {}}),
    "codec nested ten deep": tensor("E_DELTA", codec=json.loads('{"name":"a","params":{"inner":' * 9 + "1" + "}}" * 9)),
    "codec whose parts are others": coded("q4_0", "blocks", [8], "float32", "E_PART_SHAPE"),
    "codec whose parts are fewer": coded("q4_0", "blocks", [1, 17], "uint8", "E_PART_SHAPE"),
    "codec of no such parts": coded("q4_0", "scales", [1, 18], "uint8", "E_PARTS"),
    "plain tensor of other parts": coded("raw", "data", [9], "float32", "E_PART_SHAPE"),
    "parts are none": tensor("E_DELTA", parts={}),
    "a hundred parts": tensor("E_DELTA", parts={str(n): {"shape": [1], "dtype": "float32"} for n in range(100)}),
    "a part of no shape": tensor("E_DELTA", parts={"data": {"dtype": "float32"}}),
    # records
    "record of 2^63 bytes": replaced("c.bias", "tables", "E_RECORD", nbytes=2**63),
    "record one byte longer": replaced("c.bias", "tables", "E_RECORD", nbytes=441),
    "record of 2^32-1 dimensions": replaced("c.bias", "tables", "E_RANK", rank=2**32 - 1),
    "record of 2^64-1 elements": replaced("c.bias", "tables", "E_SHAPE", shape=(2**64 - 1,)),
    "record of 2^40 × 0 elements": replaced("c.bias", "tables", "E_RECORD", shape=(2**40, 0)),
    "record of objects": replaced("c.bias", "tables", "E_DTYPE", dtype="object", shape=(1,)),
    "record of big-endian floats": replaced("c.bias", "tables", "E_DTYPE", dtype=">f4", shape=(1,)),
    "record of structures": replaced("c.bias", "tables", "E_DTYPE", dtype="u1,u1", shape=(1,)),
    "record of another type": replaced("c.bias", "tables", "E_DELTA", dtype="int8"),
    "record of a tensor whose name is not UTF-8": replaced("c.bias", "tables", "E_UTF8", tensor=b"\xff"),
    "record of a name of 2 KB": replaced("c.bias", "tables", "E_NAME", tensor=b"x" * 2048),
    "record twice": records(lambda every: [*every, every[0]], "E_DUPLICATE"),
    "record missing": records(lambda every: every[1:], "E_DELTA"),
    "every record missing": records(lambda _: [], "E_DELTA"),
    # what only ours have
    "flyweight is a text": header(lambda document: document.update(flyweight="1"), "E_HEADER"),
    "kept is a list": own("E_HEADER", kept=[]),
    "kept without a digest": own("E_DELTA", kept={"j.kept": None}),
    "kept and changed": own("E_DELTA", kept={"c.bias": "0" * 64}),
    "kept, not in the base": own("E_PARENT", kept={"nobody": "0" * 64}, exit_code=1),
    "kept of another digest": own("E_PARENT", kept={"j.kept": "0" * 64}, exit_code=1),
    "removed file that is a number": own("E_DELTA", removed_files=[1]),
    "files are a list": own("E_HEADER", files=[]),
    "parent is a list": own("E_HEADER", parent=[]),
    "path is a number": parent(1, "E_DELTA", exit_code=3),
    "path that is nowhere": parent("nowhere", "E_PARENT"),
    "path with NUL": parent("ba\0se", "E_PARENT"),
    "path of 5,000 bytes": parent("x" * 5000, "E_PARENT"),
    "path that is a URL": parent("https://example.org/base", "E_PARENT"),
    "path to a system file": parent("/etc/passwd", "E_UNKNOWN_FORMAT", exit_code=4),
    "path to a device": parent("/dev/zero", "E_NOT_A_FILE", exit_code=3),
    "path to a FIFO": parent("pipe", "E_NOT_A_FILE", exit_code=3, pipe=fifo),
    "path to a link to nowhere": parent("link", "E_PARENT", link=link_to("nowhere")),
    "path to itself": parent(NAME, "E_CHAIN", exit_code=3),
    "path to itself, by a link": parent("link.wdelta", "E_CHAIN", exit_code=3, **{"link.wdelta": link_to(NAME)}),
    # side files
    "side file above": file("../x.json", "E_FILE_NAME"),
    "side file above, further in": file("a/../../x.json", "E_FILE_NAME"),
    "side file at the root": file("/tmp/x.json", "E_FILE_NAME"),
    "side file of no name": file("", "E_FILE_NAME"),
    "side file .": file(".", "E_FILE_NAME"),
    "side file ..": file("..", "E_FILE_NAME"),
    "side file that is a folder": file("a/", "E_FILE_NAME"),
    "side file in a hidden folder": file(".git/hooks/pre-commit", "E_FILE_NAME"),
    "side file with NUL": file("a\0b", "E_FILE_NAME"),
    "side file of another system's root": file("C:\\x.json", "E_FILE_NAME"),
    "side file over the weights": file("model.safetensors", "E_FILE_NAME"),
    "side file over the index": file("model.safetensors.index.json", "E_FILE_NAME"),
    "side file without a record": own("E_DELTA_FILE", files={"x.json": {"nbytes": 2, "digest": "0" * 64}}),
    "side file of -1 bytes": file("x.json", "E_DELTA_FILE", nbytes=-1),
    "side file of true bytes": file("x.json", "E_DELTA_FILE", nbytes=True),
    "side file of 2^40 bytes": file("x.json", "E_DELTA_FILE", nbytes=2**40),
    "side file of another digest": file("x.json", "E_PARENT", digest="0" * 64, exit_code=1),
    "patch that is no zlib": file("x.json", "E_DELTA_FILE", b"{}"),
    "patch that inflates to 64 MB": file("x.json", "E_DELTA_FILE", zlib.compress(bytes(64 << 20), 1)),
    "patch that inflates to steps": file(
        "x.json", "E_DELTA_FILE", zlib.compress(U32(2**32 - 1) + bytes(8 << 20)), nbytes=8 << 20
    ),
    "side files of 128 MB": own(
        "E_DELTA_FILE",
        files={"config.json": {"nbytes": 64 << 20, "digest": "0" * 64}, "README.md": {"nbytes": 64 << 20, "digest": "0" * 64}},
    ),
    "patch of 2^32-1 steps": file("x.json", "E_DELTA_FILE", zlib.compress(U32(2**32 - 1))),
    "patch that copies beyond": file("config.json", "E_PARENT", steps(0, 50, 50), nbytes=50, exit_code=1),
    "patch that copies 2^32-1 bytes": file("config.json", "E_DELTA_FILE", steps(0, 0, 2**32 - 1), nbytes=2),
    "patch of literals that are not there": file("x.json", "E_DELTA_FILE", steps(2, 0, 0)),
    "patch of another size": file("x.json", "E_PARENT", steps(1, 0, 0, literals=b"{"), exit_code=1),
    "patch with more behind it": file("x.json", "E_DELTA_FILE", steps(2, 0, 0, literals=b"{}") + b"more"),
    "metadata that are no JSON": metadata(b"{", "E_JSON"),
    "metadata that are an object": metadata(b"{}", "E_METADATA"),
    "metadata of an unknown type": metadata(b'[["a","f99",1]]', "E_METADATA"),
    "metadata of another digest": metadata(b"[]", "E_DIGEST", right=False),
    "metadata not UTF-8": metadata(b"\xff", "E_UTF8"),
    "no metadata": records(lambda every: [record for record in every if record.field != b"metadata"], "E_DELTA"),
    # payloads: what has digests does not match them; without them it is found by itself
    **{f"ours, {name}": payload("c.bias", *what, "E_DIGEST") for name, (_, *what) in PAYLOADS.items()},
    **{f"bare, {name}": payload("c.bias", *what, code, is_bare=True) for name, (code, *what) in PAYLOADS.items()},
    "tables too long": payload("c.bias", "tables", lambda raw: raw + bytes(20_000), "E_DELTA"),
    "an end too many": payload("c.bias", "ends", lambda raw: raw + raw, "E_DELTA"),
    "plain bytes missing": payload("d.bytes", "chunks", lambda raw: raw[:-1], "E_DELTA"),
    "drift of a cell beyond": lone(drifted(OURS, [[1 << 14, 1]]), "E_DELTA"),
    "drift of cell -1": lone(drifted(OURS, [[-1, 1]]), "E_DELTA"),
    "drift of cells descending": lone(drifted(OURS, [[5, 1], [4, 1]]), "E_DELTA"),
    "drift of a cell twice": lone(drifted(OURS, [[5, 1], [5, 1]]), "E_DELTA"),
    "drift of 2^31-1 steps": lone(drifted(OURS, [[5, 2**31 - 1]]), "E_DELTA"),
    "drift that is not there": lone(drifted(OURS, [], 10_000), "E_DELTA"),
    "drift of -1 cells": lone(drifted(OURS, [], -1), "E_DELTA"),
    "drift of true cells": lone(drifted(OURS, [[5, 1]], True), "E_DELTA"),
    "drift of 2^40 cells": lone(drifted(OURS, [], 2**40), "E_DELTA"),
    "drift of bf16": tensor("E_DELTA", "a.weight", drift=1),
    "damaged array": payload("c.bias", "chunks", lambda raw: raw[:-1] + b"\0", "E_DIGEST", digest=False),
    # files of the public kind
    "336 bytes that stand for 3 GiB, sparse": lone(huge("sparse"), "E_PARENT", exit_code=1),
    "336 bytes that stand for 3 GiB, quantized": lone(huge("quantized"), "E_DELTA"),
    "sparse, place -1": lone(sparse([-1, 5]), "E_DELTA"),
    "sparse, place beyond": lone(sparse([1, 8]), "E_DELTA"),
    "sparse, place 2^62": lone(sparse([1, 2**62]), "E_DELTA"),
    "sparse, places descending": lone(sparse([5, 1]), "E_DELTA"),
    "sparse, place twice": lone(sparse([5, 5]), "E_DELTA"),
    "sparse, a value more": lone(sparse([1], [1, 2]), "E_DELTA"),
    "sparse, sparsity a text": lone(sparse(sparsity="0.9"), "E_DELTA"),
    "sparse, another type": lone(sparse(dtype="int8"), "E_DELTA"),
    "sparse, another shape": lone(sparse(shape=[2, 4]), "E_PARENT", exit_code=1),
    "sparse, new": lone(sparse(new=True), "E_DELTA"),
    "sparse, in a codec": lone(sparse(codec={"name": "q4_0", "params": {}}), "E_DELTA"),
    "sparse, in parts": lone(sparse(parts={"other": {"shape": [8], "dtype": "float32"}}), "E_DELTA"),
    "signs, a scale less": lone(signs([1, 1, 1]), "E_DELTA"),
    "signs, a byte less": lone(signs(packed=[1, 2]), "E_DELTA"),
    "signs, no columns": lone(signs(n_cols=0), "E_DELTA"),
    "signs, other elements": lone(signs(n_elements=2**40), "E_DELTA"),
    "int4, outlier -1": lone(int4([-1]), "E_DELTA"),
    "int4, outlier beyond": lone(int4([12]), "E_DELTA"),
    "int4, two scales": lone(int4(scale=[1, 1]), "E_DELTA"),
    "int4, a byte more": lone(int4(packed=[0] * 7), "E_DELTA"),
    "int4, layout 3": lone(int4(int4_layout=3), "E_DELTA"),
    "int4, other outliers": lone(int4(n_outliers=2), "E_DELTA"),
    "low rank, rank 2^40": lone(low_rank(rank=2**40), "E_DELTA"),
    "low rank, rank -1": lone(low_rank(rank=-1), "E_DELTA"),
    "low rank, scale a text": lone(low_rank(scale="1"), "E_DELTA"),
    "low rank, scale 2^200": lone(low_rank(scale=2**200), "E_DELTA"),
    "low rank, NaN": lone(low_rank(up=[1, np.nan, 1]), "E_DELTA"),
    "low rank, a row less": lone(low_rank(up=[1, 1]), "E_DELTA"),
    "low rank, other type": lone(low_rank(dtype="float64"), "E_DELTA"),
    "public, another base": lone(public({"c.bias": SPARSE}, ONE, names=["j.kept"]), "E_PARENT", exit_code=1),
    "public, tensor that is not in the base": lone(
        public({"nobody": SPARSE}, [field._replace(tensor="nobody") for field in ONE]), "E_PARENT", exit_code=1
    ),
}
