"""npy-dirs that are written: the arrays are what the page says, names come back, and damage has a name."""

from __future__ import annotations

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
from flyweight.containers import container_named
from flyweight.containers.npy_dir.forms import PRESETS
from flyweight.containers.npy_dir.keys import safe_keys
from flyweight.containers.npy_dir.npy_options import QUANTS
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.runtime.linear import form_of
from flyweight.runtime.model import open_model
from flyweight.sources import zstd
from support import GOLDEN
from support.npy_dirs import array, weights
from support.toys import llama_tensors, safetensors_bytes, toy_llama_files, write_files, write_toy_llama

NPY_DIRS = GOLDEN / "npydir"
Q = "model.layers.0.self_attn.q_proj.weight"
Q_KEY = "model__layers__0__self_attn__q_proj__weight"


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
    assert [note for note in report.notes if "2 matrices stay" not in note] == []
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
    path = shutil.copytree(NPY_DIRS / "int8", tmp_path / "m")
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
    path = shutil.copytree(NPY_DIRS / "int8", tmp_path / "m")
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


def test_both_spellings_of_its_name() -> None:
    assert container_named("npy-dir") is container_named("npy_dir")


def test_help_names_the_quantizations_there_are() -> None:
    assert tuple(PRESETS) == QUANTS
