"""Opening a model by its path: of any format, with deltas on it, or as a delta that says where its base is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from flyweight.checkpoint.checkpoint import Checkpoint, read_checkpoint, without_collector
from flyweight.containers import recognise
from flyweight.containers.abilities import Inflates
from flyweight.deltas.recognition import is_adapter, is_delta, is_wdelta
from flyweight.foundation.errors import FlyweightError, LimitError, ParentError, UnsupportedError
from flyweight.sources import Bundle, open_bundle

if TYPE_CHECKING:
    from flyweight.deltas.changes import Delta

Place = Path | str
MAX_CHAIN = 500
"""Deltas, each on the one before: all of their files are open."""


def open_checkpoint(
    path: Place | Checkpoint, *, deltas: Sequence[Place] = (), checks_digests: bool = False, in_f32: bool = False
) -> Checkpoint:
    """Open a file or directory of any known format, or a delta that says where its base is; `checks_digests` as for
    `Checkpoint`.

    `deltas` are applied in order, each to what those before it make. A checkpoint that is open already can be the base of
    many, and is not closed with them. Where a delta adds numbers, the result has the base's element types, or f32 if `in_f32`,
    but for what a delta with digests is made on: they are of its stored types.
    """
    if isinstance(path, Checkpoint) and not deltas:
        return path
    first, *others = _in_f32(deltas) if in_f32 else [False] * (1 + len(deltas))
    base = path if isinstance(path, Checkpoint) else _opened(path, checks_digests, first)
    try:
        for place, is_f32 in zip(deltas, others, strict=True):
            bundle = open_bundle(place)
            base = _overlaid(base, read_delta(bundle), bundle, is_f32, owns_base=base is not path)
    except BaseException as error:
        if base is not path:
            base.close()
        if isinstance(error, ParentError) and not in_f32 and _is_lossy(base):
            # The public tool makes sums f32, and a delta on such a result has the hash of that.
            return open_checkpoint(path, deltas=deltas, checks_digests=checks_digests, in_f32=True)
        raise
    return base


def _in_f32(deltas: Sequence[Place]) -> list[bool]:
    """Whether sums can be f32 in the base, and in what each of these makes of it: if no later delta has digests."""
    found = [True]
    for place in reversed(deltas):
        with closing(open_bundle(place)) as bundle:
            found.append(found[-1] and not read_delta(bundle).has_digests)
    return found[::-1]


def _is_lossy(checkpoint: Checkpoint) -> bool:
    from flyweight.checkpoint.overlay import Overlay

    return isinstance(checkpoint, Overlay) and not all(delta.is_exact for delta in checkpoint.deltas)


def read_delta(bundle: Bundle) -> Delta:
    """The delta that a bundle holds. It is closed if it holds none."""
    try:
        if not is_delta(bundle):
            raise UnsupportedError(
                "is not a delta", code="E_NOT_A_DELTA", file=bundle.name, hint="a delta is a .wdelta file or a LoRA adapter"
            )
        if is_wdelta(bundle):
            from flyweight.deltas.wdelta_file import read_wdelta

            assert bundle.single is not None
            with without_collector():
                return read_wdelta(bundle[bundle.single], bundle.single)
        from flyweight.deltas.lora import read_adapter

        return read_adapter(bundle)
    except FlyweightError as error:
        bundle.close()
        raise error.at(file=bundle.name) from None


def _overlaid(base: Checkpoint, delta: Delta, bundle: Bundle, in_f32: bool, *, owns_base: bool = True) -> Checkpoint:
    from flyweight.checkpoint.overlay import Overlay  # which most models do not need

    try:
        if len(base.delta_places) == MAX_CHAIN:
            raise too_long(bundle.name)
        if is_adapter(bundle):
            from flyweight.deltas.lora import named_as

            delta = named_as(delta, base.manifest.entries)
        with without_collector():
            return Overlay(base, delta, bundle, in_f32=in_f32, owns_base=owns_base)
    except FlyweightError as error:
        bundle.close()
        raise error.at(file=delta.name) from None


def _opened(path: Place, checks_digests: bool, in_f32: bool) -> Checkpoint:
    """A model, or a delta on its base: deltas are read down to the model, and put on it from there."""
    chain: list[tuple[Delta, Bundle, bool]] = []
    bundle = open_bundle(path)
    base: Checkpoint | None = None
    try:
        seen = set[str]()
        while is_delta(bundle):
            delta = read_delta(bundle)
            chain.append((delta, bundle, in_f32))
            in_f32 = in_f32 and not delta.has_digests
            if (real := os.path.realpath(bundle.name)) in seen or len(seen) == MAX_CHAIN:
                raise too_long(bundle.name)
            seen.add(real)
            bundle = open_bundle(_place_of_base(delta))
        base = _read(bundle, checks_digests)
        while chain:
            base = _overlaid(base, *chain.pop())
    except BaseException:
        for opened in (base, *(bundle for _, bundle, _ in chain)):
            if opened is not None:
                opened.close()
        raise
    return base


def _place_of_base(delta: Delta) -> Path:
    """ParentError if it is not there."""
    place, hint = base_place(delta), "give the base, and this file with --delta"
    if place is None:
        raise ParentError("does not say where its base is", file=delta.name, hint=hint)
    if not os.path.exists(place):
        raise ParentError(f"its base '{delta.parent.name}' is not at '{place}'", file=delta.name, hint=hint)
    return place


def _read(bundle: Bundle, checks_digests: bool) -> Checkpoint:
    try:
        container = recognise(bundle)
        bundle = container.view(bundle) if isinstance(container, Inflates) else bundle
    except FlyweightError as error:
        bundle.close()
        raise error.at(file=bundle.name) from None
    return read_checkpoint(bundle, container, checks_digests=checks_digests)


def too_long(file: str) -> LimitError:
    return LimitError(
        f"a chain of more than {MAX_CHAIN} deltas", code="E_CHAIN", file=file,
        hint="make one of several with `flyweight delta squash`; a delta that is its own base is damaged",
    )  # fmt: skip


def base_place(delta: Delta) -> Path | None:
    """Where a delta says that its base is."""
    if delta.parent.path is None:
        return None
    return Path(os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(delta.name)), delta.parent.path)))
