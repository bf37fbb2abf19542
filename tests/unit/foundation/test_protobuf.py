"""Messages of the wire format: what is written is read, random messages against a model, and every rule a reader relies on."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyweight.foundation.errors import LimitError, MalformedError, TruncatedError
from flyweight.foundation.protobuf import Hole, Message, Pieces, field, map_field, number_field, packed_field, varint

NUMBERS = st.integers(1, (1 << 29) - 1)
VALUES = st.integers(0, (1 << 64) - 1)
FIELDS = st.lists(st.tuples(NUMBERS, VALUES | st.binary(max_size=200)), max_size=12)


def written(*content: bytes | Pieces) -> bytes:
    chunks, holes = Pieces(content).laid_out()
    assert not holes
    return b"".join(raw for _, raw in chunks)


def of(fields: list[tuple[int, int | bytes]]) -> bytes:
    return written(*(number_field(n, value) if isinstance(value, int) else field(n, value) for n, value in fields))


@given(FIELDS)
def test_a_message_is_read_as_it_was_written(fields: list[tuple[int, int | bytes]]) -> None:
    message = Message(of(fields))
    found = [(one.number, one.value if one.kind == 0 else message.data[one.start : one.end]) for one in message]
    assert found == fields
    assert [one.begin for one in message][1:] == [one.end for one in message][:-1]


@given(FIELDS, st.integers(0, 20))
def test_fields_of_a_message_inside_another_stay_inside(fields: list[tuple[int, int | bytes]], before: int) -> None:
    raw = of(fields)
    inner = Message(bytes(before) + raw + b"\xff" * 20, before, before + len(raw))
    assert len(list(inner)) == len(fields)
    assert all(before <= one.begin <= one.end <= before + len(raw) for one in inner)


@given(FIELDS.filter(bool), st.data())
def test_what_is_cut_is_never_read_beyond(fields: list[tuple[int, int | bytes]], data: st.DataObject) -> None:
    """A cut between two fields is a shorter message; any other is an error."""
    raw = of(fields)
    at = data.draw(st.integers(0, len(raw) - 1))
    ends = [0, *(one.end for one in Message(raw))]
    if at in ends:
        assert len(list(Message(raw[:at]))) == ends.index(at)
    else:
        with pytest.raises(TruncatedError):
            list(Message(raw[:at]))


@given(st.binary(max_size=60))
def test_any_bytes_are_fields_or_an_error(raw: bytes) -> None:
    with suppress(MalformedError):
        fields = list(Message(raw))
        assert b"".join(raw[one.begin : one.end] for one in fields) == raw


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=20))
def test_repeated_integers_packed_or_one_by_one(values: list[int]) -> None:
    assert Message(written(packed_field(3, values))).integers(3) == values
    assert Message(written(*(number_field(3, value) for value in values))).integers(3) == values


@given(VALUES)
def test_a_varint_is_as_short_as_can_be(value: int) -> None:
    assert len(varint(value)) == max(1, -(-value.bit_length() // 7))


@given(st.lists(st.one_of(st.binary(max_size=9), st.integers(0, 300)), max_size=9))
def test_holes_have_the_place_that_is_left_for_them(items: list[bytes | int]) -> None:
    """A message with holes is the same message with bytes in their places; an integer is a hole of that length."""
    holes = {("w", str(at)): nbytes for at, nbytes in enumerate(items) if isinstance(nbytes, int)}
    pieces = field(
        7, field(1, *(item if isinstance(item, bytes) else Hole(("w", str(at)), item) for at, item in enumerate(items)))
    )
    chunks, places = pieces.laid_out()
    filled = bytearray(b"?" * pieces.nbytes)
    for offset, raw in chunks:
        filled[offset : offset + len(raw)] = raw
    assert places.keys() == holes.keys()
    for key, offset in places.items():
        filled[offset : offset + holes[key]] = b"\x2e" * holes[key]
    whole = written(field(7, field(1, *(item if isinstance(item, bytes) else b"\x2e" * item for item in items))))
    assert bytes(filled) == whole


def test_a_map_has_every_key_once() -> None:
    entries = map_field(2, "a", b"\x08\x01"), map_field(2, "b")
    found = Message(written(*entries)).map(2)
    assert {key: value.integer(1) for key, value in found.items()} == {"a": 1, "b": 0}
    with pytest.raises(MalformedError, match="'a' is there twice"):
        Message(written(*entries, entries[0])).map(2)


def test_a_map_is_bounded() -> None:
    raw = b"".join(written(map_field(2, f"{at:x}")) for at in range((1 << 14) + 1))
    with pytest.raises(LimitError) as caught:
        Message(raw).map(2)
    assert caught.value.code == "E_BUDGET"
    assert sum(1 for _ in Message(raw).all(2)) == (1 << 14) + 1


@pytest.mark.parametrize("read", [lambda m: m.one(1), lambda m: m.text(1), lambda m: m.integer(1), lambda m: m.require(1, "x")])
def test_a_field_that_is_there_twice_is_refused(read: object) -> None:
    """Readers differ in which of the two counts."""
    with pytest.raises(MalformedError, match="field 1 is there twice"):
        read(Message(number_field(1, 1) * 2))  # type: ignore[operator]


def test_a_field_of_another_kind_is_refused() -> None:
    with pytest.raises(MalformedError, match="must be a message"):
        Message(number_field(1, 1)).one(1)
    with pytest.raises(MalformedError, match="must be a number"):
        Message(written(field(1, "x"))).integer(1)
    with pytest.raises(MalformedError, match="not UTF-8"):
        Message(written(field(1, b"\xff"))).text(1)
    with pytest.raises(MalformedError, match="there is no x"):
        Message(b"").require(1, "x")
