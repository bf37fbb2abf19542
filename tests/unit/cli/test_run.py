"""`run` and `chat` as a person meets them: text as it comes, figures, memory, and one clear line for whatever is wrong."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.toys import CONFIG, draft_head, llama_tensors, safetensors_bytes, toy_llama_files, write_files

COMMAND = [sys.executable, "-m", "flyweight"]
PROMPTLY = 2.0
"""Seconds. The promise is 0.1 on an idle machine; tests run on busy ones, and a loop that goes on takes minutes."""


def flyweight(*arguments: object, typed: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=60, input=typed)


def model_at(root: Path, *, layers: int = 2, config: Mapping[str, Any] = {}, files: Mapping[str, bytes] = {}) -> Path:
    settings = json.dumps({**CONFIG, "num_hidden_layers": layers, **config}).encode()
    return write_files(root, toy_llama_files(layers=layers) | {"config.json": settings} | dict(files))


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six layers, more than the two a streamed model holds, and a context that takes seconds to fill."""
    folder = tmp_path_factory.mktemp("run") / "toy"
    return model_at(folder, layers=6, config={"max_position_embeddings": 1 << 18, "eos_token_id": 95})


def said(toy: Path, *options: object) -> dict[str, Any]:
    done = flyweight("run", toy, "abcabc", "--max-tokens", 12, "--json", *options)
    assert (done.returncode, done.stderr) == (0, "")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


# Text and figures -------------------------------------------------------------------------------


def test_json_has_the_promised_fields(toy: Path) -> None:
    began = time.monotonic()
    found = said(toy)
    assert found["first_token_ms"] <= 1e3 * (time.monotonic() - began) + 10, "counted from the start of the process"
    assert (found["prompt_tokens"], found["tokens"], found["finish"]) == (2, 12, "length")
    assert 0 < found["load_ms"] < found["first_token_ms"]
    assert min(found["prefill_tokens_per_s"], found["decode_tokens_per_s"]) > 0
    assert 10e6 < found["peak_rss"] < 500e6
    assert (found["streamed"], found["context"]) == (False, 4096)


def test_plain_output_is_the_text_alone(toy: Path) -> None:
    done = flyweight("run", toy, "abcabc", "--max-tokens", 12)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == said(toy)["text"] + "\n"
    assert flyweight("run", toy, "--max-tokens", 12, typed="abcabc").stdout == done.stdout


def test_a_model_in_one_file_needs_nothing_beside_it(toy: Path, tmp_path: Path) -> None:
    head, alone = tmp_path / "head.safetensors", tmp_path / "alone" / "m.squizd"
    head.write_bytes(safetensors_bytes(draft_head()))
    alone.parent.mkdir()
    made = flyweight("convert", toy, alone, "--quant", "tca", "--eagle", head)
    assert made.returncode == 0, made.stderr
    assert list(alone.parent.iterdir()) == [alone]
    refused = flyweight("run", alone, "abc", "--max-ram", "1M").stderr
    needed = next(int(word) for word in refused.split() if word.isdigit())
    streamed = said(alone, "--max-ram", needed)
    assert streamed["streamed"]
    assert streamed["text"] == said(alone)["text"] == said(toy)["text"]


def test_a_seed_decides_the_text(toy: Path) -> None:
    one, same, other = (said(toy, "--temperature", 2, "--seed", seed)["text"] for seed in (7, 7, 8))
    assert one == same
    assert one != other


def test_too_little_memory_for_the_weights_streams_them(toy: Path) -> None:
    refused = flyweight("run", toy, "abc", "--max-ram", "1M")
    assert refused.returncode == 5
    needed = next(int(word) for word in refused.stderr.split() if word.isdigit())
    streamed, whole = said(toy, "--max-ram", needed), said(toy, "--max-ram", needed * 2)
    assert (streamed["streamed"], whole["streamed"]) == (True, False)
    assert streamed["text"] == whole["text"]
    assert streamed["peak_rss"] <= needed


def test_a_full_context_ends_the_answer(toy: Path) -> None:
    done = flyweight("run", toy, "abcabc", "--context", 8)
    assert done.returncode == 0
    assert done.stderr == "the context of 8 tokens is full\n"


def test_bench_run_measures_a_model(toy: Path, tmp_path: Path) -> None:
    done = flyweight("bench", "run", toy, "--runs", 1, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = {result["name"]: result["figures"]["toy"]["median"] for result in json.loads(done.stdout)["results"]}
    assert {"load", "first token", "decode", "prefill"} <= set(found)
    assert 0 < found["load"] < found["first token"]
    short = flyweight("bench", "run", model_at(tmp_path / "short"))
    assert (short.returncode, short.stdout) == (4, "")
    assert flyweight("bench", "run").returncode == flyweight("bench", "q4_0", toy).returncode == 2


def test_a_conversation_over_a_pipe(toy: Path) -> None:
    options = ("--max-tokens", 8)
    done = flyweight("chat", toy, *options, typed="abc\nxyz\n/reset\nabc\n/exit\nnever read\n")
    assert (done.returncode, done.stderr) == (0, "")
    first, second, again, end = done.stdout.split("\n")
    assert (first, end) == (again, "")
    assert second != first
    assert flyweight("chat", toy, *options, typed="abc\n").stdout == first + "\n"
    # The second answer continues what was said, read from the cache or read anew.
    assert flyweight("run", toy, f"abc{first}xyz", *options).stdout == second + "\n"


# Every mistake is one line and its exit code ----------------------------------------------------


def without_a_tensor(files: dict[str, bytes]) -> dict[str, bytes]:
    return {"config.json": json.dumps({**CONFIG, "num_hidden_layers": 3}).encode()}


def with_a_wrong_shape(files: dict[str, bytes]) -> dict[str, bytes]:
    return {"config.json": json.dumps({**CONFIG, "intermediate_size": 64}).encode()}


def with_an_unknown_architecture(files: dict[str, bytes]) -> dict[str, bytes]:
    return {"config.json": json.dumps({**CONFIG, "model_type": "gpt_wonder"}).encode()}


def with_a_broken_tokenizer(files: dict[str, bytes]) -> dict[str, bytes]:
    return {"tokenizer.json": files["tokenizer.json"][:-200]}


def with_another_tokenizer(files: dict[str, bytes]) -> dict[str, bytes]:
    """One that names tokens the model does not have."""
    document = json.loads(files["tokenizer.json"])
    document["model"]["vocab"] |= {"abc": 5000}
    return {"tokenizer.json": json.dumps(document).encode()}


def with_a_template(text: str) -> Callable[[dict[str, bytes]], dict[str, bytes]]:
    def change(files: dict[str, bytes]) -> dict[str, bytes]:
        return {"tokenizer_config.json": json.dumps({"chat_template": text}).encode()}

    return change


BOMB = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("change", "code", "exit_code"),
    [
        (without_a_tensor, "E_TENSORS", 3),
        (with_a_wrong_shape, "E_SHAPE", 3),
        (with_an_unknown_architecture, "E_FAMILY", 4),
        (with_a_broken_tokenizer, "E_", 3),
        (with_another_tokenizer, "E_TOKENIZER", 3),
        (with_a_template(BOMB), "E_TEMPLATE", 3),
        (with_a_template("{{ raise_exception('\x1b[31m no \\n thanks') }}"), "E_TEMPLATE", 3),
        (with_a_template("{{"), "E_TEMPLATE", 3),
    ],
)
def test_refusals(change: Callable[[dict[str, bytes]], dict[str, bytes]], code: str, exit_code: int, tmp_path: Path) -> None:
    files = toy_llama_files()
    model = write_files(tmp_path / "model", files | change(files))
    assert_refused(model, code, exit_code)


def assert_refused(model: Path, code: str, exit_code: int, *options: object, prompt: str = "abc") -> None:
    done = flyweight("run", model, prompt, *options)
    assert (done.returncode, done.stdout) == (exit_code, ""), done.stderr
    assert done.stderr.startswith("flyweight: ")
    assert done.stderr[-1] == "\n"
    assert done.stderr[:-1].isprintable(), "one line"
    assert f"[{code}" in done.stderr


@pytest.mark.parametrize("missing", ["tokenizer.json", "tokenizer_config.json"])
def test_what_is_not_there_is_named(missing: str, tmp_path: Path) -> None:
    """No tokenizer: nothing to run with. No chat template: --raw is the way."""
    model = write_files(tmp_path / "model", toy_llama_files())
    (model / missing).unlink()
    assert_refused(model, "E_TOKENIZER" if missing == "tokenizer.json" else "E_TEMPLATE", 4)
    raw = flyweight("run", model, "abc", "--raw", "--max-tokens", 2)
    assert raw.returncode == (4 if missing == "tokenizer.json" else 0)


def test_weights_that_are_no_numbers(tmp_path: Path) -> None:
    tensors = llama_tensors()
    tensors["model.norm.weight"][3] = float("nan")
    assert_refused(model_at(tmp_path / "m", files={"model.safetensors": safetensors_bytes(tensors)}), "E_LOGITS", 3)


def test_a_prompt_longer_than_the_context(toy: Path) -> None:
    assert_refused(toy, "E_CONTEXT", 5, "--context", 16, prompt="a b " * 20)
    assert_refused(toy, "E_CONTEXT", 5, "--context", 1 << 20)


@pytest.mark.parametrize(
    "arguments",
    [("run", "MODEL", ""), ("run", "MODEL", "abc", "--raw", "--system", "x"), ("run",), ("run", "MODEL", "a", "--top-p", 0)],
)
def test_usage(arguments: tuple[object, ...], toy: Path) -> None:
    done = flyweight(*(toy if word == "MODEL" else word for word in arguments), typed="")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: flyweight run" in done.stderr


def test_a_model_that_is_not_there() -> None:
    done = flyweight("run", "no-such-model", "abc")
    assert (done.returncode, done.stdout) == (6, "")
    assert "no-such-model" in done.stderr


# Stopping ---------------------------------------------------------------------------------------


def endless(toy: Path) -> subprocess.Popen[bytes]:
    """An answer that has begun and would take minutes."""
    options = ["--context", str(1 << 18), "--max-tokens", str(1 << 30)]
    running = subprocess.Popen(
        [*COMMAND, "run", str(toy), "abc", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    assert running.stdout is not None
    assert running.stdout.read(1), "text streams: the first character is there long before the last"
    return running


def test_ctrl_c_ends_an_answer(toy: Path) -> None:
    with endless(toy) as running:
        running.send_signal(signal.SIGINT)
        started = time.monotonic()
        _, errors = running.communicate(timeout=60)
        assert time.monotonic() - started < PROMPTLY
    assert running.returncode == 130
    assert b"Traceback" not in errors


def test_ctrl_c_does_not_wait_for_a_product() -> None:
    """A long call of native code, as a product of a large model is one: Python itself would only notice afterwards."""
    script = (
        "import hashlib, signal\n"
        "from flyweight.cli.run import leave_promptly\n"
        "signal.signal(signal.SIGINT, lambda *_: None)\n"  # what Python does about it comes too late or is not enough
        "leave_promptly()\n"
        "print('ready', flush=True)\n"
        "hashlib.pbkdf2_hmac('sha512', b'', b'', 1 << 30)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        running.send_signal(signal.SIGINT)
        started = time.monotonic()
        assert running.wait(timeout=60) == 130
        assert time.monotonic() - started < PROMPTLY


def test_a_reader_that_leaves_ends_the_answer_quietly(toy: Path) -> None:
    """As `| head -c 1` does."""
    with endless(toy) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        errors = running.stderr.read()
        assert (running.wait(timeout=60), errors) == (0, b"")
