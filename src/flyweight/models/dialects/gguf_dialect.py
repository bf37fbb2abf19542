"""The dialect of GGUF: `<architecture>.*` metadata, and tensor names of its own (`gguf_form` has the tables).

What has no key travels along under a name of ours, so that the way back restores it:

    GGUF          flyweight.model_type   which family it was, where one architecture serves several
                  flyweight.config       JSON text: the settings that have no key
    config.json   "gguf_metadata"        {key: [type, value]}: the metadata that is no setting
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flyweight.foundation import strict_json
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.manifest import Manifest, Typed
from flyweight.models import rope_scaling
from flyweight.models.checked_record import Record, shown
from flyweight.models.dialects import gguf_scaling, gguf_tokenizer, kept_metadata
from flyweight.models.dialects.contract import Blueprint, Files, Read, Templates, Text, TokenizerTable, Translation
from flyweight.models.dialects.gguf_form import KEYS, GgufForm
from flyweight.models.families import FAMILIES
from flyweight.models.family import Family
from flyweight.models.model_config import CONFIG_JSON, Config, read_config
from flyweight.models.tokenizers import tokenizer_json
from flyweight.models.tokenizers.tokenizer_json import TOKENIZER_JSON
from flyweight.models.tokenizers.vocabulary import BYTE_LEVEL
from flyweight.models.transform import Stored

_QUANTIZATION_VERSION = 2
_PERIOD = "attention.sliding_window_pattern"
_SETTINGS_KEY, _METADATA_SETTING = "flyweight.config", "gguf_metadata"
_READ_ELSEWHERE = (
    "vocab_size", "tie_word_embeddings", "rope_scaling", "sliding_window_pattern", "_sliding_window_pattern", _METADATA_SETTING,
)  # fmt: skip
"""Settings that other keys say, or tensors."""
_OF_THE_FILE = ("general.alignment", "general.file_type", "general.quantization_version", "split.")
"""Metadata that speaks of the file and not of the model, by how keys begin."""


class Gguf:
    name = "gguf"
    embedding = "token_embd.weight"
    rows_of = ""

    def family_of(self, manifest: Manifest, read: Read) -> Family | None:
        architecture = manifest.value("general.architecture")
        hint = manifest.value("flyweight.model_type")
        # Most architectures are called what their family is: then no other family is looked at.
        likely = [FAMILIES[name] for name in (hint, architecture) if isinstance(name, str) and name in FAMILIES]
        for families in (likely, FAMILIES):
            for family in families:
                form = family.form(GgufForm)
                if form is not None and form.architecture == architecture:
                    return family
        return None

    def read_config(self, manifest: Manifest, read: Read) -> Config:
        return _read(manifest, _record(manifest), self.family_of(manifest, read), read)

    def stored(self, name: str, config: Config) -> Stored:
        form, module = _form(config.family), name.split(".")[-2]
        heads = {"q_proj": config.dims.heads, "k_proj": config.dims.kv_heads}.get(module, 0) if form.interleaved else 0
        offset = config.family.graph.norm_offset if module.endswith("norm") else 0.0
        return Stored(form.stored_name(name), heads, offset)

    def files_of_rows(self, manifest: Manifest, read: Read) -> Files:
        return manifest.files

    def reason_to_drop(self, name: str) -> str:
        return "derived from the RoPE settings" if name in gguf_scaling.TENSORS else ""

    def read_tokenizer(self, manifest: Manifest, read: Read, rows: int) -> TokenizerTable | None:
        metadata = _record(manifest)
        words = gguf_tokenizer.read_vocabulary(metadata, rows)
        if words is None:
            return None
        given = gguf_tokenizer.read_remembered(metadata, gguf_tokenizer.GENERATION).get("eos_token_id")
        ends = gguf_tokenizer.end_tokens(metadata, rows) + (given if isinstance(given, list) else [given])
        table = tokenizer_json.describe(words) | {"post_processor": None}
        return TokenizerTable(table, words.special.get("bos_token"), words.special.get("eos_token"), ends, words.add_bos)

    def read_templates(self, manifest: Manifest, read: Read) -> Templates:
        return gguf_tokenizer.read_templates(_record(manifest))

    def read_text(self, manifest: Manifest, read: Read, config: Config) -> Text:
        metadata = _record(manifest)
        _read(manifest, metadata, config.family, read)  # for what it leaves
        words = gguf_tokenizer.read_vocabulary(metadata, config.dims.vocab)
        templates = gguf_tokenizer.read_templates(metadata)
        settings = gguf_tokenizer.read_remembered(metadata, gguf_tokenizer.TOKENIZER_SETTINGS)
        generation = gguf_tokenizer.read_remembered(metadata, gguf_tokenizer.GENERATION)
        ends = [] if generation else gguf_tokenizer.end_tokens(metadata, config.dims.vocab)
        notes: tuple[str, ...] = ()
        if words is not None and words.kind == BYTE_LEVEL and metadata.get("tokenizer.ggml.pre") in (None, "default"):
            notes = ("the GGUF file names no pre-tokenizer: GPT-2's is assumed",)
        left = [key for key in metadata.unused() if not key.startswith(_OF_THE_FILE)]
        kept, lost = kept_metadata.to_json({key: manifest.metadata[key] for key in left})
        keepsakes = {_METADATA_SETTING: kept} if kept else {}
        return Text(words, templates, settings, generation, ends, keepsakes, manifest.files, notes + lost)

    def write(self, model: Blueprint, text: Text, dense: DType | None) -> Translation:
        kept = kept_metadata.from_json(model.config.settings.get(_METADATA_SETTING), file=CONFIG_JSON)
        settings, notes = _write_settings(model)
        if text.vocabulary is None:
            notes.append(f"no {TOKENIZER_JSON}: the GGUF file gets no tokenizer")
        notes += [f"{name} is not stored: GGUF has no place for it" for name in sorted(text.files)]
        metadata = kept | settings | gguf_tokenizer.text_metadata(text)
        return Translation(metadata, {}, gguf_scaling.added_tensors(model.config), tuple(notes))


GGUF = Gguf()


def _record(manifest: Manifest) -> Record:
    return Record({key: typed.value for key, typed in manifest.metadata.items()}, manifest.format)


def _form(family: Family) -> GgufForm:
    form = family.form(GgufForm)
    if form is None:
        raise UnsupportedError(f"GGUF has no architecture for {family.model_type} models", code="E_FAMILY")
    return form


def _read(manifest: Manifest, metadata: Record, family: Family | None, read: Read) -> Config:
    """The settings; what `metadata` then has unused is none of them."""
    if family is None:
        known = sorted({form.architecture for family in FAMILIES if (form := family.form(GgufForm))})
        raise UnsupportedError(
            f"GGUF's architecture {str(metadata.get('general.architecture'))[:80]!r} is not supported",
            code="E_FAMILY",
            hint=f"supported: {', '.join(known)}",
        )
    form, embedding = _form(family), manifest.entries.get(Gguf.embedding)
    if embedding is None or len(embedding.spec.shape) != 2:
        raise MalformedError("the embedding is missing or is not a matrix", code="E_TENSORS", tensor=Gguf.embedding)
    prefix, vocab = f"{form.architecture}.", embedding.spec.shape[0]
    if metadata.integer(prefix + "vocab_size", vocab) != vocab:
        metadata.fail(prefix + "vocab_size", f"the {vocab} rows of the embedding")
    own = _read_keys(metadata, family, form, prefix)
    settings = {key: value for key, value in form.absent.items() if key not in form.keys}
    if family.score_scalar:
        settings["query_pre_attn_scalar"] = _implied_scalar(form, own)
    remembered = gguf_tokenizer.read_remembered(metadata, _SETTINGS_KEY)
    settings |= {key: value for key, value in remembered.items() if key not in _READ_ELSEWHERE} | own
    settings |= {"vocab_size": vocab, "tie_word_embeddings": "output.weight" not in manifest.entries}
    config = read_config(Record(settings, metadata.file), family, len(manifest.entries))
    if metadata.integer(prefix + "attention.value_length", config.dims.head) != config.dims.head:
        metadata.fail(prefix + "attention.value_length", f"equal to attention.key_length ({config.dims.head})")
    rotary = metadata.integer(prefix + "rope.dimension_count", config.dims.head)
    if rotary != config.dims.head and not (family.partial_rotary and rotary < config.dims.head):
        metadata.fail(prefix + "rope.dimension_count", f"the {config.dims.head} dimensions of a head")
    config = config._replace(rotary=rotary)
    before = rope_scaling.read(Record(remembered, _SETTINGS_KEY), family, context=config.context, rotary=rotary)
    tensors = gguf_scaling.read_tensors(manifest, read)
    for key in ("general.architecture", "flyweight.model_type"):
        metadata.get(key)
    return config._replace(scaling=gguf_scaling.read(metadata, prefix, config, before, tensors))


def _read_keys(metadata: Record, family: Family, form: GgufForm, prefix: str) -> dict[str, Any]:
    """The settings that have keys, by their canonical names."""
    settings: dict[str, Any] = {}
    types = {field.name: field.type for field in family.fields}
    for name in form.keys:
        key = prefix + KEYS[name]
        if key not in metadata and name in form.absent:
            value = form.absent[name]
            settings[name] = settings[value] if isinstance(value, str) else value
        elif name in form.zero and metadata.get(key) == 0:
            settings[name] = None
        else:
            settings[name] = metadata.integer(key) if types[name] is int else gguf_scaling.shortest(metadata.number(key))
    if family.window and family.window.period:
        period = metadata.integer(prefix + _PERIOD, family.window.period) if form.any_period else family.window.period
        settings |= {"sliding_window_pattern": period, "layer_types": None}
    head = prefix + "attention.key_length"
    hidden, heads = settings["hidden_size"], settings["num_attention_heads"]
    if head in metadata:
        settings["head_dim"] = metadata.integer(head)
    elif family.head_dim:
        settings["head_dim"] = hidden // heads if hidden % heads == 0 else metadata.fail(head, "a number")
    return settings


def _implied_scalar(form: GgufForm, values: Mapping[str, Any]) -> int:
    """What Gemma's scores are divided by the root of, as programs that run the file derive it."""
    wide = values["num_hidden_layers"] == form.wide_layers
    return int(values["hidden_size"] // values["num_attention_heads"] if wide else values["head_dim"])


def _write_settings(model: Blueprint) -> tuple[dict[str, Typed], list[str]]:
    """The metadata that describes the model, and notes on what programs that run the file will not know."""
    config, family, dims = model.config, model.config.family, model.config.dims
    form = _form(family)
    own: dict[str, Typed] = {"vocab_size": Typed("u32", dims.vocab)}
    types = {field.name: "u32" if field.type is int else "f32" for field in family.fields}
    for name in form.keys:
        value = config.values[name]
        if value is None and name not in form.zero and form.absent.get(name, 0) is not None:
            raise _unwritable(form, f"'{name}' is null", "always has one")
        if value is not None or name in form.zero:
            own[KEYS[name]] = Typed(types[name], value or 0)
    for name, means in {family.activation[0]: family.activation[1], **family.constants}.items():
        if config.values[name] != means:
            raise _unwritable(form, f"'{name}' is {shown(config.values[name])}", f"means {means!r}")
    if config.spelled_head_dim or dims.head * dims.heads != dims.hidden:
        own["attention.key_length"] = own["attention.value_length"] = Typed("u32", dims.head)
    own["rope.dimension_count"] = Typed("u32", config.rotary)
    own |= gguf_scaling.write(config, form)
    if family.window and family.window.period != config.period:
        if not config.period:
            raise _unwritable(form, "by 'layer_types' the global layers are not evenly spaced", "needs even spacing")
        if not form.any_period:
            found = f"by 'layer_types' or its pattern 1 layer in {config.period} is global"
            raise _unwritable(form, found, f"has 1 in {family.window.period}")
        own[_PERIOD] = Typed("u32", config.period)
    general = {
        "general.architecture": Typed("str", form.architecture),
        "general.type": Typed("str", "model"),
        "general.quantization_version": Typed("u32", _QUANTIZATION_VERSION),
        "flyweight.model_type": Typed("str", family.model_type),
    }
    extra, notes = _unkeyed(model, form)
    if extra:
        general[_SETTINGS_KEY] = Typed("str", strict_json.dumps(extra).decode())
    return general | {f"{form.architecture}.{key}": _as_f32(typed) for key, typed in own.items()}, notes


def _unwritable(form: GgufForm, found: str, means: str) -> UnsupportedError:
    return UnsupportedError(
        f"{found}, but GGUF's {form.architecture} architecture {means}",
        code="E_CONFIG",
        hint="formats with a config.json can store it",
    )


def _unkeyed(model: Blueprint, form: GgufForm) -> tuple[dict[str, Any], list[str]]:
    """The settings that have no key, and notes on those that change the function of the model."""
    config, family = model.config, model.config.family
    keyed = {*form.keys, family.activation[0], *family.constants, *model.switches, *_READ_ELSEWHERE}
    keyed |= {"head_dim"} if config.spelled_head_dim or family.head_dim else set()
    keyed |= {"partial_rotary_factor"} if family.partial_rotary else set()
    if not (family.window and family.window.first is not None and any(config.windows)):
        keyed.add("layer_types")
    extra: dict[str, Any] = {}
    notes: list[str] = []
    for name, implied in form.absent.items():
        if name in form.keys:
            continue
        if config.values[name] != implied:
            notes.append(
                f"{name} = {shown(config.values[name])} has no key in GGUF's {form.architecture} architecture: programs that "
                "run the file ignore it"
            )
        if config.values[name] != implied or name in config.settings:
            extra[name] = config.settings.get(name, config.values[name])
    extra |= {name: value for name, value in config.settings.items() if name not in keyed}
    if family.score_scalar:
        scalar = extra.pop("query_pre_attn_scalar", None) or family.score_scalar
        implied = _implied_scalar(form, {**config.values, "head_dim": config.dims.head})
        if scalar != implied:
            extra["query_pre_attn_scalar"] = scalar
            notes.append(f"query_pre_attn_scalar = {scalar} has no key in GGUF: programs that run the file use {implied}")
    if config.scaling:
        extra["rope_scaling"] = config.scaling
    return extra, notes


def _as_f32(typed: Typed) -> Typed:
    """What the file will hold, so that reading it back gives an equal value."""
    import numpy

    return Typed("f32", float(numpy.float32(typed.value))) if typed.type == "f32" else typed
