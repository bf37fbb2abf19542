"""Named quantizations of npy-dirs, and the option of `convert` that adds one."""

from __future__ import annotations

from flyweight.containers.named_quantizations import Floor, Preset, PresetRule
from flyweight.containers.npy_dir.forms import FORMS
from flyweight.containers.options import Option, OptionGroup
from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import CodecSpec

__all__ = ["ADDABLE", "GROUP", "PRESETS"]


def _everywhere(codec: CodecSpec, floor: Floor | None = None) -> Preset:
    return Preset((PresetRule(("*",), codec, floor),))


PRESETS = {
    "int8": _everywhere(FORMS["int8"].spec(0), Floor(0.99995, FORMS["int8"].spec(64))),
    **{f"int8-g{group}": _everywhere(FORMS["int8"].spec(group)) for group in (32, 64, 128)},
    **{label: _everywhere(FORMS[label].preset()) for label in ("int4", "int4-legacy", "int3")},
    "int4-g64": _everywhere(FORMS["int4"].preset(DType.F16)),
}
ADDABLE = tuple(quant for quant in PRESETS if quant.startswith("int4"))
"""The forms of four bits, which may lie beside eight."""
GROUP = OptionGroup(
    "Squish npy-dir",
    tuple(PRESETS),
    add=Option(
        "--add", str, "FORM", f"Add {', '.join(ADDABLE[:-1])} or {ADDABLE[-1]} weights to SOURCE, an int8 npy-dir, in place."
    ),
)
