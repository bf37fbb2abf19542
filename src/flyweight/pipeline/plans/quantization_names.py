"""The recipe for a name of `--quant`; a format may define names of its own.

    keep                          tensors stay as they are stored
    dense, none, f32, f16, bf16   plain numbers
    q4_k_m, q8_0, iq4_xs …        a mix of block types, as llama-quantize makes it (`containers.gguf_mixes`)
    int2 … int8, 2bit … 8bit      integers with a scale for each group of 64; -g32, -g128 and others name another group
    woven2, woven3, woven4        trellis-coded weights of so many bits
    <codec>                       any codec that encodes

Upper and lower case mean the same, and so do - and _.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from flyweight.codecs import CODECS, codec_for
from flyweight.containers import CONTAINERS, gguf_mixes
from flyweight.containers.abilities import HasPresets, adapted
from flyweight.containers.container import Container
from flyweight.containers.named_quantizations import Preset, PresetRule
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.pipeline.plans.arguments import dtype_named
from flyweight.pipeline.plans.recipe import DENSE, Masks, Recipe, Rule, choice, fits, of_tensor
from flyweight.pipeline.plans.rule_conditions import Condition, Layers
from flyweight.quantizers import QUANTIZERS

_INTEGERS = re.compile(r"(?:int([2-8])|([2-8])_?bit)(?:_g([1-9]\d{0,5}))?")
_WOVEN = re.compile(r"woven([234])")
_PLAIN = (DType.F32, DType.F16, DType.BF16)
_LARGE = TensorSpec((256, 256), DType.F32)
"""A matrix that whatever can be stored at all can be stored for."""


def names() -> Iterator[str]:
    """What `--quant` takes in any format that can store it. Every codec is imported to know whether it encodes."""
    yield from ("keep", "dense", *(dtype.label for dtype in _PLAIN))
    yield from gguf_mixes.MIXES
    yield from (f"int{bits}" for bits in range(2, 9))
    yield from (f"woven{bits}" for bits in range(2, 5))
    others = (name for name in CODECS.lines if name != RAW.name and gguf_mixes.mix(name) is None)
    yield from (name for name in others if CODECS[name].encodes)


def recipe_for(container: Container, quant: str, extras: Any = None) -> Recipe:
    """The recipe of a quantization by name, for what `extras` ask of this format."""
    own = container.preset(quant, extras) if isinstance(container, HasPresets) else None
    if own is not None and own.rules:
        recipe = _recipe(quant, own)
        if own.name and own.name != _plain_name(quant) and gguf_mixes.mix(quant) is None:
            recipe = replace(recipe, notes=(f"{quant} is {own.name} in a {container.title}",))
    else:
        recipe = _preset(quant, container)
    _require_storable(container, recipe, quant)
    return replace(recipe, masks=Masks(*own.masks)) if own and own.masks else recipe


def preset(name: str) -> Recipe:
    """A recipe by name as it is everywhere: `q4_k_m`, `int4`, `int4-g32`, `dense`, `keep`."""
    return _preset(name, None)


def _plain_name(name: str) -> str:
    return name.lower().replace("-", "_")


def _preset(quant: str, container: Container | None) -> Recipe:
    name = _plain_name(quant)
    if name == "keep":
        return Recipe(name)
    if name in ("dense", "none"):
        return Recipe(name, (Rule(("*",), DENSE),))
    if (dtype := dtype_named(quant)) in _PLAIN:
        return Recipe(dtype.label, (Rule(("*",), replace(DENSE, dtype=dtype)),))
    if (mix := gguf_mixes.mix(name)) is not None:
        return _recipe(name, mix)
    if found := _INTEGERS.fullmatch(name):
        params = {"bits": int(found[1] or found[2]), "group": int(found[3] or 64), "scale": "f16"}
        return Recipe(name.replace("_g", "-g"), (Rule(("*",), choice("affine", params)),), protect=True)
    if found := _WOVEN.fullmatch(name):
        return Recipe(name, (Rule(("*",), choice("woven", {"bits": int(found[1])})),), protect=True)
    if name in CODECS and CODECS[name].encodes:
        return Recipe(name, (Rule(("*",), choice(name)),), protect=not codec_for(CodecSpec(name)).exact)
    raise _unknown(quant, container)


def _recipe(quant: str, own: Preset) -> Recipe:
    return Recipe(own.name or quant, tuple(map(_rule, own.rules)), own.protect, matrices_only=not own.protect)


def _rule(rule: PresetRule) -> Rule:
    wanted = choice(rule.codec.name, rule.codec.as_json()["params"], rule.quantizer or None)
    layers = Layers.read(rule.layers) if rule.layers else None
    made = replace(wanted, floor=rule.floor, otherwise=rule.otherwise)
    return Rule(rule.patterns, made, layers, tuple(map(Condition.read, rule.when)))


# Names that are none, and formats that do not have what a name means ------------------------------


def _unknown(quant: str, container: Container | None) -> UnsupportedError:
    own: list[str] = [name for name in container.quants if "…" not in name] if isinstance(container, HasPresets) else []
    message = (
        f"no quantization named '{quant}'{_meant(quant, [*own, *names(), *gguf_mixes.ALIASES, 'int4-g32', '4bit', '8bit'])}"
    )
    target = f" --to {container.name}" if container is not None else ""
    hint = f"`flyweight recipes ls{target}` lists the names"
    name = _plain_name(quant).lstrip(".")
    if named := next((each for each in CONTAINERS if name in (each.name, each.suffix.lstrip("."))), None):
        message, hint = f"'{quant}' is a format and no quantization", f"give it with --to {named.name}"
    elif name in QUANTIZERS:
        hint = f"'{name}' is a quantizer: a rule of a recipe names it; {hint}"
    return UnsupportedError(message, code="E_QUANT", hint=hint)


def _meant(quant: str, known: list[str]) -> str:
    """`; did you mean …?` for names that differ in separators alone, or else in little."""
    squeezed = {re.sub(r"[^a-z0-9]", "", name): name for name in reversed(known)}
    typed = re.sub(r"[^a-z0-9]", "", quant.lower())
    near = [typed] if typed in squeezed else get_close_matches(typed, squeezed, n=3)
    meant = sorted((squeezed[name] for name in near), key=lambda name: name not in gguf_mixes.MIXES)
    return f"; did you mean {' or '.join(meant)}?" if meant else ""


def _require_storable(container: Container, recipe: Recipe, quant: str) -> None:
    """UnsupportedError for a recipe of whose codecs a format can store none, whatever the tensor."""
    asked = [codec for rule in recipe.rules if (codec := rule.choice.codec) not in (None, RAW)]
    refused = [codec for codec in asked if codec is not None and not stores(container, codec)]
    if asked and len(refused) == len(asked):
        known = ", ".join(container.quants) if isinstance(container, HasPresets) else "see `flyweight formats`"
        raise UnsupportedError(
            f"{container.name} cannot store {refused[-1].name}, which '{quant}' asks for", code="E_QUANT",
            hint=f"names for {container.title}: {known}",
        )  # fmt: skip


@lru_cache(1 << 10)
def stores(container: Container, codec: CodecSpec) -> bool:
    """Whether a format can store a codec for some tensor."""
    own = codec_for(adapted(container, of_tensor(codec, _LARGE)))
    spec = TensorSpec(_LARGE.shape, own.decoded_dtype(DType.F32))
    return not fits(own, _LARGE) or container.carried(spec, own.spec)
