"""Reading a SQUIZD file: header, index, directory or blocks, with a report of every broken rule.

Only the first bytes are read, and the frames of a draft head and of an appendix where the flags announce them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from flyweight.containers.mlpackage import members
from flyweight.containers.squizd.arrangement import APPENDIX, section_of
from flyweight.containers.squizd.blocks import ALIGNMENT, aligned, arrange, encoding_of, unmasked
from flyweight.containers.squizd.broken_rules import Report
from flyweight.containers.squizd.directory import Directory, read_directory
from flyweight.containers.squizd.first_bytes import Front
from flyweight.containers.squizd.squizd_header import (
    HEADER_BYTES,
    INDEX_ENTRY_BYTES,
    Header,
    Layer,
    read_header,
    read_index,
)
from flyweight.containers.squizd.walk import walk
from flyweight.foundation.cursor import Cursor
from flyweight.foundation.errors import FlyweightError, MalformedError
from flyweight.foundation.manifest import DRAFT, Entry, Extent, Typed
from flyweight.sources import Source

_MOST_PADDING = 1 << 20
_APPENDIX_MAGICS, _APPENDIX_HEAD = (b"ANLX", b"ANML"), 12
Span = tuple[int, int, str]
"""Bytes that belong to something: begin, end, what it is."""


@dataclass(slots=True)
class Reading:
    source: Front
    file: str
    report: Report = field(default_factory=Report)
    header: Header | None = None
    layers: tuple[Layer, ...] = ()
    directory: Directory | None = None
    entries: Mapping[str, Entry] = field(default_factory=dict)
    metadata: Mapping[str, Typed] = field(default_factory=dict)
    files: dict[str, Extent | bytes] = field(default_factory=dict)
    table_ends: tuple[int, ...] = ()
    """Of the tables of scales by layer, where no directory says it."""
    appendix: Extent | None = None
    """The archive behind the head of the appendix, or what stands for it."""
    spans: list[Span] = field(default_factory=list)
    """Everything the file accounts for, in order."""


def read(source: Source, file: str) -> Reading:
    found = Reading(Front(source), file)
    header = found.header = read_header(found.source, found.report)
    if header is None or not header.layer_count:
        return found
    at = HEADER_BYTES + INDEX_ENTRY_BYTES * header.layer_count
    found.source.hold(min(at + 16, source.size))
    found.layers = read_index(found.source, header, found.report)
    if not found.layers:
        return found
    if at + 4 <= source.size and bytes(found.source.read(at, 4)) == b"SQDX":
        found.directory = read_directory(found.source, file, header, found.layers, at, found.report)
        if found.directory is None:
            return found
        found.entries, found.metadata = found.directory.entries, found.directory.metadata
        found.files = {name: stored.extent for name, stored in found.directory.files.items()}
    elif not found.report.broken and _check_start(found, at):
        found.entries, found.table_ends = walk(found.source, file, header, found.layers, found.report)
    _check_draft(found, header)
    _check_appendix(found, header)
    if not found.report.broken:
        found.spans = sorted(_spans(found, header, at))
        _check_cover(found, found.spans)
        if found.directory:
            _check_cover(found, sorted(_spans(found, header, at, whole=True)))
    return found


def _check_start(found: Reading, at: int) -> bool:
    """Without a directory nothing but padding is between index and weights; else the index, or a directory, is damaged."""
    first = min(min(layer.weight_offset, layer.scale_offset) for layer in found.layers)
    between = bytes(found.source.read(at, min(max(first - at, 0), _MOST_PADDING)))
    good = len(between) < _MOST_PADDING and not between.strip(b"\0")
    return found.report.require(good, "E_DIRECTORY", "neither a directory nor weights follow the index", at)


def _check_draft(found: Reading, header: Header) -> None:
    if "EAGLE" not in header.flags:
        return
    draft, source = header.draft, found.source
    inside = draft.offset >= HEADER_BYTES and draft.length >= 8 and draft.offset + draft.length <= source.size
    if not found.report.require(
        inside, "E_EAGLE", f"the draft head, {draft.length} bytes at {draft.offset}, is not in the file", 160
    ):
        return
    cursor = Cursor(source, draft.offset)
    magic, layers = bytes(cursor.take(4)), cursor.u32()
    found.report.require(magic == b"EGDH", "E_EAGLE", f"the draft head must begin with EGDH, not {magic!r}", draft.offset)
    found.report.require(
        layers == draft.n_layers,
        "E_EAGLE",
        f"the draft head has {layers} layers, but the header says {draft.n_layers}",
        draft.offset + 4,
    )
    found.report.require(layers > 0, "E_EAGLE", "a draft head has at least one layer", draft.offset + 4)
    if found.directory and not any(name.startswith(DRAFT) for name in found.entries):
        found.report.error("E_EAGLE", "EAGLE is set, but the directory has no tensor of a draft head", 6)


def _check_appendix(found: Reading, header: Header) -> None:
    if "ANE_COREML" not in header.flags:
        return
    extent = found.files.pop(APPENDIX, None)
    if extent is None and found.directory is None:
        extent = _last(found, header)
    if not isinstance(extent, Extent):
        if not found.report.broken:
            found.report.error("E_APPENDIX", "ANE_COREML is set, but there is no appendix", 6)
        return
    found.appendix = extent
    try:
        check_archive(found.source, extent)
        found.files[APPENDIX] = extent
    except FlyweightError as error:
        if error.code == "E_ANML":
            found.report.warning(error.code, error.message, error.offset)
        else:
            found.report.caught(error)


def check_archive(source: Source, extent: Extent) -> None:
    """The frame around an archive: ANLX, its length, and what `members` checks. `extent` is the archive itself."""
    cursor = Cursor(source, extent.offset - _APPENDIX_HEAD, extent.offset)
    magic, length = bytes(cursor.take(4)), cursor.u64()
    if magic == b"ANML":
        raise MalformedError(
            "ANML, a list of paths on the writer's disk, stands for the appendix",
            code="E_ANML",
            offset=extent.offset - _APPENDIX_HEAD,
        )
    if magic != b"ANLX" or length != extent.nbytes or extent.end != source.size:
        raise MalformedError(
            f"the appendix has {source.size - cursor.offset} bytes to the end of the file; its head, {magic!r}, says {length}",
            code="E_APPENDIX", offset=extent.offset - _APPENDIX_HEAD,
        )  # fmt: skip
    members(source, extent)


def _last(found: Reading, header: Header) -> Extent | None:
    """Without a directory: what begins with the magic of an appendix behind everything else."""
    if found.report.broken:
        return None
    source, end = found.source, max(stop for _, stop, _ in _spans(found, header, 0))
    for at in (end, aligned(end)):
        if at + 12 <= source.size and bytes(source.read(at, 4)) in _APPENDIX_MAGICS:
            return Extent(found.file, at + 12, source.size - at - 12)
    return None


def _spans(found: Reading, header: Header, front: int, *, whole: bool = False) -> Iterator[Span]:
    """What lies where: the tensors one by one, or `whole` layers and a whole draft head, as they are without a directory."""
    directory = found.directory
    yield 0, directory.end if directory else front, "the front"
    if directory:
        for name, stored in directory.blocks.items():
            if not whole or section_of(name) is None:
                yield stored.extent.offset, stored.extent.end, f"tensor '{name}'"
        for section, stored in directory.tables.items():
            yield stored.extent.offset, stored.extent.end, f"the scales of {section}"
    if whole or not directory:
        for layer in found.layers:
            yield layer.weight_offset, layer.weight_offset + layer.weight_length, f"layer {layer.number}"
    if not directory:
        for layer, end in zip(found.layers, found.table_ends, strict=True):
            yield layer.scale_offset, end, f"the scales of layer {layer.number}"
    for name, extent in found.files.items():
        if isinstance(extent, Extent) and name != APPENDIX:
            yield extent.offset, extent.end, f"file '{name}'"
    if found.appendix:
        yield found.appendix.offset - _APPENDIX_HEAD, found.appendix.end, "the appendix"
    if "EAGLE" in header.flags:
        end = header.draft.offset + (header.draft.length if whole or not directory else 8)
        yield header.draft.offset, end, "the draft head"


def _check_cover(found: Reading, spans: list[Span]) -> None:
    """Nothing overlaps and, where a directory says what there is, nothing else is in the file but padding."""
    end, owner, report = 0, "", found.report
    for begin, stop, what in spans:
        if begin < end:
            report.error("E_OVERLAP", f"{what} begins {end - begin} bytes before the end of {owner}", begin)
        elif found.directory and begin - end >= ALIGNMENT:
            report.error("E_HOLE", f"{begin - end} unused bytes before {what}", end)
        if stop >= end:
            end, owner = stop, what
    if found.directory and end < found.source.size:
        report.error("E_TRAILING", f"{found.source.size - end} unused bytes after {owner}", end)


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
    return f"its block begins with {found.hex(' ', 4)}, but should begin with {block.head.hex(' ', 4)}"
