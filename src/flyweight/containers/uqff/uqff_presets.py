"""The quantizations of mistral.rs by the names it has for them, and which one a model is of.

A name stands for a type of layer. Some tensors get another:

    sensitive ones (embedding and output head)   PROMOTED, in UQFF 1.2
    rows that are no whole blocks of a K type    NARROWER, whose blocks are of 32
    rows that fit neither                        none: the tensor stays plain

Codes are those that mistral.rs finds, byte for byte, but for the K types, whose scales are searched for as ggml does, and for
`mxfp4`, whose scales of mistral.rs clip what is largest and destroy a small model. Two more names are of the same types:

    mxfp4-isq    the codes of mistral.rs
    fp8-448      the whole range of the type, of which mistral.rs leaves a part unused
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flyweight.containers.named_quantizations import Preset, PresetRule
from flyweight.containers.uqff.layer_fields import AFQ, AFQ_BITS, BLOCKS, HQQ, HQQ_BITS, afq, type_of
from flyweight.containers.uqff.layer_order import EMBEDDING, HEAD
from flyweight.foundation.ggml_types import GGML_TYPES
from flyweight.foundation.manifest import Entry
from flyweight.foundation.tensor import CodecSpec

_EXACT = "mistralrs"
"""The quantizer that gives the bytes of mistral.rs."""
_VARIANTS = {"mxfp4": ("mxfp4", ""), "mxfp4-isq": ("mxfp4", _EXACT), "fp8-448": ("fp8", "")}
"""Names whose quantizer is not that of their type."""
SENSITIVE = (HEAD, EMBEDDING)
_SENSITIVE = ("lm_head.weight", "*embed_tokens.weight", "output.weight", "token_embd.weight")
_OWN_SCALES = "stored"
"""Scales have the element type that the tensor had (see `pipeline.plans.recipe`)."""

_BLOCKS = {name.replace("_k", "k"): CodecSpec(name) for name in BLOCKS.values()}
CODECS: Mapping[str, CodecSpec] = {
    **_BLOCKS,
    **{f"hqq{bits}": CodecSpec("hqq", {"bits": bits, "group": 64}) for bits in HQQ_BITS},
    **{f"afq{bits}": afq(bits).with_params(scale=_OWN_SCALES) for bits in AFQ_BITS},
    "fp8": CodecSpec("fp8_scalar"),
    "f8q8": CodecSpec("f8q8"),
    "mxfp4": CodecSpec("mxfp4_split"),
}
_LABELS = {codec.name: name for name, codec in CODECS.items()} | {"raw": "unquant"}
_NUMBERS = {"2": "q2k", "3": "q3k", "4": "q4k", "5": "q5k", "6": "q6k", "8": "q8_0"}
"""What mistral.rs takes a bare number for, on a CPU."""
PROMOTED = {
    **dict.fromkeys(("afq2", "afq3", "afq4"), "afq6"),
    **dict.fromkeys(("afq6", "afq8"), "afq8"),
    **dict.fromkeys(("q2k", "q3k", "q4k", "q4_0", "q4_1"), "q6k"),
    **dict.fromkeys(("q5_0", "q5_1", "q5k", "q6k", "q8_0", "q8_1", "q8k"), "q8_0"),
}
NARROWER = {"q2k": "q4_0", "q3k": "q4_0", "q4k": "q4_1", "q5k": "q5_0", "q6k": "q5_1", "q8k": "q8_1"}


def preset(quant: str, *, promotes: bool) -> Preset | None:
    """What a name means; `promotes`: sensitive tensors get a better type."""
    name = quant.lower().replace("_k", "k")
    name = _NUMBERS.get(name, name)
    name, quantizer = _VARIANTS.get(name, (name, "" if name in _BLOCKS or name.startswith("hqq") else _EXACT))
    if name not in CODECS:
        return None
    sensitive = (_rule(_SENSITIVE, PROMOTED.get(name, name), quantizer),) if promotes else ()
    return Preset((*sensitive, _rule(("*",), name, quantizer)), protect=False)


def _rule(patterns: tuple[str, ...], name: str, quantizer: str) -> PresetRule:
    narrower = (CODECS[NARROWER[name]],) if name in NARROWER else ()
    return PresetRule(patterns, CODECS[name], otherwise=narrower, quantizer=quantizer)


def label(entry: Entry) -> str:
    """What mistral.rs calls the type of a tensor."""
    prefix = {HQQ: "hqq", AFQ: "afq"}.get(type_of(entry.codec) or 0)
    return f"{prefix}{entry.codec.integer('bits')}" if prefix else _LABELS[entry.codec.name]


def target(quant: str, module: str, *, promotes: bool) -> str:
    """The type that a layer of a model in `quant` is to have."""
    return PROMOTED.get(quant, quant) if promotes and module in SENSITIVE else quant


def fallback(quant: str, columns: int) -> str | None:
    """What takes the place of a type in rows of this length; None where it fits or nothing does."""
    narrower = NARROWER.get(quant)
    fits = narrower is None or columns % GGML_TYPES[CODECS[quant].name].elements == 0
    return narrower if not fits and columns % 32 == 0 else None


def name_of(layers: Mapping[str, Entry], *, promotes: bool = True) -> str:
    """The quantization that explains the most layers, as promoted and fallen back as they may be."""

    def explained(quant: str) -> Iterator[str]:
        for module, entry in layers.items():
            wanted = target(quant, module, promotes=promotes)
            if label(entry) in (wanted, fallback(wanted, entry.spec.columns)):
                yield module

    if not layers:
        return "dense"
    return max(CODECS, key=lambda quant: sum(1 for _ in explained(quant)))
