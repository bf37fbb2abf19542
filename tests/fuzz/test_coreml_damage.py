"""Small Core ML packages damaged at every byte: nothing but typed errors. And values that lie, which only decoding finds."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from flyweight.foundation.errors import FlyweightError
from flyweight.pipeline.soundness import verify
from fuzz.framing import Files, Input
from fuzz.targets import TARGETS
from support.command_line import flyweight as run
from support.coreml_files import (
    F16,
    MASK,
    MODEL,
    SHAPE,
    SOUND,
    U1,
    U4,
    WEIGHTS,
    Forms,
    bytes_value,
    codes,
    halves,
    of_operations,
)
from support.damage import cut, flipped
from support.toys import write_files

DAMAGED = [name for name in SOUND if name not in ("of every form", "of two functions")]
"""Those that take a millisecond each."""


@pytest.mark.parametrize(
    ("target", "name"),
    [*(("coreml", name) for name in DAMAGED), *(("coreml_rewriting", f"of {name}") for name in ("plain f16", "sparse lut"))],
)
def test_every_flipped_byte(target: str, name: str) -> None:
    """Opened, told of, decoded and written again, as it is and with other weights: `TARGETS` raises what is no typed error."""
    outcomes = {TARGETS[target](Input(files)) for files in flipped(SOUND[name])}
    assert {"E_PROTOBUF", "E_TRUNCATED", "E_SENTINEL", "E_VERSION", "E_DTYPE", "E_JSON", "E_MANIFEST"} <= outcomes, outcomes


@pytest.mark.parametrize("name", DAMAGED)
def test_every_cut(name: str) -> None:
    outcomes = {TARGETS["coreml"](Input(files)) for files in cut(SOUND[name])}
    assert {"E_PROTOBUF", "E_TRUNCATED", "E_PAST_END", "E_JSON"} - outcomes <= {"E_PROTOBUF"}, outcomes
    assert not any(outcome.startswith("parsed") for outcome in outcomes), outcomes


@pytest.mark.parametrize("name", ["of lut of 4 bits", "of sparse lut"])
def test_verify_of_every_flipped_byte(name: str, tmp_path: Path) -> None:
    """There is no digest, so a code may be another code; but nothing breaks, and damaged structure is never called whole."""
    files, ends = SOUND[name], Counter[tuple[str, int]]()
    write_files(tmp_path, files)
    for damaged in flipped(files):
        changed = next(one for one in files if damaged[one] is not files[one])
        (tmp_path / changed).write_bytes(damaged[changed])
        try:
            ends[changed, 0 if verify(tmp_path).ok else 3] += 1
        except FlyweightError as error:
            ends[changed, error.exit_code] += 1
        (tmp_path / changed).write_bytes(files[changed])
    assert {code for _, code in ends} == {0, 3, 4}
    assert ends[MODEL, 3] > len(files[MODEL]) // 2
    assert ends[WEIGHTS, 0] < len(files[WEIGHTS])


# Values that lie ----------------------------------------------------------------------------------


def made(operations: list[bytes], forms: Forms) -> Files:
    return of_operations(operations, forms.file)


def sparse(mask: bytes) -> Files:
    forms = Forms()
    return made(forms.sparse(mask=bytes_value(U1, SHAPE, mask)), forms)


def sparse_blockwise(mask: bytes) -> Files:
    forms = Forms()
    return made(forms.sparse_blockwise(data_mask=bytes_value(U1, SHAPE, mask)), forms)


def sparse_lut(mask: bytes) -> Files:
    forms = Forms()
    return made(forms.sparse_lut(indices_mask=bytes_value(U1, SHAPE, mask)), forms)


def flat_sparse(mask: bytes) -> Files:
    forms = Forms()
    return of_operations(forms.flat_sparse(mask=bytes_value(31, (8,), mask)), forms.file, "CoreML6")


MASKS = {
    "of one value more": bytes([MASK[0] | 0x10]) + MASK[1:],
    "of one value fewer": bytes([MASK[0] & 0xFE]) + MASK[1:],
    "of no values": bytes(8),
    "of all values": b"\xff" * 8,
}
LIES: dict[str, Files] = {
    f"{make.__name__}: mask {what}": make(mask)
    for make in (sparse, sparse_blockwise, sparse_lut, flat_sparse)
    for what, mask in MASKS.items()
}


@pytest.mark.parametrize("files", LIES.values(), ids=LIES)
def test_what_decoding_finds(files: Files, tmp_path: Path) -> None:
    """A mask that marks another number of values than there are: the package opens, and says what is in it; its values are
    refused, by name, and nothing is made of them."""
    path, out = write_files(tmp_path / "x.mlpackage", files), tmp_path / "out"
    out.mkdir()
    assert run("inspect", path).code == 0
    for arguments in (
        ("verify", path),
        ("diff", path, write_files(tmp_path / "whole", SOUND["of plain f16"])),
        ("convert", path, out / "x.safetensors", "--quant", "none", "-q"),
        ("convert", path, out / "x.mlpackage", "--to", "coreml", "--quant", "none", "--dtype", "f16", "-q"),
    ):
        done = run(*arguments)
        assert (done.code, "E_PART_VALUES" in done.said) == (3, True), done.said
    assert os.listdir(out) == []


ODD = (3, 5)


def odd_mask(last: int) -> Files:
    forms = Forms()
    arguments = {"nonzero_data": forms.blob(F16, (15,)), "mask": bytes_value(U1, ODD, bytes([0xFF, last]))}
    return made([forms.dense("sparse_to_dense", arguments, shape=ODD)], forms)


def odd_codes(last: int) -> Files:
    forms = Forms()
    arguments = {
        "data": bytes_value(U4, ODD, codes(15, 4)[:-1] + bytes([last])),
        "scale": bytes_value(F16, (1, 1), halves(1)),
    }
    return made([forms.dense("blockwise_shift_scale", arguments, shape=ODD)], forms)


@pytest.mark.parametrize(
    ("sound", "dirty"),
    [(odd_mask(0x7F), odd_mask(0xFF)), (odd_codes(0x07), odd_codes(0x17))],
    ids=["mask", "codes"],
)
def test_spare_bits_that_are_not_zero(sound: Files, dirty: Files, tmp_path: Path) -> None:
    """Fifteen elements: what is behind the last of them stands for nothing, and no writer sets it."""
    assert verify(write_files(tmp_path / "sound", sound)).ok
    findings = verify(write_files(tmp_path / "dirty", dirty)).findings
    assert [one.tensor for one in findings if one.level == "error"] == ["w"], findings
