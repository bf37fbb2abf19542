"""docs/formats/wdelta.md is enough to read a file: this reader follows the page and shares no code with the project."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import unpack_from
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from blake3 import blake3

import flyweight
from tests.support.fine_tunes import tuned, write_model
from tests.support.toys import llama_tensors

Records = dict[tuple[str, str], np.ndarray]
CHUNK = 1 << 17
BF16 = np.dtype(ml_dtypes.bfloat16)


def read_file(path: Path) -> tuple[dict[str, Any], Records]:
    raw = path.read_bytes()
    assert raw[:7] == b"wdelta\0"
    assert hashlib.sha256(raw[:-32]).digest() == raw[-32:]
    version, length = unpack_from("<II", raw, 7)
    assert version == 1
    records, at = {}, 15 + length
    while at < len(raw) - 32:
        texts = []
        for _ in range(3):
            (size,) = unpack_from("<I", raw, at)
            texts.append(raw[at + 4 : at + 4 + size].decode())
            at += 4 + size
        (rank,) = unpack_from("<I", raw, at)
        shape = unpack_from(f"<{rank}Q", raw, at + 4)
        (nbytes,) = unpack_from("<Q", raw, at + 4 + 8 * rank)
        at += 12 + 8 * rank
        records[texts[0], texts[1]] = np.frombuffer(raw[at : at + nbytes], texts[2]).reshape(shape)
        at += nbytes
    assert records["", "header"].tobytes() == blake3(raw[15 : 15 + length]).digest()
    return json.loads(raw[15 : 15 + length]), records


def read_tables(stream: list[int]) -> list[list[tuple[int, int, int]]]:
    """For each slot of each table: the symbol, its frequency and its first slot."""
    tables, slots, symbol = [], list[tuple[int, int, int]](), 0
    while stream:
        frequency = stream.pop(0)
        if frequency >= 128:
            frequency = frequency & 127 | stream.pop(0) << 7
        slots += [(symbol, frequency, len(slots))] * frequency
        symbol += 1
        if len(slots) == 4096:
            tables.append(slots)
            slots, symbol = [], 0
    assert not slots
    return tables


def read_symbols(chunk: bytes, tables: list[list[tuple[int, int, int]]], which: list[int]) -> tuple[list[int], bytes]:
    """The symbols of a chunk, of which each has its table, and what is behind its words."""
    (count,) = unpack_from("<I", chunk)
    states = list(unpack_from("<32I", chunk, 4))
    words = iter(unpack_from(f"<{count}H", chunk, 132))
    symbols = []
    for at, table in enumerate(which):
        s = states[at % 32]
        symbol, frequency, first = tables[table][s % 4096]
        s = frequency * (s // 4096) + s % 4096 - first
        states[at % 32] = s if s >= 1 << 16 else s << 16 | next(words)
        symbols.append(symbol)
    assert set(states) == {1 << 16}
    assert next(words, None) is None
    return symbols, chunk[132 + 2 * count :]


def ordered(word: int, bits: int) -> int:
    return word ^ ((1 << bits) - 1) if word >> (bits - 1) else word | 1 << (bits - 1)


def unordered(place: int, bits: int) -> int:
    return place ^ (1 << (bits - 1)) if place >> (bits - 1) else place ^ ((1 << bits) - 1)


def moved(word: int, drift: dict[int, int]) -> int:
    magnitude = (word & 0x7FFFFFFF) + drift.get((word & 0x7FFFFFFF) >> 17, 0)
    return word & 1 << 31 | magnitude if 0 <= magnitude < 1 << 31 else word


def join(word: int, symbol: int, low: Iterator[int], bits: int) -> int:
    kind, falls = symbol // 2, symbol % 2
    magnitude = kind
    if kind >= 2:
        t = kind // 2
        magnitude = (2 | kind % 2) << (t - 1) | sum(next(low) << bit for bit in range(t - 1))
    change = -magnitude if falls else magnitude
    change = -change if word >> (bits - 1) else change
    return unordered((ordered(word, bits) + change) % (1 << bits), bits)


def rebuild(about: dict[str, Any], arrays: dict[str, np.ndarray], base: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """A flat array of `dtype` from the bytes of the base's."""
    coding, stored = about["coding"], arrays["chunks"].tobytes()
    if coding == "plain":
        return np.frombuffer(stored, dtype)
    bits = 8 * dtype.itemsize if coding == "words" else 8
    shift = {"float16": 10, "bfloat16": 7, "float32": 23}.get(dtype.name, 0)
    elements = base.view(f"u{bits // 8}").tolist() if coding != "bytes" else [0] * base.nbytes
    stream = arrays["tables"].tolist()
    cells = about.get("drift", 0)
    drift = dict(np.array(stream[: 8 * cells], np.uint8).view("<i4").reshape(-1, 2).tolist())
    stream = stream[8 * cells :]
    contexts, tables = (stream[:256], read_tables(stream[256:])) if coding == "words" else ([0] * 256, read_tables(stream))
    out, begin = [], 0
    for number, end in enumerate(arrays["ends"].tolist()):
        own = elements[number * CHUNK : (number + 1) * CHUNK]
        if begin < end:
            own = [moved(word, drift) for word in own] if drift else own
            which = [contexts[(word & (1 << (bits - 1)) - 1) >> shift & 255] if coding == "words" else 0 for word in own]
            symbols, rest = read_symbols(stored[begin:end], tables, which)
            low = iter(np.unpackbits(np.frombuffer(rest, np.uint8), bitorder="little").tolist())
            if coding == "words":
                own = [join(word, symbol, low, bits) for word, symbol in zip(own, symbols, strict=True)]
            else:
                own = [word ^ symbol for word, symbol in zip(own, symbols, strict=True)]
        out += own
        begin = end
    return np.array(out, f"u{bits // 8}").view(dtype)


def apply_patch(patch: bytes, before: bytes) -> bytes:
    plain = zlib.decompress(patch)
    (count,) = unpack_from("<I", plain)
    steps = np.frombuffer(plain, "<u4", 3 * count, 4).reshape(3, count).T.tolist()
    literals, made, end = plain[4 + 12 * count :], b"", 0
    for literal, gap, length in steps:
        start = (end + gap) % 2**32
        end = start + length
        made += literals[:literal] + before[start:end]
        literals = literals[literal:]
    assert not literals
    return made


@pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float16), np.dtype(np.float32)], ids=str)
def test_a_fine_tune_by_hand(tmp_path: Path, dtype: np.dtype[Any]) -> None:
    """Every coding, a drift, a grown and a new tensor, tensors that equal others, and side files."""
    rng = np.random.default_rng(0)
    before = {name: array.astype(dtype) for name, array in llama_tensors().items()}
    before["decayed"] = rng.standard_normal(4096, np.float32).astype(dtype)
    before["bytes"] = rng.integers(0, 4, 3000).astype(np.uint8)
    before["noise"] = rng.integers(0, 256, 3000).astype(np.uint8)
    before["calmed"] = rng.integers(0, 256, 3000).astype(np.uint8)
    before["moved"] = np.arange(9).astype(dtype)
    after = tuned(before)
    after["decayed"] = (before["decayed"].view(f"u{dtype.itemsize}") - (99 if dtype.itemsize == 4 else 5)).view(dtype)
    after["bytes"] = before["bytes"] ^ (rng.random(3000) < 0.01).astype(np.uint8)
    after["noise"] = rng.integers(0, 256, 3000).astype(np.uint8)
    after["calmed"] = rng.integers(0, 3, 3000).astype(np.uint8)
    after["new"] = rng.integers(0, 3, 5000).astype(np.uint8)
    after["twin"] = after["new"]
    after["renamed"] = before["moved"]
    del after["moved"]
    before["grown"], after["grown"] = np.ones((3, 40), dtype), np.ones((5, 40), dtype)
    write_model(tmp_path / "base", before, notes_txt=b"one\ntwo\nthree\n")
    write_model(tmp_path / "tuned", after, notes_txt=b"one\n2\nthree\nfour\n", more_txt=b"new")
    flyweight.create_delta(tmp_path / "base", tmp_path / "tuned", tmp_path / "d.wdelta")

    header, records = read_file(tmp_path / "d.wdelta")
    ours, rebuilt, codings = header["flyweight"], dict[str, np.ndarray](), set()
    for name in ours["kept"]:
        rebuilt[name] = before[name].reshape(-1)
    for name, about in sorted(header["tensors"].items(), key=lambda item: "twin" in item[1]):
        parent = None if about.get("new") else before.get(about.get("parent", name))
        if about["strategy"] == "same":
            rebuilt[name] = rebuilt[about["twin"]] if "twin" in about else parent.reshape(-1)
            continue
        kind = BF16 if about["dtype"] == "bfloat16" else np.dtype(about["dtype"])
        flat = np.zeros(int(np.prod(about["shape"])), kind)
        if parent is not None:
            flat[: parent.size] = parent.reshape(-1)
        arrays = {field: array for (tensor, field), array in records.items() if tensor == name}
        assert blake3(b"".join(array.tobytes() for array in arrays.values())).hexdigest() == about["stored_digest"]
        rebuilt[name] = rebuild(about, arrays, flat.view(np.uint8), kind)
        assert blake3(rebuilt[name].tobytes()).hexdigest() == about["digest"]
        codings.add(about["coding"])
    assert rebuilt.keys() == after.keys()
    assert all(rebuilt[name].tobytes() == after[name].tobytes() for name in after)
    assert codings == {"words", "xor", "bytes", "plain"}
    assert ("drift" in header["tensors"]["decayed"]) == (dtype.itemsize == 4)
    assert ours["removed"] == []
    old = {"notes.txt": b"one\ntwo\nthree\n"}
    files = {name: apply_patch(records["", f"file:{name}"].tobytes(), old.get(name, b"")) for name in ours["files"]}
    assert files == {"notes.txt": b"one\n2\nthree\nfour\n", "more.txt": b"new"}
