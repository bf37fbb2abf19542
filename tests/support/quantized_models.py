"""Models as other tools quantize them: for each method what config.json says and which arrays stand for a weight.

Shapes and names are those of the methods' own files; the values are random. `DECOYS` are plain models with names that look
like companions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from support import toys
from support.raw_files import safetensors_file, tensor_json

__all__ = ["CONFIGS", "DECOYS", "LAYOUTS", "Array", "directory", "lone_file", "toy_arrays"]

Array = tuple[str, tuple[int, ...]]
"""Element type as safetensors writes it, and shape."""

BITS = {
    "F32": 32,
    "F16": 16,
    "BF16": 16,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "I64": 64,
    "I32": 32,
    "I16": 16,
    "I8": 8,
    "U8": 8,
    "U32": 32,
}

CONFIGS: dict[str, Any] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "awq": {"quant_method": "awq", "bits": 4, "version": "gemm"},
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "compressed-tensors": {"quant_method": "compressed-tensors", "format": "pack-quantized"},
    "hqq": {"quant_method": "hqq", "quant_config": {}},
    **{method: {"quant_method": method} for method in (
        "fp8", "quanto", "eetq", "aqlm", "higgs", "vptq", "torchao", "mxfp4", "fbgemm_fp8", "bitnet", "spqr", "auto-round",
        "fp_quant", "quark", "finegrained_fp8", "a method of tomorrow",
    )},
    "NVFP4": {"quant_algo": "NVFP4", "producer": {"name": "modelopt"}},
}  # fmt: skip


def _pairs(codes: str, *companions: tuple[str, str, tuple[int, ...]]) -> Callable[[str, int, int], dict[str, Array]]:
    def made(path: str, rows: int, columns: int) -> dict[str, Array]:
        return {f"{path}.weight": (codes, (rows, columns))} | {f"{path}{end}": (kind, shape) for end, kind, shape in companions}

    return made


LAYOUTS: dict[str, Callable[[str, int, int], dict[str, Array]]] = {
    "gptq": lambda p, r, c: {
        f"{p}.qweight": ("I32", (c // 8, r)), f"{p}.qzeros": ("I32", (1, r // 8)),
        f"{p}.scales": ("F16", (1, r)), f"{p}.g_idx": ("I32", (c,)),
    },
    "awq": lambda p, r, c: {
        f"{p}.qweight": ("I32", (c, r // 8)), f"{p}.qzeros": ("I32", (1, r // 8)), f"{p}.scales": ("F16", (1, r)),
    },
    "bitsandbytes nf4": lambda p, r, c: {
        f"{p}.weight": ("U8", (r * c // 2, 1)), f"{p}.weight.absmax": ("U8", (r * c // 64,)),
        f"{p}.weight.nested_absmax": ("F32", (1,)), f"{p}.weight.nested_quant_map": ("F32", (256,)),
        f"{p}.weight.quant_map": ("F32", (16,)), f"{p}.weight.quant_state.bitsandbytes__nf4": ("U8", (80,)),
    },
    "bitsandbytes int8": lambda p, r, c: {
        f"{p}.weight": ("I8", (r, c)), f"{p}.SCB": ("F32", (r,)), f"{p}.weight_format": ("U8", ()),
    },
    "compressed-tensors packed": lambda p, r, c: {
        f"{p}.weight_packed": ("I32", (r, c // 8)), f"{p}.weight_scale": ("BF16", (r, c // 32)),
        f"{p}.weight_shape": ("I64", (2,)),
    },
    "compressed-tensors asymmetric": _pairs("I8", (".weight_scale", "BF16", (1,)), (".weight_zero_point", "I8", (1,))),
    "compressed-tensors sparse": lambda p, r, c: {
        f"{p}.compressed": ("BF16", (r * c // 2,)), f"{p}.bitmask": ("U8", (r, c // 8)), f"{p}.row_offsets": ("I64", (r, 1)),
    },
    "fp8 in blocks": _pairs("F8_E4M3", (".weight_scale_inv", "F32", (1, 1))),
    "fp8 with static activations": _pairs("F8_E4M3", (".weight_scale", "F32", ()), (".input_scale", "F32", ())),
    "fp8, activations alone scaled": _pairs("F8_E4M3", (".input_scale", "F32", ())),
    "fp8 of diffusion tools": _pairs("F8_E4M3", (".scale_weight", "F32", ())),
    "fp8, .scale": _pairs("F8_E4M3", (".scale", "F8_E8M0", (1, 1))),
    "fp8 fused experts": lambda p, r, c: {
        f"{p}.experts.gate_up_proj": ("F8_E4M3", (4, r, c)), f"{p}.experts.gate_up_proj_scale_inv": ("F32", (4, 1, 1)),
    },
    "nvfp4": lambda p, r, c: {
        f"{p}.weight": ("U8", (r, c // 2)), f"{p}.weight_scale": ("F8_E4M3", (r, c // 16)),
        f"{p}.weight_scale_2": ("F32", ()), f"{p}.input_scale": ("F32", ()),
    },
    "mxfp4": lambda p, r, c: {
        f"{p}.experts.down_proj_blocks": ("U8", (4, r, c // 32, 16)), f"{p}.experts.down_proj_scales": ("U8", (4, r, c // 32)),
    },
    "bitnet": lambda p, r, c: {f"{p}.weight": ("U8", (r // 4, c)), f"{p}.weight_scale": ("BF16", (1,))},
    "hqq": lambda p, r, c: {
        f"{p}.W_q": ("U8", (r // 2, c)), f"{p}.scale": ("F16", (r, 1)), f"{p}.zero": ("F16", (r, 1)),
    },
    "quanto": lambda p, r, c: {f"{p}.weight._data": ("I8", (r, c)), f"{p}.weight._scale": ("BF16", (r, 1))},
    "quanto packed": lambda p, r, c: {
        f"{p}.weight._data._data": ("U8", (r // 2, c)), f"{p}.weight._scale": ("BF16", (r, 1)),
        f"{p}.weight._shift": ("BF16", (r, 1)),
    },
    "eetq": _pairs("I8", (".weight_scales", "F16", (1,))),
    "aqlm": lambda p, r, c: {
        f"{p}.codes": ("I16", (r, c // 8, 1)), f"{p}.codebooks": ("F16", (1, 256, 1, 8)), f"{p}.scales": ("F16", (r, 1, 1, 1)),
    },
    "higgs": lambda p, r, c: {
        f"{p}.weight": ("I16", (c // 16, r)), f"{p}.scales": ("F16", (1, r)), f"{p}.tables": ("F16", (16, 2)),
    },
    "vptq": lambda p, r, c: {
        f"{p}.indices": ("I32", (1, r, c // 8)), f"{p}.centroids.weight": ("F16", (1, 256 * 8)), f"{p}.perm": ("I64", (c,)),
    },
    "torchao": lambda p, r, c: {f"{p}._weight_qdata": ("I8", (r, c)), f"{p}._weight_scale": ("BF16", (r, 1))},
    "spqr": lambda p, r, c: {f"{p}.dense_weights": ("I64", (r * c // 16,)), f"{p}.row_offsets": ("I32", (r + 1,))},
    "exl2": lambda p, r, c: {f"{p}.q_weight": ("I32", (c // 8, r)), f"{p}.q_scale": ("I32", (1, r // 8))},
    "quip": lambda p, r, c: {f"{p}.Qidxs": ("I64", (r, c // 8)), f"{p}.SU": ("F16", (c,))},
    "marlin": lambda p, r, c: {f"{p}.B": ("I32", (c // 16, 2 * r)), f"{p}.s": ("F16", (1, r))},
    "an MLX triple in a file of its own": lambda p, r, c: {
        f"{p}.weight": ("U32", (r, c // 8)), f"{p}.scales": ("BF16", (r, c // 32)), f"{p}.biases": ("BF16", (r, c // 32)),
    },
}  # fmt: skip

DECOYS: dict[str, dict[str, Array]] = {
    "layer scale": {"vision.blocks.0.ls1.gamma": ("F32", (8,)), "vision.blocks.0.scale": ("F32", (8,))},
    "logit scale": {"logit_scale": ("F32", ()), "text.logit_scale": ("F32", ())},
    "weight_scale of a wide weight": {"vision.norm.weight": ("F32", (8,)), "vision.norm.weight_scale": ("F32", (8,))},
    "scale of a wide weight": {"norm.weight": ("BF16", (8,)), "norm.scale": ("BF16", (8,)), "norm.scales": ("F32", (8,))},
    "input_scale of a wide weight": {
        "a.weight": ("F16", (8, 8)), "a.input_scale": ("F32", ()), "a.weight_zero_point": ("F32", ()),
    },
    "fp8 without scales": {"a.weight": ("F8_E4M3", (8, 8)), "b.weight": ("F8_E4M3", (8, 8))},
    "a scale of another path than the fp8 weight": {"a.weight": ("F8_E4M3", (8, 8)), "b.weight_scale": ("F32", (8,))},
    "fp8 with a bias": {"a.weight": ("F8_E4M3", (8, 8)), "a.bias": ("F32", (8,))},
    "indices and counters": {
        "table.relative_position_index": ("I64", (4, 4)), "emb.position_ids": ("I64", (1, 4)),
        "bn.num_batches_tracked": ("I64", ()), "bn.weight": ("F32", (4,)),
    },
    "codebooks without codes": {"quantizer.codebooks": ("F32", (2, 8, 4)), "codec.codes": ("F32", (2, 8))},
    "codes without codebooks": {"x.codes": ("I64", (4,)), "x.indices": ("I64", (4,))},
    "floats under the names of codes": {
        "a.qweight": ("F32", (8, 8)), "a.scales": ("F32", (8,)), "b.W_q": ("F32", (8, 8)), "c.trellis": ("BF16", (8,)),
        "d.weight_packed": ("F32", (8,)), "e.absmax": ("F32", (8,)),
    },
    "blocks and scales of floats": {"a_blocks": ("F32", (8,)), "a_scales": ("F32", (8,))},
    "a boolean mask": {"a.weight": ("U8", (8, 8)), "a.mask": ("U8", (8, 8))},
}  # fmt: skip


def lone_file(arrays: dict[str, Array], seed: int = 0) -> bytes:
    """A safetensors file of random bytes; floats are small numbers."""
    random = np.random.default_rng(seed)
    table, data = {}, b""
    for name, (kind, shape) in arrays.items():
        count = int(np.prod(shape))
        if kind in ("F32", "F16", "BF16"):
            wide = (random.standard_normal(count) * 0.05).astype(np.float32)
            raw = {"F32": wide, "F16": wide.astype(np.float16), "BF16": (wide.view(np.uint32) >> 16).astype(np.uint16)}[
                kind
            ].tobytes()
        else:
            raw = random.integers(0, 64, count * BITS[kind] // 8, dtype=np.uint8).tobytes()
        table[name] = tensor_json(kind, list(shape), len(data), len(data) + len(raw))
        data += raw
    return safetensors_file(table, data)


def toy_arrays(layout: Callable[[str, int, int], dict[str, Array]] | None) -> dict[str, Array]:
    """The tensors of a small Llama, the matrices of its layers as `layout` has them."""
    arrays: dict[str, Array] = {}
    for name, tensor in toys.llama_tensors().items():
        in_layer = layout is not None and tensor.ndim == 2 and ".layers." in name
        own = layout(name.removesuffix(".weight"), *tensor.shape) if in_layer and layout else {name: ("BF16", tensor.shape)}
        arrays |= own
    return arrays


def directory(layout: str | None, config: dict[str, Any] | None = None, **files: bytes) -> dict[str, bytes]:
    """A Hugging Face directory; `config` is added to what config.json says."""
    return {
        "config.json": json.dumps(toys.CONFIG | (config or {})).encode(),
        **toys.tokenizer_files(),
        "model.safetensors": lone_file(toy_arrays(LAYOUTS[layout] if layout else None)),
        **files,
    }
