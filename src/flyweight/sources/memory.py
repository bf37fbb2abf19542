"""Bytes already in memory."""

from __future__ import annotations

from flyweight.sources.source import Source


class MemorySource(Source):
    remedy = "is a view of bytes; make it again from them"

    def __init__(self, data: bytes | memoryview, name: str = "<memory>") -> None:
        self._data = memoryview(data).cast("B").toreadonly()
        self.name = name
        self.size = len(self._data)

    def read(self, offset: int, length: int) -> memoryview:
        self.check_range(offset, length)
        return self._data[offset : offset + length]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.read(offset, len(buffer))
