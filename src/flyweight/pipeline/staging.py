"""Writing an output so that it is there whole, or not at all.

    .NAME.partial/          beside the destination, on the same file system
        lock                held (flock) by the run that owns it
        journal.jsonl       line 1: fingerprint of the job; then one line per finished tensor
        out/                the files themselves, allocated in full, written once in place

A run fills `out/`, syncs every file and directory, and then renames: a file with link(2) (fails if the
name exists) or rename(2) (`force`), a directory with renameat2(2). A kill at any point leaves the
old destination, or none, or the complete new one. The journal holds a BLAKE3 per stored part:
`resume` reads back what the journal claims and keeps only what matches, so neither a torn page nor
a journal line that outlived its data can reach the output.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from blake3 import blake3

from flyweight.containers import Image
from flyweight.errors import OutputError, ResourceError
from flyweight.manifest import Entry, Extent

__all__ = ["Staging", "sync_directory"]

_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_READ = 4 << 20
_KEPT_OPEN = 128
"""Files whose descriptors are kept. An output can have more of them than a process may open; others are opened for each use."""
_FLUSHED_FROM = 1 << 20
_REMEDIES = {
    errno.ENOSPC: "free some room, or write elsewhere",
    errno.EDQUOT: "free some of your quota, or write elsewhere",
    errno.EFBIG: "write to a file system that takes larger files, or in several files with --shard-size",
}


class Staging:
    """One output in the making. Use as a context manager; without `publish` nothing appears at the destination."""

    def __init__(self, destination: Path, *, is_directory: bool, fingerprint: str, resume: bool, force: bool) -> None:
        self.destination = destination
        self.is_directory = is_directory
        self.force = force
        self.fingerprint = fingerprint
        self.root = self._home() / f".{destination.name}.partial"
        self.out = self.root / "out"
        self.finished: dict[str, dict[str, Any]] = {}
        self._descriptors: dict[str, int] = {}
        self._names: list[str] = []
        self._journal_lock = threading.Lock()
        journal = self.root / "journal.jsonl"
        resumes = resume and journal.exists()
        if not destination.parent.is_dir():
            raise OutputError("its directory does not exist", code="E_NO_PARENT", file=str(destination), hint="create it first")
        if not force and os.path.lexists(destination) and not resumes:
            raise OutputError("already exists", code="E_EXISTS", file=str(destination), hint="use --force to replace it")
        self.root.mkdir(mode=0o700, exist_ok=True)
        self._lock = self._take_lock()
        self._journal = -1
        try:
            if resumes:
                self.finished = self._read_journal(journal)
            else:
                self._clear()
            self.published = resumes and not force and self._is_published()
            """Whether an earlier run was killed after its output appeared, before it could clean up."""
            if self.out.is_file():
                self.out.unlink()  # a file that `force` replaced by a directory
            self.out.mkdir(exist_ok=True)
            self._journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            if not self.finished:
                os.ftruncate(self._journal, 0)
                self._append({"fingerprint": fingerprint})
        except BaseException:
            self.close()
            raise

    def _home(self) -> Path:
        """Where the staging directory is made: on the file system of the output."""
        return self.destination.parent

    def _take_lock(self) -> int:
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(self.root / "lock")):
                return descriptor
            raise BlockingIOError  # its owner removed it between our open and our lock
        except (BlockingIOError, FileNotFoundError):
            os.close(descriptor)
            raise OutputError("another run is writing this output", code="E_LOCKED", file=str(self.destination)) from None

    def _is_published(self) -> bool:
        """A directory was renamed away from staging; a file is the same inode under both names."""
        if not os.path.lexists(self.destination):
            return False
        staged = self.out / self.destination.name
        if not self.out.exists() or (staged.exists() and os.path.samefile(staged, self.destination)):
            return True
        raise OutputError("already exists", code="E_EXISTS", file=str(self.destination), hint="use --force to replace it")

    def _clear(self) -> None:
        """Remove everything but the lock, the journal last: while it is there a resumed run knows what was done."""
        for item in sorted(self.root.iterdir(), key=lambda item: item.name == "journal.jsonl"):
            if item.name == "lock":
                continue
            if item.is_dir() and not item.is_symlink():
                shutil.rmtree(item)
            else:
                item.unlink()

    def _read_journal(self, journal: Path) -> dict[str, dict[str, Any]]:
        """Finished tensors by name. A torn line is what a kill leaves, and is ignored."""
        lines = []
        for line in journal.read_bytes().splitlines():
            with suppress(ValueError):
                lines.append(json.loads(line))
        if not lines:
            return {}  # killed before the first line was written
        if lines[0].get("fingerprint") != self.fingerprint:
            raise OutputError(
                "the interrupted run was a different job (source, recipe or version changed)",
                code="E_RESUME",
                file=str(self.destination),
                hint="run again without --resume to start over",
            )
        return {line["tensor"]: line for line in lines[1:]}

    def _append(self, line: Mapping[str, Any]) -> None:
        data = json.dumps(line).encode() + b"\n"
        with self._journal_lock:
            os.write(self._journal, data)

    def allocate(self, images: Mapping[str, Image]) -> None:
        """Create every file at its full size, so that a full disk shows before the work starts."""
        for path in [p for p in self.out.rglob("*") if not p.is_dir() and str(p.relative_to(self.out)) not in images]:
            path.unlink()  # an output that `force` replaced, left by a run killed before it could clean up
        for name, image in images.items():
            path = self.out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._names.append(name)
            if len(self._descriptors) < _KEPT_OPEN:
                self._descriptors[name] = os.open(path, _FLAGS | os.O_CREAT, 0o666)
            try:
                with self._opened(name) as descriptor:
                    if image.nbytes and hasattr(os, "posix_fallocate"):
                        os.posix_fallocate(descriptor, 0, image.nbytes)
                    os.ftruncate(descriptor, image.nbytes)
            except OSError as error:
                if error.errno in _REMEDIES:
                    raise ResourceError(
                        f"no room for {image.nbytes} bytes: {os.strerror(error.errno)}",
                        code="E_DISK",
                        file=str(self.destination),
                        hint=_REMEDIES[error.errno],
                    ) from None
                raise
            for offset, chunk in image.chunks:
                self.write(name, offset, memoryview(chunk))

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        """The descriptor of an output file."""
        kept = self._descriptors.get(name)
        descriptor = os.open(self.out / name, _FLAGS | os.O_CREAT, 0o666) if kept is None else kept
        try:
            yield descriptor
        finally:
            if kept is None:
                os.close(descriptor)

    def write(self, name: str, offset: int, data: memoryview) -> None:
        with self._opened(name) as descriptor:
            first = offset
            while data:
                count = os.pwrite(descriptor, data, offset)
                data, offset = data[count:], offset + count
            if offset - first >= _FLUSHED_FROM:
                _begin_flush(descriptor, first, offset - first)

    def replace(self, name: str, data: bytes) -> None:
        """Write a file anew, of whatever length."""
        with self._opened(name) as descriptor:
            os.ftruncate(descriptor, len(data))
        self.write(name, 0, memoryview(data))

    def verified(self, entries: Mapping[str, Entry]) -> Iterator[dict[str, Any]]:
        """The journal's lines whose bytes really are in the files."""
        for line in self.finished.values():
            entry = entries.get(line["tensor"])
            if entry is not None and line["parts"] == {part: self.digest(entry.extents[part]) for part in entry.parts}:
                yield line

    def read(self, extent: Extent) -> bytes:
        """Bytes as they are in the file by now."""
        with self._opened(extent.file) as descriptor:
            starts = range(extent.offset, extent.end, _READ)
            return b"".join(os.pread(descriptor, min(_READ, extent.end - at), at) for at in starts)

    def digest(self, extent: Extent) -> str:
        """The BLAKE3 of bytes as they are in the file by now."""
        hasher = blake3()
        with self._opened(extent.file) as descriptor:
            for done in range(0, extent.nbytes, _READ):
                hasher.update(os.pread(descriptor, min(_READ, extent.nbytes - done), extent.offset + done))
        return hasher.hexdigest()

    def record(self, tensor: str, parts: Mapping[str, str], report: Mapping[str, Any]) -> dict[str, Any]:
        """Note a finished tensor; returns its line."""
        line = {"tensor": tensor, "parts": dict(parts), "report": dict(report)}
        self._append(line)
        return line

    def publish(self) -> None:
        """Make the output appear, whole and durable."""
        for name in self._names:
            with self._opened(name) as descriptor:
                os.fsync(descriptor)
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        folders = {(self.out / name).parent for name in self._names} | {self.out}
        self._descriptors.clear()
        for folder in sorted(folders, reverse=True):
            sync_directory(folder)
        self._rename()
        sync_directory(self.destination.parent)
        self.discard()

    def _rename(self) -> None:
        made = self.out if self.is_directory else self.out / self.destination.name
        if not self.force:
            try:
                if self.is_directory:
                    _rename_exclusive(made, self.destination)
                else:
                    os.link(made, self.destination)
            except FileExistsError:
                raise OutputError("appeared while it was being written", code="E_EXISTS", file=str(self.destination)) from None
        elif (self.is_directory and os.path.lexists(self.destination)) or self.destination.is_dir():
            _exchange(made, self.destination)  # the old one is now in staging and goes with it
        else:
            os.replace(made, self.destination)

    def discard(self) -> None:
        """Remove the staging directory."""
        self._clear()
        (self.root / "lock").unlink(missing_ok=True)
        self.root.rmdir()

    def close(self) -> None:
        """Let go of the lock and the files; what is staged stays for a later `resume`."""
        for descriptor in (*self._descriptors.values(), self._journal, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptors.clear()
        self._journal = self._lock = -1


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_SYNC_FILE_RANGE_WRITE = 2


def _begin_flush(descriptor: int, offset: int, nbytes: int) -> None:
    """Have the disk begin with these bytes while others are made, so that `fsync` has little to wait for. A hint, on Linux."""
    with suppress(AttributeError):
        ctypes.CDLL(None).sync_file_range(descriptor, ctypes.c_int64(offset), ctypes.c_int64(nbytes), _SYNC_FILE_RANGE_WRITE)


_AT_FDCWD, _RENAME_NOREPLACE, _RENAME_EXCHANGE = -100, 1, 2


def _renameat2(old: Path, new: Path, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(new))


def _rename_exclusive(old: Path, new: Path) -> None:
    """Rename a directory to a name that must not exist. rename(2) alone would replace an empty directory."""
    try:
        _renameat2(old, new, _RENAME_NOREPLACE)
    except (OSError, AttributeError) as error:
        if isinstance(error, FileExistsError):
            raise
        if isinstance(error, OSError) and error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        if os.path.lexists(new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(new)) from None
        os.rename(old, new)


def _exchange(old: Path, new: Path) -> None:
    """Swap two names in one step, so that the destination is never missing."""
    try:
        _renameat2(old, new, _RENAME_EXCHANGE)
    except (OSError, AttributeError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        aside = old.with_name("replaced")
        os.rename(new, aside)
        os.rename(old, new)
