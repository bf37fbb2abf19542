"""The safetensors container: what it reads, what it writes, and that both agree."""

from __future__ import annotations

import json
import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight.containers import safetensors
from flyweight.containers.safetensors import DTYPES, Safetensors, read_header
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, UnsupportedError
from flyweight.foundation.manifest import Entry, Extent, Manifest, Typed
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.sources import MemoryBundle, MemorySource
from support import sample_files
from support.materialise import from_bundle, materialise
from support.raw_files import safetensors_file, tensor_json

CONTAINER = Safetensors()


def bundle(files: dict[str, bytes]) -> MemoryBundle:
    return MemoryBundle(files, is_directory=False)


def raw(name: str, dtype: DType, *shape: int) -> Entry:
    spec = TensorSpec(shape, dtype)
    return Entry(name, spec, RAW, {"data": spec})


def encoded(name: str, codec: CodecSpec, spec: TensorSpec, **parts: TensorSpec) -> Entry:
    return Entry(name, spec, codec, parts)


def manifest(*entries: Entry, metadata: dict[str, Typed] | None = None, dialect: str = "hf") -> Manifest:
    return Manifest("safetensors", {e.name: e for e in entries}, metadata or {}, dialect=dialect)


def written(made: Manifest) -> tuple[bytes, Manifest]:
    """The file for a manifest, its payload recognisable, and the manifest with its places."""
    placement = CONTAINER.place(made, "x.safetensors")
    files = materialise(placement, lambda entry, part: bytes([len(entry.name + part)]) * entry.parts[part].nbytes)
    return files["x.safetensors"], placement.manifest


def test_reads_a_plain_file() -> None:
    made = CONTAINER.parse(bundle(sample_files.safetensors()))
    assert list(made.entries) == ["embed", "norm", "mask", "empty", "scalar"]
    assert made.entries["norm"].spec == TensorSpec((4,), DType.BF16)
    start = len(sample_files.safetensors()["model.safetensors"]) - 36
    assert made.entries["norm"].extents == {"data": Extent("model.safetensors", start + 24, 8)}
    assert made.metadata == {"format": Typed("str", "pt"), "note": Typed("str", "grüße")}
    assert made.dialect == "hf"


def test_reads_encoded_tensors_and_typed_metadata() -> None:
    made = CONTAINER.parse(bundle(sample_files.safetensors_described()))
    assert list(made.entries) == ["plain", "w", "q"]
    w = made.entries["w"]
    assert w.codec == CodecSpec("strange", {"bits": 4, "form": "x"})
    assert w.parts == {"codes": TensorSpec((1, 16), DType.U8), "scale": TensorSpec((1,), DType.F32)}
    assert made.metadata["a"] == Typed("[[i32]]", [[1, -2], []])
    assert made.metadata["b"] == Typed("f32", -math.inf)
    assert "format" not in made.metadata
    assert made.dialect == "gguf"


@pytest.mark.parametrize("label", DTYPES)
def test_every_element_type(label: str) -> None:
    nbytes = 8 * DTYPES[label].bits // 8
    file = safetensors_file({"w": tensor_json(label, [2, 4], 0, nbytes)}, bytes(nbytes))
    spec = CONTAINER.parse(bundle({"m": file})).entries["w"].spec
    assert spec == TensorSpec((2, 4), DTYPES[label])
    again, _ = written(manifest(raw("w", DTYPES[label], 2, 4)))
    assert json.loads(again[8 : 8 + struct.unpack("<Q", again[:8])[0]])["w"]["dtype"] == label


def test_data_starts_aligned_and_the_loader_is_told_the_format() -> None:
    file, _ = written(manifest(raw("a", DType.F32, 3)))
    (length,) = struct.unpack("<Q", file[:8])
    assert length % 8 == 0
    assert json.loads(file[8 : 8 + length])["__metadata__"] == {"format": "pt"}


def test_order_is_kept_when_it_is_aligned() -> None:
    _, placed = written(manifest(raw("z", DType.F32, 3), raw("a", DType.BF16, 2), raw("m", DType.F32, 1)))
    assert sorted(placed.entries, key=lambda name: placed.entries[name].extents["data"].offset) == ["z", "a", "m"]


def test_wide_elements_come_first_when_order_would_misalign_them() -> None:
    file, placed = written(
        manifest(raw("a", DType.U8, 3), raw("b", DType.F16, 1), raw("c", DType.F64, 1), raw("d", DType.F64, 1))
    )
    start = 8 + struct.unpack("<Q", file[:8])[0]
    for entry in placed.entries.values():
        assert (entry.extents["data"].offset - start) % entry.spec.dtype.itemsize == 0
    assert list(CONTAINER.parse(bundle({"x.safetensors": file})).entries) == ["a", "b", "c", "d"]


def test_single_part_takes_the_tensor_name() -> None:
    blocks = TensorSpec((2, 18), DType.U8)
    file, _ = written(manifest(encoded("w", CodecSpec("q4_0"), TensorSpec((2, 32), DType.F32), blocks=blocks)))
    assert set(read_header(MemorySource(file), "x").tensors) == {"w"}


def test_part_keys_may_not_collide() -> None:
    spec = TensorSpec((2,), DType.F32)
    two = encoded("w", CodecSpec("x"), spec, codes=TensorSpec((2,), DType.U8), scale=spec)
    with pytest.raises(UnsupportedError, match="which is taken") as error:
        written(manifest(two, raw("w.codes", DType.U8, 1)))
    assert error.value.code == "E_KEY"


def test_refuses_what_the_format_cannot_hold() -> None:
    assert not CONTAINER.carries(TensorSpec((2,), DType.I4), RAW)
    assert not CONTAINER.carries(TensorSpec((3,), DType.F4_E2M1), RAW)
    assert CONTAINER.carries(TensorSpec((4,), DType.F4_E2M1), RAW)
    assert CONTAINER.carries(TensorSpec((3, 5), DType.F32), CodecSpec("anything"))
    with pytest.raises(UnsupportedError):
        written(manifest(encoded("w", CodecSpec("x"), TensorSpec((2,), DType.F32), codes=TensorSpec((2,), DType.U4))))


def test_metadata_under_a_reserved_key_is_kept() -> None:
    metadata = {"flyweight.tensors": Typed("str", "mine"), "format": Typed("str", "other")}
    file, _ = written(manifest(raw("a", DType.U8, 1), metadata=metadata))
    assert CONTAINER.parse(bundle({"x.safetensors": file})).metadata == metadata


def test_own_format_key_wins() -> None:
    file, _ = written(manifest(raw("a", DType.U8, 1), metadata={"format": Typed("str", "mlx")}))
    assert CONTAINER.parse(bundle({"x.safetensors": file})).metadata == {"format": Typed("str", "mlx")}


def test_probe_needs_a_brace_or_the_suffix() -> None:
    good = sample_files.safetensors()["model.safetensors"]
    assert CONTAINER.probe(bundle({"weights": good}))
    assert not CONTAINER.probe(bundle({"weights": b"12345678[]"}))
    assert CONTAINER.probe(bundle({"w.safetensors": b""}))
    assert not CONTAINER.probe(MemoryBundle({"m.safetensors": good}))


integers = st.sampled_from([("u8", 0, 255), ("i8", -128, 127), ("u32", 0, 2**32 - 1), ("i64", -(2**63), 2**63 - 1)])
scalar = st.one_of(
    integers.flatmap(lambda r: st.tuples(st.just(r[0]), st.integers(r[1], r[2]))),
    st.tuples(st.just("f32"), st.floats(width=32)),
    st.tuples(st.just("f64"), st.floats()),
    st.tuples(st.just("bool"), st.booleans()),
    st.tuples(st.just("str"), st.text()),
    st.tuples(st.just("[str]"), st.lists(st.text())),
    st.tuples(st.just("[f32]"), st.lists(st.floats(width=32))),
    st.tuples(st.just("[[bool]]"), st.lists(st.lists(st.booleans()))),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.dictionaries(st.text(), scalar))
def test_typed_metadata_survives(values: dict[str, tuple[str, object]]) -> None:
    metadata = {key: Typed(kind, value) for key, (kind, value) in values.items()}
    file, _ = written(manifest(raw("a", DType.U8, 1), metadata=metadata, dialect="gguf"))
    read = CONTAINER.parse(bundle({"x.safetensors": file}))
    assert repr(list(read.metadata.items())) == repr(list(metadata.items()))  # repr: NaN is not equal to itself
    assert read.dialect == "gguf"


names = st.text(min_size=1, max_size=12).filter(lambda text: "\0" not in text)
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
stored = st.sampled_from([d for d in DTYPES.values() if d.bits >= 8])
plain = st.builds(lambda name, dtype, shape: raw(name, dtype, *shape), names, stored, shapes)
coded = st.builds(
    lambda name, parts: encoded(name, CodecSpec("odd", {"k": 1, "on": True}), TensorSpec((3, 4), DType.F32), **parts),
    names,
    st.dictionaries(st.sampled_from(["codes", "scale", "bias"]), st.builds(TensorSpec, shapes, stored), min_size=1),
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(plain | coded, max_size=6, unique_by=lambda entry: entry.name))
def test_what_is_placed_is_what_is_parsed(entries: list[Entry]) -> None:
    made = manifest(*entries)
    keys = [e.name if len(e.parts) == 1 else f"{e.name}.{part}" for e in entries for part in e.parts]
    if len(set(keys)) < len(keys):
        with pytest.raises(UnsupportedError, match="which is taken"):
            written(made)
        return
    file, placed = written(made)
    files = {"x.safetensors": file}
    read = CONTAINER.parse(bundle(files))
    assert list(read.entries.items()) == list(placed.entries.items())
    assert materialise(CONTAINER.place(read, "x.safetensors"), from_bundle(read, bundle(files))) == files


LINES = [
    '"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}',
    '"é, }": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [8, 16]}',
    '"empty":{"dtype":"U8","shape":[0],"data_offsets":[16,16]}',
]
ODD = [
    '"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}',
    '"w":{"shape":[2],"dtype":"F32","data_offsets":[0,8]}',
    '"\\u0077":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}',
    '"w":{"dtype":"F32","shape":[02],"data_offsets":[0,8]}',
    '"w":{"dtype":"F32","shape":[2,],"data_offsets":[0,8]}',
    '"w":{"dtype":"F32","shape":[2],"data_offsets":[0,08]}',
    '"w":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}',
    '"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":0}',
    '"w":{"dtype":"Q9","shape":[2],"data_offsets":[0,8]}',
    '"__metadata__":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}',
    '"":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}',
    "",
    "x",
]
METADATA = [
    '"__metadata__":{"format":"pt"}',
    '"__metadata__": {"{}\\"": "\\ud800"}',
    '"__metadata__":{"a":1}',
    '"__metadata__":{}',
]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from(METADATA), max_size=1),
    st.lists(st.sampled_from(LINES + ODD), max_size=4),
    st.sampled_from([",", ", ", ",,", " ,"]),
    st.sampled_from(["}", "}  ", ",}", "", "}\0", "}}"]),
)
def test_the_quick_reader_says_what_the_strict_one_says_or_nothing(
    metadata: list[str], lines: list[str], comma: str, end: str
) -> None:
    text = ("{" + comma.join(metadata + lines) + end).encode()
    quick = safetensors._read_lines(memoryview(text), "x", 8)
    try:
        strict = safetensors._read_table(safetensors.strict_json.loads(text, file="x"), "x", "x", 8)
    except FlyweightError:
        assert quick is None
    else:
        usual = set(lines) <= set(LINES) and comma.startswith(",") and "\\" not in "".join(metadata)
        assert quick == strict if usual else quick in (None, strict)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(1, 40), st.integers(70, 400), st.booleans(), st.sampled_from(["", " "]), st.data())
def test_the_quick_reader_in_any_window_and_with_any_byte_changed(
    count: int, window: int, sorted_keys: bool, blank: str, data: st.DataObject
) -> None:
    """A table as safetensors or MLX writes it is read window by window; with a byte changed, alike or not at all."""
    about = {f"layer.{i}": {"dtype": "F32", "shape": [i % 3], "data_offsets": [8 * i, 8 * i + i % 3 * 4]} for i in range(count)}
    text = json.dumps(about, sort_keys=sorted_keys, separators=(f",{blank}", f":{blank}")).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(safetensors, "_AT_ONCE", window)
        quick = safetensors._read_lines(memoryview(text), "x", 8)
        strict = safetensors._read_table(json.loads(text), "x", "x", 8)
        assert quick == strict if window >= 2 * 90 else quick in (None, strict)
        at = data.draw(st.integers(1, len(text) - 1))
        broken = text[:at] + data.draw(st.sampled_from([b"0", b"9", b'"', b",", b"}", b"\\", b" ", b"\0"])) + text[at + 1 :]
        quick = safetensors._read_lines(memoryview(broken), "x", 8)
    try:
        strict = safetensors._read_table(safetensors.strict_json.loads(broken, file="x"), "x", "x", 8)
    except FlyweightError:
        assert quick is None
    else:
        assert quick in (None, strict)
