"""Times against what was measured on M1, M2, M4 and M5."""

from __future__ import annotations

import pytest

from flyweight.targets.ane.facts import rates
from flyweight.targets.ane.roofline import dispatch_time, layer_time, speed_up
from flyweight.targets.ane.stream_size import dense_bytes, streamed_bytes
from support.engine_weights import MEASUREMENTS, engine, form_of

N = 2048 * 2048
PIXELS = 32


def byte_share(form: str) -> float:
    return streamed_bytes(form_of(form)) / dense_bytes(N)


@pytest.mark.parametrize("form", MEASUREMENTS["layer_microseconds"]["M4"])
def test_layers_of_the_m4_take_what_the_stream_allows(form: str) -> None:
    """Within 2.5 %: the rate is given to two digits, 67 ± 0.5, and zeros were drawn, not counted."""
    estimate = layer_time(engine("M4"), 2 * N * PIXELS, streamed_bytes(form_of(form)))
    assert estimate.limit == "weights"
    assert (estimate.seconds or 0) * 1e6 == pytest.approx(MEASUREMENTS["layer_microseconds"]["M4"][form], rel=0.025)


def test_sparse_stack_of_the_m1() -> None:
    """Six convolutions at 63 % zeros ran 1.55 to 1.64 times as fast: between what the bytes alone allow and what is left if
    everything else that a dense stack waits for stays."""
    found = speed_up(engine("M1"), byte_share("sparse 0.37"))
    assert found.least is not None
    assert found.least < 1.55 < 1.64 < found.most
    assert found.least == pytest.approx(1.52, abs=0.005)
    assert found.most == pytest.approx(2.31, abs=0.005)
    assert {fact.value for fact in found.facts} == {29e9, 48e9}


def test_effective_bandwidth_gives_the_band() -> None:
    """The same stack moved 29 GB/s of dense weights, and 48 of what would have been dense: as figures of two digits, a speed-up
    of 1.61 to 1.70, which meets the measured band."""
    dense, stream = (engine("M1").read(table).value or 0 for table in (rates.DENSE_STREAM, rates.WEIGHT_STREAM))
    low, high = (stream - 0.5e9) / (dense + 0.5e9), (stream + 0.5e9) / (dense - 0.5e9)
    assert 1.55 <= low <= 1.64 <= high


def test_palettes_of_the_m1_ran_237_times_as_fast() -> None:
    found = speed_up(engine("M1"), byte_share("lut4"))
    assert (found.least or 0) < 2.37 < found.most


@pytest.mark.parametrize("shape", MEASUREMENTS["m5_speed_up"])
def test_products_of_the_m5_stay_below_what_bytes_allow(shape: str) -> None:
    measured = MEASUREMENTS["m5_speed_up"][shape]
    for form in ("lut4", "sparse 0.32"):
        assert 1 < measured[form] < speed_up(engine("M5"), byte_share(form)).most
    assert measured["int8"] == pytest.approx(1, abs=0.01), "what disputes that int8 streams there"


def test_int8_of_the_m2_comes_near_half_of_the_time() -> None:
    share = byte_share("int8")
    assert all(share < time < 1 for time in MEASUREMENTS["m2_int8_time"].values())
    assert MEASUREMENTS["m2_int8_time"]["8192"] == pytest.approx(share, abs=0.02)


def test_fits() -> None:
    m1, m5 = engine("M1"), engine("M5")
    assert [dispatch_time(target).value for target in (m1, engine("M2"), m5)] == [0.23e-3, 0.1e-3, 0.11e-3]
    assert layer_time(m1, int(3.25e12), 0).seconds == pytest.approx(1)
    assert layer_time(m5, int(8.9e12), 10).limit == "arithmetic"
    small = layer_time(engine("M2"), int(1.8e8), 0)
    assert small.seconds == pytest.approx(1.8e8 / (7.3e12 * 0.01**0.38))


def test_without_a_rate_there_is_no_time() -> None:
    estimate = layer_time(engine("M3"), 1000, 1000)
    assert (estimate.seconds, estimate.limit) == (None, "")
    assert speed_up(engine("M3"), 0.25).least is None


@pytest.mark.parametrize(("chip", "target"), [("M4", "H16"), ("M6", "H18")])
def test_skipped_zeros(chip: str, target: str) -> None:
    measured = MEASUREMENTS["zero_skip_microseconds"][chip]
    for row in rates.ZERO_SKIP_TIMES[target].value or ():
        assert row.time == pytest.approx(measured[f"{row.density:g}"] / measured["1"], abs=0.006)
