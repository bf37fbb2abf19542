// Sixteen codes at a time, in the vector types of GCC and Clang: one register on every machine.
//
// What names an instruction set is what the compiler leaves good or bad by the length of a loop and its neighbours
// (measured: a tenfold spread between the kinds of block).
#pragma once

#include "simd/f16.hpp"
#include "simd/vectors.hpp"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace {


inline float value_at(const float* at) { return *at; }
inline float value_at(const uint16_t* at) { return float_of(uint32_t(*at) << 16); }

inline F32x8 bf16x8(const void* at) {
#ifdef __AVX2__
    return F32x8(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_as<__m128i>(at)), 16));
#else
    uint16_t halves[8];
    I32x8 wide;
    __builtin_memcpy(halves, at, sizeof halves);
    for (int i = 0; i < 8; ++i) wide[i] = int32_t(uint32_t(halves[i]) << 16);
    return F32x8(wide);
#endif
}

// Eight values of f32, or of bf16 widened.
inline F32x8 load_values(const float* at) { return load8(at); }
inline F32x8 load_values(const uint16_t* at) { return bf16x8(at); }

// a < b ? a : b, and a > b ? a : b: with NaN in either, b.
inline float least(float a, float b) { return a < b ? a : b; }
inline float greatest(float a, float b) { return a > b ? a : b; }
#ifdef __AVX2__
inline F32x8 least(F32x8 a, F32x8 b) { return F32x8(_mm256_min_ps(__m256(a), __m256(b))); }
inline F32x8 greatest(F32x8 a, F32x8 b) { return F32x8(_mm256_max_ps(__m256(a), __m256(b))); }
inline I32x8 greatest(I32x8 a, I32x8 b) { return I32x8(_mm256_max_epi32(__m256i(a), __m256i(b))); }
#else
inline F32x8 least(F32x8 a, F32x8 b) { return a < b ? a : b; }
inline F32x8 greatest(F32x8 a, F32x8 b) { return a > b ? a : b; }
inline I32x8 greatest(I32x8 a, I32x8 b) { return a > b ? a : b; }
#endif

// The result of `best` over all eight lanes.
template <typename Lanes, typename Best>
inline auto over_lanes(Lanes lanes, const Best& best) {
    lanes = best(lanes, __builtin_shufflevector(lanes, lanes, 4, 5, 6, 7, 0, 1, 2, 3));
    lanes = best(lanes, __builtin_shufflevector(lanes, lanes, 2, 3, 0, 1, 6, 7, 4, 5));
    lanes = best(lanes, __builtin_shufflevector(lanes, lanes, 1, 0, 3, 2, 5, 4, 7, 6));
    return lanes[0];
}

// Lane i is the result of `best` over row i.
template <typename Best>
inline F32x8 over_rows(const F32x8 (&rows)[8], const Best& best) {
    F32x8 pairs[4], fours[2];
    for (int i = 0; i < 4; ++i)
        pairs[i] = best(__builtin_shufflevector(rows[2 * i], rows[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13),
                        __builtin_shufflevector(rows[2 * i], rows[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15));
    for (int i = 0; i < 2; ++i)
        fours[i] = best(__builtin_shufflevector(pairs[2 * i], pairs[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13),
                        __builtin_shufflevector(pairs[2 * i], pairs[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15));
    return best(__builtin_shufflevector(fours[0], fours[1], 0, 1, 2, 3, 8, 9, 10, 11),
                __builtin_shufflevector(fours[0], fours[1], 4, 5, 6, 7, 12, 13, 14, 15));
}

// Bit i is set where lane i is.
inline uint32_t bits_set(I32x8 lanes) {
#ifdef __AVX2__
    return uint32_t(_mm256_movemask_ps(__m256(lanes)));
#else
    uint32_t bits = 0;
    for (int i = 0; i < 8; ++i) bits |= uint32_t(lanes[i] & 1) << i;
    return bits;
#endif
}

// Where either is NaN.
inline I32x8 unordered(F32x8 a, F32x8 b) {
#ifdef __AVX2__
    return I32x8(_mm256_cmp_ps(__m256(a), __m256(b), _CMP_UNORD_Q));
#else
    return (a != a) | (b != b);
#endif
}

inline I32x8 magnitudes(F32x8 lanes) { return I32x8(lanes) & 0x7fffffff; }

// Bit i of sixteen as bit i % 8 of lane i; the lane's other bits are 0.
inline U8x16 own_bit(uint32_t bits) {
    constexpr U8x16 own = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
#ifdef __AVX2__
    const __m128i byte = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    return U8x16(_mm_shuffle_epi8(_mm_cvtsi32_si128(int(bits)), byte)) & own;
#else
    constexpr uint64_t every_byte = 0x0101010101010101;
    return U8x16(U64x2{(bits & 0xff) * every_byte, (bits >> 8 & 0xff) * every_byte}) & own;
#endif
}

// Lane i is `value` where bit i of `bits` is set (clear), else 0.
inline U8x16 where_set(uint32_t bits, uint8_t value) { return U8x16(own_bit(bits) != 0) & value; }
inline U8x16 where_clear(uint32_t bits, uint8_t value) { return U8x16(own_bit(bits) == 0) & value; }

// table[codes], codes below 16
inline I8x16 look_up(const int8_t (&table)[16], U8x16 codes) {
#ifdef __AVX2__
    return I8x16(_mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)), __m128i(codes)));
#else
    uint8_t index[16];
    int8_t entries[16];
    __builtin_memcpy(index, &codes, sizeof index);
    for (int i = 0; i < 16; ++i) entries[i] = table[index[i]];
    return load_as<I8x16>(entries);
#endif
}

// Sixteen codes as floats.
struct Widened {
    F32x8 low, high;

    explicit Widened(I8x16 codes) {
#ifdef __AVX2__
        low = F32x8(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(__m128i(codes))));
        high = F32x8(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(__m128i(codes), 8))));
#else
        fill(codes);
#endif
    }

    explicit Widened(U8x16 codes) {
#ifdef __AVX2__
        low = F32x8(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(__m128i(codes))));
        high = F32x8(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(__m128i(codes), 8))));
#else
        fill(codes);
#endif
    }

private:
    template <typename Codes>
    void fill(Codes codes) {
        float wide[16];
#pragma GCC unroll 1  // unrolled, the loop is no longer seen as one of vectors
        for (int i = 0; i < 16; ++i) wide[i] = float(int(codes[i]));
        low = load8(wide), high = load8(wide + 8);
    }
};

#ifdef __AVX2__
// The same with neighbours in different registers, as the halves of the 32 bits that bf16 outputs put together.
struct WidenedByTurns {
    F32x8 low, high;

    explicit WidenedByTurns(I8x16 codes) : WidenedByTurns(_mm256_cvtepi8_epi16(__m128i(codes))) {}
    explicit WidenedByTurns(U8x16 codes) : WidenedByTurns(_mm256_cvtepu8_epi16(__m128i(codes))) {}

private:
    explicit WidenedByTurns(__m256i words)
        : low(F32x8(_mm256_cvtepi32_ps(_mm256_madd_epi16(words, _mm256_set1_epi32(1))))),
          high(F32x8(_mm256_cvtepi32_ps(_mm256_madd_epi16(words, _mm256_set1_epi32(1 << 16))))) {}
};
#endif

// 32 numbers of 0..255 to bytes.
inline void store_narrowed(uint8_t* at, const I32x8 (&codes)[4]) {
#ifdef __AVX2__
    const __m256i first = _mm256_packus_epi32(__m256i(codes[0]), __m256i(codes[1]));
    const __m256i second = _mm256_packus_epi32(__m256i(codes[2]), __m256i(codes[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // the packs work within each half of a register
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(first, second), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), bytes);
#else
    int32_t wide[32];
    __builtin_memcpy(wide, codes, sizeof wide);
    for (int i = 0; i < 32; ++i) at[i] = uint8_t(wide[i]);
#endif
}

// out = codes · scale [+ plus], rounded after each step. Adding nothing is not adding 0: −0 + 0 is +0.
template <typename Out, typename Codes>
[[gnu::always_inline]] inline void store_scaled(Out out, Codes codes, float scale) {
    const typename Out::Wide wide(codes);
    out.put(wide.low * scale, wide.high * scale, tame(scale));
}

template <typename Out>
[[gnu::always_inline]] inline void store_scaled_plus(Out out, U8x16 codes, float scale, float plus) {
    const typename Out::Wide wide(codes);
    out.put(wide.low * scale + plus, wide.high * scale + plus, tame(scale) && tame(plus));
}

}  // namespace
