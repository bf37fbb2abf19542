"""What each target's code generator can encode: palette widths, vectors, several codebooks, zero points, sparse index planes.

The guide describes two descriptors: the M1's, and "later", which it shows on the M5. The register maps of compiled programs
say from which generation on a field is real; they contradict the guide in places.
"""

from __future__ import annotations

from collections.abc import Mapping

from flyweight.targets.ane.facts.engine_targets import FROM_A13, Generation, PerTarget, every
from flyweight.targets.ane.facts.fact import Counter, Fact, disputed, inferred, measured, seed

_G = Generation
_LATER = "implemented in the later descriptor"
_MIDDLE = (_G.A14, _G.A15, _G.A16)

SPARSE_INDEX_PLANE: PerTarget[bool] = PerTarget(
    "sparse index plane of palettes",
    {
        _G.A13: disputed(False, "guide ch.25", Counter(True, "hwx", "real from H13 on"), "the setter asserts"),
        **every(measured(True, "hwx", "real from H13 on"), (*_MIDDLE, _G.A18)),
        _G.A17: seed(True, note=_LATER),
    },
)

SEVERAL_CODEBOOKS: PerTarget[bool] = PerTarget(
    "palettes of several codebooks",
    {
        _G.A13: seed(False, note="the setter asserts; hwx agrees"),
        **every(measured(False, "hwx", "real from H19 on"), _MIDDLE),
        _G.A17: disputed(True, "guide ch.25", Counter(False, "hwx", "real from H19 on"), _LATER),
        _G.A18: measured(True, "M6 study", "4-bit palettes of groups of 16 channels compile for h18"),
    },
)

ZERO_POINTS: PerTarget[bool] = PerTarget(
    "zero points of affine weights",
    {
        _G.A13: seed(False, note="the setter asserts; hwx agrees"),
        **every(measured(False, "hwx", "real from H16 on"), (_G.A14, _G.A15)),
        **every(measured(True, "hwx", "real from H16 on"), (_G.A16, _G.A18)),
        _G.A17: seed(True, note=_LATER),
    },
)

_NO_DETECTION: Counter[bool] = Counter(False, "hwx", "real from H17 on; the M6 study verified it by patching a program")
ZERO_SKIP: PerTarget[bool] = PerTarget(
    "zero-skip in the multiply array",
    {
        **every(disputed(True, "guide ch.25", _NO_DETECTION), (_G.A13, *_MIDDLE)),
        _G.A17: seed(True, note=_LATER),
        _G.A18: measured(True, "hwx", "real from H17 on"),
    },
)

_NO_VECTORS: Counter[bool] = Counter(False, "hwx", "real from H17 on; the M6 study agrees")
VECTORS: PerTarget[bool] = PerTarget(
    "palettes of vectors",
    {
        **every(disputed(True, "guide ch.25", _NO_VECTORS, "with a single codebook"), (_G.A13, *_MIDDLE)),
        _G.A17: seed(True, note=_LATER),
        _G.A18: measured(True, "hwx", "real from H17 on"),
    },
)

VECTOR_MASK = 0x36
_POWERS_OF_TWO: Counter[tuple[int, ...]] = Counter(
    (1, 2, 4), "palette note", "powers of two; the M6 study finds a maximum of 4"
)
VECTOR_SIZES: Fact[tuple[int, ...]] = disputed(
    tuple(size for size in range(VECTOR_MASK.bit_length()) if VECTOR_MASK >> size & 1),
    "guide ch.25",
    _POWERS_OF_TWO,
    "the selector tests 1 << size against 0x36",
).named("legal vector sizes")

# Palette widths ------------------------------------------------------------------------------------

_CONV: Counter[bool] = Counter(True, "palette note", "widths of a convolution: 2, 4, 6 and 8")
_UPCAST: Counter[bool] = Counter(False, "palette note", "3-bit palettes become 4-bit ones")
_H18 = measured(True, "M6 study", "2, 3, 4 and 6 bits compile and stream on h18")
_FOLDS = inferred(True, "guide ch.25", "the guide says that it folds, so it compiles")

PALETTE_WIDTHS: Mapping[int, PerTarget[bool]] = {
    1: PerTarget("1-bit palettes", every(seed(False, note="rejected on the general path"), FROM_A13)),
    2: PerTarget(
        "2-bit palettes",
        {**every(disputed(False, "guide ch.25", _CONV, "rejected on the general path"), FROM_A13[:-1]), _G.A18: _H18},
    ),
    3: PerTarget(
        "3-bit palettes",
        {
            _G.A13: seed(False, note="a later descriptor has them"),
            _G.A17: disputed(True, "guide ch.25", _UPCAST, _LATER),
            _G.A18: _H18,
        },
    ),
    4: PerTarget("4-bit palettes", {_G.PRE_A13: _FOLDS, **every(seed(True), FROM_A13)}),
    6: PerTarget(
        "6-bit palettes",
        {
            _G.A13: disputed(False, "guide ch.25", _CONV, "a later descriptor has them"),
            **every(inferred(True, "palette note", "from a message of the compiler: 2, 4, 6 and 8 bits"), _MIDDLE),
            _G.A17: seed(True, note=_LATER),
            _G.A18: _H18,
        },
    ),
    8: PerTarget("8-bit palettes", {_G.PRE_A13: _FOLDS, **every(seed(True), FROM_A13)}),
}

QUANTIZED_PALETTE_ENTRIES: Fact[int] = seed(255, note="the combination is capped below 256 entries").named(
    "most entries of a palette with a scale"
)
SCALAR_PALETTES_STREAM: Fact[bool] = measured(
    True,
    "guide ch.7",
    "the gate asks for a vector palette; one value an index, one codebook streams on the M1, 2.37 times as fast",
).named("a palette of single values counts as one of vectors")
VECTOR_AXIS: Fact[str] = measured(
    "output channels",
    "M6 study",
    "vectors along input channels fail to compile; the guide's formula runs along output channels",
).named("axis of palette vectors")

INT4_SCALAR: Fact[bool] = disputed(
    False,
    "guide ch.25",
    Counter(True, "hwx", "kernel format 31 of newer builds; for which targets is not said"),
    "the type table has no 4-bit scalar: a 4-bit weight can only be a palette index",
).named("4-bit scalar weights")

FP8_ENCODER: PerTarget[bool] = PerTarget(
    "fp8 encoder", {**every(seed(False), FROM_A13[:-2]), **every(seed(True, note="from A17 on"), FROM_A13[-2:])}
)
ACCUMULATOR: Fact[str] = disputed(
    "wide, as fp32, ties to even",
    "guide",
    Counter("fixed point Q15.16, infinite from 32768 on, ties away from zero", "M6 study", "on M4 and M6"),
).named("accumulator")

BLOCKWISE_TAKEN: PerTarget[bool] = PerTarget(
    "blockwise weights",
    every(
        disputed(
            True,
            "guide ch.25",
            Counter(
                False, "coremltools", "it says 'ANE only support per-cout/per-tensor quantization', and the CPU runs the layer"
            ),
        ),
        FROM_A13,
    ),
)
INT8_MOVES_LESS: PerTarget[bool] = PerTarget(
    "streamed int8 weights",
    {
        **every(seed(True), _MIDDLE),
        _G.A18: measured(True, "M6 study", "int8 convolutions take 0.58 of the time of fp16"),
        _G.A17: disputed(
            True, "guide ch.25", Counter(False, "ANEForge", "int8 products on the M5 take 0.99 to 1.03 of fp16's time")
        ),
    },
)

CAPABILITIES: Mapping[str, PerTarget[bool]] = {
    "sparse index plane": SPARSE_INDEX_PLANE,
    "several codebooks": SEVERAL_CODEBOOKS,
    "zero points": ZERO_POINTS,
    "zero-skip": ZERO_SKIP,
    "vectors": VECTORS,
}
"""Rows of the guide's version matrix."""
