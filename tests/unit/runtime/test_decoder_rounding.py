"""What a run rounds on purpose costs each of its steps no more than the rounding allows.

The logits of a whole model have no useful bound: worst cases multiply from layer to layer. Its steps have. Every product of a
run with int8 activations is computed again with f32 ones, every attention over a narrow cache again over an f32 cache, from the
same inputs, and the two differ by what the rounding of the inputs makes of them and by that of f32 (docs/formats/matvec.md,
attention.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flyweight import kernels
from flyweight.kernels.products.activations import ACTIVATIONS, normalize
from flyweight.pipeline import convert
from flyweight.runtime import open_model
from flyweight.runtime.kv import KeyValues
from support import GOLDEN

DECODERS = GOLDEN / "decoders"
U = 2.0**-24
STEEPEST = 1.1
"""No slope of silu is steeper."""

Array = np.ndarray[Any, Any]

plain_multiply, plain_gated, plain_attend = kernels.multiply, kernels.gated, KeyValues.attend


def half_step(x: Array) -> Array:
    """h: how far an activation is from its code at most, half of 1/124 of the largest of its 32."""
    peak = np.abs(x).reshape(len(x), -1, 32).max(axis=2).astype(np.float64)
    return np.repeat(peak / 124 * (0.5 + 2.0**-14) + 2.0**-120, 32, axis=1)


def weights_of(matrices: list[kernels.Matrix]) -> Array:
    """Decoded, as products with unit vectors, which round nothing."""
    one = np.eye(matrices[0].columns, dtype=np.float32)
    out = np.empty((len(one), sum(matrix.rows for matrix in matrices)), np.float32)
    plain_multiply(matrices, one, out, int8=False)
    return out.T.astype(np.float64)


def allowed_between(weights: Array, x: Array) -> Array:
    """Σ|w|h, and what both sums round: any order, two roundings of decoding, and those of the norm before."""
    h = half_step(x)
    return h @ np.abs(weights).T + 4 * (x.shape[1] + 16) * U * ((np.abs(x) + h) @ np.abs(weights).T)


def test_int8_activations_cost_a_product_half_a_step_of_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = []

    def multiply(
        matrices: list[kernels.Matrix], x: Array, out: Array, *, gain: Array | None, eps: float, int8: bool, **more: Any
    ) -> None:
        exact = out.copy()
        before = np.abs(out) if more["add"] else np.zeros_like(out)
        plain_multiply(matrices, x, exact, gain=gain, eps=eps, int8=False, **more)
        plain_multiply(matrices, x, out, gain=gain, eps=eps, int8=int8, **more)
        allowed = allowed_between(weights_of(matrices), normalize(x, gain, eps))
        assert (np.abs(out - exact) <= allowed + 4 * U * (before + np.abs(exact) + allowed)).all()
        seen.append(("product", int8, bool((out != exact).any())))

    def gated(gate: kernels.Matrix, up: kernels.Matrix, x: Array, out: Array, *, int8: bool, **more: Any) -> None:
        exact = np.empty_like(out)
        plain_gated(gate, up, x, exact, int8=False, **more)
        plain_gated(gate, up, x, out, int8=int8, **more)
        normed = normalize(x, more["gain"], more["eps"])
        (g, u), (dg, du) = zip(
            *((normed @ w.T, allowed_between(w, normed)) for w in (weights_of([gate]), weights_of([up]))), strict=True
        )
        act = np.abs(ACTIVATIONS[more["activation"]](g.astype(np.float32)))
        allowed = STEEPEST * dg * (np.abs(u) + du) + (act + STEEPEST * dg) * du
        assert (np.abs(out - exact) <= allowed + 32 * U * (np.abs(exact) + allowed)).all()
        seen.append(("gate", int8, bool((out != exact).any())))

    monkeypatch.setattr(kernels, "multiply", multiply)
    monkeypatch.setattr(kernels, "gated", gated)
    recipe = tmp_path / "layers.toml"
    recipe.write_text('protect = true\n[[rules]]\nmatch = "*"\ncodec = "q8_0"\n')
    convert(DECODERS / "llama", tmp_path / "model.gguf", recipe=recipe)
    with open_model(tmp_path / "model.gguf", int8=True, kv="f32", context=64) as model:
        cache = model.cache()
        for tokens in ([3, 1, 4, 1, 5, 9, 2, 6], [5], [3]):
            model.decoder.forward(tokens, cache)
    layer = [("product", True, True), ("product", True, True), ("gate", True, True), ("product", True, True)]
    output = ("product", True, False)  # not packed: weights that are floats take floats
    assert seen == 3 * [*layer, *layer, output]


@pytest.mark.parametrize("kind", ["f16", "int8"])
def test_a_narrow_cache_costs_attention_what_it_rounds_of_keys_and_values(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores move by d = scale · |q||Δk|, so weights by e^2d; values by Δv. Norms bound |q| and |k|, and turning keeps them.

    f16 rounds by 2⁻¹¹ of each number. int8 has 255 steps between the least and the greatest: of a key's element among 64
    tokens, of a value among the elements of its head.
    """
    beside: list[KeyValues] = []
    differs = []

    def watched(cache: KeyValues, layer: int, qkv: Array, heads: int, *rest: Any, **options: Any) -> None:
        *tables, out = rest
        head = out.shape[1] // heads
        values = np.abs(qkv[:, -qkv.shape[1] // 4 :]).max()  # 4 heads and two of each kind: the last quarter
        exact = np.empty_like(out)
        plain_attend(beside[0], layer, qkv.copy(), heads, *tables, exact, **options)
        plain_attend(cache, layer, qkv, heads, *tables, out, **options)
        largest[layer] = max(largest[layer], float(values))
        q, k = (np.sqrt(head) * float(np.abs(gain).max()) for gain in (options["q_gain"], options["k_gain"]))
        key_error = k * 2.0**-11 if kind == "f16" else np.sqrt(head) * 2 * k / 510  # Δk as a vector
        value_error = (2.0**-11 if kind == "f16" else 2 / 510) * 1.001 * largest[layer] + 2.0**-24
        d, score = options["scale"] * q * key_error * 1.001, options["scale"] * q * k
        keys = cache.length + len(qkv)
        rounding = 2 * U * ((head + 4) * score + 4 * score + 10 * (keys / 64 + 2) + keys + 8)
        allowed = np.expm1(2 * (d + 2 * rounding)) * largest[layer] + value_error
        assert np.abs(out - exact).max() <= allowed
        differs.append(bool((out != exact).any()))
        if layer == len(cache.windows) - 1:
            beside[0].advance(len(qkv))

    largest = {0: 0.0, 1: 0.0}
    monkeypatch.setattr(KeyValues, "attend", watched)
    tokens = np.random.default_rng(0).integers(0, 64, 110)
    with open_model(DECODERS / "qwen3", int8=False, kv=kind, context=128) as model:
        beside.append(model.decoder.cache("f32"))
        cache = model.cache()
        for part in np.split(tokens, [60, 100, 101, 102]):
            model.decoder.forward(part, cache)
    assert len(differs) == 10
    assert all(differs), "every attention reads the narrow cache"
