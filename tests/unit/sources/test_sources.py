"""Sources give exactly the bytes asked for; bundles never lead out of their directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flyweight.foundation.errors import MalformedError, TruncatedError
from flyweight.sources import FileSource, MemoryBundle, MemorySource, Source, open_bundle

DATA = bytes(i % 251 for i in range(200_000))


@pytest.fixture(params=["memory", "file"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    if request.param == "memory":
        return MemorySource(DATA)
    (tmp_path / "f").write_bytes(DATA)
    return FileSource(tmp_path / "f")


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 0), (0, 1), (5, 70_000), (4097, 131_072), (199_999, 1), (200_000, 0), (0, 200_000)]
)
def test_reads_are_exact(source: Source, offset: int, length: int) -> None:
    assert bytes(source.read(offset, length)) == DATA[offset : offset + length]
    buffer = bytearray(length)
    source.read_into(offset, memoryview(buffer))
    assert buffer == DATA[offset : offset + length]


@pytest.mark.parametrize(("offset", "length"), [(200_000, 1), (0, 200_001), (-1, 1), (0, -1), (2**63, 1), (1, 2**63)])
def test_reads_outside_are_refused(source: Source, offset: int, length: int) -> None:
    with pytest.raises(TruncatedError):
        source.read(offset, length)


def test_views_are_read_only(source: Source) -> None:
    for length in (10, 150_000):
        with pytest.raises(TypeError):
            source.read(0, length)[0] = 1


def test_a_view_outlives_its_source(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(DATA)
    opened = FileSource(tmp_path / "f")
    view = opened.read(0, 100_000)
    opened.close()
    assert bytes(view) == DATA[:100_000]


def test_a_file_that_shrinks_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(DATA)
    opened = FileSource(path)
    os.truncate(path, 100)
    with pytest.raises(TruncatedError, match="shorter"):
        opened.read_into(0, memoryview(bytearray(1000)))
    assert not opened.unchanged()


def test_an_identity_tells_bytes_written_under_the_same_times(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(DATA)
    before = path.stat()
    opened = FileSource(path)
    first = opened.identity
    assert (first.size, opened.unchanged()) == (len(DATA), True)
    path.write_bytes(DATA[::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not opened.unchanged()
    assert opened.identity == first != FileSource(path).identity


def test_bytes_in_memory_are_known_by_their_digest() -> None:
    identities = [MemorySource(data).identity for data in (DATA, bytes(DATA), DATA[::-1])]
    assert identities[0] == identities[1] != identities[2]
    assert identities[0].stamp == MemorySource(DATA).digest()


def test_only_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(MalformedError) as error:
            FileSource(path)
        assert error.value.code == "E_NOT_A_FILE"


def test_directory_lists_relative_names(tmp_path: Path) -> None:
    for name in ("b", "a", "sub/c", ".git/config", ".hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    bundle = open_bundle(tmp_path)
    assert bundle.is_directory
    assert set(bundle) >= {"a", "b", "sub/c"}
    assert ".git/config" not in bundle
    assert bytes(bundle["sub/c"].read(0, 5)) == b"sub/c"
    for outside in ("../x", "/etc/passwd", "sub/../a", "nothing", ""):
        assert outside not in bundle
        with pytest.raises(KeyError):
            bundle[outside]


def test_links_stay_inside(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (tmp_path / "secret").write_bytes(b"s")
    (model / "real").write_bytes(b"r")
    (model / "inside").symlink_to("real")
    (model / "outside").symlink_to("../secret")
    (model / "around").symlink_to("/etc/passwd")
    bundle = open_bundle(model)
    assert bytes(bundle["inside"].read(0, 1)) == b"r"
    for name in ("outside", "around"):
        with pytest.raises(MalformedError) as error:
            bundle[name]
        assert error.value.code == "E_LINK"


def test_a_file_that_became_a_link_since_it_was_listed_is_resolved(tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "deep").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"s")
    (model / "deep" / "file").write_bytes(b"r")
    (model / "turning").symlink_to("turning")
    bundle = open_bundle(model)
    (model / "deep" / "file").unlink()
    (model / "deep" / "file").symlink_to("../../secret")
    with pytest.raises(MalformedError) as error:
        bundle["deep/file"]
    assert error.value.code == "E_LINK"
    with pytest.raises(OSError, match="symbolic links"):
        bundle["turning"]
    assert list(bundle) == ["turning", "deep/file"]


def test_folders_are_not_entered_through_links(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_bytes(b"s")
    (tmp_path / "model" / "tensors").symlink_to("../elsewhere")
    assert list(open_bundle(tmp_path / "model")) == []


def test_a_hub_snapshot_links_into_its_own_blobs_only(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    blobs = tmp_path / "models--a--b" / "blobs"
    foreign = tmp_path / "models--c--d" / "blobs"
    for folder in (snapshot, blobs, foreign):
        folder.mkdir(parents=True)
    (blobs / "x").write_bytes(b"x")
    (foreign / "y").write_bytes(b"y")
    (snapshot / "mine").symlink_to("../../blobs/x")
    (snapshot / "theirs").symlink_to("../../../models--c--d/blobs/y")
    bundle = open_bundle(snapshot)
    assert bytes(bundle["mine"].read(0, 1)) == b"x"
    with pytest.raises(MalformedError) as error:
        bundle["theirs"]
    assert error.value.code == "E_LINK"


def test_a_lone_file_and_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1")
    (tmp_path / "two").write_bytes(b"2")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "three").write_bytes(b"3")
    bundle = open_bundle(tmp_path / "one")
    assert (bundle.single, list(bundle)) == ("one", ["one"])
    assert list(bundle.siblings()) == ["one", "two"]
    assert bundle.siblings() is bundle.siblings()
    bundle.close()


def test_missing_paths_are_ordinary_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_bundle(tmp_path / "nothing")


def test_memory_bundle() -> None:
    bundle = MemoryBundle({"a": b"1"}, is_directory=False)
    assert bundle.single == "a"
    assert bundle.siblings() is bundle
