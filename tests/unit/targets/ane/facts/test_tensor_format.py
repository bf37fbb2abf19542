"""Which formats may stream."""

from __future__ import annotations

from flyweight.targets.ane.facts.tensor_format import TENSOR_FORMATS, becomes_fp16, streamable


def test_what_transfers_convert_follows_from_the_mask() -> None:
    assert {number for number in range(32) if becomes_fp16(number)} == {*range(4, 12), 13}


def test_formats() -> None:
    assert {kind: fact.value for kind, fact in TENSOR_FORMATS.items()} == {
        "int8": 1, "uint8": 2, "fp16": 3, "fp32": 11, "e4m3": 12, "e5m2": 13, "int4": 16,
    }  # fmt: skip
    assert [streamable(kind).value for kind in ("fp16", "int8", "uint8", "e4m3", "fp32", "e5m2")] == [True] * 6
    assert not streamable("int4").known
    assert not streamable("uint4").known
