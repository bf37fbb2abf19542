"""Conversions for a target: forms that it streams, chosen by `targets.ane`, and what it does with what is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from flyweight.checkpoint import Checkpoint
from flyweight.containers.options import NamesTarget
from flyweight.foundation.dtypes import DType
from flyweight.foundation.manifest import Entry
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.models import dense_by_default
from flyweight.pipeline.plans.recipe import STORED, ByName, Choice
from flyweight.targets.ane.facts.engine import Engine
from flyweight.targets.ane.facts.engine_targets import target_named
from flyweight.targets.ane.facts.fact import Profile
from flyweight.targets.ane.form_choice import ERROR_BUDGET, choose_forms
from flyweight.targets.ane.gates import Outcome
from flyweight.targets.ane.model_uses import model_uses
from flyweight.targets.ane.weight_plan import plan_weights

_OF_THE_WEIGHT = ("scale", "table")
_SHOWN = {Outcome.STREAMS: "stream", Outcome.FOLDS: "fold to dense fp16", Outcome.DENSE: "are dense"}


def engine_of(wish: NamesTarget) -> Engine:
    return Engine(target_named(wish.target or ""), Profile(wish.profile or Profile.SEED.value))


def recipe_for_target(checkpoint: Checkpoint, wish: NamesTarget) -> ByName:
    """For each weight the smallest form that the target streams, within the error that is allowed; others stay as they are."""
    engine = engine_of(wish)
    chosen = choose_forms(checkpoint, engine.target, engine.profile, wish.max_error or ERROR_BUDGET)
    choices = {name: Choice(_typed(form.codec), form.quantizer) for name, form in chosen.items() if form.codec != RAW}
    return ByName(f"auto for {engine.target}", choices=choices)


def _typed(codec: CodecSpec) -> CodecSpec:
    """With scales and tables of the element type that a tensor has: a program takes no other."""
    return codec.with_params(**dict.fromkeys((key for key in _OF_THE_WEIGHT if codec.params.get(key)), STORED))


def target_notes(checkpoint: Checkpoint, entries: Mapping[str, Entry], wish: NamesTarget) -> tuple[str, ...]:
    """What the target does with these weights, for people."""
    engine = engine_of(wish)
    uses = [
        replace(
            use, spec=TensorSpec(use.spec.shape, DType.F16 if stored.codec == RAW else stored.spec.dtype), codec=stored.codec
        )
        for use in model_uses(checkpoint)
        if (stored := entries.get(use.name)) is not None
    ]
    plan = plan_weights(uses, engine)
    counts = ", ".join(f"{total.tensors} {_SHOWN.get(outcome, outcome.value)}" for outcome, total in plan.totals.items())
    moved = f"{plan.moved:,} of {plan.dense:,} bytes of fp16 cross the stream" if plan.moved else ""
    shown = f"on {engine.target} ({engine.profile.value} profile): {counts}{'; ' if moved else ''}{moved}"
    return (f"{shown}; `flyweight ane plan` says why",)


def linear_layers(checkpoint: Checkpoint) -> list[str]:
    """The matrices of a model but embeddings and output head."""
    entries = checkpoint.manifest.entries.values()
    return [
        entry.name
        for entry in entries
        if len(entry.spec.shape) == 2 and entry.spec.dtype.is_float and entry.spec.size and not dense_by_default(entry.name)
    ]
