"""A recipe is printed as TOML that is read as the same recipe, and makes the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

import flyweight
from flyweight.containers import CONTAINERS, container_named
from flyweight.containers.abilities import HasPresets
from flyweight.pipeline.plans.quantization_names import names, preset, recipe_for
from flyweight.pipeline.plans.recipe_file import load_recipe, recipe_text
from support.toys import write_toy_llama


def every_name() -> list[tuple[str, str]]:
    own = [
        (c.name, name)
        for c in CONTAINERS
        if isinstance(c, HasPresets)
        for name in c.quants
        if "…" not in name and "(" not in name
    ]
    return [("", name) for name in names()] + own


@pytest.mark.parametrize(("target", "name"), every_name())
def test_what_is_printed_is_read_as_the_same(target: str, name: str, tmp_path: Path) -> None:
    recipe = recipe_for(container_named(target), name) if target else preset(name)
    path = tmp_path / "printed.toml"
    path.write_text(recipe_text(recipe, "a comment\nof two lines"), "utf-8")
    assert load_recipe(path).as_json() == recipe.as_json()


@pytest.mark.parametrize(
    ("to", "quant"),
    [("gguf", "q4_k_m"), ("gguf", "iq4_xs"), ("gguf", "4bit"), ("mlx", "4bit-g32"), ("mlx", "mixed_4_6"), ("hf", "q3_k_l"),
     ("safetensors", "int4-g32"), ("squizd", "int2"), ("npy_dir", "int4"), ("uqff", "q4_0"), ("gguf", "bf16"), ("hf", "keep"),
     ("hf", "woven2")],
)  # fmt: skip
def test_the_printed_recipe_makes_the_same_bytes(to: str, quant: str, tmp_path: Path) -> None:
    source = write_toy_llama(tmp_path / "toy")
    made = []
    recipe = tmp_path / "printed.toml"
    recipe.write_text(recipe_text(recipe_for(container_named(to), quant)), "utf-8")
    for folder, options in (("a", {"quant": quant}), ("b", {"recipe": recipe})):
        out = tmp_path / folder / "model"
        out.parent.mkdir()
        flyweight.convert(source, out, to=to, allow_ungated=True, **options)
        files = [out] if out.is_file() else sorted(path for path in out.rglob("*") if path.is_file())
        made.append({path.name: path.read_bytes() for path in files})
    assert made[0] == made[1]
