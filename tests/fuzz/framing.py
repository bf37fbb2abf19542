"""A model as one fuzz input: the files of a bundle, one behind the other.

    u8       1 if the bundle is a directory, 0 if it is a lone file
    then for each file
    u16      length of its name
    u32      length of its bytes
    name, bytes

Every string of bytes is such an input: a name or a file that is cut short ends where the input ends, and the last of two
files of one name counts. So a mutation of raw bytes is never wasted on a frame that nobody can read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Files", "Input", "pack", "unpack"]

Files = dict[str, bytes]
_HEAD = struct.Struct("<HI")


class Input(NamedTuple):
    files: Files
    is_directory: bool = True

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.files.values()))


def pack(files: Mapping[str, bytes], *, is_directory: bool) -> bytes:
    framed = [b"\x01" if is_directory else b"\x00"]
    for name, data in files.items():
        encoded = name.encode("utf-8", "surrogateescape")[:0xFFFF]
        framed += _HEAD.pack(len(encoded), len(data)), encoded, data
    return b"".join(framed)


def unpack(raw: bytes) -> Input:
    """A lone file has one name; a directory may be empty."""
    files: Files = {}
    at = 1
    while at + _HEAD.size <= len(raw):
        name_length, length = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        name = raw[at : at + name_length].decode("utf-8", "surrogateescape")
        at += name_length
        files[name] = raw[at : at + length]
        at += length
    is_directory = len(files) != 1 or bool(raw[0] & 1)
    return Input(files, is_directory)
