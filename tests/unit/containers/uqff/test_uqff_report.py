"""uqff_report.json tells what each layer was to be and what it is."""

from __future__ import annotations

import json

from flyweight.containers.uqff.uqff_presets import CODECS
from flyweight.containers.uqff.uqff_report import report
from flyweight.foundation.dtypes import DType
from flyweight.foundation.manifest import Entry
from flyweight.foundation.tensor import TensorSpec


def entry(quant: str, columns: int) -> Entry:
    return Entry("x", TensorSpec((2, columns), DType.F32), CODECS[quant], {})


def test_a_promotion_and_a_fallback() -> None:
    layers = {"lm_head": entry("q6k", 256), "a": entry("q4k", 256), "b": entry("q4_1", 96), "c": entry("afq4", 64)}
    told = json.loads(report(layers, "q4k", ["q4k-0.uqff"], "1.2.0"))
    assert (told["schema"], told["uqff_version"]) == (1, "1.2.0")
    (output,) = told["outputs"]
    assert (output["layers"], output["shards"]) == (4, ["q4k-0.uqff"])
    assert output["actual_counts"] == {"afq4": 1, "q4_1": 1, "q4k": 1, "q6k": 1}
    details = {detail["module"]: (detail["resolved_target"], detail["stored"]) for detail in output["layer_details"]}
    assert details == {"lm_head": ("q6k", "q6k"), "a": ("q4k", "q4k"), "b": ("q4k", "q4_1"), "c": ("afq4", "afq4")}
    assert (output["fallback_count"], "fallbacks" in output) == (0, False)  # those that would be plain are in no layer
