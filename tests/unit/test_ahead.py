"""What a token needs is asked for once, in order of use, and asking never breaks or delays anything."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from flyweight.checkpoint import open_checkpoint
from flyweight.dtypes import DType
from flyweight.manifest import Entry, Extent
from flyweight.runtime import ahead
from flyweight.runtime.ahead import read_ahead, windows
from flyweight.runtime.tensors import Tensors
from flyweight.sources import FileSource, MemorySource
from flyweight.tensor import RAW, TensorSpec

LLAMA = Path(__file__).parent.parent / "golden" / "decoders" / "llama"
MIB = 1 << 20

Asked = list[tuple[int, int]]


def entry(name: str, file: str, offset: int, nbytes: int) -> Entry:
    spec = TensorSpec((nbytes,), DType.U8)
    return Entry(name, spec, RAW, {"data": spec}, {"data": Extent(file, offset, nbytes)})


def steps(tensors: Tensors) -> list[list[Entry]]:
    return [[tensors.entry(name) for name in step] for step in tensors.steps()]


def test_small_parts_come_first_then_every_layer_as_it_lies() -> None:
    first = [entry("b", "f", 6 * MIB + 512, MIB), entry("norm", "f", 6 * MIB, 512), entry("a", "f", 0, 6 * MIB)]
    second = [entry("c", "g", 100, 70_000), entry("bias", "g", 50, 50)]
    assert list(windows([first, second])) == [
        Extent("f", 6 * MIB, 512),
        Extent("g", 50, 50),
        Extent("f", 0, 4 * MIB),
        Extent("f", 4 * MIB, 3 * MIB + 512),
        Extent("g", 100, 70_000),
    ]


def test_what_lies_far_apart_is_not_joined() -> None:
    layer = [entry("a", "f", 0, MIB), entry("b", "f", 2 * MIB, MIB), entry("c", "g", 3 * MIB, MIB)]
    assert list(windows([layer])) == [Extent("f", 0, MIB), Extent("f", 2 * MIB, MIB), Extent("g", 3 * MIB, MIB)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Every byte range that a file is told of, as if none were in memory."""
    told: Asked = []
    monkeypatch.setattr(FileSource, "in_memory", lambda self, offset: False)
    monkeypatch.setattr(FileSource, "expect", lambda self, offset, length: told.append((offset, length)))
    return told


def test_every_tensor_of_a_token_is_asked_for_once_layer_by_layer(asked: Asked) -> None:
    with open_checkpoint(LLAMA) as checkpoint:
        tensors = Tensors(checkpoint)
        read_ahead(checkpoint, steps(tensors)).join()
        names = [name for step in tensors.steps() for name in step]
        wanted = [(extent.offset, extent.nbytes) for name in names for extent in tensors.entry(name).extents.values()]
    assert asked == wanted
    assert names[-1] == tensors.output_name
    layers = [int(name.split(".")[2]) for name in names[:-2]]
    assert layers == sorted(layers)
    assert set(tensors) - set(names) <= {"model.embed_tokens.weight"}


def test_opening_to_run_reads_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    def noted(checkpoint: object, steps: Sequence[Sequence[Entry]]) -> None:
        begun.append(len(steps))

    monkeypatch.setattr("flyweight.runtime.tensors.read_ahead", noted)
    with open_checkpoint(LLAMA) as checkpoint:
        tensors = Tensors(checkpoint)
        tensors.layers(lambda held, index: index)
        assert begun == [tensors.blueprint.config.dims.layers + 1]


def test_a_model_in_memory_is_left_alone(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileSource, "in_memory", lambda self, offset: True)
    with open_checkpoint(LLAMA) as checkpoint:
        read_ahead(checkpoint, steps(Tensors(checkpoint))).join()
    assert asked == []


def test_no_more_is_asked_for_than_half_of_memory(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_checkpoint(LLAMA) as checkpoint:
        wanted = steps(Tensors(checkpoint))
        first, second, *_ = windows(wanted)
        monkeypatch.setattr(ahead.os, "sysconf", {"SC_PHYS_PAGES": 2, "SC_PAGE_SIZE": first.nbytes + second.nbytes}.__getitem__)
        read_ahead(checkpoint, wanted).join()
    assert asked == [(first.offset, first.nbytes), (second.offset, second.nbytes)]


def test_a_file_that_vanished_breaks_nothing(asked: Asked, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(LLAMA, model)
    with open_checkpoint(model) as checkpoint:
        wanted = steps(Tensors(checkpoint))
        checkpoint.close()
        shutil.rmtree(model)
        read_ahead(checkpoint, wanted).join()
    assert asked == []


def test_hints_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f"
    data = bytes(range(256)) * 1024
    path.write_bytes(data)
    for source in (FileSource(path), MemorySource(data)):
        source.expect(1000, 200_000)
        source.in_memory(100_000)
        assert bytes(source.read(0, len(data))) == data
