"""Linear quantization of coremltools: its operators give our values, and its quantizers our bytes, in both modes, of every type
of codes, whatever the blocks.

`python tests/conformance/test_coreml_linear.py` writes tests/golden/coreml_linear.npz anew.
"""

from __future__ import annotations

import logging
from itertools import product

import numpy as np
import pytest

from flyweight.codecs import packing
from flyweight.codecs.blocking import Blocking, block_lengths
from flyweight.codecs.blockwise import Blockwise
from flyweight.codecs.sparse_codes import SparseCodes
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import TensorSpec
from flyweight.quantizers import QUANTIZERS
from support import GOLDEN
from support.linear_weights import DATA, MODES, Case, drawn

logging.disable(logging.CRITICAL)  # coremltools reports the parts of it that only a Mac has
from coremltools.converters.mil.mil import types  # noqa: E402
from coremltools.converters.mil.mil.ops.defs.iOS18.compression import (  # noqa: E402
    constexpr_blockwise_shift_scale,
    constexpr_sparse_blockwise_shift_scale,
    constexpr_sparse_to_dense,
)
from coremltools.optimize.coreml._quantization_passes import linear_quantize_weights  # noqa: E402

logging.disable(logging.NOTSET)

FORMS = [
    Blockwise(data, block, scale, offset)
    for data, block, scale, offset in product(
        (*DATA, "f16", "f32"), ("", "1", "0x1", "1x4", "2x8"), ("f16", "f32"), ("", "data", "f16", "f32")
    )
    if not (data[0] == "f" and offset == "data")
    and (scale, offset) != ("f16", "f32")  # it leaves such values in f32, though their type is f16
]
CASES = 400
"""Of each of eight quantizations."""
KEPT = 16
"""Of them in the golden file."""
GOLDEN_FILE = GOLDEN / "coreml_linear.npz"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("codec", FORMS, ids=lambda codec: str(codec.spec))
def test_the_operators_give_our_values(codec: Blockwise) -> None:
    """From any codes, and scales of either sign; also where a mask keeps half of the codes."""
    rng, spec = np.random.default_rng(2), TensorSpec((4, 16), DType.F32)
    shape = codec.layout(spec)["scale"].shape
    scale = rng.standard_normal(shape).astype(f"f{int(codec.scale[1:]) // 8}")
    low, high = {"i4": (-8, 8), "u4": (0, 16), "i8": (-128, 128), "u8": (0, 256)}.get(codec.data, (0, 1))
    if high == 1:
        data = rng.standard_normal(spec.shape).astype(f"f{int(codec.data[1:]) // 8}")
    else:
        data = rng.integers(low, high, spec.shape).astype(np.int8 if low else np.uint8)
    offset = None
    if codec.offset == "data":
        offset = rng.integers(low, high, shape).astype(data.dtype)
    elif codec.offset:
        offset = rng.standard_normal(shape).astype(f"f{int(codec.offset[1:]) // 8}")
    if high == 1:
        parts = {"codes": data, "scale": scale} | ({} if offset is None else {"offset": offset})
    else:
        parts = dict(codec.store(spec, data.view(np.uint8).reshape(1, -1), scale, np.zeros(1) if offset is None else offset))
    theirs = constexpr_blockwise_shift_scale.decompress(data, scale, offset)
    assert np.array_equal(codec.decode(spec, parts), theirs.astype(np.float32))

    mask = rng.integers(0, 2, spec.shape).astype(np.uint8)
    kept, values = constexpr_sparse_blockwise_shift_scale.decompress(mask, data[mask != 0], scale, offset)
    sparse = SparseCodes(codec.spec, int(mask.sum()))
    stored = (
        data[mask != 0]
        if high == 1
        else packing.pack("little", data[mask != 0].view(np.uint8)[None] & (high - low - 1), codec.bits)[0]
    )
    under = {f"inner.{name}": part for name, part in parts.items()} | {"inner.codes": stored}
    decoded = sparse.decode(spec, {"mask": np.packbits(mask.reshape(-1), bitorder="little"), **under})
    assert np.array_equal(decoded, constexpr_sparse_to_dense.decompress(values, kept).astype(np.float32))


def block_sizes(case: Case) -> list[int]:
    """As coremltools has them, 0 for a whole axis; a vector has no rows."""
    lengths = [int(length) for length in case.block.split("x")] if case.block else []
    rank = max(case.weight.ndim, 2)
    return (lengths + [0] * (rank - len(lengths)))[rank - case.weight.ndim :]


def theirs(case: Case, data: str, mode: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Codes, scale and zero points."""
    name = {"i": "int", "u": "uint"}[data[0]] + data[1:]
    with np.errstate(all="ignore"):
        made = linear_quantize_weights.blockwise_compress_by_dtype(case.weight, name, mode.upper(), block_sizes(case))
    return np.asarray(made.data), np.asarray(made.scale), None if made.offset is None else np.asarray(made.offset)


def codec_of(case: Case, data: str, mode: str) -> tuple[Blockwise, str]:
    """And the quantizer that stands for the mode."""
    symmetric = mode == "linear_symmetric"
    offset = "" if symmetric and data[0] == "i" else "data"
    codec = Blockwise(data, case.block, "f16" if case.weight.dtype == np.float16 else "f32", offset)
    return codec, "coremltools_symmetric" if symmetric and data[0] == "u" else "coremltools"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("mode", MODES)
def test_the_bytes_are_the_same(data: str, mode: str) -> None:
    refused = 0
    for seed in range(CASES):
        case = drawn(seed)
        codec, quantizer = codec_of(case, data, mode)
        spec = TensorSpec(case.weight.shape, DType.F32)
        codes, scale, zero = theirs(case, data, mode)
        if f16_overflows(case, data, mode):
            with pytest.raises(UnsupportedError, match="E_RANGE"):
                QUANTIZERS[quantizer](case.weight, codec, spec)
            refused += 1
            continue
        numbers = np.zeros(1) if zero is None else zero.astype(np.int16)
        expected = codec.store(spec, codes.reshape(1, -1).astype(np.int16).astype(np.uint8), scale, numbers)
        parts = QUANTIZERS[quantizer](case.weight, codec, spec)
        for name, part in expected.items():
            assert parts[name].tobytes() == part.tobytes(), (seed, name, case.block, case.weight.dtype)
    assert refused < CASES / 10


def f16_overflows(case: Case, data: str, mode: str) -> bool:
    """Whether the range of a block is beyond f16, or its ends times the ends of the codes are: then coremltools stores
    scales that are infinite, or zero points that are none."""
    if case.weight.dtype != np.float16:
        return False
    spec = TensorSpec(case.weight.shape, DType.F32)
    blocks = Blocking.of(spec, block_lengths(case.block))
    values = blocks.to_block_order(case.weight.astype(np.float64).reshape(blocks.shape)).reshape(-1, blocks.block_size)
    low, high = np.minimum(values.min(axis=1), 0), np.maximum(values.max(axis=1), 0)
    if mode == "linear_symmetric":
        return bool(beyond_f16(2 * np.maximum(high, -low)).any())
    least, most = (-(1 << int(data[1:]) - 1), (1 << int(data[1:]) - 1) - 1) if data[0] == "i" else (0, (1 << int(data[1:])) - 1)
    products = least * high, most * low, least * high - most * low, high - low
    return bool(np.any([beyond_f16(product) for product in products]))


def beyond_f16(numbers: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.isinf(numbers.astype(np.float16))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_ios_16_has_the_same_bytes() -> None:
    """Its operator has a zero point always, and one axis of scales: nothing else differs."""
    for seed, mode in product(range(40), MODES):
        case = drawn(seed)
        if case.block != "1" or case.weight.dtype != np.float32:
            continue
        made = linear_quantize_weights.compress(case.weight, 0, mode.upper(), types.int8)
        codes, scale, zero = theirs(case, "i8", mode)
        assert np.array_equal(made.quantized_data, codes)
        assert np.array_equal(made.scale.reshape(-1), scale.reshape(-1))
        assert np.array_equal(made.zero_point.reshape(-1), np.zeros(scale.size) if zero is None else zero.reshape(-1))


def golden() -> dict[str, np.ndarray]:
    """Weights and what coremltools makes of them; the name of a case says how."""
    arrays = {}
    for seed in range(KEPT):
        case, data, mode = drawn(seed), DATA[seed % 4], MODES[seed // 4 % 2]
        codes, scale, zero = theirs(case, data, mode)
        arrays |= {
            f"{seed} {data} {mode} {case.block} {part}": array
            for part, array in (("weight", case.weight), ("codes", codes.astype(np.int16)), ("scale", scale))
        }
        if zero is not None:
            arrays[f"{seed} {data} {mode} {case.block} zero"] = zero.astype(np.int16)
    return arrays


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_golden_file_is_what_it_writes() -> None:
    with np.load(GOLDEN_FILE) as kept:
        assert dict(kept).keys() == golden().keys()
        for name, array in golden().items():
            assert kept[name].tobytes() == array.tobytes()


if __name__ == "__main__":
    np.savez_compressed(GOLDEN_FILE, **golden())
