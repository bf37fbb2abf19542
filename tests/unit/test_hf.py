"""A Hugging Face directory: the index is the truth, side files survive, shards follow the convention."""

from __future__ import annotations

import json

import pytest

import sample_files
from flyweight.containers.hf import INDEX, HfDirectory, read_index, unread_weights
from flyweight.dtypes import DType
from flyweight.errors import UnsupportedError
from flyweight.manifest import Entry, Extent, Manifest
from flyweight.sources import MemoryBundle
from flyweight.tensor import RAW, CodecSpec, TensorSpec
from materialise import from_bundle, materialise
from raw_files import safetensors_file, tensor_json

CONTAINER = HfDirectory()
WHOLE = safetensors_file({"a": tensor_json("U8", [2], 0, 2)}, b"xy")


def parse(files: dict[str, bytes]) -> Manifest:
    return CONTAINER.parse(MemoryBundle(files))


def test_reads_shards_and_side_files() -> None:
    files = sample_files.hf_directory()
    made = parse(files)
    assert list(made.entries) == ["a", "b", "c"]
    assert made.entries["c"].extents["data"].file == "model-00002-of-00002.safetensors"
    assert made.files == {n: Extent(n, 0, len(files[n])) for n in ("config.json", "tokenizer.json", "assets/unknown.dat")}
    assert made.dialect == "hf"


def test_only_shards_of_the_index_are_read() -> None:
    files = sample_files.hf_directory() | {"model.safetensors": b"broken", "consolidated.safetensors": b"broken"}
    assert list(parse(files).entries) == ["a", "b", "c"]


def test_other_weights_are_no_side_files() -> None:
    stray = ["pytorch_model.bin", "pytorch_model.bin.index.json", "m.gguf", "onnx/m.onnx", "tf_model.h5", "x.pt", "x.pkl"]
    made = parse({"model.safetensors": WHOLE, "config.json": b"{}", "vocab.txt": b""} | dict.fromkeys(stray, b"?"))
    assert set(made.files) == {"config.json", "vocab.txt"}


def test_single_file_of_any_name() -> None:
    assert list(parse({"weights.safetensors": WHOLE, "config.json": b"{}"}).entries) == ["a"]


def test_declared_size_is_doubted_not_refused() -> None:
    files = sample_files.hf_directory()
    bundle = MemoryBundle(files)
    assert read_index(bundle).total_size == 15
    assert list(CONTAINER.doubts(bundle, CONTAINER.parse(bundle))) == []
    wrong = MemoryBundle(files | {INDEX: files[INDEX].replace(b"15", b"16")})
    assert [code for code, _ in CONTAINER.doubts(wrong, CONTAINER.parse(wrong))] == ["E_TOTAL_SIZE"]


STRAYS = {
    "beside an index": ("model.safetensors", True),
    "an older shard": ("model-00001-of-00009.safetensors", True),
    "another name": ("consolidated.safetensors", False),
    "in a folder": ("old/model.safetensors", False),
    "in another format": ("pytorch_model.bin", False),
    "a side file": ("notes.md", None),
}


@pytest.mark.parametrize("case", STRAYS)
@pytest.mark.parametrize("indexed", [True, False])
def test_weights_that_are_no_part_of_the_model(case: str, indexed: bool) -> None:
    """A warning where other loaders would take them for a part, a line of `inspect` for all, silence about other files."""
    name, warned = STRAYS[case]
    files = sample_files.hf_directory() if indexed else {"model.safetensors": WHOLE, "config.json": b"{}"}
    assert unread_weights(MemoryBundle(files)) == {}
    bundle = MemoryBundle(files | {name: WHOLE})
    added = name not in files
    found = [message for code, message in CONTAINER.doubts(bundle, CONTAINER.parse(bundle)) if code == "E_STRAY"]
    assert len(found) == int(bool(warned) and added)
    assert all(name in message and str(len(WHOLE)) in message for message in found)
    listed = CONTAINER.facts(bundle).get("weights_not_read", [])
    assert listed == ([f"{name} ({len(WHOLE)} bytes)"] if added and warned is not None else [])


def model(*sizes: int) -> Manifest:
    specs = {f"t{i}": TensorSpec((size,), DType.U8) for i, size in enumerate(sizes)}
    entries = {name: Entry(name, spec, RAW, {"data": spec}) for name, spec in specs.items()}
    return Manifest("hf", entries, files={"config.json": b"{}", "notes.md": Extent("notes.md", 0, 3)}, dialect="hf")


def payload(entry: Entry, part: str) -> bytes:
    return bytes([int(entry.name[1:])]) * entry.parts[part].nbytes


@pytest.mark.parametrize(
    ("shard_bytes", "shards"),
    [(None, [3]), (100, [3]), (60, [3]), (59, [2, 1]), (30, [2, 1]), (20, [1, 1, 1]), (1, [1, 1, 1])],
)
def test_shards(shard_bytes: int | None, shards: list[int]) -> None:
    source = MemoryBundle({"notes.md": b"abc"})
    placement = CONTAINER.place(model(10, 20, 30), "out", shard_bytes)
    files = materialise(placement, payload, source)
    assert files["notes.md"] == b"abc"
    assert files["config.json"] == b"{}"
    read = parse(files)
    assert list(read.entries.items()) == list(placement.manifest.entries.items())
    if len(shards) == 1:
        assert set(files) == {"model.safetensors", "config.json", "notes.md"}
        return
    index = json.loads(files[INDEX])
    expected = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i, count in enumerate(shards) for _ in range(count)]
    assert index == {"metadata": {"total_size": 60}, "weight_map": dict(zip(["t0", "t1", "t2"], expected, strict=True))}
    assert list(index["weight_map"]) == sorted(index["weight_map"])
    assert list(CONTAINER.doubts(MemoryBundle(files), read)) == []


def test_remux_is_byte_identical() -> None:
    source = MemoryBundle({"notes.md": b"abc"})
    files = materialise(CONTAINER.place(model(5, 7), "out", 6), payload, source)
    bundle = MemoryBundle(files)
    read = CONTAINER.parse(bundle)
    assert materialise(CONTAINER.place(read, "out", 6), from_bundle(read, bundle), bundle) == files


def test_carries_only_what_loads_elsewhere() -> None:
    spec = TensorSpec((2, 32), DType.F32)
    assert CONTAINER.carries(spec, RAW)
    assert not CONTAINER.carries(spec, CodecSpec("q4_0"))
    made = Manifest("gguf", {"w": Entry("w", spec, CodecSpec("q4_0"), {"blocks": TensorSpec((2, 18), DType.U8)})})
    with pytest.raises(UnsupportedError, match="hf cannot hold"):
        CONTAINER.place(made, "out")


def test_probe() -> None:
    assert CONTAINER.probe(MemoryBundle({"config.json": b"{}"}))
    assert CONTAINER.probe(MemoryBundle({"x.safetensors": WHOLE}))
    assert not CONTAINER.probe(MemoryBundle({"readme.md": b""}))
    assert not CONTAINER.probe(MemoryBundle({"x.safetensors": WHOLE}, is_directory=False))
