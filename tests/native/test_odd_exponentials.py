"""The exponential in gates, soft caps and attention, for every kind of bits an f32 can have: NaN in, NaN out, else in bounds.

Run under the undefined-behaviour sanitizer this also shows that no payload of a NaN overflows on its way.
"""

from __future__ import annotations

import numpy as np
import pytest

from flyweight import kernels

SETS = ("baseline", "avx2", "avx512", "avx512vnni")
SPECIAL = np.array(
    [
        0, 1, 0x007FFFFF, 0x00800000, 0x3F800000, 0x42AE0000, 0x42AE0001, 0x7F7FFFFF, 0x7F800000,
        0x7F800001, 0x7F8000FF, 0x7FBFFFFF, 0x7FC00000, 0x7FC00001, 0x7FC000FF, 0x7FFFFFFF,
    ],
    np.uint32,
)  # fmt: skip
"""Zero, the smallest and largest of each kind, the ends of the exponential's range, NaNs of many payloads."""


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 1 << 14, dtype=np.uint32)
    payloads = rng.integers(0x7F800001, 0x80000000, 1 << 12, dtype=np.uint32)
    signs = SPECIAL | np.uint32(0x80000000)
    made = np.concatenate([SPECIAL, signs, bits, payloads, payloads | np.uint32(0x80000000)]).view(np.float32)
    return made[: len(made) // 8 * 8]


def gate(x: np.ndarray, activation: str) -> np.ndarray:
    """The activation of each value alone, through weights of one."""
    columns = np.zeros((len(x), 32), np.float32)
    columns[:, 0], columns[:, 1] = x, 1
    first, second = np.eye(2, 32, dtype=np.float32)
    matrices = [kernels.matrix("f32", weights=row[None].copy()) for row in (first, second)]
    out = np.empty((len(x), 1), np.float32)
    kernels.gated(*matrices, columns, out, activation=activation, int8=False)
    return out[:, 0]


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gates(values: np.ndarray, activation: str, isa: str) -> None:
    found, nan = gate(values, activation), np.isnan(values)
    assert np.isnan(found[nan]).all()
    usual = ~nan & (np.abs(values) < 80)
    wide = values[usual].astype(np.float64)
    t = wide if activation == "silu" else np.sqrt(8 / np.pi) * (wide + 0.044715 * wide**3)
    with np.errstate(over="ignore"):
        exact = wide / (1 + np.exp(-t))
    # The bound of test_matvec: roundings of the exponential and of its argument, and what is lost where it is held at e^87.
    roundings = 8 + (0 if activation == "silu" else 6 * np.minimum(np.abs(t), 90))
    bound = roundings * 2.0**-24 * np.abs(exact) + 2.0**-120 * np.abs(wide) + 2.0**-149
    assert (np.abs(found[usual] - exact) <= bound).all()


@pytest.mark.parametrize("cap", [1.0, 30.0])
def test_soft_caps(values: np.ndarray, cap: float, isa: str) -> None:
    found = values.reshape(-1, 8).copy()
    kernels.softcap(found, cap)
    found, nan = found.reshape(-1), np.isnan(values)
    assert np.isnan(found[nan]).all()
    exact = cap * np.tanh(values[~nan].astype(np.float64) / cap)
    assert (np.abs(found[~nan] - exact) <= 16 * 2.0**-24 * np.abs(exact) + 2.0**-140).all()  # the bound of test_softcap


@pytest.mark.parametrize("tokens", [1, 8])
def test_attention(values: np.ndarray, tokens: int, isa: str) -> None:
    """A NaN among the keys of one head, of any payload, makes that head NaN and leaves the others."""
    heads, head = 2, 16
    for payload in values[np.isnan(values)][:: len(values) // 64]:
        keys, cached = (np.zeros((heads, 64, head), np.float32) for _ in range(2))
        x = np.ones((tokens, 3 * heads * head), np.float32)
        x[:, heads * head] = payload
        out = np.zeros((tokens, heads * head), np.float32)
        none = np.zeros((64, 0), np.float32)
        kernels.attend(x, heads, keys, cached, 0, none, none, out, False, None, None, 1e-6, 0.25, 0.0, 0, 1)
        assert np.isnan(out[:, :head]).all()
        assert np.array_equal(out[:, head:], np.ones((tokens, head), np.float32))
