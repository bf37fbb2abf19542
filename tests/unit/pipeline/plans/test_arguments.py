"""Arguments of the functions on whole models."""

from __future__ import annotations

import pytest

from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.pipeline.plans.arguments import as_dtype


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("bf16", DType.BF16),
        ("BF16", DType.BF16),
        ("bfloat16", DType.BF16),
        ("torch.bfloat16", DType.BF16),
        ("float16", DType.F16),
        ("half", DType.F16),
        ("fp16", DType.F16),
        ("float32", DType.F32),
        (DType.F32, DType.F32),
        (None, None),
    ],
)
def test_element_types_have_the_names_that_people_type(name: str | DType | None, dtype: DType | None) -> None:
    assert as_dtype(name) is dtype


def test_a_misspelt_type_is_guessed() -> None:
    with pytest.raises(UnsupportedError, match="did you mean bf16"):
        as_dtype("bf61")
    with pytest.raises(TypeError):
        as_dtype(16)  # type: ignore[arg-type]
