// Eight sums at a time: the steps of a product that name an instruction set.
//
// Fused multiply-adds are written out, and the compiler may make no others (-ffp-contract=off holds here too): a sum then
// depends on the instruction set alone, not on how a loop was unrolled, and a batch equals its single products bit for bit.
#pragma once

#include "simd/f16.hpp"
#include "simd/lanes.hpp"

namespace {


// Bytes shifted with bits of their neighbours coming in, which a mask must take away: no machine shifts bytes alone.
inline U8x16 loosely_down(U8x16 bytes, int bits) { return U8x16(U16x8(bytes) >> bits); }
inline U8x32 loosely_down(U8x32 bytes, int bits) { return U8x32(bits < 0 ? U16x16(bytes) << -bits : U16x16(bytes) >> bits); }

inline I8x32 join(U8x16 low, U8x16 high) {
#ifdef __AVX2__
    return I8x32(_mm256_set_m128i(__m128i(high), __m128i(low)));
#else
    const U8x16 both[2] = {low, high};
    return load_as<I8x32>(both);
#endif
}

// Sixteen bytes, and the same with their high halves shifted down to the low ones; what is above those is anything.
inline I8x32 low_then_high(const uint8_t* at) {
#ifdef __AVX2__
    return I8x32(_mm256_srlv_epi64(_mm256_broadcastsi128_si256(load_as<__m128i>(at)), _mm256_setr_epi64x(0, 0, 4, 4)));
#else
    const U8x16 q = load(at);
    return join(q, loosely_down(q, 4));
#endif
}

inline F32x8 f16x8(const void* at) {
#ifdef __AVX2__
    return F32x8(_mm256_cvtph_ps(load_as<__m128i>(at)));
#else
    F32x8 lanes;
    for (int i = 0; i < 8; ++i) lanes[i] = load_f16(static_cast<const uint8_t*>(at) + 2 * i);
    return lanes;
#endif
}

inline U8x32 load32(const uint8_t* at) { return load_as<U8x32>(at); }

// E4M3 in the high bytes of words, as f16 of 2^-8 of its value: the same bits, but the exponent counts from 15 instead of 7. All ones are NaN.
template <class Words>
inline Words e4m3_to_f16(Words high) {
    using Signed = decltype(high == high);
    return Words(Signed(high) >> 1) & 0xbf80 | Words((high & 0x7f00) == 0x7f00);
}

// Eight words, their high bytes from `at` on, `step` bytes apart; from `count` on they are zero.
inline U16x8 high_bytes_apart(const uint8_t* at, size_t step, int count) {
    U16x8 words = {};
    for (int i = 0; i < count; ++i) words[i] = uint16_t(at[i * step] << 8);
    return words;
}

// 32 E4M3 in order, each times 2^-8.
inline void e4m3x32(const uint8_t* at, F32x8 (&out)[4]) {
#ifdef __AVX2__
    const __m256i none = _mm256_setzero_si256(), bytes = load_as<__m256i>(at);
    const __m256i outer = __m256i(e4m3_to_f16(U16x16(_mm256_unpacklo_epi8(none, bytes))));  // 0 … 7 and 16 … 23
    const __m256i inner = __m256i(e4m3_to_f16(U16x16(_mm256_unpackhi_epi8(none, bytes))));
    out[0] = F32x8(_mm256_cvtph_ps(_mm256_castsi256_si128(outer))), out[2] = F32x8(_mm256_cvtph_ps(_mm256_extracti128_si256(outer, 1)));
    out[1] = F32x8(_mm256_cvtph_ps(_mm256_castsi256_si128(inner))), out[3] = F32x8(_mm256_cvtph_ps(_mm256_extracti128_si256(inner, 1)));
#else
    for (int i = 0; i < 4; ++i) {
        const U16x8 halves = e4m3_to_f16(high_bytes_apart(at + 8 * i, 1, 8));
        out[i] = f16x8(&halves);
    }
#endif
}

// Eight bytes as whole numbers, and those as floats.
inline I32x8 widen8(const uint8_t* at) {
#ifdef __AVX2__
    return I32x8(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
#else
    return __builtin_convertvector(load_as<U8x8>(at), I32x8);
#endif
}

// Eight numbers of twelve bits each, one after the other, with bits of their neighbours above them.
inline I32x8 twelves(const uint8_t* at) {
#ifdef __AVX2__
    const __m256i bytes = _mm256_broadcastsi128_si256(__m128i(U64x2{load_as<uint64_t>(at), load_u32(at + 8)}));
    const __m256i pairs = _mm256_shuffle_epi8(bytes, _mm256_setr_epi8(0, 1, -1, -1, 1, 2, -1, -1, 3, 4, -1, -1, 4, 5, -1, -1,
                                                                      6, 7, -1, -1, 7, 8, -1, -1, 9, 10, -1, -1, 10, 11, -1, -1));
    return I32x8(_mm256_srlv_epi32(pairs, _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4)));
#else
    I32x8 lanes;
    for (int i = 0; i < 8; ++i) lanes[i] = int32_t(load_u16(at + i * 3 / 2) >> i % 2 * 4);
    return lanes;
#endif
}

inline F32x8 to_floats(I32x8 whole) { return __builtin_convertvector(whole, F32x8); }

// 2^(exponent - 128) of eight, subnormal below 2.
inline F32x8 half_e8m0(I32x8 exponents) { return F32x8(exponents < 2 ? (exponents + 1) << 21 : (exponents - 1) << 23); }

// table[codes], codes below 16
inline I8x32 look_up(const int8_t (&table)[16], I8x32 codes) {
#ifdef __AVX2__
    return I8x32(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_as<__m128i>(table)), __m256i(codes)));
#else
    int8_t lanes[32];
    __builtin_memcpy(lanes, &codes, sizeof lanes);
    for (int8_t& lane : lanes) lane = table[lane];
    return load_as<I8x32>(lanes);
#endif
}

// Four codes a byte, low bits first: the first codes of eight bytes, then their second, third and fourth.
inline I8x32 two_bit_codes(const uint8_t* at) {
    const auto eight = load_as<uint64_t>(at);
    return I8x32(U64x4{eight, eight, eight, eight} >> U64x4{0, 2, 4, 6}) & 3;
}

#ifdef __AVX512VNNI__
using F32x16 = float __attribute__((vector_size(64)));
using I32x16 = int32_t __attribute__((vector_size(64)));

inline F32x16 fused(F32x16 a, F32x16 b, F32x16 c) {
    return F32x16(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
}
#endif

#ifdef __AVX2__

inline F32x8 fused(F32x8 a, F32x8 b, F32x8 c) { return F32x8(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c))); }

inline float sum8(F32x8 v) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(__m256(v)), _mm256_extractf128_ps(__m256(v), 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// 32 codes as floats in quads: out[i] has the codes 4i … 4i + 3 of the first sixteen, then those of the last sixteen. A shuffle
// stays within its half of a register; keeping to that order costs one instruction where the natural one costs three.
template <bool Signed>
inline void widen32(I8x32 codes, F32x8 (&out)[4]) {
    for (int i = 0; i < 4; ++i) {
        const int first = 4 * i, none = -128;
        const __m128i quad = Signed ? _mm_setr_epi8(none, none, none, first, none, none, none, first + 1, none, none, none, first + 2,
                                                    none, none, none, first + 3)
                                    : _mm_setr_epi8(first, none, none, none, first + 1, none, none, none, first + 2, none, none, none,
                                                    first + 3, none, none, none);
        __m256i wide = _mm256_shuffle_epi8(__m256i(codes), _mm256_set_m128i(quad, quad));
        if (Signed) wide = _mm256_srai_epi32(wide, 24);
        out[i] = F32x8(_mm256_cvtepi32_ps(wide));
    }
}

// The floats 32 codes below 16 stand for, in quads. Plane i holds byte i of the sixteen floats.
inline void look_up32(const uint8_t* planes, I8x32 codes, F32x8 (&out)[4]) {
    __m256i byte[4];
    for (int i = 0; i < 4; ++i)
        byte[i] = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(__m128i(load(planes + 16 * i))), __m256i(codes));
    for (int i = 0; i < 2; ++i) {
        const __m256i low = i ? _mm256_unpackhi_epi8(byte[0], byte[1]) : _mm256_unpacklo_epi8(byte[0], byte[1]);
        const __m256i high = i ? _mm256_unpackhi_epi8(byte[2], byte[3]) : _mm256_unpacklo_epi8(byte[2], byte[3]);
        out[2 * i] = F32x8(_mm256_unpacklo_epi16(low, high));
        out[2 * i + 1] = F32x8(_mm256_unpackhi_epi16(low, high));
    }
}

// Two whole numbers, the first for sixteen columns and the second for the next sixteen.
inline __m256i spread(const int16_t* two) {
    const __m256i first_then_second = _mm256_set_m128i(_mm_set1_epi16(0x0302), _mm_set1_epi16(0x0100));
    return _mm256_shuffle_epi8(_mm256_set1_epi32(load_as<int32_t>(two)), first_then_second);
}

// Eight sums of four products code · x, exact: each pair is below 2^15, as |x| ≤ 127 and unsigned codes are at most 63. Signed
// bytes are taken as magnitude and sign. `times`, if not null, points to what the first and the last sixteen columns count.
template <bool Signed>
inline F32x8 dot32(I8x32 codes, const int8_t* x, const int16_t* times) {
    const __m256i own = __m256i(codes), plain = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    const __m256i q = Signed ? _mm256_abs_epi8(own) : own, a = Signed ? _mm256_sign_epi8(plain, own) : plain;
#ifdef __AVX512VNNI__
    if (!times) return F32x8(_mm256_cvtepi32_ps(_mm256_dpbusd_epi32(_mm256_setzero_si256(), q, a)));
#endif
    return F32x8(_mm256_cvtepi32_ps(_mm256_madd_epi16(_mm256_maddubs_epi16(q, a), times ? spread(times) : _mm256_set1_epi16(1))));
}

// Eight f16, `step` bytes apart.
inline F32x8 f16_apart(const uint8_t* at, size_t step) {
    const auto h = [=](int i) { return short(load_u16(at + i * step)); };
    return F32x8(_mm256_cvtph_ps(_mm_setr_epi16(h(0), h(1), h(2), h(3), h(4), h(5), h(6), h(7))));
}

// Eight pairs of f16, `step` bytes apart: the first of each, and the second. Taken in pairs they are half as many loads.
inline void f16_pairs_apart(const uint8_t* at, size_t step, F32x8& first, F32x8& second) {
    const auto pair = [=](int i) { return int(load_u32(at + i * step)); };
    const __m256i pairs = _mm256_setr_epi32(pair(0), pair(1), pair(2), pair(3), pair(4), pair(5), pair(6), pair(7));
    const __m128i apart = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m256i halves = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(pairs, _mm256_set_m128i(apart, apart)), 0xd8);
    first = F32x8(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)));
    second = F32x8(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)));
}

// The whole numbers nearest to eight floats below 2^22, ties to even.
inline I32x8 rounded(F32x8 lanes) { return I32x8(_mm256_cvtps_epi32(__m256(lanes))); }

// 32 bits to bytes of 16 where set.
inline U8x32 sixteens(uint32_t bits) {
    const __m256i each = _mm256_shuffle_epi8(_mm256_set1_epi32(int(bits)),
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    const __m256i own = _mm256_set1_epi64x(int64_t(0x8040201008040201));
    return U8x32(_mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(each, own), own), _mm256_set1_epi8(16)));
}

#else

inline F32x8 fused(F32x8 a, F32x8 b, F32x8 c) { return a * b + c; }

inline float sum8(F32x8 v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

template <bool>
inline void widen32(I8x32 codes, F32x8 (&out)[4]) {
    int8_t lanes[32];
    float wide[32];
    __builtin_memcpy(lanes, &codes, sizeof lanes);
    for (int i = 0; i < 32; ++i) wide[i % 16 / 4 * 8 + i / 16 * 4 + i % 4] = float(lanes[i]);
    __builtin_memcpy(out, wide, sizeof wide);
}

inline void look_up32(const uint8_t* planes, I8x32 codes, F32x8 (&out)[4]) {
    uint8_t lanes[32];
    float wide[32];
    __builtin_memcpy(lanes, &codes, sizeof lanes);
    for (int i = 0; i < 32; ++i) {
        const uint8_t* at = planes + lanes[i];
        wide[i % 16 / 4 * 8 + i / 16 * 4 + i % 4] = float_of(at[0] | at[16] << 8 | at[32] << 16 | uint32_t(at[48]) << 24);
    }
    __builtin_memcpy(out, wide, sizeof wide);
}

template <bool Signed>
inline F32x8 dot32(I8x32 codes, const int8_t* x, const int16_t* times) {
    int8_t lanes[32];
    int32_t sums[8] = {};
    __builtin_memcpy(lanes, &codes, sizeof lanes);
    for (int i = 0; i < 32; ++i) sums[i / 4] += int32_t(lanes[i]) * int32_t(x[i]);
    F32x8 out;
    for (int i = 0; i < 8; ++i) out[i] = float(times ? sums[i] * times[i / 4] : sums[i]);
    return out;
}

inline F32x8 f16_apart(const uint8_t* at, size_t step) {
    F32x8 lanes;
    for (int i = 0; i < 8; ++i) lanes[i] = load_f16(at + i * step);
    return lanes;
}

inline void f16_pairs_apart(const uint8_t* at, size_t step, F32x8& first, F32x8& second) {
    first = f16_apart(at, step), second = f16_apart(at + 2, step);
}

inline I32x8 rounded(F32x8 lanes) {
    const F32x8 round = all8(0x1.8p23f);  // added and taken away, it leaves a whole number, ties to even
    return __builtin_convertvector(lanes + round - round, I32x8);
}

inline U8x32 sixteens(uint32_t bits) {
    return U8x32(join(where_set(bits & 0xffff, 16), where_set(bits >> 16, 16)));
}

#endif

[[gnu::always_inline]] inline F32x8 dot8x4(const F32x8 (&w)[4], const float* x) {
    F32x8 sum = w[0] * load8(x);
    for (int i = 1; i < 4; ++i) sum = fused(w[i], load8(x + 8 * i), sum);
    return sum;
}

// Scales in the three types they are stored in; `four` leaves the second half of its lanes zero.
struct F32Scale {
    static constexpr size_t bytes = 4;
    static float one(const uint8_t* at) { return float_of(load_u32(at)); }
    static F32x8 eight(const uint8_t* at) { return load_as<F32x8>(at); }
    static F32x8 four(const uint8_t* at) {
        F32x8 lanes = {};
        __builtin_memcpy(&lanes, at, 16);
        return lanes;
    }
};

// Of sixteen-bit floats, by the function for eight.
template <F32x8 (*Eight)(const void*)>
inline F32x8 four_of(const uint8_t* at) {
    const U64x2 low = {load_as<uint64_t>(at), 0};
    return Eight(&low);
}

struct F16Scale {
    static constexpr size_t bytes = 2;
    static float one(const uint8_t* at) { return load_f16(at); }
    static F32x8 eight(const uint8_t* at) { return f16x8(at); }
    static F32x8 four(const uint8_t* at) { return four_of<f16x8>(at); }
};

struct Bf16Scale {
    static constexpr size_t bytes = 2;
    static float one(const uint8_t* at) { return float_of(load_u16(at) << 16); }
    static F32x8 eight(const uint8_t* at) { return bf16x8(at); }
    static F32x8 four(const uint8_t* at) { return four_of<bf16x8>(at); }
};

}  // namespace
