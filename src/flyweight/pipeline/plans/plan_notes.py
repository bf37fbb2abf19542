"""What is to be said of a plan before the work begins: what stays dense in spite of the recipe, what grows by decoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from flyweight.containers.container import Placement
from flyweight.foundation.limits import human_bytes
from flyweight.foundation.manifest import Entry
from flyweight.foundation.tensor import RAW
from flyweight.pipeline.plans.plan import Step
from flyweight.pipeline.plans.recipe import Recipe

NOT_QUANTIZED = "not quantized: "
"""How the note of a matrix begins that a recipe could not quantize."""
_SMALL = "--quant 4bit makes it small, --dtype chooses another element type"
_GROWTH = 1.05


def notes_of_steps(steps: Iterable[Step], recipe: Recipe) -> Iterator[str]:
    """What is to be said of tensors, once for all of which the same is to be said."""
    named: dict[str, list[str]] = {}
    for step in steps:
        if not (recipe.quantizes and step.note.startswith(NOT_QUANTIZED)):  # `dense_note` sums these up
            named.setdefault(step.note, []).append(step.name)
    named.pop("", None)
    for note, names in named.items():
        yield f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {note}"


def dense_note(steps: Iterable[Step], recipe: Recipe, placement: Placement) -> Iterator[str]:
    """One line on the matrices that are plain though the recipe quantizes."""
    if not recipe.quantizes:
        return
    entries = placement.manifest.entries
    plain = [step for step in steps if step.source and not step.draft and _is_plain_matrix(entries[step.name])]
    if not plain:
        return
    why: dict[str, list[str]] = {}
    for step in plain:
        why.setdefault(step.note.removeprefix(NOT_QUANTIZED) or f"{recipe.name} keeps", []).append(step.name)
    reasons = [f"{reason} {_listed(names)}" if reason.endswith("keeps") else reason for reason, names in why.items()]
    count = f"{len(plain)} matrices stay" if len(plain) > 1 else "1 matrix stays"
    held = sum(entries[step.name].nbytes for step in plain)
    yield f"{count} {_types(entries[step.name] for step in plain)} ({_of(held, placement)}): {'; '.join(reasons)}"


def decoded_note(steps: Iterable[Step], recipe: Recipe, sources: Mapping[str, Entry], placement: Placement) -> Iterator[str]:
    """One line on tensors that are decoded because the target has no codec for them, and nobody asked for that."""
    if recipe.quantizes or any(rule.choice.codec == RAW for rule in recipe.rules):
        return
    entries = placement.manifest.entries
    decoded = [step for step in steps if step.name in sources and _is_decoded(sources[step.name], entries[step.name])]
    before, after = sum(entry.nbytes for entry in sources.values()), sum(entry.nbytes for entry in entries.values())
    if decoded and after > _GROWTH * before:
        codecs = ", ".join(sorted({sources[step.name].codec.name for step in decoded}))
        subject = f"{len(decoded)} tensors are" if len(decoded) > 1 else "1 tensor is"
        yield (
            f"{subject} decoded from {codecs} to {_types(entries[step.name] for step in decoded)}: "
            f"{human_bytes(after)}, {after / before:.1f} times the source; {_SMALL}"
        )


def _is_plain_matrix(entry: Entry) -> bool:
    return entry.codec == RAW and entry.spec.dtype.is_float and len(entry.spec.shape) > 1


def _is_decoded(source: Entry, target: Entry) -> bool:
    return source.codec != RAW and target.codec == RAW


def _types(entries: Iterable[Entry]) -> str:
    return " and ".join(dtype for dtype, _ in Counter(entry.spec.dtype.label for entry in entries).most_common())


def _of(part: int, placement: Placement) -> str:
    """`106.2 of 118.3 MB`, or with a unit of its own."""
    whole = human_bytes(sum(entry.nbytes for entry in placement.manifest.entries.values()))
    own = human_bytes(part)
    return f"{own.split()[0] if own.split()[1] == whole.split()[1] else own} of {whole}"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
