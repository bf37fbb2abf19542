"""Tabled codes: the bytes, whose entries they are, rows that share bytes, and the quantizers and grids of the affine codec."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from flyweight.codecs import codec_for
from flyweight.codecs.tabled import Tabled
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.tensor import CodecSpec, TensorSpec, has_rows
from flyweight.quantizers import QUANTIZERS
from support.importance import weighing

ID = 0x0123_4567_89AB_CDEF


def f32(*shape: int) -> TensorSpec:
    return TensorSpec(shape, DType.F32)


def decoded(values: np.ndarray, spec: TensorSpec, parts: dict[str, np.ndarray], bits: int, length: int) -> np.ndarray:
    """By the formula, one weight after the other, from the bytes."""
    stream = int.from_bytes(parts["codes"].tobytes(), "little")
    table = parts["entries" if length else "pair"].tobytes()
    out = np.empty(spec.size, np.float32)
    runs = -(-spec.columns // length) if length else 0
    for i in range(spec.size):
        q = stream >> i * bits & (1 << bits) - 1
        q -= 16 if bits == 4 and q >= 8 else 0
        entry = i // spec.columns * runs + i % spec.columns // length if length else 0
        _, scale, zero = struct.unpack_from("<Qff", table, 16 * entry)
        out[i] = np.float32(np.float32(scale) * np.float32(q)) + np.float32(zero)
    return out.reshape(spec.shape)


def test_the_bytes_of_four_bits() -> None:
    values = np.float32([[-8, 7, 0, 1, -7, 2], [3, 3, 3, 3, 0, 0]])
    parts = Tabled(4, 4, ID).encode(f32(2, 6), values)
    assert parts["codes"].tolist() == [[0x78, 0x10, 0x78], [0, 0, 0]]  # −8 and 7, 0 and 1, the edges; constants are 0
    raw = parts["entries"].tobytes()
    assert [struct.unpack_from("<Qff", raw, 16 * i) for i in range(4)] == [
        (ID | 1 << 63, 1.0, 0.0),
        (ID | 1 << 63, pytest.approx(0.6), pytest.approx(-7 + 8 * 0.6)),
        (ID | 1 << 63, 0.0, 3.0),
        (ID | 1 << 63, 0.0, 0.0),
    ]


def test_a_quotient_is_rounded_once() -> None:
    """(w − zero) / scale just below a tie is not taken for the tie, though adding 8 to it would make it one."""
    below = np.nextafter(np.arange(-7.5, 7, dtype=np.float32), np.float32(-1e9))
    rows = np.concatenate([np.float32([-8, 7]), below, below])[None]  # scale 1, zero 0
    codec, spec = Tabled(4, 32), TensorSpec((1, 32), DType.F32)
    assert np.array_equal(codec.decode(spec, codec.encode(spec, rows)), np.rint(rows))


def test_the_bytes_of_two_bits() -> None:
    values = np.float32([[1, 4, 2, 3, 1]])
    parts = Tabled(2, 0, ID).encode(f32(1, 5), values)
    assert parts["codes"].tolist() == [0b10_01_11_00, 0]
    assert struct.unpack("<Qff", parts["pair"].tobytes()) == (ID, 1.0, 1.0)


@pytest.mark.parametrize("bits", [4, 2])
@pytest.mark.parametrize("length", [0, 4, 5, 32, 100])
@pytest.mark.parametrize("shape", [(3, 37), (2, 3, 5), (7,), (4, 64), (1, 1), (0, 8), (3, 0)])
def test_values_are_the_formula(bits: int, length: int, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(bits + length)
    spec, codec = f32(*shape), Tabled(bits, length, ID)
    values = (rng.standard_normal(shape) * 0.1).astype(np.float32)
    parts = dict(codec.encode(spec, values))
    for part in parts.values():
        part.flags.writeable = False
    found = codec.decode(spec, parts)
    assert found.tobytes() == decoded(values, spec, parts, bits, length).tobytes()
    steps = np.abs(np.float64(found) - values).max(initial=0)
    reach = values.max(initial=0) - values.min(initial=0)
    assert steps <= reach / ((1 << bits) - 1) / 2 * (1 + 1e-5)
    assert codec.check_values(spec, parts) is None


def test_rows_that_are_no_whole_bytes_share_them() -> None:
    spec, whole = f32(4, 3), f32(4, 4)
    assert Tabled(4, 2).layout(spec)["codes"] == TensorSpec((6,), DType.U8)
    assert not has_rows(spec, Tabled(4, 2).layout(spec))
    assert has_rows(whole, Tabled(4, 2).layout(whole))
    assert not has_rows(whole, Tabled(4, 0).layout(whole))


@pytest.mark.parametrize(("length", "entry"), [(4, 5), (0, 0)])
@pytest.mark.parametrize("wrong", [ID, ID | 1 << 63, 7])
def test_an_entry_of_another_tensor_is_refused(length: int, entry: int, wrong: int) -> None:
    spec, codec = f32(4, 8), Tabled(4, length, ID)
    parts = dict(codec.encode(spec, np.ones(spec.shape, np.float32)))
    table = parts["entries" if length else "pair"]
    ids = table.view("<u8").reshape(-1, 2)
    if ids[entry, 0] == wrong:
        wrong ^= 1 << 63
    ids[entry, 0] = wrong
    with pytest.raises(MalformedError, match=f"entry {entry}") as caught:
        codec.decode(spec, parts)
    assert caught.value.code == "E_PART_VALUES"
    assert f"entry {entry} " in str(codec.check_values(spec, parts))


@pytest.mark.parametrize("place", [2, 3])
def test_pairs_that_are_not_finite_are_complained_about(place: int) -> None:
    spec, codec = f32(2, 8), Tabled(4, 4)
    parts = dict(codec.encode(spec, np.ones(spec.shape, np.float32)))
    parts["entries"].view(np.float32).reshape(-1, 4)[3, place] = np.nan
    assert codec.check_values(spec, parts) == "entry 3 has NaN or infinite values"


def test_bits_behind_the_last_code_are_complained_about() -> None:
    spec, codec = f32(1, 3), Tabled(4, 0)
    parts = dict(codec.encode(spec, np.ones(spec.shape, np.float32)))
    parts["codes"][-1] |= 0x10
    assert "after the last code" in str(codec.check_values(spec, parts))


@pytest.mark.parametrize(
    "wrong", [{"bits": 3}, {"bits": 4.0}, {"length": -1}, {"length": 2**31}, {"id": -1}, {"id": 2**63}, {"id": "x"}]
)
def test_parameters_out_of_range_are_malformed(wrong: dict[str, Any]) -> None:
    with pytest.raises(MalformedError):
        codec_for(CodecSpec("tabled", wrong))


def test_a_range_that_decoding_would_leave_is_refused() -> None:
    with pytest.raises(UnsupportedError) as caught:
        Tabled(4, 0).encode(f32(1, 4), np.float32([[3.4e38, -3.4e38, 0, 1]]))
    assert caught.value.code == "E_RANGE"


@pytest.mark.parametrize("bits", [4, 2])
@pytest.mark.parametrize("length", [0, 32, 48])
@pytest.mark.parametrize("quantizer", ["anchored", "clip", "hqq"])
def test_quantizers_of_affine_grids_fill_it(bits: int, length: int, quantizer: str) -> None:
    """By way of the affine codec: values differ from its own by the rounding of one sum."""
    rng = np.random.default_rng(length)
    spec, codec = f32(6, 102), Tabled(bits, length, ID)
    values = (rng.standard_normal(spec.shape) * 0.1 + 0.02).astype(np.float32)
    values[1] = 0
    values[2] = 0.25
    importance = rng.random(102).astype(np.float32)
    fill = QUANTIZERS[quantizer]
    for by in (None, importance):
        parts = fill(values, codec, spec, weighing(by))
        assert codec.check_values(spec, parts) is None
        frame = codec.frame(spec)
        tiled = by if by is None or length else np.tile(by, len(values))
        affine = codec.affine.decode(frame, fill(values, codec.affine, frame, weighing(tiled))).reshape(spec.shape)
        assert np.abs(codec.decode(spec, parts) - affine).max() <= 2.0**-22
    if length:
        assert not codec.decode(spec, parts)[1].any()  # zeros stay zeros, whatever the scale
    with pytest.raises(UnsupportedError):
        fill(values, codec, spec, weighing(importance[1:]))


def test_a_search_loses_less_than_the_extremes() -> None:
    values = np.random.default_rng(3).standard_normal((64, 256)).astype(np.float32)
    spec = f32(*values.shape)
    for bits in (4, 2):
        codec = Tabled(bits, 128)
        error = {
            name: float(np.square(codec.decode(spec, QUANTIZERS[name](values, codec, spec)) - values).sum())
            for name in ("nearest", "clip", "hqq")
        }
        assert error["clip"] < error["nearest"]


def test_the_default_is_what_diverges_least() -> None:
    assert Tabled(4, 64).quantizer == "anchored"  # docs/squizd.md


def test_grids_with_an_exact_bias_are_repacked() -> None:
    """q4_0 is w = d · (q − 8): its zero is none, and its codes are those of two's complement."""
    values = np.random.default_rng(4).standard_normal((3, 128)).astype(np.float32)
    spec, q4_0, tabled = f32(3, 128), codec_for(CodecSpec("q4_0")), Tabled(4, 32, ID)
    blocks = q4_0.encode(spec, values)
    parts = tabled.from_grid(spec, q4_0.grid(spec, blocks))
    assert not parts["entries"].reshape(-1, 4)[:, 3].any()
    assert np.array_equal(tabled.decode(spec, parts), q4_0.decode(spec, blocks))
    assert np.array_equal(q4_0.decode(spec, q4_0.from_grid(spec, tabled.grid(spec, parts))), q4_0.decode(spec, blocks))
    odd = dict(tabled.encode(spec, values))
    with pytest.raises(UnsupportedError):
        tabled.grid(spec, odd)
    with pytest.raises(UnsupportedError):
        Tabled(4, 0).grid(spec, Tabled(4, 0).encode(spec, values))
