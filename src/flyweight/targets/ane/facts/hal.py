"""Gates and limits of each target: bytes of the compiler's table of hardware properties, by their offset in build 9.509.

Newer builds moved most of them. A byte that no source gives for a target is unknown there, and so is what depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flyweight.targets.ane.facts.engine_targets import FROM_A13, Generation, PerTarget, every
from flyweight.targets.ane.facts.fact import Counter, Fact, disputed, inferred, measured, seed, unknown

_G = Generation
_KB, _MB = 1 << 10, 1 << 20


def _from(first: Generation, title: str, dispute: Counter[str] | None = None) -> PerTarget[bool]:
    """A gate of the affine cluster: closed from A13 on, open from `first` on."""
    closed = FROM_A13[: FROM_A13.index(first)]
    opened = [generation for generation in FROM_A13 if generation not in closed and generation is not _G.A18]
    note = "" if dispute is None else f"{dispute.source} names the byte {dispute.value}"
    return PerTarget(
        title,
        {
            **every(seed(False, note=note), closed[:1]),
            **every(seed(False, "guide ch.7", note), closed[1:]),
            **every(seed(True, "guide ch.7", note), opened),
            _G.A18: inferred(True, "guide ch.7", "open in the generation before; the guide's own cell has a question mark"),
        },
    )


STREAMING_MASTER = 0x48F
KERNEL_STRIDE = 0x529
INT8_GROUP = (0x528, 0x532, 0x537)
BLOCKWISE_GROUP = (0x520, 0x523, 0x533, 0x539)
FP8 = 0x52D
WINOGRAD = 0x680

_CACHE_HINT: Counter[str] = Counter("secure-mode cache hint", "guide ch.24")

GATES: Mapping[int, PerTarget[bool]] = {
    STREAMING_MASTER: PerTarget(
        "streaming master (0x48f)", {_G.PRE_A13: seed(False), **every(seed(True, note="from A13 on"), FROM_A13)}
    ),
    KERNEL_STRIDE: PerTarget(
        "kernel-stride enable (0x529)", {_G.A13: seed(True), **every(seed(True, "guide ch.7"), FROM_A13[1:])}
    ),
    **{byte: _from(_G.A14, f"int8 gate ({byte:#x})") for byte in INT8_GROUP},
    **{byte: _from(_G.A15, f"blockwise gate ({byte:#x})", _CACHE_HINT if byte == 0x520 else None) for byte in BLOCKWISE_GROUP},
    FP8: PerTarget("fp8 E4M3 (0x52d)", {**every(seed(False)), _G.A18: seed(True)}),
    0x52C: PerTarget("fp32 transfers (0x52c)"),
    0x52E: PerTarget("fp8 E5M2 transfers (0x52e)"),
    0x685: PerTarget("live two-byte transfers (0x685)"),
    WINOGRAD: PerTarget(
        "Winograd enable (0x680)",
        {
            _G.A13: disputed(True, "guide ch.20", Counter(False, "hwx", "2-D Winograd is in no generation, 1-D from H17 on")),
        },
    ),
    0x288: PerTarget("extended kernel memory (0x288)", every(seed(False, "guide ch.24"))),
    0x48B: PerTarget("collectives (0x48b)", every(seed(False, "guide ch.24"))),
}

# Limits ---------------------------------------------------------------------------------------------

DENSE_CAP = 0x200
STREAMED_CAP = 0x210
_APPENDIX = "guide"
_SIXTEEN_MB = measured(16 * _MB, "M6 study")

LIMITS: Mapping[int, PerTarget[int]] = {
    DENSE_CAP: PerTarget("dense weight cap (0x200)", {**every(seed(64 * _KB, _APPENDIX)), _G.A13: seed(64 * _KB)}),
    STREAMED_CAP: PerTarget(
        "streamed weight cap (0x210)",
        {_G.A13: seed(16 * _MB, _APPENDIX), **every(_SIXTEEN_MB, (_G.A17, _G.A18))},
        {"H16g": _SIXTEEN_MB},
    ),
    0x1B8: PerTarget("0x1b8", every(seed(2 * _MB, _APPENDIX)), {"M9": seed(_MB, _APPENDIX)}),
    0x1C0: PerTarget("0x1c0", every(seed(16, _APPENDIX))),
    0x1C8: PerTarget("0x1c8", every(seed(64, _APPENDIX))),
    0x228: PerTarget(
        "0x228",
        every(seed(64, _APPENDIX)),
        {"H11": seed(32, _APPENDIX), "M9": seed(16, _APPENDIX), "M11": seed(16, _APPENDIX)},
    ),
    0x0C: PerTarget(
        "0x00c",
        {
            **every(seed(8, _APPENDIX)),
            **every(disputed(8, _APPENDIX, Counter(16, "M6 study", "engines of an ANE")), FROM_A13),
        },
        {"M9": disputed(8, _APPENDIX, Counter(2, "M6 study", "engines of an ANE"))},
    ),
    **{
        at: PerTarget(f"bytes of a kernel element in an output-channel group ({at:#x})", every(seed(cap, _APPENDIX)))
        for at, cap in ((0x388, 32), (0x390, 16), (0x398, 8))
    },
    **{
        at: PerTarget(f"channels of an accumulator ({at:#x})", every(seed(count, _APPENDIX)))
        for at, count in ((0x3A8, 8), (0x3B0, 4), (0x3B8, 2), (0x3C0, 1))
    },
}

ACTIVATION_LUT_BYTES: PerTarget[int] = PerTarget(
    "activation LUT bytes", {_G.PRE_A13: seed(150, _APPENDIX), **every(seed(86, _APPENDIX), FROM_A13)}
)
PALETTE_LUT_BYTES: PerTarget[int] = PerTarget(
    "palette LUT bytes", every(unknown("no source gives it; codebooks of 512 bytes fit"))
)
LUT_BYTES_THAT_FIT: Fact[int] = inferred(
    512, "guide ch.25", "a codebook of 8 bits is legal and takes 512 bytes, so the field is at least that"
).named("least palette LUT budget")


def offsets() -> Mapping[int, PerTarget[Any]]:
    """Every byte that has a table here, by offset."""
    tables: dict[int, PerTarget[Any]] = {**GATES, **LIMITS}
    return dict(sorted(tables.items()))
