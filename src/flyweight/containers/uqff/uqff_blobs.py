"""UQFF 0.x: a directory whose layers have numbers instead of names.

A shard is a safetensors file without metadata; its tensors "0", "1" … are u8 (bytes,), each a layer as `blob` has it. The
numbers count the layers that mistral.rs quantizes in its own order (`layer_order`): names follow from config.json. Without it,
or where there are more or fewer layers than it says, a layer is called `layers.<number>`.

The output head is always a layer. In a model that ties it to the embedding it is a quantized copy of that, beside the plain
one in residual.safetensors: such a model is read as one that is not tied. `uqff_files` has the files around.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from flyweight.containers.container import Arrangement, Image, Placement, fill_shards
from flyweight.containers.hf import CONFIG
from flyweight.containers.safetensors import build_image, read_header
from flyweight.containers.uqff.blob import Blob, read_blob, write_blob
from flyweight.containers.uqff.layer_fields import F8Q8, MXFP4, entry_of, form_of, type_of
from flyweight.containers.uqff.layer_order import EMBEDDING, HEAD, layer_modules
from flyweight.containers.uqff.uqff_container import Extents, Layers, UqffContainer, with_bias
from flyweight.containers.uqff.uqff_directory import is_named
from flyweight.containers.uqff.uqff_files import (
    BIAS,
    SUFFIX,
    TIED,
    WEIGHT,
    Members,
    Reading,
    has_uqff,
    members,
    read_config,
    read_residual,
)
from flyweight.foundation import strict_json
from flyweight.foundation.cursor import Budget, utf8
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, MalformedError, UnsupportedError
from flyweight.foundation.manifest import Entry, Extent, Manifest
from flyweight.foundation.tensor import RAW, TensorSpec
from flyweight.sources import Bundle

VERSION, WITH_NEW_TYPES = (0, 1, 3), (0, 2, 0)
"""The first that has the types 0 to 4, and the one that has all."""
_LAYER_NBYTES = 2048
"""What a layer takes in memory, rounded up."""


_TOKENIZER, _TEMPLATE = "tokenizer_config.json", "chat_template.jinja"


def _read_blobs(found: Members) -> list[Blob]:
    """The layers in the order of their numbers, which have no gap."""
    blobs: dict[int, Blob] = {}
    budget = Budget()
    for shard in found.shards:
        source = found.home[shard]
        tensors = read_header(source, shard).tensors
        budget.spend(len(tensors) * _LAYER_NBYTES, "so many layers", file=source.name)
        for key, entry in tensors.items():
            if not key.isascii() or not key.isdecimal() or str(int(key[:10])) != key:
                raise MalformedError("a layer of UQFF 0.x is named by its number", code="E_KEY", file=source.name, tensor=key)
            if entry.spec.dtype is not DType.U8 or len(entry.spec.shape) != 1:
                raise MalformedError(f"a layer is u8 in a row, not {entry.spec}", code="E_LAYER", file=source.name, tensor=key)
            if int(key) in blobs:
                raise MalformedError("the layer is in two shards", code="E_DUPLICATE", file=source.name, tensor=key)
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


class UqffBlobs(UqffContainer):
    name = "uqff_blob"
    title = "UQFF 0.x directory"
    expert_layout = "hf"
    promotes = False
    reads = (_TOKENIZER, _TEMPLATE)

    def probe(self, bundle: Bundle) -> bool:
        return has_uqff(bundle) and not is_named(bundle)

    def read(self, bundle: Bundle) -> Reading:
        found = members(bundle)
        blobs, config = _read_blobs(found), read_config(found.home)
        modules = layer_modules(config) or []
        named = len(modules) == len(blobs)
        if not named:
            modules = [f"layers.{number}" for number in range(len(blobs))]
        layers: dict[str, Entry] = {}
        for module, blob in zip(modules, blobs, strict=True):
            try:
                layers[module + WEIGHT] = entry_of(module + WEIGHT, blob.layer)
            except FlyweightError as error:
                raise error.at(tensor=module + WEIGHT) from None
            if blob.bias is not None:
                spec, extent = blob.bias
                layers[module + BIAS] = Entry(module + BIAS, spec, RAW, {"data": spec}, {"data": extent})
        types = {module: blob.layer.type for module, blob in zip(modules, blobs, strict=True)}
        version = max((blob.version for blob in blobs), default=(0, 0, 0))
        return Reading(found, config, version, layers, types, read_residual(found, layers), named)

    def arrange(self, names: Collection[str], config: Mapping[str, Any]) -> Arrangement:
        """The output head is stored even if the embedding serves for it, and nothing but layers may be quantized."""
        layers = {module + WEIGHT for module in _modules(config)}
        copies = {HEAD + WEIGHT: EMBEDDING + WEIGHT} if HEAD + WEIGHT not in names and EMBEDDING + WEIGHT in names else {}
        plain = {name for name in names if name not in layers}
        return super().arrange(names, config)._replace(copies=copies, plain=plain)

    def config(self, config: Mapping[str, Any], entries: Mapping[str, Entry]) -> Mapping[str, Any]:
        """The output head has weights of its own, whatever the model was before."""
        plain = super().config(config, entries)
        return plain if plain.get(TIED) is False or HEAD + WEIGHT not in entries else {**plain, TIED: False}

    def place(self, manifest: Manifest, name: str, shard_bytes: int | None = None) -> Placement:
        return super().place(replace(manifest, files=_with_template(manifest.files)), name, shard_bytes)

    def layers_of(self, manifest: Manifest) -> Layers:
        """The layers of the architecture, in its order; all must be there."""
        text, entries = manifest.files.get(CONFIG), manifest.entries
        config = strict_json.loads(text, file=CONFIG) if isinstance(text, bytes) else {}
        modules = _modules(config if isinstance(config, dict) else {})
        for module in modules:
            if module + WEIGHT not in entries:
                raise UnsupportedError(
                    "the layer is missing, and UQFF 0.x has no place for a model without it", code="E_LAYER_MISSING",
                    tensor=module + WEIGHT,
                )  # fmt: skip
        layers = {module: with_bias(entries, module) for module in modules}
        numbered = {module + WEIGHT for module in modules}
        for name, entry in entries.items():
            if entry.codec != RAW and name not in numbered:
                raise UnsupportedError("UQFF 0.x quantizes only the layers that it numbers", code="E_KEY", tensor=name)
        return layers

    def place_layers(
        self, entries: Mapping[str, Entry], layers: Layers, stem: str, shard_bytes: int
    ) -> tuple[dict[str, Image], Extents]:
        kinds = {type_of(entries[module + WEIGHT].codec) for module in layers}
        version = WITH_NEW_TYPES if kinds & {F8Q8, MXFP4} else VERSION
        blobs = {}
        for module, (weight, *biases) in layers.items():
            try:
                blobs[module] = write_blob(form_of(entries[weight]), version, *(entries[bias].spec for bias in biases))
            except FlyweightError as error:
                raise error.at(tensor=module + WEIGHT) from None
        numbers = {module: str(number) for number, module in enumerate(layers)}
        images: dict[str, Image] = {}
        extents: Extents = {}
        for shard, modules in enumerate(fill_shards({module: blob.nbytes for module, blob in blobs.items()}, shard_bytes)):
            file = f"{stem}-{shard}{SUFFIX}"
            as_text = sorted(modules, key=numbers.__getitem__)  # the order of mistral.rs: 0, 1, 10, 11 … 2
            specs = {numbers[module]: TensorSpec((blobs[module].nbytes,), DType.U8) for module in as_text}
            image, placed = build_image(file, specs, {})
            chunks = [*image.chunks]
            for module in modules:
                blob, start = blobs[module], placed[numbers[module]].offset
                chunks += ((start + at, data) for at, data in blob.chunks)
                form = form_of(entries[module + WEIGHT])
                parts = {field: (module + WEIGHT, part) for field, (part, _) in form.arrays.items()}
                parts["bias"] = module + BIAS, "data"
                for field, at in blob.arrays.items():
                    tensor, part = parts[field]
                    nbytes = entries[tensor].parts[part].nbytes
                    extents[tensor, part] = placed[numbers[module]]._replace(offset=start + at, nbytes=nbytes)
            images[file] = Image(image.nbytes, tuple(chunks))
        return images, extents


def _with_template(files: Mapping[str, Extent | bytes]) -> dict[str, Extent | bytes]:
    """The side files with the chat template where mistral.rs looks for it that loads 0.x: in tokenizer_config.json."""
    template, text = files.get(_TEMPLATE), files.get(_TOKENIZER, b"{}")
    if not isinstance(template, bytes) or not isinstance(text, bytes):
        return dict(files)
    settings = strict_json.loads(text, file=_TOKENIZER)
    if not isinstance(settings, dict) or "chat_template" in settings:
        return dict(files)
    told = settings | {"chat_template": utf8(template, "the chat template", file=_TEMPLATE)}
    return {**files, _TOKENIZER: strict_json.dumps(told, indent=2) + b"\n"}


def _modules(config: Mapping[str, Any]) -> list[str]:
    """UnsupportedError where the type of model is not one whose layers can be numbered."""
    modules = layer_modules(config)
    if modules is None:
        raise UnsupportedError(
            f"the order of layers in a model of the type {str(config.get('model_type'))[:80]!r} is not known", code="E_FAMILY",
            hint="UQFF 0.x has numbers instead of names; write 1.x, with --to uqff",
        )  # fmt: skip
    return modules
