"""The order of layers in 0.x, which has no names: mistral.rs 0.6.0 writes a small model of every architecture it knows.

Every tensor read from such a file has the values it has in the source, under the name it has there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import flyweight
from support.mistral_rs import CURRENT, OLD, MistralRs
from support.toys import safetensors_bytes
from support.uqff_sources import CONFIGS, PROMPT, TOKENS, write_source

HIDDEN, INNER, HEADS, KEYS, HEAD, LAYERS, EXPERTS = 64, 96, 4, 2, 16, 2, 4
SMALL, ROWS = 32, len(TOKENS)
Shapes = dict[str, tuple[int, ...]]


def linear(name: str, rows: int, columns: int, bias: bool = False) -> Shapes:
    return {f"{name}.weight": (rows, columns)} | ({f"{name}.bias": (rows,)} if bias else {})


def norm(name: str, bias: bool = False, width: int = HIDDEN) -> Shapes:
    return {f"{name}.weight": (width,)} | ({f"{name}.bias": (width,)} if bias else {})


def attention(at: str, *, bias: bool = False, output_bias: bool = False, output: str = "o_proj", keys: int = KEYS) -> Shapes:
    widths = {"q_proj": HEADS * HEAD, "k_proj": keys * HEAD, "v_proj": keys * HEAD}
    queries: Shapes = {}
    for name, rows in widths.items():
        queries |= linear(f"{at}self_attn.{name}", rows, HIDDEN, bias)
    return queries | linear(f"{at}self_attn.{output}", HIDDEN, HEADS * HEAD, output_bias)


def gated(at: str, inner: int = INNER, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> Shapes:
    gate, up, down = names
    return linear(at + gate, inner, HIDDEN) | linear(at + up, inner, HIDDEN) | linear(at + down, HIDDEN, inner)


def experts(at: str, inner: int, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> Shapes:
    made: Shapes = {}
    for index in range(EXPERTS):
        made |= gated(f"{at}experts.{index}.", inner, names)
    return made


def llama(at: str, _: int) -> Shapes:
    return attention(at) | gated(f"{at}mlp.")


def qwen2(at: str, _: int) -> Shapes:
    return attention(at, bias=True) | gated(f"{at}mlp.")


def normed_heads(at: str) -> Shapes:
    return norm(f"{at}self_attn.q_norm", width=HEAD) | norm(f"{at}self_attn.k_norm", width=HEAD)


def qwen3(at: str, layer: int) -> Shapes:
    return llama(at, layer) | normed_heads(at)


def qwen3_moe(at: str, _: int) -> Shapes:
    return attention(at) | normed_heads(at) | linear(f"{at}mlp.gate", EXPERTS, HIDDEN) | experts(f"{at}mlp.", SMALL)


def phi3(at: str, _: int) -> Shapes:
    joined = linear(f"{at}self_attn.qkv_proj", (HEADS + 2 * KEYS) * HEAD, HIDDEN) | linear(
        f"{at}self_attn.o_proj", HIDDEN, HEADS * HEAD
    )
    return joined | linear(f"{at}mlp.gate_up_proj", 2 * INNER, HIDDEN) | linear(f"{at}mlp.down_proj", HIDDEN, INNER)


def phi(at: str, _: int) -> Shapes:
    made = attention(at, bias=True, output_bias=True, output="dense", keys=HEADS)
    return made | linear(f"{at}mlp.fc1", INNER, HIDDEN, True) | linear(f"{at}mlp.fc2", HIDDEN, INNER, True)


def starcoder2(at: str, _: int) -> Shapes:
    made = attention(at, bias=True, output_bias=True)
    return made | linear(f"{at}mlp.c_fc", INNER, HIDDEN, True) | linear(f"{at}mlp.c_proj", HIDDEN, INNER, True)


def mixtral(at: str, _: int) -> Shapes:
    router = linear(f"{at}block_sparse_moe.gate", EXPERTS, HIDDEN)
    return attention(at) | router | experts(f"{at}block_sparse_moe.", INNER, ("w1", "w3", "w2"))


def phimoe(at: str, _: int) -> Shapes:
    router = linear(f"{at}block_sparse_moe.gate", EXPERTS, HIDDEN)
    return attention(at, bias=True, output_bias=True) | router | experts(f"{at}block_sparse_moe.", INNER, ("w1", "w3", "w2"))


def deepseek(at: str, layer: int, *, factored: bool) -> Shapes:
    """Latent keys and values; one dense layer, then experts and one that is shared."""
    made = norm(f"{at}self_attn.kv_a_layernorm", width=SMALL)
    made |= linear(f"{at}self_attn.kv_a_proj_with_mqa", SMALL + HEAD, HIDDEN)
    made |= linear(f"{at}self_attn.kv_b_proj", HEADS * 3 * HEAD, SMALL) | linear(
        f"{at}self_attn.o_proj", HIDDEN, HEADS * 2 * HEAD
    )
    if factored:
        made |= norm(f"{at}self_attn.q_a_layernorm", width=SMALL)
        made |= linear(f"{at}self_attn.q_a_proj", SMALL, HIDDEN) | linear(f"{at}self_attn.q_b_proj", HEADS * 2 * HEAD, SMALL)
    else:
        made |= linear(f"{at}self_attn.q_proj", HEADS * 2 * HEAD, HIDDEN)
    if layer == 0:
        return made | gated(f"{at}mlp.")
    made |= linear(f"{at}mlp.gate", EXPERTS, HIDDEN) | gated(f"{at}mlp.shared_experts.", SMALL) | experts(f"{at}mlp.", SMALL)
    return made | ({f"{at}mlp.gate.e_score_correction_bias": (EXPERTS,)} if factored else {})


def deepseek_v2(at: str, layer: int) -> Shapes:
    return deepseek(at, layer, factored=False)


def deepseek_v3(at: str, layer: int) -> Shapes:
    return deepseek(at, layer, factored=True)


TIED = {"tie_word_embeddings": True}
GELU = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}
MIXTURE = {"num_local_experts": EXPERTS, "num_experts_per_tok": 2}
LATENT = {
    "moe_intermediate_size": SMALL, "n_shared_experts": 1, "n_routed_experts": EXPERTS, "num_experts_per_tok": 2,
    "kv_lora_rank": SMALL, "qk_nope_head_dim": HEAD, "qk_rope_head_dim": HEAD, "v_head_dim": 2 * HEAD,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "routed_scaling_factor": 1.0, "norm_topk_prob": False, "topk_group": 1,
    "num_key_value_heads": HEADS,
}  # fmt: skip
V2 = LATENT | {"q_lora_rank": None, "topk_method": "greedy", "scoring_func": "softmax", "n_group": 1}
V3 = LATENT | {"q_lora_rank": SMALL, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "n_group": 2}
SOFTCAPPED = {
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "query_pre_attn_scalar": HEAD,
    "sliding_window": 64,
}
QWEN3_MOE = {
    "num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": SMALL, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
LONG = {"original_max_position_embeddings": 256}
PHI = {
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-5,
    "partial_rotary_factor": 1.0,
    "qk_layernorm": False,
    "num_key_value_heads": HEADS,
}
PHIMOE = MIXTURE | LONG | {"attention_bias": True, "lm_head_bias": True, "sliding_window": 64, "router_jitter_noise": 0.01}
# model_type: architecture, settings, tensors of a layer.
FAMILIES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "llama": ("LlamaForCausalLM", {}, llama),
    "mistral": ("MistralForCausalLM", {}, llama),
    "gemma": ("GemmaForCausalLM", TIED | {"hidden_act": "gelu"}, llama),
    "gemma2": ("Gemma2ForCausalLM", TIED | GELU | SOFTCAPPED, llama),
    "qwen2": ("Qwen2ForCausalLM", {"sliding_window": 64}, qwen2),
    "qwen3": ("Qwen3ForCausalLM", {}, qwen3),
    "qwen3_moe": ("Qwen3MoeForCausalLM", QWEN3_MOE, qwen3_moe),
    "phi": ("PhiForCausalLM", PHI, phi),
    "phi3": ("Phi3ForCausalLM", LONG, phi3),
    "phimoe": ("PhiMoEForCausalLM", PHIMOE, phimoe),
    "starcoder2": (
        "Starcoder2ForCausalLM",
        TIED | GELU | {"norm_epsilon": 1e-5, "use_bias": True, "sliding_window": 64},
        starcoder2,
    ),
    "mixtral": ("MixtralForCausalLM", MIXTURE, mixtral),
    "deepseek_v2": ("DeepseekV2ForCausalLM", V2, deepseek_v2),
    "deepseek_v3": ("DeepseekV3ForCausalLM", V3, deepseek_v3),
}
NORMS_WITH_BIAS = ("phi", "phimoe", "starcoder2")
# What the tool does not put into its files, so that it cannot load them itself.
LOST = {
    "phi": {"lm_head.bias", "model.final_layernorm.weight", "model.final_layernorm.bias"},
    "phimoe": {f"model.layers.{layer}.block_sparse_moe.gate.weight" for layer in range(LAYERS)},
    "deepseek_v3": {"model.layers.1.mlp.gate.e_score_correction_bias"},
}


def shapes(family: str, config: dict[str, Any]) -> Shapes:
    bias = family in NORMS_WITH_BIAS
    norms = ["input_layernorm"] + ["post_attention_layernorm"] * (family != "phi")
    norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] * (family == "gemma2")
    made = linear("model.embed_tokens", ROWS, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name in norms:
            made |= norm(at + name, bias)
        made |= FAMILIES[family][2](at, layer)
    made |= norm("model.final_layernorm" if family == "phi" else "model.norm", bias)
    return made if config["tie_word_embeddings"] else made | linear("lm_head", ROWS, HIDDEN, family in ("phi", "phimoe"))


def drawn(name: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    values = random.standard_normal(shape)
    if len(shape) > 1:
        values /= np.sqrt(shape[-1])
    return (values if len(shape) > 1 or name.endswith("bias") else 1 + 0.1 * values).astype(ml_dtypes.bfloat16)


class Written(NamedTuple):
    """A model, and what 0.6.0 made of it."""

    source: dict[str, np.ndarray]
    is_tied: bool
    uqff: Path


@pytest.fixture(scope="module")
def old() -> Iterator[MistralRs]:
    with MistralRs(OLD) as tool:
        yield tool


@pytest.fixture(scope="module")
def current() -> Iterator[MistralRs]:
    with MistralRs(CURRENT) as tool:
        yield tool


@pytest.fixture(scope="module")
def written(old: MistralRs, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Written]:
    @cache
    def write(family: str) -> Written:
        architecture, settings, _ = FAMILIES[family]
        config = CONFIGS["small"] | {
            "architectures": [architecture], "model_type": family, "hidden_size": HIDDEN, "intermediate_size": INNER,
            "head_dim": HEAD, "num_attention_heads": HEADS, "num_key_value_heads": KEYS, "num_hidden_layers": LAYERS,
            "sliding_window": None, "use_sliding_window": False, "max_window_layers": LAYERS,
        } | settings  # fmt: skip
        random = np.random.default_rng(3)
        source = {name: drawn(name, shape, random) for name, shape in shapes(family, config).items()}
        root = tmp_path_factory.mktemp(family)
        model = write_source(root / "model", CONFIGS["small"])
        (model / "config.json").write_text(json.dumps(config))
        (model / "model.safetensors").write_bytes(safetensors_bytes(source))
        (root / "uqff").mkdir()
        old.ask(model, isq="q8_0", write=root / "uqff/q8_0.uqff")
        return Written(source, config["tie_word_embeddings"], root / "uqff")

    return write


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_have_the_names_of_the_source(family: str, written: Callable[[str], Written]) -> None:
    source, is_tied, uqff = written(family)
    with flyweight.open(uqff) as read:
        assert set(source) - set(read) == LOST.get(family, set())
        head = {"lm_head.weight"} if is_tied else set()
        assert set(read) - set(source) <= head | {"model.norm.weight", "model.norm.bias"}
        for name in set(read) & set(source) | head:
            wanted = source[name if name in source else "model.embed_tokens.weight"].astype(np.float32)
            # Half a step of Q8_0 for the largest of these weights, and the rounding of its scale.
            assert np.abs(read[name] - wanted).max() <= np.abs(wanted).max() * (0.5 / 127 + 2**-11), name


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(LOST)))
def test_migrated_files_say_the_same(
    family: str, written: Callable[[str], Written], old: MistralRs, current: MistralRs, tmp_path: Path
) -> None:
    uqff = written(family).uqff
    flyweight.convert(uqff, tmp_path / "new", to="uqff")
    question = {"uqff": "q8_0-0.uqff", "prompts": [PROMPT], "tokens": 4}
    before, after = (tool.ask(path, **question)["answers"][0] for tool, path in ((old, uqff), (current, tmp_path / "new")))
    # 0.6.0 gives one token more than it is asked for. Both round activations, each in its own way.
    assert before["tokens"][:4] == after["tokens"]
    assert np.abs(np.subtract(before["logprobs"][:4], after["logprobs"])).max() <= 0.1
