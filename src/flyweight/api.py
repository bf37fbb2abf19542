"""The public functions, put together: `convert` gets the code that runs and measures models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

from flyweight import pipeline
from flyweight.measuring import measure, measure_costs
from flyweight.pipeline import ConversionReport

__all__ = ["convert", "execute"]


@wraps(pipeline.convert)
def convert(*arguments: Any, calibrate: bool | Sequence[Path | str] = False, **options: Any) -> ConversionReport:
    """As the pipeline's; with `calibrate` statistics of the source are gathered first, on these texts or on those shipped."""
    options = {"measure": measure, "measure_costs": measure_costs, **options}
    if not calibrate:
        return pipeline.convert(*arguments, **options)
    from flyweight.calibration.before_conversion import calibrated  # which needs the runtime

    texts = () if isinstance(calibrate, bool) else tuple(calibrate)
    with calibrated(*arguments, texts=texts, **options) as (statistics, note):
        report = pipeline.convert(*arguments, **{**options, "statistics": statistics})
    return replace(report, notes=(*report.notes, note))


@wraps(pipeline.execute)
def execute(*arguments: Any, **options: Any) -> ConversionReport:
    return pipeline.execute(*arguments, **{"measure": measure, **options})
