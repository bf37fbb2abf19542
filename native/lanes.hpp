// Sixteen codes at a time, in the vector types of GCC and Clang: one register on every machine.
//
// Two steps name an instruction set: sixteen codes to sixteen floats, and sixteen look-ups. Left to
// the compiler they are good or bad by the length of a loop and its neighbours (measured: a tenfold
// spread between the kinds of block).
#pragma once

#include <cstdint>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace {

using U8 = uint8_t __attribute__((vector_size(16)));
using I8 = int8_t __attribute__((vector_size(16)));
using U64 = uint64_t __attribute__((vector_size(16)));

inline U8 load(const uint8_t* at) {
    U8 lanes;
    __builtin_memcpy(&lanes, at, sizeof lanes);
    return lanes;
}

inline void store(uint8_t* at, U8 lanes) { __builtin_memcpy(at, &lanes, sizeof lanes); }

// Lane i is `value` where bit i of `bits` is set, else 0.
inline U8 where_set(uint32_t bits, uint8_t value) {
    constexpr uint64_t every_byte = 0x0101010101010101;
    constexpr U8 own = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const U8 spread = U8(U64{(bits & 0xff) * every_byte, (bits >> 8 & 0xff) * every_byte});
    return U8((spread & own) == own) & value;
}

// table[codes], codes below 16
inline I8 look_up(const int8_t (&table)[16], U8 codes) {
#ifdef __AVX2__
    return I8(_mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)), __m128i(codes)));
#else
    uint8_t index[16];
    int8_t found[16];
    __builtin_memcpy(index, &codes, sizeof index);
    for (int i = 0; i < 16; ++i) found[i] = table[index[i]];
    I8 lanes;
    __builtin_memcpy(&lanes, found, sizeof lanes);
    return lanes;
#endif
}

// out = codes · scale + plus, rounded after each step. Without Plus nothing is added: x + 0 is not x for x = -0.
template <bool Plus>
inline void store_scaled(float* __restrict out, I8 codes, float scale, float plus) {
#if defined(__AVX512F__)
    __m512 values = _mm512_mul_ps(_mm512_set1_ps(scale), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(__m128i(codes))));
    if (Plus) values = _mm512_add_ps(values, _mm512_set1_ps(plus));
    _mm512_storeu_ps(out, values);
#elif defined(__AVX2__)
    const __m128i halves[2] = {__m128i(codes), _mm_srli_si128(__m128i(codes), 8)};
    for (int i = 0; i < 2; ++i) {
        __m256 values = _mm256_mul_ps(_mm256_set1_ps(scale), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(halves[i])));
        if (Plus) values = _mm256_add_ps(values, _mm256_set1_ps(plus));
        _mm256_storeu_ps(out + 8 * i, values);
    }
#else
    int8_t lanes[16];
    __builtin_memcpy(lanes, &codes, sizeof lanes);
#pragma GCC unroll 1  // unrolled, the loop is no longer seen as one of vectors
    for (int i = 0; i < 16; ++i) out[i] = Plus ? scale * float(lanes[i]) + plus : scale * float(lanes[i]);
#endif
}

inline void store_scaled(float* out, U8 codes, float scale) { store_scaled<false>(out, I8(codes), scale, 0); }
inline void store_scaled(float* out, I8 codes, float scale) { store_scaled<false>(out, codes, scale, 0); }
inline void store_scaled_plus(float* out, U8 codes, float scale, float plus) { store_scaled<true>(out, I8(codes), scale, plus); }

}  // namespace
