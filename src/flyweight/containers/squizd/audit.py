"""Everything that is wrong with a SQUIZD file: structure, heads, digests, tables, masks' place, padding and the appendix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from blake3 import blake3

from flyweight.containers.base import Finding
from flyweight.containers.squizd import appendix
from flyweight.containers.squizd.arrangement import APPENDIX, Section, layer_of, section_of
from flyweight.containers.squizd.blocks import ALIGNMENT, ENTRY_BYTES, tensor_id, unmasked
from flyweight.containers.squizd.reading import Reading, head_problem
from flyweight.containers.squizd.report import Report
from flyweight.containers.squizd.walk import read_tables
from flyweight.errors import FlyweightError
from flyweight.manifest import Entry, Extent
from flyweight.sources import Source

__all__ = ["audit"]

_PIECE = 1 << 20


def audit(found: Reading) -> Iterator[Finding]:
    """The findings of a reading, and those that take all of the file to see."""
    report = Report()
    for entry in found.entries.values():
        _check_block(found, entry, report)
    if found.directory:
        for section, stored in found.directory.tables.items():
            _check_table(found, section, stored.extent, report)
            _check_digest(found.source, stored.extent, stored.digest, f"the scales of {_named(section)}", None, report)
        for name, stored in found.directory.files.items():
            _check_digest(found.source, stored.extent, stored.digest, f"file '{name}'", None, report)
    if isinstance(extent := found.files.get(APPENDIX), Extent):
        try:
            appendix.check_content(found.source, extent)
        except FlyweightError as error:
            report.caught(error)
    if found.spans:
        _check_padding(found, report)
    yield from dict.fromkeys((*found.report, *report))


def _named(section: Section) -> str:
    return f"layer {section}" if isinstance(section, int) else "the draft head" if section else "tensors of no layer"


def _check_block(found: Reading, entry: Entry, report: Report) -> None:
    offset = min(extent.offset for extent in entry.extents.values())
    try:
        problem = head_problem(found.source, entry)
    except FlyweightError as error:
        report.caught(error, entry.name)
        return
    report.require(problem is None, "E_BLOCK_HEAD", problem or "", offset, entry.name)
    if found.directory:
        stored = found.directory.blocks[entry.name]
        _check_digest(found.source, stored.extent, stored.digest, "its block", entry.name, report)


def _check_digest(source: Source, extent: Extent, digest: str, what: str, tensor: str | None, report: Report) -> None:
    hasher, buffer = blake3(), memoryview(bytearray(min(_PIECE, max(extent.nbytes, 1))))
    for done in range(0, extent.nbytes, _PIECE):
        piece = buffer[: min(_PIECE, extent.nbytes - done)]
        source.read_into(extent.offset + done, piece)
        hasher.update(piece)
    report.require(
        hasher.hexdigest() == digest, "E_DIGEST", f"{what} does not have the digest the directory says", extent.offset, tensor
    )


def _check_table(found: Reading, section: Section, extent: Extent, report: Report) -> None:
    """Round 1 names each quantised tensor of the section once; round 2 has the sub-blocks of those that have some."""
    try:
        tables = read_tables(found.source, extent.offset, extent.end)
    except FlyweightError as error:
        report.caught(error)
        return
    report.require(
        tables.end == extent.end,
        "E_SCALES",
        f"the table of {_named(section)} is not as long as the directory says",
        extent.offset,
    )
    tensors = {
        tensor_id(layer_of(name), name): entry
        for name, entry in found.entries.items()
        if section_of(name) == section and "id" in unmasked(entry.codec)[0].params
    }
    counted = Counter[int]()
    for run in tables.first:
        counted[run.id] += run.entries
    report.require(
        counted == Counter(dict.fromkeys(tensors, 1)),
        "E_SCALES", f"the pairs of {_named(section)} are not those of its tensors", extent.offset,
    )  # fmt: skip
    wanted: dict[tuple[int, int], int] = {}
    for own, entry in tensors.items():
        for name, part in entry.parts.items():
            if name.endswith("entries") and part.nbytes:
                wanted[own | 1 << 63, entry.extents[name].offset] = part.nbytes // ENTRY_BYTES
    report.require(
        {(run.id, run.offset): run.entries for run in tables.second} == wanted,
        "E_SCALES", f"the sub-blocks of {_named(section)} are not those of its tensors", extent.offset,
    )  # fmt: skip
    gap = found.source.read(tables.first_end, tables.second_begin - tables.first_end)
    report.require(not any(gap), "E_PADDING", "the padding between two rounds of scales is not zero", tables.first_end)


def _check_padding(found: Reading, report: Report) -> None:
    """Between two things there is nothing but zeros up to the next 64 bytes, and behind the last nothing at all."""
    source, end = found.source, 0
    last = max(stop for _, stop, _ in found.spans)
    for begin, stop, what in [*found.spans, (source.size, source.size, "the end of the file")]:
        gap = begin - end
        if gap > 0:
            code = "E_TRAILING" if end == last else "E_HOLE"
            report.require(gap < ALIGNMENT, code, f"{gap} bytes before {what} belong to nothing", end)
            if gap < 1 << 20:
                padding = np.frombuffer(source.read(end, gap), np.uint8)
                report.require(not padding.any(), "E_PADDING", f"the padding before {what} is not zero", end)
        end = max(end, stop)
