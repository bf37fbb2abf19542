"""Scaling of rotary position embeddings: `rope_scaling` in config.json ↔ keys and tensors in GGUF.

    linear    rope.scaling.type = "linear", rope.scaling.factor
    yarn      rope.scaling.type = "yarn", rope.scaling.factor, rope.scaling.original_context_length, rope.scaling.yarn_*
    longrope  rope.scaling.type = "longrope", rope.scaling.attn_factor; tensors rope_factors_long.weight and
              rope_factors_short.weight, one f32 for each pair of rotated dimensions
    llama3    no key; tensor rope_freqs.weight: what the frequency f_j = θ^(−2j/d) of each pair is divided by

The llama3 divisors follow from the wavelength w = 2π/f, the original context L, and the factors low < high:
1 where w < L/high, `factor` where w > L/low, and in between 1 / ((1 − s)/factor + s), s = (L/w − low)/(high − low).
GGUF keeps only these divisors. They name `factor` (the largest) but not L, low and high, of which only ratios
matter: Meta's 8192, 1, 4 are tried, and the result must reproduce the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log, pi, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from flyweight.dtypes import DType
from flyweight.errors import MalformedError, UnsupportedError
from flyweight.manifest import Entry, Extent, Typed
from flyweight.models.record import Record

if TYPE_CHECKING:
    from flyweight.models.family import Family

__all__ = [
    "FACTOR_TENSORS",
    "FREQUENCIES",
    "RotaryTensors",
    "Scaling",
    "derived_tensors",
    "read_gguf",
    "read_hf",
    "shortest",
    "tensor_values",
    "write_gguf",
    "write_hf",
]

FREQUENCIES = "rope_freqs.weight"
FACTOR_TENSORS = {"long_factor": "rope_factors_long.weight", "short_factor": "rope_factors_short.weight"}

_MAX_PAIRS = 2**16
# Writers compute the divisors in f32 with their own order of operations.
_SAME_DIVISOR = 1e-4

Scaling = dict[str, Any]
RotaryTensors = Mapping[str, "list[float]"]

# HF key, GGUF key, type, required. `longrope` keeps its factors in tensors, `llama3` everything.
_KEYS: dict[str, tuple[tuple[str, str, str, bool], ...]] = {
    "linear": (("factor", "rope.scaling.factor", "f32", True),),
    "yarn": (
        ("factor", "rope.scaling.factor", "f32", True),
        ("original_max_position_embeddings", "rope.scaling.original_context_length", "u32", True),
        ("attention_factor", "rope.scaling.yarn_attn_factor", "f32", False),
        ("beta_fast", "rope.scaling.yarn_beta_fast", "f32", False),
        ("beta_slow", "rope.scaling.yarn_beta_slow", "f32", False),
        ("extrapolation_factor", "rope.scaling.yarn_ext_factor", "f32", False),
    ),
    "longrope": (),
    "llama3": (),
}
_WITHOUT_GGUF_KEY = {"yarn": ("mscale", "mscale_all_dim"), "longrope": ("attention_factor",)}
"""Numbers of config.json that change the tables all the same; 0 switches one off."""
_LLAMA3 = (
    ("factor", None),
    ("low_freq_factor", 1.0),
    ("high_freq_factor", 4.0),
    ("original_max_position_embeddings", 8192),
)


def shortest(value: float) -> float:
    """The number with the fewest digits that is the same f32: 1e-05 rather than 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _kind(name: object, family: Family, file: str) -> str:
    kind = {"su": "longrope"}.get(str(name), str(name))
    if kind == "yarn" and family.scalings == ("longrope",):
        kind = "longrope"  # the first Phi-3 files say yarn and mean this
    if kind not in family.scalings:
        raise UnsupportedError(
            f"RoPE scaling '{kind[:80]}' of a {family.model_type} model has no form in GGUF", code="E_ROPE", file=file,
            hint=f"supported: {', '.join(family.scalings)}",
        )  # fmt: skip
    return kind


def read_hf(config: Record, family: Family, *, context: int, rotary: int) -> Scaling | None:
    """The scaling that config.json asks for; its values checked, its unknown keys kept.

    transformers 4 writes `rope_scaling`, transformers 5 `rope_parameters`, which also holds the bases.
    """
    given = config.table("rope_scaling") or _global(config.table("rope_parameters"))
    if given is None:
        return None
    name = given.get("rope_type") or given.get("type") or "default"
    given.get("type")  # the older spelling; both may be there
    if name == "default":
        return None
    kind = _kind(name, family, config.file)
    scaling: Scaling = {"rope_type": kind}
    for key, _, type_, required in _KEYS[kind]:
        if key == "original_max_position_embeddings":
            scaling[key] = given.integer(key, context)
        elif required or key in given:
            scaling[key] = given.number(key) if type_ == "f32" else given.integer(key)
        given.get(key)  # null is as good as absent
    for key in _WITHOUT_GGUF_KEY.get(kind, ()):
        if key in given:
            scaling[key] = given.number(key) if given.get(key) != 0 else 0
    if kind == "llama3":
        for key, default in _LLAMA3:
            scaling[key] = given.integer(key, default) if isinstance(default, int) else given.number(key, default)
        if not scaling["low_freq_factor"] < scaling["high_freq_factor"]:
            given.fail("high_freq_factor", "more than low_freq_factor")
    for key in FACTOR_TENSORS if kind == "longrope" else ():
        factors = given.items(key, (int, float))
        if len(factors) != rotary // 2:
            given.fail(key, f"{rotary // 2} numbers")
        if not all(1e-18 <= factor <= 1e18 for factor in factors):
            given.fail(key, "numbers of 1e-18 to 1e18")
        scaling[key] = [float(factor) for factor in factors]
    bases = ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
    return scaling | {key: value for key, value in given.unused().items() if key not in bases}


def _global(parameters: Record | None) -> Record | None:
    """Gemma 3 has one set of parameters for each kind of layer; scaling is only for the global ones."""
    if parameters is None or "full_attention" not in parameters:
        return parameters
    return parameters.table("full_attention")


def read_gguf(
    metadata: Record, family: Family, tensors: RotaryTensors, remembered: Scaling | None, *, theta: float, rotary: int
) -> Scaling | None:
    """The scaling that the keys and the derived tensors of a GGUF file describe.

    `remembered` is what config.json said when the file was made from one; it is believed where the file agrees.
    """
    for tensor, values in tensors.items():
        if len(values) != rotary // 2:
            raise MalformedError(f"{len(values)} values for {rotary} rotated dimensions", code="E_ROPE", tensor=tensor)
    prefix = f"{family.gguf}."
    name = metadata.text(prefix + "rope.scaling.type", "none")
    if FREQUENCIES in tensors and name == "none":
        return _recognise_llama3(tensors[FREQUENCIES], remembered, theta, rotary)
    if set(tensors) == set(FACTOR_TENSORS.values()):
        metadata.get(prefix + "rope.scaling.attn_factor")  # follows from the context lengths
        return {"rope_type": "longrope"} | {key: [shortest(x) for x in tensors[t]] for key, t in FACTOR_TENSORS.items()}
    if tensors:
        raise MalformedError(
            f"{', '.join(tensors)} do not fit the RoPE scaling '{name[:80]}'", code="E_ROPE", file=metadata.file
        )
    if name == "none":
        return None
    kind = _kind(name, family, metadata.file)
    scaling: Scaling = {"rope_type": kind}
    for key, suffix, type_, required in _KEYS[kind]:
        if required or prefix + suffix in metadata:
            scaling[key] = shortest(metadata.number(prefix + suffix)) if type_ == "f32" else metadata.integer(prefix + suffix)
    if kind == "longrope":
        raise MalformedError("longrope scaling without its factor tensors", code="E_ROPE", file=metadata.file)
    return (remembered or {}) | scaling if (remembered or scaling)["rope_type"] == kind else scaling


def write_gguf(scaling: Scaling | None, *, context: int, original: int) -> dict[str, Typed]:
    """The keys (without the architecture) for a scaling."""
    if scaling is None:
        return {}
    kind = scaling["rope_type"]
    keys = {suffix: Typed(type_, scaling[key]) for key, suffix, type_, _ in _KEYS[kind] if key in scaling}
    if kind == "longrope":
        stretch = context / original
        keys["rope.scaling.attn_factor"] = Typed("f32", sqrt(1 + log(stretch) / log(original)) if stretch > 1 else 1.0)
    return keys if kind == "llama3" else {"rope.scaling.type": Typed("str", kind)} | keys


def write_hf(scaling: Scaling) -> Scaling:
    """`rope_scaling` with both spellings of its kind; for longrope only the older one is allowed."""
    made = scaling | {"type": scaling["rope_type"]}
    if made["type"] == "longrope":
        del made["rope_type"]
    return made


def derived_tensors(scaling: Scaling | None, *, theta: float, rotary: int) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors that GGUF wants beside the keys."""
    kind = scaling["rope_type"] if scaling else ""
    if scaling and kind == "llama3":
        return {FREQUENCIES: _divisors(scaling, theta, rotary)}
    if scaling and kind == "longrope":
        return {tensor: np.asarray(scaling[key], np.float32) for key, tensor in FACTOR_TENSORS.items()}
    return {}


def _divisors(scaling: Scaling, theta: float, rotary: int) -> np.ndarray[Any, Any]:
    factor, low, high, original = (scaling[key] for key, _ in _LLAMA3)
    pairs = np.arange(0, rotary, 2, dtype=np.float64)
    wavelength = 2 * pi * theta ** (pairs / rotary)
    smooth = (original / wavelength - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    divisors = np.where(wavelength < original / high, 1.0, np.where(wavelength > original / low, factor, between))
    return divisors.astype(np.float32)


def _recognise_llama3(divisors: list[float], remembered: Scaling | None, theta: float, rotary: int) -> Scaling:
    candidates: list[Scaling] = [{"rope_type": "llama3"} | dict(_LLAMA3) | {"factor": shortest(max(divisors))}]
    if remembered and remembered["rope_type"] == "llama3":
        candidates.insert(0, remembered)
    for scaling in candidates:
        expected = _divisors(scaling, theta, rotary)
        if np.allclose(divisors, expected, rtol=_SAME_DIVISOR, atol=0):
            return scaling
    raise UnsupportedError(
        f"{FREQUENCIES} is no llama3 scaling of a context of 8192, so config.json cannot express it",
        code="E_ROPE",
        tensor=FREQUENCIES,
    )


def tensor_values(entry: Entry, read: Callable[[Extent], bytes]) -> list[float]:
    """The f32 values of a small derived tensor; how many there must be depends on the settings."""
    extent = entry.extents.get("data")
    raw = entry.codec.name == "raw" and entry.spec.dtype is DType.F32 and len(entry.spec.shape) == 1
    if not raw or extent is None or not 0 < entry.spec.size <= _MAX_PAIRS:
        raise MalformedError(
            f"expected a short list of f32, found {entry.spec} as {entry.codec}", code="E_ROPE", tensor=entry.name
        )
    values = np.frombuffer(read(extent), "<f4").astype(np.float64)
    if not (np.isfinite(values) & (values > 0)).all():
        raise MalformedError("its values must be positive and finite", code="E_ROPE", tensor=entry.name)
    return [float(value) for value in values]
