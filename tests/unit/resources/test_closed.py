"""What is closed raises, at every size and for good; what holds open files is never copied."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backports import zstd

import flyweight
from flyweight.checkpoint import Checkpoint, open_checkpoint
from flyweight.foundation.errors import TruncatedError
from flyweight.runtime import Model, open_model
from flyweight.runtime.batch import Batch
from flyweight.runtime.decoder import Settings
from flyweight.runtime.tensors import Streamed, Tensors
from flyweight.sources import Bundle, ClosedError, FileSource, MemoryBundle, MemorySource, Source, open_bundle
from flyweight.sources.file import _Descriptor
from flyweight.sources.zstd import InflatedBundle, ZstdSource
from support.toys import write_toy_llama

DATA = np.random.default_rng(1).bytes(200_000)
SIZES = (0, 1, 1000, 1 << 16, 150_000)
"""Copied with pread, and mapped; nothing at all."""
FORMATS = {"hf": {}, "gguf": {}, "safetensors": {}, "mlx": {}, "squizd": {"quant": "int4"}, "npy-dir": {"quant": "int8"}}

SOURCES: Mapping[str, Callable[[Path], Source]] = {
    "memory": lambda folder: MemorySource(DATA),
    "file": lambda folder: FileSource(_written(folder / "f", DATA)),
    "file behind a window": lambda folder: _with_window(FileSource(_written(folder / "f", DATA))),
    "zstd": lambda folder: ZstdSource(FileSource(_written(folder / "f.zst", zstd.compress(DATA)))),
}
USES: Mapping[str, Callable[[Source], object]] = {
    **{f"read {size}": lambda source, size=size: source.read(5, size) for size in SIZES},
    **{f"read_into {size}": lambda source, size=size: source.read_into(5, memoryview(bytearray(size))) for size in SIZES},
    **{f"digest {size}": lambda source, size=size: source.digest(5, size) for size in SIZES},
    "digest of all": lambda source: source.digest(),
    "outside": lambda source: source.read(source.size + 1, 1),
    "in_memory": lambda source: source.in_memory(0),
    "expect little": lambda source: source.expect(0, 10),
    "expect much": lambda source: source.expect(0, source.size),
}
BUNDLES: Mapping[str, Callable[[Path], Bundle]] = {
    "memory": lambda folder: MemoryBundle({"f": DATA}),
    "directory": lambda folder: open_bundle(_written(folder / "f", DATA).parent),
    "lone file": lambda folder: open_bundle(_written(folder / "f", DATA)),
    "inflated": lambda folder: InflatedBundle(open_bundle(_written(folder / "f.zst", zstd.compress(DATA)).parent), ".zst"),
}


def _written(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def _with_window(source: FileSource) -> FileSource:
    source.kept = source.read(0, source.size)  # type: ignore[attr-defined]  the mapping stays as long as this view
    return source


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", SOURCES)
def test_a_closed_source_raises(kind: str, use: str, tmp_path: Path) -> None:
    source = SOURCES[kind](tmp_path)
    if use != "outside":
        USES[use](source)
    assert not source.closed
    source.close()
    source.close()
    assert source.closed
    with pytest.raises(ValueError, match="is closed"):
        USES[use](source)


def test_a_closed_file_cannot_say_whether_it_changed(tmp_path: Path) -> None:
    source = FileSource(_written(tmp_path / "f", DATA))
    assert source.unchanged()
    source.close()
    with pytest.raises(ClosedError, match=r"f is closed"):
        source.unchanged()


@pytest.mark.parametrize("kind", BUNDLES)
def test_a_closed_bundle_opens_nothing_and_closes_what_it_gave(kind: str, tmp_path: Path) -> None:
    bundle = BUNDLES[kind](tmp_path / "model")
    (name,) = bundle
    source = bundle[name]
    view = source.read(0, 100_000)
    bundle.close()
    bundle.close()
    assert bytes(view) == DATA[:100_000]
    assert list(bundle) == [name]
    for use in (lambda: bundle[name], lambda: bundle.get(name), bundle.siblings, lambda: source.read(0, 1)):
        with pytest.raises(ValueError, match="is closed"):
            use()


def test_siblings_close_with_their_bundle(tmp_path: Path) -> None:
    bundle = open_bundle(_written(tmp_path / "one", b"1"))
    beside = bundle.siblings()
    source = beside["one"]
    bundle.close()
    for use in (lambda: beside["one"], lambda: source.read(0, 1), bundle.siblings):
        with pytest.raises(ClosedError):
            use()


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    path, before = _written(tmp_path / "f", DATA), count()
    for _ in range(50):
        source = FileSource(path)
        view = source.read(0, 100_000)
        source.close()
        assert bytes(view[:1]) == DATA[:1]
        del view
    FileSource(path)  # never closed, but collected
    assert count() == before


def test_a_file_that_shrinks_before_it_is_mapped_is_an_error(tmp_path: Path) -> None:
    path = _written(tmp_path / "f", bytes(8 << 20))
    source = FileSource(path)
    os.truncate(path, 10)
    for use in (lambda: source.read(0, 1 << 20), lambda: source.expect(0, 4 << 20)):
        with pytest.raises(TruncatedError, match="shorter"):
            use()


# Checkpoints and models ---------------------------------------------------------------------------


@pytest.fixture(scope="module", params=FORMATS)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy in every format."""
    folder = tmp_path_factory.mktemp("closed")
    toy = write_toy_llama(folder / "toy")
    flyweight.convert(toy, folder / "out", to=request.param, **FORMATS[request.param])
    return folder / "out"


def test_a_closed_checkpoint_raises(stored: Path) -> None:
    checkpoint = open_checkpoint(stored)
    name = "model.norm.weight" if "model.norm.weight" in checkpoint else "output_norm.weight"
    value = checkpoint[name].copy()
    parts = {key: array.copy() for key, array in checkpoint.encoded(name).parts.items()}
    kept = checkpoint.encoded(name)
    file = next(iter(checkpoint.manifest.entries[name].extents.values())).file
    content = next(iter(checkpoint.manifest.files.values()), b"text")
    uses: list[Callable[[], object]] = [
        lambda: checkpoint[name],
        lambda: checkpoint.get(name),
        lambda: checkpoint.encoded(name),
        lambda: checkpoint.slab(name, 0, 1),
        lambda: checkpoint.slab(name, 0, 0),
        lambda: checkpoint.source(file),
        lambda: checkpoint.read(content),
        lambda: dict(checkpoint),
    ]
    checkpoint.close()
    for use in uses:
        with pytest.raises(ValueError, match="is closed"):
            use()
    assert all(np.array_equal(kept.parts[key], array) for key, array in parts.items())
    assert name in checkpoint
    with open_checkpoint(stored) as again:
        assert np.array_equal(again[name], value)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("stored", [name for name in FORMATS if name != "safetensors"], indirect=True)
def test_a_closed_model_does_not_run(stored: Path, streamed: bool) -> None:
    model = _opened(stored, streamed=streamed)
    cache = model.cache()
    model.decoder.forward([1, 2], cache)
    model.close()
    uses: list[Callable[[], object]] = [
        lambda: model.decoder.forward([1], cache),
        model.cache,
        lambda: model.prompt([{"role": "user", "content": "a"}]),
        lambda: model.tokenizer,
    ]
    for use in uses:
        with pytest.raises(ValueError, match="is closed"):
            use()


def _opened(path: Path, *, streamed: bool) -> Model:
    checkpoint = open_checkpoint(path)
    return Model(checkpoint, (Streamed if streamed else Tensors)(checkpoint), 64, Settings(threads=2), "f16")


# Copying ------------------------------------------------------------------------------------------

COPIES: Mapping[str, Callable[[Any], object]] = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": pickle.dumps}


def _holders(folder: Path) -> Iterator[object]:
    """One of everything that holds something open, and what it is made of."""
    yield from (make(folder / str(n)) for n, make in enumerate((*SOURCES.values(), *BUNDLES.values())))
    toy = write_toy_llama(folder / "toy")
    yield open_checkpoint(toy)
    model = open_model(toy)
    yield from (model, model.decoder, model.decoder.tensors)
    yield _Descriptor(os.open(toy / "config.json", os.O_RDONLY))


@pytest.mark.parametrize("way", COPIES)
def test_what_holds_open_files_is_not_copied(way: str, tmp_path: Path) -> None:
    for holder in _holders(tmp_path):
        for held in (holder, [holder], {"a": (holder,)}):
            if way == "copy" and held is not holder:
                continue
            with pytest.raises(TypeError, match=r"cannot be copied or pickled: it .* again"):
                COPIES[way](held)


@pytest.mark.parametrize("way", COPIES)
def test_a_refused_copy_leaves_the_original_alone(way: str, stored: Path, tmp_path: Path) -> None:
    with open_checkpoint(stored) as checkpoint:
        assert isinstance(checkpoint, Checkpoint)
        before = {name: np.array(checkpoint[name]) for name in checkpoint}
        for holder in (checkpoint, checkpoint.bundle, {"model": checkpoint}):
            if way == "copy" and isinstance(holder, dict):
                continue
            with pytest.raises(TypeError, match="cannot be copied"):
                COPIES[way](holder)
        with ExitStack() as others:
            for number in range(8):  # these take the descriptors that are free
                others.enter_context(_written(tmp_path / str(number), b"\xff" * 400_000).open("rb"))
            assert all(np.array_equal(checkpoint[name], value) for name, value in before.items())


@pytest.mark.parametrize("kind", ["f32", "f16", "int8"])
def test_a_deep_copy_of_a_cache_goes_its_own_way(kind: str, tmp_path: Path) -> None:
    tokens = [int(token) for token in np.random.default_rng(2).integers(0, 96, 90)]
    with open_model(write_toy_llama(tmp_path / "toy"), kv=kind) as model:
        forward, plain = model.decoder.forward, model.cache()
        forward(tokens[:70], plain)
        twin = copy.deepcopy(plain)
        assert (twin.length, twin.nbytes) == (plain.length, plain.nbytes)
        both = Batch([twin, copy.deepcopy(twin)])
        one = forward(tokens[70:], plain).copy()
        forward([5, 6, 7], plain)  # the copies see nothing of it
        assert np.array_equal(forward(tokens[70:], twin), one)
        pair = copy.deepcopy(Batch([both.caches[1], copy.deepcopy(both.caches[1])]))
        assert np.array_equal(*forward([3, 3], pair, every=True))
        for way in ("copy", "pickle"):
            with pytest.raises(TypeError, match="deepcopy makes another"):
                COPIES[way](plain)
