"""Weights in named forms, for tests of what the Neural Engine does with them."""

from __future__ import annotations

import json
from typing import Any

from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import CodecSpec, TensorSpec
from flyweight.targets.ane.engine_form import EngineForm
from flyweight.targets.ane.facts.engine import Engine
from flyweight.targets.ane.facts.engine_targets import target_named
from flyweight.targets.ane.facts.fact import Profile
from flyweight.targets.ane.named_forms import codec_of_form, counts_zeros
from flyweight.targets.ane.weight_use import WeightUse
from support import GOLDEN

__all__ = ["MEASUREMENTS", "engine", "form_of", "use_of"]

MEASUREMENTS: dict[str, Any] = json.loads((GOLDEN / "ane/measurements.json").read_text())


def engine(target: str, profile: Profile = Profile.SEED) -> Engine:
    return Engine(target_named(target), profile)


def use_of(form: str | CodecSpec, shape: tuple[int, ...] = (2048, 2048), **fields: Any) -> WeightUse:
    """A weight by the name of its form; `sparse 0.37` keeps that share of its weights."""
    spec = TensorSpec(shape, DType.F16)
    if isinstance(form, CodecSpec):
        return WeightUse("w", spec, form, **fields)
    name, _, density = form.partition(" ")
    codec = codec_of_form(name)
    if counts_zeros(codec):
        codec = codec.with_params(stored=round(float(density) * spec.size))
    return WeightUse("w", spec, codec, **fields)


def form_of(form: str | CodecSpec, shape: tuple[int, ...] = (2048, 2048)) -> EngineForm:
    found = use_of(form, shape).form
    assert found is not None
    return found
