"""Experts arranged otherwise, without a byte moved: matrices that become a stack are read as one, and a stack is cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from flyweight.checkpoint.checkpoint import Checkpoint
from flyweight.foundation.cursor import Budget
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.expert_names import ExpertName, expert_name, stack_name
from flyweight.foundation.manifest import Entry, Extent
from flyweight.foundation.tensor import Layout, TensorSpec, rows_encode_alone
from flyweight.sources import Bundle, JoinedSource, Piece, Source

_EXPERT_NBYTES = 1024
"""What a matrix of one expert takes in memory beside its weights, rounded up."""


class RearrangedExperts(Checkpoint):
    """A checkpoint whose experts are stacked, or not, as another format has them. It closes the one that it is made of."""

    def __init__(self, base: Checkpoint, *, stacked: bool) -> None:
        self._base = base
        self.delta_places = base.delta_places
        joined: dict[str, Source] = {}
        entries = _stacked(base, joined) if stacked else _unstacked(base)
        bundle = _WithJoined(base.bundle, joined)
        super().__init__(bundle, base.container, replace(base.manifest, entries=entries), checks_digests=base.checks_digests)
        self._check_block = None  # of tensors that are no longer these

    def files(self) -> set[str]:
        return self._base.files()

    def source(self, file: str) -> Source:
        return self.bundle[file] if file in self.bundle else self._base.source(file)


class _WithJoined(Bundle):
    """The files of a bundle, and what is read as files of its own."""

    def __init__(self, base: Bundle, joined: Mapping[str, Source]) -> None:
        self.name, self.is_directory = base.name, base.is_directory
        self._base, self._joined = base, joined

    def __getitem__(self, key: str) -> Source:
        self.check_open()
        return self._joined[key] if key in self._joined else self._base[key]

    def __iter__(self) -> Iterator[str]:
        return iter((*self._base, *self._joined))

    def __len__(self) -> int:
        return len(self._base) + len(self._joined)

    def siblings(self) -> Bundle:
        return self._base.siblings()

    def close(self) -> None:
        super().close()
        self._base.close()


def _stacked(base: Checkpoint, joined: dict[str, Source]) -> dict[str, Entry]:
    """Each stack where its first expert was."""
    stacks: dict[str, dict[int, Entry]] = {}
    places: dict[str, str] = {}
    for name, entry in base.manifest.entries.items():
        if (found := expert_name(name)) is not None:
            stacks.setdefault(found.stack, {})[found.number] = entry
            places[name] = found.stack
    entries: dict[str, Entry] = {}
    for name, entry in base.manifest.entries.items():
        stack = places.get(name)
        if stack is None:
            entries[name] = entry
        elif stack not in entries:
            entries[stack] = _stack(base, stack, stacks[stack], joined)
    return entries


def _stack(base: Checkpoint, name: str, experts: Mapping[int, Entry], joined: dict[str, Source]) -> Entry:
    if sorted(experts) != list(range(len(experts))):
        raise UnsupportedError(f"of {max(experts) + 1} experts there are {len(experts)}", code="E_EXPERTS", tensor=name)
    members = [experts[number] for number in range(len(experts))]
    first = members[0]
    for member in members:
        if (member.spec, member.codec, member.parts) != (first.spec, first.codec, first.parts):
            raise _refusal(f"experts stored as {first.codec} and {member.codec} cannot be stacked as they are", member.name)
    if len(first.spec.shape) != 2 or not rows_encode_alone(first.spec, first.parts):
        raise _refusal(f"experts stored as {first.codec} cannot be stacked as they are", first.name)
    file, at = f"experts of {name}", 0
    pieces: list[Piece] = []
    extents: dict[str, Extent] = {}
    for part, spec in first.parts.items():
        pieces += (Piece(base.source(e.extents[part].file), e.extents[part].offset, spec.nbytes) for e in members)
        extents[part] = Extent(file, at, len(members) * spec.nbytes)
        at = extents[part].end
    joined[file] = JoinedSource(f"{base.bundle.name}, {name}", pieces)
    parts: Layout = {part: TensorSpec((len(members), *spec.shape), spec.dtype) for part, spec in first.parts.items()}
    return Entry(name, TensorSpec((len(members), *first.spec.shape), first.spec.dtype), first.codec, parts, extents)


def _refusal(message: str, name: str) -> UnsupportedError:
    return UnsupportedError(
        message, code="E_EXPERTS", tensor=name, hint="decode the model with --to hf, then convert that with --quant"
    )


def _unstacked(base: Checkpoint) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    budget = Budget()
    for name, entry in base.manifest.entries.items():
        stack = stack_name(name) if len(entry.spec.shape) == 3 else None
        if stack is None:
            entries[name] = entry
            continue
        if not rows_encode_alone(entry.spec, entry.parts):
            raise UnsupportedError(f"a stack of experts stored as {entry.codec} cannot be cut", code="E_EXPERTS", tensor=name)
        budget.spend(entry.spec.shape[0] * _EXPERT_NBYTES, "so many experts", file=base.bundle.name)
        for expert in _experts(entry, stack):
            if expert.name in base.manifest.entries:
                raise UnsupportedError("the expert is there, and in a stack too", code="E_EXPERTS", tensor=expert.name)
            entries[expert.name] = expert
    return entries


def _experts(entry: Entry, stack: ExpertName) -> Iterator[Entry]:
    spec = TensorSpec(entry.spec.shape[1:], entry.spec.dtype)
    parts: Layout = {part: TensorSpec(stored.shape[1:], stored.dtype) for part, stored in entry.parts.items()}
    for number in range(entry.spec.shape[0]):
        extents = {
            part: Extent(entry.extents[part].file, entry.extents[part].offset + number * stored.nbytes, stored.nbytes)
            for part, stored in parts.items()
        }
        yield Entry(stack.expert(number), spec, entry.codec, parts, extents)
