"""Which operations of a program are weights, what they are called, and that nothing else changes when they are written anew."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import flyweight
from flyweight.containers import CONTAINERS
from flyweight.containers.coreml.element_types import TYPES
from flyweight.containers.coreml.weight_file import WeightFile, WeightFileLayout
from flyweight.foundation.errors import UnsupportedError
from flyweight.sources import MemoryBundle, MemorySource
from support.coreml_files import (
    F16,
    I32,
    MODEL,
    SHAPE,
    SOUND,
    WEIGHTS,
    Forms,
    blob_value,
    const,
    function,
    halves,
    integer_value,
    model,
    of_form,
    of_operations,
    operation,
    output,
    package,
    used,
    without_weights,
)
from support.toys import write_files

COREML = CONTAINERS["coreml"]


def names(files: dict[str, bytes]) -> list[str]:
    return list(COREML.parse(MemoryBundle(files)).entries)


# Which are weights, and their names ---------------------------------------------------------------


def test_constants_of_the_program_itself_are_no_weights() -> None:
    forms = Forms()
    strides = const("strides", integer_value(1, 1, shape=(2,)), I32, (2,))
    assert names(of_operations([strides, *forms.plain()], forms.file)) == ["w"]


def test_what_two_functions_share_is_one_weight_and_two_of_one_name_are_two() -> None:
    assert names(SOUND["of two functions"]) == ["shared", "w", "other/w"]


def test_weights_of_inner_blocks_are_found() -> None:
    assert names(SOUND["of nested blocks"]) == ["w", "u", "v"]


def test_the_same_constant_under_two_names_in_one_function_is_one_weight() -> None:
    forms = Forms()
    value = forms.blob(F16, SHAPE)
    files = of_operations([const("w", value), const("v", value), used("v", "z")], forms.file)
    assert names(files) == ["w"]


def test_two_shapes_of_one_blob_are_two_weights() -> None:
    forms = Forms()
    offset = forms.file.add(F16, 64, halves(64))
    constants = [const("w", blob_value(F16, SHAPE, offset)), const("v", blob_value(F16, (16, 4), offset), F16, (16, 4))]
    entries = COREML.parse(MemoryBundle(of_operations(constants, forms.file))).entries
    assert {name: entry.spec.shape for name, entry in entries.items()} == {"w": (4, 16), "v": (16, 4)}
    assert entries["w"].extents == entries["v"].extents


def test_a_step_that_ordinary_operations_use_too_is_a_weight() -> None:
    forms = Forms()
    assert names(of_operations(forms.scaled(), forms.file)) == ["w"]
    forms = Forms()
    assert names(of_operations([*forms.scaled(), used("inner", "z")], forms.file)) == ["inner", "w"]


def test_a_program_without_weights_is_empty() -> None:
    assert names(package(model({"main": function([operation("relu", output("y"), {"x": "x"})])}))) == []


def test_a_program_of_20000_operations_is_read_in_a_second() -> None:
    forms, operations = Forms(), list[bytes]()
    for at in range(20_000):
        if at % 20 == 0:
            operations += forms.plain(f"w{at}")
        else:
            given = {"x": "x", "weight": "w0", "strides": "c3", "pad": "c6", "dilations": "c9", "pad_type": "c15"}
            operations.append(operation("conv", output(f"y{at}", F16, (1, 64, 1, 128)), given))
    bundle = MemoryBundle(of_operations(operations, forms.file))
    begun = time.process_time()
    assert len(COREML.parse(bundle).entries) == 1000
    assert time.process_time() - begun < 1


# Written anew -------------------------------------------------------------------------------------


REFUSED = {"of plain f16": "E_OPSET", "of plain i8": "E_UNSUPPORTED", "of every form": "E_UNSUPPORTED"}
"""What cannot be compressed: weights of a program before iOS 16, and integers."""


@pytest.mark.parametrize("quant", ["none", "lut4", "int8"])
@pytest.mark.parametrize("name", SOUND)
def test_only_the_operations_of_weights_differ(name: str, quant: str, tmp_path: Path) -> None:
    source, made = write_files(tmp_path / "x.mlpackage", SOUND[name]), tmp_path / "y.mlpackage"
    if quant != "none" and name in REFUSED:
        with pytest.raises(UnsupportedError) as caught:
            flyweight.convert(source, made, to="coreml", quant=quant, dtype="f16")
        assert caught.value.code == REFUSED[name]
        assert not made.exists()
        return
    flyweight.convert(source, made, to="coreml", quant=quant, dtype="f16")
    assert without_weights((made / MODEL).read_bytes()) == without_weights(SOUND[name][MODEL])
    with flyweight.open(source) as old, flyweight.open(made) as new:
        assert list(new) == list(old)
        for weight in old:
            assert new[weight].shape == old[weight].shape
            if quant == "none":
                assert np.array_equal(np.asarray(new[weight], np.float32), np.asarray(old[weight], np.float32))


# The weight file ----------------------------------------------------------------------------------


def test_blobs_lie_where_their_records_say() -> None:
    """Of values narrower than a byte, the spare bits of the last are said."""
    layout = WeightFileLayout("weight.bin")
    kinds = [("f16", 7), ("u3", 9), ("u1", 64), ("i4", 3), ("f32", 1), ("u6", 5)]
    placed = [layout.add(TYPES[label], count) for label, count in kinds]
    raw = bytearray(layout.nbytes)
    for offset, chunk in layout.chunks:
        raw[offset : offset + len(chunk)] = chunk
    file = WeightFile(MemorySource(bytes(raw), "weight.bin"), "weight.bin")
    assert [offset for offset, _ in file.all()] == [offset for offset, _ in placed]
    for (label, count), (offset, extent) in zip(kinds, placed, strict=True):
        blob = file.blob(offset)
        assert (blob.kind, blob.extent) == (TYPES[label], extent)
        assert offset % 64 == 0
        assert extent.offset == offset + 64
        assert 8 * extent.nbytes - blob.spare_bits == count * TYPES[label].bits
    file.check_overlaps()


def test_the_number_of_blobs_is_not_relied_on_by_a_package() -> None:
    """As coremltools: the program says where blobs are."""
    files = of_form("lut of 4 bits")
    assert names({**files, WEIGHTS: b"\xff\0\0\0" + files[WEIGHTS][4:]}) == ["w"]
