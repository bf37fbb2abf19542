"""RoPE scaling in GGUF: keys, and tensors of one f32 for each pair of rotated dimensions.

    linear    rope.scaling.type = "linear", rope.scaling.factor
    yarn      rope.scaling.type = "yarn", rope.scaling.factor, rope.scaling.original_context_length, rope.scaling.yarn_*
    longrope  rope.scaling.type = "longrope", rope.scaling.attn_factor; rope_factors_long.weight, rope_factors_short.weight
    llama3    no key; rope_freqs.weight: what the frequency of each pair is divided by

The divisors of llama3 name its `factor` (the largest) but not L, low and high, of which only ratios matter: Meta's are tried,
and must reproduce the tensor. Other divisors are kept as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.manifest import Entry, Extent, Manifest, Typed
from flyweight.foundation.tensor import RAW
from flyweight.models.checked_record import Record
from flyweight.models.dialects.gguf_form import GgufForm
from flyweight.models.model_config import Config
from flyweight.models.rope_scaling import DIVISORS, LLAMA3, Scaling, divisors, longrope_attention

Tensors = dict[str, list[float]]

_FREQUENCIES = "rope_freqs.weight"
_FACTORS = {"long_factor": "rope_factors_long.weight", "short_factor": "rope_factors_short.weight"}
TENSORS = (_FREQUENCIES, *_FACTORS.values())

_MAX_PAIRS = 2**16
# Writers compute the divisors in f32 with their own order of operations.
_SAME_DIVISOR = 1e-4

_KEYS = {
    "factor": "rope.scaling.factor",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "attention_factor": "rope.scaling.yarn_attn_factor",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
    "extrapolation_factor": "rope.scaling.yarn_ext_factor",
}
_KEYS_OF = {"linear": tuple(_KEYS)[:1], "yarn": tuple(_KEYS), "longrope": (), "llama3": (), DIVISORS: ()}
_INTEGER, _REQUIRED = "original_max_position_embeddings", ("factor", "original_max_position_embeddings")


def shortest(value: float) -> float:
    """The number with the fewest digits that is the same f32: 1e-05 rather than 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def read(metadata: Record, prefix: str, config: Config, before: Scaling | None, tensors: Tensors) -> Scaling | None:
    """The scaling that the keys and the tensors of a file describe.

    `before` is what config.json said when the file was made from one; it is believed where the file agrees.
    """
    for tensor, values in tensors.items():
        if len(values) != config.rotary // 2:
            raise MalformedError(f"{len(values)} values for {config.rotary} rotated dimensions", code="E_ROPE", tensor=tensor)
    kind = metadata.text(prefix + "rope.scaling.type", "none")
    if _FREQUENCIES in tensors and kind == "none":
        return _recognise_llama3(tensors[_FREQUENCIES], before, config.theta, config.rotary)
    if set(tensors) == set(_FACTORS.values()):
        metadata.get(prefix + "rope.scaling.attn_factor")  # follows from the context lengths
        return {"rope_type": "longrope"} | {key: [shortest(x) for x in tensors[t]] for key, t in _FACTORS.items()}
    if tensors:
        raise MalformedError(
            f"{', '.join(tensors)} do not match the RoPE scaling '{kind[:80]}'", code="E_ROPE", file=metadata.file
        )
    if kind == "none":
        return None
    if kind not in config.family.scalings.values() or not _KEYS_OF[kind]:
        raise UnsupportedError(
            f"'{prefix}rope.scaling.type' of a {config.family.model_type} model is '{kind[:80]}', which is not supported",
            code="E_ROPE",
            file=metadata.file,
            hint="supported: linear, yarn; longrope and llama3 by their tensors",
        )
    scaling: Scaling = {"rope_type": kind}
    for name in _KEYS_OF[kind]:
        key = prefix + _KEYS[name]
        if name in _REQUIRED or key in metadata:
            scaling[name] = metadata.integer(key) if name == _INTEGER else shortest(metadata.number(key))
    return before | scaling if before and before["rope_type"] == kind else scaling


def write(config: Config, form: GgufForm) -> dict[str, Typed]:
    """The keys (without the architecture) for a scaling; UnsupportedError where the architecture has none."""
    if config.scaling is None:
        return {}
    kind = config.scaling["rope_type"]
    if kind not in form.scalings:
        raise UnsupportedError(
            f"'rope_scaling' has the type '{kind}', which GGUF's {form.architecture} architecture cannot express",
            code="E_ROPE",
            hint=f"it can express {', '.join(form.scalings)}",
        )
    names = [name for name in _KEYS_OF[kind] if name in config.scaling]
    keys = {_KEYS[name]: Typed("u32" if name == _INTEGER else "f32", config.scaling[name]) for name in names}
    if kind == "longrope":
        original = config.values["original_max_position_embeddings"]
        keys["rope.scaling.attn_factor"] = Typed("f32", longrope_attention(config.context, original))
    return keys if kind == "llama3" else {"rope.scaling.type": Typed("str", kind)} | keys


def added_tensors(config: Config) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors that stand beside the keys."""
    scaling = config.scaling or {"rope_type": ""}
    if scaling["rope_type"] == "longrope":
        return {tensor: np.asarray(scaling[key], np.float32) for key, tensor in _FACTORS.items()}
    if scaling["rope_type"] in ("llama3", DIVISORS):
        return {_FREQUENCIES: divisors(scaling, theta=config.theta, rotary=config.rotary)}
    return {}


def _recognise_llama3(found: list[float], before: Scaling | None, theta: float, rotary: int) -> Scaling:
    candidates: list[Scaling] = [{"rope_type": "llama3"} | LLAMA3 | {"factor": shortest(max(found))}]
    if before and before["rope_type"] == "llama3":
        candidates.insert(0, before)
    for scaling in candidates:
        expected = divisors(scaling, theta=theta, rotary=rotary)
        if np.allclose(found, expected, rtol=_SAME_DIVISOR, atol=0):
            return scaling
    return {"rope_type": DIVISORS, DIVISORS: found}


def read_tensors(manifest: Manifest, read_bytes: Callable[[Extent], bytes]) -> Tensors:
    """The values of the tensors that are there; how many each must have depends on the settings."""
    entries = {name: manifest.entries[name] for name in TENSORS if name in manifest.entries}
    return {name: _values(entry, read_bytes) for name, entry in entries.items()}


def _values(entry: Entry, read_bytes: Callable[[Extent], bytes]) -> list[float]:
    extent = entry.extents.get("data")
    raw = entry.codec == RAW and entry.spec.dtype is DType.F32 and len(entry.spec.shape) == 1
    if not raw or extent is None or not 0 < entry.spec.size <= _MAX_PAIRS:
        raise MalformedError(
            f"expected a short list of f32, found {entry.spec} as {entry.codec}", code="E_ROPE", tensor=entry.name
        )
    values = np.frombuffer(read_bytes(extent), "<f4").astype(np.float64)
    if not ((values >= 1e-18) & (values <= 1e18)).all():
        raise MalformedError("its values must be numbers of 1e-18 to 1e18", code="E_ROPE", tensor=entry.name)
    return [float(value) for value in values]
