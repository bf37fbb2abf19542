"""A mixture of experts goes only to formats whose loaders want its experts as they are arranged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import flyweight
from flyweight.foundation.errors import UnsupportedError
from support import toys

EXPERTS = 4
MLP = "model.layers.0.mlp."


def each(path: str) -> dict[str, np.ndarray]:
    return {
        f"{path}experts.{e}.{n}.weight": np.ones((64, 64), np.float32) for e in range(EXPERTS) for n in ("up_proj", "down_proj")
    }


def whole(*names: str) -> dict[str, np.ndarray]:
    return {name: np.ones((EXPERTS, 64, 64), np.float32) for name in names}


# What a model of the family has in its first layer, and how config.json counts experts, if it does.
ARRANGEMENTS: dict[str, tuple[dict[str, np.ndarray], dict[str, object]]] = {
    "qwen3_moe": (each(MLP), {"num_experts": EXPERTS}),
    "mixtral": (each("model.layers.0.block_sparse_moe."), {"num_local_experts": EXPERTS}),
    "deepseek_v3": (each(MLP), {"n_routed_experts": EXPERTS}),
    "fused": (whole(MLP + "experts.gate_up_proj", MLP + "experts.down_proj"), {"num_local_experts": EXPERTS}),
    "known by its names alone": (each(MLP), {}),
    "known by its config alone": (whole("model.layers.0.block_sparse_moe.input_linear.weight"), {"num_local_experts": EXPERTS}),
    "counted in text_config": (whole("model.layers.0.moe.w1"), {"text_config": {"num_experts": EXPERTS}}),
}
STACKED = whole(MLP + "switch_mlp.up_proj.weight", MLP + "switch_mlp.down_proj.weight")


def write(root: Path, experts: dict[str, np.ndarray], config: dict[str, object]) -> Path:
    tensors = toys.llama_tensors() | experts
    document = toys.CONFIG | {"model_type": "qwen3_moe"} | config
    files = {
        "config.json": json.dumps(document).encode(),
        "model.safetensors": toys.safetensors_bytes(tensors, {"format": "pt"}),
    }
    return toys.write_files(root, files)


def write_mlx(root: Path, experts: dict[str, np.ndarray]) -> Path:
    """A directory as mlx-lm writes it: one matrix packed, the rest dense."""
    codes = {
        "a.weight": np.ones((4, 8), np.uint32),
        "a.scales": np.ones((4, 1), np.float32),
        "a.biases": np.ones((4, 1), np.float32),
    }
    config = {"quantization": {"group_size": 64, "bits": 4}, "num_experts": EXPERTS}
    return write(root, experts | codes, config)


def refusal(source: Path, target: Path, to: str, quant: str | None = None) -> str:
    with pytest.raises(UnsupportedError) as error:
        flyweight.convert(source, target, to=to, quant=quant)
    assert not target.exists()
    return error.value.code


@pytest.mark.parametrize("quant", [None, "int4"])
@pytest.mark.parametrize("family", ARRANGEMENTS)
def test_experts_of_hf_do_not_go_to_mlx_or_gguf(family: str, quant: str | None, tmp_path: Path) -> None:
    source = write(tmp_path / "in", *ARRANGEMENTS[family])
    assert refusal(source, tmp_path / "out", "mlx", quant) == "E_EXPERTS"
    assert refusal(source, tmp_path / "out.gguf", "gguf", "q4_0" if quant else None) == "E_FAMILY"


@pytest.mark.parametrize("family", ARRANGEMENTS)
def test_experts_of_hf_are_copied(family: str, tmp_path: Path) -> None:
    source = write(tmp_path / "in", *ARRANGEMENTS[family])
    flyweight.convert(source, tmp_path / "out", to="hf")
    flyweight.convert(source, tmp_path / "out.safetensors")
    assert flyweight.diff(source, tmp_path / "out").identical
    assert flyweight.diff(source, tmp_path / "out.safetensors").identical


@pytest.mark.parametrize("experts", [STACKED, whole(MLP + "experts.up_proj.weight")], ids=["switch_mlp", "under hf's names"])
def test_experts_of_mlx_stay_there(experts: dict[str, np.ndarray], tmp_path: Path) -> None:
    source = write_mlx(tmp_path / "in", experts)
    assert refusal(source, tmp_path / "out", "hf") == "E_EXPERTS"
    flyweight.convert(source, tmp_path / "copy", to="mlx")
    assert flyweight.diff(source, tmp_path / "copy").identical


def test_stacked_experts_that_are_dense_can_be_packed_for_mlx(tmp_path: Path) -> None:
    """mlx-lm's dense models are plain directories by their files, with MLX's names."""
    source = write(tmp_path / "in", STACKED, {"num_experts": EXPERTS})
    flyweight.convert(source, tmp_path / "out", to="mlx", quant="int4")
    assert flyweight.verify(tmp_path / "out").ok


@pytest.mark.parametrize("count", [0, 1, None])
def test_one_expert_is_no_mixture(count: int | None, tmp_path: Path) -> None:
    extra = {"model.layers.0.mlp.shared_expert.up_proj.weight": np.ones((64, 64), np.float32)}
    source = write(tmp_path / "in", extra, {"num_experts": count, "num_local_experts": count})
    flyweight.convert(source, tmp_path / "out", to="mlx", quant="int4")
