// Blocks to f32. The layouts are in docs/formats/ggml-blocks.md, the definition in kernels/reference.py.
//
// Every body is a few plain loops of 16 or 32 steps from stored bytes straight to floats, which the
// compiler turns into vector code for whatever instruction set it targets. (A buffer of codes in
// between reads as well but runs a third as fast: wide loads of narrow stores stall.)
#pragma once

#include <cstddef>

#include "half.hpp"

namespace {

constexpr int8_t iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t e2m1_levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // doubled

// out[i] = scale · code(i)
template <int Count, typename Code>
inline void scaled(float* __restrict out, float scale, Code code) {
    for (int i = 0; i < Count; ++i) out[i] = scale * float(int(code(i)));
}

// out[i] = scale · code(i) + plus, rounded twice
template <int Count, typename Code>
inline void scaled_plus(float* __restrict out, float scale, float plus, Code code) {
    for (int i = 0; i < Count; ++i) out[i] = scale * float(int(code(i))) + plus;
}

// 32 elements a block: byte i of the codes holds elements i and i + 16 ---------------------------

inline void q4_0(const uint8_t* block, float* out) {
    const float d = load_f16(block);
    const uint8_t* q = block + 2;
    scaled<16>(out, d, [=](int i) { return (q[i] & 15) - 8; });
    scaled<16>(out + 16, d, [=](int i) { return (q[i] >> 4) - 8; });
}

inline void q4_1(const uint8_t* block, float* out) {
    const float d = load_f16(block), m = load_f16(block + 2);
    const uint8_t* q = block + 4;
    scaled_plus<16>(out, d, m, [=](int i) { return q[i] & 15; });
    scaled_plus<16>(out + 16, d, m, [=](int i) { return q[i] >> 4; });
}

inline void q5_0(const uint8_t* block, float* out) {
    const float d = load_f16(block);
    const uint32_t fifth = load_u32(block + 2);  // bit j belongs to element j
    const uint8_t* q = block + 6;
    scaled<16>(out, d, [=](int i) { return int((q[i] & 15) | (fifth >> i & 1) << 4) - 16; });
    scaled<16>(out + 16, d, [=](int i) { return int(q[i] >> 4 | (fifth >> (16 + i) & 1) << 4) - 16; });
}

inline void q5_1(const uint8_t* block, float* out) {
    const float d = load_f16(block), m = load_f16(block + 2);
    const uint32_t fifth = load_u32(block + 4);
    const uint8_t* q = block + 8;
    scaled_plus<16>(out, d, m, [=](int i) { return (q[i] & 15) | (fifth >> i & 1) << 4; });
    scaled_plus<16>(out + 16, d, m, [=](int i) { return q[i] >> 4 | (fifth >> (16 + i) & 1) << 4; });
}

inline void q8_0(const uint8_t* block, float* out) {
    scaled<32>(out, load_f16(block), [=](int i) { return int8_t(block[2 + i]); });
}

inline void q8_1(const uint8_t* block, float* out) {
    scaled<32>(out, load_f16(block), [=](int i) { return int8_t(block[4 + i]); });
}

inline void levels(float* __restrict out, float scale, const int8_t (&level)[16], const uint8_t* __restrict q) {
    float steps[16];
    scaled<16>(steps, scale, [=](int i) { return level[i]; });
    for (int i = 0; i < 16; ++i) out[i] = steps[q[i] & 15];
    for (int i = 0; i < 16; ++i) out[16 + i] = steps[q[i] >> 4];
}

inline float half_e8m0(uint8_t exponent) {  // 2^(exponent - 128), subnormal below 2
    return float_of(exponent < 2 ? uint32_t(0x00200000) << exponent : uint32_t(exponent - 1) << 23);
}

inline void mxfp4(const uint8_t* block, float* out) { levels(out, half_e8m0(block[0]), e2m1_levels, block + 1); }

inline void iq4_nl(const uint8_t* block, float* out) { levels(out, load_f16(block), iq4_levels, block + 2); }

// 256 elements a block: a run of 32 bytes holds 32 elements in each pair, nibble or bit, low bits first ----

inline void q2_k(const uint8_t* block, float* out) {
    const float d = load_f16(block + 80), dmin = load_f16(block + 82);
    for (int g = 0; g < 16; ++g) {
        const uint8_t* q = block + 16 + g / 8 * 32 + g % 2 * 16;
        const int shift = g % 8 / 2 * 2;
        const float scale = d * float(block[g] & 15), minus = dmin * float(block[g] >> 4);
        scaled_plus<16>(out + 16 * g, scale, -minus, [=](int i) { return q[i] >> shift & 3; });
    }
}

inline void q3_k(const uint8_t* block, float* out) {
    const float d = load_f16(block + 108);
    for (int g = 0; g < 16; ++g) {
        const uint8_t* third = block + g % 2 * 16;
        const uint8_t* q = block + 32 + g / 8 * 32 + g % 2 * 16;
        const int shift = g % 8 / 2 * 2, plane = g / 2;
        const int low = block[96 + g % 8] >> (g / 8 * 4) & 15, high = block[104 + g % 4] >> (g / 4 * 2) & 3;
        const float scale = d * float((low | high << 4) - 32);
        scaled<16>(out + 16 * g, scale, [=](int i) { return ((q[i] >> shift & 3) | (third[i] >> plane & 1) << 2) - 4; });
    }
}

// Scale and minimum g of q4_k and q5_k, six bits each in twelve bytes: see the layout.
struct ScaleAndMin {
    float scale, min;

    ScaleAndMin(const uint8_t* packed, int g) {
        if (g < 4) {
            scale = float(packed[g] & 63);
            min = float(packed[4 + g] & 63);
        } else {
            scale = float((packed[4 + g] & 15) | packed[g - 4] >> 6 << 4);
            min = float(packed[4 + g] >> 4 | packed[g] >> 6 << 4);
        }
    }
};

inline void q4_k(const uint8_t* block, float* out) {
    const float d = load_f16(block), dmin = load_f16(block + 2);
    for (int g = 0; g < 8; ++g) {
        const ScaleAndMin sub(block + 4, g);
        const uint8_t* q = block + 16 + g / 2 * 32;
        const int shift = g % 2 * 4;
        scaled_plus<32>(out + 32 * g, d * sub.scale, -(dmin * sub.min), [=](int i) { return q[i] >> shift & 15; });
    }
}

inline void q5_k(const uint8_t* block, float* out) {
    const float d = load_f16(block), dmin = load_f16(block + 2);
    const uint8_t* fifth = block + 16;
    for (int g = 0; g < 8; ++g) {
        const ScaleAndMin sub(block + 4, g);
        const uint8_t* q = block + 48 + g / 2 * 32;
        const int shift = g % 2 * 4;
        scaled_plus<32>(out + 32 * g, d * sub.scale, -(dmin * sub.min),
                        [=](int i) { return (q[i] >> shift & 15) | (fifth[i] >> g & 1) << 4; });
    }
}

inline void q6_k(const uint8_t* block, float* out) {
    const float d = load_f16(block + 208);
    for (int g = 0; g < 16; ++g) {
        const uint8_t* low = block + g / 8 * 64 + g % 4 * 16;
        const uint8_t* high = block + 128 + g / 8 * 32 + g % 2 * 16;
        const int nibble = g % 8 / 4 * 4, pair = g % 8 / 2 * 2;
        const float scale = d * float(int(int8_t(block[192 + g])));
        scaled<16>(out + 16 * g, scale, [=](int i) { return ((low[i] >> nibble & 15) | (high[i] >> pair & 3) << 4) - 32; });
    }
}

inline void q8_k(const uint8_t* block, float* out) {
    scaled<256>(out, float_of(load_u32(block)), [=](int i) { return int8_t(block[4 + i]); });
}

inline void iq4_xs(const uint8_t* block, float* out) {
    const float d = load_f16(block);
    const uint32_t high = load_u16(block + 2);
    for (int g = 0; g < 8; ++g) {
        const int step = int((block[4 + g / 2] >> (g % 2 * 4) & 15) | (high >> 2 * g & 3) << 4) - 32;
        levels(out + 32 * g, d * float(step), iq4_levels, block + 8 + 16 * g);
    }
}

template <int Elements, int Bytes, void (*Block)(const uint8_t*, float*)>
void decode(const uint8_t* __restrict blocks, size_t count, float* __restrict out) {
    for (size_t i = 0; i < count; ++i) Block(blocks + i * Bytes, out + i * Elements);
}

}  // namespace
