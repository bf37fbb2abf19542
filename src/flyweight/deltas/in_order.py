"""Work on many items with every core, its results in order, a few of them in memory at a time."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from flyweight.sources import ClosedError

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")
R = TypeVar("R")


@cache
def _pool() -> tuple[ThreadPoolExecutor, int]:
    from concurrent.futures import ThreadPoolExecutor  # which opening a model does not need

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return ThreadPoolExecutor(
        cores, thread_name_prefix="delta", initializer=_within.__setattr__, initargs=("pool", True)
    ), cores


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # its threads are not in the child

_within = threading.local()


def in_order(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """`work` of each item. Within such work it is done one by one: else all threads could come to wait for one another."""
    if hasattr(_within, "pool"):
        yield from map(work, items)
        return
    pool, cores = _pool()
    rest = iter(items)
    begun: deque[Future[R]] = deque(_begin(pool, work, item) for item in islice(rest, 2 * cores))
    try:
        while begun:
            result = begun.popleft().result()
            begun.extend(_begin(pool, work, item) for item in islice(rest, 1))
            yield result
    finally:
        for future in begun:
            future.cancel()


def _begin(pool: ThreadPoolExecutor, work: Callable[[T], R], item: T) -> Future[R]:
    """ClosedError if the program is ending: a thread that nobody waits for may still be reading ahead."""
    try:
        return pool.submit(work, item)
    except RuntimeError:
        raise ClosedError("the program is ending") from None
