"""Planning: every step and every refusal before a byte is written.

`make_job` decides for each tensor how it gets from the source to the target:

    remux      the stored bytes are copied (rows may move); no codec is needed
    repack     the same integers and scales in other bytes; no value changes
    transcode  decoded and encoded again; the report says what it cost
    add        a tensor the target needs and the source holds only as configuration

All sizes are known here, so the target is laid out in full and written in one pass. `job_of_plan` does the same with the
choices of a plan that was made before, and refuses one that does not come to what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from flyweight.checkpoint import Checkpoint
from flyweight.checkpoint.expert_stacks import RearrangedExperts
from flyweight.codecs import Codec, codec_for, known
from flyweight.codecs.casts import astype
from flyweight.containers.abilities import Arranges, Describes, Restates, adapted
from flyweight.containers.container import Arrangement, Container
from flyweight.foundation import strict_json
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, MalformedError, ResourceError, UnsupportedError
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.manifest import Entry, Manifest
from flyweight.foundation.tensor import RAW, CodecSpec, Layout, TensorSpec, has_rows
from flyweight.models import EXPERT_STACKS, Renamed, Transform, Translation, are_experts_of, expert_layout, translate
from flyweight.pipeline import memory_limit
from flyweight.pipeline.conversion_report import Drift
from flyweight.pipeline.draft import draft_tensors, without_draft
from flyweight.pipeline.matrix_inputs import NONE, MatrixInputs
from flyweight.pipeline.plans.check_place import placed, without_check
from flyweight.pipeline.plans.inputs import SOURCE, Input, input_of
from flyweight.pipeline.plans.job import Job
from flyweight.pipeline.plans.plan import Action, Plan, Step
from flyweight.pipeline.plans.plan_notes import NOT_QUANTIZED, Asked, decoded_note, dense_note, notes_of_steps
from flyweight.pipeline.plans.recipe import DENSE, KEEP, SAME_CODES, Choice, Recipe, Rule, choice
from flyweight.pipeline.plans.rule_conditions import ModelTraits
from flyweight.pipeline.rows import decode_rows, pruned, read_rows, slabs
from flyweight.pipeline.side_files import CONFIG, side_files
from flyweight.quantizers import QUANTIZERS


def make_job(
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
    inputs: Mapping[str, Input] | None = None,
    made: Mapping[str, str] | None = None,
    order: Callable[[Entry], int] | None = None,
    known: MatrixInputs = NONE,
    checked: bool = False,
) -> Job:
    """Decide everything. Raises UnsupportedError listing every tensor that cannot be carried.

    `draft` holds a draft head to add, `files` are side files to add, `inputs` what they are read from and `made` which of them
    are made of the source. Tensors lie as in the source, or sorted by `order`. `known` is what quantizers are told of their
    inputs, and some rules ask whether there is any. An output that will be `checked` has a place for what comes of it.
    """
    inputs = {SOURCE: input_of(checkpoint), **(inputs or {})}
    checkpoint = _with_experts_of(container, checkpoint)
    manifest = without_draft(checkpoint.manifest)
    dialect = container.dialect or manifest.dialect
    translation = translate(manifest, dialect, checkpoint.read, dense=dtype)
    tensors = {new.name: manifest.entries[old].spec for old, new in translation.tensors.items()}
    recipe = replace(recipe, model=ModelTraits.of(tensors, statistics=bool(known)))
    wishes = Wishes(recipe, dtype, container.dense.vectors if dialect != manifest.dialect else None, max_ram, known)
    asked = Asked.by(recipe.as_json())
    notes = [*asked.notes, *translation.notes, *(f"{name} is not copied: {why}" for name, why in translation.dropped.items())]
    if isinstance(checkpoint.container, Restates):
        notes += checkpoint.container.restated(checkpoint.bundle)
    as_stored = Wishes(Recipe("keep"), None, None, max_ram)
    jobs = list(_arranged(checkpoint, container, translation, wishes, notes))
    if order is not None:
        jobs.sort(key=lambda job: order(job[1]))
    jobs += [
        (origin, entry, Renamed(new), as_stored)
        for new, (origin, entry) in draft_tensors(checkpoint, container, draft, notes).items()
    ]
    steps, entries, refusals = [], {}, []
    for origin, entry, renamed, wanted in jobs:
        try:
            step = _step(origin, entry, renamed, container, wanted)
            steps.append(step if origin is checkpoint else replace(step, draft=True))
            parts = entry.parts if step.action == "remux" else layout_of(step.codec, step.spec)
            entries[step.name] = Entry(step.name, step.spec, step.codec, parts)
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
        steps.append(Step(extra_name, spec, RAW, "add", None))
        entries[extra_name] = Entry(extra_name, spec, RAW, {"data": spec})
    if isinstance(recipe, Planned):
        steps = recipe.confirmed(steps)
    side = side_files(checkpoint, container, {**translation.files, **(files or {})}, entries.values(), notes)
    metadata = translation.metadata
    changes = dialect != manifest.dialect or any(step.action != "remux" for step in steps)
    if changes and isinstance(container, Describes):
        metadata = container.describe(entries, metadata, recipe.name)
    if checkpoint.delta_places or any(step.action == "transcode" for step in steps):
        metadata = without_check(metadata)
    written = Manifest(container.name, entries, metadata, side, dialect)
    placement = placed(container, written, name, shard_bytes, checked=checked, notes=notes)
    known_steps = [step for step in steps if step.source in manifest.entries and not step.draft]
    sources = {step.name: manifest.entries[str(step.source)] for step in known_steps}
    notes += notes_of_steps(steps, asked)
    notes += _unknown(steps, known)
    notes += dense_note(steps, asked, sources, placement)
    notes += () if dtype else decoded_note(steps, asked, sources, placement)
    notes += placement.notes
    plan = Plan(container, name, inputs, recipe.as_json(), tuple(steps), dtype, shard_bytes, made or {})
    return Job(plan, checkpoint, placement, draft, translation.added, tuple(notes), known)


def _arranged(
    checkpoint: Checkpoint, container: Container, translation: Translation, wishes: Wishes, notes: list[str]
) -> Iterator[_Job]:
    """Every tensor of the model with what it should become, and those that the target has besides behind what they are of."""
    arrangement, entries = Arrangement(), checkpoint.manifest.entries
    if isinstance(container, Arranges):
        text = translation.files.get(CONFIG)
        config = strict_json.loads(checkpoint.read(text), file=CONFIG) if text is not None else {}
        names = [renamed.name for renamed in translation.tensors.values()]
        arrangement = container.arrange(names, config if isinstance(config, dict) else {})
    plain = wishes._replace(recipe=Recipe("dense", (Rule(("*",), DENSE),)))
    copies: dict[str, list[str]] = {}
    for new, original in arrangement.copies.items():
        copies.setdefault(original, []).append(new)
        notes.append(f"{new} is stored besides {original}, from which it is made: {container.title} has both")
    for old, renamed in translation.tensors.items():
        for name in (renamed.name, *copies.get(renamed.name, ())):
            own = plain if name in arrangement.plain else wishes
            if (wanted := arrangement.dtypes.get(name)) and entries[old].spec.dtype in _NARROWER.get(wanted, ()):
                own = own._replace(dtype=wanted, vectors=wanted)
            yield checkpoint, entries[old], renamed._replace(name=name), own


_Job = tuple[Checkpoint, Entry, Renamed, "Wishes"]
_NARROWER = {DType.F32: (DType.F16, DType.BF16, DType.F8_E4M3)}
"""Element types whose every value another holds."""


def _unknown(steps: Iterable[Step], known: MatrixInputs) -> Iterator[str]:
    """Quantized matrices that the statistics say nothing of, in a line."""
    names = [step.name for step in steps if step.action == "transcode" and step.codec != RAW and step.source in known.missing]
    if names:
        yield f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: no statistics, so all columns weigh alike"


@lru_cache(1 << 12)
def layout_of(codec: CodecSpec, spec: TensorSpec) -> Layout:
    """The parts of a tensor, found out once for tensors that are alike, as `Container.carried` is."""
    return codec_for(codec).layout(spec)


def _with_experts_of(container: Container, checkpoint: Checkpoint) -> Checkpoint:
    """A mixture of experts goes only where loaders want its experts as they are arranged, or can be without loss."""
    if not container.expert_layout or checkpoint.container is container:
        return checkpoint
    layout = expert_layout(checkpoint.manifest, checkpoint.read, checkpoint.container.expert_layout or "hf")
    if layout in ("", container.expert_layout):
        return checkpoint
    if (stacks := EXPERT_STACKS.get((layout, container.expert_layout))) is not None:
        arranged = RearrangedExperts(checkpoint, stacked=stacks)
        if are_experts_of(container.expert_layout, arranged.manifest.entries):
            return arranged
    raise UnsupportedError(
        f"a mixture of experts in the arrangement of {layout} directories, which loaders of {container.name} do not read",
        code="E_EXPERTS",
        file=checkpoint.bundle.name,
        hint="these experts cannot be rearranged yet; convert to the same kind of directory or to a safetensors file",
    )


class Wishes(NamedTuple):
    """What tensors should become."""

    recipe: Recipe
    dtype: DType | None
    """Of matrices stored dense; None: the one that loses nothing."""
    vectors: DType | None
    """Of vectors stored dense; None: the one they have."""
    max_ram: int | None
    """Bytes of memory that may be used; None: what the machine has to spare."""
    known: MatrixInputs = NONE
    """What is known of the inputs of matrices."""


def _step(checkpoint: Checkpoint, source: Entry, renamed: Renamed, container: Container, wishes: Wishes) -> Step:
    """How one tensor gets there."""
    dtype = _value_dtype(source)
    known_to_readers = TensorSpec(source.spec.shape, container.dense.instead.get(dtype, dtype))
    choice = wishes.recipe.choose(known_to_readers, source.name, renamed.name)
    transform = renamed.transform
    moves_values = transform is not None and transform.add != 0
    if source.codec.is_foreign and (choice.codec or choice.dtype or wishes.dtype):
        raise source.codec.unreadable()

    def dense_type() -> DType:
        return _dense_dtype(checkpoint, source, container, choice, wishes)

    if choice.codec is not None and choice.codec != RAW:
        return _quantize(checkpoint, source, renamed, container, choice, dense_type, wishes)
    keeps = source.codec != RAW and choice.codec is None and not moves_values
    if keeps and (stored := _as_stored(checkpoint, source, renamed, container, choice)) is not None:
        return stored
    dense_dtype = dense_type()
    narrow = container.dense.exactly.get(dense_dtype)
    if narrow and source.codec == RAW and not moves_values:
        asked = choice.dtype or wishes.dtype
        if choice.dtype is narrow if choice.decided else not asked and _fits(checkpoint, source, narrow):
            dense_dtype = narrow
    return _dense(source, renamed, container, dense_dtype)


def _as_stored(checkpoint: Checkpoint, source: Entry, renamed: Renamed, container: Container, choice: Choice) -> Step | None:
    """The step that changes no value of an encoded tensor, if the target can have one."""
    if container.decodes and checkpoint.container is not container and not source.codec.is_foreign and not choice.decided:
        return None
    if container.carried(source.spec, source.codec):
        _require_rows(source, renamed.transform)
        return Step(renamed.name, source.spec, source.codec, "remux", source.name, renamed.transform)
    repacked = _repack_target(source, container)
    if repacked is None or not _rows_can_move(source, renamed.transform):
        return None
    return Step(renamed.name, source.spec, repacked, "repack", source.name, renamed.transform)


def _dense_dtype(checkpoint: Checkpoint, source: Entry, container: Container, choice: Choice, wishes: Wishes) -> DType:
    """The element type this tensor has if stored dense: asked for, or the one that loses nothing."""
    if not source.spec.dtype.is_float:
        return source.spec.dtype
    if container.dense.vectors is not None and len(source.spec.shape) < 2:  # its readers take no other
        return wishes.vectors or source.spec.dtype
    dtype = choice.dtype or wishes.dtype or _decoded_dtype(checkpoint, source)
    return container.dense.instead.get(dtype, dtype)


def _value_dtype(source: Entry) -> DType:
    """The narrowest element type that is known to hold a tensor's values."""
    narrow = codec_for(source.codec).value_dtype if source.codec != RAW and known(source.codec) else None
    return narrow or source.spec.dtype


def _decoded_dtype(checkpoint: Checkpoint, source: Entry) -> DType:
    """The narrowest element type that loses nothing measurable: f16 where rounding to it is far below the codes' own step
    (docs/decisions/0211), for which scales are read; else one that holds every value."""
    dtype = _value_dtype(source)
    if source.codec == RAW or not known(source.codec) or dtype.bits <= DType.F16.bits:
        return dtype
    codec = codec_for(source.codec)
    for start, stop in slabs(source.spec, has_rows(source.spec, source.parts)):
        tensor = read_rows(checkpoint, source.name, start, stop, None)
        bound = codec.f16_bound(tensor.spec, tensor.parts)
        if bound is None or not bound <= _F16_MAX:
            return dtype
    return DType.F16


_F16_MAX = 65504.0


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


def _quantize(
    checkpoint: Checkpoint,
    source: Entry,
    renamed: Renamed,
    container: Container,
    choice: Choice,
    dense: Callable[[], DType],
    wishes: Wishes,
) -> Step:
    assert choice.codec is not None
    codec = codec_for(adapted(container, choice.codec, renamed.name))
    transform = renamed.transform
    if source.codec == codec.spec and not choice.sparsity and not (transform and transform.add):
        _require_rows(source, transform)
        return Step(renamed.name, source.spec, source.codec, "remux", source.name, transform)
    if choice.quantizer == SAME_CODES or _repacks_exactly(source, transform, container, codec, choice):
        return Step(renamed.name, source.spec, codec.spec, "repack", source.name, transform)
    if not source.spec.dtype.is_float:
        if codec.exact:
            return _dense(source, renamed, container, dense())
        raise UnsupportedError(f"{source.spec.dtype} values cannot be quantized", hint="keep this tensor with a recipe")
    _require_decodable(source)
    if choice.floor is not None and (reached := _cosine(checkpoint, source, transform, codec, choice)) < choice.floor.cosine:
        finer = replace(choice, codec=choice.floor.otherwise, floor=None)
        step = _quantize(checkpoint, source, renamed, container, finer, dense, wishes)
        before, after = codec.spec.params, step.codec.params
        changed = [key for key in after if after[key] != before.get(key)]
        now, then = (", ".join(f"{key} {params.get(key)}" for key in changed) for params in (after, before))
        return replace(step, note=f"encoded with {now}; with {then} its cosine would be {reached:.6f}")
    spec = TensorSpec(source.spec.shape, dense() if codec.exact else codec.decoded_dtype(source.spec.dtype))
    try:
        if codec.needs_fit and not choice.decided:
            memory_limit.require(
                codec.copies_to_fit * 4 * spec.size, wishes.max_ram, f"fitting {codec.name}", tensor=source.name
            )
            codec = _fitted(checkpoint, source, transform, codec, spec, choice.sparsity)
        layout = layout_of(codec.spec, spec)
        reason = "" if container.carried(spec, codec.spec) else f"rows of {spec.columns} do not fit {codec.spec}"
        larger = sum(part.nbytes for part in layout.values()) >= spec.nbytes
        if larger and codec.exact and not codec.drops_blocks and not reason:  # a mask is asked for in spite of its bytes
            reason = f"{codec.name} would not make it smaller"
    except UnsupportedError as error:
        blocks = error.code == "E_BLOCK_ROWS"
        reason = f"rows of {spec.columns} are no whole blocks of {codec.name}" if blocks else error.message
    if reason and container.carried(TensorSpec((256, 256), spec.dtype), codec.spec):  # the codec would do, this shape will not
        return replace(_dense(source, renamed, container, dense()), note=NOT_QUANTIZED + reason)
    if reason:
        raise UnsupportedError(
            f"{container.name} cannot store {spec} as {codec.spec}",
            hint=f"`flyweight formats` lists what {container.name} can store",
        )
    quantizer = choice.quantizer or _best_quantizer(codec, spec, wishes.known.inputs_of(source.name))
    return Step(
        renamed.name, spec, codec.spec, "transcode", source.name, transform, quantizer, choice.sparsity, note=choice.note
    )


def _best_quantizer(codec: Codec, spec: TensorSpec, inputs: InputStatistics | None) -> str:
    """The best that can do with what is known of a matrix's inputs."""
    if inputs is None:
        return codec.quantizer
    return "gptq" if inputs.has_gram and codec.takes_feedback(spec) else codec.searched_by


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
    transform = renamed.transform
    is_copy = source.codec == RAW and source.spec == spec and not (transform and transform.add)
    action: Action = "remux" if is_copy and _rows_can_move(source, transform) else "transcode"
    return Step(renamed.name, spec, RAW, action, source.name, transform)


def _require_decodable(source: Entry) -> None:
    if not known(source.codec):
        raise source.codec.unreadable()


def _repack_target(source: Entry, container: Container) -> CodecSpec | None:
    """A codec the container carries that stores the same grid exactly, whatever the values."""
    if not known(source.codec):
        return None
    for candidate in codec_for(source.codec).same_grid:
        if container.carried(source.spec, own := adapted(container, candidate)):
            return codec_for(own).spec
    return None


# Plans that were made before --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Planned(Recipe):
    """What the steps of a plan say."""

    steps: tuple[Step, ...] = ()
    choices: Mapping[str, Choice] = field(default_factory=dict)
    stated: Mapping[str, Any] = field(default_factory=dict)
    """The recipe, as the plan has it."""

    @classmethod
    def by(cls, plan: Plan) -> Planned:
        choices = {step.name: _choice(step) for step in plan.steps if step.source is not None and not step.draft}
        return cls(plan.recipe["name"], gate=plan.limits, steps=plan.steps, choices=choices, stated=plan.recipe)

    def as_json(self) -> dict[str, Any]:
        return dict(self.stated)

    def choose(self, spec: TensorSpec, *names: str) -> Choice:
        return self.choices.get(names[-1], KEEP)

    def confirmed(self, made: list[Step]) -> list[Step]:
        """The steps, if planning comes to the same."""
        for step, wanted in zip_longest(made, self.steps):
            if step is None or wanted is None or replace(step, note=wanted.note) != wanted:
                says, does = (f"{s.action} {s.source} to {s.spec} {s.codec}" if s else "nothing" for s in (wanted, step))
                raise UnsupportedError(
                    f"the plan says {says}, which comes to {does}", code="E_PLAN", tensor=(wanted or step).name,
                    hint="make the plan again",
                )  # fmt: skip
        return list(self.steps)


def _choice(step: Step) -> Choice:
    """What leads to this step, without looking at values again."""
    dtype = step.spec.dtype if step.codec == RAW else None
    if step.action == "remux" or step.codec == RAW:
        return Choice(None if step.action == "remux" else RAW, dtype=dtype, decided=True)
    if step.action == "repack":
        return Choice(step.codec, decided=True)
    wanted = choice(step.codec.name, step.codec.as_json()["params"], step.quantizer, sparsity=step.sparsity)
    return replace(wanted, decided=True)


def job_of_plan(
    plan: Plan,
    checkpoint: Checkpoint,
    name: str,
    *,
    max_ram: int | None = None,
    draft: Checkpoint | None = None,
    files: Mapping[str, bytes] | None = None,
    known: MatrixInputs = NONE,
) -> Job:
    """A plan that was made before, for its source, which is the same as then (`require_same`)."""
    order = {step.source: place for place, step in enumerate(plan.steps) if not step.draft}
    return make_job(
        checkpoint, plan.container, name, recipe=Planned.by(plan), dtype=plan.dtype, shard_bytes=plan.shard_bytes,
        max_ram=max_ram, draft=draft, files=files, inputs=plan.inputs, made=plan.made,
        order=lambda entry: order.get(entry.name, 0), known=known,
    )  # fmt: skip
