"""SQUIZD files for tests: models of every kind made by the container, files without a directory made byte by byte, and
ways to break either while every digest stays right."""

from __future__ import annotations

import io
import json
import stat
import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any
from zlib import crc32

import numpy as np
from blake3 import blake3

from flyweight.codecs import codec_for
from flyweight.containers.squizd import blocks
from flyweight.containers.squizd.squizd_file import Squizd
from flyweight.containers.squizd.squizd_header import fnv1a64
from flyweight.foundation.dtypes import DType
from flyweight.foundation.manifest import Entry, Manifest, Typed
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.sources import MemoryBundle
from support.materialise import materialise

__all__ = [
    "FLAG", "KINDS", "NAME", "archive", "bare", "bundle", "directory_of", "edited", "entry", "int4", "layered", "manifest",
    "member", "model", "npcl", "patched", "payload", "redigested", "resealed", "table", "tabled", "with_appendix", "written",
]  # fmt: skip

NAME = "model.squizd"
FLAG = {name: 1 << bit for bit, name in enumerate(("ASTC", "TCA_TBE", "INT4", "SPARSE", "EAGLE", "INT2", "ANE_COREML"))}
KINDS: dict[str, dict[str, Any]] = {
    "everything": {"primary": "INT4", "sparse": True, "eagle": True, "coreml": True},
    "int4": {"primary": "INT4"},
    "int2": {"primary": "INT2"},
    "tca": {"primary": "TCA_TBE"},
    "astc": {"primary": "ASTC", "sparse": True},
    "plain": {"primary": ""},
}
_ROOM = 1024  # bytes of metadata that make room for a directory that grows

# Files with a directory -----------------------------------------------------------------------


def tabled(bits: int, length: int) -> CodecSpec:
    return CodecSpec("tabled", {"bits": bits, "length": length, "id": 0})


def entry(name: str, shape: tuple[int, ...], codec: CodecSpec = RAW, dtype: DType = DType.F32) -> Entry:
    codec, spec = Squizd().adapt(codec, name), TensorSpec(shape, dtype)
    return Entry(name, spec, codec, blocks.arrange(spec, codec).parts)


_CODECS: dict[str, Callable[[str], CodecSpec]] = {
    "INT4": lambda name: tabled(4, 0 if name == "odd" else 8),
    "INT2": lambda name: tabled(2, 8) if name == "up" else tabled(4, 8),
    "ASTC": lambda name: CodecSpec("astc", {"width": 6, "height": 6, "id": 0}),
    "TCA_TBE": lambda name: CodecSpec("lossless", {"base": 127, "escapes": 0, "stored": -1 if name == "up" else 3}),
    "": lambda name: RAW,
}


def manifest(
    primary: str = "INT4", *, sparse: bool = False, eagle: bool = False, coreml: bool = False, layers: int = 2
) -> Manifest:
    """Layers of three tensors and one of no layer: small, with every kind of section the flags call for."""
    entries = []
    for layer in range(layers):
        for name, shape in (("up", (2, 16)), ("odd", (3, 5))):
            codec = _CODECS[primary](name)
            if sparse and name == "up":
                codec = blocks.masked(codec, 8)
            entries.append(entry(f"model.layers.{layer}.{name}.weight", shape, codec))
        entries.append(entry(f"model.layers.{layer}.norm.weight", (5,), dtype=DType.BF16))
    entries.append(entry("model.embed.weight", (4, 8), tabled(4, 4) if primary == "INT4" else RAW))
    if eagle:
        entries += [
            entry("draft.fc.weight", (2, 6), tabled(4, 4)),
            entry("draft.layers.0.x.weight", (2, 2)),
            entry("draft.d2t", (3,), dtype=DType.I64),
        ]
    files: dict[str, bytes] = {"config.json": b'{"model_type":"llama"}', "tokenizer.json": b"{}"}
    if coreml:
        files["model.mlpackage.zip"] = archive(member("Manifest.json", b"{}"), member("Data/weight.bin", bytes(500)))
    metadata = {"room": Typed("str", "." * _ROOM)}
    return Manifest("squizd", {one.name: one for one in entries}, metadata, files, "hf")


def payload(one: Entry, part: str) -> bytes:
    """Content that every codec takes: entries with the right ids and finite scales, masks and codes without stray bits."""
    nbytes, (inner, block) = one.parts[part].nbytes, blocks.unmasked(one.codec)
    if part.endswith("entries"):
        return struct.pack("<Qff", int(inner.params["id"]) | 1 << 63, 0.5, 0.25) * (nbytes // 16)
    if part.endswith("pair"):
        return struct.pack("<Qff", int(inner.params["id"]), 0.5, 0.25)
    if part == "mask":
        return bytes([(1 << -(-one.spec.columns // block)) - 1]) * nbytes  # nothing dropped; rows here take one byte
    if part.endswith("codes") and one.spec.size % 2:
        return bytes(range(1, nbytes)) + b"\x01"
    if part == "data" and one.spec.dtype.is_float:
        return np.arange(1, one.spec.size + 1).astype(one.spec.dtype.numpy).tobytes()
    if inner.name == "lossless":
        values, stored = np.arange(1, one.spec.size + 1), int(inner.params["stored"])
        values[stored if stored >= 0 else one.spec.size :] = 0
        array = values.reshape(one.spec.shape).astype(one.spec.dtype.numpy)
        return codec_for(inner).encode(one.spec, array)[part.removeprefix("inner.")].tobytes()
    if inner.name == "astc":
        return (b"\xfc\xfd" + b"\xff" * 6 + b"\x00\x80" * 4) * (nbytes // 16)  # one colour
    return np.random.default_rng(len(one.name)).integers(0, 256, nbytes, np.uint8).tobytes()


def written(what: Manifest, *, directory: bool = True) -> bytes:
    """A manifest as a file, as the pipeline would write it."""
    container = Squizd(directory)
    return materialise(container.place(what, NAME), payload, container=container)[NAME]


@cache
def model(kind: str) -> bytes:
    return written(manifest(**KINDS[kind]))


def bundle(raw: bytes) -> MemoryBundle:
    return MemoryBundle({NAME: raw}, is_directory=False)


# Breaking them --------------------------------------------------------------------------------


def _directory_place(raw: bytes) -> tuple[int, int]:
    """Where the JSON begins and how long it is."""
    at = 256 + 32 * int.from_bytes(raw[10:12], "little")
    assert raw[at : at + 4] == b"SQDX"
    return at + 16, int.from_bytes(raw[at + 8 : at + 16], "little")


def directory_of(raw: bytes) -> dict[str, Any]:
    begin, length = _directory_place(raw)
    document: dict[str, Any] = json.loads(raw[begin : begin + length])
    return document


def redigested(raw: bytes) -> bytes:
    """The same with the checksums of the header and the digest of the front made right."""
    made = bytearray(raw)
    if made[6] & FLAG["SPARSE"]:
        made[14:18] = crc32(made[128:160]).to_bytes(4, "little")
    if made[6] & FLAG["EAGLE"]:
        made[18:26] = fnv1a64(bytes(made[160:192])).to_bytes(8, "little")
    begin, length = _directory_place(raw)
    made[begin + length : begin + length + 32] = blake3(bytes(made[: begin + length])).digest()
    return bytes(made)


def patched(raw: bytes, at: int, new: bytes) -> bytes:
    """`new` at an offset, nothing else changed."""
    assert 0 <= at <= at + len(new) <= len(raw)
    return raw[:at] + new + raw[at + len(new) :]


def edited(raw: bytes, change: Callable[[dict[str, Any]], object] | bytes) -> bytes:
    """The directory changed, or replaced by a text, in its room; digests of the front right again."""
    begin, length = _directory_place(raw)
    assert begin + length <= len(raw), "the directory is outside the file"
    if isinstance(change, bytes):
        text = change
    else:
        document = directory_of(raw)
        document["metadata"].pop("room", None)
        change(document)
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    assert len(text) <= length, f"{len(text)} bytes do not fit {length}"
    return redigested(patched(raw, begin, text.ljust(length)))


def resealed(raw: bytes) -> bytes:
    """After a change of blocks, tables or files: all digests right again, so that only their content is wrong."""

    def reseal(document: dict[str, Any]) -> None:
        for row in (*document["tensors"], *document["tables"], *document["files"]):
            row["blake3"] = blake3(raw[row["offset"] : row["offset"] + row["length"]]).hexdigest()

    return edited(raw, reseal)


# Files without a directory --------------------------------------------------------------------


def table(*entries: tuple[int, float, float], count: int | None = None, magic: bytes = b"SCZT") -> bytes:
    body = b"".join(struct.pack("<Qff", *one) for one in entries)
    return struct.pack("<4sI", magic, len(entries) if count is None else count) + body


def int4(rows: int, columns: int, data: bytes | None = None, magic: bytes = b"INT4") -> bytes:
    return struct.pack("<4sII", magic, rows, columns) + (bytes(-(-rows * columns // 2)) if data is None else data)


def npcl(shape: Iterable[int], data: bytes, code: int = 0, rank: int | None = None) -> bytes:
    shape = [*shape]
    return struct.pack(f"<4sII{len(shape)}I", b"NPCL", code, len(shape) if rank is None else rank, *shape) + data


def layered(*chunks: bytes) -> bytes:
    """Blocks one behind the other, each on 64 bytes."""
    made = b""
    for chunk in chunks:
        made = made.ljust(len(made) + -len(made) % 64, b"\0") + chunk
    return made


def bare(
    *layers: tuple[bytes, bytes],
    flags: int = FLAG["INT4"],
    index: Mapping[int, tuple[int, int, int, int]] | None = None,
    header: bytes = b"",
    tail: bytes = b"",
) -> bytes:
    """Header, index, weights of each layer, tables of each layer. `index` replaces rows, `header` the bytes from 128 on."""
    front = struct.pack("<4sHIHHIQ", b"SQZD", 1, flags, len(layers), 0, 0, 0).ljust(128, b"\0") + header.ljust(128, b"\0")
    start = 256 + 32 * len(layers)
    start += -start % 64
    body, rows, weights = b"", [], []
    for chunk, _ in layers:
        body += bytes(-len(body) % 64)
        weights.append((start + len(body), len(chunk)))
        body += chunk
    for number, (_, scales) in enumerate(layers):
        body += bytes(-len(body) % 64)
        rows.append((number, *weights[number], start + len(body)))
        body += scales
    for number, row in (index or {}).items():
        rows[number] = row
    packed = b"".join(struct.pack("<IQQQI", *row, 0) for row in rows)
    return (front + packed).ljust(start, b"\0") + body + tail


# Appendices -----------------------------------------------------------------------------------

Member = tuple[zipfile.ZipInfo, bytes]


def member(name: str, data: bytes = b"x", *, deflated: bool = False, mode: int = stat.S_IFREG | 0o644) -> Member:
    info = zipfile.ZipInfo("placeholder", (2020, 1, 1, 0, 0, 0))
    info.filename = info.orig_filename = name
    info.create_system = 3
    info.compress_type = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
    info.external_attr = mode << 16
    return info, data


def archive(*members: Member) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        for info, data in members:
            made.writestr(info, data)
    return stream.getvalue()


def with_appendix(raw: bytes, zipped: bytes, *, magic: bytes = b"ANLX", length: int | None = None) -> bytes:
    """The last thing in a file of kind "everything" replaced; the directory says so."""
    (row,) = (row for row in directory_of(raw)["files"] if row["name"] == "model.mlpackage.zip")
    head = struct.pack("<4sQ", magic, len(zipped) if length is None else length)

    def change(document: dict[str, Any]) -> None:
        for file in document["files"]:
            if file["name"] == row["name"]:
                file |= {"length": len(zipped), "blake3": blake3(zipped).hexdigest()}

    return edited(raw[: row["offset"] - len(head)] + head + zipped, change)
