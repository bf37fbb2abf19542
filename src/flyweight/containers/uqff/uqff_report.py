"""uqff_report.json: what each layer was to be and what it is (schema 1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from flyweight.containers.uqff.uqff_presets import fallback, label, target
from flyweight.foundation import strict_json
from flyweight.foundation.manifest import Entry

_SCHEMA = 1


def report(layers: Mapping[str, Entry], quant: str, shards: Sequence[str], version: str) -> bytes:
    """The report of a model of these layers in one quantization."""
    details = [_detail(module, entry, quant) for module, entry in sorted(layers.items())]
    output: dict[str, Any] = {
        "quant": quant,
        "shards": list(shards),
        "layers": len(details),
        "actual_counts": dict(sorted(Counter(detail["stored"] for detail in details).items())),
        "fallback_count": 0,  # of layers that are not quantized, which are not stored as layers
        "layer_details": details,
    }
    table = {"schema": _SCHEMA, "generated_by": {"tool": "flyweight"}, "uqff_version": version, "outputs": [output]}
    return strict_json.dumps(table, indent=2) + b"\n"


def _detail(module: str, entry: Entry, quant: str) -> dict[str, Any]:
    wanted, stored = target(quant, module, promotes=True), label(entry)
    if stored not in (wanted, fallback(wanted, entry.spec.columns)):  # it was not made with this quantization
        wanted = stored
    shape = list(entry.spec.shape)
    return {"module": module, "default_target": quant, "resolved_target": wanted, "stored": stored, "shape": shape}
