"""Reading an npy-dir: its manifest, its arrays, its flyweight.json. All errors are collected, tensor by tensor.

manifest.json says which tensors there are and what each is called on disk. Where a tensor has several forms, four bits count
only once `.squish_int4_ready` says that all of them are there, or if there is nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from flyweight.containers.npy_dir.flyweight_json import Record, read_record
from flyweight.containers.npy_dir.forms import (
    CORRECTION,
    DENSE,
    FORMS,
    INT4,
    PICKLE,
    SHAPE,
    SUFFIXES,
    Stored,
    arrange,
    identify,
)
from flyweight.containers.npy_dir.keys import check_keys
from flyweight.containers.npy_dir.npy_header import Header, read_header
from flyweight.containers.npy_dir.tier_places import ARRAY, COMPRESSED, FOLDER, INT4_READY, MANIFEST, PROGRESS, READY, RECORD
from flyweight.foundation import strict_json
from flyweight.foundation.cursor import check_name, check_shape
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, LimitError, MalformedError, UnsupportedError
from flyweight.foundation.limits import MAX_RANK, MAX_TENSORS
from flyweight.foundation.manifest import Digests, Entry, Extent
from flyweight.foundation.tensor import CodecSpec, TensorSpec
from flyweight.sources import Bundle


@dataclass
class Reading:
    bundle: Bundle
    keys: Mapping[str, str] = field(default_factory=dict)
    """Tensor → its name on disk."""
    entries: dict[str, Entry] = field(default_factory=dict)
    record: Record | None = None
    problems: list[FlyweightError] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)
    owners: dict[str, str] = field(default_factory=dict)
    """Array file → the tensor it is of."""
    arrays: dict[str, tuple[Extent, ...]] = field(default_factory=dict)
    """Tensor → the whole files of the arrays that count."""
    waiting: int = 0
    """Tensors with four bits that do not count, for want of their sentinel."""


def read(bundle: Bundle) -> Reading:
    found = Reading(bundle)
    try:
        found.keys = keys = read_keys(bundle)
        if RECORD in bundle:
            found.record = read_record(bundle[RECORD])
            _same_names(keys, found.record, bundle[RECORD].name)
            found.record.check(MANIFEST, bundle[MANIFEST])
    except FlyweightError as error:
        found.problems.append(error)
        return found
    arrays = array_files(bundle)
    for name, key in keys.items():
        try:
            found.entries[name] = _tensor(found, name, arrays.get(key, {}))
        except FlyweightError as error:
            found.problems.append(error.at(file=bundle.name, tensor=name))
            if error.code == "E_EXTRA":  # true of every other compressed file too
                break
    try:
        _completeness(found)
    except FlyweightError as error:
        found.problems.append(error.at(file=bundle.name))
    return found


def read_keys(bundle: Bundle) -> dict[str, str]:
    """manifest.json: tensor → key."""
    if MANIFEST not in bundle:
        raise MalformedError(f"there are arrays but no {MANIFEST}", code="E_NO_MANIFEST", file=bundle.name)
    file = bundle[MANIFEST].name
    keys = strict_json.load(bundle[MANIFEST])
    if not isinstance(keys, dict) or any(type(key) is not str for key in keys.values()):
        raise MalformedError("the manifest is not an object of names and keys", code="E_MANIFEST", file=file)
    if len(keys) > MAX_TENSORS:
        raise LimitError(f"{len(keys)} tensors exceed the limit of {MAX_TENSORS}", code="E_TENSORS", file=file)
    for name in keys:
        check_name(name, file=file)
    check_keys(keys, file)
    return keys


def _same_names(keys: Mapping[str, str], record: Record, file: str) -> None:
    for name in keys.keys() ^ record.tensors.keys():
        where = MANIFEST if name in keys else RECORD
        raise MalformedError(f"only {where} has this tensor", code="E_RECORD", file=file, tensor=name)


def array_files(bundle: Bundle) -> dict[str, dict[str, str]]:
    """Key → suffix → file; a plain file counts before a compressed one."""
    found: dict[str, dict[str, str]] = {}
    for ending in (COMPRESSED, ARRAY):
        for file in bundle:
            if file.endswith(ending) and file.startswith(FOLDER):
                key, bars, suffix = file[len(FOLDER) : -len(ending)].rpartition("__")
                if bars + suffix in SUFFIXES:
                    found.setdefault(key, {})[bars + suffix] = file
    return found


# One tensor -------------------------------------------------------------------------------------


def _tensor(found: Reading, name: str, files: Mapping[str, str]) -> Entry:
    """The tensor in the form that counts; what lies beside it must be sound and of the same shape."""
    found.owners |= dict.fromkeys(files.values(), name)
    entry, *_ = [_entry(found, name, files, label, first=not at) for at, label in enumerate(_forms(found, files))]
    return entry


def _entry(found: Reading, name: str, files: Mapping[str, str], label: str, *, first: bool) -> Entry:
    headers = {suffix: read_header(found.bundle[files[suffix]]) for suffix in _wanted(label, files)}
    shape = _shape(found, files, label, headers)
    kind = _identified(label, shape, tuple([(suffix, header.spec) for suffix, header in headers.items()]))
    if found.record is not None and first:
        kind = _recorded(found.record.forms(name), kind, headers, files)
    for part in kind.stored.values():
        _check_array(part, headers[part.suffix], found.bundle, files[part.suffix])
    extents = {part: Extent(files[s.suffix], headers[s.suffix].offset, s.part.nbytes) for part, s in kind.stored.items()}
    if first:
        found.arrays[name] = tuple(Extent(files[suffix], 0, h.offset + h.spec.nbytes) for suffix, h in headers.items())
    return Entry(name, kind.spec, kind.codec, kind.parts, extents)


class Kind(NamedTuple):
    """What tensors share that have the same arrays."""

    spec: TensorSpec
    codec: CodecSpec
    stored: Mapping[str, Stored]
    parts: Mapping[str, TensorSpec]

    @classmethod
    def of(cls, spec: TensorSpec, codec: CodecSpec) -> Kind:
        stored = arrange(spec, codec)
        if stored is None:
            raise MalformedError(f"{spec} cannot be stored as {codec}", code="E_SPEC")
        return cls(spec, codec, stored, {part: s.part for part, s in stored.items()})


@lru_cache(maxsize=1024)
def _identified(label: str, shape: tuple[int, ...], arrays: tuple[tuple[str, TensorSpec], ...]) -> Kind:
    return Kind.of(*identify(label, shape, dict(arrays)))


def _recorded(
    forms: Sequence[tuple[TensorSpec, CodecSpec]], kind: Kind, headers: Mapping[str, Header], files: Mapping[str, str]
) -> Kind:
    """What the record says of the form with these arrays. Four bits beside one that it knows may be another tool's."""
    if any(said == kind[:2] for said in forms):
        return kind
    known = {frozenset(s.suffix for s in (arrange(*said) or {}).values()): said for said in forms}
    said = known.get(frozenset(headers))
    if said is not None and said[0].shape == kind.spec.shape:
        return Kind.of(*said)
    four = any(FORMS[label].files["codes"] in headers for label in INT4)
    if four and len(forms) == 1 and said is None and all(suffixes <= files.keys() for suffixes in known):
        return kind
    spec, codec = forms[0]
    raise MalformedError(f"{RECORD} says {spec} as {codec}, but the arrays are {kind.spec} as {kind.codec}", code="E_RECORD")


def labels(files: Mapping[str, str]) -> list[str]:
    """The forms a tensor with these files has, as they are preferred."""
    return [label for label, form in FORMS.items() if form.files["codes"] in files] + [s for s in DENSE if s in files]


def _forms(found: Reading, files: Mapping[str, str]) -> list[str]:
    """The forms a tensor has, the one that counts first."""
    present = labels(files)
    if INT4_READY not in found.bundle and any(label not in INT4 for label in present):
        found.waiting += any(label in INT4 for label in present)
        present = [label for label in present if label not in INT4]
    if present:
        return present
    if PICKLE in files:
        raise UnsupportedError(
            "DFloat11 arrays are Python pickles, which Flyweight never loads", code="E_PICKLE", file=files[PICKLE]
        )
    raise MalformedError("none of its arrays exists", code="E_PART_MISSING", hint="the directory may be incomplete")


def _wanted(label: str, files: Mapping[str, str]) -> Iterator[str]:
    """The suffixes of a form; every one must be there."""
    wanted = [label] if label in DENSE else [*FORMS[label].files.values()]
    if label == "int3" and any(suffix in files for suffix in CORRECTION.values()):
        wanted += CORRECTION.values()
    for suffix in wanted:
        if suffix not in files:
            raise MalformedError(f"its array {suffix} is missing", code="E_PART_MISSING")
        yield suffix


def _shape(found: Reading, files: Mapping[str, str], label: str, headers: Mapping[str, Header]) -> tuple[int, ...]:
    """What __shape says; a dense array without one says it itself."""
    if SHAPE not in files:
        if label in DENSE:
            return headers[label].spec.shape
        raise MalformedError(f"its array {SHAPE} is missing", code="E_PART_MISSING")
    source = found.bundle[files[SHAPE]]
    header = read_header(source)
    if found.record is not None:
        found.record.check(files[SHAPE], source)
    array = header.spec
    if array.dtype not in (DType.I64, DType.I32) or len(array.shape) != 1 or array.size > MAX_RANK:
        raise MalformedError(f"a shape is at most {MAX_RANK} integers, not {array}", code="E_SHAPE", file=source.name)
    raw, width = source.read(header.offset, array.nbytes), array.dtype.itemsize
    dims = [int.from_bytes(raw[at : at + width], "little", signed=True) for at in range(0, len(raw), width)]
    return check_shape(dims, file=source.name)


def _check_array(stored: Stored, header: Header, bundle: Bundle, file: str) -> None:
    if header.spec != stored.array and (stored.also is None or header.spec != TensorSpec(stored.also, stored.array.dtype)):
        raise MalformedError(
            f"array {stored.suffix} should be {stored.array} but is {header.spec}", code="E_PART_SHAPE", file=bundle[file].name
        )


def recorded_digests(found: Reading, side_files: Iterable[Extent]) -> Digests:
    """What the record knows of the arrays that count and of side files. Shapes were checked when they were read."""
    return found.record.digests(found.arrays, side_files) if found.record is not None else Digests()


# The directory ----------------------------------------------------------------------------------


def _completeness(found: Reading) -> None:
    """Without its sentinel a directory is taken only if nothing suggests that it was never finished."""
    bundle = found.bundle
    stray = [f for f in bundle if f.startswith(FOLDER) and f.endswith((ARRAY, COMPRESSED)) and f not in found.owners]
    if READY not in bundle:
        reason = ""
        if found.record is not None:
            reason = f"{RECORD} is there"
        elif stray:
            reason = f"{len(stray)} arrays belong to no tensor, such as {stray[0]}"
        elif PROGRESS in bundle and not _all_shards(strict_json.load(bundle[PROGRESS])):
            reason = f"{PROGRESS} lists unfinished shards"
        if reason:
            found.problems.append(
                MalformedError(
                    f"the directory is incomplete: there is no {READY}, and {reason}", code="E_UNFINISHED", file=bundle.name
                )
            )
        found.warnings.append(("E_UNFINISHED", f"no {READY}: the conversion may not have finished"))
    if found.waiting:
        message = f"{found.waiting} tensors have four-bit weights that are not used, because there is no {INT4_READY}"
        found.warnings.append(("E_UNREADY", message))
    if READY in bundle and stray:
        found.warnings.append(("E_STRAY", f"{len(stray)} arrays belong to no tensor, such as {stray[0]}"))


def _all_shards(progress: object) -> bool:
    match progress:
        case {"completed_shards": list(done), "total_shards": int(total)}:
            return len(done) >= total
    return False
