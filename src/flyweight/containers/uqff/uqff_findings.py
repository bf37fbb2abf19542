"""What `inspect` and `verify` tell of a UQFF beyond its tensors: why tensors are where they are, what is missing, and which
versions of mistral.rs load it.

    UQFF       mistral.rs
    0.x        0.3.0 to 0.8.3      FP8 from 0.3.2, AFQ from 0.6.0, F8Q8 and MXFP4 from 0.8.0
    1.0        0.8.4 and later
    1.1        0.8.17 and later
    1.2        0.9.1 and later
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flyweight.containers.container import Finding
from flyweight.containers.hf import CONFIG, INDEX, WEIGHTS
from flyweight.containers.uqff.layer_fields import AFQ, F8Q8, FP8, GGUF, HQQ, MXFP4, UNQUANTIZED
from flyweight.containers.uqff.layer_order import EMBEDDING, HEAD, layer_modules, stacked
from flyweight.containers.uqff.uqff_files import (
    BIAS,
    REPORT,
    RESIDUAL,
    ROPE_NOTE,
    TIED,
    WEIGHT,
    Members,
    Reading,
    read_residual,
)
from flyweight.containers.uqff.uqff_presets import fallback, label, name_of, target
from flyweight.foundation import strict_json
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.manifest import Entry

_SINCE = {0: "0.8.4", 1: "0.8.17", 2: "0.9.1"}
_LAST_OF_0 = "0.8.3"
_TOKENIZER = "tokenizer.json"
_NOT_LOADED = ("q8_1", "q8k")
_SHOWN = 4
_MOST_FINDINGS = 100
_TOWERS = re.compile(r"vision|visual|audio|multi_modal")


def summary(reading: Reading, *, promotes: bool) -> dict[str, Any]:
    """What there is, for people and for JSON."""
    layers = _weights(reading)
    quant = name_of(layers, promotes=promotes)
    expected = layer_modules(reading.config)
    return {
        "uqff_version": ".".join(map(str, reading.version)),
        "quantization": quant,
        "shards": list(reading.found.shards),
        "layers": len(layers),
        **({"layers_of_the_architecture": len(expected)} if expected is not None else {}),
        "layer_types": dict(Counter(map(label, layers.values())).most_common()),
        **({"fallbacks": fallen} if (fallen := _fallbacks(layers, quant, promotes)) else {}),
        "residual": _reasons(reading.residual.entries),
        "loads_in": loads_in(reading),
        **({"defects": problems} if (problems := [message for _, message in defects(reading)]) else {}),
    }


def _fallbacks(layers: Mapping[str, Entry], quant: str, promotes: bool) -> list[dict[str, Any]]:
    """Which types took the place of another, because of what rows, in how many layers."""
    counts = Counter[tuple[str, str, int]]()
    for module, entry in layers.items():
        wanted, stored, columns = target(quant, module, promotes=promotes), label(entry), entry.spec.columns
        if stored != wanted and stored == fallback(wanted, columns):
            counts[wanted, stored, columns] += 1
    return [{"from": old, "to": new, "columns": columns, "layers": n} for (old, new, columns), n in counts.most_common()]


def _reasons(residual: Mapping[str, Entry]) -> dict[str, str]:
    """Why tensors are plain: a count and bytes for each reason."""
    counts, sizes = Counter[str](), Counter[str]()
    for name, entry in residual.items():
        reason = _reason(name, entry)
        counts[reason] += 1
        sizes[reason] += entry.nbytes
    return {reason: f"{count} ({sizes[reason]:,} bytes)" for reason, count in counts.most_common()}


def _reason(name: str, entry: Entry) -> str:
    if _TOWERS.search(name):
        return "vision or audio"
    if len(entry.spec.shape) < 2:
        return "biases" if name.endswith(BIAS) else "norms and other vectors"
    if "embed" in name:
        return "embeddings"
    return "layers that are not quantized"


def _weights(reading: Reading) -> dict[str, Entry]:
    return {module: reading.layers[module + WEIGHT] for module in reading.types}


def loads_in(reading: Reading) -> str:
    """Which versions of mistral.rs take the file."""
    if any(label(entry) in _NOT_LOADED for entry in _weights(reading).values()):
        return f"no mistral.rs: none loads {' or '.join(_NOT_LOADED)} back; convert it to another quantization"
    major, minor, _ = reading.version
    if major:
        return f"mistral.rs {_SINCE[minor]} and later"
    kinds = set(reading.types.values())
    first = "0.8.0" if kinds & {F8Q8, MXFP4} else "0.6.0" if AFQ in kinds else "0.3.2" if FP8 in kinds else "0.3.0"
    return f"mistral.rs {first} to {_LAST_OF_0}; for later ones convert it with --to uqff"


def defects(reading: Reading) -> Iterator[tuple[str, str]]:
    """What mistral.rs is known to fail at, though the file is right."""
    layers, types = _weights(reading), reading.types
    for name in _NOT_LOADED:
        if found := [module for module, entry in layers.items() if label(entry) == name]:
            yield "E_NOT_LOADED", f"mistral.rs writes {name} but does not load it: {_listed(found)}"
    biased = {module: reading.layers[module + BIAS].spec.dtype for module in types if module + BIAS in reading.layers}
    of = {kind: [module for module in biased if types[module] == kind] for kind in range(MXFP4 + 1)}
    if found := [module for module in of[FP8] if biased[module] is DType.F8_E4M3]:
        yield "E_BIAS_TYPE", f"mistral.rs fails at FP8 with a bias in f8_e4m3: {_listed(found)}; converting makes it f32"
    if found := [module for module in of[MXFP4] if biased[module] is not DType.F32]:
        yield "E_BIAS_TYPE", f"mistral.rs fails at MXFP4 with a bias in {biased[found[0]]} unless it computes in that type"
    if found := [m for kind in (GGUF, F8Q8, AFQ, FP8, MXFP4) for m in of[kind] if biased[m] is DType.F32]:
        yield "E_BIAS_TYPE", f"mistral.rs takes the biases in f32 only where it computes in f32: {_listed(found)}"
    narrow = {module: entry.codec.integer("bits") for module, entry in layers.items() if types[module] == HQQ}
    if found := [module for module, bits in narrow.items() if bits == 3]:
        yield "E_HQQ_BITS", f"mistral.rs does not decode HQQ of 3 bits on a CPU: {_listed(found)}"
    if found := [module for module, bits in narrow.items() if bits in (1, 2)]:
        yield "E_HQQ_BITS", f"mistral.rs before 0.8.4 loads HQQ of 4 and 8 bits only: {_listed(found)}"
    if found := [module for module in narrow if layers[module].codec.integer("axis", 0) == 1]:
        yield "E_HQQ_AXIS", f"mistral.rs does not decode HQQ along axis 1: {_listed(found)}"


def notes(quantized: Mapping[str, Entry]) -> Iterator[str]:
    """What whoever writes these layers should know."""
    if kinds := {label(entry) for entry in quantized.values()}.intersection(_NOT_LOADED):
        yield f"no version of mistral.rs loads {' or '.join(sorted(kinds))}; use q8_0"


def warnings(reading: Reading) -> Iterator[tuple[str, str]]:
    """What a user should know before a loader stumbles over it."""
    yield from defects(reading)
    found, home, types = reading.found, reading.found.home, reading.types
    if not reading.named and reading.config and layer_modules(reading.config) is None:
        kind = str(reading.config.get("model_type"))[:80]
        yield "E_FAMILY", f"the order of layers in a model of the type {kind!r} is not known, so the layers have no names"
    if reading.unused:
        yield "E_UNUSED", f"{len(reading.unused)} tensors belong to no layer and are not read: {_listed(reading.unused)}"
    if ignored := [m for m in types if types[m] != UNQUANTIZED and m + BIAS in reading.residual.entries]:
        yield "E_BIAS_IGNORED", f"mistral.rs ignores the bias of a layer unless it is in the .uqff: {_listed(ignored)}"
    if doubled := [name for name in read_residual(found, {}).entries if name in reading.layers]:
        yield "E_DOUBLED", f"in a layer and plain; the layer counts: {_listed(doubled)}"
    if WEIGHTS in home or INDEX in home:
        yield "E_SHADOWED", f"model*.safetensors lie beside; mistral.rs takes them instead of {RESIDUAL}"
    elif RESIDUAL not in home:
        yield "E_NO_RESIDUAL", f"there is no {RESIDUAL}; no loader takes the model without it"
    elif reading.named and EMBEDDING + WEIGHT not in reading.layers.keys() | reading.residual.entries.keys():
        yield (
            "E_NO_RESIDUAL",
            f"there is no {EMBEDDING}{WEIGHT}: {RESIDUAL} is not complete, or was not when this was converted",
        )
    for name in (CONFIG, _TOKENIZER):
        if name not in home:
            yield "E_NO_FILE", f"there is no {name}; mistral.rs needs it"
    if CONFIG in home and not reading.config:
        yield "E_CONFIG", "config.json is not an object of JSON with settings in it, so nothing is known of the model"
    if (rope := reading.config.get(ROPE_NOTE)) not in (None, "adjacent", "half_split"):
        yield "E_ROPE_LAYOUT", f"{ROPE_NOTE} in config.json is {str(rope)[:40]!r}, neither adjacent nor half_split"
    yield from _report_warnings(found)


def _report_warnings(found: Members) -> Iterator[tuple[str, str]]:
    if REPORT not in found.home:
        return
    try:
        report = strict_json.load(found.home[REPORT])
        outputs, own = [output["shards"] for output in report["outputs"]], set(found.shards)
        named = [shards for shards in outputs if not own.isdisjoint(shards)]
    except (FlyweightError, KeyError, TypeError):
        yield "E_REPORT", f"{REPORT} is no report; mistral.rs refuses the model for that"
        return
    if named and list(found.shards) not in named:
        yield "E_REPORT", f"{REPORT} names other shards: {_listed(map(str, named[0]))}"


def audit(reading: Reading) -> Iterator[Finding]:
    """Layers of the architecture that are not there."""
    config, expected = reading.config, layer_modules(reading.config)
    if expected is None:
        return
    if not reading.named:
        text = f"{len(reading.types)} layers, but a {config['model_type']} of {config['num_hidden_layers']} has {len(expected)}"
        yield Finding("error", "E_LAYER_COUNT", f"{text}; which is which cannot be said")
        return
    tied = config.get(TIED) is not False
    present = reading.layers.keys() | reading.residual.entries.keys()
    if reading.version[0]:
        expected = list(dict.fromkeys(map(stacked, expected)))
    missing = [module for module in expected if module + WEIGHT not in present and not (module == HEAD and tied)]
    for module in missing[:_MOST_FINDINGS]:
        yield Finding("error", "E_LAYER_MISSING", "the layer is neither in the .uqff nor plain", module + WEIGHT)
    if (more := len(missing) - _MOST_FINDINGS) > 0:
        yield Finding("error", "E_LAYER_MISSING", f"{more} more layers are missing")


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
