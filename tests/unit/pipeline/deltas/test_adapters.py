"""Adapters as deltas and deltas as adapters, on a whole model: the same bits either way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flyweight.checkpoint import open_checkpoint
from flyweight.checkpoint.overlay import Overlay
from flyweight.deltas.kinds.low_rank_delta import LowRankDelta
from flyweight.foundation.errors import OutputError, ParentError, UnsupportedError
from flyweight.pipeline import convert
from flyweight.pipeline.deltas.adapters import export_adapter, import_adapter
from flyweight.pipeline.deltas.creating import DEFAULT_RANK, create_delta
from support.adapters import CONFIG, PREFIX, adapter_weights, factor_pair, linear
from support.toys import HIDDEN, INTERMEDIATE, llama_tensors, safetensors_bytes, toy_llama_files, write_files, write_toy_llama

Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"
NORM = np.linspace(0.9, 1.1, HIDDEN, dtype=np.float32)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_toy_llama(tmp_path / "base")


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    q = factor_pair(HIDDEN, HIDDEN, dtype=np.float16)
    down = factor_pair(HIDDEN, INTERMEDIATE, 2, seed=1)
    tensors = linear(*q, Q) | linear(*down, DOWN) | {f"{PREFIX}model.norm.weight": NORM}
    config = CONFIG | {"rank_pattern": {"down_proj": 2}, "modules_to_save": ["model.norm"]}
    files = {"adapter_config.json": json.dumps(config).encode(), "adapter_model.safetensors": adapter_weights(tensors)}
    return write_files(tmp_path / "adapter", files)


def contents(base: Path, delta: Path) -> dict[str, bytes]:
    with open_checkpoint(base, deltas=[delta]) as model:
        return {name: model[name].tobytes() for name in model}


def stored(base: Path, delta: Path) -> dict[str, Any]:
    """What a delta holds of products: scale and bits."""
    with open_checkpoint(base, deltas=[delta]) as model:
        assert isinstance(model, Overlay)
        kinds = {name: change.parts.get("data") for name, change in model.delta.changes.items()}
        return {
            name: (kind.scale, {field: b"".join(piece.tobytes() for piece in pieces) for field, _, pieces in kind.records({})})
            for name, kind in kinds.items()
            if isinstance(kind, LowRankDelta)
        }


def test_an_adapter_is_imported_bit_for_bit(base: Path, adapter: Path, tmp_path: Path) -> None:
    report = import_adapter(base, adapter, tmp_path / "d.wdelta")
    assert {tensor.name: tensor.strategy for tensor in report.tensors if tensor.strategy != "unchanged"} == {
        f"{Q}.weight": "lowrank", f"{DOWN}.weight": "lowrank", "model.norm.weight": "exact",
    }  # fmt: skip
    assert report.error == 0
    assert len(stored(base, adapter)) == 2
    assert stored(base, tmp_path / "d.wdelta") == stored(base, adapter)
    assert contents(base, tmp_path / "d.wdelta") == contents(base, adapter)


def test_a_delta_is_exported_bit_for_bit(base: Path, adapter: Path, tmp_path: Path) -> None:
    import_adapter(base, adapter, tmp_path / "d.wdelta")
    report = export_adapter(base, tmp_path / "d.wdelta", tmp_path / "again", base_name="some/model")
    assert report.ranks == {Q: 4, DOWN: 2}
    assert report.saved == ("model.norm.weight",)
    assert report.nbytes == sum(file.stat().st_size for file in (tmp_path / "again").iterdir())
    config = json.loads((tmp_path / "again" / "adapter_config.json").read_bytes())
    assert (config["base_model_name_or_path"], config["task_type"]) == ("some/model", "CAUSAL_LM")
    assert stored(base, tmp_path / "again") == stored(base, adapter)
    assert contents(base, tmp_path / "again") == contents(base, adapter)


def test_a_delta_knows_its_base(base: Path, adapter: Path, tmp_path: Path) -> None:
    import_adapter(base, adapter, tmp_path / "d.wdelta")
    export_adapter(None, tmp_path / "d.wdelta", tmp_path / "again")
    assert contents(base, tmp_path / "again") == contents(base, adapter)
    with open_checkpoint(tmp_path / "again") as model:  # the adapter has the path of its base
        assert {name: model[name].tobytes() for name in model} == contents(base, adapter)


def test_a_fine_tune_of_low_rank_becomes_an_adapter(base: Path, tmp_path: Path) -> None:
    """Vectors have no low rank, and are stored exactly: as modules of the adapter that are whole."""
    tensors = llama_tensors()
    a, b = factor_pair(HIDDEN, HIDDEN, 2)
    for layer in range(2):
        name = f"model.layers.{layer}.self_attn.q_proj.weight"
        tensors[name] = (tensors[name].astype(np.float32) + b @ a).astype(tensors[name].dtype)
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * 2
    tuned = write_files(
        tmp_path / "tuned", toy_llama_files() | {"model.safetensors": safetensors_bytes(tensors, {"format": "pt"})}
    )
    report = create_delta(base, tuned, tmp_path / "d.wdelta", strategy="lowrank", budget=0.05)
    changed = {tensor.name: tensor for tensor in report.tensors if tensor.strategy != "unchanged"}
    assert {name: tensor.strategy for name, tensor in changed.items()} == {
        "model.layers.0.self_attn.q_proj.weight": "lowrank",
        "model.layers.1.self_attn.q_proj.weight": "lowrank",
        "model.norm.weight": "exact",
    }
    assert 0 < report.error <= 0.05
    exported = export_adapter(None, tmp_path / "d.wdelta", tmp_path / "adapter")
    assert set(exported.ranks.values()) == {2}
    assert contents(base, tmp_path / "adapter") == contents(base, tmp_path / "d.wdelta")


def test_low_rank_has_a_usual_rank(base: Path, tmp_path: Path) -> None:
    tuned = write_toy_llama(tmp_path / "tuned", seed=8)
    create_delta(base, tuned, tmp_path / "d.wdelta", strategy="lowrank")
    ranks = export_adapter(None, tmp_path / "d.wdelta", tmp_path / "adapter").ranks
    assert 0 < max(ranks.values()) <= DEFAULT_RANK  # and less than four bits a weight, which is less here


def test_an_adapter_for_another_model_is_refused(adapter: Path, tmp_path: Path) -> None:
    base = write_toy_llama(tmp_path / "small", layers=1)
    with pytest.raises(ParentError, match=DOWN):
        import_adapter(base, adapter, tmp_path / "d.wdelta")
    assert not (tmp_path / "d.wdelta").exists()


def test_what_is_no_adapter_is_not_imported(base: Path, adapter: Path, tmp_path: Path) -> None:
    import_adapter(base, adapter, tmp_path / "d.wdelta")
    for place in (base, tmp_path / "d.wdelta"):
        with pytest.raises(UnsupportedError, match="is not a LoRA adapter"):
            import_adapter(base, place, tmp_path / "again.wdelta")
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(UnsupportedError, match=r"adapter_model\.safetensors"):
        import_adapter(base, adapter, tmp_path / "again.wdelta")


def test_a_chain_is_no_adapter(base: Path, adapter: Path, tmp_path: Path) -> None:
    import_adapter(base, adapter, tmp_path / "first.wdelta")
    with open_checkpoint(base, deltas=[tmp_path / "first.wdelta"]) as first, open_checkpoint(first, deltas=[adapter]) as second:
        create_delta(first, second, tmp_path / "second.wdelta")
    with pytest.raises(UnsupportedError, match="one delta on a model"):
        export_adapter(None, tmp_path / "second.wdelta", tmp_path / "out")
    with pytest.raises(UnsupportedError, match="one delta on a model"):
        export_adapter(None, base, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_adapter_is_for_a_hugging_face_directory(base: Path, tmp_path: Path) -> None:
    convert(base, tmp_path / "base.gguf")
    convert(write_toy_llama(tmp_path / "tuned", seed=8), tmp_path / "tuned.gguf")
    create_delta(tmp_path / "base.gguf", tmp_path / "tuned.gguf", tmp_path / "d.wdelta")
    with pytest.raises(UnsupportedError, match="the base is gguf"):
        export_adapter(None, tmp_path / "d.wdelta", tmp_path / "out")


def test_an_output_that_exists_is_replaced_only_by_force(base: Path, adapter: Path, tmp_path: Path) -> None:
    import_adapter(base, adapter, tmp_path / "d.wdelta")
    for _ in range(2):
        export_adapter(base, tmp_path / "d.wdelta", tmp_path / "again", force=True)
    with pytest.raises(OutputError, match="E_EXISTS"):
        export_adapter(base, tmp_path / "d.wdelta", tmp_path / "again")
    with pytest.raises(OutputError, match="E_SOURCE_INSIDE"):
        export_adapter(base, adapter, adapter, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "again", "base", "d.wdelta"]
