"""Every setting that is read, with values of every kind: only our errors come out, and a model that is accepted runs.

The settings are those the code asks for while it reads a valid model of each family, recorded, not listed.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

from flyweight import models
from flyweight.checkpoint import Checkpoint, open_checkpoint
from flyweight.containers.container import Container
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.manifest import Manifest, Typed
from flyweight.models.checked_record import Record
from flyweight.pipeline import convert
from flyweight.runtime import open_model
from flyweight.sources import MemoryBundle
from support import GOLDEN
from support.toys import write_toy_llama

DECODERS = GOLDEN / "decoders"
FAMILIES = sorted(path.name for path in DECODERS.iterdir())
DEEP: Any = 0
for _ in range(60):
    DEEP = [DEEP]
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 2**31 - 1, 2**31, 2**63, 10**31, -(10**31), 10**400, 0.0, 0.5, 1.0, -1.5, 1e-320, 1e-19,
    1e18, 3e38, 1e308, "", "x", "1", "\x1b]0;x\x07", [], [1], [None], ["full_attention"], {}, {"x": 1}, DEEP,
)  # fmt: skip
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 2.0},
    "yarn": {
        "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.0,
        "extrapolation_factor": 1.0, "truncate": True,
    },
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
    },
    "yarn, by mscale": {"factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5},
    "longrope": {"long_factor": [2.0], "short_factor": [1.0], "attention_factor": 1.0},
}  # fmt: skip


LISTS = ("long_factor", "short_factor")
SCALED = ("llama", "gemma3_text", "phi3")  # between them they have every kind of scaling, and both kinds of layers
METADATA: tuple[Any, ...] = (
    True, 0, 1, -1, 2, 3, 2**31 - 1, 2**32 - 1, 2**64 - 1, -(2**63), 0.0, -1.5, 1e-45, 1e30, 1e308, float("inf"), float("nan"),
    "", "x", "{", "[]", "{}", '{"x": 1}', "\x1b]0;x\x07", [], [1], [0.5], [True], ["a"], ["a"] * 96, [-1] * 96, [1e30] * 96,
    [[1]], [["a"], []],
)  # fmt: skip


def settings_of(family: str) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((DECODERS / family / "config.json").read_text())
    return settings


ran: set[str] = set()


class Base(NamedTuple):
    """A valid model in memory."""

    manifest: Manifest
    container: Container
    files: Mapping[str, bytes]

    def checkpoint(self, **changes: Any) -> Checkpoint:
        """The model with another manifest, in a bundle of its own, which may be closed."""
        bundle = MemoryBundle(self.files, is_directory=self.manifest.format == "hf")
        return Checkpoint(bundle, self.container, replace(self.manifest, **changes))


@cache
def base_of(path: Path) -> Base:
    with open_checkpoint(path) as checkpoint:
        files = {name: bytes(source.read(0, source.size)) for name, source in checkpoint.bundle.items()}
        return Base(checkpoint.manifest, checkpoint.container, files)


def use(checkpoint: Checkpoint) -> None:
    """What inspect, convert, run and eval do with settings."""
    try:
        other = "gguf" if checkpoint.manifest.dialect == "hf" else "hf"
        models.translate(checkpoint.manifest, other, checkpoint.read)
    except FlyweightError as error:
        checked(error)
    found = models.blueprint(checkpoint.manifest, checkpoint.read)
    function = repr((checkpoint.manifest.dialect, found.config._replace(settings={})))
    if function not in ran:  # most settings change nothing that the graph knows
        ran.add(function)
        model = open_model(checkpoint, context=1, threads=1)
        model.decoder.forward([1], model.decoder.cache())


def checked(error: FlyweightError) -> None:
    if not str(error).isprintable() or len(str(error)) > 500:
        raise ValueError(f"an error that cannot be shown: {error!r}")


def fault(checkpoint: Checkpoint) -> str:
    """Empty if nothing but our errors came out, and no warning."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            use(checkpoint)
    except FlyweightError as error:
        checked(error)
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    return ""


def with_settings(family: str, settings: Mapping[str, Any]) -> Checkpoint:
    return base_of(DECODERS / family).checkpoint(files={"config.json": json.dumps(settings).encode()})


def with_metadata(base: Base, key: str, value: Any) -> Checkpoint:
    metadata = {k: typed for k, typed in base.manifest.metadata.items() if k != key}
    if value is not None:
        metadata[key] = Typed("any", value)
    return base.checkpoint(metadata=metadata)


def asked_for(checkpoint: Checkpoint) -> list[str]:
    """The keys that are looked at."""
    keys: set[str] = set()
    look = Record.get

    def recorded(record: Record, key: str) -> Any:
        keys.add(key)
        return look(record, key)

    with mock.patch.object(Record, "get", recorded):
        use(checkpoint)
    return sorted(keys)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_setting_with_every_odd_value(family: str) -> None:
    base = settings_of(family) | {"use_sliding_window": True}
    keys = asked_for(with_settings(family, base))
    assert len(keys) > 15
    tried = {f"{key} = {value!r:.60}": with_settings(family, base | {key: value}) for key in keys for value in ODD}
    assert {label: found for label, checkpoint in tried.items() if (found := fault(checkpoint))} == {}


@pytest.mark.parametrize(("family", "place"), [*((family, "rope_scaling") for family in SCALED), ("llama", "rope_parameters")])
def test_every_setting_of_rotary_embeddings_with_every_odd_value(family: str, place: str) -> None:
    base, checkpoint = settings_of(family), base_of(DECODERS / family).checkpoint()
    pairs = models.blueprint(checkpoint.manifest, checkpoint.read).config.rotary // 2
    for kind, scaling in SCALINGS.items():
        valid = {"rope_type": kind.split(",")[0]} | {k: v * pairs if k in LISTS else v for k, v in scaling.items()}
        for key in ("rope_theta", "partial_rotary_factor", *valid):
            for value in ODD + tuple([value] * pairs for value in ODD if key in LISTS):
                tried = with_settings(family, base | {place: valid | {key: value}})
                assert fault(tried) == "", (kind, key, value)


def odd_metadata(base: Base, *, but: tuple[str, ...] = ("nothing",)) -> dict[str, str]:
    """The faults that odd values bring to light, by key and value; None is a key that is not there."""
    keys = {*asked_for(base.checkpoint()), *base.manifest.metadata}
    assert len(keys) > 15
    tried = ((key, value) for key in sorted(keys) if not key.startswith(but) for value in (None, *METADATA))
    return {f"{k} = {v!r:.60}": found for k, v in tried if (found := fault(with_metadata(base, k, v)))}


def test_every_key_of_metadata_with_every_odd_value(tmp_path: Path) -> None:
    """Of a model with all its words."""
    convert(write_toy_llama(tmp_path / "toy", layers=1), tmp_path / "model.gguf")
    assert odd_metadata(base_of(tmp_path / "model.gguf")) == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_key_of_a_familys_metadata_with_every_odd_value(family: str, tmp_path: Path) -> None:
    convert(DECODERS / family, tmp_path / "model.gguf")
    assert odd_metadata(base_of(tmp_path / "model.gguf"), but=("tokenizer.", "general.")) == {}
