"""The settings of a model in canonical form: those of config.json, checked, with defaults filled in.

A dialect brings its settings to these names; `read_config` checks them and derives what a runtime needs. Nothing here depends
on what another dialect can express: settings that cannot be computed are refused, others are no matter of this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any, NamedTuple

from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.models import rope_scaling
from flyweight.models.checked_record import Record, shown
from flyweight.models.family import Dims, Family, Field, Window

CONFIG_JSON = "config.json"
FULL, SLIDING = "full_attention", "sliding_attention"
"""The items of `layer_types`."""

_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
"""What the gate of an MLP may go through, and the name kernels have for it."""


class Config(NamedTuple):
    """Everything a checkpoint says about the shape and the function of a model."""

    family: Family
    dims: Dims
    values: Mapping[str, Any]
    """The activation, the family's constants and its fields, each with a value."""
    rotary: int
    """How many dimensions of a head RoPE turns."""
    scaling: rope_scaling.Scaling | None
    tied: bool
    score_scalar: float
    """What scores are divided by the root of."""
    windows: tuple[int, ...]
    """How many positions back each layer sees, its own counted; 0 for all."""
    period: int
    """Every so many layers one sees everything; 0 where they are not evenly spaced, or where all layers are alike."""
    spelled_head_dim: bool
    """Whether head_dim is given rather than derived."""
    settings: Mapping[str, Any]
    """All settings as they were given, also those that nothing here reads."""

    @property
    def context(self) -> int:
        return int(self.values["max_position_embeddings"])

    @property
    def theta(self) -> float:
        return float(self.values["rope_theta"])

    @property
    def activation(self) -> str:
        return _ACTIVATIONS[self.values[self.family.activation[0]]]

    @property
    def attention_scale(self) -> float:
        return 1 / sqrt(self.score_scalar)

    def has_local_rope(self, layer: int) -> bool:
        """Whether a layer turns by `rope_local_base_freq`, unscaled, as Gemma's layers with a window do."""
        return "rope_local_base_freq" in self.values and self.windows[layer] > 0


def read_config(record: Record, family: Family, tensors: int) -> Config:
    """Check the settings of a model of this family that is made of so many tensors."""
    key, usual = family.activation
    values = {key: _one_of(record, family, key, (usual, *_ACTIVATIONS))}
    values |= {key: _one_of(record, family, key, (only,)) for key, only in family.constants.items()}
    for field in family.fields:
        values[field.name] = _value(record, field, values)
    given = record.integer("head_dim", family.head_dim) if "head_dim" in record or family.head_dim else None
    dims = _dims(values, record.integer("vocab_size"), given, record.file)
    if dims.layers > tensors:
        raise MalformedError(f"{tensors} tensors are too few for {dims.layers} layers", code="E_TENSORS")
    rotary = dims.head
    if family.partial_rotary and "partial_rotary_factor" in record:
        rotary = int(dims.head * record.number("partial_rotary_factor"))
        if not 2 <= rotary <= dims.head:
            record.fail("partial_rotary_factor", "a share of the head")
    windows, period = _windows(record, family.window, values, dims.layers)
    return Config(
        family,
        dims,
        values,
        rotary,
        rope_scaling.read(record, family, context=values["max_position_embeddings"], rotary=rotary),
        record.flag("tie_word_embeddings", family.tied),
        record.number("query_pre_attn_scalar", family.score_scalar) if family.score_scalar else dims.head,
        windows,
        period,
        given is not None,
        record.everything(),
    )


def _value(record: Record, field: Field, values: Mapping[str, Any]) -> Any:
    if field.nullable and record.get(field.name) is None and (record.says(field.name) or field.default is None):
        return None
    default: Any = values[field.default] if isinstance(field.default, str) else field.default
    if field.type is bool:
        return record.flag(field.name, default)
    return record.integer(field.name, default) if field.type is int else record.number(field.name, default)


def _dims(values: Mapping[str, Any], vocab: int, head: int | None, file: str) -> Dims:
    heads, kv_heads, hidden = (values[key] for key in ("num_attention_heads", "num_key_value_heads", "hidden_size"))
    if head is None and hidden % heads:
        raise MalformedError(f"{hidden} dimensions cannot be split into {heads} heads", code="E_CONFIG", file=file)
    if heads % kv_heads:
        raise MalformedError(f"{heads} heads cannot share {kv_heads} key-value heads", code="E_CONFIG", file=file)
    layers, ffn = values["num_hidden_layers"], values["intermediate_size"]
    return Dims(layers, vocab, hidden, ffn, heads, kv_heads, head or hidden // heads)


def _one_of(record: Record, family: Family, key: str, known: tuple[Any, ...]) -> Any:
    """A setting that has one of these values; the first where it is absent."""
    found = record.get(key)
    if found is not None and found not in known:
        raise UnsupportedError(
            f"'{key}' of a {family.model_type} model is {shown(found)}, which is not supported",
            code="E_CONFIG",
            file=record.file,
            hint=f"supported: {', '.join(map(repr, dict.fromkeys(known)))}",
        )
    return known[0] if found is None else found


def _windows(record: Record, rule: Window | None, values: Mapping[str, Any], layers: int) -> tuple[tuple[int, ...], int]:
    """The window of each layer, and the period of those without one."""
    everything = (0,) * layers, 0
    if rule is None or not values.get(rule.switch, True):
        return everything
    size = values["sliding_window"] if "sliding_window" in values else _value(record, _WINDOW, values)
    if size is None:
        return everything
    if rule.by_layer and "layer_types" in record:
        kinds = record.items("layer_types", str)
        if len(kinds) != layers or not set(kinds) <= {FULL, SLIDING}:
            record.fail("layer_types", f"'{FULL}' or '{SLIDING}' for each of {layers} layers")
        period = kinds.index(FULL) + 1 if FULL in kinds else max(layers + 1, rule.period)
        windows = tuple(size if kind == SLIDING else 0 for kind in kinds)
        return windows, period if rule.period and windows == _every(period, size, layers) else 0
    if rule.period:
        key = "sliding_window_pattern" if "sliding_window_pattern" in record else "_sliding_window_pattern"
        period = record.integer(key, rule.period)
        return _every(period, size, layers), period
    first = 0 if rule.first is None else record.integer("max_window_layers", rule.first, least=0)
    return tuple(size if layer >= first else 0 for layer in range(layers)), 0


_WINDOW = Field("sliding_window", default=4096, nullable=True)


def _every(period: int, size: int, layers: int) -> tuple[int, ...]:
    return tuple(size if (layer + 1) % period else 0 for layer in range(layers))
