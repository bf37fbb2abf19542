"""A side file as a patch of another: what to copy of it, and what lies between, deflated.

    u32       n, the number of steps
    u32 × 3   for each step: bytes to take from the literals; where to copy from, and how many bytes
    literals

Files are compared line by line, and at commas: what a fine-tune changes in a tokenizer is a few lines of a hundred thousand.
"""

from __future__ import annotations

import re
import zlib

import numpy as np

from flyweight.foundation.errors import MalformedError

_U4 = np.dtype("<u4")
_STEP = 3 * _U4.itemsize
_CUT = re.compile(rb"[^\n,]*[\n,]|[^\n,]+\Z")


def make_patch(before: bytes, after: bytes) -> bytes:
    """What `apply_patch` makes `after` of."""
    places: dict[bytes, int] = {}
    for line in _CUT.finditer(before):
        places.setdefault(line[0], line.start())
    steps, literals, literal, copied_from, copied = list[int](), bytearray(), 0, 0, 0

    for line in _CUT.finditer(after):
        text = line[0]
        if copied and before.startswith(text, copied_from + copied):
            copied += len(text)
            continue
        place = places.get(text)
        if copied:
            steps += [literal, copied_from, copied]
            literal = copied = 0
        if place is None:
            literals += text
            literal += len(text)
        else:
            copied_from, copied = place, len(text)
    steps += [literal, copied_from, copied]
    plain = np.array([len(steps) // 3, *steps], _U4).tobytes() + bytes(literals)
    return zlib.compress(plain, 9)


def apply_patch(before: bytes, patch: bytes, nbytes: int) -> bytes:
    """The file of `nbytes` bytes that a patch makes of `before`; MalformedError if it makes none of that size."""
    plain = _inflated(patch, 4 + (nbytes + 1) * (_STEP + 1))
    count = int(np.frombuffer(plain, _U4, 1)[0]) if len(plain) >= 4 else -1
    at = 4 + count * _STEP
    if count < 0 or at > len(plain):
        raise _wrong()
    made = bytearray()
    for literal, start, length in np.frombuffer(plain, _U4, 3 * count, 4).reshape(-1, 3).tolist():
        if at + literal > len(plain) or start + length > len(before) or len(made) + literal + length > nbytes:
            raise _wrong()
        made += plain[at : at + literal]
        made += before[start : start + length]
        at += literal
    if len(made) != nbytes or at != len(plain):
        raise _wrong()
    return bytes(made)


def _inflated(patch: bytes, most: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(patch, most)
    except zlib.error as error:
        raise MalformedError(f"a side file does not inflate: {error}", code="E_DELTA_FILE") from None
    if not inflater.eof or inflater.unused_data:
        raise _wrong()
    return plain


def _wrong() -> MalformedError:
    return MalformedError("the patch of a side file is not one", code="E_DELTA_FILE")
