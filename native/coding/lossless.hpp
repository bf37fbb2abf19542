// Exponent coding, which keeps the bits of a word. The layout is in kernels/coding/exponents.py.
//
// It works on 64 values at a time: planes are turned into one code a byte, bytes into words. A value
// whose exponent is an escape is rare (2 to 6 % of weights), so it is written as if it were coded, then mended.
#pragma once

#include "kernel.hpp"
#include "simd/lanes.hpp"

namespace {

constexpr size_t group_size = 64, run_size = 4096;

template <typename WordType, int MantissaBits, int ExponentBits, int LowBytes, int Planes>
struct Cut {
    using Word = WordType;
    static constexpr int mantissa = MantissaBits, low_bytes = LowBytes, planes = Planes, top = 8 * sizeof(Word) - 1;
    static constexpr Word fraction = (Word(1) << MantissaBits) - 1, exponents = (Word(1) << ExponentBits) - 1;

    static Word exponent(Word word) { return Word(word >> mantissa) & exponents; }
    static Word low(Word word) { return Word(Word(word >> top) << mantissa | (word & fraction)); }
    static Word join(Word exponent, Word low) {
        return Word(Word(low >> mantissa) << top | Word(exponent & exponents) << mantissa | (low & fraction));
    }
};

using CutBf16 = Cut<uint16_t, 7, 8, 1, 3>;
using CutF16 = Cut<uint16_t, 10, 5, 1, 6>;
using CutF32 = Cut<uint32_t, 23, 8, 3, 3>;

inline uint64_t first_bits(size_t count) { return count >= 64 ? ~uint64_t(0) : (uint64_t(1) << count) - 1; }

// Byte i of `codes` has bit p set where bit i of plane p is.
inline void spread_planes(const uint64_t* planes, uint8_t* codes) {
#ifdef __AVX2__
    const __m256i each = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i own = _mm256_set1_epi64x(int64_t(0x8040201008040201));
    for (int at = 0; at < 64; at += 32) {
        __m256i sum = _mm256_setzero_si256();
        for (int p = 2; p >= 0; --p) {  // a lane whose bit is set compares as −1, so subtracting counts it
            const __m256i bits = _mm256_shuffle_epi8(_mm256_set1_epi32(int32_t(planes[p] >> at)), each);
            sum = _mm256_sub_epi8(_mm256_add_epi8(sum, sum), _mm256_cmpeq_epi8(_mm256_and_si256(bits, own), own));
        }
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + at), sum);
    }
#else
    for (int at = 0; at < 64; at += 16)
        store(codes + at, where_set(uint32_t(planes[0] >> at), 1) | where_set(uint32_t(planes[1] >> at), 2) |
                              where_set(uint32_t(planes[2] >> at), 4));
#endif
}

// Bit i of the result is bit `Bit` of byte i.
template <int Bit>
inline uint64_t gather_plane(const uint8_t* codes) {
    uint64_t plane = 0;
#ifdef __AVX2__
    for (int i = 0; i < 2; ++i) {
        const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 32 * i));
        plane |= uint64_t(uint32_t(_mm256_movemask_epi8(_mm256_slli_epi16(bytes, 7 - Bit)))) << 32 * i;
    }
#else
    for (int i = 0; i < 8; ++i) {
        const auto bytes = load_as<uint64_t>(codes + 8 * i);
        // Each byte is 0 or 1; the product puts byte k's bit at 56 + k, and no two of its terms meet.
        plane |= ((bytes >> Bit & 0x0101010101010101u) * 0x0102040810204080u >> 56) << 8 * i;
    }
#endif
    return plane;
}

template <typename C>
inline typename C::Word low_of(const uint8_t* __restrict low, const uint8_t* __restrict high, size_t i) {
    using Word = typename C::Word;
    Word value = low[i];
    if constexpr (C::low_bytes == 3) value |= Word(Word(low[64 + i]) << 8 | Word(low[128 + i]) << 16);
    if constexpr (C::planes == 6) value |= Word(Word(high[i]) << 8);
    return value;
}

template <typename C>
void lossless_decode(const uint64_t* __restrict planes, const uint8_t* __restrict low, const uint32_t* __restrict starts,
                     const uint8_t* __restrict escapes, size_t escape_count, int base, uint32_t* __restrict counts,
                     typename C::Word* __restrict out, size_t count) {
    using Word = typename C::Word;
    const uint8_t below = uint8_t(base - 1);
    for (size_t start = 0; start < count; start += run_size) {
        const size_t end = count - start < run_size ? count : start + run_size;
        size_t next = *starts++;
        const size_t first = next;
        for (size_t at = start; at < end; at += group_size, planes += C::planes, low += C::low_bytes * group_size) {
            const size_t here = end - at < group_size ? end - at : group_size;
            uint8_t codes[group_size], high[group_size];
            spread_planes(planes, codes);
            if constexpr (C::planes == 6) spread_planes(planes + 3, high);
            Word tail[group_size];
            Word* __restrict to = here == group_size ? out + at : tail;
            for (size_t i = 0; i < group_size; ++i)
                to[i] = C::join(Word(uint8_t(codes[i] + below)), low_of<C>(low, high, i));
            for (uint64_t escaped = ~(planes[0] | planes[1] | planes[2]) & first_bits(here); escaped; escaped &= escaped - 1) {
                const int i = __builtin_ctzll(escaped);
                to[i] = C::join(Word(next < escape_count ? escapes[next] : 0), low_of<C>(low, high, i));
                ++next;
            }
            if (to == tail)
                for (size_t i = 0; i < here; ++i) out[at + i] = tail[i];
        }
        *counts++ = uint32_t(next - first);
    }
}

template <typename C>
inline void encode_group(const typename C::Word* __restrict words, uint8_t base, uint64_t* __restrict planes,
                         uint8_t* __restrict low) {
    using Word = typename C::Word;
    uint8_t codes[group_size], high[group_size] = {};
    for (size_t i = 0; i < group_size; ++i) {
        const uint8_t above = uint8_t(uint8_t(C::exponent(words[i])) - base);  // wraps to 7 or more below the base
        codes[i] = above < 7 ? uint8_t(above + 1) : uint8_t(0);
        const Word rest = C::low(words[i]);
        low[i] = uint8_t(rest);
        if constexpr (C::low_bytes == 3) low[64 + i] = uint8_t(rest >> 8), low[128 + i] = uint8_t(rest >> 16);
        if constexpr (C::planes == 6) high[i] = uint8_t(rest >> 8);
    }
    planes[0] = gather_plane<0>(codes), planes[1] = gather_plane<1>(codes), planes[2] = gather_plane<2>(codes);
    if constexpr (C::planes == 6)
        planes[3] = gather_plane<0>(high), planes[4] = gather_plane<1>(high), planes[5] = gather_plane<2>(high);
}

template <typename C>
void lossless_encode(const typename C::Word* __restrict words, size_t count, int base, uint64_t* __restrict planes,
                     uint8_t* __restrict low, uint8_t* __restrict escapes, size_t escape_count, uint32_t* __restrict counts) {
    using Word = typename C::Word;
    size_t next = 0;
    for (size_t start = 0; start < count; start += run_size) {
        const size_t end = count - start < run_size ? count : start + run_size;
        const size_t first = next;
        for (size_t at = start; at < end; at += group_size, planes += C::planes, low += C::low_bytes * group_size) {
            const size_t here = end - at < group_size ? end - at : group_size;
            const Word* from = words + at;
            Word tail[group_size] = {};
            if (here < group_size) {
                for (size_t i = 0; i < here; ++i) tail[i] = from[i];
                from = tail;
            }
            encode_group<C>(from, uint8_t(base), planes, low);
            for (int p = 0; p < C::planes; ++p) planes[p] &= first_bits(here);
            for (uint64_t escaped = ~(planes[0] | planes[1] | planes[2]) & first_bits(here); escaped; escaped &= escaped - 1) {
                if (next < escape_count) escapes[next] = uint8_t(C::exponent(from[__builtin_ctzll(escaped)]));
                ++next;
            }
        }
        *counts++ = uint32_t(next - first);
    }
    for (; next < escape_count; ++next) escapes[next] = 0;
}

// Four tables: neighbours often share an exponent, and would wait for each other's count.
template <typename C>
void lossless_count(const typename C::Word* __restrict words, size_t count, uint64_t* __restrict counts) {
    uint64_t tables[4][256] = {};
    size_t i = 0;
    for (; i + 4 <= count; i += 4)
        for (int t = 0; t < 4; ++t) ++tables[t][C::exponent(words[i + t])];
    for (; i < count; ++i) ++tables[0][C::exponent(words[i])];
    for (int e = 0; e < 256; ++e) counts[e] = tables[0][e] + tables[1][e] + tables[2][e] + tables[3][e];
}

}  // namespace
