"""What `convert` offers for Core ML packages alone; `coreml_presets` has what the names of quantizations mean."""

from __future__ import annotations

from flyweight.containers.options import OptionGroup

QUANTS = (
    "int8", "uint8", "int4", "uint4", "int8-tensor", "int4-b32", "lut1", "lut2", "lut3", "lut4", "lut6", "lut8", "lut4-g16",
    "lut4-v2", "sparse", "sparse-lut4", "sparse-int8",
)  # fmt: skip
GROUP = OptionGroup("Core ML package", QUANTS)
