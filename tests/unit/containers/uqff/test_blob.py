"""A layer of 0.x, against bytes written by hand."""

from __future__ import annotations

import pytest

from flyweight.containers.uqff.blob import Blob, read_blob, write_blob
from flyweight.containers.uqff.layer_fields import LayerForm, entry_of, form_of
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, MalformedError
from flyweight.foundation.manifest import Extent
from flyweight.foundation.tensor import TensorSpec
from flyweight.sources import MemorySource
from support.uqff_files import BIAS, BLOBS, F8Q8, MXFP4, ROWS, gguf_blob, head, plain_blob, tensor

BEFORE, AFTER = b"\xff" * 3, b"\xee" * 5
"""A layer lies among others; nothing of them is read."""


def read(raw: bytes) -> Blob:
    source = MemorySource(BEFORE + raw + AFTER, "q.uqff")
    return read_blob(source, Extent("q.uqff", len(BEFORE), len(raw)))


def held(raw: bytes, extent: Extent) -> bytes:
    return (BEFORE + raw + AFTER)[extent.offset : extent.end]


@pytest.mark.parametrize("name", BLOBS)
def test_what_is_read_is_written_as_it_was(name: str) -> None:
    raw = BLOBS[name]
    blob = read(raw)
    entry = entry_of("x.weight", blob.layer)
    form = form_of(entry) if entry.codec.name != "raw" else LayerForm(1, {"weight": ("data", entry.spec)}, {})
    image = write_blob(form, blob.version, *([blob.bias.spec] if blob.bias else []))
    written = bytearray(image.nbytes)
    for offset, chunk in image.chunks:
        written[offset : offset + len(chunk)] = chunk
    stored = {**blob.layer.arrays, **({"bias": blob.bias} if blob.bias else {})}
    for field, offset in image.arrays.items():
        data = held(raw, stored[field].extent)
        written[offset : offset + len(data)] = data
    assert bytes(written) == raw
    assert blob.version == ((0, 2, 0) if blob.layer.type in (F8Q8, MXFP4) else (0, 1, 3))


def test_a_bias_follows_any_flag_but_0() -> None:
    for flag in (1, 2, 255):
        blob = read(gguf_blob(bias=BIAS, has_bias=flag))
        assert blob.bias is not None
        assert blob.bias.spec == TensorSpec((ROWS,), DType.F32)
    assert read(gguf_blob()).bias is None


def test_only_the_major_version_counts() -> None:
    assert read(head(1, 0x00FFFE) + plain_blob()[5:]).version == (0, 255, 254)
    with pytest.raises(FlyweightError) as caught:
        read(head(1, 0x010000) + plain_blob()[5:])
    assert caught.value.code == "E_VERSION"


@pytest.mark.parametrize(
    ("code", "dtype"),
    [
        (0, "u8"),
        (1, "u32"),
        (2, "i32"),
        (3, "i64"),
        (4, "f16"),
        (5, "bf16"),
        (6, "f32"),
        (7, "f64"),
        (8, "i16"),
        (9, "f8_e4m3"),
    ],
)
def test_types_of_tensors(code: int, dtype: str) -> None:
    size = DType[dtype.upper()].nbytes(3)
    spec = read(plain_blob(tensor(code, (3,), bytes(size)))).layer.arrays["weight"].spec
    assert (spec.dtype.label, spec.shape) == (dtype, (3,))


def test_a_scalar_and_a_tensor_of_rank_8() -> None:
    for shape in ((), (1,) * 8, (0, 5)):
        count = 0 if 0 in shape else 1
        assert read(plain_blob(tensor(6, shape, bytes(4 * count)))).layer.arrays["weight"].spec.shape == shape


@pytest.mark.parametrize("name", BLOBS)
def test_every_cut_is_found(name: str) -> None:
    for length in range(len(BLOBS[name])):
        with pytest.raises(MalformedError):
            read(BLOBS[name][:length])


def weight(nbytes: int) -> LayerForm:
    return LayerForm(1, {"weight": ("data", TensorSpec((nbytes,), DType.U8))}, {})


def test_lengths_have_32_bits() -> None:
    assert write_blob(weight(2**32 - 1), (0, 1, 3)).nbytes == 2**32 - 1 + 4 + 1 + 1 + 16
    for form in (weight(2**32), LayerForm(0, {"weight": ("blocks", TensorSpec((2**32,), DType.U8))}, {"dtype": 8}, (1, 32))):
        with pytest.raises(FlyweightError) as caught:
            write_blob(form, (0, 1, 3))
        assert (caught.value.code, caught.value.exit_code) == ("E_LENGTH", 4)
