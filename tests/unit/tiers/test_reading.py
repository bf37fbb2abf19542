"""That reading verbs leave a model's directory as it is, and that no verb goes where a name in it leads."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import flyweight
from flyweight.foundation.errors import FlyweightError
from flyweight.tiers import TIERS, Tier, build, listing, prune
from support.tier_models import everything, values

VERBS = {
    "run": ["run", "MODEL", "abc", "--max-tokens", "1"],
    "run --tier": ["run", "MODEL", "abc", "--max-tokens", "1", "--tier", "finalized"],
    "run --no-build": ["run", "MODEL", "abc", "--max-tokens", "1", "--no-build"],
    "chat": ["chat", "MODEL", "--max-tokens", "1"],
    "eval": ["eval", "MODEL", "--text", "TEXT", "--tokens", "64", "--context", "16"],
    "inspect": ["inspect", "MODEL"],
    "verify": ["verify", "MODEL"],
    "diff": ["diff", "MODEL", "MODEL"],
    "cache ls": ["cache", "ls", "MODEL"],
    "cache verify": ["cache", "verify", "MODEL"],
    "cache build": ["cache", "build", "MODEL", "--tier", "cache"],
    "cache prune": ["cache", "prune", "MODEL"],
}


LOOK_AT_TIERS = [(verb, ("cache", "finalized")) for verb in ("run", "run --tier", "verify", "diff", "cache ls", "cache verify")]


@pytest.mark.parametrize(("verb", "tiers"), [*((verb, ()) for verb in VERBS), *LOOK_AT_TIERS])
def test_nothing_in_the_directory_changes(model: Path, verb: str, tiers: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "text").write_text("words and words " * 40)
    for tier in tiers:
        build(model, tier, in_place=True)
    for path in model.rglob("*"):
        os.utime(path)  # so that stamps would have to be renewed
    before = everything(model)
    places = {"MODEL": str(model), "TEXT": str(tmp_path / "text")}
    arguments = [places.get(argument, argument) for argument in VERBS[verb]]
    done = subprocess.run(
        [sys.executable, "-m", "flyweight", *arguments], input="abc\n/exit\n", capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert everything(model) == before


# Names that lead elsewhere ------------------------------------------------------------------------

NAMES = {name: tier for tier in TIERS for name in (f".{tier.place}.partial", tier.sentinel, tier.place)} | {
    ".flyweight_tiers.lock": TIERS[0], ".flyweight_tiers.new": TIERS[0],
}  # fmt: skip
"""Every name that a tier has, or ever had, in a model's directory, and the tier."""
KINDS = ("link to a file", "link to a folder", "link to nothing", "fifo", "folder", "file")


def put(name: str, kind: str, model: Path, victim: Path) -> None:
    place = model / name
    place.parent.mkdir(exist_ok=True)
    if kind.startswith("link"):
        place.symlink_to(victim / {"link to a file": "precious", "link to a folder": "", "link to nothing": "new"}[kind])
    elif kind == "fifo":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
        (place / "journal.jsonl").symlink_to(victim / "precious")
        (place / "out").symlink_to(victim)
        (place / "lock").symlink_to(victim / "precious")
    else:
        place.write_bytes(b"theirs")


@contextmanager
def in_time(seconds: int) -> Iterator[None]:
    def late(*_: object) -> None:
        raise AssertionError("hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def readers(tier: Tier) -> list[Callable[[Path], object]]:
    return [
        values,
        lambda model: values(model, build=False),
        lambda model: values(model, tier=tier.name, allow_ungated=True),
        listing,
        lambda model: listing(model, deep=True),
        flyweight.verify,
        lambda model: prune(model, tiers=[tier.name], foreign=True, dry_run=True),
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_no_name_leads_out_of_the_directory(made: Path, name: str, kind: str, tmp_path: Path) -> None:
    victim, tier = tmp_path / "victim", NAMES[name]
    victim.mkdir()
    (victim / "precious").write_bytes(b"precious")
    model = shutil.copytree(made / "int8", tmp_path / "model")
    put(name, kind, model, victim)
    untouched, precious = everything(model), everything(victim)
    with in_time(60):
        for read in readers(tier):
            with suppress(FlyweightError):
                read(model)
            assert everything(model) == untouched
            assert everything(victim) == precious
        if not name.endswith(".partial"):  # the names of a staging directory are tested with it
            with suppress(FlyweightError, OSError):
                build(model, tier.name, in_place=True, allow_ungated=True)
            assert everything(victim) == precious
        prune(model, tiers=[tier.name], foreign=True)
    assert everything(victim) == precious
    assert not os.path.lexists(model / tier.place)
    assert not os.path.lexists(model / tier.sentinel)
