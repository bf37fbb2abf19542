"""No failure of a verb is a traceback: what nobody expected is E_INTERNAL with a report, exit 70."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import flyweight.pipeline
import flyweight.tiers
from flyweight.cli.failure import INTERNAL
from flyweight.foundation.errors import ArgumentError, MalformedError
from support.command_line import flyweight as command
from support.toys import write_toy_llama


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where reports go, in a home of its own, seen from an empty directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "state" / "flyweight" / "reports"


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Have `verify` and `run` fail in a given way."""

    def set_failure(error: BaseException) -> None:
        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(flyweight.pipeline, "verify", fail)
        monkeypatch.setattr(flyweight.tiers, "open_model_from", fail)

    return set_failure


def test_a_fault_of_ours_is_a_line_and_a_report(failing: Callable[[BaseException], None], state: Path) -> None:
    failing(KeyError("surprise"))
    done = command("verify", "model.gguf")
    line = done.stderr.decode()
    (report,) = state.iterdir()
    assert (done.code, done.stdout, line.count("\n")) == (INTERNAL, b"", 1)
    assert "KeyError: 'surprise'" in line
    assert str(report) in line
    assert line.endswith("[E_INTERNAL]\n")
    text = report.read_text()
    assert all(part in text for part in ("flyweight 0.", "Python 3.", '["verify", "model.gguf"]', "Traceback", "in fail"))
    assert report.stat().st_mode & 0o777 == 0o600
    assert state.stat().st_mode & 0o777 == 0o700
    assert list(Path.cwd().iterdir()) == []


def test_the_document_of_a_fault_names_its_report(failing: Callable[[BaseException], None], state: Path) -> None:
    failing(AssertionError())
    error = command("verify", "model.gguf", "--json").error()
    assert error["code"] == "E_INTERNAL"
    assert Path(error["report"]).parent == state


def test_reports_do_not_repeat_what_was_said_to_a_model(failing: Callable[[BaseException], None], state: Path) -> None:
    failing(KeyError())
    (state.parents[2] / "here" / "model.gguf").touch()
    command("run", "model.gguf", "my secret", "--raw", "--stop=hidden", "--seed", 7, "--json")
    text = next(state.iterdir()).read_text()
    assert "secret" not in text
    assert "hidden" not in text
    shown = ["run", "model.gguf", "<9 characters>", "--raw", "--stop=<6 characters>", "--seed", "<1 characters>", "--json"]
    assert f"arguments: {json.dumps(shown)}" in text


def test_the_newest_reports_are_kept(failing: Callable[[BaseException], None], state: Path) -> None:
    failing(KeyError())
    for _ in range(23):
        assert command("verify", "x").code == INTERNAL
    assert len(list(state.iterdir())) == 20


@pytest.mark.parametrize("kind", ["file", "link"])
def test_without_a_place_for_reports_the_traceback_is_printed(
    failing: Callable[[BaseException], None], state: Path, tmp_path: Path, kind: str
) -> None:
    failing(KeyError("\x1b]0;x"))
    state.parent.mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    state.touch() if kind == "file" else state.symlink_to(elsewhere)
    done = command("verify", "x")
    assert done.code == INTERNAL
    assert b"Traceback" in done.stderr
    assert b"\x1b" not in done.stderr
    assert list(elsewhere.iterdir()) == []


def test_the_variable_prints_every_traceback(
    failing: Callable[[BaseException], None], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYWEIGHT_TRACEBACK", "1")
    failing(MalformedError("bad"))
    done = command("verify", "x")
    assert done.code == 3
    assert b"in fail" in done.stderr
    assert not state.exists()


@pytest.mark.parametrize(
    ("error", "code", "label"),
    [
        (MemoryError(), 5, "E_RAM"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 5, "E_RAM"),
        (ImportError("libx.so: failed to map segment from shared object"), 5, "E_RAM"),
        (RuntimeError("can't start new thread"), 5, "E_RAM"),
        (RecursionError("maximum recursion depth exceeded"), 3, "E_LIMIT"),
        (OSError(errno.ENOSPC, "No space left on device", b"/x\xff"), 6, "E_IO"),
        (TimeoutError(), 6, "E_IO"),
        (KeyboardInterrupt(), 130, "E_SIGINT"),
        (ArgumentError("no such thing"), 2, "E_ARGUMENT"),
        (ImportError("no module"), 70, "E_INTERNAL"),
        (RuntimeError("unexpected"), 70, "E_INTERNAL"),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates"), 70, "E_INTERNAL"),
    ],
    ids=repr,
)
def test_what_python_raises_has_an_exit_code(
    failing: Callable[[BaseException], None], state: Path, error: BaseException, code: int, label: str
) -> None:
    failing(error)
    done = command("verify", "x")
    assert done.code == code
    assert done.stderr.decode().rstrip().endswith(f"[{label}]")
    assert done.stderr.strip().count(b"\n") == 0
    assert state.exists() == (code == INTERNAL)
    assert command("verify", "x", "--json").error()["code"] == label


# Streams ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_llama(tmp_path_factory.mktemp("streams") / "toy-→")


@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)], ids=str)
def test_closed_streams_do_not_become_files_of_the_output(toy: Path, tmp_path: Path, closed: tuple[int, ...]) -> None:
    """The first files opened get the numbers of the closed streams; what is printed must not end up in them."""
    start = "os.execv(sys.executable, [sys.executable, '-m', 'flyweight', *sys.argv[1:]])"
    program = f"import os, sys\nfor n in {closed}: os.close(n)\n{start}"
    made = [tmp_path / "closed.gguf", tmp_path / "open.gguf"]
    subprocess.run([sys.executable, "-c", program, "convert", toy, made[0], "--tensors"], check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "flyweight", "convert", toy, made[1]], check=True, capture_output=True)
    assert made[0].read_bytes() == made[1].read_bytes()


def test_a_full_disk_under_stdout_is_an_error(toy: Path) -> None:
    for verb in ("inspect", "verify"):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [sys.executable, "-m", "flyweight", verb, toy], stdout=full, stderr=subprocess.PIPE, check=False
            )
        assert (done.returncode, done.stderr) == (6, b"flyweight: No space left on device [E_IO]\n")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16"])
def test_any_encoding_of_stdout_can_be_printed_to(toy: Path, encoding: str) -> None:
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    for more in ([], ["--json"]):
        command = [sys.executable, "-m", "flyweight", "inspect", toy, *more]
        done = subprocess.run(command, env=environment, capture_output=True, check=True)
        text = done.stdout.decode(encoding)
        assert json.loads(text)["format"] == "hf" if more else "toy-" in text
