"""The activation lookup record: its bytes, its evaluation, and bytes that are none."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from flyweight.foundation.errors import FlyweightError, MalformedError, UnsupportedError
from flyweight.sources import MemorySource
from flyweight.targets.ane.records.activation_functions import ACTIVATIONS, build
from flyweight.targets.ane.records.activation_record import LN_2, LOG2_E, ActivationRecord, Map, Reading, Tails

IDENTITY = ActivationRecord(Map.CENTRED, -20.0, 20.0, 0, tuple(float(i) for i in range(-16, 17)), Tails(1, 0, 1, 0))


def read(data: bytes, reading: Reading = "seed") -> ActivationRecord:
    return ActivationRecord.read(MemorySource(data), reading=reading)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("reading", ["seed", "disputed"])
@pytest.mark.parametrize(("deltas", "size"), [(False, 86), (True, 150)])
def test_a_record_comes_back(name: str, reading: Reading, deltas: bool, size: int) -> None:
    data = build(name).to_bytes(reading=reading, deltas=deltas)
    assert len(data) == size
    assert read(data, reading) == build(name)


def test_43_slots_in_their_places() -> None:
    """Two clamps, a mode, a scale, 33 knots, four tails and a word of two slots."""
    halves = struct.unpack("<41e", build("sigmoid").to_bytes()[:82])
    (word,) = struct.unpack("<I", build("sigmoid").to_bytes()[82:])
    assert len(halves) + 2 == 43
    assert halves[:4] == (-9.9375, 8.3203125, 0, 2)
    assert halves[4] == np.float16(1 / (1 + np.exp(8)))
    assert halves[4 + 16] == 0.5
    assert word == 0x0100


def test_heads_that_were_seen_in_compiled_programs() -> None:
    """log {0, ∞, −∞, 0}, sqrt {0, ∞, 0, ∞}, inverse {0, ∞, ∞, 0}: what disputes that slots 2 and 3 are mode and scale."""
    seen = {"log": (0, np.inf, -np.inf, 0), "sqrt": (0, np.inf, 0, np.inf), "inverse": (0, np.inf, np.inf, 0)}
    for name, head in seen.items():
        assert struct.unpack("<4e", build(name).to_bytes(reading="disputed")[:8]) == head


def test_before_a13_differences_follow_the_knots() -> None:
    old, new = build("tanh").to_bytes(deltas=True), build("tanh").to_bytes()
    assert old[:0x4A] + old[0x4A + 64 :] == new
    differences = np.frombuffer(old[0x4A : 0x4A + 64], "<f2")
    assert differences.tolist() == np.diff(np.frombuffer(new[8:0x4A], "<f2")).tolist()


def test_evaluation_clamps_selects_and_interpolates() -> None:
    x = np.array([-100, -20, -16.5, -16, -0.25, 0, 3.75, 16, 17.25, 20, 21, np.inf, np.nan])
    assert IDENTITY.evaluate(x).tolist() == [-20, -20, -16.5, -16, -0.25, 0, 3.75, 16, 17.25, 20, 20, 20, 20]


def test_every_step_of_the_interpolation_is_rounded() -> None:
    """k = 1, k' = 1 + 3·2⁻¹⁰, f = 1/2: the rise 1.5·2⁻¹⁰ is an f16, and the sum is a tie."""
    record = ActivationRecord(Map.CENTRED, -16, 16, 0, (*[1.0] * 17, *[1 + 3 * 2.0**-10] * 16), Tails(0, 1, 0, 1))
    assert record.evaluate(np.array([0.5])) == 1 + 2 * 2.0**-10
    assert record.evaluate(np.array([0.5]), "even") == 1 + 2 * 2.0**-10
    assert record.evaluate(np.array([1 / 6])) == 1 + 2.0**-10
    assert record.evaluate(np.array([1 / 6]), "even") == 1


def test_constants_are_f16() -> None:
    assert np.log(2).astype(np.float16) == LN_2
    assert np.log2(np.e).astype(np.float16) == LOG2_E


def test_odd_functions_keep_the_sign_of_zero_and_of_infinity() -> None:
    values = build("tanh").evaluate(np.array([-np.inf, -0.0, 0.0, np.inf]))
    assert values.tolist() == [-1, 0, 0, 1]
    assert np.signbit(values).tolist() == [True, True, False, False]


GOOD = IDENTITY.to_bytes()


def put(offset: int, data: bytes) -> bytes:
    return GOOD[:offset] + data + GOOD[offset + len(data) :]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        GOOD[:85],
        GOOD + b"\0",
        GOOD + bytes(64),  # 150 bytes, with the tails where differences should be
        put(0, struct.pack("<e", np.nan)),
        put(0, struct.pack("<2e", 1, -1)),
        put(0, struct.pack("<2e", 1, 1)),
        put(4, struct.pack("<e", 1)),
        put(4, struct.pack("<e", np.nan)),
        put(6, struct.pack("<e", 2)),
        put(8, struct.pack("<e", np.nan)),
        put(8 + 2 * 32, struct.pack("<e", np.inf)),
        put(0x4A, struct.pack("<e", np.nan)),
        put(0x52, struct.pack("<I", 9)),
        put(0x52, struct.pack("<I", 0xFF)),
        put(0x52, struct.pack("<I", 16 << 8)),
        put(0x52, struct.pack("<I", 1 << 16)),
        put(0x52, b"\xff\xff\xff\xff"),
    ],
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedError) as failure:
        read(data)
    assert failure.value.code == "E_ACTIVATION"
    assert failure.value.file == "<memory>"


def test_differences_that_are_not_the_knots_are_refused() -> None:
    data = bytearray(IDENTITY.to_bytes(deltas=True))
    data[0x4A] ^= 1
    with pytest.raises(MalformedError, match="differences"):
        read(bytes(data))


def test_any_bytes_give_a_record_or_a_typed_error() -> None:
    """And whatever record they give can be evaluated."""
    rng = np.random.default_rng(7)
    x = np.array([-np.inf, -3.0, 0.0, 2.0**-20, 5.5, np.nan])
    parsed = 0
    for _ in range(3000):
        data = bytearray(build(list(ACTIVATIONS)[rng.integers(len(ACTIVATIONS))]).to_bytes(reading="disputed"))
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(8, 86)] = rng.integers(256)
        try:
            record = read(bytes(data), "disputed")
        except FlyweightError:
            continue
        parsed += 1
        assert record.evaluate(x).shape == x.shape
    assert parsed > 100


def test_numbers_that_f16_cannot_hold_are_refused() -> None:
    with pytest.raises(UnsupportedError):
        ActivationRecord(Map.CENTRED, -1, 1, 0, (0.1,) * 33, Tails(0, 0, 0, 0))
    with pytest.raises(MalformedError):
        ActivationRecord(Map.CENTRED, -1, 1, 0, (0.0,) * 32, Tails(0, 0, 0, 0))
