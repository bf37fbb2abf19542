"""Files that are damaged at every place, and the verbs that must refuse a hostile model."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

from support.command_line import flyweight
from support.fuzz_cases import Case

Files = Mapping[str, bytes]


def flipped(files: Files) -> Iterator[dict[str, bytes]]:
    """Every byte of every file, one of its bits."""
    rng = random.Random(0)
    for name, raw in files.items():
        for at in range(len(raw)):
            yield {**files, name: raw[:at] + bytes([raw[at] ^ 1 << rng.randrange(8)]) + raw[at + 1 :]}


def cut(files: Files) -> Iterator[dict[str, bytes]]:
    """Every file, to every shorter length."""
    for name, raw in files.items():
        for length in range(len(raw)):
            yield {**files, name: raw[:length]}


def check_refusals(case: Case, verbs: Mapping[str, list[str]], folder: Path, out: Path) -> None:
    """Every verb exits as the case says, naming a file in `folder`, and leaves nothing behind in it or in `out`."""
    before = sorted(map(str, folder.rglob("*")))
    for verb, arguments in verbs.items():
        done = flyweight(*arguments)
        code, said = done.code, done.said
        assert str(folder) in said, (verb, "names no file", said)
        assert (code, case.code in said, "Traceback" in said) == (case.exit_code, True, False), (verb, code, said)
    assert os.listdir(out) == []
    assert sorted(map(str, folder.rglob("*"))) == before
