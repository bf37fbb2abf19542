"""What the kernels refuse: nothing reaches a pointer that the checks have not seen."""

from __future__ import annotations

import numpy as np
import pytest

from flyweight import kernels


def u8(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.uint8)


def f32(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def f64(*shape: int) -> np.ndarray:
    return np.zeros(shape)


def u64(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.uint64)


def places(*at: int) -> np.ndarray:
    return np.array([at], np.int64)


def i32(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def misaligned(rows: int, columns: int) -> np.ndarray:
    return u8(rows * columns * 4 + 1)[1:].view(np.float32).reshape(rows, columns)


REFUSED = [
    ("decode_q4_0", (u8(2, 18).view(np.int8), f32(2, 32)), TypeError),
    ("decode_q4_0", (u8(2, 18), np.zeros((2, 32))), TypeError),
    ("decode_q4_0", (u8(2, 18), np.zeros((2, 32), ">f4")), TypeError),
    ("decode_q4_0", ([[0] * 18], f32(1, 32)), TypeError),
    ("decode_q4_0", (u8(36), f32(2, 32)), ValueError),
    ("decode_q4_0", (u8(2, 17), f32(2, 32)), ValueError),
    ("decode_q4_0", (u8(2, 18), f32(1, 32)), ValueError),
    ("decode_q4_0", (u8(2, 18), f32(2, 31)), ValueError),
    ("decode_q4_0", (u8(4, 18)[::2], f32(2, 32)), ValueError),
    ("decode_q4_0", (u8(2, 18), f32(32, 2).T), ValueError),
    ("decode_q4_0", (u8(2, 18), read_only(f32(2, 32))), ValueError),
    ("decode_q4_0", (u8(2, 18), misaligned(2, 32)), ValueError),
    ("encode_q8_0", (misaligned(2, 32), u8(2, 34)), ValueError),
    ("encode_q8_0", (f32(2, 32), read_only(u8(2, 34))), ValueError),
    ("encode_q8_0", (f32(2, 64), u8(2, 68)), ValueError),
    ("unpack_bits", (u8(2, 4), 0, u8(2, 8)), ValueError),
    ("unpack_bits", (u8(2, 4), 9, u8(2, 3)), ValueError),
    ("unpack_bits", (u8(2, 4), 4, u8(2, 9)), ValueError),
    ("unpack_bits", (u8(2, 4), 4, u8(3, 8)), ValueError),
    ("pack_bits", (u8(2, 9), 4, u8(2, 4)), ValueError),
    ("pack_bits", (u8(2, 8), 4, read_only(u8(2, 4))), ValueError),
    ("palette_decode", (u8(1, 8), f32(1, 16), 1, 7, 8, 0, f32(1, 8)), ValueError),
    ("palette_decode", (u8(1, 8), f32(1, 16), 1, 8, 9, 0, f32(1, 8)), ValueError),
    ("palette_decode", (u8(1, 8), f32(1, 16), 1, 0, 8, 0, f32(1, 8)), ValueError),
    ("palette_decode", (u8(1, 8), f32(1, 16), 1, 8, 0, 0, f32(1, 8)), ValueError),
    ("palette_decode", (u8(1, 8), f32(1, 12), 1, 8, 8, 0, f32(1, 8)), ValueError),
    ("palette_decode", (u8(1, 8), f32(1, 512), 1, 8, 8, 0, f32(1, 8)), ValueError),
    ("palette_decode", (u8(1, 8), f32(1, 16), 3, 8, 8, 0, f32(1, 24)), ValueError),
    ("palette_decode", (u8(1, 8), f32(1, 16), 2, 8, 8, 0, f32(1, 17)), ValueError),
    ("palette_decode", (u8(2, 8), f32(1, 16), 1, 8, 8, 0, f32(2, 8)), ValueError),
    ("palette_nearest", (f32(1, 8), f32(1, 16), 8, 8, 0, u8(1, 8)), ValueError),
    ("palette_nearest", (f32(1, 8), f32(1, 15), 4, 8, 0, u8(1, 8)), ValueError),
    ("palette_nearest", (f32(1, 8), f32(1, 15), 8, 8, 0, u8(1, 9)), ValueError),
    ("palette_nearest_vector", (f32(4, 2), f32(16, 3), 1, u8(4, 1)), ValueError),
    ("palette_nearest_vector", (f32(4, 17), f32(16, 17), 1, u8(4, 1)), ValueError),
    ("palette_nearest_vector", (f32(4, 2), f32(257, 2), 1, u8(4, 1)), ValueError),
    ("palette_nearest_vector", (f32(4, 2), f32(0, 2), 1, u8(4, 1)), ValueError),
    ("palette_nearest_vector", (f32(4, 2), f32(16, 2), 1, u8(3, 1)), ValueError),
    ("palette_nearest_vector", (f32(4, 2), f32(16, 2), 0, u8(4, 1)), ValueError),
    ("palette_cluster_sums", (f32(4, 2), f32(1, 0), f32(16, 2), 257, np.zeros((16, 4))), ValueError),
    ("palette_cluster_sums", (f32(4, 2), f32(1, 3), f32(16, 2), 1, np.zeros((16, 4))), ValueError),
    ("palette_cluster_sums", (f32(4, 2), f32(1, 0), f32(16, 3), 1, np.zeros((16, 4))), ValueError),
    ("palette_cluster_sums", (f32(4, 2), f32(1, 0), f32(16, 2), 1, np.zeros((32, 4))), ValueError),
    ("palette_cluster_sums", (f32(4, 2), f32(1, 0), f32(16, 2), 1, np.zeros((16, 3))), ValueError),
    ("palette_histogram", (f32(1, 4), f32(1, 3), np.zeros(kernels.HISTOGRAM)), ValueError),
    ("palette_histogram", (f32(1, 4), f32(1, 0), np.zeros((4, 2))), ValueError),
    ("palette_histogram", (f32(1, 4), f32(1, 0), np.zeros(kernels.HISTOGRAM, np.float32)), TypeError),
    ("palette_cuts", (f64(1, 5), f64(1, 5), f64(2, 5), i32(5, 5)), ValueError),
    ("palette_cuts", (f64(1, 5), f64(1, 5), f64(2, 5), i32(0, 5)), ValueError),
    ("palette_cuts", (f64(1, 5), f64(1, 4), f64(2, 5), i32(2, 5)), ValueError),
    ("palette_cuts", (f64(1, 5), f64(1, 5), f64(1, 5), i32(2, 5)), ValueError),
    ("palette_cuts", (f64(1, 5), f64(1, 5), f64(2, 5), i32(2, 4)), ValueError),
    ("palette_centres", (f32(2, 5), f32(1, 5), u64(2, 5), f64(6, 6), i32(4, 6), f64(2, 4)), ValueError),
    ("palette_centres", (f32(2, 5), f32(0, 5), u64(2, 4), f64(6, 6), i32(4, 6), f64(2, 4)), ValueError),
    ("palette_centres", (f32(2, 5), f32(0, 5), u64(2, 5), f64(6, 5), i32(4, 6), f64(2, 4)), ValueError),
    ("palette_centres", (f32(2, 5), f32(0, 5), u64(2, 5), f64(6, 6), i32(3, 6), f64(2, 4)), ValueError),
    ("palette_centres", (f32(2, 5), f32(0, 5), u64(2, 5), f64(6, 6), i32(0, 6), f64(2, 0)), ValueError),
    ("magnitudes", (f32(2, 9), 0, f32(2, 9)), ValueError),
    ("magnitudes", (f32(2, 9), 4, f32(2, 2)), ValueError),
    ("magnitudes", (f64(2, 9), 4, f32(2, 3)), TypeError),
    ("fp8_codes", (f32(2, 9), f32(2, 2), 4, False, False, u8(2, 9)), ValueError),
    ("fp8_codes", (f32(2, 9), f32(2, 3), 4, False, False, u8(2, 8)), ValueError),
    ("sign_encode", (f32(2, 9), u8(2, 1), f64(2, 1)), ValueError),
    ("sign_encode", (f32(2, 9), u8(2, 2), f64(1, 1)), ValueError),
    ("mark", (u8(2, 9), 256, u8(2, 2)), ValueError),
    ("mark", (u8(2, 9), 255, u8(2, 1)), ValueError),
    ("gather", (u8(2, 1), u8(2, 9), u8(1, 3)), ValueError),
    ("gather", (u8(2, 2), u8(3, 9), u8(1, 3)), ValueError),
    ("gather", (u8(2, 2), u8(2, 9), u8(2, 3)), ValueError),
    ("places", (u8(2, 2), 17, np.zeros((1, 3), np.int64)), ValueError),
    ("places", (u8(2, 2), -1, np.zeros((1, 3), np.int64)), ValueError),
    ("places", (u8(2, 2), 16, i32(1, 3)), TypeError),
    ("difference", (f32(1, 4), f32(1, 5), f32(1, 4)), ValueError),
    ("difference", (f32(1, 4), f64(1, 4), f32(1, 4)), TypeError),
    ("difference", (f32(2, 4), f32(2, 4), f32(2, 4)), ValueError),
    ("error_sums", (f32(1, 4), f32(1, 5), f64(1, 5)), ValueError),
    ("error_sums", (f32(1, 4), f32(1, 4), f64(1, 4)), ValueError),
    ("error_sums", (f32(2, 4), f32(2, 4), f64(1, 5)), ValueError),
    ("error_sums", (f64(1, 4), f32(1, 4), f64(1, 5)), TypeError),
    ("magnitude_counts", (f32(1, 4), 0, 31, u64(1, 4), np.zeros((1, 1), np.uint32)), ValueError),
    ("magnitude_counts", (f32(1, 4), -1, 0, u64(1, 4), np.zeros((1, 1), np.uint32)), ValueError),
    ("magnitude_counts", (f32(1, 4), 0, 0, u64(1, 0), np.zeros((1, 1), np.uint32)), ValueError),
    ("keep_largest", (f32(1, 4), 0, 0, places(0, 0, 0), f32(1, 4), u64(1, 2), f32(1, 2)), ValueError),
    ("keep_largest", (f32(1, 4), 0, 0, places(0, 0, 0, 0), f32(1, 4), u64(1, 1), f32(1, 2)), ValueError),
    ("keep_largest", (f32(1, 4), 0, -1, places(0, 0, 0, 0), f32(1, 4), u64(1, 2), f32(1, 2)), ValueError),
    ("magnitude_sums", (f32(1, 9), 0, 4, f64(1, 2)), ValueError),
    ("magnitude_sums", (f32(1, 9), 4, 4, f64(1, 4)), ValueError),
    ("magnitude_sums", (f32(1, 9), 0, 0, f64(1, 4)), ValueError),
    ("add_signs", (u8(1, 1), 0, 4, f32(1, 3), f32(1, 9)), ValueError),
    ("add_signs", (u8(1, 2), 0, 4, f32(1, 2), f32(1, 9)), ValueError),
    *(
        (name, (*before, wrong, 7, *after), ValueError)
        for name, before, after in (
            ("add_at", (), (f32(1, 2), f32(1, 9))),
            ("drop_at", (u8(1, 9),), (u8(1, 7),)),
            ("insert_at", (f32(1, 7),), (f32(1, 2), f32(1, 9))),
        )
        for wrong in (places(8, 8), places(6, 8), places(7, 16), places(9, 8), places(-1, 8))
    ),
    ("add_at", (places(1, 2), 0, f32(1, 3), f32(1, 9)), ValueError),
    ("drop_at", (u8(1, 9), places(1, 2), 0, u8(1, 8)), ValueError),
    ("insert_at", (f32(1, 8), places(1, 2), 0, f32(1, 2), f32(1, 9)), ValueError),
    ("pack_nibbles", (u8(1, 9), u8(1, 4)), ValueError),
    ("nibble_levels", (u8(1, 4), f32(1, 16), 1, f32(1, 8)), ValueError),
    ("nibble_levels", (u8(1, 4), f32(1, 16), 2, f32(1, 6)), ValueError),
    ("nibble_levels", (u8(1, 4), f32(1, 15), 0, f32(1, 8)), ValueError),
    ("add_product", (f32(2, 3), f32(4, 5), f32(2, 5)), ValueError),
    ("add_product", (f32(2, 3), f32(3, 5), f32(2, 4)), ValueError),
    ("astc_decode", (u8(2, 32), 4, 13, 1.0, 0.0, f32(8, 8), u8(2, 2)), ValueError),
    ("astc_decode", (u8(2, 32), 3, 4, 1.0, 0.0, f32(8, 6), u8(2, 2)), ValueError),
    ("astc_decode", (u8(2, 32), 4, 4, 1.0, 0.0, f32(9, 8), u8(2, 2)), ValueError),
    ("astc_decode", (u8(2, 31), 4, 4, 1.0, 0.0, f32(8, 8), u8(2, 2)), ValueError),
    ("astc_decode", (u8(2, 32), 4, 4, 1.0, 0.0, f32(8, 8), u8(2, 3)), ValueError),
    ("astc_decode", (u8(2, 32), 4, 4, 1.0, 0.0, f64(8, 8), u8(2, 2)), TypeError),
    ("lossless_count_bf16", (np.zeros((1, 5), np.uint32), np.zeros((1, 256), np.uint64)), TypeError),
    ("lossless_count_bf16", (np.zeros((1, 5), np.uint16), np.zeros((1, 255), np.uint64)), ValueError),
    ("expand", (u8(2, 1), np.zeros((1, 5), np.uint16), np.zeros((2, 9), np.uint16)), ValueError),
    ("expand", (u8(2, 1), np.zeros((1, 5), np.uint16), np.zeros((3, 8), np.uint16)), ValueError),
    ("f8q8_decode", (u8(2, 32), f32(1, 256), f32(2, 32)), ValueError),
    ("f8q8_decode", (u8(2, 33), f32(1, 255), f32(2, 32)), ValueError),
    ("f8q8_decode", (u8(2, 33), f32(1, 256), f32(3, 32)), ValueError),
    ("f8q8_encode", (f32(2, 32), u8(2, 1), f32(3, 1), u8(2, 33)), ValueError),
    ("f8q8_encode", (f32(2, 32), u8(3, 1), f32(2, 1), u8(2, 33)), ValueError),
    ("f8q8_encode", (f32(2, 32), u8(2, 1), f32(2, 1), u8(2, 34)), ValueError),
    ("mxfp4_codes", (f32(2, 31), f32(2, 1), u8(2, 16)), ValueError),
    ("mxfp4_codes", (f32(2, 32), f32(3, 1), u8(2, 16)), ValueError),
    ("mxfp4_codes", (f32(2, 32), f32(2, 1), u8(2, 17)), ValueError),
    ("encode_afq", (f32(2, 32), 4, 32, u8(2, 15), f32(2, 1), f32(2, 1)), ValueError),
    ("encode_afq", (f32(2, 32), 4, 32, u8(2, 16), f32(2, 2), f32(2, 1)), ValueError),
    ("encode_afq", (f32(2, 32), 9, 32, u8(2, 36), f32(2, 1), f32(2, 1)), ValueError),
    ("table_decode", (u8(2, 8), f32(1, 255), f32(2, 1), 8, f32(2, 8)), ValueError),
    ("table_decode", (u8(2, 8), f32(1, 256), f32(2, 2), 8, f32(2, 8)), ValueError),
    ("table_decode", (u8(2, 8), f32(1, 256), f32(2, 1), 0, f32(2, 8)), ValueError),
    *(
        ("lossless_encode_bf16", arguments, ValueError)
        for arguments in (
            (np.zeros((1, 65), np.uint16), 0, np.zeros((1, 3), np.uint64), u8(2, 64), u8(1, 0), np.zeros((1, 1), np.uint32)),
            (np.zeros((1, 65), np.uint16), 0, np.zeros((2, 3), np.uint64), u8(2, 63), u8(1, 0), np.zeros((1, 1), np.uint32)),
            (np.zeros((1, 65), np.uint16), 0, np.zeros((2, 3), np.uint64), u8(2, 64), u8(1, 0), np.zeros((1, 2), np.uint32)),
            (np.zeros((1, 65), np.uint16), 250, np.zeros((2, 3), np.uint64), u8(2, 64), u8(1, 0), np.zeros((1, 1), np.uint32)),
        )
    ),
    *(
        ("lossless_decode_f32", arguments, ValueError)
        for arguments in (
            (
                np.zeros((2, 3), np.uint64),
                u8(2, 64),
                np.zeros((1, 1), np.uint32),
                u8(1, 0),
                0,
                np.zeros((1, 1), np.uint32),
                np.zeros((1, 65), np.uint32),
            ),
            (
                np.zeros((2, 3), np.uint64),
                u8(2, 192),
                np.zeros((1, 0), np.uint32),
                u8(1, 0),
                0,
                np.zeros((1, 1), np.uint32),
                np.zeros((1, 65), np.uint32),
            ),
        )
    ),
    ("decode_scale_bias", (u8(2, 64), 8, f32(2, 2), f32(2, 2), 0, f32(2, 64)), ValueError),
    ("decode_scale_bias", (u8(2, 64), 8, f32(2, 1), f32(2, 2), 32, f32(2, 64)), ValueError),
    ("decode_scale_bias", (u8(2, 64), 8, f32(2, 2), f32(2, 1), 32, f32(2, 64)), ValueError),
    ("decode_scale_bias", (u8(2, 64), 8, f32(2, 2), f32(2, 2), 32, f32(2, 65)), ValueError),
    ("decode_scale_bias", (u8(2, 64), 8, f32(2, 2), f32(2, 2), 32, f32(3, 64)), ValueError),
    ("decode_scale_bias", (u8(2, 64), 9, f32(2, 2), f32(2, 2), 32, f32(2, 64)), ValueError),
    ("decode_scale_bias", (u8(2, 64), 8, f32(2, 2), f32(2, 2), 32, np.zeros((2, 64), np.float16)), TypeError),
    ("decode_scale_zero", (u8(2, 31), 4, f32(2, 2), f32(2, 2), 32, f32(2, 64)), ValueError),
    ("decode_signed_bias", (u8(2, 32), 4, f32(2, 2), f32(2, 3), 32, f32(2, 64)), ValueError),
    ("decode_scale_zero_f16", (u8(2, 32), 4, f32(2, 2), f32(2, 3), 32, f32(2, 64)), ValueError),
    ("decode_signed_zero", (u8(2, 32), 4, f32(2, 3), f32(2, 2), 32, f32(2, 64)), ValueError),
    ("decode_signed_zero_f16", (u8(2, 31), 4, f32(2, 2), f32(2, 2), 32, f32(2, 64)), ValueError),
    ("encode_signed_bias", (f32(2, 64), 4, 32, "f32", u8(2, 32), f32(2, 2), f32(2, 3)), ValueError),
    ("decode_symmetric", (u8(2, 32), 4, f32(2, 3), 32, f32(2, 64)), ValueError),
    ("encode_scale_bias", (f32(2, 64), 4, 32, "f16", u8(2, 31), f32(2, 2), f32(2, 2)), ValueError),
    ("encode_scale_bias", (f32(2, 64), 4, 32, "f16", u8(2, 32), f32(2, 2), f32(2, 3)), ValueError),
    ("encode_scale_bias", (f32(2, 64), 4, 32, "f8", u8(2, 32), f32(2, 2), f32(2, 2)), ValueError),
    ("encode_symmetric", (f32(2, 64), 4, 0, "f16", u8(2, 32), f32(2, 2)), ValueError),
    ("encode_symmetric", (f32(2, 64), 4, 32, "f16", u8(3, 32), f32(2, 2)), ValueError),
    ("bf16_to_f32", (f32(2, 4), f32(2, 4)), TypeError),
    ("f32_to_bf16", (f32(2, 4), np.zeros((2, 4), np.float16)), TypeError),
    ("f32_to_f16", (f32(2, 4), np.zeros((2, 5), np.float16)), ValueError),
    ("f16_to_f32", (np.zeros((2, 4), np.float16), misaligned(2, 4)), ValueError),
]


@pytest.mark.parametrize(("kernel", "arguments", "error"), REFUSED)
def test_refused(kernel: str, arguments: tuple[object, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        getattr(kernels, kernel)(*arguments)


@pytest.mark.skipif(kernels._native is None, reason="the native kernels were not built")
@pytest.mark.parametrize(("kernel", "arguments", "error"), REFUSED)
def test_refused_by_the_extension_itself(kernel: str, arguments: tuple[object, ...], error: type[Exception]) -> None:
    """The last line of defence: everything but alignment is checked again beside the pointers."""
    if any(isinstance(a, np.ndarray) and not a.flags.aligned for a in arguments):
        pytest.skip("x86 and arm64 load misaligned floats; the Python check refuses them")
    with pytest.raises((TypeError, ValueError)):
        getattr(kernels._native, kernel)(*arguments)
