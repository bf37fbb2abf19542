"""Recipe files that are none: every one is refused by the same error, with what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyweight.foundation.errors import FlyweightError
from flyweight.pipeline.plans.recipe_file import load_recipe

RULE = '[[rules]]\nmatch = "*"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules", "not a recipe"),
        ("rules = 4", "not a recipe"),
        ("[[rules]]\ncodec = 'keep'", "not a recipe"),
        (RULE + 'codec = "affine"\nparms = { bits = 4 }', "unknown recipe keys: parms"),
        (RULE + 'codec = "affine"\nparams = [[{ bits = 4 }]]', "params must be a table"),
        (RULE + 'codec = "affine"\nparams = "bits"', "params must be a table"),
        (RULE + 'codec = "affine"\nparams = { bits = 4 }\nquantizer = "magic"', "no quantizer named 'magic'"),
        (RULE + 'codec = "affine"\nparams = { bits = 4 }\ncosine = 0.99', "needs `otherwise`"),
        (RULE + 'codec = "affine"\nparams = { bits = 4 }\nsparsity = 0.5', "needs the codec 'masked'"),
        (RULE + 'codec = "keep"\nparams = { bits = 4 }', "takes no params"),
        (RULE + 'codec = "affine"\ndtype = "f16"', "dtype is only for"),
    ],
)
def test_what_is_no_recipe(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(FlyweightError, match=message) as caught:
        load_recipe(path)
    assert caught.value.code == "E_RECIPE"
    assert "r.toml" in str(caught.value)
