"""How the weights of a model are used: by its program, or as layers."""

from __future__ import annotations

import pytest

from flyweight.checkpoint import open_checkpoint
from flyweight.containers.container import Use
from flyweight.targets.ane.model_uses import model_uses, strictest
from flyweight.targets.ane.weight_use import WeightUse
from support import GOLDEN


def uses_of(package: str) -> dict[str, WeightUse]:
    with open_checkpoint(GOLDEN / "coreml" / f"{package}.mlpackage") as checkpoint:
        return {use.name: use for use in model_uses(checkpoint)}


def test_a_program_says_what_weights_are_for() -> None:
    found = {name.partition("_")[0]: (use.op, use.kernel, use.channel_axis) for name, use in uses_of("layers").items()}
    assert found == {
        "embedded": ("gather", (1, 1), 0),
        "hidden": ("linear", (1, 1), 0),
        "shared": ("linear", (1, 1), 0),
        "product": ("matmul", (1, 1), -1),
        "convolved": ("conv", (3, 3), 0),
        "turned": ("conv_transpose", (2, 2), 1),
        "deep": ("conv", (1, 3, 3), 0),
    }


def test_zero_points_that_are_zero_are_none() -> None:
    symmetric = {name: use.is_symmetric for name, use in uses_of("affine").items()}
    assert (symmetric["u8_tensor_f32"], symmetric["i8_channel"]) == (True, False)
    form = uses_of("affine")["u8_tensor_f32"].form
    assert form is not None
    assert not form.zero_points


@pytest.mark.parametrize(
    ("uses", "strict"),
    [
        ([Use("gather"), Use("linear")], Use("linear")),
        ([Use("conv", (1, 1)), Use("conv", (2, 2)), Use("add")], Use("conv", (2, 2))),
        ([Use("conv", (1, 1), (1, 1)), Use("conv", (1, 1), (2, 2))], Use("conv", (1, 1), (2, 2))),
        ([], Use("nothing")),
    ],
)
def test_of_several_uses_the_strictest_counts(uses: list[Use], strict: Use) -> None:
    assert strictest(uses) == strict
