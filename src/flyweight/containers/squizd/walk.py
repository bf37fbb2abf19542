"""Files without a directory: blocks are found by their magics, and tensors are called `layers.<layer>.<k>`.

Scales belong to blocks by order, as ids of names nobody knows cannot be computed. A TCAW block does not say its columns:
it is listed and can be moved, not decoded. Tensors of no layer cannot be found at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from flyweight.containers.squizd.blocks import (
    DTYPE_CODES,
    ENTRY_BYTES,
    FOOTPRINT_CODES,
    WORDS,
    aligned,
    arrange,
    carried,
    encoding_of,
    mask_spec,
)
from flyweight.containers.squizd.broken_rules import Report
from flyweight.containers.squizd.squizd_header import Header, Layer
from flyweight.foundation.cursor import Cursor, check_shape
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, LimitError, MalformedError
from flyweight.foundation.limits import MAX_RANK, MAX_TENSORS_PER_FILE
from flyweight.foundation.manifest import Entry, Extent
from flyweight.foundation.tensor import RAW, CodecSpec, Layout, TensorSpec
from flyweight.sources import Source

_MAGICS = (b"INT4", b"INT2", b"TCAW", b"ASTW", b"NPCL")


class Scales(NamedTuple):
    """A run of entries of one id in a table."""

    id: int
    offset: int
    entries: int


class Tables(NamedTuple):
    """Both rounds of a table, and where each ends; without a second round both ends are one."""

    first: list[Scales]
    first_end: int
    second: list[Scales]
    second_begin: int
    end: int


class _Found(NamedTuple):
    """A block as its head tells it; scales are still to be found."""

    name: str
    offset: int
    spec: TensorSpec
    codec: CodecSpec
    nbytes: int


def walk(
    source: Source, file: str, header: Header, layers: tuple[Layer, ...], report: Report
) -> tuple[dict[str, Entry], tuple[int, ...]]:
    """The tensors, and where the tables of the layers end. Every byte is looked at once, whatever the index says."""
    entries, ends = dict[str, Entry](), list[int]()
    _check_disjoint(layers, report)
    if report.broken:
        return {}, ()
    places = sorted(layer.scale_offset for layer in layers)
    next_table = dict(zip(places, [*places[1:], source.size], strict=True))
    for layer in layers:
        try:
            found = list(_blocks(source, header, layer))
            tables = read_tables(source, layer.scale_offset, next_table[layer.scale_offset])
            ends.append(tables.end)
            entries |= {entry.name: entry for entry in _with_scales(file, found, tables.first, tables.second)}
        except FlyweightError as error:
            report.caught(error, f"layers.{layer.number}")
    return entries, tuple(ends)


def _check_disjoint(layers: tuple[Layer, ...], report: Report) -> None:
    """Layers that share blocks or tables would have them read once for each."""
    for before, after in pairwise(sorted(layers, key=lambda layer: (layer.weight_offset, layer.weight_length))):
        shared = before.weight_offset + before.weight_length - after.weight_offset
        report.require(
            shared <= 0, "E_OVERLAP", f"layers {before.number} and {after.number} share {shared} bytes", after.weight_offset
        )
    for before, after in pairwise(sorted(layers, key=lambda layer: layer.scale_offset)):
        report.require(
            before.scale_offset < after.scale_offset,
            "E_OVERLAP", f"layers {before.number} and {after.number} share a table", after.scale_offset,
        )  # fmt: skip


# Blocks ---------------------------------------------------------------------------------------


def _blocks(source: Source, header: Header, layer: Layer) -> Iterator[_Found]:
    at, end, k = layer.weight_offset, layer.weight_offset + layer.weight_length, 0
    while at < end:
        if k >= MAX_TENSORS_PER_FILE:
            raise LimitError(f"more than {MAX_TENSORS_PER_FILE} tensors", code="E_TENSORS", offset=at)
        found = _block(source, header, layer, k, at, end)
        yield found
        at = aligned(at + found.nbytes)
        k += 1


def _block(source: Source, header: Header, layer: Layer, k: int, at: int, end: int) -> _Found:
    cursor = Cursor(source, at, end)
    magic = bytes(cursor.take(4, "a weight block"))
    name, spec, nbytes = f"layers.{layer.number}.{k}", TensorSpec((), DType.U8), 0
    match magic:
        case b"INT4" | b"INT2":
            spec = TensorSpec(check_shape([cursor.u32(), cursor.u32()]), DType.F32)
            length = cursor.u32() if magic == b"INT2" else 0
            codec = CodecSpec("tabled", {"bits": int(magic[3:]), "length": length, "id": 0})
        case b"ASTW":
            columns, rows, code = cursor.u32(), cursor.u32(), cursor.u32()
            known = {code: footprint for footprint, code in FOOTPRINT_CODES.items()}
            width, height = known.get(code, (code >> 8, code & 255))
            spec, codec = (
                TensorSpec(check_shape([rows, columns]), DType.F32),
                CodecSpec("astc", {"width": width, "height": height, "id": 0}),
            )
        case b"NPCL":
            code, rank = cursor.u32(), cursor.u32()
            if code >= len(DTYPE_CODES) or rank > MAX_RANK:
                raise MalformedError(
                    f"impossible block header: dtype_code {code}, {rank} dimensions",
                    code="E_BLOCK_HEAD",
                    tensor=name,
                    offset=at,
                )
            spec, codec = TensorSpec(check_shape(cursor.scalars("u32", rank)), DTYPE_CODES[code]), RAW
        case b"TCAW":
            lengths = _tca_bytes(cursor)
            fitting = (nbytes for nbytes in lengths if _begins_block(source, aligned(at + nbytes), end))
            codec, nbytes = CodecSpec("tcaw"), next(fitting, lengths[0])
            spec = TensorSpec((nbytes,), DType.U8)
        case _:
            raise MalformedError(f"unknown weight block {magic!r}", code="E_BLOCK_MAGIC", tensor=name, offset=at)
    if magic != b"TCAW":
        if not carried(spec, codec):
            raise MalformedError(f"{spec} cannot be stored as {codec}", code="E_SPEC", tensor=name, offset=at)
        nbytes = arrange(spec, codec).nbytes
    if nbytes > end - at:
        raise MalformedError(
            f"the block needs {nbytes} bytes but {end - at} are left", code="E_PAST_END", tensor=name, offset=at
        )
    if "SPARSE" in header.flags and len(spec.shape) == 2 and not _begins_block(source, aligned(at + nbytes), end):
        block = max(header.sparsity.block_size, 1)
        with_mask = nbytes + mask_spec(spec, block).nbytes
        if with_mask <= end - at and _begins_block(source, aligned(at + with_mask), end):
            nbytes = with_mask  # weights are whole without it
    return _Found(name, at, spec, codec, nbytes)


def _tca_bytes(cursor: Cursor) -> list[int]:
    """The lengths a TCAW block may have by the numbers in its head, which does not tell one half precision from the other."""
    begin = cursor.offset - 4
    cursor.u32("its rows")
    width, _ = cursor.u32("its word width"), cursor.u32("its first exponent")
    bitmap, stored, escapes = cursor.u64(), cursor.u64(), cursor.u64()
    words = [(planes, low) for bits, planes, low, _ in WORDS.values() if bits == width]
    if not words or max(bitmap, stored, escapes) > cursor.source.size * 8:
        raise MalformedError("the TCAW block has impossible lengths", code="E_BLOCK_HEAD", offset=begin)
    groups, lengths = -(-stored // 64), list[int]()
    for planes, low in words:
        at = cursor.offset - begin
        for nbytes in (bitmap, 8 * planes * groups, 64 * low * groups, 4 * -(-stored // 4096), escapes):
            at = aligned(at, 8) + nbytes
        lengths.append(at)
    return lengths


def _begins_block(source: Source, at: int, end: int) -> bool:
    return at >= aligned(end) or at == end or (at + 4 <= end and bytes(source.read(at, 4)) in _MAGICS)


# Scales ---------------------------------------------------------------------------------------


def read_tables(source: Source, at: int, end: int) -> Tables:
    """The table at `at`, which ends at `end` or before: runs of entries with one id, in order.

    A table directly behind it is its second round if all ids say so.
    """
    first, first_end = _round(source, at, end)
    for begin in dict.fromkeys((first_end, aligned(first_end))):
        if begin + 8 <= end and bytes(source.read(begin, 4)) == b"SCZT":
            second, last = _round(source, begin, end)
            if all(run.id >> 63 for run in second):
                return Tables(first, first_end, second, begin, last)
    return Tables(first, first_end, [], first_end, first_end)


def _round(source: Source, at: int, end: int) -> tuple[list[Scales], int]:
    cursor = Cursor(source, at, end)
    magic = bytes(cursor.take(4, "a table of scales"))
    if magic != b"SCZT":
        raise MalformedError(f"a table of scales must begin with SCZT, not {magic!r}", code="E_SCALES", offset=at)
    count = cursor.count(cursor.u32("its length"), ENTRY_BYTES, 1 << 32, "entries")
    begin = cursor.offset
    ids = np.frombuffer(source.read(begin, ENTRY_BYTES * count), "<u8")[::2]
    starts = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), count] if count else [0]
    runs = [Scales(int(ids[a]), begin + ENTRY_BYTES * a, b - a) for a, b in pairwise(starts)]
    return runs, begin + ENTRY_BYTES * count


def _with_scales(file: str, found: list[_Found], first: list[Scales], second: list[Scales]) -> Iterator[Entry]:
    quantized = [block for block in found if (e := encoding_of(block.codec)) and e.flag and block.codec.name != "lossless"]
    ids = {run.id for run in first}
    if sum(run.entries for run in first) != len(quantized) or len(ids) != len(quantized):
        raise MalformedError(f"the table has {len(ids)} entries for {len(quantized)} quantized tensors", code="E_SCALES")
    if any(own >> 63 for own in ids):
        raise MalformedError("the entry of a tensor has the id of a sub-block", code="E_TENSOR_ID")
    by_id = {run.id & (1 << 63) - 1: run for run in second}
    if len(by_id) != len(second) or not by_id.keys() <= ids:
        raise MalformedError("the sub-blocks of the table do not match its tensors", code="E_SCALES")
    pairs = dict(zip((block.name for block in quantized), first, strict=True))
    for block in found:
        if block.codec.name == "tcaw":
            yield _entry(file, block, block.codec, {"block": block.offset}, {"block": block.spec})
            continue
        codec, pair = block.codec, pairs.get(block.name)
        runs = by_id.get(pair.id) if pair else None
        if pair:
            codec = _with_length(block, pair.id, runs.entries if runs else 0)
        arranged = arrange(block.spec, codec)
        places = {name: block.offset + at for name, at in arranged.inside.items()}
        if pair:
            places[arranged.table] = runs.offset if runs and codec.params.get("length") else pair.offset
        yield _entry(file, block, codec, places, arranged.parts)


def _with_length(block: _Found, tensor: int, count: int) -> CodecSpec:
    """The codec with its id and, for integers, the sub-block length its entries stand for."""
    codec, rows, columns = block.codec, max(block.spec.rows, 1), block.spec.columns
    if codec.name == "astc" or not count:
        return CodecSpec(codec.name, {**codec.params, "id": tensor} | ({"length": 0} if codec.name == "tabled" else {}))
    runs, rest = divmod(count, rows)
    length = codec.integer("length")
    if not length and runs:
        length = columns // runs if columns % runs == 0 else _shortest(columns, runs)
    if rest or not length or -(-columns // length) != runs:
        raise MalformedError(
            f"the sub-block length of {block.spec} cannot be found from {count} entries", code="E_SCALES", tensor=block.name
        )
    return CodecSpec("tabled", {**codec.params, "length": length, "id": tensor})


def _shortest(columns: int, runs: int) -> int:
    """The shortest power of two that cuts a row into so many runs, or 0."""
    length = 1
    while length < columns and -(-columns // length) != runs:
        length *= 2
    return length if -(-columns // length) == runs else 0


def _entry(file: str, block: _Found, codec: CodecSpec, places: dict[str, int], parts: Layout) -> Entry:
    return Entry(
        block.name, block.spec, codec, parts, {name: Extent(file, at, parts[name].nbytes) for name, at in places.items()}
    )
