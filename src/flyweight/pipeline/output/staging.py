"""Writing an output so that it is complete or absent.

    .NAME.partial-RANDOM/   beside the destination, on the same file system; mode 0700
        journal.jsonl       signed; locked (flock) by the run that owns it (`journal`)
        out/                the files themselves, allocated in full, written once in place
        replaced            an old state on its way out (`force`)

A run makes this directory anew and reaches everything in it through descriptors (`writing`), never by a path again. It fills
`out/`, syncs every file and directory, says in the journal what is about to appear, and renames: a file to a name that must be
free, a directory to a name that is free or an empty directory. With `force`, what is there is exchanged with the new output and
removed afterwards, and only the files of it that were accounted for (`replacing`). A kill at any point leaves the old
destination, or none, or the complete new one.

What a killed run left is found by listing, and believed by its signature alone: everything else that has such a name is
somebody else's, and is neither opened for writing nor removed nor waited for. `resume` reads back what the journal claims and
keeps only what matches, so neither a torn page nor a journal line that outlived its data can reach the output.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from blake3 import blake3

from flyweight.containers.container import Image
from flyweight.foundation.errors import OutputError, ResourceError
from flyweight.foundation.manifest import Entry, Extent
from flyweight.pipeline.output.journal import JOURNAL, Journal, identity
from flyweight.pipeline.output.leftovers import OUT, REPLACED, Leftover, leftovers, one_at_a_time, prefix
from flyweight.pipeline.output.replacing import require_replaceable
from flyweight.writing import Folder, Tree, content, exchange, move, move_exclusive

_READ = 4 << 20
_KEPT_OPEN = 128
"""Files whose descriptors are kept. An output can have more of them than a process may open; others are opened for each use."""
_FLUSHED_FROM = 1 << 20
_REMEDIES = {
    errno.ENOSPC: "free some space, or write elsewhere",
    errno.EDQUOT: "free some of your quota, or write elsewhere",
    errno.EFBIG: "write to a file system that allows larger files, or use --shard-size",
}


class Staging:
    """One output in the making: `files` are the names it will have. Without `publish` nothing appears at the destination."""

    def __init__(
        self,
        destination: Path,
        files: Collection[str],
        *,
        is_directory: bool,
        fingerprint: str,
        resume: bool,
        force: bool,
    ) -> None:
        self.destination = destination
        self.is_directory = is_directory
        self.force = force
        self.fingerprint = fingerprint
        self.published = False
        """Whether an earlier run was killed after its output appeared, before it could clean up."""
        self.finished: dict[str, dict[str, Any]] = {}
        self._files = frozenset(files)
        self._descriptors: dict[str, int] = {}
        self._names: list[str] = []
        self._out: Folder | None = None
        self._tree: Tree | None = None
        self._parent = self._open_parent()
        self._root: Folder | None = None
        self._journal: Journal | None = None
        try:
            with one_at_a_time(self._parent):
                self._begin(resume)
        except BaseException:
            self.close()
            raise

    # Beginning, or going on -------------------------------------------------------------------------

    def _open_parent(self) -> Folder:
        """Where the staging directory is made: on the file system of the output."""
        if not self.destination.name:
            raise OutputError("is the root directory", code="E_EXISTS", file=str(self.destination), hint="give a path below it")
        try:
            return Folder(self.destination.parent)
        except (FileNotFoundError, NotADirectoryError):
            raise OutputError(
                "its directory does not exist", code="E_NO_PARENT", file=str(self.destination), hint="create it first"
            ) from None

    def _begin(self, resume: bool) -> None:
        found = list(leftovers(self._parent, self.destination.name))
        try:
            if not all(leftover.journal.lock() for leftover in found):
                raise OutputError("another run is writing this output", code="E_LOCKED", file=str(self.destination))
            for leftover in found:
                leftover.restore(self._parent, self.destination.name)
            same = [leftover for leftover in found if resume and leftover.journal.fingerprint == self.fingerprint]
            if resume and found and not same:
                raise OutputError(
                    "the interrupted run was a different conversion (source, recipe or version changed)",
                    code="E_RESUME",
                    file=str(self.destination),
                    hint="run again without --resume to start over",
                )
            if same:
                self._take_over(found.pop(found.index(same[0])))
            if not self.published:
                for leftover in [one for one in found if one.is_published(self._parent, self.destination.name)]:
                    leftover.remove(self._parent, self.destination.name)
                    found.remove(leftover)
                    leftover.close()
                self._require_free()
            for leftover in found:
                leftover.remove(self._parent, self.destination.name)
        finally:
            for leftover in found:
                leftover.close()
        if not same:
            self._root = self._parent.make_folder(self._parent.fresh_name(prefix(self.destination.name)), 0o700)
            try:
                self._journal = Journal.create(self._root, self.destination.name, self.fingerprint)
            except BaseException:
                self._root.remove_tree(JOURNAL)
                self._parent.remove_folder(self._root.path.name)
                raise
        if not self.published:
            self._open_out()

    def _take_over(self, leftover: Leftover) -> None:
        self._root, self._journal = leftover.root, leftover.journal
        self.finished = leftover.journal.finished()
        self.published = leftover.is_published(self._parent, self.destination.name)

    def _open_out(self) -> None:
        status = self.root.status(OUT)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            self.root.remove(OUT)  # a file that a directory replaced
        self._out = self.root.make_folder(OUT) if self.root.status(OUT) is None else self.root.folder(OUT)
        self._tree = Tree(self._out)

    def _require_free(self) -> None:
        """Refuse a destination that is taken, before the work."""
        status = self._parent.status(self.destination.name)
        if status is None:
            return
        if status.st_dev != os.fstat(self._parent.descriptor).st_dev:
            hint = "write to a directory in it"
            raise OutputError(
                "is a mount point, which cannot be replaced", code="E_EXISTS", file=str(self.destination), hint=hint
            )
        if self.force:
            self._to_replace()
        elif not (self.is_directory and stat.S_ISDIR(status.st_mode) and self._is_empty()):
            raise OutputError("already exists", code="E_EXISTS", file=str(self.destination), hint="use --force to replace it")

    def _is_empty(self) -> bool:
        with self._parent.folder(self.destination.name) as there:
            return not content(there, 1).names

    def _to_replace(self) -> list[str]:
        """The files of the directory that is there, all of them accounted for; none of a file. OutputError otherwise."""
        return require_replaceable(self._parent, self.destination.name, self._files)

    @property
    def root(self) -> Folder:
        assert self._root is not None
        return self._root

    @property
    def out(self) -> Path:
        """Where the files are, for whoever reads them before they are published."""
        return self.root.path / OUT

    # Filling ----------------------------------------------------------------------------------------

    def allocate(self, images: Mapping[str, Image]) -> None:
        """Create every file at its full size, so that a full disk shows before the work starts."""
        assert self._out is not None
        assert self._tree is not None
        for name in content(self._out).names:
            if name not in images and not name.endswith("/"):
                with self._tree.at(name) as (folder, last):
                    folder.remove(last)  # of an old state that an earlier run had replaced
        for name, image in images.items():
            self._names.append(name)
            with self._tree.at(name, make=True) as (folder, last):
                descriptor = folder.create(last) if folder.status(last) is None else folder.reopen(last)
            try:
                self._reserve(descriptor, image.nbytes)
                if len(self._descriptors) < _KEPT_OPEN:
                    self._descriptors[name] = descriptor
            finally:
                if name not in self._descriptors:
                    os.close(descriptor)
            for offset, chunk in image.chunks:
                self.write(name, offset, memoryview(chunk))

    def _reserve(self, descriptor: int, nbytes: int) -> None:
        try:
            if nbytes and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, nbytes)
            os.ftruncate(descriptor, nbytes)
        except OSError as error:
            raise self._without_room(error, f"cannot allocate {nbytes} bytes") from None

    def _without_room(self, error: OSError, what: str) -> Exception:
        """What to raise for an error of the file system."""
        if error.errno not in _REMEDIES:
            return error
        message = f"{what}: {os.strerror(error.errno)}"
        return ResourceError(message, code="E_DISK", file=str(self.destination), hint=_REMEDIES[error.errno])

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        """The descriptor of an output file."""
        kept = self._descriptors.get(name)
        if kept is not None:
            yield kept
            return
        assert self._tree is not None
        with self._tree.at(name) as (folder, last):
            descriptor = folder.reopen(last)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def write(self, name: str, offset: int, data: memoryview) -> None:
        with self._opened(name) as descriptor:
            first = offset
            while data:
                try:
                    count = os.pwrite(descriptor, data, offset)
                except OSError as error:
                    raise self._without_room(error, f"cannot write {len(data)} bytes") from None
                data, offset = data[count:], offset + count
            if offset - first >= _FLUSHED_FROM:
                _begin_flush(descriptor, first, offset - first)

    def cut(self, name: str, nbytes: int) -> None:
        """Make a file this long."""
        with self._opened(name) as descriptor:
            os.ftruncate(descriptor, nbytes)

    def replace(self, name: str, data: bytes) -> None:
        """Write a file anew, of whatever length."""
        self.cut(name, len(data))
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
        assert self._journal is not None
        line = {"tensor": tensor, "parts": dict(parts), "report": dict(report)}
        self._journal.append(line)
        return line

    # Publishing -------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Make the output appear, whole and durable."""
        assert self._tree is not None
        for name in self._names:
            with self._opened(name) as descriptor:
                os.fsync(descriptor)
        self._close_files()
        self._tree.sync(self._names)
        self._rename()
        self._parent.sync()
        self._clean_up()

    def _rename(self) -> None:
        assert self._journal is not None
        name = self.destination.name
        folder, made = self._made()
        there = self._parent.status(name)
        replaced = self._to_replace() if self.force and there is not None else []
        self._journal.announce(OUT if self.is_directory else f"{OUT}/{name}", identity(folder.status(made)), replaced)
        if not self.force or there is None:
            self._appear(folder, made)
        elif not self.is_directory and not stat.S_ISDIR(there.st_mode):
            move(folder, made, self._parent, name)
        elif exchange(folder, made, self._parent, name):
            move(folder, made, self.root, REPLACED)
        else:
            move(self._parent, name, self.root, REPLACED)  # a run killed here is followed by one that moves it back
            move(folder, made, self._parent, name)

    def _made(self) -> tuple[Folder, str]:
        """Where the finished output lies."""
        assert self._out is not None
        return (self.root, OUT) if self.is_directory else (self._out, self.destination.name)

    def _appear(self, folder: Folder, made: str) -> None:
        """Take a name that is free. rename(2) itself lets a directory replace an empty one, and nothing else."""
        try:
            (move if self.is_directory else move_exclusive)(folder, made, self._parent, self.destination.name)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            hint = "move it away and run again with --resume"
            raise OutputError(
                "appeared while it was being written", code="E_EXISTS", file=str(self.destination), hint=hint
            ) from None

    def _clean_up(self) -> None:
        assert self._journal is not None
        Leftover(self.root, self._journal).remove_replaced(self._parent, self.destination.name)
        self.discard()

    def discard(self) -> None:
        """Remove the staging directory."""
        self._close_files()
        assert self._journal is not None
        Leftover(self.root, self._journal).remove(self._parent, self.destination.name)

    def _close_files(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def close(self) -> None:
        """Let go of the lock and the files; what is staged stays for a later `resume`."""
        self._close_files()
        for held in (self._tree, self._out, self._journal, self._root, self._parent):
            if held is not None:
                held.close()


@contextmanager
def published(staging: Staging) -> Iterator[Staging]:
    """An output that takes too little time to be resumed: it appears when all is written, and what fails leaves nothing."""
    try:
        yield staging
        staging.publish()
    except BaseException:
        staging.discard()
        raise
    finally:
        staging.close()


_SYNC_FILE_RANGE_WRITE = 2


def _begin_flush(descriptor: int, offset: int, nbytes: int) -> None:
    """Have the disk begin with these bytes while others are made, so that `fsync` has little to wait for. A hint, on Linux."""
    with suppress(AttributeError):
        ctypes.CDLL(None).sync_file_range(descriptor, ctypes.c_int64(offset), ctypes.c_int64(nbytes), _SYNC_FILE_RANGE_WRITE)
