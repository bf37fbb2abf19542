"""Names that no terminal should see and no encoding holds, as paths, side files and shards, in every verb."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import flyweight
from flyweight.containers import CONTAINERS
from support.command_line import Done, invocations
from support.command_line import flyweight as command
from support.toys import write_toy_llama

NAMES = {
    "bytes that are no UTF-8": b"m\xffd",
    "a title for the terminal": b"m\x1b]0;owned\x07",
    "right to left": "m\u202efugg".encode(),
    "two lines": b"m\nd",
    "C1 control": "m\x9b31m".encode(),
    "markup of rich": b"[bold]m[blink]",
    "a tag": "m\U000e0041".encode(),
}
FORMS = {
    "model.gguf": {},
    "model.safetensors": {},
    "model.squizd": {"quant": "int4"},
    "npy-dir": {"to": "npy_dir", "quant": "int8"},
    "mlx-dir": {"to": "mlx", "quant": "int4"},
    "shards": {"to": "hf", "shard_bytes": "40K"},
}
ALL = b"".join(NAMES.values())
SLOW = ("bench",)  # starts a process for each figure; it prints what `inspect` prints


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy in every form."""
    home = tmp_path_factory.mktemp("models")
    toy = write_toy_llama(home / "toy")
    for name, options in FORMS.items():
        flyweight.convert(toy, home / name, **options)  # type: ignore[arg-type]
    return home


def odd_copy(original: Path, place: Path, name: bytes) -> Path:
    """The same model under an odd name in an odd directory, with an odd side file if it is a directory."""
    odd = place / os.fsdecode(name) / (os.fsdecode(name) + original.suffix)
    odd.parent.mkdir()
    if original.is_dir():
        shutil.copytree(original, odd)
        (odd / os.fsdecode(name)).write_text("a side file")
    else:
        shutil.copy(original, odd)
    return odd


def outputs(place: Path) -> Iterator[Path]:
    out = place / "out"
    while True:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        (out / "text.txt").write_text("abc abd " * 40)
        yield out


@pytest.mark.parametrize("form", ["toy", *FORMS])
def test_every_verb_takes_it_and_prints_it_safely(models: Path, form: str, tmp_path: Path) -> None:
    odd = odd_copy(models / form, tmp_path, ALL)
    out = outputs(odd.parent)
    for call, arguments, as_json in invocations(odd, next(out), but=SLOW):
        next(out)
        done = command(*arguments)
        done.check(as_json=as_json)
        if not as_json:
            next(out)
            plain = command(*(models / form if argument == odd else argument for argument in arguments))
            assert done.code == plain.code, (call, done.stderr, plain.stderr)


@pytest.mark.parametrize("target", [container.name for container in CONTAINERS])
def test_a_side_file_keeps_its_odd_name_or_is_refused(models: Path, target: str, tmp_path: Path) -> None:
    source = odd_copy(models / "toy", tmp_path, b"m\xffd")
    done = command("convert", source, tmp_path / "made", "--to", target, "--json")
    done.check(as_json=True)
    if done.code:
        assert done.error()["code"] == "E_FILE_NAME"
        assert r"m\xffd" in done.error()["message"]
        assert not (tmp_path / "made").exists()
        assert not list(tmp_path.glob(".made*"))
    elif (tmp_path / "made").is_dir():
        assert os.fsencode(tmp_path / "made") + b"/m\xffd" in [os.fsencode(p) for p in (tmp_path / "made").iterdir()]


@pytest.mark.parametrize("name", [ALL, ALL.replace(b"\xff", b"")], ids=["no UTF-8", "UTF-8"])
def test_shards_with_odd_names(models: Path, name: bytes, tmp_path: Path) -> None:
    """An index cannot name a file that is no UTF-8; with every other name the shards are found."""
    root = tmp_path / "model"
    shutil.copytree(models / "shards", root)
    index = json.loads((root / "model.safetensors.index.json").read_text())
    old = index["weight_map"]["lm_head.weight"]
    new = os.fsdecode(name) + ".safetensors"
    (root / old).rename(root / new)
    index["weight_map"] = {tensor: new if file == old else file for tensor, file in index["weight_map"].items()}
    (root / "model.safetensors.index.json").write_text(json.dumps(index))
    out = outputs(tmp_path)
    for _, arguments, as_json in invocations(root, next(out), but=SLOW):
        next(out)
        command(*arguments).check(as_json=as_json)


def test_json_keeps_what_tables_escape(models: Path, tmp_path: Path) -> None:
    """A control character is an escape of JSON, so nothing is lost; a byte that is no UTF-8 is text."""
    odd = odd_copy(models / "toy", tmp_path, b"m\x1b\xffd")
    done: Done = command("inspect", odd, "--json")
    assert b"\x1b" not in done.stdout
    assert "m\x1b\\xffd" in done.json()["files"]
    table = command("inspect", odd).stdout.decode()
    assert r"m\x1b\xffd" in table


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_what_is_not_there_is_named_safely(name: bytes) -> None:
    for call, arguments, as_json in invocations(Path(os.fsdecode(name)), Path(os.fsdecode(name)), but=()):
        done = command(*arguments)
        done.check(as_json=as_json)
        assert done.code, call
    for arguments in ((os.fsdecode(name),), ("inspect", f"--{os.fsdecode(name)}"), ("completion", os.fsdecode(name))):
        done = command(*arguments)
        done.check()
        assert done.code == 2
