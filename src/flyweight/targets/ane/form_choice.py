"""`--form auto`: for each weight the smallest form that streams on a target and keeps its error within a budget.

The error is the relative RMS error of the weights, ‖w' − w‖ / ‖w‖, measured on the weights with the codec and the quantizer
that a conversion uses; of large weights, on a sample of their channels (`weight_samples`).

The default budget is 0.17. One codebook of 4 bits for a whole matrix, the one small form that streams on every target from
the M1 on, costs 0.11 to 0.16 on the weights of real models; for a Gaussian no 4-bit codebook is below 0.097, and no 3-bit one
below 0.186. So 0.17 admits 4 bits and nothing coarser. At 0.05, every 4-bit form would be refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flyweight.checkpoint import Checkpoint
from flyweight.codecs import Array, codec_for, known
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, UnsupportedError
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.models import dense_by_default
from flyweight.quantizers import QUANTIZERS
from flyweight.targets.ane.facts.engine import Engine
from flyweight.targets.ane.facts.engine_targets import Target
from flyweight.targets.ane.facts.fact import Profile
from flyweight.targets.ane.gates import Outcome
from flyweight.targets.ane.model_uses import model_uses
from flyweight.targets.ane.named_forms import AUTO, CANDIDATES, DENSE, codec_of_form, counts_zeros, quantizer_of_form
from flyweight.targets.ane.stream_size import dense_bytes
from flyweight.targets.ane.weight_plan import plan_weight
from flyweight.targets.ane.weight_samples import relative_error, sampled
from flyweight.targets.ane.weight_use import WeightUse

ERROR_BUDGET = 0.17
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Trial:
    """A form that streams, and what it was measured to lose."""

    form: str
    nbytes: int
    error: float


@dataclass(frozen=True, slots=True)
class FormChoice:
    """The form chosen for a weight; fp16 where no other will do."""

    form: str
    codec: CodecSpec
    """As a recipe asks for it."""
    planned: CodecSpec
    """The same with the sizes that were found on the sample."""
    quantizer: str
    error: float
    nbytes: int
    """That cross the stream."""
    tried: tuple[Trial, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "form": self.form,
            "codec": self.codec.as_json(),
            "quantizer": self.quantizer,
            "error": self.error,
            "nbytes": self.nbytes,
            "tried": [{"form": trial.form, "nbytes": trial.nbytes, "error": trial.error} for trial in self.tried],
        }


def choose_forms(
    checkpoint: Checkpoint,
    target: Target,
    profile: Profile = Profile.SEED,
    budget: float = ERROR_BUDGET,
    progress: Progress | None = None,
) -> dict[str, FormChoice]:
    """A form for every matrix of a checkpoint but embeddings, output head and norms, which are better kept as they are.

    The result is data: a recipe by name is made of it, and the plan of its codecs is what the target does with them.
    """
    engine = Engine(target, profile)
    uses = [use for use in model_uses(checkpoint) if chooses(use)]
    total = sum(use.spec.size for use in uses)
    chosen = {}
    for use in uses:
        try:
            chosen[use.name] = choose_form(use, sampled(checkpoint, use.name), engine, budget)
        except FlyweightError as error:
            raise error.at(file=checkpoint.bundle.name, tensor=use.name) from None
        if progress is not None:
            progress(use.name, use.spec.size, total)
    return chosen


def chooses(use: WeightUse) -> bool:
    """Whether a form is chosen for a weight at all."""
    return use.is_kernel and known(use.codec) and not dense_by_default(use.name)


def choose_form(use: WeightUse, sample: Array, engine: Engine, budget: float) -> FormChoice:
    """The first of the forms that stream, by size, whose error on the sample is within the budget; else dense fp16."""
    if not np.isfinite(sample).all():
        raise UnsupportedError("it has NaN or infinite weights", code="E_PART_VALUES")
    tried: list[Trial] = []
    for nbytes, form, codec in sorted(_streaming(use, engine, _stored(use, sample)), key=lambda candidate: candidate[:2]):
        error = form_error(codec, sample, _quantizer(form, codec))
        tried.append(Trial(form, nbytes, error))
        if error <= budget:
            return _choice(form, codec, error, nbytes, tried)
    return _choice(DENSE, RAW, form_error(RAW, sample, "nearest"), dense_bytes(use.spec.size), tried)


def _choice(form: str, planned: CodecSpec, error: float, nbytes: int, tried: list[Trial]) -> FormChoice:
    codec = codec_of_form(form)
    return FormChoice(form, codec, planned, _quantizer(form, codec), error, nbytes, tuple(tried))


def _quantizer(form: str, codec: CodecSpec) -> str:
    return quantizer_of_form(form) or codec_for(codec).quantizer


def _streaming(use: WeightUse, engine: Engine, stored: int) -> list[tuple[int, str, CodecSpec]]:
    """Bytes, name and codec of the forms that stream and are smaller than fp16."""
    found = []
    for form in CANDIDATES:
        codec = codec_of_form(form)
        if counts_zeros(codec):
            codec = codec.with_params(stored=stored)
        plan = plan_weight(replace(use, codec=codec, spec=TensorSpec(use.spec.shape, DType.F16)), engine)
        if plan.decision.outcome is Outcome.STREAMS and plan.compressed is not None and plan.compressed < plan.dense:
            found.append((plan.compressed, form, codec))
    return found


def form_error(codec: CodecSpec, sample: Array, quantizer: str) -> float:
    """The relative RMS error of a sample in a codec, filled as a conversion would; infinite where it cannot hold the values."""
    half = TensorSpec(sample.shape, DType.F16)
    wide = TensorSpec(sample.shape, DType.F32)
    with np.errstate(over="ignore"):
        values = sample.astype(np.float16)
    if not np.isfinite(values).all():
        return float("inf")
    try:
        asked = codec_for(codec)
        spec = half if asked.exact else wide
        fitted = asked.fit(spec, values)
        parts = QUANTIZERS[quantizer](values, fitted, spec)
        return relative_error(sample, fitted.decode(spec, parts).astype(np.float32))
    except UnsupportedError:
        return float("inf")


# A whole model in a form --------------------------------------------------------------------------


def uses_in_form(
    checkpoint: Checkpoint, uses: Iterable[WeightUse], form: str, chosen: Mapping[str, FormChoice]
) -> Iterator[WeightUse]:
    """The weights as a conversion to a form would leave them: what no form is chosen for becomes fp16.

    `chosen` is what `choose_forms` found, for the form `auto`. The zeros of sparse forms are counted on a sample.
    """
    for use in uses:
        half = replace(use, spec=TensorSpec(use.spec.shape, DType.F16), codec=RAW)
        if use.name in chosen:
            yield replace(half, codec=chosen[use.name].planned)
        elif form == AUTO or not chooses(use):
            yield half if use.is_kernel else use
        elif counts_zeros(codec := codec_of_form(form)):
            kept = _stored(use, sampled(checkpoint, use.name))
            yield replace(half, codec=codec.with_params(stored=kept), zero_fraction=1 - kept / use.spec.size)
        else:
            yield replace(half, codec=codec)


def _stored(use: WeightUse, sample: Array) -> int:
    """Weights that are not zero, as many as the sample has."""
    return round(np.count_nonzero(sample) / max(sample.size, 1) * use.spec.size)
