// The kernels of single codecs but for masks: exponent coding, floats of eight bits, signs, low ranks.
#pragma once

#include "coding/lossless.hpp"
#include "coding/low_rank.hpp"
#include "coding/signs.hpp"

#define KERNELS_OF_Coding(X)                                                                          \
    X(lossless_count_bf16, lossless_count<CutBf16>) X(lossless_encode_bf16, lossless_encode<CutBf16>) \
    X(lossless_count_f16, lossless_count<CutF16>) X(lossless_encode_f16, lossless_encode<CutF16>)     \
    X(lossless_count_f32, lossless_count<CutF32>) X(lossless_encode_f32, lossless_encode<CutF32>)     \
    X(lossless_decode_bf16, lossless_decode<CutBf16>) X(lossless_decode_f16, lossless_decode<CutF16>) \
    X(lossless_decode_f32, lossless_decode<CutF32>)                                                   \
    X(magnitudes, magnitudes<float>) X(magnitudes_bf16, magnitudes<uint16_t>)                         \
    X(fp8_codes, fp8_codes<float>) X(fp8_codes_bf16, fp8_codes<uint16_t>)                             \
    X(table_decode, table_decode)                                                                     \
    X(f8q8_decode, f8q8_decode) X(f8q8_encode, f8q8_encode) X(mxfp4_codes, mxfp4_codes)               \
    X(sign_encode, sign_encode<float>) X(sign_encode_bf16, sign_encode<uint16_t>)                     \
    X(add_product, add_product)
FLYWEIGHT_TABLE(Coding)
