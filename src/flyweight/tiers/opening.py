"""A tier opened as a checkpoint: its weights from its home, and the side files of the model it belongs to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from weakref import finalize

from flyweight.checkpoint import Checkpoint, open_checkpoint, read_checkpoint
from flyweight.containers.container import Container
from flyweight.containers.npy_dir.finalized import Finalized
from flyweight.containers.npy_dir.flyweight_json import Record, read_record
from flyweight.containers.npy_dir.npy_reading import read_keys
from flyweight.containers.npy_dir.tier_places import MANIFEST, RECORD, is_own
from flyweight.containers.safetensors import Safetensors
from flyweight.foundation.errors import MalformedError
from flyweight.foundation.manifest import Extent
from flyweight.sources import Bundle, PathBundle, Source
from flyweight.tiers.store import held
from flyweight.tiers.tier_table import Home, Tier


def open_tier(home: Home, tier: Tier) -> Checkpoint:
    """The tier as it lies there; its sentinel says whether to trust it. In the user's cache it stays until it is closed."""
    descriptor = -1 if home.in_place else held(home)
    try:
        checkpoint = _OPENERS[tier.holds](home, tier)
    except BaseException:
        if descriptor >= 0:
            os.close(descriptor)
        raise
    if descriptor >= 0:
        finalize(checkpoint, os.close, descriptor)
    return checkpoint


class _Joined(Bundle):
    """Weights in one place, side files in another."""

    is_directory = True

    def __init__(self, weights: PathBundle, beside: PathBundle) -> None:
        self.name = beside.name
        self._weights, self._beside = weights, beside

    def __getitem__(self, key: str) -> Source:
        return self._weights[key] if key in self._weights else self._beside[key]

    def __contains__(self, key: object) -> bool:
        return key in self._weights or key in self._beside

    def __iter__(self) -> Iterator[str]:
        yield from self._weights
        yield from self._beside

    def __len__(self) -> int:
        return len(self._weights) + len(self._beside)

    def close(self) -> None:
        self._weights.close()
        self._beside.close()


def _bundle(home: Home, names: list[str]) -> Bundle:
    """These files, the model's manifest and record, and its side files; what else is there is not even listed."""
    with os.scandir(home.root) as entries:
        side = sorted(e.name for e in entries if not e.is_dir() and (e.name in (MANIFEST, RECORD) or not is_own(e.name)))
    model = str(home.root)
    if home.in_place:
        return PathBundle(home.root, [*names, *side], name=model, is_directory=True)
    weights = PathBundle(home.path, names, name=model, is_directory=True)
    return _Joined(weights, PathBundle(home.root, side, name=model, is_directory=True))


def _opened(bundle: Bundle, container: Container) -> Checkpoint:
    checkpoint = read_checkpoint(bundle, container)
    files = {name: Extent(name, 0, bundle[name].size) for name in bundle if not is_own(name)}
    record = read_record(bundle[RECORD], only_files=True) if RECORD in bundle else Record()
    digests = record.digests({}, files.values())
    return Checkpoint(bundle, container, replace(checkpoint.manifest, files=files, digests=digests))


def _file(home: Home, tier: Tier) -> Checkpoint:
    return _opened(_bundle(home, [tier.place]), Safetensors())


def _arrays(home: Home, tier: Tier) -> Checkpoint:
    with os.scandir(_folder(home, tier)) as entries:
        names = sorted(f"{tier.place}/{entry.name}" for entry in entries if not entry.is_dir())
    bundle = _bundle(home, names)
    return _opened(bundle, Finalized(read_keys(bundle), f"{tier.place}/"))


def _model(home: Home, tier: Tier) -> Checkpoint:
    return open_checkpoint(_folder(home, tier))


def _folder(home: Home, tier: Tier) -> Path:
    """Where a tier that is a folder lies: a link to one could lead anywhere."""
    place = home.path / tier.place
    if place.is_symlink() or not place.is_dir():
        raise MalformedError("is not a folder", code="E_LINK", file=str(place))
    return place


_OPENERS: Mapping[str, Callable[[Home, Tier], Checkpoint]] = {"file": _file, "arrays": _arrays, "model": _model}
