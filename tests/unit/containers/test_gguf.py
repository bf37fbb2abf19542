"""The GGUF container: every value and tensor type, splits, and byte-identical remuxes."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight.containers.container import Container
from flyweight.containers.gguf import BLOCKS, PLAIN, Gguf
from flyweight.containers.safetensors import Safetensors
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import LimitError, UnsupportedError
from flyweight.foundation.manifest import NUMBER_CODES, Entry, Manifest, Numbers, Typed
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.sources import MemoryBundle, open_bundle
from support import sample_files
from support.materialise import from_bundle, materialise
from support.raw_files import GgufTensor, KeyValue, gguf_file, gguf_string

CONTAINER = Gguf()


def lone(raw: bytes, name: str = "model.gguf") -> MemoryBundle:
    return MemoryBundle({name: raw}, is_directory=False)


def remux(container: Container, manifest: Manifest, bundle: MemoryBundle, name: str) -> MemoryBundle:
    return lone(materialise(container.place(manifest, name), from_bundle(manifest, bundle))[name], name)


def test_reads_every_value_type() -> None:
    made = CONTAINER.parse(lone(sample_files.gguf()["model.gguf"]))
    assert made.metadata["u64"] == Typed("u64", 2**64 - 1)
    assert made.metadata["bool"] == Typed("bool", True)
    assert made.metadata["tokens"] == Typed("[str]", ["<s>", "", "grüße", "\U0001f600"])
    assert made.metadata["flags"] == Typed("[bool]", [True, False])
    assert made.metadata["none"] == Typed("[f32]", [])
    assert made.metadata["nested"] == Typed("[[i32]]", [[1, -2], []])
    assert made.metadata["f64"] == Typed("f64", float("inf"))
    assert next(iter(made.metadata)) == "general.architecture"
    assert made.dialect == "gguf"


def test_shapes_are_row_major_and_types_become_codecs() -> None:
    entries = CONTAINER.parse(lone(sample_files.gguf()["model.gguf"])).entries
    assert entries["token_embd.weight"].spec == TensorSpec((2, 32), DType.F32)
    assert entries["token_embd.weight"].codec == CodecSpec("q4_0")
    assert entries["token_embd.weight"].parts == {"blocks": TensorSpec((2, 18), DType.U8)}
    assert entries["blk.0.ffn_gate_exps.weight"].spec == TensorSpec((2, 2, 4), DType.BF16)
    assert entries["scalar"].spec == TensorSpec((), DType.I8)


@pytest.mark.parametrize("version", [2, 3])
def test_versions(version: int) -> None:
    assert CONTAINER.parse(lone(gguf_file([KeyValue("k", 8, "v")], version=version))).metadata == {"k": Typed("str", "v")}


@pytest.mark.parametrize("number", sorted(PLAIN | BLOCKS))
def test_every_tensor_type_survives(number: int) -> None:
    weights, nbytes = (BLOCKS[number].elements, BLOCKS[number].nbytes) if number in BLOCKS else (1, PLAIN[number].itemsize)
    data = bytes(i % 251 for i in range(6 * nbytes))
    padded = data + bytes(-len(data) % 32)
    bundle = lone(gguf_file([], [GgufTensor("w", (2 * weights, 3), number, 0)], padded))
    made = CONTAINER.parse(bundle)
    entry = made.entries["w"]
    assert entry.spec.shape == (3, 2 * weights)
    assert entry.nbytes == len(data)
    assert CONTAINER.carries(entry.spec, entry.codec)
    again = remux(CONTAINER, made, bundle, "model.gguf")
    assert again["model.gguf"].read(0, again["model.gguf"].size) == bundle["model.gguf"].read(0, bundle["model.gguf"].size)


def test_q8_1_has_36_bytes_as_ggml_has_it() -> None:
    assert BLOCKS[9].nbytes == 2 * 2 + 32


def test_last_padding_may_be_missing() -> None:
    raw = gguf_file([], [GgufTensor("w", (3,), 0, 0)], bytes(12))
    assert CONTAINER.parse(lone(raw)).entries["w"].nbytes == 12
    assert CONTAINER.parse(lone(raw + bytes(20))).entries["w"].nbytes == 12


def test_alignment_of_the_file_is_used() -> None:
    keys = [KeyValue("general.alignment", 4, 4096)]
    table = [GgufTensor("a", (1,), 0, 0), GgufTensor("b", (1,), 0, 4096)]
    raw = gguf_file(keys, table, bytes(8192), alignment=4096)
    bundle = lone(raw)
    made = CONTAINER.parse(bundle)
    assert made.entries["b"].extents["data"].offset == 8192
    assert bytes(remux(CONTAINER, made, bundle, "model.gguf")["model.gguf"].read(0, len(raw))) == raw


def test_through_safetensors_and_back_is_byte_identical() -> None:
    original = lone(sample_files.gguf()["model.gguf"])
    first = CONTAINER.parse(original)
    middle = remux(Safetensors(), first, original, "m.safetensors")
    second = Safetensors().parse(middle)
    assert second.dialect == "gguf"
    back = remux(CONTAINER, second, middle, "model.gguf")
    size = original["model.gguf"].size
    assert bytes(back["model.gguf"].read(0, size)) == bytes(original["model.gguf"].read(0, size))
    assert back["model.gguf"].size == size


def test_split_is_joined_from_a_directory_or_any_part(tmp_path: Path) -> None:
    files = sample_files.gguf_parts()
    joined = CONTAINER.parse(MemoryBundle(files))
    assert list(joined.entries) == ["a", "b", "c"]
    assert joined.entries["c"].extents["data"].file == "m-00002-of-00002.gguf"
    assert not any(key.startswith("split.") for key in joined.metadata)
    for name, raw in files.items():
        (tmp_path / name).write_bytes(raw)
    (tmp_path / "other.gguf").write_bytes(b"not part of it")
    for name in files:
        bundle = open_bundle(tmp_path / name)
        assert CONTAINER.parse(bundle).entries == joined.entries
        bundle.close()


def test_keys_of_a_merge_do_not_reach_the_model() -> None:
    keys = [
        KeyValue("split.no", 2, 0),
        KeyValue("split.count", 2, 0),
        KeyValue("split.tensors.count", 5, 3),
        KeyValue("k", 0, 1),
    ]
    assert CONTAINER.parse(lone(gguf_file(keys))).metadata == {"k": Typed("u8", 1)}


def model(*sizes: int, metadata: dict[str, Typed] | None = None) -> Manifest:
    specs = {f"t{i}": TensorSpec((size,), DType.F32) for i, size in enumerate(sizes)}
    entries = {name: Entry(name, spec, RAW, {"data": spec}) for name, spec in specs.items()}
    return Manifest("gguf", entries, metadata or {"general.architecture": Typed("str", "llama")}, dialect="gguf")


def payload(entry: Entry, part: str) -> bytes:
    return bytes([1 + int(entry.name[1:])]) * entry.parts[part].nbytes


@pytest.mark.parametrize(("shard_bytes", "parts"), [(None, 1), (128, 1), (127, 2), (64, 2), (32, 3), (1, 3)])
def test_parts_follow_the_naming(shard_bytes: int | None, parts: int) -> None:
    placement = CONTAINER.place(model(8, 8, 16), "x.gguf", shard_bytes)
    names = ["x.gguf"] if parts == 1 else [f"x-{i + 1:05d}-of-{parts:05d}.gguf" for i in range(parts)]
    assert list(placement.images) == names
    read = CONTAINER.parse(MemoryBundle(materialise(placement, payload)))
    assert list(read.entries.items()) == list(placement.manifest.entries.items())
    assert read.metadata == placement.manifest.metadata


def test_only_the_first_part_has_the_metadata() -> None:
    files = materialise(CONTAINER.place(model(8, 8), "x.gguf", 32), payload)
    assert b"general.architecture" in files["x-00001-of-00002.gguf"]
    assert b"general.architecture" not in files["x-00002-of-00002.gguf"]
    assert all(b"split.count" in raw for raw in files.values())


def test_writing_drops_old_split_keys() -> None:
    made = model(8, metadata={"split.count": Typed("u16", 7), "k": Typed("u8", 1)})
    assert CONTAINER.place(made, "x.gguf").manifest.metadata == {"k": Typed("u8", 1)}


def test_carries() -> None:
    f32 = TensorSpec((2, 32), DType.F32)
    assert CONTAINER.carries(f32, CodecSpec("q4_0"))
    assert not CONTAINER.carries(TensorSpec((2, 31), DType.F32), CodecSpec("q4_0"))
    assert not CONTAINER.carries(f32, CodecSpec("q4_k"))
    assert not CONTAINER.carries(f32, CodecSpec("affine", {"bits": 4}))
    assert not CONTAINER.carries(f32, CodecSpec("q4_0", {"bits": 4}))
    assert not CONTAINER.carries(TensorSpec((1,) * 5, DType.F32), RAW)
    assert not CONTAINER.carries(TensorSpec((1,), DType.U8), RAW)
    assert not CONTAINER.carries(TensorSpec((), DType.F32), CodecSpec("q4_0"))


def test_names_ggml_would_cut_are_refused() -> None:
    long = "w" * 64
    spec = TensorSpec((1,), DType.F32)
    made = Manifest("gguf", {long: Entry(long, spec, RAW, {"data": spec})}, dialect="gguf")
    with pytest.raises(UnsupportedError) as error:
        CONTAINER.place(made, "x.gguf")
    assert error.value.code == "E_NAME"


def test_the_49_byte_file_fails_at_once() -> None:
    raw = gguf_file([KeyValue("k", 9, struct.pack("<IQ", 0, 2**63))], alignment=1)
    assert len(raw) == 49
    start = time.process_time()
    with pytest.raises(LimitError):
        CONTAINER.parse(lone(raw))
    assert time.process_time() - start < 0.05


def test_long_vocabularies_are_read_quickly() -> None:
    """300,000 strings; the naive loop takes several times as long."""
    words = b"".join(gguf_string(f"Ġtoken{i}") for i in range(300_000))
    bundle = lone(gguf_file([KeyValue("tokens", 9, struct.pack("<IQ", 8, 300_000) + words)]))
    best = min(_seconds(bundle) for _ in range(3))
    assert best < 1.0  # 0.15 to 0.3 s measured; the bound leaves room for a loaded machine


def _seconds(bundle: MemoryBundle) -> float:
    start = time.process_time()
    assert CONTAINER.parse(bundle).metadata["tokens"].value[-1] == "Ġtoken299999"
    return time.process_time() - start


def test_probe_is_by_magic() -> None:
    good = sample_files.gguf()["model.gguf"]
    assert CONTAINER.probe(lone(good, "weights.bin"))
    assert not CONTAINER.probe(lone(b"GGJT" + bytes(20)))
    assert not CONTAINER.probe(lone(b"GG"))
    assert CONTAINER.probe(MemoryBundle({"m.gguf": good, "readme.md": b""}))
    assert not CONTAINER.probe(MemoryBundle({"a.gguf": good, "b.gguf": good}))
    assert not CONTAINER.probe(MemoryBundle({"a.gguf": good, "model.safetensors": b""}))


kinds = st.sampled_from([RAW, CodecSpec("q8_0"), CodecSpec("iq1_s"), CodecSpec("nvfp4")])
sizes = {block.name: block for block in BLOCKS.values()}


@st.composite
def tensors(draw: st.DrawFn) -> Entry:
    name = draw(st.text(min_size=1, max_size=15).filter(lambda t: "\0" not in t))
    codec = draw(kinds)
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=4)))
    if codec == RAW:
        spec = TensorSpec(shape, draw(st.sampled_from(sorted(PLAIN.values(), key=str))))
        return Entry(name, spec, RAW, {"data": spec})
    block = sizes[codec.name]
    shape = shape or (1,)
    blocks = TensorSpec((*shape[:-1], shape[-1] * block.nbytes), DType.U8)
    return Entry(name, TensorSpec((*shape[:-1], shape[-1] * block.elements), DType.F32), codec, {"blocks": blocks})


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(tensors(), max_size=5, unique_by=lambda e: e.name), st.sampled_from([None, 1, 200, 4096]))
def test_what_is_placed_is_what_is_parsed(entries: list[Entry], shard_bytes: int | None) -> None:
    made = Manifest("gguf", {e.name: e for e in entries}, {"general.alignment": Typed("u32", 64)}, dialect="gguf")
    placement = CONTAINER.place(made, "x.gguf", shard_bytes)
    files = materialise(placement, lambda entry, part: b"\xab" * entry.parts[part].nbytes)
    read = CONTAINER.parse(MemoryBundle(files))
    assert list(read.entries.items()) == list(placement.manifest.entries.items())
    assert read.metadata == made.metadata


@pytest.mark.parametrize("kind", NUMBER_CODES)
def test_arrays_of_numbers_are_sequences_and_survive_bit_for_bit(kind: str) -> None:
    size = struct.calcsize(NUMBER_CODES[kind])
    raw = bytes(i % 2 for i in range(24)) if kind == "bool" else bytes(range(244, 256)) * 2  # NaN among the floats
    numbers = Numbers(kind, raw)
    values = list(struct.unpack(f"<{24 // size}{NUMBER_CODES[kind]}", raw))
    assert repr(numbers.tolist()) == repr(list(numbers)) == repr([numbers[i] for i in range(len(numbers))]) == repr(values)
    assert len(numbers) == len(values)
    assert repr(numbers[1:3]) == repr(values[1:3])
    assert numbers == Numbers(kind, bytes(raw))
    assert numbers != values[:-1]
    made = model(4, metadata={"a": Typed(f"[{kind}]", numbers), "b": Typed(f"[[{kind}]]", [numbers, Numbers(kind, b"")])})
    placed = Gguf().place(made, "model.gguf")
    file = materialise(placed, payload)
    read = Gguf().parse(lone(file["model.gguf"]))
    assert read.metadata == made.metadata
    assert materialise(Gguf().place(read, "model.gguf"), payload) == file
