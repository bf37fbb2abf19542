"""Whether a weight is legal on a target, and whether it then streams or folds, by which gate.

Two rounds. A weight is *refused* where the code generator has no encoder for its form. What is legal *streams* in its
compressed bytes if every gate on its way is open, and else *folds*: the compiler makes a dense fp16 constant of it.

A gate is a fact and what it means for this weight. A closed gate decides whatever the others are; if none is closed, an
unknown one leaves the answer open. So no decision rests on what nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from flyweight.targets.ane.engine_form import EngineForm, is_engine_codec
from flyweight.targets.ane.facts import codegen, hal
from flyweight.targets.ane.facts.engine import Engine
from flyweight.targets.ane.facts.fact import Fact, inferred, measured, seed, unknown
from flyweight.targets.ane.facts.tensor_format import streamable
from flyweight.targets.ane.weight_use import WeightUse


class Outcome(Enum):
    STREAMS = "streams"
    FOLDS = "folds"
    DENSE = "dense"
    """It is fp16 as it is."""
    REFUSED = "refused"
    CANNOT_TELL = "cannot tell"
    NO_FORM = "no form"
    """The codec is none of the engine's: it has to be converted."""
    NO_KERNEL = "no kernel"
    """Not the kernel of a layer: the model reads it as data."""


@dataclass(frozen=True, slots=True)
class Gate:
    fact: Fact[Any]
    is_open: bool | None
    """None: cannot tell."""
    reason: str
    """Why not, where it is closed."""
    change: str
    """What would open it, or avoid it."""

    def __post_init__(self) -> None:
        if not isinstance(self.fact, Fact) or not self.fact.about:
            raise TypeError("a gate rests on a fact that says what it is about")
        if not self.fact.known and self.is_open is not None:
            raise ValueError(f"{self.fact.about} is unknown, so nothing follows from it")


@dataclass(frozen=True, slots=True)
class Decision:
    outcome: Outcome
    reason: str
    gate: Fact[Any] | None = None
    """The fact that decided; None where every gate is open, or none was asked."""
    change: str = ""
    facts: tuple[Fact[Any], ...] = ()
    """Everything it rests on."""


def decide(use: WeightUse, form: EngineForm | None, engine: Engine) -> Decision:
    """What becomes of a weight of this form."""
    if not use.is_kernel:
        return Decision(Outcome.NO_KERNEL, f"the operand of {use.op} is data, not a kernel")
    if form is None:
        reason = "its shape does not fit the form" if is_engine_codec(use.codec) else "not a form of the engine"
        return Decision(Outcome.NO_FORM, reason, change="convert it")
    if form.is_dense:
        return Decision(Outcome.DENSE, "fp16 moves at full width", change=_COMPRESS)
    if form.is_sparse and form.stored == form.weights:
        return Decision(Outcome.DENSE, "a mask that keeps every weight is compiled dense", _KEPT_ALL, _COMPRESS, (_KEPT_ALL,))
    legal = [*_legality(use, form, engine)]
    if (deciding := _deciding(legal)) is not None:
        return _closed(deciding, Outcome.REFUSED, [])
    gates = [*_streaming(use, form, engine)]
    if (deciding := _deciding(gates)) is not None:
        return _closed(deciding, Outcome.FOLDS, legal)
    return Decision(Outcome.STREAMS, "every gate is open", facts=_facts([*legal, *gates]))


def _deciding(gates: Sequence[Gate]) -> Gate | None:
    """The first closed gate, else the first that nobody knows."""
    closed = (gate for gate in gates if gate.is_open is False)
    return next(closed, next((gate for gate in gates if gate.is_open is None), None))


def _closed(gate: Gate, outcome: Outcome, before: Sequence[Gate]) -> Decision:
    """What one gate decides alone, after those `before` it were open."""
    facts = _facts([*before, gate])
    if gate.is_open is None:
        return Decision(Outcome.CANNOT_TELL, f"no source gives {gate.fact.about}", gate.fact, gate.change, facts)
    return Decision(outcome, gate.reason, gate.fact, gate.change, facts)


def _facts(gates: Sequence[Gate]) -> tuple[Fact[Any], ...]:
    return tuple(dict.fromkeys(gate.fact for gate in gates))


def _byte(fact: Fact[bool], reason: str, change: str) -> Gate:
    return Gate(fact, fact.value, reason, change)


def _condition(rule: Fact[Any], met: bool, reason: str, change: str) -> Gate:
    """A rule of the engine that this weight meets or not."""
    return Gate(rule, met if rule.known else None, reason, change)


# Legality -----------------------------------------------------------------------------------------

_COMPRESS = "store it as a palette, or sparse if it has zeros: `--form auto` chooses"
_KEPT_ALL: Fact[str] = measured("dense", "M6 study", "constexpr_sparse without zeros").named("a sparse weight without zeros")
_INPUT_GROUPS: Fact[bool] = unknown("the sources know codebooks of output channels").named("codebooks for input channels")
_NO_VARIABLE_CODES: Fact[bool] = inferred(
    True, "palette note", "from messages of the compiler: neither vector palettes nor quantized kernels"
).named("variable weights are not compressed")


def _legality(use: WeightUse, form: EngineForm, engine: Engine) -> Iterator[Gate]:
    if use.mutable and (form.vector > 1 or form.is_affine):
        yield _condition(
            engine.general(_NO_VARIABLE_CODES), False, "a variable cannot be compressed this way", "make the weight a constant"
        )
    if form.is_blockwise:
        taken = engine.read(codegen.BLOCKWISE_TAKEN)
        yield _byte(taken, "scales of blocks are not taken; the CPU runs the layer", "use one scale for each output channel")
    if form.zero_points:
        points = engine.read(codegen.ZERO_POINTS)
        yield _byte(points, "zero points have no encoder", "quantize symmetrically, with zero points of 0")
    if form.element == "e4m3":
        yield _byte(engine.gate(hal.FP8), "e4m3 has no codepoint here: compiling stops", "use int8 or a palette")
        yield _byte(engine.read(codegen.FP8_ENCODER), "e4m3 has no encoder here", "use int8 or a palette")
    if form.is_palette:
        yield from _palette_legality(form, engine)


def _palette_legality(form: EngineForm, engine: Engine) -> Iterator[Gate]:
    width = engine.read(codegen.PALETTE_WIDTHS[form.bits])
    yield _byte(width, f"palettes of {form.bits} bits have no encoder", "use 4 or 8 bits")
    if form.vector > 1:
        sizes = engine.general(codegen.VECTOR_SIZES)
        legal = form.vector in (sizes.value or ())
        shown = ", ".join(map(str, sizes.value or ()))
        yield _condition(sizes, legal, f"vectors of {form.vector} are illegal", f"use vectors of {shown}")
        yield _byte(engine.read(codegen.VECTORS), "vector palettes have no encoder", "use vectors of 1")
        yield _condition(
            engine.general(codegen.VECTOR_AXIS),
            form.along_channels,
            "vectors must run along output channels",
            "let vectors run along output channels",
        )
    if form.tables > 1:
        several = engine.read(codegen.SEVERAL_CODEBOOKS)
        yield _byte(several, "several codebooks have no encoder", "use one codebook for the tensor")
        if not form.along_channels:
            yield Gate(_INPUT_GROUPS, None, "", "let groups of output channels share codebooks, or all of them one")
    if form.scales:
        most = engine.general(codegen.QUANTIZED_PALETTE_ENTRIES)
        yield _condition(
            most, 1 << form.bits <= (most.value or 0), "a palette of 256 entries takes no scales", "use 6 bits or fewer"
        )
    if form.is_sparse:
        plane = engine.read(codegen.SPARSE_INDEX_PLANE)
        yield _byte(plane, "a sparse plane of palette indices has no encoder", "use a palette, or a mask with fp16 values")
    if form.lut_bytes > (hal.LUT_BYTES_THAT_FIT.value or 0):
        yield Gate(engine.read(hal.PALETTE_LUT_BYTES), None, "", "use codebooks of at most 512 bytes")
    else:
        yield _condition(engine.general(hal.LUT_BYTES_THAT_FIT), True, "", "")


# Streaming ----------------------------------------------------------------------------------------

_UNIT_STRIDE: Fact[bool] = seed(True).named("unit stride on all axes of a streamed weight")
_NO_DILATION: Fact[bool] = seed(True).named("no dilation of a streamed weight")
_NO_OVERLAP: Fact[bool] = seed(True, note="the compiler's tiles are taken not to overlap").named(
    "no tile overlap of a streamed weight"
)
_IMMUTABLE: Fact[bool] = seed(True).named("a streamed weight is immutable")
_INT4_TARGETS: Fact[bool] = unknown("hwx has format 31 in newer builds, and names no target").named(
    "targets that take int4 weights"
)
_SPARSE_CODES: Fact[bool] = unknown("no source says").named("streaming of masked integer codes")

_TO_PALETTE = "store it as a palette: `--form lut4`, or lut8, which loses less"


def _streaming(use: WeightUse, form: EngineForm, engine: Engine) -> Iterator[Gate]:
    yield _byte(
        engine.gate(hal.STREAMING_MASTER),
        "no compressed weight streams on this target",
        "nothing does: only fewer weights help",
    )
    yield _byte(engine.general(streamable(form.element)), "its format does not stream", _TO_PALETTE)
    yield _condition(engine.general(_UNIT_STRIDE), use.unit_stride, "its layer has a stride", "use stride 1")
    yield _condition(engine.general(_NO_DILATION), use.undilated, "its layer is dilated", "use dilation 1")
    yield _condition(engine.general(_NO_OVERLAP), True, "", "")
    yield _condition(engine.general(_IMMUTABLE), not use.mutable, "it is a variable", "make the weight a constant")
    if form.is_palette:
        if form.vector == 1:
            yield _condition(engine.general(codegen.SCALAR_PALETTES_STREAM), True, "", "")
        yield _byte(engine.gate(hal.KERNEL_STRIDE), "the palette path is closed", "store it sparse, or accept dense bytes")
    elif form.is_affine:
        yield from _affine_streaming(form, engine)


def _affine_streaming(form: EngineForm, engine: Engine) -> Iterator[Gate]:
    if form.bits == 4:
        scalar = engine.general(codegen.INT4_SCALAR)
        yield _byte(scalar, "4-bit integers have no kernel format", _TO_PALETTE)
        if scalar.value:
            yield Gate(_INT4_TARGETS, None, "", _TO_PALETTE)
    if form.is_blockwise:
        for byte in hal.BLOCKWISE_GROUP:
            yield _byte(engine.gate(byte), "blockwise weights become a dense fp16 constant", _TO_PALETTE)
    elif form.bits == 8:
        for byte in hal.INT8_GROUP:
            yield _byte(engine.gate(byte), "int8 weights become a dense fp16 constant", _TO_PALETTE)
        yield _byte(engine.read(codegen.INT8_MOVES_LESS), "int8 was measured to move like fp16", _TO_PALETTE)
    if form.is_sparse:
        yield Gate(_SPARSE_CODES, None, "", "use a mask with fp16 values")
