"""A side file as a patch of another: what to copy of it, and what lies between, deflated.

    u32       n, the number of steps
    u32 × n   for each step: how many bytes to take from the literals
    u32 × n   then where to copy from: how far behind the end of the copy before, modulo 2³²
    u32 × n   how many bytes to copy
    literals

Files are compared line by line and at commas, and word by word, and the smaller patch is taken: what a fine-tune changes in a
tokenizer is a few lines of a hundred thousand, or all white space between the words. Positions are relative because copies
follow each other: most are then zero.
"""

from __future__ import annotations

import re
import zlib

import numpy as np

from flyweight.foundation.errors import MalformedError

MAX_STEPS = 1 << 20
"""A step is twelve bytes that deflate to almost nothing: this bounds what a small patch can become."""
_U4 = np.dtype("<u4")
_STEP = 3 * _U4.itemsize
_LINES = re.compile(rb"[^\n,]*[\n,]|[^\n,]+\Z")
_WORDS = re.compile(rb"\s+|[^\s,:]+[,:]?|[,:]")


def make_patch(before: bytes, after: bytes) -> bytes:
    """What `apply_patch` makes `after` of."""
    return min((_patch(before, after, cut) for cut in (_LINES, _WORDS)), key=len)


def _patch(before: bytes, after: bytes, cut: re.Pattern[bytes]) -> bytes:
    places: dict[bytes, int] = {}
    for token in cut.finditer(before):
        places.setdefault(token[0], token.start())
    steps, literals = list[tuple[int, int, int]](), bytearray()
    literal = start = length = 0
    for token in cut.finditer(after):
        text, end = token[0], start + length
        if before.startswith(text, end):
            place: int | None = end
        else:
            place = places.get(text) if len(steps) < MAX_STEPS - 2 else None
        if length and place == end:
            length += len(text)
            continue
        if length:
            steps.append((literal, start, length))
            literal, start, length = 0, end, 0
        if place is None:
            literals += text
            literal += len(text)
        else:
            start, length = place, len(text)
    steps.append((literal, start, length))
    table = np.array(steps, np.int64).T
    table[1, 1:] -= table[1, :-1] + table[2, :-1]
    plain = np.array([len(steps)], _U4).tobytes() + (table & 0xFFFFFFFF).astype(_U4).tobytes() + bytes(literals)
    return zlib.compress(plain, 9)


def apply_patch(before: bytes, patch: bytes, nbytes: int) -> bytes:
    """What a patch makes of `before`, at most `nbytes`: the file that it was made for, if `before` is the one it was made from;
    the caller has its digest. MalformedError for what is no patch."""
    plain = _inflated(patch, 4 + min(nbytes + 1, MAX_STEPS) * _STEP + nbytes)
    count = int(np.frombuffer(plain, _U4, 1)[0]) if len(plain) >= 4 else -1
    at = 4 + count * _STEP
    if not 0 <= count <= MAX_STEPS or at > len(plain):
        raise _wrong()
    literals, apart, lengths = np.frombuffer(plain, _U4, 3 * count, 4).reshape(3, -1).tolist()
    made, end = bytearray(), 0
    for literal, gap, length in zip(literals, apart, lengths, strict=True):
        start = (end + gap) % (1 << 32)
        end = start + length
        if at + literal > len(plain) or len(made) + literal + length > nbytes:
            raise _wrong()
        made += plain[at : at + literal]
        made += before[start:end]
        at += literal
    if at != len(plain):
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
