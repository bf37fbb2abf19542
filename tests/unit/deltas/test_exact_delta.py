"""Exact deltas: every word comes back from its base, in little more than the entropy, and parts that disagree are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flyweight.codecs.entropy_coded import CHUNK
from flyweight.deltas.kind import ranges
from flyweight.deltas.kinds.exact_delta import ExactDelta
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError
from flyweight.foundation.tensor import TensorSpec

WORDS = {DType.BF16: np.uint16, DType.F16: np.uint16, DType.F32: np.uint32}
Parts = dict[str, np.ndarray]


def made(base: np.ndarray, tuned: np.ndarray, dtype: DType) -> tuple[dict[str, Any], Parts]:
    """What a delta says, and what it stores."""
    about: dict[str, Any] = {}
    spec = TensorSpec(tuned.shape, dtype)
    records = ExactDelta.make(lambda a, b: base[a:b], lambda a, b: tuned[a:b], spec, about)
    return about, {field: np.concatenate([np.zeros(0, kind), *pieces]) for field, kind, pieces in records}


def rebuilt(base: np.ndarray, dtype: DType, about: dict[str, Any], parts: Parts) -> np.ndarray:
    """Two chunks at a time, as another reader might."""
    delta = ExactDelta(TensorSpec(base.shape, dtype), about, parts)
    delta.check()
    out = np.empty(base.shape, dtype.storage)
    for start, stop in ranges(len(out), 2):
        delta.rebuild(start, stop, base[start:stop], out[start:stop])
    return out


def there_and_back(base: np.ndarray, tuned: np.ndarray, dtype: DType) -> Parts:
    base, tuned = (array.view(dtype.storage) for array in (base, tuned))
    about, parts = made(base, tuned, dtype)
    assert rebuilt(base, dtype, about, parts).tobytes() == tuned.tobytes()
    return parts


def nbytes(parts: Parts) -> int:
    return sum(part.nbytes for part in parts.values())


def pair(dtype: DType, count: int, step: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    base = (rng.standard_normal(count) * 0.02).astype(dtype.numpy)
    return base, (base.astype(np.float32) + rng.standard_normal(count).astype(np.float32) * step).astype(dtype.numpy)


@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize("count", [0, 1, 33, CHUNK - 1, CHUNK + 1, 2 * CHUNK + 77])
def test_any_size(dtype: DType, count: int) -> None:
    there_and_back(*pair(dtype, count, 1e-4), dtype)


@pytest.mark.parametrize("dtype", WORDS)
def test_any_bits(dtype: DType) -> None:
    """NaN payloads, both zeros, infinities: words of any bits against words of any bits, and against themselves."""
    rng = np.random.default_rng(1)
    base, tuned = rng.integers(0, np.iinfo(WORDS[dtype]).max, (2, 70_000), WORDS[dtype], endpoint=True)
    there_and_back(base, tuned, dtype)
    there_and_back(base, base, dtype)


@pytest.mark.parametrize("step", [5e-4, 1e-5])
def test_the_size_is_the_entropy_given_the_exponent(step: float) -> None:
    """Beside it: a chunk has 132 bytes of states and counts, and an end; there are at most 16 tables of 64 symbols.

    Tables are rounded to 12 bits and shared, where a table of its own would cost an exponent more than it saves: 2 %.
    """
    base, tuned = pair(DType.BF16, 8 * CHUNK, step)
    ordered = [np.where(w >> 15, ~w, w | 0x8000).astype(np.int64) for w in (base.view(np.uint16), tuned.view(np.uint16))]
    differences, exponents = ordered[1] - ordered[0], base.view(np.uint16) >> 7 & 0xFF
    entropy = 0.0
    for exponent in np.unique(exponents):
        own = np.where(base[exponents == exponent] < 0, -1, 1) * differences[exponents == exponent]
        counts = np.unique(own, return_counts=True)[1]
        entropy += float((counts * np.log2(counts.sum() / counts)).sum())
    overhead = 8 * (8 * (132 + 8) + 256 + 16 * 64)
    assert entropy < 8 * nbytes(there_and_back(base, tuned, DType.BF16)) < 1.02 * entropy + overhead


def test_unchanged_chunks_cost_where_they_end() -> None:
    base, _ = pair(DType.BF16, 4 * CHUNK, 0)
    tuned = base.copy()
    tuned[3 * CHUNK + 5] *= 2
    parts = there_and_back(base, tuned, DType.BF16)
    assert parts["ends"].tolist() == [0, 0, 0, len(parts["chunks"])]
    assert nbytes(parts) < 4 * 8 + 256 + 64 + 132 + 40


@pytest.mark.parametrize("at_once", [1, 2, 3, 7])
def test_ranges_of_any_chunks(at_once: int) -> None:
    """Chunks that are stored and chunks that are as in the base, in every neighbourhood."""
    base, tuned = pair(DType.BF16, 6 * CHUNK + 9, 1e-4)
    for unchanged in (0, 3, 5):
        tuned[unchanged * CHUNK : (unchanged + 1) * CHUNK] = base[unchanged * CHUNK : (unchanged + 1) * CHUNK]
    base, tuned = (array.view(DType.BF16.storage) for array in (base, tuned))
    delta = ExactDelta(TensorSpec(base.shape, DType.BF16), *made(base, tuned, DType.BF16))
    for start, stop in ranges(len(base), at_once):
        out = np.empty(stop - start, base.dtype)
        delta.rebuild(start, stop, base[start:stop], out)
        assert out.tobytes() == tuned[start:stop].tobytes()


def test_contexts_are_few_and_follow_the_exponent() -> None:
    base, tuned = pair(DType.BF16, 4 * CHUNK, 1e-4)
    used = there_and_back(base, tuned, DType.BF16)["tables"][np.unique(base.view(np.uint16) >> 7 & 0xFF)]
    assert 4 < used.max() + 1 <= 16
    assert (np.diff(used.astype(int)) >= 0).all()


@pytest.mark.parametrize("dtype", [DType.I64, DType.U8, DType.BOOL, DType.F8_E4M3, DType.F64, DType.I16])
@pytest.mark.parametrize("change", ["few", "all", "none"])
def test_other_types_are_bytes(dtype: DType, change: str) -> None:
    """A few changes cost little, and what the base tells nothing of costs no more than itself."""
    rng = np.random.default_rng(2)
    base = rng.integers(0, 2 if dtype is DType.BOOL else 256, (CHUNK + 3) * dtype.itemsize, np.uint8)
    tuned = base.copy()
    if change == "few":
        tuned[:: max(len(tuned) // 50, 1)] ^= 1
    elif change == "all":
        tuned = rng.permutation(base)
    parts = there_and_back(base, tuned, dtype)
    assert nbytes(parts) < (3000 if change == "few" else 2000 if change == "none" else base.nbytes + 1)


@pytest.mark.parametrize("broken", ["tables", "words", "states", "count", "ends", "coding"])
def test_parts_that_disagree_are_refused(broken: str) -> None:
    base, tuned = pair(DType.BF16, CHUNK + 500, 5e-4)
    about, parts = made(base, tuned, DType.BF16)
    places = {
        "tables": ("tables", slice(256, None)),
        "words": ("chunks", slice(132, 1000)),
        "states": ("chunks", slice(4, 132)),
    }
    field, where = places.get(broken, ("chunks", slice(0, 4)))
    if broken == "coding":
        about["coding"] = "xor"
    elif broken == "ends":
        parts["ends"] = parts["ends"][::-1].copy()
    else:
        parts[field] = parts[field].copy()
        parts[field][where] += 1
    with pytest.raises(MalformedError):
        rebuilt(base, DType.BF16, about, parts)


def test_low_bits_are_any_bits() -> None:
    """They decode to other words: only a digest of the result tells."""
    base, tuned = pair(DType.BF16, 500, 5e-4)
    about, parts = made(base, tuned, DType.BF16)
    parts["chunks"] = parts["chunks"].copy()
    parts["chunks"][-2] ^= 1
    assert rebuilt(base, DType.BF16, about, parts).tobytes() != tuned.tobytes()


@pytest.mark.parametrize(
    "tables",
    [b"", b"\x80", b"\x80\x20\x00", b"\x00" * 300, b"\xff\xff", b"\x81\x20", b"\x7f" * 33],
    ids=lambda raw: raw[:4].hex(),
)
def test_hostile_tables(tables: bytes) -> None:
    base, tuned = pair(DType.BF16, 40, 1e-3)
    about, parts = made(base, tuned, DType.BF16)
    parts["tables"] = np.concatenate([np.zeros(256, np.uint8), np.frombuffer(tables, np.uint8)])
    with pytest.raises(MalformedError):
        rebuilt(base, DType.BF16, about, parts)
