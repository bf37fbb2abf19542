"""Against deltatensors, the public tool for .wdelta, both ways and bit for bit.

What it writes we read to its own reconstruction, also where it then refuses its file; what we write it reads and reconstructs
like us. Its reconstruction is `load_delta_from_paths` without the check of the base, which has no part in the values.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import deltatensors
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.torch import load_file, save_file

import flyweight
from flyweight.foundation.errors import FlyweightError

Tensors = dict[str, torch.Tensor]
Arrays = Mapping[str, np.ndarray]
STRATEGIES = {
    "sparse": ({}, {"sparsity": 0.5}, {"sparsity": 0.0}),
    "quantized": ({},),
    "int4": ({}, {"outlier_fraction": 0.2}),
}
CASES = [(strategy, options) for strategy, several in STRATEGIES.items() for options in several]
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
SHAPES = {
    "model.embed.weight": (64, 24),
    "model.layers.10.attn.weight": (16, 16),
    "model.layers.10.norm.bias": (33,),
    "model.layers.2.attn.weight": (16, 17),
    "model.conv.weight": (4, 3, 3, 3),
    "model.frozen.weight": (8, 8),
    "model.mostly_frozen.weight": (31, 8),
    "model.big_delta.weight": (8, 9),
    "model.tiny_delta.weight": (8, 8),
    "model.two.weight": (2,),
    "model.ünï.ключ": (5, 7),
}
SPLITS = {
    "whole": lambda names: [names],
    "halves": lambda names: [names[: len(names) // 2], names[len(names) // 2 :]],
    "by turns": lambda names: [names[::2], names[1::2]],
}
LAYOUTS = list(itertools.product(SPLITS, SPLITS))


def drawn(seed: int) -> Tensors:
    made = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=made) * 0.05 for name, shape in SHAPES.items()}


def tuned_from(base: Tensors, seed: int = 1) -> Tensors:
    """Small changes, and the kinds of change that a tensor can have."""
    noise = drawn(seed)
    tuned = {name: values + 0.02 * noise[name] for name, values in base.items()}
    tuned["model.frozen.weight"] = base["model.frozen.weight"].clone()
    tuned["model.mostly_frozen.weight"] = base["model.mostly_frozen.weight"].clone()
    tuned["model.mostly_frozen.weight"][3] += 0.01
    tuned["model.big_delta.weight"] = base["model.big_delta.weight"] + 4000 * noise["model.big_delta.weight"]
    tuned["model.tiny_delta.weight"] = base["model.tiny_delta.weight"] + 1e-8 * noise["model.tiny_delta.weight"]
    return tuned


def stored(tensors: Tensors, dtype: torch.dtype) -> Tensors:
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def directory(folder: Path, tensors: Tensors, split: str = "whole", config: str = "{}") -> Path:
    """A Hugging Face directory; the public tool looks at its safetensors files alone."""
    folder.mkdir(parents=True)
    shards = SPLITS[split](list(tensors))
    files = [
        "model.safetensors" if len(shards) == 1 else f"model-{at:05}-of-{len(shards):05}.safetensors"
        for at in range(1, len(shards) + 1)
    ]
    for file, names in zip(files, shards, strict=True):
        save_file({name: tensors[name].contiguous() for name in names}, folder / file, metadata={"format": "pt"})
    if len(shards) > 1:
        where = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    (folder / "config.json").write_text(config)
    return folder


def same(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (np.dtype(np.float32), array.shape), name
        assert np.array_equal(found[name].view(np.uint32), array.view(np.uint32)), name


def rebuilt(base: Path, *deltas: Path) -> dict[str, np.ndarray]:
    with flyweight.open(base, deltas=list(deltas), in_f32=True) as model:
        return {name: model[name] for name in model}


def applied(base: Path, out: Path, *deltas: Path) -> dict[str, np.ndarray]:
    flyweight.apply_delta(base, list(deltas), out, dtype="f32")
    files = sorted(out.glob("*.safetensors")) if out.is_dir() else [out]
    return {name: tensor.numpy() for file in files for name, tensor in load_file(file).items()}


def their_reconstruction(delta: Path, base: Path) -> dict[str, np.ndarray]:
    return deltatensors.load_delta_from_paths(delta, base, verify=False)


# What it writes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("strategy", "options"), CASES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("of_base", "of_tuned"), LAYOUTS)
def test_we_read_what_it_writes(
    strategy: str, options: dict[str, float], dtype: str, of_base: str, of_tuned: str, tmp_path: Path
) -> None:
    weights = drawn(0)
    base = directory(tmp_path / "base", stored(weights, DTYPES[dtype]), of_base)
    tuned = directory(tmp_path / "tuned", stored(tuned_from(weights), DTYPES[dtype]), of_tuned)
    delta = tmp_path / "d.wdelta"
    deltatensors.save_delta_from_paths(delta, tuned, base, strategy=strategy, **options)
    expected = their_reconstruction(delta, base)
    same(rebuilt(base, delta), expected)
    same(applied(base, tmp_path / "out", delta), expected)
    flyweight.verify_delta(delta, base=base)


def test_it_refuses_some_of_these(tmp_path: Path) -> None:
    """Files in the order of the tuned shards, which it checks in another: the test above has read them."""
    weights, refused = drawn(0), set()
    for at, (of_base, of_tuned) in enumerate(LAYOUTS):
        base = directory(tmp_path / f"base{at}", weights, of_base)
        tuned = directory(tmp_path / f"tuned{at}", tuned_from(weights), of_tuned)
        delta = tmp_path / f"{at}.wdelta"
        deltatensors.save_delta_from_paths(delta, tuned, base, strategy="int4")
        try:
            deltatensors.load_delta_from_paths(delta, base)
        except ValueError as error:
            assert "hash mismatch" in str(error)  # noqa: PT017
            refused.add((of_base, of_tuned))
        same(rebuilt(base, delta), their_reconstruction(delta, base))
    assert ("whole", "by turns") in refused
    assert ("whole", "whole") not in refused


@pytest.mark.parametrize(("strategy", "options"), CASES)
@pytest.mark.parametrize("dtype", ["f32", "f16"])  # of arrays in memory it takes no bf16
def test_we_read_what_it_writes_from_memory(strategy: str, options: dict[str, float], dtype: str, tmp_path: Path) -> None:
    weights = drawn(0)
    before, after = stored(weights, DTYPES[dtype]), stored(tuned_from(weights), DTYPES[dtype])
    base, delta = directory(tmp_path / "base", before, "by turns"), tmp_path / "d.wdelta"
    deltatensors.save_delta(delta, after, before, strategy=strategy, **options)
    same(rebuilt(base, delta), deltatensors.load_delta(delta, before))


def test_another_base_is_refused_by_both(tmp_path: Path) -> None:
    weights = drawn(0)
    base, tuned = directory(tmp_path / "base", weights), directory(tmp_path / "tuned", tuned_from(weights))
    other = directory(tmp_path / "other", weights | {"model.two.weight": weights["model.two.weight"] + 1})
    delta = tmp_path / "d.wdelta"
    deltatensors.save_delta_from_paths(delta, tuned, base, strategy="int4")
    with pytest.raises(ValueError, match="hash mismatch"):
        deltatensors.load_delta_from_paths(delta, other)
    with pytest.raises(FlyweightError, match="base"):
        rebuilt(other, delta)


# Chains ---------------------------------------------------------------------------------------------


def steps(folder: Path, dtype: torch.dtype) -> Iterator[Path]:
    """The base and three fine-tunes, each from the one before."""
    weights = drawn(0)
    for step in range(4):
        yield directory(folder / f"v{step}", stored(weights, dtype))
        weights = tuned_from(weights, seed=step + 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_its_chain_of_two_steps(dtype: str, tmp_path: Path) -> None:
    base, first, second, _ = steps(tmp_path, DTYPES[dtype])
    deltas = [tmp_path / "1.wdelta", tmp_path / "2.wdelta"]
    deltatensors.save_delta_from_paths(deltas[0], first, base, strategy="int4")
    deltatensors.save_delta_chain_from_paths(deltas[1], second, deltas[0], base, strategy="sparse", sparsity=0.5)
    expected = deltatensors.load_delta_chain(deltas, base)
    same(rebuilt(base, *deltas), expected)
    same(applied(base, tmp_path / "out", *deltas), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("strategies", list(itertools.permutations(STRATEGIES)))
def test_its_chain_of_three_steps(dtype: str, strategies: tuple[str, ...], tmp_path: Path) -> None:
    """Saved from memory, each step from what the chain before it loads as: the paths API makes a third step that nobody can
    load, because it takes the second for a step from the base."""
    base, *tuned = steps(tmp_path, DTYPES[dtype])
    deltas: list[Path] = []
    for step, (folder, strategy) in enumerate(zip(tuned, strategies, strict=True)):
        delta = tmp_path / f"{step}.wdelta"
        if deltas:
            after = {name: tensor.float().numpy() for name, tensor in load_file(folder / "model.safetensors").items()}
            deltatensors.save_delta(delta, after, deltatensors.load_delta_chain(deltas, base), strategy=strategy)
        else:
            deltatensors.save_delta_from_paths(delta, folder, base, strategy=strategy)
        deltas.append(delta)
    same(rebuilt(base, *deltas), deltatensors.load_delta_chain(deltas, base))
    with pytest.raises(FlyweightError):
        rebuilt(base, deltas[0], deltas[2])


def test_its_third_step_from_paths_is_refused_by_both(tmp_path: Path) -> None:
    base, first, second, third = steps(tmp_path, torch.bfloat16)
    deltas = [tmp_path / f"{step}.wdelta" for step in range(3)]
    deltatensors.save_delta_from_paths(deltas[0], first, base, strategy="int4")
    deltatensors.save_delta_chain_from_paths(deltas[1], second, deltas[0], base, strategy="int4")
    deltatensors.save_delta_chain_from_paths(deltas[2], third, deltas[1], base, strategy="int4")
    with pytest.raises(ValueError, match="hash mismatch"):
        deltatensors.load_delta_chain(deltas, base)
    with pytest.raises(FlyweightError):
        rebuilt(base, *deltas)


# What we write --------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("of_base", "of_tuned"), LAYOUTS)
def test_it_reads_what_we_write(strategy: str, dtype: str, of_base: str, of_tuned: str, tmp_path: Path) -> None:
    """It checks the base too, and takes no notice of what only we store, such as side files that changed."""
    weights = drawn(0)
    base = directory(tmp_path / "base", stored(weights, DTYPES[dtype]), of_base)
    changed = stored(tuned_from(weights), DTYPES[dtype])
    tuned = directory(tmp_path / "tuned", changed, of_tuned, config='{"model_type": "other"}')
    delta = tmp_path / "d.wdelta"
    flyweight.create_delta(base, tuned, delta, strategy=strategy)
    theirs = deltatensors.load_delta_from_paths(delta, base)
    assert theirs.keys() == changed.keys()
    same(rebuilt(base, delta), theirs)


@pytest.mark.parametrize("strategy", ["sparse", "quantized", "int4"])
def test_it_reads_tensors_that_are_equal(strategy: str, tmp_path: Path) -> None:
    """As of an output layer that is a copy of the embedding: it knows no tensor that is the same as another."""
    weights = drawn(0)
    changed = tuned_from(weights)
    name = max(weights, key=lambda name: weights[name].numel())
    base = directory(tmp_path / "base", weights | {"copy.weight": weights[name].clone()})
    tuned = directory(tmp_path / "tuned", changed | {"copy.weight": changed[name].clone()})
    delta = tmp_path / "d.wdelta"
    flyweight.create_delta(base, tuned, delta, strategy=strategy)
    same(rebuilt(base, delta), deltatensors.load_delta_from_paths(delta, base))


def test_it_refuses_by_name_what_it_does_not_know(tmp_path: Path) -> None:
    weights = drawn(0)
    base, tuned = directory(tmp_path / "base", weights), directory(tmp_path / "tuned", tuned_from(weights))
    delta = tmp_path / "d.wdelta"
    flyweight.create_delta(base, tuned, delta)
    with pytest.raises((ValueError, KeyError), match="exact"):
        deltatensors.load_delta_from_paths(delta, base)


# Anything at all ------------------------------------------------------------------------------------

NUMBERS = st.floats(-(2.0**12), 2.0**12, width=16)  # differences have to be numbers of f16
DRAWN = hnp.array_shapes(max_dims=3, max_side=9).flatmap(
    lambda shape: st.tuples(*(hnp.arrays(np.float16, shape, elements=NUMBERS) for _ in range(2)))
)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(pair=DRAWN, dtype=st.sampled_from(sorted(DTYPES)), case=st.sampled_from(CASES))
def test_any_pair(pair: tuple[np.ndarray, np.ndarray], dtype: str, case: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    strategy, options = case
    folder = tmp_path_factory.mktemp("pair")
    before, after = ({"w": torch.from_numpy(array).to(DTYPES[dtype])} for array in pair)
    base, tuned = directory(folder / "base", before), directory(folder / "tuned", after)
    theirs, ours = folder / "theirs.wdelta", folder / "ours.wdelta"
    flyweight.create_delta(base, tuned, ours, strategy=strategy)
    same(rebuilt(base, ours), deltatensors.load_delta_from_paths(ours, base))
    try:
        deltatensors.save_delta_from_paths(theirs, tuned, base, strategy=strategy, **options)
    except ValueError:  # it cannot store a tensor of which nothing is left beside the outliers
        assume(False)
    same(rebuilt(base, theirs), their_reconstruction(theirs, base))
