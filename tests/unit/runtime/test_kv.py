"""The key-value cache: full, cut, and committed only as far as it is used."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from flyweight.foundation.errors import ResourceError
from flyweight.runtime.kv import KeyValues, cache_nbytes

HEADS, KV_HEADS, HEAD = 4, 2, 64
WIDTH = (HEADS + 2 * KV_HEADS) * HEAD
NO_ROTARY = np.zeros((0, 0), np.float32)
KINDS = ("f32", "f16", "int8")


def feed(cache: KeyValues, x: np.ndarray) -> np.ndarray:
    out = np.empty((len(x), HEADS * HEAD), np.float32)
    for layer in range(len(cache.windows)):
        cache.attend(layer, x.copy(), HEADS, NO_ROTARY, NO_ROTARY, out, scale=0.125)
    cache.advance(len(x))
    return out


def tokens(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_cache_refuses_and_stays_usable(kind: str) -> None:
    cache = KeyValues(1, KV_HEADS, HEAD, 100, kind)
    feed(cache, tokens(99))
    with pytest.raises(ResourceError) as refusal:
        feed(cache, tokens(2))
    assert refusal.value.code == "E_CONTEXT"
    assert refusal.value.hint
    assert cache.length == 99
    feed(cache, tokens(1))
    with pytest.raises(ResourceError):
        cache.advance(1)


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_truncated_tokens_are_as_if_never_seen(kind: str) -> None:
    cache, other = (KeyValues(2, KV_HEADS, HEAD, 300, kind) for _ in range(2))
    feed(cache, tokens(200))
    cache.truncate(70)
    feed(other, tokens(200)[:70])
    assert np.array_equal(feed(cache, tokens(5, 1)), feed(other, tokens(5, 1)))
    assert cache.length == other.length == 75


def on_grid(keys: np.ndarray) -> np.ndarray:
    """64 keys as an int8 cache has them once the next token is there (docs/formats/attention.md)."""
    low, span = keys.min(axis=0), keys.max(axis=0) - keys.min(axis=0)
    codes = np.rint((keys - low) * (np.float32(255) / span))
    return low + span / np.float32(255) * codes


def test_truncated_int8_keys_come_back_from_their_grid() -> None:
    cache, other = (KeyValues(1, KV_HEADS, HEAD, 300, "int8") for _ in range(2))
    feed(cache, tokens(200))
    cache.truncate(70)
    x, keys = tokens(200), slice(HEADS * HEAD, (HEADS + KV_HEADS) * HEAD)
    x[64:128, keys] = on_grid(x[64:128, keys])
    feed(other, x[:70])
    assert np.array_equal(feed(cache, tokens(5, 1)), feed(other, tokens(5, 1)))
    cache.truncate(72)  # within the newest 64 nothing is lost
    other.truncate(72)
    assert np.array_equal(feed(cache, tokens(3, 2)), feed(other, tokens(3, 2)))
    cache.truncate(0)
    fresh = KeyValues(1, KV_HEADS, HEAD, 300, "int8")
    assert np.array_equal(feed(cache, tokens(130, 3)), feed(fresh, tokens(130, 3)))


def test_lengths_that_are_not_there_are_refused() -> None:
    cache = KeyValues(1, KV_HEADS, HEAD, 10)
    feed(cache, tokens(3))
    for length in (-1, 4):
        with pytest.raises(ValueError, match="cannot be truncated"):
            cache.truncate(length)


@pytest.mark.parametrize(
    "arguments",
    [
        (0, 1, 64, 8),
        (1, 0, 64, 8),
        (1, 1, 0, 8),
        (1, 1, 64, 0),
        (1, 1, 64, 8, "f8"),
        (2, 1, 64, 8, "f16", [4]),
        (1, 1, 64, 8, "f16", [-1]),
    ],
)
def test_shapes_that_make_no_cache_are_refused(arguments: tuple[object, ...]) -> None:
    with pytest.raises(ValueError):
        KeyValues(*arguments)


def test_a_context_beyond_any_machine_is_a_typed_refusal() -> None:
    with pytest.raises(ResourceError, match="cannot reserve"):
        KeyValues(1, 1, 512, 1 << 60)


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_changes_nothing_but_what_is_held(kind: str) -> None:
    """Pages out of sight are given back, and no query misses them."""
    windowed, whole = KeyValues(1, KV_HEADS, HEAD, 2048, kind, [300]), KeyValues(1, KV_HEADS, HEAD, 2048, kind)
    last: list[np.ndarray] = []
    for seed in range(15):
        feed(whole, tokens(100, seed))
        last.append(feed(windowed, tokens(100, seed)))
    assert windowed.nbytes < 0.6 * whole.nbytes
    again = KeyValues(1, KV_HEADS, HEAD, 2048, kind, [300])
    assert np.array_equal(feed(again, np.concatenate([tokens(100, seed) for seed in range(15)])), np.concatenate(last))
    with pytest.raises(ResourceError, match="which are gone"):
        windowed.truncate(1000)
    windowed.truncate(1490)
    windowed.truncate(0)
    assert np.array_equal(feed(windowed, tokens(100, 0)), last[0])


MEASURED = """
import numpy as np, sys
from pathlib import Path
from flyweight.runtime.kv import KeyValues, cache_nbytes
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
kind, window = sys.argv[1], int(sys.argv[2])
warm, cache = (KeyValues(8, 4, 128, 1 << 17, kind, [window] * 8) for _ in range(2))
x, out, none = np.ones((500, 16 * 128), np.float32), np.empty((500, 8 * 128), np.float32), np.zeros((0, 0), np.float32)
warm.attend(0, x, 8, none, none, out, scale=0.1)
before = resident()
for step in range(4):
    for layer in range(8):
        cache.attend(layer, x, 8, none, none, out, scale=0.1)
    cache.advance(500)
print(resident() - before, cache.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads resident memory from /proc")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [0, 512])
def test_memory_is_committed_as_tokens_arrive(kind: str, window: int) -> None:
    """A context of 131072 tokens is reserved; 2000 of them cost what 2000 tokens cost."""
    done = subprocess.run([sys.executable, "-c", MEASURED, kind, str(window)], capture_output=True, text=True, check=True)
    grown, reported = map(int, done.stdout.split())
    assert abs(grown - reported) < 0.1 * reported + 1_000_000, (grown, reported)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("context", [1, 256, 1000])
def test_what_a_cache_will_take_is_known_before(kind: str, context: int) -> None:
    """The figure that `--max-ram` is held against is that of the memory reserved, grids and tails included."""
    cache = KeyValues(3, 2, 64, context, kind)
    assert cache_nbytes(3, 2, 64, context, kind) == len(cache._memory)
