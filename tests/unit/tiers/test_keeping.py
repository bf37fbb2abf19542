"""The user's cache of tiers: found by content, bounded, looked at and cleared; nobody else's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flyweight.foundation.errors import OutputError, ResourceError, UnsupportedError
from flyweight.tiers import build, entries, open_best, prune_cache, state_of
from flyweight.tiers.arrays import Arrays
from flyweight.tiers.keeping import cache_limit, kept, leftovers
from support.tier_models import arrays, command, equal, everything, home_of, other_model, values

ALL = ("packed", "int4", "int3", "cache", "finalized")


# By content ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["moved", "copied", "linked", "by another path"])
def test_a_model_elsewhere_keeps_its_tiers(model: Path, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(model, "packed")
    other = tmp_path / "elsewhere"
    if how == "moved":
        model.rename(other)
    elif how == "copied":
        shutil.copytree(model, other)
    elif how == "linked":
        other.symlink_to(model)
    else:
        monkeypatch.chdir(tmp_path)
        other = Path("model/../model")
    choice, found = values(other)
    assert (choice.tier, choice.built) == ("packed", False)
    assert equal(found, arrays(other))
    assert len(kept()) == 1


def test_other_arrays_are_another_entry(made: Path, model: Path) -> None:
    build(model, "packed")
    before = home_of(model)
    other = other_model(made, model.with_name("other"))
    shutil.rmtree(model)
    other.rename(model)
    choice, found = values(model)
    assert (choice.tier, choice.built) == ("packed", True)
    assert equal(found, arrays(model))
    assert home_of(model) != before
    assert sorted(entry.standing for entry in entries()) == ["orphaned", "ready"]


@pytest.mark.parametrize("name", [b"new\nline", "ünï".encode(), b"-m", b"a b"])
def test_a_model_may_be_called_anything(model: Path, name: bytes) -> None:
    other = Path(os.fsdecode(os.path.join(os.fsencode(model.parent), name)))
    model.rename(other)
    assert values(other)[0].built
    assert not values(other)[0].built
    assert [entry.path for entry in entries()] == [str(other)]
    done = command("cache", "ls")
    assert done.returncode == 0, done.stderr


def test_the_index_has_paths_that_are_not_text(model: Path) -> None:
    other = Path(os.fsdecode(os.path.join(os.fsencode(model.parent), b"m\xff")))
    model.rename(other)
    Arrays(other).digest()
    assert Arrays(other).known
    assert Arrays(other).index["path"] == str(other)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"digest": 7, "stamps": [], "beside": 3, "begun": {}}', b"\xff", b"[" * 99_999]
)
def test_a_torn_index_is_read_again(model: Path, user: Path, text: bytes) -> None:
    build(model, "packed")
    (index,) = (user / "cache" / "flyweight" / "sources").iterdir()
    index.write_bytes(text)
    choice, _ = values(model)
    assert (choice.tier, choice.built) == ("packed", False)
    assert Arrays(model).known


# The user's own -----------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_cache_that_others_can_write_is_not_used(model: Path, depth: int) -> None:
    build(model, "packed")
    home = home_of(model)
    place = [home, home.parent, home.parent.parent][depth - 1]
    place.chmod(0o777)
    said: list[str] = []
    choice, found = values(model, tell=said.append)
    assert choice.tier == "int4" or choice.built
    assert equal(found, arrays(model))
    with pytest.raises(OutputError) as caught:
        build(model, "packed", force=True)
    assert caught.value.code == "E_FOREIGN"
    assert "chmod" in str(caught.value)


def test_what_is_kept_is_for_the_user_alone(model: Path, user: Path) -> None:
    build(model, "packed")
    for path in [user / "cache" / "flyweight", *(user / "cache" / "flyweight").rglob("*")]:
        assert path.is_file() or path.stat().st_mode & 0o077 == 0, path


# Bounded ------------------------------------------------------------------------------------------


def test_what_was_unused_for_longest_makes_room(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [shutil.copytree(made / form, tmp_path / form) for form in ("int8", "int4")]
    models.append(other_model(made, tmp_path / "other"))  # as large as the second
    for model in models[:2]:
        build(model, "packed")
    used = time.time() - 1000
    for model, age in zip(models[:2], (0, 500), strict=True):
        os.utime(home_of(model) / ".flyweight_packed_ready", (used + age, used + age))
    values(models[0])  # used now, so that the second is the one
    total = sum(item.nbytes for item in kept())
    monkeypatch.setenv("FLYWEIGHT_CACHE_SIZE", str(total + 1000))
    assert values(models[2])[0].built
    assert [state_of(model, "packed").standing for model in models] == ["ready", "absent", "ready"]
    assert sum(item.nbytes for item in kept()) <= cache_limit()


def test_what_a_process_runs_from_stays(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (shutil.copytree(made / form, tmp_path / form) for form in ("int8", "int4"))
    build(first, "finalized")
    monkeypatch.setenv("FLYWEIGHT_CACHE_SIZE", str(sum(item.nbytes for item in kept()) + 10))
    checkpoint, _ = open_best(first, tier="finalized")
    with checkpoint:
        said: list[str] = []
        assert values(second, tell=said.append)[0].tier == "int4"
        assert any("are in use" in line for line in said)
        assert prune_cache(tiers=ALL) == 0
        assert [item.tier.name for item in kept()] == ["finalized"]
        assert equal({name: checkpoint[name] for name in checkpoint}, values(first, tier="finalized")[1])
    del checkpoint
    assert prune_cache(tiers=ALL) > 0
    assert kept() == []


def test_a_tier_larger_than_the_bound_is_not_built(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in ("1K", "0"):
        monkeypatch.setenv("FLYWEIGHT_CACHE_SIZE", size)
        said: list[str] = []
        choice, _ = values(model, tell=said.append)
        assert choice.tier == "int4"
        assert any("not built" in line and "may take" in line for line in said)
        with pytest.raises(ResourceError) as caught:
            build(model, "packed")
        assert caught.value.code == "E_CACHE_SIZE"
        assert kept() == leftovers() == []


@pytest.mark.parametrize("size", ["much", "-1", "nan", "inf", "4X"])
def test_a_bound_that_is_none_is_refused(model: Path, size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWEIGHT_CACHE_SIZE", size)
    with pytest.raises(UnsupportedError, match="FLYWEIGHT_CACHE_SIZE must be a number of bytes") as caught:
        values(model)
    assert caught.value.code == "E_CACHE_SIZE"


def test_a_stopped_build_makes_room_for_another(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (shutil.copytree(made / form, tmp_path / form) for form in ("int8", "int4"))

    def stop(name: str, nbytes: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(first, "cache", jobs=1, progress=stop)
    (left,) = leftovers()
    assert left.nbytes > 0
    assert "stopped" in command("cache", "ls", first).stderr
    monkeypatch.setenv("FLYWEIGHT_CACHE_SIZE", str(left.nbytes))
    build(second, "packed")
    assert leftovers() == []


# The verbs ----------------------------------------------------------------------------------------


def removed(*arguments: object) -> int:
    done = command("cache", "prune", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return len(json.loads(done.stdout)["removed"])


def test_the_verbs_of_the_cache(made: Path, tmp_path: Path) -> None:
    models = [shutil.copytree(made / form, tmp_path / form) for form in ("int8", "int4")]
    assert "no tiers" in command("cache", "ls").stdout
    for model in models:
        build(model, "packed")
    build(models[0], "cache")
    listed = json.loads(command("cache", "ls", "--json").stdout)
    assert [(Path(entry["path"]).name, entry["tier"], entry["standing"]) for entry in listed["entries"]] == [
        ("int8", "packed", "ready"), ("int4", "packed", "ready"), ("int8", "cache", "ready"),
    ]  # fmt: skip
    assert listed["nbytes"] == sum(entry["nbytes"] for entry in listed["entries"]) < listed["limit"]
    assert command("cache", "verify").returncode == 0
    assert removed("--unusable") == 0
    os.utime(home_of(models[0]) / ".squish_ready", (0, 0))
    assert removed("--older-than", "30d", "--dry-run") == 1
    assert removed("--older-than", "30d") == 1
    shutil.rmtree(models[1])
    assert "orphaned" in command("cache", "ls").stdout
    assert removed("--unusable") == 1
    before = everything(models[0])
    assert removed("--all") == 1
    assert everything(models[0]) == before
    assert kept() == []


@pytest.mark.parametrize("arguments", [[], ["--foreign", "--all"], ["MODEL", "--all"], ["MODEL", "--older-than", "3d"],
                                       ["--older-than", "soon"], ["--older-than", "0d"]])  # fmt: skip
def test_what_is_to_go_has_to_be_said(model: Path, arguments: list[str]) -> None:
    done = command("cache", "prune", *(str(model) if argument == "MODEL" else argument for argument in arguments))
    assert done.returncode == 2, done.stderr


# Many at once -------------------------------------------------------------------------------------


def test_starts_of_copies_end_with_one_entry(model: Path, tmp_path: Path) -> None:
    copies = [shutil.copytree(model, tmp_path / f"copy{number}") for number in range(3)]
    program = [sys.executable, "-m", "flyweight", "run", "MODEL", "abc", "--raw", "--max-tokens", "4", "--json"]
    running = [
        subprocess.Popen([*program[:4], str(copy), *program[5:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for copy in copies
    ]
    outputs = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0] * 3, outputs
    assert len({json.loads(out)["text"] for out, _ in outputs}) == 1
    assert [item.tier.name for item in kept()] == ["packed"]
    assert all(state_of(copy, "packed", deep=True).standing == "ready" for copy in copies)
