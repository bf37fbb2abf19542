"""Kernel calls in forked children, with the n-th allocation, or all from the n-th on, failing: n = 1, 2, … until none does.

Run with failing_malloc.so preloaded. Prints, as JSON, how often each call ended how: "done" (the right result), "MemoryError",
or what the child died of.
"""

from __future__ import annotations

import ast
import ctypes
import json
import mmap
import os
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np

from flyweight import kernels
from flyweight.runtime.kv import KeyValues

THREADS = 4
MOST = 200
REPEATED = 3  # which thread takes which piece is left to chance
EVERY = 1 << 40

DONE, WRONG, REFUSED, UNTOUCHED = 0, 1, 2, 3

shim = ctypes.CDLL(None)
fail_allocations = shim.fail_allocations
fail_allocations.argtypes = (ctypes.c_long, ctypes.c_long)
Call = Callable[[int], np.ndarray]
"""Threads → the result."""


def attention(tokens: int, kind: str) -> Call:
    heads, kv_heads, head, context = 8, 4, 128, 2048
    rng = np.random.default_rng(0)
    cache = KeyValues(1, kv_heads, head, context, kind)
    angles = np.outer(np.arange(context), 1e4 ** (-np.arange(head // 2) / (head // 2)))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    width = (heads + 2 * kv_heads) * head
    start = context - tokens
    before = rng.standard_normal((start, width), np.float32)
    cache.attend(0, before, heads, cos, sin, np.empty((start, heads * head), np.float32), scale=0.1)
    cache.advance(start)
    x = rng.standard_normal((tokens, width), np.float32)
    out = np.empty((tokens, heads * head), np.float32)

    def call(threads: int) -> np.ndarray:
        cache.attend(0, x.copy(), heads, cos, sin, out, scale=0.1, threads=threads)
        return out

    return call


def product(items: int, gated: bool) -> Call:
    rng = np.random.default_rng(1)
    gate, up = (kernels.matrix("f32", weights=rng.standard_normal((1024, 512), np.float32)) for _ in range(2))
    x, out = rng.standard_normal((items, 512), np.float32), np.empty((items, 1024), np.float32)
    gain = np.ones(512, np.float32)

    def call(threads: int) -> np.ndarray:
        if gated:
            kernels.gated(gate, up, x, out, gain=gain, threads=threads)
        else:
            kernels.multiply([gate], x, out, gain=gain, threads=threads)
        return out

    return call


CALLS: dict[str, Callable[[], Call]] = {  # products first: attention prepares its cache by a call of its own
    **{f"{'gated ' if g else ''}product of {n}": partial(product, n, g) for n in (1, 32) for g in (False, True)},
    **{f"attention of {n} tokens, {kind}": partial(attention, n, kind) for n in (1, 64) for kind in ("f16", "int8")},
}


def computed_elsewhere(make: Callable[[], Call]) -> np.ndarray:
    """The result, from a child: this process has made no call before, so that its children have to allocate for theirs."""
    shared = mmap.mmap(-1, 1 << 20)
    if not os.fork():
        result = make()(1)
        shared.write(repr(result.shape).encode().ljust(64) + result.tobytes())
        os._exit(0)
    os.wait()
    shape = ast.literal_eval(shared[:64].decode().strip())
    return np.frombuffer(shared, np.float32, int(np.prod(shape)), 64).reshape(shape)


def ended(call: Call, expected: np.ndarray, n: int, count: int) -> int:
    """How a child's one call ended."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = WRONG
    try:
        fail_allocations(n, count)
        try:
            found = call(THREADS)
        finally:
            failed = shim.allocations_failed()
            fail_allocations(0, 0)
        code = (DONE if failed else UNTOUCHED) if np.array_equal(found, expected) else WRONG
    except MemoryError:
        code = REFUSED
    finally:
        os._exit(code)


def main() -> None:
    names = {DONE: "done", WRONG: "wrong result", REFUSED: "MemoryError", UNTOUCHED: "no allocation failed"}
    report = {}
    for name, make in CALLS.items():
        expected, call = computed_elsewhere(make), make()
        outcomes: Counter[str] = Counter()
        for count in (1, EVERY):
            for n in range(1, MOST):
                codes = [ended(call, expected, n, count) for _ in range(REPEATED)]
                outcomes.update(names.get(code, f"signal {-code}") for code in codes)
                if set(codes) == {UNTOUCHED}:
                    break
        report[name] = dict(outcomes)
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
