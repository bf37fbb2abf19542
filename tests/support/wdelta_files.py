"""Files of the .wdelta format, byte by byte: whole ones, and what is made of them by changing a header or a record.

Nothing here calls the package but `made_of`, which has it write the delta of two small models.
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from blake3 import blake3

from support.raw_files import safetensors_file, tensor_json

__all__ = [
    "BASE",
    "BASE_TENSORS",
    "NAME",
    "PUBLIC",
    "TUNED",
    "Field",
    "array",
    "as_public",
    "drifted",
    "edited",
    "int4",
    "low_rank",
    "made_of",
    "owners",
    "public",
    "signs",
    "sparse",
    "taken_apart",
    "v1_hash",
    "with_records",
    "written",
]

NAME = "x.wdelta"
MAGIC = b"wdelta\0"
LABELS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int64": "I64", "int32": "I32",
          "uint8": "U8", "int8": "I8", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3"}  # fmt: skip
Header = dict[str, Any]
Files = dict[str, bytes]


class Field(NamedTuple):
    """One record of a file."""

    tensor: str | bytes
    field: str | bytes
    data: bytes
    dtype: str | bytes = "uint8"
    shape: tuple[int, ...] | None = None
    nbytes: int | None = None
    rank: int | None = None

    def pack(self) -> bytes:
        texts = [text.encode() if isinstance(text, str) else text for text in (self.tensor, self.field, self.dtype)]
        shape = self.shape
        if shape is None:
            shape = (len(self.data) // np.dtype(texts[2].decode()).itemsize,)
        rank = len(shape) if self.rank is None else self.rank
        nbytes = len(self.data) if self.nbytes is None else self.nbytes
        head = b"".join(struct.pack("<I", len(text)) + text for text in texts)
        return head + struct.pack(f"<I{len(shape)}QQ", rank, *shape, nbytes) + self.data


def array(tensor: str, field: str, values: Any, dtype: str) -> Field:
    return Field(tensor, field, np.asarray(values, dtype).tobytes(), dtype)


def written(
    header: Header | bytes,
    records: list[Field] | bytes = b"",
    *,
    version: int = 1,
    length: int | None = None,
    digest: bool = True,
) -> bytes:
    """A file with the right checksums; that of the header where there is a header of ours, unless not `digest`."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    if not isinstance(records, bytes):
        records = b"".join(record.pack() for record in records)
    if digest and b'"flyweight"' in text:
        records += Field("", "header", blake3(text).digest()).pack()
    head = MAGIC + struct.pack("<II", version, len(text) if length is None else length) + text
    return head + records + sha256(head + records).digest()


def taken_apart(raw: bytes) -> tuple[bytes, list[Field]]:
    """The header, and the records without its digest. ValueError or struct.error for what is no such file."""
    (length,) = struct.unpack_from("<I", raw, 11)
    header, at, records = raw[15 : 15 + length], 15 + length, list[Field]()
    while at < len(raw) - 32:
        texts = []
        for _ in range(3):
            (size,) = struct.unpack_from("<I", raw, at)
            texts.append(raw[at + 4 : at + 4 + size])
            at += 4 + size
        (rank,) = struct.unpack_from("<I", raw, at)
        if rank > 8:
            raise ValueError(rank)
        *shape, nbytes = struct.unpack_from(f"<{rank + 1}Q", raw, at + 4)
        at += 4 + 8 * (rank + 1)
        if nbytes > len(raw) - at:
            raise ValueError(nbytes)
        if texts[:2] != [b"", b"header"]:
            records.append(Field(texts[0], texts[1], raw[at : at + nbytes], texts[2], tuple(shape), nbytes))
        at += nbytes
    return header, records


def owners(raw: bytes) -> dict[int, str]:
    """The tensor of each byte that lies in an array of one."""
    _, records = taken_apart(raw)
    found, at = dict[int, str](), 15 + int.from_bytes(raw[11:15], "little")
    for record in records:
        end = at + len(record.pack())
        if record.tensor:
            found |= dict.fromkeys(range(end - len(record.data), end), bytes(record.tensor).decode())  # type: ignore[arg-type]
        at = end
    return found


def edited(raw: bytes, change: Callable[[Header], object] | bytes) -> bytes:
    """The header changed, or replaced; all checksums right."""
    text, records = taken_apart(raw)
    if isinstance(change, bytes):
        return written(change, records)
    header = json.loads(text)
    change(header)
    return written(header, records)


def with_records(raw: bytes, change: Callable[[list[Field]], list[Field]]) -> bytes:
    """The records changed; all checksums right, but for the digests that the header has of tensors."""
    text, records = taken_apart(raw)
    return written(text, change(records))


# Models -------------------------------------------------------------------------------------------


def safetensors(tensors: Mapping[str, np.ndarray]) -> bytes:
    table, data = dict[str, Any](), b""
    for name, values in tensors.items():
        raw = np.ascontiguousarray(values).tobytes()
        table[name] = tensor_json(LABELS[values.dtype.name], list(values.shape), len(data), len(data) + len(raw))
        data += raw
    return safetensors_file({"__metadata__": {"format": "pt"}, **table}, data)


def _tensors(seed: int) -> dict[str, np.ndarray]:
    """One of each kind of element that is treated in its own way, of few elements."""
    rng = np.random.default_rng(seed)
    floats = (rng.standard_normal(40) * 0.1).astype(np.float32)
    return {
        "a.weight": floats[:24].astype(ml_dtypes.bfloat16).reshape(4, 6),
        "b.weight": floats[:12].astype(np.float16).reshape(3, 4),
        "c.bias": floats[:8],
        "d.bytes": rng.integers(0, 200, 6).astype(np.uint8),
        "e.ids": rng.integers(0, 99, 3).astype(np.int64),
        "f.mask": np.array([True, False, True]),
        "g.eight": floats[:5].astype(ml_dtypes.float8_e4m3fn),
        "h.scalar": np.array(floats[0]),
        "i.empty": np.zeros((0, 3), np.float32),
        "j.kept": floats[8:12],
        "k.gone": floats[12:14],
        "l.old_name": floats[14:20].astype(ml_dtypes.bfloat16),
    }


BASE_TENSORS = _tensors(0)
_CONFIG = b'{"model_type": "toy",\n "hidden_size": 6,\n "vocab_size": 4}\n'
BASE: Files = {
    "config.json": _CONFIG,
    "README.md": b"# base\n",
    "notes.txt": b"gone\n",
    "model.safetensors": safetensors(BASE_TENSORS),
}


def _tuned() -> Files:
    """Every tensor another, but one; a row more, a new tensor and its twin, one with another name, one removed."""
    tensors = _tensors(1)
    tensors |= {"j.kept": BASE_TENSORS["j.kept"], "i.empty": BASE_TENSORS["i.empty"]}
    del tensors["k.gone"], tensors["l.old_name"]
    tensors["l.new_name"] = BASE_TENSORS["l.old_name"]
    tensors["a.weight"] = np.concatenate([BASE_TENSORS["a.weight"], tensors["a.weight"][:1]])
    tensors["c.bias"] = BASE_TENSORS["c.bias"] + np.float32(1e-5)
    tensors["m.new"] = tensors["m.twin"] = np.arange(5, dtype=np.float32)
    return {
        "config.json": _CONFIG.replace(b"4}", b"5}"),
        "README.md": b"# tuned\n",
        "generation_config.json": b"{}",
        "model.safetensors": safetensors(tensors).replace(b'"pt"', b'"np"'),
    }


TUNED = _tuned()


def made_of(base: Files, tuned: Files, **options: Any) -> bytes:
    """The delta that the package makes of two models."""
    from flyweight.checkpoint import read_checkpoint
    from flyweight.containers import CONTAINERS
    from flyweight.pipeline.deltas.creating import create_delta
    from flyweight.sources import MemoryBundle

    pair = [
        read_checkpoint(MemoryBundle(files, place), CONTAINERS["hf"])
        for place, files in (("/models/base", base), ("/models/tuned", tuned))
    ]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / NAME
        create_delta(*pair, place, **options)
        raw = place.read_bytes()
    return edited(raw, lambda header: header["flyweight"]["parent"].update(path="base"))


# Files as the public tool writes them -------------------------------------------------------------


def v1_hash(names: list[str], tensors: Mapping[str, np.ndarray] = BASE_TENSORS) -> str:
    digest = sha256()
    for name in names:
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensors[name]).tobytes())
    return digest.hexdigest()


def public(
    tensors: Mapping[str, Mapping[str, Any]], records: list[Field], *, names: list[str] | None = None, **more: Any
) -> bytes:
    """Without a header of ours: `tensors` as the header has them, without the references to their records."""
    described = {
        name: {**about, **{str(r.field): {"_ref": r.field} for r in records if r.tensor == name}}
        for name, about in tensors.items()
    }
    order = list(dict.fromkeys(str(record.tensor) for record in records if record.tensor in BASE_TENSORS))
    header = {"parent_hash": v1_hash(order if names is None else names), "strategy": "sparse", "tensors": described}
    return written({**header, **more}, records)


def as_public(raw: bytes) -> bytes:
    """A file of ours without what only ours have, so that no digest but the last protects it."""
    text, records = taken_apart(raw)
    header = json.loads(text)
    del header["flyweight"]
    records = [record for record in records if record.tensor]
    for about in header["tensors"].values():
        for key in ("digest", "parent_digest", "stored_digest"):
            about.pop(key, None)
    order = dict.fromkeys(str(record.tensor, "utf-8") for record in records if isinstance(record.tensor, bytes))
    header["parent_hash"] = v1_hash([name for name in order if name in BASE_TENSORS])
    return written(header, records)


def drifted(raw: bytes, cells: Any, count: object = None) -> bytes:
    """A file of ours of c.bias alone, without digests, with so many cells of drift before its tables."""
    text, records = taken_apart(raw)
    header = json.loads(text)
    stored = np.array(cells, "<i4").reshape(-1, 2)
    about = header["tensors"]["c.bias"] | {"drift": len(stored) if count is None else count}
    mine = [record for record in records if record.tensor == b"c.bias"]
    tables = stored.tobytes() + mine[0].data
    mine[0] = mine[0]._replace(data=tables, shape=(len(tables),), nbytes=len(tables))
    return as_public(written(header | {"tensors": {"c.bias": about}}, mine))


SPARSE = {"strategy": "sparse", "shape": [8], "dtype": "float32", "sparsity": 0.9}
SIGNS = {"strategy": "quantized", "shape": [4, 6], "dtype": "float32", "n_elements": 24, "n_cols": 6}
INT4 = {"strategy": "int4", "shape": [3, 4], "dtype": "float32", "outlier_fraction": 0.01, "n_elements": 12, "n_outliers": 1}


def sparse(indices: Any = (1, 5), values: Any = (0.5, -0.25), **about: Any) -> bytes:
    records = [array("c.bias", "indices", indices, "int64"), array("c.bias", "values", values, "float32")]
    return public({"c.bias": SPARSE | about}, records)


def signs(scales: Any = (0.5, 0.25, 0.5, 1), packed: Any = (0xAA, 0x55, 0x0F), **about: Any) -> bytes:
    records = [array("a.weight", "scales", scales, "float16"), array("a.weight", "packed_signs", packed, "uint8")]
    return public({"a.weight": SIGNS | about}, records)


def int4(
    outliers: Any = (3,),
    scale: Any = (0.125,),
    zero: Any = (-0.5,),
    packed: Any = (0x12, 0x34, 0x56, 0x78, 0x9A, 0xB0),
    **about: Any,
) -> bytes:
    records = [
        array("b.weight", "outlier_idx", outliers, "int64"),
        array("b.weight", "outlier_vals", [2.5] * len(outliers), "float16"),
        array("b.weight", "scale", scale, "float16"),
        array("b.weight", "zero_point", zero, "float16"),
        array("b.weight", "packed", packed, "uint8"),
    ]
    return public({"b.weight": INT4 | about}, records)


def low_rank(up: Any = (1, 2, 3), down: Any = (0.5, 0.25, 0, 1), dtype: str = "float16", **about: Any) -> bytes:
    records = [array("b.weight", "up", up, dtype), array("b.weight", "down", down, dtype)]
    header = {"strategy": "lowrank", "shape": [3, 4], "dtype": "float32", "rank": 1, "scale": 1.0}
    return public({"b.weight": header | about}, records)


PUBLIC = {"sparse": sparse(), "quantized": signs(), "int4": int4(), "lowrank": low_rank()}
"""A file of each strategy that adds numbers, without digests, as those of the public tool are."""
