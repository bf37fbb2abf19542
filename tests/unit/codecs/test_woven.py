"""The woven codec: its bytes read as the format page says, its accuracy, and error feedback in its own basis."""

from __future__ import annotations

import numpy as np
import pytest

from flyweight import kernels
from flyweight.codecs.stepped import Stepped
from flyweight.codecs.woven import Woven
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.tensor import EncodedTensor, TensorSpec
from flyweight.quantizers import QUANTIZERS
from flyweight.runtime.linear import DecodedRows, Linear

BITS = (2, 3, 4)


def normal(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((rows, columns)) * 10.0 ** rng.uniform(-2, 0, (rows, 1))).astype(np.float32)


def spec_of(values: np.ndarray) -> TensorSpec:
    return TensorSpec(values.shape, DType.F32)


def code_at(row: bytes, column: int, bits: int) -> int:
    """As docs/formats/woven.md says."""
    run, i = row[column // 32 * 4 * bits :][: 4 * bits], column % 32
    if bits == 4:
        return run[i % 16] >> (4 if i >= 16 else 0) & 15
    low = run[i % 8] >> 2 * (i // 8) & 3
    return low if bits == 2 else low + 4 * (int.from_bytes(run[8:12], "little") >> i & 1)


def read_weight(parts: dict[str, np.ndarray], bits: int, columns: int, row: int, column: int) -> float:
    """One value by the page alone, but for the table of windows (tests/native/test_weaving.py)."""
    packed = parts["codes"].reshape(-1, columns * bits // 8)
    levels = kernels.window_levels(bits)
    first, total = column // 64 * 64, 0
    for j in range(64):
        window = 0
        for back in range(12 // bits):
            if row % 256 >= back:
                window |= code_at(packed[row - back].tobytes(), first + j, bits) << bits * back
        total += int(levels[window]) * (-1) ** (column % 64 & j).bit_count()
    mixed = (column + 1) * 0x9E3779B1 % 2**32
    sign = -1 if (mixed >> 31 ^ mixed >> 16) & 1 else 1
    return float(np.float32(float(parts["scale"][row]) / 8 * total * sign))


@pytest.mark.parametrize("bits", BITS)
def test_values_are_what_the_page_says(bits: int) -> None:
    values = normal(261, 192)
    codec = Woven(bits)
    parts = dict(codec.encode(spec_of(values), values))
    decoded = codec.decode(spec_of(values), parts)
    for row, column in ((0, 0), (1, 191), (5, 70), (255, 64), (256, 3), (260, 130)):
        assert decoded[row, column] == read_weight(parts, bits, 192, row, column)


@pytest.mark.parametrize(("bits", "most"), [(2, 0.081), (3, 0.0221), (4, 0.0059)])
def test_error_of_normal_weights(bits: int, most: float) -> None:
    """Within a tenth of what the trellis leaves of an endless column: 0.0742, 0.0201, 0.0053 of the variance."""
    values = np.random.default_rng(0).standard_normal((512, 128)).astype(np.float32)
    codec = Woven(bits)
    error = codec.decode(spec_of(values), codec.encode(spec_of(values), values)) - values
    assert np.square(error).sum() / np.square(values).sum() < most


@pytest.mark.parametrize(("bits", "most"), [(2, 0.4), (3, 0.13), (4, 0.04)])
def test_small_rows_beside_large_ones(bits: int, most: float) -> None:
    """They get less of the codes they share, but not nothing."""
    values = np.random.default_rng(0).standard_normal((256, 128)).astype(np.float32)
    values[::3] *= np.float32(1e-4)
    codec = Woven(bits)
    error = codec.decode(spec_of(values), codec.encode(spec_of(values), values)) - values
    assert np.square(error[::3]).sum() / np.square(values[::3]).sum() < most


@pytest.mark.parametrize("bits", BITS)
def test_feedback_is_of_the_inputs_as_they_are(bits: int) -> None:
    """Inputs that hang together: error feedback costs weights accuracy and gains more than a third for their products."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((600, 24)) @ rng.standard_normal((24, 128)) + 0.3 * rng.standard_normal((600, 128))
    inputs = InputStatistics((x * x).mean(axis=0).astype(np.float32), (x.T @ x / 600).astype(np.float32), 600)
    values, codec = normal(300, 128), Woven(bits)
    spec = spec_of(values)
    plain = codec.decode(spec, QUANTIZERS["nearest"](values, codec, spec)) - values
    fed = codec.decode(spec, QUANTIZERS["gptq"](values, codec, spec, inputs)) - values
    assert inputs.output_error(fed) < 0.65 * inputs.output_error(plain)


def test_a_turned_gram_matrix_is_that_of_turned_inputs() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((50, 192)).astype(np.float32)
    turned = kernels.rotate(x * kernels.rotation_signs(192)) / 8
    assert np.allclose(Woven(3).turned_gram(x.T @ x), turned.T @ turned, atol=1e-3)


def test_several_slabs_are_one_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    values, codec = normal(700, 64), Woven(3)
    whole = codec.encode(spec_of(values), values)
    decoded = codec.decode(spec_of(values), whole)
    monkeypatch.setattr("flyweight.codecs.woven._VALUES", 64 * 256)
    pieces = codec.encode(spec_of(values), values)
    assert all(np.array_equal(whole[name], pieces[name]) for name in whole)
    assert np.array_equal(codec.decode(spec_of(values), whole), decoded)


@pytest.mark.parametrize("bits", BITS)
def test_a_layer_of_it(bits: int) -> None:
    """Products and single rows without a decoded copy."""
    values, codec = normal(520, 128), Woven(bits)
    tensor = EncodedTensor(spec_of(values), codec.spec, codec.encode(spec_of(values), values))
    decoded = codec.decode(tensor.spec, tensor.parts)
    chosen = np.array([3, 256, 257, 519, 0, 3])
    assert np.array_equal(DecodedRows(tensor)[chosen], decoded[chosen])
    assert np.array_equal(DecodedRows(tensor)[250:262], decoded[250:262])
    layer = Linear([tensor], int8=False)
    assert layer.matrices
    x = np.random.default_rng(3).standard_normal((2, 128)).astype(np.float32)
    out = np.empty((2, 520), np.float32)
    layer(x, out)
    assert np.allclose(out, x @ decoded.T, rtol=1e-4, atol=1e-4 * abs(decoded).max())


@pytest.mark.parametrize(("shape", "code"), [((3, 96), "E_BLOCK_ROWS"), ((), "E_SPEC")], ids=str)
def test_shapes_it_does_not_take(shape: tuple[int, ...], code: str) -> None:
    with pytest.raises(UnsupportedError) as refused:
        Woven(4).layout(TensorSpec(shape, DType.F32))
    assert refused.value.code == code


def test_its_own_basis_is_counted() -> None:
    """A Gram matrix once more than for a codec that is coded as it is."""
    memory = QUANTIZERS["gptq"].memory
    assert memory(Woven(3), 512) - memory(Stepped(3), 512) == 4 * 512 * 512
