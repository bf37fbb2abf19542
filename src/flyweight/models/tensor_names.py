"""Finding and checking the tensors of a model by its family's table.

Every tensor of a checkpoint has a canonical name, is left out for a stated reason, or is refused; every tensor the family
requires must be there, with the shape the settings give it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.manifest import Entry
from flyweight.models.dialects.contract import Blueprint, Dialect
from flyweight.models.family import UNTIED, Dims, TensorRule
from flyweight.models.model_config import Config
from flyweight.models.transform import Stored


def find_tensors(dialect: Dialect, config: Config, entries: Mapping[str, Entry]) -> Blueprint:
    """The tensors of the model by their canonical names, and the reason for every tensor that is none."""
    family = config.family
    known: dict[str, tuple[str, Stored, TensorRule]] = {}
    states: dict[str, set[bool]] = {}
    for rule in family.tensors:
        for layer in range(config.dims.layers if "{i}" in rule.name else 1):
            canonical = rule.name.format(i=layer)
            stored = dialect.stored(canonical, config)
            known[stored.name] = canonical, stored, rule
            if rule.when and layer == 0:
                states.setdefault(rule.when, set()).add(stored.name in entries)
    for switch, present in states.items():
        if len(present) > 1:
            raise UnsupportedError(
                f"only some of the tensors of '{switch}' exist; {family.architecture} needs all or none",
                code="E_TENSORS",
            )
    on = {switch: present == {True} for switch, present in states.items()}
    needed = {"": True, **on, UNTIED: not config.tied}
    tensors: dict[str, Stored] = {}
    dropped: dict[str, str] = {}
    for name, entry in entries.items():
        if name not in known:
            dropped[name] = dialect.reason_to_drop(name)
            if not dropped[name]:
                raise UnsupportedError(f"a {family.model_type} model has no such tensor", code="E_TENSORS", tensor=name)
            continue
        canonical, stored, rule = known.pop(name)
        _check_shape(entry, rule, config.dims)
        if rule.when == UNTIED and config.tied:
            dropped[name] = "the output is tied to the embedding"
        else:
            tensors[canonical] = stored
    for name, (_, _, rule) in known.items():
        if needed[rule.when]:
            raise MalformedError(f"the tensor is missing; a {family.model_type} model needs it", code="E_TENSORS", tensor=name)
    return Blueprint(config, on, tensors, dropped)


def _check_shape(entry: Entry, rule: TensorRule, dims: Dims) -> None:
    wanted = tuple(dims.size(dim) for dim in rule.shape)
    if entry.spec.shape != wanted:
        found = "×".join(map(str, entry.spec.shape))
        expected = "×".join(map(str, wanted))
        raise MalformedError(f"its shape is {found}, but the settings require {expected}", code="E_SHAPE", tensor=entry.name)


_DENSE = re.compile(
    r"(^|\.)(embed_tokens|token_embd|lm_head|output|wte|wpe)\.weight$"  # the first and the last matrix
    r"|norm\d*\.(weight|bias)$|(^|\.)ln_\w+\.(weight|bias)$"
    r"|\.bias$"
    r"|^rope_\w+\.weight$|\.inv_freq$"
)


def dense_by_default(name: str) -> bool:
    """Whether a tensor of this name (in any dialect) is best left unquantized: embeddings, output, norms, biases."""
    return _DENSE.search(name) is not None
