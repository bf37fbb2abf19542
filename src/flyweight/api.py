"""The public functions, put together: `convert` gets the code that runs and measures models."""

from __future__ import annotations

from functools import wraps
from typing import Any

from flyweight import pipeline
from flyweight.measuring import measure, measure_costs
from flyweight.pipeline import ConversionReport

__all__ = ["convert", "execute"]


@wraps(pipeline.convert)
def convert(*arguments: Any, **options: Any) -> ConversionReport:
    return pipeline.convert(*arguments, **{"measure": measure, "measure_costs": measure_costs, **options})


@wraps(pipeline.execute)
def execute(*arguments: Any, **options: Any) -> ConversionReport:
    return pipeline.execute(*arguments, **{"measure": measure, **options})
