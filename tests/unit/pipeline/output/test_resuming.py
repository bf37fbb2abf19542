"""What an earlier run left is believed by its signature alone, and resumed only for the same job."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flyweight
from flyweight.foundation.errors import OutputError
from flyweight.writing import folder
from support.toys import safetensors_bytes

TENSORS, DONE = 6, 1


def write_source(path: Path, seed: int) -> Path:
    random = np.random.default_rng(seed)
    tensors = {f"layer.{i}": random.standard_normal((4, 32)).astype(np.float32) for i in range(TENSORS)}
    path.write_bytes(safetensors_bytes(tensors))
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "m.safetensors", 1)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "there").mkdir()
    return tmp_path / "there" / "out.safetensors"


def convert(source: Path, target: Path, **options: Any) -> Any:
    return flyweight.convert(source, target, quant="q8_0", jobs=1, **options)


def interrupt(source: Path, target: Path) -> Path:
    """Stop a run; its staging directory, whose journal knows `DONE` tensors."""

    def stop(name: str, nbytes: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, target, progress=stop)
    (left,) = target.parent.glob(f".{target.name}.partial-*")
    lines = (left / "journal.jsonl").read_bytes().splitlines(keepends=True)
    os.truncate(left / "journal.jsonl", sum(map(len, lines[: 1 + DONE])))  # how far a worker comes meanwhile varies
    return left


def test_an_interrupted_run_is_resumed_and_leaves_nothing(source: Path, target: Path) -> None:
    left = interrupt(source, target)
    assert left.stat().st_mode & 0o777 == 0o700
    assert convert(source, target, resume=True).resumed == DONE
    assert os.listdir(target.parent) == [target.name]


def test_without_resume_it_is_removed_and_made_anew(source: Path, target: Path) -> None:
    interrupt(source, target)
    assert convert(source, target).resumed == 0
    assert os.listdir(target.parent) == [target.name]


def test_another_job_is_not_resumed(source: Path, target: Path) -> None:
    left = interrupt(source, target)
    with pytest.raises(OutputError, match="different conversion") as refused:
        flyweight.convert(source, target, quant="q4_0", resume=True)
    assert refused.value.code == "E_RESUME"
    assert left.exists()


def test_a_source_rewritten_with_its_old_time_is_not_mixed_in(source: Path, target: Path) -> None:
    interrupt(source, target)
    before = source.stat()
    with source.open("r+b") as file:  # the same inode and size, other weights
        file.write(write_source(source.with_name("other"), 2).read_bytes())
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = source.stat()
    assert (before.st_ino, before.st_size, before.st_mtime_ns) == (after.st_ino, after.st_size, after.st_mtime_ns)
    with pytest.raises(OutputError) as refused:
        convert(source, target, resume=True)
    assert refused.value.code == "E_RESUME"
    assert not target.exists()


def test_weights_changed_in_staging_are_made_again(source: Path, target: Path) -> None:
    left = interrupt(source, target)
    staged = left / "out" / target.name
    with staged.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.truncate()
        file.write(bytes(64))
    convert(source, target.with_name("straight"), to="safetensors")
    convert(source, target, resume=True)
    assert target.read_bytes() == target.with_name("straight").read_bytes()


@pytest.mark.parametrize(
    "line",
    [b"[]", b"7", b"null", b'"x"', b"{", b"\xff\xfe", b"{}", b'{"tensor": 1}', b'{"tensor": "layer.0"}',
     b'{"tensor": "layer.0", "parts": [], "report": {}}', b'{"tensor": "layer.0", "parts": {}, "report": {}}',
     b'{"tensor": []}', b'{"place": 1, "staged": [], "replaces": []}',
     b'{"place": "out", "staged": null, "replaces": [1]}', b"[" * 100_000],
)  # fmt: skip
@pytest.mark.parametrize("torn", [False, True])
def test_a_line_that_is_none_is_ignored(source: Path, target: Path, line: bytes, torn: bool) -> None:
    left = interrupt(source, target)
    with (left / "journal.jsonl").open("ab") as journal:
        journal.write(line if torn else line + b"\n")
    assert convert(source, target, resume=True).resumed == DONE
    assert os.listdir(target.parent) == [target.name]


def test_a_line_whose_report_is_none_is_ignored(source: Path, target: Path) -> None:
    journal = interrupt(source, target) / "journal.jsonl"
    header, line = journal.read_bytes().splitlines()
    journal.write_bytes(header + b"\n" + json.dumps(json.loads(line) | {"report": {"name": "layer.0"}}).encode() + b"\n")
    assert convert(source, target, resume=True).resumed == 0


def _copied(left: Path) -> None:
    """As it comes with an archive: the same bytes in another directory."""
    shutil.copytree(left, left.with_name("copy"))
    shutil.rmtree(left)
    left.with_name("copy").rename(left)


def _unsigned(left: Path) -> None:
    lines = (left / "journal.jsonl").read_bytes().split(b"\n")
    header = json.loads(lines[0])
    (left / "journal.jsonl").write_bytes(b"\n".join([json.dumps({"fingerprint": header["fingerprint"]}).encode(), *lines[1:]]))


def _signed_by_another(left: Path) -> None:
    lines = (left / "journal.jsonl").read_bytes().split(b"\n")
    header = json.loads(lines[0]) | {"signature": "0" * 64}
    (left / "journal.jsonl").write_bytes(b"\n".join([json.dumps(header).encode(), *lines[1:]]))


def _no_journal(left: Path) -> None:
    (left / "journal.jsonl").unlink()


def _a_link_for_a_journal(left: Path) -> None:
    (left / "journal.jsonl").rename(left.with_name("journal"))
    (left / "journal.jsonl").symlink_to(left.with_name("journal"))


def _two_names_for_a_journal(left: Path) -> None:
    os.link(left / "journal.jsonl", left.with_name("journal"))


def _a_fifo_for_a_journal(left: Path) -> None:
    (left / "journal.jsonl").unlink()
    os.mkfifo(left / "journal.jsonl")


def _a_link(left: Path) -> None:
    left.rename(left.with_name("elsewhere"))
    left.symlink_to(left.with_name("elsewhere"))


FORGERIES: list[Callable[[Path], None]] = [
    _copied, _unsigned, _signed_by_another, _no_journal, _a_link_for_a_journal, _two_names_for_a_journal,
    _a_fifo_for_a_journal, _a_link,
]  # fmt: skip


def snapshot(root: Path) -> dict[str, tuple[int, ...]]:
    return {str(p.relative_to(root)): (p.lstat().st_ino, p.lstat().st_size, p.lstat().st_mtime_ns) for p in root.rglob("*")}


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("forge", FORGERIES)
def test_what_does_not_verify_is_neither_used_nor_removed(
    source: Path, target: Path, forge: Callable[[Path], None], resume: bool
) -> None:
    forge(interrupt(source, target))
    before = snapshot(target.parent)
    assert convert(source, target, resume=resume).resumed == 0
    after = snapshot(target.parent)
    del after[target.name]
    assert after == before


@pytest.mark.parametrize("journal", [None, b""])
def test_what_a_run_leaves_that_had_barely_begun_is_removed(source: Path, target: Path, journal: bytes | None) -> None:
    begun = target.parent / f".{target.name}.partial-0123456789abcdef"
    begun.mkdir(0o700)
    if journal is not None:
        (begun / "journal.jsonl").write_bytes(journal)
    convert(source, target)
    assert os.listdir(target.parent) == [target.name]


def test_very_many_directories_of_such_a_name_do_no_harm(source: Path, target: Path) -> None:
    for number in range(2000):
        (target.parent / f".{target.name}.partial-{number}" / "kept").mkdir(parents=True)
    convert(source, target, resume=True)
    assert len(os.listdir(target.parent)) == 2001


def test_a_long_name_has_a_staging_directory(source: Path, target: Path) -> None:
    long = target.with_name("x" * 243 + ".safetensors")
    interrupt_name = long.name[:200]
    done: list[str] = []

    def look(name: str, nbytes: int, total: int) -> None:
        done.extend(entry for entry in os.listdir(long.parent) if entry.startswith(f".{interrupt_name}.partial-"))

    convert(source, long, progress=look)
    assert len(set(done)) == 1
    assert os.listdir(target.parent) == [long.name]


RUN = """
import sys, time, flyweight
def slowly(name, nbytes, total): time.sleep(0.3)
try:
    flyweight.convert(sys.argv[1], sys.argv[2], quant="q8_0", jobs=1, progress=slowly)
    print("done")
except flyweight.FlyweightError as error:
    print(error.code)
"""


def test_of_two_runs_that_start_together_one_ends_it(source: Path, target: Path) -> None:
    command = [sys.executable, "-c", RUN, str(source), str(target)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert sorted(run.communicate(timeout=60)[0].strip() for run in runs) == ["E_LOCKED", "E_LOCKED", "done"]
    assert os.listdir(target.parent) == [target.name]


def test_a_directory_that_somebody_keeps_locked_is_written_to(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    monkeypatch.setattr("flyweight.pipeline.output.leftovers._LOCK_SECONDS", 0.05)
    descriptor = os.open(target.parent, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    convert(source, target)
    os.close(descriptor)
    assert os.listdir(target.parent) == [target.name]


@pytest.mark.parametrize("is_directory", [False, True])
@pytest.mark.parametrize("force", [False, True])
def test_a_run_killed_after_its_output_appeared_has_ended(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch, is_directory: bool, force: bool
) -> None:
    options = {"to": "hf" if is_directory else "safetensors", "force": force}
    target = target.with_name("out") if is_directory else target
    if force:
        flyweight.convert(source, target, to=options["to"])
    monkeypatch.setattr(
        "flyweight.pipeline.output.staging.Staging._clean_up", lambda _: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    how = {"dtype": "f16"} if is_directory else {"quant": "q8_0"}
    with pytest.raises(KeyboardInterrupt):
        flyweight.convert(source, target, jobs=1, **how, **options)
    monkeypatch.undo()
    made = os.stat(target).st_ino
    assert len(os.listdir(target.parent)) == 2
    assert flyweight.convert(source, target, jobs=1, **how, **options, resume=True).resumed == TENSORS
    assert os.stat(target).st_ino == made
    assert os.listdir(target.parent) == [target.name]


def test_another_file_in_its_place_is_not_taken_for_it(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "flyweight.pipeline.output.staging.Staging._clean_up", lambda _: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        convert(source, target)
    monkeypatch.undo()
    made = target.read_bytes()
    target.write_bytes(b"another")  # the same inode
    with pytest.raises(OutputError, match="already exists"):
        convert(source, target, resume=True)
    assert target.read_bytes() == b"another"
    target.unlink()
    convert(source, target, resume=True)
    assert target.read_bytes() == made
    assert os.listdir(target.parent) == [target.name]


def test_a_file_system_that_can_only_rename(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As exFAT: link(2) and the flags of renameat2(2) are refused."""

    def link(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(folder, "_renameat2", lambda *_: False)
    interrupt(source, target)
    assert convert(source, target, resume=True).resumed == DONE
    with pytest.raises(OutputError, match="already exists"):
        convert(source, target)
    convert(source, target, force=True)
    flyweight.convert(source, target, to="hf", force=True)
    assert target.is_dir()
    assert os.listdir(target.parent) == [target.name]
