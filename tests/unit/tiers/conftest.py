"""Models with tiers, for the tests of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import flyweight
from support.tier_models import FORMS, become
from support.toys import CONFIG, toy_llama_files, write_files


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy in every form. Tests work on copies of it."""
    root = tmp_path_factory.mktemp("tiers")
    settings = json.dumps({**CONFIG, "num_hidden_layers": 2}).encode()
    write_files(root / "toy", toy_llama_files(layers=2) | {"config.json": settings})
    for form in FORMS:
        flyweight.convert(root / "toy", root / form, to="npy_dir", quant=form)
    return root


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user of each test's own, with an empty cache and a key that nobody has."""
    return become(tmp_path / "user", monkeypatch)


@pytest.fixture
def model(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made / "int4", tmp_path / "model")
