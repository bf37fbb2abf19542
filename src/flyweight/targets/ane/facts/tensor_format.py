"""Element formats of transfers. A streamed weight has a primary one, or one that transfers convert to fp16.

The compiler's test for the latter is `format < 0xe and 0x2ff0 >> format & 1`. What makes a format primary no source says; those
are that were measured to stream, or are named as native weight types.
"""

from __future__ import annotations

from collections.abc import Mapping

from flyweight.targets.ane.facts.fact import Fact, inferred, measured, seed, unknown

_CONVERTIBLE, _END = 0x2FF0, 0xE

TENSOR_FORMATS: Mapping[str, Fact[int]] = {
    kind: seed(number, "guide ch.36").named(f"tensor format of {kind}")
    for kind, number in {"int8": 1, "uint8": 2, "fp16": 3, "fp32": 0xB, "e4m3": 0xC, "e5m2": 0xD, "int4": 0x10}.items()
}

PRIMARY: Mapping[str, Fact[bool]] = {
    kind: fact.named(f"{kind} as a primary format")
    for kind, fact in {
        "fp16": measured(True, "guide ch.25", "palettes and sparse values of fp16 stream on the M1"),
        "int8": measured(True, "guide ch.7", "int8 streams on the M2"),
        "uint8": inferred(True, "guide ch.36", "admitted beside int8 by the same mask, 0x3b"),
        "e4m3": inferred(True, "guide ch.25", "admitted as a native weight type"),
    }.items()
}


def becomes_fp16(number: int) -> bool:
    """Whether transfers convert a format to fp16."""
    return number < _END and bool(_CONVERTIBLE >> number & 1)


def streamable(element: str) -> Fact[bool]:
    """Whether weights of an element type may stream."""
    if element in PRIMARY:
        return PRIMARY[element]
    number = TENSOR_FORMATS.get(element)
    if number is not None and number.value is not None and becomes_fp16(number.value):
        return inferred(True, "guide ch.36", "transfers convert it").named(f"{element} in transfers")
    return unknown("neither convertible nor said to be primary").named(f"{element} as a primary format")
