"""The model families: a file and a line each. Where a dialect has one name for several families, the first line is meant."""

from flyweight.foundation.lazy_table import Table
from flyweight.models.family import Family

__all__ = ["FAMILIES"]

FAMILIES: Table[Family] = Table(
    "flyweight.models.families",
    {
        "llama": "llama:FAMILY",
        "mistral": "mistral:FAMILY",
        "qwen2": "qwen2:FAMILY",
        "qwen3": "qwen3:FAMILY",
        "gemma2": "gemma2:FAMILY",
        "gemma3_text": "gemma3:FAMILY",
        "phi3": "phi3:FAMILY",
    },
)
"""By `model_type`."""
