"""Every error Flyweight raises, and the escapers for text that came from a file.

    FlyweightError
    ├── MalformedError          the bytes break a rule of their format          exit 3
    │   ├── TruncatedError      a read runs past the end of the bytes
    │   └── LimitError          a count or length beyond the hard limits
    ├── UnsupportedError        well-formed, but not supported                  exit 4
    │   └── UnknownFormatError  no container recognizes the path
    ├── ResourceError           not enough RAM or disk, found before starting   exit 5
    ├── OutputError             the destination exists, is locked, or broke     exit 6
    ├── InterruptedRunError     interrupted; `--resume` continues               exit 7
    ├── GateError               accuracy gate not passed, or not measured       exit 1
    ├── ParentError             a delta was made from another base              exit 1
    └── ArgumentError           an invalid argument                             exit 2
                                (also a ValueError)

Untrusted bytes may raise only this tree. Other mistakes of the caller stay TypeError and
ValueError, and OSError passes through unchanged (exit 6 on the command line). On the command
line MemoryError is exit 5, and any other exception is E_INTERNAL, exit 70: `cli/failure.py`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar


def printable(text: str, limit: int = 200) -> str:
    """Make text from a file safe to print: no control, bidi or unassigned characters, bounded length.

    Tensor names and metadata are attacker text; a terminal must never interpret them.
    """
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    if cut.isascii() and cut.isprintable():
        return cut
    return "".join(
        c if c == " " or unicodedata.category(c)[0] not in "CZ" else c.encode("unicode_escape").decode("ascii")
        for c in as_utf8(cut)
    )


def as_utf8(text: str) -> str:
    """Text that UTF-8 can encode: a byte of a file name that is not UTF-8 becomes `\\xff`, a lone surrogate `\\ud800`."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join(_escaped_surrogate(c) if "\ud800" <= c <= "\udfff" else c for c in text)
    return text


def _escaped_surrogate(c: str) -> str:
    """The operating system's names are decoded with `surrogateescape`: byte b is U+DC00 + b."""
    return f"\\x{ord(c) - 0xDC00:02x}" if "\udc80" <= c <= "\udcff" else f"\\u{ord(c):04x}"


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean …?` where a known name is close to what was written, else nothing."""
    from difflib import get_close_matches

    found = get_close_matches(name.lower(), list(known), n=2)
    return f"; did you mean {' or '.join(found)}?" if found else ""


class FlyweightError(Exception):
    """What went wrong, where (file, tensor, byte), and what to do about it.

    `code` is stable across releases; the message is for people.
    """

    exit_code: ClassVar[int] = 1
    default_code: ClassVar[str] = "E_FLYWEIGHT"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        file: str | None = None,
        tensor: str | None = None,
        offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.file = file
        self.tensor = tensor
        self.offset = offset
        self.hint = hint

    def __str__(self) -> str:
        where = [printable(str(self.file))] if self.file else []
        if self.tensor is not None:
            where.append(f"tensor '{printable(self.tensor)}'")
        if self.offset is not None:
            where.append(f"byte {self.offset}")
        text = f"{', '.join(where)}: " if where else ""
        text += printable(self.message, 2000)
        if self.hint:
            text += f" ({printable(self.hint, 1000)})"
        return f"{text} [{self.code}]"

    def at(self, *, file: str | None = None, tensor: str | None = None) -> FlyweightError:
        """Fill in a location an inner layer could not know; never overwrite one it did."""
        self.file = self.file or file
        self.tensor = self.tensor or tensor
        return self

    def as_json(self) -> dict[str, object]:
        fields = {"file": self.file, "tensor": self.tensor, "offset": self.offset, "hint": self.hint}
        return {"code": self.code, "message": self.message} | {k: v for k, v in fields.items() if v is not None}


class MalformedError(FlyweightError):
    exit_code = 3
    default_code = "E_MALFORMED"


DAMAGED = "the file is damaged: download or convert it again"
CUT_SHORT = "the file seems to be truncated: download or convert it again"
"""The hint for a file that ends before its stated content."""


class TruncatedError(MalformedError):
    default_code = "E_TRUNCATED"


class LimitError(MalformedError):
    default_code = "E_LIMIT"


class UnsupportedError(FlyweightError):
    exit_code = 4
    default_code = "E_UNSUPPORTED"


class UnknownFormatError(UnsupportedError):
    default_code = "E_UNKNOWN_FORMAT"


class ResourceError(FlyweightError):
    exit_code = 5
    default_code = "E_RESOURCE"


class OutputError(FlyweightError):
    exit_code = 6
    default_code = "E_OUTPUT"


class InterruptedRunError(FlyweightError):
    exit_code = 7
    default_code = "E_INTERRUPTED"


class GateError(FlyweightError):
    """An accuracy gate is not passed: verification failed. `gate` is the verdict as it would be recorded, if there is one."""

    default_code = "E_GATE"

    def __init__(
        self, message: str, *, gate: Mapping[str, Any] | None = None, file: str | None = None, hint: str | None = None
    ):
        super().__init__(message, file=file, hint=hint)
        self.gate = gate

    def as_json(self) -> dict[str, object]:
        return super().as_json() | ({"gate": dict(self.gate)} if self.gate is not None else {})


class ParentError(FlyweightError):
    """A delta was given with another base than it was made from."""

    default_code = "E_PARENT"


class ArgumentError(FlyweightError, ValueError):
    """An argument or a setting of the caller is invalid, or names something unknown."""

    exit_code = 2
    default_code = "E_ARGUMENT"
