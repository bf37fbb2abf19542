"""flyweight.json: codecs, metadata, digests and accuracy gate of an npy-dir that Flyweight wrote.

    {"format": "flyweight npy-dir", "version": 1,
     "metadata": typed metadata as text (`typed_json`),
     "tensors": {name: {"shape": [...], "dtype": "f32", "codec": {"name": ..., "params": {...}}, "added": a codec}},
     "files": {file: BLAKE3 of its bytes, 64 digits},
     "gate": a verdict (`flyweight.foundation.accuracy_gate`), where one was found}

Digests are of files as they are read, so a file that was compressed since still has its own. A directory without this file
is as good; one with it is checked against it. `added` is there where four bits were added beside another form.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flyweight.containers.npy_dir.tier_places import RECORD
from flyweight.foundation import strict_json, typed_json
from flyweight.foundation.accuracy_gate import Verdict
from flyweight.foundation.cursor import check_shape
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import DAMAGED, MalformedError, UnsupportedError
from flyweight.foundation.manifest import Digests, Entry, Extent, Typed, is_digest
from flyweight.foundation.tensor import CodecSpec, TensorSpec
from flyweight.sources import Source

VERSION = 1
NO_DIGEST = "0" * 64
REMEDY = f"{DAMAGED}; if you changed it on purpose, remove {RECORD}"
_FORMAT = "flyweight npy-dir"
_COMPRESSED = ".zst"


@dataclass(frozen=True, slots=True)
class Record:
    tensors: Mapping[str, tuple[TensorSpec, CodecSpec]] = field(default_factory=dict)
    metadata: Mapping[str, Typed] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, CodecSpec] = field(default_factory=dict)
    """The four-bit form of tensors that have another: it counts once its sentinel is there."""
    gate: Verdict | None = None

    @classmethod
    def of(cls, entries: Mapping[str, Entry], metadata: Mapping[str, Typed], files: Mapping[str, str]) -> Record:
        return cls({name: (entry.spec, entry.codec) for name, entry in entries.items()}, metadata, files)

    def forms(self, name: str) -> tuple[tuple[TensorSpec, CodecSpec], ...]:
        """What a tensor is: its first form, and the one added beside it."""
        first = self.tensors[name]
        return (first,) if name not in self.added else (first, (TensorSpec(first[0].shape, DType.F32), self.added[name]))

    def digest(self, file: str) -> str | None:
        """The recorded digest of a file, which may have been compressed since."""
        return self.files.get(file.removesuffix(_COMPRESSED))

    def check(self, file: str, source: Source) -> None:
        """MalformedError if a file that is read whole anyway is not the recorded one."""
        digest = self.digest(file)
        if digest is not None and source.digest() != digest:
            raise MalformedError(
                f"{file.removesuffix(_COMPRESSED)} does not match the digest in {RECORD}", code="E_DIGEST",
                file=source.name, hint=REMEDY,
            )  # fmt: skip

    def digests(self, arrays: Mapping[str, tuple[Extent, ...]], side_files: Iterable[Extent]) -> Digests:
        """The recorded digests of these files: those of each tensor, and others."""
        every = itertools.chain(side_files, *arrays.values())
        return Digests({file: digest for file in every if (digest := self.digest(file.file))}, arrays, REMEDY)

    def text(self) -> bytes:
        tensors: dict[str, dict[str, Any]] = {
            name: {"shape": list(spec.shape), "dtype": spec.dtype.label, "codec": codec.as_json()}
            for name, (spec, codec) in self.tensors.items()
        }
        for name, codec in self.added.items():
            tensors[name]["added"] = codec.as_json()
        document = {
            "format": _FORMAT,
            "version": VERSION,
            "metadata": typed_json.dumps(self.metadata),
            "tensors": tensors,
            "files": dict(self.files),
        }
        if self.gate is not None:
            document["gate"] = self.gate.as_json()
        return strict_json.dumps(document, indent=1) + b"\n"


def read_record(source: Source, *, only_files: bool = False) -> Record:
    """The record, or with `only_files` what it says of files: a start from a tier needs no more."""
    document, file = strict_json.load(source), source.name
    match document:
        case {"format": str(form), "version": int(version)} if form == _FORMAT and version != VERSION:
            raise UnsupportedError(f"unknown version {version} of {RECORD}", code="E_RECORD_VERSION", file=file)
        case {
            "format": str(form), "version": int(), "metadata": str(metadata), "tensors": dict(tensors), "files": dict(files)
        } if form == _FORMAT:  # fmt: skip
            pass
        case _:
            raise _malformed(f"not a {_FORMAT} record", file)
    for name, digest in files.items():
        if not is_digest(digest):
            raise _malformed(f"the digest of '{name}' is not 64 hexadecimal digits", file)
    if only_files:
        return Record(files=files)
    specs = {name: _tensor(about, file, name) for name, about in tensors.items()}
    added = {name: _codec(about["added"], file, name) for name, about in tensors.items() if "added" in about}
    gate = Verdict.read(document["gate"], file=file, code="E_RECORD") if "gate" in document else None
    return Record(specs, typed_json.loads(metadata, file=file), files, added, gate)


def _malformed(message: str, file: str, tensor: str | None = None) -> MalformedError:
    return MalformedError(message, code="E_RECORD", file=file, tensor=tensor)


def _tensor(about: Any, file: str, name: str) -> tuple[TensorSpec, CodecSpec]:
    match about:
        case {"shape": list(shape), "dtype": str(dtype), "codec": dict(codec)}:
            spec = TensorSpec(check_shape(shape, file=file, tensor=name), DType.parse(dtype))
            return spec, _codec(codec, file, name)
    raise _malformed("its description needs a shape, a dtype and a codec", file, name)


def _codec(about: object, file: str, name: str) -> CodecSpec:
    try:
        return CodecSpec.read(about, code="E_RECORD")
    except MalformedError as error:
        raise error.at(file=file, tensor=name) from None
