"""The command line run in this process, through `main` itself, and every verb with arguments that fit a model."""

from __future__ import annotations

import io
import json
import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from flyweight.cli import main
from flyweight.cli.failure import INTERNAL

__all__ = ["EXIT_CODES", "INVOCATIONS", "Done", "flyweight", "invocations"]

EXIT_CODES = {0, 1, 2, 3, 4, 5, 6, 7}
"""What a verb may exit with when nobody interrupts it and Flyweight has no fault."""


class Done(NamedTuple):
    code: int
    stdout: bytes
    stderr: bytes

    @property
    def said(self) -> str:
        return (self.stdout + self.stderr).decode()

    def json(self) -> Any:
        return json.loads(self.stdout)

    def error(self) -> dict[str, Any]:
        """The last line of stderr as the document it is with `--json`."""
        document: dict[str, Any] = json.loads(self.stderr.splitlines()[-1])["error"]
        return document

    def check(self, *, as_json: bool = False) -> None:
        """What holds whatever a verb was given: a documented exit code, and nothing on the terminal that it would obey."""
        assert self.code in EXIT_CODES, (self.code, INTERNAL, self.stderr.decode())
        for stream in (self.stdout, self.stderr):
            text = stream.decode("utf-8")
            odd = {c for c in text if c not in "\n " and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")}
            assert not odd, (odd, text)
        if as_json and self.code in (0, 1):
            json.loads(self.stdout)
        elif as_json:
            assert self.error()["code"].startswith("E_")


def flyweight(*arguments: object, stdin: bytes = b"") -> Done:
    """Run `main` with these arguments and streams of its own."""
    streams = [io.TextIOWrapper(io.BytesIO(content), "utf-8") for content in (stdin, b"", b"")]
    streams[2].reconfigure(errors="backslashreplace")
    code: Any = 0
    with mock.patch.multiple(
        sys, argv=["flyweight", *map(str, arguments)], stdin=streams[0], stdout=streams[1], stderr=streams[2]
    ):
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    for stream in streams[1:]:
        stream.flush()
    out, err = (stream.buffer.getvalue() for stream in streams[1:])  # type: ignore[attr-defined]
    return Done(int(code or 0), out, err)


INVOCATIONS: dict[str, Callable[[Path, Path], tuple[object, ...]]] = {
    "inspect": lambda model, _: (model, "--tensors"),
    "verify": lambda model, _: (model,),
    "diff": lambda model, _: (model, model, "--all"),
    "convert": lambda model, out: (model, out / "made.safetensors", "--tensors"),
    "convert --dry-run": lambda model, out: (model, out / "made-hf", "--dry-run"),
    "convert --add int4": lambda model, _: (model,),
    "extract --list": lambda model, _: (model,),
    "extract": lambda model, out: (model, "files", out / "parts"),
    "run": lambda model, _: (model, "abc", "--raw", "--max-tokens", 1, "-v"),
    "eval": lambda model, out: (model, "--text", out / "text.txt"),
    "calibrate": lambda model, out: (model, "-o", out / "made.stats", "--tokens", 64, "--window", 8),
    "ane plan": lambda model, _: (model, "--target", "M1", "--form", "auto"),
    "ane compare": lambda model, _: (model,),
    "cache ls": lambda model, _: (model,),
    "cache verify": lambda model, _: (model,),
    "cache build": lambda model, _: (model,),
    "cache prune": lambda model, _: (model, "--dry-run"),
    "bench": lambda model, _: ("run", model, "--runs", 1),
}
"""How each verb that takes a model is called with one; the second path is an empty directory to write to."""


def invocations(model: Path, out: Path, *, but: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[object, ...], bool]]:
    """Every call with a model, as text and as JSON: its verb, its arguments, whether it is JSON."""
    for call, arguments in INVOCATIONS.items():
        for as_json in (False, True):
            if call not in but:
                yield call, (*call.split(), *arguments(model, out), *(["--json"] if as_json else [])), as_json
