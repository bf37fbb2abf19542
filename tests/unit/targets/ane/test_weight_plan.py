"""Plans of weights: totals, budgets, consequences, and what they rest on."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from flyweight.foundation.tensor import CodecSpec
from flyweight.targets.ane.facts.engine_targets import TARGETS
from flyweight.targets.ane.facts.fact import Profile, Provenance
from flyweight.targets.ane.gates import Outcome
from flyweight.targets.ane.plan_lines import differences, facts_of, findings, plan_lines
from flyweight.targets.ane.weight_plan import WeightPlan, plan_weight, plan_weights
from support.engine_weights import engine, use_of

FORMS = ("fp16", "int8", "int8-b32", "int4", "lut1", "lut4", "lut8-v2", "sparse 0.37", "fp8")


def pieces(plan: WeightPlan) -> int | None:
    assert plan.budget is not None
    return plan.budget.pieces


def planned(form: str | CodecSpec, target: str = "M1", profile: Profile = Profile.SEED, **fields: object) -> WeightPlan:
    return plan_weight(use_of(form, **fields), engine(target, profile))


def test_what_streams_moves_compressed_and_what_folds_moves_dense() -> None:
    palette, folded = planned("lut4"), planned("int8")
    assert (palette.moved, palette.compressed, palette.dense) == (2048**2 // 2 + 32, 2048**2 // 2 + 32, 2 * 2048**2)
    assert (folded.moved, folded.compressed) == (2 * 2048**2, 2048**2 + 4096)
    assert planned("lut1").moved is planned("lut3", "M2").moved is None
    assert planned(CodecSpec("q4_0")).moved == 2 * 2048**2


def test_a_streamed_weight_has_the_relaxed_cap() -> None:
    assert (pieces(planned("lut4")), pieces(planned("fp16"))) == (1, 128)
    assert pieces(planned("lut4", shape=(16384, 8192))) == 5  # 64 MB of indices, and 32 bytes
    assert pieces(planned("lut4", "M2")) is None, "nobody gives the streamed cap of the M2"


def test_a_weight_of_the_cap_is_not_split() -> None:
    assert [pieces(planned("fp16", shape=(256, columns))) for columns in (128, 129)] == [1, 2]


def test_kernel_formats() -> None:
    numbers = {form: planned(form).kernel_format for form in ("int8", "fp16", "lut4", "lut2", "lut8", "int4")}
    assert {form: fact and fact.value for form, fact in numbers.items()} == {
        "int8": 1, "fp16": 4, "lut4": 21, "lut2": 13, "lut8": 27, "int4": 31,
    }  # fmt: skip


def test_foreign_codecs_get_the_nearest_form_that_streams() -> None:
    assert "lut4 is the nearest" in planned(CodecSpec("q4_0")).decision.change
    assert "lut8 is the nearest" in planned(CodecSpec("q8_0")).decision.change, "int8 folds on the M1"
    assert "int8 is the nearest" in planned(CodecSpec("q8_0"), "M2").decision.change
    assert "no form is known to stream" in planned(CodecSpec("q8_0"), "H11").decision.change


# Consequences


def texts(plan: WeightPlan) -> str:
    return " | ".join(note.text for note in plan.notes)


def test_winograd() -> None:
    conv = {"op": "conv", "kernel": (3, 3), "shape": (64, 64, 3, 3)}
    assert "off the Winograd path" in texts(planned("sparse 0.5", **conv))
    assert "slower at 50 %" in texts(planned("sparse 0.5", **conv))
    assert "stays eligible" in texts(planned("lut4", **conv))
    assert "unknown" in texts(planned("lut4", "M2", **conv))
    assert "not there to lose" in texts(planned("lut4", "M1", Profile.DISPUTED, **conv))
    unsigned = CodecSpec("blockwise", {"data": "u8", "block": "1"})
    assert "do not take the Winograd path" in texts(planned(unsigned, **conv))
    for other in ({"kernel": (1, 1)}, {"kernel": (5, 5)}, {"kernel": (3, 7)}, {"strides": (2, 2)}):
        assert "Winograd" not in texts(planned("lut4", **(conv | other)))
    assert "Winograd" in texts(planned("lut4", **(conv | {"kernel": (3, 5)})))
    assert "Winograd" not in texts(planned("lut4"))


def test_zeros() -> None:
    assert "63% zeros are skipped" in texts(planned("sparse 0.37"))
    assert "multiplied like any weight" in texts(planned("sparse 0.37", "M1", Profile.DISPUTED))
    assert "at 50% density the array took 0.69" in texts(planned("sparse 0.45", "M4"))
    assert "unknown" in texts(planned("sparse 0.37", "M11"))
    assert "with a mask it would stream only" in texts(planned("fp16", zero_fraction=0.2))
    assert "with a mask" not in texts(planned("fp16", zero_fraction=0.1))
    assert texts(planned("fp16")) == texts(planned("fp16", zero_fraction=0.0)) == ""


# Many weights


def test_totals_lines_and_findings() -> None:
    palettes = [replace(use_of("lut4"), name=f"layers.{i}.mlp.up_2.weight") for i in range(11)]
    integers = [replace(use_of("int8"), name=f"layers.{i}.mlp.down_2.weight") for i in range(5)]
    odd = replace(use_of("lut4", (2048, 1024)), name="layers.11.mlp.up_2.weight")
    plan = plan_weights([*palettes, *integers, odd], engine("M1"))
    assert {outcome: total.tensors for outcome, total in plan.totals.items()} == {Outcome.STREAMS: 12, Outcome.FOLDS: 5}
    assert plan.moved == 11 * (2048**2 // 2 + 32) + 5 * 2 * 2048**2 + 2048 * 512 + 32
    lines = plan_lines(plan)
    assert [(line.name, line.count) for line in lines] == [
        ("layers.*.mlp.up_2.weight", 11), ("layers.*.mlp.down_2.weight", 5), ("layers.11.mlp.up_2.weight", 1),
    ]  # fmt: skip
    assert sum(line.moved or 0 for line in lines) == plan.moved
    assert len(plan_lines(plan, each=True)) == 17
    (finding,) = findings(plan)
    assert (finding.outcome, finding.tensors, finding.gate and finding.gate.about) == (
        Outcome.FOLDS, 5, "int8 gate (0x528) of H13",
    )  # fmt: skip
    assert plan.seconds == pytest.approx(plan.moved / 48e9 + 0.23e-3)
    assert plan.speed_up is not None
    assert plan.speed_up.most == plan.dense / plan.moved
    bodies = 11 * (2048**2 // 2) + 5 * 2 * 2048**2 + 2048 * 512
    assert plan.segment_bytes == -(-(bodies + 12 * 4 * 64) // 16384) * 16384, "a codebook for each of four engines"


def test_without_engines_there_is_no_segment() -> None:
    assert plan_weights([use_of("fp16")], engine("T0")).segment_bytes is None
    assert plan_weights([use_of("lut1")], engine("M1")).speed_up is None


def test_sparse_layers_of_different_counts_share_a_line() -> None:
    uses = [replace(use_of(f"sparse {density}"), name=f"l.{i}.w") for i, density in enumerate((0.3, 0.4, 0.5))]
    plan = plan_weights(uses, engine("M1"))
    (line,) = plan_lines(plan)
    assert (line.name, line.count, line.moved) == ("l.*.w", 3, plan.moved)


def test_where_the_profiles_differ() -> None:
    plan = plan_weights([use_of("lut4-v2"), use_of("lut4")], engine("M1"))
    (found,) = differences(plan)
    assert (found.tensors, found.outcome, found.other) == (1, Outcome.STREAMS, Outcome.REFUSED)
    assert found.fact is not None
    assert found.fact.provenance is Provenance.DISPUTED


def test_left_out() -> None:
    plan = plan_weights([use_of("lut1"), use_of("lut4")], engine("M1"))
    assert (plan.left_out, plan.dense, plan.moved) == (1, 2 * 2048**2, 2048**2 // 2 + 32)


@pytest.mark.parametrize("profile", Profile)
@pytest.mark.parametrize("target", TARGETS)
def test_every_number_of_a_plan_rests_on_facts_with_provenance(target: str, profile: Profile) -> None:
    plan = plan_weights([use_of(form) for form in FORMS], engine(target, profile))
    for weight in plan.weights:
        unknown = {fact for fact in weight.facts if fact.provenance is Provenance.UNKNOWN}
        excused = {weight.decision.gate} if weight.decision.outcome is Outcome.CANNOT_TELL else set()
        excused |= {weight.kernel_format} if weight.kernel_format and weight.kernel_format.value is None else set()
        excused |= {weight.budget.cap} if weight.budget and weight.budget.pieces is None else set()
        excused |= {fact for note in weight.notes if "unknown" in note.text for fact in note.facts}
        excused |= set(weight.time.facts) if weight.time.seconds is None else set()
        assert unknown <= excused, weight.use.codec
        assert weight.time.seconds is None or all(fact.known for fact in weight.time.facts)
        if weight.moved is not None:
            assert weight.budget is not None
            assert weight.budget.cap in weight.facts
    assert all(fact.about for fact in facts_of(plan))


def test_json() -> None:
    plan = plan_weights([use_of("lut4"), use_of("lut1"), use_of(CodecSpec("q4_0"))], engine("M1"))
    document = json.loads(json.dumps(plan.as_json()))
    assert (document["target"], document["profile"]) == ("H13", "seed")
    palette, refused, foreign = document["weights"]
    assert (palette["outcome"], palette["kernel_format"], palette["pieces"]) == ("streams", 21, 1)
    assert (refused["moved_bytes"], refused["gate"]) == (None, "1-bit palettes of H13")
    assert (foreign["form"], foreign["moved_bytes"]) == (None, 8388608)
    assert all(document["facts"][number]["provenance"] for weight in document["weights"] for number in weight["facts"])
