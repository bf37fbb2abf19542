"""UQFF 1.x: a directory whose layers have names, every field of a layer a tensor of its own in a safetensors file.

    uqff.version.major, .minor, .patch     u32 scalars, in the first shard
    <module>.weight.format                 u8 scalar: the type of the layer
    <module>.weight                        the field `weight`: a tensor, or u8 (bytes,)
    <module>.weight.<field>                the others: a tensor, a scalar u8, u32 or f32, a shape as u32 (rank,)
    <module>.bias                          where the layer has one

`layer_fields` has the fields of each type, `uqff_files` the files around. All other tensors are plain, in residual.safetensors.
A layer that is not quantized may be in either; it is written there, because loaders cast it to the type they compute in.

In a model made of a GGUF file the rows of q and k lie as they did there, and config.json has
"_mistralrs_qk_rope_layout": "adjacent": its dialect is `hf_adjacent`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from flyweight.containers.container import Arrangement, Image, fill_shards
from flyweight.containers.safetensors import build_image, read_header
from flyweight.containers.uqff import uqff_report
from flyweight.containers.uqff.layer_fields import (
    BYTES,
    DIMS,
    FIELDS,
    NUMBERS,
    TENSOR,
    Layer,
    Stored,
    entry_of,
    form_of,
)
from flyweight.containers.uqff.layer_order import EMBEDDING, layer_modules, stacked
from flyweight.containers.uqff.uqff_container import Extents, Layers, UqffContainer, with_bias
from flyweight.containers.uqff.uqff_files import (
    BIAS,
    REPORT,
    SUFFIX,
    WEIGHT,
    Members,
    Reading,
    first_shard,
    has_uqff,
    members,
    read_config,
    read_residual,
)
from flyweight.foundation.cursor import SCALARS, Budget, Cursor, check_shape
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, MalformedError, UnsupportedError
from flyweight.foundation.expert_names import stack_name
from flyweight.foundation.limits import MAX_RANK
from flyweight.foundation.manifest import Entry, Manifest
from flyweight.foundation.tensor import RAW, TensorSpec
from flyweight.sources import Bundle

VERSION = (1, 2, 0)
_FORMAT = ".weight.format"
_VERSION_KEYS = tuple(f"uqff.version.{part}" for part in ("major", "minor", "patch"))
_SCALAR = TensorSpec((), DType.F32)
_UNNAMED = re.compile(rb'"[0-9]+"\s*:\s*\{')
_NAMED = re.compile(rb'"uqff\.version\.|\.weight\.format"')
_LOOKED_AT = 1 << 16
_TENSOR_NBYTES = 1024
"""What a tensor takes in memory together with its share of a layer, which has two at least; rounded up."""


def is_named(bundle: Bundle) -> bool:
    """Whether a UQFF is of generation 1, as far as its first bytes tell."""
    source = bundle[first_shard(bundle)]
    start = bytes(source.read(0, min(source.size, _LOOKED_AT)))
    return _UNNAMED.search(start) is None or _NAMED.search(start) is not None


# Reading ------------------------------------------------------------------------------------------


class Tables:
    """The tensors of all shards, by key."""

    def __init__(self, found: Members) -> None:
        self.home = found.home
        self.tensors: dict[str, Entry] = {}
        budget = Budget()
        for shard in found.shards:
            tensors = read_header(self.home[shard], shard).tensors
            budget.spend(len(tensors) * _TENSOR_NBYTES, "so many tensors", file=self.home[shard].name)
            for key, entry in tensors.items():
                known = self.tensors.setdefault(key, entry)
                if known is entry:
                    continue
                if key not in _VERSION_KEYS or self._scalar(known, "u32") != self._scalar(entry, "u32"):
                    raise MalformedError(
                        "the tensor is in two shards", code="E_DUPLICATE", file=self.home[shard].name, tensor=key
                    )
        self.version = self._version()

    def _version(self) -> tuple[int, int, int]:
        if all(key.isdecimal() for key in self.tensors):
            raise MalformedError("there is no version, and no layer has a name", code="E_VERSION")
        for key in _VERSION_KEYS:
            if key not in self.tensors:
                raise MalformedError(
                    f"there is no {key}", code="E_VERSION", hint="complete the download: the first shard has it"
                )
        major, minor, patch = (self.number(key, "u32") for key in _VERSION_KEYS)
        if major != VERSION[0] or minor > VERSION[1]:
            raise UnsupportedError(
                f"UQFF {major}.{minor}.{patch}; known are 0.x and 1.0 to {VERSION[0]}.{VERSION[1]}", code="E_VERSION",
                hint="a newer version of Flyweight may know it",
            )  # fmt: skip
        return major, minor, patch

    def _cursor(self, entry: Entry) -> Cursor:
        extent = entry.extents["data"]
        return Cursor(self.home[extent.file], extent.offset, extent.end)

    def _scalar(self, entry: Entry, kind: str) -> int:
        """One element in a row is as good."""
        if entry.spec.dtype is not NUMBERS[kind] or entry.spec.shape not in ((), (1,)):
            raise MalformedError(f"'{entry.name}' must be a scalar {kind}, not {entry.spec}", code="E_LAYER")
        return int(self._cursor(entry).scalar(kind, entry.name))

    def number(self, key: str, kind: str) -> int:
        self.spec(key)
        return self._scalar(self.tensors[key], kind)

    def dims(self, key: str) -> tuple[int, ...]:
        spec = self.spec(key)
        if spec.dtype is not DType.U32 or len(spec.shape) != 1 or spec.size > MAX_RANK:
            raise MalformedError(f"'{key}' must be at most {MAX_RANK} u32 in a row, not {spec}", code="E_LAYER")
        return check_shape(self._cursor(self.tensors[key]).scalars("u32", spec.size, key))

    def spec(self, key: str) -> TensorSpec:
        if key not in self.tensors:
            raise MalformedError(
                f"there is no '{key}', which the layer needs", code="E_LAYER", hint="download or convert the model again"
            )
        return self.tensors[key].spec

    def stored(self, key: str, kind: str) -> Stored:
        spec = self.spec(key)
        if kind == BYTES and spec.dtype is not DType.U8:
            raise MalformedError(f"'{key}' must be u8, not {spec}", code="E_LAYER")
        if kind == "f32" and (spec.dtype is not DType.F32 or spec.shape not in ((), (1,))):
            raise MalformedError(f"'{key}' must be a scalar f32, not {spec}", code="E_LAYER")
        return Stored(_SCALAR if kind == "f32" else spec, self.tensors[key].extents["data"])


def read_layers(tables: Tables) -> tuple[dict[str, Entry], dict[str, int]]:
    """The tensors in layers, and the type of each layer by module; biases are tensors too."""
    entries: dict[str, Entry] = {}
    types: dict[str, int] = {}
    for key in tables.tensors:
        if not key.endswith(_FORMAT):
            continue
        module = key.removesuffix(_FORMAT)
        try:
            layer = _read_layer(tables, module, tables.number(key, "u8"))
            entries[module + WEIGHT] = entry_of(module + WEIGHT, layer)
        except FlyweightError as error:
            raise error.at(tensor=module + WEIGHT) from None
        types[module] = layer.type
        if (bias := tables.tensors.get(module + BIAS)) is not None:
            entries[module + BIAS] = bias
    return entries, types


def _key(module: str, field: str) -> str:
    return module + WEIGHT if field == "weight" else f"{module}{WEIGHT}.{field}"


def _read_layer(tables: Tables, module: str, kind: int) -> Layer:
    if kind not in FIELDS:
        raise UnsupportedError(f"a layer of type {kind}; known are 0 to {max(FIELDS)}", code="E_LAYER_TYPE")
    keys = {field: _key(module, field) for field in FIELDS[kind]}
    arrays = {f: tables.stored(keys[f], form) for f, form in FIELDS[kind].items() if form in (TENSOR, BYTES, "f32")}
    numbers = {f: tables.number(keys[f], form) for f, form in FIELDS[kind].items() if form in NUMBERS}
    return Layer(kind, arrays, numbers, tables.dims(keys["shape"]) if "shape" in keys else ())


# The container ------------------------------------------------------------------------------------


class Uqff(UqffContainer):
    name = "uqff"
    title = "UQFF directory"
    expert_layout = "uqff"
    own_files = (REPORT,)
    promotes = True

    def probe(self, bundle: Bundle) -> bool:
        return has_uqff(bundle)

    def read(self, bundle: Bundle) -> Reading:
        found = members(bundle)
        tables = Tables(found)
        layers, types = read_layers(tables)
        used = {_key(module, field) for module, kind in types.items() for field in FIELDS[kind]} | set(_VERSION_KEYS)
        unused = [key for key in tables.tensors if key not in used and key not in layers and not key.endswith(_FORMAT)]
        residual = read_residual(found, layers)
        return Reading(found, read_config(found.home), tables.version, layers, types, residual, unused=unused)

    def arrange(self, names: Collection[str], config: Mapping[str, Any]) -> Arrangement:
        """Only what mistral.rs looks for among the layers may be quantized; routers, for one, are not."""
        modules = layer_modules(config)
        layers = {stacked(module) for module in (*(modules or ()), EMBEDDING)}
        plain = {name for name in names if name.removesuffix(WEIGHT) not in layers} if modules else set[str]()
        wanted = super().arrange(names, config)
        stacks = {name: DType.F32 for name in names if stack_name(name)}
        return wanted._replace(plain=plain, dtypes={**wanted.dtypes, **stacks})

    def layers_of(self, manifest: Manifest) -> Layers:
        """What is quantized, and stacks of experts. Loaders cast the rest, which is in residual.safetensors, to the type they
        compute in."""
        layers: dict[str, list[str]] = {}
        for name, entry in manifest.entries.items():
            if entry.codec == RAW and not (stack_name(name) and len(entry.spec.shape) == 3):
                continue
            if not name.endswith(WEIGHT):
                raise UnsupportedError(f"UQFF quantizes only tensors named '…{WEIGHT}'", code="E_KEY", tensor=name)
            layers[name.removesuffix(WEIGHT)] = with_bias(manifest.entries, name.removesuffix(WEIGHT))
        return layers

    def place_layers(
        self, entries: Mapping[str, Entry], layers: Layers, stem: str, shard_bytes: int
    ) -> tuple[dict[str, Image], Extents]:
        sizes = {module: sum(entries[name].nbytes for name in names) for module, names in layers.items()}
        images: dict[str, Image] = {}
        extents: Extents = {}
        for number, modules in enumerate(fill_shards(sizes, shard_bytes)):
            constants = dict(_version_tensors()) if number == 0 else {}
            arrays: dict[str, tuple[str, str, TensorSpec]] = {}
            for module in modules:
                form = form_of(entries[module + WEIGHT])
                constants[module + _FORMAT] = _constant("u8", form.type)
                for field, kind in FIELDS[form.type].items():
                    if kind == DIMS:
                        constants[_key(module, field)] = _constant("u32", *form.shape, shape=(len(form.shape),))
                    elif kind in NUMBERS:
                        constants[_key(module, field)] = _constant(kind, form.numbers[field])
                    else:
                        part, spec = form.arrays[field]
                        arrays[_key(module, field)] = module + WEIGHT, part, spec
                arrays |= {bias: (bias, "data", entries[bias].spec) for bias in layers[module][1:]}
            file = f"{stem}-{number}{SUFFIX}"
            specs = {key: spec for key, (spec, _) in constants.items()} | {key: spec for key, (*_, spec) in arrays.items()}
            image, placed = build_image(file, specs, _PRODUCER)
            chunks = [(placed[key].offset, data) for key, (_, data) in constants.items() if data]
            images[file] = Image(image.nbytes, (*image.chunks, *chunks))
            extents |= {(tensor, part): placed[key] for key, (tensor, part, _) in arrays.items()}
        return images, extents

    def beside(self, quantized: Mapping[str, Entry], stem: str, shards: list[str]) -> Mapping[str, Image]:
        return {REPORT: Image.of(uqff_report.report(quantized, stem, shards, ".".join(map(str, VERSION))))}


_PRODUCER = {"uqff.producer": "flyweight", "uqff.version": ".".join(map(str, VERSION))}


def _version_tensors() -> Iterable[tuple[str, tuple[TensorSpec, bytes]]]:
    return ((key, _constant("u32", value)) for key, value in zip(_VERSION_KEYS, VERSION, strict=True))


def _constant(kind: str, *values: int, shape: tuple[int, ...] = ()) -> tuple[TensorSpec, bytes]:
    if any(value >= 1 << NUMBERS[kind].bits for value in values):
        raise UnsupportedError(f"{max(values)} is too large for the field, which is {kind}", code="E_LENGTH")
    return TensorSpec(shape, NUMBERS[kind]), b"".join(map(SCALARS[kind].pack, values))
