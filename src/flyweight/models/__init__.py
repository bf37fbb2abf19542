"""What a checkpoint is as a model: its family, its settings and its tensors, in one canonical form for all dialects.

families     a file and a line for each model family: its settings, its tensors, how it computes
dialects     a file and a line for each dialect: how it writes settings, names, tokenizers
tokenizers   vocabularies, and what of tokenizer.json is run

`translate` takes a checkpoint from one dialect to another, `blueprint` says what running it needs; neither touches weights.
"""

from flyweight.models.dialects.contract import Blueprint, Translation
from flyweight.models.experts import STACKS as EXPERT_STACKS
from flyweight.models.experts import are_experts_of, expert_layout
from flyweight.models.families import FAMILIES
from flyweight.models.family import Family
from flyweight.models.model_config import Config
from flyweight.models.tensor_names import dense_by_default
from flyweight.models.transform import Renamed, Transform
from flyweight.models.translation import blueprint, dialect_of, family_of, rename_tensors, translate

__all__ = [
    "EXPERT_STACKS",
    "FAMILIES",
    "Blueprint",
    "Config",
    "Family",
    "Renamed",
    "Transform",
    "Translation",
    "are_experts_of",
    "blueprint",
    "dense_by_default",
    "dialect_of",
    "expert_layout",
    "family_of",
    "rename_tensors",
    "translate",
]
