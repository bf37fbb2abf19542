"""Bytes with random access, and bundles of them.

A `Source` answers `read(offset, length)` with exactly that many bytes or a TruncatedError. A
`Bundle` maps relative names to sources: a directory, or a single file as a bundle of one.
Names inside a model (shard names, side files) are looked up in the bundle's listing, so a name
that climbs out of the directory is simply not there. What was closed is a ClosedError for every use.
"""

from flyweight.sources.bundle import Bundle, MemoryBundle, PathBundle, local_path, open_bundle
from flyweight.sources.file import FileSource
from flyweight.sources.joined import JoinedSource, Piece
from flyweight.sources.memory import MemorySource
from flyweight.sources.opened import ClosedError, Opened, Uncopied
from flyweight.sources.source import Identity, Source

__all__ = [
    "Bundle",
    "ClosedError",
    "FileSource",
    "Identity",
    "JoinedSource",
    "MemoryBundle",
    "MemorySource",
    "Opened",
    "PathBundle",
    "Piece",
    "Source",
    "Uncopied",
    "local_path",
    "open_bundle",
]
