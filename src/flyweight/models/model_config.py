"""The settings of a model: config.json ↔ `<architecture>.*` metadata of GGUF.

Both are read into a `Config` and written from it. A setting that the other dialect has no key for travels along
under a name of our own, so that the way back restores it:

    GGUF   flyweight.model_type   which family it was, where one GGUF architecture serves several
           flyweight.config       JSON text: the settings of config.json that have no GGUF key
    HF     "gguf_metadata"        in config.json: {key: [type, value]}, the metadata that has no setting
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flyweight import strict_json
from flyweight.dtypes import DType
from flyweight.errors import MalformedError, UnsupportedError
from flyweight.manifest import Typed
from flyweight.models import rope
from flyweight.models.family import Dims, Family, Field
from flyweight.models.record import Record, shown

__all__ = ["CONFIG_JSON", "Config", "implied_scalar", "read_gguf", "read_hf", "write_gguf", "write_hf"]

CONFIG_JSON = "config.json"

_TORCH_NAMES = {DType.F32: "float32", DType.F16: "float16", DType.BF16: "bfloat16", DType.F64: "float64"}
_QUANTIZATION_VERSION = 2
_SPELLING = "4.57.0"  # the transformers whose keys we write; without it version 5 suspects old Mistral files

# Settings that are made anew for every target: they speak of the old file, not of the model.
_NOT_KEPT = (
    "model_type", "architectures", "torch_dtype", "dtype", "quantization", "quantization_config", "auto_map",
    "transformers_version", "rope_parameters", "rope_theta", "sliding_window_pattern", "_sliding_window_pattern",
    "layer_types", "gguf_metadata",
)  # fmt: skip


class Config(NamedTuple):
    """Everything config.json and GGUF say about the shape and the function of a model."""

    family: Family
    dims: Dims
    values: Mapping[str, Any]
    """The family's fields, by their name in config.json."""
    rotary: int
    """How many dimensions of a head RoPE turns."""
    spelled_head_dim: bool
    """Whether head_dim is given rather than derived."""
    scaling: rope.Scaling | None
    tied: bool
    period: int = 0
    extra: Mapping[str, Any] = {}
    """Settings of config.json that GGUF has no key for."""
    notes: tuple[str, ...] = ()

    @property
    def context(self) -> int:
        return int(self.values["max_position_embeddings"])

    @property
    def theta(self) -> float:
        return float(self.values["rope_theta"])


def implied_scalar(family: Family, dims: Dims) -> int:
    """What Gemma's scores are divided by the root of, as GGUF readers derive it."""
    return dims.hidden // dims.heads if dims.layers == family.wide_layers else dims.head


def _value(record: Record, key: str, rule: Field, default: Any) -> Any:
    if rule.nullable and record.get(key) in (None, rule.null):
        return None
    if rule.always_on and record.says(key) and record.get(key) is None:
        record.fail(key, "a number (GGUF cannot switch it off)")
    return record.integer(key, default) if rule.type == "u32" else record.number(key, default)


def _values(record: Record, family: Family, *, gguf: bool) -> dict[str, Any]:
    """The family's fields by their HF names, each checked."""
    values: dict[str, Any] = {}
    for rule in family.fields:
        default = values[rule.default] if isinstance(rule.default, str) else rule.default
        if gguf:
            value = _value(record, f"{family.gguf}.{rule.gguf}", rule, default if rule.assumed else None)
            values[rule.hf] = rope.shortest(value) if rule.type == "f32" and value is not None else value
        else:
            values[rule.hf] = _value(record, rule.hf, rule, default)
    return values


def _dims(values: Mapping[str, Any], vocab: int, head: int, file: str) -> Dims:
    heads, kv_heads = values["num_attention_heads"], values["num_key_value_heads"]
    if heads % kv_heads:
        raise MalformedError(f"{heads} heads cannot share {kv_heads} key-value heads", code="E_CONFIG", file=file)
    layers, hidden, ffn = values["num_hidden_layers"], values["hidden_size"], values["intermediate_size"]
    return Dims(layers, vocab, hidden, ffn, heads, kv_heads, head)


def _head_dim(given: int | None, values: Mapping[str, Any], file: str) -> int:
    if given is not None:
        return given
    hidden, heads = values["hidden_size"], values["num_attention_heads"]
    if hidden % heads:
        raise MalformedError(f"{hidden} dimensions cannot be split into {heads} heads", code="E_CONFIG", file=file)
    return int(hidden // heads)


def read_hf(config: Record, family: Family) -> Config:
    """Check config.json of a model of this family."""
    parameters = config.table("rope_parameters")
    layered = parameters is not None and "full_attention" in parameters
    if parameters is not None:
        config = _with_bases(config, parameters, layered)
    values = _values(config, family, gguf=False)
    given = config.integer("head_dim", family.head_dim) if "head_dim" in config or family.head_dim else None
    dims = _dims(values, config.integer("vocab_size"), _head_dim(given, values, config.file), config.file)
    for key, wanted in family.constants.items():
        found = config.get(key)
        if found is not None and found != wanted:
            raise UnsupportedError(
                f"'{key}' is {shown(found)}, but GGUF's {family.gguf} architecture means {wanted!r}",
                code="E_CONFIG",
                file=config.file,
            )
    rotary = dims.head
    if family.partial_rotary:
        rotary = int(dims.head * config.number("partial_rotary_factor", 1.0))
        if not 2 <= rotary <= dims.head:
            config.fail("partial_rotary_factor", "a share of the head")
    scaling = rope.read_hf(config, family, context=values["max_position_embeddings"], rotary=rotary)
    tied = config.flag("tie_word_embeddings", family.tied)
    period = _period(config, family, dims.layers)
    for key in (*_NOT_KEPT, *(rule.when for rule in family.tensors)):
        config.get(key)  # asked for, so not among what is left over
    extra, notes = _extra(config, family, dims, scaling)
    _check_extra(Record(extra, config.file))
    return Config(family, dims, values, rotary, given is not None, scaling, tied, period, extra, notes)


def _with_bases(config: Record, parameters: Record, layered: bool) -> Record:
    """config.json with the bases where transformers 4 had them."""
    bases: dict[str, Any] = {}
    whole = parameters.table("full_attention") if layered else parameters
    local = parameters.table("sliding_attention") if layered else None
    for source, keys in ((whole, ("rope_theta", "partial_rotary_factor")), (local, ("rope_theta",))):
        for key in keys if source is not None else ():
            if source is not None and source.get(key) is not None:
                bases["rope_local_base_freq" if source is local else key] = source.get(key)
    return config.extended(bases)


def _period(config: Record, family: Family, layers: int) -> int:
    """Which layers attend to everything: every `period`-th."""
    if family.window is None:
        return 0
    for key in ("sliding_window_pattern", "_sliding_window_pattern"):
        period = config.integer(key, family.window.period) if key in config else family.window.period
        if period != family.window.period:
            break
    if "layer_types" in config:
        kinds = config.items("layer_types", str)
        period = kinds.index("full_attention") + 1 if "full_attention" in kinds else max(layers + 1, family.window.period)
        wanted = ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(len(kinds))]
        if kinds != wanted or len(kinds) != layers:
            config.fail("layer_types", f"one kind for each of {layers} layers, the global ones evenly spaced")
    if period != family.window.period and not family.window.key:
        raise UnsupportedError(
            f"1 layer in {period} is global, but GGUF's {family.gguf} architecture has 1 in {family.window.period}",
            code="E_CONFIG",
            file=config.file,
        )
    return period


def _extra(config: Record, family: Family, dims: Dims, scaling: rope.Scaling | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What GGUF has no key for, and what of it changes the function of the model."""
    notes = [
        f"{key} = {shown(config.get(key))} has no key in GGUF's {family.gguf} architecture: programs that run the file "
        "ignore it"
        for key, implied in family.unheld.items()
        if config.says(key) and config.get(key) != implied
    ]
    extra = {key: config.get(key) for key in family.unheld if config.says(key)} | config.unused()
    scalar = extra.get("query_pre_attn_scalar")
    implied = implied_scalar(family, dims)
    if family.wide_layers and scalar in (None, implied):
        extra.pop("query_pre_attn_scalar", None)
    elif family.wide_layers:
        notes.append(f"query_pre_attn_scalar = {shown(scalar)} has no key in GGUF: programs that run the file take {implied}")
    if scaling:
        extra["rope_scaling"] = scaling
    for key, why in (
        ("auto_map", "names code that is not carried"),
        ("quantization_config", "the tensors describe themselves"),
    ):
        if key in config:
            notes.append(f"{key} of {CONFIG_JSON} is dropped: {why}")
    return extra, tuple(notes)


def _check_extra(extra: Record) -> None:
    """Of the settings that GGUF has no key for, those that a runtime reads."""
    extra.integer("sliding_window", 0, least=0)
    extra.integer("max_window_layers", 0, least=0)
    extra.flag("use_sliding_window", False)
    extra.number("query_pre_attn_scalar", 1.0)


def read_gguf(metadata: Record, family: Family, vocab: int, tied: bool, tensors: rope.RotaryTensors) -> Config:
    """Check the metadata of a model of this family. The file itself says how large the vocabulary is."""
    prefix = f"{family.gguf}."
    values = _values(metadata, family, gguf=True)
    if metadata.integer(prefix + "vocab_size", vocab) != vocab:
        metadata.fail(prefix + "vocab_size", f"the {vocab} rows of the embedding")
    key, value = prefix + "attention.key_length", prefix + "attention.value_length"
    given = metadata.integer(key) if key in metadata else None
    head = _head_dim(given, values, metadata.file)
    if metadata.integer(value, head) != head:
        metadata.fail(value, f"equal to attention.key_length ({head})")
    dims = _dims(values, vocab, head, metadata.file)
    rotary = metadata.integer(prefix + "rope.dimension_count", head)
    if rotary != head and not (family.partial_rotary and rotary < head):
        metadata.fail(prefix + "rope.dimension_count", f"the {head} dimensions of a head")
    extra = _remembered(metadata)
    _check_extra(Record(extra, "flyweight.config"))
    theta = values["rope_theta"]
    before = rope.read_hf(Record(extra, "flyweight.config"), family, context=values["max_position_embeddings"], rotary=rotary)
    scaling = rope.read_gguf(metadata, family, tensors, before, theta=theta, rotary=rotary)
    period = family.window.period if family.window else 0
    if family.window and family.window.key and prefix + family.window.key in metadata:
        period = metadata.integer(prefix + family.window.key)
    for unread in ("general.architecture", "general.file_type", "general.quantization_version", "general.alignment"):
        metadata.get(unread)
    return Config(family, dims, values, rotary, given is not None, scaling, tied, period, extra)


def _remembered(metadata: Record) -> dict[str, Any]:
    metadata.get("flyweight.model_type")
    text = metadata.text("flyweight.config", "{}")
    extra = strict_json.loads(text.encode(), file="flyweight.config")
    return dict(Record(extra, "flyweight.config").unused())


def write_hf(config: Config, dense: DType | None, switches: Mapping[str, bool]) -> dict[str, Any]:
    """config.json in the spelling of transformers 4, which transformers 5 and MLX read too."""
    family = config.family
    made: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "transformers_version": _SPELLING,
    }
    made |= dict(family.constants) | dict(config.values) | dict(switches)
    made["vocab_size"] = config.dims.vocab
    made["tie_word_embeddings"] = config.tied
    if config.spelled_head_dim or family.head_dim or config.dims.head * config.dims.heads != config.dims.hidden:
        made["head_dim"] = config.dims.head
    if config.rotary != config.dims.head:
        made["partial_rotary_factor"] = config.rotary / config.dims.head
    made["rope_scaling"] = config.scaling and rope.write_hf(config.scaling)
    if family.window:
        made["sliding_window_pattern"] = config.period
        made["layer_types"] = [
            "sliding_attention" if (i + 1) % config.period else "full_attention" for i in range(config.dims.layers)
        ]
    if family.wide_layers:
        made["query_pre_attn_scalar"] = implied_scalar(family, config.dims)
    if dense in _TORCH_NAMES:
        made["torch_dtype"] = _TORCH_NAMES[dense]
    kept = {key: value for key, value in config.extra.items() if key not in made or key == "query_pre_attn_scalar"}
    return dict(family.unheld) | made | {key: value for key, value in kept.items() if key not in _NOT_KEPT}


def write_gguf(config: Config) -> dict[str, Typed]:
    """The metadata that describes the model; the tokenizer's is apart."""
    family, dims = config.family, config.dims
    own: dict[str, Typed] = {"vocab_size": Typed("u32", dims.vocab)}
    for rule in family.fields:
        value = config.values[rule.hf] if config.values[rule.hf] is not None else rule.null
        if value is not None:
            own[rule.gguf] = Typed(rule.type, value)
    if config.spelled_head_dim or dims.head * dims.heads != dims.hidden:
        own["attention.key_length"] = own["attention.value_length"] = Typed("u32", dims.head)
    own["rope.dimension_count"] = Typed("u32", config.rotary)
    original = int(config.values.get("original_max_position_embeddings") or config.context)
    own |= rope.write_gguf(config.scaling, context=config.context, original=original)
    if family.window and family.window.key and config.period != family.window.period:
        own[family.window.key] = Typed("u32", config.period)
    general = {
        "general.architecture": Typed("str", family.gguf),
        "general.type": Typed("str", "model"),
        "general.quantization_version": Typed("u32", _QUANTIZATION_VERSION),
        "flyweight.model_type": Typed("str", family.model_type),
    }
    if config.extra:
        general["flyweight.config"] = Typed("str", strict_json.dumps(dict(config.extra)).decode())
    return general | {f"{family.gguf}.{key}": _as_f32(typed) for key, typed in own.items()}


def _as_f32(typed: Typed) -> Typed:
    """What the file will hold, so that reading it back gives an equal value."""
    import numpy

    return Typed("f32", float(numpy.float32(typed.value))) if typed.type == "f32" else typed
