"""A Core ML package (.mlpackage): a directory with a program, and the weight file that its constants lie in.

    Manifest.json                                     names the root model and the weights
    Data/com.apple.CoreML/model.mlmodel               the program (`program`), a protocol buffer
    Data/com.apple.CoreML/weights/weight.bin          the constants (`weight_file`)

Tensors are the program's weights: constants in the weight file, and what `constexpr` operations make (`weights`, `constexprs`).
A package keeps its program when it is written again, with other operations in the place of those that made a weight; tensors of
another format get a program of their own (`linear_program`). Other files lie beside. A weight file without its package is read
too: its blobs are vectors without names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flyweight.containers.container import Container, DenseTypes, Image, Placement, Use, require_carried
from flyweight.containers.coreml import coreml_presets
from flyweight.containers.coreml.carried_forms import CODECS, adapted, canonical, holds
from flyweight.containers.coreml.coreml_options import QUANTS
from flyweight.containers.coreml.linear_program import MADE_HERE, NAMES, linear_program, names_in
from flyweight.containers.coreml.program import FOLDER, MODEL, WEIGHTS, Program
from flyweight.containers.coreml.program_rewriting import rewritten
from flyweight.containers.coreml.weight_file import WeightFile, is_weight_file
from flyweight.containers.coreml.weight_uses import weight_uses
from flyweight.containers.coreml.weights import find_weights, read_forms
from flyweight.containers.hf import place_side_files
from flyweight.containers.named_quantizations import Preset
from flyweight.containers.safetensors import metadata_of
from flyweight.foundation import strict_json
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, MalformedError, UnsupportedError
from flyweight.foundation.manifest import Entry, Extent, Manifest, Typed
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.sources import Bundle

MANIFEST = "Manifest.json"
DIALECT = "coreml"
MAX_WEIGHT_BYTES = 1 << 31
"""Of the weight file of a model that the Neural Engine takes; larger ones run elsewhere."""
_VERSION = "1.0.0"
_COPY_AGAIN = "copy the package again, whole"


class CoreML(Container):
    name = "coreml"
    title = "Core ML package"
    dialect = ""
    is_directory = True
    suffix = ".mlpackage"
    dense = DenseTypes(instead={DType.BF16: DType.F16, DType.F64: DType.F32})
    codecs = CODECS
    quants = QUANTS
    reads = (MODEL, MANIFEST)
    own_files = (MANIFEST, MODEL)

    def probe(self, bundle: Bundle) -> bool:
        if bundle.single is not None:
            return is_weight_file(bundle[bundle.single])
        return MANIFEST in bundle and any(name.startswith("Data/") for name in bundle)

    def parse(self, bundle: Bundle) -> Manifest:
        if bundle.single is not None:
            return _blobs(bundle, bundle.single)
        program = open_program(bundle)
        user_defined = _user_defined(program)
        names = names_in(user_defined, program.message.file)
        made_here = MADE_HERE in user_defined
        forms = read_forms(program, find_weights(program))
        entries = {names.get(name, name): form.entry(names.get(name, name)) for name, form in forms.items()}
        if len(entries) < len(forms):
            raise MalformedError(f"{NAMES} has one name for two tensors", code="E_NAMES", file=program.message.file)
        own = {MANIFEST, program.model, *program.weight_files}
        files: dict[str, Extent | bytes] = {
            name: Extent(name, 0, bundle[name].size) for name in bundle if name not in own and name != WEIGHTS
        }
        if not made_here:
            files |= {
                MODEL: Extent(program.model, 0, bundle[program.model].size),
                MANIFEST: Extent(MANIFEST, 0, bundle[MANIFEST].size),
            }
            metadata = {key: Typed("str", value) for key, value in user_defined.items()}
            return Manifest(self.name, entries, metadata, files, DIALECT)
        stored = {key: value for key, value in user_defined.items() if key not in (NAMES, MADE_HERE)}
        metadata, dialect = metadata_of(stored, program.message.file)
        return Manifest(self.name, entries, metadata, files, dialect)

    def carries(self, spec: TensorSpec, codec: CodecSpec) -> bool:
        return holds(spec, codec)

    def adapt(self, codec: CodecSpec, name: str = "") -> CodecSpec:
        return adapted(codec)

    def preset(self, quant: str, extras: Any) -> Preset | None:
        return coreml_presets.preset(quant)

    def summary(self, bundle: Bundle) -> Mapping[str, Any]:
        if bundle.single is not None:
            return {"kind": "weight file without its package", "blobs": WeightFile(bundle[bundle.single], bundle.single).count}
        program = open_program(bundle)
        return {"specification_version": program.version, "functions": dict(program.opsets)}

    def uses(self, bundle: Bundle) -> Mapping[str, Sequence[Use]]:
        if bundle.single is not None:
            return {}
        program = open_program(bundle)
        names = names_in(_user_defined(program), program.message.file)
        return {names.get(name, name): uses for name, uses in weight_uses(program).items()}

    def warnings(self, bundle: Bundle, manifest: Manifest) -> Iterable[tuple[str, str]]:
        for name in bundle:
            if name.startswith(FOLDER) and name.endswith(".bin") and bundle[name].size > MAX_WEIGHT_BYTES:
                yield "E_LARGE", f"{name} has {bundle[name].size} bytes; the Neural Engine takes models of at most 2 GiB"

    def place(self, manifest: Manifest, name: str, shard_bytes: int | None = None) -> Placement:
        entries = {name: replace(entry, codec=canonical(entry)) for name, entry in manifest.entries.items()}
        manifest = replace(manifest, entries=entries)
        require_carried(self, manifest)
        files = dict(manifest.files)
        model, stated = files.pop(MODEL, None), files.pop(MANIFEST, None)
        if isinstance(model, bytes):
            pieces, weights = rewritten(model, entries)
        else:
            pieces, weights = linear_program(manifest)
        chunks, holes = pieces.laid_out()
        extents = weights.extents | {key: Extent(MODEL, holes[key], nbytes) for key, nbytes in weights.in_program.items()}
        images = {
            MANIFEST: Image.of(_manifest(stated if isinstance(stated, bytes) else None)),
            MODEL: Image(pieces.nbytes, tuple(chunks)),
            WEIGHTS: Image(weights.layout.nbytes, tuple(weights.layout.chunks)),
        }
        taken = [name for name in files if name in images]
        if taken:
            raise UnsupportedError(f"a side file is called {taken[0]}, as a file of the package is", code="E_SIDE_FILE")
        new_files, copies = place_side_files(files)
        placed = {
            name: replace(entry, extents={part: extents[name, part] for part in entry.parts}) for name, entry in entries.items()
        }
        notes: tuple[str, ...] = ()
        if weights.layout.nbytes > MAX_WEIGHT_BYTES:
            notes = (f"the weight file has {weights.layout.nbytes} bytes; the Neural Engine takes models of at most 2 GiB",)
        return Placement(replace(manifest, format=self.name, entries=placed), images | new_files, copies, notes=notes)


def open_program(bundle: Bundle) -> Program:
    """The program of a package, found through its manifest."""
    if MANIFEST not in bundle:
        raise MalformedError("a package without its Manifest.json", code="E_MANIFEST", file=bundle.name, hint=_COPY_AGAIN)
    file = bundle[MANIFEST].name
    document = strict_json.load(bundle[MANIFEST])
    match document:
        case {"rootModelIdentifier": str(root), "itemInfoEntries": dict(items), "fileFormatVersion": str(version)}:
            if version != _VERSION:
                raise UnsupportedError(f"a package of version {version[:40]}; known is {_VERSION}", code="E_VERSION", file=file)
            match items.get(root):
                case {"path": str(path)}:
                    model = f"Data/{path}"
                case _:
                    raise MalformedError("the root model is no item of the package", code="E_MANIFEST", file=file)
        case _:
            raise MalformedError("not the manifest of a Core ML package", code="E_MANIFEST", file=file)
    if model not in bundle:
        raise MalformedError(
            f"the model '{path[:200]}' is not in the package",
            code="E_MANIFEST",
            file=file,
            hint=_COPY_AGAIN,
        )
    return Program(bundle, model)


def _user_defined(program: Program) -> dict[str, str]:
    description = program.message.one(2)
    metadata = description.one(100) if description is not None else None
    if metadata is None:
        return {}
    return {entry.text(1): entry.text(2) for entry in metadata.all(100)}


def _manifest(stated: bytes | None) -> bytes:
    """Manifest.json: the one that is there, if it has the model and the weights where they are written."""
    if stated is not None:
        try:
            document = strict_json.loads(stated, file=MANIFEST)
            items = document["itemInfoEntries"]
            paths = {item["path"] for item in items.values()}
            root = items[document["rootModelIdentifier"]]["path"]
        except (FlyweightError, KeyError, TypeError, AttributeError):
            paths, root = set(), ""
        if f"Data/{root}" == MODEL and WEIGHTS.removeprefix("Data/").rpartition("/")[0] in paths:
            return stated
    items = {
        "flyweight-weights": _item("weights", "CoreML Model Weights", "com.apple.CoreML/weights"),
        "flyweight-model": _item("model.mlmodel", "CoreML Model Specification", MODEL.removeprefix("Data/")),
    }
    document = {"fileFormatVersion": _VERSION, "itemInfoEntries": items, "rootModelIdentifier": "flyweight-model"}
    return strict_json.dumps(document, indent=4) + b"\n"


def _item(name: str, description: str, path: str) -> dict[str, str]:
    return {"author": "com.apple.CoreML", "description": description, "name": name, "path": path}


def _blobs(bundle: Bundle, file: str) -> Manifest:
    """The blobs of a lone weight file, each called by the offset that programs have for it."""
    entries: dict[str, Entry] = {}
    weights = WeightFile(bundle[file], file)
    for offset, blob in weights.all():
        dtype = blob.kind.dtype or DType.U8
        count = max(8 * blob.extent.nbytes - blob.spare_bits * (dtype.bits < 8), 0) // dtype.bits
        spec = TensorSpec((count,), dtype)
        if spec.nbytes != blob.extent.nbytes:
            raise MalformedError(
                f"{blob.extent.nbytes} bytes, with {blob.spare_bits} spare bits, are no whole number of {dtype}",
                code="E_SIZE", file=bundle[file].name, offset=offset,
            )  # fmt: skip
        entries[f"blob_{offset}"] = Entry(f"blob_{offset}", spec, RAW, {"data": spec}, {"data": blob.extent})
    weights.check_overlaps()
    return Manifest("coreml", entries, dialect=DIALECT)
