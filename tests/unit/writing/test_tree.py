"""Files in folders of folders: no link on the way is followed, and what is not listed stays."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from flyweight.foundation.errors import OutputError
from flyweight.writing import Folder, Tree, content, remove_listed, tree
from support.toys import write_files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_files(tmp_path / "root", {"a": b"", "b/c": b"", "b/d/e": b"", "f/g": b""})


@pytest.mark.parametrize("name", ["link/victim", "b/link/victim", "b/link/deep/victim"])
@pytest.mark.parametrize("make", [False, True])
def test_a_link_on_the_way_is_refused(root: Path, tmp_path: Path, name: str, make: bool) -> None:
    write_files(tmp_path / "outside", {"victim": b"precious"})
    for place in ("link", "b/link"):
        (root / place).symlink_to(tmp_path / "outside")
    with Folder(root) as held, closing(Tree(held)) as files, pytest.raises(OutputError, match="symbolic link"):
        files.at(name, make=make).__enter__()
    assert os.listdir(tmp_path / "outside") == ["victim"]


def test_folders_are_made_and_more_than_can_be_kept_open_are_opened_for_each_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "_KEPT_OPEN", 3)
    names = [f"{a}/{b}/file" for a in "xyz" for b in "uvw"]
    before = len(os.listdir("/proc/self/fd"))
    with Folder(tmp_path) as held, closing(Tree(held)) as files:
        for name in names * 2:
            with files.at(name, make=True) as (folder, last):
                os.close(folder.create(last) if folder.status(last) is None else folder.reopen(last))
        assert len(os.listdir("/proc/self/fd")) <= before + 3
        files.sync(names)
        assert content(held).names == names
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_below_is_listed_up_to_a_limit(root: Path) -> None:
    (root / "empty").mkdir()
    (root / "loop").symlink_to(root)
    with Folder(root) as held:
        assert content(held) == (["a", "b/c", "b/d/e", "empty/", "f/g", "loop"], True)
        assert not content(held, 3).complete
        assert len(content(held, 3).names) <= 3


@pytest.mark.parametrize("extra", [None, "x", "b/x", "b/d/x", "n/e/w"])
def test_only_what_is_listed_is_removed(root: Path, extra: str | None) -> None:
    with Folder(root) as held:
        listed = content(held).names
    if extra:
        write_files(root, {extra: b"precious"})
    with Folder(root.parent) as parent:
        assert remove_listed(parent, "root", listed) is (extra is None)
    left = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()] if root.exists() else []
    assert left == ([extra] if extra else [])
