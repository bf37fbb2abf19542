"""What a layer's matrices are multiplied with can be listened to, and is what the products see."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flyweight.checkpoint import open_checkpoint
from flyweight.pipeline import convert
from flyweight.runtime.tensors import Streamed, Tensors
from support import GOLDEN
from support.calibrating import decoder_of, tapped

DECODERS = GOLDEN / "decoders"
FAMILIES = sorted(path.name for path in DECODERS.iterdir())


def windows(count: int = 3, length: int = 12) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 64, (count, length))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_input_gives_the_logits_of_each_window_alone(family: str) -> None:
    """Several windows in one block see nothing of each other: their logits are those of an ordinary forward pass.

    Products add in an order that depends on how many rows there are, so equality is that of f32 sums of at most 64 terms.
    """
    ids = windows()
    found = tapped(DECODERS / family, ids)
    with open_checkpoint(DECODERS / family) as checkpoint:
        decoder = decoder_of(checkpoint)
        name = decoder.tensors.output_name
        weights = checkpoint[decoder.blueprint.tensors[name].name].astype(np.float32)
        logits = found[name.removesuffix(".weight")] @ weights.T
        if cap := decoder.config.values.get("final_logit_softcapping"):
            logits = cap * np.tanh(logits / cap)
        wanted = np.concatenate([decoder.forward(window, decoder.cache("f32"), every=True) for window in ids])
    assert np.abs(logits - wanted).max() <= (4 * 6 + 1) * 64 * 2.0**-24 * np.abs(wanted).max()


@pytest.mark.parametrize("family", FAMILIES)
def test_each_matrix_is_heard_with_its_columns(family: str) -> None:
    found = tapped(DECODERS / family, windows())
    with open_checkpoint(DECODERS / family) as checkpoint:
        tensors = Tensors(checkpoint)
        matrices = {name for name in tensors if len(tensors.entry(name).spec.shape) == 2}
        if tensors.output_name != "model.embed_tokens.weight":
            matrices.discard("model.embed_tokens.weight")
        assert {f"{name}.weight" for name in found} == matrices
        assert all(x.shape == (36, tensors.entry(f"{name}.weight").spec.columns) for name, x in found.items())


def test_products_see_what_is_heard() -> None:
    """gate and up of the first layer, multiplied by hand, give what its down is heard with."""
    found = tapped(DECODERS / "llama", windows())
    with open_checkpoint(DECODERS / "llama") as checkpoint:
        gate, up = (checkpoint[f"model.layers.0.mlp.{name}_proj.weight"].astype(np.float64) for name in ("gate", "up"))
    x = found["model.layers.0.mlp.gate_proj"].astype(np.float64)
    g = x @ gate.T
    wanted = g / (1 + np.exp(-g)) * (x @ up.T)
    assert np.allclose(
        found["model.layers.0.mlp.down_proj"], wanted, rtol=64 * 2.0**-22, atol=64 * 2.0**-22 * np.abs(wanted).max()
    )


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_streamed_layers_are_heard_alike(family: str) -> None:
    kept, streamed = (tapped(DECODERS / family, windows(), kind=kind) for kind in (Tensors, Streamed))
    assert kept.keys() == streamed.keys()
    assert all(np.array_equal(kept[name], streamed[name]) for name in kept)


def test_a_gguf_file_is_heard_by_the_same_names(tmp_path: Path) -> None:
    convert(DECODERS / "llama", tmp_path / "model.gguf", dtype="f32")
    ours, theirs = tapped(DECODERS / "llama", windows()), tapped(tmp_path / "model.gguf", windows())
    assert ours.keys() == theirs.keys()
    assert all(np.allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-5) for name in ours)
