"""Names of the quantizations that `convert` has for UQFF; `uqff_presets` has what they mean."""

from __future__ import annotations

from flyweight.containers.options import OptionGroup

QUANTS = (
    "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q8_1", "q2k", "q3k", "q4k", "q5k", "q6k", "q8k", "hqq1", "hqq2", "hqq3", "hqq4",
    "hqq8", "fp8", "fp8-448", "f8q8", "mxfp4", "mxfp4-isq", "afq2", "afq3", "afq4", "afq6", "afq8",
)  # fmt: skip
GROUP = OptionGroup("UQFF directory", QUANTS)
