"""Prompts from standard input and arguments, and a model's text to a terminal without control characters.

The text of a model is untrusted. A terminal obeys control characters in it (titles, colours, the clipboard) and lets direction
marks reorder what is shown, so on a terminal these appear as escapes: each character on its own, wherever a piece
of the stream ends. A pipe or a file gets the text as it is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import click

from flyweight.cli.output import note
from flyweight.foundation.errors import LimitError, MalformedError

_MAX_INPUT = 64 * 2**20
"""Bytes; more than the longest text that is encoded has."""
_MAX_LINE = 2**20

_COMMANDS = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls but tab and line feed
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f"  # direction, line and paragraph separators
    "\ufff9-\ufffb\ud800-\udfff]"
)


def say(text: str) -> None:
    """Write a piece of a model's text at once."""
    sys.stdout.write(re.sub(_COMMANDS, _escape, text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def _escape(command: re.Match[str]) -> str:
    return command[0].encode("unicode_escape", "backslashreplace").decode("ascii")


def require_text(name: str, text: str | None) -> None:
    """Refuse an argument whose bytes were no UTF-8, which Python hands over as surrogates."""
    try:
        (text or "").encode()
    except UnicodeEncodeError as error:
        at = len((text or "")[: error.start].encode())
        raise click.UsageError(f"{name} is not UTF-8 at byte {at}") from None


def text_from_stdin() -> str:
    """All of standard input."""
    raw = sys.stdin.buffer.read(_MAX_INPUT + 1)
    if len(raw) > _MAX_INPUT:
        raise LimitError(f"the prompt has more than {_MAX_INPUT} bytes", code="E_TEXT", file="standard input")
    return _decoded(raw, 0)


def lines_from_stdin() -> Iterator[str]:
    """Lines as they come. On a terminal, which is asked for them with a mark, a line that is no text is said to be none."""
    asked, offset = sys.stdin.isatty(), 0
    while True:
        if asked:
            sys.stderr.write("> ")
            sys.stderr.flush()
        raw = sys.stdin.buffer.readline(_MAX_LINE + 1)
        if not raw:
            return
        if len(raw) > _MAX_LINE:
            raise LimitError(f"a line has more than {_MAX_LINE} bytes", code="E_TEXT", file="standard input", offset=offset)
        try:
            yield _decoded(raw, offset).rstrip("\n")
        except MalformedError as error:
            if not asked:
                raise
            note(str(error))
        offset += len(raw)


def _decoded(raw: bytes, offset: int) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        at = offset + error.start
        raise MalformedError("the text is not UTF-8", code="E_TEXT", file="standard input", offset=at) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")
