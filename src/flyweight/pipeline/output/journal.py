"""The journal of a staging directory: whose it is, what is done, what is about to be published.

    {"fingerprint": …, "signature": …}                          the job, signed with the user's own key
    {"tensor": …, "parts": {part: BLAKE3, …}, "report": {…}}    one line per finished tensor
    {"place": …, "staged": [inode, mtime, bytes], "replaces": [name, …]}    written right before the output appears

The signature covers the fingerprint, the inode of the staging directory and the name of the destination. So a directory that
came with a model, or a copy of one of ours, is no journal: whoever prepared it cannot sign. A line that is torn, or is not one
of these, is ignored. The journal's own descriptor is the lock (flock) of the run.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any, NamedTuple

from flyweight.foundation.errors import OutputError
from flyweight.pipeline.conversion_report import TensorReport
from flyweight.writing import Folder, signature

JOURNAL = "journal.jsonl"
_HEADER_BYTES = 4096
_ANNOUNCEMENT = b'{"place":'
_PURPOSE = "flyweight staging 1"
_REPORTED = {field.name for field in fields(TensorReport)}


def identity(status: os.stat_result | None) -> list[int] | None:
    """What tells a staged file or directory under its next name."""
    if status is None:
        return None
    return [status.st_ino, status.st_mtime_ns, 0 if stat.S_ISDIR(status.st_mode) else status.st_size]


class Announced(NamedTuple):
    place: str
    """Where the output is staged; what it replaces is there after an exchange."""
    staged: list[int]
    replaces: list[str]
    """The files of the directory it replaces."""


class Journal:
    """Open and, once `lock` has succeeded, this run's own."""

    def __init__(self, descriptor: int, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self._descriptor = descriptor
        self._appending = threading.Lock()

    @classmethod
    def create(cls, root: Folder, destination: str, fingerprint: str) -> Journal:
        """A new one in a new directory, locked. Its first line is written in one go."""
        made = cls(root.create(JOURNAL, 0o600), fingerprint)
        try:
            made.lock()
            made.append({"fingerprint": fingerprint, "signature": _sign(root, destination, fingerprint)})
        except BaseException:
            made.close()
            raise
        return made

    @classmethod
    def verified(cls, root: Folder, destination: str) -> Journal | None:
        """The one in this directory, if this user wrote it here for this destination."""
        try:
            descriptor = root.reopen(JOURNAL, os.O_RDONLY)
            try:
                header = _object(os.pread(descriptor, _HEADER_BYTES, 0).partition(b"\n")[0]) or {}
            finally:
                os.close(descriptor)
            fingerprint = header.get("fingerprint")
            if not isinstance(fingerprint, str) or header.get("signature") != _sign(root, destination, fingerprint):
                return None
            return cls(root.reopen(JOURNAL), fingerprint)
        except (OSError, OutputError):
            return None

    def lock(self) -> bool:
        """Whether no other run has it. A file system without locks cannot tell, and lets both."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def finished(self) -> dict[str, dict[str, Any]]:
        """The lines of finished tensors, by tensor."""
        return {line["tensor"]: line for line in self._lines() if _is_finished(line)}

    def announced(self) -> Announced | None:
        """What was about to appear when the run ended."""
        found = None
        for line in self._lines(_ANNOUNCEMENT):
            place, staged, replaces = line.get("place"), line.get("staged"), line.get("replaces")
            if isinstance(place, str) and isinstance(staged, list) and isinstance(replaces, list):
                found = Announced(place, staged, replaces)
        return found

    def _lines(self, start: bytes = b"") -> Iterator[dict[str, Any]]:
        """The lines that begin so; the others, which may be a million, are not parsed."""
        size = os.fstat(self._descriptor).st_size
        text = b"".join(os.pread(self._descriptor, 1 << 20, at) for at in range(0, size, 1 << 20))
        for raw in text.split(b"\n")[1:]:
            if raw.startswith(start) and (line := _object(raw)) is not None:
                yield line

    def append(self, line: Mapping[str, Any]) -> None:
        """Each line begins anew, also after one that a kill cut short."""
        data = json.dumps(line).encode() + b"\n"
        with self._appending:
            end = os.lseek(self._descriptor, 0, os.SEEK_END)
            if end and os.pread(self._descriptor, 1, end - 1) != b"\n":
                data = b"\n" + data
            while data:
                data = data[os.write(self._descriptor, data) :]

    def announce(self, place: str, staged: Sequence[int] | None, replaces: Sequence[str]) -> None:
        """Say what is about to appear, durably: a run that is killed then is known to have ended its work."""
        self.append({"place": place, "staged": staged, "replaces": list(replaces)})
        os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _sign(root: Folder, destination: str, fingerprint: str) -> str:
    inode = os.fstat(root.descriptor).st_ino
    return signature(json.dumps([_PURPOSE, fingerprint, inode, destination]).encode())


def _object(raw: bytes) -> dict[str, Any] | None:
    with suppress(ValueError, RecursionError):
        line = json.loads(raw)
        return line if isinstance(line, dict) else None
    return None


def _is_finished(line: Mapping[str, Any]) -> bool:
    parts, report = line.get("parts"), line.get("report")
    is_report = isinstance(report, dict) and report.keys() == _REPORTED
    return isinstance(line.get("tensor"), str) and isinstance(parts, dict) and is_report
