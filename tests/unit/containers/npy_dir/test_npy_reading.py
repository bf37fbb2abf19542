"""npy-dirs that others wrote read as they mean: those of the public tool, and arrays laid out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import flyweight
from flyweight.containers.npy_dir.npy_header import DESCRS
from flyweight.foundation.dtypes import DType
from support import GOLDEN
from support.npy_dirs import array, weights, write_dir
from support.toys import safetensors_bytes, write_files

NPY_DIRS = GOLDEN / "npydir"

# What the public tool wrote -----------------------------------------------------------------------


@pytest.mark.parametrize("form", ["int8", "int8_zst"])
def test_int8_of_the_public_tool_has_its_values(form: str) -> None:
    """Per row, per group, dense, a scalar, rank three, an odd width: bit for bit what its own loader says."""
    expected = np.load(NPY_DIRS / "loaded.npz")
    with flyweight.open(NPY_DIRS / form) as model:
        assert set(model) == set(expected)
        assert {model.manifest.entries[name].codec.params.get("group") for name in model} == {None, 0, 64}
        for name in model:
            assert model[name].dtype == expected[name].dtype
            assert np.array_equal(model[name], expected[name]), name
            assert model[name].shape == expected[name].shape
    assert flyweight.verify(NPY_DIRS / form).ok


def test_int4_of_the_wild_decodes_by_its_formula() -> None:
    path = NPY_DIRS / "int4"
    keys = json.loads((path / "manifest.json").read_text())
    with flyweight.open(path) as model:
        for name, key in keys.items():
            packed, scale, zero = (array(path, key + suffix) for suffix in ("__q4a", "__s4a", "__z4a"))
            codes = np.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1)
            span = codes.shape[1] // scale.shape[1]
            expected = np.repeat(zero, span, 1) + codes * np.repeat(scale, span, 1)
            assert np.array_equal(model[name], expected.reshape(array(path, key + "__shape")))
            assert model.manifest.entries[name].codec.params["group"] == span


def test_nf4_of_the_public_tool_decodes_by_its_table() -> None:
    path, source = NPY_DIRS / "nf4", np.load(NPY_DIRS / "weights.npz")
    with flyweight.open(path) as model:
        for name, entry in model.manifest.entries.items():
            if entry.codec.name != "nf4":
                assert entry.spec.dtype is DType.F16
                continue
            gap = np.abs(model[name] - source[name])
            assert (gap <= 0.153 * np.abs(source[name]).max()).all()
            assert gap.mean() < 0.05 * np.abs(source[name]).max()


def test_int3_of_the_public_tool_decodes_by_its_formula() -> None:
    """Its loader cannot read it. Where the correction has full rank the formula gives back the source, to rounding."""
    path, source = NPY_DIRS / "int3", np.load(NPY_DIRS / "weights.npz")
    keys = json.loads((path / "manifest.json").read_text())
    with flyweight.open(path) as model:
        three = [name for name in keys if model.manifest.entries[name].codec.name == "corrected"]
        assert len(three) == 4
        for name in three:
            packed, scale, zero, left, right = (
                array(path, keys[name] + suffix) for suffix in ("__q3", "__s3", "__z3", "__lra", "__lrb")
            )
            bits = np.unpackbits(packed, bitorder="little").reshape(-1, 3)
            codes = (bits * [1, 2, 4]).sum(1)[: source[name].size]
            steps, zeros = (np.repeat(part, 64)[: codes.size] for part in (scale, zero))
            flat = ((codes - zeros) * steps).astype(np.float32)
            expected = flat.reshape(len(left), -1) + left @ right
            assert np.allclose(model[name], expected.reshape(source[name].shape), rtol=0, atol=1e-6)
            if left.shape[1] == min(left.shape[0], right.shape[1]):
                assert np.allclose(model[name], source[name], rtol=0, atol=1e-6)
        assert model["model.logit_scale"].shape == ()


def test_a_directory_of_the_public_tool_becomes_any_other(tmp_path: Path) -> None:
    report = flyweight.convert(NPY_DIRS / "int3", tmp_path / "again", to="npy_dir", allow_ungated=True)
    assert {tensor.action for tensor in report.tensors} == {"remux"}
    assert flyweight.diff(NPY_DIRS / "int3", tmp_path / "again").identical
    flyweight.convert(NPY_DIRS / "int8_zst", tmp_path / "plain.safetensors")
    assert flyweight.diff(NPY_DIRS / "int8", tmp_path / "plain.safetensors").identical


# Forms --------------------------------------------------------------------------------------------


def int8(values: np.ndarray) -> dict[str, np.ndarray]:
    scale = np.abs(values).max(1) / 127
    return {
        "__q": np.rint(values / scale[:, None]).astype(np.int8),
        "__s": scale.astype(np.float32),
        "__shape": np.array(values.shape),
    }


def legacy(values: np.ndarray) -> dict[str, np.ndarray]:
    """The older four bits: nibble = round(w / s) + 7, the even column in the low one."""
    groups = np.pad(values, ((0, 0), (0, -values.shape[1] % 32))).reshape(len(values), -1, 32)
    scale = (np.abs(groups).max(2) / 7).astype(np.float32)
    steps = np.divide(groups, scale[:, :, None], out=np.zeros_like(groups), where=scale[:, :, None] > 0)
    codes = (np.clip(np.rint(steps), -7, 7) + 7).astype(np.uint8).reshape(len(values), -1)[:, : values.shape[1]]
    codes = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
    return {"__q4": codes[:, ::2] | codes[:, 1::2] << 4, "__s4": scale, "__shape": np.array(values.shape)}


def test_four_bits_count_once_they_are_said_to_be_ready(tmp_path: Path) -> None:
    both = {"w": int8(weights(4, 64)) | legacy(weights(4, 64))}
    with flyweight.open(write_dir(tmp_path / "not", both)) as model:
        assert model.manifest.entries["w"].codec.params["bits"] == 8
    with flyweight.open(write_dir(tmp_path / "ready", both, squish_int4_ready=b"")) as model:
        assert model.manifest.entries["w"].codec.name == "excess"
    half = {"w": {key: value for key, value in both["w"].items() if key != "__s4"}}
    with flyweight.open(write_dir(tmp_path / "half", half)) as model:
        assert model.manifest.entries["w"].codec.params["bits"] == 8


@pytest.mark.parametrize("shape", [(4, 64), (3, 33), (5, 1), (2, 100)], ids=str)
def test_older_four_bits_decode_and_are_written_as_they_are_told(tmp_path: Path, shape: tuple[int, int]) -> None:
    values = weights(*shape)
    stored = legacy(values)
    with flyweight.open(write_dir(tmp_path / "theirs", {"w": stored})) as model:
        assert np.abs(model["w"] - values).max() <= 0.51 * stored["__s4"].max()
    write_files(tmp_path, {"m.safetensors": safetensors_bytes({"w": values})})
    flyweight.convert(tmp_path / "m.safetensors", tmp_path / "ours", to="npy_dir", quant="int4-legacy")
    for suffix, expected in stored.items():
        assert np.array_equal(array(tmp_path / "ours", "w" + suffix), expected), suffix
    assert (tmp_path / "ours" / ".squish_int4_ready").stat().st_size == 0


@pytest.mark.parametrize("shape", [(64,), (1, 1), (3, 5, 7)], ids=str)
def test_seed_form_of_other_ranks(tmp_path: Path, shape: tuple[int, ...]) -> None:
    values = weights(*shape)
    stored = int8(values.reshape(-1, shape[-1])) | {"__shape": np.array(shape)}
    with flyweight.open(write_dir(tmp_path / "m", {"w": stored})) as model:
        expected = stored["__q"].astype(np.float32) * stored["__s"][:, None]
        assert np.array_equal(model["w"], expected.reshape(shape))


def test_a_short_last_group_is_found(tmp_path: Path) -> None:
    codes, scale = np.arange(200, dtype=np.int8).reshape(2, 100), np.array([[1, 2], [3, 4]], np.float32)
    stored = {"__q": codes, "__s": scale, "__shape": np.array([2, 100])}
    with flyweight.open(write_dir(tmp_path / "m", {"w": stored})) as model:
        expected = np.where(np.arange(100) < 64, scale[:, :1], scale[:, 1:]) * codes
        assert np.array_equal(model["w"], expected)


def test_dense_arrays_of_any_element_type(tmp_path: Path) -> None:
    arrays = {descr[1:]: np.arange(6).reshape(2, 3).astype(descr) for descr in DESCRS}
    path = write_dir(tmp_path / "m", {name: {"__pt": values} for name, values in arrays.items()})
    with flyweight.open(path) as model:
        for name, values in arrays.items():
            assert np.array_equal(model[name], values)
            assert model[name].dtype == values.dtype
