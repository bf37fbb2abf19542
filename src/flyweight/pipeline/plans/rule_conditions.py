"""Where a rule of a recipe holds besides its names: in some layers, or in some models.

    layers   "first 2"   "first 1/8"   "last 2"   "last 1/8"   "every 3rd"        several with commas between
    when     "tied"   "statistics"   "gqa >= 4"   "layers = 80"                   "no …" is the opposite of the first two

A share of the layers is rounded down from the front, so that `last 1/8` begins at layer ⌊7n/8⌋. `every 3rd` counts from the
layer after those that are `first`. `gqa` is how many query heads share a key and a value. A model is `tied` if its output head
is the embedding. There are `statistics` if inputs of its layers were measured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import TensorSpec

_LAYER = re.compile(r"(?:^|\.)(\d+)\.")
_ENDS = re.compile(r"(first|last) ([1-9]\d{0,5})(?:/([1-9]\d{0,5}))?")
_EVERY = re.compile(r"every ([1-9]\d{0,5})(?:st|nd|rd|th)")
_WORD = re.compile(r"(no )?(tied|statistics)")
_NUMBER = re.compile(r"(gqa|layers) (>=|<|=) (\d{1,6})")
_QUERIES, _KEYS = ("attn_q.weight", "q_proj.weight"), ("attn_k.weight", "k_proj.weight")
_FUSED, _OUTPUT = ("attn_qkv.weight", "qkv_proj.weight"), ("attn_output.weight", "o_proj.weight")
_NONE = Fraction(0)
_HEADS = ("output.weight", "lm_head.weight")


def layer_of(name: str) -> int | None:
    """The layer a tensor belongs to: the first number in its name."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class ModelTraits:
    """What rules ask of a model, as far as its tensors' names and shapes tell."""

    layers: int = 0
    gqa: int = 1
    tied: bool = False
    statistics: bool = False

    @classmethod
    def of(cls, tensors: Mapping[str, TensorSpec], *, statistics: bool = False) -> ModelTraits:
        """Of a model whose tensors are named as in GGUF or as in Hugging Face directories."""
        last = max((layer for name in tensors if (layer := layer_of(name)) is not None), default=-1)
        tied = not any(name.endswith(_HEADS) and layer_of(name) is None for name in tensors)
        return cls(last + 1, _heads_together(tensors), tied, statistics)


UNKNOWN = ModelTraits()


def _heads_together(tensors: Mapping[str, TensorSpec]) -> int:
    """Query heads for each head of keys, from the rows of their projections."""

    def first(endings: tuple[str, ...]) -> TensorSpec | None:
        return next((spec for name, spec in tensors.items() if name.endswith(endings)), None)

    queries, keys = first(_QUERIES), first(_KEYS)
    if queries is not None and keys is not None:
        return max(queries.rows // max(keys.rows, 1), 1)
    fused, output = first(_FUSED), first(_OUTPUT)
    if fused is None or output is None or fused.rows <= output.columns:
        return 1
    return max(2 * output.columns // (fused.rows - output.columns), 1)


@dataclass(frozen=True, slots=True)
class Layers:
    """Some layers of a model, whatever number of them it has."""

    text: str
    first: Fraction
    """So many layers, or a share of them if it is less than 1."""
    last: Fraction
    every: int

    @classmethod
    def read(cls, text: object) -> Layers:
        terms: dict[str, Fraction] = {}
        for term in text.split(",") if isinstance(text, str) else ():
            if found := _ENDS.fullmatch(term.strip()):
                key, share = found[1], Fraction(int(found[2]), int(found[3] or 1))
            elif found := _EVERY.fullmatch(term.strip()):
                key, share = "every", Fraction(int(found[1]))
            if found is None or key in terms or (key != "every" and found[3] and share >= 1):
                terms = {}
                break
            terms[key] = share
        if not terms:
            raise UnsupportedError(
                f"layers = {text!r} names no layers", code="E_RECIPE",
                hint="such as 'first 2', 'first 1/8, last 1/8', 'every 3rd', each at most once",
            )  # fmt: skip
        return cls(str(text), terms.get("first", _NONE), terms.get("last", _NONE), int(terms.get("every", 0)))

    def have(self, layer: int, count: int) -> bool:
        """Whether a layer of so many is one of them."""
        start = _share(self.first, count)
        end = count - int(self.last) if self.last >= 1 else int((1 - self.last) * count)
        return layer < start or layer >= end or bool(self.every and (layer - start) % self.every == self.every - 1)


def _share(part: Fraction, count: int) -> int:
    return int(part) if part >= 1 else int(part * count)


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that is true of some models."""

    text: str

    @classmethod
    def read(cls, text: object) -> Condition:
        if not isinstance(text, str) or not (_WORD.fullmatch(text) or _NUMBER.fullmatch(text)):
            raise UnsupportedError(
                f"when = {text!r} is no condition", code="E_RECIPE",
                hint="known: 'tied', 'statistics', 'no tied', 'no statistics', 'gqa >= 4', 'layers = 80'",
            )  # fmt: skip
        return cls(text)

    def holds(self, model: ModelTraits) -> bool:
        if found := _WORD.fullmatch(self.text):
            return bool(getattr(model, found[2])) is not bool(found[1])
        trait, sign, number = self.text.split(" ")
        has, wanted = int(getattr(model, trait)), int(number)
        return has >= wanted if sign == ">=" else has < wanted if sign == "<" else has == wanted
