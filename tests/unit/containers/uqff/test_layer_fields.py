"""What the fields of a layer mean: values worked out by hand, the same from both generations."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from flyweight.checkpoint import Checkpoint, read_checkpoint
from flyweight.containers import recognise
from flyweight.sources import MemoryBundle
from support.uqff_files import (
    BLOBS,
    F8Q8_BLOCKS,
    LAYERS,
    Q8_0,
    Named,
    blob_file,
    f8q8_blob,
    gguf_blob,
    hqq_blob,
    named_file,
    tensor,
    u32,
    version,
)

CODES = np.array([7 * at % 64 for at in range(64)], np.uint8)
"""What the builders fill weights with."""


def opened(raw: bytes) -> Checkpoint:
    bundle = MemoryBundle({"q.uqff": raw}, is_directory=False)
    return read_checkpoint(bundle, recognise(bundle))


def decoded(raw: bytes) -> np.ndarray:
    with opened(raw) as checkpoint:
        (name,) = (name for name in checkpoint if name.endswith(".weight"))
        return np.asarray(checkpoint[name], np.float32)


def e4m3(code: int) -> float:
    exponent, mantissa = code >> 3 & 15, code & 7
    return mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def nibbles(raw: np.ndarray) -> np.ndarray:
    return np.stack([raw & 15, raw >> 4], -1).reshape(-1)


FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
EXPECTED = {
    "gguf": np.stack([CODES[:32] * 0.5] * 2),
    "plain": (0.5 + np.arange(64) / 8).reshape(2, 32),
    "hqq": ((np.concatenate([CODES[:32] >> 4, CODES[:32] & 15]) - 0.5) * 0.5).reshape(2, 32),
    "fp8": np.array([e4m3(int(code)) * 0.5 for code in CODES]).reshape(2, 32),
    "afq": nibbles(CODES[:32]).reshape(2, 32) * np.array([[0.5], [0.625]]) + np.array([[0.5], [0.625]]),
    "f8q8": np.stack([CODES[:32].astype(np.float32) * np.float32(np.float32(1.0) / np.float32(416))] * 2),
    "mxfp4": FP4[nibbles(CODES[:32])].reshape(2, 32) * np.array([[1], [2]]),
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_values(kind: str) -> None:
    named, numbered = decoded(named_file(version() | LAYERS[kind]("a"))), decoded(blob_file([BLOBS[kind]]))
    np.testing.assert_array_equal(named, EXPECTED[kind].astype(np.float32))
    np.testing.assert_array_equal(named, numbered)


GGML = {
    2: ("q4_0", 18, 32), 3: ("q4_1", 20, 32), 6: ("q5_0", 22, 32), 7: ("q5_1", 24, 32), 8: ("q8_0", 34, 32),
    9: ("q8_1", 36, 32), 10: ("q2_k", 84, 256), 11: ("q3_k", 110, 256), 12: ("q4_k", 144, 256), 13: ("q5_k", 176, 256),
    14: ("q6_k", 210, 256), 15: ("q8_k", 292, 256),
}  # fmt: skip


@pytest.mark.parametrize("code", GGML)
def test_blocks_of_ggml(code: int) -> None:
    """Every type that mistral.rs writes, in experts too."""
    name, nbytes, elements = GGML[code]
    with opened(blob_file([gguf_blob(code, (3, 2, elements), bytes(6 * nbytes))])) as checkpoint:
        entry = checkpoint.manifest.entries["layers.0.weight"]
        assert (entry.codec.name, entry.spec.shape, entry.nbytes) == (name, (3, 2, elements), 6 * nbytes)
        assert not np.any(checkpoint["layers.0.weight"])


@pytest.mark.parametrize(("code", "dtype", "size"), [(0, "f32", 4), (1, "f16", 2), (30, "bf16", 2)])
def test_plain_numbers_of_ggml(code: int, dtype: str, size: int) -> None:
    with opened(blob_file([gguf_blob(code, (2, 3), bytes(6 * size))])) as checkpoint:
        entry = checkpoint.manifest.entries["layers.0.weight"]
        assert (entry.codec.name, entry.spec.dtype.label) == ("raw", dtype)


@pytest.mark.parametrize(("bits", "rows"), [(1, 8), (2, 16), (4, 32), (8, 64)])
def test_hqq_stacks_the_runs_of_a_group(bits: int, rows: int) -> None:
    """Groups are columns of the view (64, N): element k of group c is flat element c + k · N."""
    columns = 2
    words = np.arange(rows * columns, dtype=np.uint8).reshape(rows, columns) * 3
    scales, zeros = np.array([[0.5, 2]], np.float32), np.array([[1, 0.25]], np.float32)
    blob = hqq_blob(
        weight=tensor(0, words.shape, words.tobytes()), scales=tensor(6, (1, 2), scales.tobytes()),
        zeros=tensor(6, (1, 2), zeros.tobytes()), shape=(4, 32), bits=bits,
    )  # fmt: skip
    codes = np.concatenate([words >> shift & 2**bits - 1 for shift in range(8 - bits, -1, -bits)])
    np.testing.assert_array_equal(decoded(blob_file([blob])), ((codes - zeros) * scales).reshape(4, 32))


def test_hqq_of_3_bits_leaves_out_what_fills_up_the_words() -> None:
    words = np.array([[0o1234567012 + 11 * row] for row in range(7)], np.int32)
    blob = hqq_blob(weight=tensor(2, (7, 1), words.tobytes()), bits=3)
    codes = np.concatenate([words >> shift & 7 for shift in range(27, -1, -3)])[:64]
    np.testing.assert_array_equal(decoded(blob_file([blob])), ((codes - np.float32(0.5)) * np.float32(0.5)).reshape(2, 32))


def test_f8q8_goes_on_over_the_ends_of_rows() -> None:
    whole = decoded(blob_file([f8q8_blob()])).reshape(-1)
    np.testing.assert_array_equal(decoded(blob_file([f8q8_blob(shape=(3, 15))])).reshape(-1), whole[:45])
    assert F8Q8_BLOCKS[33] == 0x38


def test_a_scalar_may_be_one_number_in_a_row() -> None:
    named: Named = version() | LAYERS["fp8"]("a")
    scale = {"a.weight.dequant_w_scale": ("F32", [1], struct.pack("<f", 0.5)), "a.weight.dtype": ("U32", [1], u32(9))}
    np.testing.assert_array_equal(decoded(named_file(named | scale)), decoded(named_file(named)))


def test_the_blocks_are_not_copied() -> None:
    with opened(blob_file([gguf_blob()])) as checkpoint:
        assert bytes(checkpoint.encoded("layers.0.weight").parts["blocks"].reshape(-1)) == Q8_0
