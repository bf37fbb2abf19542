"""A Hugging Face model directory: safetensors and the files around them.

    model.safetensors                        the weights, or
    model.safetensors.index.json             {"metadata": {"total_size": n}, "weight_map": {"<tensor>": "<shard>"}}
    model-00001-of-00002.safetensors ...     the shards the map names
    config.json, tokenizer.json, ...         side files, kept byte for byte

The index is the truth: only shards it names are read, each must hold exactly the tensors mapped
to it, and other weight files lying around (of any format) are not part of the model. Where the files
tell of a quantization method that nobody here reads, every tensor is `foreign` (see `quantization`). Tensors in any codec of
ours are described in the shard they are in (see `safetensors`), and config.json says that they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from flyweight.containers.abilities import WritesConfig
from flyweight.containers.carried import EVERY_CODEC, ROW_SIZES, Carried
from flyweight.containers.container import Container, Image, Placement, fill_shards, require_carried
from flyweight.containers.quantization import (
    BESIDE,
    as_foreign,
    method_in_config,
    method_in_file,
    method_in_tensors,
    states_ours,
    with_ours,
    without_statement,
)
from flyweight.containers.safetensors import (
    LABELS,
    build_image,
    description,
    header_metadata,
    holds,
    metadata_of,
    read_header,
    regroup,
    stored_parts,
    with_extents,
)
from flyweight.foundation import strict_json
from flyweight.foundation.errors import FlyweightError, LimitError, MalformedError, UnsupportedError
from flyweight.foundation.limits import MAX_SHARDS, MAX_TENSORS
from flyweight.foundation.manifest import Entries, Entry, Extent, Manifest, kinds_of
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.sources import Bundle

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"

_WEIGHT_SUFFIXES = (
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".uqff", ".onnx", ".h5", ".msgpack",
    ".pkl", ".pickle",
)  # fmt: skip
_TAKEN = "model*.safetensors"
_LEFT_OUT = _WEIGHT_SUFFIXES + tuple(f"{suffix}.index.json" for suffix in _WEIGHT_SUFFIXES)


class Index(NamedTuple):
    shards: dict[str, set[str]]
    """Shard → the tensors it must hold."""
    total_size: float | None
    """Bytes of all tensors as declared; writers differ, so a mismatch is for `verify` to report."""


def read_index(bundle: Bundle) -> Index:
    """The shards and their tensors. Every shard is a plain name that is really in the directory."""
    file = bundle[INDEX].name
    table = strict_json.load(bundle[INDEX])
    weight_map = table.get("weight_map") if isinstance(table, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise MalformedError("the index has no weight_map", code="E_INDEX", file=file)
    if len(weight_map) > MAX_TENSORS:
        raise LimitError(f"{len(weight_map)} tensors exceed the limit of {MAX_TENSORS}", code="E_TENSORS", file=file)
    shards: dict[str, set[str]] = {}
    for tensor, shard in weight_map.items():
        if type(shard) is not str:
            raise MalformedError("the index maps it to something that is not text", code="E_INDEX", file=file, tensor=tensor)
        shards.setdefault(shard, set()).add(tensor)
        if len(shards) > MAX_SHARDS:
            raise LimitError(f"more than {MAX_SHARDS} shards", code="E_SHARDS", file=file)
    for shard, tensors in shards.items():
        if "/" in shard or "\\" in shard or not shard.endswith(".safetensors"):
            raise MalformedError(
                f"'{shard}' is not the plain name of a safetensors file", code="E_SHARD_NAME", file=file, tensor=min(tensors)
            )
        if shard not in bundle:
            raise MalformedError(
                f"shard '{shard}' is missing", code="E_SHARD_MISSING", file=file, hint="complete the download, or fix the index"
            )
    return Index(shards, _total_size(table.get("metadata", {}), file))


def _total_size(metadata: object, file: str) -> float | None:
    if not isinstance(metadata, dict):
        raise MalformedError("the index's metadata must be an object", code="E_INDEX", file=file)
    total = metadata.get("total_size")
    # A float is allowed because real writers count a bool as an eighth of a byte.
    if total is not None and (type(total) not in (int, float) or total < 0):
        raise MalformedError(f"total_size is {total!r}, not a size", code="E_INDEX", file=file)
    return total


def is_model_directory(bundle: Bundle) -> bool:
    """Whether it looks like a model, complete or not; the parser says what is missing."""
    return bundle.is_directory and (CONFIG in bundle or INDEX in bundle or any(map(_is_lone, bundle)))


def read_tensors(bundle: Bundle) -> tuple[dict[str, str], Mapping[str, Entry]]:
    """The metadata and all tensors of the model, whatever number of files they are in."""
    if INDEX in bundle:
        return _read_shards(bundle, read_index(bundle))
    lone = [name for name in bundle if _is_lone(name)]
    if WEIGHTS in lone or len(lone) == 1:
        file = WEIGHTS if WEIGHTS in lone else lone[0]
        header = read_header(bundle[file], file)
        return header.metadata, regroup(header, bundle[file].name)
    if lone:
        raise MalformedError(
            f"{len(lone)} safetensors files ({', '.join(lone[:4])}{', ...' if len(lone) > 4 else ''}) and no {INDEX}",
            code="E_NO_INDEX",
            file=bundle.name,
            hint="add the index, or open one file by its path",
        )
    from flyweight.containers.unknown import without_weights

    raise without_weights(bundle)


def _read_shards(bundle: Bundle, index: Index) -> tuple[dict[str, str], Mapping[str, Entry]]:
    metadata: dict[str, str] = {}
    plain, entries = Entries(), dict[str, Entry]()
    for shard, expected in sorted(index.shards.items()):  # the order they were written in
        header = read_header(bundle[shard], shard)
        for name in expected ^ header.tensors.keys():
            missing = name in expected
            raise MalformedError(
                "the index maps it to this shard, but the shard does not have it"
                if missing
                else "the index does not map it to this shard",
                code="E_INDEX_MISMATCH",
                file=bundle[shard].name,
                tensor=name,
            )
        metadata = header.metadata | metadata
        tensors = regroup(header, bundle[shard].name)
        if isinstance(tensors, Entries) and not entries:  # nothing is described so far
            plain.absorb(tensors)
            continue
        entries = entries or dict(plain)
        for name, entry in tensors.items():
            if entries.setdefault(name, entry) is not entry:
                raise MalformedError("the tensor is in two shards", code="E_DUPLICATE", file=bundle[shard].name, tensor=name)
    return metadata, entries or plain


def with_method(bundle: Bundle, entries: Mapping[str, Entry], config: object) -> Mapping[str, Entry]:
    """The tensors as what they are: foreign, if `config` or a file or tensor tells of a quantization method."""
    if states_ours(config) and all(entry.codec == RAW for entry, _ in kinds_of(entries)):
        raise MalformedError(
            "config.json says that the shards describe their tensors, but none does", code="E_DESCRIPTION", file=bundle.name,
            hint="download or convert the weights again: another tool has rewritten them without the descriptions",
        )  # fmt: skip
    if method := method_in_config(config):
        return as_foreign(entries, method, CONFIG)
    for name in BESIDE:
        if name in bundle and (method := method_in_file(name, _read_leniently(bundle, name))):
            return as_foreign(entries, method, name)
    found = method_in_tensors(entries)
    return entries if found is None else as_foreign(entries, *found)


def _read_leniently(bundle: Bundle, name: str) -> object:
    """JSON of a file that may be missing or broken; one that is broken and speaks of quantization is refused."""
    if name not in bundle:
        return None
    try:
        return strict_json.load(bundle[name])
    except LimitError:
        raise
    except FlyweightError:
        if b"quant" in bytes(bundle[name].read(0, bundle[name].size)):
            raise
        return None


def side_files(bundle: Bundle) -> dict[str, Extent]:
    """Everything that is neither weights nor their index, known to us or not."""
    return {name: Extent(name, 0, bundle[name].size) for name in bundle if is_side_file(name)}


def is_side_file(name: str) -> bool:
    return not name.endswith(_LEFT_OUT)


def stray_weights(bundle: Bundle) -> Iterable[tuple[str, str]]:
    """A warning of files that are no part of the model, though some loaders take every file so named."""
    stray = [name for name in _not_read(bundle) if "/" not in name and fnmatchcase(name, _TAKEN)]
    if stray:
        listed = ", ".join(stray[:4]) + (", ..." if len(stray) > 4 else "")
        why = "not named by the index" if INDEX in bundle else f"beside {WEIGHTS}"
        nbytes = sum(bundle[name].size for name in stray)
        yield "E_STRAY", f"{listed} ({nbytes} bytes), {why}: not read by Flyweight, but by loaders that read every {_TAKEN}"


def unread_weights(bundle: Bundle) -> dict[str, Any]:
    """Weight files that are left aside, such as the same model in other formats; empty if there are none."""
    unread = [f"{name} ({bundle[name].size} bytes)" for name in _not_read(bundle)]
    return {"weights_not_read": unread} if unread else {}


def _not_read(bundle: Bundle) -> list[str]:
    """The weight files that `read_tensors` leaves aside."""
    weights = sorted(name for name in bundle if name.endswith(_WEIGHT_SUFFIXES))
    if INDEX in bundle:
        read = set(read_index(bundle).shards)
    else:
        read = {WEIGHTS if WEIGHTS in bundle else name for name in weights if _is_lone(name)}
    return [name for name in weights if name not in read]


def _is_lone(name: str) -> bool:
    return "/" not in name and name.endswith(".safetensors")


def place_tensors(
    entries: Mapping[str, Entry],
    keys: Mapping[str, tuple[str, str]],
    metadata: Mapping[str, str],
    shard_bytes: int | None,
    describe: Callable[[Mapping[str, tuple[str, str]]], Mapping[str, str]] = lambda _: {},
) -> tuple[dict[str, Image], dict[str, Extent]]:
    """One file, or shards and their index when a shard size is given and exceeded; the parts of a tensor stay together.

    `keys` are what is stored, key → (tensor, part); `describe` gives the metadata that a file with some of them needs.
    """
    keys_of: dict[str, dict[str, tuple[str, str]]] = {}
    for key, (tensor, part) in keys.items():
        keys_of.setdefault(tensor, {})[key] = tensor, part
    shards = fill_shards({tensor: entries[tensor].nbytes for tensor in keys_of}, shard_bytes)
    images: dict[str, Image] = {}
    extents: dict[str, Extent] = {}
    for number, tensors in enumerate(shards, 1):
        shard = {key: stored for tensor in tensors for key, stored in keys_of[tensor].items()}
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors" if len(shards) > 1 else WEIGHTS
        # The first shard has the metadata; the others only what a loader asks of each file.
        own = metadata if number == 1 else {"format": metadata["format"]}
        parts = {key: entries[tensor].parts[part] for key, (tensor, part) in shard.items()}
        images[file], placed = build_image(file, parts, {**own, **describe(shard)})
        extents |= placed
    if len(shards) == 1:
        return images, extents
    index = {
        "metadata": {"total_size": sum(extent.nbytes for extent in extents.values())},
        "weight_map": {name: extents[name].file for name in sorted(extents)},
    }
    images[INDEX] = Image.of(strict_json.dumps(index, indent=2) + b"\n")
    return images, extents


def place_files(container: WritesConfig, manifest: Manifest) -> dict[str, Extent | bytes]:
    """The side files, config.json as these tensors need it."""
    files, text = dict(manifest.files), manifest.files.get(CONFIG)
    if isinstance(text, bytes):
        config = strict_json.loads(text, file=CONFIG)
        if not isinstance(config, dict):
            raise MalformedError("config.json must be an object", code="E_QUANTIZATION", file=CONFIG)
        if (wanted := container.config(config, manifest.entries)) is not config:
            files[CONFIG] = strict_json.dumps(wanted, indent=2) + b"\n"
    return files


def place_side_files(files: Mapping[str, Extent | bytes]) -> tuple[dict[str, Image], dict[str, Extent]]:
    """Side files made anew are images; those of the source are copied."""
    images = {name: Image.of(data) for name, data in files.items() if isinstance(data, bytes)}
    copies = {name: extent for name, extent in files.items() if isinstance(extent, Extent)}
    return images, copies


def _require_true_method(manifest: Manifest, config: Extent | bytes | None) -> None:
    """What tells of a quantization method and the tensors stored by it go together, or not at all."""
    if manifest.foreign is not None:
        told_by = manifest.foreign.params["told_by"]
        if told_by not in manifest.files and told_by not in manifest.entries:
            raise manifest.foreign.unreadable()
    elif isinstance(config, bytes) and (method := method_in_config(strict_json.loads(config, file=CONFIG))):
        raise UnsupportedError(
            f"config.json says that the weights are quantized by {method}, but they are plain",
            code="E_QUANT_METHOD",
            file=CONFIG,
        )


class HfDirectory(Container):
    name = "hf"
    title = "Hugging Face directory"
    dialect = "hf"
    expert_layout = "hf"
    is_directory = True
    codecs = (Carried("raw", dtypes=tuple(LABELS)), EVERY_CODEC)
    sizes = ROW_SIZES
    decodes = True
    own_files = (INDEX,)

    def probe(self, bundle: Bundle) -> bool:
        return is_model_directory(bundle)

    def parse(self, bundle: Bundle) -> Manifest:
        stored, entries = read_tensors(bundle)
        metadata, dialect = metadata_of(stored, bundle.name)
        entries = with_method(bundle, entries, _read_leniently(bundle, CONFIG))
        return Manifest(self.name, entries, metadata, side_files(bundle), dialect)

    def carries(self, spec: TensorSpec, codec: CodecSpec) -> bool:
        return not (codec == RAW or codec.is_foreign) or holds(spec)

    def summary(self, bundle: Bundle) -> Mapping[str, Any]:
        return unread_weights(bundle)

    def warnings(self, bundle: Bundle, manifest: Manifest) -> Iterable[tuple[str, str]]:
        yield from stray_weights(bundle)
        declared = read_index(bundle).total_size if INDEX in bundle else None
        if declared is not None and declared != manifest.nbytes:
            yield "E_TOTAL_SIZE", f"the index says {declared:g} bytes of tensors, but there are {manifest.nbytes}"

    def place(self, manifest: Manifest, name: str, shard_bytes: int | None = None) -> Placement:
        require_carried(self, manifest)
        files, entries = place_files(self, manifest), manifest.entries
        _require_true_method(manifest, files.get(CONFIG))
        keys = stored_parts(entries)
        ours = {name: entry if not entry.codec.is_foreign else replace(entry, codec=RAW) for name, entry in entries.items()}
        images, extents = place_tensors(
            entries, keys, header_metadata(manifest), shard_bytes, lambda shard: description(ours, shard)
        )
        new_files, copies = place_side_files(files)
        placed = with_extents(manifest, self.name, keys, extents)
        return Placement(replace(placed, files=files), images | new_files, copies)

    def config(self, config: Mapping[str, Any], entries: Mapping[str, Entry]) -> Mapping[str, Any]:
        codecs = {entry.codec for entry, _ in kinds_of(entries)} - {RAW}
        if any(codec.is_foreign for codec in codecs):
            return config
        return with_ours(config) if codecs else without_statement(config)
