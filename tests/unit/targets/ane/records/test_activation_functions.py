"""Activation functions: knots, stated facts, and errors beside those measured on a device."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from flyweight.foundation.errors import ArgumentError
from flyweight.targets.ane.facts.fact import Provenance
from flyweight.targets.ane.records.activation_fit import fit_tail
from flyweight.targets.ane.records.activation_functions import ACTIVATIONS, activation_named, build, error_of
from flyweight.targets.ane.records.activation_record import Map
from flyweight.targets.ane.records.engine_numbers import round_f16

MEASURED = {
    "sigmoid": (3.355e-3, 810.8, -9.938),
    "tanh": (1.613e-3, 11.0, None),
    "erf": (8.642e-4, 3.0, None),
    "exp": (1.008e2, 9.1, 9.703),
    "log": (6.638e-3, 91.0, 1.004),
    "sqrt": (1.810e-2, 1.2, 0.002054),
    "rsqrt": (8.139e-3, 2.1, 0.0332),
}
"""Maximum error of an M6 over the same inputs, absolute and in ulps of f16, and where: as published, in four digits. Near 0
many inputs of tanh and erf have the maximum of ulps."""


@pytest.mark.parametrize("name", MEASURED)
def test_the_error_is_that_of_the_device(name: str) -> None:
    max_error, max_ulps, at = MEASURED[name]
    error = error_of(name)
    assert float(f"{error.max_error:.3e}") == max_error
    assert round(error.max_ulps, 1) == max_ulps
    assert at is None or float(f"{error.max_ulps_at:.4g}") == pytest.approx(
        at, abs=0.5 * 10 ** (math.floor(math.log10(abs(at))) - 2)
    )
    assert ACTIVATIONS[name].device_error.value == pytest.approx(max_error)


def test_the_error_of_sin_is_that_of_the_device() -> None:
    """In ulps it is not: near multiples of π the device's own π shows (45 ulps), which nobody has published."""
    assert float(f"{error_of('sin').max_error:.3e}") == 6.329e-4


def test_the_error_of_inverse_is_that_of_the_device_with_the_epsilon_of_core_ml() -> None:
    x = ACTIVATIONS["inverse"].inputs()
    moved = round_f16(x + float(np.float16(1e-4)))
    assert np.abs(build("inverse").evaluate(moved) - 1 / x).max() == 0.4375 == ACTIVATIONS["inverse"].device_error.value


def test_ties_to_even_are_not_what_was_measured() -> None:
    differing = [name for name in MEASURED if float(f"{error_of(name, 'even').max_error:.3e}") != MEASURED[name][0]]
    assert differing == ["tanh", "log", "sqrt", "rsqrt"]


def test_sigmoid_as_stated() -> None:
    record = build("sigmoid")
    assert (record.low, record.high) == (-9.9375, 8.3203125)  # −9.938 and 8.320
    assert len(record.knots) == 33
    knots = np.arange(-8, 8.5, 0.5)
    assert record.knots == tuple(np.float16(1 / (1 + np.exp(-knots))).astype(float))
    assert record.evaluate(np.array([-9.9375, -20, 8.3203125, 20])).tolist() == [0, 0, 1, 1]
    tail = np.array([-9.5078])  # where the study saw the error of the tail change its sign
    assert record.evaluate(tail.astype(np.float16)) == pytest.approx(1 / (1 + np.exp(9.5078)), rel=0.01)


KNOTS = {
    "tanh": lambda i: np.tanh(i / 8),
    "erf": lambda i: np.array([math.erf(v / 16) for v in i]),
    "sin": lambda i: np.sin(i * np.pi / 64),
    "exp": lambda i: 2 ** (i / 32),
    "log": lambda i: np.log2(0.5 + i / 64),
    "log2": lambda i: np.log2(0.5 + i / 64),
    "sqrt": lambda i: np.sqrt(0.5 + i / 16),
    "rsqrt": lambda i: 1 / np.sqrt(0.5 + i / 16),
    "inverse": lambda i: 1 / (0.5 + i / 64),
}


@pytest.mark.parametrize("name", KNOTS)
def test_sampled_knots_are_the_function(name: str) -> None:
    wanted = np.asarray(KNOTS[name](np.arange(33.0))).astype(np.float16)
    assert build(name).knots == tuple(wanted.astype(float))


def test_zero_infinity_and_nan() -> None:
    """log(0) is −45440: −∞ is read as −65536, times ln 2 in f16. NaN counts as +∞."""
    assert build("log").evaluate(np.array([0.0, -1.0])).tolist() == [-45440, -45440]
    assert build("sqrt").evaluate(np.array([0.0, -4.0, 4.0])).tolist() == [0, 0, 2]
    assert build("rsqrt").evaluate(np.array([0.0, 0.25])).tolist() == [np.inf, 2]
    assert build("inverse").evaluate(np.array([0.0, -0.0, -4.0])).tolist() == [np.inf, -np.inf, -0.25]
    assert build("exp").evaluate(np.array([0.0, -np.inf, 12.0])).tolist() == [1, 0, np.inf]
    for name in ("gelu", "silu", "softplus"):
        assert build(name).evaluate(np.array([np.inf, np.nan, 100, -np.inf])).tolist() == [np.inf, np.inf, 100, 0]


def test_sin_is_periodic_and_odd() -> None:
    record = build("sin")
    x = np.float16(np.linspace(-8, 8, 999)).astype(float)
    assert np.array_equal(record.evaluate(-x), -record.evaluate(x))
    assert record.evaluate(np.array([np.pi / 2, 3 * np.pi / 2])) == pytest.approx([1, -1], abs=1e-3)


FITTED = [name for name, activation in ACTIVATIONS.items() if activation.fitted]


def test_what_is_fitted() -> None:
    assert FITTED == ["gelu", "silu", "softplus"]
    assert ACTIVATIONS["softplus"].knots.provenance is Provenance.UNKNOWN


@pytest.mark.parametrize("name", FITTED)
def test_a_fit_halves_the_error_of_samples(name: str) -> None:
    """Chords of samples miss a curve by up to h² · |f″| / 8, all on one side; the best line misses it by half of that on both.
    One f16 rounding of the output, of at most 2⁻¹¹ · 2 where the error is greatest, comes on top."""
    activation = ACTIVATIONS[name]
    knots = round_f16(activation.exact(activation.places))
    sampled = replace(build(name), knots=tuple(knots.tolist()))
    x = activation.inputs()
    error = np.abs(sampled.evaluate(x) - activation.exact(x)).max()
    assert error_of(name).max_error <= error / 2 + 2.0**-10


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_a_fit_is_better_than_that_of_the_compiler(name: str) -> None:
    device = ACTIVATIONS[name].device_error.value
    assert device is not None
    assert error_of(name).max_error < 0.52 * device


@pytest.mark.parametrize("name", FITTED)
def test_no_ulp_of_one_knot_lowers_the_error(name: str) -> None:
    activation, record = ACTIVATIONS[name], build(name)
    x = activation.inputs()
    x = x[(x >= activation.places[0]) & (x <= activation.places[-1])]
    exact = activation.exact(x)
    least = np.abs(record.evaluate(x) - exact).max()
    for at in range(33):
        for way in (-np.inf, np.inf):
            knots = list(record.knots)
            knots[at] = float(np.nextafter(np.float16(knots[at]), np.float16(way)))
            assert np.abs(replace(record, knots=tuple(knots)).evaluate(x) - exact).max() >= least


def test_a_tail_ends_at_the_limit() -> None:
    clamp, slope = fit_tail(np.tanh, 1.0, 0.5, 1.0)
    assert clamp > 1
    x = np.linspace(1, 6, 500)
    line = np.where(x > clamp, 1, 1 + slope * (x - clamp))
    chord = 1 + (1 - np.tanh(1)) / (clamp - 1) * (x - clamp)
    assert np.abs(line - np.tanh(x)).max() <= np.abs(np.where(x > clamp, 1, chord) - np.tanh(x)).max()


def test_every_function_says_how_it_is_known() -> None:
    for activation in ACTIVATIONS.values():
        assert activation.knots.about == f"knots of {activation.name}"
        assert activation.knots.known or activation.knots.note
        assert activation.device_error.known or activation.device_error.note
    assert {activation.map for activation in ACTIVATIONS.values()} == set(Map)


def test_unknown_functions_suggest_the_nearest() -> None:
    with pytest.raises(ArgumentError, match="did you mean sigmoid"):
        activation_named("sigmoide")
