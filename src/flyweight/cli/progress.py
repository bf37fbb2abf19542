"""Progress on stderr while it is a terminal: a bar for each stage of a command, all of one make."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, Task, TaskID
    from rich.text import Text

Steps = Callable[[int, int], None]
"""steps(done, of how many)"""
Advance = Callable[[str, int, int], None]
"""advance(tensor, its bytes, bytes in all)"""


class Stages:
    """The stages of a command. Without a bar there is nothing to tell, and every stage is None."""

    def __init__(self, bars: Progress | None = None) -> None:
        self._bars, self._lock = bars, Lock()

    def steps(self, label: str) -> Steps | None:
        """A stage that begins now and counts."""
        if (bars := self._bars) is None:
            return None
        task = bars.add_task(label, total=None, in_bytes=False)
        return lambda done, total: bars.update(task, completed=done, total=total)

    def nbytes(self, label: str) -> Advance | None:
        """A stage of tensors that begins with the first of them; threads may tell of them."""
        if (bars := self._bars) is None:
            return None
        tasks: list[TaskID] = []

        def advance(_name: str, count: int, total: int) -> None:
            with self._lock:
                if not tasks:
                    tasks.append(bars.add_task(label, total=total, in_bytes=True))
            bars.update(tasks[0], advance=count, total=total)

        return advance


@contextmanager
def stages(*, quiet: bool = False) -> Iterator[Stages]:
    """Bars that are gone afterwards; none where nobody looks."""
    if quiet or not sys.stderr.isatty():
        yield Stages()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    class Amount(ProgressColumn):
        """Bytes or steps, done and in all."""

        def __init__(self) -> None:
            super().__init__()
            self._bytes, self._steps = DownloadColumn(), MofNCompleteColumn()

        def render(self, task: Task) -> Text:
            return (self._bytes if task.fields["in_bytes"] else self._steps).render(task)

    columns = (TextColumn("{task.description}"), BarColumn(), Amount(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bars:
        yield Stages(bars)


@contextmanager
def progress_bar(label: str, *, quiet: bool) -> Iterator[Advance | None]:
    """The one stage of a command that goes through tensors."""
    with stages(quiet=quiet) as shown:
        yield shown.nbytes(label)
