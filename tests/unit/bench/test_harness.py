"""The verdict on a target."""

from __future__ import annotations

import pytest

from flyweight.bench.harness import verdict

LIMITS = {"write": {"median": 1000.0}}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("", ""),
        ("700 MB/s", "met"),
        ("701 MB/s", "missed"),
        ("0.7 of write", "met"),
        ("0.71 of write", "missed"),
        ("3× libggml", "met"),
        ("3.5× libggml, 0.7 of write", "missed"),
        ("20× gguf-py, 0.7 of write", "not measured"),
        ("20× gguf-py, 0.8 of write", "missed"),
        ("at most 700 ms", "met"),
        ("at most 699 MB", "missed"),
        ("at most 3× libggml", "met"),
        ("at most 2.9× libggml", "missed"),
        ("700×", "met"),
        ("700.5×", "missed"),
    ],
)
def test_verdict(target: str, expected: str) -> None:
    assert verdict(target, 700.0, {"libggml": 3.0}, LIMITS) == expected


@pytest.mark.parametrize("target", ["fast", "0.7 of paper", "1× libggml, error no larger"])
def test_a_target_that_means_nothing_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match="is not a target"):
        verdict(target, 700.0, {"libggml": 3.0}, LIMITS)
