"""JSON that only accepts JSON."""

from __future__ import annotations

import gc
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight.foundation import strict_json
from flyweight.foundation.errors import LimitError, MalformedError
from flyweight.foundation.limits import MAX_JSON_BYTES, MAX_JSON_DEPTH

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(values)
def test_what_is_written_is_read(value: Any) -> None:
    assert strict_json.loads(strict_json.dumps(value), file="x") == value
    assert strict_json.loads(json.dumps(value).encode(), file="x") == value


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "E_JSON"),
        (b"{", "E_JSON"),
        (b"{}x", "E_JSON"),
        (b"\xef\xbb\xbf{}", "E_JSON"),
        (b"{'a':1}", "E_JSON"),
        (b"[1,]", "E_JSON"),
        (b"[01]", "E_JSON"),
        (b"NaN", "E_JSON"),
        (b"-Infinity", "E_JSON"),
        (b"1e999", "E_JSON"),
        (b"9" * 5000, "E_JSON"),
        (b'"\x01"', "E_JSON"),
        (b'{"a":1,"a":1}', "E_JSON_DUPLICATE"),
        (b'{"a":1,"\\u0061":1}', "E_JSON_DUPLICATE"),
        (b'[{"b":{"a":1,"a":2}}]', "E_JSON_DUPLICATE"),
        (b'"\\ud800"', "E_UTF8"),
        (b'{"\\udc00":1}', "E_UTF8"),
        (b'"\\ud800\\u0041"', "E_UTF8"),
        (b'"\xff"', "E_UTF8"),
        (b'"\xed\xa0\x80"', "E_UTF8"),
        (b"[" * 100_000, "E_JSON_DEPTH"),
        (b'{"a":' * 100_000, "E_JSON_DEPTH"),
    ],
)
def test_refuses(raw: bytes, code: str) -> None:
    with pytest.raises(MalformedError) as error:
        strict_json.loads(raw, file="x")
    assert (error.value.code, error.value.file) == (code, "x")
    assert gc.isenabled()


def test_depth_is_exact_and_brackets_in_strings_do_not_count() -> None:
    deepest = b"[" * MAX_JSON_DEPTH + b"]" * MAX_JSON_DEPTH
    strict_json.loads(deepest, file="x")
    strict_json.loads(json.dumps("[" * 1000).encode(), file="x")
    for wrapped in (b"[" + deepest + b"]", b'{"]":' + deepest + b"}", b'["]","]",' + deepest + b"]"):
        with pytest.raises(MalformedError) as error:
            strict_json.loads(wrapped, file="x")
        assert error.value.code == "E_JSON_DEPTH"


def test_paired_surrogates_are_text() -> None:
    assert strict_json.loads(b'"\\ud83d\\ude00"', file="x") == "\U0001f600"
    assert strict_json.loads(b'"\\\\ud800"', file="x") == "\\ud800"


def test_minus_zero_is_no_integer() -> None:
    (zero,) = strict_json.loads(b"[-0]", file="x")
    assert type(zero) is float
    assert strict_json.loads(b'{"model-00001":[-1, 0]}', file="x") == {"model-00001": [-1, 0]}


def test_size_is_checked_first() -> None:
    with pytest.raises(LimitError):
        strict_json.loads(bytes(MAX_JSON_BYTES + 1), file="x")


def test_cost_is_linear() -> None:
    """Shapes of text that make careless scanners quadratic: a second is hundreds of times what each takes."""
    size = 300_000
    for raw in (b'"' + b'\\"' * size, b'["' + b"[" * size, b'["' * size, b"{" * size, b'[""' + b',""' * size):
        start = time.process_time()
        with pytest.raises(MalformedError):
            strict_json.loads(raw, file="x")
        assert time.process_time() - start < 1.0
