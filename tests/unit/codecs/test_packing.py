"""Bit orders: fixed bytes for each, and both round trips for all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight.codecs import packing
from flyweight.foundation.errors import UnsupportedError

COMBINATIONS = [(name, bits) for name, order in packing.PACKINGS.items() for bits in sorted(order.bits)]


def row(*codes: int) -> np.ndarray:
    return np.array([codes], np.uint8)


@pytest.mark.parametrize(
    ("name", "bits", "codes", "expected"),
    [
        ("little", 4, (0x1, 0x2, 0x3), "2103"),
        ("big", 4, (0x1, 0x2, 0x3), "1230"),
        ("halves-low", 4, (0x1, 0x2, 0x3, 0x4), "3142"),
        ("halves-high", 4, (0x1, 0x2, 0x3, 0x4), "1324"),
        ("halves-low", 2, (0, 1, 2, 3), "e4"),
        ("halves-high", 2, (0, 1, 2, 3), "1b"),
        ("halves-low", 4, (0x1, 0x2, 0x3), "3102"),
        ("little", 3, (0b001, 0b010, 0b011), "d100"),
        ("big", 3, (0b001, 0b010, 0b011), "2980"),
        ("little", 1, (1, 0, 0, 0, 0, 0, 0, 0, 1), "0101"),
        ("big", 1, (1, 0, 0, 0, 0, 0, 0, 0, 1), "8080"),
        ("little", 8, (1, 2), "0102"),
        ("big", 8, (1, 2), "0102"),
        ("halves-high", 8, (1, 2), "0102"),
    ],
)
def test_bytes_are_as_documented(name: str, bits: int, codes: tuple[int, ...], expected: str) -> None:
    assert packing.pack(name, row(*codes), bits).tobytes().hex() == expected


@pytest.mark.parametrize(("name", "bits"), COMBINATIONS)
@given(data=st.data())
@settings(max_examples=15, deadline=None, derandomize=True)
def test_unpack_undoes_pack(name: str, bits: int, data: st.DataObject) -> None:
    rows, count = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 70))
    codes = np.random.default_rng(data.draw(st.integers(0, 999))).integers(0, 2**bits, (rows, count)).astype(np.uint8)
    packed = packing.pack(name, codes, bits)
    assert packed.shape == (rows, packing.packed_width(name, bits, count))
    assert np.array_equal(packing.unpack(name, packed, bits, count), codes)


@pytest.mark.parametrize(("name", "bits"), COMBINATIONS)
def test_pack_undoes_unpack_of_full_bytes(name: str, bits: int) -> None:
    """With 8 · k codes every bit of every byte belongs to a code."""
    count = 40
    packed = np.random.default_rng(bits).integers(0, 256, (3, packing.packed_width(name, bits, count))).astype(np.uint8)
    assert np.array_equal(packing.pack(name, packing.unpack(name, packed, bits, count), bits), packed)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_repack_there_and_back(bits: int) -> None:
    packed = np.arange(2 * 5 * bits, dtype=np.uint8).reshape(2, 5 * bits)
    for name in packing.PACKINGS:
        other = packing.repack("little", name, packed, bits, 40)
        assert np.array_equal(packing.repack(name, "little", other, bits, 40), packed)


def test_rows_may_be_longer_than_needed() -> None:
    padded = np.array([[0x21, 0x03, 0xFF, 0xFF]], np.uint8)
    assert packing.unpack("little", padded, 4, 3).tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(("name", "bits"), [("halves-low", 3), ("halves-high", 5), ("little", 0), ("big", 9), ("middle", 4)])
def test_orders_that_do_not_exist_are_refused(name: str, bits: int) -> None:
    assert not packing.supports(name, bits)
    for refused in (
        lambda: packing.pack(name, row(0), bits),
        lambda: packing.unpack(name, row(0), bits, 1),
        lambda: packing.packed_width(name, bits, 1),
    ):
        with pytest.raises(UnsupportedError) as caught:
            refused()
        assert caught.value.code == "E_PACKING"


def test_a_code_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="16 does not fit 4 bits"):
        packing.pack("little", row(3, 16), 4)


@pytest.mark.parametrize("packed", [np.zeros((1, 1), np.uint8), np.zeros((1, 2), np.uint16), np.zeros(2, np.uint8)])
def test_bytes_that_cannot_hold_the_codes_are_refused(packed: np.ndarray) -> None:
    with pytest.raises(ValueError, match="need rows of 2 bytes"):
        packing.unpack("little", packed, 4, 3)
