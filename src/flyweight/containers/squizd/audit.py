"""`verify` of a SQUIZD file: structure, block headers, digests, tables of scales, masks, padding and appendix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import fmean

import numpy as np

from flyweight.containers import mlpackage
from flyweight.containers.container import Finding
from flyweight.containers.squizd.arrangement import APPENDIX, Section, section_of
from flyweight.containers.squizd.blocks import ALIGNMENT, ENTRY_BYTES, dropped, unmasked
from flyweight.containers.squizd.broken_rules import Report
from flyweight.containers.squizd.squizd_reading import Reading, head_problem
from flyweight.containers.squizd.walk import read_tables
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.manifest import Entry, Extent
from flyweight.sources import Source

_ENTRY = np.dtype([("id", "<u8"), ("pair", "<f4", 2)])


def audit(found: Reading) -> Iterator[Finding]:
    """The findings of a reading, and those that take all of the file to see."""
    report, sections = Report(), dict[Section, list[Entry]]()
    if not _is_linear(found):
        yield from dict.fromkeys(found.report)
        return
    for entry in found.entries.values():
        _check_block(found, entry, report)
        sections.setdefault(section_of(entry.name), []).append(entry)
    if found.directory:
        _check_sparsity(found, report)
        for section, stored in found.directory.tables.items():
            _check_table(found, section, stored.extent, sections.get(section, []), report)
            _check_digest(found.source, stored.extent, stored.digest, f"the scales of {_named(section)}", None, report)
        for name, stored in found.directory.files.items():
            _check_digest(found.source, stored.extent, stored.digest, f"file '{name}'", None, report)
    if isinstance(extent := found.files.get(APPENDIX), Extent):
        try:
            mlpackage.check_content(found.source, extent)
        except FlyweightError as error:
            report.caught(error)
    if found.spans:
        _check_padding(found, report)
    yield from dict.fromkeys((*found.report, *report))


def _is_linear(found: Reading) -> bool:
    """Whether no byte would be looked at again and again: a file in which much overlaps is refused as it is."""
    directory = found.directory
    if directory is None:
        return True
    stored = (*directory.blocks.values(), *directory.tables.values(), *directory.files.values())
    return sum(one.extent.nbytes for one in stored) <= 2 * found.source.size


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


def _check_sparsity(found: Reading, report: Report) -> None:
    """The header says what the masks say."""
    if found.header is None or "SPARSE" not in found.header.flags:
        return
    masked = [entry for entry in found.entries.values() if "mask" in entry.extents]
    said, layers = found.header.sparsity, {section_of(entry.name) for entry in masked} - {None, "draft"}
    report.require(
        said.n_sparse_layers == len(layers),
        "E_SPARSITY",
        f"{len(layers)} layers have masks, but the header says {said.n_sparse_layers}",
        136,
    )
    masks = [(entry, bytes(found.source.read(*entry.extents["mask"][1:]))) for entry in masked]
    mean = fmean(dropped(entry.spec, said.block_size, mask) for entry, mask in masks) if masks else 0.0
    report.require(
        abs(mean - said.mean_sparsity) < 1e-6,
        "E_SPARSITY",
        f"the masks drop {mean:.6f} of the blocks, but the header says {said.mean_sparsity}",
        140,
    )


def _check_digest(source: Source, extent: Extent, digest: str, what: str, tensor: str | None, report: Report) -> None:
    report.require(
        source.digest(extent.offset, extent.nbytes) == digest,
        "E_DIGEST", f"{what} does not match its digest in the directory", extent.offset, tensor,
    )  # fmt: skip


def _check_table(found: Reading, section: Section, extent: Extent, entries: list[Entry], report: Report) -> None:
    """Round 1 names each quantized tensor of the section once; round 2 has the sub-blocks of those that have some."""
    try:
        tables = read_tables(found.source, extent.offset, extent.end)
    except FlyweightError as error:
        report.caught(error)
        return
    report.require(
        tables.end == extent.end,
        "E_SCALES",
        f"the table of {_named(section)} has another length than the directory says",
        extent.offset,
    )
    codecs = {entry.name: unmasked(entry.codec)[0] for entry in entries}
    tensors = {codecs[entry.name].integer("id"): entry for entry in entries if "id" in codecs[entry.name].params}
    counted = Counter[int]()
    for run in tables.first:
        counted[run.id] += run.entries
    report.require(
        counted == Counter(dict.fromkeys(tensors, 1)),
        "E_SCALES", f"the entries of {_named(section)} do not match its tensors", extent.offset,
    )  # fmt: skip
    wanted: dict[tuple[int, int], int] = {}
    for own, entry in tensors.items():
        for name, part in entry.parts.items():
            if name.endswith("entries") and part.nbytes:
                wanted[own | 1 << 63, entry.extents[name].offset] = part.nbytes // ENTRY_BYTES
    report.require(
        {(run.id, run.offset): run.entries for run in tables.second} == wanted,
        "E_SCALES", f"the sub-blocks of {_named(section)} do not match its tensors", extent.offset,
    )  # fmt: skip
    names = {own: entry.name for own, entry in tensors.items()}
    for begin, end in ((extent.offset, tables.first_end), (tables.second_begin, tables.end)):
        _check_numbers(found.source, begin + 8, end, names, report)
    gap = found.source.read(tables.first_end, tables.second_begin - tables.first_end)
    report.require(not any(gap), "E_PADDING", "the padding between two rounds of scales is not zero", tables.first_end)


def _check_numbers(source: Source, begin: int, end: int, names: Mapping[int, str], report: Report) -> None:
    """Scales and zeros are finite; what is not is reported once for each tensor."""
    if end <= begin:
        return
    entries = np.frombuffer(source.read(begin, end - begin), _ENTRY)
    finite = np.isfinite(np.ascontiguousarray(entries["pair"]))  # of what is not aligned NumPy crashes where memory ends
    if finite.all():
        return
    wrong = np.flatnonzero(~finite.all(axis=1))
    ids, first = np.unique(entries["id"][wrong] & np.uint64((1 << 63) - 1), return_index=True)
    for own, at in zip(ids.tolist(), wrong[first].tolist(), strict=True):
        report.error("E_SCALES", "a scale or a zero is NaN or infinite", begin + ENTRY_BYTES * at, names.get(own))


def _check_padding(found: Reading, report: Report) -> None:
    """Between two things there is nothing but zeros. Without a directory more may be there that nobody can find."""
    source, end = found.source, 0
    for begin, stop, what in [*found.spans, (source.size, source.size, "the end of the file")]:
        gap = begin - end
        if gap >= ALIGNMENT:
            if not found.directory:
                report.warning("E_HOLE", f"{gap} unused bytes before {what}", end)
        elif gap > 0:
            report.require(not any(source.read(end, gap)), "E_PADDING", f"the padding before {what} is not zero", end)
        end = max(end, stop)
