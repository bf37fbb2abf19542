"""The first bytes of a file, read once: header, index and directory take one read, or two where they are long."""

from __future__ import annotations

from flyweight.sources import Source

_AHEAD = 1 << 20


class Front(Source):
    """A source that holds the bytes it begins with. All others are read where they are asked for."""

    def __init__(self, source: Source) -> None:
        self.name, self.size = source.name, source.size
        self._source = source
        self._held = source.read(0, min(source.size, _AHEAD))

    def hold(self, end: int) -> None:
        """Have everything up to `end`."""
        if end > len(self._held):
            self._held = self._source.read(0, end)

    def read(self, offset: int, length: int) -> memoryview:
        self.check_range(offset, length)
        if offset + length <= len(self._held):
            return self._held[offset : offset + length]
        return self._source.read(offset, length)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self._source.read_into(offset, buffer)
