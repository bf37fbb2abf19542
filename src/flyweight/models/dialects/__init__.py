"""Dialects: how checkpoints name their tensors and settings. A dialect is a module (see `contract`) and a line in the table."""

from flyweight.foundation.lazy_table import Table
from flyweight.models.dialects.contract import Dialect

__all__ = ["DIALECTS"]

DIALECTS: Table[Dialect] = Table(
    "flyweight.models.dialects",
    {"hf": "hf_dialect:HF", "gguf": "gguf_dialect:GGUF", "hf_adjacent": "hf_dialect:ADJACENT"},
)
