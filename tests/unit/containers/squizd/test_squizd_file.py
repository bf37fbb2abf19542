"""SQUIZD files: what is written is read, what is damaged is found and located, and opening one takes two reads."""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight import cli
from flyweight.checkpoint import Checkpoint
from flyweight.containers.squizd import blocks
from flyweight.containers.squizd.squizd_file import Squizd
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.manifest import Entry, Extent, Manifest, Typed
from flyweight.foundation.tensor import RAW, CodecSpec
from flyweight.pipeline import verify
from flyweight.sources import Bundle, MemorySource, Source
from support.squizd_files import (
    FLAG,
    KINDS,
    NAME,
    archive,
    bare,
    bundle,
    directory_of,
    edited,
    entry,
    int4,
    manifest,
    member,
    model,
    patched,
    payload,
    redigested,
    resealed,
    table,
    tabled,
    with_appendix,
    written,
)

C = Squizd()
ALL, INT4, ASTC, TCA = (model(kind) for kind in ("everything", "int4", "astc", "tca"))


def codes(raw: bytes) -> set[str]:
    return {finding.code for finding in C.audit(bundle(raw)) if finding.level == "error"}


def row(raw: bytes, name: str, section: str = "tensors") -> dict[str, Any]:
    key = "section" if section == "tables" else "name"
    found: dict[str, Any] = next(row for row in directory_of(raw)[section] if row[key] == name)
    return found


# What is written is read ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read_and_sound(kind: str) -> None:
    made = manifest(**KINDS[kind])
    placed = C.place(made, NAME).manifest
    parsed = C.parse(bundle(model(kind)))
    assert dict(parsed.entries) == dict(placed.entries)
    assert list(parsed.entries) == list(made.entries)
    assert (parsed.files, parsed.metadata) == (placed.files, made.metadata)
    assert list(C.audit(bundle(model(kind)))) == []
    for one in parsed.entries.values():
        C.check_block(bundle(model(kind)), one)


names = st.sampled_from(
    ["model.layers.{}.up.weight", "model.layers.{}.é.{}", "h.{}.x", "lm_head.{}", "draft.layers.{}.w", "{}"]
)
plain_types = st.sampled_from(blocks.DTYPE_CODES)
sides = st.integers(0, 9)
PRIMARY = {
    "INT4": st.integers(0, 12).map(lambda length: tabled(4, length)),
    "INT2": st.tuples(st.sampled_from([2, 4]), st.integers(0, 12)).map(lambda pair: tabled(*pair)),
    "ASTC": st.sampled_from([(4, 4), (8, 5), (12, 12)]).map(
        lambda f: CodecSpec("astc", {"width": f[0], "height": f[1], "id": 0})
    ),
    "TCA": st.just(CodecSpec("lossless", {"base": 127, "escapes": 0, "stored": 0})),
    "": st.just(RAW),
}


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Any tensors the format carries: ranks, empty ones, every element type, masks, names of every section."""
    primary = draw(st.sampled_from(sorted(PRIMARY)))
    block = draw(st.integers(1, 9))
    entries: dict[str, Entry] = {}
    for k in range(draw(st.integers(0, 6))):
        name = draw(names).format(*[draw(st.integers(0, 3)), k][:2]) + f".{k}"
        codec = draw(PRIMARY[primary] | st.just(RAW))
        if name.startswith("draft.") and codec.name != "raw":
            codec = tabled(4, 3)
        shape = tuple(draw(st.lists(sides, min_size=0 if codec == RAW else 2, max_size=4)))
        dtype = draw(plain_types) if codec == RAW else DType.BF16 if codec.name == "lossless" else DType.F32
        if len(shape) >= 2 and draw(st.booleans()):
            codec = blocks.masked(codec, block)
        entries[name] = entry(name, shape, codec, dtype)
    files = draw(st.dictionaries(st.sampled_from(["config.json", "a.txt", "b"]), st.just(b"{}") | st.just(b""), max_size=3))
    if files.get("config.json") == b"":
        del files["config.json"]
    if draw(st.booleans()):
        files["model.mlpackage.zip"] = archive(member("a", bytes(draw(st.integers(0, 99)))))
    values = st.just(Typed("str", "é")) | st.just(Typed("[u32]", [1, 2])) | st.just(Typed("f32", 0.5))
    return Manifest("squizd", entries, draw(st.dictionaries(st.text(max_size=5), values, max_size=3)), files, "hf")


@settings(max_examples=120, deadline=None, derandomize=True)
@given(manifests())
def test_any_manifest_survives(made: Manifest) -> None:
    raw = written(made)
    parsed = C.parse(bundle(raw))
    placed = C.place(made, NAME).manifest
    assert dict(parsed.entries) == dict(placed.entries)
    assert (list(parsed.entries), parsed.metadata, parsed.files) == (list(made.entries), made.metadata, placed.files)
    assert list(C.audit(bundle(raw))) == []
    contents = {name: raw[extent.offset : extent.end] for name, extent in parsed.files.items() if isinstance(extent, Extent)}
    assert contents == made.files
    for one in parsed.entries.values():
        for part, extent in one.extents.items():
            assert raw[extent.offset : extent.end] == payload(one, part)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 40), st.sampled_from([0, 4, 8, 64])), min_size=1, max_size=5))
def test_without_a_directory_tensors_keep_shapes_and_scales(shapes: list[tuple[int, int, int]]) -> None:
    made = {
        f"layers.{layer}.{k}": entry(f"layers.{layer}.{k}", (rows, columns), tabled(4, min(length, columns)))
        for layer in (0, 3)
        for k, (rows, columns, length) in enumerate(shapes)
    }
    raw = written(Manifest("squizd", made, dialect="hf"), directory=False)
    parsed = C.parse(bundle(raw))
    assert list(parsed.entries) == list(made)
    for name, one in parsed.entries.items():
        assert one.spec == made[name].spec
        assert {part: spec.nbytes for part, spec in one.parts.items()} == {p: s.nbytes for p, s in made[name].parts.items()}
        for part, extent in one.extents.items():
            assert raw[extent.offset : extent.end] == payload(made[name], part)
    assert list(C.audit(bundle(raw))) == []


def of(*entries: Entry, **files: bytes) -> Manifest:
    return Manifest(
        "squizd", {one.name: one for one in entries}, files={name.replace("_", "."): raw for name, raw in files.items()}
    )


TEXTURE, OTHER = CodecSpec("astc", {"width": 4, "height": 4, "id": 0}), entry("b", (2, 2), tabled(4, 2))
REFUSED: dict[str, tuple[Manifest, str]] = {
    "hidden file": (of(_gitattributes=b""), "E_FILE_NAME"),
    "file below a directory": (of(**{"a/b": b""}), "E_FILE_NAME"),
    "files that differ in case": (of(a=b"", A=b""), "E_DUPLICATE"),
    "package that is no archive": (of(model_mlpackage_zip=b"no archive"), "E_ZIP"),
    "name of 1,025 bytes": (of(entry("x" * 1025, (1,))), "E_NAME"),
    "two primary encodings": (of(entry("a", (2, 2), tabled(2, 2)), entry("b", (2, 2), TEXTURE)), "E_PRIMARY"),
    "draft head of two bits": (of(entry("draft.a", (2, 2), tabled(2, 2))), "E_ENCODING"),
    "scales with the id of another": (of(Entry("a", OTHER.spec, OTHER.codec, OTHER.parts)), "E_TENSOR_ID"),
    "masks of two kinds": (of(*(entry(f"{k}", (2, 2), blocks.masked(RAW, k)) for k in (1, 2))), "E_SPARSITY"),
    "config that is no JSON": (of(config_json=b"{"), "E_JSON"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_not_be_read_back_is_not_written(name: str) -> None:
    refused, code = REFUSED[name]
    with pytest.raises(FlyweightError) as caught:
        C.place(refused, NAME)
    assert caught.value.code == code


# What is damaged is found ---------------------------------------------------------------------


def places(raw: bytes) -> list[int]:
    """All bytes that are not a tensor's own: header, index, directory, tables, heads of sections, padding."""
    own = {at for one in C.parse(bundle(raw)).entries.values() for part, extent in one.extents.items()
           for at in range(extent.offset, extent.end) if not part.endswith(("pair", "entries"))}  # fmt: skip
    return [at for at in range(len(raw)) if at not in own]


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_outside_weights_is_found(kind: str) -> None:
    """One bit of every byte of header, index and tables, of some others; `fuzz.py squizd --flips` does all bits of all."""
    raw = model(kind)
    near = {
        *range(400),
        *(at for one in directory_of(raw)["tables"] for at in range(one["offset"], one["offset"] + one["length"])),
    }
    for at in places(raw):
        if at in near or at % 17 == 0:
            flipped = patched(raw, at, bytes([raw[at] ^ 1 << at * 7 % 8]))
            assert list(C.audit(bundle(flipped))), f"byte {at}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_of_weights_is_located(kind: str) -> None:
    raw = model(kind)
    for one in directory_of(raw)["tensors"]:
        for at in range(one["offset"], one["offset"] + one["length"]):
            flipped = patched(raw, at, bytes([raw[at] ^ 1 << at % 8]))
            found = list(C.audit(bundle(flipped)))
            assert {finding.tensor for finding in found if finding.code in ("E_DIGEST", "E_BLOCK_HEAD")} == {one["name"]}, at
            assert "E_DIGEST" in {finding.code for finding in found}


def test_damage_of_a_file_is_found() -> None:
    at = row(INT4, "tokenizer.json", "files")["offset"]
    assert codes(patched(INT4, at, b"[")) == {"E_DIGEST"}


UP, PAIRS = row(ALL, "model.layers.0.up.weight"), directory_of(ALL)["tables"][0]["offset"]
ENTRIES, ZIP = UP["scale_offset"], archive(member("a", b"abc" * 100, deflated=True), member("b", b"def"))


def replaced(at: int, new: bytes, raw: bytes = ALL) -> bytes:
    return resealed(patched(raw, at, new))


def number(value: float) -> bytes:
    return struct.pack("<f", value)


AUDITED: dict[str, tuple[bytes, str]] = {
    "payload damaged": (patched(ALL, UP["offset"] + 20, b"!"), "E_DIGEST"),
    "scales damaged": (patched(ALL, ENTRIES + 9, b"!"), "E_DIGEST"),
    "head of another size": (replaced(UP["offset"] + 4, struct.pack("<II", 16, 2)), "E_BLOCK_HEAD"),
    "head of another encoding": (replaced(UP["offset"], b"NPCL"), "E_BLOCK_HEAD"),
    "head of another element type": (
        replaced(row(ALL, "model.layers.0.norm.weight")["offset"] + 4, struct.pack("<I", 1)), "E_BLOCK_HEAD"
    ),
    "pair with the id of another tensor": (replaced(PAIRS + 8, struct.pack("<Q", 1)), "E_SCALES"),
    "pair with the id of a sub-block": (replaced(PAIRS + 15, bytes([ALL[PAIRS + 15] ^ 0x80])), "E_SCALES"),
    "sub-block with the id of another": (replaced(ENTRIES, struct.pack("<Q", 1 << 63)), "E_SCALES"),
    "sub-block with the id of its tensor": (replaced(ENTRIES + 7, bytes([ALL[ENTRIES + 7] ^ 0x80])), "E_SCALES"),
    "table of one pair less": (replaced(PAIRS + 4, struct.pack("<I", 1)), "E_SCALES"),
    "table of 2^32-1 pairs": (replaced(PAIRS + 4, struct.pack("<I", 2**32 - 1)), "E_TRUNCATED"),
    "table of another magic": (replaced(PAIRS, b"SCZU"), "E_SCALES"),
    "second round of another magic": (replaced(ENTRIES - 8, b"SCZU"), "E_SCALES"),
    "second round of one entry less": (replaced(ENTRIES - 4, struct.pack("<I", 3)), "E_SCALES"),
    "padding between the rounds": (replaced(ENTRIES - 9, b"!"), "E_PADDING"),
    "padding behind a block": (patched(ALL, UP["offset"] + UP["length"], b"!"), "E_PADDING"),
    "scale NaN": (replaced(ENTRIES + 8, number(float("nan"))), "E_SCALES"),
    "zero infinite": (replaced(ENTRIES + 12, number(float("inf"))), "E_SCALES"),
    "scale of a pair NaN": (
        replaced(row(ALL, "model.layers.0.odd.weight")["scale_offset"] + 8, number(float("nan"))), "E_SCALES"
    ),
    "scale of a pair nobody uses NaN": (replaced(PAIRS + 16, number(float("nan"))), "E_SCALES"),
    "mean sparsity made up": (redigested(patched(ALL, 140, struct.pack("<f", 0.5))), "E_SPARSITY"),
    "sparse layers made up": (redigested(patched(ALL, 136, struct.pack("<I", 1))), "E_SPARSITY"),
    "mask changed": (replaced(UP["mask_offset"], b"\x01"), "E_SPARSITY"),
    "archive of a wrong CRC": (with_appendix(ALL, patched(ZIP, ZIP.index(b"PK\x01\x02") + 16, b"!!!!")), "E_ZIP"),
    "archive of a damaged stream": (with_appendix(ALL, patched(ZIP, 32, b"\xff\xff")), "E_ZIP"),
    "archive whose local head has another name": (with_appendix(ALL, patched(ZIP, 30, b"x")), "E_ZIP"),
    "archive whose local head has another magic": (with_appendix(ALL, patched(ZIP, 0, b"xx")), "E_ZIP"),
    "archive whose local head is longer": (with_appendix(ALL, patched(ZIP, 28, b"\xff\xff")), "E_ZIP"),
    "archive longer than declared": (with_appendix(ALL, patched(ZIP, ZIP.index(b"PK\x01\x02") + 24, b"\x01\x00")), "E_ZIP"),
}  # fmt: skip
"""What parses, digests right where they could be, and only reading all of it shows."""


VALUES: dict[str, tuple[bytes, str]] = {
    "mask that drops weights": (
        replaced(UP["mask_offset"], b"\x01", redigested(patched(ALL, 140, number(0.125)))), "E_PART_VALUES"
    ),
    "mask with bits behind its rows": (replaced(UP["mask_offset"], b"\x07"), "E_PART_VALUES"),
    "texture of no legal block": (
        replaced(row(ASTC, "model.layers.0.up.weight")["offset"] + 16, bytes(16), ASTC), "E_ASTC_BLOCK"
    ),
    "codes and escapes that do not agree": (
        replaced(row(TCA, "model.layers.0.up.weight")["offset"] + 40, bytes(24), TCA), "E_PART_VALUES"
    ),
    "plain number NaN": (replaced(row(ALL, "model.layers.0.norm.weight")["offset"] + 16, b"\xc0\x7f"), "E_NONFINITE"),
}  # fmt: skip
"""What is sound as a file, with every digest right, and holds what contradicts itself, or nonsense."""


@pytest.mark.parametrize("name", VALUES)
def test_verify_reads_the_values(name: str, tmp_path: Path) -> None:
    path, (raw, code) = tmp_path / NAME, VALUES[name]
    path.write_bytes(raw)
    report = verify(path)
    assert [finding.code for finding in report.findings] == [code]
    assert report.malformed == (code != "E_NONFINITE")
    assert not report.ok
    assert report.findings[0].tensor


@pytest.mark.parametrize("kind", KINDS)
def test_verify_finds_nothing_in_sound_files(kind: str, tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(model(kind))
    report = verify(path, strict=True)
    assert (report.ok, report.findings, report.tensors) == (True, (), len(manifest(**KINDS[kind]).entries))


@pytest.mark.parametrize("name", AUDITED)
def test_verify_refuses(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    raw, code = AUDITED[name]
    C.parse(bundle(raw))
    assert code in codes(raw)
    path = tmp_path / NAME
    path.write_bytes(raw)
    monkeypatch.setattr(sys, "argv", ["flyweight", "verify", str(path), "--json"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 3
    found = json.loads(capsys.readouterr().out)["findings"]
    assert code in {finding["code"] for finding in found if finding["level"] == "error"}


ANML = b'{"path": "/Users/me/model.mlpackage"}'
WARNED: dict[str, tuple[bytes, str]] = {
    "architecture 7": (redigested(patched(INT4, 12, b"\x07\0")), "E_ARCH"),
    "reserved bytes of the header": (redigested(patched(INT4, 100, b"\x01")), "E_RESERVED"),
    "reserved bytes of the index": (redigested(patched(INT4, 256 + 28, b"\x01")), "E_RESERVED"),
    "a checksum without SPARSE": (redigested(patched(INT4, 14, b"\x5a\x2b")), "E_SPARSITY_CRC"),
    "metadata of masks without SPARSE": (redigested(patched(INT4, 128, b"\x01")), "E_SPARSITY"),
    "metadata of a draft head without EAGLE": (redigested(patched(INT4, 160, b"\x01")), "E_EAGLE"),
    "an unknown key in the directory": (edited(INT4, lambda document: document.update(more=1)), "E_DIRECTORY"),
    "ANML for the appendix": (with_appendix(ALL, ANML, magic=b"ANML"), "E_ANML"),
    "ANML without a directory": (
        bare((int4(2, 4), table((1, 1.0, 0.0))), flags=FLAG["INT4"] | FLAG["ANE_COREML"], tail=bytes(40) + b"ANML" + bytes(99)),
        "E_ANML",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WARNED)
def test_what_is_only_doubtful_is_read_with_a_warning(name: str) -> None:
    raw, code = WARNED[name]
    assert C.parse(bundle(raw)).entries
    assert [(finding.level, finding.code) for finding in C.audit(bundle(raw))] == [("warning", code)]


def test_an_audit_lists_more_than_the_first_broken_rule() -> None:
    def change(document: dict[str, Any]) -> None:
        document["tensors"][0]["dtype"] = "x9"
        document["tensors"][3]["offset"] = -1
        document["files"][0]["name"] = "../x"

    raw = edited(redigested(patched(INT4, 6, struct.pack("<I", FLAG["INT4"] | 1 << 20))), change)
    assert {"E_FLAGS", "E_DTYPE", "E_OFFSETS", "E_FILE_NAME"} <= codes(raw)


# Reading little -------------------------------------------------------------------------------


@dataclass
class Counting(Source):
    """Notes every read."""

    inner: Source
    reads: list[tuple[int, int]]

    def __post_init__(self) -> None:
        self.name, self.size = self.inner.name, self.inner.size

    def read(self, offset: int, length: int) -> memoryview:
        self.reads.append((offset, offset + length))
        return self.inner.read(offset, length)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.read(offset, len(buffer))


class Counted(Bundle):
    name, is_directory = NAME, False

    def __init__(self, raw: bytes) -> None:
        self.source = Counting(MemorySource(raw, NAME), [])

    def __getitem__(self, key: str) -> Source:
        return self.source

    def __iter__(self) -> Any:
        return iter((NAME,))

    def __len__(self) -> int:
        return 1


def many(count: int, columns: int, codec: CodecSpec) -> bytes:
    made = {f"model.layers.{k % 50}.{k}.weight": (8, columns) for k in range(count)}
    return written(Manifest("squizd", {name: entry(name, shape, codec) for name, shape in made.items()}, dialect="hf"))


@pytest.mark.parametrize(("count", "columns", "most"), [(200, 512, 1), (5000, 16, 2)])
def test_one_tensor_takes_two_reads_beside_its_own(count: int, columns: int, most: int) -> None:
    """One for the front, a second where that is longer than 1 MiB; then nothing but the tensor's block and scales."""
    files = Counted(many(count, columns, RAW))
    files.source.reads.clear()
    parsed = C.parse(files)
    assert len(files.source.reads) <= most
    assert files.source.size > 1 << 20
    assert sum(stop - start for start, stop in files.source.reads) < 5 << 20
    name = f"model.layers.7.{count - count % 50 - 43}.weight"
    block = next(
        one for one in directory_of(bytes(files.source.inner.read(0, files.source.size)))["tensors"] if one["name"] == name
    )
    files.source.reads.clear()
    Checkpoint(files, C, parsed)[name]
    assert all(block["offset"] <= start <= stop <= block["offset"] + block["length"] for start, stop in files.source.reads)


def test_parsing_does_not_look_at_weights() -> None:
    raw = bytearray(ALL)
    parsed = C.parse(bundle(ALL))
    for one in (*directory_of(ALL)["tensors"], *directory_of(ALL)["tables"]):
        raw[one["offset"] : one["offset"] + one["length"]] = b"\xff" * one["length"]
    assert C.parse(bundle(bytes(raw))) == parsed


def test_the_work_of_an_audit_is_linear_in_the_file() -> None:
    """Thousands of tensors that claim one large block are refused, not hashed one by one."""
    entries = [entry("w", (1 << 20,)), *(entry(f"v.{k}", (1,)) for k in range(300))]
    raw = written(Manifest("squizd", {one.name: one for one in entries}, {"room": Typed("str", "." * 9000)}))

    def change(document: dict[str, Any]) -> None:
        first = document["tensors"][0]
        document["tensors"] = [first] + [first | {"name": one["name"]} for one in document["tensors"][1:]]

    files = Counted(edited(raw, change))
    assert any(finding.code == "E_OVERLAP" for finding in C.audit(files))
    assert sum(stop - start for start, stop in files.source.reads) < 3 * len(raw)
