"""`--form auto`: the smallest form that streams and stays within the budget, measured on the weights."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from flyweight.checkpoint import open_checkpoint
from flyweight.codecs import codec_for
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import ArgumentError, UnsupportedError
from flyweight.foundation.tensor import TensorSpec
from flyweight.quantizers import QUANTIZERS
from flyweight.targets.ane import weight_samples
from flyweight.targets.ane.facts.engine_targets import target_named
from flyweight.targets.ane.facts.fact import Profile
from flyweight.targets.ane.form_choice import ERROR_BUDGET, choose_form, choose_forms, uses_in_form
from flyweight.targets.ane.gates import Outcome
from flyweight.targets.ane.model_uses import model_uses
from flyweight.targets.ane.named_forms import CANDIDATES, codec_of_form, forms
from flyweight.targets.ane.weight_plan import plan_weight, plan_weights
from flyweight.targets.ane.weight_samples import MeasuredForms, chosen_runs, relative_error, sampled
from support.engine_weights import engine, use_of
from support.toys import safetensors_bytes

RNG = np.random.default_rng(25)
GAUSS = RNG.normal(0, 0.02, (256, 512)).astype(np.float32)
FOUR_BITS = 0.17
"""The error that admits one codebook of 4 bits, and none of 3."""


def measured(sample: np.ndarray) -> MeasuredForms:
    return MeasuredForms(lambda: sample)


def pruned(share: float) -> np.ndarray:
    values = GAUSS.copy()
    values[np.abs(values) < np.quantile(np.abs(values), share)] = 0
    return values


@pytest.mark.parametrize(
    ("target", "profile", "budget", "form"),
    [
        ("M1", Profile.SEED, FOUR_BITS, "lut4"),
        ("M1", Profile.SEED, ERROR_BUDGET, "lut8"),
        ("M1", Profile.DISPUTED, 0.05, "lut6"),
        ("M2", Profile.SEED, FOUR_BITS, "lut4"),
        ("M2", Profile.SEED, ERROR_BUDGET, "lut6"),
        ("M2", Profile.SEED, 0.012, "int8"),
        ("H18", Profile.SEED, 0.25, "lut3"),
        ("H18", Profile.SEED, 0.4, "lut2"),
        ("M1", Profile.SEED, 0.4, "lut4"),
        ("M1", Profile.SEED, 1e-4, "fp16"),
        ("H11", Profile.SEED, ERROR_BUDGET, "fp16"),
        ("M11", Profile.SEED, ERROR_BUDGET, "fp16"),
    ],
)
def test_gaussian_weights(target: str, profile: Profile, budget: float, form: str) -> None:
    chosen = choose_form(use_of("fp16", GAUSS.shape), measured(GAUSS), engine(target, profile), budget)
    assert chosen.form == form
    assert chosen.error <= budget or form == "fp16"
    assert [trial.nbytes for trial in chosen.tried] == sorted(trial.nbytes for trial in chosen.tried)


def test_zeros_make_sparse_the_smallest_exact_form() -> None:
    use = use_of("fp16", GAUSS.shape)
    chosen = choose_form(use, measured(pruned(0.63)), engine("M1"), 0.01)
    assert (chosen.form, round(chosen.nbytes / use.spec.size / 2, 2)) == ("sparse", 0.43)
    assert chosen.error < 2**-11  # the rounding to fp16
    assert "stored" not in chosen.codec.params, "a recipe counts again"
    assert chosen.planned.params["stored"] == np.count_nonzero(pruned(0.63))


def test_the_default_budget_lies_between_six_and_four_bits() -> None:
    """Lloyd and Max: no codebook of a Gaussian is below 0.0975 with 16 entries, 0.186 with 8."""
    six, four, three = (measured(GAUSS).error(form) for form in ("lut6", "lut4", "lut3"))
    assert six < ERROR_BUDGET < 0.09 < four < 0.16 < FOUR_BITS < 0.18 < three < 0.2


def test_what_is_chosen_streams_and_its_error_is_that_of_the_conversion() -> None:
    chosen = choose_form(use_of("fp16", GAUSS.shape), measured(GAUSS), engine("M1"), ERROR_BUDGET)
    assert plan_weight(use_of(chosen.planned, GAUSS.shape), engine("M1")).decision.outcome is Outcome.STREAMS
    codec, spec = codec_for(chosen.codec), TensorSpec(GAUSS.shape, DType.F32)
    parts = QUANTIZERS[chosen.quantizer](GAUSS.astype(np.float16), codec, spec)
    decoded = codec.decode(spec, parts)
    assert chosen.error == pytest.approx(np.linalg.norm(decoded - GAUSS) / np.linalg.norm(GAUSS), rel=1e-6)
    assert chosen.nbytes == sum(part.nbytes for part in parts.values())


def test_values_beyond_f16_fit_no_form() -> None:
    large = GAUSS.copy()
    large[0, 0] = 1e6
    chosen = choose_form(use_of("fp16", GAUSS.shape), measured(large), engine("M1"), ERROR_BUDGET)
    assert (chosen.form, chosen.error) == ("fp16", np.inf)
    large[0, 0] = np.nan
    with pytest.raises(UnsupportedError, match="NaN"):
        choose_form(use_of("fp16", GAUSS.shape), measured(large), engine("M1"), ERROR_BUDGET)


def test_what_is_measured_for_one_target_serves_another() -> None:
    read: list[int] = []

    def load() -> np.ndarray:
        read.append(1)
        return GAUSS

    shared, use = MeasuredForms(load), use_of("fp16", GAUSS.shape)
    first = choose_form(use, shared, engine("M1"), FOUR_BITS)
    shared.release()
    assert choose_form(use, shared, engine("M2"), FOUR_BITS) == first
    assert len(read) == 1
    assert choose_form(use, shared, engine("M2"), 0.05).form == "lut6"
    assert len(read) == 2


def test_zeros_alone() -> None:
    zeros = np.zeros((8, 64), np.float32)
    assert choose_form(use_of("fp16", zeros.shape), measured(zeros), engine("M1"), 0.01).error == 0


# Samples


@pytest.mark.parametrize(
    ("channels", "width", "most"), [(1000, 64, 64 * 100), (17, 100, 100), (1, 5000, 10), (4096, 4096, 1 << 22)]
)
def test_runs_are_bounded_ascending_and_apart(channels: int, width: int, most: int) -> None:
    runs = list(chosen_runs(channels, width, most))
    assert runs == sorted(runs)
    assert all(start < stop <= channels for start, stop in runs)
    assert all(a[1] <= b[0] for a, b in pairwise(runs))
    assert sum(stop - start for start, stop in runs) * width <= max(most, width)
    if len(runs) > 1:
        assert (runs[0][0], channels - runs[-1][1] < weight_samples.RUN) == (0, True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forms") / "model.safetensors"
    conv = RNG.normal(0, 0.1, (32, 8, 3, 3)).astype(np.float16)
    tensors = {
        "model.embed_tokens.weight": GAUSS[:64].astype(np.float16),
        "layers.0.up.weight": GAUSS.astype(np.float16),
        "layers.1.up.weight": pruned(0.63).astype(np.float16),
        "conv.weight": conv,
        "layers.0.up.bias": np.ones(256, np.float16),
    }
    path.write_bytes(safetensors_bytes(tensors))
    return path


def test_samples_are_channels_of_the_tensor(model: Path, tmp_path: Path) -> None:
    with open_checkpoint(model) as checkpoint:
        whole = checkpoint["layers.0.up.weight"].astype(np.float32)
        assert np.array_equal(sampled(checkpoint, "layers.0.up.weight"), whole)
        some = sampled(checkpoint, "layers.0.up.weight", most=512 * 64)
        rows = [row for start, stop in chosen_runs(256, 512, 512 * 64) for row in range(start, stop)]
        assert len(rows) == 64
        assert np.array_equal(some, whole[rows])
        assert sampled(checkpoint, "conv.weight").shape == (32, 72)


def test_samples_of_tensors_without_rows(model: Path, tmp_path: Path) -> None:
    from flyweight.api import convert

    packed = tmp_path / "palettes.mlpackage"
    convert(model, packed, to="coreml", quant="lut4")
    with open_checkpoint(packed) as checkpoint:
        name = next(name for name in checkpoint if "layers" in name and "0" in name and "weight" in name)
        whole = checkpoint[name]
        rows = [row for start, stop in chosen_runs(256, 512, 512 * 64) for row in range(start, stop)]
        assert np.array_equal(sampled(checkpoint, name, most=512 * 64), whole[rows])


def test_error_of_zeros() -> None:
    zeros = np.zeros((2, 3), np.float32)
    assert (relative_error(zeros, zeros), relative_error(zeros, zeros + 1)) == (0, np.inf)


# Models


def test_forms_of_a_model(model: Path) -> None:
    told: list[tuple[str, int, int]] = []
    with open_checkpoint(model) as checkpoint:
        chosen = choose_forms(checkpoint, target_named("M1"), budget=FOUR_BITS, progress=lambda *step: told.append(step))
        uses = list(model_uses(checkpoint))
        plan = plan_weights(uses_in_form(checkpoint, uses, "auto", chosen), engine("M1"))
        sparse = plan_weights(uses_in_form(checkpoint, uses, "sparse", {}), engine("M1"))
    assert {name: choice.form for name, choice in chosen.items()} == {
        "layers.0.up.weight": "lut4", "layers.1.up.weight": "lut4", "conv.weight": "lut4",
    }  # fmt: skip
    assert sum(size for _, size, _ in told) == told[0][2]
    outcomes = {weight.use.name: weight.decision.outcome for weight in plan.weights}
    assert outcomes.pop("model.embed_tokens.weight") is Outcome.DENSE
    assert set(outcomes.values()) == {Outcome.STREAMS}
    kept = {weight.use.name: weight.moved for weight in sparse.weights}
    assert round((kept["layers.1.up.weight"] or 0) / GAUSS.size / 2, 2) == 0.43


def test_a_convolution_of_a_checkpoint(model: Path) -> None:
    with open_checkpoint(model) as checkpoint:
        uses = {use.name: use for use in model_uses(checkpoint, 7)}
    assert (uses["conv.weight"].op, uses["conv.weight"].kernel, uses["conv.weight"].positions) == ("conv", (3, 3), 7)
    assert uses["layers.0.up.weight"].op == "linear"
    assert "layers.0.up.bias" not in uses


def test_names_of_forms() -> None:
    assert set(CANDIDATES) < set(forms())
    assert str(codec_of_form("lut4-g32")) == "palette(bits=4, table=f16, group=32, axis=0)"
    assert codec_of_form("int8-b64").params["block"] == "1x64"
    with pytest.raises(ArgumentError, match="did you mean lut") as refused:
        codec_of_form("lut5")
    assert refused.value.code == "E_FORM"
