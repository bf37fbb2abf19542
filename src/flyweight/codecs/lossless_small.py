"""`lossless_small`: floats bit for bit in about 0.66 of bf16, by an entropy coder for the exponent.

    moved        the word turned left by one bit, so that the exponent is in the upper byte and the sign is the lowest bit
    coded        the upper byte: exponent of bf16 and f32; exponent and three bits of mantissa of f16
    low          the bytes below, as they are

`lossless` is its faster neighbour. `words` comes from the values (`fit`). docs/formats/lossless.md has the layout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from flyweight import kernels
from flyweight.codecs.casts import astype
from flyweight.codecs.codec import Array, Codec, Parts
from flyweight.codecs.entropy_coded import CHUNK, Coded, chunks_of, encode_symbols, frequencies_of, require_decoded, tables_of
from flyweight.codecs.value_checks import complaint_about_values, require_integers
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.tensor import Layout, TensorSpec

_WORDS: dict[DType, np.dtype[Any]] = {
    DType.BF16: np.dtype(np.uint16),
    DType.F16: np.dtype(np.uint16),
    DType.F32: np.dtype(np.uint32),
}


@dataclass(frozen=True)
class LosslessSmall(Codec):
    words: int = 0

    name = "lossless_small"
    per_tensor = frozenset({"words"})
    exact: ClassVar[bool] = True
    needs_fit: ClassVar[bool] = True
    decodes_any_bytes = False

    def __post_init__(self) -> None:
        require_integers(self, "words", most=2**63 - 1)

    def layout(self, spec: TensorSpec) -> Layout:
        if spec.dtype not in _WORDS:
            raise UnsupportedError(f"lossless_small stores bf16, f16 and f32, not {spec.dtype}", code="E_SPEC")
        if self.words > spec.size:  # a symbol takes at most twelve bits
            raise UnsupportedError(f"{self.spec} does not describe {spec}", code="E_SPEC")
        chunks = chunks_of(spec.size)
        return {
            "frequencies": TensorSpec((256,), DType.U16),
            "states": TensorSpec((chunks, kernels.RANS_STATES), DType.U32),
            "ends": TensorSpec((chunks,), DType.U64),
            "words": TensorSpec((self.words,), DType.U16),
            "low": TensorSpec((spec.size, spec.dtype.bits // 8 - 1), DType.U8),
        }

    def decoded_dtype(self, dtype: DType) -> DType:
        return dtype

    def fit(self, spec: TensorSpec, array: Array) -> Codec:
        replace(self, words=0).layout(spec)
        symbols, _ = _cut(spec, array)
        return replace(self, words=len(_coded(symbols)[1].words))

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        """UnsupportedError if these are not the values the codec was fitted to."""
        layout = self.layout(spec)
        symbols, low = _cut(spec, array)
        frequencies, coded = _coded(symbols)
        if len(coded.words) != self.words:
            raise UnsupportedError(f"{self.spec} was fitted to other values", code="E_FIT", hint="fit the codec first")
        parts = {"frequencies": frequencies[0], "states": coded.states, "ends": coded.ends, "words": coded.words, "low": low}
        return {name: np.asarray(parts[name]).reshape(part.shape) for name, part in layout.items()}

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        """MalformedError if the parts do not decode to as many symbols as there are."""
        words = out.reshape(1, -1).view(_WORDS[spec.dtype])
        plain = {name: np.require(array, array.dtype, ["C", "A"]) for name, array in parts.items()}
        states, ends = plain["states"], plain["ends"].reshape(1, -1)
        finals, taken = np.empty_like(states), np.empty_like(ends)
        table = tables_of(plain["frequencies"].reshape(1, -1))
        try:
            kernels.rans_decode_floats(
                states, plain["words"].reshape(1, -1), ends, table, plain["low"], CHUNK, words, finals, taken
            )
        except ValueError as error:
            raise MalformedError(str(error), code="E_PART_VALUES") from None
        require_decoded(finals, taken, ends)

    def check_values(self, spec: TensorSpec, parts: Parts) -> str | None:
        return complaint_about_values(self, spec, parts)


def _cut(spec: TensorSpec, array: Array) -> tuple[Array, Array]:
    """The upper byte of every moved word, (1, n), and the bytes below, (n, bytes)."""
    words = astype(np.asarray(array), spec.dtype.numpy).reshape(spec.size).view(_WORDS[spec.dtype])
    moved = (words << 1 | words >> (spec.dtype.bits - 1)).astype(words.dtype.newbyteorder("<"), copy=False)
    each = moved.view(np.uint8).reshape(spec.size, words.itemsize)
    return np.ascontiguousarray(each[:, -1]).reshape(1, -1), np.ascontiguousarray(each[:, :-1])


def _coded(symbols: Array) -> tuple[Array, Coded]:
    frequencies = frequencies_of(np.bincount(symbols[0], minlength=256).reshape(1, 256))
    return frequencies, encode_symbols(symbols, None, frequencies)
