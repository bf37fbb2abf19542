"""Checking the recorded digests of a model's weights while it runs.

`open_model(verify=True)` does it before anything is computed. Else a thread does it beside the computation: it begins after the
first token, so that no start waits for it, and has a low priority and a tenth of one processor at most. What it finds ends
the answer under way. It leaves alone a model that is streamed or fills more than half of the memory: reading that would push
out what is computed with. Side files are always checked before they are used.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from threading import Thread, get_native_id
from typing import Any

from flyweight.foundation.errors import FlyweightError
from flyweight.runtime.model import Model
from flyweight.sources import ClosedError

_REST = 9
"""Seconds of rest for each second of work."""
_LONGEST_REST = 0.1
_NICE = 10
"""A tenth of the weight of a thread that computes, where processors are short."""


class Checking:
    """Beside an answer: `go_on` after every piece of it. `verified` says that everything was checked before."""

    def __init__(self, model: Model, *, verified: bool = False) -> None:
        self._checkpoint = model.checkpoint
        self._extents = self._checkpoint.digested()
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        beside = bool(self._extents) and not model.streamed and self._checkpoint.manifest.nbytes <= memory // 2
        self.when = "before" if verified else "background" if beside else "never"
        self._thread: Thread | None = None
        self._error: FlyweightError | None = None

    def go_on(self) -> None:
        """Begin, or raise what was found since."""
        if self._error is not None:
            raise self._error
        if self._thread is None and self.when == "background":
            self._thread = Thread(target=self._run, name="digests", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Wait until all is checked, and raise what was found."""
        if self._thread is not None:
            self._thread.join()
        self.go_on()

    def _run(self) -> None:
        if sys.platform == "linux":  # where threads have priorities of their own
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, get_native_id(), _NICE)
        rest = _Rest()
        try:
            for extent in self._extents:
                self._checkpoint.check_digest(extent, after_piece=rest)
        except FlyweightError as error:
            self._error = error
        except (OSError, ClosedError):  # whoever computes with it says so
            pass

    @property
    def summary(self) -> str:
        """For people."""
        if self.when == "before":
            return "digests: all checked before the first token"
        if not self._extents:
            return "digests: the weights have none"
        checked = self.as_json()["checked"]
        how = "in the background" if self.when == "background" else "because they are too large for the background"
        return f"digests: {checked} of {len(self._extents)} checked, {how}; --verify checks all before the first token"

    def as_json(self) -> dict[str, Any]:
        checked = sum(map(self._checkpoint.checked, self._extents))
        return {"checked": checked, "of": len(self._extents), "when": self.when}


class _Rest:
    """Sleeps after each piece of work, in proportion to the processor time it took."""

    def __init__(self) -> None:
        self._began = time.thread_time()

    def __call__(self) -> None:
        time.sleep(min(_REST * (time.thread_time() - self._began), _LONGEST_REST))
        self._began = time.thread_time()
