"""Recipes as TOML: read from a file, and written so that the file can be read, changed and used again.

    name = "mixed"                      # a mix of GGUF by this name has its own `general.file_type`
    protect = true                      # embeddings, output head, norms, biases and vectors stay, whatever the rules say
    matrices_only = true                # or only vectors stay

    [[rules]]
    match = ["*embed*", "*norm*"]
    codec = "keep"

    [[rules]]
    match = "*.down_proj.weight"
    layers = "first 1/8, last 1/8, every 3rd"
    when = ["no tied", "gqa >= 4"]
    codec = "q6_k"
    otherwise = "q8_0"                  # for rows that are no whole blocks of the codec; a list is tried in order

    [[rules]]
    match = "*"
    codec = "affine"
    params = { bits = 4, group = 64 }
    quantizer = "nearest"

    [[rules]]
    match = "*down_proj*"
    codec = "masked"                    # a codec around another: by name, or with parameters of its own
    params = { block = 64, inner = { name = "affine", params = { bits = 4, group = 64 } } }

    [gate]                              # what the result may cost, measured on the model itself before it appears
    max_kl = 0.1                        # nats
    max_perplexity_ratio = 1.2

A parameter may be "row", which stands for the length of the tensor's rows, or "stored", the element type that the tensor has
(f32 for one that is no plain f32, f16 or bf16). A rule with the codec `masked` may have a `sparsity`: that share of the blocks
of each row, those of least energy, is set to zero first. With `cosine = 0.9999` and `otherwise = { group = 64 }` a tensor that
would not be so near to its source gets these parameters instead.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from flyweight.codecs import CODECS
from flyweight.foundation.accuracy_gate import Gate
from flyweight.foundation.errors import FlyweightError, UnsupportedError
from flyweight.foundation.tensor import RAW, CodecSpec
from flyweight.pipeline.plans.recipe import Choice, Recipe, Rule, choice
from flyweight.pipeline.plans.rule_conditions import Condition, Layers
from flyweight.writing import write_new

_RECIPE = frozenset({"rules", "name", "protect", "matrices_only", "gate"})
_RULE = frozenset({"match", "layers", "when", "codec", "params", "quantizer", "dtype", "sparsity", "cosine", "otherwise"})


def load_recipe(path: Path | str) -> Recipe:
    """Read a recipe file. Unknown keys are errors: a misspelt rule must not quietly do nothing."""
    path = Path(path)
    try:
        document = tomllib.loads(path.read_text("utf-8"))
        _only(document, _RECIPE)
        rules = tuple(map(_read_rule, document.get("rules", [])))
        protect, matrices_only = (bool(document.get(key, False)) for key in ("protect", "matrices_only"))
        gate = Gate.of(document["gate"]) if "gate" in document else None
        return Recipe(str(document.get("name", path.stem)), rules, protect, matrices_only, gate=gate)
    except FlyweightError as error:
        raise error.at(file=str(path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnsupportedError(f"not a recipe: {error!r}", code="E_RECIPE", file=str(path)) from None


def _read_rule(raw: Mapping[str, Any]) -> Rule:
    _only(raw, _RULE)
    wish = (str(raw["codec"]), raw.get("params"), raw.get("quantizer"), raw.get("dtype"), raw.get("sparsity", 0.0))
    chosen = choice(*wish, raw.get("cosine"), raw.get("otherwise"))
    layers = Layers.read(raw["layers"]) if "layers" in raw else None
    return Rule(_texts(raw["match"]), chosen, layers, tuple(map(Condition.read, _texts(raw.get("when", [])))))


def _texts(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(map(str, value))


def _only(table: Mapping[str, Any], allowed: frozenset[str]) -> None:
    unknown = sorted(set(table) - allowed)
    if unknown:
        raise UnsupportedError(f"unknown recipe keys: {', '.join(unknown)}", code="E_RECIPE", hint=f"known: {sorted(allowed)}")


# Writing ------------------------------------------------------------------------------------------


def recipe_text(recipe: Recipe, comment: str = "") -> str:
    """The TOML that `load_recipe` reads as this recipe. What has its default is left out."""
    return "\n".join(_lines(recipe, comment)) + "\n"


def save_recipe(recipe: Recipe, path: Path) -> None:
    """To a file that is not there yet."""
    write_new(path, [recipe_text(recipe).encode()])


def _lines(recipe: Recipe, comment: str) -> Iterator[str]:
    yield from (f"# {line}" for line in comment.splitlines())
    yield f"name = {_value(recipe.name)}"
    yield from (f"{key} = true" for key in ("protect", "matrices_only") if getattr(recipe, key))
    for rule in recipe.rules:
        yield from ("", "[[rules]]")
        yield from (f"{key} = {_value(value)}" for key, value in _table(rule).items())
    if recipe.gate is not None:
        yield from ("", "[gate]")
        yield from (f"{key} = {_value(value)}" for key, value in recipe.gate.as_json().items() if value is not None)


def _table(rule: Rule) -> dict[str, Any]:
    said: dict[str, Any] = {"match": rule.patterns[0] if len(rule.patterns) == 1 else list(rule.patterns)}
    if rule.layers is not None:
        said["layers"] = rule.layers.text
    if rule.when:
        when = [condition.text for condition in rule.when]
        said["when"] = when[0] if len(when) == 1 else when
    return said | _choice_table(rule.choice)


def _choice_table(wanted: Choice) -> dict[str, Any]:
    if wanted.codec is None or wanted.codec == RAW:
        dtype = {"dtype": wanted.dtype.label} if wanted.dtype else {}
        return {"codec": "keep" if wanted.codec is None else "dense", **dtype}
    said: dict[str, Any] = {"codec": wanted.codec.name}
    if params := _params(wanted.codec):
        said["params"] = params
    if wanted.quantizer:
        said["quantizer"] = wanted.quantizer
    if wanted.sparsity:
        said["sparsity"] = wanted.sparsity
    if wanted.floor is not None:
        own, other = wanted.codec.as_json()["params"], wanted.floor.otherwise.as_json()["params"]
        said["cosine"] = wanted.floor.cosine
        said["otherwise"] = {key: value for key, value in other.items() if own.get(key) != value}
    elif wanted.otherwise:
        others = [_codec_value(codec) for codec in wanted.otherwise]
        said["otherwise"] = others[0] if len(others) == 1 else others
    return said


def _codec_value(codec: CodecSpec) -> str | dict[str, Any]:
    params = _params(codec)
    return {"name": codec.name, "params": params} if params else codec.name


def _params(codec: CodecSpec) -> dict[str, Any]:
    """The parameters that are not as they are by default."""
    defaults = {each.name: each.default for each in fields(CODECS[codec.name]) if each.default is not MISSING}
    return {
        key: _codec_value(value) if isinstance(value, CodecSpec) else value
        for key, value in codec.params.items()
        if key not in defaults or isinstance(value, CodecSpec) or defaults[key] != value
    }


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_value(item)}' for key, item in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False)  # texts, numbers and true are spelt alike
