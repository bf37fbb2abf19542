"""Draft heads: tensors named `draft.<their own name>`, stored with a model but not part of it.

They are copied as they are stored, whatever the recipe does to the model. Formats whose readers take a model's own tensors
and no others do not get them.
"""

from __future__ import annotations

from dataclasses import replace

from flyweight.checkpoint import Checkpoint
from flyweight.containers.abilities import EmbedsFiles
from flyweight.containers.container import Container
from flyweight.foundation.manifest import DRAFT, Entry, Manifest


def without_draft(manifest: Manifest) -> Manifest:
    """The model itself."""
    kept = {name: entry for name, entry in manifest.entries.items() if not name.startswith(DRAFT)}
    return manifest if len(kept) == len(manifest.entries) else replace(manifest, entries=kept)


def draft_tensors(
    checkpoint: Checkpoint, container: Container, added: Checkpoint | None, notes: list[str]
) -> dict[str, tuple[Checkpoint, Entry]]:
    """The tensors of the head the target gets, by their names there: those of a checkpoint of its own, else the source's."""
    own = {name: (checkpoint, entry) for name, entry in checkpoint.manifest.entries.items() if name.startswith(DRAFT)}
    if own and container.dialect and not isinstance(container, EmbedsFiles):
        notes.append(f"a draft head of {len(own)} tensors is not stored: `flyweight extract` writes it to a separate file")
        return {}
    if added is None:
        return own
    if own:
        notes.append(f"the draft head of {added.bundle.name} replaces the one in the source")
    return {DRAFT + name: (added, entry) for name, entry in added.manifest.entries.items()}
