"""A SQUIZD file as it is found: header, index, directory or blocks, and a report of every rule it breaks.

Only the first bytes are read, and the frames of a draft head and of an appendix where the flags announce them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from flyweight.containers.squizd import appendix
from flyweight.containers.squizd.arrangement import APPENDIX, DRAFT
from flyweight.containers.squizd.blocks import arrange, encoding_of, unmasked
from flyweight.containers.squizd.directory import Directory, read_directory
from flyweight.containers.squizd.header import (
    HEADER_BYTES,
    INDEX_ENTRY_BYTES,
    Header,
    Layer,
    read_header,
    read_index,
)
from flyweight.containers.squizd.report import Report
from flyweight.containers.squizd.walk import read_tables, walk
from flyweight.cursor import Cursor
from flyweight.errors import FlyweightError
from flyweight.manifest import Entry, Extent, Typed
from flyweight.sources import Source

__all__ = ["Reading", "Span", "head_problem", "read"]

Span = tuple[int, int, str]
"""Bytes that belong to something: begin, end, what it is."""


@dataclass(slots=True)
class Reading:
    source: Source
    file: str
    report: Report = field(default_factory=Report)
    header: Header | None = None
    layers: tuple[Layer, ...] = ()
    directory: Directory | None = None
    entries: Mapping[str, Entry] = field(default_factory=dict)
    metadata: Mapping[str, Typed] = field(default_factory=dict)
    files: dict[str, Extent | bytes] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    """Everything the file accounts for, in order."""


def read(source: Source, file: str) -> Reading:
    found = Reading(source, file)
    header = found.header = read_header(source, found.report)
    if header is None or not header.layer_count:
        return found
    found.layers = read_index(source, header, found.report)
    at = HEADER_BYTES + INDEX_ENTRY_BYTES * header.layer_count
    if not found.layers:
        return found
    if at + 4 <= source.size and bytes(source.read(at, 4)) == b"SQDX":
        found.directory = read_directory(source, file, header, found.layers, at, found.report)
        if found.directory is None:
            return found
        found.entries, found.metadata = found.directory.entries, found.directory.metadata
        found.files = {name: stored.extent for name, stored in found.directory.files.items()}
    elif not found.report.broken:
        found.entries = walk(source, file, header, found.layers, found.report)
    _check_draft(found, header)
    _check_appendix(found, header)
    if not found.report.broken:
        found.spans = sorted(_spans(found, header, at))
        _check_overlap(found)
    return found


def _check_draft(found: Reading, header: Header) -> None:
    if "EAGLE" not in header.flags:
        return
    draft, source = header.draft, found.source
    inside = draft.offset >= HEADER_BYTES and draft.length >= 8 and draft.offset + draft.length <= source.size
    if not found.report.require(inside, "E_EAGLE", f"the draft head lies at {draft.offset}, {draft.length} bytes long", 160):
        return
    cursor = Cursor(source, draft.offset)
    magic, layers = bytes(cursor.take(4)), cursor.u32()
    found.report.require(magic == b"EGDH", "E_EAGLE", f"the draft head begins with {magic!r}", draft.offset)
    found.report.require(
        layers == draft.n_layers, "E_EAGLE", f"{layers} draft layers, the header says {draft.n_layers}", draft.offset + 4
    )
    found.report.require(layers > 0, "E_EAGLE", "a draft head has at least one layer", draft.offset + 4)
    if found.directory and not any(name.startswith(DRAFT) for name in found.entries):
        found.report.error("E_EAGLE", "EAGLE is set but the directory has no tensor of a draft head", 6)


def _check_appendix(found: Reading, header: Header) -> None:
    if "ANE_COREML" not in header.flags:
        return
    extent = found.files.get(APPENDIX)
    if extent is None and found.directory is None:
        extent = _last(found)
    if not isinstance(extent, Extent):
        if not found.report.broken:
            found.report.error("E_APPENDIX", "ANE_COREML is set but there is no appendix", 6)
        return
    try:
        appendix.check_archive(found.source, extent)
        found.files[APPENDIX] = extent
    except FlyweightError as error:
        if error.code == "E_ANML":
            found.files.pop(APPENDIX, None)
            found.report.warning(error.code, error.message, error.offset)
        else:
            found.report.caught(error)


def _last(found: Reading) -> Extent | None:
    """Without a directory: what begins with the magic of an appendix behind everything else."""
    if found.report.broken:
        return None
    ends = [span[1] for span in _spans(found, found.header or Header(frozenset(), 0), 0)]
    at = max(ends) + -max(ends) % 64
    return Extent(found.file, at + 12, found.source.size - at - 12) if at + 12 <= found.source.size else None


def _spans(found: Reading, header: Header, front: int) -> Iterator[Span]:
    directory = found.directory
    yield 0, directory.end if directory else front, "the front"
    if directory:
        for name, stored in directory.blocks.items():
            yield stored.extent.offset, stored.extent.end, f"tensor '{name}'"
        for section, stored in directory.tables.items():
            yield stored.extent.offset, stored.extent.end, f"the scales of {section}"
    else:
        for layer in found.layers:
            yield layer.weight_offset, layer.weight_offset + layer.weight_length, f"layer {layer.number}"
            yield layer.scale_offset, read_tables(found.source, layer.scale_offset).end, f"the scales of layer {layer.number}"
    for name, extent in found.files.items():
        if isinstance(extent, Extent):
            yield extent.offset - (12 if name == APPENDIX else 0), extent.end, f"file '{name}'"
    if "EAGLE" in header.flags:
        end = header.draft.offset + (8 if directory else header.draft.length)
        yield header.draft.offset, end, "the draft head"


def _check_overlap(found: Reading) -> None:
    end, owner = 0, ""
    for begin, stop, what in found.spans:
        if begin < end:
            found.report.error("E_OVERLAP", f"{what} begins {end - begin} bytes before the end of {owner}", begin)
        if stop >= end:
            end, owner = stop, what


def head_problem(source: Source, entry: Entry) -> str | None:
    """What is wrong with the head of a tensor's block."""
    if encoding_of(unmasked(entry.codec)[0]) is None:
        return None
    block = arrange(entry.spec, entry.codec)
    part, within = next(iter(block.inside.items()))
    begin = entry.extents[part].offset - within
    found = bytes(source.read(begin, len(block.head)))
    if found == block.head:
        return None
    return f"its block begins with {found.hex(' ', 4)}, where {block.head.hex(' ', 4)} belongs"
