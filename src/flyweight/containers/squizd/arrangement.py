"""Where everything in a SQUIZD file goes, from the manifest alone.

    header · layer index · directory | layers, one by one · other tensors | tables of scales | files | draft head | appendix

Every block and table begins on 64 bytes. The directory says offsets and its own size moves them, so it is laid out with
a growing reserve until it fits, and padded with spaces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from struct import pack
from typing import Any

from blake3 import blake3

from flyweight.containers import mlpackage
from flyweight.containers.squizd.blocks import (
    ENTRY_BYTES,
    Block,
    aligned,
    arrange,
    encoding_of,
    tensor_id,
    unmasked,
)
from flyweight.containers.squizd.squizd_header import (
    ARCHITECTURES,
    HEADER_BYTES,
    INDEX_ENTRY_BYTES,
    NO_DRAFT,
    NO_MASKS,
    PRIMARY,
    Draft,
    Header,
    Layer,
    Sparsity,
    build_header,
    build_index,
)
from flyweight.foundation import strict_json, typed_json
from flyweight.foundation.cursor import check_name
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.limits import MAX_JSON_BYTES
from flyweight.foundation.manifest import DRAFT, Entry, Extent, Manifest, Typed
from flyweight.foundation.tensor import TensorSpec
from flyweight.sources import MemorySource

APPENDIX = mlpackage.NAME
"""The side file that is the CoreML appendix."""
TYPED = "flyweight.metadata"
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.([0-9]{1,9})\.")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = 64  # hexadecimal digits of a BLAKE3

Section = int | None | str
"""A layer's index, None for tensors of no layer, or "draft"."""


@lru_cache(1 << 14)
def layer_of(name: str) -> int | None:
    found = None if name.startswith(DRAFT) else _LAYER.search(name)
    return int(found[1]) if found else None


def section_of(name: str) -> Section:
    return "draft" if name.startswith(DRAFT) else layer_of(name)


def is_file_name(name: object) -> bool:
    """Whether a file may be called so: a plain name, safe to write on any disk."""
    return isinstance(name, str) and _FILE_NAME.fullmatch(name) is not None and ".." not in name


def metadata_text(metadata: Mapping[str, Typed]) -> dict[str, str]:
    if TYPED not in metadata and all(typed.type == "str" for typed in metadata.values()):
        return {key: typed.value for key, typed in metadata.items()}
    return {TYPED: typed_json.dumps(metadata)}


@dataclass(frozen=True, slots=True)
class Table:
    """The scales of a section: round 1, one entry a tensor, and behind it round 2, one a sub-block."""

    section: Section
    offset: int
    tensors: tuple[tuple[int, bool], ...]
    """Id of each quantized tensor, and whether its pair is stored here (else its sub-blocks have their own)."""
    sub_blocks: int
    has_second: bool

    @property
    def second_offset(self) -> int:
        return aligned(self.offset + 8 + ENTRY_BYTES * len(self.tensors))

    @property
    def nbytes(self) -> int:
        end = self.second_offset + 8 + ENTRY_BYTES * self.sub_blocks if self.has_second else 0
        return end - self.offset if end else 8 + ENTRY_BYTES * len(self.tensors)

    def chunks(self) -> list[tuple[int, bytes]]:
        """What is not written with the weights. A pair nobody uses is the identity."""
        chunks = [(self.offset, pack("<4sI", b"SCZT", len(self.tensors)))]
        for k, (tensor, stored) in enumerate(self.tensors):
            if not stored:
                chunks.append((self.offset + 8 + ENTRY_BYTES * k, pack("<Qff", tensor, 1.0, 0.0)))
        if self.has_second:
            chunks.append((self.second_offset, pack("<4sI", b"SCZT", self.sub_blocks)))
        return chunks


@dataclass(slots=True)
class Arrangement:
    """A manifest laid out under a file name. `front` is the header, index and directory with the digests known so far."""

    manifest: Manifest
    file: str
    with_directory: bool = True
    blocks: dict[str, Extent] = field(default_factory=dict)
    extents: dict[str, dict[str, Extent]] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    files: dict[str, Extent] = field(default_factory=dict)
    draft: Draft = NO_DRAFT
    end: int = 0
    chunks: list[tuple[int, bytes]] = field(default_factory=list)
    reserve: int = 0
    _shapes: dict[str, Block] = field(default_factory=dict)

    def __post_init__(self) -> None:
        entries = self.manifest.entries
        self._shapes = {name: arrange(entry.spec, entry.codec) for name, entry in entries.items()}
        self._check()
        start = HEADER_BYTES + INDEX_ENTRY_BYTES * len(self._layer_numbers())
        reserve = 0
        while True:
            self._lay_out(aligned(start + reserve))
            needed = len(self._directory({}, 0)) if self.with_directory else 0
            if needed <= aligned(start + reserve) - start:
                break
            reserve = needed
        self.reserve = aligned(start + reserve) - start

    # What there is --------------------------------------------------------------------------------

    def _layer_numbers(self) -> list[int]:
        """At least one: the format has no model without layers."""
        found = {layer for name in self.manifest.entries if (layer := layer_of(name)) is not None}
        return sorted(found) or [0]

    def _check(self) -> None:
        if len(self._layer_numbers()) > 0xFFFF:
            raise UnsupportedError("SQUIZD allows at most 65535 layers", code="E_LAYER_COUNT")
        self._check_files()
        ids: dict[int, str] = {}
        for name, entry in self.manifest.entries.items():
            check_name(name)
            own = tensor_id(layer_of(name), name)
            if ids.setdefault(own, name) != name:
                raise UnsupportedError(f"its id equals that of '{ids[own]}'", code="E_TENSOR_ID", tensor=name)
            inner, _ = unmasked(entry.codec)
            if inner.params.get("id", own) != own:
                raise UnsupportedError(
                    f"its scales have the id {inner.params['id']}, not {own}", code="E_TENSOR_ID", tensor=name
                )
        if len(primaries := self.primaries()) > 1:
            raise UnsupportedError(
                f"one file cannot have both {' and '.join(primaries)} weights", code="E_PRIMARY", hint="choose one encoding"
            )
        if len(blocks := set(self._mask_blocks().values())) > 1:
            raise UnsupportedError(f"all masks of a file must have one block size, not {sorted(blocks)}", code="E_SPARSITY")
        draft = [
            n for n, e in self.manifest.entries.items() if n.startswith(DRAFT) and self._encoding(e) not in ("INT4", "NPCL")
        ]
        if draft:
            raise UnsupportedError("a draft head can have only INT4 and plain tensors", code="E_ENCODING", tensor=draft[0])

    def _check_files(self) -> None:
        """What a reader would refuse is not written."""
        folded = set[str]()
        for name, content in self.manifest.files.items():
            if not is_file_name(name):
                raise UnsupportedError(f"SQUIZD cannot embed a file called {name!r}", code="E_FILE_NAME")
            if name.casefold() in folded:
                raise UnsupportedError(f"two files are called {name!r}, ignoring case", code="E_DUPLICATE")
            folded.add(name.casefold())
            if name == APPENDIX:
                archive = _content(content, name)
                mlpackage.members(MemorySource(archive, name), Extent(name, 0, len(archive)))

    def _encoding(self, entry: Entry) -> str:
        encoding = encoding_of(unmasked(entry.codec)[0])
        return encoding.name if encoding else ""

    def _mask_blocks(self) -> dict[str, int]:
        return {name: block for name, entry in self.manifest.entries.items() if (block := unmasked(entry.codec)[1])}

    def primaries(self) -> list[str]:
        """The flags of the encodings there are. INT4 blocks may stand beside INT2 ones."""
        own = (entry for name, entry in self.manifest.entries.items() if not name.startswith(DRAFT))
        flags = {encoding.flag for entry in own if (encoding := encoding_of(unmasked(entry.codec)[0]))}
        flags -= {"INT4"} if "INT2" in flags else set()
        return [flag for flag in PRIMARY if flag in flags]

    # Where it goes --------------------------------------------------------------------------------

    def _lay_out(self, at: int) -> None:
        self.blocks, self.tables, self.layers, self.files, self.chunks = {}, [], [], {}, []
        self.extents = {name: {} for name in self.manifest.entries}
        names: dict[Section, list[str]] = {layer: [] for layer in self._layer_numbers()} | {None: []}
        for name in self.manifest.entries:
            names.setdefault(section_of(name), []).append(name)
        places: dict[Section, tuple[int, int]] = {}
        for weights in (*self._layer_numbers(), None):
            places[weights], at = self._put_blocks(names[weights], at)
        for section in names:
            at = self._put_table(section, names[section], at)
        starts = {table.section: table.offset for table in self.tables}
        self.layers = [Layer(n, places[n][0], places[n][1] - places[n][0], starts[n]) for n in self._layer_numbers()]
        for name, content in self.manifest.files.items():
            if name != APPENDIX:
                at = self._put_file(name, content, at)
        if "draft" in names:
            at = self._put_draft(names["draft"], at)
        if APPENDIX in self.manifest.files:
            at = aligned(at)
            content = _content(self.manifest.files[APPENDIX], APPENDIX)
            self.chunks.append((at, pack("<4sQ", b"ANLX", len(content)) + content))
            self.files[APPENDIX] = Extent(self.file, at + 12, len(content))
            at += 12 + len(content)
        self.end = at

    def _put_blocks(self, names: Sequence[str], at: int) -> tuple[tuple[int, int], int]:
        """Blocks of a section from `at` on: where it begins and ends."""
        begin = end = aligned(at)
        for name in names:
            block, begins = self._shapes[name], aligned(end)
            parts = self.manifest.entries[name].parts
            self.chunks.append((begins, block.head))
            self.blocks[name] = Extent(self.file, begins, block.nbytes)
            for part, offset in block.inside.items():
                self.extents[name][part] = Extent(self.file, begins + offset, parts[part].nbytes)
            end = begins + block.nbytes
        return (begin, end), end

    def _put_table(self, section: Section, names: Sequence[str], at: int) -> int:
        quantized = [name for name in names if self._shapes[name].table]
        pairs = {name: self._shapes[name].table.endswith("pair") for name in quantized}
        nbytes = {name: self.manifest.entries[name].parts[self._shapes[name].table].nbytes for name in quantized}
        sub_blocks = sum(nbytes[name] // ENTRY_BYTES for name in quantized if not pairs[name])
        has_second = any(self._encoding(self.manifest.entries[name]) in ("INT4", "INT2") for name in quantized)
        ids = tuple((tensor_id(layer_of(name), name), pairs[name]) for name in quantized)
        table = Table(section, aligned(at), ids, sub_blocks, has_second)
        if section not in (None, "draft") or quantized:
            self.tables.append(table)
            self.chunks += table.chunks()
        else:
            return at
        second = table.second_offset + 8
        for k, name in enumerate(quantized):
            where = table.offset + 8 + ENTRY_BYTES * k if pairs[name] else second
            self.extents[name][self._shapes[name].table] = Extent(self.file, where, nbytes[name])
            second += 0 if pairs[name] else nbytes[name]
        return table.offset + table.nbytes

    def _put_file(self, name: str, content: Extent | bytes, at: int) -> int:
        at, raw = aligned(at), _content(content, name)
        self.chunks.append((at, raw))
        self.files[name] = Extent(self.file, at, len(raw))
        return at + len(raw)

    def _put_draft(self, names: Sequence[str], at: int) -> int:
        begin = aligned(at)
        _, end = self._put_blocks(names, begin + 8)
        layers = len({found[1] for name in names if (found := _LAYER.search(name))}) or 1
        entries = self.manifest.entries
        heads = [name for name in names if name.endswith(("lm_head.weight", ".d2t"))]
        vocabulary = entries[heads[0]].spec.shape[0] if heads and entries[heads[0]].spec.shape else 0
        self.chunks.append((begin, pack("<4sI", b"EGDH", layers)))
        self.draft = Draft(begin, end - begin, layers, vocabulary)
        return end

    # What is said of it ---------------------------------------------------------------------------

    def header(self, sparsity: Sparsity) -> Header:
        flags = set(self.primaries())
        flags |= {"SPARSE"} if self._mask_blocks() else set()
        flags |= {"EAGLE"} if any(name.startswith(DRAFT) for name in self.manifest.entries) else set()
        flags |= {"ANE_COREML"} if APPENDIX in self.manifest.files else set()
        return Header(frozenset(flags), len(self.layers), self._architecture(), sparsity, self.draft)

    def sparsity(self, dropped: Mapping[str, float]) -> Sparsity:
        """`dropped`: the share of blocks each mask drops."""
        blocks = self._mask_blocks()
        if not blocks:
            return NO_MASKS
        layers = len({layer_of(name) for name in blocks} - {None})
        mean = sum(dropped.values()) / len(dropped) if dropped else 0.0
        return Sparsity(1, next(iter(blocks.values())), layers, mean)

    def masks(self) -> dict[str, tuple[Extent, TensorSpec, int]]:
        """Where each mask lies, what it masks, and how many weights a bit of it stands for."""
        specs = {name: entry.spec for name, entry in self.manifest.entries.items()}
        return {name: (self.extents[name]["mask"], specs[name], block) for name, block in self._mask_blocks().items()}

    def _architecture(self) -> int:
        config = self.manifest.files.get("config.json")
        if not isinstance(config, bytes):
            return 0
        document = strict_json.loads(config, file="config.json")
        kind = document.get("model_type") if isinstance(document, dict) else None
        stem = next((name for name in ARCHITECTURES if isinstance(kind, str) and kind.startswith(name)), "generic")
        return ARCHITECTURES.index(stem)

    def front(self, digests: Mapping[str, str], dropped: Mapping[str, float], table_digests: Sequence[str]) -> bytes:
        """Header, index and directory."""
        head = build_header(self.header(self.sparsity(dropped))) + build_index(self.layers)
        if not self.with_directory:
            return head
        text = self._directory(digests, self.reserve, table_digests)
        return head + text[:-32] + blake3(head + text[:-32]).digest()

    def _directory(self, digests: Mapping[str, str], room: int, table_digests: Sequence[str] = ()) -> bytes:
        """The directory, its JSON padded to fill `room`; the last 32 bytes are left to the digest."""
        unknown = "0" * _DIGEST
        padded = (*table_digests, *[unknown] * (len(self.tables) - len(table_digests)))
        document: dict[str, Any] = {
            "tensors": [self._row(entry, digests.get(name, unknown)) for name, entry in self.manifest.entries.items()],
            "tables": [
                {"section": table.section, "offset": table.offset, "length": table.nbytes, "blake3": digest}
                for table, digest in zip(self.tables, padded, strict=True)
            ],
            "files": [
                {"name": name, "offset": extent.offset, "length": extent.nbytes, "blake3": self._file_digest(name)}
                for name, extent in self.files.items()
            ],
            "metadata": metadata_text(self.manifest.metadata),
        }
        text = strict_json.dumps(document)
        text = text.ljust(room - 48)
        if len(text) > MAX_JSON_BYTES:
            raise UnsupportedError(f"a directory of {len(text)} bytes exceeds {MAX_JSON_BYTES}", code="E_HEADER_SIZE")
        return pack("<4sIQ", b"SQDX", 1, len(text)) + text + bytes(32)

    def _row(self, entry: Entry, digest: str) -> dict[str, Any]:
        inner, block = unmasked(entry.codec)
        encoding = encoding_of(inner)
        assert encoding is not None
        extent, parts = self.blocks[entry.name], self.extents[entry.name]
        row: dict[str, Any] = {
            "name": entry.name, "layer": layer_of(entry.name), "shape": list(entry.spec.shape), "dtype": entry.spec.dtype.label,
            "encoding": encoding.name, **encoding.describe(inner),
            "offset": extent.offset, "length": extent.nbytes, "blake3": digest,
        }  # fmt: skip
        if table := self._shapes[entry.name].table:
            row["scale_offset"] = parts[table].offset
        if block:
            row |= {"mask_offset": parts["mask"].offset, "mask_length": parts["mask"].nbytes}
        return row

    def _file_digest(self, name: str) -> str:
        return blake3(_content(self.manifest.files[name], name)).hexdigest()


def _content(content: Extent | bytes, name: str) -> bytes:
    if isinstance(content, bytes):
        return content
    raise TypeError(f"{name} must be given as bytes to be placed in a file")
