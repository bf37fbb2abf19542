"""What the matrices of experts are called: each alone, and stacked.

…experts.7.up_proj.weight    of one expert; in `block_sparse_moe` the three are w1, w3 and w2
…experts.up_proj.weight      of all experts of a layer
"""

from __future__ import annotations

import re
from typing import NamedTuple

_EXPERT = re.compile(r"(?P<path>.*\.experts)\.(?P<number>0|[1-9][0-9]{0,4})\.(?P<matrix>\w+)\.weight")
_STACK = re.compile(r"(?P<path>.*\.experts)\.(?P<matrix>gate_proj|up_proj|down_proj)\.weight")
_GATED = ("gate_proj", "up_proj", "down_proj")
_SPARSE, _SPARSE_MATRICES = ".block_sparse_moe.experts", ("w1", "w3", "w2")


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
