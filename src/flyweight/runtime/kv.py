"""The keys and values of past tokens, in memory that is committed as they arrive.

Per layer, position being the second axis (kernels take these arrays as they are):

    f32, f16   keys, values  (kv_heads, rows, head)
    int8       keys, values  u8 (kv_heads, rows, head)
               key_grid      f32 (kv_heads, rows / 64, 2, head): low and step per element over 64 tokens
               value_grid    f32 (kv_heads, rows, 2): low and step per token
               tail          f32 (kv_heads, 64, head): the keys of the newest token's 64, not yet on a grid

All of it is one anonymous mapping, reserved for the whole context and never touched ahead of the tokens: the system gives it
pages as rows are written. A layer with a window gives pages back once their tokens are out of sight.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from threading import Lock
from typing import Any

import numpy as np

from flyweight import kernels
from flyweight.foundation.errors import ResourceError
from flyweight.sources import Uncopied

Array = np.ndarray[Any, Any]

GROUP = 64
ROWS = 256
"""Rows are reserved in multiples of this: every head then starts on a page of 4 KiB, even with codes of one byte."""

FORGETTABLE = ("keys", "values")

Part = tuple[str, type, int, tuple[int, ...]]
"""Name, element type, tokens of a row, shape of a row."""


def _parts(kind: str, head: int) -> tuple[Part, ...]:
    if kind in ("f32", "f16"):
        element = np.float32 if kind == "f32" else np.float16
        return ("keys", element, 1, (head,)), ("values", element, 1, (head,))
    if kind == "int8":
        return (
            ("keys", np.uint8, 1, (head,)),
            ("values", np.uint8, 1, (head,)),
            ("key_grid", np.float32, GROUP, (2, head)),
            ("value_grid", np.float32, 1, (2,)),
            ("tail", np.float32, 0, (head,)),
        )
    raise ValueError(f"the type of a cache must be f32, f16 or int8, not {kind}")


def _shapes(parts: Sequence[Part], kv_heads: int, context: int) -> list[tuple[int, ...]]:
    """Of the arrays of one layer."""
    rows = -(-context // ROWS) * ROWS
    return [(kv_heads, rows // each if each else GROUP, *row) for _, _, each, row in parts]


def _sizes(parts: Sequence[Part], shapes: Sequence[tuple[int, ...]]) -> list[int]:
    """Bytes of the arrays of one layer, each from a page on."""
    sizes = (prod(shape) * np.dtype(part[1]).itemsize for part, shape in zip(parts, shapes, strict=True))
    return [-(-size // mmap.PAGESIZE) * mmap.PAGESIZE for size in sizes]


def cache_nbytes(layers: int, kv_heads: int, head: int, context: int, kind: str) -> int:
    """Bytes that a cache takes once it holds `context` tokens and no window forgets any."""
    parts = _parts(kind, head)
    return layers * sum(_sizes(parts, _shapes(parts, kv_heads, context)))


def _reserve(nbytes: int) -> mmap.mmap:
    """Address space alone. MAP_NORESERVE is not known everywhere; small pages keep what is committed close to what is used."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        memory = mmap.mmap(-1, nbytes, flags=flags)
    except (OSError, OverflowError) as error:
        raise ResourceError(
            f"cannot reserve {nbytes} bytes for the KV cache", code="E_CONTEXT", hint="use a shorter context"
        ) from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


class KeyValues(Uncopied):
    """What `layers` layers remember of up to `context` tokens; `windows` has the window of each layer, 0 for none.

    One conversation, so one thread at a time; `copy.deepcopy` makes a second that goes its own way from here.
    """

    remedy = "has its own memory; copy.deepcopy makes another with the same tokens"

    def __init__(
        self, layers: int, kv_heads: int, head: int, context: int, kind: str = "f16", windows: Sequence[int] | None = None
    ) -> None:
        if min(layers, kv_heads, head, context) < 1:
            raise ValueError("a cache has at least one layer, head, element and token")
        self.windows = tuple(windows) if windows is not None else (0,) * layers
        if len(self.windows) != layers or min(self.windows) < 0:
            raise ValueError(f"{layers} layers have {layers} windows, 0 for none")
        self.kind, self.context, self.kv_heads, self.length = kind, context, kv_heads, 0
        self._shape = layers, kv_heads, head, context
        self._used = Lock()
        self._layout = _parts(kind, head)
        shapes = _shapes(self._layout, kv_heads, context)
        padded = _sizes(self._layout, shapes)
        self._memory = _reserve(layers * sum(padded))
        self._layers: list[tuple[Array, ...]] = []
        self._offsets: list[tuple[int, ...]] = []
        self._forgotten = [0] * layers
        offset = 0
        for _ in range(layers):
            arrays: list[Array] = []
            offsets: list[int] = []
            for (_, element, _, _), shape, size in zip(self._layout, shapes, padded, strict=True):
                arrays.append(np.frombuffer(self._memory, element, prod(shape), offset).reshape(shape))
                offsets.append(offset)
                offset += size
            self._layers.append(tuple(arrays))
            self._offsets.append(tuple(offsets))

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While tokens join it nobody else may touch it."""
        if not self._used.acquire(blocking=False):
            raise ValueError("the cache is in use by another thread: use one cache per thread")
        try:
            yield
        finally:
            self._used.release()

    def __deepcopy__(self, memo: dict[int, Any]) -> KeyValues:
        with self.in_use():
            twin = KeyValues(*self._shape, self.kind, self.windows)
            for layer, forgotten in enumerate(self._forgotten):
                for (name, _, each, _), mine, its in zip(self._layout, self._layers[layer], twin._layers[layer], strict=True):
                    held = slice(forgotten if name in FORGETTABLE else 0, -(-self.length // each) if each else None)
                    its[:, held] = mine[:, held]
            twin.length, twin._forgotten = self.length, list(self._forgotten)
        return twin

    @property
    def nbytes(self) -> int:
        """Bytes of the pages that hold tokens."""
        total = 0
        for arrays, forgotten in zip(self._layers, self._forgotten, strict=True):
            for (name, _, each, _), array in zip(self._layout, arrays, strict=True):
                row = array[0, 0].nbytes
                first = forgotten * row if name in FORGETTABLE else 0
                last = (-(-self.length // each) if each else min(self.length, GROUP)) * row
                pages = -(-last // mmap.PAGESIZE) - first // mmap.PAGESIZE
                total += self.kv_heads * max(0, pages) * mmap.PAGESIZE
        return total

    def attend(
        self,
        layer: int,
        qkv: Array,
        heads: int,
        cos: Array,
        sin: Array,
        out: Array,
        *,
        scale: float,
        pairs: bool = False,
        q_gain: Array | None = None,
        k_gain: Array | None = None,
        eps: float = 1e-6,
        cap: float = 0.0,
        threads: int = 1,
    ) -> None:
        """`kernels.attend` on this layer for the tokens after `length`; `advance` when every layer has seen them."""
        self._require(len(qkv))
        keys, values, *grids = self._layers[layer]
        kernels.attend(
            qkv, heads, keys, values, self.length, cos, sin, out,
            pairs, q_gain, k_gain, eps, scale, cap, self.windows[layer], threads, *grids,
        )  # fmt: skip

    def reach(self, count: int) -> int:
        """Positions that there are with so many more tokens."""
        return self.length + count

    def advance(self, count: int) -> None:
        """All layers hold `count` more tokens."""
        self._require(count)
        self.length += count
        for layer, window in enumerate(self.windows):
            if window:
                self._forget(layer, self.length - window)

    def truncate(self, length: int) -> None:
        """Forget the tokens from `length` on. Keys an int8 cache has on a grid come back as the grid has them."""
        with self.in_use():
            if not 0 <= length <= self.length:
                raise ValueError(f"a cache of {self.length} tokens cannot be truncated to {length}")
            for window, forgotten in zip(self.windows, self._forgotten, strict=True):
                if length and window and max(0, length + 1 - window) < forgotten:
                    raise ResourceError(
                        f"cannot truncate to {length}: a window of {window} needs tokens before {forgotten}, which are gone",
                        code="E_CONTEXT",
                        hint="truncate to 0 and give the tokens again",
                    )
            if not length:
                self._forgotten = [0] * len(self.windows)
            group = (length - 1) // GROUP
            if self.kind == "int8" and length and group < (self.length - 1) // GROUP:
                for keys, _, key_grid, _, tail in self._layers:
                    low, step = key_grid[:, group, :1], key_grid[:, group, 1:]
                    tail[...] = low + step * keys[:, group * GROUP : (group + 1) * GROUP].astype(np.float32)
            self.length = length

    def _require(self, count: int) -> None:
        if self.length + count > self.context:
            raise ResourceError(
                f"{count} more tokens after {self.length} exceed the context of {self.context}",
                code="E_CONTEXT",
                hint="truncate the cache, or open it with a longer context",
            )

    def _forget(self, layer: int, before: int) -> None:
        """Give back the pages of positions nobody sees any more, many at a time."""
        before = before // ROWS * ROWS
        if before <= self._forgotten[layer] or not hasattr(mmap, "MADV_DONTNEED"):
            return
        for (name, _, _, _), array, offset in zip(self._layout, self._layers[layer], self._offsets[layer], strict=True):
            if name in FORGETTABLE:
                row, whole = array[0, 0].nbytes, array[0].nbytes
                for kv in range(self.kv_heads):
                    first = -(-(offset + kv * whole + self._forgotten[layer] * row) // mmap.PAGESIZE) * mmap.PAGESIZE
                    last = (offset + kv * whole + before * row) // mmap.PAGESIZE * mmap.PAGESIZE
                    if last > first:
                        self._memory.madvise(mmap.MADV_DONTNEED, first, last - first)
        self._forgotten[layer] = before
