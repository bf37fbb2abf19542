"""What is to be said of a plan before the work begins: what stays dense in spite of the recipe, what grows by decoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from flyweight.codecs import CODECS, Codec
from flyweight.containers.container import Placement
from flyweight.foundation.limits import human_bytes
from flyweight.foundation.manifest import Entry
from flyweight.foundation.tensor import RAW
from flyweight.pipeline.plans.plan import Step

NOT_QUANTIZED = "not quantized: "
"""How the note of a matrix begins that a recipe could not quantize."""
_SMALL = "--quant 4bit makes it small, --dtype chooses another element type"
_GROWTH = 1.05


class Asked(NamedTuple):
    """What a recipe asks for, from what a plan says of it: a plan that is carried out later says the same."""

    name: str
    codes: bool
    """Of some tensors, codes that lose something."""
    plain: bool
    """Of some, plain numbers."""
    notes: tuple[str, ...]

    @classmethod
    def by(cls, recipe: Mapping[str, Any]) -> Asked:
        rules = recipe.get("rules")
        wishes = [rule.get("codec") for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []
        codecs = [codec.get("name") for codec in wishes if isinstance(codec, dict)]
        kinds = [CODECS[name] for name in codecs if isinstance(name, str) and name in CODECS]
        notes = recipe.get("notes")
        said = tuple(note for note in notes if isinstance(note, str)) if isinstance(notes, list) else ()
        raw = CODECS[RAW.name]
        return cls(str(recipe.get("name")), any(not _is_exact(kind) for kind in kinds), raw in kinds, said)


def _is_exact(kind: type[Codec]) -> bool:
    return kind().exact


def notes_of_steps(steps: Iterable[Step], asked: Asked) -> Iterator[str]:
    """What is to be said of tensors, once for all of which the same is to be said."""
    named: dict[str, list[str]] = {}
    for step in steps:
        if not (asked.codes and step.note.startswith(NOT_QUANTIZED)):  # `dense_note` sums these up
            named.setdefault(step.note, []).append(step.name)
    named.pop("", None)
    for note, names in named.items():
        yield f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {note}"


def dense_note(steps: Iterable[Step], asked: Asked, sources: Mapping[str, Entry], placement: Placement) -> Iterator[str]:
    """One line on the matrices that are plain though codes were asked for."""
    entries = placement.manifest.entries
    plain = [step for step in steps if step.name in sources and _is_plain_matrix(entries[step.name])] if asked.codes else []
    if not plain:
        return
    kept = f"{asked.name} keeps"
    why: dict[str, list[str]] = {}
    for step in plain:
        why.setdefault(step.note.removeprefix(NOT_QUANTIZED) or kept, []).append(step.name)
    reasons = [f"{reason} {_listed(names)}" if reason == kept else reason for reason, names in why.items()]
    count = f"{len(plain)} matrices stay" if len(plain) > 1 else "1 matrix stays"
    held = sum(entries[step.name].nbytes for step in plain)
    yield f"{count} {_types(entries[step.name] for step in plain)} ({_of(held, placement)}): {'; '.join(reasons)}"


def decoded_note(steps: Iterable[Step], asked: Asked, sources: Mapping[str, Entry], placement: Placement) -> Iterator[str]:
    """One line on tensors that are decoded because the target has no codec for them, and nobody asked for that."""
    if asked.codes or asked.plain:
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
