"""What `convert` offers for Core ML packages alone; `coreml_presets` has what the names of quantizations mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from flyweight.containers.options import OptionGroup, option, options_of, share

QUANTS = (
    "auto (with --target)", "int8", "uint8", "int4", "uint4", "int8-tensor", "int4-b32", "lut1", "lut2", "lut3", "lut4", "lut6",
    "lut8", "lut4-g16", "lut4-v2", "lut4-scaled", "sparse", "sparse-lut4", "sparse-int8",
)  # fmt: skip
PROFILES = ("seed", "disputed")


def _profile(text: str) -> str:
    if text not in PROFILES:
        raise ValueError(f"{text!r} is neither {' nor '.join(PROFILES)}")
    return text


@dataclass(frozen=True, slots=True)
class CoremlExtras:
    """What only a Core ML package can have: a chip it is made for, whose Neural Engine streams some forms and not others."""

    format: ClassVar[str] = "coreml"

    target: str | None = field(
        default=None,
        metadata=option(
            "--target", str, "NAME",
            "Apple chip, such as M1: without --quant, each weight gets the smallest form that streams there.",
        ),
    )  # fmt: skip
    profile: str | None = field(
        default=None, metadata=option("--profile", _profile, "NAME", "Whose reading of disputed facts: seed or disputed.")
    )
    max_error: float | None = field(
        default=None, metadata=option("--max-error", share, "ERROR", "Relative RMS error a weight may have.")
    )

    def conflict(self, quant: str | None, has_recipe: bool) -> str | None:
        if self.target is None:
            return "--profile and --max-error need --target"
        if self.max_error is not None and (has_recipe or quant not in (None, "auto")):
            return "--max-error is for forms that are chosen: leave out --quant and --recipe"
        return None

    @property
    def draft(self) -> Path | None:
        return None

    @property
    def inputs(self) -> Mapping[str, Path]:
        return {}

    @property
    def made(self) -> Mapping[str, str]:
        return {}

    def files(self, make_package: Callable[[str], bytes]) -> Mapping[str, bytes]:
        return {}


GROUP = OptionGroup("Core ML package", QUANTS, options_of(CoremlExtras), CoremlExtras)
