"""Hostile Hugging Face directories: an index and shards that disagree, names that lead elsewhere."""

from __future__ import annotations

import json
from typing import Any

from support.fuzz_cases import Case, Special, fifo, link_to
from support.raw_files import safetensors_file, tensor_json

INDEX = "model.safetensors.index.json"
A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def shard(*names: str) -> bytes:
    table = {name: tensor_json("U8", [2], 2 * i, 2 * i + 2) for i, name in enumerate(names)}
    return safetensors_file(table, bytes(2 * len(names)))


def directory(
    files: dict[str, bytes], code: str, *, index: Any = None, special: dict[str, Special] | None = None, exit_code: int = 3
) -> Case:
    made = {"config.json": b"{}"} | files
    if index is not None:
        made[INDEX] = index if isinstance(index, bytes) else json.dumps(index).encode()
    return Case(made, code, is_directory=True, special=special or {}, exit_code=exit_code)


def mapped(weight_map: Any, code: str, files: dict[str, bytes] | None = None, **more: Any) -> Case:
    """A directory with the two shards and this map."""
    shards = {A: shard("a"), B: shard("b")} if files is None else files
    return directory(shards, code, index={"metadata": {"total_size": 4}, "weight_map": weight_map}, **more)


GOOD = {"a": A, "b": B}

HOSTILE: dict[str, Case] = {
    # names
    "shard above the directory": mapped({"a": "../../x.safetensors"}, "E_SHARD_NAME"),
    "shard with an absolute name": mapped({"a": "/etc/passwd"}, "E_SHARD_NAME"),
    "shard with a device name": mapped({"a": "C:\\x.safetensors"}, "E_SHARD_NAME"),
    "shard on the network": mapped({"a": "https://evil.example/x.safetensors"}, "E_SHARD_NAME"),
    "shard in a subdirectory": mapped({"a": "sub/x.safetensors"}, "E_SHARD_NAME", {"sub/x.safetensors": shard("a")}),
    "shard with a NUL": mapped({"a": "x\0.safetensors"}, "E_SHARD_MISSING"),
    "shard that is a pickle": mapped({"a": "pytorch_model.bin"}, "E_SHARD_NAME", {"pytorch_model.bin": b"\x80\x04."}),
    "shard missing": mapped({"a": A, "b": B}, "E_SHARD_MISSING", {A: shard("a")}),
    "shard with an empty name": mapped({"a": ""}, "E_SHARD_NAME"),
    "hundred thousand shards": mapped({str(i): f"{i}.safetensors" for i in range(100_000)}, "E_SHARDS"),
    # the index
    "index not JSON": directory({A: shard("a")}, "E_JSON", index=b"{"),
    "index is a list": directory({A: shard("a")}, "E_INDEX", index=[]),
    "index without a map": directory({A: shard("a")}, "E_INDEX", index={"metadata": {}}),
    "index with an empty map": mapped({}, "E_INDEX"),
    "map is a list": mapped([A], "E_INDEX"),
    "map to a number": mapped({"a": 1}, "E_INDEX"),
    "map to a list": mapped({"a": [A]}, "E_INDEX"),
    "map with a tensor twice": directory(
        {A: shard("a"), B: shard("a")},
        "E_JSON_DUPLICATE",
        index=b'{"weight_map":{"a":"%s","a":"%s"}}' % (A.encode(), B.encode()),
    ),
    "total size -1": directory({A: shard("a")}, "E_INDEX", index={"metadata": {"total_size": -1}, "weight_map": {"a": A}}),
    "total size as text": directory(
        {A: shard("a")}, "E_INDEX", index={"metadata": {"total_size": "4"}, "weight_map": {"a": A}}
    ),
    "total size infinite": directory({A: shard("a")}, "E_JSON", index=b'{"metadata":{"total_size":1e999},"weight_map":{}}'),
    "index metadata a list": directory({A: shard("a")}, "E_INDEX", index={"metadata": [], "weight_map": {"a": A}}),
    # the index against the shards
    "mapped tensor not in its shard": mapped(GOOD | {"c": B}, "E_INDEX_MISMATCH"),
    "shard tensor not in the map": mapped(GOOD, "E_INDEX_MISMATCH", {A: shard("a"), B: shard("b", "c")}),
    "tensor in two shards": mapped(GOOD, "E_INDEX_MISMATCH", {A: shard("a"), B: shard("b", "a")}),
    "tensors swapped": mapped({"a": B, "b": A}, "E_INDEX_MISMATCH"),
    "stray whole file beside a broken index": mapped(
        GOOD, "E_SHARD_MISSING", {A: shard("a"), "model.safetensors": shard("a", "b")}
    ),
    "truncated shard": mapped(GOOD, "E_PAST_END", {A: shard("a"), B: shard("b")[:-1]}),
    "empty shard": mapped(GOOD, "E_TRUNCATED", {A: shard("a"), B: b""}),
    # no index
    "several files and no index": directory({A: shard("a"), B: shard("b")}, "E_NO_INDEX"),
    "config and no weights": directory({}, "E_NO_WEIGHTS"),
    "only a pickle": directory({"pytorch_model.bin": b"\x80\x04."}, "E_PICKLE", exit_code=4),
    "weights only in a subdirectory": directory({"sub/model.safetensors": shard("a")}, "E_NO_WEIGHTS"),
    # what is behind a name
    "shard is a link out of the directory": mapped(GOOD, "E_LINK", {A: shard("a")}, special={B: link_to("/etc/passwd")}),
    "weights are a link out of the directory": directory({}, "E_LINK", special={"model.safetensors": link_to("/etc/passwd")}),
    "side file is a link out of the directory": directory(
        {"model.safetensors": shard("a")}, "E_LINK", special={"tokenizer.json": link_to("../../../../../../etc/passwd")}
    ),
    "shard is a FIFO": mapped(GOOD, "E_NOT_A_FILE", {A: shard("a")}, special={B: fifo}),
    "weights are a FIFO": directory({}, "E_NOT_A_FILE", special={"model.safetensors": fifo}),
    "side file is a FIFO": directory({"model.safetensors": shard("a")}, "E_NOT_A_FILE", special={"notes.txt": fifo}),
    "shard is a device": mapped(GOOD, "E_LINK", {A: shard("a")}, special={B: link_to("/dev/zero")}),
    "index is a FIFO": directory({A: shard("a")}, "E_NOT_A_FILE", special={INDEX: fifo}),
}
