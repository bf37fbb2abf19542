"""Base of objects with open files: closed once and never copied.

Closing drops the holder's own reference. Whoever is in the middle of a read holds another until that read is done, and views
already handed out hold their mappings: nobody ever reads through a number that meanwhile means another file.
"""

from __future__ import annotations

from typing import ClassVar, NoReturn, SupportsIndex


class ClosedError(ValueError):
    """Something was used after it was closed; a ValueError, as for Python's own files."""


class Uncopied:
    """An object that copying and pickling refuse: `remedy` says what to do instead."""

    remedy: ClassVar[str] = "holds open files; open it again by its path"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        kind = type(self).__name__
        raise TypeError(f"a {kind} cannot be copied or pickled: it {self.remedy}")


class Opened(Uncopied):
    """Used until it is closed; then every use is a ClosedError. `name` is for messages."""

    name: str
    _closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True

    def check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"{self.name} is closed")
