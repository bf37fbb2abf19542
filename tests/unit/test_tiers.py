"""Tiers: what each holds, which is run and why, and that none is ever run that does not belong to the arrays beside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import flyweight
from flyweight.cli import cli
from flyweight.containers import container_named
from flyweight.errors import FlyweightError, GateError, MalformedError, ResourceError, UnsupportedError
from flyweight.gate import Gate
from flyweight.pipeline.recipe import preset
from flyweight.runtime.linear import form_of
from flyweight.runtime.tensors import Tensors
from flyweight.tensor import RAW
from flyweight.tiers import TIERS, Choice, build, building, listing, open_best, open_model_from, prune, state_of, tier_named
from flyweight.tiers.seal import read_seal
from toys import CONFIG, toy_llama_files, write_files

FORMS = ("int8", "int8-g32", "int4", "int4-legacy", "int3", "nf4", "none")
Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy in every form."""
    root = tmp_path_factory.mktemp("tiers")
    settings = json.dumps({**CONFIG, "num_hidden_layers": 2}).encode()
    write_files(root / "toy", toy_llama_files(layers=2) | {"config.json": settings})
    for form in FORMS:
        flyweight.convert(root / "toy", root / form, to="npy_dir", quant=form)
    return root


@pytest.fixture
def model(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made / "int4", tmp_path / "model")


def values(path: Path, **options: Any) -> tuple[Choice, dict[str, np.ndarray]]:
    checkpoint, choice = open_best(path, **options)
    with checkpoint:
        return choice, {name: np.array(checkpoint[name]) for name in checkpoint}


def arrays(path: Path) -> dict[str, np.ndarray]:
    with flyweight.open(path) as checkpoint:
        return {name: np.array(checkpoint[name]) for name in checkpoint}


def equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "flyweight", *map(str, arguments)], capture_output=True, text=True, timeout=60)


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
        assert np.array_equal(np.load(model / "finalized" / f"{key}.npy"), found[Q])
    else:
        with flyweight.open(model / "squish_weights.safetensors") as plain:
            assert {entry.codec for entry in plain.manifest.entries.values()} == {RAW}


def test_int4_is_an_mlx_directory(model: Path, made: Path, tmp_path: Path) -> None:
    eight = shutil.copytree(made / "int8", tmp_path / "eight")
    choice, found = values(eight, tier="int4")
    assert choice.tier == "int4"
    assert equal(found, arrays(eight / "squish_4bit"))
    assert values(eight)[0].tier == "int4", "before cache and finalized, as Squish has it"
    build(eight, "packed")
    assert values(eight)[0].tier == "packed", "before all"
    assert values(model, tier="int4")[0].why == "its arrays as they are: asked for", "these have four bits already"


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
    with pytest.raises(MalformedError, match="does not fit") as caught:
        build(tmp_path / "model", "finalized")
    assert caught.value.code == "E_OVERFLOW"
    assert not (tmp_path / "model" / "finalized").exists()
    assert build(tmp_path / "model", "cache").nbytes > 0


# Which is run -------------------------------------------------------------------------------------


def test_the_first_start_builds_and_later_ones_map(model: Path) -> None:
    said: list[str] = []
    choice, found = values(model, tell=said.append)
    assert (choice.tier, choice.built, len(said)) == ("packed", True, 1)
    assert equal(found, arrays(model))
    before = (model / "flyweight_packed.safetensors").stat()
    choice, found = values(model, tell=said.append)
    assert (choice.tier, choice.built, len(said)) == ("packed", False, 1)
    assert (model / "flyweight_packed.safetensors").stat() == before
    assert equal(found, arrays(model))


def test_without_building_the_arrays_are_run(model: Path) -> None:
    choice, _ = values(model, build=False)
    assert (choice.tier, choice.built) == ("int4", False)
    assert {state.standing for state in choice.considered} == {"absent"}
    assert not list(model.glob("*packed*"))


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
    nbytes = state_of(model, tier_named("cache")).nbytes
    choice, _ = values(model, build=False, max_ram=nbytes - 1)
    assert choice.tier == "int4"
    assert any("would not stay in" in state.reason for state in choice.considered)


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
    assert [path.name for path in model.glob(".*partial")] == []


def test_little_memory_is_said_and_the_arrays_are_run(model: Path) -> None:
    choice, _ = values(model, max_ram=1 << 20)
    assert choice.tier == "int4"
    assert "of memory" in choice.why


def test_a_directory_that_cannot_be_written_is_run_as_it_is(model: Path) -> None:
    (model / ".flyweight_tiers.lock").mkdir()  # as good as a file system that is read-only, also for root
    choice, found = values(model)
    assert choice.tier == "int4"
    assert "not built" in choice.why
    assert equal(found, arrays(model))


# What may not be run ------------------------------------------------------------------------------


def other_weights(made: Path, model: Path) -> None:
    """The same directory made from another model, by whoever."""
    with flyweight.open(made / "toy") as checkpoint:
        entry = checkpoint.manifest.entries[Q]
    source = shutil.copytree(made / "toy", model.parent / "other")
    raw = bytearray((source / entry.extents["data"].file).read_bytes())
    raw[entry.extents["data"].offset] ^= 0x80
    raw[entry.extents["data"].offset + 1] ^= 0x80
    (source / entry.extents["data"].file).write_bytes(raw)
    flyweight.convert(source, model.parent / "again", to="npy_dir", quant="int4")
    shutil.copytree(model.parent / "again" / "tensors", model / "tensors", dirs_exist_ok=True)
    shutil.copy(model.parent / "again" / "flyweight.json", model / "flyweight.json")


@pytest.mark.parametrize("tier", [tier.name for tier in TIERS if tier.name not in ("int4", "int3")])
def test_a_stale_tier_is_built_again_with_a_message(made: Path, model: Path, tier: str) -> None:
    _, old = values(model, tier=tier)
    other_weights(made, model)
    assert state_of(model, tier_named(tier)).standing == "stale"
    assert values(model, build=False)[0].tier == "int4", "and never run"
    said: list[str] = []
    choice, found = values(model, tell=said.append)
    assert (choice.tier, choice.built) == (tier, True)
    assert "stale (built from other arrays): building it again" in said[0]
    assert not np.array_equal(old[Q], found[Q])
    assert state_of(model, tier_named(tier), deep=True).standing == "ready"


def test_int4_beside_int8_makes_every_tier_of_int8_stale(made: Path, tmp_path: Path) -> None:
    model = shutil.copytree(made / "int8", tmp_path / "model")
    build(model, "packed")
    (model / ".squish_int4_ready").touch()
    assert state_of(model, tier_named("packed")).standing == "stale"


def test_a_copied_or_touched_directory_is_looked_through_once(model: Path, tmp_path: Path) -> None:
    build(model, "packed")
    copy = shutil.copytree(model, tmp_path / "copy")
    for path in [*copy.rglob("*")]:
        os.utime(path)
    weights = (copy / "flyweight_packed.safetensors").stat()
    old = read_seal(copy, TIERS[0])
    choice, found = values(copy)
    assert (choice.tier, choice.built) == ("packed", False)
    assert (copy / "flyweight_packed.safetensors").stat().st_ino == weights.st_ino
    new = read_seal(copy, TIERS[0])
    assert old is not None
    assert new is not None
    assert (old != new, old.source.digest) == (True, new.source.digest)
    assert equal(found, arrays(copy))


@pytest.mark.parametrize("tier", ["packed", "cache", "finalized"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "longer"])
def test_a_tampered_tier_is_built_again(model: Path, tier: str, damage: str) -> None:
    _, right = values(model, tier=tier)
    place = model / tier_named(tier).place
    file = place if place.is_file() else sorted(place.glob("*proj*.npy"))[0]
    raw, when = bytearray(file.read_bytes()), file.stat().st_mtime_ns
    if damage == "gone":
        file.unlink()
    else:
        raw[-9] ^= 0x40
        file.write_bytes({"flip": raw, "cut": raw[:-4], "longer": raw + b"1234"}[damage])
        os.utime(file, ns=(when, when))  # who tampers can set this time, but not that of the change
    assert state_of(model, tier_named(tier)).standing == "damaged"
    said: list[str] = []
    choice, found = values(model, tell=said.append)
    assert (choice.tier, choice.built) == (tier, True)
    assert "damaged" in said[0]
    assert equal(found, right)


def test_rot_is_found_by_reading_everything(model: Path) -> None:
    build(model, "packed")
    seal = read_seal(model, TIERS[0])
    assert seal is not None
    place = model / "flyweight_packed.safetensors"
    raw = bytearray(place.read_bytes())
    raw[-1] ^= 1
    place.write_bytes(raw)
    status = place.stat()  # as if nothing had been written: what a failing disk does
    stamp = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    rotten = seal._replace(weights=seal.weights._replace(files={place.name: stamp}))
    (model / ".flyweight_packed_ready").write_bytes(rotten.text())
    assert state_of(model, TIERS[0]).standing == "ready", "no stamp tells it"
    assert state_of(model, TIERS[0], deep=True).standing == "damaged"
    done = command("cache", "verify", model)
    assert done.returncode == 1
    assert "damaged" in done.stdout


def test_damaged_arrays_are_never_built_from(model: Path) -> None:
    build(model, "packed")
    file = next((model / "tensors").glob("*q_proj*__q4a.npy"))
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    assert state_of(model, TIERS[0]).standing == "stale"
    with pytest.raises(MalformedError) as caught:
        open_best(model)
    assert (caught.value.code, Path(str(caught.value.file)).name) == ("E_DIGEST", file.name)


def test_a_truncated_array_is_an_error_with_its_name(model: Path) -> None:
    file = next((model / "tensors").glob("*q_proj*__q4a.npy"))
    file.write_bytes(file.read_bytes()[:-5])
    for options in ({}, {"tier": "cache"}, {"build": False}):
        with pytest.raises(FlyweightError) as caught:
            open_best(model, **options)
        assert caught.value.code in ("E_PAST_END", "E_DIGEST")
        assert file.name in str(caught.value)
    assert not list(model.glob("*packed*"))


SENTINELS = {
    "empty": b"",
    "text": b"ready",
    "torn": b'{"format": "flyweight tier", "version": 1, "tier": "packed", "sou',
    "version": b'{"format": "flyweight tier", "version": 2, "tier": "packed", "source": {}, "weights": {}, "ungated": ""}',
    "lists": b"[" * 10_000,
    "types": b'{"format": "flyweight tier", "version": 1, "tier": "packed", "source": 1, "weights": [], "ungated": ""}',
    "stamps": b'{"format": "flyweight tier", "version": 1, "tier": "packed", "source": {"digest": "%s", "files":'
    b' {"a": [true, 1, 2]}}, "weights": {"digest": "%s", "files": {}}}' % (b"0" * 64, b"0" * 64),
    "digest": b'{"format": "flyweight tier", "version": 1, "tier": "packed", "source": {"digest": "..", "files": {}},'
    b' "weights": {"digest": "%s", "files": {}}, "ungated": ""}' % (b"0" * 64),
}


@pytest.mark.parametrize("kind", SENTINELS)
def test_a_sentinel_that_says_nothing_is_not_trusted(model: Path, kind: str) -> None:
    build(model, "packed")
    right = arrays(model)
    (model / ".flyweight_packed_ready").write_bytes(SENTINELS[kind])
    assert state_of(model, TIERS[0]).standing == "foreign"
    assert values(model, build=False)[0].tier == "int4"
    choice, found = values(model)
    assert (choice.tier, choice.built) == ("packed", True)
    assert equal(found, right)


@pytest.mark.parametrize("kind", ["fifo", "folder", "link", "dangling"])
def test_a_sentinel_that_is_no_file_is_not_trusted(model: Path, kind: str, tmp_path: Path) -> None:
    build(model, "cache")
    sentinel = model / ".squish_ready"
    sentinel.rename(tmp_path / "seal")
    if kind == "fifo":
        os.mkfifo(sentinel)
    elif kind == "folder":
        sentinel.mkdir()
    else:
        sentinel.symlink_to(tmp_path / ("seal" if kind == "link" else "nothing"))
    assert state_of(model, tier_named("cache")).standing == ("ready" if kind == "link" else "foreign")
    assert values(model, build=False)[0].tier == ("cache" if kind == "link" else "int4")


def test_what_squish_built_is_neither_run_nor_replaced(model: Path) -> None:
    (model / "squish_4bit").mkdir()
    (model / "squish_4bit" / "model.safetensors").write_bytes(b"theirs")
    (model / ".squish_4bit_ready").touch()
    assert state_of(model, tier_named("int4")).standing == "foreign"
    assert values(model)[0].tier == "packed"
    with pytest.raises(FlyweightError) as caught:
        build(model, "int4")
    assert caught.value.code == "E_FOREIGN_TIER"
    assert command("cache", "prune", model).returncode == 0
    assert (model / "squish_4bit" / "model.safetensors").read_bytes() == b"theirs"
    assert command("cache", "prune", model, "--foreign").returncode == 0
    assert not (model / "squish_4bit").exists()


# Three bits ---------------------------------------------------------------------------------------


STRICT = Gate(max_kl=1e-9, tokens=128, window=16)


@pytest.fixture
def failed(made: Path, tmp_path: Path) -> Path:
    """Three bits that did not pass, and were kept all the same."""
    recipe = replace(preset("int3", container_named("npy_dir").presets), gate=STRICT)
    flyweight.convert(made / "toy", tmp_path / "failed", to="npy_dir", recipe=recipe, allow_ungated=True)
    return tmp_path / "failed"


def test_arrays_that_passed_their_gate_are_built_from(made: Path, tmp_path: Path) -> None:
    model = shutil.copytree(made / "int3", tmp_path / "model")
    assert values(model)[0].tier == "packed"
    assert not state_of(model, TIERS[0]).ungated


def test_arrays_that_failed_their_gate_are_not_built_from(failed: Path) -> None:
    model = failed
    for options in ({}, {"tier": "packed"}, {"tier": "cache"}):
        with pytest.raises(GateError):
            open_model_from(model, **options)
    assert not list(model.glob("*packed*"))
    with pytest.raises(GateError):
        open_model_from(model, tier="arrays")
    assert command("run", model, "abc", "--max-tokens", 1).returncode == GateError.exit_code


def test_a_tier_built_in_spite_of_its_gate_needs_the_override_ever_after(failed: Path) -> None:
    model = failed
    assert values(model, allow_ungated=True)[0].tier == "packed"
    assert state_of(model, TIERS[0]).ungated
    with pytest.raises(GateError):
        open_best(model, tier="packed")
    with pytest.raises(GateError):
        open_model_from(model)
    with pytest.raises(GateError):
        build(model, "packed")
    assert values(model, allow_ungated=True)[0].built is False
    for path in model.rglob("*"):
        os.utime(path)  # a renewed seal says it too
    assert values(model, allow_ungated=True)[0].built is False
    assert state_of(model, TIERS[0]).ungated


def test_three_bits_from_eight_are_measured_before_they_appear(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shutil.copytree(made / "int8", tmp_path / "model")
    monkeypatch.setattr(building, "INT3", STRICT)
    with pytest.raises(GateError, match="KL divergence"):
        build(model, "int3")
    assert not (model / "squish_3bit").exists()
    assert not list(model.glob(".*partial"))
    build(model, "int3", allow_ungated=True)
    assert "KL divergence" in state_of(model, tier_named("int3")).ungated
    choice, _ = values(model, build=False)
    assert choice.tier == "int8"
    assert any("has not passed its gate" in state.reason for state in choice.considered)
    assert values(model, build=False, allow_ungated=True)[0].tier == "int3"
    other = next((model / "tensors").glob("*__shape.npy"))
    other.rename(other.with_suffix(".old"))
    shutil.copy(other.with_suffix(".old"), other)  # another file in tensors/: the tier is stale
    said: list[str] = []
    choice, _ = values(model, tell=said.append)
    assert (choice.tier, choice.built) == ("packed", True), "what fails its gate when it is built again is passed over"
    assert any("int3 is not built: not accurate enough" in line for line in said)


# Many at once -------------------------------------------------------------------------------------


def test_of_many_first_starts_one_builds(model: Path) -> None:
    program = [sys.executable, "-m", "flyweight", "run", str(model), "abc", "--max-tokens", "4", "--json"]
    running = [subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    outputs = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0] * 4, outputs
    found = [json.loads(out) for out, _ in outputs]
    assert sorted(document["tier"]["built"] for document in found) == [False, False, False, True]
    assert {document["tier"]["name"] for document in found} == {"packed"}
    assert len({document["text"] for document in found}) == 1


def test_a_killed_build_is_gone_on_with(model: Path) -> None:
    seen = 0

    def stop(name: str, nbytes: int, total: int) -> None:
        nonlocal seen
        seen += 1
        if seen == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(model, "cache", jobs=1, progress=stop)
    assert values(model, build=False)[0].tier == "int4"
    report = build(model, "cache")
    assert report.resumed >= 4
    assert state_of(model, tier_named("cache"), deep=True).standing == "ready"


def test_a_build_of_other_arrays_is_begun_anew(made: Path, model: Path) -> None:
    def stop(name: str, nbytes: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(model, "cache", jobs=1, progress=stop)
    other_weights(made, model)
    assert build(model, "cache").resumed == 0
    _, found = values(model, tier="cache", build=False)
    assert equal(found, {name: x.astype(ml_dtypes.bfloat16) for name, x in arrays(model).items()})


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
    dry = json.loads(command("cache", "prune", model, "--dry-run", "--json").stdout)
    assert dry["freed"] > 0
    assert (model / ".squish_ready").exists()
    assert command("cache", "prune", model, "--unusable").returncode == 0
    assert (model / ".squish_ready").exists()
    assert command("cache", "prune", model, "--tier", "cache").returncode == 0
    assert not (model / "squish_weights.safetensors").exists()
    assert (model / "flyweight_packed.safetensors").exists()
    before = arrays(model)
    assert command("cache", "prune", model).returncode == 0
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
        build(model, tier)
    assert flyweight.diff(made / "int4", model).identical
    assert flyweight.verify(model, strict=True).ok
    flyweight.convert(model, model.parent / "out", to="npy_dir")
    assert not [path for path in (model.parent / "out").iterdir() if "squish" in path.name or "packed" in path.name]


def test_the_verb_is_listed() -> None:
    assert "cache" in cli.list_commands(None)  # type: ignore[arg-type]
