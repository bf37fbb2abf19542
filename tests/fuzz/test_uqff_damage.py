"""Small UQFF models of both generations, damaged at every byte: nothing but typed errors, and what is no number is found."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyweight.foundation.errors import FlyweightError
from flyweight.pipeline.soundness import verify
from fuzz.framing import Files, Input
from fuzz.targets import TARGETS
from support.damage import cut, flipped
from support.toys import write_files
from support.uqff_files import (
    BLOBS,
    F8Q8_BLOCKS,
    LAYERS,
    Q8_0,
    Named,
    afq_blob,
    blob_directory,
    f8q8_blob,
    fp8_blob,
    gguf_blob,
    hqq_blob,
    mxfp4_blob,
    named_directory,
    plain_blob,
    tensor,
    version,
)

GENERATIONS = {"uqff": named_directory(), "uqff_blob": blob_directory()}


@pytest.mark.parametrize("damaged", [flipped, cut])
@pytest.mark.parametrize("container", GENERATIONS)
def test_every_byte(container: str, damaged: type[Iterator[Files]]) -> None:
    """Opened, told of, decoded and written again: `TARGETS` raises what is no typed error."""
    outcomes = {TARGETS[container](Input(files)) for files in damaged(GENERATIONS[container])}
    assert {"E_SIZE", "E_VERSION", "E_UTF8"} <= outcomes or damaged is cut, outcomes
    assert {"E_TRUNCATED", "E_PAST_END"} <= outcomes or damaged is flipped, outcomes


@pytest.mark.parametrize("container", GENERATIONS)
def test_verify_of_every_flipped_byte(container: str, tmp_path: Path) -> None:
    """There is no digest, so a code may be another code; but nothing breaks, and damaged structure is never called whole."""
    files, ends = GENERATIONS[container], Counter[int]()
    write_files(tmp_path, files)
    for damaged in flipped(files):
        changed = next(name for name in files if damaged[name] is not files[name])
        (tmp_path / changed).write_bytes(damaged[changed])
        try:
            ends[0 if verify(tmp_path).ok else 3] += 1
        except FlyweightError as error:
            ends[error.exit_code] += 1
        (tmp_path / changed).write_bytes(files[changed])
    assert ends.keys() == {0, 3, 4}
    codes = 68 * 2 + 256 + 32 + 64 + 32 + 66 + 32  # bytes of weights, which mean something whatever they are
    assert ends[3] > codes
    assert ends[0] < 2 * codes


# Numbers that are none ----------------------------------------------------------------------------

NAN, INFINITE = struct.pack("<f", float("nan")), struct.pack("<f", float("-inf"))
U8, F32, F8 = 0, 6, 9
TWO = struct.pack("<f", 0.5)
NONE_AT_ALL = {
    "gguf scale nan": gguf_blob(data=b"\x00\x7e" + Q8_0[2:]),
    "gguf scale infinite": gguf_blob(data=Q8_0[:34] + b"\x00\xfc" + Q8_0[36:]),
    "plain nan": plain_blob(tensor(F32, (2,), NAN + TWO)),
    "plain infinite": plain_blob(tensor(F32, (2,), TWO + INFINITE)),
    "hqq scale nan": hqq_blob(scales=tensor(F32, (1, 1), NAN)),
    "hqq zero infinite": hqq_blob(zeros=tensor(F32, (1, 1), INFINITE)),
    "fp8 scale nan": fp8_blob(scales=(float("nan"), 0.5, 2.0)),
    "fp8 scale infinite": fp8_blob(scales=(float("inf"), 0.5, 2.0)),
    "fp8 code nan": fp8_blob(weight=tensor(F8, (2, 32), bytes(63) + b"\x7f")),
    "afq scale nan": afq_blob(scales=tensor(F32, (2, 1), TWO + NAN)),
    "afq bias infinite": afq_blob(biases=tensor(F32, (2, 1), INFINITE + TWO)),
    "f8q8 scale nan": f8q8_blob(data=F8Q8_BLOCKS[:33] + b"\xff" + F8Q8_BLOCKS[34:]),
    "mxfp4 scale nan": mxfp4_blob(scales=tensor(U8, (2, 1), b"\x7f\xff")),
}


@pytest.mark.parametrize("blob", NONE_AT_ALL.values(), ids=NONE_AT_ALL)
def test_verify_finds_what_is_no_number(blob: bytes, tmp_path: Path) -> None:
    write_files(tmp_path, blob_directory(blob))
    assert ("E_NONFINITE", "layers.0.weight") in {(one.code, one.tensor) for one in verify(tmp_path).findings}


FIELDS = {
    "gguf": ("", 0, b"\x00\x7e"),
    "plain": ("", 0, NAN),
    "hqq": (".scales", 0, INFINITE),
    "fp8": (".dequant_w_scale", 0, NAN),
    "afq": (".biases", 4, NAN),
    "f8q8": ("", 33, b"\x7f"),
    "mxfp4": (".scales", 1, b"\xff"),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_verify_finds_what_is_no_number_in_a_named_layer(kind: str, tmp_path: Path) -> None:
    field, at, raw = FIELDS[kind]
    tensors: Named = version() | LAYERS[kind]("lm_head")
    dtype, shape, data = tensors[f"lm_head.weight{field}"]
    tensors[f"lm_head.weight{field}"] = dtype, shape, data[:at] + raw + data[at + len(raw) :]
    write_files(tmp_path, named_directory(tensors))
    assert ("E_NONFINITE", "lm_head.weight") in {(one.code, one.tensor) for one in verify(tmp_path).findings}


def test_verify_finds_nothing_in_sound_values(tmp_path: Path) -> None:
    for container, files in GENERATIONS.items():
        report = verify(write_files(tmp_path / container, files))
        assert (report.ok, {finding.level for finding in report.findings}) == (True, {"warning"}), report.findings
    assert len(BLOBS) == 8
