"""Every codec in every role a tensor has in a model, with odd shapes: the logits of its decoded values, or a typed refusal."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

import flyweight
from flyweight.codecs import Codec, codec_for
from flyweight.containers import CONTAINERS
from flyweight.containers.abilities import adapted
from flyweight.containers.container import Container
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, UnsupportedError
from flyweight.foundation.manifest import Entry, Manifest, Typed
from flyweight.foundation.tensor import EncodedTensor, TensorSpec
from flyweight.runtime.linear import DecodedRows, Linear, form_of
from support.every_codec import INSTANCES, named, plausible
from support.materialise import materialise
from support.toys import write_files

SHAPES = [(1, 1), (1, 32), (1, 256), (32, 1), (2, 33), (3, 100), (5, 64), (128, 96), (256, 256), (7, 512)]


def encoded(codec: Codec, spec: TensorSpec) -> EncodedTensor | None:
    """A tensor with this codec, if it stores such shapes."""
    try:
        fitted, parts = plausible(codec, spec, 3)
        return EncodedTensor(spec, fitted.spec, parts)
    except UnsupportedError:
        return None


def values_of(tensor: EncodedTensor) -> np.ndarray:
    with np.errstate(all="ignore"):  # some noise is NaN
        decoded = codec_for(tensor.codec).decode(tensor.spec, tensor.parts)
        return np.asarray(decoded, np.float32).reshape(tensor.spec.rows, -1)


@named(INSTANCES)
def test_any_rows_of_a_matrix_are_those_of_its_decoded_values(codec: Codec) -> None:
    """As an embedding: some rows, one of them twice."""
    tried = 0
    for shape in SHAPES:
        tensor = encoded(codec, TensorSpec(shape, DType.F32))
        if tensor is None:
            continue
        tried += 1
        whole = values_of(tensor)
        rows = np.array([0, shape[0] - 1, 0])
        for chosen in (rows, slice(0, 1), slice(shape[0] // 2, shape[0])):
            with np.errstate(all="ignore"):
                assert np.array_equal(DecodedRows(tensor)[chosen], whole[chosen], equal_nan=True), shape
    assert tried


@named(INSTANCES)
def test_only_a_matrix_has_a_form_for_products(codec: Codec) -> None:
    for shape in ((), (32,), (256,), (1024,), (2, 3, 256)):
        tensor = encoded(codec, TensorSpec(shape, DType.F32))
        assert tensor is None or form_of(tensor) is None


@named(INSTANCES)
def test_a_product_is_that_of_the_decoded_values(codec: Codec) -> None:
    """As a matrix. The bound: each sum has `columns` terms, so f32 in any order errs by columns · 2^-23 of their sizes."""
    for shape in SHAPES:
        tensor = encoded(codec, TensorSpec(shape, DType.F32))
        if tensor is None:
            continue
        whole = values_of(tensor)
        if not np.isfinite(whole).all() or np.abs(whole).max(initial=0) > 1e30:
            continue
        whole = whole.astype(np.float64)
        x = np.random.default_rng(1).standard_normal((2, shape[1])).astype(np.float32)
        out = np.full((2, shape[0]), np.nan, np.float32)
        Linear([tensor], int8=False)(x, out)
        bound = (np.abs(x) @ np.abs(whole).T) * shape[1] * 2.0**-23
        assert (np.abs(out - x @ whole.T) <= bound + 1e-37).all(), shape


# In files -----------------------------------------------------------------------------------------

RANKS = [(), (1,), (64,), (257,), (512,), (1, 256), (3, 256), (2, 33), (2, 1, 256), (2, 3, 64)]


def carried(container: Container) -> dict[str, tuple[Entry, EncodedTensor]]:
    """A tensor for every codec and rank that the container holds."""
    found: dict[str, tuple[Entry, EncodedTensor]] = {}
    for number, codec in enumerate(INSTANCES):
        for shape in RANKS:
            name = f"{codec.name}.{number}.{'x'.join(map(str, shape)) or 'scalar'}.weight"
            spec = TensorSpec(shape, DType.F32)
            try:
                own = codec_for(adapted(container, codec.spec, name))
                tensor = encoded(own, spec)
                if tensor is None or not container.carries(spec, tensor.codec):
                    continue
                entry = Entry(name, spec, tensor.codec, codec_for(tensor.codec).layout(spec))
                container.place(draft(container, {name: entry}), "x")
            except FlyweightError:
                continue
            found[name] = entry, tensor
    return found


def draft(container: Container, entries: dict[str, Entry]) -> Manifest:
    gguf = {"general.architecture": Typed("str", "toy")}
    files = {"config.json": b'{"model_type": "toy"}'} if container.is_directory else {}
    return Manifest(container.name, entries, gguf if container.dialect == "gguf" else {}, files, container.dialect or "hf")


def write(container: Container, found: dict[str, tuple[Entry, EncodedTensor]], place: Path) -> tuple[Path, Mapping[str, Entry]]:
    """The file, and its tensors as the container spells them: some parameters may mean the same for a tensor as others."""
    placement = container.place(
        draft(container, {name: entry for name, (entry, _) in found.items()}), f"model{container.suffix}"
    )
    files = materialise(placement, lambda entry, part: found[entry.name][1].parts[part].tobytes(), container=container)
    write_files(place, files)
    return place if container.is_directory else place / next(iter(files)), placement.manifest.entries


def read_and_converted(container: Container, tensors: dict[str, tuple[Entry, EncodedTensor]], place: Path) -> bool:
    """Whether these can stand in one file and be converted; what is written must be read in any case."""
    try:
        path, placed = write(container, tensors, place / "model")
    except FlyweightError:
        return False
    finite = True
    with warnings.catch_warnings(), flyweight.open(path) as checkpoint:
        warnings.simplefilter("error")
        for name, (_, tensor) in tensors.items():
            expected = values_of(tensor)
            finite &= bool(np.isfinite(expected).all())
            assert checkpoint.manifest.entries[name].codec == placed[name].codec
            with np.errstate(all="ignore"):
                assert np.array_equal(checkpoint[name].reshape(-1), expected.reshape(-1), equal_nan=True), name
    flyweight.verify(path)
    assert flyweight.diff(path, path).identical or not finite, list(tensors)
    try:
        flyweight.convert(path, place / "dense.safetensors", quant="dense", allow_ungated=True)
    except FlyweightError:
        return False
    with flyweight.open(place / "dense.safetensors") as checkpoint:
        assert {name: checkpoint[name].shape for name in tensors} == {name: e.spec.shape for name, (e, _) in tensors.items()}
    return True


ANY_NAMES = [container for container in CONTAINERS if container.name != "uqff_blob"]
"""Those that store tensors of any name; the others number those of an architecture."""


@pytest.mark.parametrize("container", ANY_NAMES, ids=lambda container: container.name)
def test_tensors_of_any_rank_are_read_as_what_was_written(container: Container, tmp_path: Path) -> None:
    """Opened, verified, compared and converted, whatever the rank; what a target does not hold is refused.

    All shapes of a codec in one file, and each in its own where one of them is refused.
    """
    found = carried(container)
    assert found
    assert container.name == "squizd" or {len(entry.spec.shape) for entry, _ in found.values()} >= {1, 2}
    alone: list[str] = []
    for codec, names in groupby(found, lambda name: name.split(".")[:2]):
        together = {name: found[name] for name in names}
        if not read_and_converted(container, together, tmp_path / ".".join(codec)):
            alone += together
    for name in alone:
        read_and_converted(container, {name: found[name]}, tmp_path / name)
