"""Packages of coremltools: every weight comes to the values it decodes, and a package written again holds the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flyweight
from flyweight.foundation.errors import UnsupportedError
from support import GOLDEN

Array = np.ndarray[Any, Any]
FOLDER = GOLDEN / "coreml"
REFUSED = {
    "unusual.mlpackage": "E_CONSTEXPR",
    "pipeline.mlpackage": "E_COREML_KIND",
    "neural_network.mlmodel": "E_UNKNOWN_FORMAT",
}
PACKAGES = sorted(path for path in FOLDER.glob("*.ml*") if path.name not in REFUSED)
WEIGHTS = {
    "affine": 12, "blockwise": 26, "element_types": 7, "functions": 4, "ios16_int8": 10, "ios18_int8_lut4": 10,
    "ios18_lut4_scaled": 10, "ios18_pruned_int8": 10, "joint": 14, "layers": 10, "lut": 18, "nested": 2, "packed_lut": 8,
    "packed_sparse": 5, "scaled": 7, "sparse": 6, "state": 2,
}  # fmt: skip


def golden(package: str) -> dict[str, Array]:
    """Values by `<function>/<name>`."""
    with np.load(FOLDER / "values.npz") as values:
        return {key.removeprefix(f"{package}/"): values[key] for key in values if key.startswith(f"{package}/")}


def differing(ours: Mapping[str, Array], theirs: dict[str, Array]) -> list[str]:
    """Weights that are none of the values under their name; the function is part of ours only where two would be the same."""
    return [name for name in ours if not any(same(ours[name], theirs[key]) for key in theirs if f"/{key}".endswith(f"/{name}"))]


def same(ours: Array, theirs: Array) -> bool:
    return ours.shape == theirs.shape and ours.astype(theirs.dtype).tobytes() == theirs.tobytes()


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: path.stem)
def test_every_weight_comes_to_its_values(path: Path) -> None:
    with flyweight.open(path) as package:
        assert len(package) == WEIGHTS[path.stem]
        assert differing(package, golden(path.stem)) == []


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: path.stem)
def test_a_package_written_again_has_the_same_weights(path: Path, tmp_path: Path) -> None:
    flyweight.convert(path, tmp_path / "again.mlpackage")
    with flyweight.open(tmp_path / "again.mlpackage") as package:
        assert differing(package, golden(path.stem)) == []
    flyweight.convert(tmp_path / "again.mlpackage", tmp_path / "twice.mlpackage")
    for file in (tmp_path / "again.mlpackage").rglob("*.*"):
        if file.is_file():
            assert (
                file.read_bytes()
                == (tmp_path / "twice.mlpackage" / file.relative_to(tmp_path / "again.mlpackage")).read_bytes()
            )


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: path.stem)
def test_weights_survive_a_safetensors_file(path: Path, tmp_path: Path) -> None:
    """All parts are copied there, and from there into a program that is made for them."""
    flyweight.convert(path, tmp_path / "between.safetensors")
    flyweight.convert(tmp_path / "between.safetensors", tmp_path / "back.mlpackage")
    with flyweight.open(tmp_path / "back.mlpackage") as package:
        assert len(package) == WEIGHTS[path.stem]
        assert differing(package, golden(path.stem)) == []


@pytest.mark.parametrize(("name", "code"), REFUSED.items())
def test_what_cannot_be_read_is_refused_by_name(name: str, code: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        flyweight.open(FOLDER / name)
    assert caught.value.code == code


def test_functions_share_the_weights_that_are_the_same() -> None:
    with flyweight.open(FOLDER / "functions.mlpackage") as package:
        bare = {name.rpartition("/")[2] for name in package}
        assert bare == {"base_weight_0_quantized", "base_bias_0", "head_weight_0_quantized"}
        assert sum(name.endswith("head_weight_0_quantized") for name in package) == 2
