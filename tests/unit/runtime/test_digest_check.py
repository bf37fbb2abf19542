"""A digest that a file has is held against its bytes wherever they are read: one flipped bit and nothing is made of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backports import zstd

import flyweight
from flyweight import Extras
from flyweight.checkpoint import Checkpoint, open_checkpoint
from flyweight.foundation.errors import FlyweightError, MalformedError
from flyweight.foundation.manifest import Extent
from flyweight.runtime import Checking, open_model
from flyweight.tiers import open_model_from
from support.toys import draft_head, safetensors_bytes, write_package, write_toy_llama

FLIPS = 14
"""Bits flipped of each kind of model, spread over all that has a digest."""
KINDS: Mapping[str, dict[str, Any]] = {
    **{f"squizd {quant}": {"to": "squizd", "quant": quant} for quant in ("int4", "int2", "tca", "astc", "none")},
    **{
        f"npy-dir {quant}": {"to": "npy-dir", "quant": quant}
        for quant in ("int8", "int4", "int4-legacy", "int3", "nf4", "none")
    },
    "squizd with everything": {"to": "squizd", "quant": "int4", "extras": ()},
    "npy-dir compressed": {"to": "npy-dir", "quant": "int8"},
}


@pytest.fixture(scope="module", params=KINDS)
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound model of every kind that has digests."""
    folder = tmp_path_factory.mktemp("digests")
    toy, settings = write_toy_llama(folder / "toy"), dict(KINDS[request.param])
    if "extras" in settings:
        (folder / "head.safetensors").write_bytes(safetensors_bytes(draft_head()))
        package = write_package(folder / "m.mlpackage")
        settings["extras"] = Extras(32, 0.5, None, folder / "head.safetensors", package)
    flyweight.convert(toy, folder / "model", **settings)
    if request.param == "npy-dir compressed":
        for array in (folder / "model" / "tensors").glob("*.npy"):
            array.with_name(f"{array.name}.zst").write_bytes(zstd.compress(array.read_bytes()))
            array.unlink()
    return folder / "model"


def flipped(kept: Path, folder: Path, extent: Extent, at: int, bit: int) -> Path:
    """A copy with one other bit at a place of an extent."""
    model = folder / "damaged"
    if model.exists():
        shutil.rmtree(model) if model.is_dir() else model.unlink()
    (shutil.copytree if kept.is_dir() else shutil.copy)(kept, model)
    path = model / extent.file if model.is_dir() else model
    raw = bytearray(path.read_bytes())
    if extent.file.endswith(".zst"):
        raw = bytearray(zstd.decompress(raw))
    raw[extent.offset + at] ^= 1 << bit
    path.write_bytes(zstd.compress(raw) if extent.file.endswith(".zst") else raw)
    return model


def flips(checkpoint: Checkpoint) -> list[tuple[Extent, int, int]]:
    """Places over every extent with a digest: the first bit, the last, and some in between."""
    draw, extents = np.random.default_rng(6), [extent for extent in checkpoint.manifest.digests.of if extent.nbytes]
    ends = [(extent, at, bit) for extent in extents for at, bit in ((0, 0), (extent.nbytes - 1, 7))]
    chosen = [ends[i] for i in draw.permutation(len(ends))[: FLIPS // 2]]
    for extent in (extents[int(i)] for i in draw.integers(0, len(extents), FLIPS // 2)):
        chosen.append((extent, int(draw.integers(extent.nbytes)), int(draw.integers(8))))
    return chosen


def test_every_flip_ends_a_conversion_and_a_comparison(kept: Path, tmp_path: Path) -> None:
    with open_checkpoint(kept) as checkpoint:
        places = flips(checkpoint)
        to = checkpoint.container.name
        assert checkpoint.manifest.digests.of.keys() >= {e for t in checkpoint.manifest.digests.tensors.values() for e in t}
        assert checkpoint.manifest.digests.tensors.keys() == checkpoint.manifest.entries.keys()
    flyweight.convert(kept, tmp_path / "sound", to=to)
    assert flyweight.diff(kept, tmp_path / "sound").identical
    for extent, at, bit in places:
        damaged = flipped(kept, tmp_path, extent, at, bit)
        with pytest.raises(MalformedError) as refusal:
            flyweight.convert(damaged, tmp_path / "out", to=to)
        assert refusal.value.exit_code == 3, (extent, at, bit)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["damaged", "sound"], (extent, at, bit)
        if refusal.value.code == "E_DIGEST":
            assert refusal.value.hint


def test_a_refusal_names_file_tensor_place_and_remedy(kept: Path, tmp_path: Path) -> None:
    with open_checkpoint(kept) as checkpoint:
        name, (extent, *_) = next((n, e) for n, e in checkpoint.manifest.digests.tensors.items() if n.endswith("_proj.weight"))
    damaged = flipped(kept, tmp_path, extent, extent.nbytes - 1, 0)
    for use in (
        lambda: flyweight.convert(damaged, tmp_path / "out", to="safetensors", dtype="bf16"),
        lambda: flyweight.diff(damaged, kept),
        lambda: flyweight.diff(kept, damaged),
    ):
        with pytest.raises(MalformedError, match="again") as refusal:
            use()
        error = refusal.value
        assert (error.code, error.tensor, error.offset) == ("E_DIGEST", name, extent.offset)
        assert error.file is not None
        assert error.file.startswith(str(damaged))


def test_what_is_not_read_is_not_checked(kept: Path, tmp_path: Path) -> None:
    """Opening stays as quick as it was, and looking is always allowed; whoever asks is told."""
    with open_checkpoint(kept) as checkpoint:
        name, (extent, *_) = next((n, e) for n, e in checkpoint.manifest.digests.tensors.items() if n.endswith("_proj.weight"))
    damaged = flipped(kept, tmp_path, extent, extent.nbytes - 1, 0)
    with open_checkpoint(damaged) as checkpoint:
        assert checkpoint[name].size
        with pytest.raises(MalformedError) as refusal:
            checkpoint.check_digests()
        assert (refusal.value.code, refusal.value.tensor) == ("E_DIGEST", name)
    with open_checkpoint(kept) as checkpoint:
        checkpoint.check_digests()
        assert all(map(checkpoint.checked, checkpoint.manifest.digests.of))


def test_side_files_are_checked_before_they_are_used(kept: Path, tmp_path: Path) -> None:
    with open_checkpoint(kept) as checkpoint:
        sides = {n: e for n, e in checkpoint.manifest.files.items() if isinstance(e, Extent)}
        assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= sides.keys()
        assert all(extent in checkpoint.manifest.digests.of for extent in sides.values())
    for name, extent in sides.items():
        if not extent.nbytes:
            continue
        with open_checkpoint(flipped(kept, tmp_path, extent, extent.nbytes // 2, 0)) as checkpoint:
            with pytest.raises(MalformedError) as refusal:
                checkpoint.read(checkpoint.manifest.files[name])
            assert refusal.value.code == "E_DIGEST"


def test_shapes_and_names_of_an_npy_dir_are_checked_when_they_are_read(kept: Path, tmp_path: Path) -> None:
    if kept.is_dir():
        files = [p.relative_to(kept).as_posix() for p in kept.rglob("*") if "__shape" in p.name or p.name == "manifest.json"]
        for file in files:
            with pytest.raises(FlyweightError) as refusal:
                open_checkpoint(flipped(kept, tmp_path, Extent(file, 0, 1), _size(kept / file) - 1, 2)).close()
            assert refusal.value.exit_code == 3


def _size(path: Path) -> int:
    raw = path.read_bytes()
    return len(zstd.decompress(raw)) if path.suffix == ".zst" else len(raw)


# Running ------------------------------------------------------------------------------------------


run_by_people = pytest.mark.parametrize("kept", ["squizd int4", "npy-dir int8"], indirect=True)


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flyweight", *map(str, arguments)], capture_output=True, text=True, timeout=120
    )


@run_by_people
def test_run_says_what_it_checked_and_when(kept: Path) -> None:
    for options, when in (([], "background"), (["--verify"], "before")):
        done = command("run", kept, "abc", "--raw", "--max-tokens", 3, "--tier", "arrays", "--json", *options)
        assert done.returncode == 0, done.stderr
        figures = json.loads(done.stdout)["digests"]
        assert figures["when"] == when
        assert 0 <= figures["checked"] <= figures["of"]
        if when == "before":
            assert figures["checked"] == figures["of"] > 0
    assert "digests: all checked before the first token" in command("run", kept, "abc", "--raw", "--verify", "-v").stderr


@run_by_people
def test_run_refuses_a_flipped_bit_before_the_first_token_if_asked(kept: Path, tmp_path: Path) -> None:
    with open_checkpoint(kept) as checkpoint:
        weights, side = list(checkpoint.digested())[5], checkpoint.manifest.files["tokenizer.json"]
        assert isinstance(side, Extent)
    for extent, options in ((weights, ["--verify"]), (weights, ["--verify", "--no-build"]), (side, []), (side, ["--verify"])):
        damaged = flipped(kept, tmp_path, extent, extent.nbytes - 1, 3)
        done = command("run", damaged, "abc", "--raw", "--max-tokens", 3, *options)
        assert (done.returncode, done.stdout) == (3, ""), (extent, options, done.stderr)
        assert "E_DIGEST" in done.stderr


def test_what_is_found_beside_an_answer_ends_it(kept: Path, tmp_path: Path) -> None:
    with open_checkpoint(kept) as checkpoint:
        extent = list(checkpoint.digested())[-1]
    with open_model(flipped(kept, tmp_path, extent, extent.nbytes - 1, 3)) as model:
        checking = Checking(model)
        checking.go_on()
        with pytest.raises(MalformedError) as refusal:
            checking.finish()
        assert refusal.value.code == "E_DIGEST"
    with open_model(kept) as model:
        checking = Checking(model)
        checking.go_on()
        checking.finish()
        figures = checking.as_json()
        assert figures == {"checked": figures["of"], "of": len(model.checkpoint.digested()), "when": "background"}


def test_a_model_that_is_closed_meanwhile_is_left(kept: Path) -> None:
    model = open_model(kept)
    checking = Checking(model)
    model.close()
    checking.go_on()
    checking.finish()


@run_by_people
def test_a_model_that_is_measured_is_checked_first(kept: Path, tmp_path: Path) -> None:
    with open_checkpoint(kept) as checkpoint:
        extent = list(checkpoint.digested())[3]
    (tmp_path / "text").write_text("abc" * 20)
    done = command("eval", flipped(kept, tmp_path, extent, 0, 1), "--text", tmp_path / "text", "--context", 8)
    assert done.returncode == 3
    assert done.stdout == ""


@pytest.mark.parametrize("kept", ["npy-dir int8"], indirect=True)
def test_side_files_beside_a_tier_are_checked_too(kept: Path, tmp_path: Path) -> None:
    model = shutil.copytree(kept, tmp_path / "model")
    for _ in range(2):
        opened, choice = open_model_from(model, verify=True)
        opened.close()
    assert choice.tier == "packed"
    (model / "config.json").write_bytes((model / "config.json").read_bytes() + b"\n")
    with pytest.raises(MalformedError) as refusal:
        open_model_from(model)
    assert refusal.value.code == "E_DIGEST"
    (model / "README.md").write_bytes(b"changed, and used by nobody who runs it")
    (model / "config.json").write_bytes((kept / "config.json").read_bytes())
    open_model_from(model)[0].close()
