"""How a failure is reported: a line on stderr, or with `--json` a document, and an exit code.

An unexpected exception is a bug in Flyweight. Its traceback goes into a report that only the user can read:

    $XDG_STATE_HOME/flyweight/reports/<time>-<random>.txt      [~/.local/state/flyweight/reports]

Nothing is sent anywhere. A report of `run` or `chat` has no prompts, only the names of options and of existing files. The
newest twenty are kept. `FLYWEIGHT_TRACEBACK=1` prints the traceback of every failure.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from flyweight import __version__
from flyweight.cli.output import json_text
from flyweight.foundation.errors import FlyweightError, LimitError, OutputError, ResourceError, as_utf8, printable

INTERNAL = 70
"""EX_SOFTWARE of sysexits.h."""
OUT_OF_MEMORY = "not enough memory"
_USAGE, _IO, _INTERRUPTED = 2, 6, 130
_TRACEBACK = "FLYWEIGHT_TRACEBACK"
_KEPT = 20
_TYPED = ("run", "chat")
"""Commands whose arguments are prompts."""


def tell(error: BaseException, arguments: Sequence[str]) -> int:
    """Report an error on stderr; returns the exit code."""
    if os.environ.get(_TRACEBACK):
        sys.stderr.write(_traceback(error))
    as_json = "--json" in arguments
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return _USAGE
    if isinstance(error, click.ClickException):
        if not as_json and isinstance(error, click.UsageError) and error.ctx:
            sys.stderr.write(f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help' for help.\n")
        return _say(error.format_message(), "E_USAGE", _USAGE, as_json)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return _say("interrupted (a conversion can continue with --resume)", "E_SIGINT", _INTERRUPTED, as_json)
    if isinstance(error, OSError) and error.errno != errno.ENOMEM:
        reason = error.strerror or str(error) or type(error).__name__
        return _say(f"{_named(error.filename)}: {reason}" if error.filename else reason, "E_IO", _IO, as_json)
    typed = error if isinstance(error, FlyweightError) else _expected(error)
    if typed is not None:
        _write(str(typed), typed.as_json(), as_json)
        return typed.exit_code
    return _internal(error, arguments, as_json)


def _expected(error: BaseException) -> FlyweightError | None:
    """What Python itself raises when the machine or the interpreter is at its limits."""
    if isinstance(error, RecursionError):
        return LimitError("the input is nested too deeply")
    text = str(error)
    unmapped = isinstance(error, ImportError) and ("failed to map" in text or "allocate memory" in text)
    threadless = isinstance(error, RuntimeError) and "start new thread" in text
    if isinstance(error, MemoryError | OSError) or unmapped or threadless:  # of OSError only ENOMEM comes here
        return ResourceError(
            OUT_OF_MEMORY, code="E_RAM", hint="close other programs, or use fewer --jobs, or a lower --max-ram or --context"
        )
    return None


def _internal(error: BaseException, arguments: Sequence[str], as_json: bool) -> int:
    message = f"a bug in Flyweight, not an error in your input: {type(error).__name__}: {error}"
    try:
        report = str(_write_report(error, arguments))
    except (OSError, OutputError, RuntimeError) as failure:  # RuntimeError: there is no home directory
        if not os.environ.get(_TRACEBACK):
            sys.stderr.write(_traceback(error))
        advice = f"please report it with the traceback above; writing it to a file failed: {failure}"
        return _say(f"{message} ({advice})", "E_INTERNAL", INTERNAL, as_json)
    advice = f"please report it and attach {report}"
    return _say(f"{message} ({advice})", "E_INTERNAL", INTERNAL, as_json, report=report)


def _say(message: str, code: str, exit_code: int, as_json: bool, **more: str) -> int:
    _write(f"{message} [{code}]", {"code": code, "message": message, **more}, as_json)
    return exit_code


def _write(line: str, document: Mapping[str, object], as_json: bool) -> None:
    sys.stderr.write(json_text({"error": document}) if as_json else f"flyweight: {printable(line, 4000)}")
    sys.stderr.write("\n")


def _named(file: Any) -> str:
    return os.fsdecode(file) if isinstance(file, str | bytes | os.PathLike) else f"descriptor {file}"


def _traceback(error: BaseException) -> str:
    from traceback import format_exception

    return "".join(f"{printable(line, 4000)}\n" for line in "".join(format_exception(error)).splitlines())


# Reports ----------------------------------------------------------------------------------------


def _write_report(error: BaseException, arguments: Sequence[str]) -> Path:
    import platform
    import time

    from flyweight.writing import own_folder, own_state

    lines = (
        f"flyweight {__version__}",
        f"Python {platform.python_version()}, {platform.platform()}",
        f"arguments: {json.dumps(list(_without_text(arguments)))}",
    )
    own_folder(own_state()).close()
    with own_folder(own_state() / "reports") as folder:
        for name in sorted(folder.names())[: 1 - _KEPT]:
            folder.remove_tree(name)
        name = f"{folder.fresh_name(time.strftime('%Y%m%dT%H%M%S-'))}.txt"
        folder.replace(name, "\n".join([*lines, "", _traceback(error)]).encode(), 0o600)
    return folder.path / name


def _without_text(arguments: Sequence[str]) -> list[str]:
    """The arguments, without prompts."""
    if not any(verb in arguments for verb in _TYPED):
        return [as_utf8(argument) for argument in arguments]
    return [_without_value(argument) for argument in arguments]


def _without_value(argument: str) -> str:
    if argument in _TYPED or os.path.lexists(argument):
        return as_utf8(argument)
    option, given, _ = argument.partition("=") if argument.startswith("-") else ("", "", "")
    hidden = len(argument) - len(option) - len(given)
    return as_utf8(f"{option}{given}<{hidden} characters>") if hidden else as_utf8(argument)
