// 32 codes at a time to bf16 (AVX2).
//
// What joins bytes to halves, or halves to values, works within each half of a register. So codes come "crossed": 0–7 and 16–23 in the
// lower half of a register, 8–15 and 24–31 in the upper; then the values are in order.
//
// Codes of four bits or fewer have at most sixteen values in a group. These are computed and rounded once, kept as a table of low and a
// table of high bytes, and looked up: two byte shuffles, and two that join the bytes again. Wider codes are computed one by one.
#pragma once

#ifdef __AVX2__

#include "simd/casts.hpp"
#include "simd/lanes.hpp"

namespace {

using Crossed = __m256i;

// Byte i holds code i (low) and code i + 16 (high).
inline Crossed crossed_nibbles(U8x16 q) {
    const __m256i twice = _mm256_permute4x64_epi64(_mm256_castsi128_si256(__m128i(q)), 0x50);
    return _mm256_and_si256(_mm256_srlv_epi64(twice, _mm256_setr_epi64x(0, 4, 0, 4)), _mm256_set1_epi8(15));
}

// Bit i as `set` or `clear` in the lane of code i.
inline Crossed crossed_bits(uint32_t bits, uint8_t set, uint8_t clear) {
    const __m256i byte = _mm256_setr_epi64x(0, 0x0202020202020202, 0x0101010101010101, 0x0303030303030303);
    const __m256i own = _mm256_set1_epi64x(int64_t(0x8040201008040201));
    const __m256i spread = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(int(bits)), byte), own);
    return _mm256_blendv_epi8(_mm256_set1_epi8(char(clear)), _mm256_set1_epi8(char(set)), _mm256_cmpeq_epi8(spread, own));
}

// Byte i of 32 holds code i, in bits that are the same for all.
inline Crossed crossed_bytes(const uint8_t* at) {
    return _mm256_permute4x64_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)), 0xd8);
}

// 4 · Bits bytes of a bit stream. Each pair of bytes that holds a code is moved to a word of its own, and the code is moved by a product
// to where it is wanted: uppermost, then down, for the even codes (a word's low byte), to bit 8 for the odd ones (its high byte).
template <int Bits>
struct CrossedStream {
    alignas(32) uint8_t from[2][32];
    alignas(32) uint16_t times[2][16];

    constexpr CrossedStream() : from(), times() {
        for (int word = 0; word < 16; ++word)
            for (int odd = 0; odd < 2; ++odd) {
                const int code = word / 8 * 8 + word % 8 / 4 * 16 + word % 4 * 2 + odd;
                const int byte = code * Bits / 8, bit = code * Bits % 8;
                from[odd][2 * word] = uint8_t(byte);
                from[odd][2 * word + 1] = uint8_t(byte + 1 < 4 * Bits ? byte + 1 : byte);
                times[odd][word] = uint16_t(1 << (odd ? 8 - bit : 16 - Bits - bit));
            }
    }

    Crossed operator()(const uint8_t* packed) const {
        uint64_t parts[2] = {};
        __builtin_memcpy(parts, packed, Bits > 2 ? 8 : 4 * Bits);
        if (Bits > 2) __builtin_memcpy(parts + 1, packed + 8, 4 * Bits - 8);
        const __m256i bytes = _mm256_broadcastsi128_si256(__m128i(U64x2{parts[0], parts[1]}));
        const auto moved = [&](int odd) {
            const __m256i pairs = _mm256_shuffle_epi8(bytes, _mm256_load_si256(reinterpret_cast<const __m256i*>(from[odd])));
            return _mm256_mullo_epi16(pairs, _mm256_load_si256(reinterpret_cast<const __m256i*>(times[odd])));
        };
        constexpr int mask = (1 << Bits) - 1;
        return _mm256_or_si256(_mm256_srli_epi16(moved(0), 16 - Bits), _mm256_and_si256(moved(1), _mm256_set1_epi16(mask << 8)));
    }
};

template <int Bits>
constexpr CrossedStream<Bits> crossed_stream;

class Bf16Table {
    __m256i low, high;  // each twice: a shuffle looks up within each half of a register

public:
    // The values of the codes 0, 2 … 14 and of the codes 1, 3 … 15.
    [[gnu::always_inline]] Bf16Table(F32x8 even, F32x8 odd) {
        const __m256i words = __m256i(bf16_of_turns(even, odd, false));
        const __m256i bytes = _mm256_packus_epi16(_mm256_and_si256(words, _mm256_set1_epi16(0xff)), _mm256_srli_epi16(words, 8));
        low = _mm256_permute4x64_epi64(bytes, 0x88);
        high = _mm256_permute4x64_epi64(bytes, 0xdd);
    }

    template <typename Out>
    [[gnu::always_inline]] void put(Out out, Crossed codes) const {
        const __m256i lower = _mm256_shuffle_epi8(low, codes), upper = _mm256_shuffle_epi8(high, codes);
        out.put(U16x16(_mm256_unpacklo_epi8(lower, upper)));
        (out + 16).put(U16x16(_mm256_unpackhi_epi8(lower, upper)));
    }
};

constexpr F32x8 even_codes = {0, 2, 4, 6, 8, 10, 12, 14};

// Where a byte goes in the 32 bits that become a float: to the bottom, or (signed) to the top, which makes it 2^24 times as large.
enum class Place { bottom = 0, top = 3 };

template <Place place>
struct ByTurns {
    alignas(32) uint8_t from[2][2][32];  // of each sixteen codes, the even and the odd ones

    constexpr ByTurns() : from() {
        for (int half = 0; half < 2; ++half)
            for (int odd = 0; odd < 2; ++odd)
                for (int i = 0; i < 32; ++i)
                    from[half][odd][i] = uint8_t(i % 4 == int(place) ? 8 * half + i % 16 / 4 * 2 + odd : 0x80);
    }

    [[gnu::always_inline]] F32x8 operator()(Crossed codes, int half, int odd) const {
        const __m256i order = _mm256_load_si256(reinterpret_cast<const __m256i*>(from[half][odd]));
        return F32x8(_mm256_cvtepi32_ps(_mm256_shuffle_epi8(codes, order)));
    }
};

template <Place place>
constexpr ByTurns<place> by_turns;

// value(codes as floats), for each sixteen of 32
template <Place place = Place::bottom, typename Out, typename Value>
[[gnu::always_inline]] inline void put_crossed(Out out, Crossed codes, bool numbers, const Value& value) {
    for (int half = 0; half < 2; ++half) {
        const F32x8 even = by_turns<place>(codes, half, 0), odd = by_turns<place>(codes, half, 1);
        (out + 16 * half).put(value(even), value(odd), numbers);
    }
}

// code · s + plus where the product is exact: rounding it changes nothing, so one instruction does.
inline F32x8 exact_product_plus(F32x8 code, float s, float plus) {
    return F32x8(_mm256_fmadd_ps(__m256(code), _mm256_set1_ps(s), _mm256_set1_ps(plus)));
}

}  // namespace

#endif
