"""Exact deltas: every word comes back from its base, in little more than the entropy, and parts that disagree are refused."""

from __future__ import annotations

import numpy as np
import pytest

from flyweight.codecs.entropy_coded import CHUNK
from flyweight.codecs.exact_delta import ExactDelta, decode_exact, encode_exact
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError

WORDS = {DType.BF16: np.uint16, DType.F16: np.uint16, DType.F32: np.uint32}


def there_and_back(base: np.ndarray, tuned: np.ndarray, dtype: DType) -> ExactDelta:
    base, tuned = (array.reshape(1, -1).view(WORDS[dtype]) for array in (base, tuned))
    delta = encode_exact(base, tuned, dtype)
    out = np.empty_like(tuned)
    decode_exact(base, delta, dtype, out)
    assert np.array_equal(out, tuned)
    return delta


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
    """Beside it: a chunk has 128 bytes of states and two ends, and there are the contexts and at most 16 tables of 64 symbols.

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
    overhead = 8 * (8 * (128 + 16) + 256 + 16 * 64)
    assert entropy < there_and_back(base, tuned, DType.BF16).nbytes * 8 < 1.02 * entropy + overhead


def test_unchanged_chunks_cost_their_states_alone() -> None:
    base, _ = pair(DType.BF16, 4 * CHUNK, 0)
    assert there_and_back(base, base, DType.BF16).nbytes < 4 * (128 + 16) + 256 + 64


def test_contexts_are_few_and_follow_the_exponent() -> None:
    delta = there_and_back(*pair(DType.BF16, 4 * CHUNK, 1e-4), DType.BF16)
    used = delta.contexts[np.unique(pair(DType.BF16, 4 * CHUNK, 1e-4)[0].view(np.uint16) >> 7 & 0xFF)]
    assert 4 < used.max() + 1 <= 16
    assert (np.diff(used.astype(int)) >= 0).all()


@pytest.mark.parametrize("broken", ["tables", "states", "ends", "words", "low_ends", "low", "contexts"])
def test_parts_that_disagree_are_refused(broken: str) -> None:
    base, tuned = pair(DType.BF16, CHUNK + 500, 5e-4)
    base, tuned = base.reshape(1, -1).view(np.uint16), tuned.reshape(1, -1).view(np.uint16)
    delta = encode_exact(base, tuned, DType.BF16)
    fields = delta._asdict() | delta.coded._asdict()
    damaged = fields[broken].copy()
    damaged[-1 if broken in ("ends", "low_ends") else slice(None)] += 1
    coded = delta.coded._replace(**({broken: damaged} if broken in delta.coded._fields else {}))
    changed = delta._replace(coded=coded, **({broken: damaged} if broken in delta._fields else {}))
    if broken == "low":  # any low bits decode, to other words: only a digest of the result tells
        out = np.empty_like(tuned)
        decode_exact(base, changed, DType.BF16, out)
        assert not np.array_equal(out, tuned)
        return
    with pytest.raises(MalformedError) as caught:
        decode_exact(base, changed, DType.BF16, np.empty_like(tuned))
    assert caught.value.code == "E_PART_VALUES"


@pytest.mark.parametrize(
    "tables",
    [b"", b"\x80", b"\x80\x20\x00", b"\x00" * 300, b"\xff\xff", b"\x81\x20", b"\x7f" * 33],
    ids=lambda raw: raw[:4].hex(),
)
def test_hostile_tables(tables: bytes) -> None:
    base = np.zeros((1, 40), np.uint16)
    delta = encode_exact(base, base, DType.BF16)
    with pytest.raises(MalformedError):
        decode_exact(base, delta._replace(tables=np.frombuffer(tables, np.uint8)), DType.BF16, np.empty_like(base))
