"""Dialects: how checkpoints name their tensors and settings. A dialect is a module (see `contract`) and a line in the table."""

from flyweight.models.dialects.contract import Dialect
from flyweight.table import Table

__all__ = ["DIALECTS"]

DIALECTS: Table[Dialect] = Table("flyweight.models.dialects", {"hf": "hf_dialect:HF", "gguf": "gguf_dialect:GGUF"})
