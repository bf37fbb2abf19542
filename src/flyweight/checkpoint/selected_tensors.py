"""Some tensors of a checkpoint, without its side files."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from flyweight.checkpoint.checkpoint import Checkpoint
from flyweight.sources import Source


class SelectedTensors(Checkpoint):
    """A view: whoever made the checkpoint closes it."""

    def __init__(self, base: Checkpoint, names: Collection[str]) -> None:
        self._base = base
        self.delta_places = base.delta_places
        entries = {name: base.manifest.entries[name] for name in names}
        manifest = replace(base.manifest, entries=entries, files={})
        super().__init__(base.bundle, base.container, manifest, checks_digests=base.checks_digests)

    def source(self, file: str) -> Source:
        return self._base.source(file)

    def close(self) -> None:
        pass
