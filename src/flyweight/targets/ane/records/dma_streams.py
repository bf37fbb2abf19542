"""Registers of the kernel DMA: four streams of coefficients beside the weights, and the registers that the loader patches.

The guide gives them for the M1. There is no stream of zero points: the M1 has none to apply. Compiled programs for H14 and
later have the streams elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flyweight.targets.ane.facts.fact import Fact, measured, seed

_TABLE = "guide ch.25"


@dataclass(frozen=True)
class DmaStream:
    name: str
    enable: Fact[int]
    base: Fact[int]
    """The register of the offset at which the stream begins."""
    relocation: Fact[int]
    from_h14: Fact[int]
    """Where the registers of this stream begin in programs for H14 and later."""

    def facts(self) -> tuple[Fact[int], ...]:
        return self.enable, self.base, self.relocation, self.from_h14


def _stream(name: str, enable: int, base: int, relocation: int, from_h14: int) -> DmaStream:
    return DmaStream(
        name,
        seed(enable, _TABLE).named(f"enable register of {name}"),
        seed(base, _TABLE).named(f"base register of {name}"),
        seed(relocation, _TABLE).named(f"relocation register of {name}"),
        measured(from_h14, "hwx", "H14 and later").named(f"registers of {name}"),
    )


DMA_STREAMS: Mapping[str, DmaStream] = {
    stream.name: stream
    for stream in (
        _stream("bias", 0x5548, 0x554C, 0x1554, 0x55E0),
        _stream("post_scale", 0x5558, 0x555C, 0x1558, 0x55F0),
        _stream("palette", 0x5568, 0x556C, 0x155C, 0x5600),
        _stream("activation", 0x5578, 0x557C, 0x1560, 0x5610),
    )
}
"""By their names among the slots of a channel group."""

RELOCATIONS: Mapping[str, Fact[int]] = {
    name: seed(register, "guide ch.25", f"descriptor version 24 has the base address at {later:#x} (M6 study)").named(
        f"relocation register of the {name}"
    )
    for name, register, later in (("input", 0x1344, 0x1346), ("second input", 0x134A, 0x134C), ("output", 0x1442, 0x1444))
}
