"""Which tensor becomes which: a family's table applied to the tensors that are really there.

Every source tensor is renamed, dropped for a stated reason, or refused; every tensor the family requires must
be there, with the shape the configuration gives it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from flyweight.errors import MalformedError, UnsupportedError
from flyweight.manifest import Entry
from flyweight.models.family import UNTIED, Dims, Family, TensorRule
from flyweight.models.rope import FACTOR_TENSORS, FREQUENCIES
from flyweight.models.transform import Transform

__all__ = ["ROTARY_TENSORS", "Renamed", "dense_by_default", "rename", "switches"]

ROTARY_TENSORS = (FREQUENCIES, *FACTOR_TENSORS.values())

_DERIVED = "derived from the RoPE settings of the configuration"
_DROPPED = {
    "gguf": tuple((re.compile(re.escape(name)), _DERIVED) for name in ROTARY_TENSORS),
    "hf": (
        (re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"), _DERIVED),
        (re.compile(r"draft\..+"), "it belongs to a draft head, not to the model"),
    ),
}


class Renamed(NamedTuple):
    """What a source tensor is called in the target, and how its values change."""

    name: str
    transform: Transform | None = None


def switches(family: Family, entries: Mapping[str, Entry], *, gguf: bool) -> dict[str, bool]:
    """Which switches of config.json the tensors at hand imply. All tensors of one switch are there, or none is."""
    found: dict[str, set[bool]] = {}
    for rule in family.tensors:
        if rule.when:
            found.setdefault(rule.when, set()).add(rule.name(gguf=gguf).format(i=0) in entries)
    for switch, states in found.items():
        if len(states) > 1:
            raise UnsupportedError(
                f"only some of the tensors that '{switch}' stands for are there, which {family.architecture} cannot have",
                code="E_TENSORS",
            )
    return {switch: states == {True} for switch, states in found.items()}


def rename(
    family: Family, dims: Dims, entries: Mapping[str, Entry], on: Mapping[str, bool], *, tied: bool, to_gguf: bool
) -> tuple[dict[str, Renamed], dict[str, str]]:
    """The new name of every source tensor, and the reason for every one that is not carried."""
    if dims.layers > len(entries):
        raise MalformedError(f"{dims.layers} layers cannot be made of {len(entries)} tensors", code="E_TENSORS")
    known: dict[str, tuple[TensorRule, int]] = {}
    for rule in family.tensors:
        name = rule.name(gguf=not to_gguf)
        for layer in range(dims.layers if "{i}" in name else 1):
            known[name.format(i=layer)] = (rule, layer)
    carried: dict[str, Renamed] = {}
    dropped: dict[str, str] = {}
    for name, entry in entries.items():
        if name not in known:
            dropped[name] = _reason(name, family, to_gguf=to_gguf)
            continue
        rule, layer = known.pop(name)
        _check_shape(entry, rule, dims)
        if rule.when == UNTIED and tied:
            dropped[name] = "the output is tied to the embedding"
        else:
            transform = rule.transform(dims, to_gguf=to_gguf)
            carried[name] = Renamed(rule.name(gguf=to_gguf).format(i=layer), transform)
    for name, (rule, _) in known.items():
        if not rule.when or (not tied if rule.when == UNTIED else on[rule.when]):
            raise MalformedError(f"the tensor is missing; a {family.model_type} model needs it", code="E_TENSORS", tensor=name)
    return carried, dropped


def _reason(name: str, family: Family, *, to_gguf: bool) -> str:
    for pattern, reason in _DROPPED["hf" if to_gguf else "gguf"]:
        if pattern.fullmatch(name):
            return reason
    raise UnsupportedError(f"a {family.model_type} model has no such tensor", code="E_TENSORS", tensor=name)


def _check_shape(entry: Entry, rule: TensorRule, dims: Dims) -> None:
    wanted = tuple(dims.size(dim) for dim in rule.shape)
    if entry.spec.shape != wanted:
        found = "×".join(map(str, entry.spec.shape))
        expected = "×".join(map(str, wanted))
        raise MalformedError(
            f"its shape is {found}, but the configuration makes it {expected}", code="E_SHAPE", tensor=entry.name
        )


_DENSE = re.compile(
    r"(^|\.)(embed_tokens|token_embd|lm_head|output|wte|wpe)\.weight$"  # the first and the last matrix
    r"|norm\d*\.(weight|bias)$|(^|\.)ln_\w+\.(weight|bias)$"
    r"|\.bias$"
    r"|^rope_\w+\.weight$|\.inv_freq$"
)


def dense_by_default(name: str) -> bool:
    """Whether a tensor of this name (in either dialect) is best left unquantised: embeddings, output, norms, biases."""
    return _DENSE.search(name) is not None
