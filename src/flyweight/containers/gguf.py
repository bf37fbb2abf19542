"""GGUF: one little-endian file with typed metadata and tensors in ggml's types.

    "GGUF"  u32 version (2, 3)  u64 tensor count  u64 metadata count
    metadata   as in `gguf_values`
    tensors    string name  u32 rank (0..4)  u64 dims, fastest-varying first  u32 ggml type  u64 offset
    padding to `general.alignment` (32 unless said); offsets count from here
    each tensor at the padded end of the one before; the last may lack its padding

A model may be split: `name-00001-of-00003.gguf` ... each have `split.no` (from 0), `split.count` and
`split.tensors.count` (of all parts), and the first has the metadata. Parsing joins the parts; the
`split.*` keys say how files are cut, not what the model is, and never reach the manifest.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from flyweight.containers import gguf_mixes
from flyweight.containers.carried import Carried
from flyweight.containers.container import (
    ENTRY_KIND_NBYTES,
    ENTRY_NBYTES,
    Container,
    DenseTypes,
    Image,
    Placement,
    check_cover,
    fill_shards,
    require_carried,
)
from flyweight.containers.gguf_values import pack_text, read_metadata, write_metadata
from flyweight.containers.named_quantizations import Preset
from flyweight.foundation.cursor import Cursor, check_name, check_shape
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import LimitError, MalformedError, UnsupportedError
from flyweight.foundation.ggml_types import GGML_TYPES
from flyweight.foundation.limits import MAX_ALIGNMENT, MAX_NAME_BYTES, MAX_SHARDS, MAX_TENSORS, MAX_TENSORS_PER_FILE
from flyweight.foundation.manifest import Entries, Entry, Extent, Manifest, Typed
from flyweight.foundation.tensor import RAW, CodecSpec, Layout, TensorSpec
from flyweight.sources import Bundle, Source

MAGIC = b"GGUF"
VERSION = 3
MAX_GGUF_RANK = 4
MAX_GGML_NAME_BYTES = 63
DEFAULT_ALIGNMENT = 32
ALIGNMENT = "general.alignment"
FILE_TYPE = "general.file_type"
SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS = "split.no", "split.count", "split.tensors.count"
SPLIT_KEYS = frozenset({SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS})

PLAIN = {
    0: DType.F32, 1: DType.F16, 24: DType.I8, 25: DType.I16, 26: DType.I32, 27: DType.I64, 28: DType.F64, 30: DType.BF16,
}  # fmt: skip
"""Types of `ggml_type` that are element types of ours; the others are blocks."""
BLOCKS = {each.id: each for each in GGML_TYPES.values()}
FILE_TYPES = {"f32": 0, "f16": 1, "bf16": 32} | {
    each.name: each.file_type for each in GGML_TYPES.values() if each.file_type is not None
}
"""`general.file_type` by the type of most weights."""

_PLAIN_IDS = {dtype: number for number, dtype in PLAIN.items()}
_BITS = re.compile(r"int([234568])|([234568])[-_]?bit")
_BLOCK_IDS = {block.name: number for number, block in BLOCKS.items()}
_LINES = [struct.Struct(f"<{rank}QIQ") for rank in range(MAX_GGUF_RANK + 1)]
"""What follows the rank of a tensor: dimensions, type, offset."""
_SPLIT_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


def _padded(offset: int, alignment: int) -> int:
    return offset + -offset % alignment


def _alignment(metadata: Mapping[str, Typed], file: str) -> int:
    typed = metadata.get(ALIGNMENT, Typed("u32", DEFAULT_ALIGNMENT))
    if typed.type != "u32":
        raise MalformedError(f"{ALIGNMENT} must be u32, not {typed.type}", code="E_ALIGNMENT", file=file)
    value = int(typed.value)
    if not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
        raise MalformedError(f"{ALIGNMENT} {value} is not a power of two up to {MAX_ALIGNMENT}", code="E_ALIGNMENT", file=file)
    return value


# --- tensors ------------------------------------------------------------------------------------


@lru_cache(1024)
def _stored_as(number: int, shape: tuple[int, ...]) -> tuple[TensorSpec, CodecSpec, Layout] | None:
    """What a tensor of this ggml type and shape is; None if its rows are no whole number of blocks.

    The layers of a model have the same few; sharing them lets each be checked once.
    """
    if number in PLAIN:
        spec = TensorSpec(shape, PLAIN[number])
        return spec, RAW, {"data": spec}
    block = BLOCKS[number]
    columns = shape[-1] if shape else 1
    if columns % block.elements:
        return None
    stored = TensorSpec((*shape[:-1], columns // block.elements * block.nbytes), DType.U8)
    return TensorSpec(shape, DType.F32), CodecSpec(block.name), {"blocks": stored}


def _checked_kind(cursor: Cursor, name: str, number: int, dims: list[int]) -> tuple[TensorSpec, CodecSpec, Layout]:
    """What a tensor of this ggml type and these dimensions, fastest-varying first, is."""
    shape = check_shape(dims[::-1], file=cursor.source.name, tensor=name)
    if number not in PLAIN and number not in BLOCKS:
        raise UnsupportedError(f"unknown ggml type {number}", code="E_GGUF_TYPE", file=cursor.source.name, tensor=name)
    stored = _stored_as(number, shape)
    if stored is None:
        raise cursor.malformed(
            f"{BLOCKS[number].name} rows are multiples of {BLOCKS[number].elements} weights, not {shape[-1] if shape else 1}",
            "E_ROW",
            tensor=name,
        )
    return stored


def _read_tensors(cursor: Cursor, count: int, alignment: int, file: str) -> Entries:
    """The table; each tensor must follow the one before, as ggml demands, and together they fill the file."""
    entries = Entries()
    names: list[str] = []
    offsets: list[int] = []
    kinds: list[int] = []
    known: dict[tuple[int, ...], int] = {}
    sizes: list[int] = []
    for _ in range(count):
        name = check_name(cursor.text(MAX_NAME_BYTES, "a tensor name"), file=cursor.source.name)
        rank = cursor.u32("the rank")
        if rank > MAX_GGUF_RANK:
            raise cursor.malformed(f"rank {rank} exceeds {MAX_GGUF_RANK}", "E_RANK", tensor=name)
        line = _LINES[rank]
        *kind, offset = line.unpack(cursor.take(line.size, "the dimensions, type and offset of a tensor"))
        number = known.get(tuple(kind))
        if number is None:
            cursor.spend(ENTRY_KIND_NBYTES, "tensors of so many shapes")
            stored = _checked_kind(cursor, name, kind[-1], kind[:-1])
            number = known[tuple(kind)] = entries.add_kind(file, *stored)
            sizes += (spec.nbytes for spec in stored[2].values())
        names.append(name)
        kinds.append(number)
        offsets.append(offset)
    cursor.spend(count * ENTRY_NBYTES, "the table of tensors")
    if len(set(names)) != count:
        [(name, _)] = Counter(names).most_common(1)
        raise MalformedError("the tensor appears twice", code="E_DUPLICATE", file=cursor.source.name, tensor=name)
    start = _padded(cursor.offset, alignment)
    spans = ((name, start + offset, sizes[kind]) for name, kind, offset in zip(names, kinds, offsets, strict=True))
    check_cover(spans, start, cursor.source, alignment)
    entries.extend(names, kinds, (start + offset for offset in offsets))
    return entries


def _read_file(source: Source, file: str) -> tuple[dict[str, Typed], Entries]:
    cursor = Cursor(source)
    if bytes(cursor.take(4, "the magic")) != MAGIC:
        raise MalformedError("does not start with 'GGUF'", code="E_MAGIC", file=source.name, offset=0)
    _check_version(cursor.u32("the version"), source.name)
    tensor_count = cursor.u64("the tensor count")
    key_count = cursor.u64("the metadata count")
    metadata = read_metadata(cursor, key_count)
    alignment = _alignment(metadata, source.name)
    cursor.count(tensor_count, 25, MAX_TENSORS_PER_FILE, "tensors")
    return metadata, _read_tensors(cursor, tensor_count, alignment, file)


def _check_version(version: int, file: str) -> None:
    if version in (2, VERSION):
        return
    if version and not version & 0xFFFF:
        raise UnsupportedError("big-endian GGUF is not supported", code="E_GGUF_BIG_ENDIAN", file=file)
    raise UnsupportedError(f"GGUF version {version} is not supported; 2 and 3 are", code="E_GGUF_VERSION", file=file)


# --- splits -------------------------------------------------------------------------------------


def split_name(prefix: str, number: int, count: int) -> str:
    return f"{prefix}-{number + 1:05d}-of-{count:05d}.gguf"


def _ggufs(bundle: Bundle) -> list[str]:
    return [name for name in bundle if "/" not in name and name.endswith(".gguf")]


def _is_split_set(bundle: Bundle) -> bool:
    """Whether a directory holds one GGUF model and no other weights."""
    names = _ggufs(bundle)
    if not names or any(name.endswith(".safetensors") for name in bundle):
        return False
    prefixes = {match[1] + match[3] if (match := _SPLIT_NAME.fullmatch(name)) else name for name in names}
    return len(prefixes) == 1


def _split_number(metadata: Mapping[str, Typed], key: str, file: str) -> int:
    typed = metadata.get(key)
    if typed is None or typed.type[0] not in "ui" or typed.value < 0:
        raise MalformedError(f"a part of a split model needs an integer in '{key}'", code="E_SPLIT", file=file)
    return int(typed.value)


def _join(bundle: Bundle, first: str, count: int) -> tuple[dict[str, Typed], Entries]:
    """All parts as one model; none may be missing, repeated or foreign."""
    match = _SPLIT_NAME.fullmatch(first)
    if match is None or int(match[3]) != count:
        raise MalformedError(
            f"is one of {count} parts, so its name must end like -00001-of-{count:05d}.gguf",
            code="E_SPLIT",
            file=bundle.name,
        )
    if count > MAX_SHARDS:
        raise LimitError(f"{count} parts exceed the limit of {MAX_SHARDS}", code="E_SHARDS", file=bundle.name)
    siblings = bundle.siblings()
    names = [split_name(match[1], number, count) for number in range(count)]
    missing = [name for name in names if name not in siblings]
    if missing:
        raise MalformedError(
            f"{len(missing)} of {count} parts are missing, such as '{missing[0]}'",
            code="E_SPLIT_MISSING",
            file=bundle.name,
            hint="put all parts into one directory",
        )
    metadata: dict[str, Typed] = {}
    entries = Entries()
    for number, name in enumerate(names):
        source = siblings[name]
        own, tensors = _read_file(source, name)
        if (_split_number(own, SPLIT_NO, source.name), _split_number(own, SPLIT_COUNT, source.name)) != (number, count):
            raise MalformedError(
                f"its metadata do not say that it is part {number} of {count}", code="E_SPLIT", file=source.name
            )
        if number == 0:
            total = _split_number(own, SPLIT_TENSORS, source.name)
        for key, typed in own.items():
            if key not in SPLIT_KEYS and metadata.setdefault(key, typed) != typed:
                raise MalformedError(f"parts disagree about '{key}'", code="E_SPLIT", file=source.name)
        for tensor in tensors.keys() & entries.keys():
            raise MalformedError("the tensor is in two parts", code="E_DUPLICATE", file=source.name, tensor=tensor)
        entries.absorb(tensors)
        if len(entries) > MAX_TENSORS:
            raise LimitError(f"more than {MAX_TENSORS} tensors", code="E_TENSORS", file=bundle.name)
    if len(entries) != total:
        raise MalformedError(
            f"the parts should have {total} tensors together but have {len(entries)}", code="E_SPLIT", file=bundle.name
        )
    return metadata, entries


def _build_image(file: str, metadata: Mapping[str, Typed], entries: Mapping[str, Entry]) -> tuple[Image, dict[str, Entry]]:
    alignment = _alignment(metadata, file)
    head = [MAGIC, struct.pack("<IQQ", VERSION, len(entries), len(metadata)), write_metadata(metadata)]
    at = 0
    offsets = []
    for entry in entries.values():
        if len(entry.name.encode()) > MAX_GGML_NAME_BYTES:
            raise UnsupportedError(
                f"the name is too long: GGUF allows {MAX_GGML_NAME_BYTES} bytes", code="E_NAME", tensor=entry.name
            )
        shape = entry.spec.shape
        number = _PLAIN_IDS[entry.spec.dtype] if entry.codec == RAW else _BLOCK_IDS[entry.codec.name]
        head += [pack_text(entry.name), struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], number, at)]
        offsets.append(at)
        at += _padded(entry.nbytes, alignment)
    raw = b"".join(head)
    start = _padded(len(raw), alignment)
    placed = {
        entry.name: replace(entry, extents={part: Extent(file, start + offset, entry.nbytes) for part in entry.parts})
        for entry, offset in zip(entries.values(), offsets, strict=True)
    }
    return Image(start + at, ((0, raw),)), placed


class Gguf(Container):
    name = "gguf"
    title = "GGUF file"
    dialect = "gguf"
    is_directory = False
    suffix = ".gguf"
    quants = (*gguf_mixes.MIXES, "int2 … int8")
    codecs = (Carried("raw", dtypes=tuple(_PLAIN_IDS)), *(Carried(codec) for codec in _BLOCK_IDS))
    sizes = gguf_mixes.SIZES
    dense = DenseTypes(vectors=DType.F32)  # llama.cpp multiplies norms and adds biases in f32 only

    def probe(self, bundle: Bundle) -> bool:
        if bundle.single is None and not _is_split_set(bundle):
            return False
        source = bundle[bundle.single or _ggufs(bundle)[0]]
        return source.size >= len(MAGIC) and bytes(source.read(0, len(MAGIC))) == MAGIC

    def parse(self, bundle: Bundle) -> Manifest:
        file = bundle.single or _ggufs(bundle)[0]
        metadata, entries = _read_file(bundle[file], file)
        count = _split_number(metadata, SPLIT_COUNT, bundle[file].name) if SPLIT_COUNT in metadata else 0
        # A count of 0 is what merging leaves behind; one part is whole by itself.
        if count > 1:
            metadata, entries = _join(bundle, file, count)
        elif len(_ggufs(bundle)) > 1:
            raise MalformedError(f"there are several files, but '{file}' is a complete model", code="E_SPLIT", file=bundle.name)
        model = {key: typed for key, typed in metadata.items() if key not in SPLIT_KEYS}
        return Manifest(self.name, entries, model, dialect=self.dialect)

    def carries(self, spec: TensorSpec, codec: CodecSpec) -> bool:
        if len(spec.shape) > MAX_GGUF_RANK:
            return False
        if codec == RAW:
            return spec.dtype in _PLAIN_IDS
        number = _BLOCK_IDS.get(codec.name)
        stored = None if number is None else _stored_as(number, spec.shape)
        return stored is not None and stored[:2] == (spec, codec)

    def preset(self, quant: str, extras: object) -> Preset | None:
        """A number of bits means the mix that users of the format take for it."""
        found = _BITS.fullmatch(quant.lower())
        return gguf_mixes.mix(gguf_mixes.BITS[int(found[1] or found[2])] if found else quant)

    def describe(self, entries: Mapping[str, Entry], metadata: Mapping[str, Typed], recipe: str) -> Mapping[str, Typed]:
        """`general.file_type` names the mix, or else the type most weights of matrices have; block types have a version."""
        sizes: Counter[str] = Counter()
        for entry in entries.values():
            if len(entry.spec.shape) > 1:
                sizes[entry.spec.dtype.label if entry.codec == RAW else entry.codec.name] += entry.spec.size
        made = {key: typed for key, typed in metadata.items() if key != FILE_TYPE}
        main = max(sizes, key=sizes.__getitem__, default="")
        if (number := gguf_mixes.FILE_TYPES.get(recipe, FILE_TYPES.get(main))) is not None:
            made[FILE_TYPE] = Typed("u32", number)
        if any(entry.codec != RAW for entry in entries.values()):
            made.setdefault("general.quantization_version", Typed("u32", 2))
        return made

    def place(self, manifest: Manifest, name: str, shard_bytes: int | None = None) -> Placement:
        """One file `name`, or parts `<name>-00001-of-0000N.gguf` beside each other when a size is given and exceeded."""
        require_carried(self, manifest)
        metadata = {key: typed for key, typed in manifest.metadata.items() if key not in SPLIT_KEYS}
        sizes = {key: _padded(entry.nbytes, DEFAULT_ALIGNMENT) for key, entry in manifest.entries.items()}
        cuts = fill_shards(sizes, shard_bytes)
        images: dict[str, Image] = {}
        entries: dict[str, Entry] = {}
        for number, cut in enumerate(cuts):
            if len(cuts) == 1:
                file, keys = name, metadata
            else:
                file = split_name(name.removesuffix(self.suffix), number, len(cuts))
                keys = (metadata if number == 0 else {}) | {
                    SPLIT_NO: Typed("u16", number),
                    SPLIT_COUNT: Typed("u16", len(cuts)),
                    SPLIT_TENSORS: Typed("i32", len(manifest.entries)),
                }
            images[file], placed = _build_image(file, keys, {key: manifest.entries[key] for key in cut})
            entries |= placed
        return Placement(Manifest(self.name, entries, metadata, dialect=self.dialect), images)
