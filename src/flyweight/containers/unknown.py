"""Guessing from names and a few bytes what an unknown file or directory is, for an error that says what to do.

Nothing here decides how anything is read. Pickles are named so that nobody looks for a way to open them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from flyweight.foundation.errors import FlyweightError, MalformedError, UnknownFormatError, UnsupportedError
from flyweight.sources import Bundle

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_LOOKED_AT = 4096
_COREML = "give the path of the package, the directory that has Manifest.json"
_FORMATS = "`flyweight formats` lists what can be read"
_KINDS: tuple[tuple[bytes, str, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "fetch the file with `git lfs pull`"),
    (b"PK\x03\x04", "a zip archive", "unpack it and give the path of the model"),
    (b"\x1f\x8b", "compressed with gzip", "unpack it and give the path of the model"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it and give the path of the model"),
    (b"BZh", "compressed with bzip2", "unpack it and give the path of the model"),
    (b"\xfd7zXZ", "compressed with xz", "unpack it and give the path of the model"),
    (b"\x89HDF", "an HDF5 file, which Flyweight does not read", "save the model as safetensors"),
    (b"\x93NUMPY", "a single NumPy array", "give the directory it belongs to"),
    (b"<!doctype", "a web page", "download the file itself"),
    (b"<html", "a web page", "download the file itself"),
    (b"ggml", "a model in a format older than GGUF", "convert it to GGUF with the tools of llama.cpp"),
    (b"lmgg", "a model in a format older than GGUF", "convert it to GGUF with the tools of llama.cpp"),
    (b"tjgg", "a model in a format older than GGUF", "convert it to GGUF with the tools of llama.cpp"),
)
"""How a file begins (in lower case where it has letters), what it is, what to do."""


def unknown(bundle: Bundle) -> FlyweightError:
    """The error for what no container recognises."""
    return _unknown_directory(bundle) if bundle.is_directory else _unknown_file(bundle)


def without_weights(bundle: Bundle) -> FlyweightError:
    """The error for a directory that describes a model, but has no weights that can be read."""
    if found := _pickled(name for name in bundle if "/" not in name):
        return _refused(f"no safetensors weights in the directory, but {found} seems to be")
    return MalformedError("no safetensors weights in the directory", code="E_NO_WEIGHTS", hint="copy the weights there too")


def _pickled(names: Iterable[str]) -> str | None:
    """The first of these files that is, by its name, weights in a pickle."""
    return next((name for name in names if name.endswith(_PICKLES) and name != "training_args.bin"), None)


def _refused(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what} a Python pickle, which can run any code when loaded; Flyweight never loads pickles",
        code="E_PICKLE",
        hint="load it with the tool that wrote it, if you trust it, and save it as safetensors",
    )


def _unknown_directory(bundle: Bundle) -> FlyweightError:
    names = list(bundle)
    if not names:
        return UnknownFormatError("there are no files in this directory", hint="give the directory or file of a model")
    files = [name for name in names if "/" not in name]
    if found := next((name for name in files if name.endswith((".gguf", ".safetensors", ".squizd"))), None):
        return UnknownFormatError("the directory is not a model", hint=f"to open one of its files, give its path: {found}")
    if "coremldata.bin" in files or "model.mil" in files:
        return UnknownFormatError(
            "this is a compiled Core ML model, which Flyweight does not read", hint="give the .mlpackage it was compiled from"
        )
    if any(name.rpartition("/")[2] in ("model.mlmodel", "weight.bin") for name in names):
        return UnknownFormatError("this is a part of a Core ML package", hint=_COREML)
    if found := _pickled(files):
        return _refused(f"{found} seems to be")
    folders = Counter(name.partition("/")[0] for name in names if "/" in name)
    if not files:
        shown = ", ".join(list(folders)[:4]) + (", …" if len(folders) > 4 else "")
        return UnknownFormatError("the directory contains only directories", hint=f"give the one that is a model: {shown}")
    return UnknownFormatError("no model in this directory: neither config.json nor weights of a known format", hint=_FORMATS)


def _unknown_file(bundle: Bundle) -> FlyweightError:
    source = bundle[next(iter(bundle))]
    start = bytes(source.read(0, min(source.size, _LOOKED_AT)))
    if not start:
        return UnknownFormatError("the file is empty", hint="download or convert it again")
    if (start[0] == 0x80 and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")) or (
        start[:4] == b"PK\x03\x04" and b".pkl" in start
    ):
        return _refused("this is")
    if source.name.endswith(".mlmodel"):
        return UnknownFormatError(
            "this is a Core ML model without its package, which has the weights of an ML program", hint=_COREML
        )
    lower = start.lower()
    for begins, kind, advice in _KINDS:
        if lower.startswith(begins) or start.startswith(begins):
            return UnknownFormatError(f"this is {kind}", hint=advice)
    if _is_text(start):
        return UnknownFormatError("this is a text file, not a model", hint=_FORMATS)
    return UnknownFormatError("unknown format", hint=_FORMATS)


def _is_text(start: bytes) -> bool:
    try:
        text = start[: -(len(start) % _LOOKED_AT == 0 and 3) or None].decode()
    except UnicodeDecodeError:
        return False
    return all(c.isprintable() or c in "\t\r\n\f" for c in text)
