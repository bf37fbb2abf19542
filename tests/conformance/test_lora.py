"""Against PEFT: base and adapter opened here are what PEFT merges, and PEFT loads the adapters written here.

The bound of a merged f32 weight: both sum r products in some order and scale the sum, each step rounded by 2⁻²⁴, and round
the sum with the weight once more. So they are at most 2 · (r + 2) · 2⁻²⁴ of the sums of magnitudes apart.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers

from flyweight.checkpoint import Checkpoint, open_checkpoint
from flyweight.checkpoint.overlay import Overlay
from flyweight.deltas.kinds.low_rank_delta import LowRankDelta
from flyweight.pipeline.deltas.adapters import export_adapter, import_adapter
from flyweight.pipeline.deltas.creating import create_delta

LLAMA: dict[str, Any] = {
    "vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": None, "attention_bias": True,
}  # fmt: skip
GPT2 = {"vocab_size": 160, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
ADAPTERS: dict[str, dict[str, Any]] = {
    "plain": {"target_modules": ["q_proj", "down_proj"]},
    "rank-stabilized": {"target_modules": ["v_proj"], "use_rslora": True},
    "patterns": {
        "target_modules": "all-linear", "rank_pattern": {"^model.layers.1.self_attn.q_proj": 3, "o_proj": 5},
        "alpha_pattern": {"mlp.up_proj": 7, "^model.layers.0.self_attn.q_proj": 1},
    },
    "embeddings": {"target_modules": ["embed_tokens", "lm_head", "q_proj"]},
    "saved": {"target_modules": ["k_proj"], "modules_to_save": ["lm_head", "model.norm"]},
    "biases": {"target_modules": ["q_proj"], "bias": "all"},
    "biases-of-lora": {"target_modules": ["q_proj"], "bias": "lora_only"},
    "orthogonal": {"target_modules": ["q_proj"], "init_lora_weights": "orthogonal"},
}  # fmt: skip

TOKENS = torch.randint(0, 160, (2, 20), generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def _warnings_of_the_tool() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def random_model(where: Path, family: str = "llama", **settings: Any) -> Any:
    torch.manual_seed(0)
    config: Any = (
        transformers.LlamaConfig(**LLAMA | settings) if family == "llama" else transformers.GPT2Config(**GPT2 | settings)
    )
    transformers.AutoModelForCausalLM.from_config(config).float().eval().save_pretrained(where)
    return loaded_model(where)


def loaded_model(where: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32)


def trained(base: Any, where: Path, **settings: Any) -> Any:
    """An adapter of which every number that training changes is random, saved."""
    model = peft.get_peft_model(base, peft.LoraConfig(**{"r": 4, "lora_alpha": 6, "task_type": "CAUSAL_LM"} | settings))
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.requires_grad:
                weights.copy_(torch.randn_like(weights) * 0.1 if "lora_" in name else weights + 0.1)
    model.save_pretrained(where)
    return model


def compare(found: Checkpoint, merged: Any, before: Any) -> int:
    """That every stored tensor is the merged model's, within the bound; the number that changed."""
    assert isinstance(found, Overlay)
    changed = 0
    state = merged.state_dict()
    for name in found:
        ours, theirs, base = (np.asarray(array, np.float64) for array in (found[name], state[name], before[name]))
        change = found.delta.changes.get(name)
        kind = None if change is None else change.parts["data"]
        bound = np.zeros(())
        if isinstance(kind, LowRankDelta):
            up, down = (np.abs(kind.arrays[field][:], dtype=np.float64) for field in ("up", "down"))
            sums = abs(kind.scale) * up.reshape(-1, kind.rank) @ down.reshape(kind.rank, -1)
            bound = 2 * (kind.rank + 2) * 2.0**-24 * (np.abs(base) + sums)
            assert not np.array_equal(theirs, base)
        assert (np.abs(ours - theirs) <= bound).all(), name
        changed += not np.array_equal(ours, base)
    return changed


@pytest.mark.parametrize("settings", ADAPTERS.values(), ids=ADAPTERS)
def test_base_and_adapter_are_what_peft_merges(settings: dict[str, Any], tmp_path: Path) -> None:
    base = random_model(tmp_path / "base")
    before = {name: array.numpy().copy() for name, array in base.state_dict().items()}
    merged = trained(base, tmp_path / "adapter", **settings).merge_and_unload()
    with open_checkpoint(tmp_path / "base", deltas=[tmp_path / "adapter"]) as found:
        assert isinstance(found, Overlay)
        assert set(found) == set(before)
        assert compare(found, merged, before) == len(found.delta.changes)


def test_layers_stored_as_in_by_out(tmp_path: Path) -> None:
    base = random_model(tmp_path / "base", "gpt2")
    before = {name: array.numpy().copy() for name, array in base.state_dict().items()}
    merged = trained(base, tmp_path / "adapter", target_modules=["c_attn", "c_proj", "c_fc"]).merge_and_unload()
    with open_checkpoint(tmp_path / "base", deltas=[tmp_path / "adapter"]) as found:
        assert compare(found, merged, before) == 2 * 4


def test_an_adapter_of_the_model_without_its_head(tmp_path: Path) -> None:
    """Its names have no `model.`, those of the base have."""
    random_model(tmp_path / "base")
    inner = transformers.AutoModel.from_pretrained(tmp_path / "base", dtype=torch.float32)
    before = {f"model.{name}": array.numpy().copy() for name, array in inner.state_dict().items()}
    merged = trained(inner, tmp_path / "adapter", target_modules=["q_proj"], task_type=None).merge_and_unload()
    state = {f"model.{name}": array for name, array in merged.state_dict().items()}
    with open_checkpoint(tmp_path / "base", deltas=[tmp_path / "adapter"]) as found:
        assert isinstance(found, Overlay)
        assert set(found.delta.changes) == {f"model.layers.{layer}.self_attn.q_proj.weight" for layer in range(2)}
        for name in found.delta.changes:
            assert not np.array_equal(state[name], before[name])
            np.testing.assert_allclose(found[name], state[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("settings", [{"use_dora": True}, {"init_lora_weights": "pissa"}, {"lora_bias": True}], ids=str)
def test_what_is_more_than_a_product_is_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    trained(random_model(tmp_path / "base"), tmp_path / "adapter", target_modules=["q_proj"], **settings)
    with pytest.raises(Exception, match="E_ADAPTER"):
        open_checkpoint(tmp_path / "base", deltas=[tmp_path / "adapter"])


@pytest.mark.parametrize("name", ["plain", "rank-stabilized", "patterns", "embeddings", "saved"])
def test_peft_loads_what_is_written_here(name: str, tmp_path: Path) -> None:
    """PEFT's own adapter, imported and exported, gives the same logits and merges to the same weights, bit for bit."""
    model = trained(random_model(tmp_path / "base"), tmp_path / "adapter", **ADAPTERS[name]).eval()
    import_adapter(tmp_path / "base", tmp_path / "adapter", tmp_path / "d.wdelta")
    export_adapter(None, tmp_path / "d.wdelta", tmp_path / "again")
    loaded = peft.PeftModel.from_pretrained(loaded_model(tmp_path / "base"), tmp_path / "again").eval()
    with torch.no_grad():
        assert torch.equal(loaded(TOKENS).logits, model(TOKENS).logits)
    merged, wanted = loaded.merge_and_unload().state_dict(), model.merge_and_unload().state_dict()
    for tensor, array in wanted.items():
        assert torch.equal(merged[tensor], array), tensor


def test_peft_loads_products_that_were_fitted(tmp_path: Path) -> None:
    """A fine-tune by two steps of low rank and another norm, as a delta, as an adapter: PEFT merges what is rebuilt here."""
    tuned = random_model(tmp_path / "base", tie_word_embeddings=False)
    with torch.no_grad():
        for layer in tuned.model.layers:
            for linear in (layer.self_attn.q_proj, layer.mlp.down_proj, tuned.model.embed_tokens):
                rows, columns = linear.weight.shape
                linear.weight += 0.01 * torch.randn(rows, 3) @ torch.randn(3, columns)
        tuned.model.norm.weight *= 1.1
    tuned.save_pretrained(tmp_path / "tuned")
    report = create_delta(tmp_path / "base", tmp_path / "tuned", tmp_path / "d.wdelta", strategy="lowrank", budget=0.01)
    assert report.error <= 0.01
    exported = export_adapter(None, tmp_path / "d.wdelta", tmp_path / "adapter")
    assert len(exported.ranks) == 5
    assert exported.saved == ("model.norm.weight",)
    merged = peft.PeftModel.from_pretrained(loaded_model(tmp_path / "base"), tmp_path / "adapter").merge_and_unload()
    before = {name: array.numpy() for name, array in loaded_model(tmp_path / "base").state_dict().items()}
    with open_checkpoint(tmp_path / "d.wdelta") as found:
        assert compare(found, merged, before) == 6
