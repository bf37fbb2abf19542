"""The directory of a SQUIZD file: name, kind and place of every tensor and embedded file.

    "SQDX", u32 version 1, u64 length, JSON of that length, the BLAKE3 of all bytes from 0 to here

It stands directly behind the layer index, so that the first bytes of a file say everything in it. The JSON has `tensors`,
`tables`, `files` and `metadata`; docs/formats/squizd.md lists their fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from flyweight.containers.squizd.arrangement import APPENDIX, TYPED, Section, is_file_name, layer_of, section_of
from flyweight.containers.squizd.blocks import (
    ALIGNMENT,
    BY_NAME,
    ENTRY_BYTES,
    Block,
    arrange,
    carried,
    masked,
    tensor_id,
    unmasked,
)
from flyweight.containers.squizd.broken_rules import Report
from flyweight.containers.squizd.first_bytes import Front
from flyweight.containers.squizd.squizd_header import Header, Layer
from flyweight.foundation import strict_json, typed_json
from flyweight.foundation.cursor import Cursor, check_name, check_shape
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import DAMAGED, FlyweightError, MalformedError
from flyweight.foundation.limits import MAX_JSON_BYTES, MAX_METADATA_KEYS, MAX_TENSORS_PER_FILE
from flyweight.foundation.manifest import DRAFT, Digests, Entry, Extent, Typed, is_digest
from flyweight.foundation.tensor import CodecSpec, TensorSpec
from flyweight.sources import Source

_KEYS = {"tensors", "tables", "files", "metadata"}
_FIELDS = {"name", "layer", "shape", "dtype", "encoding", "offset", "length", "blake3"}


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes with a digest: a tensor's block, a table, a file."""

    extent: Extent
    digest: str


@dataclass(frozen=True, slots=True)
class Directory:
    end: int
    entries: Mapping[str, Entry]
    blocks: Mapping[str, Stored]
    tables: Mapping[Section, Stored]
    files: Mapping[str, Stored]
    metadata: Mapping[str, Typed]

    def digests(self) -> Digests:
        """A tensor has its block and the table of its section."""
        stored = (*self.blocks.values(), *self.tables.values(), *self.files.values())
        tensors = {
            name: (block.extent, table.extent) if (table := self.tables.get(section_of(name))) else (block.extent,)
            for name, block in self.blocks.items()
        }
        return Digests({one.extent: one.digest for one in stored}, tensors, DAMAGED)


def permitted(header: Header, name: str) -> tuple[str, ...]:
    """The encodings a tensor may have in a file with these flags."""
    if name.startswith(DRAFT):
        return ("INT4", "NPCL")
    own = {"": (), "ASTC": ("ASTW",), "TCA_TBE": ("TCAW",), "INT2": ("INT2", "INT4"), "INT4": ("INT4",)}
    return (*own[header.primary], "NPCL")


def read_directory(
    source: Front, file: str, header: Header, layers: Sequence[Layer], at: int, report: Report
) -> Directory | None:
    """The directory at `at`, every broken rule in the report. None when it cannot be read at all."""
    cursor = Cursor(source, at, at + 16)
    try:
        cursor.take(4, "the directory")
        version, length = cursor.u32("its version"), cursor.u64("its length")
        if not report.require(version == 1, "E_VERSION", f"directory version {version} is not supported; only 1 is", at + 4):
            return None
        if not report.require(
            length <= MAX_JSON_BYTES, "E_HEADER_SIZE", f"the directory of {length} bytes is too long", at + 8
        ):
            return None
        begin, end = cursor.offset, cursor.offset + length
        source.check_range(begin, length + 32)
        source.hold(end + 32)
        report.require(
            blake3(source.read(0, end)).digest() == bytes(source.read(end, 32)),
            "E_DIRECTORY_DIGEST",
            "header, index and directory do not match the digest stored after them",
            end,
        )
        document = strict_json.loads(source.read(begin, length), file=source.name)
    except FlyweightError as error:
        report.caught(error)
        return None
    if not isinstance(document, dict) or not document.keys() >= _KEYS:
        report.error("E_DIRECTORY", f"the directory must be an object with {', '.join(sorted(_KEYS))}", at + 16)
        return None
    for key in sorted(document.keys() - _KEYS):
        report.warning("E_DIRECTORY", f"unknown key '{key}'", at + 16)
    reader = _Reader(source, file, header, layers, end + 32, report)
    return reader.read(document)


class _Reader:
    """Reads the parts of the JSON; all checks report at the directory's own offset unless they know a better one."""

    def __init__(self, source: Source, file: str, header: Header, layers: Sequence[Layer], end: int, report: Report) -> None:
        self.source, self.file, self.header, self.end, self.report = source, file, header, end, report
        self.layers = {layer.number: layer for layer in layers}
        self.scales: list[tuple[Extent, str]] = []
        self.permitted = {name: permitted(header, name) for name in ("", DRAFT)}
        self.shapes: dict[tuple[object, ...], tuple[TensorSpec, Block]] = {}

    def read(self, document: Mapping[str, Any]) -> Directory:
        tables = self._tables(self._list(document, "tables"))
        entries, blocks = dict[str, Entry](), dict[str, Stored]()
        ids: dict[int, str] = {}
        for row in self._list(document, "tensors"):
            name = row.get("name") if isinstance(row, dict) else None
            tensor = name if isinstance(name, str) else None
            try:
                entry, stored = self._tensor(row, tables)
                own = tensor_id(layer_of(entry.name), entry.name)
                if entry.name in entries:
                    raise MalformedError("the tensor is listed twice", code="E_DUPLICATE")
                if ids.setdefault(own, entry.name) != entry.name:
                    raise MalformedError(f"has the same id as '{ids[own]}'", code="E_TENSOR_ID")
            except FlyweightError as error:
                self.report.caught(error, tensor)
                if self.report.full:
                    break
                continue
            entries[entry.name], blocks[entry.name] = entry, stored
        self._check_scales()
        files = self._files(self._list(document, "files"))
        metadata = self._metadata(document["metadata"])
        return Directory(self.end, entries, blocks, tables, files, metadata)

    def _list(self, document: Mapping[str, Any], key: str) -> list[Any]:
        rows = document[key]
        good = isinstance(rows, list) and len(rows) <= MAX_TENSORS_PER_FILE
        return rows if self.report.require(good, "E_DIRECTORY", f"{key} must be a list", self.end) else []

    def _extent(self, row: Mapping[str, Any], alignment: int = ALIGNMENT) -> Stored:
        offset, length, digest = row.get("offset"), row.get("length"), row.get("blake3")
        if type(offset) is not int or type(length) is not int or type(digest) is not str or not is_digest(digest):
            raise MalformedError("needs offset, length and a blake3 of 64 digits", code="E_DIRECTORY")
        if offset < self.end or length < 0:
            raise MalformedError(f"offset {offset} with {length} bytes is not possible", code="E_OFFSETS")
        if offset % alignment:
            raise MalformedError(f"offset {offset} is not a multiple of {alignment}", code="E_ALIGNMENT", offset=offset)
        if offset + length > self.source.size:
            raise MalformedError(
                f"bytes {offset}..{offset + length} run past the end at {self.source.size}", code="E_PAST_END", offset=offset
            )
        return Stored(Extent(self.file, offset, length), digest)

    # Tensors ----------------------------------------------------------------------------------------

    def _tensor(self, row: Any, tables: Mapping[Section, Stored]) -> tuple[Entry, Stored]:
        if not isinstance(row, dict) or not row.keys() >= _FIELDS:
            raise MalformedError(f"a tensor must have {', '.join(sorted(_FIELDS))}", code="E_DIRECTORY")
        name, layer, shape, dtype, encoding = (row[key] for key in ("name", "layer", "shape", "dtype", "encoding"))
        if not (isinstance(name, str) and isinstance(dtype, str) and isinstance(encoding, str)):
            raise MalformedError("name, dtype and encoding of a tensor must be text", code="E_DIRECTORY")
        check_name(name)
        if (layer is not None and type(layer) is not int) or layer != layer_of(name):
            raise MalformedError(f"layer {layer!r} does not match its name", code="E_LAYER")
        if layer is not None and layer not in self.layers:
            raise MalformedError(f"layer {layer} is not in the index", code="E_LAYER")
        codec = self._codec(row, name, encoding)
        spec, block = self._arranged(check_shape(shape), dtype, encoding, codec)
        stored, parts = self._extent(row), block.parts
        if stored.extent.nbytes != block.nbytes:
            raise MalformedError(
                f"{spec} as {encoding} takes {block.nbytes} bytes, not {stored.extent.nbytes}",
                code="E_SIZE",
                offset=stored.extent.offset,
            )
        self._check_section(name, stored.extent)
        extents = {part: Extent(self.file, stored.extent.offset + at, parts[part].nbytes) for part, at in block.inside.items()}
        place = row.get("mask_offset"), row.get("mask_length")
        if "mask" in extents and (place != extents["mask"][1:] or set(map(type, place)) != {int}):
            raise MalformedError("its mask does not follow its weights", code="E_MASK")
        if block.table:
            own = extents[block.table] = self._scales(row, parts[block.table].nbytes, tables.get(section_of(name)))
            self.scales.append((own, name))
        return Entry(name, spec, codec, parts, extents), stored

    def _codec(self, row: Mapping[str, Any], name: str, label: str) -> CodecSpec:
        encoding = BY_NAME.get(label)
        if encoding is None:
            raise MalformedError(f"unknown encoding {label!r}", code="E_ENCODING")
        if label not in self.permitted[DRAFT if name.startswith(DRAFT) else ""]:
            flags = ", ".join(sorted(self.header.flags)) or "none"
            raise MalformedError(f"{label} is not allowed by the flags of the file ({flags})", code="E_ENCODING")
        codec = encoding.codec(row, tensor_id(layer_of(name), name))
        if "mask_offset" in row:
            if "SPARSE" not in self.header.flags:
                raise MalformedError("there is a mask, but SPARSE is not set", code="E_MASK")
            codec = masked(codec, max(self.header.sparsity.block_size, 1))
        return codec

    def _arranged(self, shape: tuple[int, ...], dtype: str, encoding: str, codec: CodecSpec) -> tuple[TensorSpec, Block]:
        """The spec and block of a tensor. A model has few kinds of them: what was arranged once is shared."""
        inner, block = unmasked(codec)
        key = (shape, dtype, encoding, block, *(value for name, value in inner.params.items() if name != "id"))
        if key in self.shapes:
            return self.shapes[key]
        spec = TensorSpec(shape, DType.parse(dtype))
        if not carried(spec, codec):
            raise MalformedError(f"{spec} cannot be stored as {encoding}", code="E_SPEC")
        self.shapes[key] = spec, arrange(spec, codec)
        return self.shapes[key]

    def _check_section(self, name: str, extent: Extent) -> None:
        layer = layer_of(name)
        if layer is not None:
            own = self.layers[layer]
            begin, end = own.weight_offset, own.weight_offset + own.weight_length
        elif name.startswith(DRAFT):
            begin, end = self.header.draft.offset, self.header.draft.offset + self.header.draft.length
            if "EAGLE" not in self.header.flags:
                raise MalformedError("the tensor belongs to a draft head, but EAGLE is not set", code="E_EAGLE")
        else:
            return
        if not begin <= extent.offset <= extent.end <= end:
            raise MalformedError(
                f"bytes {extent.offset}..{extent.end} are not in its section {begin}..{end}",
                code="E_LAYER_EXTENT",
                offset=extent.offset,
            )

    def _scales(self, row: Mapping[str, Any], nbytes: int, table: Stored | None) -> Extent:
        at = row.get("scale_offset")
        if table is None or type(at) is not int:
            raise MalformedError("needs a scale_offset into a table of scales", code="E_SCALES")
        if at < table.extent.offset + 8 or at + nbytes > table.extent.end or (at - table.extent.offset - 8) % ENTRY_BYTES:
            raise MalformedError(
                f"its scales at {at}, {nbytes} bytes, are not in the table at {table.extent.offset}..{table.extent.end}",
                code="E_SCALES",
            )
        return Extent(self.file, at, nbytes)

    def _check_scales(self) -> None:
        """No two tensors have the same scales. (Other overlaps are found where all of the file is known.)"""
        end, owner = 0, ""
        for extent, name in sorted(self.scales):
            if extent.nbytes and extent.offset < end:
                self.report.error("E_OVERLAP", f"its scales overlap those of '{owner}'", extent.offset, name)
            end, owner = max((end, owner), (extent.end, name))

    # Everything else --------------------------------------------------------------------------------

    def _tables(self, rows: list[Any]) -> dict[Section, Stored]:
        found: dict[Section, Stored] = {}
        for row in rows:
            try:
                section = row.get("section", ()) if isinstance(row, dict) else ()
                if not (section is None or section == "draft" or (type(section) is int and section in self.layers)):
                    raise MalformedError('the section of a table must be a layer, null or "draft"', code="E_DIRECTORY")
                if section in found:
                    raise MalformedError(f"section {section} has two tables", code="E_DUPLICATE")
                stored = self._extent(row)
                if stored.extent.nbytes < 8 or (
                    isinstance(section, int) and self.layers[section].scale_offset != stored.extent.offset
                ):
                    raise MalformedError(f"the table of layer {section} is not where the index says", code="E_SCALES")
            except FlyweightError as error:
                self.report.caught(error)
                if self.report.full:
                    break
                continue
            found[section] = stored
        for index, layer in self.layers.items():
            self.report.require(index in found, "E_SCALES", f"layer {index} has no table of scales", layer.scale_offset)
        return found

    def _files(self, rows: list[Any]) -> dict[str, Stored]:
        found: dict[str, Stored] = {}
        folded = set[str]()  # names that differ only in case are one file on some disks
        for row in rows:
            name = row.get("name") if isinstance(row, dict) else None
            try:
                if not isinstance(name, str) or not is_file_name(name):
                    raise MalformedError(f"{name!r} is not a valid file name", code="E_FILE_NAME")
                if name.casefold() in folded:
                    raise MalformedError(f"file '{name}' is listed twice", code="E_DUPLICATE")
                folded.add(name.casefold())
                found[name] = self._extent(row, 4 if name == APPENDIX else ALIGNMENT)
            except FlyweightError as error:
                self.report.caught(error)
                if self.report.full:
                    break
        has = APPENDIX in found
        self.report.require(
            not has or "ANE_COREML" in self.header.flags, "E_APPENDIX", "there is an appendix, but ANE_COREML is not set", 6
        )
        return found

    def _metadata(self, metadata: object) -> dict[str, Typed]:
        if not isinstance(metadata, dict) or not all(type(value) is str for value in metadata.values()):
            self.report.error("E_METADATA", "metadata must map text to text", self.end)
            return {}
        if len(metadata) > MAX_METADATA_KEYS:
            self.report.error("E_LIMIT", f"{len(metadata)} keys of metadata exceed the limit of {MAX_METADATA_KEYS}", self.end)
            return {}
        if TYPED not in metadata:
            return {key: Typed("str", value) for key, value in metadata.items()}
        try:
            return typed_json.loads(metadata[TYPED], file=self.source.name)
        except FlyweightError as error:
            self.report.caught(error)
            return {}
