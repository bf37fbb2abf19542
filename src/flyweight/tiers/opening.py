"""A tier opened as a checkpoint: its weights, and the side files of the directory it belongs to."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from flyweight.checkpoint import Checkpoint, open_checkpoint, read_checkpoint
from flyweight.containers import Container
from flyweight.containers.npy_dir.finalized import Finalized
from flyweight.containers.npy_dir.reading import is_own, read_keys
from flyweight.containers.safetensors import Safetensors
from flyweight.manifest import Extent
from flyweight.sources import Bundle, PathBundle
from flyweight.tiers.table import Tier

__all__ = ["open_tier"]


def open_tier(root: Path, tier: Tier) -> Checkpoint:
    """The tier as it lies there; whether it may be trusted its seal says."""
    return _OPENERS[tier.name](root, tier)


def _bundle(root: Path, names: list[str]) -> PathBundle:
    """These files, the directory's manifest and its side files; what else is in it is not even listed."""
    beside = [e.name for e in os.scandir(root) if not e.is_dir() and (e.name == "manifest.json" or not is_own(e.name))]
    return PathBundle(root, [*names, *sorted(beside)], name=str(root), is_directory=True)


def _opened(bundle: Bundle, container: Container) -> Checkpoint:
    checkpoint = read_checkpoint(bundle, container)
    files = {name: Extent(name, 0, bundle[name].size) for name in bundle if not is_own(name)}
    return Checkpoint(bundle, container, replace(checkpoint.manifest, files=files))


def _file(root: Path, tier: Tier) -> Checkpoint:
    return _opened(_bundle(root, [tier.place]), Safetensors())


def _arrays(root: Path, tier: Tier) -> Checkpoint:
    names = sorted(f"{tier.place}/{entry.name}" for entry in os.scandir(root / tier.place) if not entry.is_dir())
    bundle = _bundle(root, names)
    return _opened(bundle, Finalized(read_keys(bundle), f"{tier.place}/"))


def _model(root: Path, tier: Tier) -> Checkpoint:
    return open_checkpoint(root / tier.place)


_OPENERS: Mapping[str, Callable[[Path, Tier], Checkpoint]] = {
    "packed": _file, "cache": _file, "finalized": _arrays, "int4": _model, "int3": _model,
}  # fmt: skip
