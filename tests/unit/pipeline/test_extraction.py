"""`extract`: what rides along comes out as it went in, and nothing hostile comes out at all."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import flyweight
from flyweight import Extras
from flyweight.foundation.errors import MalformedError, OutputError, UnsupportedError
from flyweight.pipeline import extract, list_parts
from support.toys import draft_head, safetensors_bytes, write_files, write_package, write_toy_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extract")
    toy, package = write_toy_llama(folder / "toy"), write_package(folder / "m.mlpackage")
    (folder / "head.safetensors").write_bytes(safetensors_bytes(draft_head()))
    flyweight.convert(toy, folder / "m.squizd", quant="int4", extras=Extras(eagle=folder / "head.safetensors", coreml=package))
    return folder / "m.squizd"


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_everything_comes_out_as_it_went_in(model: Path, tmp_path: Path) -> None:
    extract(model, "draft", tmp_path / "head.safetensors")
    assert flyweight.diff(model.parent / "head.safetensors", tmp_path / "head.safetensors").identical
    extract(model, "coreml", tmp_path / "m.mlpackage")
    assert content(tmp_path / "m.mlpackage") == content(model.parent / "m.mlpackage")
    extract(model, "coreml", tmp_path / "m.zip", archived=True)
    with zipfile.ZipFile(tmp_path / "m.zip") as archive:
        assert archive.testzip() is None
    extract(model, "files", tmp_path / "files")
    toy = content(model.parent / "toy")
    assert set(content(tmp_path / "files")) == {"config.json", "tokenizer.json", "tokenizer_config.json"}
    assert content(tmp_path / "files")["tokenizer.json"] == toy["tokenizer.json"]
    extract(model, "tokenizer.json", tmp_path / "t.json")
    assert (tmp_path / "t.json").read_bytes() == toy["tokenizer.json"]
    report = extract(model, "model.norm.weight", tmp_path / "norm.safetensors")
    assert report.items == ("model.norm.weight",)
    with flyweight.open(tmp_path / "norm.safetensors") as norm, flyweight.open(model) as whole:
        assert (norm["model.norm.weight"] == whole["model.norm.weight"]).all()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_what_is_there_is_listed(model: Path) -> None:
    parts = {part.name: part for part in list_parts(model)}
    assert set(parts) == {"draft", "coreml", "files", "config.json", "tokenizer.json", "tokenizer_config.json"}
    assert (parts["draft"].count, parts["coreml"].count, parts["files"].count) == (5, 3, 3)
    assert parts["coreml"].nbytes == sum(map(len, content(model.parent / "m.mlpackage").values()))
    assert list_parts(model.parent / "toy")[0].name == "files"


def test_what_is_not_there_is_refused(model: Path, tmp_path: Path) -> None:
    for source, part in ((model, "nothing"), (model.parent / "toy", "draft"), (model.parent / "toy", "coreml")):
        with pytest.raises(UnsupportedError) as caught:
            extract(source, part, tmp_path / "out")
        assert caught.value.code == "E_NO_PART"
    (tmp_path / "there").write_text("precious")
    for part in ("draft", "coreml", "files", "config.json"):
        with pytest.raises(OutputError) as exists:
            extract(model, part, tmp_path / "there")
        assert exists.value.code == "E_EXISTS"
    assert (tmp_path / "there").read_text() == "precious"
    with pytest.raises(OutputError, match="not a model"):
        extract(model, "config.json", tmp_path / "there", force=True)
    assert (tmp_path / "there").read_text() == "precious"
    (tmp_path / "config.json").write_text("{}")
    extract(model, "config.json", tmp_path / "config.json", force=True)
    assert b"model_type" in (tmp_path / "config.json").read_bytes()


def hostile(names: dict[str, bytes], attributes: int = 0) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in names.items():
            info = zipfile.ZipInfo("placeholder")
            info.filename, info.external_attr = name, attributes
            archive.writestr(info, data)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "archive",
    [
        hostile({"../out.txt": b"x"}),
        hostile({"/tmp/out.txt": b"x"}),
        hostile({"a/../../out.txt": b"x"}),
        hostile({"link": b"/etc/passwd"}, 0o120777 << 16),
        hostile({"a": b"x", "a/b": b"y"}),
        hostile({"A": b"x", "a": b"y"}),
        hostile({"a": b"x"})[:-30],
        b"",
    ],
    ids=["climbs", "absolute", "climbs-inside", "link", "file-and-folder", "case", "cut", "empty"],
)
def test_a_hostile_archive_writes_nothing(tmp_path: Path, archive: bytes) -> None:
    model = write_files(write_toy_llama(tmp_path / "in" / "toy"), {"model.mlpackage.zip": archive})
    (tmp_path / "out").mkdir()
    with pytest.raises(MalformedError):
        extract(model, "coreml", tmp_path / "out" / "m.mlpackage")
    assert list((tmp_path / "out").iterdir()) == []


def test_the_verb(model: Path, tmp_path: Path) -> None:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "flyweight", "extract", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    listed = run(model, "--list", "--json")
    assert [part["name"] for part in json.loads(listed.stdout)["parts"]][:3] == ["draft", "coreml", "files"]
    assert "Core ML package" in run(model, "--list").stdout
    made = run(model, "draft", tmp_path / "h.safetensors", "--json")
    assert json.loads(made.stdout)["items"] == list(draft_head())
    assert run(model, "coreml", tmp_path / "m.zip", "--zip").returncode == 0
    for code, arguments in {2: (model,), 4: (model, "wat", tmp_path / "w"), 6: (model, "files", tmp_path / "m.zip")}.items():
        done = run(*arguments)
        assert (done.returncode, done.stdout) == (code, ""), arguments
    assert run(model, "files", tmp_path / "f", "--zip").returncode == 2
    assert run(model, "draft", "--list").returncode == 2
