"""LoRA adapters read as deltas: what they add, what they replace, and what is refused by its name."""

from __future__ import annotations

import json
import time
from math import sqrt
from typing import Any

import numpy as np
import pytest

from flyweight.codecs.entropy_coded import CHUNK
from flyweight.deltas.changes import Change, Delta
from flyweight.deltas.kind import ranges
from flyweight.deltas.kinds.low_rank_delta import LowRankDelta
from flyweight.deltas.lora import Transposed, named_as, read_adapter
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, MalformedError, UnsupportedError
from support.adapters import CONFIG, PREFIX, Q_PROJ, Array, adapter_bundle, embedding, factor_pair, linear
from support.raw_files import safetensors_file, tensor_json

A, B = factor_pair(10, 6)
BF16 = DType.BF16.numpy


def read(tensors: Any, **settings: Any) -> Delta:
    return read_adapter(adapter_bundle(tensors, **settings))


def values(change: Change) -> Array:
    """What it makes of a base of zeros, in the type it is stored as."""
    kind = change.parts["data"]
    kind.check()
    out = np.empty(change.spec.size, change.spec.dtype.storage)
    for start, stop in ranges(out.size):
        kind.rebuild(start, stop, np.zeros(stop - start, out.dtype), out[start:stop])
    return out.reshape(change.spec.shape)


def assert_product(found: Array, a: Array, b: Array, scale: float) -> None:
    """scale · B · A in f32: each of r products and sums, and the scaling, rounded by 2⁻²⁴ of what the magnitudes come to."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    bound = abs(scale) * (abs(b) @ abs(a)) * (a.shape[0] + 2) * 2.0**-24
    assert (abs(found - scale * (b @ a)) <= bound).all()


def test_a_product_is_added_to_the_weight_of_its_module() -> None:
    delta = read(linear(A, B))
    (change,) = delta.changes.values()
    assert (change.name, change.parent, change.spec.shape) == (f"{Q_PROJ}.weight", f"{Q_PROJ}.weight", (10, 6))
    assert change.adds
    assert change.nbytes == A.nbytes + B.nbytes
    assert_product(values(change), A, B, 6 / 4)
    assert delta.parent.name == "some/model"
    assert delta.parent.path is None
    assert delta.kept is None


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
def test_factors_of_every_type_keep_their_bits(dtype: Any) -> None:
    a, b = factor_pair(10, 6, dtype=dtype)
    kind = read(linear(a, b)).changes[f"{Q_PROJ}.weight"].parts["data"]
    assert isinstance(kind, LowRankDelta)
    stored = {field: np.concatenate([*pieces]) for field, _, pieces in kind.records({})}
    assert stored["up"].tobytes() == b.tobytes()
    assert stored["down"].tobytes() == a.tobytes()


@pytest.mark.parametrize("infix", ["", ".default", ".another"])
def test_the_name_of_the_adapter_may_be_in_the_keys(infix: str) -> None:
    assert_product(values(read(linear(A, B, infix=infix)).changes[f"{Q_PROJ}.weight"]), A, B, 1.5)
    tables = read(embedding(A, B, infix=infix))
    assert_product(values(tables.changes["model.embed_tokens.weight"]).T, A, B, 1.5)


def test_keys_without_a_prefix() -> None:
    tensors = {key.removeprefix(PREFIX): array for key, array in linear(A, B).items()}
    assert list(read(tensors).changes) == [f"{Q_PROJ}.weight"]


def test_embeddings_and_layers_stored_as_in_by_out_are_transposed() -> None:
    change = read(embedding(A, B)).changes["model.embed_tokens.weight"]
    assert change.spec.shape == (6, 10)
    assert_product(values(change).T, A, B, 1.5)
    change = read(linear(A, B), fan_in_fan_out=True).changes[f"{Q_PROJ}.weight"]
    assert change.spec.shape == (6, 10)
    assert_product(values(change).T, A, B, 1.5)


def test_a_transposed_factor_is_read_range_by_range() -> None:
    a, b = factor_pair(40, 7000)  # more than two chunks
    change = read(embedding(a, b)).changes["model.embed_tokens.weight"]
    assert change.spec.size > 2 * CHUNK
    assert_product(values(change).T, a, b, 1.5)
    matrix = np.arange(12)
    for start in range(13):
        for stop in range(start, 13):
            for shape in ((3, 4), (4, 3)):
                expected = matrix.reshape(shape).T.reshape(-1)[start:stop]
                np.testing.assert_array_equal(Transposed(matrix, *shape)[start:stop], expected)


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({"lora_alpha": 16}, 4.0),
        ({"lora_alpha": 0.5}, 0.125),
        ({"lora_alpha": None}, 2.0),
        ({"use_rslora": True}, 6 / sqrt(4)),
        ({"alpha_pattern": {"q_proj": 2}}, 0.5),
        ({"alpha_pattern": {"self_attn.q_proj": 2.0}}, 0.5),
        ({"alpha_pattern": {f"^{Q_PROJ}": 2}}, 0.5),
        ({"alpha_pattern": {Q_PROJ: 2}}, 0.5),
        ({"alpha_pattern": {"^q_proj": 2}}, 1.5),
        ({"alpha_pattern": {"proj": 2}}, 1.5),
        ({"alpha_pattern": {"k_proj": 3, "q_proj": 2, Q_PROJ: 4}}, 0.5),
        ({"r": 8, "rank_pattern": {"q_proj": 4}}, 1.5),
        ({"r": 8, "rank_pattern": {".*q_pro[j]": 4}, "alpha_pattern": {"q_proj": 2}, "use_rslora": True}, 1.0),
    ],
)
def test_scales(settings: dict[str, Any], scale: float) -> None:
    assert_product(values(read(linear(A, B), **settings).changes[f"{Q_PROJ}.weight"]), A, B, scale)


def test_modules_that_are_saved_replace_their_tensors() -> None:
    head, bias, norm = np.ones((3, 2), np.float16), np.arange(4, dtype=np.float32), np.ones(5, BF16)
    delta = read(
        linear(A, B)
        | {
            f"{PREFIX}lm_head.modules_to_save.default.weight": head,
            f"{PREFIX}lm_head.original_module.weight": head,
            f"{PREFIX}{Q_PROJ}.base_layer.bias": bias,
            f"{PREFIX}model.norm.weight": norm,
        },
        bias="lora_only",
        modules_to_save=["lm_head", "norm"],
    )
    assert set(delta.changes) == {f"{Q_PROJ}.weight", "lm_head.weight", f"{Q_PROJ}.bias", "model.norm.weight"}
    for name, array in (("lm_head.weight", head), (f"{Q_PROJ}.bias", bias), ("model.norm.weight", norm)):
        change = delta.changes[name]
        assert not change.adds
        assert change.parent is None
        assert values(change).tobytes() == array.tobytes()


def test_a_copy_of_the_base_beside_its_factors_is_not_a_change() -> None:
    tensors = embedding(A, B) | {f"{PREFIX}model.embed_tokens.base_layer.weight": np.ones((6, 10), np.float32)}
    (change,) = read(tensors).changes.values()
    assert change.adds


def test_a_base_on_this_machine_is_where_it_says() -> None:
    assert read(linear(A, B), base_model_name_or_path="/models/base").parent.path == "/models/base"
    assert read(linear(A, B), base_model_name_or_path=None).parent.name == ""


@pytest.mark.parametrize(
    ("own", "base"),
    [("model.layers.0.q", "model.layers.0.q"), ("layers.0.q", "model.layers.0.q"), ("model.layers.0.q", "layers.0.q")],
)
def test_names_are_those_of_the_base(own: str, base: str) -> None:
    delta = named_as(read(linear(A, B, own)), {f"{base}.weight", "other"})
    change = delta.changes[f"{base}.weight"]
    assert (change.name, change.parent) == (f"{base}.weight", f"{base}.weight")


def test_what_the_base_does_not_have_keeps_its_name() -> None:
    delta = named_as(read(linear(A, B) | {f"{PREFIX}score.weight": A}), set())
    assert {name: change.parent for name, change in delta.changes.items()} == {
        f"{Q_PROJ}.weight": f"{Q_PROJ}.weight",
        "score.weight": None,
    }


def test_two_spellings_of_one_tensor_are_refused() -> None:
    delta = read(linear(A, B, "model.q") | linear(A, B, "q"))
    with pytest.raises(MalformedError, match="E_DUPLICATE"):
        named_as(delta, {"model.q.weight"})


# --- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"peft_type": "IA3"}, "IA3"),
        ({"use_dora": True}, "use_dora"),
        ({"use_qalora": True}, "use_qalora"),
        ({"lora_bias": True}, "lora_bias"),
        ({"layer_replication": [[0, 4], [2, 5]]}, "layer_replication"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"target_parameters": ["experts.gate_up_proj"]}, "target_parameters"),
        ({"alora_invocation_tokens": [5]}, "alora_invocation_tokens"),
        ({"arrow_config": {"top_k": 2}}, "arrow_config"),
        ({"init_lora_weights": "pissa_niter_4"}, "pissa_niter_4"),
        ({"init_lora_weights": "OLoRA"}, "OLoRA"),
        ({"init_lora_weights": "loftq"}, "loftq"),
        ({"alpha_pattern": {".*_proj": 2}}, r"\.\*_proj"),
    ],
)
def test_more_than_a_product_is_refused_by_its_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named) as caught:
        read(linear(A, B), **settings)
    assert caught.value.code == "E_ADAPTER"
    assert caught.value.file == "adapter_config.json"


@pytest.mark.parametrize("start", [True, False, None, "gaussian", "eva", "orthogonal"])
def test_ways_to_begin_that_leave_the_base_alone(start: Any) -> None:
    assert read(linear(A, B), init_lora_weights=start).changes


@pytest.mark.parametrize(
    "settings",
    [
        {"peft_type": None},
        {"peft_type": 3},
        {"r": 0},
        {"r": -4},
        {"r": 4.0},
        {"r": True},
        {"r": "4"},
        {"r": 10**50},
        {"r": 5},
        {"lora_alpha": "6"},
        {"lora_alpha": True},
        {"lora_alpha": 1e300},
        {"lora_alpha": [6]},
        {"lora_alpha": 10**400},
        {"use_rslora": 1},
        {"fan_in_fan_out": "yes"},
        {"rank_pattern": []},
        {"rank_pattern": {"q_proj": 0}},
        {"rank_pattern": {"q_proj": "4"}},
        {"rank_pattern": {"q_proj": None}},
        {"alpha_pattern": [1]},
        {"alpha_pattern": {"q_proj": None}},
        {"alpha_pattern": {"q_proj": -(10**400)}},
        {"base_model_name_or_path": 7},
    ],
)
def test_settings_that_are_wrong(settings: dict[str, Any]) -> None:
    with pytest.raises(MalformedError):
        read(linear(A, B), **settings)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b'{"peft_type": "LORA", "r": 4, "r": 8}',
        b'{"peft_type": "LORA", "lora_alpha": NaN}',
        b'{"peft_type": "LORA", "lora_alpha": 1e999}',
        b'{"peft_type": "\xff"}',
        b'{"x":' * 100 + b"1" + b"}" * 100,
    ],
)
def test_configs_that_are_no_json(text: bytes) -> None:
    with pytest.raises(MalformedError):
        read_adapter(adapter_bundle(linear(A, B), text))


def test_what_is_not_said_has_the_values_peft_gives_it() -> None:
    a, b = factor_pair(10, 6, 8)
    change = read_adapter(adapter_bundle(linear(a, b), b'{"peft_type": "LORA"}')).changes[f"{Q_PROJ}.weight"]
    assert_product(values(change), a, b, 1.0)


LORA_A, LORA_B = f"{PREFIX}{Q_PROJ}.lora_A.weight", f"{PREFIX}{Q_PROJ}.lora_B.weight"


@pytest.mark.parametrize(
    ("tensors", "error"),
    [
        ({LORA_A: A}, MalformedError),
        ({LORA_B: B}, MalformedError),
        ({LORA_A: A, LORA_B: B[:, :3]}, MalformedError),
        ({LORA_A: A[:3], LORA_B: B[:, :3]}, MalformedError),
        ({LORA_A: A[:0], LORA_B: B[:, :0]}, MalformedError),
        ({LORA_A: A.reshape(-1), LORA_B: B}, UnsupportedError),
        ({LORA_A: A.reshape(4, 6, 1, 1), LORA_B: B.reshape(10, 4, 1, 1)}, UnsupportedError),
        ({LORA_A: A.astype("<f8"), LORA_B: B}, UnsupportedError),
        ({LORA_A: A, LORA_B: B, f"{PREFIX}{Q_PROJ}.lora_A.default.weight": A}, MalformedError),
        (linear(A, B) | embedding(A, B, Q_PROJ), MalformedError),
        (linear(A, B) | {f"{PREFIX}{Q_PROJ}.lora_magnitude_vector": A[0]}, UnsupportedError),
        (linear(A, B) | {f"{PREFIX}{Q_PROJ}.lora_B.bias": A[0]}, UnsupportedError),
        (linear(A, B) | {f"{PREFIX}{Q_PROJ}.lora_A": A}, UnsupportedError),
        (linear(A, B) | {f"{PREFIX}{Q_PROJ}.lora_A.x.y.weight": A}, UnsupportedError),
        (linear(A, B) | {f"{PREFIX}{Q_PROJ}.lora_embedding_A.x.y": A}, UnsupportedError),
        ({f"{PREFIX}n.weight": A, f"{PREFIX}n.base_layer.weight": A}, MalformedError),
    ],
)
def test_tensors_that_are_no_pair_of_factors(tensors: dict[str, Array], error: type[FlyweightError]) -> None:
    with pytest.raises(error) as caught:
        read(tensors)
    assert caught.value.tensor is not None
    assert caught.value.file == "adapter_model.safetensors"


def test_factors_that_would_make_a_tensor_of_no_size_in_the_world() -> None:
    """A few empty factors claim 2⁶² rows and columns."""
    huge = 1 << 62
    table = {LORA_A: tensor_json("F32", [4, huge, 0], 0, 0), LORA_B: tensor_json("F32", [huge, 4], 0, 0)}
    with pytest.raises(FlyweightError):
        read(safetensors_file(table))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_factors_that_are_not_finite(value: float) -> None:
    a = A.copy()
    a[1, 1] = value
    change = read(linear(a, B)).changes[f"{Q_PROJ}.weight"]
    with pytest.raises(MalformedError, match="not finite"):
        values(change)


@pytest.mark.parametrize("weights", [b"", b"\x08", safetensors_file({"a": tensor_json("F32", [2], 0, 8)}, b"1234")])
def test_weights_that_are_no_safetensors(weights: bytes) -> None:
    with pytest.raises(MalformedError):
        read(weights)


def test_patterns_of_strangers_are_not_run() -> None:
    """To a regular expression engine this one takes years on a name of a hundred letters."""
    module = "a" * 100
    settings = {**CONFIG, "r": 4, "rank_pattern": {"(a+)+b": 4}}
    start = time.monotonic()
    read_adapter(adapter_bundle(linear(A, B, module), json.dumps(settings).encode()))
    with pytest.raises(UnsupportedError, match="regular expression"):
        read(linear(A, B, module), alpha_pattern={"(a+)+b": 1})
    assert time.monotonic() - start < 5
