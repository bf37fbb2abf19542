"""The kernel unit: descriptor as text and as bytes, sections, and what is neither."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyweight.foundation.errors import FlyweightError, MalformedError, UnsupportedError
from flyweight.sources import MemorySource
from flyweight.targets.ane.records.activation_functions import build
from flyweight.targets.ane.records.channel_groups import channel_table
from flyweight.targets.ane.records.kernel_unit import Descriptor, KernelUnit, Lut, Ocgs, Pal, Vector, Weights

PALETTE = Descriptor(1, None, Pal(4, 4, 1, 32), Ocgs(4, 8), Vector(5, 64), None, Weights(9, 4, 2048))


def unit() -> KernelUnit:
    """Every section: 12 channels of 20 bytes, two tables of 16 f16 entries."""
    groups, nbytes = channel_table([20] * 12, 4, 2)
    descriptor = Descriptor(
        7, Lut(8, 16, 86), Pal(4, 4, 2, 32), Ocgs(4, len(groups)), Vector(5, 12), Vector(6, 12), Weights(9, 4, nbytes)
    )
    rng = np.random.default_rng(3)
    sizes = {"tables": 64, "scale": 24, "bias": 48}
    arrays = {name: rng.integers(0, 256, size, np.uint8) for name, size in sizes.items()}
    return KernelUnit(descriptor, groups, rng.integers(0, 256, nbytes, np.uint8), build("sigmoid"), **arrays)


def test_text_as_in_the_docstring() -> None:
    lines = [line.partition(";")[0].rstrip() for line in PALETTE.text().splitlines()]
    assert lines == [
        "t1 = s3008",
        "  lut:     -",
        "  pal:     (4, 4, 1, 32)",
        "  ocgs:    (4, 8)",
        "  scale:   (5, 64)",
        "  bias:    -",
        "  weights: (9, 4, 2048)",
    ]


optional = st.booleans()
number = st.integers(1, 10**6)


@st.composite
def descriptors(draw: st.DrawFn) -> Descriptor:
    lut = Lut(8, 16, draw(st.sampled_from([86, 150]))) if draw(optional) else None
    pal = Pal(4, draw(st.sampled_from([4, 8])), draw(number), draw(number)) if draw(optional) else None
    scale, bias = (Vector(draw(st.sampled_from([5, 6])), draw(number)) if draw(optional) else None for _ in range(2))
    return Descriptor(draw(number), lut, pal, Ocgs(draw(number), draw(number)), scale, bias, Weights(5, 16, draw(number)))


@given(descriptors())
def test_text_and_header_come_back(descriptor: Descriptor) -> None:
    from flyweight.foundation.cursor import Cursor

    assert Descriptor.from_text(descriptor.text()) == descriptor
    assert len(descriptor.header()) == 256
    assert Descriptor.read(Cursor(MemorySource(descriptor.header()))) == descriptor


def test_a_unit_comes_back() -> None:
    data = b"".join(unit().pieces())
    assert len(data) == unit().descriptor.nbytes
    again = KernelUnit.read(MemorySource(data))
    assert again.descriptor == unit().descriptor
    assert again.groups == unit().groups
    assert again.activation == build("sigmoid")
    assert {name: bytes(content) for name, content in again.contents().items()} == {
        name: bytes(content) for name, content in unit().contents().items()
    }
    assert b"".join(again.pieces()) == data


def test_the_150_byte_record_comes_back() -> None:
    whole = unit()
    old = Descriptor(7, Lut(8, 16, 150), None, whole.descriptor.ocgs, None, None, whole.descriptor.weights)
    data = b"".join(KernelUnit(old, whole.groups, whole.weights, build("tanh")).pieces())
    assert KernelUnit.read(MemorySource(data)).activation == build("tanh")
    assert data[256 : 256 + 150] == build("tanh").to_bytes(deltas=True)


def test_tables_share_one_cursor_and_one_budget() -> None:
    descriptor = unit().descriptor
    assert descriptor.offsets() | {"lut": 256, "pal": 256 + 128} == descriptor.offsets()
    assert descriptor.table_bytes == 128 + 64
    descriptor.check_budget(192)
    with pytest.raises(UnsupportedError, match="192 bytes of a table memory of 191"):
        descriptor.check_budget(191)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "t1 = s3008",
        PALETTE.text().replace("t1", "u1"),
        PALETTE.text().replace("s3008", "s3009"),
        PALETTE.text().replace("pal:", "lut:"),
        PALETTE.text().replace("(4, 8)", "-"),
        PALETTE.text().replace("(4, 8)", "(4, 8, 1)"),
        PALETTE.text().replace("(4, 8)", "(4, -8)"),
        PALETTE.text().replace("(4, 8)", "4, 8"),
        PALETTE.text().replace("(5, 64)", "(7, 64)"),
        PALETTE.text().replace("(5, 64)", "(5, 0)"),
        PALETTE.text().replace("(5, 64)", "(5, 999999999999999)"),
        PALETTE.text().replace("(5, 64)", "(٥, ٦٤)"),
        PALETTE.text().replace("s3008", "s" + "9" * 5000),
        PALETTE.text() + "more: (1)\n",
    ],
)
def test_text_that_is_no_descriptor_is_refused(text: str) -> None:
    with pytest.raises(MalformedError) as failure:
        Descriptor.from_text(text)
    assert failure.value.code == "E_KERNEL_UNIT"


GOOD = b"".join(unit().pieces())


def put(offset: int, value: int, size: int = 8) -> bytes:
    return GOOD[:offset] + value.to_bytes(size, "little") + GOOD[offset + size :]


OFFSETS = unit().descriptor.offsets()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        GOOD[:255],
        GOOD[:-1],
        GOOD + b"\0",
        put(4, 2, 4),
        put(8, len(GOOD) + 64),
        put(16, 0),
        put(16, 257),
        put(16 + 8, 2**63),
        put(16 + 24, 87),
        put(16 + 32, 1),
        put(56 + 24, 2**47),
        put(56 + 24, 2**64 - 1),
        put(96, 0),
        put(96 + 8, 5),
        put(96 + 16, 2**40),
        put(136 + 8, 99),
        put(216, 0),
        put(216 + 24, 0),
        put(216 + 32, 1),
        put(256 + 86, 1, 1),  # padding after the activation record
        put(256 + 4, 0x3C00, 2),  # its mode
        put(OFFSETS["ocgs"], 3, 4),
        put(OFFSETS["ocgs"] + 4, 1, 4),
        put(OFFSETS["ocgs"] + 20, 2**31, 4),  # the first group's offset
        put(OFFSETS["ocgs"] + 20 + 4, 0, 4),
        put(OFFSETS["ocgs"] + 20 + 48, 1, 4),
    ],
)
def test_bytes_that_are_no_unit_are_refused(data: bytes) -> None:
    with pytest.raises(FlyweightError):
        KernelUnit.read(MemorySource(data))


def test_a_group_beyond_the_weights_is_refused() -> None:
    last = OFFSETS["ocgs"] + 20 + 56 * (len(unit().groups) - 1)
    with pytest.raises(MalformedError, match="beyond the weights"):
        KernelUnit.read(MemorySource(put(last, 10**6, 4)))


def test_damaged_units_are_read_or_refused() -> None:
    rng = np.random.default_rng(11)
    refused = 0
    for _ in range(2000):
        data = bytearray(GOOD)
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(0, OFFSETS["scale"])] = rng.integers(256)
        try:
            KernelUnit.read(MemorySource(bytes(data)))
        except FlyweightError:
            refused += 1
    assert refused > 1000
