"""The engine's f16 and 8-bit floats: the stated facts, and every code."""

from __future__ import annotations

import numpy as np
import pytest

from flyweight import kernels
from flyweight.foundation.dtypes import DType
from flyweight.targets.ane.records.engine_numbers import (
    as_engine_reads,
    from_e4m3,
    from_e5m2,
    round_f16,
    to_e4m3,
    to_e5m2,
)

EVERY_F16 = np.arange(65536, dtype=np.uint16).view(np.float16)
FINITE_F16 = EVERY_F16[np.isfinite(EVERY_F16)]
EVERY_BYTE = np.arange(256, dtype=np.uint8)


def test_ties_go_away_from_zero_or_to_even() -> None:
    """2049 → 2050, −2049 → −2050, 4098 → 4100, 1 + 2⁻¹¹ → 1 + 2⁻¹⁰: measured on M4 and M6."""
    ties = np.array([2049, -2049, 4098, 1 + 2.0**-11])
    assert round_f16(ties).tolist() == [2050, -2050, 4100, 1 + 2.0**-10]
    assert round_f16(ties, "even").tolist() == [2048, -2048, 4096, 1]


@pytest.mark.parametrize("ties", ["away", "even"])
def test_what_f16_holds_stays(ties: str) -> None:
    assert np.array_equal(round_f16(FINITE_F16, ties), FINITE_F16.astype(np.float64))  # type: ignore[arg-type]
    assert round_f16(np.array([np.inf, -np.inf]), ties).tolist() == [np.inf, -np.inf]  # type: ignore[arg-type]


def test_rounding_away_differs_only_in_ties() -> None:
    values = np.random.default_rng(1).normal(0, 100, 4096)
    assert np.array_equal(round_f16(values), round_f16(values, "even"))


def test_overflow_and_subnormals() -> None:
    assert round_f16(np.array([65519.99, 65520.0, -1e300])).tolist() == [65504, np.inf, -np.inf]
    assert round_f16(np.array([2.0**-25, 2.0**-26, -(2.0**-25)])).tolist() == [2.0**-24, 0, -(2.0**-24)]


def test_inputs_of_exponent_31() -> None:
    assert as_engine_reads(np.array([np.inf, -np.inf, np.nan, 1.5], np.float16)).tolist() == [65536, -65536, 65536, 1.5]


def test_e4m3_is_what_the_formula_says() -> None:
    """(−1)^s · 2^(e−7) · (1 + m/8), subnormal at e = 0; 448 is the greatest, 0x7f NaN, and there is no infinity."""
    sign, exponent, mantissa = EVERY_BYTE >> 7, EVERY_BYTE >> 3 & 15, EVERY_BYTE & 7
    normal = 2.0 ** (exponent.astype(int) - 7) * (1 + mantissa / 8)
    expected = np.where(exponent == 0, 2.0**-6 * mantissa / 8, normal) * np.where(sign, -1, 1)
    expected[(EVERY_BYTE & 0x7F) == 0x7F] = np.nan
    assert np.array_equal(from_e4m3(EVERY_BYTE), expected.astype(np.float32), equal_nan=True)
    assert np.nanmax(from_e4m3(EVERY_BYTE)) == 448
    assert not np.isinf(from_e4m3(EVERY_BYTE)).any()


def test_e4m3_overflow_is_a_mode() -> None:
    large = np.array([449, 464, 465, 1e6, np.inf, -1e6, np.nan, 448], np.float32)
    assert to_e4m3(large).tolist() == [0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x7F, 0x7E]
    assert to_e4m3(large, "nan").tolist() == [0x7E, 0x7E, 0x7F, 0x7F, 0x7F, 0xFF, 0x7F, 0x7E]


def test_e4m3_comes_back_and_agrees_with_the_codec_kernel() -> None:
    assert np.array_equal(to_e4m3(from_e4m3(EVERY_BYTE)), EVERY_BYTE)
    values = FINITE_F16.astype(np.float32)[np.abs(FINITE_F16) <= 448].reshape(1, -1)
    codes = np.empty(values.shape, np.uint8)
    kernels.fp8_codes(values, np.ones((1, 1), np.float32), values.size, False, False, codes)
    assert np.array_equal(from_e4m3(to_e4m3(values)), from_e4m3(codes))


def test_e5m2_is_the_high_byte_of_f16() -> None:
    widened = from_e5m2(EVERY_BYTE)
    assert np.array_equal(widened.view(np.uint16), EVERY_BYTE.astype(np.uint16) << 8)
    finite = np.isfinite(widened)
    assert np.array_equal(to_e5m2(widened)[finite], EVERY_BYTE[finite])
    assert np.abs(widened[finite]).max() == 57344


def test_e5m2_rounds_to_even_and_clamps_at_infinity() -> None:
    expected = FINITE_F16.astype(np.float32).astype(DType.F8_E5M2.numpy).view(np.uint8)
    assert np.array_equal(to_e5m2(FINITE_F16), expected)
    assert to_e5m2(np.array([65504, np.inf, -np.inf, 1e9], np.float64)).tolist() == [0x7C, 0x7C, 0xFC, 0x7C]
    assert np.isnan(from_e5m2(to_e5m2(np.array([np.nan], np.float16)))).all()
