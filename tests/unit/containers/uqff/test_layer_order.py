"""The names of numbered layers."""

from __future__ import annotations

import time

import pytest

from flyweight.containers.uqff.layer_order import layer_modules
from support.uqff_files import CONFIG, MODULES


def test_a_llama() -> None:
    assert layer_modules(CONFIG) == list(MODULES)


def test_experts_come_in_turn() -> None:
    modules = layer_modules({"model_type": "mixtral", "num_hidden_layers": 1, "num_local_experts": 2})
    assert modules is not None
    path = "model.layers.0.block_sparse_moe"
    assert modules[5:] == [
        f"{path}.gate",
        *(f"{path}.experts.{expert}.{part}" for expert in (0, 1) for part in ("w1", "w2", "w3")),
    ]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "llama"},
        {"model_type": ["llama"], "num_hidden_layers": 1},
        {"model_type": "another", "num_hidden_layers": 1},
        {"model_type": "llama", "num_hidden_layers": 10**12},
        {"model_type": "mixtral", "num_hidden_layers": 1000, "num_local_experts": 100_000},
    ],
)
def test_a_model_that_has_no_names(config: dict[str, object]) -> None:
    assert layer_modules(config) is None


def test_a_long_list_of_layers_costs_little() -> None:
    config = {"model_type": "qwen3_moe", "num_hidden_layers": 1000, "num_experts": 1, "mlp_only_layers": [[]] * 1_000_000}
    begun = time.process_time()
    assert layer_modules(config) is not None
    assert time.process_time() - begun < 2
