"""Tiers that other programs load: `cache` by safetensors and mlx, `int4` by mlx-lm, `finalized` by NumPy."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import utils
from safetensors.torch import load_file as load

import flyweight
from flyweight.tiers import build
from support.toys import write_toy_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiers")
    flyweight.convert(write_toy_llama(folder / "toy", layers=2), folder / "model", to="npy_dir", quant="int8")
    for tier in ("cache", "int4", "finalized"):
        build(folder / "model", tier, in_place=True)
    return folder / "model"


def rounded(model: Path, dtype: type) -> dict[str, np.ndarray]:
    with flyweight.open(model) as checkpoint:
        return {name: np.asarray(checkpoint[name], np.float32).astype(dtype).astype(np.float32) for name in checkpoint}


def test_mlx_loads_the_cache(model: Path) -> None:
    found = mx.load(str(model / "squish_weights.safetensors"))
    expected = rounded(model, ml_dtypes.bfloat16)
    assert found.keys() == expected.keys()
    for name, values in found.items():
        assert values.dtype == mx.bfloat16
        assert np.array_equal(np.array(values.astype(mx.float32)), expected[name])


def test_safetensors_loads_the_cache(model: Path) -> None:
    expected = rounded(model, ml_dtypes.bfloat16)
    found = load(model / "squish_weights.safetensors")
    assert found.keys() == expected.keys()
    assert all(np.array_equal(values.float().numpy(), expected[name]) for name, values in found.items())


def test_mlx_lm_runs_the_directory_of_four_bits(model: Path) -> None:
    from flyweight.runtime import open_model

    theirs, _ = utils.load_model(model / "squish_4bit")
    tokens = [5, 9, 20, 31]
    logits = np.array(theirs(mx.array([tokens])).astype(mx.float32))[0]
    with open_model(model / "squish_4bit", int8=False, kv="f32") as ours:
        mine = ours.decoder.forward(tokens, ours.cache(), every=True)
    assert np.array_equal(mine.argmax(axis=1), logits.argmax(axis=1))  # test_mlx has the weights, bit by bit


def test_numpy_loads_the_finalized_folder(model: Path) -> None:
    expected = rounded(model, np.float16)
    for name, values in expected.items():
        assert np.array_equal(np.load(model / "finalized" / f"{name.replace('.', '__')}.npy").astype(np.float32), values)
