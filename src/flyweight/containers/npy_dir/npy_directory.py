"""Squish's npy-dir: a model as a directory of .npy files, one for every stored array.

    manifest.json                        {"<tensor>": "<key>"}
    tensors/<key><suffix>.npy            an array; which, the suffix says. <key>__shape.npy is the tensor's shape
    tensors/<key><suffix>.npy.zst        the same, compressed whole
    tensors/.manifest_ready              empty: the directory is complete
    .squish_int4_ready                   empty: so are the arrays of four bits
    flyweight.json                       codecs and digests, of a directory written here
    config.json, tokenizer.json, ...     side files, kept byte for byte

`npy_header` reads an array's file, `forms` has the table of suffixes, `keys` the names on disk. `npy_reading` puts a tensor
together, `flyweight_json` is the record, `tier_places` has the names of files and of tiers, which are not part of the model.
docs/formats/npy-dir.md is the format, normatively.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from blake3 import blake3

from flyweight.containers.abilities import Addition
from flyweight.containers.container import Chunks, Container, DenseTypes, Finding, Image, Placement, require_carried
from flyweight.containers.hf import place_side_files
from flyweight.containers.named_quantizations import Preset
from flyweight.containers.npy_dir.flyweight_json import NO_DIGEST, Record, read_record
from flyweight.containers.npy_dir.forms import CARRIED, FORMS, PRESETS, SHAPE, arrange
from flyweight.containers.npy_dir.keys import safe_keys
from flyweight.containers.npy_dir.npy_header import build_header
from flyweight.containers.npy_dir.npy_options import QUANTS
from flyweight.containers.npy_dir.npy_reading import Reading, read, recorded_digests
from flyweight.containers.npy_dir.tier_places import (
    ARRAY,
    COMPRESSED,
    FOLDER,
    INT4_READY,
    MANIFEST,
    OWN_FILES,
    READY,
    RECORD,
    is_own,
)
from flyweight.foundation import strict_json
from flyweight.foundation.accuracy_gate import Verdict, subject_of
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, UnsupportedError
from flyweight.foundation.manifest import Entry, Extent, Manifest
from flyweight.foundation.tensor import CodecSpec, Param, TensorSpec
from flyweight.sources import Bundle, MemorySource
from flyweight.sources.zstd import InflatedBundle

_AFFINE: dict[str, Param] = {"form": "scale_bias", "axis": -1, "scale": "f32", "packing": "little", "word": "u8"}
_THREE_BITS = tuple(FORMS["int3"].files["codes"] + ending for ending in (ARRAY, COMPRESSED))
_STORED = ("axis", "scale", "packing", "word")


class NpyDirectory(Container):
    name = "npy_dir"
    title = "Squish npy-dir"
    dialect = "hf"
    is_directory = True
    dense = DenseTypes(exactly={DType.BF16: DType.F16})
    codecs = CARRIED
    own_files = OWN_FILES
    quants = QUANTS

    def probe(self, bundle: Bundle) -> bool:
        return bundle.is_directory and (
            (MANIFEST in bundle and READY in bundle)
            or any(name.startswith(FOLDER) and name.endswith((ARRAY, COMPRESSED)) for name in bundle)
        )

    def view(self, bundle: Bundle) -> Bundle:
        return bundle if isinstance(bundle, InflatedBundle) else InflatedBundle(bundle, COMPRESSED)

    def parse(self, bundle: Bundle) -> Manifest:
        found = read(self.view(bundle))
        for problem in found.problems:
            raise problem
        files = {name: Extent(name, 0, bundle[name].size) for name in bundle if not is_own(name)}
        metadata = found.record.metadata if found.record else {}
        return Manifest(self.name, found.entries, metadata, files, self.dialect, recorded_digests(found, files.values()))

    def warnings(self, bundle: Bundle, manifest: Manifest) -> Iterable[tuple[str, str]]:
        return read(self.view(bundle)).warnings

    def summary(self, bundle: Bundle) -> Mapping[str, Any]:
        verdict = self.verdict(bundle)
        if verdict is None:
            three_bits = any(name.startswith(FOLDER) and name.endswith(_THREE_BITS) for name in bundle)
            return {"gate": "never measured"} if three_bits else {}
        return {"gate": verdict.as_json()}

    def verdict(self, bundle: Bundle) -> Verdict | None:
        return read_record(bundle[RECORD]).gate if RECORD in bundle else None

    def certify(self, placement: Placement, verdict: Verdict, read: Callable[[Extent], bytes]) -> Mapping[str, bytes]:
        record = read_record(MemorySource(read(Extent(RECORD, 0, placement.images[RECORD].nbytes)), RECORD))
        return {RECORD: replace(record, gate=verdict).text()}

    def audit(self, bundle: Bundle) -> Iterator[Finding]:
        """Every tensor's first broken rule, and every file whose digest is not the recorded one."""
        found = read(self.view(bundle))
        for error in found.problems:
            if isinstance(error, UnsupportedError):  # sound, for all that can be said here
                raise error
            if error.code != "E_DIGEST":
                yield Finding("error", error.code, error.message, error.tensor, error.offset)
        yield from _wrong_digests(found)
        yield from _foreign_gate(found)

    # Writing ----------------------------------------------------------------------------------------

    def carries(self, spec: TensorSpec, codec: CodecSpec) -> bool:
        return arrange(spec, codec) is not None

    def adapt(self, codec: CodecSpec, name: str = "") -> CodecSpec:
        if codec.name != "affine":
            return codec
        narrow = codec.params.get("bits") == 4 and codec.params.get("scale") == "f16"
        stored = {key: _AFFINE[key] for key in _STORED} | ({"scale": "f16"} if narrow else {})
        return CodecSpec("affine", _AFFINE | dict(codec.params) | stored)

    def preset(self, quant: str, extras: None) -> Preset | None:
        return PRESETS.get(quant)

    def addition(self, bundle: Bundle, form: str) -> Addition:
        from flyweight.containers.npy_dir.added_form import FourBits  # whoever only reads or writes a directory needs none

        return FourBits(bundle, form)

    def place(self, manifest: Manifest, name: str, shard_bytes: int | None = None) -> Placement:
        """A file for every array, whatever `shard_bytes` says."""
        require_carried(self, manifest)
        for file in manifest.files:
            if is_own(file):
                raise UnsupportedError(f"a side file cannot be called '{file}' here", code="E_FILE_NAME", hint="rename it")
        keys = safe_keys(manifest.entries)
        images: dict[str, Image] = {}
        digests: dict[str, Extent] = {}
        entries: dict[str, Entry] = {}
        for tensor, entry in manifest.entries.items():
            arrays, entries[tensor] = place_arrays(entry, keys[tensor])
            digests |= {f"{tensor}\0{file}": Extent(file, 0, image.nbytes) for file, image in arrays.items()}
            images |= arrays
            images[f"{FOLDER}{keys[tensor]}{SHAPE}{ARRAY}"] = _shape_image(entry.spec.shape)
        new, copies = place_side_files(manifest.files)
        images |= new | {MANIFEST: Image.of(strict_json.dumps(keys, indent=2) + b"\n"), READY: Image.of(b"")}
        if any(file.endswith("__q4.npy") for file in images):
            images[INT4_READY] = Image.of(b"")
        digests |= {f"\0{file}": Extent(file, 0, extent.nbytes) for file, extent in copies.items()}
        record = Record.of(entries, manifest.metadata, digests_of(images, digests, {}))
        images[RECORD] = Image.of(record.text())
        placed = Manifest(self.name, entries, manifest.metadata, dict(manifest.files), self.dialect)
        return Placement(placed, images, copies, digests)

    def finish(self, placement: Placement, digests: Mapping[str, str], read: Callable[[Extent], bytes]) -> Mapping[str, Chunks]:
        """The record with the digests of what was written."""
        manifest = placement.manifest
        images = {file: image for file, image in placement.images.items() if file != RECORD}
        record = Record.of(manifest.entries, manifest.metadata, digests_of(images, placement.digests, digests))
        return {RECORD: [(0, record.text())]}


def _is_gated(entry: Entry) -> bool:
    return any(extent.file.endswith(_THREE_BITS) for extent in entry.extents.values())


def _foreign_gate(found: Reading) -> Iterator[Finding]:
    record = found.record
    if record is not None and record.gate is not None:
        gated = [entry for entry in found.entries.values() if _is_gated(entry)]
        files = {extent.file.removesuffix(".zst") for entry in gated for extent in entry.extents.values()}
        if record.gate.subject != subject_of({file: record.files.get(file, NO_DIGEST) for file in files}):
            yield Finding("error", "E_GATE", f"the accuracy gate in {RECORD} was passed by other arrays")


def place_arrays(entry: Entry, key: str) -> tuple[dict[str, Image], Entry]:
    """The files of a tensor's arrays, the codes first, and the tensor as it lies in them."""
    images: dict[str, Image] = {}
    extents: dict[str, Extent] = {}
    for part, stored in (arrange(entry.spec, entry.codec) or {}).items():
        file, head = f"{FOLDER}{key}{stored.suffix}{ARRAY}", build_header(stored.array)
        images[file] = Image(len(head) + stored.array.nbytes, ((0, head),))
        extents[part] = Extent(file, len(head), stored.part.nbytes)
    return images, replace(entry, extents=extents)


def _shape_image(shape: tuple[int, ...]) -> Image:
    head = build_header(TensorSpec((len(shape),), DType.I64))
    return Image.of(head + b"".join(dim.to_bytes(8, "little") for dim in shape))


def digests_of(images: Mapping[str, Image], later: Mapping[str, Extent], known: Mapping[str, str]) -> dict[str, str]:
    """The digest of every file: of images that are whole at once, of others when they are known.

    The sentinel of four bits has none: it says which form counts, and comes and goes where the record stays.
    """
    written = {extent.file: known.get(key, NO_DIGEST) for key, extent in later.items()}
    whole = {
        file: b"".join(chunk for _, chunk in image.chunks)
        for file, image in images.items()
        if file not in {*written, INT4_READY}
    }
    return dict(sorted((written | {file: blake3(data).hexdigest() for file, data in whole.items()}).items()))


def _wrong_digests(found: Reading) -> Iterator[Finding]:
    for file, digest in (found.record.files if found.record else {}).items():
        stored = file if file in found.bundle else f"{file}.zst"
        tensor = found.owners.get(stored)
        try:
            if stored not in found.bundle:
                yield Finding("error", "E_MISSING", f"{file} is missing", tensor)
            elif found.bundle[stored].digest() != digest:
                yield Finding("error", "E_DIGEST", f"{file} does not match the digest in {RECORD}", tensor)
        except FlyweightError as error:
            yield Finding("error", error.code, error.message, tensor, error.offset)
