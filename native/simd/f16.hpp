// Little-endian fields and half precision: the processor's instruction, or integer arithmetic that gives the same.
#pragma once

#include <cstdint>

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace {

inline float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

inline uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }

// Far enough from infinity that no sum or product with a code is NaN.
inline bool tame(float value) { return (bits_of(value) & 0x7fffffff) < 0x71800000; }  // 2^100

inline uint32_t load_u16(const uint8_t* at) { return uint32_t(at[0]) | uint32_t(at[1]) << 8; }

inline uint32_t load_u32(const uint8_t* at) { return load_u16(at) | load_u16(at + 2) << 16; }

inline void store_u16(uint8_t* at, uint32_t value) {
    at[0] = uint8_t(value);
    at[1] = uint8_t(value >> 8);
}

// The value of an f16. Every half is exact in f32; a NaN stays a NaN.
inline float f16_value(uint32_t half) {
#ifdef __F16C__
    return _cvtsh_ss(uint16_t(half));
#else
    const uint32_t magnitude = half & 0x7fff;
    const uint32_t sign = (half & 0x8000) << 16;
    // A subnormal half is a whole number of 2^-24; its f32 is normal, so flush-to-zero modes do not matter.
    const uint32_t subnormal = bits_of(float(int32_t(magnitude)) * 0x1p-24f);
    const uint32_t normal = (magnitude << 13) + ((127 - 15) << 23);
    const uint32_t special = magnitude << 13 | 0x7f800000;
    return float_of(sign | (magnitude < 0x0400 ? subnormal : magnitude < 0x7c00 ? normal : special));
#endif
}

inline float load_f16(const uint8_t* at) { return f16_value(load_u16(at)); }

// The f16 nearest to a number that is not NaN, ties to even; beyond 65504 + half a step it is infinite.
inline uint32_t f16_bits(float value) {
#ifdef __F16C__
    return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
#else
    const uint32_t bits = bits_of(value);
    const uint32_t magnitude = bits & 0x7fffffff;
    uint32_t half;
    if (magnitude >= 0x47800000)  // 2^16
        half = 0x7c00;
    else if (magnitude < 0x38800000)  // 2^-14: at 0.5 a unit in the last place is 2^-24, so the sum rounds as f16 would
        half = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    else
        half = (magnitude - ((127 - 15) << 23) + 0x0fff + (magnitude >> 13 & 1)) >> 13;
    return bits >> 16 & 0x8000 | half;
#endif
}

inline void store_f16(uint8_t* at, float value) { store_u16(at, f16_bits(value)); }

}  // namespace
