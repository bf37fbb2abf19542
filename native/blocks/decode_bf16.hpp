// Blocks to bf16, 32 codes at a time (AVX2): overloads of what decode.hpp says for every output.
//
// A scale is an f16, or the product of one with six bits; times a code of five bits it is exact.
#pragma once

#include "blocks/decode.hpp"

#ifdef __AVX2__

namespace {

inline Crossed masked(Crossed bytes, uint8_t bits) { return _mm256_and_si256(bytes, _mm256_set1_epi8(char(bits))); }

inline void put_nibbles(ToBf16 out, Crossed codes, float scale, float plus) {
    const F32x8 even = exact_product_plus(even_codes, scale, plus), odd = exact_product_plus(even_codes + 1.0f, scale, plus);
    Bf16Table(even, odd).put(out, codes);
}

inline void put_scaled_plus(ToBf16 out, Crossed codes, float scale, float plus, bool numbers) {
    put_crossed(out, codes, numbers, [=](F32x8 code) { return exact_product_plus(code, scale, plus); });
}

inline void q4_0(const uint8_t* block, ToBf16 out) {
    const float d = load_f16(block);
    constexpr F32x8 even = even_codes - 8.0f, odd = even_codes - 7.0f;
    Bf16Table(even * d, odd * d).put(out, crossed_nibbles(load(block + 2)));
}

inline void q4_1(const uint8_t* block, ToBf16 out) {
    put_nibbles(out, crossed_nibbles(load(block + 4)), load_f16(block), load_f16(block + 2));
}

inline void q5_0(const uint8_t* block, ToBf16 out) {
    const float d = load_f16(block);
    const Crossed codes = _mm256_or_si256(crossed_nibbles(load(block + 6)), crossed_bits(load_u32(block + 2), 0, 0xf0));
    put_crossed<Place::top>(out, codes, tame(d), [d](F32x8 code) { return code * (d * 0x1p-24f); });
}

inline void q5_1(const uint8_t* block, ToBf16 out) {
    const float d = load_f16(block), m = load_f16(block + 2);
    const Crossed codes = _mm256_or_si256(crossed_nibbles(load(block + 8)), crossed_bits(load_u32(block + 4), 16, 0));
    put_scaled_plus(out, codes, d, m, tame(d + m));  // of two f16, not finite where either is not
}

inline void q4_k(const uint8_t* block, ToBf16 out) {
    const float d = load_f16(block), dmin = load_f16(block + 2);
    for (int run = 0; run < 4; ++run, out += 64) {
        const ScaleAndMin low(block + 4, 2 * run), high(block + 4, 2 * run + 1);
        const Crossed q = crossed_bytes(block + 16 + 32 * run);
        put_nibbles(out, masked(q, 15), d * low.scale, -(dmin * low.min));
        put_nibbles(out + 32, masked(_mm256_srli_epi16(q, 4), 15), d * high.scale, -(dmin * high.min));
    }
}

inline void q5_k(const uint8_t* block, ToBf16 out) {
    const float d = load_f16(block), dmin = load_f16(block + 2);
    const bool numbers = tame(d + dmin);
    Crossed fifth = crossed_bytes(block + 16);
    for (int run = 0; run < 4; ++run, out += 64, fifth = _mm256_srli_epi16(fifth, 2)) {
        const ScaleAndMin low(block + 4, 2 * run), high(block + 4, 2 * run + 1);
        const Crossed q = crossed_bytes(block + 48 + 32 * run);
        const Crossed first = _mm256_or_si256(masked(q, 15), _mm256_slli_epi16(masked(fifth, 1), 4));
        const Crossed second = _mm256_or_si256(masked(_mm256_srli_epi16(q, 4), 15), _mm256_slli_epi16(masked(fifth, 2), 3));
        put_scaled_plus(out, first, d * low.scale, -(dmin * low.min), numbers);
        put_scaled_plus(out + 32, second, d * high.scale, -(dmin * high.min), numbers);
    }
}

}  // namespace

#endif
