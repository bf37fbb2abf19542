"""Names and texts of the options that `convert` has for npy-dirs alone; `forms.PRESETS` has what they mean."""

from __future__ import annotations

from flyweight.containers.options import Option, OptionGroup

QUANTS = ("int8", "int8-g32", "int8-g64", "int8-g128", "int4", "int4-legacy", "int3", "int4-g64")
ADDABLE = tuple(quant for quant in QUANTS if quant.startswith("int4"))
"""The forms of four bits, which may lie beside eight."""
GROUP = OptionGroup(
    "Squish npy-dir",
    QUANTS,
    add=Option(
        "--add", str, "FORM", f"Add {', '.join(ADDABLE[:-1])} or {ADDABLE[-1]} weights to SOURCE, an int8 npy-dir, in place."
    ),
)
