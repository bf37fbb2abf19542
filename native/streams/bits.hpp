// Little-endian bit streams: element j is the `Bits` bits from bit j·Bits up.
//
// Eight codes fill exactly Bits bytes. They are spread from the low 8·Bits bits of a word to its
// eight bytes (or gathered back) in three steps, halving the distance each time.
#pragma once

#include "kernel.hpp"
#include "simd/lanes.hpp"

namespace {

template <int Bits>
struct Lanes {
    static constexpr uint64_t low(int bits) { return bits == 64 ? ~uint64_t(0) : (uint64_t(1) << bits) - 1; }
    static constexpr uint64_t in32 = low(4 * Bits);                              // four codes
    static constexpr uint64_t in16 = low(2 * Bits) * 0x0000000100000001u;        // two codes of each half
    static constexpr uint64_t in8 = low(Bits) * 0x0001000100010001u;             // the even codes
    static constexpr uint64_t all = low(Bits) * 0x0101010101010101u;             // every code, a byte each

    static uint64_t spread(uint64_t x) {
        x = (x & in32) | (x >> 4 * Bits & in32) << 32;
        x = (x & in16) | (x >> 2 * Bits & in16) << 16;
        return (x & in8) | (x >> Bits & in8) << 8;
    }

    static uint64_t gather(uint64_t x) {
        x &= all;
        x = (x & in8) | (x >> 8 & in8) << Bits;
        x = (x & in16) | (x >> 16 & in16) << 2 * Bits;
        return (x & in32) | (x >> 32 & in32) << 4 * Bits;
    }
};

inline uint64_t load_bytes(const uint8_t* at, size_t count) {
    uint64_t word = 0;
    for (size_t i = 0; i < count; ++i) word |= uint64_t(at[i]) << 8 * i;
    return word;
}

inline void store_bytes(uint8_t* at, size_t count, uint64_t word) {
    for (size_t i = 0; i < count; ++i) at[i] = uint8_t(word >> 8 * i);
}

// Four bits, the commonest width: 32 codes in one register.
inline void unpack_nibbles(const uint8_t* packed, uint8_t* codes) {
    const U8x16 q = load(packed), low = q & 15, high = q >> 4;
    store(codes, __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
    store(codes + 16, __builtin_shufflevector(low, high, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
}

#ifdef __AVX2__
inline U8x16 packed_nibbles(__m256i codes) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_and_si256(codes, _mm256_set1_epi8(15)), _mm256_set1_epi16(0x1001));  // even + 16 · odd
    return U8x16(_mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1)));
}

inline void pack_nibbles(const uint8_t* codes, uint8_t* packed) {
    store(packed, packed_nibbles(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes))));
}
#else
inline void pack_nibbles(const uint8_t* codes, uint8_t* packed) {
    const U8x16 a = load(codes), b = load(codes + 16);
    const U8x16 even = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const U8x16 odd = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    store(packed, (even & 15) | odd << 4);
}
#endif

#ifdef __AVX2__
// Sixteen codes from sixteen bytes, of which they need 2 · Bits: each pair of bytes that holds a code is moved to a lane of its
// own and multiplied until the code is uppermost.
template <int Bits>
struct Spread {
    alignas(32) uint8_t from[32];
    alignas(32) uint16_t times[16];

    constexpr Spread() : from(), times() {
        for (int i = 0; i < 16; ++i) {
            from[2 * i] = uint8_t(i * Bits / 8);
            from[2 * i + 1] = uint8_t(i * Bits / 8 + 1);
            times[i] = uint16_t(1 << (16 - Bits - i * Bits % 8));
        }
    }

    // From code `done`, a multiple of 16, as many sixteens as there are sixteen bytes for; the first code that is left.
    size_t operator()(const uint8_t* __restrict packed, uint8_t* __restrict codes, size_t done, size_t count) const {
        const __m256i order = _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
        const __m256i factors = _mm256_load_si256(reinterpret_cast<const __m256i*>(times));
        const size_t nbytes = (count * Bits + 7) / 8, reached = nbytes < 16 ? 0 : (nbytes - 16) / (2 * Bits) + 1;
        const size_t end = reached < count / 16 ? reached : count / 16;
        for (size_t i = done / 16; i < end; ++i) {
            const __m256i twice = _mm256_broadcastsi128_si256(__m128i(load(packed + i * 2 * Bits)));
            const __m256i words = _mm256_srli_epi16(_mm256_mullo_epi16(_mm256_shuffle_epi8(twice, order), factors), 16 - Bits);
            store(codes + 16 * i, U8x16(_mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1))));
        }
        return 16 * end > done ? 16 * end : done;
    }
};

template <int Bits>
constexpr Spread<Bits> spread_codes;
#endif

template <int Bits>
inline void unpack_row(const uint8_t* __restrict packed, uint8_t* __restrict codes, size_t count) {
    size_t done = 0;
    if (Bits == 8)
        for (; done < count; ++done) codes[done] = packed[done];
    if (Bits == 4)
        for (; done + 32 <= count; done += 32) unpack_nibbles(packed + done / 2, codes + done);
#ifdef __AVX2__
    if constexpr (Bits < 8) done = spread_codes<Bits>(packed, codes, done, count);
#endif
    for (; done + 8 <= count; done += 8) store_bytes(codes + done, 8, Lanes<Bits>::spread(load_bytes(packed + done * Bits / 8, Bits)));
    const size_t rest = count - done;
    if (rest) store_bytes(codes + done, rest, Lanes<Bits>::spread(load_bytes(packed + done * Bits / 8, (rest * Bits + 7) / 8)));
}

template <int Bits>
inline void pack_row(const uint8_t* __restrict codes, uint8_t* __restrict packed, size_t count) {
    size_t done = 0;
    if (Bits == 8)
        for (; done < count; ++done) packed[done] = codes[done];
    if (Bits == 4)
        for (; done + 32 <= count; done += 32) pack_nibbles(codes + done, packed + done / 2);
    for (; done + 8 <= count; done += 8) store_bytes(packed + done * Bits / 8, Bits, Lanes<Bits>::gather(load_bytes(codes + done, 8)));
    const size_t rest = count - done;
    if (rest) store_bytes(packed + done * Bits / 8, (rest * Bits + 7) / 8, Lanes<Bits>::gather(load_bytes(codes + done, rest)));
}

// unpack_row and pack_row by their width, less one.
using RowOfCodes = void (*)(const uint8_t*, uint8_t*, size_t);
constexpr RowOfCodes unpack_rows[] = {unpack_row<1>, unpack_row<2>, unpack_row<3>, unpack_row<4>,
                                      unpack_row<5>, unpack_row<6>, unpack_row<7>, unpack_row<8>};
constexpr RowOfCodes pack_rows[] = {pack_row<1>, pack_row<2>, pack_row<3>, pack_row<4>,
                                    pack_row<5>, pack_row<6>, pack_row<7>, pack_row<8>};

void unpack_bits(const uint8_t* packed, size_t rows, size_t nbytes, int bits, uint8_t* out, size_t count) {
    for (size_t row = 0; row < rows; ++row) unpack_rows[bits - 1](packed + row * nbytes, out + row * count, count);
}

void pack_bits(const uint8_t* codes, size_t rows, size_t count, int bits, uint8_t* out, size_t nbytes) {
    const size_t used = (count * size_t(bits) + 7) / 8;
    for (size_t row = 0; row < rows; ++row) {
        pack_rows[bits - 1](codes + row * count, out + row * nbytes, count);
        for (size_t i = used; i < nbytes; ++i) out[row * nbytes + i] = 0;
    }
}

}  // namespace
