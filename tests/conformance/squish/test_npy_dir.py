"""squish-ai reads what we write as far as it can, and we read all that it writes.

Its loader reads int8 and dense arrays; four bits need an extension that is not published, for which STAND_IN does the
arithmetic it is told to, so that what is tested is the tool's own half: which arrays it takes, of which type, in which groups.
int3 and nf4 it writes and cannot read, so those are held to the weights they came from.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from squish.quant.compressed_loader import _dequantize_npy_dir, compress_npy_dir, discover_npy_dir_metadata

import flyweight
from flyweight.pipeline.adding import add_form
from support.toys import llama_tensors, write_toy_llama

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


# Four bits ----------------------------------------------------------------------------------------

STAND_IN = """
import numpy as np

def _codes(packed):
    return np.stack([packed & 15, packed >> 4], 2).reshape(len(packed), -1).astype(np.float32)

def dequantize_int4_asymmetric_grouped(packed, scale, zero, group):
    assert scale.dtype == zero.dtype == np.float32
    return _codes(packed) * np.repeat(scale, group, 1) + np.repeat(zero, group, 1)

def dequantize_int4_grouped(packed, scale, group):
    return (_codes(packed) - 7) * np.repeat(scale, group, 1)

def dequantize_int8_f32(codes, scale):
    return codes * scale[:, None]

def quantize_int4_asymmetric_grouped(values, group):
    groups = values.reshape(len(values), -1, group)
    low = groups.min(2)
    scale = np.maximum((groups.max(2) - low) / 15, 1e-12).astype(np.float32)
    codes = np.rint((groups - low[..., None]) / scale[..., None]).clip(0, 15).astype(np.uint8).reshape(len(values), -1)
    return codes[:, ::2] | codes[:, 1::2] << 4, scale, low
"""
LOAD = """
import json, sys
from pathlib import Path
import numpy as np
from squish.quant.compressed_loader import _dequantize_npy_dir, save_int4_npy_dir
path = Path(sys.argv[1])
if sys.argv[2:] == ["add"]:
    save_int4_npy_dir(str(path), verbose=False)
keys = json.loads((path / "manifest.json").read_text())
values = {name: np.asarray(_dequantize_npy_dir(path / "tensors", key)) for name, key in keys.items()}
np.savez(path.with_suffix(".npz"), **values)
"""


def loaded_with_its_extension(path: Path, *what: str) -> dict[str, np.ndarray]:
    folder = path.parent / "extension"
    folder.mkdir(exist_ok=True)
    (folder / "squish_quant.py").write_text(STAND_IN)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    subprocess.run([sys.executable, "-c", LOAD, str(path), *what], check=True, env=environment)
    return dict(np.load(path.with_suffix(".npz")))


@pytest.fixture
def eights(tmp_path: Path) -> Path:
    write_toy_llama(tmp_path / "toy", dtype=np.float32)
    flyweight.convert(tmp_path / "toy", tmp_path / "eights", to="npy_dir", quant="int8")
    return tmp_path / "eights"


@pytest.mark.parametrize("form", ["int4", "int4-g64", "int4-legacy"])
def test_it_reads_what_we_add(eights: Path, form: str) -> None:
    """Its groups are all of one length, so where the last of ours is short it takes another; real widths have none."""
    before = loaded(eights)
    add_form(eights, form)
    assert all(np.array_equal(values, before[name]) for name, values in loaded(eights).items()), "without its extension: int8"
    turned = 0
    with flyweight.open(eights) as model:
        for name, values in loaded_with_its_extension(eights).items():
            codec, columns = model.manifest.entries[name].codec, model.manifest.entries[name].spec.columns
            if columns % (codec.params.get("group") or columns) == 0:
                assert np.array_equal(model[name], values), name
                turned += codec.params.get("bits") == 4
    assert turned >= 10


def test_we_read_what_it_adds(eights: Path) -> None:
    expected = loaded_with_its_extension(eights, "add")
    assert (eights / ".squish_int4_ready").exists()
    with flyweight.open(eights) as model:
        assert sum(entry.codec.params.get("bits") == 4 for entry in model.manifest.entries.values()) >= 10
        assert all(np.array_equal(model[name], values) for name, values in expected.items())
    assert flyweight.verify(eights).ok
