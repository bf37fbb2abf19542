"""What both generations do alike when a UQFF is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flyweight.containers.container import Image, Placement
from flyweight.containers.hf import place_side_files
from flyweight.containers.uqff.uqff_files import SUFFIX
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.manifest import Entry, Extent, Manifest
from flyweight.foundation.tensor import RAW

WEIGHT, BIAS = ".weight", ".bias"
ROPE_NOTE = "_mistralrs_qk_rope_layout"
_QUANTIZATION = frozenset({"quantization", "quantization_config", ROPE_NOTE})
_PLAIN = ("nothing is quantized; use --quant q4k to quantize",)

Extents = dict[tuple[str, str], Extent]
"""(tensor, part) → where it lies."""


def require_directory(name: str) -> None:
    if name.endswith(SUFFIX):
        raise UnsupportedError(
            "a UQFF is a directory, whose files have names of their own", code="E_NAME", file=name,
            hint=f"give the name of a directory, such as {name.removesuffix(SUFFIX)}",
        )  # fmt: skip


def plain_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """config.json without what it says of the old weights, at any depth; the same object where it says nothing."""
    wanted = _without_statement(config)
    return config if wanted == config else wanted


def _without_statement(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_statement(item) for key, item in value.items() if key not in _QUANTIZATION}


def with_bias(entries: Mapping[str, Entry], module: str) -> list[str]:
    """The tensors of a layer: its weight, and its bias if it has one."""
    bias = entries.get(module + BIAS)
    return [module + WEIGHT, module + BIAS] if bias is not None and bias.codec == RAW else [module + WEIGHT]


def placement(manifest: Manifest, container: str, images: Mapping[str, Image], extents: Extents) -> Placement:
    """The files of a model, whose tensors lie at these places."""
    entries = {
        name: replace(entry, extents={part: extents[name, part] for part in entry.parts})
        for name, entry in manifest.entries.items()
    }
    new_files, copies = place_side_files(manifest.files)
    is_plain = all(entry.codec == RAW for entry in entries.values())
    return Placement(
        replace(manifest, format=container, entries=entries), {**images, **new_files}, copies, notes=_PLAIN if is_plain else ()
    )
