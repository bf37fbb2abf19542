"""Hostile npy-dirs: keys that lead elsewhere, headers that lie, parts that do not belong together, bombs and pickles."""

from __future__ import annotations

import json
import pickle
import struct
from typing import Any

from support.fuzz_cases import Case, Special, fifo, link_to
from support.raw_files import npy_file as npy
from support.raw_files import npy_shape as dims

try:
    from compression import zstd
except ModuleNotFoundError:
    from backports import zstd

READY = {"tensors/.manifest_ready": b""}
GOOD = {
    "tensors/w__q.npy": npy("|i1", (4, 8)),
    "tensors/w__s.npy": npy("<f4", (4,)),
    "tensors/w__shape.npy": dims(4, 8),
}
INT4 = {
    "tensors/w__q4a.npy": npy("|u1", (4, 32)),
    "tensors/w__s4a.npy": npy("<f4", (4, 2)),
    "tensors/w__z4a.npy": npy("<f4", (4, 2)),
    "tensors/w__shape.npy": dims(4, 64),
}
INT3 = {
    "tensors/w__q3.npy": npy("|u1", (96,)),
    "tensors/w__s3.npy": npy("<f4", (4,)),
    "tensors/w__z3.npy": npy("<f4", (4,)),
    "tensors/w__lra.npy": npy("<f4", (4, 2)),
    "tensors/w__lrb.npy": npy("<f4", (2, 64)),
    "tensors/w__shape.npy": dims(4, 64),
}


def directory(
    files: dict[str, bytes | None],
    code: str,
    manifest: Any = None,
    *,
    special: dict[str, Special] | None = None,
    exit_code: int = 3,
    ready: bool = True,
) -> Case:
    """A directory of these files (None: not there); its manifest says that "w" is "w" unless told otherwise."""
    text = manifest if isinstance(manifest, bytes) else json.dumps({"w": "w"} if manifest is None else manifest).encode()
    made = {"manifest.json": text, **(READY if ready else {}), **files}
    return Case(
        {name: raw for name, raw in made.items() if raw is not None},
        code, is_directory=True, special=special or {}, exit_code=exit_code,
    )  # fmt: skip


def says(manifest: Any, code: str, files: dict[str, bytes | None] | None = None) -> Case:
    """The good tensor under another manifest."""
    return directory({**GOOD, **(files or {})}, code, manifest)


def holds(change: dict[str, bytes | None], code: str, base: dict[str, bytes] = GOOD, **more: Any) -> Case:
    """The good tensor with some of its files replaced, added or missing."""
    return directory({**base, **{f"tensors/w{suffix}": raw for suffix, raw in change.items()}}, code, **more)


def headed(text: str, code: str) -> Case:
    """Codes whose header is this text."""
    return holds({"__q.npy": npy("|i1", (4, 8), text=text)}, code)


def zst(raw: bytes) -> bytes:
    return zstd.compress(raw)


def squeezed(q: bytes, code: str) -> Case:
    return holds({"__q.npy": None, "__q.npy.zst": q}, code)


def unsized(raw: bytes) -> bytes:
    """A frame that does not say how much it holds."""
    compressor = zstd.ZstdCompressor()
    return compressor.compress(raw) + compressor.flush()


def claiming(size: int) -> bytes:
    """A frame of one block of zeros that says it holds `size` bytes."""
    block = struct.pack("<I", (131072 << 3) | 0b011)[:3]  # the last block, one byte repeated 128 Ki times
    return struct.pack("<IBBQ", 0xFD2FB528, 0b11000000, 0x58, size) + block + b"\0"


class Payload:
    """What a hostile writer pickles. Never unpickled here, or the tests would stop."""

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        return exit, (97,)


PICKLED = pickle.dumps(Payload())


FOURS: dict[str, Any] = {
    "name": "affine",
    "params": {"bits": 4, "form": "scale_bias", "group": 0, "scale": "f32", "packing": "little", "word": "u8", "axis": -1},
}


def added(codec: Any) -> dict[str, Any]:
    """The good tensor as a record describes it to which a form was added."""
    return {"w": described()["w"] | {"added": codec}}


def turned(tensors: dict[str, Any], code: str) -> Case:
    """The good tensor with four bits that count, and a record that describes them otherwise."""
    fours = {"tensors/w__q4a.npy": npy("|u1", (4, 4)), ".squish_int4_ready": b""}
    beside = {f"tensors/w{suffix}.npy": npy("<f4", (4, 1)) for suffix in ("__s4a", "__z4a")}
    return directory({**record(tensors=tensors).files, **fours, **beside}, code)


def record(**change: Any) -> Case:
    """A directory that flyweight.json describes, not quite rightly."""
    about = {"shape": [4, 8], "dtype": "f32", "codec": {"name": "affine", "params": AFFINE}}
    document = {"format": "flyweight npy-dir", "version": 1, "metadata": "[]", "tensors": {"w": about}, "files": {}}
    code = change.pop("code", "E_RECORD")
    exit_code = change.pop("exit_code", 3)
    return directory({**GOOD, "flyweight.json": json.dumps(document | change).encode()}, code, exit_code=exit_code)


AFFINE = {"bits": 8, "form": "symmetric", "group": 0, "scale": "f32", "packing": "little", "word": "u8", "axis": -1}


def described(shape: Any = (4, 8), codec: Any = None, dtype: str = "f32") -> dict[str, Any]:
    return {"w": {"shape": list(shape), "dtype": dtype, "codec": codec or {"name": "affine", "params": AFFINE}}}


HOSTILE: dict[str, Case] = {
    # the manifest
    "key above the directory": says({"w": "../../../tmp/pwn"}, "E_SAFE_KEY"),
    "key that is absolute": says({"w": "/etc/passwd"}, "E_SAFE_KEY"),
    "key in a subdirectory": says({"w": "sub/w"}, "E_SAFE_KEY", {"tensors/sub/w__q.npy": npy("|i1", (4, 8))}),
    "key with a backslash": says({"w": "..\\w"}, "E_SAFE_KEY"),
    "key with a NUL": says({"w": "w\0"}, "E_SAFE_KEY"),
    "key with an escape": says({"w": "\x1b]0;gotcha\x07"}, "E_SAFE_KEY"),
    "key of two dots": says({"w": ".."}, "E_SAFE_KEY"),
    "key empty": says({"w": ""}, "E_SAFE_KEY"),
    "key of a thousand letters": says({"w": "w" * 1000}, "E_SAFE_KEY"),
    "two tensors, one key": says({"a.b": "w", "a__b": "w"}, "E_KEY_COLLISION"),
    "two tensors, keys that differ by case": says({"w": "w", "W": "W"}, "E_KEY_COLLISION"),
    "two tensors, keys that differ by composition": says({"a": "\u00e9", "b": "e\u0301"}, "E_KEY_COLLISION"),
    "a name twice": says(b'{"w": "w", "w": "v"}', "E_JSON_DUPLICATE"),
    "key a number": says({"w": 1}, "E_MANIFEST"),
    "key a list": says({"w": ["w"]}, "E_MANIFEST"),
    "manifest a list": says(["w"], "E_MANIFEST"),
    "manifest not JSON": says(b"{", "E_JSON"),
    "manifest nested": says(b'{"w": ' + b"[" * 500 + b"]" * 500 + b"}", "E_JSON_DEPTH"),
    "name empty": says({"": "w"}, "E_NAME"),
    "name with a NUL": says({"w\0": "w"}, "E_NAME"),
    "no manifest": Case({**GOOD, **READY}, "E_NO_MANIFEST", is_directory=True),
    # what is missing
    "tensor without arrays": says({"w": "w", "v": "v"}, "E_PART_MISSING"),
    "codes without scales": holds({"__s.npy": None}, "E_PART_MISSING"),
    "scales without codes": holds({"__q.npy": None}, "E_PART_MISSING"),
    "codes without a shape": holds({"__shape.npy": None}, "E_PART_MISSING"),
    "four bits without zeros": holds({"__z4a.npy": None}, "E_PART_MISSING", INT4),
    "three bits without scales": holds({"__s3.npy": None}, "E_PART_MISSING", INT3),
    "half a low rank": holds({"__lrb.npy": None}, "E_PART_MISSING", INT3),
    "half written: stray arrays, no sentinel": directory(
        {**GOOD, "tensors/v__q.npy": npy("|i1", (4, 8))}, "E_UNFINISHED", ready=False
    ),
    "half written: shards to go, no sentinel": directory(
        {**GOOD, "_compress_progress.json": b'{"completed_shards": ["a"], "total_shards": 2}'}, "E_UNFINISHED", ready=False
    ),
    "half written: progress that is no progress": directory(
        {**GOOD, "_compress_progress.json": b"[]"}, "E_UNFINISHED", ready=False
    ),
    "half written: four bits that are said to be ready": directory(
        {**GOOD, "tensors/w__q4a.npy": npy("|u1", (4, 4)), ".squish_int4_ready": b""}, "E_PART_MISSING"
    ),
    # pickles
    "DFloat11 is a pickle": directory(
        {"tensors/w__pt_df11.npy": PICKLED, "tensors/w__shape.npy": dims(4, 8)}, "E_PICKLE", exit_code=4
    ),
    "codes that are a pickle": holds({"__q.npy": PICKLED}, "E_NPY_MAGIC"),
    "array of objects": holds({"__q.npy": npy("|O", (4, 8), PICKLED)}, "E_DTYPE"),
    "dense array of objects": directory(
        {"tensors/w__pt.npy": npy("|O", (1,), PICKLED), "tensors/w__shape.npy": dims(1)}, "E_DTYPE"
    ),
    # headers
    "array of nothing, a million million of them": holds({"__q.npy": npy("|V0", (2**40,), b"")}, "E_DTYPE"),
    "array of text": holds({"__q.npy": npy("<U8", (4, 8))}, "E_DTYPE"),
    "big-endian scales": holds({"__s.npy": npy(">f4", (4,), bytes(16))}, "E_DTYPE"),
    "record type": headed("{'descr': [('a', '|i1')], 'fortran_order': False, 'shape': (4, 8), }", "E_NPY_HEADER"),
    "header that is a program": headed("__import__('os').system('true')", "E_NPY_HEADER"),
    "value that is a program": headed("{'descr': print(1), 'fortran_order': False, 'shape': (4, 8), }", "E_NPY_HEADER"),
    "column by column": headed("{'descr': '|i1', 'fortran_order': True, 'shape': (4, 8), }", "E_FORTRAN"),
    "header without a shape": headed("{'descr': '|i1', 'fortran_order': False, }", "E_NPY_HEADER"),
    "header with a key twice": headed("{'descr': '|i1', 'shape': (4, 8), 'shape': (1, 1), }", "E_NPY_HEADER"),
    "header with a fourth key": headed(
        "{'descr': '|i1', 'fortran_order': False, 'shape': (4, 8), 'more': 1, }", "E_NPY_HEADER"
    ),
    "header that goes on": headed("{'descr': '|i1', 'fortran_order': False, 'shape': (4, 8), } + x", "E_NPY_HEADER"),
    "header empty": headed("   ", "E_NPY_HEADER"),
    "header nested ten thousand deep": headed("{" * 9000, "E_NPY_HEADER"),
    "flag where the type belongs": headed("{'descr': True, 'fortran_order': False, 'shape': (4, 8), }", "E_NPY_HEADER"),
    "dimension -1": headed("{'descr': '|i1', 'fortran_order': False, 'shape': (-1, 8), }", "E_NPY_HEADER"),
    "dimension 4.0": headed("{'descr': '|i1', 'fortran_order': False, 'shape': (4.0, 8), }", "E_NPY_HEADER"),
    "dimension of five thousand digits": headed(
        f"{{'descr': '|i1', 'fortran_order': False, 'shape': ({'9' * 5000},), }}", "E_SHAPE"
    ),
    "shape of two commas": headed("{'descr': '|i1', 'fortran_order': False, 'shape': (4,,8), }", "E_SHAPE"),
    "shape of rank nine": holds({"__q.npy": npy("|i1", (1,) * 9)}, "E_RANK"),
    "product that wraps": holds({"__q.npy": npy("|i1", (2**32, 2**32), b"")}, "E_SHAPE"),
    "shape of 2^40 in an empty file": holds({"__q.npy": npy("|i1", (2**40,), b"")}, "E_PAST_END"),
    "header of 4 GiB": holds({"__q.npy": npy("|i1", (4, 8), version=(2, 0), length=2**32 - 1)}, "E_NPY_HEADER"),
    "header longer than the file": holds({"__q.npy": npy("|i1", (4, 8), length=9999)}, "E_TRUNCATED"),
    "version 9": holds({"__q.npy": npy("|i1", (4, 8), version=(9, 0))}, "E_NPY_VERSION"),
    "not an array": holds({"__q.npy": b"PK\x03\x04" + bytes(64)}, "E_NPY_MAGIC"),
    "empty file": holds({"__q.npy": b""}, "E_TRUNCATED"),
    "one byte too few": holds({"__q.npy": npy("|i1", (4, 8))[:-1]}, "E_PAST_END"),
    "bytes after the array": holds({"__q.npy": npy("|i1", (4, 8)) + b"PK\x03\x04"}, "E_TRAILING"),
    # shapes
    "shape of 2^40": holds({"__shape.npy": dims(2**40, 8)}, "E_PART_SHAPE"),
    "shape beyond 2^63": holds({"__shape.npy": dims(2**40, 2**40)}, "E_SHAPE"),
    "shape negative": holds({"__shape.npy": dims(-4, 8)}, "E_SHAPE"),
    "shape of floats": holds({"__shape.npy": npy("<f8", (2,), struct.pack("<2d", 4, 8))}, "E_SHAPE"),
    "shape of rank two": holds({"__shape.npy": npy("<i8", (2, 1), struct.pack("<2q", 4, 8))}, "E_SHAPE"),
    "shape of nine dimensions": holds({"__shape.npy": dims(*[1] * 9)}, "E_SHAPE"),
    "shape of another size": holds({"__shape.npy": dims(8, 8)}, "E_PART_SHAPE"),
    "shape turned round": holds({"__shape.npy": dims(8, 4)}, "E_PART_SHAPE"),
    "shape of nothing": holds({"__shape.npy": dims(0, 8)}, "E_SPEC", exit_code=4),
    "scalar of many": holds({"__shape.npy": dims()}, "E_PART_SHAPE"),
    # parts against each other
    "scales of fewer rows": holds({"__s.npy": npy("<f4", (3,))}, "E_PART_SHAPE"),
    "scales of no group": holds({"__s.npy": npy("<f4", (4, 0))}, "E_GROUP"),
    "more groups than columns": holds({"__s.npy": npy("<f4", (4, 9))}, "E_GROUP"),
    "groups of no length": holds({"__s.npy": npy("<f4", (4, 7))}, "E_GROUP"),
    "scales of f64": holds({"__s.npy": npy("<f8", (4,))}, "E_PART_SHAPE"),
    "scales of integers": holds({"__s.npy": npy("<i4", (4,))}, "E_PART_SHAPE"),
    "codes of floats": holds({"__q.npy": npy("<f4", (4, 8))}, "E_PART_SHAPE"),
    "codes unsigned": holds({"__q.npy": npy("|u1", (4, 8))}, "E_PART_SHAPE"),
    "codes of another width": holds({"__q.npy": npy("|i1", (4, 9))}, "E_PART_SHAPE"),
    "nibbles of half the width": holds({"__q4a.npy": npy("|u1", (4, 16))}, "E_PART_SHAPE", INT4),
    "zeros of other groups": holds({"__z4a.npy": npy("<f4", (4, 4))}, "E_PART_SHAPE", INT4),
    "three bits of too few bytes": holds({"__q3.npy": npy("|u1", (95,))}, "E_PART_SHAPE", INT3),
    "three bits without a group": holds({"__s3.npy": npy("<f4", (0,))}, "E_GROUP", INT3),
    "low rank that does not meet": holds({"__lrb.npy": npy("<f4", (3, 64))}, "E_PART_SHAPE", INT3),
    "low rank of nothing": holds({"__lra.npy": npy("<f4", (4, 0))}, "E_SPEC", INT3),
    "dense array of another shape": directory(
        {"tensors/w__pt.npy": npy("<f2", (4, 8)), "tensors/w__shape.npy": dims(4, 9)}, "E_PART_SHAPE"
    ),
    "bits of bf16 in four bytes": directory(
        {"tensors/w__ptb.npy": npy("<f4", (4, 8)), "tensors/w__shape.npy": dims(4, 8)}, "E_PART_SHAPE"
    ),
    "scales of f16 and zeros of f32": holds({"__s4a.npy": npy("<f2", (4, 2))}, "E_PART_SHAPE", INT4),
    "four bits with scales of f64": holds({"__s4a.npy": npy("<f8", (4, 2))}, "E_PART_SHAPE", INT4),
    "two forms that disagree": directory({**GOOD, **INT4, ".squish_int4_ready": b""}, "E_PART_SHAPE"),
    "dense beside codes of another shape": holds({"__pt.npy": npy("<f2", (4, 9))}, "E_PART_SHAPE"),
    # compressed files
    "bomb: a frame that claims 2^40 bytes": squeezed(claiming(2**40), "E_ZSTD"),
    "bomb: honest about 128 KiB, dishonest about the array": squeezed(claiming(131072), "E_NPY_MAGIC"),
    "bomb: an array of 2^40 in a small frame": squeezed(zst(npy("|i1", (2**40,), bytes(1 << 20))), "E_PAST_END"),
    "frame longer than its array": squeezed(zst(npy("|i1", (4, 8)) + bytes(1 << 20)), "E_TRAILING"),
    "frame of unknown size": squeezed(unsized(npy("|i1", (4, 8))), "E_ZSTD"),
    "frame cut short in its header": squeezed(zst(npy("|i1", (4, 8)))[:12], "E_TRUNCATED"),
    "not a frame": squeezed(npy("|i1", (4, 8)), "E_ZSTD"),
    "compressed nothing": squeezed(b"", "E_ZSTD"),
    # what is behind a name
    "codes are a FIFO": holds({"__q.npy": None}, "E_NOT_A_FILE", special={"tensors/w__q.npy": fifo}),
    "compressed codes are a FIFO": holds({"__q.npy": None}, "E_NOT_A_FILE", special={"tensors/w__q.npy.zst": fifo}),
    "shape is a FIFO": holds({"__shape.npy": None}, "E_NOT_A_FILE", special={"tensors/w__shape.npy": fifo}),
    "manifest is a FIFO": Case({**GOOD, **READY}, "E_NOT_A_FILE", is_directory=True, special={"manifest.json": fifo}),
    "codes are a link out of the directory": holds(
        {"__q.npy": None}, "E_LINK", special={"tensors/w__q.npy": link_to("/etc/passwd")}
    ),
    "codes are a device": holds({"__q.npy": None}, "E_LINK", special={"tensors/w__q.npy": link_to("/dev/zero")}),
    "side file is a link out of the directory": directory(
        GOOD, "E_LINK", special={"tokenizer.json": link_to("../../../../../../etc/passwd")}
    ),
    # flyweight.json
    "record not JSON": directory({**GOOD, "flyweight.json": b"["}, "E_JSON"),
    "record of something else": record(format="else"),
    "record of version 2": record(version=2, code="E_RECORD_VERSION", exit_code=4),
    "record of a tensor that is not there": record(tensors={**described(), "v": described()["w"]}),
    "record without a tensor that is there": record(tensors={}),
    "record of another shape": record(tensors=described((8, 4))),
    "record of another form": record(tensors=described(codec={"name": "raw", "params": {}})),
    "record of a codec that is not": record(tensors=described(codec={"name": "\x1b[2J", "params": {}})),
    "record of groups that are not": record(
        tensors=described(codec={"name": "affine", "params": AFFINE | {"group": 4}}), code="E_PART_SHAPE"
    ),
    "record of an added form that is none": record(tensors=added([])),
    "record of an added form that is another": turned(added({"name": "raw", "params": {}}), "E_RECORD"),
    "record of an added form in other groups": turned(
        added(FOURS | {"params": FOURS["params"] | {"group": 4}}), "E_PART_SHAPE"
    ),
    "record with a digest that is none": record(files={"tensors/w__q.npy": "0" * 63}),
    "record with a list for a tensor": record(tensors={"w": []}),
    "record and no sentinel": Case(
        {name: raw for name, raw in record().files.items() if name not in READY}, "E_UNFINISHED", is_directory=True
    ),
}
