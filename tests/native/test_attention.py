"""Attention stays within the bound of docs/formats/attention.md of a plain formula in f64, with every option, on every set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pytest

from flyweight import kernels
from flyweight.kernels import attention
from flyweight.runtime.kv import KeyValues

U = 2.0**-24
KINDS = ("f32", "f16", "int8")


@pytest.fixture(params=("reference", "baseline", "avx2", "avx512"))
def any_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every set in turn, the definition too: it is held to the same bound."""
    if request.param not in kernels.available():
        pytest.skip(f"{request.param} kernels: not on this processor, or not built")
    before = kernels.active()
    kernels.use(request.param)
    yield request.param
    kernels.use(before)


@dataclass(frozen=True)
class Layer:
    heads: int = 6
    kv_heads: int = 2
    head: int = 64
    rotary: int = 64
    pairs: bool = False
    normed: bool = False
    cap: float = 0.0
    window: int = 0
    kind: str = "f16"
    spread: float = 1.0
    seed: int = 0

    @property
    def width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head

    def tables(self, positions: int) -> tuple[np.ndarray, np.ndarray]:
        angles = np.outer(np.arange(positions), 1e4 ** (-np.arange(self.rotary // 2) / max(1, self.rotary // 2)))
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def gains(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        if not self.normed:
            return None, None
        rng = np.random.default_rng(self.seed + 1)
        return tuple(rng.uniform(0.5, 1.5, self.head).astype(np.float32) for _ in range(2))

    def tokens(self, count: int) -> np.ndarray:
        rng = np.random.default_rng(self.seed)
        return (rng.standard_normal((count, self.width)) * self.spread).astype(np.float32)

    @property
    def scale(self) -> float:
        return float(np.float32(self.head**-0.5))

    def cache(self, context: int = 512) -> KeyValues:
        return KeyValues(1, self.kv_heads, self.head, context, self.kind, [self.window])

    def run(self, x: np.ndarray, steps: list[int], threads: int = 1) -> tuple[np.ndarray, KeyValues]:
        """The tokens in steps of so many; what comes out, and the cache."""
        cache, out = self.cache(max(512, len(x))), np.full((len(x), self.heads * self.head), 7.0, np.float32)
        cos, sin = self.tables(len(x))
        q_gain, k_gain = self.gains()
        at = 0
        for count in steps:
            some = slice(at, at + count)
            cache.attend(
                0, x[some].copy(), self.heads, cos, sin, out[some], scale=self.scale, pairs=self.pairs,
                q_gain=q_gain, k_gain=k_gain, cap=self.cap, threads=threads,
            )  # fmt: skip
            cache.advance(count)
            at += count
        assert at == len(x)
        return out, cache


@lru_cache
def plain(layer: Layer, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Attention in f64 over keys and values as the cache holds them, and the bound, both (tokens, heads · head).

    Normalising, rotating and rounding to the cache are exact families, taken from their definition.
    """
    heads, kv_heads, head = layer.heads, layer.kv_heads, layer.head
    x = layer.tokens(count)
    q, k, v = attention._split(x, heads, kv_heads, head)
    cos, sin = layer.tables(len(x))
    with np.errstate(all="ignore"):
        attention._prepare(q, k, cos, sin, layer.pairs, *layer.gains(), 1e-6, layer.scale)
    out, bound = np.empty((len(x), heads, head)), np.empty((len(x), heads, head))
    for p in range(len(x)):
        first = max(0, p + 1 - layer.window) if layer.window else 0
        keys, values = stored(layer, k, p), stored_values(layer, v[: p + 1])
        for h in range(heads):
            kk, vv = keys[first : p + 1, h // (heads // kv_heads)], values[first : p + 1, h // (heads // kv_heads)]
            s = kk @ q[p, h].astype(np.float64)
            magnitude = abs(kk) @ abs(q[p, h]).astype(np.float64)
            if layer.cap:
                s = layer.cap * np.tanh(s / layer.cap)
            weights = np.exp(s - s.max())
            share = weights / weights.sum()
            out[p, h] = share @ vv
            bound[p, h] = error_bound(layer, s, magnitude, len(kk)) * (share @ abs(vv)) + len(kk) * 2.0**-120 * abs(vv).max(0)
    return out.reshape(len(x), -1), bound.reshape(len(x), -1)


def error_bound(layer: Layer, s: np.ndarray, magnitude: np.ndarray, keys: int) -> float:
    """The factor of docs/formats/attention.md."""
    d, blocks = layer.head + 4, keys / 64 + 2
    theta = float((d * U / (1 - d * U) * magnitude).max()) + (16 * U * layer.cap if layer.cap else 0)
    theta += U * (float(np.ptp(s)) + 2 * theta + 8 * blocks)
    k = keys + 2 * blocks + 8
    return float(np.expm1(2 * (theta + k * U / (1 - k * U))))


def stored(layer: Layer, k: np.ndarray, p: int) -> np.ndarray:
    if layer.kind == "f32":
        return k[: p + 1].astype(np.float64)
    if layer.kind == "f16":
        return k[: p + 1].astype(np.float16).astype(np.float64)
    own = p // 64 * 64
    parts = [k[own : p + 1]]
    for first in range(own - 64, -1, -64):
        low, high = k[first : first + 64].min(axis=0), k[first : first + 64].max(axis=0)
        codes = np.rint((k[first : first + 64] - low) * (np.float32(255) / (high - low)))
        parts.insert(0, low + ((high - low) / np.float32(255)) * codes)
    return np.concatenate(parts).astype(np.float64)


def stored_values(layer: Layer, v: np.ndarray) -> np.ndarray:
    if layer.kind == "int8":
        low, high = v.min(axis=2, keepdims=True), v.max(axis=2, keepdims=True)
        codes = np.rint((v - low) * (np.float32(255) / (high - low)))
        v = low + ((high - low) / np.float32(255)) * codes
    return (v.astype(np.float16) if layer.kind == "f16" else v).astype(np.float64)


def assert_bounded(layer: Layer, found: np.ndarray) -> None:
    exact, allowed = plain(layer, len(found))
    error = abs(found - exact)
    assert (error <= allowed).all(), (layer, float((error / allowed).max()))


OPTIONS = [
    Layer(),
    Layer(rotary=0),
    Layer(rotary=32),
    Layer(rotary=48, pairs=True),
    Layer(pairs=True),
    Layer(normed=True),
    Layer(cap=20.0, spread=3.0),
    Layer(window=1),
    Layer(window=37),
    Layer(window=64, cap=50.0, normed=True, pairs=True),
    Layer(spread=8.0),
    Layer(spread=1e-12),
]
SHAPES = [
    *(Layer(heads=2 * ratio, kv_heads=2) for ratio in range(1, 9)),
    *(Layer(head=head, rotary=head) for head in (8, 80, 96, 128, 256)),
    Layer(heads=32, kv_heads=1, head=16, rotary=16),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", OPTIONS, ids=repr)
def test_every_option(any_set: str, layer: Layer, kind: str) -> None:
    layer = replace(layer, kind=kind)
    x = layer.tokens(134)
    for steps in ([134], [*[1] * 10, 50, *[1] * 10, 58, *[1] * 6], [70, 1, 58, 4, 1]):
        assert_bounded(layer, layer.run(x, steps)[0])


@pytest.mark.parametrize("layer", SHAPES, ids=repr)
def test_every_shape(any_set: str, layer: Layer) -> None:
    for kind in KINDS:
        here = replace(layer, kind=kind)
        x = here.tokens(83)
        assert_bounded(here, here.run(x, [40, 1, 2, 39, 1])[0])


@pytest.mark.parametrize("kind", KINDS)
def test_long_context(isa: str, kind: str) -> None:
    """More than one chunk of 256 keys for a single query, and a window across their border."""
    for window in (0, 300):
        layer = Layer(kind=kind, window=window, heads=3, kv_heads=1)
        x = layer.tokens(700)
        assert_bounded(layer, layer.run(x, [600, *[1] * 100])[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("normed", [False, True])
def test_what_is_stored_equals_the_definition(isa: str, kind: str, normed: bool) -> None:
    layer = Layer(kind=kind, normed=normed, rotary=48)
    x = layer.tokens(200)
    _, native = layer.run(x, [100, 1, 99])
    kernels.use("reference")
    _, twin = layer.run(x, [130, 70])
    kernels.use(isa)
    for found, expected in zip(native._layers[0][:4], twin._layers[0][:4], strict=True):
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_threads_and_any_blocks_give_the_same(isa: str, kind: str) -> None:
    layer = Layer(kind=kind, heads=9, kv_heads=3)
    x = layer.tokens(400)
    one, _ = layer.run(x, [400])
    for threads in (2, 8):
        assert np.array_equal(layer.run(x, [400], threads)[0], one)
    assert np.array_equal(layer.run(x, [100, 2, 131, 167])[0], one)
    single, _ = layer.run(x, [390, *[1] * 10])
    for threads in (2, 8):
        assert np.array_equal(layer.run(x, [390, *[1] * 10], threads)[0], single)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_are_not_finite(any_set: str, kind: str, value: float) -> None:
    """They spoil what sees them and nothing before their own call."""
    layer = Layer(kind=kind, cap=30.0)
    x = layer.tokens(140)
    clean, _ = layer.run(x, [70, 70])
    x[75, :] = value
    for steps in ([70, 70], [70, *[1] * 70]):
        found, _ = layer.run(x, steps)
        assert np.array_equal(found[:70], clean[:70])
        assert not np.isfinite(found[75]).any()


def test_stays_inside(isa: str, fenced) -> None:
    layer = Layer(head=80, rotary=80)
    cos, sin = (fenced(t.shape, np.float32, t) for t in layer.tables(65))
    for element in (np.float32, np.float16):
        keys, values = (fenced((2, 65, 80), element) for _ in range(2))
        for start, count in ((0, 64), (64, 1), (0, 65), (63, 2)):
            qkv, out = fenced((count, layer.width), np.float32, layer.tokens(count)), fenced((count, 480), np.float32)
            kernels.attend(qkv, 6, keys, values, start, cos, sin, out, threads=2)
    keys, values = (fenced((2, 64, 80), np.uint8) for _ in range(2))
    grids = fenced((2, 1, 2, 80), np.float32), fenced((2, 64, 2), np.float32), fenced((2, 64, 80), np.float32)
    for start, count in ((0, 63), (63, 1), (0, 64)):
        qkv, out = fenced((count, layer.width), np.float32, layer.tokens(count)), fenced((count, 480), np.float32)
        kernels.attend(qkv, 6, keys, values, start, cos, sin, out, False, None, None, 1e-6, 1.0, 0.0, 0, 2, *grids)


# Normalisation and soft caps --------------------------------------------------------------------


@pytest.mark.parametrize("columns", [1, 7, 8, 64, 576, 1001])
@pytest.mark.parametrize("add", [False, True])
def test_rms_norm_equals_the_definition(isa: str, columns: int, add: bool) -> None:
    rng = np.random.default_rng(columns)
    x = (rng.standard_normal((5, columns)) * [[1.0], [1e-30], [1e30], [0.0], [np.nan]]).astype(np.float32)
    gain = rng.standard_normal(columns).astype(np.float32)
    found, expected = np.ones((2, 5, columns), np.float32)
    kernels.rms_norm(x, gain, 1e-6, found, add)
    with np.errstate(all="ignore"):
        kernels.definition("rms_norm")(x, gain, 1e-6, expected, add)
    assert np.array_equal(found, expected, equal_nan=True)
    wide = x[:3].astype(np.float64)
    exact = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + np.float64(np.float32(1e-6))) * gain + add
    assert np.allclose(found[:3], exact, rtol=4 * U, atol=abs(exact - add).max() * 4 * U)


def test_rms_norm_in_place(isa: str) -> None:
    x = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)
    out, gain = np.empty_like(x), np.ones(40, np.float32)
    kernels.rms_norm(x, gain, 1e-5, out)
    kernels.rms_norm(x, gain, 1e-5, x)
    assert np.array_equal(x, out)


@pytest.mark.parametrize("cap", [1e-3, 1.0, 30.0, 50.0])
def test_softcap(any_set: str, cap: float) -> None:
    """Sixteen units in the last place of the result, from the subnormals to where tanh is one."""
    magnitudes = np.concatenate([np.logspace(-38, 36, 4001), np.linspace(0, 12, 8001)]) * cap
    x = np.concatenate([magnitudes, -magnitudes]).astype(np.float32)
    found = x.copy().reshape(1, -1)
    kernels.softcap(found, cap)
    small = np.float64(np.float32(cap))
    exact = small * np.tanh(x / small)
    assert (abs(found[0] - exact) <= 16 * U * abs(exact) + 2.0**-140).all()
    odd = np.float32([[np.inf, -np.inf, np.nan]])
    kernels.softcap(odd, cap)
    assert list(odd[0, :2]) == [np.float32(cap), -np.float32(cap)]
    assert np.isnan(odd[0, 2])


# What is refused ----------------------------------------------------------------------------------


def f32(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


GOOD = {
    "qkv": f32(2, 320),
    "heads": 3,
    "keys": f32(1, 64, 64),
    "values": f32(1, 64, 64),
    "start": 3,
    "cos": f32(64, 32),
    "sin": f32(64, 32),
    "out": f32(2, 192),
}
CODES = {
    "keys": np.zeros((1, 64, 64), np.uint8),
    "values": np.zeros((1, 64, 64), np.uint8),
    "key_grid": f32(1, 1, 2, 64),
    "value_grid": f32(1, 64, 2),
    "tail": f32(1, 64, 64),
}


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


HOSTILE = [
    *(
        {"qkv": bad}
        for bad in (f32(2, 319), f32(0, 320), f32(320), f32(4, 320)[::2], np.zeros((2, 320)), read_only(f32(2, 320)), None)
    ),
    {"qkv": np.zeros(2 * 320 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(2, 320)},
    *({"heads": bad} for bad in (0, 2, -3, 33, 2**70)),
    *({"start": bad} for bad in (-1, 63, 64, 2**40, 2**64 - 1, 2**70, "x")),
    *({"cos": bad} for bad in (f32(64, 33), f32(4, 32), f32(63, 32), np.zeros((64, 32)), f32(64))),
    {"cos": f32(4, 32), "sin": f32(4, 32)},
    {"cos": f32(64, 40), "sin": f32(64, 40)},
    *({"out": bad} for bad in (f32(1, 192), f32(2, 191), read_only(f32(2, 192)), np.zeros((2, 192)))),
    *({"q_gain": bad} for bad in (f32(63), f32(1, 64), np.zeros(64))),
    *({"window": bad} for bad in (-1, "x")),
    *({"threads": bad} for bad in (0, 257, -1)),
]
FLOATS_ONLY = [
    {"keys": np.zeros((1, 64, 64), np.float16)},
    {"keys": np.zeros((1, 64, 64)), "values": np.zeros((1, 64, 64))},
    {"keys": np.zeros((1, 64, 64), np.uint16), "values": np.zeros((1, 64, 64), np.uint16)},
    {"values": f32(1, 63, 64)},
    {"keys": f32(0, 64, 64), "values": f32(0, 64, 64)},
    {"keys": CODES["keys"], "values": CODES["values"]},
    {"tail": CODES["tail"]},
    {"keys": f32(1, 64, 60), "values": f32(1, 64, 60), "qkv": f32(2, 300), "out": f32(2, 180)},
]
CODES_ONLY = [
    {"keys": f32(1, 64, 64), "values": f32(1, 64, 64)},
    {"tail": None},
    {"key_grid": f32(1, 2, 2, 64)},
    {"key_grid": f32(1, 1, 1, 64)},
    {"value_grid": f32(1, 63, 2)},
    {"tail": f32(1, 63, 64)},
    {"tail": np.zeros((1, 64, 64))},
    {"keys": np.zeros((1, 65, 64), np.uint8), "values": np.zeros((1, 65, 64), np.uint8), "value_grid": f32(1, 65, 2)},
]


def test_hostile_arguments_are_refused(any_set: str) -> None:
    kernels.attend(**GOOD)
    kernels.attend(**{**GOOD, **CODES})
    for change in HOSTILE + FLOATS_ONLY:
        with pytest.raises((TypeError, ValueError)):
            kernels.attend(**{**GOOD, **change})
            pytest.fail(f"attend took {change}")
    for change in HOSTILE + CODES_ONLY:
        with pytest.raises((TypeError, ValueError)):
            kernels.attend(**{**GOOD, **CODES, **change})
            pytest.fail(f"attend took {change}")
    for arguments in (
        (f32(2, 8), f32(7), 1e-6, f32(2, 8)),
        (f32(2, 8), f32(8), 1e-6, f32(1, 8)),
        (f32(2, 0), f32(0), 1e-6, f32(2, 0)),
        (np.zeros((2, 8)), f32(8), 1e-6, f32(2, 8)),
        (f32(2, 8), f32(8), 1e-6, read_only(f32(2, 8))),
    ):
        with pytest.raises((TypeError, ValueError)):
            kernels.rms_norm(*arguments)
    for x, cap in ((f32(2, 8), 0.0), (f32(2, 8), -1.0), (f32(2, 8), float("nan")), (f32(8), 1.0), (np.zeros((2, 8)), 1.0)):
        with pytest.raises((TypeError, ValueError)):
            kernels.softcap(x, cap)
