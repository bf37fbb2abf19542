"""Nothing is written, reused or replaced through a name that somebody else prepared."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from flyweight.foundation.errors import OutputError
from flyweight.writing import Folder, exchange, folder, move_exclusive

VICTIM = b"precious"


def _symlink(place: Path, victim: Path) -> None:
    place.symlink_to(victim)


def _hard_link(place: Path, victim: Path) -> None:
    os.link(victim, place)


def _fifo(place: Path, _: Path) -> None:
    os.mkfifo(place)


def _directory(place: Path, _: Path) -> None:
    place.mkdir()


def _dangling(place: Path, victim: Path) -> None:
    place.symlink_to(victim.with_name("not there"))


PREPARED: dict[str, Callable[[Path, Path], None]] = {
    "symlink": _symlink, "hard link": _hard_link, "fifo": _fifo, "directory": _directory, "dangling": _dangling,
}  # fmt: skip


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    place = tmp_path / "outside" / "victim"
    place.write_bytes(VICTIM)
    return place


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


@pytest.mark.parametrize("kind", PREPARED)
def test_nothing_prepared_is_created_over_or_reused(root: Path, victim: Path, kind: str) -> None:
    PREPARED[kind](root / "name", victim)
    with Folder(root) as held:
        with pytest.raises(FileExistsError):
            held.create("name")
        with pytest.raises(FileExistsError):
            held.make_folder("name")
        with pytest.raises((OutputError, FileNotFoundError)) as caught:
            os.close(held.reopen("name"))
        assert not isinstance(caught.value, OutputError) or caught.value.code == "E_FOREIGN"
    assert victim.read_bytes() == VICTIM
    assert not victim.with_name("not there").exists()


@pytest.mark.parametrize("kind", [kind for kind in PREPARED if kind != "directory"])
def test_replacing_puts_a_new_file_in_the_place_of_whatever_was_there(root: Path, victim: Path, kind: str) -> None:
    PREPARED[kind](root / "name", victim)
    with Folder(root) as held:
        held.replace("name", b"new")
        assert held.names() == ["name"]
    assert (root / "name").read_bytes() == b"new"
    assert stat.S_ISREG(os.lstat(root / "name").st_mode)
    assert victim.read_bytes() == VICTIM


def test_a_link_to_a_directory_is_not_entered(root: Path, victim: Path) -> None:
    (root / "link").symlink_to(victim.parent)
    with Folder(root) as held:
        with pytest.raises(OutputError, match="is a symbolic link, not a directory") as caught:
            held.folder("link")
        assert caught.value.code == "E_FOREIGN"
        held.remove_tree("link")
    assert victim.read_bytes() == VICTIM


def test_removing_a_tree_follows_no_link_in_it(root: Path, victim: Path) -> None:
    (root / "tree" / "deep").mkdir(parents=True)
    (root / "tree" / "deep" / "link").symlink_to(victim.parent)
    with Folder(root) as held:
        held.remove_tree("tree")
        assert held.names() == []
    assert victim.read_bytes() == VICTIM


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_another_user_is_not_used(root: Path) -> None:
    (root / "folder").mkdir()
    (root / "file").touch()
    for name in ("folder", "file"):
        os.chown(root / name, 12345, 12345)
    with Folder(root) as held:
        with pytest.raises(OutputError, match="another user"):
            held.folder("folder")
        with pytest.raises(OutputError, match="another user"):
            held.reopen("file")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd"])
def test_a_name_is_one_component(root: Path, name: str) -> None:
    with Folder(root) as held, pytest.raises(ValueError, match="single name"):
        held.create(name)


@pytest.mark.parametrize("is_directory", [False, True])
@pytest.mark.parametrize("refused", [(), ("renameat2",), ("renameat2", "link")])
def test_a_name_that_is_taken_is_never_overwritten(
    root: Path, monkeypatch: pytest.MonkeyPatch, is_directory: bool, refused: tuple[str, ...]
) -> None:
    """On file systems that can neither rename exclusively nor link, as well."""
    if "renameat2" in refused:
        monkeypatch.setattr(folder, "_renameat2", lambda *_: False)
    if "link" in refused:

        def link(*_: object, **__: object) -> None:
            raise OSError(errno.EPERM, "no hard links here")

        monkeypatch.setattr(os, "link", link)
    made, taken = root / "made", root / "taken"
    for place in (made, taken):
        place.mkdir() if is_directory else place.write_bytes(place.name.encode())
    with Folder(root) as held:
        with pytest.raises(FileExistsError):
            move_exclusive(held, "made", held, "taken")
        assert sorted(held.names()) == ["made", "taken"]
        move_exclusive(held, "made", held, "free")
        assert sorted(held.names()) == ["free", "taken"]
    assert is_directory or (root / "free").read_bytes() == b"made"


def test_two_names_are_swapped_in_one_step_or_not_at_all(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "a").write_bytes(b"a")
    (root / "b").mkdir()
    with Folder(root) as held:
        assert exchange(held, "a", held, "b")
        monkeypatch.setattr(folder, "_renameat2", lambda *_: False)
        assert not exchange(held, "a", held, "b")
        assert sorted(held.names()) == ["a", "b"]
    assert (root / "a").is_dir()
    assert (root / "b").read_bytes() == b"a"
