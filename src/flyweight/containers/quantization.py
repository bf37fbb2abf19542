"""Detecting a model that another tool quantized by a method that Flyweight does not read.

Such a method gives every stored array a meaning of its own, however plain its element type: an fp8 weight counts only
with its scale. The files tell in three ways:

    config.json       "quantization_config" or "compression_config", there or in a part such as "text_config"
    a file beside it  quantize_config.json, quant_config.json, hf_quant_config.json
    the tensors       codes of few bits with a companion that belongs to them, by RULES

Our own method is `flyweight`: each file describes its codecs itself (see `safetensors`), and config.json names the method so
that other tools refuse the model rather than misread it:

    "quantization_config": {"quant_method": "flyweight", "version": 1}

A name alone tells nothing: plain models have tensors called `scale` or `weight_scale` too. A rule therefore asks for codes,
whose elements are integers or 8-bit floats, and for a companion of the same path. fp8 without scales is a plain type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.manifest import Entry, kinds_of
from flyweight.foundation.tensor import RAW, CodecSpec

INTEGERS = frozenset(dtype for dtype in DType if dtype.kind in "iu")
FLOATS = frozenset(dtype for dtype in DType if dtype.is_float and dtype.bits <= 8)
CODES = INTEGERS | FLOATS


class Rule(NamedTuple):
    """A tensor named <path><companion> tells of `method` if there is <path><codes>, of one of `types`."""

    companion: str
    codes: str
    types: frozenset[DType]
    method: str


RULES = (
    # Codes under a name that no plain weight has.
    Rule(".qweight", ".qweight", INTEGERS, "gptq or awq"),
    Rule(".weight_packed", ".weight_packed", CODES, "compressed-tensors"),
    Rule(".W_q", ".W_q", CODES, "hqq"),
    Rule(".dense_weights", ".dense_weights", INTEGERS, "spqr"),
    Rule(".q_weight", ".q_weight", INTEGERS, "exl2"),
    Rule(".trellis", ".trellis", INTEGERS, "exl3"),
    Rule(".Qidxs", ".Qidxs", INTEGERS, "quip"),
    # Codes, and what only makes sense beside them.
    Rule(".absmax", "", INTEGERS, "bitsandbytes"),
    Rule(".nested_absmax", "", INTEGERS, "bitsandbytes"),
    Rule(".quant_map", "", INTEGERS, "bitsandbytes"),
    Rule(".nested_quant_map", "", INTEGERS, "bitsandbytes"),
    Rule(".quant_state.bitsandbytes__nf4", "", INTEGERS, "bitsandbytes"),
    Rule(".quant_state.bitsandbytes__fp4", "", INTEGERS, "bitsandbytes"),
    Rule(".SCB", ".weight", INTEGERS, "bitsandbytes"),
    Rule(".weight_format", ".weight", INTEGERS, "bitsandbytes"),
    Rule("._scale", "._data", CODES, "quanto"),
    Rule("._scale", "._data._data", CODES, "quanto"),
    Rule("_scale", "_qdata", CODES, "torchao"),
    Rule(":scale", ":qdata", CODES, "torchao"),
    Rule(".codebooks", ".codes", INTEGERS, "aqlm"),
    Rule(".centroids.weight", ".indices", INTEGERS, "vptq"),
    Rule(".compressed", ".bitmask", INTEGERS, "compressed-tensors"),
    Rule(".s", ".B", INTEGERS, "marlin"),
    Rule("_scales", "_blocks", INTEGERS, "mxfp4"),
    # A weight in few bits, and its scale. "" is the weight itself: x.weight_scale, experts.up_proj_scale.
    Rule("_scale_inv", "", CODES, "fp8"),
    Rule("_scale_2", "", CODES, "modelopt"),
    Rule("_scale", "", FLOATS, "fp8"),
    Rule("_scale", "", INTEGERS, "compressed-tensors, modelopt or bitnet"),
    Rule("_scale_b", "", CODES, "fp8 or int8"),
    Rule("_scales", "", CODES, "eetq"),
    Rule("_zero_point", "", CODES, "compressed-tensors"),
    Rule("_shape", "_packed", CODES, "compressed-tensors"),
    Rule(".scale", ".weight", CODES, "fp8 or int8"),
    Rule(".scale_weight", ".weight", CODES, "fp8"),
    Rule(".input_scale", ".weight", CODES, "fp8 or int8"),
    Rule(".scales", ".weight", CODES, "mlx, higgs or eetq"),
)
_COMPANIONS = tuple({rule.companion for rule in RULES})

BESIDE = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}
"""Files that tell of a method, and which one if they do not name it."""

_MLX, _STATED = "quantization", "quantization_config"
_KEYS = (_STATED, "compression_config")
_NAMES = ("quant_method", "quant_algo", "format", "mode")
_UNNAMED = "one that is not named"
_LONG = 80


_OURS = {"quant_method": "flyweight", "version": 1}


def _is_ours(stated: object) -> bool:
    return isinstance(stated, dict) and stated.get("quant_method") == _OURS["quant_method"]


def states_ours(config: object) -> bool:
    """Whether config.json says that the files describe their codecs. UnsupportedError if in a way that is not known yet."""
    stated = config.get(_STATED) if isinstance(config, dict) else None
    if not _is_ours(stated):
        return False
    if stated != _OURS:
        raise UnsupportedError(f"config.json has {_STATED} {stated}; only {_OURS} is supported", code="E_QUANT_METHOD")
    return True


def with_ours(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """config.json that says so, and nothing else of the weights."""
    return config if config.get(_STATED) == _OURS and _MLX not in config else {**without_statement(config), _STATED: _OURS}


def without_statement(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """config.json without what it says of weights stored as MLX has them, or by us; what names another method stays.

    MLX's statement may stand in any format: tensors read from others had it once, too.
    """
    stated = config.get(_STATED)
    unnamed = not isinstance(stated, dict) or "quant_method" not in stated
    dropped = {_MLX} if isinstance(config.get(_MLX), dict) else set()
    dropped |= {_STATED} if _is_ours(stated) or (dropped and unnamed) else set()
    return {key: value for key, value in config.items() if key not in dropped} if dropped else config


def method_in_config(config: object) -> str:
    """The method of others that config.json tells of, or nothing. An empty setting tells of none."""
    if not isinstance(config, dict):
        return ""
    parts = [config, *(value for value in config.values() if isinstance(value, dict))]
    return next((_name(part[key]) for part in parts for key in _KEYS if part.get(key) and not _is_ours(part[key])), "")


def method_in_file(name: str, content: object) -> str:
    """The method that one of the files in BESIDE tells of, or nothing where it says that the weights have none."""
    table = content.get("quantization", content) if isinstance(content, dict) else content
    if isinstance(table, dict) and "quant_algo" in table and table["quant_algo"] is None:
        return ""
    found = _name(table)
    return BESIDE[name] if found == _UNNAMED else found


def _name(setting: object) -> str:
    if isinstance(setting, dict):
        named = (setting.get(key) for key in _NAMES)
        bitsandbytes = "bitsandbytes" if setting.get("load_in_4bit") or setting.get("load_in_8bit") else None
        setting = next((name for name in (*named, bitsandbytes) if isinstance(name, str) and name), None)
    return setting[:_LONG] if isinstance(setting, str) else _UNNAMED


def method_in_tensors(entries: Mapping[str, Entry]) -> tuple[str, str] | None:
    """The method, and the tensor that tells of it."""
    if not any(entry.spec.dtype in CODES for entry, _ in kinds_of(entries)):
        return None
    for name in entries:
        if not name.endswith(_COMPANIONS):
            continue
        for rule in RULES:
            if name.endswith(rule.companion):
                codes = entries.get(name.removesuffix(rule.companion) + rule.codes)
                if codes is not None and codes.codec == RAW and codes.spec.dtype in rule.types:
                    return rule.method, name
    return None


def as_foreign(entries: Mapping[str, Entry], method: str, told_by: str) -> dict[str, Entry]:
    """The same tensors, the plain ones as arrays of that method."""
    codec = CodecSpec.foreign(method, told_by)
    return {name: replace(entry, codec=codec) if entry.codec == RAW else entry for name, entry in entries.items()}
