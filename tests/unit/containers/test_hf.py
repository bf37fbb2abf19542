"""A Hugging Face directory: the index is the truth, side files survive, shards follow the convention."""

from __future__ import annotations

import json

import pytest

from flyweight.containers.hf import INDEX, HfDirectory, read_index, unread_weights
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.manifest import Entry, Extent, Manifest
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.sources import MemoryBundle
from support import sample_files
from support.materialise import from_bundle, materialise
from support.raw_files import safetensors_file, tensor_json

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
    assert list(CONTAINER.warnings(bundle, CONTAINER.parse(bundle))) == []
    wrong = MemoryBundle(files | {INDEX: files[INDEX].replace(b"15", b"16")})
    assert [code for code, _ in CONTAINER.warnings(wrong, CONTAINER.parse(wrong))] == ["E_TOTAL_SIZE"]


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
    found = [message for code, message in CONTAINER.warnings(bundle, CONTAINER.parse(bundle)) if code == "E_STRAY"]
    assert len(found) == int(bool(warned) and added)
    assert all(name in message and str(len(WHOLE)) in message for message in found)
    listed = CONTAINER.summary(bundle).get("weights_not_read", [])
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
    assert list(CONTAINER.warnings(MemoryBundle(files), read)) == []


def test_remux_is_byte_identical() -> None:
    source = MemoryBundle({"notes.md": b"abc"})
    files = materialise(CONTAINER.place(model(5, 7), "out", 6), payload, source)
    bundle = MemoryBundle(files)
    read = CONTAINER.parse(bundle)
    assert materialise(CONTAINER.place(read, "out", 6), from_bundle(read, bundle), bundle) == files


def test_what_is_plain_is_of_a_type_that_loads_elsewhere() -> None:
    spec = TensorSpec((3,), DType.F4_E2M1)
    assert CONTAINER.carries(TensorSpec((2, 32), DType.F32), RAW)
    assert not CONTAINER.carries(spec, RAW)
    with pytest.raises(UnsupportedError, match="hf cannot store"):
        CONTAINER.place(Manifest("gguf", {"w": Entry("w", spec, RAW, {"data": spec})}), "out")


def described(name: str, codec: str = "unknown") -> dict[str, bytes]:
    about = {name: {"shape": [2, 4], "dtype": "f32", "codec": {"name": codec, "params": {}}, "parts": {"x": "x", "y": "y"}}}
    return {"__metadata__": {"flyweight.tensors": json.dumps(about)}}


def test_a_codec_nobody_knows_is_described_in_its_shard() -> None:
    parts = {"x": TensorSpec((3,), DType.U8), "y": TensorSpec((5,), DType.U8)}
    entries = {name: Entry(name, TensorSpec((2, 4), DType.F32), CodecSpec("unknown", {"a": 1}), parts) for name in "pq"}
    manifest = Manifest("hf", entries, {}, {"config.json": b'{"a": 1}'}, "hf")
    placement = CONTAINER.place(manifest, "out", 8)
    files = materialise(placement, lambda entry, part: bytes(entry.parts[part].nbytes))
    assert len([name for name in files if name.endswith(".safetensors")]) == 2
    assert json.loads(files["config.json"])["quantization_config"]["quant_method"] == "flyweight"
    assert dict(parse(files).entries) == dict(placement.manifest.entries)


def test_a_tensor_in_two_shards_is_refused() -> None:
    table = {"x": tensor_json("U8", [1], 0, 1), "y": tensor_json("U8", [1], 1, 2)}
    again = {"x2": table["x"], "y2": table["y"]}
    text = described("w")["__metadata__"]["flyweight.tensors"]
    other = text.replace('"x": "x"', '"x": "x2"').replace('"y": "y"', '"y": "y2"')
    files = {
        "model-1.safetensors": safetensors_file({"__metadata__": {"flyweight.tensors": text}, **table}, b"ab"),
        "model-2.safetensors": safetensors_file({"__metadata__": {"flyweight.tensors": other}, **again}, b"ab"),
    }
    weight_map = {"x": "model-1.safetensors", "y": "model-1.safetensors"} | dict.fromkeys(("x2", "y2"), "model-2.safetensors")
    files[INDEX] = json.dumps({"weight_map": weight_map}).encode()
    with pytest.raises(MalformedError, match="in two shards"):
        parse(files)


def test_probe() -> None:
    assert CONTAINER.probe(MemoryBundle({"config.json": b"{}"}))
    assert CONTAINER.probe(MemoryBundle({"x.safetensors": WHOLE}))
    assert not CONTAINER.probe(MemoryBundle({"readme.md": b""}))
    assert not CONTAINER.probe(MemoryBundle({"x.safetensors": WHOLE}, is_directory=False))
