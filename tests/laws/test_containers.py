"""Laws of every container in CONTAINERS: what it places it parses back, byte for byte where it said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight.codecs import CODECS, codec_for
from flyweight.containers import CONTAINERS, recognise
from flyweight.containers.abilities import EmbedsFiles, adapted
from flyweight.containers.container import Container
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, UnsupportedError
from flyweight.foundation.manifest import Entry, Manifest, Typed
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.sources import MemoryBundle
from support.every_codec import INSTANCES
from support.materialise import materialise
from support.numbered_layers import as_llama

EMBEDDED_FILES = {"config.json": b'{"model_type": "toy"}', "tokenizer.json": b"{}"}
DIRECTORY_FILES = {"config.json": b'{"model_type": "toy"}', "notes/unknown.txt": b"kept"}


def entry(name: str, spec: TensorSpec, codec: CodecSpec = RAW) -> Entry:
    return Entry(name, spec, codec, codec_for(codec).layout(spec))


def everything(container: Container) -> dict[str, Entry]:
    """One tensor for each codec and element type the container carries, and odd shapes."""
    entries = [entry(f"raw.{d}", TensorSpec((4, 256), d)) for d in DType]
    entries += [
        entry(f"shape.{i}", TensorSpec(s, DType.F32)) for i, s in enumerate([(1,), (3,), (2, 1, 3), (5, 7), (1, 1, 1, 1)])
    ]
    for kind in CODECS:
        spec = TensorSpec((8, 256), kind().decoded_dtype(DType.F32))
        entries.append(entry(f"codec.{kind.name}.weight", spec, adapted(container, kind().spec, f"codec.{kind.name}.weight")))
    carried: dict[str, Entry] = {}
    for e in entries:
        if container.carries(e.spec, e.codec) and goes_together(container, {**carried, e.name: e}):
            carried[e.name] = e
    return carried


def goes_together(container: Container, entries: dict[str, Entry]) -> bool:
    """Some files hold one way of compressing at a time; others have their turn in `test_every_codec_it_carries_survives`."""
    try:
        container.place(draft(container, entries), "x")
    except UnsupportedError as error:
        return error.code != "E_PRIMARY"
    return True


def draft(container: Container, entries: dict[str, Entry]) -> Manifest:
    metadata = {"note": Typed("str", "text"), "format": Typed("str", "mlx" if container.name == "mlx" else "pt")}
    if container.dialect == "gguf":
        metadata = {"general.architecture": Typed("str", "toy"), "n": Typed("u32", 7), "a": Typed("[str]", ["x", "yé"])}
    files = DIRECTORY_FILES if container.is_directory else EMBEDDED_FILES if isinstance(container, EmbedsFiles) else {}
    if container.name == "uqff_blob":
        entries, config = as_llama(entries)
        files = {**files, "config.json": config}
    return Manifest(container.name, entries, metadata, files, container.dialect or "hf")


def payload(item: Entry, part: str) -> bytes:
    seed = sum(map(ord, item.name + part))
    spec = item.parts[part]
    raw = np.random.default_rng(seed).integers(0, 2 if spec.dtype is DType.BOOL else 256, spec.nbytes, np.uint8)
    return raw.tobytes()


def round_trip(container: Container, manifest: Manifest, shard_bytes: int | None) -> Manifest:
    placement = container.place(manifest, f"toy{container.suffix}", shard_bytes)
    files = materialise(placement, payload, container=container)
    bundle = MemoryBundle(files, is_directory=container.is_directory or len(files) > 1)
    assert recognise(bundle) is container
    parsed = container.parse(bundle)
    assert dict(parsed.entries) == dict(placement.manifest.entries)
    assert list(parsed.entries) == list(placement.manifest.entries)
    assert set(parsed.entries) == set(manifest.entries)
    for item in parsed.entries.values():
        for part, extent in item.extents.items():
            assert bytes(bundle[extent.file].read(extent.offset, extent.nbytes)) == payload(item, part)
    return parsed


@pytest.mark.parametrize("shard_bytes", [None, 2000], ids=["whole", "sharded"])
@pytest.mark.parametrize("container", CONTAINERS, ids=lambda c: c.name)
def test_parse_inverts_place(container: Container, shard_bytes: int | None) -> None:
    entries = everything(container)
    assert len(entries) > 5
    manifest = draft(container, entries)
    parsed = round_trip(container, manifest, shard_bytes)
    assert parsed.dialect == manifest.dialect
    assert dict(parsed.metadata) == dict(manifest.metadata)
    assert set(parsed.files) == set(manifest.files)


LAYER_TENSOR = "model.layers.3.weight"
CARRIED = [
    pytest.param(container, spec, codec, id=f"{container.name}-{kind.name}")
    for container in CONTAINERS
    for kind in CODECS
    for spec in [TensorSpec((8, 256), kind().decoded_dtype(DType.F32))]
    for codec in [adapted(container, kind().spec, LAYER_TENSOR)]
    if container.carries(spec, codec)
]


@pytest.mark.parametrize(("container", "spec", "codec"), CARRIED)
def test_every_codec_it_carries_survives(container: Container, spec: TensorSpec, codec: CodecSpec) -> None:
    plain = entry("model.norm.weight", TensorSpec((8,), DType.F32))
    needed = {n: e for n, e in everything(container).items() if n == "codec.affine.weight"}  # MLX needs one to be itself
    round_trip(container, draft(container, {**needed, LAYER_TENSOR: entry(LAYER_TENSOR, spec, codec), plain.name: plain}), None)


@pytest.mark.parametrize("container", CONTAINERS, ids=lambda c: c.name)
def test_place_is_deterministic(container: Container) -> None:
    manifest = draft(container, everything(container))
    assert container.place(manifest, "x", 2000) == container.place(manifest, "x", 2000)


@pytest.mark.parametrize("container", CONTAINERS, ids=lambda c: c.name)
def test_what_is_not_carried_is_refused(container: Container) -> None:
    manifest = draft(container, everything(container))
    for spec, codec in ((TensorSpec((3,), DType.F4_E2M1), RAW), (TensorSpec((4, 33), DType.F32), CodecSpec("q4_0"))):
        if container.carries(spec, codec):
            continue
        parts = {"data": spec} if codec == RAW else {"blocks": TensorSpec((2,), DType.U8)}
        foreign = Entry("foreign.weight", spec, codec, parts)
        with pytest.raises(FlyweightError):
            container.place(replace(manifest, entries={**manifest.entries, "foreign.weight": foreign}), "x")


@pytest.mark.parametrize("container", CONTAINERS, ids=lambda c: c.name)
@given(data=st.data())
@settings(max_examples=15, deadline=None, derandomize=True)
def test_any_names_and_shapes_survive(container: Container, data: st.DataObject) -> None:
    alphabet = st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=["Cs"])
    names = data.draw(st.lists(st.text(alphabet, min_size=1, max_size=20), unique=True, min_size=1, max_size=6))
    entries = {n: e for n, e in everything(container).items() if n == "codec.affine.weight"}  # MLX needs one to be itself
    for name in names:
        shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
        spec = TensorSpec(shape, data.draw(st.sampled_from([DType.F32, DType.BF16, DType.I8])))
        if container.carries(spec, RAW) and not name.endswith((".scales", ".biases")) and name != "__metadata__":
            entries[name] = entry(name, spec)
    round_trip(container, draft(container, entries), data.draw(st.sampled_from([None, 64])))


SHAPES = [(8, 256), (8, 480), (16, 300), (4, 6, 64), (40,), (5, 7)]


@pytest.mark.parametrize("container", CONTAINERS, ids=lambda c: c.name)
def test_what_is_declared_is_carried_and_nothing_else(container: Container) -> None:
    """For every codec with parameters worth trying, some shape and element type must do, or none."""
    specs = [TensorSpec(shape, dtype) for shape in SHAPES for dtype in (DType.F32, DType.BF16)]
    for codec in INSTANCES:
        if codec.spec == RAW:
            continue
        own = adapted(container, codec.spec, LAYER_TENSOR)
        declared = any(carried.matches(own) for carried in container.codecs)
        assert declared == any(container.carries(spec, own) for spec in specs), own


@pytest.mark.parametrize("container", CONTAINERS, ids=lambda c: c.name)
def test_declared_element_types_are_those_of_plain_tensors(container: Container) -> None:
    declared = {dtype for carried in container.codecs if carried.matches(RAW) for dtype in carried.dtypes}
    assert declared == {dtype for dtype in DType if container.carries(TensorSpec((8, 256), dtype), RAW)}
