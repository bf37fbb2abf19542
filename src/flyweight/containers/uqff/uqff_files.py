"""Which files a UQFF consists of, in both generations.

    <stem>.uqff, or <stem>-0.uqff, <stem>-1.uqff …   layers, in as many shards as it takes
    residual.safetensors                             all other tensors, plain; model*.safetensors take its place
    config.json, tokenizer.json …                    side files
    uqff_report.json                                 how it was made

A directory may hold the same model several times, in other quantizations: then one of its .uqff files must be chosen, by its
path. A file so named also opens those beside it that belong to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from flyweight.containers.hf import CONFIG, INDEX, WEIGHTS, is_side_file, read_tensors
from flyweight.containers.safetensors import Header, metadata_of, read_header
from flyweight.foundation import strict_json
from flyweight.foundation.errors import FlyweightError, MalformedError, UnsupportedError
from flyweight.foundation.limits import MAX_JSON_BYTES, MAX_SHARDS
from flyweight.foundation.manifest import Entry, Extent, Manifest, Typed
from flyweight.sources import Bundle

SUFFIX, RESIDUAL, REPORT = ".uqff", "residual.safetensors", "uqff_report.json"
SHARD_BYTES = 10 * 2**30
"""Where mistral.rs begins a new shard."""
WEIGHT, BIAS = ".weight", ".bias"
TIED, ROPE_NOTE = "tie_word_embeddings", "_mistralrs_qk_rope_layout"
"""Settings of config.json."""
_NAME = re.compile(r"(?P<stem>.+?)(?:-(?P<number>0|[1-9][0-9]{0,5}))?\.uqff")


class Members(NamedTuple):
    """The files of one model."""

    home: Bundle
    """What they lie in."""
    shards: tuple[str, ...]


def has_uqff(bundle: Bundle) -> bool:
    """Whether layers of UQFF are, by the names of files, what the bundle holds. Weights that loaders prefer come first."""
    if bundle.single is not None:
        return bundle.single.endswith(SUFFIX)
    return any(map(_is_shard, bundle)) and INDEX not in bundle and WEIGHTS not in bundle


def first_shard(bundle: Bundle) -> str:
    """A file that tells which generation it is."""
    return bundle.single or min(filter(_is_shard, bundle))


def _is_shard(name: str) -> bool:
    return name.endswith(SUFFIX) and "/" not in name


def members(bundle: Bundle) -> Members:
    home = bundle.siblings()
    groups = [shards for shards in _groups(filter(_is_shard, home)) if bundle.single in (None, *shards)]
    if not groups:
        raise MalformedError(f"there is no file named *{SUFFIX}", code="E_NO_WEIGHTS", file=bundle.name)
    if len(groups) > 1:
        firsts = [shards[0] for shards in groups]
        raise UnsupportedError(
            f"the directory has {len(groups)} UQFF models: {', '.join(firsts[:8])}{', …' if len(firsts) > 8 else ''}",
            code="E_CHOICE", file=bundle.name, hint=f"give the path of one, such as {bundle.name}/{firsts[0]}",
        )  # fmt: skip
    return Members(home, _complete(groups[0], bundle.name))


def _groups(names: Iterable[str]) -> list[list[str]]:
    """The shards of each model, in order. A name with a number is a shard only where there is a number 0."""
    numbered: dict[str, dict[int, str]] = {}
    groups: list[list[str]] = []
    for name in sorted(names):
        found = _NAME.fullmatch(name)
        if found is None or found["number"] is None:
            groups.append([name])
        else:
            numbered.setdefault(found["stem"], {})[int(found["number"])] = name
    for shards in numbered.values():
        in_turn = [shards[number] for number in sorted(shards)]
        groups += [in_turn] if 0 in shards else ([name] for name in in_turn)
    return groups


def _complete(shards: list[str], file: str) -> tuple[str, ...]:
    if len(shards) > MAX_SHARDS:
        raise UnsupportedError(f"more than {MAX_SHARDS} shards", code="E_SHARDS", file=file)
    for number, name in enumerate(shards):
        if number and not name.endswith(f"-{number}{SUFFIX}"):
            raise MalformedError(
                f"there is {name}, but no shard {number}", code="E_SHARD_MISSING", file=file, hint="complete the download"
            )
    return tuple(shards)


def read_config(home: Bundle) -> dict[str, Any]:
    """config.json; nothing where there is none, or none that can be read."""
    if CONFIG not in home or home[CONFIG].size > MAX_JSON_BYTES:
        return {}
    try:
        config = strict_json.load(home[CONFIG])
    except FlyweightError:
        return {}
    return config if isinstance(config, dict) else {}


class Residual(NamedTuple):
    entries: Mapping[str, Entry]
    metadata: Mapping[str, Typed]
    dialect: str


class Reading(NamedTuple):
    """All that the files of a model say."""

    found: Members
    config: Mapping[str, Any]
    version: tuple[int, int, int]
    layers: Mapping[str, Entry]
    """The tensors in layers: weights and biases."""
    types: Mapping[str, int]
    """Module → the type of its layer."""
    residual: Residual
    named: bool = True
    """Whether modules have names; otherwise they are `layers.<number>`."""
    unused: Sequence[str] = ()
    """Keys that belong to no layer."""


def read_residual(found: Members, layers: Mapping[str, Entry]) -> Residual:
    """The tensors beside the layers. A layer counts for more than a plain tensor of its name."""
    home = found.home
    if WEIGHTS in home or INDEX in home:
        stored, tensors = read_tensors(home)
    elif RESIDUAL in home:
        header: Header = read_header(home[RESIDUAL], RESIDUAL)
        stored, tensors = header.metadata, header.tensors
    else:
        return Residual({}, {}, "hf")
    metadata, dialect = metadata_of(stored, home.name)
    metadata = {key: value for key, value in metadata.items() if not key.startswith("uqff.")}
    return Residual({name: entry for name, entry in tensors.items() if name not in layers}, metadata, dialect)


def side_files(found: Members) -> dict[str, Extent | bytes]:
    """Those of the directory. Without config.json it is no model's, and what lies there is nobody's."""
    if CONFIG not in found.home:
        return {}
    names = (name for name in found.home if is_side_file(name) and name != REPORT)
    return {name: Extent(name, 0, found.home[name].size) for name in names}


def in_order(manifest: Manifest) -> Manifest:
    """The same, its tensors in the order of their names; numbers count as such."""
    entries = {name: manifest.entries[name] for name in sorted(manifest.entries, key=_natural)}
    return Manifest(manifest.format, entries, manifest.metadata, manifest.files, manifest.dialect)


def _natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """Then by the name itself: "a01" and "a1" have one number, but are two."""
    pieces = re.split(r"(\d+)", name)
    return [(int(piece), "") if piece.isdecimal() and len(piece) < 10 else (-1, piece) for piece in pieces], name
