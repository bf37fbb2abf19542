"""Model families as data, and the translation of a checkpoint between the HF and the GGUF dialect.

A family is one file named after its `model_type`, holding one table (see `family`). `translate` renames tensors,
says how their values move, and rewrites settings, tokenizer and chat template; it touches no weights.
"""

from flyweight.models.blueprint import Blueprint, blueprint
from flyweight.models.config import Config
from flyweight.models.experts import expert_layout
from flyweight.models.family import Family
from flyweight.models.names import Renamed, dense_by_default
from flyweight.models.transform import Transform
from flyweight.models.translation import FAMILIES, Translation, family_of, rename_tensors, translate

__all__ = [
    "FAMILIES",
    "Blueprint",
    "Config",
    "Family",
    "Renamed",
    "Transform",
    "Translation",
    "blueprint",
    "dense_by_default",
    "expert_layout",
    "family_of",
    "rename_tensors",
    "translate",
]
