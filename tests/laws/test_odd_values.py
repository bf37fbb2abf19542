"""Odd tensors are refused by code or decode as docs/formats/odd-values.md says; odd memory makes no difference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from flyweight.codecs import Codec
from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import TensorSpec
from pages import ROOT, odd_values
from support.every_codec import ENCODERS, INSTANCES, dtypes, named, plausible, same_bits, weights

SPEC = TensorSpec((4, 512), DType.F32)


def test_the_page_says_what_happens() -> None:
    """`python -m pages odd_values` writes the tables anew, when the change is meant."""
    for path, text in odd_values.written().items():
        assert (ROOT / path).read_text("utf-8") == text


def read_only(array: np.ndarray) -> np.ndarray:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def misaligned(array: np.ndarray) -> np.ndarray:
    """One byte past where its elements may stand, and read-only, as bytes from a file are."""
    return np.frombuffer(b"." + array.tobytes(), array.dtype, offset=1).reshape(array.shape) if array.size else array


def strided(array: np.ndarray) -> np.ndarray:
    return np.repeat(array, 2, axis=-1)[..., ::2]


MEMORY = {"read-only": read_only, "misaligned": misaligned, "strided": strided, "fortran": np.asfortranarray}


def encoded(codec: Codec, values: np.ndarray, dtype: DType = DType.F32) -> dict[str, np.ndarray]:
    spec = TensorSpec(values.shape, dtype)
    return dict(codec.fit(spec, values).encode(spec, values))


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected)
    for name, part in expected.items():
        assert same_bits(found[name], part), name


@named(ENCODERS)
@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float32], ids=["f16", "bf16", "f32"])
def test_values_from_any_memory_encode_alike(codec: Codec, kind: type) -> None:
    values = weights(SPEC).astype(kind)
    expected = encoded(codec, values.astype(np.float32))
    for odd in (values, *(turn(values) for turn in MEMORY.values())):
        assert_same(encoded(codec, odd), expected)


@named([codec for codec in ENCODERS if codec.exact])
def test_exact_codecs_keep_the_type_from_any_memory(codec: Codec) -> None:
    for dtype in {DType.F16, DType.BF16, DType.F32} & set(dtypes(codec)):
        values = weights(SPEC).astype(dtype.numpy)
        expected = encoded(codec, values, dtype)
        for turn in MEMORY.values():
            assert_same(encoded(codec, turn(values), dtype), expected)


@named(INSTANCES)
def test_parts_from_any_memory_decode_alike(codec: Codec) -> None:
    fitted, parts = plausible(codec, SPEC, 1)
    expected = fitted.decode(SPEC, parts)
    for turn in MEMORY.values():
        assert same_bits(fitted.decode(SPEC, {name: turn(part) for name, part in parts.items()}), expected)
