"""The translation of a whole checkpoint between the HF and the GGUF dialect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from flyweight import strict_json
from flyweight.dtypes import DType
from flyweight.errors import MalformedError, UnsupportedError
from flyweight.manifest import Extent, Manifest, Typed
from flyweight.models import config as settings
from flyweight.models import foreign, gemma2, gemma3, llama, mistral, phi3, qwen2, qwen3, rope, tokenizer, vocabulary
from flyweight.models.config import CONFIG_JSON
from flyweight.models.family import UNTIED, Family
from flyweight.models.names import ROTARY_TENSORS, Renamed, rename, switches
from flyweight.models.record import Record
from flyweight.models.tokenizer_json import TOKENIZER_JSON

__all__ = ["FAMILIES", "Model", "Read", "Translation", "family_of", "read_settings", "rename_tensors", "translate"]

Read = Callable[[Extent], bytes]

# Where one GGUF architecture serves several families, the first is taken for a file that does not say which.
FAMILIES: tuple[Family, ...] = tuple(module.FAMILY for module in (llama, mistral, qwen2, qwen3, gemma2, gemma3, phi3))

GENERATION_CONFIG = "generation_config.json"
_GENERATION_KEY = "flyweight.generation_config"

_REPEATED = {
    "tokenizer.model": f"the same tokenizer as in {TOKENIZER_JSON}",
    "vocab.json": f"repeats {TOKENIZER_JSON}",
    "merges.txt": f"repeats {TOKENIZER_JSON}",
    "added_tokens.json": f"repeats {TOKENIZER_JSON}",
}


class Translation(NamedTuple):
    """Everything a target in another dialect needs to know. No bytes of weights are touched."""

    dialect: str
    tensors: Mapping[str, Renamed]
    """Every source tensor that is carried, by its source name."""
    metadata: Mapping[str, Typed] = {}
    files: Mapping[str, Extent | bytes] = {}
    dropped: Mapping[str, str] = {}
    """Source tensors that are not carried, and why."""
    added: Mapping[str, np.ndarray[Any, Any]] = {}
    """Tensors the target needs that the source has only as settings."""
    notes: tuple[str, ...] = ()
    """What the target cannot hold."""


def family_of(manifest: Manifest, read: Read) -> Family | None:
    """The model family of a checkpoint; None when it is not one we know."""
    if manifest.dialect == "gguf":
        return _gguf_family(manifest)
    if CONFIG_JSON not in manifest.files:
        return None
    model_type = _json(manifest, CONFIG_JSON, read).get("model_type")
    return next((family for family in FAMILIES if family.model_type == model_type), None)


def _gguf_family(manifest: Manifest) -> Family | None:
    architecture, model_type = manifest.value("general.architecture"), manifest.value("flyweight.model_type")
    alike = [family for family in FAMILIES if family.gguf == architecture]
    return next((family for family in alike if family.model_type == model_type), alike[0] if alike else None)


def _known(family: Family | None, name: object, *, gguf: bool) -> Family:
    if family is None:
        names = sorted({known.gguf if gguf else known.model_type for known in FAMILIES})
        raise UnsupportedError(
            f"no translation for models of the {'architecture' if gguf else 'model_type'} {str(name)[:80]!r}",
            code="E_FAMILY",
            hint=f"supported: {', '.join(names)}",
        )
    return family


def translate(manifest: Manifest, dialect: str, read: Read, *, dense: DType | None = None) -> Translation:
    """Names, settings and side files of `manifest` in `dialect`; `dense` is the type most matrices will have
    (by default, the one they have).

    A checkpoint that already speaks the dialect keeps everything as it is.
    """
    if dialect not in ("hf", "gguf"):
        raise ValueError(f"no dialect '{dialect}'")
    if manifest.dialect == dialect:
        same = {name: Renamed(name) for name in manifest.entries}
        return Translation(dialect, same, manifest.metadata, manifest.files)
    if manifest.dialect not in ("hf", "gguf"):
        raise UnsupportedError("the source does not follow the tensor names of HF or GGUF", code="E_DIALECT")
    manifest.require_readable()
    return _to_gguf(manifest, read) if dialect == "gguf" else _to_hf(manifest, read, dense or _usual_dtype(manifest))


def rename_tensors(manifest: Manifest, dialect: str, read: Read) -> Mapping[str, Renamed]:
    """The tensors' part of `translate` alone: it needs the settings, but no tokenizer."""
    if manifest.dialect == dialect:
        return {name: Renamed(name) for name in manifest.entries}
    manifest.require_readable()
    return (_read_hf if dialect == "gguf" else _read_gguf)(manifest, read).tensors


def read_settings(manifest: Manifest, read: Read) -> Model:
    """What a checkpoint of a known family says of itself, its tensors checked against it."""
    if manifest.dialect not in ("hf", "gguf"):
        raise UnsupportedError("the checkpoint does not follow the tensor names of HF or GGUF", code="E_DIALECT")
    manifest.require_readable()
    return (_read_hf if manifest.dialect == "hf" else _read_gguf)(manifest, read)


def _usual_dtype(manifest: Manifest) -> DType | None:
    """The element type of most weights."""
    sizes = Counter[DType]()
    for entry in manifest.entries.values():
        sizes[entry.spec.dtype] += entry.spec.size
    return sizes.most_common(1)[0][0] if sizes else None


def _bytes(manifest: Manifest, name: str, read: Read) -> bytes:
    held = manifest.files[name]
    return held if isinstance(held, bytes) else bytes(read(held))


def _json(manifest: Manifest, name: str, read: Read) -> Record:
    return Record(strict_json.loads(_bytes(manifest, name, read), file=name), name)


class Model(NamedTuple):
    """What the settings of a checkpoint say of it."""

    record: Record
    config: settings.Config
    on: Mapping[str, bool]
    """Switches the tensors at hand imply."""
    tensors: Mapping[str, Renamed]
    dropped: Mapping[str, str]


def _read_hf(manifest: Manifest, read: Read) -> Model:
    if CONFIG_JSON not in manifest.files:
        raise UnsupportedError(
            f"the settings of {CONFIG_JSON} are needed, and it is not there",
            code="E_CONFIG",
            hint="name the model's directory instead of the file",
        )
    record = _json(manifest, CONFIG_JSON, read)
    family = _known(family_of(manifest, read), record.get("model_type"), gguf=False)
    record.get("gguf_metadata")  # marks it as no setting of the model; `_to_gguf` reads it
    config = settings.read_hf(record, family)
    on = switches(family, manifest.entries, gguf=False)
    tensors, dropped = rename(family, config.dims, manifest.entries, on, tied=config.tied, to_gguf=True)
    return Model(record, config, on, tensors, dropped)


def _to_gguf(manifest: Manifest, read: Read) -> Translation:
    record, config, _, tensors, dropped = _read_hf(manifest, read)
    kept = foreign.from_json(record.get("gguf_metadata"), file=CONFIG_JSON)
    present = {name: lambda name=name: _bytes(manifest, name, read) for name in tokenizer.READ_FILES if name in manifest.files}
    _, words, notes = tokenizer.from_files(present, config.dims.vocab)
    metadata = kept | settings.write_gguf(config) | words
    if GENERATION_CONFIG in manifest.files:
        generation = _json(manifest, GENERATION_CONFIG, read).unused()
        metadata[_GENERATION_KEY] = Typed("str", strict_json.dumps(generation).decode())
    left = set(manifest.files) - {CONFIG_JSON, GENERATION_CONFIG, *tokenizer.READ_FILES}
    reasons = tuple(f"{name} is not carried: {_REPEATED.get(name, 'GGUF has no place for it')}" for name in sorted(left))
    added = rope.derived_tensors(config.scaling, theta=config.theta, rotary=config.rotary)
    return Translation("gguf", tensors, metadata, {}, dropped, added, config.notes + notes + reasons)


def _read_gguf(manifest: Manifest, read: Read) -> Model:
    family = _known(_gguf_family(manifest), manifest.value("general.architecture"), gguf=True)
    embedding = manifest.entries.get("token_embd.weight")
    if embedding is None or len(embedding.spec.shape) != 2:
        raise MalformedError("the embedding is missing or no matrix", code="E_TENSORS", tensor="token_embd.weight")
    vocab = embedding.spec.shape[0]
    record = Record({key: typed.value for key, typed in manifest.metadata.items()}, manifest.format)
    on = switches(family, manifest.entries, gguf=True)
    rotary = {name: manifest.entries[name] for name in ROTARY_TENSORS if name in manifest.entries}
    values = {name: rope.tensor_values(entry, read) for name, entry in rotary.items()}
    config = settings.read_gguf(record, family, vocab, not on[UNTIED], values)
    tensors, dropped = rename(family, config.dims, manifest.entries, on, tied=config.tied, to_gguf=False)
    return Model(record, config, on, tensors, dropped)


def _to_hf(manifest: Manifest, read: Read, dense: DType | None) -> Translation:
    record, config, on, tensors, dropped = _read_gguf(manifest, read)
    words = vocabulary.read_gguf(record, config.dims.vocab)
    templates = tokenizer.read_templates(record, list(manifest.metadata))
    made = settings.write_hf(config, dense, {switch: state for switch, state in on.items() if switch != UNTIED})
    notes: tuple[str, ...] = ()
    files: dict[str, Extent | bytes] = dict(manifest.files)
    if words is not None and words.kind == vocabulary.BYTE_LEVEL and record.get("tokenizer.ggml.pre") in (None, "default"):
        notes = ("the GGUF file does not say how text is cut before merging: GPT-2's way is assumed",)
    if words is not None:
        files |= tokenizer.to_files(words, templates, record, config.context)
    else:
        notes = ("the GGUF file has no tokenizer, so the directory has none",)
    for role in ("bos_token", "eos_token", "pad_token"):  # null rather than absent: transformers would assume ids
        made.setdefault(f"{role}_id", words.special.get(role) if words else None)
    generation = _generation(record, made, words)
    kept, unkept = foreign.to_json(manifest.metadata, record.unused())
    if kept:
        made["gguf_metadata"] = kept
    files[CONFIG_JSON] = strict_json.dumps(made, indent=2)
    files[GENERATION_CONFIG] = strict_json.dumps(generation, indent=2)
    return Translation("hf", tensors, {"format": Typed("str", "pt")}, files, dropped, {}, notes + unkept)


def _generation(metadata: Record, config: Mapping[str, Any], words: vocabulary.Vocabulary | None) -> dict[str, Any]:
    """generation_config.json as it was, or with every token that ends an answer."""
    kept = strict_json.loads(metadata.text(_GENERATION_KEY, "{}").encode(), file=_GENERATION_KEY)
    if kept:
        return Record(kept, _GENERATION_KEY).unused()
    made = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if config.get(key) is not None}
    ends = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    stops = list(dict.fromkeys(i for i in ends if type(i) is int and words is not None and 0 <= i < len(words.tokens)))
    if len(stops) > 1:
        made["eos_token_id"] = stops
    return {"_from_model_config": True} | made
