"""`--force` replaces models, and nothing that is not accounted for."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import flyweight
from flyweight.containers import CONTAINERS
from flyweight.containers.abilities import OwnsFiles
from flyweight.foundation.errors import OutputError
from flyweight.pipeline import extract
from flyweight.pipeline.output.replacing import SIDE_FILES
from flyweight.pipeline.output.staging import Staging
from flyweight.writing import folder
from support.toys import draft_head, safetensors_bytes, write_files, write_package, write_toy_llama

DIRECTORIES: dict[str, dict[str, Any]] = {
    "hf": {"to": "hf"},
    "sharded": {"to": "hf", "shard_bytes": 30_000},
    "mlx": {"to": "mlx", "quant": "int4"},
    "npy": {"to": "npy_dir", "quant": "int8"},
    "splits": {"to": "gguf", "shard_bytes": 30_000},
}
FILES: dict[str, dict[str, Any]] = {
    "gguf": {"to": "gguf"},
    "safetensors": {"to": "safetensors"},
    "squizd": {"to": "squizd", "quant": "int4"},
}
OUTPUTS = DIRECTORIES | FILES
STRANGE = ["thesis.docx", "photos/holiday.jpg", ".git/config", "notes.txt", "tensors.txt", "extra/deep/er/file", "weights.bin",
           "other.safetensors", "finalized/notes", "tensors/notes.txt", "tokenizer/mine.txt", "a/config.json"]  # fmt: skip


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_toy_llama(tmp_path_factory.mktemp("toy") / "toy", layers=1)
    shutil.rmtree(root / "extra")
    return root


@pytest.fixture(scope="module")
def outputs(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("outputs")
    for name, options in OUTPUTS.items():
        flyweight.convert(toy, root / name, jobs=1, **options)
    return root


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work" / "out"


def put(old: Path, place: Path) -> Path:
    return Path(shutil.copytree(old, place) if old.is_dir() else shutil.copy(old, place))


def state(root: Path) -> dict[str, tuple[int, int, int]]:
    return {str(p): (p.lstat().st_ino, p.lstat().st_size, p.lstat().st_mtime_ns) for p in sorted(root.rglob("*"))}


def refused(toy: Path, place: Path, code: str = "E_NOT_A_MODEL", **options: Any) -> OutputError:
    """Converting there with `force` is refused, and changes nothing at all."""
    before = state(place.parent)
    with pytest.raises(OutputError) as caught:
        flyweight.convert(toy, place, jobs=1, force=True, **(options or {"to": "hf"}))
    assert caught.value.code == code, caught.value
    assert caught.value.hint
    assert state(place.parent) == before
    return caught.value


@pytest.mark.parametrize("old", OUTPUTS)
@pytest.mark.parametrize("new", ["hf", "npy", "gguf"])
def test_every_output_replaces_every_other(toy: Path, outputs: Path, place: Path, old: str, new: str) -> None:
    put(outputs / old, place)
    flyweight.convert(toy, place, jobs=1, force=True, **OUTPUTS[new])
    assert place.is_dir() == (new in DIRECTORIES)
    assert flyweight.verify(place).ok
    assert os.listdir(place.parent) == ["out"]
    names = sorted(str(path.relative_to(outputs / new)) for path in (outputs / new).rglob("*"))
    assert sorted(str(path.relative_to(place)) for path in place.rglob("*")) == names


@pytest.mark.parametrize("old", DIRECTORIES)
@pytest.mark.parametrize("strange", STRANGE)
def test_a_file_that_belongs_to_no_model_is_named_and_kept(
    toy: Path, outputs: Path, place: Path, old: str, strange: str
) -> None:
    put(outputs / old, place)
    (place / strange).parent.mkdir(parents=True, exist_ok=True)
    (place / strange).write_bytes(b"precious")
    assert strange in refused(toy, place).message


@pytest.mark.parametrize(
    "names", [["thesis.docx"], ["README.md", "LICENSE"], ["config.json", "package.json"], ["a/b/c"], ["x.png"] * 9]
)
def test_a_directory_that_is_no_model_is_kept(toy: Path, place: Path, names: list[str]) -> None:
    write_files(place, {f"{number}{name}" if names.count(name) > 1 else name: b"precious" for number, name in enumerate(names)})
    message = refused(toy, place).message
    assert f"{len({*names} - {'README.md', 'config.json'}) if len({*names}) > 1 else len(names)} files" in message


def test_what_is_in_a_home_is_counted_up_to_a_limit(toy: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyweight.pipeline.output.replacing._FIRST_LOOK", 50)
    write_files(place, {f"{number}.txt": b"" for number in range(60)})
    assert "50 or more files" in refused(toy, place).message


def test_directories_within_directories_are_not_entered_for_ever(toy: Path, outputs: Path, place: Path) -> None:
    put(outputs / "hf", place)
    deep = place
    for _ in range(40):
        deep = deep / "d"
    deep.mkdir(parents=True)
    refused(toy, place)


def _symlink(place: Path, victim: Path) -> None:
    place.symlink_to(victim)


def _fifo(place: Path, victim: Path) -> None:
    os.mkfifo(place)


def _text(place: Path, victim: Path) -> None:
    place.write_text("precious")


def _cut(place: Path, victim: Path) -> None:
    place.write_bytes(b"GGU")


@pytest.mark.parametrize("made", [_symlink, _fifo, _text, _cut])
@pytest.mark.parametrize("new", ["hf", "gguf"])
def test_what_is_no_model_file_is_kept(toy: Path, outputs: Path, place: Path, made: Any, new: str) -> None:
    made(place, outputs / "gguf")
    refused(toy, place, "E_FOREIGN" if made in (_symlink, _fifo) else "E_NOT_A_MODEL", **OUTPUTS[new])


def test_an_empty_file_is_replaced(toy: Path, place: Path) -> None:
    place.touch()
    flyweight.convert(toy, place, to="gguf", force=True)
    assert flyweight.verify(place).ok


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("old", ["hf", "gguf"])
def test_what_belongs_to_another_user_is_kept(toy: Path, outputs: Path, place: Path, old: str) -> None:
    os.chown(put(outputs / old, place), 12345, 12345)
    refused(toy, place, "E_FOREIGN")


@pytest.mark.parametrize("to", ["hf", "npy_dir"])
@pytest.mark.parametrize("force", [False, True])
def test_an_empty_directory_is_a_fine_destination(toy: Path, place: Path, to: str, force: bool) -> None:
    place.mkdir()
    flyweight.convert(toy, place, to=to, force=force)
    assert flyweight.verify(place).ok
    assert os.listdir(place.parent) == ["out"]


def test_an_empty_directory_that_fills_meanwhile_is_kept(toy: Path, place: Path) -> None:
    place.mkdir()

    def disturb(name: str, nbytes: int, total: int) -> None:
        (place / "thesis.docx").write_bytes(b"precious")

    with pytest.raises(OutputError, match="appeared while"):
        flyweight.convert(toy, place, to="hf", jobs=1, progress=disturb)
    assert os.listdir(place) == ["thesis.docx"]
    (place / "thesis.docx").unlink()
    assert flyweight.convert(toy, place, to="hf", jobs=1, resume=True).resumed > 0
    assert os.listdir(place.parent) == ["out"]


@pytest.mark.parametrize("new", ["hf", "gguf"])
def test_what_comes_while_a_model_is_being_replaced_is_kept(toy: Path, outputs: Path, place: Path, new: str) -> None:
    put(outputs / "npy", place)

    def disturb(name: str, nbytes: int, total: int) -> None:
        (place / "thesis.docx").write_bytes(b"precious")

    with pytest.raises(OutputError, match=r"thesis\.docx") as caught:
        flyweight.convert(toy, place, jobs=1, force=True, progress=disturb, **OUTPUTS[new])
    assert caught.value.code == "E_NOT_A_MODEL"
    assert flyweight.diff(place, outputs / "npy").identical
    (place / "thesis.docx").unlink()
    assert flyweight.convert(toy, place, jobs=1, force=True, resume=True, **OUTPUTS[new]).resumed > 0
    assert os.listdir(place.parent) == ["out"]


def test_what_comes_in_the_last_moment_appears_beside(
    toy: Path, outputs: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(outputs / "npy", place)
    checked = Staging._to_replace

    def disturb(self: Staging) -> list[str]:
        found = checked(self)
        write_files(place, {"photos/holiday.jpg": b"precious"})
        return found

    monkeypatch.setattr(Staging, "_require_free", lambda _: None)
    monkeypatch.setattr(Staging, "_to_replace", disturb)
    flyweight.convert(toy, place, to="hf", jobs=1, force=True)
    assert flyweight.verify(place).ok
    (beside,) = (path for path in place.parent.iterdir() if path != place)
    assert beside.name.startswith("out.replaced-")
    assert [str(path.relative_to(beside)) for path in beside.rglob("*") if path.is_file()] == ["photos/holiday.jpg"]


def killed_between_two_steps(toy: Path, outputs: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace a model where two names cannot be swapped, and be killed when the old one is aside."""
    put(outputs / "npy", place)
    monkeypatch.setattr(folder, "_renameat2", lambda *_: False)
    rename = os.rename

    def killed(old: str, new: str, **where: int) -> None:
        if new == place.name:
            raise KeyboardInterrupt
        rename(old, new, **where)

    monkeypatch.setattr(os, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        flyweight.convert(toy, place, to="hf", jobs=1, force=True)
    assert not place.exists()
    monkeypatch.setattr(os, "rename", rename)


@pytest.mark.parametrize("resume", [False, True])
def test_an_old_state_that_was_moved_aside_is_put_back(
    toy: Path, outputs: Path, place: Path, monkeypatch: pytest.MonkeyPatch, resume: bool
) -> None:
    killed_between_two_steps(toy, outputs, place, monkeypatch)
    with pytest.raises(OutputError, match="already exists"):
        flyweight.convert(toy, place, to="hf", jobs=1, resume=resume)
    assert flyweight.diff(place, outputs / "npy").identical
    assert flyweight.convert(toy, place, to="hf", jobs=1, resume=resume, force=True).resumed == (12 if resume else 0)
    assert os.listdir(place.parent) == ["out"]


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("force", [False, True])
def test_an_old_state_whose_name_was_taken_appears_beside(
    toy: Path, outputs: Path, place: Path, monkeypatch: pytest.MonkeyPatch, resume: bool, force: bool
) -> None:
    killed_between_two_steps(toy, outputs, place, monkeypatch)
    place.mkdir()
    flyweight.convert(toy, place, to="hf", jobs=1, resume=resume, force=force)
    assert flyweight.verify(place).ok
    (beside,) = (path for path in place.parent.iterdir() if path != place)
    assert flyweight.diff(beside, outputs / "npy").identical


# Where the source is ----------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [0, 1, 2, 3])
@pytest.mark.parametrize("linked", [False, True])
def test_what_holds_the_source_is_kept(outputs: Path, tmp_path: Path, levels: int, linked: bool) -> None:
    source = put(outputs / "hf", tmp_path / "a" / "b" / "c" / "model")
    destination = (source, *source.parents)[levels]
    if linked:
        (tmp_path / "link").symlink_to(source)
        source = tmp_path / "link"
    refused(source, destination, "E_SOURCE_INSIDE")


def test_what_other_inputs_are_in_is_kept(toy: Path, tmp_path: Path, outputs: Path) -> None:
    head = tmp_path / "head"
    write_files(head, {"model.safetensors": safetensors_bytes(draft_head())})
    package = write_package(tmp_path / "package" / "m.mlpackage")
    recipe = write_files(tmp_path / "recipe", {"recipe.toml": b'[[rules]]\nmatch = "*"\ncodec = "keep"\n'}) / "recipe.toml"
    extras = flyweight.Extras(eagle=head / "model.safetensors", coreml=package)
    for place in (head, package, package.parent, head / "model.safetensors"):
        refused(toy, place, "E_SOURCE_INSIDE", to="squizd", quant="int4", extras=extras)
    refused(toy, recipe.parent, "E_SOURCE_INSIDE", recipe=recipe)


def test_a_part_of_a_split_source_is_kept(toy: Path, outputs: Path, tmp_path: Path) -> None:
    split = put(outputs / "splits", tmp_path / "splits")
    first, second, *_ = sorted(split.iterdir())
    refused(first, second, "E_SOURCE_INSIDE", to="gguf")


def test_a_blob_that_a_link_of_the_source_leads_to_is_kept(toy: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "repo" / "snapshots" / "main"
    (tmp_path / "repo" / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for file in toy.iterdir():
        shutil.copy(file, tmp_path / "repo" / "blobs" / file.name)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    refused(snapshot, tmp_path / "repo" / "blobs", "E_SOURCE_INSIDE")
    refused(snapshot, tmp_path / "repo" / "blobs" / "model.safetensors", "E_SOURCE_INSIDE", to="safetensors")


def test_an_output_in_the_directory_of_its_source_is_fine(outputs: Path, tmp_path: Path) -> None:
    source = put(outputs / "hf", tmp_path / "model")
    for _ in range(2):
        flyweight.convert(source, source / "out.gguf", force=True)


# Extraction -------------------------------------------------------------------------------------


def test_extracting_follows_the_same_rule(toy: Path, outputs: Path, place: Path) -> None:
    model = outputs / "squizd"
    for _ in range(2):
        extract(model, "files", place, force=True)
        extract(model, "config.json", place.with_name("config.json"), force=True)
        extract(model, "model.norm.weight", place.with_name("norm.safetensors"), force=True)
    (place / "thesis.docx").write_bytes(b"precious")
    with pytest.raises(OutputError, match=r"thesis\.docx"):
        extract(model, "files", place, force=True)
    place.with_name("notes").write_bytes(b"precious")
    with pytest.raises(OutputError, match="not a model"):
        extract(model, "config.json", place.with_name("notes"), force=True)
    with pytest.raises(OutputError) as caught:
        extract(toy, "files", toy, force=True)
    assert caught.value.code == "E_SOURCE_INSIDE"


def test_the_tables_have_names_that_models_have(outputs: Path) -> None:
    """A pattern without a fixed part would account for anything."""
    owned = [name for container in CONTAINERS if isinstance(container, OwnsFiles) for name in container.own_files]
    for pattern in (*SIDE_FILES, *owned):
        assert len(pattern.replace("*", "").replace("/", "")) >= 4, pattern
