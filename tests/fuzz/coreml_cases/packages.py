"""Packages whose files lie: Manifest.json, links, weight files and records in them; and what only resembles a package."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from support.coreml_files import (
    BLOB_CODES,
    F16,
    MANIFEST,
    MODEL,
    SHAPE,
    WEIGHTS,
    Forms,
    blob_value,
    const,
    function,
    halves,
    item,
    manifest,
    message,
    model,
    number,
    of_form,
    package,
    record,
    used,
)
from support.fuzz_cases import Case, Special, fifo, link_to

SOUND = of_form("lut of 4 bits")
_CODE = BLOB_CODES[F16]


def changed(
    files: Mapping[str, bytes | None], code: str, *, exit_code: int = 3, special: Mapping[str, Special] | None = None
) -> Case:
    """A sound package with these files replaced or (None) missing."""
    made = {name: raw for name, raw in {**SOUND, **files}.items() if raw is not None and name not in (special or {})}
    return Case(made, code, is_directory=True, exit_code=exit_code, special=special or {})


def stated(code: str = "E_MANIFEST", exit_code: int = 3, **document: Any) -> Case:
    """Another Manifest.json."""
    return changed({MANIFEST: json.dumps(manifest(**document)).encode()}, code, exit_code=exit_code)


def pointing(path: object) -> Case:
    """A Manifest.json whose model is elsewhere."""
    return stated(itemInfoEntries={"A": {**item("x"), "path": path}})


# Weight files -------------------------------------------------------------------------------------

_VALUES = halves(64)


def weights(raw: bytes, code: str, exit_code: int = 3, *, offset: int = 64, file: str | None = None) -> Case:
    """A program with one constant of 64 f16, in this weight file."""
    value = blob_value(F16, SHAPE, offset, file) if file is not None else blob_value(F16, SHAPE, offset)
    made = package(model({"main": function([const("w", value), used("w")])}), raw)
    return Case(made, code, is_directory=True, exit_code=exit_code)


def header(count: int = 1, version: int = 2) -> bytes:
    return struct.pack("<II56x", count, version)


def blob(code: int = _CODE, size: int = 128, start: int = 128, values: bytes = _VALUES, **about: int) -> bytes:
    return header() + record(code, size, start, **about) + values


def two_constants(first: int, second: int, raw: bytes, code: str) -> Case:
    constants = [const("w", blob_value(F16, SHAPE, first)), const("v", blob_value(F16, SHAPE, second))]
    return Case(package(model({"main": function([*constants, used("w")])}), raw), code, is_directory=True)


def named(file: str, code: str = "E_WEIGHTS_MISSING") -> Case:
    """A constant in a file of another name."""
    return weights(blob(), code, file=file)


def lone(raw: bytes, code: str, exit_code: int = 3) -> Case:
    """A weight file without its package."""
    return Case({"weight.bin": raw}, code, exit_code=exit_code)


OVERLAPPING = header(2) + record(_CODE, 128, 192) + record(_CODE, 128, 192) + _VALUES
INTO_ANOTHER = header(2) + record(_CODE, 128, 128) + record(_CODE, 128, 256) + bytes(64) + _VALUES

_WEIGHTS: dict[str, Case] = {
    "weight file of no bytes": weights(b"", "E_TRUNCATED"),
    "weight file of a header alone": weights(header(), "E_PAST_END"),
    "weight file of version 1": weights(blob().replace(header(), header(version=1)), "E_VERSION", 4),
    "weight file of version 0": weights(blob().replace(header(), header(version=0)), "E_VERSION", 4),
    "weight file of version 2^32 - 1": weights(blob().replace(header(), header(version=2**32 - 1)), "E_VERSION", 4),
    "blob offset in the header": weights(blob(), "E_ALIGNMENT", offset=0),
    "blob offset that is unaligned": weights(blob(), "E_ALIGNMENT", offset=68),
    "blob offset one before the record": weights(blob(), "E_ALIGNMENT", offset=63),
    "blob offset in the bytes of the blob": weights(blob(), "E_SENTINEL", offset=128),
    "blob offset past the end": weights(blob(), "E_PAST_END", offset=1 << 20),
    "blob offset of 2^63": weights(blob(), "E_PAST_END", offset=2**63),
    "blob offset of 2^64 - 64": weights(blob(), "E_PAST_END", offset=2**64 - 64),
    "blob offset of 2^64 - 1": weights(blob(), "E_ALIGNMENT", offset=2**64 - 1),
    "record without its sentinel": weights(blob(sentinel=0), "E_SENTINEL"),
    "record with its sentinel reversed": weights(blob(sentinel=0xEFBEADDE), "E_SENTINEL"),
    "record of type 0": weights(blob(code=0), "E_DTYPE", 4),
    "record of type 18": weights(blob(code=18), "E_DTYPE", 4),
    "record of type 2^32 - 1": weights(blob(code=2**32 - 1), "E_DTYPE", 4),
    "record of another type than the program": weights(blob(code=7), "E_DTYPE"),
    "record of no bytes": weights(blob(size=0), "E_SIZE"),
    "record of one byte too few": weights(blob(size=127), "E_SIZE"),
    "record of one byte too many": weights(blob(size=129, values=_VALUES + b"\0"), "E_SIZE"),
    "record of 3 GiB in 300 bytes": weights(blob(size=3 << 30), "E_PAST_END"),
    "record of 2^63 bytes": weights(blob(size=2**63), "E_PAST_END"),
    "record of 2^64 - 1 bytes": weights(blob(size=2**64 - 1), "E_PAST_END"),
    "bytes before the record": weights(header() + bytes(128) + record(_CODE, 128, 64), "E_PAST_END", offset=192),
    "bytes that are the record": weights(blob(start=64), "E_PAST_END"),
    "bytes that are the header": weights(blob(start=0), "E_PAST_END"),
    "bytes that begin past the end": weights(blob(start=1 << 30), "E_PAST_END"),
    "bytes that begin at 2^64 - 64": weights(blob(start=2**64 - 64), "E_PAST_END"),
    "bytes that are unaligned": weights(blob(start=130, values=bytes(2) + _VALUES), "E_ALIGNMENT"),
    "weight file cut by a byte": weights(blob()[:-1], "E_PAST_END"),
    "record cut by a byte": weights(blob()[:127], "E_PAST_END"),
    "two records of the same bytes": two_constants(64, 128, OVERLAPPING, "E_OVERLAP"),
    "record in the bytes of another": two_constants(64, 128, INTO_ANOTHER, "E_OVERLAP"),
    "weight file that is not there": changed({WEIGHTS: None}, "E_WEIGHTS_MISSING"),
    "weight file of a climbing name": named("@model_path/../weights/weight.bin"),
    "weight file of a climbing name to a file": named("@model_path/weights/../weights/weight.bin"),
    "weight file of an absolute name": named("/etc/passwd"),
    "weight file of an absolute name behind the prefix": named("@model_path//etc/passwd"),
    "weight file of a name with NUL": named("@model_path/weights/weight.bin\0"),
    "weight file that is a URL": named("https://example.com/weight.bin"),
    "weight file that is a directory": named("@model_path/weights"),
    "weight file of no name": named(""),
    "weight file of the prefix alone": named("@model_path/"),
    "weight file that is the program": named("@model_path/model.mlmodel"),
    "weight file that is the manifest": named("@model_path/../../Manifest.json"),
    "weight file without the prefix": named("weights/weight.bin"),
    "weight file of a name of a megabyte": named("@model_path/" + "a" * 2**20),
    "lone weight file of more blobs than it has": lone(header(2) + blob()[64:], "E_PAST_END"),
    "lone weight file of 2^32 - 1 blobs": lone(header(2**32 - 1) + blob()[64:], "E_LIMIT"),
    "lone weight file of 2^24 blobs": lone(header(2**24) + blob()[64:], "E_TRUNCATED"),
    "lone weight file of half an element": lone(blob(size=127), "E_SIZE"),
    "lone weight file of more spare bits than a code": lone(blob(code=8, spare=5), "E_SIZE"),
    "lone weight file of a type that is not known": lone(blob(code=18), "E_DTYPE", 4),
    "lone weight file cut short": lone(blob()[:-1], "E_PAST_END"),
    "lone weight file whose blob is elsewhere": lone(header(2) + blob(start=4096)[64:], "E_PAST_END"),
}  # fmt: skip


# Around the program -------------------------------------------------------------------------------

NEURAL_NETWORK = number(1, 4) + message(2, message(100)) + message(500, message(1, message(1, "x")))


def of_kind(field: int) -> Case:
    return Case(package(number(1, 4) + message(2) + message(field, message(1, "x"))), "E_COREML_KIND", True, exit_code=4)


def folder(*names: str) -> Case:
    """Files that are no package."""
    return Case(dict.fromkeys(names, b"\x08\x04"), "E_UNKNOWN_FORMAT", is_directory=True, exit_code=4)


_PACKAGES: dict[str, Case] = {
    "manifest of no bytes": changed({MANIFEST: b""}, "E_JSON"),
    "manifest that is not UTF-8": changed({MANIFEST: b'{"a": "\xff\xfe"}'}, "E_UTF8"),
    "manifest with a key twice": changed({MANIFEST: b'{"a": "A", "a": "B"}'}, "E_JSON_DUPLICATE"),
    "manifest nested 100,000 deep": changed({MANIFEST: b"[" * 100_000}, "E_JSON_DEPTH"),
    "manifest with NaN": changed({MANIFEST: b'{"a": NaN}'}, "E_JSON"),
    "manifest that is a list": changed({MANIFEST: b"[]"}, "E_MANIFEST"),
    "manifest of nothing": changed({MANIFEST: b"{}"}, "E_MANIFEST"),
    "manifest of version 2.0.0": stated("E_VERSION", 4, fileFormatVersion="2.0.0"),
    "manifest of version 1": stated(fileFormatVersion=1),
    "manifest without a version": stated(fileFormatVersion=None),
    "root model that is no item": stated(rootModelIdentifier="C"),
    "root model that is a number": stated(rootModelIdentifier=7),
    "root model that is a list": stated(rootModelIdentifier=["A"]),
    "items that are a list": stated(itemInfoEntries=[]),
    "item that is a text": stated(itemInfoEntries={"A": "com.apple.CoreML/model.mlmodel"}),
    "item without a path": stated(itemInfoEntries={"A": {"name": "x"}}),
    "path that is a number": pointing(1),
    "path that is missing": pointing("com.apple.CoreML/other.mlmodel"),
    "path that climbs": pointing("../../../../etc/passwd"),
    "path that climbs and returns": pointing("com.apple.CoreML/../com.apple.CoreML/model.mlmodel"),
    "path that climbs to the manifest": pointing("../Manifest.json"),
    "path that is absolute": pointing("/etc/passwd"),
    "path with NUL": pointing("com.apple.CoreML/model.mlmodel\0"),
    "path that is a directory": pointing("com.apple.CoreML"),
    "path that is empty": pointing(""),
    "path that is a lone surrogate": changed(
        {MANIFEST: json.dumps(manifest(itemInfoEntries={"A": item("\ud800")})).encode()}, "E_UTF8"
    ),
    "path that is the weight file": stated("E_PROTOBUF", itemInfoEntries={"A": item("com.apple.CoreML/weights/weight.bin")}),
    "model that is missing": changed({MODEL: None}, "E_MANIFEST"),
    "model that is a link out of the package": changed({}, "E_LINK", special={MODEL: link_to("/etc/passwd")}),
    "weight file that is a link out of the package": changed({}, "E_LINK", special={WEIGHTS: link_to("/etc/passwd")}),
    "manifest that is a link out of the package": changed({}, "E_LINK", special={MANIFEST: link_to("/etc/passwd")}),
    "model that is a FIFO": changed({}, "E_NOT_A_FILE", special={MODEL: fifo}),
    "weight file that is a FIFO": changed({}, "E_NOT_A_FILE", special={WEIGHTS: fifo}),
    "manifest that is a FIFO": changed({}, "E_NOT_A_FILE", special={MANIFEST: fifo}),
    "model of no bytes": changed({MODEL: b""}, "E_COREML_KIND", exit_code=4),
    **{f"model that is {what}": of_kind(field) for field, what in {
        200: "a pipeline classifier", 202: "a pipeline", 303: "a regressor", 403: "a classifier", 500: "a neural network",
        600: "something else", 3000: "serialized",
    }.items()},
    "compiled model": folder("coremldata.bin", "model.mil", "weights/weight.bin"),
    "folder of a model and weights": folder("model.mlmodel", "weights/weight.bin"),
    "folder Data of a package": folder("com.apple.CoreML/model.mlmodel"),
    "folder of weights": folder("weight.bin"),
    "package without Data": Case({MANIFEST: json.dumps(manifest()).encode()}, "E_UNKNOWN_FORMAT", True, exit_code=4),
    "lone neural network": Case({"x.mlmodel": NEURAL_NETWORK}, "E_UNKNOWN_FORMAT", exit_code=4),
    "lone program": Case({"x.mlmodel": SOUND[MODEL]}, "E_UNKNOWN_FORMAT", exit_code=4),
    "package that is zipped": Case({"x.mlpackage": b"PK\x03\x04" + bytes(60)}, "E_UNKNOWN_FORMAT", exit_code=4),
}  # fmt: skip


# Names --------------------------------------------------------------------------------------------


def metadata(about: Mapping[str, str], code: str = "E_NAMES") -> Case:
    """Two constants in a program that was made here."""
    forms = Forms()
    operations = [*forms.plain("w"), *forms.plain("v"), used("w")]
    raw = model({"main": function(operations)}, {"flyweight.program": "linear", **about})
    return Case(package(raw, forms.file), code, is_directory=True)


def names(text: str, code: str = "E_NAMES") -> Case:
    return metadata({"flyweight.names": text}, code)


_NAMES: dict[str, Case] = {
    "names that are a list": names("[]"),
    "names that are no JSON": names("{", "E_JSON"),
    "names with a key twice": names('{"w": "a", "w": "b"}', "E_JSON_DUPLICATE"),
    "names nested 1,000 deep": names("[" * 1000, "E_JSON_DEPTH"),
    "name that is a number": names('{"w": 1}'),
    "name that is a list": names('{"w": ["a"]}'),
    "one name for two tensors": names('{"w": "a", "v": "a"}'),
    "name of another tensor": names('{"w": "v"}'),
    "name that is empty": names('{"w": ""}', "E_NAME"),
    "name with NUL": names('{"w": "a\\u0000b"}', "E_NAME"),
    "name of 2,000 bytes": names(json.dumps({"w": "a" * 2000}), "E_NAME"),
    "name that is a lone surrogate": names('{"w": "\\ud800"}', "E_UTF8"),
}

CASES: dict[str, Case] = {**_PACKAGES, **_WEIGHTS, **_NAMES}
