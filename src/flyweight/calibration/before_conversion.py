"""Statistics for one conversion: gathered before it, in a file beside its destination that goes when it is done."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flyweight.calibration.gathering import calibrate
from flyweight.calibration.shipped import shipped_texts
from flyweight.codecs import codec_for
from flyweight.foundation.errors import InterruptedRunError, OutputError
from flyweight.foundation.input_statistics import Statistics
from flyweight.pipeline.conversion import open_conversion
from flyweight.statistics_files.known_files import open_statistics

_OF_RUN = frozenset({"measure", "check", "gate_text", "resume", "force", "progress", "progress_of", "jobs", "notify", "awq"})
"""What a conversion is not planned with."""


@contextmanager
def calibrated(
    source: Path | str, destination: Path | str, *, texts: Sequence[Path | str] = (), **options: Any
) -> Iterator[tuple[Statistics, str]]:
    """Statistics of the source, and a line about them. The conversion is planned before that, so that it is refused at once."""
    if options.get("statistics") is not None:
        raise ValueError("give statistics, or have them gathered, not both")
    options.pop("statistics", None)
    destination, recipe = Path(os.path.abspath(destination)), options.get("recipe_out")
    if destination.exists() and not (options.get("force") or options.get("resume")):
        raise OutputError("already exists", code="E_EXISTS", file=str(destination), hint="use --force to replace it")
    if recipe is not None and recipe.exists() and not options.get("resume"):
        raise OutputError("already exists", code="E_EXISTS", file=str(recipe), hint="remove it, or choose another name")
    planned = {key: value for key, value in options.items() if key not in _OF_RUN}
    with open_conversion(source, destination, smallest=True, **planned) as job:
        gram = any(step.action == "transcode" and codec_for(step.codec).takes_feedback(step.spec) for step in job.plan.steps)
    place = destination.with_name(f".{destination.name}.statistics")
    progress_of = options.get("progress_of")
    done = calibrate(
        source, place, texts=texts or shipped_texts(), deltas=options.get("deltas", ()), gram=gram,
        threads=options.get("jobs"), max_ram=options.get("max_ram"), resume=bool(options.get("resume")), force=True,
        progress=progress_of("calibrating") if progress_of else None,
    )  # fmt: skip
    try:
        with open_statistics(place) as statistics:
            yield statistics, "; ".join((f"calibrated on {done.tokens} tokens", *done.notes))
    except InterruptedRunError:  # another run replaces it
        raise
    except BaseException:
        _remove(place)
        raise
    _remove(place)


def _remove(place: Path) -> None:
    with suppress(FileNotFoundError):
        place.unlink()
