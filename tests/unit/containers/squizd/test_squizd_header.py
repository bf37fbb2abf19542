"""The fixed header of SQUIZD: reference headers with the verdicts of the public validator, and the toy example of its text."""

from __future__ import annotations

import json
import struct
from zlib import crc32

import pytest

from flyweight.containers.squizd.broken_rules import Report
from flyweight.containers.squizd.squizd_file import Squizd
from flyweight.containers.squizd.squizd_header import (
    ARCHITECTURES,
    FLAGS,
    Draft,
    Header,
    Layer,
    Sparsity,
    build_header,
    build_index,
    fnv1a64,
    read_header,
    read_index,
)
from flyweight.foundation.manifest import Manifest
from flyweight.sources import MemorySource
from support import GOLDEN
from support.squizd_files import bundle, entry, tabled, written

HEADERS = GOLDEN / "squizd_headers"
VERDICTS = json.loads((HEADERS / "validator_results.json").read_text())

FOUND: dict[str, dict[str, str]] = {name: {} for name in VERDICTS} | {
    "short": {"E_TRUNCATED": "error"},
    "version2": {"E_VERSION": "error"},
    "hdr_layers0": {"E_LAYER_COUNT": "error"},
    "hdr_reservedbit7": {"E_FLAGS": "error"},
    "hdr_SPARSE": {"E_SPARSITY_CRC": "error", "E_SPARSITY": "error"},
    "hdr_INT4_SPARSE": {"E_SPARSITY_CRC": "error", "E_SPARSITY": "error"},
    "sparse_crc0_nonzero_meta": {"E_SPARSITY_CRC": "error"},
    "hdr_EAGLE": {"E_EAGLE_HASH": "error"},
    "eagle_hash0": {"E_EAGLE_HASH": "error"},
    "toy_example_crc_5A2B": {"E_SPARSITY_CRC": "warning"},
}
"""What we say of each header: code and level of every finding."""

UNCHECKED_CRC = "SPARSE is set: its checksum must match, and metadata of zeros are no metadata"
UNCHECKED_HASH = "EAGLE is set: its hash must match"
TOO_STRICT = "the metadata of a flag that is set are not reserved bytes"
DIFFER: dict[tuple[str, str], str] = {
    ("hdr_reservedbit7", "lenient"): "flag bits 7 to 31 must be zero",
    ("hdr_reservedbit7", "strict"): "flag bits 7 to 31 must be zero",
    ("hdr_layers513", "lenient"): "layer_count is any u16 but 0",
    ("hdr_layers513", "strict"): "layer_count is any u16 but 0",
    ("hdr_SPARSE", "lenient"): UNCHECKED_CRC,
    ("hdr_SPARSE", "strict"): UNCHECKED_CRC,
    ("hdr_INT4_SPARSE", "lenient"): UNCHECKED_CRC,
    ("hdr_INT4_SPARSE", "strict"): UNCHECKED_CRC,
    ("hdr_EAGLE", "lenient"): UNCHECKED_HASH,
    ("hdr_EAGLE", "strict"): UNCHECKED_HASH,
    ("eagle_hash0", "lenient"): UNCHECKED_HASH,
    ("sparse_ok", "strict"): TOO_STRICT,
    ("eagle_ok", "strict"): TOO_STRICT,
    ("toy_example_crc_5A2B", "strict"): "0x2B5A is the checksum of nothing: without SPARSE it is 0, or that of 32 zeros",
}
"""Where the public validator says otherwise, and why it is wrong."""


def findings(raw: bytes) -> Report:
    report = Report()
    read_header(MemorySource(raw), report)
    return report


@pytest.mark.parametrize("name", sorted(VERDICTS))
def test_a_reference_header_gets_the_verdict_of_the_rules(name: str) -> None:
    report = findings((HEADERS / f"{name}.squizd").read_bytes())
    assert {finding.code: finding.level for finding in report} == FOUND[name]
    ours = {"lenient": not report.broken, "strict": not report}
    for mode, valid in ours.items():
        assert (valid != VERDICTS[name][mode]["valid"]) == ((name, mode) in DIFFER), mode


def test_every_reference_header_has_a_verdict() -> None:
    assert {path.stem for path in HEADERS.glob("*.squizd")} == VERDICTS.keys() == FOUND.keys()


@pytest.mark.parametrize(
    "header",
    [
        Header(frozenset(), 1),
        Header(frozenset({"INT4"}), 65535, 6),
        Header(frozenset({"INT2", "SPARSE"}), 3, 1, Sparsity(1, 64, 3, 0.5)),
        Header(frozenset({"ASTC", "EAGLE", "ANE_COREML"}), 2, 0, draft=Draft(4096, 512, 1, 32000)),
    ],
)  # fmt: skip
def test_what_is_built_is_read_without_a_complaint(header: Header) -> None:
    report = Report()
    assert read_header(MemorySource(build_header(header)), report) == header
    assert report == []


def test_unknown_architectures_are_generic_with_a_warning() -> None:
    report = findings(build_header(Header(frozenset(), 1, len(ARCHITECTURES))))
    assert [(finding.level, finding.code, finding.offset) for finding in report] == [("warning", "E_ARCH", 12)]


@pytest.mark.parametrize("at", [26, 127, 144, 159, 184, 191, 192, 255])
def test_every_reserved_byte_is_seen(at: int) -> None:
    raw = bytearray(build_header(Header(frozenset(), 1)))
    raw[at] = 1
    assert [finding.code for finding in findings(bytes(raw))] == ["E_RESERVED"]


def test_primary_is_the_first_to_be_dispatched() -> None:
    names = [Header(frozenset({flag, "SPARSE", "EAGLE", "ANE_COREML"}), 1).primary for flag in FLAGS]
    assert names == ["ASTC", "TCA_TBE", "INT4", "", "", "INT2", ""]


def test_index_rows_are_thirty_two_bytes() -> None:
    layers = (Layer(0, 320, 64, 448), Layer(7, 384, 64, 512))
    raw = build_header(Header(frozenset(), 2)) + build_index(layers) + bytes(300)
    assert raw[256 + 32 :][:32] == struct.pack("<IQQQI", 7, 384, 64, 512, 0)
    report = Report()
    assert read_index(MemorySource(raw), Header(frozenset(), 2), report) == layers
    assert report == []


def test_published_vectors_of_the_two_checksums() -> None:
    assert (fnv1a64(b""), fnv1a64(b"a"), fnv1a64(b"foobar")) == (0xCBF29CE484222325, 0xAF63DC4C8601EC8C, 0x85944171F73967E8)
    assert crc32(b"123456789") == 0xCBF43926


# The toy example of the specification: two layers of INT4, byte by byte as its table gives them.
TOY_FRONT = bytes.fromhex("53515A44 0100 04000000 0200 0000 5A2B0000 0000000000000000").ljust(256, b"\0")


def toy() -> bytes:
    entries = [entry(f"layers.{layer}.0", (4, 8), tabled(4, 8)) for layer in range(2)]
    return written(Manifest("squizd", {one.name: one for one in entries}, dialect="hf"), directory=False)


def test_the_toy_example_is_reproduced() -> None:
    raw = toy()
    differs = [at for at in range(256) if raw[at] != TOY_FRONT[at]]
    assert differs == [14, 15], "only sparsity_crc32, which is 0 where SPARSE is unset"
    assert raw[14:18] == bytes(4)
    block = 12 + 4 * 8 // 2
    scales = 448  # behind 320 + 28 and 384 + 28, on 64 bytes
    rows = [struct.unpack("<IQQQI", raw[at : at + 32]) for at in (256, 288)]
    assert rows == [(0, 320, block, scales, 0), (1, 384, block, rows[1][3], 0)]
    for at in (320, 384):
        assert raw[at : at + 12] == b"INT4" + struct.pack("<II", 4, 8)
    for _, _, _, at, _ in rows:
        assert raw[at : at + 8] == b"SCZT" + struct.pack("<I", 1)


def test_the_toy_example_is_read_by_walking() -> None:
    raw = toy()
    parsed = Squizd().parse(bundle(raw))
    assert list(parsed.entries) == ["layers.0.0", "layers.1.0"]
    assert {one.spec.shape for one in parsed.entries.values()} == {(4, 8)}
    assert [one.extents["codes"].offset for one in parsed.entries.values()] == [332, 396]
    assert list(Squizd().audit(bundle(raw))) == []


def test_the_toy_example_as_printed_is_read_too() -> None:
    printed = TOY_FRONT + toy()[256:]
    assert list(Squizd().parse(bundle(printed)).entries) == ["layers.0.0", "layers.1.0"]
    assert [(finding.level, finding.code) for finding in Squizd().audit(bundle(printed))] == [("warning", "E_SPARSITY_CRC")]
