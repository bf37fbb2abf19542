"""The fixed header of a SQUIZD file and the layer index after it.

      0  4  magic "SQZD"          18   8  eagle_hash, FNV-1a-64 of bytes 160–191
      4  2  version, 1            26 102  reserved
      6  4  flags                128  32  sparsity: u32 version, u32 block_size, u32 n_sparse_layers, f32 mean_sparsity
     10  2  layer_count          160  32  draft head: u64 offset, u64 length, u32 n_layers, u32 vocabulary
     12  2  arch_id              192  64  reserved
     14  4  sparsity_crc32, CRC-32 of bytes 128–159
    256  32 for every layer: u32 layer_idx, u64 weight_offset, u64 weight_length, u64 scale_offset, u32 reserved

The two hashes guard against accidents, not against anyone. docs/formats/squizd.md has every rule with its code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from flyweight.containers.squizd.broken_rules import Report
from flyweight.foundation.cursor import Cursor
from flyweight.sources import Source

MAGIC, VERSION, HEADER_BYTES, INDEX_ENTRY_BYTES = b"SQZD", 1, 256, 32
FLAGS = ("ASTC", "TCA_TBE", "INT4", "SPARSE", "EAGLE", "INT2", "ANE_COREML")
"""By bit."""
PRIMARY = ("ASTC", "TCA_TBE", "INT2", "INT4")
"""Those that say how weights are stored, the first to be dispatched first. A file has at most one."""
ARCHITECTURES = ("generic", "llama", "mistral", "qwen", "gemma", "deepseek", "phi")
"""By arch_id."""

_FRONT = Struct("<4sHIHHIQ")
_SPARSITY, _DRAFT, _LAYER = Struct("<IIIf16x"), Struct("<QQII8x"), Struct("<IQQQI")
_CRC_OF_ZEROS = crc32(bytes(32))
_RESERVED = ((26, 128), (144, 160), (184, 192), (192, 256))


class Sparsity(NamedTuple):
    version: int
    block_size: int
    n_sparse_layers: int
    mean_sparsity: float


class Draft(NamedTuple):
    offset: int
    length: int
    n_layers: int
    vocabulary: int


class Layer(NamedTuple):
    number: int
    weight_offset: int
    weight_length: int
    scale_offset: int


NO_MASKS, NO_DRAFT = Sparsity(0, 0, 0, 0.0), Draft(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Header:
    flags: frozenset[str]
    layer_count: int
    arch_id: int = 0
    sparsity: Sparsity = NO_MASKS
    draft: Draft = NO_DRAFT

    @property
    def primary(self) -> str:
        """How weights are stored: one of PRIMARY, or nothing for plain numbers."""
        return next((flag for flag in PRIMARY if flag in self.flags), "")


def fnv1a64(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def read_header(source: Source, report: Report) -> Header | None:
    """The header, every broken rule in the report; None when nothing behind it can be found."""
    if not report.require(
        source.size >= HEADER_BYTES, "E_TRUNCATED", f"the header needs 256 bytes, but the file has {source.size}", source.size
    ):
        return None
    cursor = Cursor(source, 0, HEADER_BYTES)
    if not report.require(bytes(cursor.take(4)) == MAGIC, "E_MAGIC", "the file does not begin with SQZD", 0):
        return None
    version, flags, layer_count, arch_id = (cursor.scalar(kind) for kind in ("u16", "u32", "u16", "u16"))
    sparsity_crc, eagle_hash = cursor.u32(), cursor.u64()
    if not report.require(version == VERSION, "E_VERSION", f"version {version} is not supported; only 1 is", 4):
        return None
    report.require(flags >> len(FLAGS) == 0, "E_FLAGS", f"flags {flags:#x} have unknown bits", 6)
    names = frozenset(name for bit, name in enumerate(FLAGS) if flags >> bit & 1)
    primaries = [name for name in PRIMARY if name in names]
    report.require(len(primaries) < 2, "E_PRIMARY", f"the flags {' and '.join(primaries)} cannot be set together", 6)
    report.require(layer_count > 0, "E_LAYER_COUNT", "a model has at least one layer", 10)
    if arch_id >= len(ARCHITECTURES):
        report.warning("E_ARCH", f"unknown arch_id {arch_id}: read as generic", 12)
    raw = bytes(source.read(0, HEADER_BYTES))
    for begin, end in _RESERVED:
        if any(raw[begin:end]):
            report.warning("E_RESERVED", f"reserved bytes {begin}..{end - 1} are not zero", begin)
    return Header(
        names, layer_count, arch_id, _sparsity(source, raw, "SPARSE" in names, layer_count, sparsity_crc, report),
        _draft(source, raw, "EAGLE" in names, eagle_hash, report),
    )  # fmt: skip


def _sparsity(source: Source, raw: bytes, is_set: bool, layer_count: int, stored: int, report: Report) -> Sparsity:
    cursor = Cursor(source, 128, 160)
    found = Sparsity(*(cursor.scalar(kind) for kind in ("u32", "u32", "u32", "f32")))
    if not is_set:
        if stored not in (0, _CRC_OF_ZEROS):
            report.warning("E_SPARSITY_CRC", f"sparsity_crc32 is {stored:#010x} but SPARSE is not set", 14)
        if any(raw[128:144]):
            report.warning("E_SPARSITY", "there is sparsity metadata, but SPARSE is not set", 128)
        return found
    computed = crc32(raw[128:160])
    report.require(
        stored == computed, "E_SPARSITY_CRC", f"sparsity_crc32 is {stored:#010x}, but its bytes give {computed:#010x}", 14
    )
    report.require(found.version == 1, "E_SPARSITY", f"sparsity version {found.version} is not supported; only 1 is", 128)
    report.require(found.block_size > 0, "E_SPARSITY", "the sparsity block_size must not be 0", 132)
    report.require(
        found.n_sparse_layers <= layer_count, "E_SPARSITY", f"{found.n_sparse_layers} of {layer_count} layers have masks", 136
    )
    mean = found.mean_sparsity
    report.require(isfinite(mean) and 0 <= mean <= 1, "E_SPARSITY", f"mean_sparsity {mean} is not a fraction", 140)
    return found


def _draft(source: Source, raw: bytes, is_set: bool, stored: int, report: Report) -> Draft:
    cursor = Cursor(source, 160, 192)
    found = Draft(*(cursor.scalar(kind) for kind in ("u64", "u64", "u32", "u32")))
    if not is_set:
        if stored or any(raw[160:184]):
            report.warning("E_EAGLE", "there is draft head metadata, but EAGLE is not set", 18 if stored else 160)
        return found
    computed = fnv1a64(raw[160:192])
    report.require(stored == computed, "E_EAGLE_HASH", f"eagle_hash is {stored:#018x}, but its bytes give {computed:#018x}", 18)
    return found


def read_index(source: Source, header: Header, report: Report) -> tuple[Layer, ...]:
    """The layer index; what lies outside the file is an error of its layer."""
    begin, end = HEADER_BYTES, HEADER_BYTES + INDEX_ENTRY_BYTES * header.layer_count
    if not report.require(
        end <= source.size,
        "E_TRUNCATED",
        f"the index of {header.layer_count} layers ends at {end}, but the file ends at {source.size}",
        begin,
    ):
        return ()
    cursor, layers = Cursor(source, begin, end), list[Layer]()
    for at in range(begin, end, INDEX_ENTRY_BYTES):
        layer = Layer(cursor.u32(), cursor.u64(), cursor.u64(), cursor.u64())
        if cursor.u32():
            report.warning("E_RESERVED", f"the reserved field of layer {layer.number} is not zero", at + 28)
        if layers:
            report.require(
                layer.number > layers[-1].number, "E_LAYER_ORDER", f"layer {layer.number} follows layer {layers[-1].number}", at
            )
        weights = layer.weight_offset + layer.weight_length
        inside = end <= layer.weight_offset and weights <= source.size
        report.require(
            inside, "E_LAYER_EXTENT", f"layer {layer.number} at {layer.weight_offset}..{weights} is out of bounds", at + 4
        )
        inside = end <= layer.scale_offset and layer.scale_offset + 8 <= source.size
        message = f"the scales of layer {layer.number} at {layer.scale_offset} are out of bounds"
        report.require(inside, "E_LAYER_EXTENT", message, at + 20)
        layers.append(layer)
    return tuple(layers)


def build_header(header: Header) -> bytes:
    flags = sum(1 << bit for bit, name in enumerate(FLAGS) if name in header.flags)
    sparsity, draft = _SPARSITY.pack(*header.sparsity), _DRAFT.pack(*header.draft)
    crc = crc32(sparsity) if "SPARSE" in header.flags else 0
    hashed = fnv1a64(draft) if "EAGLE" in header.flags else 0
    front = _FRONT.pack(MAGIC, VERSION, flags, header.layer_count, header.arch_id, crc, hashed)
    return front.ljust(128, b"\0") + sparsity + draft + bytes(64)


def build_index(layers: Iterable[Layer] | Sequence[Layer]) -> bytes:
    return b"".join(_LAYER.pack(*layer, 0) for layer in layers)
