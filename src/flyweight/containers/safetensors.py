"""safetensors: a JSON table, then the bytes it describes, back to back.

    u64      n, the length of the header
    n bytes  JSON: {"<tensor>": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
             "__metadata__": {"<key>": "<text>"}}, spaces at the end so that the data starts 8-aligned
    rest     the tensors; offsets count from here; together they cover every byte exactly once

A tensor that is not plain is stored part by part as plain tensors and described in the metadata,
so this file carries any codec, also one we do not know:

    flyweight.tensors   {"<tensor>": {"shape", "dtype", "codec": {"name", "params"}, "parts": {"<part>": "<key>"}}}
    flyweight.metadata  [[key, type, value], ...] when a value is not plain text (see `typed_json`)
    flyweight.dialect   the tensor naming, when it is not "hf"

Plain tensors that are codes and companions of another quantization method are `foreign` (see `quantization`).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from flyweight.containers.carried import EVERY_CODEC, ROW_SIZES, Carried
from flyweight.containers.container import ENTRY_KIND_NBYTES, ENTRY_NBYTES, Container, Image, Placement, check_cover
from flyweight.containers.quantization import as_foreign, method_in_tensors
from flyweight.foundation import strict_json, typed_json
from flyweight.foundation.cursor import Budget, Cursor, check_name, check_shape, utf8
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, LimitError, MalformedError, UnsupportedError
from flyweight.foundation.limits import MAX_JSON_BYTES, MAX_SIZE, MAX_TENSORS_PER_FILE
from flyweight.foundation.manifest import Entries, Entry, Extent, Manifest, Typed
from flyweight.foundation.tensor import RAW, CodecSpec, Layout, TensorSpec
from flyweight.sources import Bundle, Source

DTYPES = {
    "BOOL": DType.BOOL, "U8": DType.U8, "I8": DType.I8, "U16": DType.U16, "I16": DType.I16,
    "U32": DType.U32, "I32": DType.I32, "U64": DType.U64, "I64": DType.I64,
    "F64": DType.F64, "F32": DType.F32, "F16": DType.F16, "BF16": DType.BF16, "C64": DType.C64,
    "F8_E4M3": DType.F8_E4M3, "F8_E5M2": DType.F8_E5M2, "F8_E8M0": DType.F8_E8M0,
    "F8_E4M3FNUZ": DType.F8_E4M3FNUZ, "F8_E5M2FNUZ": DType.F8_E5M2FNUZ,
    "F6_E2M3": DType.F6_E2M3, "F6_E3M2": DType.F6_E3M2, "F4": DType.F4_E2M1,
}  # fmt: skip
LABELS = {dtype: label for label, dtype in DTYPES.items()}

_METADATA = "__metadata__"
_TENSORS, _TYPED, _DIALECT = "flyweight.tensors", "flyweight.metadata", "flyweight.dialect"
_RESERVED = frozenset({_TENSORS, _TYPED, _DIALECT})
_TENSOR_FIELDS = frozenset({"dtype", "shape", "data_offsets"})
_DATA_ALIGNMENT = 8

_AT_ONCE = 1 << 18
_OPENING = re.compile(rb'\{(?:"__metadata__": ?(\{(?:[^"{}]++|"(?:[^"\\]++|\\.)*+")*+\})(?:, ?(?=")|(?=\})))?', re.DOTALL)
_NUMBER = r"(?:0|[1-9][0-9]{0,18})"
_SHAPE = re.compile(rf'"dtype": ?"(\w+)", ?"shape": ?\[({_NUMBER}(?:, ?{_NUMBER})*)?\]')
_POWERS = 10 ** np.arange(1, 19)


def _line(fields: str) -> re.Pattern[str]:
    """A line of the table with its fields in this order, up to the comma after it or the end.

    What is written alike in many lines (element type and shape) is only found here and looked at once, in `_read_spec`.
    An offset has up to 18 digits: it is also in a machine word when the length of the header is added.
    """
    about = r'(?P<about>"dtype"[^\]]++\])'
    offsets = r'"data_offsets": ?\[(?P<begin>[0-9]{1,18}+), ?(?P<end>[0-9]{1,18}+)\]'
    inner = fields.format(about=about, offsets=offsets)
    return re.compile(rf'(?P<line>"(?P<name>[^"\\\x00-\x1f]{{1,256}}+)": ?\{{{inner}\}}(?:, ?|\Z))')


_LINES = [_line("{about}, ?{offsets}"), _line("{offsets}, ?{about}")]
"""As safetensors writes them, and as MLX does, which sorts its keys."""


class Header(NamedTuple):
    metadata: dict[str, str]
    tensors: Entries
    """Plain tensors, one part `data` each."""


_Specs = dict[tuple[object, ...], tuple[int, TensorSpec, int]]
"""What was met before, by element type and shape: its kind, its spec and its bits. The tensors of a model have few shapes."""


# --- the file ---------------------------------------------------------------------------------


def read_header(source: Source, file: str) -> Header:
    """The table of one file, proven to cover the file exactly. `file` is its name in the bundle."""
    cursor = Cursor(source)
    length = cursor.u64("the header length")
    if length > MAX_JSON_BYTES:
        raise LimitError(
            f"a header of {length} bytes exceeds the limit of {MAX_JSON_BYTES}", code="E_HEADER_SIZE", file=source.name
        )
    raw = cursor.take(length, "the header")
    if not length or raw[0] != ord("{"):
        raise MalformedError("the header must start with '{'", code="E_HEADER", file=source.name, offset=8)
    start = cursor.offset
    header = _read_lines(raw, file, start) or _read_table(strict_json.loads(raw, file=source.name), source.name, file, start)
    if not header.tensors.fill(start, source.size):
        check_cover(sorted(header.tensors.spans(), key=itemgetter(1, 2)), start, source)  # says what is wrong
    return header


def _read_lines(raw: memoryview, file: str, start: int) -> Header | None:
    """The header if it is written as everyone writes it. None if anything is unusual or wrong: `_read_table` says what.

    A million lines are read some thousands at a time and never are a tree in memory, which would take ten times the file.
    """
    try:
        opening = _OPENING.match(raw)
        assert opening, "the caller has seen the first character"
        metadata = _check_metadata(strict_json.loads(opening[1] or b"{}", file=file), file)
        tensors = _read_windows(raw, opening.end(), file, start)
    except FlyweightError:
        return None
    return None if tensors is None else Header(metadata, tensors)


def _read_windows(raw: memoryview, at: int, file: str, start: int) -> Entries | None:
    """The lines from `at` on, window by window; each window ends with a line."""
    entries, budget = Entries(), Budget()
    names: list[str] = []
    kinds, offsets = array("I"), array("q")
    known: dict[str, int] = {}
    sizes = array("q")
    pattern, last = None, False
    while not last:
        window = bytes(raw[at : at + _AT_ONCE])
        if last := at + len(window) == len(raw):
            window = window.rstrip(b" \t\r\n")
            cut = len(window) - 1 if window.endswith(b"}") and not window.endswith(b",}") else -1
        else:
            cut = window.rfind(b"},", 0, -1) + 2
            cut = cut + (window[cut] == ord(" ")) if cut > 1 else -1
        if cut < 0:
            return None
        text = utf8(window[:cut], "the header")
        pattern = pattern or next((known for known in _LINES if known.match(text)), _LINES[0])
        rows = pattern.findall(text)
        if not rows:
            return entries if not text and not names else None
        budget.spend(len(window) + len(rows) * (ENTRY_NBYTES + 64), "the header")
        columns = dict(zip(pattern.groupindex, zip(*rows, strict=True), strict=True))
        if sum(map(len, columns["line"])) != len(text):
            return None
        for about in dict.fromkeys(columns["about"]):
            if about not in known:
                budget.spend(ENTRY_KIND_NBYTES, "tensors of so many shapes")
                spec = _read_spec(about, file)
                if spec is None or not _whole_bytes(spec):
                    return None
                known[about] = entries.add_kind(file, spec, RAW, {"data": spec})
                sizes.append(spec.nbytes)
        names += columns["name"]
        fresh = array("I", map(known.__getitem__, columns["about"]))
        begins, ends = _integers(columns["begin"]), _integers(columns["end"])
        if begins is None or ends is None or not np.array_equal(ends - begins, np.array(sizes).take(fresh)):
            return None
        kinds += fresh
        offsets.frombytes((begins + start).tobytes())
        at += cut
    unique = len(names) <= MAX_TENSORS_PER_FILE and entries.extend(names, kinds, offsets)
    return entries if unique and _METADATA not in entries else None


def _integers(digits: Sequence[str]) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """Numbers from their digits; None if one begins with a zero that JSON does not allow."""
    values = np.array(list(map(int, digits)), np.int64)
    fewest = len(values) + int(np.searchsorted(_POWERS, values, "right").sum())
    return values if sum(map(len, digits)) == fewest else None


def _read_spec(about: str, file: str) -> TensorSpec | None:
    found = _SHAPE.fullmatch(about)
    if found is None:
        return None
    shape = [int(dim) for dim in (found[2] or "").split(",") if dim]
    return _check_spec("", found[1], shape, file)


def _read_table(table: Any, name: str, file: str, start: int) -> Header:
    """The header from any JSON; `name` is what errors call the source."""
    metadata = _check_metadata(table.pop(_METADATA, {}), name)
    if len(table) > MAX_TENSORS_PER_FILE:
        raise LimitError(f"{len(table)} tensors exceed the limit of {MAX_TENSORS_PER_FILE}", code="E_TENSORS", file=name)
    entries = Entries()
    kinds, offsets = array("I"), array("q")
    names = list(table)
    specs: _Specs = {}
    for key in names:
        # Popped, so that a table of a million lines is never in memory twice.
        kind, begin = _check_tensor(key, table.pop(key), name, file, specs, entries)
        if start + begin > MAX_SIZE:
            raise MalformedError(
                f"the tensor begins at byte {begin}, beyond any file", code="E_PAST_END", file=name, tensor=key
            )
        kinds.append(kind)
        offsets.append(start + begin)
    entries.extend(names, kinds, offsets)
    return Header(metadata, entries)


def _check_metadata(metadata: object, file: str) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(type(value) is str for value in metadata.values()):
        raise MalformedError("__metadata__ must map text to text", code="E_METADATA", file=file)
    return metadata


def _check_tensor(name: str, fields: object, source: str, file: str, specs: _Specs, entries: Entries) -> tuple[int, int]:
    """What a line of the table says: the kind of tensor, and where it begins. `source` is what errors call the file."""
    check_name(name, file=source)
    if not isinstance(fields, dict) or fields.keys() != _TENSOR_FIELDS:
        raise MalformedError(
            f"a tensor must have exactly the fields {sorted(_TENSOR_FIELDS)}", code="E_HEADER", file=source, tensor=name
        )
    label, shape = fields["dtype"], fields["shape"]
    known = type(label) is str and type(shape) is list and [*map(type, shape)].count(int) == len(shape)  # True is not 1
    found = specs.get((label, *shape)) if known else None
    if found is None:
        spec = _check_spec(name, label, shape, source)
        found = entries.add_kind(file, spec, RAW, {"data": spec}), spec, spec.size * spec.dtype.bits
        specs[label, *shape] = found
    kind, spec, bits = found
    begin, end = _check_offsets(fields["data_offsets"], name, source)
    if bits != 8 * (end - begin):
        raise MalformedError(
            f"{spec} takes {bits / 8:g} bytes but data_offsets span {end - begin}", code="E_SIZE", file=source, tensor=name
        )
    return kind, begin


def _check_spec(name: str, label: object, shape: object, file: str) -> TensorSpec:
    """The element type comes first: nothing else about a tensor means anything without it."""
    dtype = DTYPES.get(label) if type(label) is str else None
    if dtype is None:
        raise MalformedError(
            f"unknown element type {label!r}", code="E_DTYPE", file=file, tensor=name, hint=f"known: {', '.join(DTYPES)}"
        )
    return TensorSpec(check_shape(shape, file=file, tensor=name), dtype)


def _check_offsets(offsets: object, name: str, file: str) -> tuple[int, int]:
    if type(offsets) is list and len(offsets) == 2:
        begin, end = offsets
        if type(begin) is int and type(end) is int and begin >= 0:
            return begin, end
    raise MalformedError("data_offsets must be two integers, 0 or more", code="E_OFFSETS", file=file, tensor=name)


def _whole_bytes(spec: TensorSpec) -> bool:
    return spec.size * spec.dtype.bits % 8 == 0


def build_image(file: str, tensors: Mapping[str, TensorSpec], metadata: Mapping[str, str]) -> tuple[Image, dict[str, Extent]]:
    """The bytes around the weights of one file, and the place of each tensor.

    The table keeps the given order. So does the data, unless that would put a tensor on an
    address its elements cannot be read from; then wider elements come first.
    """
    offsets, at = {}, 0
    for name in _aligned_order(tensors):
        offsets[name] = at
        at += tensors[name].nbytes
    table: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    for name, spec in tensors.items():
        table[name] = {
            "dtype": LABELS[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [offsets[name], offsets[name] + spec.nbytes],
        }
    text = strict_json.dumps(table)
    text += b" " * (-len(text) % _DATA_ALIGNMENT)
    if len(text) > MAX_JSON_BYTES:
        raise UnsupportedError(
            f"the header would take {len(text)} bytes; safetensors allows {MAX_JSON_BYTES}", code="E_HEADER_SIZE", file=file
        )
    head = len(text).to_bytes(8, "little") + text
    extents = {name: Extent(file, len(head) + offsets[name], spec.nbytes) for name, spec in tensors.items()}
    return Image(len(head) + at, ((0, head),)), extents


def _item_bytes(spec: TensorSpec) -> int:
    return max(spec.dtype.bits // 8, 1)


def _aligned_order(tensors: Mapping[str, TensorSpec]) -> Iterable[str]:
    at = 0
    for spec in tensors.values():
        if at % _item_bytes(spec):
            return sorted(tensors, key=lambda name: -_item_bytes(tensors[name]))
        at += spec.nbytes
    return tensors


# --- any codec over plain tensors ---------------------------------------------------------------


def holds(spec: TensorSpec) -> bool:
    """Whether a plain tensor of this shape and type can be stored."""
    return spec.dtype in LABELS and _whole_bytes(spec)


def stored_parts(entries: Mapping[str, Entry]) -> dict[str, tuple[str, str]]:
    """The key each part is stored under, in order: key → (tensor, part)."""
    keys: dict[str, tuple[str, str]] = {}
    for name, entry in entries.items():
        for part, spec in entry.parts.items():
            key = name if len(entry.parts) == 1 else f"{name}.{part}"
            if key in keys or key == _METADATA:
                raise UnsupportedError(f"its part '{part}' needs the key '{key}', which is taken", code="E_KEY", tensor=name)
            if not holds(spec):
                raise UnsupportedError(f"safetensors cannot store its part '{part}', {spec}", code="E_DTYPE", tensor=name)
            keys[key] = (name, part)
    return keys


def description(entries: Mapping[str, Entry], keys: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """The metadata that say what the parts stored under these keys are, for `regroup`; none if all are plain tensors."""
    described: dict[str, Any] = {}
    for key, (name, part) in keys.items():
        entry = entries[name]
        if entry.codec == RAW:
            continue
        about = described.setdefault(
            name,
            {"shape": list(entry.spec.shape), "dtype": entry.spec.dtype.label, "codec": entry.codec.as_json(), "parts": {}},
        )
        about["parts"][part] = key
    return {_TENSORS: strict_json.dumps(described).decode()} if described else {}


def regroup(header: Header, file: str) -> Mapping[str, Entry]:
    """Tensors from the plain ones, in the order of the file; each described tensor where its first part is."""
    text = header.metadata.get(_TENSORS)
    described = {} if text is None else strict_json.loads(text.encode(), file=file)
    if not isinstance(described, dict):
        raise MalformedError(f"{_TENSORS} must be an object", code="E_DESCRIPTION", file=file)
    if not described:
        return header.tensors
    owners: dict[str, Entry] = {}
    alike: _Alike = {}
    for name, about in described.items():
        try:
            entry = _described_entry(check_name(name), about, header.tensors, alike)
        except FlyweightError as error:
            raise error.at(file=file, tensor=name) from None
        for key in about["parts"].values():
            if key in owners:
                raise MalformedError(f"'{key}' is a part of two tensors", code="E_DESCRIPTION", file=file, tensor=name)
            owners[key] = entry
    entries: dict[str, Entry] = {}
    for key in header.tensors:
        entry = owners.get(key) or header.tensors[key]
        if entries.setdefault(entry.name, entry) is not entry:
            raise MalformedError(
                "there are a plain and an encoded tensor of this name", code="E_DUPLICATE", file=file, tensor=entry.name
            )
    return entries


_Alike = dict[str, tuple[TensorSpec, CodecSpec, Layout]]
"""What layers have in common, by how it is described: looked at once and shared."""


def _described_entry(name: str, about: object, tensors: Mapping[str, Entry], alike: _Alike) -> Entry:
    match about:
        case {"shape": shape, "dtype": str(label), "codec": codec, "parts": dict(parts)}:
            pass
        case _:
            raise MalformedError("a description needs shape, dtype, codec and parts", code="E_DESCRIPTION")
    if not parts:
        raise MalformedError("a described tensor has no parts", code="E_DESCRIPTION")
    for part, key in parts.items():
        if type(key) is not str or key not in tensors:
            raise MalformedError(f"its part '{part}' is not in the file", code="E_DESCRIPTION")
    stored = {part: tensors[key] for part, key in parts.items()}
    layout = {part: entry.spec for part, entry in stored.items()}
    kind = repr((shape, label, codec, [(part, id(spec)) for part, spec in layout.items()]))
    if kind not in alike:
        codec_spec = CodecSpec.read(codec, code="E_DESCRIPTION")
        alike[kind] = TensorSpec(check_shape(shape), DType.parse(label)), codec_spec, layout
    return Entry(name, *alike[kind], {part: entry.extents["data"] for part, entry in stored.items()})


# --- metadata -----------------------------------------------------------------------------------


def metadata_of(metadata: Mapping[str, str], file: str) -> tuple[dict[str, Typed], str]:
    """The typed metadata and the dialect that the metadata of a header stand for."""
    plain = {key: Typed("str", value) for key, value in metadata.items() if key not in _RESERVED}
    dialect = metadata.get(_DIALECT, "hf")
    text = metadata.get(_TYPED)
    if text is None:
        return plain, dialect
    typed = typed_json.loads(text, file=file)
    plain.pop("format", None)  # ours: the typed metadata is complete, whatever "format" the file needs
    return typed | {key: value for key, value in plain.items() if key not in typed}, dialect


def header_metadata(manifest: Manifest, loader: str = "pt") -> dict[str, str]:
    """What `metadata_of` reads back. Loaders look for "format", so it is always there."""
    if manifest.dialect not in ("", "hf"):
        return {"format": loader, _TYPED: typed_json.dumps(manifest.metadata), _DIALECT: manifest.dialect}
    if any(key in _RESERVED or typed.type != "str" for key, typed in manifest.metadata.items()):
        return {"format": loader, _TYPED: typed_json.dumps(manifest.metadata)}
    return {"format": loader} | {key: typed.value for key, typed in manifest.metadata.items()}


class Safetensors(Container):
    name = "safetensors"
    title = "safetensors file"
    dialect = ""
    is_directory = False
    suffix = ".safetensors"
    codecs = (Carried("raw", dtypes=tuple(LABELS)), EVERY_CODEC)
    sizes = ROW_SIZES

    def probe(self, bundle: Bundle) -> bool:
        """Also true for a file that merely claims the suffix: the parser then says what is wrong with it."""
        if bundle.single is None:
            return False
        source = bundle[bundle.single]
        if source.size < 10:
            return bundle.single.endswith(self.suffix)
        return source.read(8, 1)[0] == ord("{") or bundle.single.endswith(self.suffix)

    def parse(self, bundle: Bundle) -> Manifest:
        file = bundle.single or next(iter(bundle))
        header = read_header(bundle[file], file)
        metadata, dialect = metadata_of(header.metadata, bundle[file].name)
        entries = regroup(header, bundle[file].name)
        if (found := method_in_tensors(entries)) is not None:
            entries = as_foreign(entries, *found)
        return Manifest(self.name, entries, metadata, dialect=dialect)

    def carries(self, spec: TensorSpec, codec: CodecSpec) -> bool:
        return codec != RAW or holds(spec)

    def place(self, manifest: Manifest, name: str, shard_bytes: int | None = None) -> Placement:
        """One file whatever `shard_bytes` says: a sharded model is a directory."""
        keys = stored_parts(manifest.entries)
        metadata = header_metadata(manifest) | description(manifest.entries, keys)
        parts = {key: manifest.entries[tensor].parts[part] for key, (tensor, part) in keys.items()}
        image, extents = build_image(name, parts, metadata)
        return Placement(with_extents(manifest, self.name, keys, extents), {name: image})


def with_extents(
    manifest: Manifest, format_name: str, keys: Mapping[str, tuple[str, str]], extents: Mapping[str, Extent]
) -> Manifest:
    """The manifest as it will be parsed back, its parts placed."""
    placed: dict[str, dict[str, Extent]] = {}
    for key, (tensor, part) in keys.items():
        placed.setdefault(tensor, {})[part] = extents[key]
    entries = {
        name: Entry(name, entry.spec, entry.codec, entry.parts, placed[name]) for name, entry in manifest.entries.items()
    }
    return Manifest(format_name, entries, manifest.metadata, manifest.files, manifest.dialect)
