"""The recipes that have names, with what they cost: bits per weight of a model in the shapes of Llama 3 8B.

The output head and the embedding are a sixteenth each of such a model; in a small one they are more, and so are its bits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from flyweight.codecs import codec_for
from flyweight.containers import CONTAINERS
from flyweight.containers.abilities import HasPresets, adapted
from flyweight.containers.container import Container
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.pipeline.plans.plan_notes import Asked
from flyweight.pipeline.plans.quantization_names import names, recipe_for
from flyweight.pipeline.plans.recipe import Recipe, of_tensor
from flyweight.pipeline.plans.rule_conditions import ModelTraits

_HIDDEN, _KEYS, _FFN, _VOCABULARY, _LAYERS = 4096, 1024, 14336, 128256, 32
_LAYER = {
    "self_attn.q_proj": (_HIDDEN, _HIDDEN),
    "self_attn.k_proj": (_KEYS, _HIDDEN),
    "self_attn.v_proj": (_KEYS, _HIDDEN),
    "self_attn.o_proj": (_HIDDEN, _HIDDEN),
    "mlp.gate_proj": (_FFN, _HIDDEN),
    "mlp.up_proj": (_FFN, _HIDDEN),
    "mlp.down_proj": (_HIDDEN, _FFN),
}
_MIXED = re.compile(r"mixed_(\d)_(\d)")
_WORDS = {
    "keep": "as stored, as far as the format can hold it",
    "dense": "plain numbers of the type that loses nothing measurable",
    "q2_k": "smallest; attention's values, outputs and down projections in q3_k",
    "q3_k_s": "every layer in q3_k",
    "q3_k_m": "q3_k; attention's values, outputs and down projections in q4_k, the first in q5_k",
    "q3_k_l": "q3_k; attention's values, outputs and down projections in q5_k",
    "q4_0": "blocks of 32 with a scale; the fastest on some machines",
    "q4_1": "blocks of 32 with a scale and a minimum",
    "q4_k_s": "q4_k; a few of the first layers in q5_k",
    "q4_k_m": "q4_k; attention's values and down projections of half the layers in q6_k",
    "q5_0": "blocks of 32 with a scale",
    "q5_1": "blocks of 32 with a scale and a minimum",
    "q5_k_s": "every layer in q5_k",
    "q5_k_m": "q5_k; attention's values and down projections of half the layers in q6_k",
    "q6_k": "everything in q6_k",
    "q8_0": "nearly without loss",
    "iq4_nl": "sixteen levels as weights are distributed, blocks of 32",
    "iq4_xs": "the same levels, scales of scales; smaller than q4_k_s",
    "mxfp4": "e2m1 floats with a shared exponent; embedding and head in q8_0",
    "mxfp4_moe": "experts in mxfp4, all else in q8_0",
}


class Listed(NamedTuple):
    name: str
    bits: float | None
    """Per weight of the model above; None where it depends on what is stored."""
    formats: tuple[str, ...]
    words: str


def listed(container: Container | None = None) -> Iterator[Listed]:
    """Every name of `--quant` that stands for a whole recipe; those of one format, if one is given."""
    targets = (container,) if container is not None else tuple(CONTAINERS)
    own = [name for target in targets if isinstance(target, HasPresets) for name in target.quants if "…" not in name]
    for name in dict.fromkeys((*names(), *own)):
        found = {target.name: recipe for target in targets if (recipe := _recipe(target, name)) is not None}
        if found:
            special = {target.name for target in targets if isinstance(target, HasPresets)}
            usual = next((target for target in found if target not in special), next(iter(found)))  # as it is meant everywhere
            recipe = found[usual]
            yield Listed(name, bits_per_weight(recipe, CONTAINERS[usual]), tuple(found), words_of(name, recipe))


def _recipe(container: Container, name: str) -> Recipe | None:
    try:
        return recipe_for(container, name)
    except UnsupportedError:
        return None


def words_of(name: str, recipe: Recipe) -> str:
    """What a recipe is, in a line."""
    if name in _WORDS:
        return _WORDS[name]
    if recipe.notes:
        return recipe.notes[0]
    codecs = [codec for rule in recipe.rules if (codec := rule.choice.codec) is not None]
    if (found := _MIXED.fullmatch(name)) is not None:
        low, high = found.groups()
        return f"{low} bits; {high} for the head, and attention's values and down projections of half the layers"
    kept = "; embedding and head stay" if recipe.protect else ""
    return f"{', '.join(dict.fromkeys(map(_brief, reversed(codecs))))}{kept}"


def _brief(codec: CodecSpec) -> str:
    if codec == RAW:
        return "plain numbers"
    if {"bits", "group", "axis"} <= codec.params.keys():
        return f"{codec.integer('bits')} bits, groups of {codec.integer('group') or 'a row'}"
    return codec.name


def bits_per_weight(recipe: Recipe, container: Container) -> float | None:
    """Of the model above in a format; None where a codec's size depends on the values, or nothing is chosen."""
    model = _model()
    recipe = replace(recipe, model=ModelTraits.of(model))
    total, quantizes = 0, Asked.by(recipe.as_json()).codes
    for name, spec in model.items():
        chosen = recipe.choose(spec, name)
        if chosen.codec is None or chosen.codec == RAW:
            if not quantizes and chosen.dtype is None:
                return None
            total += spec.size * (chosen.dtype.bits if chosen.dtype else 16)
            continue
        nbytes = _nbytes(adapted(container, chosen.codec, name), spec)
        if nbytes is None:
            return None
        total += 8 * nbytes
    return total / sum(spec.size for spec in model.values())


def _nbytes(codec: CodecSpec, spec: TensorSpec) -> int | None:
    made = codec_for(of_tensor(codec, spec))
    if made.needs_fit:
        return None
    return sum(part.nbytes for part in made.layout(TensorSpec(spec.shape, made.decoded_dtype(spec.dtype))).values())


@cache
def _model() -> dict[str, TensorSpec]:
    shapes = {"model.embed_tokens.weight": (_VOCABULARY, _HIDDEN), "lm_head.weight": (_VOCABULARY, _HIDDEN)}
    shapes |= {f"model.layers.{i}.{name}.weight": shape for i in range(_LAYERS) for name, shape in _LAYER.items()}
    return {name: TensorSpec(shape, DType.F16) for name, shape in shapes.items()}
