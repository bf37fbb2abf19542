"""A plan is data: what was written is what is read, and carrying it out later ends in the bytes of converting at once.

The law runs over every pair of containers, with what users ask for most. A conversion that is refused has no plan.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flyweight
from flyweight import Extras, Plan
from flyweight.containers import CONTAINERS
from flyweight.foundation.errors import UnsupportedError
from support.toys import draft_head, safetensors_bytes, write_package, write_toy_llama

MIXED = """
[[rules]]
match = ["*embed*", "*norm*", "*_norm*", "token_embd*"]
codec = "keep"

[[rules]]
match = ["*q_proj*", "*attn_q*"]
codec = "dense"
dtype = "f32"

[[rules]]
match = ["*k_proj*", "*attn_k*"]
codec = "masked"
params = { block = 32, inner = { name = "lossless", params = {} } }
sparsity = 0.25

[[rules]]
match = ["*down_proj*", "*ffn_down*"]
codec = "affine"
params = { bits = 4, group = "row" }
quantizer = "clip"
cosine = 0.99999
otherwise = { group = 32 }

[[rules]]
match = "*"
codec = "affine"
params = { bits = 4, group = 32 }
"""

WISHES: dict[str, dict[str, Any]] = {
    "keep": {},
    "f32": {"dtype": "f32"},
    "f16": {"dtype": "f16", "shard_bytes": 30_000},
    "dense": {"quant": "dense"},
    "int4": {"quant": "int4-g32"},
    "int8": {"quant": "int8"},
    "q4_1": {"quant": "q4_1"},
    "q4_k": {"quant": "q4_k"},
    "lossless": {"quant": "lossless"},
    "sparse": {"quant": "sparse"},
    "hqq": {"quant": "hqq"},
    "mixed": {"recipe": "mixed.toml"},
}

QUANTS = {"gguf": "q4_1", "mlx": "int4-g32", "squizd": "int4"}
"""What the sources hold; others hold plain numbers, and the safetensors file what the GGUF file does."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model of every container."""
    root = tmp_path_factory.mktemp("models")
    write_toy_llama(root / "hf", layers=1)
    (root / "mixed.toml").write_text(MIXED)
    for name in (name for name in CONTAINERS.lines if name not in ("hf", "safetensors")):
        flyweight.convert(root / "hf", root / name, to=name, quant=QUANTS.get(name))
    flyweight.convert(root / "gguf", root / "safetensors", to="safetensors")
    return root


def bytes_at(path: Path) -> dict[str, bytes]:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return {str(file.relative_to(path.parent)): file.read_bytes() for file in files if file.is_file()}


def check(source: Path, target: str, folder: Path, **wish: Any) -> Plan:
    """The law, of one conversion."""
    folder.mkdir()
    plan = flyweight.plan(source, folder / "once" / "made", to=target, **wish)
    plan.save(folder / "plan.json")
    read = Plan.load(folder / "plan.json")
    assert read == plan
    assert read.to_json(folder) == (folder / "plan.json").read_bytes() == plan.to_json(folder)
    (folder / "once").mkdir()
    (folder / "later").mkdir()
    at_once = flyweight.convert(source, folder / "once" / "made", to=target, **wish)
    later = flyweight.execute(read, folder / "later" / "made")
    assert bytes_at(folder / "once" / "made") == bytes_at(folder / "later" / "made")
    assert (at_once.tensors, at_once.notes, at_once.recipe) == (later.tensors, later.notes, later.recipe)
    return plan


@pytest.mark.parametrize("target", CONTAINERS.lines)
@pytest.mark.parametrize("source", CONTAINERS.lines)
def test_executing_a_plan_is_converting(source: str, target: str, models: Path, tmp_path: Path) -> None:
    planned = 0
    for name, wish in WISHES.items():
        given = wish | ({"recipe": models / "mixed.toml"} if "recipe" in wish else {})
        try:
            flyweight.plan(models / source, tmp_path / "made", to=target, **given)
        except UnsupportedError:
            continue
        check(models / source, target, tmp_path / name, **given)
        planned += 1
    assert planned >= (1 if source == "safetensors" else 3)


def test_options_of_one_format(models: Path, tmp_path: Path) -> None:
    head = tmp_path / "head.safetensors"
    head.write_bytes(safetensors_bytes(draft_head()))
    package = write_package(tmp_path / "m.mlpackage")
    extras = Extras(sparse=0.5, eagle=head, coreml=package)
    plan = check(models / "hf", "squizd", tmp_path / "work", quant="int4", extras=extras)
    assert plan.inputs.keys() == {"source", "eagle", "coreml"}
    assert any(step.draft for step in plan.steps)
    assert any(step.sparsity == 0.5 for step in plan.steps)


def test_f64_that_fits_is_narrowed_by_the_plan_too(tmp_path: Path) -> None:
    values = np.arange(64.0).reshape(2, 32)
    tensors = {"exact": values, "inexact": values + 1 / 3, "exact.vector": values[0], "vector": values[0] / 3}
    (tmp_path / "m.safetensors").write_bytes(safetensors_bytes(tensors))
    for target in ("gguf", "hf", "npy_dir", "safetensors"):
        try:
            flyweight.plan(tmp_path / "m.safetensors", tmp_path / "made", to=target)
        except UnsupportedError:
            continue
        check(tmp_path / "m.safetensors", target, tmp_path / target)
