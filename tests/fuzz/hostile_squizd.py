"""Hostile SQUIZD files: with a directory whose digests are right, without one, and with an appendix."""

from __future__ import annotations

import json
import stat
import struct
import zipfile
from collections.abc import Callable
from typing import Any

from support.fuzz_cases import Case
from support.squizd_files import (
    FLAG,
    NAME,
    archive,
    bare,
    directory_of,
    edited,
    int4,
    layered,
    member,
    model,
    npcl,
    patched,
    redigested,
    table,
    with_appendix,
)

INT4, ALL, ASTC, TCA, INT2 = (model(kind) for kind in ("int4", "everything", "astc", "tca", "int2"))
U16, U32, U64, F32 = (struct.Struct(f"<{letter}").pack for letter in "HIQf")
WEIGHTS, LENGTH, SCALES, RESERVED = 4, 12, 20, 28
"""Fields of a row of the index."""


def lone(raw: bytes, code: str) -> Case:
    return Case({NAME: raw}, code)


def header(at: int, new: bytes, code: str, raw: bytes = INT4) -> Case:
    """Bytes of the header or the index replaced, all checksums right."""
    return lone(redigested(patched(raw, at, new)), code)


def index(layer: int, field: int, value: int, code: str) -> Case:
    return header(256 + 32 * layer + field, U64(value) if WEIGHTS <= field < RESERVED else U32(value), code)


def directory(change: Callable[[dict[str, Any]], object] | bytes, code: str, raw: bytes = INT4) -> Case:
    return lone(edited(raw, change), code)


def tensor(code: str, raw: bytes = INT4, at: int = 0, **fields: Any) -> Case:
    """Fields of a tensor's row replaced; those of None removed."""

    def change(document: dict[str, Any]) -> None:
        row = document["tensors"][at]
        row |= fields
        for key in [key for key, value in fields.items() if value == "absent"]:
            del row[key]

    return directory(change, code, raw)


def file(code: str, at: int = 0, **fields: Any) -> Case:
    return directory(lambda document: document["files"][at].update(fields), code)


def swapped(first: int, second: int, *keys: str) -> Callable[[dict[str, Any]], None]:
    """What a row of `tensors` says is said of another too."""

    def change(document: dict[str, Any]) -> None:
        document["tensors"][second] |= {key: document["tensors"][first][key] for key in keys}

    return change


def text(change: Callable[[bytes], bytes], code: str) -> Case:
    document = directory_of(INT4)
    document["metadata"] = {}
    return directory(change(json.dumps(document, separators=(",", ":")).encode()), code)


def long(code: str, *, tensors: bytes = b"", files: bytes = b"", metadata: bytes = b"") -> Case:
    """A file of one empty layer with a directory of any length, its digest right."""

    def directory(at: int) -> bytes:
        tables = b'{"section":0,"offset":%10d,"length":8,"blake3":"%s"}' % (at, b"0" * 64)
        return b'{"tables":[%s],"tensors":[%s],"files":[%s],"metadata":{%s}}' % (tables, tensors, files, metadata)

    at = 256 + 32 + 16 + len(directory(0)) + 32
    at += -at % 64
    raw = struct.pack("<4sHIHHIQ", b"SQZD", 1, 0, 1, 0, 0, 0).ljust(256, b"\0") + struct.pack("<IQQQI", 0, at, 0, at, 0)
    raw += struct.pack("<4sIQ", b"SQDX", 1, len(directory(at))) + directory(at)
    return lone(redigested((raw + bytes(32)).ljust(at, b"\0") + table()), code)


def place(raw: bytes, name: str, key: str = "offset") -> int:
    found: int = next(row[key] for row in directory_of(raw)["tensors"] if row["name"] == name)
    return found


# Without a directory
PAIR, GOOD = table((7, 0.5, 0.0)), int4(4, 8)
SPARSE_META = struct.pack("<IIIf16x", 1, 8, 1, 0.0)


def walked(blocks: bytes, scales: bytes, code: str, **more: Any) -> Case:
    return lone(bare((blocks, scales), **more), code)


def astw(width: int, height: int, footprint: int) -> bytes:
    return struct.pack("<4sIII", b"ASTW", width, height, footprint) + bytes(16)


def tcaw(rows: int, width: int, bitmap: int, stored: int, escapes: int, data: bytes = b"") -> bytes:
    return struct.pack("<4sIIIQQQ", b"TCAW", rows, width, 100, bitmap, stored, escapes) + data


def nested_tables(layers: int, entries: int) -> bytes:
    """A table in which each entry is itself the head of a table: every layer begins one, to be read to the end each time."""
    scales = b"".join(struct.pack("<4sI8x", b"SCZT", entries - k - 1) for k in range(entries))
    start = 256 + 32 * layers
    rows = {k: (k, start, 0, start + 16 * k) for k in range(layers)}
    return bare(*[(b"", b"")] * layers, index=rows, tail=scales)


# Appendices
SOUND = archive(member("Manifest.json", b"{}"))


def appendix(zipped: bytes, code: str, **more: Any) -> Case:
    return lone(with_appendix(ALL, zipped, **more), code)


def called(name: str, mode: int = stat.S_IFREG | 0o644) -> Case:
    return appendix(archive(member(name, mode=mode)), "E_ZIP_LINK" if stat.S_ISLNK(mode) else "E_ZIP_PATH")


def central(zipped: bytes, at: int, new: bytes) -> bytes:
    """A field of the first row of the central table replaced."""
    return patched(zipped, zipped.index(b"PK\x01\x02") + at, new)


def end(zipped: bytes, at: int, new: bytes) -> bytes:
    return patched(zipped, len(zipped) - 22 + at, new)


def many(count: int, announced: int | None = None) -> bytes:
    """A table of empty members, all of them one."""
    local = struct.pack("<4s5H3I2H", b"PK\x03\x04", 20, 0, 0, 0, 0, 0, 0, 0, 1, 0) + b"a"
    row = struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    total = (count if announced is None else announced) & 0xFFFF
    return local + row * count + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, total, total, len(row) * count, len(local), 0)


def overlapping() -> bytes:
    zipped = archive(member("a", bytes(100)), member("b", bytes(100)))
    second = zipped.index(b"PK\x01\x02", zipped.index(b"PK\x01\x02") + 1)
    return patched(zipped, second + 42, U32(0))


BOMB = archive(member("a", bytes(3 << 20), deflated=True))
SMALL_BOMBS = archive(*(member(f"{k}", bytes((1 << 20) - 1), deflated=True) for k in range(8)))

HOSTILE: dict[str, Case] = {
    # the header
    "magic only": lone(b"SQZD", "E_TRUNCATED"),
    "empty, by its name alone": lone(b"", "E_TRUNCATED"),
    "another magic in a file of this name": lone(b"SQZE" + INT4[4:], "E_MAGIC"),
    "header cut": lone(INT4[:255], "E_TRUNCATED"),
    "version 0": header(4, U16(0), "E_VERSION"),
    "version 2": header(4, U16(2), "E_VERSION"),
    "version 65535": header(4, U16(65535), "E_VERSION"),
    "flag bit 7": header(6, U32(FLAG["INT4"] | 1 << 7), "E_FLAGS"),
    "flag bit 31": header(6, U32(FLAG["INT4"] | 1 << 31), "E_FLAGS"),
    "two primary encodings": header(6, U32(FLAG["INT4"] | FLAG["ASTC"]), "E_PRIMARY"),
    "all primary encodings": header(6, U32(0x27), "E_PRIMARY"),
    "no layers": lone(patched(INT4, 10, U16(0)), "E_LAYER_COUNT"),
    "65,535 layers in a file of 320 bytes": lone(patched(INT4, 10, U16(65535))[:320], "E_TRUNCATED"),
    "65,535 layers in a short file": lone(patched(INT4, 10, U16(65535)), "E_TRUNCATED"),
    "one layer less than there are": lone(patched(INT4, 10, U16(1)), "E_DIRECTORY"),
    "SPARSE with a checksum of 0": lone(patched(ALL, 14, U32(0)), "E_SPARSITY_CRC"),
    "SPARSE with another checksum": lone(patched(ALL, 14, U32(0x190A55AD)), "E_SPARSITY_CRC"),
    "sparsity version 2": header(128, U32(2), "E_SPARSITY", ALL),
    "mask bits that stand for no weights": header(132, U32(0), "E_SPARSITY", ALL),
    "mask bits that stand for 2^32-1 weights": header(132, U32(2**32 - 1), "E_CODEC_PARAMS", ALL),
    "mask bits that stand for one weight": header(132, U32(1), "E_SIZE", ALL),
    "more sparse layers than layers": header(136, U32(3), "E_SPARSITY", ALL),
    "mean sparsity NaN": header(140, F32(float("nan")), "E_SPARSITY", ALL),
    "mean sparsity infinite": header(140, F32(float("inf")), "E_SPARSITY", ALL),
    "mean sparsity -1": header(140, F32(-1.0), "E_SPARSITY", ALL),
    "EAGLE with a hash of 0": lone(patched(ALL, 18, U64(0)), "E_EAGLE_HASH"),
    "EAGLE set and nothing there": header(6, U32(FLAG["INT4"] | FLAG["EAGLE"]), "E_EAGLE"),
    "SPARSE set and nothing there": header(6, U32(FLAG["INT4"] | FLAG["SPARSE"]), "E_SPARSITY"),
    "ANE_COREML set and nothing there": header(6, U32(FLAG["INT4"] | FLAG["ANE_COREML"]), "E_APPENDIX"),
    "draft head past the end": header(160, U64(2**40), "E_LAYER_EXTENT", ALL),
    "draft head at 2^64-1": header(160, U64(2**64 - 1), "E_LAYER_EXTENT", ALL),
    "draft head inside the header": header(160, U64(64), "E_LAYER_EXTENT", ALL),
    "draft head of 2^64-1 bytes": header(168, U64(2**64 - 1), "E_EAGLE", ALL),
    "draft head of no bytes": header(168, U64(0), "E_LAYER_EXTENT", ALL),
    "draft head of 2^32-1 layers": header(176, U32(2**32 - 1), "E_EAGLE", ALL),
    # the index
    "layers descending": index(0, 0, 2, "E_LAYER_ORDER"),
    "layer twice": index(1, 0, 0, "E_LAYER_ORDER"),
    "weights inside the header": index(0, WEIGHTS, 64, "E_LAYER_EXTENT"),
    "weights inside the index": index(0, WEIGHTS, 256, "E_LAYER_EXTENT"),
    "weights that wrap around": index(0, LENGTH, 2**64 - 512, "E_LAYER_EXTENT"),
    "weights past the end": index(1, WEIGHTS, 2**40, "E_LAYER_EXTENT"),
    "weights over everything": index(0, LENGTH, len(INT4) - place(INT4, "model.layers.0.up.weight"), "E_OVERLAP"),
    "weights shorter than their tensors": index(0, LENGTH, 32, "E_LAYER_EXTENT"),
    "scales inside the header": index(0, SCALES, 0, "E_LAYER_EXTENT"),
    "scales at 2^64-1": index(0, SCALES, 2**64 - 1, "E_LAYER_EXTENT"),
    "scales elsewhere than the directory says": index(0, SCALES, place(INT4, "model.embed.weight"), "E_SCALES"),
    # the directory's frame
    "directory cut": lone(INT4[:400], "E_LAYER_EXTENT"),
    "directory of another magic": lone(patched(INT4, 320, b"SQDY"), "E_DIRECTORY"),
    "directory of version 2": header(324, U32(2), "E_VERSION"),
    "directory of 2^64-1 bytes": lone(patched(INT4, 328, U64(2**64 - 1)), "E_HEADER_SIZE"),
    "directory of 99 MB in a short file": lone(patched(INT4, 328, U64(99_000_000)), "E_TRUNCATED"),
    "directory one byte shorter": lone(
        patched(INT4, 328, U64(int.from_bytes(INT4[328:336], "little") - 1)), "E_DIRECTORY_DIGEST"
    ),
    "directory of no bytes": lone(patched(INT4, 328, U64(0)), "E_DIRECTORY_DIGEST"),
    "digest of the directory wrong": lone(patched(INT4, 400, b"!"), "E_DIRECTORY_DIGEST"),
    # the directory's text
    "directory is no JSON": directory(b"SQUIZD", "E_JSON"),
    "directory is a list": directory(b"[]", "E_DIRECTORY"),
    "directory without tables": directory(lambda d: d.pop("tables"), "E_DIRECTORY"),
    "directory not UTF-8": directory(b'{"\xff":1}', "E_UTF8"),
    "key twice": text(lambda t: t[:-1] + b',"tables":[]}', "E_JSON_DUPLICATE"),
    "key twice in a row": text(lambda t: t.replace(b'"layer":0', b'"layer":0,"layer":0', 1), "E_JSON_DUPLICATE"),
    "NaN for an offset": text(lambda t: t.replace(b'"offset":', b'"offset":NaN,"x":', 1), "E_JSON"),
    "1e999 for an offset": text(lambda t: t.replace(b'"offset":', b'"offset":1e999,"x":', 1), "E_JSON"),
    "integer of 3,000 digits": text(lambda t: t.replace(b'"sub_block":8', b'"sub_block":' + b"9" * 900, 1), "E_DIRECTORY"),
    "nested a thousand deep": directory(b"[" * 500 + b"]" * 500, "E_JSON_DEPTH"),
    "lone surrogate in a name": text(lambda t: t.replace(b"norm", b"\\ud800", 1), "E_UTF8"),
    "tensors are an object": directory(lambda d: d.update(tensors={}), "E_DIRECTORY"),
    "tables are null": directory(lambda d: d.update(tables=None), "E_DIRECTORY"),
    "files are text": directory(lambda d: d.update(files="x"), "E_DIRECTORY"),
    "metadata is a list": directory(lambda d: d.update(metadata=[]), "E_METADATA"),
    "metadata of numbers": directory(lambda d: d.update(metadata={"a": 1}), "E_METADATA"),
    "typed metadata that is no list": directory(lambda d: d.update(metadata={"flyweight.metadata": "{}"}), "E_METADATA"),
    "row is a number": directory(lambda d: d["tensors"].append(7), "E_DIRECTORY"),
    "300,000 rows that are no tensors": long("E_DIRECTORY", tensors=b"0," * 299_999 + b"0"),
    "300,000 files without a name": long("E_FILE_NAME", files=b"0," * 299_999 + b"0"),
    "a million and one rows": long("E_DIRECTORY", tensors=b"0," * 1_000_000 + b"0"),
    "100,001 keys of metadata": long("E_LIMIT", metadata=b",".join(b'"%d":""' % k for k in range(100_001))),
    "row without a shape": tensor("E_DIRECTORY", shape="absent"),
    # tensors
    "name with NUL": tensor("E_NAME", at=6, name="a\0b"),
    "empty name": tensor("E_NAME", at=6, name=""),
    "name of 1,100 bytes": tensor("E_NAME", at=6, name="n" * 1100),
    "name is a number": tensor("E_DIRECTORY", name=7),
    "tensor twice": directory(lambda d: d["tensors"].append(d["tensors"][0]), "E_DUPLICATE"),
    "layer another than the name says": tensor("E_LAYER", layer=1),
    "layer true": tensor("E_LAYER", at=3, layer=True),
    "layer null in a layer": tensor("E_LAYER", layer=None),
    "layer that is not in the index": tensor("E_LAYER", name="model.layers.7.up.weight", layer=7),
    "tensor in the section of another layer": directory(swapped(3, 0, "offset", "blake3"), "E_LAYER_EXTENT"),
    "shape negative": tensor("E_SHAPE", shape=[-2, 16]),
    "shape of floats": tensor("E_SHAPE", shape=[2.0, 16]),
    "shape of text": tensor("E_SHAPE", shape="2"),
    "shape of rank 9": tensor("E_RANK", shape=[1] * 9),
    "shape that wraps": tensor("E_SHAPE", shape=[4194305, 4194305, 211106198978564]),
    "shape of 2^62": tensor("E_SHAPE", shape=[1, 2**62]),
    "shape of 2^58": tensor("E_SPEC", shape=[1, 2**58]),
    "shape larger than the block": tensor("E_SIZE", shape=[4, 16]),
    "shape of the same bytes in another form": tensor("E_SCALES", shape=[32, 1]),
    "vector as INT4": tensor("E_SPEC", shape=[32]),
    "unknown element type": tensor("E_DTYPE", dtype="x9"),
    "INT4 of f16": tensor("E_SPEC", dtype="f16"),
    "unknown encoding": tensor("E_ENCODING", encoding="INT3"),
    "ASTW in a file of INT4": tensor("E_ENCODING", encoding="ASTW", footprint=[4, 4]),
    "INT2 in a file of INT4": tensor("E_ENCODING", encoding="INT2"),
    "plain tensor of a wrong size": tensor("E_SIZE", encoding="NPCL"),
    "sub-block length missing": tensor("E_DIRECTORY", sub_block="absent"),
    "sub-block length -1": tensor("E_DIRECTORY", sub_block=-1),
    "sub-block length 1.5": tensor("E_DIRECTORY", sub_block=1.5),
    "sub-block length 2^32": tensor("E_DIRECTORY", sub_block=2**32),
    "sub-block length 2^32 in INT2": tensor("E_DIRECTORY", INT2, sub_block=2**32),
    "sub-block length 0 where there are entries": tensor("E_SCALES", sub_block=0, scale_offset=0),
    "sub-blocks of one weight": tensor("E_SCALES", sub_block=1),
    "footprint 7x7": tensor("E_FOOTPRINT", ASTC, footprint=[7, 7]),
    "footprint 0x0": tensor("E_FOOTPRINT", ASTC, footprint=[0, 0]),
    "footprint of text": tensor("E_FOOTPRINT", ASTC, footprint="6x6"),
    "texture of 2^32 x 2^32": tensor("E_SHAPE", ASTC, shape=[2**32, 2**32]),
    "texture of 2^29 x 2^29": tensor("E_SIZE", ASTC, shape=[2**29, 2**29]),
    "texture wider than 2^32": tensor("E_SPEC", ASTC, shape=[1, 2**32]),
    "more escapes than the file has bytes": tensor("E_SPEC", TCA, escapes=2**61),
    "more words stored than there are": tensor("E_SPEC", TCA, stored=2**61),
    "one word more than there are": tensor("E_SPEC", TCA, at=1, stored=16),
    "first exponent 2^40": tensor("E_SPEC", TCA, base=2**40),
    "first exponent 250": tensor("E_SPEC", TCA, base=250),
    "escapes missing": tensor("E_DIRECTORY", TCA, escapes="absent"),
    "stored -2": tensor("E_DIRECTORY", TCA, stored=-2),
    "mask though SPARSE is unset": tensor("E_MASK", mask_offset=0, mask_length=0),
    "mask elsewhere": tensor("E_MASK", ALL, mask_offset=0),
    "mask longer than it is": tensor("E_MASK", ALL, mask_length=3),
    "mask at a float": tensor("E_MASK", ALL, mask_offset=float(place(ALL, "model.layers.0.up.weight", "mask_offset"))),
    "mask on a vector": tensor("E_SPEC", ALL, at=2, mask_offset=0, mask_length=1),
    "block inside the directory": tensor("E_OFFSETS", at=6, offset=320),
    "block at a negative offset": tensor("E_OFFSETS", at=6, offset=-64),
    "block at true": tensor("E_DIRECTORY", at=6, offset=True),
    "block at a float": tensor("E_DIRECTORY", at=6, offset=4096.0),
    "block not aligned": tensor("E_ALIGNMENT", at=6, offset=place(INT4, "model.embed.weight") + 4),
    "block past the end": tensor("E_PAST_END", at=6, offset=2**40),
    "block at 2^64": tensor("E_PAST_END", at=6, offset=2**64),
    "block of a negative length": tensor("E_OFFSETS", at=6, length=-1),
    "block of 2^63 bytes": tensor("E_PAST_END", at=6, length=2**63),
    "two tensors on one block": directory(swapped(0, 1, "offset", "length", "blake3", "shape", "sub_block"), "E_OVERLAP"),
    "two plain tensors on one block": directory(
        lambda d: d["tensors"].append(d["tensors"][2] | {"name": "model.layers.0.copy.weight"}), "E_OVERLAP"
    ),
    "two tensors with the same scales": directory(
        lambda d: d["tensors"].append(d["tensors"][0] | {"name": "model.layers.0.copy.weight"}), "E_OVERLAP"
    ),
    "a tensor left out": directory(lambda d: d["tensors"].pop(2), "E_HOLE"),
    "a file left out": directory(lambda d: d["files"].pop(), "E_TRAILING"),
    "trailing archive": lone(INT4 + SOUND, "E_TRAILING"),
    "one byte more": lone(INT4 + b"\0", "E_TRAILING"),
    "last byte missing": lone(INT4[:-1], "E_PAST_END"),
    "digest in capitals": tensor("E_DIRECTORY", blake3="A" * 64),
    "digest too short": tensor("E_DIRECTORY", blake3="a" * 63),
    "digest with a line feed": tensor("E_DIRECTORY", blake3="a" * 64 + "\n"),
    "digest a number": tensor("E_DIRECTORY", blake3=0),
    "draft tensor though EAGLE is unset": tensor("E_EAGLE", at=6, name="draft.embed.weight"),
    "draft head without tensors": directory(
        lambda d: d.update(tensors=[row for row in d["tensors"] if not row["name"].startswith("draft.")]), "E_EAGLE", ALL
    ),
    "draft head encoded as TCAW": tensor("E_ENCODING", ALL, at=7, encoding="TCAW"),
    # tables and files
    "scales in the header": tensor("E_SCALES", scale_offset=0),
    "scales at text": tensor("E_SCALES", scale_offset="0"),
    "scales at 2^64": tensor("E_SCALES", scale_offset=2**64),
    "scales between two entries": tensor(
        "E_SCALES", scale_offset=place(INT4, "model.layers.0.up.weight", "scale_offset") + 8
    ),
    "scales in the table of another layer": directory(swapped(3, 0, "scale_offset"), "E_SCALES"),
    "scales past the end of their table": tensor(
        "E_SCALES", scale_offset=place(INT4, "model.layers.0.up.weight", "scale_offset") + 16
    ),
    "table of no layer": directory(lambda d: d["tables"].pop(), "E_SCALES"),
    "table of a layer missing": directory(lambda d: d["tables"].pop(0), "E_SCALES"),
    "table twice": directory(lambda d: d["tables"].append(d["tables"][0]), "E_DUPLICATE"),
    "table of an unknown section": directory(lambda d: d["tables"][0].update(section="x"), "E_DIRECTORY"),
    "table of a list": directory(lambda d: d["tables"][0].update(section=[0]), "E_DIRECTORY"),
    "table of true": directory(lambda d: d["tables"][0].update(section=False), "E_DIRECTORY"),
    "table of four bytes": directory(lambda d: d["tables"][0].update(length=4), "E_SCALES"),
    "table over the next": directory(lambda d: d["tables"][0].update(length=d["tables"][0]["length"] + 64), "E_OVERLAP"),
    "file called ..": file("E_FILE_NAME", name=".."),
    "file climbing": file("E_FILE_NAME", name="../../.ssh/authorized_keys"),
    "file absolute": file("E_FILE_NAME", name="/etc/passwd"),
    "file below a directory": file("E_FILE_NAME", name="a/config.json"),
    "file with a backslash": file("E_FILE_NAME", name="a\\b"),
    "file on a drive": file("E_FILE_NAME", name="C:x"),
    "file with NUL": file("E_FILE_NAME", name="config.json\0.txt"),
    "file with a line feed": file("E_FILE_NAME", name="config.json\n"),
    "hidden file": file("E_FILE_NAME", name=".bashrc"),
    "file without a name": file("E_FILE_NAME", name=""),
    "file called 7": file("E_FILE_NAME", name=7),
    "file name of 200 bytes": file("E_FILE_NAME", name="n" * 200),
    "files that differ in case": file("E_DUPLICATE", at=1, name="CONFIG.json"),
    "file past the end": file("E_PAST_END", length=2**63),
    "file not aligned": file("E_ALIGNMENT", offset=directory_of(INT4)["files"][0]["offset"] + 1),
    "appendix though ANE_COREML is unset": file("E_APPENDIX", name="model.mlpackage.zip"),
    # without a directory
    "bare: a block of unknown magic": walked(b"INT8" + bytes(60), PAIR, "E_BLOCK_MAGIC"),
    "bare: nothing but zeros": walked(bytes(64), PAIR, "E_BLOCK_MAGIC"),
    "bare: head cut": walked(GOOD[:8], PAIR, "E_TRUNCATED"),
    "bare: magic cut": walked(b"IN", PAIR, "E_TRUNCATED"),
    "bare: block longer than its layer": walked(int4(4, 64, bytes(16)), PAIR, "E_PAST_END"),
    "bare: 2^32-1 rows and columns": walked(int4(2**32 - 1, 2**32 - 1, b""), PAIR, "E_SHAPE"),
    "bare: 2^31 rows and columns": walked(int4(2**31, 2**31, b""), PAIR, "E_SHAPE"),
    "bare: 2^29 rows and columns": walked(int4(2**29, 2**29, b""), PAIR, "E_PAST_END"),
    "bare: 2^32-1 dimensions": walked(npcl([1], bytes(4), rank=2**32 - 1), table(), "E_BLOCK_HEAD"),
    "bare: 9 dimensions": walked(npcl([1] * 9, bytes(4)), table(), "E_BLOCK_HEAD"),
    "bare: dimensions that wrap": walked(npcl([2**31, 2**31, 2**31], b""), table(), "E_SHAPE"),
    "bare: unknown element type": walked(npcl([1], bytes(4), code=7), table(), "E_BLOCK_HEAD"),
    "bare: plain block past its layer": walked(npcl([64], bytes(4)), table(), "E_PAST_END"),
    "bare: second block of nothing": walked(layered(GOOD, b"????"), PAIR, "E_BLOCK_MAGIC"),
    "bare: footprint 0x0707": walked(astw(8, 8, 0x0707), PAIR, "E_SPEC", flags=FLAG["ASTC"]),
    "bare: footprint 0": walked(astw(8, 8, 0), PAIR, "E_SPEC", flags=FLAG["ASTC"]),
    "bare: footprint 2^32-1": walked(astw(8, 8, 2**32 - 1), PAIR, "E_SPEC", flags=FLAG["ASTC"]),
    "bare: texture of 2^32-1 x 2^32-1": walked(astw(2**32 - 1, 2**32 - 1, 4), PAIR, "E_SHAPE", flags=FLAG["ASTC"]),
    "bare: texture of 65536 x 65536": walked(astw(65536, 65536, 4), PAIR, "E_PAST_END", flags=FLAG["ASTC"]),
    "bare: words of 17 bits": walked(tcaw(4, 17, 0, 0, 0), table(), "E_BLOCK_HEAD", flags=FLAG["TCA_TBE"]),
    "bare: bitmap of 2^64-1 bytes": walked(tcaw(4, 16, 2**64 - 1, 0, 0), table(), "E_BLOCK_HEAD", flags=FLAG["TCA_TBE"]),
    "bare: 2^63 escapes": walked(tcaw(4, 16, 0, 0, 2**63), table(), "E_BLOCK_HEAD", flags=FLAG["TCA_TBE"]),
    "bare: words past the layer": walked(tcaw(4, 16, 8, 512, 0), table(), "E_PAST_END", flags=FLAG["TCA_TBE"]),
    "bare: no table of scales": walked(GOOD, b"SCZU" + bytes(20), "E_SCALES"),
    "bare: table of 2^32-1 entries": walked(GOOD, table(count=2**32 - 1), "E_TRUNCATED"),
    "bare: table of one entry more": walked(GOOD, table((7, 0.5, 0.0), count=2), "E_TRUNCATED"),
    "bare: no pair": walked(GOOD, table(), "E_SCALES"),
    "bare: two pairs for one tensor": walked(GOOD, table((7, 0.5, 0.0), (8, 0.5, 0.0)), "E_SCALES"),
    "bare: its pair twice": walked(GOOD, table((7, 0.5, 0.0), (7, 0.5, 0.0)), "E_SCALES"),
    "bare: one pair for two tensors": walked(layered(GOOD, GOOD), PAIR, "E_SCALES"),
    "bare: two tensors of one id": walked(layered(GOOD, GOOD), table((7, 0.5, 0.0), (7, 0.5, 0.0)), "E_SCALES"),
    "bare: a pair for a plain tensor": walked(npcl([1], bytes(4)), PAIR, "E_SCALES"),
    "bare: pair with the id of a sub-block": walked(GOOD, table((1 << 63 | 7, 0.5, 0.0)), "E_TENSOR_ID"),
    "bare: sub-blocks that do not cut rows": walked(GOOD, PAIR + table(*[(1 << 63 | 7, 0.5, 0.0)] * 5), "E_SCALES"),
    "bare: more sub-blocks than columns": walked(GOOD, PAIR + table(*[(1 << 63 | 7, 0.5, 0.0)] * 64), "E_SCALES"),
    "bare: sub-blocks of nobody": walked(GOOD, PAIR + table((1 << 63 | 9, 0.5, 0.0)), "E_SCALES"),
    "bare: sub-blocks of one tensor in two runs": walked(
        layered(GOOD, GOOD),
        table((7, 0.5, 0.0), (8, 0.5, 0.0)) + table(*[(1 << 63 | k, 0.5, 0.0) for k in (7, 7, 8, 8, 7, 7)]),
        "E_SCALES",
    ),
    "bare: layers on the same blocks": lone(
        bare((GOOD, PAIR), (GOOD, PAIR), index={1: (1, 320, len(GOOD), 512)}), "E_OVERLAP"
    ),
    "bare: layers with one table": lone(bare((GOOD, PAIR), (GOOD, PAIR), index={1: (1, 384, len(GOOD), 448)}), "E_OVERLAP"),
    "bare: weights over their scales": lone(bare((GOOD, PAIR), index={0: (0, 320, 70, 384)}), "E_BLOCK_MAGIC"),
    "bare: 4,000 tables in one another": lone(nested_tables(4000, 40_000), "E_TRUNCATED"),
    "bare: EAGLE without a hash": walked(
        GOOD, PAIR, "E_EAGLE_HASH", flags=FLAG["INT4"] | FLAG["EAGLE"], header=bytes(32) + struct.pack("<QQII", 64, 64, 1, 0)
    ),
    "bare: SPARSE without a checksum": walked(
        GOOD, PAIR, "E_SPARSITY_CRC", flags=FLAG["INT4"] | FLAG["SPARSE"], header=SPARSE_META
    ),
    "bare: ANE_COREML and no appendix": walked(GOOD, PAIR, "E_APPENDIX", flags=FLAG["INT4"] | FLAG["ANE_COREML"]),
    "bare: appendix of 2^63 bytes": walked(
        GOOD, PAIR + bytes(40), "E_APPENDIX", flags=FLAG["INT4"] | FLAG["ANE_COREML"],
        tail=b"ANLX" + U64(2**63) + SOUND,
    ),
    # the appendix
    "appendix of 2^63 bytes": appendix(SOUND, "E_APPENDIX", length=2**63),
    "appendix one byte short": appendix(SOUND, "E_APPENDIX", length=len(SOUND) - 1),
    "appendix of another magic": appendix(SOUND, "E_APPENDIX", magic=b"ANLY"),
    "appendix of nothing": appendix(b"", "E_ZIP"),
    "appendix that is no archive": appendix(bytes(100), "E_ZIP"),
    "archive cut": appendix(SOUND[:-1], "E_ZIP"),
    "archive with bytes behind it": appendix(SOUND + b"\0", "E_ZIP"),
    "archive with a comment": appendix(end(SOUND, 20, U16(4)) + b"hide", "E_ZIP"),
    "archive that claims a comment": appendix(end(SOUND, 20, U16(4)), "E_ZIP"),
    "member climbing": called("../../etc/passwd"),
    "member climbing inside": called("a/../../b"),
    "member absolute": called("/etc/passwd"),
    "member with backslashes": called("a\\..\\b"),
    "member on a drive": called("C:/x"),
    "member called .": called("./a"),
    "member with an empty step": called("a//b"),
    "member of a long name": called("a" * 1100),
    "link": called("a", stat.S_IFLNK | 0o777),
    "device": appendix(archive(member("a", mode=stat.S_IFCHR | 0o644)), "E_ZIP_LINK"),
    "two members that differ in case": appendix(archive(member("a"), member("A")), "E_ZIP_PATH"),
    "two members that are one when composed": appendix(archive(member("e\u0301"), member("\xe9")), "E_ZIP_PATH"),
    "member that is also a directory": appendix(archive(member("a/b"), member("a-b"), member("a")), "E_ZIP_PATH"),
    "member encrypted": appendix(central(SOUND, 8, U16(1)), "E_ZIP_METHOD"),
    "member of a method nobody has": appendix(central(SOUND, 10, U16(99)), "E_ZIP_METHOD"),
    "member of LZMA": appendix(central(SOUND, 10, U16(zipfile.ZIP_LZMA)), "E_ZIP_METHOD"),
    "stored member of two sizes": appendix(central(SOUND, 24, U32(1000)), "E_ZIP"),
    "member of 2^32-1 bytes in three": appendix(central(SOUND, 24, U32(2**32 - 1)), "E_ZIP_BOMB"),
    "bomb": appendix(BOMB, "E_ZIP_BOMB"),
    "eight small bombs": appendix(SMALL_BOMBS, "E_ZIP_BOMB"),
    "members that overlap": appendix(overlapping(), "E_ZIP_OVERLAP"),
    "member that runs into the table": appendix(central(central(SOUND, 20, U32(500)), 24, U32(500)), "E_ZIP_OVERLAP"),
    "member beyond the archive": appendix(central(SOUND, 42, U32(2**31)), "E_ZIP_OVERLAP"),
    "table beyond the archive": appendix(end(SOUND, 12, U32(2**31)), "E_ZIP"),
    "table at 2^32-1": appendix(end(SOUND, 16, U32(2**32 - 1)), "E_ZIP_OVERLAP"),
    "60,000 members": appendix(many(60_000), "E_ZIP_MEMBERS"),
    "200,000 members announced as one": appendix(many(200_000, 1), "E_ZIP_MEMBERS"),
    "65,535 members announced in 120 bytes": appendix(end(end(SOUND, 8, U16(65535)), 10, U16(65535)), "E_ZIP_MEMBERS"),
    "one member announced as none": appendix(end(end(SOUND, 8, U16(0)), 10, U16(0)), "E_ZIP_MEMBERS"),
    "zip64 locator": appendix(SOUND[:-22] + b"PK\x06\x07" + U32(0) + U64(2**63) + U32(1) + SOUND[-22:], "E_ZIP"),
    "many members of one name": appendix(many(2), "E_ZIP_PATH"),
}  # fmt: skip
