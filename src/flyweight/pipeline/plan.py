"""Planning: every step and every refusal before a byte is written.

`plan` decides for each tensor how it gets from the source to the target:

    remux      the stored bytes are copied (rows may move); no codec is needed
    repack     the same integers and scales in other bytes; no value changes
    transcode  decoded and encoded again; the report says what it cost
    add        a tensor the target needs and the source holds only as configuration

All sizes are known here, so the target is laid out in full and written in one pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from flyweight.checkpoint import Checkpoint, gated, needs_gate
from flyweight.codecs import Array, Codec, codec_for, known
from flyweight.codecs.casts import astype
from flyweight.containers.abilities import Describes, RecordsGate, adapted
from flyweight.containers.container import Container, Placement
from flyweight.foundation.accuracy_gate import INT3, Gate
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, MalformedError, ResourceError, UnsupportedError
from flyweight.foundation.manifest import Entry, Manifest
from flyweight.foundation.tensor import RAW, TensorSpec, has_rows
from flyweight.models import Renamed, Transform, Translation, expert_layout, translate
from flyweight.pipeline import memory_limit
from flyweight.pipeline.conversion_report import Drift
from flyweight.pipeline.draft import draft_tensors, without_draft
from flyweight.pipeline.recipe import SAME_CODES, Choice, Recipe
from flyweight.pipeline.rows import decode_rows, pruned, read_rows, slabs
from flyweight.pipeline.side_files import side_files
from flyweight.quantizers import QUANTIZERS

__all__ = ["Action", "Plan", "Step", "make_plan"]

Action = Literal["remux", "repack", "transcode", "add"]


@dataclass(frozen=True, slots=True)
class Step:
    """One tensor's way. `target` has extents once the plan is placed."""

    action: Action
    source: Entry | None
    target: Entry
    transform: Transform | None = None
    quantizer: str = "nearest"
    array: Array | None = None
    note: str = ""
    sparsity: float = 0.0
    """The share of blocks set to zero before the target's codec, which drops such blocks, gets the values."""
    origin: Checkpoint | None = field(default=None, compare=False)
    """Where the source tensor is, if not in the plan's checkpoint."""

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.target.name,
            "source": self.source.name if self.source else None,
            "action": self.action,
            "from": str(self.source.codec) if self.source else None,
            "codec": self.target.codec.as_json(),
            "dtype": self.target.spec.dtype.label,
            "shape": list(self.target.spec.shape),
            "nbytes": self.target.nbytes,
            "bits_per_weight": round(self.target.bits_per_weight, 4),
            **({"note": self.note} if self.note else {}),
            **({"sparsity": self.sparsity} if self.sparsity else {}),
            **({"origin": self.origin.bundle.name} if self.origin is not None else {}),
        }


@dataclass(frozen=True, slots=True)
class Plan:
    checkpoint: Checkpoint
    container: Container
    recipe: Recipe
    placement: Placement
    steps: tuple[Step, ...]
    notes: tuple[str, ...]
    draft: Checkpoint | None = None
    """Where an added draft head comes from."""
    measured: bool = True
    """Whether values are compared with what they were, for a report."""

    @property
    def nbytes(self) -> int:
        return self.placement.nbytes

    @property
    def gate(self) -> Gate | None:
        """What the output may cost: as the recipe says, else as codecs ask for that lose much."""
        is_model = bool(self.container.dialect)  # else a file of any tensors, which cannot be run
        lossy = is_model and any(s.action == "transcode" and needs_gate(s.target.codec) for s in self.steps)
        return self.recipe.gate or (INT3 if lossy or self.gated else None)

    @property
    def gated(self) -> list[str]:
        """The tensors whose gate the output will record."""
        return gated(self.placement.manifest) if isinstance(self.container, RecordsGate) else []

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """All that are read from."""
        return (self.checkpoint,) if self.draft is None else (self.checkpoint, self.draft)

    def as_json(self) -> dict[str, Any]:
        return {
            "source": self.checkpoint.bundle.name,
            "source_format": self.checkpoint.manifest.format,
            "format": self.container.name,
            "recipe": self.recipe.as_json(),
            "nbytes": self.nbytes,
            **({"gate": self.gate.as_json()} if self.gate else {}),
            "actions": dict(Counter(step.action for step in self.steps)),
            "notes": list(self.notes),
            "tensors": [step.as_json() for step in self.steps],
        }


def make_plan(
    checkpoint: Checkpoint,
    container: Container,
    name: str,
    *,
    recipe: Recipe,
    dtype: DType | None = None,
    shard_bytes: int | None = None,
    max_ram: int | None = None,
    draft: Checkpoint | None = None,
    files: Mapping[str, bytes] | None = None,
    order: Callable[[Entry], int] | None = None,
) -> Plan:
    """Decide everything. Raises UnsupportedError listing every tensor that cannot be carried.

    `draft` holds a draft head to add, `files` are side files to add. Tensors lie as in the source, or sorted by `order`.
    """
    manifest = without_draft(checkpoint.manifest)
    dialect = container.dialect or manifest.dialect
    translation = translate(manifest, dialect, checkpoint.read, dense=dtype)
    _require_expert_layout(checkpoint, container)
    wishes = Wishes(recipe, dtype, container.dense.vectors if dialect != manifest.dialect else None, max_ram)
    notes = [*translation.notes, *(f"{name} is not copied: {why}" for name, why in translation.dropped.items())]
    as_stored = Wishes(Recipe("keep"), None, None, max_ram)
    jobs = [(checkpoint, manifest.entries[old], renamed, wishes) for old, renamed in translation.tensors.items()]
    if order is not None:
        jobs.sort(key=lambda job: order(job[1]))
    jobs += [
        (origin, entry, Renamed(new), as_stored)
        for new, (origin, entry) in draft_tensors(checkpoint, container, draft, notes).items()
    ]
    steps, refusals = [], []
    for origin, entry, renamed, wanted in jobs:
        try:
            step = _step(origin, entry, renamed, container, wanted)
            steps.append(step if origin is checkpoint else replace(step, origin=origin))
        except FlyweightError as error:
            if isinstance(error, ResourceError | MalformedError) or entry.codec.is_foreign:  # no matter of this tensor's type
                raise error.at(file=origin.bundle.name, tensor=entry.name) from None
            refusals.append(error.at(tensor=entry.name))
    if refusals:
        first = refusals[0]
        more = f" (and {len(refusals) - 1} more tensors)" if len(refusals) > 1 else ""
        raise UnsupportedError(
            first.message + more, code=first.code, tensor=first.tensor, file=checkpoint.bundle.name, hint=first.hint
        )
    for extra_name, array in translation.added.items():
        spec = TensorSpec(array.shape, DType.F32)
        steps.append(Step("add", None, Entry(extra_name, spec, RAW, {"data": spec}), array=array))
    translation = translation._replace(files={**translation.files, **(files or {})})
    placement = container.place(_unplaced(checkpoint, container, translation, dialect, steps, notes), name, shard_bytes)
    placed = placement.manifest.entries
    steps = [replace(step, target=placed[step.target.name]) for step in steps]
    notes += [f"{step.target.name}: {step.note}" for step in steps if step.note]
    notes += placement.notes
    return Plan(checkpoint, container, recipe, placement, tuple(steps), tuple(notes), draft)


def _require_expert_layout(checkpoint: Checkpoint, container: Container) -> None:
    """A mixture of experts goes only where loaders want its experts as they are arranged."""
    if not container.expert_layout or checkpoint.container is container:
        return
    layout = expert_layout(checkpoint.manifest, checkpoint.read, checkpoint.container.expert_layout or "hf")
    if layout and layout != container.expert_layout:
        raise UnsupportedError(
            f"a mixture of experts in the arrangement of {layout} directories, which loaders of {container.name} do not read",
            code="E_EXPERTS",
            file=checkpoint.bundle.name,
            hint="experts cannot be rearranged yet; convert to the same kind of directory or to a safetensors file",
        )


def _unplaced(
    checkpoint: Checkpoint,
    container: Container,
    translation: Translation,
    dialect: str,
    steps: list[Step],
    notes: list[str],
) -> Manifest:
    """The manifest of what is to be written, still without extents."""
    entries = {step.target.name: step.target for step in steps}
    files = side_files(checkpoint, container, translation.files, entries.values(), notes)
    metadata = translation.metadata
    if dialect != checkpoint.manifest.dialect or any(step.action != "remux" for step in steps):
        metadata = container.describe(entries, metadata) if isinstance(container, Describes) else metadata
    return Manifest(container.name, entries, metadata, files, dialect)


class Wishes(NamedTuple):
    """What tensors should become."""

    recipe: Recipe
    dtype: DType | None
    """Of matrices stored dense; None: the one that loses nothing."""
    vectors: DType | None
    """Of vectors stored dense; None: the one they have."""
    max_ram: int | None
    """Bytes of memory that may be used; None: what the machine has to spare."""


def _step(checkpoint: Checkpoint, source: Entry, renamed: Renamed, container: Container, wishes: Wishes) -> Step:
    """How one tensor gets there."""
    choice = wishes.recipe.choose(source.spec, source.name, renamed.name)
    transform = renamed.transform
    moves_values = transform is not None and transform.add != 0
    if source.codec.is_foreign and (choice.codec or choice.dtype or wishes.dtype):
        raise source.codec.unreadable()
    dense_dtype = _dense_dtype(source, container, choice, wishes)
    if choice.codec is not None and choice.codec != RAW:
        return _quantize(checkpoint, source, renamed, container, choice, dense_dtype, wishes.max_ram)
    narrow = container.dense.exactly.get(dense_dtype)
    if (
        narrow
        and source.codec == RAW
        and not (moves_values or choice.dtype or wishes.dtype)
        and _fits(checkpoint, source, narrow)
    ):
        dense_dtype = narrow
    at_home = not container.decodes or checkpoint.container is container or source.codec.is_foreign
    keeps = source.codec == RAW or (choice.codec is None and at_home)
    if keeps and not moves_values and (source.codec != RAW or source.spec.dtype is dense_dtype):
        if container.carried(source.spec, source.codec):
            _require_rows(source, transform)
            return Step("remux", source, replace(source, name=renamed.name, extents={}), transform)
        repacked = _repack_target(source, container)
        if repacked is not None and _rows_can_move(source, transform):
            return Step("repack", source, _entry(renamed.name, source.spec, repacked), transform)
    return _dense(source, renamed, container, dense_dtype)


def _dense_dtype(source: Entry, container: Container, choice: Choice, wishes: Wishes) -> DType:
    """The element type this tensor has if stored dense: asked for, or the one that loses nothing."""
    if not source.spec.dtype.is_float:
        return source.spec.dtype
    if container.dense.vectors is not None and len(source.spec.shape) < 2:  # its readers take no other
        return wishes.vectors or source.spec.dtype
    return choice.dtype or wishes.dtype or source.spec.dtype


def _fits(checkpoint: Checkpoint, source: Entry, dtype: DType) -> bool:
    """Whether no value of a dense tensor changes with its element type; it is read for that, before anything is written."""
    for start, stop in slabs(source.spec, has_rows(source.spec, source.parts)):
        values = astype(decode_rows(read_rows(checkpoint, source.name, start, stop, None), None), DType.F32.numpy)
        if not np.array_equal(astype(astype(values, dtype.numpy), DType.F32.numpy), values):
            return False
    return True


def _rows_can_move(source: Entry, transform: Transform | None) -> bool:
    return transform is None or not transform.heads or has_rows(source.spec, source.parts)


def _require_rows(source: Entry, transform: Transform | None) -> None:
    if not _rows_can_move(source, transform):
        raise UnsupportedError(f"rows of {source.codec} cannot be reordered without decoding", tensor=source.name)


def _entry(name: str, spec: TensorSpec, codec: Codec) -> Entry:
    return Entry(name, spec, codec.spec, codec.layout(spec))


def _quantize(
    checkpoint: Checkpoint,
    source: Entry,
    renamed: Renamed,
    container: Container,
    choice: Choice,
    dense: DType,
    max_ram: int | None,
) -> Step:
    assert choice.codec is not None
    codec = codec_for(adapted(container, choice.codec, renamed.name))
    transform = renamed.transform
    if source.codec == codec.spec and not choice.sparsity and not (transform and transform.add):
        _require_rows(source, transform)
        return Step("remux", source, replace(source, name=renamed.name, extents={}), transform)
    if choice.quantizer == SAME_CODES or _repacks_exactly(source, transform, container, codec, choice):
        return Step("repack", source, _entry(renamed.name, source.spec, codec), transform)
    if not source.spec.dtype.is_float:
        if codec.exact:
            return _dense(source, renamed, container, dense)
        raise UnsupportedError(f"{source.spec.dtype} values cannot be quantized", hint="keep this tensor with a recipe")
    _require_decodable(source)
    if choice.floor is not None and (reached := _cosine(checkpoint, source, transform, codec, choice)) < choice.floor.cosine:
        finer = replace(choice, codec=choice.floor.otherwise, floor=None)
        step = _quantize(checkpoint, source, renamed, container, finer, dense, max_ram)
        before, after = codec.spec.params, step.target.codec.params
        changed = [key for key in after if after[key] != before.get(key)]
        now, then = (", ".join(f"{key} {params.get(key)}" for key in changed) for params in (after, before))
        return replace(step, note=f"encoded with {now}; with {then} its cosine would be {reached:.6f}")
    spec = TensorSpec(source.spec.shape, dense if codec.exact else codec.decoded_dtype(source.spec.dtype))
    try:
        if codec.needs_fit:
            memory_limit.require(codec.copies_to_fit * 4 * spec.size, max_ram, f"fitting {codec.name}", tensor=source.name)
            codec = _fitted(checkpoint, source, transform, codec, spec, choice.sparsity)
        layout = codec.layout(spec)
        reason = "" if container.carried(spec, codec.spec) else f"{container.name} cannot store {spec} as {codec.spec}"
        larger = sum(part.nbytes for part in layout.values()) >= spec.nbytes
        if larger and codec.exact and not codec.drops_blocks and not reason:  # a mask is asked for in spite of its bytes
            reason = f"{codec.name} would not make it smaller"
    except UnsupportedError as error:
        reason = error.message
    if reason and container.carried(TensorSpec((256, 256), spec.dtype), codec.spec):  # the codec would do, this shape will not
        return replace(_dense(source, renamed, container, dense), note=f"not quantized: {reason}")
    if reason:
        raise UnsupportedError(
            f"{container.name} cannot store {spec} as {codec.spec}",
            hint=f"`flyweight formats` lists what {container.name} can store",
        )
    target = Entry(renamed.name, spec, codec.spec, layout)
    return Step("transcode", source, target, transform, choice.quantizer or codec.quantizer, sparsity=choice.sparsity)


def _repacks_exactly(source: Entry, transform: Transform | None, container: Container, codec: Codec, choice: Choice) -> bool:
    """Whether the codec wanted holds the source's grid as it is, so that quantizing again would only lose.

    Whoever names a quantizer wants other codes, and gets them.
    """
    if choice.quantizer or choice.sparsity or (transform and transform.add) or not known(source.codec):
        return False
    grid = codec_for(source.codec).grid_spec
    exact = grid is not None and codec.holds_grid(grid, source.spec.columns)
    return exact and _rows_can_move(source, transform) and container.carries(source.spec, codec.spec)


def _cosine(checkpoint: Checkpoint, source: Entry, transform: Transform | None, codec: Codec, choice: Choice) -> float:
    """How near a codec keeps a tensor to its source, for which its values are read once before anything is written."""
    drift, quantize = Drift(), QUANTIZERS[choice.quantizer or codec.quantizer]
    for start, stop in slabs(source.spec, has_rows(source.spec, source.parts)):
        values = astype(decode_rows(read_rows(checkpoint, source.name, start, stop, transform), transform), DType.F32.numpy)
        if not np.isfinite(values).all():
            return 1.0  # nothing to measure: carrying it out says what is wrong
        spec = TensorSpec(values.shape, DType.F32)
        drift.add(values, codec.decode(spec, quantize(values, codec, spec)))
    return drift.cosine


def _fitted(
    checkpoint: Checkpoint, source: Entry, transform: Transform | None, codec: Codec, spec: TensorSpec, sparsity: float
) -> Codec:
    """The codec with the sizes this tensor needs, for which its values are read once before anything is written."""
    tensor = read_rows(checkpoint, source.name, 0, source.spec.rows, transform)
    values = pruned(decode_rows(tensor, transform), codec.spec, sparsity)
    return codec.fit(spec, values.reshape(spec.shape))


def _dense(source: Entry, renamed: Renamed, container: Container, dtype: DType) -> Step:
    _require_decodable(source)
    spec = TensorSpec(source.spec.shape, dtype)
    if not container.carried(spec, RAW):
        raise UnsupportedError(
            f"{container.name} can store neither {source.codec} nor {spec}",
            hint="choose another element type with --dtype",
        )
    return Step("transcode", source, Entry(renamed.name, spec, RAW, {"data": spec}), renamed.transform)


def _require_decodable(source: Entry) -> None:
    if not known(source.codec):
        raise source.codec.unreadable()


def _repack_target(source: Entry, container: Container) -> Codec | None:
    """A codec the container carries that stores the same grid exactly, whatever the values."""
    if not known(source.codec):
        return None
    for candidate in codec_for(source.codec).same_grid:
        if container.carried(source.spec, own := adapted(container, candidate)):
            return codec_for(own)
    return None
