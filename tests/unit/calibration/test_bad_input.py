"""What cannot be calibrated, chosen types for or quantized is refused from the command line: one error, and nothing written."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from support.command_line import flyweight as command
from support.toys import llama_tensors, safetensors_bytes, toy_llama_files, write_files

WORDS = "abc ab a b 12 c! " * 400
SPOILT = "model.layers.0.mlp.down_proj.weight"


class Place(NamedTuple):
    toy: Path
    words: Path
    stats: dict[str, Path]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Place:
    root = tmp_path_factory.mktemp("bad")
    toy, words = write_files(root / "toy", toy_llama_files(dtype=np.float32)), root / "words.txt"
    words.write_text(WORDS)
    stats = {kind: root / f"toy.{kind}" for kind in ("stats", "dat", "gguf")}
    for path in stats.values():
        assert command("calibrate", toy, "-o", path, "--text", words, "--tokens", "1024", "--window", "32").code == 0
    return Place(toy, words, stats)


def model(root: Path, changed: dict[str, np.ndarray]) -> Path:
    tensors = llama_tensors(7, np.float32) | changed
    return write_files(root, toy_llama_files(dtype=np.float32) | {"model.safetensors": safetensors_bytes(tensors)})


def refused(folder: Path, code: str, *arguments: object) -> str:
    """The one error that a command ends with, which leaves the folder as it was."""
    before = sorted(folder.iterdir())
    ran = command(*arguments, "--json")
    assert ran.code not in (0, 1)
    assert ran.stdout == b""
    assert ran.error()["code"] == code
    assert ran.stderr.count(b'"error"') == 1
    assert sorted(folder.iterdir()) == before
    return str(ran.error()["message"])


def ways_to_use(there: Place, stats: Path, out: Path) -> list[tuple[object, ...]]:
    return [
        (out / "x.gguf", "--quant", "q4_0", "--stats", stats),
        (out / "x", "--to", "hf", "--target-bpw", "9", "--stats", stats),
    ]


def test_statistics_of_other_weights(there: Place, tmp_path: Path) -> None:
    other = write_files(tmp_path / "other", toy_llama_files(dtype=np.float32, seed=8))
    for way in ways_to_use(there, there.stats["stats"], tmp_path):
        assert "other weights" in refused(tmp_path, "E_STATISTICS", "convert", other, *way)


@pytest.mark.parametrize("kind", ["stats", "dat", "gguf"])
def test_statistics_of_a_model_with_other_matrices(there: Place, tmp_path: Path, kind: str) -> None:
    shallow = write_files(tmp_path / "shallow", toy_llama_files(dtype=np.float32, layers=1))
    for way in ways_to_use(there, there.stats[kind], tmp_path):
        assert "statistics of another model" in refused(tmp_path, "E_STATISTICS", "convert", shallow, *way)


def test_statistics_that_are_none(there: Place, tmp_path: Path) -> None:
    for file in (there.words, there.toy / "model.safetensors", there.toy / "config.json"):
        for way in ways_to_use(there, file, tmp_path):
            refused(tmp_path, "E_STATISTICS", "convert", there.toy, *way)


def test_activations_that_are_not_finite(there: Place, tmp_path: Path) -> None:
    spoilt = llama_tensors(7, np.float32)[SPOILT]
    spoilt[0, 0] = np.nan
    broken = model(tmp_path / "broken", {SPOILT: spoilt})
    text = "--calibrate-text", there.words
    refused(tmp_path, "E_NOT_FINITE", "calibrate", broken, "-o", tmp_path / "x.stats", "--text", there.words)
    refused(tmp_path, "E_NOT_FINITE", "convert", broken, tmp_path / "x.gguf", "--quant", "q4_0", *text)
    refused(tmp_path, "E_NOT_FINITE", "convert", broken, tmp_path / "x", "--to", "hf", "--target-bpw", "9", *text)
    good = "--stats", there.stats["stats"], "--stats-of-another-model"
    refused(tmp_path, "E_NOT_FINITE", "convert", broken, tmp_path / "x", "--to", "hf", "--target-bpw", "9", *good)


def test_an_error_of_a_trial_says_where(there: Place, tmp_path: Path) -> None:
    large = model(tmp_path / "large", {SPOILT: llama_tensors(7, np.float32)[SPOILT] * np.float32(1e38)})
    good = "--stats", there.stats["stats"], "--stats-of-another-model"
    ran = command("convert", large, tmp_path / "x", "--to", "hf", "--target-bpw", "9", *good, "--json")
    error = ran.error()
    assert (error["code"], error["tensor"], error["file"]) == ("E_RANGE", SPOILT, str(large))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b" \n\t\n" * 4000, "white space"),
        (b"abc ab", "3 tokens"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40, "not UTF-8"),
        (b"abc\0\1\2" * 4000, "NUL"),
        (("abc ab " * 4000).encode("utf-16"), "not UTF-8"),
    ],
)
def test_texts_that_are_none(there: Place, tmp_path: Path, content: bytes, message: str) -> None:
    text = tmp_path / "text"
    text.write_bytes(content)
    said = [
        refused(tmp_path, "E_TEXT", "calibrate", there.toy, "-o", tmp_path / "x.stats", "--text", text),
        refused(tmp_path, "E_TEXT", "convert", there.toy, tmp_path / "x.gguf", "--quant", "q4_0", "--calibrate-text", text),
        refused(tmp_path, "E_TEXT", "eval", there.toy, "--text", text),
    ]
    assert all(message in each for each in said)


def test_an_empty_text_among_others(there: Place, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.touch()
    texts = "--text", there.words, "--text", empty
    assert "empty" in refused(tmp_path, "E_TEXT", "calibrate", there.toy, "-o", tmp_path / "x.stats", *texts)
