"""Deltas: a fine-tune as its difference from a base."""

from __future__ import annotations

from flyweight.deltas.kind import Kind
from flyweight.foundation.lazy_table import Table

KINDS: Table[type[Kind]] = Table(__name__, {})
