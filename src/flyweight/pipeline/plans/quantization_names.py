"""The recipe for a name of `--quant`; a format may define names of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flyweight.containers.abilities import HasPresets
from flyweight.containers.container import Container
from flyweight.containers.named_quantizations import PresetRule
from flyweight.foundation.errors import UnsupportedError, nearest
from flyweight.pipeline.plans.recipe import Choice, Masks, Recipe, Rule, choice, preset


def recipe_for(container: Container, quant: str, extras: Any = None) -> Recipe:
    """The recipe of a quantization by name, for what `extras` ask of this format."""
    if not isinstance(container, HasPresets):
        return preset(quant)
    own = container.preset(quant, extras)
    if own is None or not own.rules:
        try:
            recipe = preset(quant)
        except UnsupportedError as error:
            if (meant := nearest(quant.lower(), container.quants)) and not error.message.endswith("?"):
                error.message += meant
            error.hint = f"{error.hint}; for {container.title}: {', '.join(container.quants)}"
            raise
    else:
        rules = (Rule(rule.patterns, _choice(rule)) for rule in own.rules)
        recipe = Recipe(quant, tuple(rules), own.protect, matrices_only=not own.protect)
    return replace(recipe, masks=Masks(*own.masks)) if own and own.masks else recipe


def _choice(rule: PresetRule) -> Choice:
    wanted = choice(rule.codec.name, rule.codec.as_json()["params"], rule.quantizer or None)
    return replace(wanted, floor=rule.floor, otherwise=rule.otherwise)
