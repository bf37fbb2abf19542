"""UQFF of both generations written byte by byte, sharing no code with the package, so that tests can also write wrong ones.

A layer of every type is (2, 32), the smallest that all of them can store. The keywords of a builder are its fields; each may be
replaced by a value that no writer would give it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from support.raw_files import safetensors_file, tensor_json

GGUF, PLAIN, HQQ, FP8, AFQ, F8Q8, MXFP4 = range(7)
ROWS, COLUMNS = 2, 32
MODULES = (
    "lm_head",
    *(f"model.layers.0.self_attn.{name}_proj" for name in "qkvo"),
    *(f"model.layers.0.mlp.{name}_proj" for name in ("gate", "up", "down")),
)
"""Of a Llama of one layer, in the order of 0.x."""
CONFIG: dict[str, Any] = {"model_type": "llama", "num_hidden_layers": 1, "tie_word_embeddings": False}
_SIZES = {"U8": 1, "U32": 4, "F32": 4, "F8_E4M3": 1}
_U8, _U32, _I32, _F32, _F8 = 0, 1, 2, 6, 9


def _bytes(count: int) -> bytes:
    """Codes that are no scale: small, and none alike to its neighbour."""
    return bytes(7 * at % 64 for at in range(count))


def _floats(count: int) -> bytes:
    return struct.pack(f"<{count}f", *(0.5 + at / 8 for at in range(count)))


Q8_0 = b"".join(b"\x00\x38" + _bytes(32) for _ in range(ROWS))  # a scale of 0.5
F8Q8_BLOCKS = b"".join(b"\x38" + _bytes(32) for _ in range(ROWS))
MXFP4_SCALES = b"\x7f\x80"


# 0.x ----------------------------------------------------------------------------------------------

Blob = bytes


def u32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def tensor(code: int, shape: Sequence[int], data: bytes | None = None, *, length: int | None = None) -> bytes:
    """A tensor in a blob; `length` replaces what is said of its bytes."""
    if data is None:
        data = _floats(prod(shape)) if code == _F32 else _bytes(prod(shape) * {_U32: 4, _I32: 4}.get(code, 1))
    return u32(len(data) if length is None else length, code, len(shape), *shape) + data


def head(kind: int, packed_version: int = 0x000103) -> bytes:
    return u32(packed_version) + bytes([kind])


BIAS = tensor(_F32, (ROWS,))


def _flag(bias: bytes, has_bias: int | None) -> bytes:
    return bytes([bool(bias) if has_bias is None else has_bias])


def gguf_blob(
    code: int = 8, shape: Sequence[int] = (ROWS, COLUMNS), data: bytes = Q8_0, *, length: int | None = None, bias: bytes = b"",
    has_bias: int | None = None, rank: int | None = None,
) -> Blob:  # fmt: skip
    dims = u32(len(shape) if rank is None else rank, *shape)
    said = u32(len(data) if length is None else length)
    return head(GGUF) + said + _flag(bias, has_bias) + u32(code) + dims + data + bias


def plain_blob(weight: bytes | None = None, *, bias: bytes = b"", has_bias: int | None = None) -> Blob:
    return head(PLAIN) + _flag(bias, has_bias) + (weight or tensor(_F32, (ROWS, COLUMNS))) + bias


def hqq_blob(
    *, weight: bytes | None = None, scales: bytes | None = None, zeros: bytes | None = None,
    shape: Sequence[int] = (ROWS, COLUMNS), bits: int = 4, group: int = 64, axis: int = 0, bias: bytes = b"",
    has_bias: int | None = None,
) -> Blob:  # fmt: skip
    arrays = (weight or tensor(_U8, (32, 1))) + (scales or tensor(_F32, (1, 1))) + (zeros or tensor(_F32, (1, 1)))
    settings = bytes([bits]) + u32(group) + bytes([axis]) + u32(10) + b"\x00\x01"
    return head(HQQ) + _flag(bias, has_bias) + arrays + u32(len(shape), *shape) + settings + bias


def fp8_blob(
    *, weight: bytes | None = None, scales: Sequence[float] = (0.5, 0.5, 2.0), code: int = _F8, bias: bytes = b"",
    has_bias: int | None = None,
) -> Blob:  # fmt: skip
    said = struct.pack("<3f", *scales) + u32(code)
    return head(FP8) + _flag(bias, has_bias) + (weight or tensor(_F8, (ROWS, COLUMNS))) + said + bias


def afq_blob(
    *, weight: bytes | None = None, scales: bytes | None = None, biases: bytes | None = None, bits: int = 4, group: int = 32,
    bias: bytes = b"", has_bias: int | None = None,
) -> Blob:  # fmt: skip
    arrays = (weight or tensor(_U32, (ROWS, 4))) + (scales or tensor(_F32, (ROWS, 1))) + (biases or tensor(_F32, (ROWS, 1)))
    return head(AFQ) + _flag(bias, has_bias) + arrays + bytes([bits, group]) + bias


def f8q8_blob(
    *, blocks: int = ROWS, shape: Sequence[int] = (ROWS, COLUMNS), data: bytes = F8Q8_BLOCKS, bias: bytes = b"",
    has_bias: int | None = None,
) -> Blob:  # fmt: skip
    return head(F8Q8, 0x000200) + _flag(bias, has_bias) + u32(blocks, len(shape), *shape) + data + bias


def mxfp4_blob(
    *, weight: bytes | None = None, scales: bytes | None = None, bias: bytes = b"", has_bias: int | None = None
) -> Blob:
    arrays = (weight or tensor(_U8, (ROWS, 16))) + (scales or tensor(_U8, (ROWS, 1), MXFP4_SCALES))
    return head(MXFP4, 0x000200) + _flag(bias, has_bias) + arrays + bias


BLOBS: dict[str, Blob] = {
    "gguf": gguf_blob(),
    "plain": plain_blob(),
    "hqq": hqq_blob(),
    "fp8": fp8_blob(),
    "afq": afq_blob(),
    "f8q8": f8q8_blob(),
    "mxfp4": mxfp4_blob(),
    "gguf with a bias": gguf_blob(bias=BIAS),
}
"""One for each layer of the Llama, so that a directory of them has names."""


def blob_file(blobs: Mapping[str, Blob] | Sequence[Blob]) -> bytes:
    """A shard: layers by key, or numbered from 0."""
    if not isinstance(blobs, Mapping):
        blobs = {str(number): blob for number, blob in enumerate(blobs)}
    return named_file({key: ("U8", [len(blob)], blob) for key, blob in blobs.items()}, {})


def blob_directory(*blobs: Blob, config: Mapping[str, Any] | None = CONFIG, stem: str = "q-0") -> dict[str, bytes]:
    """A model of 0.x; of all types without arguments."""
    return {f"{stem}.uqff": blob_file(blobs or [*BLOBS.values()]), **_around(config)}


# 1.x ----------------------------------------------------------------------------------------------

Named = dict[str, tuple[str, list[int], bytes]]
"""Tensors: element type, shape and bytes by key."""


def _u8(value: int) -> tuple[str, list[int], bytes]:
    return "U8", [], bytes([value])


def _u32(*values: int, shape: list[int] | None = None) -> tuple[str, list[int], bytes]:
    return "U32", [] if shape is None else shape, u32(*values)


def _f32(value: float) -> tuple[str, list[int], bytes]:
    return "F32", [], struct.pack("<f", value)


def _array(dtype: str, *shape: int, data: bytes | None = None) -> tuple[str, list[int], bytes]:
    if data is None:
        data = _floats(prod(shape)) if dtype == "F32" else _bytes(prod(shape) * _SIZES[dtype])
    return dtype, [*shape], data


def version(major: int = 1, minor: int = 2, patch: int = 0) -> Named:
    return {f"uqff.version.{name}": _u32(value) for name, value in (("major", major), ("minor", minor), ("patch", patch))}


def _layer(module: str, kind: int, weight: tuple[str, list[int], bytes], **fields: tuple[str, list[int], bytes]) -> Named:
    named = {f"{module}.weight.{field}": value for field, value in fields.items()}
    return {f"{module}.weight.format": _u8(kind), f"{module}.weight": weight, **named}


def _shape() -> tuple[str, list[int], bytes]:
    return _u32(ROWS, COLUMNS, shape=[2])


def gguf(module: str) -> Named:
    return _layer(module, GGUF, ("U8", [len(Q8_0)], Q8_0), dtype=_u32(8), shape=_shape())


def plain(module: str) -> Named:
    return _layer(module, PLAIN, _array("F32", ROWS, COLUMNS))


def hqq(module: str) -> Named:
    return _layer(
        module, HQQ, _array("U8", 32, 1), scales=_array("F32", 1, 1), zeros=_array("F32", 1, 1), shape=_shape(), bits=_u8(4),
        group_size=_u32(64), axis=_u8(0), optimization_steps=_u32(10), round_zeros=_u8(0), channel_wise=_u8(1),
    )  # fmt: skip


def fp8(module: str) -> Named:
    return _layer(
        module, FP8, _array("F8_E4M3", ROWS, COLUMNS), dequant_w_scale=_f32(0.5), dequant_x_scale=_f32(0.5),
        quant_scale=_f32(2.0), dtype=_u32(_F8),
    )  # fmt: skip


def afq(module: str) -> Named:
    sides = {name: _array("F32", ROWS, 1) for name in ("scales", "biases")}
    return _layer(module, AFQ, _array("U32", ROWS, 4), **sides, bits=_u8(4), group_size=_u8(32))


def f8q8(module: str) -> Named:
    return _layer(module, F8Q8, ("U8", [len(F8Q8_BLOCKS)], F8Q8_BLOCKS), num_blocks=_u32(ROWS), shape=_shape())


def mxfp4(module: str) -> Named:
    return _layer(module, MXFP4, _array("U8", ROWS, 16), scales=_array("U8", ROWS, 1, data=MXFP4_SCALES))


LAYERS = {"gguf": gguf, "plain": plain, "hqq": hqq, "fp8": fp8, "afq": afq, "f8q8": f8q8, "mxfp4": mxfp4}


def whole() -> Named:
    """The version, and the layers of the Llama: one of each type, and one with a bias."""
    named = version()
    for module, layer in zip(MODULES, (*LAYERS.values(), gguf), strict=True):
        named |= layer(module)
    return named | {f"{MODULES[-1]}.bias": _array("F32", ROWS)}


def named_file(tensors: Named, metadata: Mapping[str, str] | None = None) -> bytes:
    table: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    data = b""
    for key, (dtype, shape, raw) in tensors.items():
        table[key] = tensor_json(dtype, shape, len(data), len(data) + len(raw))
        data += raw
    return safetensors_file(table, data)


def taken_apart(raw: bytes) -> tuple[dict[str, Any], bytes]:
    """The table of a file, and the data behind it."""
    (length,) = struct.unpack_from("<Q", raw)
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def named_directory(
    tensors: Named | None = None, *, config: Mapping[str, Any] | None = CONFIG, stem: str = "q-0"
) -> dict[str, bytes]:
    """A model of 1.x; of all types without arguments."""
    return {f"{stem}.uqff": named_file(whole() if tensors is None else tensors), **_around(config)}


# The files around ---------------------------------------------------------------------------------

RESIDUAL = "residual.safetensors"


def residual(*names: str) -> bytes:
    return named_file({name: _array("F32", 4) for name in names or ("model.norm.weight",)}, {"format": "pt"})


def _around(config: Mapping[str, Any] | None) -> dict[str, bytes]:
    return {RESIDUAL: residual(), **({} if config is None else {"config.json": json.dumps(config).encode()})}


# Mixtures of experts ------------------------------------------------------------------------------

MIXTURE = "model.layers.0.block_sparse_moe"
MATRICES = ("gate_proj", "up_proj", "down_proj")
_MIXTRAL = CONFIG | {"model_type": "mixtral", "num_local_experts": 2}
_OTHERS = (*MODULES[:5], f"{MIXTURE}.gate")


def experts_apart(*experts: Blob) -> dict[str, bytes]:
    """0.x: three matrices of each of two experts, after the layers before them."""
    return blob_directory(*[gguf_blob()] * len(_OTHERS), *experts or [gguf_blob()] * 6, config=_MIXTRAL)


def experts_stacked(*stacks: Named) -> dict[str, bytes]:
    """1.x: three stacks of two experts."""
    named = version()
    for module in _OTHERS:
        named |= gguf(module)
    for each in stacks or map(stack, MATRICES):
        named |= each
    return named_directory(named, config=_MIXTRAL)


def stack(matrix: str) -> Named:
    """Of two experts, in q8_0."""
    module = f"{MIXTURE}.experts.{matrix}"
    shape = {f"{module}.weight": ("U8", [2 * len(Q8_0)], 2 * Q8_0), f"{module}.weight.shape": _u32(2, ROWS, COLUMNS, shape=[3])}
    return gguf(module) | shape
