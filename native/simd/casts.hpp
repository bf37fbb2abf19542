// f32 to and from the two sixteen-bit floats.
//
// bf16 is the upper half of an f32. Narrowing rounds to nearest, ties to even; what f16 cannot reach is infinite.
// A NaN stays a NaN of its sign, quiet: bf16 takes the one pattern 7fc0, f16 keeps the upper bits of the payload.
#pragma once

#include "simd/f16.hpp"
#include "simd/lanes.hpp"

namespace {

void bf16_to_f32(const uint16_t* __restrict values, size_t count, float* __restrict out) {
    for (size_t i = 0; i < count; ++i) out[i] = float_of(uint32_t(values[i]) << 16);
}

inline uint16_t bf16_of(float value) {
    const uint32_t bits = bits_of(value);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uint32_t quiet = bits >> 16 & 0x8000 | 0x7fc0;
    return uint16_t((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

[[gnu::cold, gnu::noinline]] U16x16 bf16_one_by_one(F32x8 low, F32x8 high) {
    U16x16 narrow{};
    for (int i = 0; i < 8; ++i) narrow[i] = bf16_of(low[i]), narrow[8 + i] = bf16_of(high[i]);
    return narrow;
}

// Sixteen at a time. A NaN is rare enough for a branch instead of a blend.
[[gnu::always_inline]] inline U16x16 bf16_of(F32x8 low, F32x8 high) {
#ifdef __AVX2__
    const U32x8 a = U32x8(low), b = U32x8(high);
    const U32x8 upper[2] = {(a + 0x7fff + (a >> 16 & 1)) >> 16, (b + 0x7fff + (b >> 16 & 1)) >> 16};
    const __m256 nan = _mm256_cmp_ps(__m256(low), __m256(high), _CMP_UNORD_Q);
    if (__builtin_expect(_mm256_testz_ps(nan, nan), 1))
        return U16x16(_mm256_permute4x64_epi64(_mm256_packus_epi32(__m256i(upper[0]), __m256i(upper[1])), 0xd8));
#endif
    return bf16_one_by_one(low, high);
}

#ifdef __AVX2__
// The same for values that lie by turns in two registers. Upper and lower halves are rounded sixteen at a time: the highest bit of
// a lower half carries, once what lies below an even upper half is made less by one (so that 8000, the middle, does not).
[[gnu::always_inline]] inline U16x16 bf16_of_turns(F32x8 even, F32x8 odd, bool numbers) {
    const __m256i a = __m256i(even), b = __m256i(odd);
    const __m256 nan = _mm256_cmp_ps(__m256(even), __m256(odd), _CMP_UNORD_Q);
    if (__builtin_expect(numbers || _mm256_testz_ps(nan, nan), 1)) {
        const __m256i upper = _mm256_blend_epi16(_mm256_srli_epi32(a, 16), b, 0xaa);
        const __m256i lower = _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xaa);
        const __m256i is_even = _mm256_andnot_si256(upper, _mm256_set1_epi16(1));
        return U16x16(_mm256_add_epi16(upper, _mm256_srli_epi16(_mm256_subs_epu16(lower, is_even), 15)));
    }
    const U16x16 narrow = bf16_one_by_one(even, odd);
    return __builtin_shufflevector(narrow, narrow, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
}
#endif

void f32_to_bf16(const float* __restrict values, size_t count, uint16_t* __restrict out) {
    size_t i = 0;
#ifdef __AVX2__
    for (; i + 16 <= count; i += 16) {
        const U16x16 narrow = bf16_of(load8(values + i), load8(values + i + 8));
        __builtin_memcpy(out + i, &narrow, sizeof narrow);
    }
#endif
    for (; i < count; ++i) out[i] = bf16_of(values[i]);
}

void f16_to_f32(const uint16_t* __restrict values, size_t count, float* __restrict out) {
    size_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values + i))));
#endif
    for (; i < count; ++i) {
        const uint32_t bits = bits_of(f16_value(values[i]));
        out[i] = float_of((bits & 0x7fffffff) > 0x7f800000 ? bits | 0x00400000 : bits);
    }
}

void f32_to_f16(const float* __restrict values, size_t count, uint16_t* __restrict out) {
    size_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(values + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < count; ++i) {
        const uint32_t bits = bits_of(values[i]);
        const uint32_t quiet = bits >> 16 & 0x8000 | 0x7e00 | (bits >> 13 & 0x3ff);
        out[i] = uint16_t((bits & 0x7fffffff) > 0x7f800000 ? quiet : f16_bits(values[i]));
    }
}

// The nearest number that f16 has.
inline float f16_rounded(float value) { return value != value ? value : f16_value(f16_bits(value)); }

[[gnu::always_inline]] inline F32x8 f16_rounded(F32x8 values) {
#ifdef __F16C__
    return F32x8(_mm256_cvtph_ps(_mm256_cvtps_ph(__m256(values), _MM_FROUND_TO_NEAREST_INT)));
#else
    for (int i = 0; i < 8; ++i) values[i] = f16_rounded(values[i]);
    return values;
#endif
}

}  // namespace
