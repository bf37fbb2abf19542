"""The cursor never reads beyond its end and never allocates what a length field merely claims."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight.foundation import cursor as module
from flyweight.foundation.cursor import SCALARS, Cursor, check_name, check_shape
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import LimitError, MalformedError, TruncatedError
from flyweight.foundation.limits import MAX_ELEMENTS
from flyweight.sources import MemorySource


def over(raw: bytes, **bounds: int) -> Cursor:
    return Cursor(MemorySource(raw, "file"), **bounds)


def texts(*values: str) -> bytes:
    return b"".join(struct.pack("<Q", len(v.encode())) + v.encode() for v in values)


@pytest.mark.parametrize("label", SCALARS)
def test_scalars(label: str) -> None:
    raw = SCALARS[label].pack(1) + SCALARS[label].pack(2)
    reader = over(raw)
    assert (reader.scalar(label), reader.scalars(label, 1)) == (1, [2])
    assert reader.remaining == 0
    with pytest.raises(TruncatedError):
        reader.scalar(label)


def test_end_bounds_the_reader() -> None:
    reader = over(bytes(16), offset=4, end=8)
    assert reader.u32() == 0
    with pytest.raises(TruncatedError) as error:
        reader.u8("a flag")
    assert (error.value.file, error.value.offset) == ("file", 8)
    assert "a flag" in str(error.value)


@pytest.mark.parametrize("length", [9, 2**31, 2**63, 2**64 - 1])
def test_take_compares_before_it_reads(length: int) -> None:
    reader = over(bytes(8))
    with pytest.raises(TruncatedError):
        reader.take(length)
    assert reader.offset == 0


def test_count_is_bounded_by_limit_and_by_bytes() -> None:
    reader = over(bytes(100))
    assert reader.count(10, 10, 50, "items") == 10
    with pytest.raises(LimitError):
        reader.count(51, 1, 50, "items")
    with pytest.raises(TruncatedError):
        reader.count(11, 10, 50, "items")


def test_text_is_strict() -> None:
    assert over(texts("grüße")).text() == "grüße"
    with pytest.raises(MalformedError, match="not valid UTF-8") as error:
        over(struct.pack("<Q", 1) + b"\xff").text()
    assert error.value.code == "E_UTF8"
    with pytest.raises(LimitError):
        over(texts("abc")).text(limit=2)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.text(max_size=40), max_size=30), st.integers(9, 64))
def test_texts_equal_one_by_one_in_any_window(values: list[str], window: int) -> None:
    raw = texts(*values)
    before = module._WINDOW
    module._WINDOW = window
    try:
        one, many = over(raw), over(raw)
        assert many.texts(len(values)) == [one.text() for _ in values] == values
        assert many.offset == one.offset == len(raw)
    finally:
        module._WINDOW = before


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (texts("a") + struct.pack("<Q", 2**63), TruncatedError),
        (texts("a") + struct.pack("<Q", 5) + b"1234", TruncatedError),
        (texts("a") + b"1234", TruncatedError),
        (texts("a") + struct.pack("<Q", 1) + b"\x80", MalformedError),
    ],
)
def test_texts_fail_where_the_broken_one_is(raw: bytes, error: type[MalformedError]) -> None:
    with pytest.raises(error) as caught:
        over(raw).texts(2)
    assert caught.value.offset in (9, 17)


_SHORT = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(_SHORT, min_size=3, max_size=30), st.sampled_from(["", "\0", "a" * 255, "a" * 256, "\0" * 9]), st.data())
def test_texts_cut_all_at_once_stop_at_the_one_that_is_not_short(values: list[str], odd: str, data: st.DataObject) -> None:
    values.insert(data.draw(st.integers(0, len(values))), odd)
    raw = texts(*values, "the rest")
    assert over(raw).texts(len(values)) == values
    found, end = module._short_texts(raw, len(values))
    assert found == values[: len(found)]
    assert end == len(texts(*found))


def test_texts_of_a_vocabulary_are_cut_all_at_once() -> None:
    values = [f"Ġ{number}" for number in range(1000)]
    raw = texts(*values)
    assert module._short_texts(raw, 2000)[0] == values[:-1]  # the last may go on behind the window
    broken = raw.replace("Ġ500".encode(), b"\xff\xff500")
    with pytest.raises(MalformedError) as error:
        over(broken).texts(1000)
    assert error.value.offset == len(texts(*values[:500]))


def test_names() -> None:
    assert check_name("../../etc/passwd") == "../../etc/passwd"  # a name is never a path
    for bad in ("", "a\0b", "é" * 513):
        with pytest.raises(MalformedError) as error:
            check_name(bad, file="f")
        assert error.value.code == "E_NAME"


def test_shapes() -> None:
    assert check_shape([2, 0, 3]) == (2, 0, 3)
    assert check_shape(()) == ()
    for dtype in DType:  # the largest that is accepted is one that NumPy takes, if it is empty
        assert np.zeros(check_shape([0, MAX_ELEMENTS]), dtype.storage).size == 0
    for bad in (None, "23", [1.0], [True], [-1], [2**63], [0, 2**62, 4], [2**32, 2**32], [0, 2**60]):
        with pytest.raises(MalformedError) as error:
            check_shape(bad)
        assert error.value.code == "E_SHAPE"
    with pytest.raises(LimitError) as rank:
        check_shape([1] * 9)
    assert rank.value.code == "E_RANK"
