"""Which tensor of a base each tensor of a fine-tune is made from.

That of its own name; else, of those whose name the fine-tune has not, the one that has the same bytes, or that is called the
same but for what comes before (`layers.0.mlp` and `model.layers.0.mlp`) and has the same shape. Models whose names differ by
their dialect are compared by the names of the base's dialect.
"""

from __future__ import annotations

from collections.abc import Mapping

from flyweight.checkpoint import Checkpoint
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.manifest import Entry
from flyweight.models import rename_tensors


def parents(base: Checkpoint, tuned: Checkpoint, digests: Mapping[str, str], base_digests: Mapping[str, str]) -> dict[str, str]:
    """Tensor of `tuned` → tensor of `base`; what is new is left out."""
    entries = base.manifest.entries
    called = _translated(base, tuned)
    found = {name: called[name] for name in tuned.manifest.entries if called[name] in entries}
    free = {name for name in entries if name not in set(found.values())}
    by_digest = {base_digests[name]: name for name in sorted(free, reverse=True)}
    by_ending: dict[str, list[str]] = {}
    for name in free:
        for ending in _endings(name):
            by_ending.setdefault(ending, []).append(name)
    for name, entry in tuned.manifest.entries.items():
        if name in found or not free:
            continue
        match = by_digest.get(digests[name])
        if match is None:
            match = next(
                (other for ending in _endings(called[name]) if (other := _one(by_ending, ending, entry, entries))), None
            )
        if match is not None and match in free:
            found[name] = match
            free.discard(match)
    return found


def _translated(base: Checkpoint, tuned: Checkpoint) -> dict[str, str]:
    """The name of each tensor of the fine-tune in the dialect of the base."""
    names = {name: name for name in tuned.manifest.entries}
    theirs, ours = tuned.manifest.dialect, base.manifest.dialect
    if not theirs or not ours or theirs == ours:
        return names
    try:
        renamed = rename_tensors(tuned.manifest, ours, tuned.read)
    except FlyweightError:  # a family nobody here knows: its names are what they are
        return names
    return names | {old: new.name for old, new in renamed.items()}


def _endings(name: str) -> list[str]:
    """The name without its first word, or two; and as it is: the other may have words before."""
    words = name.split(".")
    return [".".join(words[skip:]) for skip in range(min(3, len(words) - 1))] or [name]


def _one(by_ending: Mapping[str, list[str]], ending: str, entry: Entry, entries: Mapping[str, Entry]) -> str | None:
    alike = [name for name in by_ending.get(ending, ()) if entries[name].spec == entry.spec]
    return alike[0] if len(alike) == 1 else None
