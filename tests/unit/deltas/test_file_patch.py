"""Patches of side files."""

from __future__ import annotations

import json
import zlib
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyweight.deltas.file_patch import MAX_STEPS, apply_patch, make_patch
from flyweight.foundation.errors import MalformedError

VOCABULARY = {f"token{number}": number for number in range(5000)}
TEXT = st.lists(st.sampled_from([b"a", b"bc", b",", b"\n", b" ", b": ", b'"x"', b"\xff"]), max_size=40).map(b"".join)


@given(TEXT, TEXT)
def test_a_patch_gives_the_file_back(before: bytes, after: bytes) -> None:
    assert apply_patch(before, make_patch(before, after), len(after)) == after


def test_a_few_lines_cost_a_few_bytes() -> None:
    before = json.dumps(VOCABULARY, indent=1).encode()
    after = before.replace(b'"token77"', b'"<tool>"')
    patch = make_patch(before, after)
    assert apply_patch(before, patch, len(after)) == after
    assert len(patch) < 100


def test_other_white_space_costs_little() -> None:
    before = json.dumps(VOCABULARY, separators=(",", ":")).encode()
    after = json.dumps(VOCABULARY, indent=2).encode()
    patch = make_patch(before, after)
    assert apply_patch(before, patch, len(after)) == after
    assert len(patch) * 10 < len(zlib.compress(after, 9))


def test_a_new_file_is_deflated() -> None:
    after = json.dumps(VOCABULARY).encode()
    patch = make_patch(b"", after)
    assert apply_patch(b"", patch, len(after)) == after
    assert len(patch) < len(zlib.compress(after, 9)) + 40


def patch_of(*steps: tuple[int, int, int], literals: bytes = b"", count: int | None = None) -> bytes:
    columns = (pack(f"<{len(steps)}I", *column) for column in zip(*steps, strict=True))
    return zlib.compress(pack("<I", len(steps) if count is None else count) + b"".join(columns) + literals)


@pytest.mark.parametrize(
    "patch",
    [
        b"",
        b"no deflated bytes",
        patch_of((0, 0, 3))[:-1],
        patch_of((0, 0, 3)) + b"x",
        zlib.compress(b"\0"),
        patch_of((0, 0, 4)),
        patch_of((1, 0, 2)),
        patch_of((0, 0, 3), literals=b"x"),
        patch_of((0, 0, 3), (2**32 - 1, 0, 0)),
        patch_of((0, 0, 3), count=2),
        patch_of((0, 0, 3), count=2**32 - 1),
        zlib.compress(pack("<I", MAX_STEPS + 1) + bytes(12 * (MAX_STEPS + 1)) + b"abc"),
    ],
)
def test_what_is_no_patch_is_refused(patch: bytes) -> None:
    """Of the three bytes "abc", to a file of three."""
    with pytest.raises(MalformedError) as raised:
        apply_patch(b"abc", patch, 3)
    assert raised.value.code == "E_DELTA_FILE"


def test_a_copy_may_lie_before_the_last() -> None:
    assert apply_patch(b"abc", patch_of((0, 2, 1), (1, 2**32 - 3, 2), literals=b"-"), 4) == b"c-ab"


@pytest.mark.parametrize("patch", [patch_of((0, 2, 3)), patch_of((0, 2**32 - 1, 1)), patch_of((0, 0, 2))])
def test_a_patch_of_another_file_makes_another(patch: bytes) -> None:
    """Which its digest tells; a file that is too short to copy from is no damage of the patch."""
    made = apply_patch(b"abc", patch, 3)
    assert len(made) < 3
