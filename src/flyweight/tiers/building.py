"""Building a tier: a conversion that ends beside the arrays it started from.

One builder at a time (`LOCK`); whoever comes meanwhile waits and finds the tier ready. The conversion is staged and resumed
like any other; its sentinel is written last, so that a build killed at any point leaves the old tier, or weights that nobody
trusts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from flyweight.checkpoint import Checkpoint, open_checkpoint, require_passed
from flyweight.containers import container_named
from flyweight.containers.npy_dir.finalized import Finalized
from flyweight.containers.npy_dir.reading import read_keys
from flyweight.containers.safetensors import Safetensors
from flyweight.dtypes import DType
from flyweight.errors import FlyweightError, GateError, OutputError
from flyweight.gate import INT3
from flyweight.manifest import Entry
from flyweight.pipeline.plan import Plan, make_plan
from flyweight.pipeline.recipe import SAME_CODES, ByName, Choice, preset
from flyweight.pipeline.run import Outcome, Progress, carry_out_plan
from flyweight.runtime.linear import form_of
from flyweight.runtime.tensors import Tensors
from flyweight.tensor import RAW, CodecSpec
from flyweight.tiers.seal import Proof, Seal, describe, source_digest, source_stamps, write_seal
from flyweight.tiers.state import locked, state_of, weights_stamps
from flyweight.tiers.table import Tier, home_of_tiers, tier_named

__all__ = ["Built", "build", "plan_tier"]


class Built(NamedTuple):
    tier: str
    nbytes: int
    seconds: float
    resumed: int = 0
    already: bool = False
    """Whether it was there before, or someone else had built it meanwhile."""

    def as_json(self) -> dict[str, Any]:
        return self._asdict()


def build(
    path: Path | str,
    tier: str,
    *,
    force: bool = False,
    jobs: int | None = None,
    max_ram: int | None = None,
    allow_ungated: bool = False,
    progress: Progress | None = None,
    tell: Callable[[str], object] = lambda _: None,
) -> Built:
    """Build a tier unless it is ready. ResourceError, before anything is written, if memory or disk do not suffice.

    GateError if weights of three bits, in the arrays or the tier, have not passed their accuracy gate, unless `allow_ungated`.
    """
    root, chosen, began = home_of_tiers(path), tier_named(tier), time.perf_counter()
    with locked(root, lambda: tell(f"waiting: another process is at work on the tiers of {root}")):
        state = state_of(root, chosen)
        if state.standing == "ready" and not force and (allow_ungated or not state.ungated):
            return Built(tier, state.nbytes, time.perf_counter() - began, already=True)
        if state.standing == "foreign" and chosen.is_folder and not force:
            raise OutputError(
                f"{state.reason}, so {chosen.place} is not replaced", code="E_FOREIGN_TIER", file=str(root), hint="use --force"
            )
        before = source_stamps(root)
        with open_checkpoint(root) as checkpoint:
            ungated = _complaint(checkpoint, allow_ungated)
            plan = plan_tier(checkpoint, root, chosen, max_ram)
            options = {"jobs": jobs, "max_ram": max_ram, "allow_ungated": allow_ungated, "progress": progress}
            with ThreadPoolExecutor(1, thread_name_prefix="arrays") as beside:
                source = beside.submit(source_digest, root)  # the disk is busy with writing; damaged arrays end in no tier
                outcome = _carry_out(plan, root / chosen.place, approve=source.result, **options)
        if source_stamps(root) != before:
            raise OutputError("the arrays changed while they were read", code="E_SOURCE_CHANGED", file=str(root))
        entries = plan.placement.manifest.entries.values()
        weights = Proof(describe(entries, outcome.parts), weights_stamps(root, chosen))
        if outcome.verdict is not None and not outcome.verdict.passed:
            ungated = outcome.verdict.complaint
        write_seal(root, chosen, Seal(tier, Proof(source.result(), before), weights, ungated))
    return Built(tier, plan.nbytes, time.perf_counter() - began, outcome.resumed)


def _complaint(checkpoint: Checkpoint, allow_ungated: bool) -> str:
    """What the gate says against the arrays, if that is to be overlooked."""
    try:
        require_passed(checkpoint)
    except GateError as error:
        if not allow_ungated:
            raise
        return error.message
    return ""


def _carry_out(plan: Plan, destination: Path, **options: Any) -> Outcome:
    """Go on where a killed build of the same stopped; of another it is no use."""
    resume = (destination.parent / f".{destination.name}.partial" / "journal.jsonl").exists()
    try:
        return carry_out_plan(plan, destination, resume=resume, force=True, **options)
    except OutputError as error:
        if error.code != "E_RESUME":
            raise
        return carry_out_plan(plan, destination, resume=False, force=True, **options)


# What each tier is made of ----------------------------------------------------------------------


def plan_tier(checkpoint: Checkpoint, root: Path, tier: Tier, max_ram: int | None = None) -> Plan:
    """What building would do."""
    return replace(_PLANS[tier.name](checkpoint, root / tier.place, max_ram), measured=False)


def _packed(checkpoint: Checkpoint, place: Path, max_ram: int | None) -> Plan:
    """Every matrix as a product takes it: as it is; else with the same codes on a grid that has one; else decoded."""
    choices = {name: choice for name in checkpoint if (choice := _packed_choice(checkpoint, name)) is not None}
    return _one_file(checkpoint, place, recipe=ByName("packed", choices=choices), max_ram=max_ram)


def _packed_choice(checkpoint: Checkpoint, name: str) -> Choice | None:
    tensor = checkpoint.encoded(name)
    if tensor.codec == RAW or form_of(tensor) is not None:
        return None
    params, columns = tensor.codec.params, tensor.spec.columns
    group = int(params.get("group", 0)) or columns
    if tensor.codec.name == "excess" and int(params["bits"]) <= 4 and columns % group == group % 32 == 0:
        return Choice(CodecSpec("affine", {"bits": 4, "group": group, "scale": "f32"}), SAME_CODES)
    return Choice(RAW, dtype=DType.BF16)


def _cache(checkpoint: Checkpoint, place: Path, max_ram: int | None) -> Plan:
    return _one_file(checkpoint, place, recipe=preset("dense"), dtype=DType.BF16, max_ram=max_ram)


def _one_file(checkpoint: Checkpoint, place: Path, **how: Any) -> Plan:
    """Tensors in the order in which a token needs them, so that a start reads the file from front to end."""
    try:
        tensors = Tensors(checkpoint)
    except FlyweightError:  # a model that is kept, not run
        return make_plan(checkpoint, Safetensors(), place.name, **how)
    turns = {tensors.blueprint.tensors[name]: turn for turn, step in enumerate(tensors.steps) for name, _, _ in step}

    def turn(entry: Entry) -> int:
        return turns.get(entry.name, -1 if len(entry.spec.shape) < 2 else len(tensors.steps))

    return make_plan(checkpoint, Safetensors(), place.name, order=turn, **how)


def _finalized(checkpoint: Checkpoint, place: Path, max_ram: int | None) -> Plan:
    container = Finalized(read_keys(checkpoint.bundle))
    return make_plan(checkpoint, container, place.name, recipe=preset("dense"), dtype=DType.F16, max_ram=max_ram)


def _four_bits(checkpoint: Checkpoint, place: Path, max_ram: int | None) -> Plan:
    return make_plan(checkpoint, container_named("mlx"), place.name, recipe=preset("int4"), max_ram=max_ram)


def _three_bits(checkpoint: Checkpoint, place: Path, max_ram: int | None) -> Plan:
    recipe = replace(preset("int3"), gate=INT3)
    return make_plan(checkpoint, container_named("mlx"), place.name, recipe=recipe, max_ram=max_ram)


_PLANS: Mapping[str, Callable[[Checkpoint, Path, int | None], Plan]] = {
    "packed": _packed, "cache": _cache, "finalized": _finalized, "int4": _four_bits, "int3": _three_bits,
}  # fmt: skip
