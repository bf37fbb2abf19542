"""The mixes of types that GGUF files are known by: which tensor gets which type, as llama-quantize chooses.

A name stands for the type of most matrices. Those a model feels most get more bits: attention's values and the projections back
into the residual stream, in some layers or all. The output head gets `q6_k`, as does the embedding where it is the head too.
Rows that are no whole blocks of 256 get a type with blocks of 32 (`NARROWER`); if they are no whole blocks of those, none.
Vectors, norms and routers stay as they are.

Rules name tensors as GGUF and as Hugging Face do, so that a mix means the same in every format that stores these types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flyweight.containers.named_quantizations import KEPT, Preset, PresetRule
from flyweight.foundation.ggml_types import GGML_TYPES
from flyweight.foundation.tensor import CodecSpec

NARROWER = {"q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0", "iq4_xs": "iq4_nl"}
"""What takes the place of a type in rows that are no whole blocks of it."""

_ALL = ("*",)
_PLAIN = ("*norm.weight", "*.ffn_gate_inp.weight", "*.gate.weight", "*.router.weight", "*wpe.weight", "*position_embd.weight")
_HEAD = ("output.weight", "*lm_head.weight")
_EMBEDDING = ("token_embd.weight", "*embed_tokens.weight")
_VALUES = ("*.attn_v.weight", "*.attn_qkv.weight", "*.v_proj.weight", "*.qkv_proj.weight")
_DOWN = ("*.ffn_down*", "*.down_proj*")
_ATTENTION_OUTPUT = ("*.attn_output.weight", "*.o_proj.weight")
_EXPERTS = ("*_exps.weight", "*.experts.*")

_MORE = "first 1/8, last 1/8, every 3rd"
_SHARED = ("gqa >= 4",)
"""Four heads or more share a key and a value, which are that much smaller then."""
_70B = ("layers = 80", "gqa >= 2")


def _rule(patterns: Sequence[str], name: str, layers: str = "", *when: str) -> PresetRule:
    narrower = (CodecSpec(NARROWER[name]),) if name in NARROWER else ()
    return PresetRule(tuple(patterns), CodecSpec(name), otherwise=narrower, layers=layers, when=when)


def _mix(main: str, *own: PresetRule, head: str = "q6_k") -> tuple[PresetRule, ...]:
    """Most matrices in one type, after what is said of others."""
    first = () if main == "q8_0" else (_rule(_HEAD, head), _rule(_EMBEDDING, head, "", "tied"))
    return (PresetRule(_PLAIN, KEPT), *first, *own, _rule(_ALL, main))


def _in_70b(name: str) -> PresetRule:
    return _rule(_VALUES, name, "", *_70B)


MIXES: Mapping[str, tuple[PresetRule, ...]] = {
    "q2_k": _mix(
        "q2_k",
        _in_70b("q5_k"),
        _rule(_VALUES, "q4_k", "", *_SHARED),
        _rule((*_VALUES, *_DOWN, *_ATTENTION_OUTPUT), "q3_k"),
    ),
    "q3_k_s": _mix("q3_k", _in_70b("q5_k")),
    "q3_k_m": _mix(
        "q3_k",
        _rule(_VALUES, "q5_k", "first 2"),
        _in_70b("q5_k"),
        _rule(_DOWN, "q5_k", "first 1/16"),
        _rule((*_VALUES, *_DOWN, *_ATTENTION_OUTPUT), "q4_k"),
    ),
    "q3_k_l": _mix("q3_k", _rule((*_VALUES, *_DOWN, *_ATTENTION_OUTPUT), "q5_k")),
    "q4_0": _mix("q4_0", _rule(_DOWN, "q4_1", "first 1/8", "statistics")),
    "q4_1": _mix("q4_1"),
    "q4_k_s": _mix("q4_k", _rule(_VALUES, "q5_k", "first 4"), _in_70b("q5_k"), _rule(_DOWN, "q5_k", "first 1/8")),
    "q4_k_m": _mix("q4_k", _rule((*_VALUES, *_DOWN), "q6_k", _MORE), _in_70b("q5_k")),
    "q5_0": _mix("q5_0", _rule(_DOWN, "q5_1", "first 1/8", "statistics")),
    "q5_1": _mix("q5_1"),
    "q5_k_s": _mix("q5_k"),
    "q5_k_m": _mix("q5_k", _rule((*_VALUES, *_DOWN), "q6_k", _MORE)),
    "q6_k": _mix("q6_k"),
    "q8_0": _mix("q8_0"),
    "iq4_nl": _mix("iq4_nl", _rule(_VALUES, "q5_k", "", *_SHARED), _rule(_DOWN, "q5_k", "first 1/8", "no statistics")),
    "iq4_xs": _mix("iq4_xs", _rule(_VALUES, "q5_k", "", *_SHARED), _rule(_DOWN, "q5_k", "first 1/8", "no statistics")),
    "mxfp4": _mix("mxfp4", head="q8_0"),
    "mxfp4_moe": _mix("q8_0", _rule(_EXPERTS, "mxfp4")),
}
ALIASES = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m"}
"""Names of types that stand for a mix, as llama-quantize has it."""
BITS = {2: "q2_k", 3: "q3_k_m", 4: "q4_k_m", 5: "q5_k_m", 6: "q6_k", 8: "q8_0"}
"""The mix that a bare number of bits means in a GGUF file."""
SIZES = tuple(
    CodecSpec(name)
    for name in ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs", "iq4_nl", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0")
)
"""Types that a model of a certain size is made of."""
FILE_TYPES: Mapping[str, int] = {
    **{name: own for name in MIXES if name in GGML_TYPES and (own := GGML_TYPES[name].file_type) is not None},
    "q3_k_s": 11, "q3_k_m": 12, "q3_k_l": 13, "q4_k_s": 14, "q4_k_m": 15, "q5_k_s": 16, "q5_k_m": 17, "mxfp4_moe": 38,
}  # fmt: skip
"""`general.file_type` (`llama_ftype`) of a file of each mix."""


def mix(quant: str) -> Preset | None:
    """A mix by name: upper or lower case, with - or _."""
    name = quant.lower().replace("-", "_")
    own = ALIASES.get(name, name)
    return Preset(MIXES[own], protect=False, name=own) if own in MIXES else None
