"""Tiers that a stranger put beside arrays, in every way there is, and what every verb makes of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import flyweight
from flyweight.foundation.errors import GateError
from flyweight.tiers import audit, build, open_best, prune, state_of, tier_named
from flyweight.tiers.digests import source_digest
from flyweight.tiers.sentinel import Sentinel, read_sentinel
from flyweight.writing import own
from support.tier_models import Q, arrays, become, command, equal, everything, other_model, values

KINDS = ("sealed", "unsigned", "replayed", "stale", "squish", "bare", "old")
SAYS_SO = ("sealed", "unsigned", "replayed")
"""Those whose sentinel says that they are of these arrays."""
CODES = dict.fromkeys(SAYS_SO, "E_TIER_FORGED") | {
    "stale": "E_TIER_STALE", "squish": "E_TIER_FOREIGN", "bare": "E_TIER_FOREIGN", "old": "E_TIER_FOREIGN",
}  # fmt: skip
NAMES = ("packed", "cache", "finalized", "int4")


@pytest.fixture(scope="module")
def theirs(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a stranger, who has built its tiers beside it."""
    place = tmp_path_factory.mktemp("stranger")
    with pytest.MonkeyPatch.context() as patch:
        become(place, patch)
        model = other_model(made, place / "theirs", "int8")
        for name in NAMES:
            build(model, name, in_place=True)
    own._key.cache_clear()
    return model


def forge(theirs: Path, model: Path, name: str, kind: str, user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a tier of other arrays beside these: with a sentinel of someone else, without a signature, with one that the user
    gave the right tier, with an honest sentinel, with Squish's sentinel, with none, with one of an older version."""
    tier = tier_named(name)
    build(model, name, in_place=True)
    right = read_sentinel(model, tier)
    assert right is not None
    prune(model, tiers=[name])
    become(theirs.parent, monkeypatch)
    honest = read_sentinel(theirs, tier)
    assert honest is not None
    copy = shutil.copytree if tier.holds != "file" else shutil.copy
    copy(theirs / tier.place, model / tier.place)
    sealed = Sentinel(name, source_digest(model), honest.weights)
    texts = {
        "sealed": sealed.signed().text(), "unsigned": sealed.text(), "replayed": right.text(), "stale": honest.text(),
        "squish": b"", "old": sealed.text().replace(b'"version": 2', b'"version": 1'),
    }  # fmt: skip
    (model / tier.sentinel).unlink(missing_ok=True)
    if kind in texts:
        (model / tier.sentinel).write_bytes(texts[kind])
    become(user, monkeypatch)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_what_every_verb_makes_of_a_forged_tier(
    made: Path, theirs: Path, tmp_path: Path, name: str, kind: str, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shutil.copytree(made / "int8", tmp_path / "model")
    right = values(model, tier=name)[1]
    forge(theirs, model, name, kind, user, monkeypatch)
    shutil.rmtree(user / "cache")
    before = everything(model)

    standing = state_of(model, name, in_place=True).standing
    assert standing == {"replayed": "damaged", "bare": "unfinished"}.get(kind, "foreign")
    assert values(model, build=False)[0].tier == "int8", "not run"
    choice, found = values(model)
    assert (choice.tier, choice.built) == ("packed", True), "nor built upon"
    assert equal(found, arrays(model))
    assert "beside" not in choice.why

    said: list[str] = []
    choice, found = values(model, tier=name, tell=said.append)
    if kind in ("sealed", "unsigned") and name != "packed":  # of which there is one in the user's cache by now
        assert not equal(found, right)
        assert "beside the arrays" in choice.why
        assert any("not built by you" in line for line in said)
        build(model, name)
        choice, found = values(model, tier=name)
    assert equal(found, right)

    report = flyweight.verify(model)
    assert [finding.code for finding in report.findings] == [CODES[kind]]
    assert report.ok is (CODES[kind] == "E_TIER_FOREIGN")
    assert name in report.findings[0].message
    assert kind == "stale" or (report.findings[0].tensor or report.findings[0].message).endswith((Q, "differs"))
    for a, b, side in ((model, made / "int8", "a"), (made / "int8", model, "b")):
        compared = flyweight.diff(a, b)
        assert [(where, finding.code) for where, finding in compared.findings] == [(side, CODES[kind])]
        assert compared.identical is report.ok

    assert everything(model) == before
    prune(model, tiers=[name])
    assert (model / tier_named(name).place).exists() is (standing != "damaged")
    prune(model, tiers=[name], foreign=True)
    assert not (model / tier_named(name).place).exists()
    assert equal(arrays(model), arrays(made / "int8"))


def test_the_commands_say_it(made: Path, theirs: Path, tmp_path: Path, user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = shutil.copytree(made / "int8", tmp_path / "model")
    forge(theirs, model, "packed", "sealed", user, monkeypatch)
    done = command("verify", model)
    assert (done.returncode, "E_TIER_FORGED" in done.stdout, "packed" in done.stdout) == (1, True, True)
    done = command("verify", model, "--json")
    assert json.loads(done.stdout)["findings"][0]["tensor"] == Q
    done = command("diff", made / "int8", model)
    assert (done.returncode, "E_TIER_FORGED" in done.stderr, "different" in done.stdout) == (1, True, True)
    assert json.loads(command("diff", made / "int8", model, "--json").stdout)["findings"][0]["side"] == "b"
    assert "foreign" in command("cache", "ls", model).stdout
    done = command("run", model, "abc", "--raw", "--max-tokens", 1, "--tier", "packed", "--json")
    assert "not built by you" in done.stderr
    done = command("run", model, "abc", "--raw", "--max-tokens", 1, "--json")
    assert json.loads(done.stdout)["tier"]["built"] is True


@pytest.mark.parametrize("change", ["config.json", "tokenizer.json", "added.json", "gone"])
def test_a_tier_that_is_a_model_is_forged_by_any_of_its_files(made: Path, tmp_path: Path, change: str) -> None:
    model = shutil.copytree(made / "int8", tmp_path / "model")
    build(model, "int4", in_place=True)
    assert list(audit(model)) == []
    file = model / "squish_4bit" / ("tokenizer.json" if change == "gone" else change)
    if change == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes() + b" " if file.exists() else b"{}")
    (found,) = audit(model)
    assert (found.code, file.name in found.message) == ("E_TIER_FORGED", True)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_as_the_arrays_give_it_is_no_finding_whoever_built_it(
    made: Path, tmp_path: Path, name: str, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shutil.copytree(made / "int8", tmp_path / "model")
    become(user.parent / "colleague", monkeypatch)
    build(model, name, in_place=True)
    assert state_of(model, name, in_place=True).standing == "ready"
    become(user, monkeypatch)
    assert state_of(model, name, in_place=True).standing == "foreign", "users do not trust each other's sentinels"
    assert flyweight.verify(model, strict=True).ok
    (model / tier_named(name).sentinel).write_bytes(b"")
    assert flyweight.verify(model, strict=True).ok


def test_three_bits_of_a_stranger_need_the_override(
    made: Path, tmp_path: Path, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shutil.copytree(made / "int8", tmp_path / "model")
    become(user.parent / "stranger", monkeypatch)
    build(model, "int3", in_place=True, allow_ungated=True)
    sentinel = read_sentinel(model, tier_named("int3"))
    assert sentinel is not None
    (model / ".squish_3bit_ready").write_bytes(sentinel._replace(ungated="").signed().text())
    become(user, monkeypatch)
    with pytest.raises(GateError):
        open_best(model, tier="int3", build=False)
    open_best(model, tier="int3", build=False, allow_ungated=True)[0].close()
