"""Attention per layer call: µs by CPU time on one thread and by wall time on two, and the bytes of the cache read per second.

9 query heads, 3 key-value heads of 64, as in a model of 135M parameters. Layers take turns, so that a long cache comes from
memory as in a model; `one core` is a single layer that stays in the processor's caches: what the instructions allow. `share` is
the rate of cache bytes over what two threads read in the same minute. On a busy machine trust the CPU time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from flyweight import kernels
from flyweight.runtime.kv import KeyValues

Array = np.ndarray[Any, Any]

HEADS, KV_HEADS, HEAD, LAYERS, LONGEST = 9, 3, 64, 30, 4224
PROMPT = 512
BYTES = {"f32": 512, "f16": 256, "int8": 144}
"""Of a token in one key-value head, keys and values."""


def rotary() -> tuple[Array, Array]:
    angles = np.outer(np.arange(LONGEST), 1e4 ** (-np.arange(HEAD // 2) / (HEAD // 2)))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


COS, SIN = rotary()


def tokens(count: int) -> tuple[Array, Array]:
    width = (HEADS + 2 * KV_HEADS) * HEAD
    x = np.random.default_rng(count).standard_normal((count, width), np.float32)
    return x, np.empty((count, HEADS * HEAD), np.float32)


def filled(kind: str, length: int) -> KeyValues:
    cache = KeyValues(LAYERS, KV_HEADS, HEAD, LONGEST, kind)
    while cache.length < length:
        x, out = tokens(min(PROMPT, length - cache.length))
        for layer in range(LAYERS):
            cache.attend(layer, x, HEADS, COS, SIN, out, scale=0.125, threads=2)
        cache.advance(len(x))
    return cache


def best(work: Callable[[int], None], clock: Callable[[], float], rounds: int, layers: int) -> float:
    """µs of a layer's call: the best round over the layers."""
    taken = []
    for _ in range(rounds):
        start = clock()
        for layer in range(layers):
            work(layer)
        taken.append((clock() - start) / layers * 1e6)
    return min(taken)


def reading() -> float:
    """GB/s that two threads read."""
    halves = np.split(np.ones(32_000_000, np.float32), 2)
    with ThreadPoolExecutor(2) as pool:
        taken = []
        for _ in range(9):
            start = time.perf_counter()
            list(pool.map(np.max, halves))
            taken.append(time.perf_counter() - start)
    return 128e-3 / min(taken)


def measure(kind: str, context: int, count: int, limit: float) -> str:
    cache = filled(kind, context)
    x, out = tokens(count)

    def call(threads: int) -> Callable[[int], None]:
        return lambda layer: cache.attend(layer, x, HEADS, COS, SIN, out, scale=0.125, threads=threads)

    rounds, layers = (5, 4) if count > 1 else (20, LAYERS)
    core = best(call(1), time.thread_time, 10 * rounds, 1)
    wall = best(call(2), time.perf_counter, rounds, layers)
    what = f"{kind:5}{count:4} at {context:5}  {core:8.1f} µs one core  {wall:8.1f} µs two threads"
    if count > 1:
        return f"{what}  {wall / count * LAYERS / 1e3:.3f} ms a token and {LAYERS} layers"
    rate = context * KV_HEADS * BYTES[kind] / wall / 1e3
    return f"{what}  {rate:6.1f} GB/s of cache, share {rate / limit:.2f}"


if __name__ == "__main__":
    limit = reading()
    print(f"kernels: {kernels.active()}; two threads read {limit:.1f} GB/s")
    for kind in BYTES:
        for context, count in ((0, PROMPT), (16, 1), (PROMPT + 1, 1), (1025, 1), (4097, 1)):
            print(measure(kind, context, count, limit))
