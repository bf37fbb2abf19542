"""Named quantizations of one format, as data: the pipeline makes recipes of them (`pipeline.plans.recipe`)."""

from __future__ import annotations

from typing import NamedTuple

from flyweight.foundation.tensor import CodecSpec


class Floor(NamedTuple):
    """How near a tensor must stay to its source, and the codec for one that does not."""

    cosine: float
    otherwise: CodecSpec


KEPT = CodecSpec("keep")
"""Stands for no codec: a tensor stays as it is."""


class PresetRule(NamedTuple):
    """Tensors whose names match a pattern get this codec; parameters that are left out have their defaults."""

    patterns: tuple[str, ...]
    codec: CodecSpec
    floor: Floor | None = None
    otherwise: tuple[CodecSpec, ...] = ()
    """Codecs for tensors whose shape the codec does not fit; the first that does is taken."""
    quantizer: str = ""
    """Empty: the one the codec names."""
    layers: str = ""
    """Only in these layers, such as "first 1/8, last 1/8, every 3rd"; empty: in all."""
    when: tuple[str, ...] = ()
    """Only in models of which all this is true, such as "tied" or "gqa >= 4"."""


class MaskRule(NamedTuple):
    """A mask over whatever the rules choose for the matrices of these names: a bit for each `block` weights of a row."""

    patterns: tuple[str, ...]
    block: int
    sparsity: float = 0.0


class Preset(NamedTuple):
    """Rules in order, the first that matches decides. Without any the name means what it means everywhere."""

    rules: tuple[PresetRule, ...] = ()
    protect: bool = True
    """Whether what is dense by default (embeddings, output head, norms, biases) stays as it is, and not only vectors."""
    masks: MaskRule | None = None
    name: str = ""
    """What it is better known by, where the name that was asked for is another."""
