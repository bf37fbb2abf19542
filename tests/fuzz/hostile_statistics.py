"""Hostile statistics files: ours and both of llama.cpp's, each broken in one way."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from support.fuzz_cases import Case
from support.raw_files import safetensors_file, tensor_json
from support.statistics_files import ABOUT, GOOD, PACKED, PARTS, dat, gguf, ours, sums

BASE = {"base/model.safetensors": safetensors_file({"w": tensor_json("U8", [2], 0, 2)}, b"ab")}
"""What they are given to a conversion of."""
_OTHERWISE: dict[str, tuple[str, int]] = {
    "another version": ("E_STATISTICS", 4),
    "no JSON": ("E_JSON", 3),
    "empty": ("E_STATISTICS", 4),
    "text": ("E_STATISTICS", 4),
    "no entries": ("E_STATISTICS", 4),
    "more entries than bytes": ("E_TRUNCATED", 3),
    "entries beyond any file": ("E_STATISTICS", 4),
    "cut short": ("E_TRUNCATED", 3),
    "a name that is cut": ("E_TRUNCATED", 3),
    "a model": ("E_STATISTICS", 4),
    "of experts": ("E_STATISTICS", 4),
    "gguf cut short": ("E_PAST_END", 3),
    "a model in safetensors": ("E_STATISTICS", 4),
}
"""Code and exit code of the errors that are not those of most."""


def case(name: str, raw: bytes) -> Case:
    code, exit_code = _OTHERWISE.get(name, ("E_STATISTICS", 3))
    return Case({"x": raw, **BASE}, code, exit_code=exit_code, base="base", is_statistics=True)


NAN = np.array([1, np.nan, 1], np.float32)
OWN: dict[str, tuple[dict[str, Any], Any]] = {
    "no importance": (PARTS | {"a.q.importance": None}, ABOUT),
    "importance of rank 2": (PARTS | {"a.q.importance": np.ones((3, 1), np.float32)}, ABOUT),
    "importance of f16": (PARTS | {"a.q.importance": np.ones(3, np.float16)}, ABOUT),
    "importance of nothing": (PARTS | {"a.q.importance": np.ones(0, np.float32)}, ABOUT),
    "importance that is no number": (PARTS | {"a.q.importance": NAN}, ABOUT),
    "negative importance": (PARTS | {"a.q.importance": -np.ones(3, np.float32)}, ABOUT),
    "no diagonal": (PARTS | {"a.q.gram_diagonal": None}, ABOUT),
    "no correlations": (PARTS | {"a.q.gram": None}, ABOUT),
    "a short diagonal": (PARTS | {"a.q.gram_diagonal": np.ones(2, np.float32)}, ABOUT),
    "a negative diagonal": (PARTS | {"a.q.gram_diagonal": -np.ones(3, np.float32)}, ABOUT),
    "too few correlations": (PARTS | {"a.q.gram": PACKED[:-1]}, ABOUT),
    "correlations of f32": (PARTS | {"a.q.gram": PACKED.astype(np.float32)}, ABOUT),
    "a tensor of no input": (PARTS | {"b.importance": np.ones(3, np.float32)}, ABOUT),
    "a sketch of rank 2": (PARTS | {"model.sketch": np.ones((2, 2), np.float32)}, ABOUT),
    "no inputs": (PARTS, ABOUT | {"inputs": {}}),
    "inputs that are none": (PARTS, ABOUT | {"inputs": {"a.q": 3}}),
    "an input without itself": (PARTS, ABOUT | {"inputs": {"a.q": {"a.k": 2}}}),
    "rows that are none": (PARTS, ABOUT | {"inputs": {"a.q": {"a.q": 0}}}),
    "rows that are true": (PARTS, ABOUT | {"inputs": {"a.q": {"a.q": True}}}),
    "a matrix in two inputs": (
        PARTS | {"b.importance": np.ones(3, np.float32)},
        ABOUT | {"inputs": {"a.q": {"a.q": 5, "a.k": 2}, "b": {"b": 1, "a.k": 2}}},
    ),
    "tokens below none": (PARTS, ABOUT | {"tokens": -1}),
    "no tokens": (PARTS, {"version": 1, "inputs": ABOUT["inputs"]}),
    "another version": (PARTS, ABOUT | {"version": 2}),
    "no version": (PARTS, {"tokens": 1, "inputs": {}}),
    "a list": (PARTS, "[]"),
    "no JSON": (PARTS, "{"),
}
LLAMA = {
    "empty": b"",
    "text": b"Once upon a time there was a file that was none.",
    "no entries": dat(entries=0),
    "more entries than bytes": dat(entries=1000),
    "entries beyond any file": dat(entries=0x7FFFFFFF),
    "cut short": dat()[:-3],
    "no calls": dat(calls=0),
    "fewer calls than none": dat(calls=-1),
    "no columns": dat(values=()),
    "twice": dat(entries=2) + dat()[4:],
    "not a number": dat(values=(1.0, float("nan"))),
    "infinite": dat(values=(1.0, float("inf"))),
    "negative": dat(values=(1.0, -1.0)),
    "bytes behind the end": dat(end=struct.pack("<ii", 7, 1) + b"ab"),
    "a name that is cut": dat(end=struct.pack("<ii", 7, 100) + b"ab"),
    "a model": gguf({"w": ((2, 1), [1, 2])}, "model"),
    "sums without a count": gguf({"w.in_sum2": ((2, 1), [1, 2])}),
    "a count without sums": gguf({"w.counts": ((1, 1), [1])}),
    "another tensor": gguf({**GOOD, "w": ((2, 1), [1, 2])}),
    "a count of none": sums([1.0, 2.0], [0.0]),
    "a count that is no number": sums([1.0, 2.0], [float("nan")]),
    "a negative count": sums([1.0, 2.0], [-2.0]),
    "negative sums": sums([1.0, -2.0], [2.0]),
    "sums that are no numbers": sums([1.0, float("nan")], [2.0]),
    "of experts": gguf({"w.in_sum2": ((2, 2), [1, 2, 3, 4]), "w.counts": ((1, 2), [1, 1])}),
    "gguf cut short": gguf(GOOD)[:-40],
}
HOSTILE = {
    **{name: case(name, ours(parts, about)) for name, (parts, about) in OWN.items()},
    **{name: case(name, raw) for name, raw in LLAMA.items()},
    "a model in safetensors": case("a model in safetensors", ours(key="other")),
}
