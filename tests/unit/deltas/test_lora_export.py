"""Deltas as LoRA adapters: the factors bit for bit, other modules whole, and a list of what PEFT could not load."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from flyweight.deltas.changes import Change, Delta
from flyweight.deltas.kinds.low_rank_delta import LowRankDelta
from flyweight.deltas.lora import read_adapter
from flyweight.deltas.lora_export import Adapter, AdapterModel, plan_adapter
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.manifest import Entry
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.sources import MemoryBundle
from support.adapters import PREFIX, Array, adapter_bundle, embedding, factor_pair, linear

A, B = factor_pair(10, 6)
SHAPES = {
    "model.embed_tokens.weight": (6, 10),
    "model.layers.0.q_proj.weight": (10, 6),
    "model.layers.0.q_proj.bias": (10,),
    "model.layers.1.q_proj.weight": (10, 6),
    "model.norm.weight": (6,),
    "lm_head.weight": (3, 6),
}
NORM = np.arange(6, dtype=np.float32)


def entries(shapes: dict[str, tuple[int, ...]], codec: CodecSpec = RAW) -> dict[str, Entry]:
    specs = {name: TensorSpec(shape, DType.F32) for name, shape in shapes.items()}
    return {name: Entry(name, spec, codec, {"data": spec}) for name, spec in specs.items()}


BASE = entries(SHAPES)


def delta_of(tensors: dict[str, Array], **settings: Any) -> Delta:
    return read_adapter(adapter_bundle(tensors, **settings))


def planned(delta: Delta, base: dict[str, Entry] = BASE, result: dict[str, Entry] | None = None, **model: Any) -> Adapter:
    return plan_adapter(delta, base, base if result is None else result, AdapterModel(**model))


def written(adapter: Adapter, whole: dict[str, Array] | None = None) -> MemoryBundle:
    """The adapter as files, its tensors filled in as whoever writes it would."""
    image, extents = adapter.place()
    weights = bytearray(image.nbytes)
    for offset, chunk in image.chunks:
        weights[offset : offset + len(chunk)] = chunk
    for key, extent in extents.items():
        array = (whole or {}).get(key)
        raw = array.tobytes() if array is not None else b"".join(piece.tobytes() for piece in adapter.factors[key].pieces())
        assert len(raw) == extent.nbytes
        weights[extent.offset : extent.end] = raw
    return MemoryBundle({"adapter_config.json": adapter.config, "adapter_model.safetensors": bytes(weights)})


def stored(change: Change) -> tuple[float, dict[str, bytes]]:
    kind = change.parts["data"]
    assert isinstance(kind, LowRankDelta)
    return kind.scale, {field: b"".join(piece.tobytes() for piece in pieces) for field, _, pieces in kind.records({})}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, DType.BF16.numpy])
@pytest.mark.parametrize("fan_in_fan_out", [False, True])
def test_what_was_read_is_written_again_bit_for_bit(dtype: Any, fan_in_fan_out: bool) -> None:
    a, b = factor_pair(10, 6, dtype=dtype)
    tensors = linear(a, b, "model.layers.0.q_proj") | embedding(a, b)
    delta = delta_of(tensors, fan_in_fan_out=fan_in_fan_out)
    again = read_adapter(written(planned(delta, fan_in_fan_out=fan_in_fan_out)))
    assert set(again.changes) == set(delta.changes)
    for name, change in delta.changes.items():
        assert again.changes[name].spec == change.spec
        assert stored(again.changes[name]) == stored(change)


def test_keys_and_shapes_are_those_of_peft() -> None:
    adapter = planned(delta_of(linear(A, B, "model.layers.0.q_proj") | embedding(A, B)))
    assert {key: factor.spec.shape for key, factor in adapter.factors.items()} == {
        "base_model.model.model.layers.0.q_proj.lora_A.weight": (4, 6),
        "base_model.model.model.layers.0.q_proj.lora_B.weight": (10, 4),
        "base_model.model.model.embed_tokens.lora_embedding_A": (4, 6),
        "base_model.model.model.embed_tokens.lora_embedding_B": (10, 4),
    }


def test_ranks_and_scales_that_differ_are_in_patterns() -> None:
    small_a, small_b = factor_pair(10, 6, 2)
    delta = delta_of(
        linear(small_a, small_b, "model.layers.0.q_proj") | linear(A, B, "model.layers.1.q_proj"),
        rank_pattern={"layers.0.q_proj": 2},
        alpha_pattern={"layers.0.q_proj": 5},
    )
    adapter = planned(delta, base_name="some/model", task_type="CAUSAL_LM")
    config = json.loads(adapter.config)
    assert (config["r"], config["lora_alpha"]) == (4, 6.0)
    assert config["rank_pattern"] == {"^model.layers.0.q_proj": 2}
    assert config["alpha_pattern"] == {"^model.layers.0.q_proj": 5.0}
    assert config["target_modules"] == ["model.layers.0.q_proj", "model.layers.1.q_proj"]
    assert (config["base_model_name_or_path"], config["task_type"], config["modules_to_save"]) == (
        "some/model",
        "CAUSAL_LM",
        None,
    )
    again = read_adapter(written(adapter))
    assert {name: stored(change) for name, change in again.changes.items()} == {
        name: stored(change) for name, change in delta.changes.items()
    }


def test_other_modules_are_saved_whole() -> None:
    delta = delta_of(linear(A, B, "model.layers.0.q_proj") | {f"{PREFIX}model.norm.weight": NORM})
    adapter = planned(delta)
    assert json.loads(adapter.config)["modules_to_save"] == ["model.norm"]
    assert list(adapter.whole) == [f"{PREFIX}model.norm.weight"]
    again = read_adapter(written(adapter, {f"{PREFIX}model.norm.weight": NORM}))
    assert list(again.changes) == ["model.norm.weight", "model.layers.0.q_proj.weight"]


def test_a_module_is_saved_with_all_of_its_tensors_or_by_factors() -> None:
    """PEFT loads a module either way, not both: where the bias changed too, the weight is stored whole."""
    bias = np.ones(10, np.float32)
    tensors = linear(A, B, "model.layers.0.q_proj") | linear(A, B, "model.layers.1.q_proj")
    adapter = planned(delta_of(tensors | {f"{PREFIX}model.layers.0.q_proj.bias": bias}))
    assert set(adapter.whole) == {f"{PREFIX}model.layers.0.q_proj.weight", f"{PREFIX}model.layers.0.q_proj.bias"}
    assert set(adapter.factors) == {f"{PREFIX}model.layers.1.q_proj.lora_{side}.weight" for side in "AB"}


def test_a_tensor_that_does_not_change_is_not_in_the_adapter() -> None:
    delta = delta_of(linear(A, B, "model.layers.0.q_proj"))
    spec = TensorSpec((10, 6), DType.F32)
    empty = LowRankDelta(spec, {"rank": 0, "scale": 1.0}, {"up": np.zeros(0, np.float16), "down": np.zeros(0, np.float16)})
    name = "model.layers.1.q_proj.weight"
    unchanged = Change(name, spec, parts={"data": empty}, layout={"data": spec}, parent=name)
    same = Change("lm_head.weight", TensorSpec((3, 6), DType.F32), parent="lm_head.weight")
    delta = Delta("d", {**delta.changes, name: unchanged, "lm_head.weight": same})
    assert json.loads(planned(delta).config)["target_modules"] == ["model.layers.0.q_proj"]


# --- refusals --------------------------------------------------------------------------------------

LINEAR = linear(A, B, "model.layers.0.q_proj")


@pytest.mark.parametrize(
    ("tensors", "base", "result", "model", "why"),
    [
        ({"score.weight": A}, {}, {"score.weight": (4, 6)}, {}, "'score.weight' is new"),
        ({"lm_head.weight": A}, {}, {"lm_head.weight": (4, 6)}, {}, "'lm_head.weight' has another shape"),
        ({}, {"gone.weight": (1,)}, {}, {}, "'gone.weight' is removed"),
        ({"model.embed_tokens.weight": A}, {}, {}, {"is_tied": True}, "is the output layer too"),
        ({"alone": A[0]}, {"alone": (6,)}, {"alone": (6,)}, {}, "'alone' belongs to no module"),
        ({"norm.weight": NORM}, {"norm.weight": (6,)}, {"norm.weight": (6,)}, {}, "names end with 'norm'"),
        ({"a+b.weight": NORM}, {"a+b.weight": (6,)}, {"a+b.weight": (6,)}, {}, "plain name"),
    ],
)
def test_what_peft_could_not_load_is_refused_with_a_list(
    tensors: dict[str, Array], base: dict[str, Any], result: dict[str, Any], model: dict[str, Any], why: str
) -> None:
    delta = delta_of(LINEAR | {PREFIX + name: array for name, array in tensors.items()})
    with pytest.raises(UnsupportedError, match=why) as caught:
        planned(delta, entries(SHAPES | base), entries(SHAPES | result), **model)
    assert caught.value.code == "E_ADAPTER"


def test_factors_of_a_tied_embedding_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="output layer too"):
        planned(delta_of(LINEAR | embedding(A, B)), is_tied=True)


def test_quantized_modules_are_refused() -> None:
    result = BASE | entries({"model.norm.weight": (6,)}, CodecSpec("q8_0"))
    with pytest.raises(UnsupportedError, match="not stored as plain numbers"):
        planned(delta_of(LINEAR | {f"{PREFIX}model.norm.weight": NORM}), result=result)


def test_a_delta_without_products_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no tensor of the delta is a product"):
        planned(delta_of({f"{PREFIX}model.norm.weight": NORM}))


def test_a_long_list_is_cut() -> None:
    base = BASE | entries({f"gone.{at}.weight": (1,) for at in range(20)})
    with pytest.raises(UnsupportedError, match=r"20 tensors cannot be in a LoRA adapter.*and 12 more"):
        planned(delta_of(LINEAR), base, BASE)
