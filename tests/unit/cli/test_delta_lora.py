"""`flyweight delta lora`, and adapters wherever a delta is given."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from support.adapters import CONFIG, adapter_weights, factor_pair, linear
from support.command_line import flyweight
from support.toys import HIDDEN, write_files, write_toy_llama

Q = "model.layers.0.self_attn.q_proj"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_toy_llama(tmp_path / "base")
    tensors = linear(*factor_pair(HIDDEN, HIDDEN, dtype=np.float16), Q)
    files = {"adapter_config.json": json.dumps(CONFIG).encode(), "adapter_model.safetensors": adapter_weights(tensors)}
    write_files(tmp_path / "adapter", files)
    return tmp_path


def test_there_and_back(folder: Path) -> None:
    done = flyweight("delta", "lora", "import", folder / "base", folder / "adapter", folder / "d.wdelta", "--json")
    assert done.code == 0
    assert done.json()["error"] == 0
    done = flyweight("delta", "lora", "export", folder / "d.wdelta", folder / "again", "--base-name", "org/model", "--json")
    assert done.code == 0
    assert done.json()["ranks"] == {Q: 4}
    merged = []
    for name in ("adapter", "d.wdelta", "again"):
        assert flyweight("delta", "apply", folder / "base", folder / name, folder / f"{name}-merged").code == 0
        merged.append((folder / f"{name}-merged" / "model.safetensors").read_bytes())
    assert merged[0] == merged[1] == merged[2] != (folder / "base" / "model.safetensors").read_bytes()


def test_an_adapter_that_does_not_know_its_base(folder: Path) -> None:
    done = flyweight("inspect", folder / "adapter", "--json")
    assert done.code == 1
    assert done.error()["code"] == "E_PARENT"
    done = flyweight("delta", "inspect", folder / "adapter", "--json")
    assert done.code == 0
    assert done.json()["base"] == "some/model"


def test_what_cannot_be_exported_is_unsupported(folder: Path) -> None:
    write_toy_llama(folder / "tuned", seed=8)
    assert flyweight("delta", "create", folder / "base", folder / "tuned", folder / "d.wdelta").code == 0
    done = flyweight("delta", "lora", "export", folder / "d.wdelta", folder / "out", "--json")
    assert (done.code, done.error()["code"]) == (4, "E_ADAPTER")
    assert not (folder / "out").exists()
