"""The user's own places: made once, never shared."""

import os
from pathlib import Path

import pytest

from flyweight.foundation.errors import OutputError
from flyweight.writing import Folder, is_temporary, own, own_cache, own_folder, signature


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(own, "_key", own._key.__wrapped__)
    return tmp_path


def test_a_signature_is_the_users_own_and_stays(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = home / "state" / "flyweight" / "key"
    made = signature(b"content")
    assert signature(b"content") == made != signature(b"other")
    assert key.stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "another user's"))
    assert signature(b"content") != made


@pytest.mark.parametrize("damage", ["short", "link", "others can write"])
def test_a_key_that_others_may_know_is_not_used(home: Path, damage: str) -> None:
    folder = home / "state" / "flyweight"
    folder.mkdir(parents=True, mode=0o700)
    key = folder / "key"
    if damage == "link":
        (home / "known").write_bytes(bytes(32))
        key.symlink_to(home / "known")
    else:
        key.write_bytes(bytes(31 if damage == "short" else 32))
    if damage == "others can write":
        folder.chmod(0o777)
    from blake3 import blake3

    assert signature(b"content") != blake3(b"content", key=bytes(32)).hexdigest()


def test_what_a_killed_replacement_left_is_known_and_removed(home: Path) -> None:
    """And nothing that only looks like it."""
    left, strange = own.temporary_name("name"), f".name.{bytes(8).hex()}-{bytes(8).hex()}"
    assert is_temporary(left)
    assert not is_temporary(strange)
    for name in (left, strange, own.temporary_name("other")):
        (home / name).touch()
    with Folder(home) as folder:
        folder.replace("name", b"new")
        assert left not in folder.names()
        assert strange in folder.names()
        assert sum(map(is_temporary, folder.names())) == 1


def test_a_relative_place_is_ignored(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(home))
    assert own_cache() == home / ".cache" / "flyweight"


def test_an_own_folder_is_no_link_and_not_shared(home: Path) -> None:
    with own_folder(home / "cache" / "mine") as folder:
        assert os.fstat(folder.descriptor).st_mode & 0o777 == 0o700
    (home / "cache" / "mine").chmod(0o770)
    with pytest.raises(OutputError, match="other users can write"):
        own_folder(home / "cache" / "mine")
    (home / "cache" / "link").symlink_to(home)
    with pytest.raises(OutputError, match="symbolic link"):
        own_folder(home / "cache" / "link")
