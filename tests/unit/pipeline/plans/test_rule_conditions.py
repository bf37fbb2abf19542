"""Which layers and which models a rule of a recipe means."""

from __future__ import annotations

import pytest

from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import TensorSpec
from flyweight.pipeline.plans.rule_conditions import Condition, Layers, ModelTraits, layer_of


def layers(text: str, count: int) -> list[int]:
    return [i for i in range(count) if Layers.read(text).have(i, count)]


@pytest.mark.parametrize(
    ("text", "count", "wanted"),
    [
        ("first 2", 5, [0, 1]),
        ("first 9", 5, [0, 1, 2, 3, 4]),
        ("last 2", 5, [3, 4]),
        ("first 1/4", 7, [0]),
        ("last 1/8", 30, [26, 27, 28, 29]),
        ("every 2nd", 5, [1, 3]),
        ("first 1, every 3rd", 8, [0, 3, 6]),
        ("first 1/8, last 1/8, every 3rd", 16, [0, 1, 4, 7, 10, 13, 14, 15]),
    ],
)
def test_layers(text: str, count: int, wanted: list[int]) -> None:
    assert layers(text, count) == wanted


@pytest.mark.parametrize(
    "text", ["", "all", "first", "first 0", "first 2/2", "first 1/0", "every 3", "first 1, first 2", "2,", 3]
)
def test_what_names_no_layers_is_refused(text: object) -> None:
    with pytest.raises(UnsupportedError, match="names no layers") as caught:
        Layers.read(text)
    assert caught.value.code == "E_RECIPE"


def test_conditions() -> None:
    model = ModelTraits(layers=80, gqa=8, tied=True)
    for text in ("tied", "no statistics", "gqa >= 4", "gqa = 8", "layers = 80", "layers >= 80", "gqa < 9"):
        assert Condition.read(text).holds(model), text
    for text in ("no tied", "statistics", "gqa >= 9", "layers = 8", "layers < 80"):
        assert not Condition.read(text).holds(model), text
    for text in ("", "not tied", "gqa > 4", "heads >= 4", 4):
        with pytest.raises(UnsupportedError, match="is no condition"):
            Condition.read(text)


def specs(**shapes: tuple[int, int]) -> dict[str, TensorSpec]:
    return {name.replace("__", "."): TensorSpec(shape, DType.F32) for name, shape in shapes.items()}


def test_what_names_and_shapes_tell_of_a_model() -> None:
    plain = specs(blk__0__attn_q__weight=(64, 32), blk__0__attn_k__weight=(16, 32), blk__6__attn_q__weight=(64, 32))
    assert ModelTraits.of(plain) == ModelTraits(layers=7, gqa=4, tied=True)
    fused = specs(model__layers__1__self_attn__qkv_proj__weight=(96, 64), model__layers__1__self_attn__o_proj__weight=(64, 64))
    assert ModelTraits.of(fused).gqa == 4  # 64 rows of queries, 16 each of keys and values
    assert not ModelTraits.of(specs(lm_head__weight=(9, 8))).tied
    assert ModelTraits.of({}) == ModelTraits(tied=True)


def test_the_layer_of_a_name() -> None:
    assert layer_of("model.layers.12.mlp.experts.3.down_proj.weight") == 12
    assert layer_of("blk.0.attn_q.weight") == 0
    assert layer_of("output.weight") is None
