"""That no tier is ever run that does not belong to the arrays beside it, or that its gate bars, whoever is at work on it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import flyweight
from flyweight.containers import container_named
from flyweight.foundation.accuracy_gate import Gate
from flyweight.foundation.errors import FlyweightError, GateError, MalformedError
from flyweight.measuring import measure
from flyweight.pipeline.plans import job
from flyweight.pipeline.plans.quantization_names import recipe_for
from flyweight.tiers import TIERS, build, digests, open_best, open_model_from, state_of, tier_named
from flyweight.tiers.keeping import leftovers
from flyweight.tiers.sentinel import read_sentinel
from support.tier_models import Q, arrays, command, equal, everything, home_of, other_model, values

# What may not be run ------------------------------------------------------------------------------


def other_weights(made: Path, model: Path) -> None:
    """The same directory made from another model, by whoever."""
    other = other_model(made, model.parent / "other")
    shutil.copytree(other / "tensors", model / "tensors", dirs_exist_ok=True)
    shutil.copy(other / "flyweight.json", model / "flyweight.json")


@pytest.mark.parametrize("tier", [tier.name for tier in TIERS if tier.name not in ("int4", "int3")])
def test_a_stale_tier_is_not_run_and_built_again(made: Path, model: Path, tier: str) -> None:
    build(model, tier, in_place=True)
    choice, old = values(model, build=False)
    assert choice.tier == tier
    other_weights(made, model)
    assert state_of(model, tier, in_place=True).standing == "stale"
    assert values(model, build=False)[0].tier == "int4", "and never run"
    before = everything(model)
    choice, found = values(model, tier=tier)
    assert (choice.tier, choice.built) == (tier, True)
    assert not np.array_equal(old[Q], found[Q])
    assert state_of(model, tier, deep=True).standing == "ready"
    assert everything(model) == before, "it is built in the user's cache"
    build(model, tier, in_place=True)
    assert state_of(model, tier, in_place=True, deep=True).standing == "ready", "whoever asks for it has it replaced"


def test_int4_beside_int8_makes_every_tier_of_int8_stale(made: Path, tmp_path: Path) -> None:
    model = shutil.copytree(made / "int8", tmp_path / "model")
    build(model, "packed")
    build(model, "packed", in_place=True)
    (model / ".squish_int4_ready").touch()
    assert state_of(model, "packed").standing == "absent"
    assert state_of(model, "packed", in_place=True).standing == "stale"


@pytest.mark.parametrize("in_place", [False, True])
def test_a_copied_or_touched_directory_is_looked_through_once(
    model: Path, tmp_path: Path, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(model, "packed", in_place=in_place)
    copy = shutil.copytree(model, tmp_path / "copy")
    for path in [*copy.rglob("*")]:
        os.utime(path)
    reads: list[Path] = []
    monkeypatch.setattr("flyweight.tiers.arrays.source_digest", lambda root: reads.append(root) or digests.source_digest(root))
    for expected in ([copy], [copy]):
        before = everything(copy)
        choice, found = values(copy)
        assert (choice.tier, choice.built) == ("packed", False)
        assert equal(found, arrays(copy))
        assert reads == expected
        assert everything(copy) == before


@pytest.mark.parametrize("tier", ["packed", "cache", "finalized"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "longer"])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_tampered_tier_is_not_run(model: Path, tier: str, damage: str, in_place: bool) -> None:
    build(model, tier, in_place=in_place)
    _, right = values(model, tier=tier)
    place = (model if in_place else home_of(model)) / tier_named(tier).place
    file = place if place.is_file() else sorted(place.glob("*proj*.npy"))[0]
    raw, when = bytearray(file.read_bytes()), file.stat().st_mtime_ns
    if damage == "gone":
        file.unlink()
    else:
        raw[-9] ^= 0x40
        file.write_bytes({"flip": raw, "cut": raw[:-4], "longer": raw + b"1234"}[damage])
        os.utime(file, ns=(when, when))  # who tampers can set this time, but not that of the change
    assert state_of(model, tier, in_place=in_place).standing == "damaged"
    said: list[str] = []
    before = everything(model)
    choice, found = values(model, tier=tier, tell=said.append)
    assert (choice.tier, choice.built) == (tier, True)
    assert equal(found, right)
    assert everything(model) == before
    if not in_place:
        return
    assert build(model, tier, in_place=True).already is False
    assert state_of(model, tier, in_place=True, deep=True).standing == "ready"


def test_a_damaged_tier_of_the_cache_is_built_again_with_a_message(model: Path) -> None:
    build(model, "cache")
    (home_of(model) / "squish_weights.safetensors").write_bytes(b"not weights")
    said: list[str] = []
    choice, _ = values(model, tell=said.append, measure=measure)
    assert (choice.tier, choice.built) == ("cache", True)
    assert "damaged" in said[0]


@pytest.mark.parametrize("change", ["config.json", "tokenizer.json", "added.json"])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_tier_that_is_a_model_is_damaged_by_any_of_its_files(made: Path, tmp_path: Path, change: str, in_place: bool) -> None:
    model = shutil.copytree(made / "int8", tmp_path / "model")
    build(model, "int4", in_place=in_place)
    file = (model if in_place else home_of(model)) / "squish_4bit" / change
    file.write_bytes(file.read_bytes() + b" " if file.exists() else b"{}")
    assert state_of(model, "int4", in_place=in_place).standing == "damaged"


def test_rot_is_found_by_reading_everything(model: Path) -> None:
    build(model, "packed")
    home = home_of(model)
    sentinel = read_sentinel(home, TIERS[0])
    assert sentinel is not None
    place = home / "flyweight_packed.safetensors"
    raw = bytearray(place.read_bytes())
    raw[-1] ^= 1
    place.write_bytes(raw)
    stamps = digests.fingerprint(digests.weights_stamps(home, TIERS[0]))
    (home / ".flyweight_packed_ready").write_bytes(sentinel._replace(stamps=stamps).text())  # as a failing disk does
    assert state_of(model, "packed").standing == "ready", "no stamp tells it"
    assert state_of(model, "packed", deep=True).standing == "damaged"
    for paths in ([], [model]):
        done = command("cache", "verify", *paths)
        assert done.returncode == 1
        assert "damaged" in done.stdout


def test_damaged_arrays_are_never_built_from(model: Path) -> None:
    build(model, "packed")
    file = next((model / "tensors").glob("*q_proj*__q4a.npy"))
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    assert state_of(model, "packed").standing == "absent"
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
        assert caught.value.hint, "the remedy"
    assert state_of(model, "packed").standing == "absent"


SENTINELS = {
    "empty": b"",
    "text": b"ready",
    "torn": b'{"format": "flyweight tier", "version": 2, "tier": "packed", "sou',
    "version": b'{"format": "flyweight tier", "version": 1, "tier": "packed", "source": {}, "weights": {}, "ungated": ""}',
    "lists": b"[" * 10_000,
    "types": b'{"format": "flyweight tier", "version": 2, "tier": "packed", "source": 1, "weights": [], "ungated": ""}',
    "signature": b'{"format": "flyweight tier", "version": 2, "tier": "packed", "source": "%s", "weights": "%s", "ungated": "",'
    b' "signature": 7}' % (b"0" * 64, b"0" * 64),
    "digest": b'{"format": "flyweight tier", "version": 2, "tier": "packed", "source": "..", "weights": "%s", "ungated": ""}'
    % (b"0" * 64),
    "long": b'{"format": "flyweight tier", "version": 2, "by": "%s"}' % (b"0" * 100_000),
}


@pytest.mark.parametrize("kind", SENTINELS)
def test_a_sentinel_that_says_nothing_is_not_trusted(model: Path, kind: str) -> None:
    build(model, "packed", in_place=True)
    right = arrays(model)
    (model / ".flyweight_packed_ready").write_bytes(SENTINELS[kind])
    assert state_of(model, "packed", in_place=True).standing == "foreign"
    assert values(model, build=False)[0].tier == "int4"
    for options in ({"tier": "packed"}, {}):
        choice, found = values(model, **options)
        assert (choice.tier, equal(found, right)) == ("packed", True)
        assert "beside" not in choice.why
    with pytest.raises(FlyweightError) as caught:
        build(model, "packed", in_place=True)
    assert caught.value.code == "E_FOREIGN_TIER"


@pytest.mark.parametrize("kind", ["fifo", "folder", "link", "dangling"])
def test_a_sentinel_that_is_no_file_is_not_trusted(model: Path, kind: str, tmp_path: Path) -> None:
    build(model, "cache", in_place=True)
    sentinel = model / ".squish_ready"
    sentinel.rename(tmp_path / "sentinel")
    if kind == "fifo":
        os.mkfifo(sentinel)
    elif kind == "folder":
        sentinel.mkdir()
    else:
        sentinel.symlink_to(tmp_path / ("sentinel" if kind == "link" else "nothing"))
    assert state_of(model, "cache", in_place=True).standing == "foreign"
    assert values(model, build=False)[0].tier == "int4"


def test_what_squish_built_is_neither_run_nor_replaced(model: Path) -> None:
    (model / "squish_4bit").mkdir()
    (model / "squish_4bit" / "model.safetensors").write_bytes(b"theirs")
    (model / ".squish_4bit_ready").touch()
    assert state_of(model, "int4", in_place=True).standing == "foreign"
    assert values(model)[0].tier == "packed"
    for force in (False, True):
        with pytest.raises(FlyweightError) as caught:
            build(model, "int4", in_place=True, force=force)
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
    recipe = replace(recipe_for(container_named("npy_dir"), "int3"), gate=STRICT)
    flyweight.convert(made / "toy", tmp_path / "failed", to="npy_dir", recipe=recipe, allow_ungated=True)
    return tmp_path / "failed"


def test_arrays_that_passed_their_gate_are_built_from(made: Path, tmp_path: Path) -> None:
    model = shutil.copytree(made / "int3", tmp_path / "model")
    assert values(model)[0].tier == "packed"
    assert not state_of(model, "packed").ungated


def test_arrays_that_failed_their_gate_are_not_built_from(failed: Path) -> None:
    model = failed
    for options in ({}, {"tier": "packed"}, {"tier": "cache"}):
        with pytest.raises(GateError):
            open_model_from(model, **options)
    assert state_of(model, "packed").standing == "absent"
    with pytest.raises(GateError):
        open_model_from(model, tier="arrays")
    assert command("run", model, "abc", "--max-tokens", 1).returncode == GateError.exit_code


def test_a_tier_built_in_spite_of_its_gate_needs_the_override_ever_after(failed: Path) -> None:
    model = failed
    assert values(model, allow_ungated=True)[0].tier == "packed"
    assert state_of(model, "packed").ungated
    with pytest.raises(GateError):
        open_best(model, tier="packed")
    with pytest.raises(GateError):
        open_model_from(model)
    with pytest.raises(GateError):
        build(model, "packed")
    assert values(model, allow_ungated=True)[0].built is False
    for path in [*model.rglob("*"), *home_of(model).rglob("*")]:
        os.utime(path)  # a renewed sentinel says it too
    assert values(model, allow_ungated=True)[0].built is False
    assert state_of(model, "packed").ungated


def test_three_bits_from_eight_are_measured_before_they_appear(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shutil.copytree(made / "int8", tmp_path / "model")
    monkeypatch.setattr(job, "INT3", STRICT)
    with pytest.raises(GateError, match="KL divergence"):
        build(model, "int3", measure=measure)
    assert state_of(model, "int3").standing == "absent"
    assert leftovers() == []
    build(model, "int3", allow_ungated=True, measure=measure)
    assert "KL divergence" in state_of(model, "int3").ungated
    choice, _ = values(model, build=False)
    assert choice.tier == "int8"
    assert any("has not passed its accuracy gate" in state.reason for state in choice.considered)
    assert values(model, build=False, allow_ungated=True)[0].tier == "int3"
    damaged = next((home_of(model) / "squish_3bit").glob("*.safetensors"))
    damaged.write_bytes(b"")
    said: list[str] = []
    choice, _ = values(model, tell=said.append, measure=measure)
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
    assert state_of(model, "cache", deep=True).standing == "ready"


def test_a_build_of_other_arrays_is_begun_anew(made: Path, model: Path) -> None:
    def stop(name: str, nbytes: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(model, "cache", jobs=1, progress=stop)
    other_weights(made, model)
    assert build(model, "cache").resumed == 0
    _, found = values(model, tier="cache", build=False)
    assert equal(found, {name: x.astype(ml_dtypes.bfloat16) for name, x in arrays(model).items()})
