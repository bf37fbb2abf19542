// f32 or bf16 to blocks of 32, by nearest rounding.
//
// Eight blocks at a time share the work on scales: their extremes end up in the lanes of one register. A block with a NaN or an
// infinity in it is stored with a NaN scale and zeros, so that a check of the scales finds it.
#pragma once

#include "blocks/layout.hpp"
#include "streams/bits.hpp"

namespace {

// Bits of the largest magnitude: magnitudes order as their bits do, and NaN and infinity come last.
template <typename T>
inline uint32_t peak_bits(const T* values) {
    I32x8 peak{};
    for (int i = 0; i < 32; i += 8) peak = greatest(peak, magnitudes(load_values(values + i)));
    return uint32_t(over_lanes(peak, [](I32x8 a, I32x8 b) { return greatest(a, b); }));
}

// The first of 32 values with this magnitude. A search that stopped there would be mispredicted in every block.
template <typename T>
inline float first_of(const T* values, uint32_t peak) {
    uint32_t matches = 0;
    for (int i = 0; i < 32; i += 8) matches |= bits_set(magnitudes(load_values(values + i)) == int32_t(peak)) << i;
    return value_at(values + __builtin_ctz(matches));
}

// steps(values) of 32 values, truncated, held within 0..top; NaN (0 · ∞ where a range overflows) gives 0. `Within` promises that no
// number of steps is top + 1 or more.
template <bool Within = false, typename T, typename Steps>
inline void store_codes(uint8_t* codes, const T* values, float top, const Steps& steps) {
    I32x8 whole[4];
    for (int i = 0; i < 4; ++i) {
        const F32x8 raw = steps(load_values(values + 8 * i));
#ifdef __AVX2__
        const F32x8 most = Within ? raw : least(F32x8{} + top, raw);
        whole[i] = I32x8(_mm256_cvttps_epi32(__m256(most)));  // NaN is negative now: narrowing holds it at 0
#else
        whole[i] = __builtin_convertvector(least(greatest(raw, F32x8{}), F32x8{} + top), I32x8);
#endif
    }
    store_narrowed(codes, whole);
}

// The fifth bit of 32 codes, as a stream of one bit.
inline void store_upper_bits(uint8_t* at, const uint8_t* codes) {
#ifdef __AVX2__
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    const int bits = _mm256_movemask_epi8(_mm256_slli_epi16(bytes, 3));
    __builtin_memcpy(at, &bits, sizeof bits);
#else
    for (int i = 0; i < 4; ++i) at[i] = uint8_t(Lanes<1>::gather(load_bytes(codes + 8 * i, 8) >> 4));
#endif
}

// floor(log2(peak)) with the logarithm rounded to f32 first, for a normal peak.
//
// Just below 2^m the logarithm is m − j·2^-24 / ln 2, j the distance in units in the last place. It rounds
// up to m while that is under half the spacing of f32 there, 2^(a − 24) for logarithms of 2^a and more:
// while j < 2^a · ln 2.
inline int floor_log2(uint32_t peak) {
    constexpr uint32_t reach[7] = {0, 1, 2, 5, 11, 22, 44};
    const int next = int(peak >> 23) - 126;
    const uint32_t distance = 0x00800000 - (peak & 0x007fffff);
    const uint32_t size = uint32_t(next > 0 ? next - 1 : -next);
    const bool rounds_up = size && distance <= reach[31 - __builtin_clz(size)];
    return rounds_up ? next : next - 1;
}

// The nearest level, the lower of two equally near: the count of midpoints that a magnitude exceeds. Between
// neighbouring levels both errors of the definition are exact, so the midpoint decides as they do; a level that
// overflows is never the nearest.
inline void to_mxfp4(const float* __restrict values, uint8_t* __restrict block) {
    const uint32_t peak = peak_bits(values);
    if (peak >= infinity) {
        for (size_t i = 0; i < ggml::mxfp4::bytes; ++i) block[i] = 0;
        block[0] = 0xff;
        return;
    }
    const int exponent = peak < 0x00800000 ? 0 : floor_log2(peak) + 125;
    block[0] = uint8_t(exponent < 0 ? 0 : exponent);
    const float scale = half_e8m0(block[0]);
    float midpoint[7];
    for (int i = 0; i < 7; ++i) {
        const float low = e2m1_levels[i], high = e2m1_levels[i + 1];
        midpoint[i] = bits_of(scale * high) < infinity ? scale * ((low + high) * 0.5f) : float_of(infinity);
    }
    int32_t codes[32];
    for (int i = 0; i < 32; ++i) {
        const float magnitude = __builtin_fabsf(values[i]);
        int32_t code = 0;
        for (float middle : midpoint) code += magnitude > middle;
        codes[i] = values[i] < 0.0f && code ? code + 8 : code;
    }
    for (int i = 0; i < 16; ++i) block[1 + i] = uint8_t(codes[i] | codes[16 + i] << 4);
}

// Eight blocks at once ---------------------------------------------------------------------------

struct Extremes8 {
    F32x8 low, high;
    bool finite;
};

template <typename T>
inline Extremes8 extremes_of_eight(const T* values) {
    F32x8 lows[8], highs[8];
    I32x8 nan{};
    for (int b = 0; b < 8; ++b, values += 32) {
        const F32x8 v[4] = {load_values(values), load_values(values + 8), load_values(values + 16), load_values(values + 24)};
        lows[b] = least(least(v[0], v[1]), least(v[2], v[3]));
        highs[b] = greatest(greatest(v[0], v[1]), greatest(v[2], v[3]));
        nan |= unordered(v[0], v[1]) | unordered(v[2], v[3]);
    }
    const F32x8 low = over_rows(lows, [](F32x8 a, F32x8 b) { return least(a, b); });
    const F32x8 high = over_rows(highs, [](F32x8 a, F32x8 b) { return greatest(a, b); });
    constexpr int32_t largest = infinity - 1;
    return {low, high, !bits_set(nan | (magnitudes(low) > largest) | (magnitudes(high) > largest))};
}

// What was stored for values that are not finite is replaced.
template <typename Type, typename T>
[[gnu::cold, gnu::noinline]] void store_voids(const T* values, uint8_t* blocks) {
    for (int b = 0; b < 8; ++b)
        if (peak_bits(values + 32 * b) >= infinity) store_void<Type>(blocks + b * Type::bytes);
}

// 0 where 1 / scale is infinite: the block is too small for its scale and stores zeros.
inline F32x8 inverses(F32x8 scale) {
    const F32x8 inverse = 1.0f / scale;
    return F32x8(I32x8(inverse) & (magnitudes(inverse) < int32_t(infinity)));
}

// In the lanes of `chosen`: the first value of that block with the magnitude that `lanes` has there.
template <typename T>
inline F32x8 first_ones(const T* values, F32x8 lanes, uint32_t chosen) {
    for (; chosen; chosen &= chosen - 1) {
        const int b = __builtin_ctz(chosen);
        lanes[b] = first_of(values + 32 * b, bits_of(lanes[b]) & 0x7fffffff);
    }
    return lanes;
}

// The last sixteen bytes of a block hold the lower four bits of its codes, and the four before those the fifth.
template <typename Type, int Bits>
inline void store_block_codes(uint8_t* block, const uint8_t* codes) {
    if (Bits == 5) store_upper_bits(block + Type::bytes - 20, codes);
    store(block + Type::bytes - 16, (load(codes) & 15) | load(codes + 16) << 4);
}

// w = d · (code − half): the value of largest magnitude, the first such, lands on code 0.
template <typename Type, int Bits, typename T>
inline void centred_eight(const T* values, uint8_t* blocks) {
    constexpr int half = 1 << (Bits - 1);
    const Extremes8 range = extremes_of_eight(values);
    const F32x8 peak = -range.low > range.high ? range.low : range.high;
    const F32x8 scale = first_ones(values, peak, bits_set(-range.low == range.high)) / -float(half);
    const F32x8 step = inverses(scale);
    for (int b = 0; b < 8; ++b) {
        uint8_t codes[32], *block = blocks + b * Type::bytes;
        const float by = step[b];
        store_codes(codes, values + 32 * b, 2 * half - 1, [=](F32x8 value) { return value * by + (half + 0.5f); });
        store_f16(block, scale[b]);
        store_block_codes<Type, Bits>(block, codes);
    }
    if (!range.finite) store_voids<Type>(values, blocks);
}

// w = d · code + m. Of equal extremes the first counts, which decides the sign of a zero minimum. A scale with a finite inverse is
// within 2^-21 of the range by the top code, so that the greatest value is at most that code + 0.5 and a little from the least.
template <typename Type, int Bits, typename T>
inline void ranged_eight(const T* values, uint8_t* blocks) {
    constexpr int top = (1 << Bits) - 1;
    const Extremes8 range = extremes_of_eight(values);
    const F32x8 low = first_ones(values, range.low, bits_set(range.low == 0.0f));
    const F32x8 scale = (range.high - range.low + 0.0f) / float(top);  // of zeros with both signs the difference may be −0
    const F32x8 step = inverses(scale);
    for (int b = 0; b < 8; ++b) {
        uint8_t codes[32], *block = blocks + b * Type::bytes;
        const float from = low[b], by = step[b];
        store_codes<true>(codes, values + 32 * b, top, [=](F32x8 value) { return (value - from) * by + 0.5f; });
        store_f16(block, scale[b]);
        store_f16(block + 2, from);
        store_block_codes<Type, Bits>(block, codes);
    }
    if (!range.finite) store_voids<Type>(values, blocks);
}

template <typename T> constexpr auto eight_q4_0 = centred_eight<ggml::q4_0, 4, T>;
template <typename T> constexpr auto eight_q5_0 = centred_eight<ggml::q5_0, 5, T>;
template <typename T> constexpr auto eight_q4_1 = ranged_eight<ggml::q4_1, 4, T>;
template <typename T> constexpr auto eight_q5_1 = ranged_eight<ggml::q5_1, 5, T>;

// Adding the number below a half, with the sign of the value, and truncating rounds halves away from zero.
// Sums of the codes go before them where `Summed`: rounded to f16, times the stored scale, rounded again.
template <typename Type, bool Summed, typename T>
inline void bytes_eight(const T* values, uint8_t* blocks) {
    const Extremes8 range = extremes_of_eight(values);
    const F32x8 scale = F32x8(magnitudes(greatest(-range.low, range.high))) / 127.0f;
    const F32x8 step = inverses(scale);
    for (int b = 0; b < 8; ++b) {
        uint8_t* block = blocks + b * Type::bytes;
        store_f16(block, scale[b]);
        I32x8 whole[4];
        for (int i = 0; i < 4; ++i) {
            const F32x8 steps = load_values(values + 32 * b + 8 * i) * step[b];
            const I32x8 sign = I32x8(steps) & int32_t(0x80000000);
            whole[i] = __builtin_convertvector(steps + F32x8(sign | int32_t(0x3effffff)), I32x8) & 0xff;
        }
        uint8_t* codes = block + Type::bytes - 32;
        store_narrowed(codes, whole);
        if (Summed) {
            int sum = 0;
            for (int i = 0; i < 32; ++i) sum += int8_t(codes[i]);
            const float stored = f16_value(f16_bits(scale[b]));
            store_f16(block + 2, bits_of(stored) == infinity ? stored : f16_value(f16_bits(float(sum))) * stored);
        }
    }
    if (!range.finite) store_voids<Type>(values, blocks);
}

template <typename T> constexpr auto eight_q8_0 = bytes_eight<ggml::q8_0, false, T>;
template <typename T> constexpr auto eight_q8_1 = bytes_eight<ggml::q8_1, true, T>;

// One by one: its work is in its codes, not in its scale.
template <typename T>
inline void eight_mxfp4(const T* values, uint8_t* blocks) {
    for (int b = 0; b < 8; ++b, values += 32, blocks += ggml::mxfp4::bytes) {
        float wide[32];
        for (int i = 0; i < 32; ++i) wide[i] = value_at(values + i);
        to_mxfp4(wide, blocks);
    }
}

// The last few blocks are filled up to eight.
template <typename Type, typename T, void (*EncodeEight)(const T*, uint8_t*)>
void encode(const T* __restrict values, size_t count, uint8_t* __restrict blocks) {
    for (; count >= 8; count -= 8, values += 8 * Type::elements, blocks += 8 * Type::bytes) EncodeEight(values, blocks);
    if (!count) return;
    T padded[8 * Type::elements] = {};
    uint8_t last[8 * Type::bytes];
    __builtin_memcpy(padded, values, count * Type::elements * sizeof(T));
    EncodeEight(padded, last);
    __builtin_memcpy(blocks, last, count * Type::bytes);
}

}  // namespace

#define FLYWEIGHT_NEAREST_ENCODER(type, X)                           \
    X(encode_##type, encode<ggml::type, float, eight_##type<float>>) \
    X(encode_##type##_bf16, encode<ggml::type, uint16_t, eight_##type<uint16_t>>)
#define KERNELS_OF_NearestEncoders(X) FLYWEIGHT_GGML_NEAREST(FLYWEIGHT_NEAREST_ENCODER, X)
FLYWEIGHT_TABLE(NearestEncoders)
