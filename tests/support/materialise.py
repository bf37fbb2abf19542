"""Turns a placement into files: what the pipeline does on disk, done in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from blake3 import blake3

from flyweight.containers.abilities import Finishes
from flyweight.containers.container import Container, Placement
from flyweight.foundation.manifest import Entry, Extent, Manifest
from flyweight.sources import Bundle

__all__ = ["from_bundle", "materialise"]

Payload = Callable[[Entry, str], bytes]
"""The bytes of one part of a tensor."""


def materialise(
    placement: Placement, payload: Payload, source: Bundle | None = None, container: Container | None = None
) -> dict[str, bytes]:
    """Every file of the placement, its gaps filled with zero as the contract says, sealed by its container."""
    files = {name: bytearray(image.nbytes) for name, image in placement.images.items()}
    for name, image in placement.images.items():
        for offset, chunk in image.chunks:
            files[name][offset : offset + len(chunk)] = chunk
    for entry in placement.manifest.entries.values():
        for part, extent in entry.extents.items():
            raw = payload(entry, part)
            assert len(raw) == extent.nbytes == entry.parts[part].nbytes, (entry.name, part)
            files[extent.file][extent.offset : extent.end] = raw
    if isinstance(container, Finishes):

        def written(extent: Extent) -> bytes:
            return bytes(files[extent.file][extent.offset : extent.end])

        digests = {name: blake3(written(extent)).hexdigest() for name, extent in placement.digests.items()}
        for name, chunks in container.finish(placement, digests, written).items():
            for offset, chunk in chunks:
                files[name][offset : offset + len(chunk)] = chunk
    assert {name: len(raw) for name, raw in files.items()} == {n: i.nbytes for n, i in placement.images.items()}
    made: Mapping[str, bytearray | memoryview] = dict(files)
    if source is not None:
        made = made | {n: source[e.file].read(e.offset, e.nbytes) for n, e in placement.copies.items()}
    return {name: bytes(raw) for name, raw in made.items()}


def from_bundle(manifest: Manifest, bundle: Bundle) -> Payload:
    """Payload that copies each part from where `manifest` says it lies."""

    def payload(entry: Entry, part: str) -> bytes:
        extent = manifest.entries[entry.name].extents[part]
        return bytes(bundle[extent.file].read(extent.offset, extent.nbytes))

    return payload
