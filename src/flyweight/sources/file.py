"""A regular file.

Large reads are views on a mapping of some megabytes, which neighbours share: a thousand tensors
need not be a thousand mappings. Small ones are too where there is one, and else copied with pread.
The address space in use follows the tensors in use, not the size of the model: a mapping lives as
long as a view on it. It begins and ends where large pages do, which are mapped whole or not at all.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path
from weakref import ref

from flyweight.foundation.errors import MalformedError, TruncatedError
from flyweight.sources.opened import ClosedError, Uncopied
from flyweight.sources.source import Identity, Source

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_MAP_FROM = 1 << 16
_AT_ONCE = 32 << 20
_HUGE = 2 << 20
_POPULATED_FROM = 1 << 20
_MADV_POPULATE_READ = 22
"""Linux 5.14."""
_HINTS = hasattr(os, "posix_fadvise") and hasattr(os, "RWF_NOWAIT")


class _Descriptor(int, Uncopied):
    """A file descriptor, closed when nobody holds it any more. Being a number it is passed to the system itself, and so is held
    until that call returns, whoever closes the source meanwhile."""

    def __del__(self) -> None:
        os.close(self)


class FileSource(Source):
    """Opened once; only regular files (a FIFO or device could block or never end)."""

    def __init__(self, path: Path | str, name: str | None = None, *, follow: bool = True) -> None:
        """Without `follow` a symbolic link is an OSError, ELOOP."""
        self.name = str(path) if name is None else name
        self._descriptor: _Descriptor | None = _Descriptor(os.open(path, _FLAGS if follow else _FLAGS | os.O_NOFOLLOW))
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise MalformedError("not a regular file", code="E_NOT_A_FILE", file=self.name)
        self.size = status.st_size
        self._last: tuple[int, Callable[[], mmap.mmap | None]] = (0, lambda: None)
        self._identity = Identity.of_file(status)

    @property
    def identity(self) -> Identity:
        return self._identity

    @property
    def _fd(self) -> _Descriptor:
        held = self._descriptor
        if held is None:
            raise ClosedError(f"{self.name} is closed")
        return held

    def close(self) -> None:
        super().close()
        self._descriptor = None

    def read(self, offset: int, length: int) -> memoryview:
        self.check_range(offset, length)
        first, shared = self._last
        window = shared()
        if window is None or not first <= offset <= offset + length <= first + len(window):
            if length < _MAP_FROM:
                buffer = memoryview(bytearray(length))
                self.read_into(offset, buffer)
                return buffer.toreadonly()
            first, size = self._around(offset, length)
            window = self._map(first, max(size, min(_AT_ONCE, self.size - first)), mmap.ACCESS_READ)
            self._last = first, ref(window)
        return memoryview(window)[offset - first : offset - first + length]

    def _around(self, offset: int, length: int) -> tuple[int, int]:
        """The large pages that hold these bytes, as far as the file goes: where they begin and how many bytes they have."""
        first = offset - offset % _HUGE
        return first, min(-(-(offset + length) // _HUGE) * _HUGE, self.size) - first

    def _map(self, first: int, size: int, access: int) -> mmap.mmap:
        fd = self._fd
        try:
            return mmap.mmap(fd, size, offset=first, access=access)
        except ValueError:  # it looks at the file's size itself
            raise TruncatedError("the file became shorter while it was read", file=self.name, offset=first) from None

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self.check_range(offset, len(buffer))
        done = 0
        while done < len(buffer):
            count = os.preadv(self._fd, [buffer[done:]], offset + done)
            if count == 0:
                raise TruncatedError("the file became shorter while it was read", file=self.name, offset=offset + done)
            done += count

    def in_memory(self, offset: int) -> bool:
        fd = self._fd
        if not _HINTS:
            return True
        try:
            os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT)
        except OSError:  # it would have to wait, or the file system cannot tell
            return False
        return True

    def expect(self, offset: int, length: int) -> None:
        fd = self._fd
        if _HINTS and (length < _POPULATED_FROM or not self._populate(offset, length)):
            os.posix_fadvise(fd, offset, length, os.POSIX_FADV_WILLNEED)

    def _populate(self, offset: int, length: int) -> bool:
        """Have the pages of a mapping brought in: in larger pieces than a hint makes of them, so that finding and mapping them
        costs a tenth. Returns when they are there, without the interpreter's lock meanwhile; False if the system cannot."""
        import ctypes

        first, size = self._around(offset, length)
        with self._map(first, size, mmap.ACCESS_COPY) as window:
            address = ctypes.addressof(ctypes.c_char.from_buffer(window))
            advise = ctypes.CDLL(None).madvise
            return not advise(ctypes.c_void_p(address), ctypes.c_size_t(len(window)), _MADV_POPULATE_READ)

    def unchanged(self) -> bool:
        return self._identity == Identity.of_file(os.fstat(self._fd))
