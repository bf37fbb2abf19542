"""Gemma 3, text only: like Gemma 2 with q/k norms; five layers of six have a window and a RoPE base of their own."""

from flyweight.models.dialects.gguf_form import COMMON_KEYS, GgufForm
from flyweight.models.families import gemma2
from flyweight.models.family import COMMON_FIELDS, QK_NORMS, Field, Window

_DEFAULTS = {"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072, "rope_theta": 1e6}

FAMILY = gemma2.FAMILY._replace(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    fields=(
        *(field._replace(default=_DEFAULTS.get(field.name, field.default)) for field in COMMON_FIELDS),
        Field("rope_local_base_freq", float, default=10000.0),
        Field("sliding_window", default=4096),
        Field("final_logit_softcapping", float, nullable=True),
    ),
    tensors=gemma2.FAMILY.tensors + QK_NORMS,
    constants={"attention_bias": False, "attn_logit_softcapping": None, "use_bidirectional_attention": False},
    window=Window(period=6),
    forms=(
        GgufForm(
            "gemma3",
            keys=(*COMMON_KEYS, "rope_local_base_freq", "sliding_window", "final_logit_softcapping"),
            absent={"rope_local_base_freq": 10000.0, "final_logit_softcapping": None},
            tensors=gemma2.GGUF_TENSORS,
            scalings=("linear",),
            any_period=True,
            wide_layers=62,
        ),
    ),
)
