"""What a token needs is brought in once, in order of use. Who computes waits for it; nothing else is delayed or broken."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest

from flyweight.checkpoint import Checkpoint, open_checkpoint
from flyweight.foundation.errors import TruncatedError
from flyweight.foundation.manifest import Extent
from flyweight.runtime import open_model, read_ahead, tensors
from flyweight.runtime.read_ahead import Ahead, Front, windows
from flyweight.runtime.tensors import Tensors
from flyweight.sources import FileSource, MemorySource
from support import GOLDEN

LLAMA = GOLDEN / "decoders" / "llama"
MIB = 1 << 20

Asked = list[tuple[int, int]]


def begun(checkpoint: Checkpoint) -> Ahead:
    held = Tensors(checkpoint)
    return Ahead(checkpoint, len(held.steps), lambda step: extents(held, step))


def extents(held: Tensors, step: int) -> Iterator[Extent]:
    return (share.extent for share in held.shares(held.steps[step]))


def finish(reader: Ahead) -> None:
    if reader.ident is not None:  # it found something to do
        reader.join()


def test_a_step_is_read_as_it_lies_cut_where_windows_end() -> None:
    step = [Extent("f", 18 * MIB + 512, MIB), Extent("g", 100, 70_000), Extent("f", 18 * MIB, 512), Extent("f", MIB, 17 * MIB)]
    assert list(windows(step)) == [
        Extent("f", MIB, 15 * MIB),
        Extent("f", 16 * MIB, 3 * MIB + 512),
        Extent("g", 100, 70_000),
    ]


def test_what_lies_far_apart_is_not_joined() -> None:
    layer = [Extent("f", 0, MIB), Extent("f", 2 * MIB, MIB), Extent("g", 3 * MIB, MIB)]
    assert list(windows(layer)) == layer


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Every byte range that a file is told of, as if none were in memory."""
    told: Asked = []
    monkeypatch.setattr(FileSource, "in_memory", lambda self, offset: False)
    monkeypatch.setattr(FileSource, "expect", lambda self, offset, length: told.append((offset, length)))
    return told


def test_every_tensor_of_a_token_is_asked_for_once_layer_by_layer(asked: Asked) -> None:
    with open_checkpoint(LLAMA) as checkpoint:
        finish(begun(checkpoint))
        held = Tensors(checkpoint)
        names = [name for step in held.steps for name, _, _ in step]
        wanted = [(window.offset, window.nbytes) for step in range(len(held.steps)) for window in windows(extents(held, step))]
    assert asked == wanted
    assert names[-1] == held.output_name
    layers = [int(name.split(".")[2]) for name in names[:-1]]
    assert layers == sorted(layers)
    assert set(held) - set(names) <= {"model.embed_tokens.weight", "model.norm.weight"}


def test_a_layer_waits_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed, reading = Event(), Event()

    def slow(self: FileSource, offset: int, length: int) -> None:
        reading.set()
        allowed.wait()

    monkeypatch.setattr(FileSource, "in_memory", lambda self, offset: False)
    monkeypatch.setattr(FileSource, "expect", slow)
    with open_model(LLAMA) as model:
        found: list[np.ndarray] = []
        thread = Thread(target=lambda: found.append(model.decoder.forward([1, 2], model.cache())))
        thread.start()
        assert reading.wait(10)
        thread.join(0.05)
        assert not found, "it computed with what was not there"
        allowed.set()
        thread.join(10)
        again = model.decoder.forward([1, 2], model.cache())
    assert np.array_equal(found[0], again)


def test_an_output_in_pieces_gives_the_same_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_model(LLAMA) as model:
        whole = model.decoder.forward([1, 2, 3], model.cache(), every=True)
    monkeypatch.setattr(tensors, "_OUTPUT_PIECE", 1000)
    with open_model(LLAMA) as model:
        assert len(model.decoder.tensors.steps) > model.decoder.config.dims.layers + 1
        assert np.array_equal(model.decoder.forward([1, 2, 3], model.cache(), every=True), whole)


def test_a_model_in_memory_is_left_alone(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileSource, "in_memory", lambda self, offset: True)
    with open_checkpoint(LLAMA) as checkpoint:
        finish(begun(checkpoint))
    assert asked == []


def test_no_more_is_asked_for_than_half_of_memory(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_checkpoint(LLAMA) as checkpoint:
        held = Tensors(checkpoint)
        first = next(windows(extents(held, 0)))
        monkeypatch.setattr(read_ahead.os, "sysconf", {"SC_PHYS_PAGES": 2, "SC_PAGE_SIZE": first.nbytes}.__getitem__)
        reader = begun(checkpoint)
        reader.wait(len(held.steps) - 1)  # what does not fit is not waited for
    assert asked == [(first.offset, first.nbytes)]


def test_a_reader_that_fails_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(self: FileSource, offset: int, length: int) -> None:
        raise TruncatedError("the file became shorter", file=self.name)

    monkeypatch.setattr(FileSource, "in_memory", lambda self, offset: False)
    monkeypatch.setattr(FileSource, "expect", cut)
    with open_model(LLAMA) as model:
        assert np.isfinite(model.decoder.forward([1], model.cache())).all()


def test_a_file_that_vanished_breaks_nothing(asked: Asked, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(LLAMA, model)
    with open_checkpoint(model) as checkpoint:
        checkpoint.close()
        held = Tensors(open_checkpoint(LLAMA))
        shutil.rmtree(model)
        finish(Ahead(checkpoint, len(held.steps), lambda step: extents(held, step)))
    assert asked == []


# The front of a file -------------------------------------------------------------------------------


def test_the_front_is_read_and_no_more(asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "_FRONT", 40 * MIB)
    for size in (50 * MIB, 20 * MIB, 0):
        with (tmp_path / "f").open("wb") as file:
            file.truncate(size)
        asked.clear()
        Front(tmp_path / "f").join()
        assert asked == [(at, min(16 * MIB, min(size, 40 * MIB) - at)) for at in range(0, min(size, 40 * MIB), 16 * MIB)]


def test_a_front_in_memory_is_left_alone(asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileSource, "in_memory", lambda self, offset: True)
    (tmp_path / "f").write_bytes(b"front")
    Front(tmp_path / "f").join()
    assert asked == []


def test_what_is_no_file_of_its_own_has_no_front(asked: Asked, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"front")
    (tmp_path / "link").symlink_to(tmp_path / "f")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "absent"):
        Front(tmp_path / name).join()
    assert asked == []


def test_hints_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f"
    data = bytes(range(256)) * 1024
    path.write_bytes(data)
    for source in (FileSource(path), MemorySource(data)):
        source.expect(1000, 200_000)
        source.in_memory(100_000)
        assert bytes(source.read(0, len(data))) == data
