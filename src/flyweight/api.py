"""The public functions, put together: `convert` gets the code that runs and measures models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

from flyweight import measuring, pipeline
from flyweight.foundation.limits import parse_size
from flyweight.measuring import measure, measure_costs
from flyweight.pipeline import ConversionReport

__all__ = ["convert", "execute"]


@wraps(pipeline.convert)
def convert(
    source: Path | str,
    destination: Path | str,
    *,
    calibrate: bool | Sequence[Path | str] = False,
    check: bool | None = None,
    target_ram: int | str | None = None,
    **options: Any,
) -> ConversionReport:
    """As the pipeline's; with `calibrate` statistics of the source are gathered first, on these texts or on those shipped.

    `target_ram` is a `target_size` for which `run` takes so much memory.

    With `check`, which `calibrate` includes, the result is run beside its source before it appears, and the report and its
    metadata say what it costs.
    """
    options = {"measure": measure, "measure_costs": measure_costs, **options}
    if target_ram is not None:
        if options.get("target_size") is not None:
            raise ValueError("give a size or the memory to run in, not both")
        ram = parse_size(target_ram, "target_ram")
        options["target_size"] = measuring.size_to_run_in(ram, source, deltas=options.get("deltas", ()))
    if check and options.get("deltas"):
        raise ValueError("a check runs the result beside its source, which is not deltas on a base: use `eval`")
    if bool(calibrate) and not options.get("deltas") if check is None else check:
        options["check"] = measuring.check
    if not calibrate:
        report = pipeline.convert(source, destination, **options)
    else:
        from flyweight.calibration.before_conversion import calibrated  # which needs the runtime

        texts = () if isinstance(calibrate, bool) else tuple(calibrate)
        with calibrated(source, destination, texts=texts, **options) as (statistics, note):
            report = pipeline.convert(source, destination, **{**options, "statistics": statistics})
        report = replace(report, notes=(*report.notes, note))
    return report


@wraps(pipeline.execute)
def execute(*arguments: Any, **options: Any) -> ConversionReport:
    return pipeline.execute(*arguments, **{"measure": measure, **options})
