"""Laws of deltas: what makes one model into another does so bit for bit, whatever they are; alone, in chains, squashed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from flyweight.checkpoint import Checkpoint, open_checkpoint, read_checkpoint
from flyweight.checkpoint.tensor_bytes import stored_bytes
from flyweight.containers import CONTAINERS
from flyweight.pipeline.deltas.applying import apply_delta, squash_deltas
from flyweight.pipeline.deltas.creating import create_delta
from flyweight.pipeline.deltas.delta_check import verify_delta
from flyweight.sources import MemoryBundle
from fuzz.seeds import codec_inputs
from support.toys import write_files
from support.wdelta_files import LABELS, safetensors

PAIRS, CHAINS = 60, 12
TYPES = [np.dtype(getattr(ml_dtypes, name, None) or name) for name in LABELS]
NAMES = ["model.embed_tokens.weight", *(f"model.layers.{n}.w" for n in range(4)), "lm_head.weight", "norm", "grüße"]
FILES = ["config.json", "tokenizer.json", "notes.txt", "a/b.txt"]
Model = dict[str, np.ndarray]


def any_array(rng: random.Random, dtype: np.dtype[Any] | None = None, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Any bits: NaN payloads, both zeros, infinities."""
    dtype = rng.choice(TYPES) if dtype is None else dtype
    shape = tuple(rng.choice((0, 1, 2, 3, 5, 33)) for _ in range(rng.randrange(4))) if shape is None else shape
    count = int(np.prod(shape))
    if dtype == np.bool_:
        return np.array([rng.random() < 0.5 for _ in range(count)], np.bool_).reshape(shape)
    return np.frombuffer(rng.randbytes(count * dtype.itemsize), dtype).reshape(shape)


def moved(rng: random.Random, array: np.ndarray) -> np.ndarray:
    """Some elements other ones, near or far."""
    raw = bytearray(array.tobytes())
    for _ in range(rng.choice((1, 2, len(raw))) if raw else 0):
        raw[rng.randrange(len(raw))] ^= 1 if array.dtype == np.bool_ else 1 << rng.randrange(8)
    return np.frombuffer(bytes(raw), array.dtype).reshape(array.shape)


def changed(rng: random.Random, model: Model) -> Model:
    """Another model: each tensor stays, moves, or is made another, or goes; some come."""
    found: Model = {}
    free = [name for name in NAMES if name not in model]
    rng.shuffle(free)
    for name, array in model.items():
        match rng.randrange(9):
            case 0 | 1:
                found[name] = array
            case 2 | 3:
                found[name] = moved(rng, array)
            case 4:
                found[name] = any_array(rng, shape=array.shape)
            case 5:
                more = any_array(rng, array.dtype, (rng.randrange(4), *array.shape[1:])) if array.ndim else array
                found[name] = np.concatenate([array, more])[rng.randrange(2) :] if array.ndim else moved(rng, array)
            case 6 if free:
                found[free.pop()] = array if rng.randrange(2) else moved(rng, array)
            case 7 if found:
                found[name] = rng.choice(list(found.values()))
            case _:
                pass
    for name in free[: rng.randrange(3)]:
        found[name] = any_array(rng)
    return found or {"only": any_array(rng)}


def side_files(rng: random.Random, before: dict[str, bytes]) -> dict[str, bytes]:
    found = {"config.json": b'{"model_type": "toy", "seed": %d}' % rng.randrange(3)}
    for name in FILES[1:]:
        text = before.get(name, b"")
        new = [text, text + b"line %d\n" % rng.randrange(9), b"".join(rng.sample([b"a, ", b"b\n", b"c d, "], 2)), None]
        chosen = rng.choice(new)
        if chosen is not None:
            found[name] = chosen
    return found


class Written:
    """A model with its side files, as bytes."""

    def __init__(self, rng: random.Random, before: Written | None = None) -> None:
        self.tensors = changed(rng, before.tensors if before else {name: any_array(rng) for name in rng.sample(NAMES, 4)})
        self.side_files = side_files(rng, before.side_files if before else {})
        self.files = {**self.side_files, "model.safetensors": safetensors(self.tensors)}

    def open(self) -> Checkpoint:
        return read_checkpoint(MemoryBundle(self.files, "/model"), CONTAINERS["hf"])


def content(model: Checkpoint) -> dict[str, Any]:
    entries = model.manifest.entries
    return {
        "tensors": {
            name: (entry.spec, entry.codec, dict(entry.parts), b"".join(map(bytes, stored_bytes(model, name))))
            for name, entry in entries.items()
        },
        "files": {name: model.read(extent) for name, extent in model.manifest.files.items()},
        "metadata": dict(model.manifest.metadata),
        "dialect": model.manifest.dialect,
    }


@pytest.mark.parametrize("seed", range(PAIRS))
def test_a_pair_of_models(seed: int, tmp_path: Path) -> None:
    rng, delta = random.Random(seed), tmp_path / "x.wdelta"
    before = Written(rng)
    base, tuned = before.open(), Written(rng, before).open()
    create_delta(base, tuned, delta)
    with open_checkpoint(base, deltas=[delta], checks_digests=True) as result:
        assert content(result) == content(tuned)


@pytest.mark.parametrize("seed", range(CHAINS))
def test_a_chain_and_what_it_is_squashed_to(seed: int, tmp_path: Path) -> None:
    rng = random.Random(1000 + seed)
    models = [Written(rng)]
    for _ in range(rng.randrange(2, 7)):
        models.append(Written(rng, models[-1]))
    deltas = [tmp_path / f"{number}.wdelta" for number in range(len(models) - 1)]
    for old, new, place in zip(models, models[1:], deltas, strict=False):
        create_delta(old.open(), new.open(), place)
    base, wanted = models[0].open(), content(models[-1].open())
    with open_checkpoint(base, deltas=deltas, checks_digests=True) as result:
        assert content(result) == wanted
    squash_deltas(base, deltas, tmp_path / "one.wdelta")  # type: ignore[arg-type]
    with open_checkpoint(base, deltas=[tmp_path / "one.wdelta"], checks_digests=True) as result:
        assert content(result) == wanted


def test_chains_of_files_that_name_their_base(tmp_path: Path) -> None:
    """On a disk, ten deltas, each on the one before: opened by the last alone, verified, and applied in order."""
    rng = random.Random(7)
    model, place = Written(rng), tmp_path / "base"
    below = write_files(place, model.files)
    for number in range(10):
        model = Written(rng, model)
        delta = tmp_path / f"{number}.wdelta"
        create_delta(below, write_files(tmp_path / f"tuned{number}", model.files), delta)
        below = delta
        with open_checkpoint(delta, checks_digests=True) as result:
            assert content(result) == content(model.open())
    assert verify_delta(below).ok
    apply_delta(place, [tmp_path / f"{number}.wdelta" for number in range(10)], tmp_path / "out")
    with open_checkpoint(tmp_path / "out") as out:
        assert content(out)["tensors"] == content(model.open())["tensors"]
        assert content(out)["files"] == model.side_files


def quantized() -> Iterator[tuple[str, bytes]]:
    """GGUF files of a tensor in each of its codecs, all under one name."""
    for number, given in enumerate(codec_inputs("gguf")):
        yield f"{number}", next(iter(given.files.values()))


QUANTIZED = dict(quantized())


@pytest.mark.parametrize("number", QUANTIZED)
def test_quantized_models(number: str, tmp_path: Path) -> None:
    """To other codes of the same codec, and to the next codec."""
    files = list(QUANTIZED.values())
    raw, following = files[int(number)], files[(int(number) + 1) % len(files)]
    rng = random.Random(number)
    flipped = bytearray(raw)
    for _ in range(9):
        flipped[-1 - rng.randrange(30)] ^= 1 << rng.randrange(8)  # the data come last
    base, *tuned = (
        read_checkpoint(MemoryBundle({"x.gguf": bytes(each)}, "/x.gguf", is_directory=False), CONTAINERS["gguf"])
        for each in (raw, flipped, following)
    )
    for each, other in enumerate(tuned):
        create_delta(base, other, tmp_path / f"{each}.wdelta")
        with open_checkpoint(base, deltas=[tmp_path / f"{each}.wdelta"], checks_digests=True) as result:
            assert content(result) == content(other)
