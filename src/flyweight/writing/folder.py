"""An open directory, relative to which files are created, renamed and removed.

A directory may have been filled by a stranger, who chose every name in it, the hidden and the temporary ones included. So:

- What is in a directory is reached by a single name relative to its descriptor, and never through a link.
- What is created did not exist before (`O_EXCL`); temporary names cannot be foreseen.
- What is used again is a regular file or a directory of this user, and a file has no second name. That is checked on the open
  descriptor, and opening does not wait: a FIFO is refused.
- What is removed was made by us: a caller removes names that it created, or whose `signature` it has checked.

Only the path a `Folder` is opened by may lead through links: it is what the user typed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from flyweight.foundation.errors import OutputError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Folder:
    """A directory by its descriptor. Use as a context manager, or `close` it."""

    def __init__(self, path: Path | str, *, descriptor: int | None = None) -> None:
        self.path = Path(path)
        """For messages; the descriptor is what counts."""
        self.descriptor = os.open(path, _FOLDER) if descriptor is None else descriptor

    # Looking ------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return os.listdir(self.descriptor)

    def status(self, name: str) -> os.stat_result | None:
        """What a name is, a link not followed; None if there is nothing."""
        with suppress(FileNotFoundError):
            return os.stat(_single(name), dir_fd=self.descriptor, follow_symlinks=False)
        return None

    def folder(self, name: str) -> Folder:
        """A directory in this one, which must be this user's."""
        try:
            descriptor = os.open(_single(name), _FOLDER | os.O_NOFOLLOW, dir_fd=self.descriptor)
        except (NotADirectoryError, OSError) as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise self._foreign(name, "a directory") from None
            raise
        found = Folder(self.path / name, descriptor=descriptor)
        if os.fstat(descriptor).st_uid != os.geteuid():
            found.close()
            raise OutputError("belongs to another user", code="E_FOREIGN", file=str(self.path / name), hint=_ASIDE)
        return found

    def reopen(self, name: str, flags: int = os.O_RDWR) -> int:
        """The descriptor of a file that is there: regular, this user's, and with this one name."""
        try:
            descriptor = os.open(_single(name), flags | _FILE, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise self._foreign(name, "a file") from None
            raise
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1:
            os.set_blocking(descriptor, True)
            return descriptor
        os.close(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise self._foreign(name, "a file")
        problem = "has another name (a hard link)" if status.st_nlink != 1 else "belongs to another user"
        raise OutputError(problem, code="E_FOREIGN", file=str(self.path / name), hint=_ASIDE)

    def require_own_file(self, name: str) -> None:
        """Refuse a name that is anything but a file of this user's; for what is renamed over or removed, never opened."""
        status = self.status(name)
        if status is None or not stat.S_ISREG(status.st_mode):
            raise self._foreign(name, "a file")
        if status.st_uid != os.geteuid():
            raise OutputError("belongs to another user", code="E_FOREIGN", file=str(self.path / name), hint=_ASIDE)

    def _foreign(self, name: str, wanted: str) -> OutputError:
        status = self.status(name)
        found = _KINDS.get(stat.S_IFMT(status.st_mode), "a file") if status else "nothing"
        return OutputError(f"is {found}, not {wanted}", code="E_FOREIGN", file=str(self.path / name), hint=_ASIDE)

    # Making -------------------------------------------------------------------------------------

    def create(self, name: str, mode: int = 0o666) -> int:
        """The descriptor of a new file; FileExistsError if there is anything of this name."""
        return os.open(_single(name), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=self.descriptor)

    def make_folder(self, name: str, mode: int = 0o777) -> Folder:
        """A new directory; FileExistsError if there is anything of this name."""
        os.mkdir(_single(name), mode, dir_fd=self.descriptor)
        return self.folder(name)

    def fresh_name(self, prefix: str) -> str:
        """A name that nobody could foresee."""
        return f"{prefix}{os.urandom(8).hex()}"

    def replace(self, name: str, content: bytes, mode: int = 0o666) -> None:
        """Have a file with this content there, in one step; on disk when this returns. What a killed one left is removed."""
        from flyweight.writing.own import is_temporary, temporary_name

        for left in [found for found in self.names() if found.startswith(f".{name}.") and is_temporary(found)]:
            self.remove(left)
        fresh = temporary_name(name)
        descriptor = self.create(fresh, mode)
        try:
            try:
                view = memoryview(content)
                while view:
                    view = view[os.write(descriptor, view) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            move(self, fresh, self, name)
        except BaseException:
            with suppress(FileNotFoundError):
                self.remove(fresh)
            raise
        self.sync()

    # Removing and keeping -----------------------------------------------------------------------

    def remove(self, name: str) -> None:
        os.unlink(_single(name), dir_fd=self.descriptor)

    def remove_tree(self, name: str) -> None:
        """Remove a file, or a directory with all that is in it; links are removed, not followed."""
        status = self.status(name)
        if status is not None and stat.S_ISDIR(status.st_mode):
            from shutil import rmtree  # a start that removes nothing need not load it

            rmtree(_single(name), dir_fd=self.descriptor)
        elif status is not None:
            self.remove(name)

    def remove_folder(self, name: str) -> None:
        """Remove an empty directory."""
        os.rmdir(_single(name), dir_fd=self.descriptor)

    def sync(self) -> None:
        """Have names that were made, moved or removed on disk."""
        os.fsync(self.descriptor)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


_ASIDE = "Flyweight did not create it: move it away, or write elsewhere"


def _single(name: str) -> str:
    if not name or "/" in name or name in (".", ".."):
        raise ValueError(f"{name!r} is not a single name")
    return name


# Moving between folders -------------------------------------------------------------------------

_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2
_NO_SUCH_CALL = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
"""A file system, or a system, without the flags of renameat2(2)."""
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EMLINK)
"""A file system without hard links, such as exFAT."""


def move(old: Folder, name: str, new: Folder, new_name: str) -> None:
    """Rename; a file replaces a file of the new name, a directory an empty directory."""
    os.rename(_single(name), _single(new_name), src_dir_fd=old.descriptor, dst_dir_fd=new.descriptor)


def move_exclusive(old: Folder, name: str, new: Folder, new_name: str) -> None:
    """Rename to a name that must be free: FileExistsError otherwise.

    Where the system cannot do that in one step, a file gets its new name by link(2), which fails if there is one; without hard
    links, and for a directory, the name is looked at before, so that only someone who takes it in that moment is overtaken.
    """
    if _renameat2(old, name, new, new_name, _RENAME_NOREPLACE):
        return
    status = old.status(name)
    if status is not None and not stat.S_ISDIR(status.st_mode):
        try:
            os.link(
                _single(name), _single(new_name), src_dir_fd=old.descriptor, dst_dir_fd=new.descriptor, follow_symlinks=False
            )
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        else:
            old.remove(name)
            return
    if new.status(new_name) is not None:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(new.path / new_name))
    move(old, name, new, new_name)


def exchange(old: Folder, name: str, new: Folder, new_name: str) -> bool:
    """Swap two names in one step; False where the system cannot, and nothing has happened."""
    return _renameat2(old, name, new, new_name, _RENAME_EXCHANGE)


def _renameat2(old: Folder, name: str, new: Folder, new_name: str, flags: int) -> bool:
    """Whether the system could; any other failure is its OSError."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    if call(old.descriptor, os.fsencode(_single(name)), new.descriptor, os.fsencode(_single(new_name)), flags) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_SUCH_CALL:
        return False
    raise OSError(code, os.strerror(code), str(new.path / new_name))
