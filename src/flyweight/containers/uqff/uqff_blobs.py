"""UQFF 0.x: a directory whose layers have numbers instead of names.

A shard is a safetensors file without metadata; its tensors "0", "1" … are u8 (bytes,), each a layer as `blob` has it. The
numbers count the layers that mistral.rs quantizes in its own order (`layer_order`): names follow from config.json. Without it,
or where there are more or fewer layers than it says, a layer is called `layers.<number>`.

The output head is always a layer. In a model that ties it to the embedding it is a quantized copy of that, beside the plain
one in residual.safetensors: such a model is read as one that is not tied. `uqff_files` has the files around.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from flyweight.containers.abilities import Arrangement
from flyweight.containers.carried import Carried
from flyweight.containers.container import Container, Finding, Image, Placement, fill_shards, require_carried
from flyweight.containers.hf import CONFIG, place_files
from flyweight.containers.named_quantizations import Preset
from flyweight.containers.safetensors import build_image, header_metadata, read_header
from flyweight.containers.uqff import layer_fields, uqff_findings, uqff_presets
from flyweight.containers.uqff.blob import Blob, Version, read_blob, write_blob
from flyweight.containers.uqff.layer_fields import F8Q8, MXFP4, entry_of, form_of, type_of
from flyweight.containers.uqff.layer_order import EMBEDDING, HEAD, module_count, module_names
from flyweight.containers.uqff.uqff_directory import is_named
from flyweight.containers.uqff.uqff_files import (
    RESIDUAL,
    SHARD_BYTES,
    SUFFIX,
    Members,
    has_uqff,
    in_order,
    members,
    read_config,
    read_residual,
    side_files,
    untied,
)
from flyweight.containers.uqff.uqff_placing import BIAS, WEIGHT, Extents, placement, plain_config, require_directory, with_bias
from flyweight.foundation import strict_json
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, MalformedError, UnsupportedError
from flyweight.foundation.manifest import Entry, Manifest
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.sources import Bundle

VERSION, WITH_NEW_TYPES = (0, 1, 3), (0, 2, 0)
"""The first that has the types 0 to 4, and the one that has all."""
_TIED = "tie_word_embeddings"


class Layers:
    """What the shards hold."""

    def __init__(self, found: Members) -> None:
        self.blobs = _read_blobs(found)
        self.config = read_config(found.home)
        self.named = module_count(self.config) == len(self.blobs)
        names = module_names(self.config, len(self.blobs)) if self.named else [f"layers.{n}" for n in range(len(self.blobs))]
        self.types = {name: blob.layer.type for name, blob in zip(names, self.blobs, strict=True)}
        self.version: Version = max((blob.version for blob in self.blobs), default=(0, 0, 0))

    def entries(self) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        for module, blob in zip(self.types, self.blobs, strict=True):
            try:
                entries[module + WEIGHT] = entry_of(module + WEIGHT, blob.layer)
            except FlyweightError as error:
                raise error.at(tensor=module + WEIGHT) from None
            if blob.bias is not None:
                stored = blob.bias
                entries[module + BIAS] = Entry(module + BIAS, stored.spec, RAW, {"data": stored.spec}, {"data": stored.extent})
        return entries


def _read_blobs(found: Members) -> list[Blob]:
    """The layers in the order of their numbers, which have no gap."""
    blobs: dict[int, Blob] = {}
    for shard in found.shards:
        source = found.home[shard]
        for key, entry in read_header(source, shard).tensors.items():
            if not key.isascii() or not key.isdecimal() or str(int(key[:10])) != key:
                raise MalformedError("a layer of UQFF 0.x is named by its number", code="E_KEY", file=shard, tensor=key)
            if entry.spec.dtype is not DType.U8 or len(entry.spec.shape) != 1:
                raise MalformedError(f"a layer is u8 in a row, not {entry.spec}", code="E_LAYER", file=shard, tensor=key)
            if int(key) in blobs:
                raise MalformedError("the layer is in two shards", code="E_DUPLICATE", file=shard, tensor=key)
            try:
                blobs[int(key)] = read_blob(source, entry.extents["data"])
            except FlyweightError as error:
                raise error.at(tensor=key) from None
    if blobs and max(blobs) >= len(blobs):
        absent = next(number for number in range(len(blobs)) if number not in blobs)
        raise MalformedError(
            f"there is a layer {max(blobs)}, but no layer {absent}", code="E_LAYER_MISSING", file=found.home.name,
            hint="complete the download: all shards are needed",
        )  # fmt: skip
    return [blobs[number] for number in range(len(blobs))]


class UqffBlobs(Container):
    name = "uqff_blob"
    title = "UQFF 0.x directory"
    dialect = "hf"
    expert_layout = "hf"
    is_directory = True
    codecs = (Carried("raw", dtypes=layer_fields.STANDARD_TYPES), *layer_fields.CARRIED)
    quants = uqff_presets.QUANTS

    def probe(self, bundle: Bundle) -> bool:
        return has_uqff(bundle) and not is_named(bundle)

    def parse(self, bundle: Bundle) -> Manifest:
        found = members(bundle)
        layers = Layers(found)
        entries = layers.entries()
        residual = read_residual(found, entries)
        files = side_files(found)
        if layers.named and EMBEDDING + WEIGHT in residual.entries:
            files = untied(files, layers.config)
        dialect = residual.dialect if layers.named else ""
        return in_order(Manifest(self.name, {**entries, **residual.entries}, residual.metadata, files, dialect))

    def carries(self, spec: TensorSpec, codec: CodecSpec) -> bool:
        return layer_fields.holds(spec, codec)

    def adapt(self, codec: CodecSpec, name: str = "") -> CodecSpec:
        return layer_fields.adapted(codec)

    def preset(self, quant: str, extras: Any) -> Preset | None:
        return uqff_presets.preset(quant, promotes=False)

    def arrange(self, names: Collection[str], config: Mapping[str, Any]) -> Arrangement:
        """All of the architecture's layers are stored, the output head too; nothing else may be quantized."""
        layers = {module + WEIGHT for module in _modules(config)}
        copies = {HEAD + WEIGHT: EMBEDDING + WEIGHT} if HEAD + WEIGHT not in names and EMBEDDING + WEIGHT in names else {}
        biases = (name for name in names if name.endswith(BIAS))
        return Arrangement(copies, {name for name in names if name not in layers}, dict.fromkeys(biases, DType.F32))

    def summary(self, bundle: Bundle) -> Mapping[str, Any]:
        found = members(bundle)
        layers = Layers(found)
        entries = layers.entries()
        return uqff_findings.summary(found, layers.version, entries, layers.types, read_residual(found, entries).entries)

    def warnings(self, bundle: Bundle, manifest: Manifest) -> Iterable[tuple[str, str]]:
        found = members(bundle)
        layers = Layers(found)
        entries = layers.entries()
        yield from uqff_findings.warnings(found, entries, layers.types, read_residual(found, entries).entries)

    def audit(self, bundle: Bundle) -> Iterator[Finding]:
        found = members(bundle)
        manifest = self.parse(bundle)
        yield from uqff_findings.audit(found, manifest, len(Layers(found).blobs))

    def config(self, config: Mapping[str, Any], entries: Mapping[str, Entry]) -> Mapping[str, Any]:
        """The output head has weights of its own, whatever the model was before."""
        plain = plain_config(config)
        return plain if plain.get(_TIED) is False or HEAD + WEIGHT not in entries else {**plain, _TIED: False}

    def place(self, manifest: Manifest, name: str, shard_bytes: int | None = None) -> Placement:
        require_carried(self, manifest)
        require_directory(name)
        manifest = in_order(replace(manifest, files=place_files(self, manifest)))
        entries = manifest.entries
        layers = {module: with_bias(entries, module) for module in _layers(manifest)}
        stored = {name for names in layers.values() for name in names}
        for name, entry in entries.items():
            if entry.codec != RAW and name not in stored:
                raise UnsupportedError("UQFF 0.x quantizes only the layers of its table", code="E_KEY", tensor=name)
        kinds = {type_of(entries[module + WEIGHT].codec) for module in layers}
        version = WITH_NEW_TYPES if kinds & {F8Q8, MXFP4} else VERSION
        quantized = {module: entries[module + WEIGHT] for module in layers if entries[module + WEIGHT].codec != RAW}
        stem = uqff_presets.name_of(quantized, promotes=False)
        images, extents = _place_blobs(entries, layers, stem, version, shard_bytes or SHARD_BYTES)
        plain = {name: entry.parts["data"] for name, entry in entries.items() if name not in stored}
        images[RESIDUAL], placed = build_image(RESIDUAL, plain, header_metadata(manifest))
        extents |= {(name, "data"): extent for name, extent in placed.items()}
        return placement(manifest, self.name, images, extents)


def _modules(config: Mapping[str, Any]) -> list[str]:
    """UnsupportedError where the type of model is not one whose layers can be numbered."""
    count = module_count(config)
    if count is None:
        raise UnsupportedError(
            f"the order of layers in a model of the type {str(config.get('model_type'))[:80]!r} is not known", code="E_FAMILY",
            hint="UQFF 0.x has numbers instead of names; write 1.x, with --to uqff",
        )  # fmt: skip
    return module_names(config, count)


def _layers(manifest: Manifest) -> list[str]:
    text = manifest.files.get(CONFIG)
    config = strict_json.loads(text, file=CONFIG) if isinstance(text, bytes) else {}
    modules = _modules(config if isinstance(config, dict) else {})
    for module in modules:
        if module + WEIGHT not in manifest.entries:
            raise UnsupportedError(
                "the layer is missing, and UQFF 0.x has no place for models without it", code="E_LAYER_MISSING",
                tensor=module + WEIGHT,
            )  # fmt: skip
    return modules


def _place_blobs(
    entries: Mapping[str, Entry], layers: Mapping[str, list[str]], stem: str, version: Version, shard_bytes: int
) -> tuple[dict[str, Image], Extents]:
    blobs = {}
    for module, names in layers.items():
        try:
            blobs[module] = write_blob(form_of(entries[module + WEIGHT]), version, *(entries[bias].spec for bias in names[1:]))
        except FlyweightError as error:
            raise error.at(tensor=module + WEIGHT) from None
    numbers = {module: str(number) for number, module in enumerate(layers)}
    images: dict[str, Image] = {}
    extents: Extents = {}
    for shard, modules in enumerate(fill_shards({module: blob.nbytes for module, blob in blobs.items()}, shard_bytes)):
        file = f"{stem}-{shard}{SUFFIX}"
        specs = {numbers[module]: TensorSpec((blobs[module].nbytes,), DType.U8) for module in modules}
        image, placed = build_image(file, specs, {})
        chunks = [*image.chunks]
        for module in modules:
            blob, start = blobs[module], placed[numbers[module]].offset
            chunks += ((start + at, data) for at, data in blob.chunks)
            form = form_of(entries[module + WEIGHT])
            parts = {field: (module + WEIGHT, part) for field, (part, _) in form.arrays.items()} | {
                "bias": (module + BIAS, "data")
            }
            for field, at in blob.arrays.items():
                tensor, part = parts[field]
                nbytes = entries[tensor].parts[part].nbytes
                extents[tensor, part] = placed[numbers[module]]._replace(offset=start + at, nbytes=nbytes)
        images[file] = Image(image.nbytes, tuple(chunks))
    return images, extents
