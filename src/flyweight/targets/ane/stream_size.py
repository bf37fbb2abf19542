"""Bytes of weights: what crosses the stream, and what a compiled segment takes.

    fp16                  2 n
    int8                  n + 2 · output channels
    palette of b bits     ⌈b n / 8⌉ + codebooks
    sparse                ⌈n / 8⌉ + the same of what the mask keeps
    blockwise             n (int4: n / 2) + 2 · blocks

In a segment a codebook takes a multiple of 64 bytes, and one that serves the whole tensor is there once for each engine. A
segment takes whole pages of 16 KiB. This gives 13 of 14 sizes that the M6 study lists, to the byte.
"""

from __future__ import annotations

from collections.abc import Iterable

from flyweight.targets.ane.engine_form import EngineForm
from flyweight.targets.ane.facts.fact import Fact, measured

_LINE, _PAGE = 64, 16 << 10
SIZE_MODEL: Fact[str] = measured(
    "indices or values, codebooks, scales, mask", "M6 study", "compiled segments have these sizes; the guide gives the rules"
).named("bytes of a form")


def dense_bytes(weights: int) -> int:
    return 2 * weights


def streamed_bytes(form: EngineForm) -> int:
    """What crosses the stream each time the weight is used, if it streams."""
    return _body(form) + form.tables * form.lut_bytes


def segment_bytes(forms: Iterable[EngineForm], engines: int) -> int:
    """The size of a compiled segment of such weights on a target of so many engines."""
    total = sum(_body(form) + _codebooks(form, engines) for form in forms)
    return -(-total // _PAGE) * _PAGE


def _body(form: EngineForm) -> int:
    kept = form.weights if form.stored is None else form.stored
    codes = -(-kept // form.vector)
    mask = 0 if form.stored is None else -(-form.weights // 8)
    scales = form.scales if form.is_blockwise else form.channels if form.scales else 0  # one for all is repeated for each
    return mask + -(-codes * form.bits // 8) + 2 * scales


def _codebooks(form: EngineForm, engines: int) -> int:
    copies = engines if form.tables == 1 else form.tables
    return copies * (-(-form.lut_bytes // _LINE) * _LINE)
