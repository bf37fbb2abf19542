"""Building a tier: a conversion from arrays into the user's cache, or, where that is asked for, beside the arrays.

One builder of a model at a time; whoever comes meanwhile waits and finds the tier ready. The conversion is staged and resumed
like any other, and the digest of the arrays taken meanwhile; the weights are then moved to where the tiers of such arrays are.
The sentinel is written last: a build killed at any point leaves the old tier, or weights that nobody trusts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from flyweight.checkpoint import Checkpoint, open_checkpoint, require_passed
from flyweight.codecs import codec_for
from flyweight.containers import container_named
from flyweight.containers.npy_dir.finalized import Finalized
from flyweight.containers.npy_dir.npy_reading import read_keys
from flyweight.containers.safetensors import Safetensors
from flyweight.foundation.accuracy_gate import Measure
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, GateError, OutputError, ResourceError
from flyweight.foundation.manifest import Entry
from flyweight.foundation.tensor import RAW
from flyweight.pipeline.execution import Outcome, Progress, carry_out_job
from flyweight.pipeline.plans.job import Job
from flyweight.pipeline.plans.planning import make_job
from flyweight.pipeline.plans.quantization_names import preset
from flyweight.pipeline.plans.recipe import SAME_CODES, ByName, Choice, Recipe
from flyweight.runtime.linear import form_of
from flyweight.runtime.tensors import Tensors
from flyweight.tiers import keeping, store
from flyweight.tiers.arrays import Arrays
from flyweight.tiers.digests import (
    content_digest,
    described,
    files_without_weights,
    fingerprint,
    source_digest,
    source_stamps,
    weights_stamps,
)
from flyweight.tiers.opening import open_tier
from flyweight.tiers.sentinel import Sentinel, write_sentinel
from flyweight.tiers.state import state_in
from flyweight.tiers.tier_table import Home, Tier, require_tiers, tier_named
from flyweight.writing import Folder


class Built(NamedTuple):
    tier: str
    nbytes: int
    seconds: float
    path: str
    """Where it is."""
    resumed: int = 0
    already: bool = False
    """Whether it was there before, or someone else had built it meanwhile."""


def build(
    model: Path | str | Arrays,
    name: str,
    *,
    in_place: bool = False,
    force: bool = False,
    max_ram: int | None = None,
    allow_ungated: bool = False,
    tell: Callable[[str], object] = lambda _: None,
    jobs: int | None = None,
    progress: Progress | None = None,
    measure: Measure | None = None,
) -> Built:
    """Build the tier of this name unless it is ready, in the user's cache or beside the arrays (`in_place`).

    ResourceError, before anything is written, if memory, disk or the bound of the cache do not suffice. GateError if weights of
    three bits, in the arrays or the tier, have not passed their accuracy gate, unless `allow_ungated`.
    """
    began = time.perf_counter()
    arrays, tier = model if isinstance(model, Arrays) else Arrays(require_tiers(model)), tier_named(name)
    with store.locked(arrays.key, lambda: tell(f"waiting: another process is building tiers of {arrays.root}")):
        arrays.reread()
        home = Home(arrays.root, arrays.root) if in_place else arrays.home()
        state = state_in(home, tier, arrays)
        if state.standing == "ready" and not force and (allow_ungated or not state.ungated):
            return Built(tier.name, state.nbytes, time.perf_counter() - began, str(_place(home, tier)), already=True)
        if in_place and (state.standing == "foreign" or (state.standing == "unfinished" and tier.name not in arrays.begun)):
            raise OutputError(
                f"{state.reason}, so {tier.place} is not replaced", code="E_FOREIGN_TIER", file=str(arrays.root),
                hint=f"`flyweight cache prune --foreign --tier {tier.name}` removes it",
            )  # fmt: skip
        before = arrays.stamps
        with open_checkpoint(arrays.root) as checkpoint:
            ungated = _complaint(checkpoint, allow_ungated)
            job = plan_tier(checkpoint, tier, max_ram)
            with (
                ThreadPoolExecutor(1, thread_name_prefix="arrays") as beside,
                _workplace(arrays, tier, job.nbytes, in_place) as work,
            ):
                source = beside.submit(source_digest, arrays.root)  # the disk is busy with writing
                outcome = _carry_out(
                    job, work.path / tier.place, jobs=jobs, max_ram=max_ram, allow_ungated=allow_ungated, progress=progress,
                    measure=measure, approve=source.result, measured=False,
                )  # fmt: skip
                digest = source.result()
                if source_stamps(arrays.root) != before:
                    work.remove_tree(tier.place)
                    raise OutputError("the arrays changed while they were read", code="E_SOURCE_CHANGED", file=str(arrays.root))
                if outcome.verdict is not None and not outcome.verdict.passed:
                    ungated = outcome.verdict.complaint
                arrays.remember(digest, before)

                def vouch(path: Path) -> None:
                    _vouch(Home(arrays.root, path), tier, arrays, job, outcome, Sentinel(tier.name, digest, "", ungated))

                if in_place:
                    vouch(arrays.root)
                else:
                    about = {"path": arrays.path, "nbytes": arrays.nbytes}
                    keeping.adopt(work, digest, tier, about, vouch)
    place = _place(Home(arrays.root, arrays.root) if in_place else arrays.home(), tier)
    if not in_place:
        with suppress(ResourceError):  # others may have built meanwhile
            keeping.make_room(job.nbytes, place)
    return Built(tier.name, job.nbytes, time.perf_counter() - began, str(place), outcome.resumed)


def _place(home: Home | None, tier: Tier) -> Path:
    assert home is not None
    return home.path / tier.place


@contextmanager
def _workplace(arrays: Arrays, tier: Tier, nbytes: int, in_place: bool) -> Iterator[Folder]:
    """Where the weights are staged and appear: a folder of the user's cache, where nothing is in their way; or the model's."""
    if in_place:
        arrays.begin(tier.name)
        with Folder(arrays.root) as folder:
            yield folder
        arrays.end(tier.name)
        return
    with store.work_folder(arrays.key) as folder:
        keeping.make_room(nbytes, folder.path)
        folder.remove_tree(tier.place)  # of a build that was stopped before it could be put in its home
        yield folder


def _vouch(home: Home, tier: Tier, arrays: Arrays, job: Job, outcome: Outcome, sentinel: Sentinel) -> None:
    """Write the sentinel of weights that are in their home."""
    found = weights_stamps(home.path, tier)
    files: dict[str, str] = {}
    if tier.is_model:
        with open_tier(home, tier) as made:
            files = files_without_weights(made)
    tensors = described(job.placement.manifest.entries.values(), outcome.parts)
    sentinel = sentinel._replace(weights=content_digest(tensors, files))
    if home.in_place:
        write_sentinel(home, tier, sentinel.signed())
        arrays.remember_beside(tier.name, sentinel.weights, found)
    else:
        write_sentinel(home, tier, sentinel._replace(stamps=fingerprint(found)))


def _complaint(checkpoint: Checkpoint, allow_ungated: bool) -> str:
    """What the gate says against the arrays, if that is to be overlooked."""
    try:
        require_passed(checkpoint)
    except GateError as error:
        if not allow_ungated:
            raise
        return error.message
    return ""


def _carry_out(job: Job, destination: Path, **options: Any) -> Outcome:
    """Go on where a killed build of the same stopped; of another it is no use."""
    begun = any(name.startswith(f".{destination.name}.partial") for name in os.listdir(destination.parent))
    try:
        return carry_out_job(job, destination, resume=begun, force=True, **options)
    except OutputError as error:
        if error.code != "E_RESUME":
            raise
        return carry_out_job(job, destination, resume=False, force=True, **options)


# What each tier is made of ----------------------------------------------------------------------


def plan_tier(checkpoint: Checkpoint, tier: Tier, max_ram: int | None = None) -> Job:
    """What building would do: a whole model is quantized again, other tiers are decoded, or keep the arrays' values."""
    if tier.holds == "model":
        return make_job(checkpoint, container_named("mlx"), tier.place, recipe=preset(tier.name), max_ram=max_ram)
    container = Safetensors() if tier.holds == "file" else Finalized(read_keys(checkpoint.bundle))
    recipe = preset("dense") if tier.dtype else _packed(tier.name, checkpoint)
    order = _order(checkpoint) if tier.holds == "file" else None
    return make_job(
        checkpoint,
        container,
        tier.place,
        recipe=recipe,
        dtype=DType.parse(tier.dtype) if tier.dtype else None,
        max_ram=max_ram,
        order=order,
    )


def _packed(name: str, checkpoint: Checkpoint) -> Recipe:
    """Every matrix as a product takes it: as it is; else its codes in a codec that has one; else decoded."""
    choices = {tensor: choice for tensor in checkpoint if (choice := _packed_choice(checkpoint, tensor)) is not None}
    return ByName(name, choices=choices)


def _packed_choice(checkpoint: Checkpoint, name: str) -> Choice | None:
    tensor = checkpoint.encoded(name)
    if tensor.codec == RAW or form_of(tensor) is not None:
        return None
    codec = codec_for(tensor.codec).product_codec(tensor.spec)
    return Choice(codec, SAME_CODES) if codec is not None else Choice(RAW, dtype=DType.BF16)


def _order(checkpoint: Checkpoint) -> Callable[[Entry], int] | None:
    """Tensors in the order in which a token needs them, so that a start reads the file from front to end."""
    try:
        tensors = Tensors(checkpoint)
    except FlyweightError:  # a model that is kept, not run
        return None
    turns = {tensors.blueprint.tensors[name].name: turn for turn, step in enumerate(tensors.steps) for name, _, _ in step}
    return lambda entry: turns.get(entry.name, -1 if len(entry.spec.shape) < 2 else len(tensors.steps))
