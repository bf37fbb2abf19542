"""Statistics held against the model that they are for: the inputs of each of its matrices by the name it has in the source.

Statistics have the names of a Hugging Face directory, or those of GGUF where llama.cpp wrote them; a checkpoint's blueprint
says which of its tensors each name is. Conversions move rows and never columns, so inputs stay what they are on the way to any
target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from flyweight.checkpoint import Checkpoint
from flyweight.foundation.errors import FlyweightError, MalformedError, UnsupportedError
from flyweight.foundation.input_statistics import InputStatistics, Statistics
from flyweight.models import Blueprint, blueprint
from flyweight.models.dialects import DIALECTS
from flyweight.pipeline.model_sketch import SAME_MODEL, cosine, sketch_of
from flyweight.statistics_files.stored import StoredStatistics

_CODE = "E_STATISTICS"


@dataclass(frozen=True)
class MatrixInputs:
    """By the names of tensors in one checkpoint."""

    inputs_of: Callable[[str], InputStatistics | None] = lambda _: None
    digest: str = ""
    """What a resumed conversion must find the same; empty where there are no statistics."""
    missing: tuple[str, ...] = ()
    """Matrices that nothing is known of."""

    def __bool__(self) -> bool:
        return bool(self.digest)


NONE = MatrixInputs()


@contextmanager
def opened(statistics: Path | str | Statistics | None) -> Iterator[Statistics | None]:
    """Statistics by their path, or such as somebody holds."""
    if not isinstance(statistics, Path | str):
        yield statistics
        return
    from flyweight.statistics_files.known_files import open_statistics  # and with it the containers they are in

    with open_statistics(statistics) as file:
        yield file


def inputs_for(checkpoint: Checkpoint, statistics: Statistics | None, *, of_another_model: bool = False) -> MatrixInputs:
    """Statistics for the matrices of a checkpoint. E_STATISTICS if they are of another model, unless `of_another_model`;
    shapes must agree all the same."""
    if statistics is None:
        return NONE
    try:
        model = blueprint(checkpoint.manifest, checkpoint.read)
    except UnsupportedError as error:
        raise UnsupportedError(
            f"statistics go by the names of a model's matrices, and here {error.message}", code=_CODE,
            file=checkpoint.bundle.name, hint="leave out --stats",
        ) from None  # fmt: skip
    try:
        names = _names(statistics, model)
        if isinstance(statistics, StoredStatistics):
            _require_same(statistics, names, checkpoint, model, of_another_model)
    except FlyweightError as error:
        raise error.at(file=statistics.file if isinstance(statistics, StoredStatistics) else checkpoint.bundle.name) from None
    found: dict[str, InputStatistics] = {}
    missing: list[str] = []
    hasher = blake3()
    for canonical, stored in model.tensors.items():
        shape = checkpoint.manifest.entries[stored.name].spec.shape
        if len(shape) != 2:
            continue
        inputs = statistics.inputs_of(names.get(canonical, canonical))
        if inputs is None:
            if canonical != "model.embed_tokens.weight" or model.config.tied:
                missing.append(stored.name)
            continue
        if inputs.importance.shape != shape[1:]:
            raise _mismatch(f"they have {len(inputs.importance)} columns, the model's has {shape[1]}", stored.name)
        found[stored.name] = inputs
        hasher.update(stored.name.encode() + b"\0")
        hasher.update(inputs.importance.tobytes())
    return MatrixInputs(found.get, hasher.hexdigest(), tuple(missing))


def _names(statistics: Statistics, model: Blueprint) -> Mapping[str, str]:
    """The model's canonical names → what the statistics call them."""
    dialect = DIALECTS[statistics.dialect] if isinstance(statistics, StoredStatistics) else DIALECTS["hf"]
    return {canonical: dialect.stored(canonical, model.config).name for canonical in model.tensors}


def _require_same(
    statistics: StoredStatistics, names: Mapping[str, str], checkpoint: Checkpoint, model: Blueprint, of_another_model: bool
) -> None:
    canonical = {name: each for each, name in names.items()}
    for name, (rows, columns) in statistics.matrices.items():
        if name not in canonical:
            raise _mismatch(f"the model has no matrix '{name}'")
        shape = checkpoint.manifest.entries[model.tensors[canonical[name]].name].spec.shape
        if len(shape) != 2 or shape[1] != columns or rows not in (0, shape[0]):
            wanted, there = ("×".join(map(str, each)) for each in (shape, (rows or "?", columns)))
            raise _mismatch(f"they are of a matrix of {there}, the model's is {wanted}", name)
    if statistics.sketch is None or of_another_model:
        return
    alike = cosine(statistics.sketch, sketch_of(checkpoint, model))
    if not alike >= SAME_MODEL:
        raise _mismatch(
            f"its matrices have these shapes, but other weights: their cosine is {alike:.3f}, not {SAME_MODEL} or more"
        )


def _mismatch(message: str, tensor: str | None = None) -> MalformedError:
    return MalformedError(
        f"statistics of another model: {message}", code=_CODE, tensor=tensor,
        hint="gather them from this model with `flyweight calibrate`, or from this model in another format",
    )  # fmt: skip
