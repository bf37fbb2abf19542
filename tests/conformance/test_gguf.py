"""Against the gguf package, both ways, whole and split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from flyweight.containers.gguf import BLOCKS, PLAIN, Gguf
from flyweight.containers.gguf_values import VALUE_TYPES
from flyweight.containers.safetensors import Safetensors
from flyweight.foundation.dtypes import DType
from flyweight.foundation.manifest import Entry, Manifest, Typed
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.sources import MemoryBundle, open_bundle
from support.materialise import from_bundle, materialise

METADATA = {
    "general.architecture": Typed("str", "llama"),
    "general.name": Typed("str", "grüße \U0001f600"),
    "u8": Typed("u8", 255),
    "i8": Typed("i8", -1),
    "u16": Typed("u16", 65535),
    "i16": Typed("i16", -1),
    "u32": Typed("u32", 2**32 - 1),
    "i32": Typed("i32", -1),
    "u64": Typed("u64", 2**64 - 1),
    "i64": Typed("i64", -1),
    "f32": Typed("f32", 0.5),
    "f64": Typed("f64", 0.1),
    "bool": Typed("bool", True),
    "tokens": Typed("[str]", ["<s>", "a b", "é"]),
    "scores": Typed("[f32]", [0.5, -1.0]),
    "types": Typed("[i32]", [1, 2, 3]),
}

rng = np.random.default_rng(7)
ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "token_embd.weight": rng.standard_normal((4, 64)).astype(np.float32),
    "output_norm.weight": rng.standard_normal(5).astype(np.float32),
    "half": rng.standard_normal((3, 2, 4)).astype(np.float16),
    "ints": np.arange(6, dtype=np.int32).reshape(1, 2, 3, 1),
    "bytes": np.arange(3, dtype=np.int8),
    "doubles": np.arange(2, dtype=np.float64),
}


def quantised(kind: gguf.GGMLQuantizationType, rows: int = 2, blocks: int = 2) -> np.ndarray[Any, Any]:
    _, nbytes = gguf.GGML_QUANT_SIZES[kind]
    return rng.integers(0, 256, (rows, blocks * nbytes), dtype=np.uint8)


def write(path: Path, metadata: dict[str, Typed], tensors: dict[str, tuple[Any, Any]], **options: Any) -> None:
    writer = gguf.GGUFWriter(path, "llama", **options)
    for key, typed in metadata.items():
        if key == "general.architecture":
            continue
        if typed.type.startswith("["):
            writer.add_array(key, typed.value)
        else:
            kinds = {"bool": "BOOL", "str": "STRING"}
            name = kinds.get(typed.type) or typed.type.replace("u", "UINT").replace("i", "INT").replace("f", "FLOAT")
            writer.add_key_value(key, typed.value, gguf.GGUFValueType[name])
    for name, (array, kind) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_the_tables_are_theirs() -> None:
    sizes = {int(kind): size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    mine = {n: (1, d.itemsize) for n, d in PLAIN.items()} | {n: (b.elements, b.nbytes) for n, b in BLOCKS.items()}
    differing = {number for number in sizes if mine.get(number) != sizes[number]}
    assert differing == {int(gguf.GGMLQuantizationType.Q8_1)}  # 36 bytes in ggml, 40 in gguf-py
    assert mine.keys() - sizes.keys() == {42}  # newer in ggml than in this release
    for number, block in BLOCKS.items():
        if number in sizes:
            assert gguf.GGMLQuantizationType(number).name.lower() == block.name
    assert [gguf.GGUFValueType(i).name for i in range(len(VALUE_TYPES))][9] == "ARRAY"
    assert len(VALUE_TYPES) == len(gguf.GGUFValueType)


def test_we_read_what_they_write(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    q4 = quantised(gguf.GGMLQuantizationType.Q4_0)
    tensors = {name: (array, None) for name, array in ARRAYS.items()} | {"q": (q4, gguf.GGMLQuantizationType.Q4_0)}
    write(path, METADATA, tensors)
    bundle = open_bundle(path)
    made = Gguf().parse(bundle)
    assert made.metadata == METADATA
    for name, array in ARRAYS.items():
        entry = made.entries[name]
        extent = entry.extents["data"]
        assert entry.spec.shape == array.shape
        assert bytes(bundle[extent.file].read(extent.offset, extent.nbytes)) == array.tobytes()
    q = made.entries["q"]
    assert (q.codec, q.spec) == (CodecSpec("q4_0"), TensorSpec((2, 64), DType.F32))
    assert bytes(bundle[q.extents["blocks"].file].read(q.extents["blocks"].offset, q.nbytes)) == q4.tobytes()
    # Their file, parsed and placed again, is the same file.
    raw = materialise(Gguf().place(made, "m.gguf"), from_bundle(made, bundle))["m.gguf"]
    assert raw == path.read_bytes()
    bundle.close()


def test_they_read_what_we_write(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    payload = {name: array.tobytes() for name, array in ARRAYS.items()}
    dtypes = {"<f4": DType.F32, "<f2": DType.F16, "<i4": DType.I32, "|i1": DType.I8, "<f8": DType.F64}
    entries = {}
    for name, array in ARRAYS.items():
        spec = TensorSpec(array.shape, dtypes[array.dtype.str])
        entries[name] = Entry(name, spec, RAW, {"data": spec})
    for number, block in BLOCKS.items():
        if number in (9, 42):
            continue
        parts = {"blocks": TensorSpec((3, 2 * block.nbytes), DType.U8)}
        entries[block.name] = Entry(block.name, TensorSpec((3, 2 * block.elements), DType.F32), CodecSpec(block.name), parts)
        payload[block.name] = rng.integers(0, 256, 6 * block.nbytes, dtype=np.uint8).tobytes()
    placement = Gguf().place(Manifest("gguf", entries, METADATA, dialect="gguf"), path.name)
    path.write_bytes(materialise(placement, lambda entry, part: payload[entry.name])[path.name])

    reader = gguf.GGUFReader(path)
    assert {key: reader.get_field(key).contents() for key in METADATA} == {key: typed.value for key, typed in METADATA.items()}
    assert [t.name for t in reader.tensors] == list(entries)
    for tensor in reader.tensors:
        assert tensor.data.tobytes() == payload[tensor.name]
        assert tuple(reversed(tensor.shape.tolist())) == entries[tensor.name].spec.shape


def test_they_read_metadata_without_tensors(tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    placement = Gguf().place(Manifest("gguf", {}, METADATA, dialect="gguf"), path.name)
    path.write_bytes(materialise(placement, lambda entry, part: b"")[path.name])
    reader = gguf.GGUFReader(path)
    assert [key for key in reader.fields if not key.startswith("GGUF.")] == list(METADATA)


def test_we_join_what_they_split(tmp_path: Path) -> None:
    tensors = {f"t{i}": (np.full((8, 8), i, np.float32), None) for i in range(5)}
    write(tmp_path / "m.gguf", METADATA, tensors, split_max_tensors=2)
    parts = sorted(tmp_path.iterdir())
    assert [p.name for p in parts] == [f"m-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
    for opened in (tmp_path, *parts):
        bundle = open_bundle(opened)
        made = Gguf().parse(bundle)
        assert list(made.entries) == list(tensors)
        assert made.metadata == METADATA
        for i, entry in enumerate(made.entries.values()):
            extent = entry.extents["data"]
            raw = bundle.siblings()[extent.file].read(extent.offset, extent.nbytes)
            assert np.frombuffer(raw, np.float32).tolist() == [float(i)] * 64
        bundle.close()


def test_they_read_what_we_split(tmp_path: Path) -> None:
    spec = TensorSpec((8, 8), DType.F32)
    entries = {f"t{i}": Entry(f"t{i}", spec, RAW, {"data": spec}) for i in range(5)}
    placement = Gguf().place(Manifest("gguf", entries, METADATA, dialect="gguf"), "m.gguf", 600)
    files = materialise(placement, lambda entry, part: np.full(64, int(entry.name[1:]), np.float32).tobytes())
    assert list(files) == [f"m-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
    seen = []
    for number, (name, raw) in enumerate(files.items()):
        (tmp_path / name).write_bytes(raw)
        reader = gguf.GGUFReader(tmp_path / name)
        split = {key: reader.get_field(f"split.{key}").contents() for key in ("no", "count", "tensors.count")}
        assert split == {"no": number, "count": 3, "tensors.count": 5}
        assert (reader.get_field("tokens") is not None) == (number == 0)
        seen += [(t.name, float(t.data.flat[0])) for t in reader.tensors]
    assert seen == [(f"t{i}", float(i)) for i in range(5)]


def test_through_safetensors_their_file_comes_back_whole(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    kinds = [gguf.GGMLQuantizationType.Q6_K, gguf.GGMLQuantizationType.IQ2_XXS, gguf.GGMLQuantizationType.MXFP4]
    write(path, METADATA, {kind.name: (quantised(kind), kind) for kind in kinds})
    bundle = open_bundle(path)
    first = Gguf().parse(bundle)
    middle = materialise(Safetensors().place(first, "m.safetensors"), from_bundle(first, bundle))
    between = MemoryBundle(middle, is_directory=False)
    second = Safetensors().parse(between)
    back = materialise(Gguf().place(second, "m.gguf"), from_bundle(second, between))["m.gguf"]
    assert back == path.read_bytes()
    bundle.close()
