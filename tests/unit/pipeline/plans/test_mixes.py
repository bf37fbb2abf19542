"""Mixes of GGUF choose the type that llama-quantize chose, for every matrix of models in the shapes of every family."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flyweight.containers import container_named, gguf_mixes
from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import TensorSpec
from flyweight.pipeline.plans.quantization_names import preset, recipe_for
from flyweight.pipeline.plans.recipe import Recipe
from flyweight.pipeline.plans.rule_conditions import ModelTraits
from support.mix_models import MIX_MODELS, shapes_of

RECORDED = json.loads((Path(__file__).parents[3] / "golden/gguf_mixes/types.json").read_text("utf-8"))
HF_NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "token_embd": "model.embed_tokens", "output": "lm_head", "output_norm": "model.norm",
}  # fmt: skip


def as_hf(name: str) -> str:
    *layer, kind, _ = name.split(".")
    return (f"model.layers.{layer[1]}." if layer else "") + HF_NAMES[kind] + ".weight"


def chosen(recipe: Recipe, tensors: dict[str, TensorSpec], *, statistics: bool) -> dict[str, str]:
    recipe = replace(recipe, model=ModelTraits.of(tensors, statistics=statistics))
    choices = {name: recipe.choose(spec, name).codec for name, spec in tensors.items()}
    return {name: codec.name for name, codec in choices.items() if codec is not None}


def expected(model: str, key: str) -> dict[str, str]:
    found = {}
    for kind, runs in RECORDED[model][key].items():
        types = [name for run in runs.split() for name in [run.partition("*")[0]] * int(run.partition("*")[2])]
        found |= {kind if kind in ("token_embd.weight", "output.weight") else f"blk.{i}.{kind}": t for i, t in enumerate(types)}
    return found


@pytest.mark.parametrize("naming", ["gguf", "hf"])
@pytest.mark.parametrize("model", MIX_MODELS)
def test_every_type_is_the_one_that_llama_quantize_chose(model: str, naming: str) -> None:
    rename = as_hf if naming == "hf" else str
    tensors = {rename(name): TensorSpec(shape, DType.F32) for name, shape in shapes_of(MIX_MODELS[model]).items()}
    for key in RECORDED[model]:
        mix, _, with_statistics = key.partition(" with ")
        wanted = {rename(name): kind for name, kind in expected(model, key).items()}
        assert chosen(preset(mix), tensors, statistics=bool(with_statistics)) == wanted, key
        if not with_statistics:  # and where nothing else was recorded, statistics change nothing
            same = wanted if f"{key} with statistics" not in RECORDED[model] else None
            assert same is None or chosen(preset(mix), tensors, statistics=True) == same, key


def test_the_record_has_models_in_which_every_rule_counts() -> None:
    everything = {name for models in RECORDED.values() for kinds in models.values() for name in kinds.values()}
    assert len(everything) > 40  # many different runs of layers, not one type throughout
    assert {mix.partition(" with ")[0] for models in RECORDED.values() for mix in models} == set(gguf_mixes.MIXES) - {"mxfp4"}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("Q4_K_M", "q4_k_m"),
        ("q4-k-m", "q4_k_m"),
        ("Q4_K", "q4_k_m"),
        ("q3_k", "q3_k_m"),
        ("q5_K", "q5_k_m"),
        ("IQ4-XS", "iq4_xs"),
    ],
)
def test_case_separators_and_the_aliases_of_llama_quantize(typed: str, meant: str) -> None:
    assert preset(typed) == preset(meant)
    assert preset(typed).name == meant


def test_bits_mean_a_mix_in_gguf_and_groups_elsewhere() -> None:
    gguf, hf, mlx = (container_named(name) for name in ("gguf", "hf", "mlx"))
    assert recipe_for(gguf, "4bit").name == recipe_for(gguf, "int4").name == "q4_k_m"
    assert recipe_for(gguf, "4bit").notes == ("4bit is q4_k_m in a GGUF file",)
    assert recipe_for(gguf, "Q4_K").notes == recipe_for(gguf, "q4_k_m").notes == ()
    assert recipe_for(hf, "4bit").rules == recipe_for(hf, "int4").rules
    assert recipe_for(hf, "4bit").protect
    assert not recipe_for(mlx, "4bit").protect  # mlx-lm quantizes the embedding too


def bits(recipe: Recipe, name: str, layers: int = 24) -> int:
    recipe = replace(recipe, model=ModelTraits(layers))
    codec = recipe.choose(TensorSpec((512, 512), DType.F32), name).codec
    assert codec is not None
    return codec.integer("bits")


def test_mlx_mixes_give_more_bits_to_the_layers_that_mlx_lm_gives_them() -> None:
    recipe = recipe_for(container_named("mlx"), "mixed_3_6")
    for kind in ("self_attn.v_proj", "mlp.down_proj", "self_attn.qkv_proj"):
        found = [bits(recipe, f"model.layers.{i}.{kind}.weight") for i in range(24)]
        more = [i < 24 // 8 or i >= 7 * 24 // 8 or (i - 24 // 8) % 3 == 2 for i in range(24)]
        assert found == [6 if layer else 3 for layer in more], kind
    assert bits(recipe, "lm_head.weight") == 6
    assert {bits(recipe, f"model.layers.{i}.mlp.up_proj.weight") for i in range(24)} == {3}
    assert bits(recipe, "model.embed_tokens.weight") == 3
