"""`flyweight eval`: figures, refusals, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from flyweight.cli.eval import command
from flyweight.foundation.errors import FlyweightError
from support.toys import tokenizer_files, write_toy_llama

TEXT = "abc cab bca abcabc 123 (abc) " * 20


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_llama(tmp_path_factory.mktemp("eval") / "toy", dtype=np.float32)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT, "utf-8")
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def figures(*arguments: object) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def refusal(*arguments: object) -> tuple[str, int]:
    done = run(*arguments)
    assert isinstance(done.exception, FlyweightError), done.output
    return done.exception.code, done.exception.exit_code


def test_perplexity_alone(toy: Path, text: Path) -> None:
    found = figures(toy, "--text", text, "--context", 32, "--tokens", 100)
    assert (found["windows"], found["context"], found["predicted_tokens"]) == (3, 32, 93)
    estimate = found["perplexity"]
    assert 1 < estimate["low"] < estimate["value"] < estimate["high"]
    assert "kl_mean" not in found


def test_a_window_is_at_most_what_the_model_has(toy: Path, text: Path) -> None:
    assert figures(toy, "--text", text)["context"] == 128
    assert refusal(toy, "--text", text, "--context", 129) == ("E_CONTEXT", 5)


def test_a_model_beside_itself(toy: Path, text: Path) -> None:
    found = figures(toy, "--text", text, "--context", 32, "--exact", "--kv", "f32", "--against", toy)
    assert found["kl_mean"]["value"] == found["perplexity_change"]["value"] == 0
    assert found["same_top"]["value"] == 1
    assert found["perplexity"] == found["reference_perplexity"]


def test_another_model_differs(toy: Path, text: Path, tmp_path: Path) -> None:
    other = write_toy_llama(tmp_path / "other", dtype=np.float32, seed=8)
    found = figures(toy, "--text", text, "--context", 32, "--against", other)
    assert 0 < found["kl_median"]["low"] <= found["kl_mean"]["value"] <= found["kl_99_9"]["high"]
    assert found["same_top"]["value"] < 1
    done = run(toy, "--text", text, "--context", 32, "--against", other)
    assert "KL divergence, mean (nats)" in done.stdout
    assert "windows of 32 tokens" in done.stdout
    assert done.stderr == ""


def test_memory_can_be_bounded_for_both(toy: Path, text: Path) -> None:
    plain = figures(toy, "--text", text, "--context", 32, "--against", toy)
    assert figures(toy, "--text", text, "--context", 32, "--against", toy, "--max-ram", "1G") == plain
    assert refusal(toy, "--text", text, "--context", 32, "--against", toy, "--max-ram", "50M") == ("E_RAM", 5)


def test_what_cannot_be_measured_is_refused(toy: Path, text: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("abc", "utf-8")
    assert refusal(toy, "--text", short) == ("E_TEXT", 4)
    short.write_bytes(b"abc\xff")
    assert refusal(toy, "--text", short) == ("E_TEXT", 3)
    other = write_toy_llama(tmp_path / "other")
    tokenizer = json.loads(tokenizer_files()["tokenizer.json"])
    tokenizer["model"]["merges"] = []
    (other / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    assert refusal(toy, "--text", text, "--against", other) == ("E_VOCABULARY", 4)
    assert isinstance(run(toy, "--text", tmp_path / "absent.txt").exception, OSError)
    assert run(toy).exit_code == 2
