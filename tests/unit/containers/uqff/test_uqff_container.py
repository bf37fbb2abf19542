"""From one generation to the other and back: the bytes of codes, scales and biases stay as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import flyweight
from flyweight.checkpoint import open_checkpoint
from support.toys import write_files, write_toy_llama
from support.uqff_files import CONFIG, blob_directory, named_directory


def stored(path: Path) -> dict[str, dict[str, bytes]]:
    """Every part of every tensor, as it lies in the files."""
    with open_checkpoint(path) as checkpoint:
        return {name: {part: array.tobytes() for part, array in checkpoint.encoded(name).parts.items()} for name in checkpoint}


@pytest.mark.parametrize(("files", "steps"), [(blob_directory(), ("uqff", "uqff0")), (named_directory(), ("uqff0", "uqff"))])
def test_nothing_is_quantized_again(files: dict[str, bytes], steps: tuple[str, ...], tmp_path: Path) -> None:
    """Layers of every type and a bias."""
    source = write_files(tmp_path / "source", files)
    expected = stored(source)
    for number, to in enumerate(steps):
        report = flyweight.convert(source, tmp_path / str(number), to=to)
        source = tmp_path / str(number)
        assert stored(source) == expected
        assert report is not None


def test_there_and_back_are_the_same_files(tmp_path: Path) -> None:
    toy = write_toy_llama(tmp_path / "toy")
    flyweight.convert(toy, tmp_path / "old", to="uqff0", quant="q8_0")
    flyweight.convert(tmp_path / "old", tmp_path / "new", to="uqff")
    flyweight.convert(tmp_path / "new", tmp_path / "back", to="uqff0")
    for path in (tmp_path / "old").rglob("*"):
        if path.is_file():
            assert (tmp_path / "back" / path.relative_to(tmp_path / "old")).read_bytes() == path.read_bytes(), path


def test_what_config_says_of_other_weights_is_left_out(tmp_path: Path) -> None:
    config = CONFIG | {"quantization_config": {"quant_method": "none"}, "text": {"quantization": {}, "kept": 1}}
    source = write_files(tmp_path / "source", named_directory(config=config))
    flyweight.convert(source, tmp_path / "out", to="uqff")
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == CONFIG | {"text": {"kept": 1}}
