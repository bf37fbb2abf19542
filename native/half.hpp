// Little-endian fields and half precision, in integer arithmetic that is exact on every machine.
#pragma once

#include <cstdint>

namespace {

inline float float_of(uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

inline uint32_t bits_of(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline uint32_t load_u16(const uint8_t* at) { return uint32_t(at[0]) | uint32_t(at[1]) << 8; }

inline uint32_t load_u32(const uint8_t* at) { return load_u16(at) | load_u16(at + 2) << 16; }

inline void store_u16(uint8_t* at, uint32_t value) {
    at[0] = uint8_t(value);
    at[1] = uint8_t(value >> 8);
}

// The f16 at `at`. Every half is exact in f32; a NaN stays a NaN.
inline float load_f16(const uint8_t* at) {
    const uint32_t half = load_u16(at);
    const uint32_t magnitude = half & 0x7fff;
    const uint32_t sign = (half & 0x8000) << 16;
    // A subnormal half is a whole number of 2^-24; its f32 is normal, so flush-to-zero modes do not matter.
    const uint32_t subnormal = bits_of(float(int32_t(magnitude)) * 0x1p-24f);
    const uint32_t normal = (magnitude << 13) + ((127 - 15) << 23);
    const uint32_t special = magnitude << 13 | 0x7f800000;
    return float_of(sign | (magnitude < 0x0400 ? subnormal : magnitude < 0x7c00 ? normal : special));
}

// The f16 nearest to a number that is not NaN, ties to even; beyond 65504 + half a step it is infinite.
inline void store_f16(uint8_t* at, float value) {
    const uint32_t bits = bits_of(value);
    const uint32_t magnitude = bits & 0x7fffffff;
    uint32_t half;
    if (magnitude >= 0x47800000)  // 2^16
        half = 0x7c00;
    else if (magnitude < 0x38800000)  // 2^-14: at 0.5 a unit in the last place is 2^-24, so the sum rounds as f16 would
        half = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    else
        half = (magnitude - ((127 - 15) << 23) + 0x0fff + (magnitude >> 13 & 1)) >> 13;
    store_u16(at, bits >> 16 & 0x8000 | half);
}

}  // namespace
