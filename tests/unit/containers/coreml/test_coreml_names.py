"""Names in a program: tensors keep theirs, whatever these are, and nothing else is called as one of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import flyweight
from support.toys import safetensors_bytes

NAMES = ["w", "w_mask", "w_nonzero_data", "w_lut", "w_product", "x_32_f16", "x", "state", "7", "_u", "a.b", "a_b", "a/b", "ä"]


@pytest.mark.parametrize("quant", ["dense", "lut4", "sparse-lut4"])
def test_any_names_survive(quant: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {name: rng.standard_normal((16, 32)).astype(np.float16) for name in NAMES}
    (tmp_path / "a.safetensors").write_bytes(safetensors_bytes(tensors))
    flyweight.convert(tmp_path / "a.safetensors", tmp_path / "a.mlpackage", quant=quant)
    flyweight.convert(tmp_path / "a.mlpackage", tmp_path / "b.mlpackage", quant="lut6")
    for package in ("a.mlpackage", "b.mlpackage"):
        with flyweight.open(tmp_path / package) as written:
            assert sorted(written) == sorted(NAMES)
            for name, values in tensors.items():
                assert np.abs(written[name] - values).max() < 1.5
