"""Mixtures of experts: whether a checkpoint is one, in whose arrangement, and what its matrices are called in others.

    hf    …experts.7.up_proj.weight, a matrix for each expert, or …experts.gate_up_proj, as the family has it
    uqff  …experts.up_proj.weight, the experts of a layer stacked
    mlx   …switch_mlp.up_proj.weight, the same; in some families under the names of hf

Families whose experts are in `block_sparse_moe` call the three matrices of an expert w1, w3 and w2 in hf.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from flyweight.foundation import strict_json
from flyweight.foundation.manifest import Manifest
from flyweight.models.dialects.contract import Read
from flyweight.models.model_config import CONFIG_JSON

_EXPERT = re.compile(r"(?P<path>.*\.experts)\.(?P<number>0|[1-9][0-9]{0,4})\.(?P<matrix>\w+)\.weight")
_STACK = re.compile(r"(?P<path>.*\.experts)\.(?P<matrix>gate_proj|up_proj|down_proj)\.weight")
_GATED = ("gate_proj", "up_proj", "down_proj")
_SPARSE, _SPARSE_MATRICES = ".block_sparse_moe.experts", ("w1", "w3", "w2")
_STACKED = re.compile(r"(^|\.)switch_(mlp|glu)\.")
_NAMED = re.compile(r"(^|\.)experts\.")
_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


class ExpertName(NamedTuple):
    """What a matrix of experts is called: as a stack, and as that of one of them."""

    path: str
    matrix: str
    """As stacks have it."""
    number: int = 0

    @property
    def stack(self) -> str:
        return f"{self.path}.{self.matrix}.weight"

    def expert(self, number: int) -> str:
        return f"{self.path}.{number}.{dict(zip(_GATED, _matrices(self.path), strict=True))[self.matrix]}.weight"


def _matrices(path: str) -> tuple[str, ...]:
    return _SPARSE_MATRICES if path.endswith(_SPARSE) else _GATED


def expert_name(name: str) -> ExpertName | None:
    """What the matrix of one expert is; None if the name is no such matrix's."""
    found = _EXPERT.fullmatch(name)
    stacked = dict(zip(_matrices(found["path"]), _GATED, strict=True)).get(found["matrix"]) if found else None
    return ExpertName(found["path"], stacked, int(found["number"])) if found and stacked else None


def stack_name(name: str) -> ExpertName | None:
    """The same of a stack."""
    found = _STACK.fullmatch(name)
    return ExpertName(found["path"], found["matrix"]) if found else None


def are_experts_of(layout: str, names: Iterable[str]) -> bool:
    """Whether every tensor of experts has a name of this arrangement, one that `STACKS` speaks of."""
    return all(_NAMES_OF[layout](name) is not None for name in names if _NAMED.search(name))


_NAMES_OF = {"hf": expert_name, "uqff": stack_name}
STACKS = {("hf", "uqff"): True, ("uqff", "hf"): False}
"""Arrangements that become another without loss: whether by stacking experts, or by cutting stacks."""


def expert_layout(manifest: Manifest, read: Read, usual: str) -> str:
    """The arrangement, `usual` where names do not tell; empty for a model without experts."""
    if any(_STACKED.search(name) for name in manifest.entries):
        return "mlx"
    names = [name for name in manifest.entries if _NAMED.search(name)]
    if names and usual in _NAMES_OF:
        return next((layout for layout in (usual, *_NAMES_OF) if are_experts_of(layout, names)), usual)
    return usual if names or _configured(manifest, read) else ""


def _configured(manifest: Manifest, read: Read) -> bool:
    """Whether config.json counts experts, itself or in a part such as `text_config`."""
    text = manifest.files.get(CONFIG_JSON)
    config = strict_json.loads(text if isinstance(text, bytes) else read(text), file=CONFIG_JSON) if text is not None else None
    parts = [config, *config.values()] if isinstance(config, dict) else []
    counts = [part.get(key) for part in parts if isinstance(part, dict) for key in _COUNTS]
    return any(type(count) is int and count > 1 for count in counts)
