"""Staging directories that earlier runs left: found by listing, trusted only by the signature of their journal.

Anybody may have made a directory of such a name, or a link, or a FIFO. What does not verify is not ours: it is neither opened
for writing nor removed nor waited for.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import NamedTuple

from flyweight.foundation.errors import OutputError
from flyweight.pipeline.output.journal import JOURNAL, Journal, identity
from flyweight.writing import Folder, Tree, move, move_exclusive, remove_listed

OUT, REPLACED = "out", "replaced"
"""In a staging directory: the output, and an old state on its way out."""
_LONGEST_NAME = 200
"""Bytes of the destination's name in that of the staging directory."""
_MOST_CANDIDATES = 256
_LOCK_SECONDS = 2.0


def prefix(name: str) -> str:
    return f".{os.fsdecode(os.fsencode(name)[:_LONGEST_NAME])}.partial-"


class Leftover(NamedTuple):
    """A staging directory of this user's."""

    root: Folder
    journal: Journal

    def is_published(self, parent: Folder, name: str) -> bool:
        """Whether the destination is what was about to appear."""
        announced = self.journal.announced()
        return announced is not None and announced.staged == identity(parent.status(name))

    def restore(self, parent: Folder, name: str) -> None:
        """Put back an old state that was moved out of the way of a new one which then did not appear.

        If its name has been taken meanwhile, it appears beside.
        """
        if self.root.status(REPLACED) is not None and not self.is_published(parent, name):
            back = name if parent.status(name) is None else parent.fresh_name(f"{name}.replaced-")
            move_exclusive(self.root, REPLACED, parent, back)
            parent.sync()

    def remove(self, parent: Folder, name: str) -> None:
        """Remove all of it, the journal last: while it is there, a later run knows whose this is and what was done."""
        if self.is_published(parent, name):
            self.remove_replaced(parent, name)
        for item in (REPLACED, OUT):
            self.root.remove_tree(item)
        self.root.remove(JOURNAL)
        parent.remove_folder(self.root.path.name)

    def remove_replaced(self, parent: Folder, name: str) -> None:
        """Remove an old state: what was accounted for. Anything that has come since appears beside the new one."""
        announced = self.journal.announced()
        assert announced is not None
        with closing(Tree(self.root)) as tree, suppress(FileNotFoundError), tree.at(announced.place) as (folder, last):
            move(folder, last, self.root, REPLACED)  # it is still there if the run was killed right after the exchange
        status = self.root.status(REPLACED)
        if status is not None and stat.S_ISDIR(status.st_mode) and not remove_listed(self.root, REPLACED, announced.replaces):
            move_exclusive(self.root, REPLACED, parent, parent.fresh_name(f"{name}.replaced-"))

    def close(self) -> None:
        self.journal.close()
        self.root.close()


def leftovers(parent: Folder, name: str) -> Iterator[Leftover]:
    """The staging directories that this user's earlier runs left for this destination."""
    start = prefix(name)
    for candidate in [entry for entry in parent.names() if entry.startswith(start)][:_MOST_CANDIDATES]:
        try:
            root = parent.folder(candidate)
        except (OSError, OutputError):
            continue
        journal = Journal.verified(root, name)
        if journal is not None:
            yield Leftover(root, journal)
            continue
        _remove_beginning(parent, root)
        root.close()


def _remove_beginning(parent: Folder, root: Folder) -> None:
    """Remove what a run leaves that is killed before its journal has a line: an empty directory, or one with an empty file."""
    with suppress(OSError):
        status = root.status(JOURNAL)
        if status is not None and stat.S_ISREG(status.st_mode) and status.st_size == 0 and root.names() == [JOURNAL]:
            root.remove(JOURNAL)
        parent.remove_folder(root.path.name)


@contextmanager
def one_at_a_time(parent: Folder) -> Iterator[None]:
    """Let one run at a time look for others and begin. Whoever else locks the directory delays us, and no more than that."""
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(parent.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:  # or a file system that has no locks
            if not isinstance(error, BlockingIOError) or time.monotonic() > until:
                break
            time.sleep(0.005)
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(parent.descriptor, fcntl.LOCK_UN)
