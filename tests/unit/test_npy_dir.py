"""npy-dirs: what the public tool wrote reads as it means, what is written is what the page says, and damage has a name."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import flyweight
from flyweight.checkpoint import Checkpoint
from flyweight.containers import container_named
from flyweight.containers.npy_dir.forms import PRESETS
from flyweight.containers.npy_dir.keys import safe_keys
from flyweight.containers.npy_dir.npy_header import DESCRS, build_header, read_header
from flyweight.containers.npy_dir.npy_options import QUANTS
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, MalformedError, UnsupportedError
from flyweight.foundation.tensor import TensorSpec
from flyweight.runtime.linear import form_of
from flyweight.runtime.model import open_model
from flyweight.sources import MemorySource, zstd
from flyweight.sources.zstd import ZstdSource
from toys import llama_tensors, safetensors_bytes, toy_llama_files, write_files, write_toy_llama

GOLDEN = Path(__file__).parents[1] / "golden" / "npydir"
Q = "model.layers.0.self_attn.q_proj.weight"
Q_KEY = "model__layers__0__self_attn__q_proj__weight"


def array(path: Path, name: str) -> np.ndarray:
    return np.load(path / "tensors" / f"{name}.npy")


def write_dir(root: Path, tensors: dict[str, dict[str, np.ndarray]], **more: bytes) -> Path:
    """A directory by the book: tensor → suffix → array."""
    (root / "tensors").mkdir(parents=True)
    (root / "manifest.json").write_text(json.dumps({name: name.replace(".", "__") for name in tensors}))
    for name, arrays in tensors.items():
        for suffix, values in arrays.items():
            np.save(root / "tensors" / f"{name.replace('.', '__')}{suffix}.npy", values)
    (root / "tensors" / ".manifest_ready").touch()
    for name, raw in more.items():
        (root / f".{name}").write_bytes(raw)
    return root


# Headers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (0,), (7,), (4, 8), (2, 3, 4), (10**6, 1), (1,) * 8], ids=str)
@pytest.mark.parametrize("descr", DESCRS)
def test_headers_are_those_of_numpy(descr: str, shape: tuple[int, ...]) -> None:
    values = np.zeros(shape, descr)
    file = io.BytesIO()
    np.save(file, values)
    spec = TensorSpec(shape, DESCRS[descr])
    assert build_header(spec) + values.tobytes() == file.getvalue()
    assert read_header(MemorySource(file.getvalue())) == (spec, len(file.getvalue()) - values.nbytes)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_is_read(version: tuple[int, int]) -> None:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.arange(6.0).reshape(2, 3), version=version)
    assert read_header(MemorySource(file.getvalue())).spec == TensorSpec((2, 3), DType.F64)


# What the public tool wrote -----------------------------------------------------------------------


@pytest.mark.parametrize("form", ["int8", "int8_zst"])
def test_int8_of_the_public_tool_has_its_values(form: str) -> None:
    """Per row, per group, dense, a scalar, rank three, an odd width: bit for bit what its own loader says."""
    expected = np.load(GOLDEN / "loaded.npz")
    with flyweight.open(GOLDEN / form) as model:
        assert set(model) == set(expected)
        assert {model.manifest.entries[name].codec.params.get("group") for name in model} == {None, 0, 64}
        for name in model:
            assert model[name].dtype == expected[name].dtype
            assert np.array_equal(model[name], expected[name]), name
            assert model[name].shape == expected[name].shape
    assert flyweight.verify(GOLDEN / form).ok


def test_int4_of_the_wild_decodes_by_its_formula() -> None:
    path = GOLDEN / "int4"
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
    path, source = GOLDEN / "nf4", np.load(GOLDEN / "weights.npz")
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
    path, source = GOLDEN / "int3", np.load(GOLDEN / "weights.npz")
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
    report = flyweight.convert(GOLDEN / "int3", tmp_path / "again", to="npy_dir", allow_ungated=True)
    assert {tensor.action for tensor in report.tensors} == {"remux"}
    assert flyweight.diff(GOLDEN / "int3", tmp_path / "again").identical
    flyweight.convert(GOLDEN / "int8_zst", tmp_path / "plain.safetensors")
    assert flyweight.diff(GOLDEN / "int8", tmp_path / "plain.safetensors").identical


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


def weights(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


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


# Writing ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy in every form: <root>/<form>."""
    root = tmp_path_factory.mktemp("npy")
    write_toy_llama(root / "toy")
    for form in ("int8", "int4", "int4-g64", "int3", "nf4", "none"):
        flyweight.convert(root / "toy", root / form, to="npy-dir", quant=form, allow_ungated=True)
    return root


def test_int8_is_written_as_the_seed_says(written: Path) -> None:
    source = llama_tensors()[Q].astype(np.float32)
    scale = array(written / "int8", Q_KEY + "__s")
    assert scale.shape == (64,)
    assert np.allclose(scale, np.abs(source).max(1) / 127, rtol=1e-6)
    codes = array(written / "int8", Q_KEY + "__q")
    assert codes.dtype == np.int8
    assert np.abs(codes - source / scale[:, None]).max() <= 0.5 + 2.0**-16  # of a tie, either
    assert array(written / "int8", Q_KEY + "__shape").tolist() == [64, 64]


def test_int4_of_64_is_four_and_a_half_bits_and_multiplied_as_it_is(written: Path) -> None:
    codes, scale, zero = (array(written / "int4-g64", Q_KEY + suffix) for suffix in ("__q4a", "__s4a", "__z4a"))
    assert (codes.dtype, scale.dtype, zero.dtype) == (np.uint8, np.float16, np.float16)
    assert 8 * (codes.nbytes + scale.nbytes + zero.nbytes) == 4.5 * 64 * 64
    with flyweight.open(written / "int4-g64") as model:
        values = np.stack([codes & 15, codes >> 4], 2).reshape(64, 64) * scale.astype(np.float32) + zero.astype(np.float32)
        assert np.array_equal(model[Q], values)
        assert form_of(model.encoded(Q)) is not None
        short = model.manifest.entries["model.layers.0.mlp.down_proj.weight"]
    assert (short.spec.columns, short.codec.params["group"], short.parts["scale"].shape) == (96, 64, (64, 2))


def test_four_bits_of_mlx_are_copied_into_their_own_arrays(written: Path, tmp_path: Path) -> None:
    flyweight.convert(written / "toy", tmp_path / "mlx", to="mlx", quant="int4-g32")
    report = flyweight.convert(tmp_path / "mlx", tmp_path / "npy", to="npy_dir")
    assert report.max_error == 0
    with flyweight.open(tmp_path / "npy") as model:
        assert model.manifest.entries[Q].codec.params["scale"] == "f16"
    assert flyweight.diff(tmp_path / "mlx", tmp_path / "npy").identical


def test_what_is_dense_stays_dense(written: Path) -> None:
    names = json.loads((written / "int8" / "manifest.json").read_text())
    assert list(names) == list(llama_tensors())
    dense = [name for name, key in names.items() if not (written / "int8" / "tensors" / f"{key}__q.npy").exists()]
    assert all("norm" in name or "embed" in name or "lm_head" in name for name in dense)
    assert len(dense) == 7


def test_bf16_is_stored_as_f16_where_that_is_the_same_number(tmp_path: Path) -> None:
    tensors = {
        "same": np.array([[1.5, -0.0, 2.0**-14]], ml_dtypes.bfloat16),
        "large": np.array([[70000.0]], ml_dtypes.bfloat16),
        "small": np.array([[1e-20]], ml_dtypes.bfloat16),
        "nan": np.array([[np.nan]], ml_dtypes.bfloat16),
        "wide": np.array([[1e-20]], np.float32),
    }
    write_files(tmp_path, {"m.safetensors": safetensors_bytes(tensors)})
    flyweight.convert(tmp_path / "m.safetensors", tmp_path / "d", to="npy_dir")
    assert array(tmp_path / "d", "same__pt").dtype == np.float16
    assert array(tmp_path / "d", "wide__pt").dtype == np.float32
    for name in ("large", "small", "nan"):
        assert array(tmp_path / "d", f"{name}__ptb").tobytes() == tensors[name].tobytes()
    assert flyweight.diff(tmp_path / "m.safetensors", tmp_path / "d").identical
    with pytest.raises(MalformedError) as caught:
        flyweight.convert(tmp_path / "m.safetensors", tmp_path / "e", to="npy_dir", dtype="f16")
    assert caught.value.code == "E_OVERFLOW"


RECIPE = """
protect = true
[[rules]]
match = "*q_proj*"
codec = "corrected"
params = { inner = { name = "excess", params = { bits = 3, excess = 3, top = 7, group = 64, flat = true, zeros = true } }, rank = 8, factor = "f32" }
[[rules]]
match = "*"
codec = "affine"
params = { bits = 8, group = 32, form = "symmetric" }
"""  # noqa: E501


def test_a_recipe_asks_for_a_correction_and_for_groups(written: Path, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(RECIPE)
    report = flyweight.convert(written / "toy", tmp_path / "m", to="npy_dir", recipe=tmp_path / "r.toml")
    assert not report.notes
    assert array(tmp_path / "m", Q_KEY + "__lra").shape == (64, 8)
    assert array(tmp_path / "m", "model__layers__0__mlp__down_proj__weight__s").shape == (64, 3)
    (tmp_path / "m" / "flyweight.json").unlink()
    with flyweight.open(tmp_path / "m") as model:
        assert np.abs(model[Q] - llama_tensors()[Q].astype(np.float32)).max() < 0.03
    with flyweight.open(
        flyweight.convert(written / "toy", tmp_path / "g", to="npy_dir", quant="int8-g64").destination
    ) as model:
        assert model.manifest.entries[Q].codec.params["bits"] == 8


def test_side_files_sentinels_and_the_record_are_there(written: Path) -> None:
    toy = toy_llama_files()
    for name in ("tokenizer.json", "README.md", "extra/notes.bin.txt"):
        assert (written / "int4" / name).read_bytes() == toy[name]
    assert (written / "int4" / "tensors" / ".manifest_ready").stat().st_size == 0
    record = json.loads((written / "int4" / "flyweight.json").read_text())
    files = {str(p.relative_to(written / "int4")) for p in (written / "int4").rglob("*") if p.is_file()}
    assert set(record["files"]) == files - {"flyweight.json"}
    assert record["version"] == 1


@pytest.mark.parametrize("form", ["int8", "int4", "int4-g64", "int3", "nf4", "none"])
def test_without_the_record_the_values_are_the_same(written: Path, form: str, tmp_path: Path) -> None:
    bare = shutil.copytree(written / form, tmp_path / "bare")
    (bare / "flyweight.json").unlink()
    assert flyweight.diff(written / form, bare).identical
    with flyweight.open(written / form) as ours, flyweight.open(bare) as plain:
        for name in ours:
            assert np.array_equal(ours[name], plain[name])


def test_a_tensor_that_one_scale_a_row_would_keep_too_far_off_gets_groups(tmp_path: Path) -> None:
    """`int8` aims at a cosine of 0.99995: by rows where that holds, else by groups."""
    rng = np.random.default_rng(3)
    plain, spiky = (rng.standard_normal((64, 256)).astype(np.float32) for _ in range(2))
    spiky[:, 7] *= 5
    tensors = {"model.layers.0.mlp.up_proj.weight": plain, "model.layers.0.mlp.down_proj.weight": spiky}
    (tmp_path / "x.safetensors").write_bytes(safetensors_bytes(tensors))
    report = flyweight.convert(tmp_path / "x.safetensors", tmp_path / "out", to="npy_dir", quant="int8")
    assert [note.partition(":")[0] for note in report.notes] == ["model.layers.0.mlp.down_proj.weight"]
    with flyweight.open(tmp_path / "out") as made:
        assert [entry.codec.params["group"] for entry in made.manifest.entries.values()] == [0, 64]
        for name, values in tensors.items():
            found = made[name].astype(np.float64)
            assert 1 - (found * values).sum() / np.sqrt((found**2).sum() * (values.astype(np.float64) ** 2).sum()) <= 5e-5
    recipe = tmp_path / "r.toml"
    rule = '[[rules]]\nmatch = "*"\ncodec = "affine"\nparams = { bits = 8, group = 0, form = "symmetric" }\n'
    recipe.write_text(rule + "cosine = 0.9999999\notherwise = { group = 32 }\n")
    flyweight.convert(tmp_path / "x.safetensors", tmp_path / "finer", to="npy_dir", recipe=recipe)
    with flyweight.open(tmp_path / "finer") as made:
        assert {entry.codec.params["group"] for entry in made.manifest.entries.values()} == {32}
    recipe.write_text(rule + "cosine = 2.0\notherwise = { group = 32 }\n")
    with pytest.raises(UnsupportedError, match="between 0 and 1"):
        flyweight.convert(tmp_path / "x.safetensors", tmp_path / "no", to="npy_dir", recipe=recipe)


def test_it_runs(written: Path) -> None:
    """What is stored without loss gives the logits of the source; every other form gives some."""
    tokens = np.array([5, 9, 20])

    def logits(path: Path) -> np.ndarray:
        with open_model(path, int8=False, allow_ungated=True) as model:
            return np.array(model.decoder.forward(tokens, model.cache(), every=True))

    expected = logits(written / "toy")
    assert np.array_equal(logits(written / "none"), expected)
    for form, most in (("int8", 0.05), ("int4", 0.5), ("int4-g64", 0.5), ("nf4", 0.5), ("int3", 1.5)):
        assert np.abs(logits(written / form) - expected).max() <= most * np.abs(expected).max(), form


def test_an_interrupted_run_ends_in_the_same_bytes(written: Path, tmp_path: Path) -> None:
    seen = 0

    def stop(name: str, nbytes: int, total: int) -> None:
        nonlocal seen
        seen += 1
        if seen == 9:
            raise KeyboardInterrupt

    arguments: dict[str, Any] = {"to": "npy_dir", "quant": "int4", "jobs": 1}
    with pytest.raises(KeyboardInterrupt):
        flyweight.convert(written / "toy", tmp_path / "again", **arguments, progress=stop)
    assert flyweight.convert(written / "toy", tmp_path / "again", **arguments, resume=True).resumed > 0
    for path in (written / "int4").rglob("*"):
        if path.is_file():
            assert (tmp_path / "again" / path.relative_to(written / "int4")).read_bytes() == path.read_bytes()


def test_more_files_than_a_process_may_open(tmp_path: Path) -> None:
    write_toy_llama(tmp_path / "toy", layers=30)
    script = (
        "import resource, flyweight; resource.setrlimit(resource.RLIMIT_NOFILE, (220, 220)); "
        f"flyweight.convert({str(tmp_path / 'toy')!r}, {str(tmp_path / 'out')!r}, to='npy_dir', quant='int8'); "
        f"assert flyweight.verify({str(tmp_path / 'out')!r}).ok"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert sum(path.is_file() for path in (tmp_path / "out").rglob("*")) > 700


# Names --------------------------------------------------------------------------------------------


def test_keys_are_the_usual_ones_unless_they_collide() -> None:
    keys = safe_keys(["a.b", "a__b", "A.b", "x/../y", "ü", "n" * 300, "plain"])
    assert keys["a.b"] == "a__b"
    assert keys["plain"] == "plain"
    assert len({key.casefold() for key in keys.values()}) == len(keys)
    assert all(key.isascii() and "/" not in key and ".." not in key and len(key) <= 200 for key in keys.values())


def test_names_that_collide_come_back(tmp_path: Path) -> None:
    tensors = {name: weights(2, 3, seed=at) for at, name in enumerate(["a.b", "a__b", "A.B", "../../pwn", "\u202eevil"])}
    write_files(tmp_path, {"m.safetensors": safetensors_bytes(tensors)})
    flyweight.convert(tmp_path / "m.safetensors", tmp_path / "d", to="npy_dir")
    assert flyweight.diff(tmp_path / "m.safetensors", tmp_path / "d").identical
    assert {path.parent.name for path in tmp_path.rglob("*.npy")} == {"tensors"}


def test_a_side_file_cannot_take_the_name_of_ours(tmp_path: Path) -> None:
    write_files(tmp_path / "m", toy_llama_files() | {"manifest.json": b"{}"})
    with pytest.raises(UnsupportedError) as caught:
        flyweight.convert(tmp_path / "m", tmp_path / "d", to="npy_dir")
    assert caught.value.code == "E_FILE_NAME"
    assert os.listdir(tmp_path) == ["m"]


# Damage -------------------------------------------------------------------------------------------


def findings(path: Path) -> list[tuple[str, str | None]]:
    return [(finding.code, finding.tensor) for finding in flyweight.verify(path).findings]


def test_verify_names_the_damaged_tensor_and_file(written: Path, tmp_path: Path) -> None:
    path = shutil.copytree(written / "int8", tmp_path / "m")
    for name, at in ((f"tensors/{Q_KEY}__q.npy", -1), (f"tensors/{Q_KEY}__shape.npy", 20), ("tokenizer.json", 5)):
        raw = bytearray((path / name).read_bytes())
        raw[at] ^= 1
        (path / name).write_bytes(raw)
    found = flyweight.verify(path)
    assert not found.ok
    assert ("E_DIGEST", Q) in [(f.code, f.tensor) for f in found.findings]
    assert any("tokenizer.json" in f.message for f in found.findings)
    (path / "README.md").unlink()
    assert ("E_MISSING", None) in findings(path)


def test_every_broken_tensor_is_listed(written: Path, tmp_path: Path) -> None:
    path = shutil.copytree(GOLDEN / "int8", tmp_path / "m")
    keys = json.loads((path / "manifest.json").read_text())
    for name in ("model.up_proj.weight", "model.conv.weight"):
        (path / "tensors" / f"{keys[name]}__s.npy").unlink()
    assert findings(path) == [
        ("E_PART_MISSING", name) for name in keys if name in ("model.up_proj.weight", "model.conv.weight")
    ]


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("suffix", ["__s", "__s4a", "__z4a", "__s3", "__z3", "__s_nf4"])
def test_scales_that_are_not_numbers_are_found(written: Path, tmp_path: Path, suffix: str, value: float) -> None:
    form = {"__s": "int8", "__s4a": "int4", "__z4a": "int4", "__s3": "int3", "__z3": "int3", "__s_nf4": "nf4"}[suffix]
    path = shutil.copytree(written / form, tmp_path / "m")
    (path / "flyweight.json").unlink()
    scale = array(path, Q_KEY + suffix)
    scale.reshape(-1)[1] = value
    np.save(path / "tensors" / f"{Q_KEY}{suffix}.npy", scale)
    assert findings(path) == [("E_NONFINITE", Q)]


def test_a_directory_without_its_sentinel_is_a_doubt(tmp_path: Path) -> None:
    path = shutil.copytree(GOLDEN / "int8", tmp_path / "m")
    (path / "tensors" / ".manifest_ready").unlink()
    assert findings(path) == [("E_UNFINISHED", None)]
    assert flyweight.verify(path).ok
    (path / "tensors" / "stray__q.npy").write_bytes(b"")
    with pytest.raises(MalformedError) as caught:
        flyweight.open(path)
    assert caught.value.code == "E_UNFINISHED"


# Compressed arrays --------------------------------------------------------------------------------

inflate = zstd._zstd()


def test_a_written_directory_that_was_compressed_is_still_itself(written: Path, tmp_path: Path) -> None:
    path = shutil.copytree(written / "int4", tmp_path / "m")
    for file in (path / "tensors").glob("*.npy"):
        file.with_name(f"{file.name}.zst").write_bytes(inflate.compress(file.read_bytes()))
        file.unlink()
    assert flyweight.verify(path).ok
    assert flyweight.diff(written / "int4", path).identical
    flyweight.convert(path, tmp_path / "again", to="npy_dir")
    assert flyweight.verify(tmp_path / "again").ok
    victim = path / "tensors" / f"{Q_KEY}__s4a.npy.zst"
    wrong = inflate.decompress(victim.read_bytes())[:-1] + b"\x3f"
    victim.write_bytes(inflate.compress(wrong))
    assert findings(path) == [("E_DIGEST", Q)]


def test_compressed_bytes_are_read_in_any_order() -> None:
    raw = np.random.default_rng(3).integers(0, 9, 1_000_000, np.uint8).tobytes()
    source = ZstdSource(MemorySource(inflate.compress(raw)))
    assert source.size == len(raw)
    for at, length in ((0, 10), (999_990, 10), (5, 600_000), (600_005, 100), (7, 0), (0, len(raw)), (300, 300)):
        assert bytes(source.read(at, length)) == raw[at : at + length]
        buffer = bytearray(length)
        source.read_into(at, memoryview(buffer))
        assert buffer == raw[at : at + length]
    with pytest.raises(FlyweightError):
        source.read(len(raw), 1)


def frame(size: int, *blocks: tuple[int, int]) -> bytes:
    """A frame that says it holds `size` bytes, of runs of zeros: (length, whether it is the last)."""
    head = (0xFD2FB528).to_bytes(4, "little") + bytes([0b11000000, 0x58]) + size.to_bytes(8, "little")
    return head + b"".join((length << 3 | 0b010 | last).to_bytes(3, "little") + b"\0" for length, last in blocks)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (frame(1000, (900, 1)), "E_ZSTD"),
        (frame(1000, (1100, 1)), "E_ZSTD"),
        (frame(1000, (500, 0), (600, 1)), "E_ZSTD"),
        (frame(1000, (1000, 0)), "E_TRUNCATED"),
        (frame(1000, (1000, 1)) + b"more", "E_ZSTD"),
        (frame(1000, (1000, 1)) * 2, "E_ZSTD"),
        (frame(1000, (1000, 1))[:-1] + b"", "E_TRUNCATED"),
    ],
)
def test_frames_that_lie_about_their_size(raw: bytes, code: str) -> None:
    source = ZstdSource(MemorySource(raw))
    assert source.size == 1000
    with pytest.raises(MalformedError) as caught:
        source.read(0, 1000)
    assert caught.value.code == code


def test_a_frame_of_the_right_size() -> None:
    assert bytes(ZstdSource(MemorySource(frame(1000, (400, 0), (600, 1)))).read(0, 1000)) == bytes(1000)


def test_without_the_package_one_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zstd, "_MODULES", ("flyweight.no_such_module",))
    with pytest.raises(UnsupportedError) as caught:
        flyweight.open(GOLDEN / "int8_zst")
    assert caught.value.code == "E_EXTRA"
    assert "flyweight[zstd]" in str(caught.value)
    with pytest.raises(UnsupportedError, match="E_EXTRA"):
        flyweight.verify(GOLDEN / "int8_zst")
    with flyweight.open(GOLDEN / "int8") as model:
        assert isinstance(model, Checkpoint)


def test_both_spellings_of_its_name() -> None:
    assert container_named("npy-dir") is container_named("npy_dir")


def test_help_names_the_quantizations_there_are() -> None:
    assert tuple(PRESETS) == QUANTS
