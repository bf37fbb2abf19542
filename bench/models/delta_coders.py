"""Ways to store a fine-tune as its difference from a base, without loss: ours, and those it is measured beside.

    flyweight           kind `exact`, per tensor
    zipnn               ZipNN's delta: XOR, bytes grouped by their place in a word, Huffman or zstd; all tensors as one
    xor planes + zstd   XOR, bytes grouped by their place in a word, zstd's default level; all tensors as one
    pcodec              differences of the words taken as ordered integers, pcodec's default level; per tensor

A model is a list of flat arrays of one floating type. Everything happens in memory and on one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from flyweight.deltas.kind import ranges
from flyweight.deltas.kinds.exact_delta import ExactDelta
from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import TensorSpec

__all__ = ["Coder", "coders"]

Array = np.ndarray[Any, Any]
Model = Sequence[Array]
DTYPES = {"bfloat16": DType.BF16, "float32": DType.F32}


@dataclass(frozen=True)
class Coder:
    encode: Callable[[Model, Model], Any]
    """base, tuned → what is stored"""
    decode: Callable[[Model, Any], Model]
    """base, what is stored → tuned"""
    nbytes: Callable[[Any], int] = lambda stored: sum(map(len, stored))


def coders() -> dict[str, Coder]:
    """All that are installed; ours is the first."""
    makers = {"flyweight": _flyweight, "zipnn": _zipnn, "xor planes + zstd": _xor_planes, "pcodec": _pcodec}
    made = {}
    for name, make in makers.items():
        try:
            made[name] = make()
        except ModuleNotFoundError as error:
            print(f"{error.name} is not here: measuring without it")
    return made


def _words(array: Array) -> Array:
    return array.view(f"u{array.itemsize}")


def _joined(model: Model) -> Array:
    return np.concatenate([_words(array) for array in model])


def _split(words: Array, base: Model) -> Model:
    ends = np.cumsum([len(array) for array in base])
    return [part.view(array.dtype) for part, array in zip(np.split(words, ends[:-1]), base, strict=True)]


def _flyweight() -> Coder:
    def spec_of(array: Array) -> TensorSpec:
        return TensorSpec(array.shape, DTYPES[array.dtype.name])

    def encode_one(base: Array, tuned: Array) -> tuple[dict[str, Any], dict[str, Array]]:
        about: dict[str, Any] = {}
        records = ExactDelta.make(lambda *at: base[slice(*at)], lambda *at: tuned[slice(*at)], spec_of(base), about)
        return about, {field: np.concatenate([np.zeros(0, dtype), *pieces]) for field, dtype, pieces in records}

    def encode(base: Model, tuned: Model) -> Any:
        return [encode_one(*pair) for pair in zip(base, tuned, strict=True)]

    def decode(base: Model, stored: Any) -> Model:
        result = [np.empty_like(array) for array in base]
        for array, delta, out in zip(base, stored, result, strict=True):
            kind = ExactDelta(spec_of(array), *delta)
            for start, stop in ranges(len(array)):
                kind.rebuild(start, stop, array[start:stop], out[start:stop])
        return result

    return Coder(encode, decode, lambda stored: sum(array.nbytes for _, arrays in stored for array in arrays.values()))


def _zipnn() -> Coder:
    package = import_module("zipnn")

    def coder(base: Model) -> Any:
        return package.ZipNN(bytearray_dtype=str(base[0].dtype), delta_compressed_type="byte", threads=1)

    def encode(base: Model, tuned: Model) -> Any:
        return [coder(base).compress(bytearray(_joined(tuned)), delta_second_data=bytearray(_joined(base)))]

    def decode(base: Model, stored: Any) -> Model:
        raw = coder(base).decompress(stored[0], delta_second_data=bytearray(_joined(base)))
        return _split(np.frombuffer(raw, f"u{base[0].itemsize}"), base)

    return Coder(encode, decode)


def _xor_planes() -> Coder:
    try:
        zstd = import_module("compression.zstd")
    except ModuleNotFoundError:
        zstd = import_module("backports.zstd")

    def encode(base: Model, tuned: Model) -> Any:
        changed = _joined(base) ^ _joined(tuned)
        return [zstd.compress(plane.tobytes()) for plane in changed.view(np.uint8).reshape(len(changed), -1).T]

    def decode(base: Model, stored: Any) -> Model:
        words = _joined(base)
        planes = [np.frombuffer(zstd.decompress(plane), np.uint8) for plane in stored]
        return _split(words ^ np.stack(planes, axis=1).view(words.dtype).ravel(), base)

    return Coder(encode, decode)


def _pcodec() -> Coder:
    standalone, settings = import_module("pcodec.standalone"), import_module("pcodec").ChunkConfig()

    def ordered(words: Array) -> Array:
        """Integers in the order of the numbers: the magnitude of a negative one is turned round. Its own inverse."""
        signed = words.view(f"i{words.itemsize}")
        return signed ^ ((signed >> (8 * words.itemsize - 1)) & np.iinfo(signed.dtype).max)

    def encode(base: Model, tuned: Model) -> Any:
        pairs = zip(base, tuned, strict=True)
        return [standalone.simple_compress(ordered(_words(b)) - ordered(_words(a)), settings) for a, b in pairs]

    def decode(base: Model, stored: Any) -> Model:
        differences = map(standalone.simple_decompress, stored)
        return [ordered(ordered(_words(a)) + each).view(a.dtype) for a, each in zip(base, differences, strict=True)]

    return Coder(encode, decode)
