"""The chat template of a model in 0.x: where the versions of mistral.rs look for it that load 0.x."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import flyweight
from support.toys import write_toy_llama

TEMPLATE = "{% for m in messages %}{{ m.content }}é{% endfor %}"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    write_toy_llama(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    return folder


def settings_of(folder: Path) -> object:
    return json.loads((folder / "tokenizer_config.json").read_text("utf-8"))


@pytest.mark.parametrize("before", [None, {"eos_token": "</s>"}], ids=["none", "without"])
def test_a_template_in_a_file_is_told_in_the_settings_too(source: Path, tmp_path: Path, before: dict[str, str] | None) -> None:
    (source / "tokenizer_config.json").unlink(missing_ok=True)
    if before is not None:
        (source / "tokenizer_config.json").write_text(json.dumps(before))
    flyweight.convert(source, tmp_path / "old", to="uqff0")
    assert settings_of(tmp_path / "old") == {**(before or {}), "chat_template": TEMPLATE}
    assert (tmp_path / "old" / "chat_template.jinja").read_text("utf-8") == TEMPLATE


def test_settings_that_have_one_stay_as_they_are(source: Path, tmp_path: Path) -> None:
    text = '{ "chat_template": "other" }'
    (source / "tokenizer_config.json").write_text(text)
    flyweight.convert(source, tmp_path / "old", to="uqff0")
    assert (tmp_path / "old" / "tokenizer_config.json").read_text() == text


def test_1_x_reads_the_file(source: Path, tmp_path: Path) -> None:
    (source / "tokenizer_config.json").write_text("{}")
    flyweight.convert(source, tmp_path / "new", to="uqff")
    assert settings_of(tmp_path / "new") == {}
