"""Mutations of files by what they are: safetensors, GGUF, .npy, zstd, SQUIZD, .wdelta, UQFF, Core ML, zip, JSON, text."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from fuzz.mutators import coreml, gguf, json_text, plain, squizd, uqff, wdelta
from fuzz.mutators.values import NUMBERS, TEXTS, near, packed

try:
    from compression import zstd
except ModuleNotFoundError:
    from backports import zstd

__all__ = ["mutate"]

Mutator = Callable[[random.Random, bytes, bytes], bytes]

_ZSTD, _NPY, _SQUIZD = b"\x28\xb5\x2f\xfd", b"\x93NUMPY", b"SQZD"
_ZIP_RECORDS = (b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06")
_WORD = re.compile(rb"\d+|[A-Za-z_][\w.]*|'[^']*'|\"[^\"\n]*\"|[^\s\w]")
_NPY_WORDS = (
    b"'|i1'", b"'<i8'", b"'<f4'", b"'<f2'", b"'<u2'", b"'|u1'", b"'>f4'", b"'|O'", b"'|V0'", b"True", b"False", b"()", b"(,)",
    b"[('a','<f4')]", b"'descr'", b"'shape'", b"-1",
)  # fmt: skip


def _header_length(raw: bytes) -> int:
    return int.from_bytes(raw[:8], "little")


def is_safetensors(raw: bytes) -> bool:
    return len(raw) > 9 and raw[8:9] == b"{" and _header_length(raw) < 1 << 24


def safetensors(rng: random.Random, raw: bytes, donor: bytes) -> bytes:
    """The header as JSON, its length made right; or the data longer, shorter or other."""
    end = 8 + min(_header_length(raw), len(raw) - 8)
    head, data = raw[8:end], raw[end:]
    match rng.randrange(8):
        case 0:
            return plain.mutate(rng, raw, donor)
        case 1:
            return raw[:end] + plain.mutate(rng, data, donor)
    donor_head = donor[8 : 8 + min(_header_length(donor), len(donor))] if is_safetensors(donor) else b""
    head = json_text.mutate(rng, head, donor_head)
    return packed(len(head), 8) + head + data


def npy(rng: random.Random, raw: bytes, donor: bytes) -> bytes:
    """The dictionary in the header, padded and its length made right."""
    size = 2 if raw[6:7] == b"\x01" else 4
    begin = 8 + size
    end = begin + min(int.from_bytes(raw[8:begin], "little"), len(raw))
    match rng.randrange(6):
        case 0:
            return plain.mutate(rng, raw, donor)
        case 1:
            return raw[:end] + plain.mutate(rng, raw[end:], donor)
    text = words(rng, raw[begin:end].rstrip(), _NPY_WORDS)
    text += b" " * (-(begin + len(text) + 1) % 64) + b"\n"
    return raw[:8] + packed(len(text), size) + text + raw[end:]


def words(rng: random.Random, text: bytes, replacements: tuple[bytes, ...] = ()) -> bytes:
    """Text of any kind: numbers, words, quoted texts, marks and lines."""
    spans = [match.span() for match in _WORD.finditer(text)]
    if not spans or rng.randrange(6) == 0:
        return plain.mutate(rng, text)
    begin, end = rng.choice(spans)
    word = text[begin:end]
    match rng.randrange(6):
        case 0 | 1 if word.isdigit():
            new = str(near(rng, int(word[:19]))).encode()
        case 2:
            new = text[slice(*rng.choice(spans))]
        case 3:
            new = rng.choice(replacements) if replacements else rng.choice(TEXTS).encode()
        case 4:
            lines = text.splitlines(keepends=True)
            at = rng.randrange(len(lines))
            return b"".join(lines[:at] + rng.choice(([], [lines[at]] * 2, [rng.choice(lines)])) + lines[at + 1 :])
        case _:
            new = rng.choice((b"", word * 2, str(rng.choice(NUMBERS)).encode(), b"'" + rng.choice(TEXTS).encode() + b"'"))
    return text[:begin] + new + text[end:]


def zipped(rng: random.Random, raw: bytes, donor: bytes) -> bytes:
    """Fields of the records of an archive."""
    edited = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = edited.find(rng.choice(_ZIP_RECORDS), rng.randrange(len(edited)))
        if at < 0:
            return plain.mutate(rng, raw, donor)
        at += rng.randrange(46)
        if at < len(edited):
            edited[at] = rng.choice((0, 1, 8, 0x2F, 0x5C, 0x80, 0xFF, rng.randrange(256)))
    return bytes(edited) if rng.randrange(8) else plain.mutate(rng, bytes(edited), donor)


def compressed(rng: random.Random, raw: bytes, donor: bytes) -> bytes:
    """What a frame holds, compressed again; or the frame itself."""
    if rng.randrange(3) == 0:
        return plain.mutate(rng, raw, donor)
    try:
        inner = zstd.ZstdDecompressor().decompress(raw, 1 << 16)
    except (zstd.ZstdError, EOFError):
        return plain.mutate(rng, raw, donor)
    return zstd.compress(mutate(rng, inner, b""))


KINDS: tuple[tuple[Callable[[bytes], bool], Mutator], ...] = (
    (lambda raw: raw[:4] == gguf.MAGIC, gguf.mutate),
    (lambda raw: raw[:4] == _SQUIZD, squizd.mutate),
    (lambda raw: raw[:7] == wdelta.MAGIC, wdelta.mutate),
    (lambda raw: raw[:6] == _NPY, npy),
    (lambda raw: raw[:4] == _ZSTD, compressed),
    (lambda raw: raw[:2] == b"PK", zipped),
    (uqff.is_uqff, lambda rng, raw, donor: (uqff.mutate if rng.randrange(3) else safetensors)(rng, raw, donor)),
    (is_safetensors, safetensors),
    (json_text.is_json, json_text.mutate),
    (coreml.is_weight_file, coreml.weight_file),
    (coreml.is_program, coreml.program),
    (lambda raw: 0 < len(raw) < 1 << 16 and raw[:256].isascii(), lambda rng, raw, donor: words(rng, raw)),
)


def mutate(rng: random.Random, raw: bytes, donor: bytes = b"") -> bytes:
    """One file of any kind, changed as its kind allows; now and then as mere bytes."""
    if rng.randrange(10) == 0:
        return plain.mutate(rng, raw, donor)
    return next((mutator for recognises, mutator in KINDS if recognises(raw)), plain.mutate)(rng, raw, donor)
