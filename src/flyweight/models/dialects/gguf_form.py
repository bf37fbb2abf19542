"""How GGUF writes a model family: keys for its settings, names for its tensors, and what it cannot express.

    <architecture>.<key>    a setting, u32 or f32; `KEYS` has the key of each
    blk.{i}.attn_q.weight   a tensor; `TENSORS` has the names, without the `.weight` or `.bias` that they share

Two kinds of values differ from the canonical ones: `interleaved` rows (see `transform`), and norms, of which GGUF stores
what is multiplied by: 1 + w where the family adds one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from flyweight.models.family import COMMON_FIELDS

KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "rope_local_base_freq": "rope.freq_base_swa",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
TENSORS = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
}
COMMON_KEYS = tuple(field.name for field in COMMON_FIELDS)
COMMON_ABSENT = {"num_key_value_heads": "num_attention_heads", "rope_theta": 10000.0}


class GgufForm(NamedTuple):
    architecture: str
    """The value of `general.architecture`."""
    keys: tuple[str, ...] = COMMON_KEYS
    """The settings that have a key, in the order they are written."""
    absent: Mapping[str, object] = COMMON_ABSENT
    """What programs take where a key is absent, or where there is none for the setting; a text names another setting.
    A key that is not here must be there."""
    zero: tuple[str, ...] = ()
    """Settings whose null is written as 0, because absence would mean something else."""
    tensors: Mapping[str, str] = {}
    """Tensors that this architecture calls otherwise than `TENSORS`."""
    interleaved: bool = False
    """Whether the rows of q and k are interleaved."""
    scalings: tuple[str, ...] = ("linear", "yarn")
    """The kinds of RoPE scaling that have a form (see `gguf_scaling`)."""
    any_period: bool = False
    """Whether there is a key for which layers have no window; otherwise it is the family's `period`."""
    wide_layers: int = 0
    """Programs divide Gemma's scores by √head_dim, but by √(hidden_size / heads) in its 27B, known by this number of layers."""

    def stored_name(self, name: str) -> str:
        """What GGUF calls a tensor."""
        module, _, part = name.removeprefix("model.").rpartition(".")
        block, layer = "", module.split(".", 2)
        if layer[0] == "layers":
            block, module = f"blk.{layer[1]}.", layer[2]
        return f"{block}{self.tensors.get(module) or TENSORS[module]}.{part}"
