"""The place for what a check finds (`foundation.source_check`) in an output that is laid out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from flyweight.containers.container import Container, Placement
from flyweight.foundation.manifest import Manifest, Typed
from flyweight.foundation.source_check import KEY, RESERVED


def without_check(metadata: Mapping[str, Typed]) -> dict[str, Typed]:
    """What is left of metadata where values change."""
    return {key: typed for key, typed in metadata.items() if key != KEY}


def placed(
    container: Container, manifest: Manifest, name: str, shard_bytes: int | None, *, checked: bool, notes: list[str]
) -> Placement:
    """The output, for one that will be `checked` with a place among its metadata if the format has one; else that is noted."""
    if checked:
        reserved = replace(manifest, metadata={**manifest.metadata, KEY: RESERVED})
        placement = container.place(reserved, name, shard_bytes)
        if any(_PLACE in chunk for image in placement.images.values() for _, chunk in image.chunks):
            return placement
        notes.append(f"what a check finds is in the report alone: {container.title} has no place for it")
    return container.place(manifest, name, shard_bytes)


_PLACE = RESERVED.value.encode()
