// Bit streams, casts between float types, and affine codes packed in rows.
#pragma once

#include "kernel.hpp"
#include "simd/casts.hpp"
#include "streams/affine_encode.hpp"

#define KERNELS_OF_Streams(X)                                                                                               \
    X(unpack_bits, unpack_bits)                                                                                             \
    X(pack_bits, pack_bits)                                                                                                 \
    X(bf16_to_f32, bf16_to_f32)                                                                                             \
    X(f32_to_bf16, f32_to_bf16)                                                                                             \
    X(f16_to_f32, f16_to_f32)                                                                                               \
    X(f32_to_f16, f32_to_f16)                                                                                               \
    X(decode_scale_bias, decode_affine<ScaleBias, float>) X(decode_scale_bias_bf16, decode_affine<ScaleBias, uint16_t>)     \
    X(decode_scale_zero, decode_affine<ScaleZero, float>) X(decode_scale_zero_bf16, decode_affine<ScaleZero, uint16_t>)     \
    X(decode_scale_zero_f16, decode_affine<RoundedToF16<ScaleZero>, float>)                                                 \
    X(decode_signed_zero, decode_affine<SignedZero, float>)                                                                 \
    X(decode_signed_zero_f16, decode_affine<RoundedToF16<SignedZero>, float>)                                               \
    X(decode_signed_bias, decode_affine<SignedBias, float>) X(decode_signed_bias_bf16, decode_affine<SignedBias, uint16_t>) \
    X(decode_symmetric, decode_affine<Symmetric, float>) X(decode_symmetric_bf16, decode_affine<Symmetric, uint16_t>)       \
    X(encode_scale_bias, encode_biased<float, false>) X(encode_scale_bias_bf16, encode_biased<uint16_t, false>)             \
    X(encode_signed_bias, encode_biased<float, true>) X(encode_signed_bias_bf16, encode_biased<uint16_t, true>)             \
    X(encode_afq, encode_afq<float>) X(encode_afq_bf16, encode_afq<uint16_t>)                                               \
    X(encode_symmetric, encode_symmetric<float>) X(encode_symmetric_bf16, encode_symmetric<uint16_t>)
FLYWEIGHT_TABLE(Streams)
