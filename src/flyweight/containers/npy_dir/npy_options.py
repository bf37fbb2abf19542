"""What `convert` offers for npy-dirs alone, by name: `forms.PRESETS` has what the names mean, which help need not know."""

from __future__ import annotations

from flyweight.containers.options import Option, OptionGroup

QUANTS = ("int8", "int8-g32", "int8-g64", "int8-g128", "int4", "int4-legacy", "int3", "int4-g64")
ADDABLE = tuple(quant for quant in QUANTS if quant.startswith("int4"))
"""The forms of four bits, which may lie beside eight."""
GROUP = OptionGroup(
    "Squish npy-dir",
    QUANTS,
    add=Option("--add", str, "FORM", f"Add {', '.join(ADDABLE[:-1])} or {ADDABLE[-1]} to SOURCE, a model of int8, in place."),
)
