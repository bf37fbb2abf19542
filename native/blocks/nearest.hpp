// f32 or bf16 to blocks of 32, by nearest rounding.
//
// Eight blocks at a time share the work on scales: their extremes end up in the lanes of one register. What is rare
// (a value that is not finite, the last few blocks) goes block by block.
//
// A block with a NaN or an infinity in it is stored with a NaN scale and zeros, so that a check of
// the scales finds it. All that follows in a body then deals with finite numbers.
#pragma once

#include "streams/bits.hpp"
#include "decode.hpp"

namespace {

constexpr uint32_t infinity = 0x7f800000;

// Bits of the largest magnitude: magnitudes order as their bits do, and NaN and infinity come last.
inline uint32_t peak_bits(const float* values) {
    EightBits peak{};
    for (int i = 0; i < 32; i += 8) peak = greatest(peak, magnitudes(load_floats(values + i)));
    return uint32_t(over_lanes(peak, [](EightBits a, EightBits b) { return greatest(a, b); }));
}

// The first of 32 values with this magnitude. A search that stopped there would be mispredicted in every block.
template <typename T>
inline float first_of(const T* values, uint32_t peak) {
    uint32_t matches = 0;
    for (int i = 0; i < 32; i += 8) matches |= bits_set(magnitudes(load_values(values + i)) == int32_t(peak)) << i;
    return value_at(values + __builtin_ctz(matches));
}

// A block that cannot be encoded: zeros, and NaN as the scale, which is at byte `scale`.
template <typename Type>
inline void store_void(uint8_t* block, int scale = 0) {
    for (size_t i = 0; i < Type::bytes; ++i) block[i] = 0;
    store_u16(block + scale, 0x7e00);
}

// 0 where 1 / scale is infinite: the block is too small for its scale and stores zeros.
inline float inverse(float scale) {
    const float inverse = 1.0f / scale;
    return (bits_of(inverse) & 0x7fffffff) < infinity ? inverse : 0.0f;
}

// steps(values) of 32 values, truncated, held within 0..top; NaN (0 · ∞ where a range overflows) gives 0. `Within` promises that no
// number of steps is top + 1 or more.
template <bool Within = false, typename T, typename Steps>
inline void store_codes(uint8_t* codes, const T* values, float top, const Steps& steps) {
    EightBits whole[4];
    for (int i = 0; i < 4; ++i) {
        const Eight raw = steps(load_values(values + 8 * i));
#ifdef __AVX2__
        const Eight most = Within ? raw : least(Eight{} + top, raw);
        whole[i] = EightBits(_mm256_cvttps_epi32(__m256(most)));  // NaN is negative now: narrowing holds it at 0
#else
        whole[i] = __builtin_convertvector(least(greatest(raw, Eight{}), Eight{} + top), EightBits);
#endif
    }
    store_narrowed(codes, whole);
}

inline void store_nibbles(uint8_t* at, const uint8_t* codes) {
    store(at, (load(codes) & 15) | load(codes + 16) << 4);
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

// w = d · (code − half): the value of largest magnitude, the first such, lands on code 0.
template <int Half>
inline float centred_codes(const float* __restrict values, uint32_t peak, uint8_t* __restrict codes) {
    const float scale = first_of(values, peak) / -float(Half);
    const float step = inverse(scale);
    store_codes(codes, values, 2 * Half - 1, [=](Eight value) { return value * step + (Half + 0.5f); });
    return scale;
}

struct Range {
    float scale, low;
};

// w = d · code + m. Of equal extremes the first counts, which decides the sign of a zero minimum.
template <int Top>
inline Range ranged_codes(const float* __restrict values, uint8_t* __restrict codes) {
    float low = values[0], high = values[0];
    for (int i = 1; i < 32; ++i) {
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
    }
    const float scale = (high - low) / float(Top);
    const float step = inverse(scale);
    store_codes(codes, values, Top, [=](Eight value) { return (value - low) * step + 0.5f; });
    return {scale, low};
}

inline void to_q4_0(const float* values, uint8_t* block) {
    const uint32_t peak = peak_bits(values);
    if (peak >= infinity) return store_void<ggml::q4_0>(block);
    uint8_t codes[32];
    store_f16(block, centred_codes<8>(values, peak, codes));
    store_nibbles(block + 2, codes);
}

inline void to_q4_1(const float* values, uint8_t* block) {
    if (peak_bits(values) >= infinity) return store_void<ggml::q4_1>(block);
    uint8_t codes[32];
    const Range range = ranged_codes<15>(values, codes);
    store_f16(block, range.scale);
    store_f16(block + 2, range.low);
    store_nibbles(block + 4, codes);
}

inline void to_q5_0(const float* values, uint8_t* block) {
    const uint32_t peak = peak_bits(values);
    if (peak >= infinity) return store_void<ggml::q5_0>(block);
    uint8_t codes[32];
    store_f16(block, centred_codes<16>(values, peak, codes));
    store_upper_bits(block + 2, codes);
    store_nibbles(block + 6, codes);
}

inline void to_q5_1(const float* values, uint8_t* block) {
    if (peak_bits(values) >= infinity) return store_void<ggml::q5_1>(block);
    uint8_t codes[32];
    const Range range = ranged_codes<31>(values, codes);
    store_f16(block, range.scale);
    store_f16(block + 2, range.low);
    store_upper_bits(block + 4, codes);
    store_nibbles(block + 8, codes);
}

inline void to_q8_0(const float* values, uint8_t* block) {
    const uint32_t peak = peak_bits(values);
    if (peak >= infinity) return store_void<ggml::q8_0>(block);
    const float scale = float_of(peak) / 127.0f;
    const float step = inverse(scale);
    store_f16(block, scale);
    for (int i = 0; i < 32; ++i) {
        const float steps = values[i] * step;
        const int whole = int(steps);
        block[2 + i] = uint8_t(whole + int(2.0f * (steps - float(whole))));  // halves away from zero
    }
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

// Eight blocks at once: false, and nothing written, where a value is not finite -----------------------------------

struct Extremes8 {
    Eight low, high;
    bool finite;
};

template <typename T>
inline Extremes8 extremes_of_eight(const T* values) {
    Eight lows[8], highs[8];
    EightBits nan{};
    for (int b = 0; b < 8; ++b, values += 32) {
        const Eight v[4] = {load_values(values), load_values(values + 8), load_values(values + 16), load_values(values + 24)};
        lows[b] = least(least(v[0], v[1]), least(v[2], v[3]));
        highs[b] = greatest(greatest(v[0], v[1]), greatest(v[2], v[3]));
        nan |= unordered(v[0], v[1]) | unordered(v[2], v[3]);
    }
    const Eight low = over_rows(lows, [](Eight a, Eight b) { return least(a, b); });
    const Eight high = over_rows(highs, [](Eight a, Eight b) { return greatest(a, b); });
    constexpr int32_t largest = infinity - 1;
    return {low, high, !bits_set(nan | (magnitudes(low) > largest) | (magnitudes(high) > largest))};
}

// As `inverse`.
inline Eight inverses(Eight scale) {
    const Eight inverse = 1.0f / scale;
    return Eight(EightBits(inverse) & (magnitudes(inverse) < int32_t(infinity)));
}

// In the lanes of `chosen`: the first value of that block with the magnitude that `lanes` has there.
template <typename T>
inline Eight first_ones(const T* values, Eight lanes, uint32_t chosen) {
    for (; chosen; chosen &= chosen - 1) {
        const int b = __builtin_ctz(chosen);
        lanes[b] = first_of(values + 32 * b, bits_of(lanes[b]) & 0x7fffffff);
    }
    return lanes;
}

// store(block, its scale, its codes)
template <int Half, typename Type, typename T, typename Store>
inline bool centred_eight(const T* values, uint8_t* blocks, const Store& store) {
    const Extremes8 range = extremes_of_eight(values);
    if (!range.finite) return false;
    const Eight peak = -range.low > range.high ? range.low : range.high;
    const Eight scale = first_ones(values, peak, bits_set(-range.low == range.high)) / -float(Half);
    const Eight step = inverses(scale);
    for (int b = 0; b < 8; ++b, values += 32, blocks += Type::bytes) {
        uint8_t codes[32];
        const float by = step[b];
        store_codes(codes, values, 2 * Half - 1, [=](Eight value) { return value * by + (Half + 0.5f); });
        store(blocks, scale[b], codes);
    }
    return true;
}

// store(block, its scale, its minimum, its codes). A scale with a finite inverse is within 2^-21 of the range by Top, so that the
// greatest value is at most Top + 0.5 and a little from the least.
template <int Top, typename Type, typename T, typename Store>
inline bool ranged_eight(const T* values, uint8_t* blocks, const Store& store) {
    const Extremes8 range = extremes_of_eight(values);
    if (!range.finite) return false;
    const Eight low = first_ones(values, range.low, bits_set(range.low == 0.0f));
    const Eight scale = (range.high - range.low + 0.0f) / float(Top);  // of zeros with both signs the difference may be −0
    const Eight step = inverses(scale);
    for (int b = 0; b < 8; ++b, values += 32, blocks += Type::bytes) {
        uint8_t codes[32];
        const float from = low[b], by = step[b];
        store_codes<true>(codes, values, Top, [=](Eight value) { return (value - from) * by + 0.5f; });
        store(blocks, scale[b], from, codes);
    }
    return true;
}

template <typename T>
inline bool eight_q4_0(const T* values, uint8_t* blocks) {
    return centred_eight<8, ggml::q4_0>(values, blocks, [](uint8_t* block, float scale, const uint8_t* codes) {
        store_f16(block, scale);
        store_nibbles(block + 2, codes);
    });
}

template <typename T>
inline bool eight_q5_0(const T* values, uint8_t* blocks) {
    return centred_eight<16, ggml::q5_0>(values, blocks, [](uint8_t* block, float scale, const uint8_t* codes) {
        store_f16(block, scale);
        store_upper_bits(block + 2, codes);
        store_nibbles(block + 6, codes);
    });
}

template <typename T>
inline bool eight_q4_1(const T* values, uint8_t* blocks) {
    return ranged_eight<15, ggml::q4_1>(values, blocks, [](uint8_t* block, float scale, float low, const uint8_t* codes) {
        store_f16(block, scale);
        store_f16(block + 2, low);
        store_nibbles(block + 4, codes);
    });
}

template <typename T>
inline bool eight_q5_1(const T* values, uint8_t* blocks) {
    return ranged_eight<31, ggml::q5_1>(values, blocks, [](uint8_t* block, float scale, float low, const uint8_t* codes) {
        store_f16(block, scale);
        store_f16(block + 2, low);
        store_upper_bits(block + 4, codes);
        store_nibbles(block + 8, codes);
    });
}

// Adding the number below a half, with the sign of the value, and truncating rounds halves away from zero.
template <typename T>
inline bool eight_q8_0(const T* values, uint8_t* blocks) {
    const Extremes8 range = extremes_of_eight(values);
    if (!range.finite) return false;
    const Eight scale = Eight(magnitudes(greatest(-range.low, range.high))) / 127.0f;
    const Eight step = inverses(scale);
    for (int b = 0; b < 8; ++b, values += 32, blocks += ggml::q8_0::bytes) {
        store_f16(blocks, scale[b]);
        EightBits whole[4];
        for (int i = 0; i < 4; ++i) {
            const Eight steps = load_values(values + 8 * i) * step[b];
            const EightBits sign = EightBits(steps) & int32_t(0x80000000);
            whole[i] = __builtin_convertvector(steps + Eight(sign | int32_t(0x3effffff)), EightBits) & 0xff;
        }
        store_narrowed(blocks + 2, whole);
    }
    return true;
}

template <typename T>
inline bool eight_mxfp4(const T*, uint8_t*) { return false; }  // its work is in its codes, not in its scale

template <typename Type, typename T, void (*Block)(const float*, uint8_t*), bool (*Eight)(const T*, uint8_t*)>
void encode(const T* __restrict values, size_t count, uint8_t* __restrict blocks) {
    constexpr size_t elements = Type::elements, bytes = Type::bytes;
    for (size_t i = 0; i < count;) {
        if (i + 8 <= count && Eight(values + i * elements, blocks + i * bytes)) {
            i += 8;
            continue;
        }
        for (const size_t end = i + 8 < count ? i + 8 : count; i < end; ++i) {
            float wide[elements];
            for (size_t j = 0; j < elements; ++j) wide[j] = value_at(values + i * elements + j);
            Block(wide, blocks + i * bytes);
        }
    }
}

}  // namespace

#define FLYWEIGHT_NEAREST_ENCODER(type, X)                                              \
    X(encode_##type, encode<ggml::type, float, to_##type, eight_##type<float>>)         \
    X(encode_##type##_bf16, encode<ggml::type, uint16_t, to_##type, eight_##type<uint16_t>>)
#define FLYWEIGHT_NEAREST_ENCODERS(X) FLYWEIGHT_GGML_NEAREST(FLYWEIGHT_NEAREST_ENCODER, X)
FLYWEIGHT_TABLE(NearestEncoders, FLYWEIGHT_NEAREST_ENCODERS)
