"""The weight blocks of SQUIZD: one encoding a class, a tensor's bytes as offsets within its block.

    INT4  n_rows, n_cols                            codes                         codec `tabled`, 4 bits
    INT2  n_rows, n_cols, sub_block_len             codes                         codec `tabled`, 2 bits
    TCAW  n_rows, word_width_bits, base,            bitmap, planes, low, starts,  codec `lossless`
          u64 bitmap bytes, stored, escapes         escapes, each 8-aligned
    ASTW  width, height, footprint                  blocks                        codec `astc`
    NPCL  dtype_code, ndim, shape                   data                          codec `raw`

All numbers are u32 unless said. Scales lie in the tables (`SCZT`), a mask behind the data. Codecs are known here as data only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from struct import pack
from typing import Any, ClassVar, NamedTuple

from flyweight.containers.carried import Carried
from flyweight.containers.squizd.squizd_header import fnv1a64
from flyweight.foundation.astc_footprints import FOOTPRINTS
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError
from flyweight.foundation.tensor import RAW, CodecSpec, Layout, TensorSpec

ALIGNMENT, ENTRY_BYTES = 64, 16
NO_LAYER = 0xFFFFFFFF
DTYPE_CODES = (DType.F32, DType.F16, DType.BF16, DType.I32, DType.I64, DType.U8, DType.BOOL)
"""Of NPCL blocks, by code. The specification has the first three; the others hold the id maps of draft heads."""
FOOTPRINT_CODES = {(4, 4): 0x04, (5, 5): 0x05, (6, 6): 0x06, (8, 5): 0x08}
"""Codes with a name; any other footprint W×H is 0x0000WWHH."""
WORDS = {DType.BF16: (16, 3, 1, 249), DType.F16: (16, 6, 1, 25), DType.F32: (32, 3, 3, 249)}
"""Word width in bits, bit planes, low bytes a word and the last first exponent of the lossless code."""
_U32 = 1 << 32


def aligned(offset: int, to: int = ALIGNMENT) -> int:
    return offset + -offset % to


@lru_cache(1 << 14)
def tensor_id(layer: int | None, name: str) -> int:
    """What a scale table calls a tensor; bit 63, clear here, marks entries of sub-blocks."""
    return fnv1a64(pack("<I", NO_LAYER if layer is None else layer) + name.encode()) & (1 << 63) - 1


class Block(NamedTuple):
    """A tensor's block: its head, its parts as the codec lays them out, where each begins in it, its length, and the part that
    lies in the scale table."""

    head: bytes
    parts: Layout
    inside: Mapping[str, int]
    nbytes: int
    table: str


class Encoding(ABC):
    magic: ClassVar[bytes]
    codec_name: ClassVar[str]
    flag: ClassVar[str] = ""
    """The header flag of files whose primary encoding this is."""
    part_alignment: ClassVar[int] = 1

    @property
    def name(self) -> str:
        return self.magic.decode()

    @abstractmethod
    def carries(self, spec: TensorSpec, codec: CodecSpec) -> bool: ...

    @abstractmethod
    def head(self, spec: TensorSpec, codec: CodecSpec) -> bytes: ...

    @abstractmethod
    def parts(self, spec: TensorSpec, codec: CodecSpec) -> Layout:
        """Those inside the block, in order, then the one in the scale table if there is one."""

    def table(self, codec: CodecSpec) -> str:
        """The name of the part in the scale table, or nothing."""
        return ""

    def describe(self, codec: CodecSpec) -> dict[str, Any]:
        """What the directory says of the codec."""
        return {}

    def codec(self, row: Mapping[str, Any], tensor: int) -> CodecSpec:
        """The inverse of `describe`; `tensor` is the tensor's id."""
        return CodecSpec(self.codec_name, {})


def _is_matrix(spec: TensorSpec) -> bool:
    return len(spec.shape) >= 2 and spec.rows < _U32 and spec.columns < _U32


class _Integers(Encoding):
    codec_name = "tabled"
    bits: ClassVar[int]

    def carries(self, spec: TensorSpec, codec: CodecSpec) -> bool:
        known = codec.name == "tabled" and codec.params.get("bits") == self.bits
        return known and _is_matrix(spec) and spec.dtype is DType.F32

    def parts(self, spec: TensorSpec, codec: CodecSpec) -> Layout:
        whole = spec.columns * self.bits % 8 == 0
        codes = (*spec.shape[:-1], spec.columns * self.bits // 8) if whole else (-(-spec.size * self.bits // 8),)
        length = codec.integer("length")
        runs = (*spec.shape[:-1], 4 * -(-spec.columns // length)) if length else (4,)
        return {"codes": TensorSpec(codes, DType.U8), self.table(codec): TensorSpec(runs, DType.U32)}

    def table(self, codec: CodecSpec) -> str:
        return "entries" if codec.params["length"] else "pair"

    def describe(self, codec: CodecSpec) -> dict[str, Any]:
        return {"sub_block": codec.params["length"]}

    def codec(self, row: Mapping[str, Any], tensor: int) -> CodecSpec:
        return CodecSpec("tabled", {"bits": self.bits, "length": _count(row, "sub_block", _U32), "id": tensor})


class Int4(_Integers):
    magic, flag, bits = b"INT4", "INT4", 4

    def head(self, spec: TensorSpec, codec: CodecSpec) -> bytes:
        return pack("<4sII", self.magic, spec.rows, spec.columns)


class Int2(_Integers):
    magic, flag, bits = b"INT2", "INT2", 2

    def head(self, spec: TensorSpec, codec: CodecSpec) -> bytes:
        return pack("<4sIII", self.magic, spec.rows, spec.columns, codec.integer("length"))


class Tca(Encoding):
    magic, codec_name, flag, part_alignment = b"TCAW", "lossless", "TCA_TBE", 8

    def carries(self, spec: TensorSpec, codec: CodecSpec) -> bool:
        if codec.name != "lossless" or spec.dtype not in WORDS or not _is_matrix(spec):
            return False
        stored, base = self._stored(spec, codec), codec.integer("base")
        return stored <= spec.size and codec.integer("escapes") <= stored and base <= WORDS[spec.dtype][3]

    def head(self, spec: TensorSpec, codec: CodecSpec) -> bytes:
        stored, params = self._stored(spec, codec), codec.params
        bitmap = self.parts(spec, codec)["bitmap"].nbytes if codec.integer("stored") >= 0 else 0
        width = WORDS[spec.dtype][0]
        return pack("<4sIIIQQQ", self.magic, spec.rows, width, params["base"], bitmap, stored, params["escapes"])

    def _stored(self, spec: TensorSpec, codec: CodecSpec) -> int:
        stored = codec.integer("stored")
        return spec.size if stored < 0 else stored

    def parts(self, spec: TensorSpec, codec: CodecSpec) -> Layout:
        count, (_, planes, low, _) = self._stored(spec, codec), WORDS[spec.dtype]
        bitmap = {"bitmap": TensorSpec((*spec.shape[:-1], -(-spec.columns // 64)), DType.U64)}
        return (bitmap if codec.integer("stored") >= 0 else {}) | {
            "planes": TensorSpec((-(-count // 64), planes), DType.U64),
            "low": TensorSpec((-(-count // 64), 64 * low), DType.U8),
            "starts": TensorSpec((-(-count // 4096),), DType.U32),
            "escapes": TensorSpec((codec.integer("escapes"),), DType.U8),
        }

    def describe(self, codec: CodecSpec) -> dict[str, Any]:
        return {key: codec.params[key] for key in ("base", "escapes", "stored")}

    def codec(self, row: Mapping[str, Any], tensor: int) -> CodecSpec:
        stored = -1 if row.get("stored") == -1 else _count(row, "stored")
        return CodecSpec("lossless", {"base": _count(row, "base"), "escapes": _count(row, "escapes"), "stored": stored})


class Astc(Encoding):
    magic, codec_name, flag = b"ASTW", "astc", "ASTC"

    def carries(self, spec: TensorSpec, codec: CodecSpec) -> bool:
        footprint = (codec.params.get("width"), codec.params.get("height"))
        return codec.name == "astc" and footprint in FOOTPRINTS and _is_matrix(spec) and spec.dtype is DType.F32

    def head(self, spec: TensorSpec, codec: CodecSpec) -> bytes:
        width, height = codec.integer("width"), codec.integer("height")
        code = FOOTPRINT_CODES.get((width, height), width << 8 | height)
        return pack("<4sIII", self.magic, spec.columns, spec.rows, code)

    def parts(self, spec: TensorSpec, codec: CodecSpec) -> Layout:
        width, height = codec.integer("width"), codec.integer("height")
        blocks = (-(-spec.rows // height), -(-spec.columns // width) * 16)
        return {"blocks": TensorSpec(blocks, DType.U8), "pair": TensorSpec((4,), DType.U32)}

    def table(self, codec: CodecSpec) -> str:
        return "pair"

    def describe(self, codec: CodecSpec) -> dict[str, Any]:
        return {"footprint": [codec.params["width"], codec.params["height"]]}

    def codec(self, row: Mapping[str, Any], tensor: int) -> CodecSpec:
        match row.get("footprint"):
            case [int(width), int(height)] if (width, height) in FOOTPRINTS:
                return CodecSpec("astc", {"width": width, "height": height, "id": tensor})
        raise MalformedError(f"{row.get('footprint')!r} is not an ASTC footprint", code="E_FOOTPRINT")


class Numbers(Encoding):
    magic, codec_name = b"NPCL", "raw"

    def carries(self, spec: TensorSpec, codec: CodecSpec) -> bool:
        return codec == RAW and spec.dtype in DTYPE_CODES and all(dim < _U32 for dim in spec.shape)

    def head(self, spec: TensorSpec, codec: CodecSpec) -> bytes:
        rank = len(spec.shape)
        return pack(f"<4sII{rank}I", self.magic, DTYPE_CODES.index(spec.dtype), rank, *spec.shape)

    def parts(self, spec: TensorSpec, codec: CodecSpec) -> Layout:
        return {"data": spec}


ENCODINGS: tuple[Encoding, ...] = (Int4(), Int2(), Tca(), Astc(), Numbers())

_PLAIN = Carried("raw", dtypes=DTYPE_CODES)
_BLOCKS = (_PLAIN, Carried("tabled", {"bits": (4, 2)}), Carried("lossless"), Carried("astc"))
CARRIED = (*_BLOCKS, Carried("masked", {"inner": _BLOCKS}))

BY_NAME = {encoding.name: encoding for encoding in ENCODINGS}


def encoding_of(codec: CodecSpec) -> Encoding | None:
    """How a codec without a mask is stored."""
    for encoding in ENCODINGS:
        if encoding.codec_name == codec.name and codec.params.get("bits") == getattr(encoding, "bits", None):
            return encoding
    return None


# Masks ----------------------------------------------------------------------------------------


def masked(inner: CodecSpec, block: int) -> CodecSpec:
    """A codec with a mask over it, as `codecs.masked` writes it."""
    return CodecSpec("masked", {"inner": inner, "block": block})


def unmasked(codec: CodecSpec) -> tuple[CodecSpec, int]:
    """The codec below a mask, and the weights a bit of the mask stands for; 0 if there is no mask."""
    if codec.name != "masked":
        return codec, 0
    match codec.params.get("inner"), codec.params.get("block"):
        case CodecSpec() as inner, int(block) if block > 0:
            return inner, block
    raise MalformedError(f"{codec} is not a mask around a codec", code="E_CODEC_PARAMS")


def mask_spec(spec: TensorSpec, block: int) -> TensorSpec:
    """A bit for every `block` weights of a row, rows padded to bytes."""
    bits = -(-spec.columns // block)
    return TensorSpec((*spec.shape[:-1], -(-bits // 8)), DType.U8)


def dropped(spec: TensorSpec, block: int, mask: bytes) -> float:
    """The share of its blocks that a mask drops. Bits behind the end of a row stand for none; the codec objects to them."""
    in_row = -(-spec.columns // max(block, 1))
    width = -(-in_row // 8)
    kept = int.from_bytes(mask, "little").bit_count()
    if spare := 8 * width - in_row:
        kept -= sum((tail >> 8 - spare).bit_count() for tail in mask[width - 1 :: width])
    return 1 - kept / max(spec.rows * in_row, 1)


def carried(spec: TensorSpec, codec: CodecSpec) -> bool:
    inner, block = unmasked(codec)
    encoding = encoding_of(inner)
    return encoding is not None and encoding.carries(spec, inner) and (not block or len(spec.shape) >= 2)


def arrange(spec: TensorSpec, codec: CodecSpec) -> Block:
    """A tensor's block. The codec must be one that is carried."""
    inner, block = unmasked(codec)
    encoding = encoding_of(inner)
    assert encoding is not None
    prefix = "inner." if block else ""
    head, table = encoding.head(spec, inner), encoding.table(inner)
    parts = {prefix + name: part for name, part in encoding.parts(spec, inner).items()}
    at, inside = len(head), dict[str, int]()
    for name in parts:
        if name != prefix + table:
            inside[name] = at = aligned(at, encoding.part_alignment)
            at += parts[name].nbytes
    if block:
        inside["mask"], parts["mask"] = at, mask_spec(spec, block)
        at += parts["mask"].nbytes
    return Block(head, parts, inside, at, prefix + table if table else "")


def _count(row: Mapping[str, Any], key: str, limit: int = 1 << 62) -> int:
    value = row.get(key)
    if type(value) is not int or not 0 <= value < limit:
        raise MalformedError(f"{key} must be a count, not {value!r}", code="E_DIRECTORY")
    return value
