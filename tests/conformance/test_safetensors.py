"""Against the safetensors library, both ways: what we write it reads, what it writes we read, and what it refuses we refuse."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError, deserialize, safe_open
from safetensors.numpy import load, save

from flyweight.containers.hf import HfDirectory
from flyweight.containers.safetensors import DTYPES, Safetensors
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.manifest import Entry, Manifest, Typed
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.sources import MemoryBundle, open_bundle
from fuzz.hostile_safetensors import HOSTILE
from support import sample_files
from support.materialise import materialise
from support.raw_files import safetensors_file, tensor_json

ARRAYS = {
    "f64": np.arange(6.0).reshape(2, 3),
    "u8": np.arange(3, dtype=np.uint8),
    "f16": np.arange(4, dtype=np.float16),
    "i64": np.array([-1, 2**62]),
    "bool": np.array([True, False, True]),
    "scalar": np.array(1.5, np.float32),
    "empty": np.zeros((0, 4), np.float32),
}
LABELS = {
    "f64": DType.F64,
    "u8": DType.U8,
    "f16": DType.F16,
    "i64": DType.I64,
    "bool": DType.BOOL,
    "scalar": DType.F32,
    "empty": DType.F32,
}


def ours(arrays: dict[str, np.ndarray]) -> tuple[Manifest, dict[str, bytes]]:
    specs = {name: TensorSpec(array.shape, LABELS[name]) for name, array in arrays.items()}
    entries = {name: Entry(name, spec, RAW, {"data": spec}) for name, spec in specs.items()}
    return Manifest("safetensors", entries, {"note": Typed("str", "grüße")}), {n: a.tobytes() for n, a in arrays.items()}


def parse(raw: bytes) -> Manifest:
    return Safetensors().parse(MemoryBundle({"x.safetensors": raw}, is_directory=False))


@pytest.mark.parametrize("order", [list(ARRAYS), sorted(ARRAYS), sorted(ARRAYS, reverse=True)])
def test_they_read_what_we_write(order: list[str]) -> None:
    manifest, payload = ours({name: ARRAYS[name] for name in order})
    placement = Safetensors().place(manifest, "x.safetensors")
    raw = materialise(placement, lambda entry, part: payload[entry.name])["x.safetensors"]
    read = load(raw)
    assert set(read) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert read[name].dtype == array.dtype
        assert np.array_equal(read[name], array)


def test_they_read_our_shards_and_metadata(tmp_path: Path) -> None:
    manifest, payload = ours(ARRAYS)
    files = materialise(HfDirectory().place(manifest, "out", 30), lambda entry, part: payload[entry.name])
    for name, raw in files.items():
        (tmp_path / name).write_bytes(raw)
    seen = {}
    for path in sorted(tmp_path.glob("*.safetensors")):
        with safe_open(path, "numpy") as opened:
            assert opened.metadata()["format"] == "pt"
            seen |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert all(np.array_equal(seen[name], array) for name, array in ARRAYS.items())


def test_they_read_our_encoded_tensors_as_plain_ones() -> None:
    parts = {"codes": TensorSpec((2, 4), DType.U32), "scale": TensorSpec((2, 1), DType.BF16)}
    entry = Entry("w", TensorSpec((2, 32), DType.F32), CodecSpec("affine", {"bits": 4}), parts)
    placement = Safetensors().place(Manifest("x", {"w": entry}, {"k": Typed("u8", 1)}, dialect="gguf"), "x.safetensors")
    raw = materialise(placement, lambda entry, part: b"\1" * entry.parts[part].nbytes)["x.safetensors"]
    assert {(name, about["dtype"], tuple(about["shape"])) for name, about in deserialize(raw)} == {
        ("w.codes", "U32", (2, 4)),
        ("w.scale", "BF16", (2, 1)),
    }


def test_we_read_what_they_write() -> None:
    raw = save(ARRAYS, {"a": "b"})
    manifest = parse(raw)
    assert manifest.metadata == {"a": Typed("str", "b")}
    assert {n: e.spec for n, e in manifest.entries.items()} == {n: TensorSpec(a.shape, LABELS[n]) for n, a in ARRAYS.items()}
    for name, entry in manifest.entries.items():
        extent = entry.extents["data"]
        assert raw[extent.offset : extent.end] == ARRAYS[name].tobytes()


def test_the_element_types_are_theirs() -> None:
    for label, dtype in DTYPES.items():
        raw = safetensors_file({"w": tensor_json(label, [8], 0, dtype.bits)}, bytes(dtype.bits))
        assert deserialize(raw)[0][1]["dtype"] == label
    with pytest.raises(SafetensorError) as error:
        deserialize(safetensors_file({"w": tensor_json("ZZ", [0], 0, 0)}))
    offered = str(error.value).partition("expected one of")[2].split("`")[1::2]
    assert set(offered) == set(DTYPES)


# What we refuse although they take it, each for a reason given in docs/formats/safetensors.md.
STRICTER = {
    "header of spaces before the brace", "duplicate tensor", "duplicate after unescaping", "duplicate metadata key",
    "extra field", "tensor as a list", "empty name", "name of 2,000 bytes", "NUL in a name", "rank 9", "rank 100,000",
    "zero times 2^63", "metadata null",
}  # fmt: skip
OURS = ("typed metadata", "description", "described", "part of two tensors", "nested codec parameters", "known codec")


@pytest.mark.parametrize("name", [name for name in HOSTILE if not name.startswith(OURS)])
def test_hostile_files_are_refused_by_both(name: str) -> None:
    (raw,) = HOSTILE[name].files.values()
    try:
        deserialize(raw)
    except (SafetensorError, OverflowError):
        assert name not in STRICTER
    else:
        assert name in STRICTER


def agree(raw: bytes) -> bool:
    """We may be stricter; we may never accept what they refuse, nor see other tensors."""
    try:
        manifest = parse(raw)
    except FlyweightError:
        return False
    theirs = {name: (about["dtype"], tuple(about["shape"]), bytes(about["data"])) for name, about in deserialize(raw)}
    labels = {dtype: label for label, dtype in DTYPES.items()}
    mine = {}
    for entry in manifest.entries.values():
        for extent, spec in zip(entry.extents.values(), entry.parts.values(), strict=True):
            mine[entry.name] = (labels[spec.dtype], spec.shape, raw[extent.offset : extent.end])
    assert mine == theirs
    return True


def test_single_byte_changes_never_split_opinions() -> None:
    """Every byte of the header, set to values that matter in JSON and in lengths."""
    (raw,) = sample_files.safetensors().values()
    accepted = 0
    for at, value in itertools.product(range(len(raw) - 36), b'\0\xff"{}[]:,-019.eE tn\\'):
        accepted += agree(raw[:at] + bytes([value]) + raw[at + 1 :])
    assert accepted > 100  # names, spaces and metadata may change


def edited(seed: int) -> bytes:
    choose = random.Random(seed)
    (original,) = sample_files.safetensors().values()
    raw = bytearray(original)
    for _ in range(choose.randint(1, 3)):
        at = choose.randrange(len(raw))
        edit = choose.randrange(4)
        if edit == 0:
            raw[at] = choose.randrange(256)
        elif edit == 1:
            del raw[at : at + choose.randint(1, 8)]
        elif edit == 2:
            raw[at:at] = choose.choice([b"0", b"-", b"1e0", b'"', b"{}", b"[0]", b" ", b"\\u0041", choose.randbytes(2)])
        else:
            other = choose.randrange(len(raw))
            raw[at:at] = raw[other : other + choose.randint(1, 20)]
    # Keep the length field honest half of the time, or edits of the header all fail alike.
    if choose.random() < 0.5 and len(raw) > 44:
        raw[:8] = (len(raw) - 8 - 36).to_bytes(8, "little")
    return bytes(raw)


def test_random_edits_never_split_opinions() -> None:
    accepted = sum(agree(edited(seed)) for seed in range(30_000))
    assert accepted > 300  # enough files pass for the agreement to mean something


def test_a_file_on_disk_is_the_same_to_both(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(save(ARRAYS))
    bundle = open_bundle(path)
    manifest = Safetensors().parse(bundle)
    with safe_open(path, "numpy") as opened:
        assert set(opened.keys()) == set(manifest.entries)
    bundle.close()
