"""`--form auto`: for each weight the smallest form that streams on a target and keeps its error within a budget.

The error is the relative RMS error of the weights, ‖w' − w‖ / ‖w‖, measured on the weights with the codec and the quantizer
that a conversion uses; of large weights, on a sample of their channels (`weight_samples`).

The default budget is 0.05. One codebook of 4 bits for a whole matrix, the smallest form that streams on every target from the
M1 on, costs 0.11 to 0.16 on the weights of real models (for a Gaussian no 4-bit codebook is below 0.097), and a small model
does not survive it: SmolLM2-135M has a KL divergence of 8.7 nats with it, 0.03 with 6 bits, 0.002 with 8. So 4 bits are for
who asks for them, with a budget of 0.17, and measures the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from flyweight.checkpoint import Checkpoint
from flyweight.codecs import known
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.models import dense_by_default
from flyweight.targets.ane.facts.engine import Engine
from flyweight.targets.ane.facts.engine_targets import Target
from flyweight.targets.ane.facts.fact import Profile
from flyweight.targets.ane.gates import Outcome
from flyweight.targets.ane.model_uses import model_uses
from flyweight.targets.ane.named_forms import AUTO, CANDIDATES, DENSE, codec_of_form, counts_zeros, quantizer_of_form
from flyweight.targets.ane.stream_size import dense_bytes
from flyweight.targets.ane.weight_plan import plan_weight
from flyweight.targets.ane.weight_samples import MeasuredForms, sampled
from flyweight.targets.ane.weight_use import WeightUse

ERROR_BUDGET = 0.05
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
    measured: dict[str, MeasuredForms] | None = None,
) -> dict[str, FormChoice]:
    """A form for every matrix of a checkpoint but embeddings, output head and norms, which are better kept as they are.

    The result is data: a recipe by name is made of it, and the plan of its codecs is what the target does with them. What is
    measured on the way is left in `measured`, for another target.
    """
    measured = {} if measured is None else measured
    engine = Engine(target, profile)
    uses = [use for use in model_uses(checkpoint) if chooses(use)]
    total = sum(use.spec.size for use in uses)
    chosen = {}
    for use in uses:
        try:
            known_errors = measured.setdefault(use.name, MeasuredForms(partial(sampled, checkpoint, use.name)))
            chosen[use.name] = choose_form(use, known_errors, engine, budget)
            known_errors.release()
        except FlyweightError as error:
            raise error.at(file=checkpoint.bundle.name, tensor=use.name) from None
        if progress is not None:
            progress(use.name, use.spec.size, total)
    return chosen


def chooses(use: WeightUse) -> bool:
    """Whether a form is chosen for a weight at all."""
    return use.is_kernel and known(use.codec) and not dense_by_default(use.name)


def choose_form(use: WeightUse, measured: MeasuredForms, engine: Engine, budget: float) -> FormChoice:
    """The first of the forms that stream, by size, whose error on the sample is within the budget; else dense fp16."""
    tried: list[Trial] = []
    for nbytes, form, codec in sorted(_streaming(use, engine, measured), key=lambda candidate: candidate[:2]):
        error = measured.error(form)
        tried.append(Trial(form, nbytes, error))
        if error <= budget:
            return _choice(form, codec, error, nbytes, tried)
    return _choice(DENSE, RAW, measured.error(DENSE), dense_bytes(use.spec.size), tried)


def _choice(form: str, planned: CodecSpec, error: float, nbytes: int, tried: list[Trial]) -> FormChoice:
    return FormChoice(form, codec_of_form(form), planned, quantizer_of_form(form), error, nbytes, tuple(tried))


def _streaming(use: WeightUse, engine: Engine, measured: MeasuredForms) -> list[tuple[int, str, CodecSpec]]:
    """Bytes, name and codec of the forms that stream and are smaller than fp16."""
    found = []
    for form in CANDIDATES:
        converted = _converted(use, form, measured)
        plan, codec = plan_weight(converted, engine), converted.codec
        if plan.decision.outcome is Outcome.STREAMS and plan.compressed is not None and plan.compressed < plan.dense:
            found.append((plan.compressed, form, codec))
    return found


# A whole model in a form --------------------------------------------------------------------------


def uses_in_form(
    checkpoint: Checkpoint, uses: Iterable[WeightUse], form: str, chosen: Mapping[str, FormChoice]
) -> Iterator[WeightUse]:
    """The weights as a conversion to a form would leave them: what no form is chosen for becomes fp16.

    `chosen` is what `choose_forms` found, for the form `auto`. The zeros of sparse forms are counted on a sample.
    """
    for use in uses:
        measured = MeasuredForms(partial(sampled, checkpoint, use.name))
        if use.name in chosen:
            yield replace(_converted(use, DENSE, measured), codec=chosen[use.name].planned)
        elif not use.is_kernel:
            yield use
        else:
            yield _converted(use, form if form != AUTO and chooses(use) else DENSE, measured)


def _converted(use: WeightUse, form: str, measured: MeasuredForms) -> WeightUse:
    """The weight in another form. Its zeros are counted where the form depends on them."""
    half = replace(use, spec=TensorSpec(use.spec.shape, DType.F16), codec=codec_of_form(form), is_symmetric=False)
    if not counts_zeros(half.codec):
        return half
    kept = round(measured.density * use.spec.size)
    return replace(half, codec=half.codec.with_params(stored=kept), zero_fraction=1 - measured.density)
