"""What each codec and quantizer costs and keeps: bits per weight against error, over a real model's weights.

    python -m bench.quality.weights MODEL.gguf

`bench/quality/model.py` adds what a whole model makes of it, `python -m pages codec_quality` writes the page.

Every codec in CODECS that encodes and is not exact, under every quantizer in QUANTIZERS that fills it. Codecs with
parameters are tried with those in SETTINGS, others as they are: a new codec needs no line here to appear.

The weights are SmolLM2-135M's, which exist here only as decoded Q4_1: a quantizer with aligned groups of 32 would look
perfect on them. So the channels are permuted at random, in the ways that leave the function of the model unchanged
(`permuted`): the groups then mix values of 32 different grids.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import flyweight
from bench import record, recorded
from flyweight import kernels
from flyweight.bench.harness import processor
from flyweight.codecs import CODECS, Codec
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import TensorSpec
from flyweight.quantizers import QUANTIZERS

LAYERS = (3, 24)
HEADS, KV_HEADS, HEAD = 9, 3, 64
COLUMNS = 2304
"""Rows of 576 are laid four to a line, those of 1536 three to two lines: K types need multiples of 256, and all codecs
must see the same numbers. Groups of 32 and 64 stay within a row all the same."""

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "affine": [
        *({"bits": bits, "group": 64, "scale": "f16"} for bits in (2, 3, 4, 5, 6, 8)),
        *({"bits": 4, "group": group, "scale": "f16"} for group in (32, 128)),
        *({"bits": bits, "group": 32, "scale": "f16", "form": "symmetric"} for bits in (3, 4, 8)),
        {"bits": 4, "group": 64, "scale": "f16", "form": "scale_zero"},
        {"bits": 8, "group": 0, "scale": "f32", "form": "symmetric"},
    ],
    "hqq": [{"bits": bits} for bits in (2, 3, 4, 8)],
    "palette": [{"bits": bits} for bits in (2, 3, 4, 6, 8)],
    "blockwise": [
        *({"data": data, "block": block} for data, block in (("i8", "1"), ("i4", "1"), ("i4", "1x32"))),
        {"data": "u4", "block": "1x32", "offset": "data"},
    ],
    "sparse_codes": [],  # of dense weights it stores all
}

Array = np.ndarray[Any, Any]


def permuted(checkpoint: flyweight.Checkpoint, layer: int) -> Iterator[Array]:
    """The seven matrices of a layer, residual, MLP and value channels in another order, the same wherever they meet."""
    rng = np.random.default_rng(layer)
    residual = np.random.default_rng(0).permutation(576)
    hidden = rng.permutation(1536)
    value = [rng.permutation(HEAD) + HEAD * head for head in range(KV_HEADS)]
    shared = HEADS // KV_HEADS
    output = np.concatenate([value[head // shared] + HEAD * (head - head // shared) for head in range(HEADS)])

    def weight(name: str) -> Array:
        return checkpoint[f"blk.{layer}.{name}.weight"]

    yield from (weight(name)[:, residual] for name in ("attn_q", "attn_k"))
    yield weight("attn_v")[np.concatenate(value)][:, residual]
    yield weight("attn_output")[residual][:, output]
    yield from (weight(name)[hidden][:, residual] for name in ("ffn_gate", "ffn_up"))
    yield weight("ffn_down")[residual][:, hidden]


def measure(codec: Codec, quantizer: str, tensors: list[Array]) -> dict[str, Any] | None:
    """Error, size and speed over all tensors, or None if the quantizer does not fill this codec."""
    stored = seconds = noise = signal = 0.0
    for values in tensors:
        spec = TensorSpec(values.shape, DType.F32)
        start = time.perf_counter()
        try:
            codec = codec.fit(spec, values)
            parts = QUANTIZERS[quantizer](values, codec, spec)
        except UnsupportedError as error:
            if error.code == "E_QUANTIZER":
                return None
            raise
        seconds += time.perf_counter() - start
        stored += sum(part.nbytes for part in parts.values())
        noise += float(((codec.decode(spec, parts) - values).astype(np.float64) ** 2).sum())
        signal += float((values.astype(np.float64) ** 2).sum())
    weights = sum(values.size for values in tensors)
    relative = math.sqrt(noise / signal)
    return {
        "codec": codec.name,
        "params": {key: value for key, value in codec.spec.as_json()["params"].items() if told(codec, key)},
        "quantizer": quantizer,
        "default": codec.quantizer == quantizer,
        "bits_per_weight": round(8 * stored / weights, 4),
        "relative_error": float(f"{relative:.5g}"),
        "snr_db": round(-20 * math.log10(relative), 2) if relative else None,
        "encode_mb_per_s": round(4e-6 * weights / seconds),
    }


def told(codec: Codec, key: str) -> bool:
    """Whether a parameter is worth a word: always the width and the group, others when they are not as usual."""
    return key in ("bits", "group") or getattr(codec, key) != getattr(type(codec)(), key)


def results(tensors: list[Array]) -> Iterator[dict[str, Any]]:
    for kind in CODECS:
        for codec in (kind(**params) for params in SETTINGS.get(kind.name, [{}])):
            if not codec.encodes or codec.exact:
                continue
            for quantizer in QUANTIZERS.lines:
                row = measure(codec, quantizer, tensors)
                if row is not None:
                    print(f"{label(row):44} {row['bits_per_weight']:7.3f} {row['relative_error']:9.5f}", flush=True)
                    yield row


def label(row: dict[str, Any]) -> str:
    inner = " ".join(f"{key}={value}" for key, value in row["params"].items())
    return f"{row['codec']} {inner} {row['quantizer']}".replace("  ", " ")


SAME = ("codec", "params", "quantizer", "bits_per_weight", "relative_error")
MEASURED_ON_THE_MODEL = ("asked", "peers", "runtime")


def with_model(report: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """The report with what `model` measured before, for the rows whose size and error are still the same."""
    known = {json.dumps([row[key] for key in SAME]): row["model"] for row in before.get("results", ()) if "model" in row}
    for row in report["results"]:
        key = json.dumps([row[key] for key in SAME])
        row |= {"model": known[key]} if key in known else {}
    return report | {key: before[key] for key in MEASURED_ON_THE_MODEL if key in before}


def main(model: Path) -> None:
    with flyweight.open(model) as checkpoint:
        tensors = [
            np.ascontiguousarray(matrix, np.float32).reshape(-1, COLUMNS)
            for layer in LAYERS
            for matrix in permuted(checkpoint, layer)
        ]
    report = {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": processor(),
        "kernels": kernels.active(),
        "model": "SmolLM2-135M-Instruct (Q4_1, decoded, channels permuted)",
        "layers": list(LAYERS),
        "weights": sum(values.size for values in tensors),
        "results": sorted(results(tensors), key=lambda row: (row["bits_per_weight"], row["relative_error"])),
    }
    record("quality", with_model(report, recorded("quality")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
