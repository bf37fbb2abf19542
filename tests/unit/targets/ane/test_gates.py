"""Stream, fold, refuse or cannot tell, for every form and generation, and by which gate."""

from __future__ import annotations

import pytest

from flyweight.foundation.tensor import RAW, CodecSpec
from flyweight.targets.ane.facts.engine_targets import TARGETS
from flyweight.targets.ane.facts.fact import Profile, Provenance, seed, unknown
from flyweight.targets.ane.gates import Decision, Gate, Outcome, decide
from support.engine_weights import engine, use_of

S, F, R, C = Outcome.STREAMS, Outcome.FOLDS, Outcome.REFUSED, Outcome.CANNOT_TELL
CHIPS = ("H11", "M1", "M2", "M3", "M4", "M5", "H18", "M11", "U1")
FORMS = ("fp16", "int8", "int8-tensor", "uint8", "int8-b32", "int4", "int4-b32", "lut1", "lut2", "lut3", "lut4", "lut6", "lut8",
         "lut4-g16", "lut4-v2", "lut8-v2", "sparse 0.37", "fp8")  # fmt: skip


def decided(form: str | CodecSpec, target: str, profile: Profile = Profile.SEED, **fields: object) -> Decision:
    use = use_of(form, **fields)
    return decide(use, use.form, engine(target, profile))


@pytest.mark.parametrize(
    ("form", "outcomes"),
    [
        #                H11 M1 M2 M3 M4 M5 H18 M11 U1
        ("int8",        (F, F, S, S, S, S, S, C, C)),
        ("int8-tensor", (F, F, S, S, S, S, S, C, C)),
        ("lut4",        (F, S, S, S, S, S, S, C, C)),
        ("lut8",        (F, S, S, S, S, S, S, C, C)),
        ("sparse 0.37", (F, S, S, S, S, S, S, C, C)),
        ("int8-b32",    (C, F, F, S, S, S, S, C, C)),
        ("int4-b32",    (C, F, F, F, F, F, F, C, C)),
        ("int4",        (F, F, F, F, F, F, F, F, F)),
        ("lut1",        (C, R, R, R, R, R, R, C, C)),
        ("lut2",        (C, R, R, R, R, R, S, C, C)),
        ("lut3",        (C, R, C, C, C, S, S, C, C)),
        ("lut6",        (C, R, S, S, S, S, S, C, C)),
        ("lut4-g16",    (C, R, R, R, R, S, S, C, C)),
        ("lut4-v2",     (C, S, S, S, S, S, S, C, C)),
        ("fp8",         (R, R, R, R, R, R, S, R, R)),
        ("sparse-lut4 0.5", (C, R, S, S, S, S, S, C, C)),
        ("sparse-int8 0.5", (F, F, C, C, C, C, C, C, C)),
    ],
)  # fmt: skip
def test_the_guides_readings(form: str, outcomes: tuple[Outcome, ...]) -> None:
    assert tuple(decided(form, chip).outcome for chip in CHIPS) == outcomes


@pytest.mark.parametrize(
    ("form", "outcomes"),
    [
        #                H11 M1 M2 M3 M4 M5 H18 M11 U1
        ("int8",        (F, F, S, S, S, F, S, C, C)),
        ("lut4",        (F, S, S, S, S, S, S, C, C)),
        ("sparse 0.37", (F, S, S, S, S, S, S, C, C)),
        ("int8-b32",    (C, R, R, R, R, R, R, C, C)),
        ("int4",        (F, C, C, C, C, C, C, C, C)),
        ("lut2",        (C, S, S, S, S, S, S, C, C)),
        ("lut3",        (C, R, C, C, C, R, S, C, C)),
        ("lut6",        (C, S, S, S, S, S, S, C, C)),
        ("lut4-g16",    (C, R, R, R, R, R, S, C, C)),
        ("lut4-v2",     (C, R, R, R, R, S, S, C, C)),
        ("sparse-lut4 0.5", (C, S, S, S, S, S, S, C, C)),
    ],
)  # fmt: skip
def test_the_readings_of_its_opponents(form: str, outcomes: tuple[Outcome, ...]) -> None:
    assert tuple(decided(form, chip, Profile.DISPUTED).outcome for chip in CHIPS) == outcomes


@pytest.mark.parametrize(
    ("form", "target", "gate"),
    [
        ("int8", "M1", "int8 gate (0x528) of H13"),
        ("int8-b32", "M2", "blockwise gate (0x520) of H14"),
        ("lut4", "H11", "streaming master (0x48f) of H11"),
        ("lut4", "M11", "4-bit palettes of M11"),
        ("sparse 0.37", "U1", "streaming master (0x48f) of U1"),
        ("int4", "M1", "4-bit scalar weights"),
        ("fp8", "M1", "fp8 E4M3 (0x52d) of H13"),
        ("lut6", "M1", "6-bit palettes of H13"),
        ("lut4-g16", "M1", "palettes of several codebooks of H13"),
        ("lut8-v2", "M1", "palette LUT bytes of H13"),
    ],
)
def test_the_gate_that_decides(form: str, target: str, gate: str) -> None:
    decision = decided(form, target)
    assert decision.gate is not None
    assert decision.gate.about == gate
    assert decision.gate in decision.facts
    assert decision.change


def test_symmetric_int8_is_legal_on_the_m1_and_zero_points_are_not() -> None:
    points = CodecSpec("blockwise", {"data": "i8", "block": "1", "offset": "data"})
    refused = decided(points, "M1", is_symmetric=False)
    assert (refused.outcome, refused.gate and refused.gate.about) == (R, "zero points of affine weights of H13")
    assert decided(points, "M1", is_symmetric=True).outcome is F, "zero points that are all zero are none"
    assert decided(points, "M5", is_symmetric=False).outcome is S


@pytest.mark.parametrize("size", range(1, 9))
def test_vector_sizes(size: int) -> None:
    codec = CodecSpec("palette", {"bits": 4, "vector": size, "vector_axis": 0})
    seed_outcome, disputed_outcome = (decided(codec, "M5", profile, shape=(1680, 64)).outcome for profile in Profile)
    assert seed_outcome is (S if size in (1, 2, 4, 5) else R)
    assert disputed_outcome is (S if size in (1, 2, 4) else R)


def test_vectors_run_along_output_channels() -> None:
    across = CodecSpec("palette", {"bits": 4, "vector": 2, "vector_axis": 1})
    decision = decided(across, "M5")
    assert (decision.outcome, decision.gate and decision.gate.source) == (R, "M6 study")
    assert decided(across, "M5", op="matmul", channel_axis=1).outcome is S


def test_codebooks_of_input_channels_are_not_known() -> None:
    decision = decided(CodecSpec("palette", {"bits": 4, "group": 16, "axis": 1}), "M5")
    assert (decision.outcome, decision.gate and decision.gate.about) == (C, "codebooks for input channels")


def test_a_palette_with_scales_has_fewer_than_256_entries() -> None:
    def scaled(bits: int) -> CodecSpec:
        return CodecSpec("palette", {"bits": bits, "table": "i8", "scale": "f16"})

    assert decided(scaled(4), "M1").outcome is S
    refused = decided(scaled(8), "M1")
    assert (refused.outcome, refused.change) == (R, "use 6 bits or fewer")


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"strides": (2, 2)}, "unit stride on all axes of a streamed weight"),
        ({"strides": (1, 2)}, "unit stride on all axes of a streamed weight"),
        ({"dilations": (2, 2)}, "no dilation of a streamed weight"),
        ({"mutable": True}, "a streamed weight is immutable"),
    ],
)
def test_the_layer_must_allow_streaming(fields: dict[str, object], rule: str) -> None:
    assert decided("lut4", "M1", op="conv", strides=(1, 1), dilations=(1, 1)).outcome is S
    decision = decided("lut4", "M1", op="conv", **fields)
    assert (decision.outcome, decision.gate and decision.gate.about) == (F, rule)


def test_variables_take_no_codes() -> None:
    assert decided("int8", "M2", mutable=True).outcome is R
    assert decided("lut4-v2", "M5", mutable=True).outcome is R
    assert decided("sparse 0.37", "M2", mutable=True).outcome is F


def test_what_is_not_asked() -> None:
    assert decided("fp16", "M1").outcome is Outcome.DENSE
    assert decided("lut4", "M1", op="gather").outcome is Outcome.NO_KERNEL
    assert decided(CodecSpec("q4_k"), "M1").outcome is Outcome.NO_FORM
    assert decided(CodecSpec("nobody knows it"), "M1").outcome is Outcome.NO_FORM
    assert decided("sparse 1", "M1").outcome is Outcome.DENSE, "a mask that keeps all"
    assert decided(CodecSpec("sparse", {"form": "stream", "stored": 5, "inner": RAW}), "M1").outcome is S


def test_a_gate_rests_on_a_fact() -> None:
    with pytest.raises(TypeError, match="rests on a fact"):
        Gate(True, True, "", "")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="rests on a fact"):
        Gate(seed(True), True, "", "")  # about nothing
    for answer in (True, False):
        with pytest.raises(ValueError, match="nothing follows"):
            Gate(unknown().named("a byte"), answer, "", "")


@pytest.mark.parametrize("profile", Profile)
@pytest.mark.parametrize("target", TARGETS)
def test_no_decision_rests_on_what_nobody_knows(target: str, profile: Profile) -> None:
    for form in FORMS:
        decision = decided(form, target, profile)
        unknowns = [fact for fact in decision.facts if fact.provenance is Provenance.UNKNOWN]
        if decision.outcome is C:
            assert unknowns == [decision.gate]
        else:
            assert not unknowns
        assert decision.facts or decision.outcome is Outcome.DENSE
