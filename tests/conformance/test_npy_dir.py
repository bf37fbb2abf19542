"""squish-ai reads what we write as far as it can, and we read all that it writes.

Its loader reads int8 and dense arrays (four bits need an extension that is not published); int3 and nf4 it writes and cannot
read, so those are held to the weights they came from.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from squish.quant.compressed_loader import _dequantize_npy_dir, compress_npy_dir, discover_npy_dir_metadata

import flyweight
from toys import llama_tensors, write_toy_llama

TOOL = Path(sys.executable).parent / "squish-convert"
SOURCE = {name: values.astype(np.float32) for name, values in llama_tensors(dtype=np.float32).items()}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories of the tool: <root>/<form>."""
    root = tmp_path_factory.mktemp("squish")
    write_toy_llama(root / "toy", dtype=np.float32)
    # Widths that are no multiple of 64 abort its int8, so it is told to leave these alone.
    for form, flags in {"int8": ["--passthrough", "norm", "down_proj"], "int3": ["--int3"], "nf4": ["--nf4"]}.items():
        command = [str(TOOL), "--model-dir", str(root / "toy"), "--output", str(root / form), *flags]
        subprocess.run(command, check=True, capture_output=True)
    shutil.copytree(root / "int8", root / "zst")
    compress_npy_dir(str(root / "zst"), verbose=False)
    return root


def loaded(path: Path) -> dict[str, np.ndarray]:
    """What its loader makes of every tensor."""
    keys = json.loads((path / "manifest.json").read_text())
    return {name: np.asarray(_dequantize_npy_dir(path / "tensors", key)) for name, key in keys.items()}


@pytest.mark.parametrize("form", ["int8", "zst"])
def test_what_it_writes_and_reads_has_the_values_it_reads(theirs: Path, form: str) -> None:
    expected = loaded(theirs / form)
    with flyweight.open(theirs / form) as model:
        assert set(model) == set(expected)
        for name, values in expected.items():
            assert np.array_equal(model[name], values), name
    assert flyweight.verify(theirs / form, strict=True).ok


@pytest.mark.parametrize(("form", "most"), [("int3", 0.25), ("nf4", 0.153)])
def test_what_it_writes_and_cannot_read(theirs: Path, form: str, most: float) -> None:
    """A three-bit step is 2/7 of the greatest magnitude, of which half can be lost, less what the low rank gives back."""
    with flyweight.open(theirs / form) as model:
        for name, values in SOURCE.items():
            gap = np.abs(model[name].astype(np.float32) - values)
            assert gap.max() <= most * np.abs(values).max(), name


@pytest.mark.parametrize(("quant", "dtype"), [("int8", "f16"), ("int8", None), ("none", None)])
def test_it_reads_what_we_write(tmp_path: Path, quant: str, dtype: str | None) -> None:
    write_toy_llama(tmp_path / "toy", dtype=np.float32)
    flyweight.convert(tmp_path / "toy", tmp_path / "ours", to="npy_dir", quant=quant, dtype=dtype)
    _, keys, names = discover_npy_dir_metadata(tmp_path / "ours")
    assert len(keys) == len(names) == len(SOURCE)
    with flyweight.open(tmp_path / "ours") as model:
        for name, values in loaded(tmp_path / "ours").items():
            assert np.array_equal(model[name], values), name
            assert values.shape == SOURCE[name].shape


def test_its_form_of_int8_is_kept_when_it_is_copied(theirs: Path, tmp_path: Path) -> None:
    report = flyweight.convert(theirs / "int8", tmp_path / "copy", to="npy_dir")
    assert {tensor.action for tensor in report.tensors} == {"remux"}
    expected = loaded(theirs / "int8")
    assert all(np.array_equal(values, expected[name]) for name, values in loaded(tmp_path / "copy").items())
