"""A recipe for a size: the type of every matrix, so that all together cost least in so many bytes.

For each matrix and each type of the format that fits its rows: the bytes it takes, and its loss, the cost of an error of this
matrix (`foundation.sensitivity`) times the error that the type leaves on some of its rows. `allocation` solves the rest. All
tensors that are no matrices, the header and the side files take what they take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from flyweight.checkpoint import Checkpoint
from flyweight.codecs import Codec, codec_for
from flyweight.codecs.casts import astype
from flyweight.containers.abilities import HasSizes, adapted
from flyweight.containers.container import Container
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.manifest import Entry, Extent
from flyweight.foundation.sensitivity import Cost
from flyweight.foundation.tensor import CodecSpec, TensorSpec, has_rows
from flyweight.models import blueprint
from flyweight.pipeline.matrix_inputs import MatrixInputs
from flyweight.pipeline.plans.allocation import Allocation, Option
from flyweight.pipeline.plans.job import Job
from flyweight.pipeline.plans.recipe import Recipe, Rule, choice, fits
from flyweight.pipeline.rows import decode_rows, read_rows, spaced
from flyweight.quantizers import QUANTIZERS

_ROWS = 32
"""Of a matrix, from which the error of a type is taken."""
_FED_BACK = 0.62
"""What is left of the error of a search where errors are fed back (docs/decisions/0219)."""
_NEAR = 0.005
"""How far a size may be from what was asked for, if types allow it."""
_SHOWN = 7
_TRIES = 4


@dataclass(frozen=True)
class Size:
    """Of everything that is written: bytes, or bits for each weight."""

    nbytes: int | None = None
    bits_per_weight: float | None = None

    def of(self, weights: int) -> int:
        return self.nbytes if self.nbytes is not None else int((self.bits_per_weight or 0) * weights / 8)

    def __str__(self) -> str:
        return f"{self.nbytes:,} bytes" if self.nbytes is not None else f"{self.bits_per_weight:g} bits a weight"


def recipe_of_size(
    checkpoint: Checkpoint,
    container: Container,
    size: Size,
    known: MatrixInputs,
    costs: Mapping[str, Cost],
    planned: Callable[[Recipe], Job],
) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe, and what is to be said of it. `planned` is the conversion that a recipe would be."""
    options = dict(_options(checkpoint, container, known, costs))
    allocation = Allocation(options)
    smallest = planned(_recipe(allocation.within(0), size))
    wanted, weights = _require_room(size, smallest), _weights(smallest)
    fixed = smallest.nbytes - allocation.smallest.nbytes
    budget = wanted - fixed
    for _ in range(_TRIES):  # headers name types, so that they are of other lengths
        chosen = allocation.within(budget)
        recipe = _recipe(chosen, size)
        over = planned(recipe).nbytes - wanted
        if over <= 0:
            break
        budget -= over
    loss = sum(option.loss for option in chosen.values())
    return recipe, tuple(_notes(size, weights, fixed, wanted + min(over, 0), allocation, chosen, loss))


def smallest_recipe(checkpoint: Checkpoint, container: Container, size: Size, planned: Callable[[Recipe], Job]) -> Recipe:
    """The recipe that takes least, whatever it costs; refused where the size is none to choose types for."""
    options = {
        name: [Option(codec.spec, nbytes, 0.0) for codec, nbytes in types] for _, name, types in _types(checkpoint, container)
    }
    recipe = _recipe(Allocation(options).within(0), size)
    smallest = planned(recipe)
    wanted = _require_room(size, smallest)
    files = sum(extent.nbytes for extent in checkpoint.manifest.files.values() if isinstance(extent, Extent))
    if wanted >= (whole := checkpoint.manifest.nbytes + files):
        raise UnsupportedError(
            f"{size} are not less than the source, which takes {whole:,} bytes, "
            f"{8 * whole / _weights(smallest):.3f} bits a weight",
            code="E_TARGET", file=checkpoint.bundle.name, hint="convert it without a size: nothing has to be left out",
        )  # fmt: skip
    return recipe


def _weights(job: Job) -> int:
    return sum(entry.spec.size for entry in job.placement.manifest.entries.values())


def _require_room(size: Size, smallest: Job) -> int:
    """How many bytes are asked for, if they are enough for the smallest there is."""
    weights = _weights(smallest)
    if (wanted := size.of(weights)) < smallest.nbytes:
        raise UnsupportedError(
            f"{size} cannot be reached: the smallest {smallest.container.title} of this model takes {smallest.nbytes:,} bytes, "
            f"{8 * smallest.nbytes / weights:.3f} bits a weight",
            code="E_TARGET", file=smallest.checkpoint.bundle.name, hint="ask for more, or choose a format with smaller types",
        )  # fmt: skip
    return wanted


def _types(checkpoint: Checkpoint, container: Container) -> Iterator[tuple[str, str, list[tuple[Codec, int]]]]:
    """Every matrix by its canonical and its stored name, with the codecs it may have and the bytes of each."""
    if not isinstance(container, HasSizes):
        raise UnsupportedError(
            f"{container.title} has no types to choose a size from",
            code="E_TARGET",
            hint="choose a quantization by name with --quant",
        )
    for canonical, stored in blueprint(checkpoint.manifest, checkpoint.read).tensors.items():
        entry = checkpoint.manifest.entries[stored.name]
        if len(entry.spec.shape) != 2:
            continue
        spec = TensorSpec(entry.spec.shape, DType.F32)
        codecs = (codec_for(adapted(container, codec, stored.name)) for codec in container.sizes)
        codecs = (codec for codec in codecs if fits(codec, spec) and container.carried(spec, codec.spec))
        if types := [(codec, sum(part.nbytes for part in codec.layout(spec).values())) for codec in codecs]:
            yield canonical, stored.name, types


def _options(
    checkpoint: Checkpoint, container: Container, known: MatrixInputs, costs: Mapping[str, Cost]
) -> Iterator[tuple[str, list[Option[CodecSpec]]]]:
    for canonical, name, types in _types(checkpoint, container):
        if canonical not in costs:
            continue
        rows, inputs = _some_rows(checkpoint, checkpoint.manifest.entries[name]), known.inputs_of(name)
        cost = costs[canonical].nats * checkpoint.manifest.entries[name].spec.rows / len(rows)
        yield name, [Option(codec.spec, nbytes, cost * _error(rows, codec.spec, inputs)) for codec, nbytes in types]


def _some_rows(checkpoint: Checkpoint, entry: Entry) -> np.ndarray:
    chosen = spaced(entry.spec.rows, _ROWS)
    if has_rows(entry.spec, entry.parts):
        slabs = (read_rows(checkpoint, entry.name, row, row + 1, None) for row in chosen)
        rows = np.concatenate([decode_rows(slab, None).reshape(1, -1) for slab in slabs])
    else:
        rows = decode_rows(read_rows(checkpoint, entry.name, 0, entry.spec.rows, None), None)[chosen]
    return astype(rows, DType.F32.numpy)


def _error(rows: np.ndarray, spec: CodecSpec, inputs: InputStatistics | None) -> float:
    """The mean of Σ (E·x)² over the inputs, of these rows: as a search leaves it, or less where errors are fed back."""
    codec, own = codec_for(spec), TensorSpec(rows.shape, DType.F32)
    quantizer = codec.quantizer if inputs is None else codec.searched_by
    error = rows - codec.decode(own, QUANTIZERS[quantizer](rows, codec, own, inputs))
    if inputs is None:
        return float(np.square(error, dtype=np.float64).sum())
    return inputs.output_error(error) * (_FED_BACK if inputs.has_gram and codec.takes_feedback(own) else 1)


def _recipe(chosen: Mapping[str, Option[CodecSpec]], size: Size) -> Recipe:
    """A rule for each type, with the names of all that get it."""
    ordered = sorted(chosen.items(), key=lambda item: (item[1].nbytes, str(item[1].what)))
    by_codec: dict[CodecSpec, list[str]] = {}
    for name, option in ordered:
        by_codec.setdefault(option.what, []).append(name)
    rules = (Rule(tuple(names), choice(codec.name, codec.as_json()["params"])) for codec, names in by_codec.items())
    return Recipe(f"for {size}", tuple(rules), matrices_only=True)


def _notes(
    size: Size,
    weights: int,
    fixed: int,
    nbytes: int,
    allocation: Allocation[CodecSpec],
    chosen: Mapping[str, Option[CodecSpec]],
    loss: float,
) -> Iterator[str]:
    counts = Counter(_label(option.what) for option in chosen.values())
    types = ", ".join(f"{count} {label}" for label, count in sorted(counts.items()))
    yield f"for {size}: {types}; {nbytes:,} bytes, {8 * nbytes / weights:.3f} bits a weight, predicted KL {loss:.4f}"
    points = allocation.frontier()
    shown = [points[index] for index in spaced(len(points), _SHOWN)]
    yield "at other sizes: " + ", ".join(
        f"{8 * (point.nbytes + fixed) / weights:.2f} bits KL {point.loss:.4f}" for point in shown
    )
    wanted = size.of(weights)
    if nbytes < (1 - _NEAR) * wanted:
        yield f"{size} were asked for; types allow no size between this and {_next(allocation, fixed, wanted):,} bytes"


def _label(codec: CodecSpec) -> str:
    sizes = [str(codec.params[key]) for key in ("bits", "group") if key in codec.params]
    return "-".join([codec.name, *sizes])


def _next(allocation: Allocation[CodecSpec], fixed: int, wanted: int) -> int:
    larger = (point.nbytes + fixed for point in allocation.frontier() if point.nbytes + fixed > wanted)
    return next(larger, allocation.largest.nbytes + fixed)
