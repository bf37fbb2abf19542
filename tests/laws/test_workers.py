"""How many workers run is nobody's business: encoding and decoding give the same bytes with 1, 2 and 8.

Products, which share one call among threads, are held to the same law in `tests/native/test_matvec.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import pytest

from flyweight import convert
from flyweight.codecs import Codec
from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import TensorSpec
from flyweight.pipeline import rows
from flyweight.pipeline.plans.recipe import Choice, Recipe, Rule
from support.every_codec import ENCODERS, INSTANCES, named, plausible, same_bits, weights
from support.toys import safetensors_bytes

WORKERS = (1, 2, 8)
SPEC = TensorSpec((24, 512), DType.F32)
NAMES = {f"t{number}.weight": codec for number, codec in enumerate(ENCODERS)}
RECIPE = Recipe("all", tuple(Rule((name,), Choice(codec.spec)) for name, codec in NAMES.items()))


def with_workers(count: int, work: Iterable[Callable[[], object]]) -> list[object]:
    with ThreadPoolExecutor(count) as pool:
        return [future.result() for future in [pool.submit(step) for step in work]]


def differing(made: dict[int, object]) -> set[int]:
    return {count for count, result in made.items() if result != made[WORKERS[0]]}


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """One model of a tensor per encoder, converted with each number of workers, several slabs a tensor."""
    root = tmp_path_factory.mktemp("workers")
    source = root / "source.safetensors"
    source.write_bytes(safetensors_bytes({name: weights(SPEC, seed) for seed, name in enumerate(NAMES)}))
    made = {count: root / f"with{count}.safetensors" for count in WORKERS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "SLAB_BYTES", SPEC.nbytes // 4)
        for count, path in made.items():
            report = convert(source, path, recipe=RECIPE, jobs=count)
            turned = {line.name for line in report.tensors if line.action == "transcode" or line.codec == SPEC.dtype.label}
            assert turned >= {  # what would not become smaller stays dense, and is copied
                name for name, codec in NAMES.items() if codec.name != "raw"
            }
    return made


def test_conversion_to_every_codec(encoded: dict[int, Path]) -> None:
    assert not differing({count: path.read_bytes() for count, path in encoded.items()})


def test_conversion_from_every_codec(encoded: dict[int, Path], tmp_path: Path) -> None:
    made = {count: tmp_path / f"dense{count}.safetensors" for count in WORKERS}
    for count, path in made.items():
        convert(encoded[1], path, quant="dense", jobs=count)
    assert not differing({count: path.read_bytes() for count, path in made.items()})


@named(INSTANCES)
def test_callers_do_not_disturb_each_other(codec: Codec) -> None:
    """Many callers at once on one codec object, with two tensors in turn: a buffer kept between calls would show."""
    spec = TensorSpec((6, 512), DType.F32)
    tensors = [plausible(codec, spec, seed) for seed in (1, 2)]
    work: list[Callable[[], object]] = [lambda c=c, p=p: c.decode(spec, p) for c, p in tensors]
    if codec.encodes:
        fitted = [(codec.fit(spec, values), values) for values in (weights(spec, 1), weights(spec, 2))]
        work += [lambda c=c, v=v: c.encode(spec, v) for c, v in fitted]
    alone = [step() for step in work]
    for count in WORKERS:
        for found, expected in zip(with_workers(count, islice(cycle(work), 2 * len(work))), cycle(alone), strict=False):
            assert same(found, expected), count


def same(found: object, expected: object) -> bool:
    if isinstance(found, np.ndarray) and isinstance(expected, np.ndarray):
        return same_bits(found, expected)
    assert isinstance(found, dict)
    assert isinstance(expected, dict)
    return all(same_bits(found[name], expected[name]) for name in expected)
