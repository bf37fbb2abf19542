"""Directories nested deeper than Python's own recursion goes: every verb ends as it does without them, or refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import flyweight
from support.command_line import flyweight as run_verb
from support.toys import write_toy_llama

DEPTH = 1200
VERBS = {
    "inspect": (("inspect", "npy"), 0),
    "inspect hf": (("inspect", "hf"), 0),
    "verify": (("verify", "npy"), 0),
    "diff": (("diff", "npy", "npy"), 0),
    "run": (("run", "npy", "abc", "--max-tokens", "1"), 0),
    "cache build": (("cache", "build", "npy"), 0),
    "cache ls": (("cache", "ls", "npy"), 0),
    "convert": (("convert", "hf", "out"), 0),
    "convert --force": (("convert", "hf", "npy", "--to", "hf", "--force"), 6),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("nested")
    write_toy_llama(root / "hf", layers=1)
    flyweight.convert(root / "hf", root / "npy", to="npy_dir", quant="int8")
    for model in ("hf", "npy/tensors"):
        descriptor = os.open(root / model, os.O_RDONLY)
        for _ in range(DEPTH):
            os.mkdir("d", dir_fd=descriptor)
            inner = os.open("d", os.O_RDONLY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        os.close(descriptor)
    yield root
    subprocess.run(["rm", "-rf", str(root)], check=True)  # Python's own removal recurses


def test_they_are_deeper_than_recursion_goes() -> None:
    assert sys.getrecursionlimit() <= DEPTH


@pytest.mark.parametrize("verb", VERBS)
def test_nested_directories(place: Path, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    arguments, expected = VERBS[verb]
    done = run_verb(*arguments)
    assert done.code == expected, done
