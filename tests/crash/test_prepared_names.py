"""Every name that a verb touches, prepared by a stranger: nothing outside is written to, nothing hangs, nothing breaks.

Which names those are is traced, not listed: each verb runs once undisturbed, and every path that it creates, opens for writing,
renames or removes is a name to prepare. The random part of a name is prepared as zeros. Names that earlier versions had are
added, and every verb meets the names of all verbs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import flyweight
from support.toys import safetensors_bytes, write_files, write_toy_llama

DRIVER = Path(__file__).with_name("prepared_driver.py")
KINDS = ["link to a file", "link to a directory", "fifo", "directory"]
TO_WRITE = ["link to nothing"]
"""What can harm only a verb that writes."""
FOREIGN = ["directory of another", "file of another"]
KNOWN = {0, 1, 2, 3, 4, 5, 6}
RANDOM = re.compile(r"[0-9a-f]{16}")


class Verb(NamedTuple):
    argv: list[str]
    inputs: list[str]
    reads: bool = False
    """Whether it must leave everything as it is."""


VERBS = {
    "convert to a file": Verb(["convert", "hf", "out.safetensors", "--jobs", "1"], ["hf"]),
    "convert to a directory": Verb(["convert", "hf", "out", "--to", "npy-dir", "--jobs", "1"], ["hf"]),
    "convert --force": Verb(["convert", "hf", "npy", "--to", "hf", "--force", "--jobs", "1"], ["hf", "npy"]),
    "convert --resume": Verb(["convert", "hf", "out.safetensors", "--resume", "--jobs", "1"], ["hf"]),
    "convert --add": Verb(["convert", "--add", "int4", "npy", "--jobs", "1"], ["npy"]),
    "extract to a file": Verb(["extract", "hf", "config.json", "out"], ["hf"]),
    "extract to a directory": Verb(["extract", "hf", "files", "out"], ["hf"]),
    "inspect": Verb(["inspect", "npy"], ["npy"], reads=True),
    "verify": Verb(["verify", "npy"], ["npy"], reads=True),
    "diff": Verb(["diff", "npy", "hf"], ["npy", "hf"], reads=True),
    "calibrate": Verb(["calibrate", "words", "-o", "out", "--tokens", "64", "--window", "8", "--threads", "1"], ["words"]),
    "eval": Verb(["eval", "llama", "--text", "text.txt", "--context", "16"], ["llama", "text.txt"], reads=True),
    "run": Verb(["run", "words", "abc", "--max-tokens", "1"], ["words"], reads=True),
    "run --tier": Verb(["run", "words", "abc", "--max-tokens", "1", "--tier", "cache"], ["words"], reads=True),
    "chat": Verb(["chat", "words", "--no-build"], ["words"], reads=True),
    "cache build": Verb(["cache", "build", "words"], ["words"], reads=True),
    "cache build --in-place": Verb(["cache", "build", "--in-place", "words"], ["words"]),
    "cache ls": Verb(["cache", "ls", "words"], ["words"], reads=True),
    "cache verify": Verb(["cache", "verify", "words"], ["words"], reads=True),
    "cache prune": Verb(["cache", "prune", "words"], ["words"]),
}
STAGED = [".out.safetensors.partial", ".out.partial", ".npy.partial", "npy/.npy.partial", "llama/.llama.partial"]
LEGACY = [f"{name}{inner}" for name in STAGED for inner in ("", "/lock", "/journal.jsonl", "/out")] + [
    "npy/.flyweight_tiers.new", "npy/.flyweight_tiers.lock", "npy/.flyweight_packed.safetensors.partial",
    "npy/.squish_weights.safetensors.partial", "npy/flyweight_packed.safetensors",
    "words/.flyweight_tiers.new", "words/.flyweight_tiers.lock", "words/.flyweight_packed.safetensors.partial",
]  # fmt: skip
"""Names that other versions have."""


class Bench:
    """Models to work on, and what must stay as it is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        template = root / "template"
        template.mkdir()
        write_toy_llama(template / "llama", layers=1)
        weights = {"a.weight": np.ones((4, 64), np.float32), "norm.weight": np.ones(64, np.float32)}
        write_files(template / "hf", {"config.json": b"{}", "model.safetensors": safetensors_bytes(weights)})
        flyweight.convert(template / "hf", template / "npy", to="npy_dir", quant="int8")
        flyweight.convert(template / "llama", template / "words", to="npy_dir", quant="int8")
        (template / "text.txt").write_text("abc cab bca " * 10)
        (root / "outside" / "directory").mkdir(parents=True)
        for name in ("file", "directory/file", "directory/journal.jsonl", "directory/lock", "directory/out"):
            (root / "outside" / name).write_bytes(b"precious")

    def run(self, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
        (self.root / "cases").write_text(json.dumps(cases))
        command = [sys.executable, str(DRIVER), *(str(self.root / name) for name in ("work", "outside", "cases"))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(lines) == len(cases)
        return lines


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    """In memory where there is such a place."""
    folder = tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    yield Bench(Path(folder))
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def traced(bench: Bench) -> dict[str, list[str]]:
    """Verb → the names it touched, undisturbed, relative to where it works."""
    lines = bench.run([{"argv": verb.argv, "inputs": verb.inputs} for verb in VERBS.values()])
    work, own = f"{bench.root}/work/", tuple(os.environ[name] for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME"))
    found = {}
    for (name, verb), line in zip(VERBS.items(), lines, strict=True):
        assert line["status"] in ((0, 1) if name == "diff" else (0,)), (name, line)
        assert not line["outside_changed"]
        elsewhere = [
            path for path in line["touched"] if not path.startswith((work, *own)) and path not in ("/dev/null", "/dev/tty")
        ]
        assert elsewhere == [], name
        found[name] = [path.removeprefix(work) for path in line["touched"] if path.startswith(work)]
        if verb.reads:
            assert (found[name], line["changed"]) == ([], []), name
    return found


def test_the_names_of_a_run_are_seen(traced: dict[str, list[str]]) -> None:
    assert {"out.safetensors"} < set(traced["convert to a file"])
    assert [
        name
        for name in traced["convert to a file"]
        if re.fullmatch(rf"\.out\.safetensors\.partial-{RANDOM.pattern}/journal\.jsonl", name)
    ]
    assert {"npy/flyweight.json", "npy/.squish_int4_ready"} < set(traced["convert --add"])


def prepared_names(traced: dict[str, list[str]], verb: Verb) -> list[str]:
    """The names of all verbs that lie where this one works, one of those that are alike.

    Nothing but its journal is looked at in a staging directory that does not verify, so one name deep is deep enough there.
    """
    names = {RANDOM.sub("0" * 16, name) for touched in traced.values() for name in touched}
    names |= {name.rpartition("/")[0] for name in names if name.count("/") > 1}  # the folder a file is in, as well
    names.update(LEGACY)
    outputs = () if verb.reads else verb.argv
    near = {name for name in names if name.startswith(tuple(f"{model}/" for model in verb.inputs))}
    near |= {name for name in names if name.startswith(tuple(f".{output}.partial" for output in outputs)) or name in outputs}
    alike: dict[str, str] = {}
    for name in sorted(near):
        above, _, last = re.sub(r"(partial-0+/[^/]*)/.*", r"\1", name).rpartition("/")
        alike.setdefault(f"{above}/{re.sub('^.*(?=__)', '', last)}", f"{above}/{last}".lstrip("/"))
    return sorted(alike.values())


@pytest.mark.parametrize("name", VERBS)
def test_what_a_stranger_prepared_costs_nobody_anything(bench: Bench, traced: dict[str, list[str]], name: str) -> None:
    verb = VERBS[name]
    kinds = KINDS if verb.reads else KINDS + TO_WRITE + (FOREIGN if os.geteuid() == 0 else [])
    cases = [(place, kind) for place in prepared_names(traced, verb) for kind in kinds]
    lines = bench.run([{"argv": verb.argv, "inputs": verb.inputs, "place": place, "kind": kind} for place, kind in cases])
    for (place, kind), line in zip(cases, lines, strict=True):
        case = f"{name}, {kind} at {place}: {line}"
        assert not line["outside_changed"], case
        assert line["status"] in KNOWN, case
        assert "Traceback" not in line["errors"], case
        assert line["kept"] or kind == "directory", case
        assert not verb.reads or not line["changed"], case
    assert len(cases) >= len(kinds)
