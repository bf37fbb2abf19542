// What decoding and encoding share of the blocks of ggml: levels, scales, and the block that cannot be encoded.
#pragma once

#include "ggml_types.hpp"
#include "simd/lanes.hpp"

namespace {

constexpr uint32_t infinity = 0x7f800000;  // the bits of an f32
constexpr int8_t iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t e2m1_levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // doubled

inline float half_e8m0(uint8_t exponent) {  // 2^(exponent - 128), subnormal below 2
    return float_of(exponent < 2 ? uint32_t(0x00200000) << exponent : uint32_t(exponent - 1) << 23);
}

// A block that cannot be encoded: zeros, and NaN as the scale, which is at byte `scale`.
template <typename Type>
inline void store_void(uint8_t* block, int scale = 0) {
    for (size_t i = 0; i < Type::bytes; ++i) block[i] = 0;
    store_u16(block + scale, 0x7e00);
}

}  // namespace
