"""Many threads on one checkpoint, decoder and tokenizer get what one thread gets."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import flyweight
from flyweight.checkpoint import open_checkpoint
from flyweight.foundation.errors import TruncatedError
from flyweight.runtime import Model, open_model
from flyweight.runtime.batch import Batch
from flyweight.runtime.decoder import BLOCK, Settings
from flyweight.runtime.kv import KeyValues
from flyweight.runtime.tensors import Streamed, Tensors
from support.toys import VOCABULARY, write_toy_llama

THREADS = 6
KINDS = {
    "hf": {"to": "hf"},
    "q4_0": {"to": "gguf", "quant": "q4_0"},
    "int4": {"to": "squizd", "quant": "int4"},
    "tca": {"to": "squizd", "quant": "tca"},
    "npy": {"to": "npy-dir", "quant": "int8"},
}


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    """Threads take turns a thousand times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(scope="module", params=KINDS)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("threads")
    flyweight.convert(write_toy_llama(folder / "toy"), folder / "out", **KINDS[request.param])
    return folder / "out"


def at_once(work: Callable[[int], object], threads: int = THREADS) -> None:
    """`work(0)`, `work(1)`, … at the same time; whatever goes wrong in one goes wrong here."""
    begun, errors = threading.Barrier(threads), list[BaseException]()

    def run(number: int) -> None:
        begun.wait()
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001  reported below
            errors.append(error)

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def opened(path: Path, *, streamed: bool = False) -> Model:
    checkpoint = open_checkpoint(path)
    return Model(checkpoint, (Streamed if streamed else Tensors)(checkpoint), 128, Settings(threads=2), "f16")


def test_reading(stored: Path) -> None:
    with open_checkpoint(stored) as checkpoint:
        values = {name: np.array(checkpoint[name]) for name in checkpoint}
        parts = {name: [part.tobytes() for part in checkpoint.encoded(name).parts.values()] for name in checkpoint}
        rows = {name: entry.spec.rows for name, entry in checkpoint.manifest.entries.items() if len(entry.spec.shape) == 2}
        whole = {name: _slab(path=stored, name=name, rows=rows[name]) for name in rows}
    for _ in range(3):
        with open_checkpoint(stored) as checkpoint:

            def work(number: int, checkpoint: flyweight.Checkpoint = checkpoint) -> None:
                names = list(checkpoint)
                for name in names[number:] + names[:number]:
                    assert np.array_equal(checkpoint[name], values[name])
                    assert [part.tobytes() for part in checkpoint.encoded(name).parts.values()] == parts[name]
                    if whole.get(name) is not None:
                        slab = checkpoint.slab(name, 0, rows[name])
                        assert [part.tobytes() for part in slab.parts.values()] == whole[name]

            at_once(work)


def _slab(path: Path, name: str, rows: int) -> list[bytes] | None:
    """A tensor by its rows, where all of its parts have rows."""
    with open_checkpoint(path) as checkpoint:
        try:
            return [part.tobytes() for part in checkpoint.slab(name, 0, rows).parts.values()]
        except (TruncatedError, ValueError):
            return None


@pytest.mark.parametrize("streamed", [False, True])
def test_one_decoder_and_a_cache_for_each(stored: Path, streamed: bool) -> None:
    draw = np.random.default_rng(4)
    prompts = [draw.integers(0, VOCABULARY, 5 + 7 * number) for number in range(THREADS)]
    with opened(stored) as model:
        expected = [_answers(model, prompt) for prompt in prompts]
    for _ in range(3):
        with opened(stored, streamed=streamed) as model:  # new each time: its layers are made under way

            def work(number: int, model: Model = model) -> None:
                for got, wanted in zip(_answers(model, prompts[number]), expected[number], strict=True):
                    np.testing.assert_array_equal(got, wanted)

            at_once(work)


def _answers(model: Model, prompt: np.ndarray) -> list[np.ndarray]:
    """The logits after a prompt and after each of four tokens."""
    cache = model.cache()
    logits = [model.decoder.forward(prompt, cache, every=True).copy()]
    out = np.empty((1, VOCABULARY), np.float32)
    return logits + [model.decoder.forward([token], cache, out=out).copy() for token in range(4)]


def test_buffers_are_used_again(stored: Path) -> None:
    with opened(stored) as model:
        at_once(lambda number: _answers(model, np.arange(number + 1)))
        kept = len(model.decoder._free)
        assert kept <= THREADS
        for _ in range(5):
            _answers(model, np.arange(90))
        assert len(model.decoder._free) == kept
        assert all(buffers.tokens <= BLOCK for buffers in model.decoder._free)


def test_the_tokenizer(stored: Path) -> None:
    texts = [f"abc {number} abcabc!" * (number + 1) for number in range(THREADS)]
    with open_model(stored) as model:
        expected = [model.tokenizer.encode(text) for text in texts]
    with open_model(stored) as model:

        def work(number: int) -> None:
            for _ in range(5):
                assert model.tokenizer.encode(texts[number]) == expected[number]

        at_once(work)


def test_one_cache_is_for_one_thread(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a thread is inside `forward`, every other use of its cache is refused, and harms nothing."""
    with opened(stored) as model:
        expected, alone = _answers(model, np.arange(5)), model.cache()
        inside, go_on = threading.Event(), threading.Event()
        attend = KeyValues.attend

        def slow(self: KeyValues, layer: int, *arguments: object, **settings: object) -> None:
            if self is cache and layer == 1:
                inside.set()
                go_on.wait(30)
            attend(self, layer, *arguments, **settings)  # type: ignore[arg-type]

        monkeypatch.setattr(KeyValues, "attend", slow)
        cache = model.cache()
        result = list[np.ndarray]()
        thread = threading.Thread(target=lambda: result.append(model.decoder.forward(np.arange(5), cache, every=True)))
        thread.start()
        assert inside.wait(30)
        try:
            for use in (
                lambda: model.decoder.forward([1], cache),
                lambda: model.decoder.forward([1, 1], Batch([cache, alone]), every=True),
                lambda: cache.truncate(0),
            ):
                with pytest.raises(ValueError, match="in use by another thread"):
                    use()
            assert model.decoder.forward([1], alone).shape == (1, VOCABULARY)  # nobody else is kept waiting
        finally:
            go_on.set()
            thread.join(30)
        np.testing.assert_array_equal(result[0], expected[0])
        np.testing.assert_array_equal(model.decoder.forward([0], cache), expected[1])


def test_rotary_tables_are_whole_while_they_grow(stored: Path) -> None:
    with opened(stored) as model:
        rotary = next(iter(model.decoder.layers)).rotary

        def work(number: int) -> None:
            for positions in range(1, 3000, 37 + number):
                cos, sin = rotary.tables(positions)
                assert len(cos) == len(sin) >= positions

        at_once(work)
