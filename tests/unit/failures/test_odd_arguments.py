"""What people type and pass by mistake: a sentence that says what was found and what to do, never a traceback."""

from __future__ import annotations

import pickle
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flyweight
from flyweight.foundation.limits import MAX_SIZE, parse_size
from support.command_line import flyweight as command
from support.command_line import invocations
from support.toys import write_toy_llama


def _archive(path: Path, member: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, pickle.dumps({}))


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


PLACES: dict[str, tuple[Callable[[Path], object], int, str]] = {
    "empty": (Path.mkdir, 4, "no files"),
    "outer/inner": (lambda path: (path / "deeper").mkdir(parents=True), 4, "no files"),
    "a.zip": (lambda path: _archive(path, "x"), 4, "zip archive"),
    "torch.pt": (lambda path: _archive(path, "archive/data.pkl"), 4, "pickle"),
    "model.bin": (lambda path: path.write_bytes(pickle.dumps({"a": 1})), 4, "pickle"),
    "text.txt": (lambda path: path.write_text("hello\n"), 4, "text file"),
    "page.html": (lambda path: path.write_text("<!DOCTYPE html><html>"), 4, "web page"),
    "lfs.gguf": (lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid"), 4, "Git LFS"),
    "nothing": (Path.touch, 4, "empty"),
    "socket": (_socket, 3, "neither a file nor a directory"),
    "/dev/null": (lambda _: None, 3, "neither a file nor a directory"),
    "/dev/zero": (lambda _: None, 3, "neither a file nor a directory"),
    "-": (lambda _: None, 4, "standard input"),
    "https://huggingface.co/a/b": (lambda _: None, 4, "https://huggingface.co/a/b: remote sources"),
    "hf://a/b": (lambda _: None, 4, "hf://a/b: remote sources"),
    "s3://a/b.gguf": (lambda _: None, 4, "s3://a/b.gguf: remote sources are not supported yet (download the file"),
    "file:///a.gguf": (lambda _: None, 4, "file:///a.gguf: remote sources"),
    "missing": (lambda _: None, 6, "missing: No such file"),
}


@pytest.mark.parametrize("name", PLACES)
def test_what_is_no_model_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, code, told = PLACES[name]
    monkeypatch.chdir(tmp_path)
    make(Path(name))
    done = command("inspect", name)
    assert (done.code, done.stdout) == (code, b"")
    assert told in done.stderr.decode()
    (tmp_path / "out").mkdir()
    for _, arguments, as_json in invocations(Path(name), tmp_path / "out", but=()):
        command(*arguments).check(as_json=as_json)


def test_a_directory_of_pickles_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    done = command("inspect", tmp_path, "--json")
    assert done.code == 4
    assert done.error()["code"] == "E_PICKLE"
    assert "pytorch_model.bin" in done.error()["message"]


@pytest.mark.parametrize(("typed", "meant"), [("inspct", "inspect"), ("covnert", "convert"), ("cache lst", "ls")])
def test_a_misspelt_verb_is_told_the_nearest(typed: str, meant: str) -> None:
    done = command(*typed.split())
    assert done.code == 2
    assert f"did you mean {meant}" in done.stderr.decode()


# Python -------------------------------------------------------------------------------------------

WRONG: tuple[tuple[str, Any], ...] = (
    *(("shard_bytes", value) for value in ("5Q", "", "-1", 0, -1, 2**70, 1.5, [], True, b"5G", "nan", "inf", "1e400")),
    *(("max_ram", value) for value in ("much", 0, 2.5, {}, True)),
    *(("jobs", value) for value in (0, -1, "two", 1.5, True, 10**9)),
    *(("to", value) for value in (5, b"gguf", ["gguf"])),
    *(("quant", value) for value in (4, b"q4_0", ["q4_0"])),
    *(("dtype", value) for value in (16, np.float16, b"bf16")),
    *(("destination", value) for value in (5, None, b"out", ["out"])),
)


@pytest.mark.parametrize(("argument", "value"), WRONG, ids=lambda value: repr(value)[:30])
def test_a_wrong_argument_is_a_sentence(argument: str, value: Any, tmp_path: Path) -> None:
    arguments = {"source": write_toy_llama(tmp_path / "toy", layers=1), "destination": tmp_path / "out.gguf", argument: value}
    with pytest.raises((TypeError, ValueError), match=argument):
        flyweight.convert(**arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_sizes_are_read_alike_from_python_and_the_command_line() -> None:
    sizes = {
        "5G": 5 * 2**30,
        "500m": 500 * 2**20,
        "2GiB": 2**31,
        "1.5K": 1536,
        "7": 7,
        " 3 kb ": 3072,
        12: 12,
        MAX_SIZE: MAX_SIZE,
    }
    assert {size: parse_size(size) for size in sizes} == sizes


@pytest.mark.parametrize("url", ["https://example.org/m.gguf", "HF://a/b", "s3://a/b", "file:///m.gguf"])
def test_a_url_is_refused_by_name(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    toy = write_toy_llama(tmp_path / "toy", layers=1)
    calls: tuple[Callable[[], object], ...] = (
        lambda: flyweight.open(url),
        lambda: flyweight.verify(url),
        lambda: flyweight.diff(toy, url),
        lambda: flyweight.convert(url, "out.gguf"),
        lambda: flyweight.convert(toy, url, to="hf"),
        lambda: flyweight.extract(toy, "files", url),
    )
    for call in calls:
        with pytest.raises(flyweight.FlyweightError, match="remote sources are not supported yet") as caught:
            call()
        assert (caught.value.code, caught.value.file) == ("E_REMOTE", url)
    for arguments in (("convert", toy, url), ("cache", "build", url), ("run", url, "x"), ("extract", toy, "files", url)):
        done = command(*arguments, "--json")
        assert (done.code, done.error()["code"], done.error()["file"]) == (4, "E_REMOTE", url)
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]
