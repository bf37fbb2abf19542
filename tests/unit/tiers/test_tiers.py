"""Tiers: what each holds, which is run and why, and the verbs."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import ml_dtypes
import numpy as np
import pytest

import flyweight
from flyweight.cli import cli
from flyweight.foundation.errors import MalformedError, ResourceError, UnsupportedError
from flyweight.foundation.tensor import RAW
from flyweight.runtime.linear import form_of
from flyweight.runtime.tensors import Tensors
from flyweight.tiers import build, listing, open_best, open_model_from, prune, state_of
from flyweight.tiers.keeping import leftovers
from support.tier_models import FORMS, Q, arrays, command, equal, everything, home_of, values
from support.toys import CONFIG, safetensors_bytes, toy_llama_files, write_files


@pytest.mark.parametrize("ask", [listing, lambda path: prune(path, tiers=["cache"]), lambda path: build(path, "cache")])
def test_what_is_no_npy_dir_is_left_as_it_is(ask: Callable[[str], object], made: Path) -> None:
    before = sorted((made / "toy").iterdir())
    with pytest.raises(UnsupportedError, match="only an npy-dir has tiers"):
        ask(str(made / "toy"))
    assert sorted((made / "toy").iterdir()) == before


def test_a_tier_that_does_not_exist_is_not_silently_kept(model: Path) -> None:
    with pytest.raises(UnsupportedError, match="no tier named 'cahce'"):
        prune(str(model), tiers=["cahce"])


# What a tier holds --------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", ["packed", "cache"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_tier_of_one_file_lies_in_the_order_of_use(tier: str, tied: bool, tmp_path: Path) -> None:
    files = toy_llama_files(layers=3)
    settings = {**CONFIG, "num_hidden_layers": 3, "tie_word_embeddings": tied}
    write_files(tmp_path / "toy", files | {"config.json": json.dumps(settings).encode()})
    flyweight.convert(tmp_path / "toy", tmp_path / "model", to="npy_dir", quant="int4")
    build(tmp_path / "model", tier)
    with open_best(tmp_path / "model", tier=tier, build=False)[0] as checkpoint:
        tensors = Tensors(checkpoint)
        places = [[share.extent.offset for share in tensors.shares(step)] for step in tensors.steps]
        unused = checkpoint.manifest.entries["model.embed_tokens.weight"].extents.values()
    assert len(places) > 3
    assert all(max(before) < min(after) for before, after in pairwise(places))
    assert tied or min(extent.offset for extent in unused) > max(places[-1]), "of which a token needs a row"


def test_a_tier_of_a_model_that_cannot_be_run_keeps_the_order_of_the_arrays(made: Path, tmp_path: Path) -> None:
    model = shutil.copytree(made / "int4", tmp_path / "model")
    (model / "config.json").write_text(json.dumps({**CONFIG, "model_type": "unheard-of"}))
    build(model, "cache")
    with flyweight.open(model) as stored, open_best(model, tier="cache", build=False)[0] as cached:
        assert list(stored) == list(cached)


@pytest.mark.parametrize("form", FORMS)
def test_packed_has_the_values_of_the_arrays_in_forms_that_have_products(made: Path, form: str, tmp_path: Path) -> None:
    model = shutil.copytree(made / form, tmp_path / form)
    build(model, "packed")
    expected = arrays(model)
    checkpoint, choice = open_best(model, build=False)
    assert (choice.tier, choice.built) == ("packed", False)
    with checkpoint, flyweight.open(model) as stored:
        for name in checkpoint:
            source, tensor = stored.manifest.entries[name].codec, checkpoint.encoded(name)
            assert tensor.codec == RAW or form_of(tensor) is not None
            found = np.asarray(checkpoint[name], np.float32)
            if source != RAW and tensor.codec == RAW:
                assert np.array_equal(found, expected[name].astype(ml_dtypes.bfloat16).astype(np.float32))
            elif source.name == "excess":  # s · q − (s · z), rounded twice more than s · (q − z)
                parts = stored.encoded(name).parts
                bound = 2.0**-22 * 8 * float(np.abs(parts["scale"]).max())
                assert np.abs(found - expected[name]).max() <= bound
            else:
                assert np.array_equal(found, expected[name])


@pytest.mark.parametrize(("tier", "dtype"), [("cache", ml_dtypes.bfloat16), ("finalized", np.float16)])
@pytest.mark.parametrize("form", ["int8", "int4-legacy", "none"])
def test_decoded_tiers_are_the_arrays_rounded_once(made: Path, form: str, tier: str, dtype: Any, tmp_path: Path) -> None:
    model = shutil.copytree(made / form, tmp_path / form)
    choice, found = values(model, tier=tier)
    assert (choice.tier, choice.built) == (tier, True)
    assert equal(found, {name: x.astype(dtype) for name, x in arrays(model).items()})
    if tier == "finalized":
        key = json.loads((model / "manifest.json").read_text())[Q]
        assert np.array_equal(np.load(home_of(model) / "finalized" / f"{key}.npy"), found[Q])
    else:
        with flyweight.open(home_of(model) / "squish_weights.safetensors") as plain:
            assert {entry.codec for entry in plain.manifest.entries.values()} == {RAW}


def test_int4_is_an_mlx_directory(model: Path, made: Path, tmp_path: Path) -> None:
    eight = shutil.copytree(made / "int8", tmp_path / "eight")
    choice, found = values(eight, tier="int4")
    assert choice.tier == "int4"
    assert equal(found, arrays(home_of(eight) / "squish_4bit"))
    assert values(eight)[0].tier == "int4", "before cache and finalized, as Squish has it"
    build(eight, "packed")
    assert values(eight)[0].tier == "packed", "before all"
    assert values(model, tier="int4")[0].why == "the arrays as they are: asked for", "these have four bits already"


def test_every_tier_runs_and_says_the_same_to_the_last_bit_where_values_are_the_same(model: Path) -> None:
    def logits(tier: str) -> np.ndarray:
        opened, _ = open_model_from(model, tier=tier, int8=False, kv="f32")
        with opened:
            return np.array(opened.decoder.forward([5, 9, 20], opened.cache(), every=True))

    expected = logits("arrays")
    assert np.array_equal(logits("packed"), expected)
    for tier in ("cache", "finalized"):
        assert np.abs(logits(tier) - expected).max() <= 0.05 * np.abs(expected).max()


def test_what_f16_cannot_hold_is_no_finalized_tier(made: Path, tmp_path: Path) -> None:
    files = toy_llama_files(layers=1)
    settings = json.dumps({**CONFIG, "num_hidden_layers": 1}).encode()
    source = write_files(tmp_path / "toy", files | {"config.json": settings})
    with flyweight.open(source) as checkpoint:
        entry = checkpoint.manifest.entries[Q]
    raw = bytearray((source / entry.extents["data"].file).read_bytes())
    at = entry.extents["data"].offset
    raw[at : at + entry.spec.dtype.itemsize] = np.array([1e6], entry.spec.dtype.numpy).tobytes()
    (source / entry.extents["data"].file).write_bytes(raw)
    flyweight.convert(source, tmp_path / "model", to="npy_dir", quant="none")
    with pytest.raises(MalformedError, match="too large for") as caught:
        build(tmp_path / "model", "finalized")
    assert caught.value.code == "E_OVERFLOW"
    assert state_of(tmp_path / "model", "finalized").standing == "absent"
    assert build(tmp_path / "model", "cache").nbytes > 0


def test_what_bf16_cannot_hold_is_no_cache(tmp_path: Path) -> None:
    """Quantised values are rounded on their way, and one that overflows there is refused all the same."""
    values = np.zeros((32, 64), np.float32)
    values[3, 5] = 3.4e38  # beyond bf16, which ends at 3.39e38
    source = write_files(tmp_path / "m", {"config.json": b"{}", "model.safetensors": safetensors_bytes({"w": values})})
    flyweight.convert(source, tmp_path / "model", to="npy_dir", quant="int4")
    with pytest.raises(MalformedError, match="too large for bf16") as caught:
        build(tmp_path / "model", "cache")
    assert (caught.value.code, caught.value.tensor) == ("E_OVERFLOW", "w")
    assert caught.value.hint
    assert state_of(tmp_path / "model", "cache").standing == "absent"


# Which is run -------------------------------------------------------------------------------------


def test_the_first_start_builds_and_later_ones_map(model: Path) -> None:
    said: list[str] = []
    choice, found = values(model, tell=said.append)
    assert (choice.tier, choice.built, len(said)) == ("packed", True, 1)
    assert equal(found, arrays(model))
    before = (home_of(model) / "flyweight_packed.safetensors").stat()
    choice, found = values(model, tell=said.append)
    assert (choice.tier, choice.built, len(said)) == ("packed", False, 1)
    assert (home_of(model) / "flyweight_packed.safetensors").stat() == before
    assert equal(found, arrays(model))


def test_without_building_the_arrays_are_run(model: Path) -> None:
    choice, _ = values(model, build=False)
    assert (choice.tier, choice.built) == ("int4", False)
    assert {state.standing for state in choice.considered} == {"absent"}
    assert state_of(model, "packed").standing == "absent"


def test_other_formats_are_native_and_have_no_tiers(made: Path) -> None:
    assert values(made / "toy")[0].tier == "native"
    with pytest.raises(UnsupportedError) as caught:
        open_best(made / "toy", tier="packed")
    assert caught.value.code == "E_TIER"
    with pytest.raises(UnsupportedError):
        build(made / "toy", "packed")


def test_a_tier_asked_for_by_name_is_taken_or_refused(model: Path) -> None:
    with pytest.raises(UnsupportedError, match="cache is absent") as caught:
        open_best(model, tier="cache", build=False)
    assert caught.value.code == "E_TIER"
    with pytest.raises(UnsupportedError, match="no tier named"):
        build(model, "int7")
    with pytest.raises(UnsupportedError, match="are int4, not int8"):
        open_best(model, tier="int8")


def test_a_decoded_tier_larger_than_the_memory_is_passed_over(model: Path) -> None:
    build(model, "cache")
    assert values(model, build=False)[0].tier == "cache"
    nbytes = state_of(model, "cache").nbytes
    choice, _ = values(model, build=False, max_ram=nbytes - 1)
    assert choice.tier == "int4"
    assert any("do not fit in" in state.reason for state in choice.considered)


def test_no_room_is_said_and_the_arrays_are_run(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1 << 40, 1 << 40, 100))
    said: list[str] = []
    choice, found = values(model, tell=said.append)
    assert choice.tier == "int4"
    assert "MiB of disk" in choice.why
    assert any("not built" in line for line in said)
    assert equal(found, arrays(model))
    with pytest.raises(ResourceError):
        build(model, "packed")
    assert leftovers() == []


def test_little_memory_is_said_and_the_arrays_are_run(model: Path) -> None:
    choice, _ = values(model, max_ram=1 << 20)
    assert choice.tier == "int4"
    assert "of memory" in choice.why


@pytest.mark.parametrize("trouble", ["a file", "of others", "a link", "no home"])
def test_a_cache_that_cannot_be_written_is_said_once_and_the_arrays_are_run(
    model: Path, user: Path, trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = user / "cache" / "flyweight"
    place.parent.mkdir(parents=True)
    if trouble == "a file":  # as good as a file system that is read-only, also for root
        place.write_bytes(b"")
    elif trouble == "of others":
        place.mkdir()
        place.chmod(0o777)
    elif trouble == "a link":
        (tmp_path / "elsewhere").mkdir()
        place.symlink_to(tmp_path / "elsewhere")
    else:
        monkeypatch.setattr("flyweight.tiers.store.own_cache", Mock(side_effect=RuntimeError("no home directory")))
    before, said = everything(tmp_path), []
    choice, found = values(model, tell=said.append)
    assert choice.tier == "int4"
    assert "not built" in choice.why
    assert len([line for line in said if "not built" in line]) == 1
    assert equal(found, arrays(model))
    assert everything(tmp_path) == before


# The verbs ----------------------------------------------------------------------------------------


def test_the_verbs(model: Path) -> None:
    done = command("cache", "build", model, "--tier", "packed", "--tier", "cache", "--json")
    assert [(report["tier"], report["already"]) for report in json.loads(done.stdout)] == [("packed", False), ("cache", False)]
    assert "was ready" in command("cache", "build", model).stdout
    listed = json.loads(command("cache", "ls", model.parent, "--json").stdout)
    assert [entry["path"] for entry in listed] == [str(model)]
    standing = {state["tier"]: state["standing"] for state in listed[0]["tiers"]}
    assert standing == {"packed": "ready", "int4": "absent", "int3": "absent", "cache": "ready", "finalized": "absent"}
    assert command("cache", "verify", model).returncode == 0
    assert "packed" in command("cache", "ls", model).stdout
    home = home_of(model)
    dry = json.loads(command("cache", "prune", model, "--dry-run", "--json").stdout)
    assert dry["freed"] > 0
    assert (home / ".squish_ready").exists()
    assert command("cache", "prune", model, "--unusable").returncode == 0
    assert (home / ".squish_ready").exists()
    assert command("cache", "prune", model, "--tier", "cache").returncode == 0
    assert not (home / "squish_weights.safetensors").exists()
    assert (home / "flyweight_packed.safetensors").exists()
    before = arrays(model)
    assert command("cache", "prune", model).returncode == 0
    assert not home.exists()
    assert equal(arrays(model), before)
    assert command("cache", "ls", model / "nowhere").returncode == 6


def test_run_says_which_tier_and_why(model: Path) -> None:
    done = command("run", model, "abc", "--max-tokens", 2, "-v")
    assert done.returncode == 0
    assert "building the tier packed" in done.stderr
    assert "packed: built now" in done.stderr
    done = command("run", model, "abc", "--max-tokens", 2, "--tier", "finalized", "--no-build")
    assert done.returncode == 4
    assert "flyweight cache build --tier finalized" in done.stderr


def test_tiers_do_not_make_the_directory_another_model(made: Path, model: Path) -> None:
    for tier in ("packed", "cache", "finalized"):
        build(model, tier, in_place=True)
    assert flyweight.diff(made / "int4", model).identical
    assert flyweight.verify(model, strict=True).ok
    flyweight.convert(model, model.parent / "out", to="npy_dir")
    assert not [path for path in (model.parent / "out").iterdir() if "squish" in path.name or "packed" in path.name]


def test_the_verb_is_listed() -> None:
    assert "cache" in cli.list_commands(None)  # type: ignore[arg-type]
