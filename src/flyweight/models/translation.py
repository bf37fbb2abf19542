"""The translation of a whole checkpoint between two dialects, each of which knows only itself and the canonical form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.manifest import Manifest
from flyweight.models.dialects import DIALECTS
from flyweight.models.dialects.contract import Blueprint, Dialect, Read, Translation
from flyweight.models.family import Family
from flyweight.models.tensor_names import find_tensors
from flyweight.models.transform import Renamed


def dialect_of(manifest: Manifest) -> Dialect:
    if not manifest.dialect:
        raise UnsupportedError(
            "the tensors have numbers instead of names, and only a config.json says which is which",
            code="E_DIALECT",
            hint="put the config.json of the model beside the file; `flyweight verify` says why one does not fit",
        )
    if manifest.dialect not in DIALECTS:
        raise UnsupportedError(
            "the tensor names are neither those of Hugging Face nor of GGUF",
            code="E_DIALECT",
            hint=f"known: {', '.join(DIALECTS.lines)}; a safetensors file, or a package of the same kind, keeps any names",
        )
    return DIALECTS[manifest.dialect]


def family_of(manifest: Manifest, read: Read) -> Family | None:
    """The model family of a checkpoint; None when it is not one we know."""
    return DIALECTS[manifest.dialect].family_of(manifest, read) if manifest.dialect in DIALECTS else None


def blueprint(manifest: Manifest, read: Read) -> Blueprint:
    """What a checkpoint of a known family says of itself, its tensors checked against it."""
    dialect = dialect_of(manifest)
    manifest.require_readable()
    return find_tensors(dialect, dialect.read_config(manifest, read), manifest.entries)


def translate(manifest: Manifest, dialect: str, read: Read, *, dense: DType | None = None) -> Translation:
    """Names, settings and side files of `manifest` in `dialect`; `dense` is the type most matrices will have
    (by default, the one they have).

    A checkpoint that already speaks the dialect keeps everything as it is.
    """
    if manifest.dialect == dialect:
        return Translation(manifest.metadata, manifest.files, tensors=_unchanged(manifest))
    source, target = dialect_of(manifest), DIALECTS[dialect]
    model = blueprint(manifest, read)
    if source.rows_of == target.name:
        return Translation(
            manifest.metadata, source.files_of_rows(manifest, read), tensors=_renamed(model, target), dropped=model.dropped
        )
    text = source.read_text(manifest, read, model.config)
    written = target.write(model, text, dense or _usual_dtype(manifest))
    return written._replace(notes=written.notes + text.notes, tensors=_renamed(model, target), dropped=model.dropped)


def rename_tensors(manifest: Manifest, dialect: str, read: Read) -> Mapping[str, Renamed]:
    """The tensors' part of `translate` alone: it needs the settings, but no tokenizer."""
    return _unchanged(manifest) if manifest.dialect == dialect else _renamed(blueprint(manifest, read), DIALECTS[dialect])


def _unchanged(manifest: Manifest) -> dict[str, Renamed]:
    return {name: Renamed(name) for name in manifest.entries}


def _renamed(model: Blueprint, target: Dialect) -> dict[str, Renamed]:
    return {stored.name: stored.to(target.stored(name, model.config)) for name, stored in model.tensors.items()}


def _usual_dtype(manifest: Manifest) -> DType | None:
    """The element type of most weights."""
    sizes = Counter[DType]()
    for entry in manifest.entries.values():
        sizes[entry.spec.dtype] += entry.spec.size
    return sizes.most_common(1)[0][0] if sizes else None
