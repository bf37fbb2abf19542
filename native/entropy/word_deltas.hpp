// Differences of words in the order of the floats they are, as a class for the entropy coder and bits as they are.
// kernels/entropy/word_deltas.py has the definition.
#pragma once

#include "entropy/rans.hpp"

namespace {

template <typename Word>
struct Ordered {
    static constexpr int bits = 8 * sizeof(Word);
    static constexpr Word sign = Word(Word(1) << (bits - 1));

    static Word of(Word word) { return word & sign ? Word(~word) : Word(word | sign); }
    static Word back(Word ordered) { return ordered & sign ? Word(ordered ^ sign) : Word(~ordered); }
};

inline int highest_bit(uint32_t value) { return 31 - __builtin_clz(value | 1); }

// The symbol of a difference of magnitude m, and its bits: m = 0, 1, 2, 3 are classes of their own, then each power of two has two.
struct Difference {
    uint32_t symbol, low;
    int low_bits;
};

template <typename Word>
inline Difference difference(Word base, Word tuned) {
    using O = Ordered<Word>;
    Word apart = Word(O::of(tuned) - O::of(base));
    if (base & O::sign) apart = Word(-apart);
    const bool shrinks = apart & O::sign;
    const uint32_t magnitude = shrinks ? Word(-apart) : apart;
    const int top = highest_bit(magnitude);
    if (magnitude < 2) return {magnitude * 2 + shrinks, 0, 0};
    const int low_bits = top - 1;
    const uint32_t kind = 2 * uint32_t(top) + (magnitude >> low_bits & 1);
    return {kind * 2 + shrinks, magnitude & ((1u << low_bits) - 1), low_bits};
}

template <typename Word>
inline size_t exponent_of(Word word, int mantissa) { return size_t(Word(word & Word(~Ordered<Word>::sign)) >> mantissa) & 0xff; }

// The differences of eight words, a field an array.
struct Differences {
    alignas(32) uint32_t low[8], low_bits[8];
    uint8_t symbol[8];
};

template <typename Word>
inline void differences(const Word* base, const Word* tuned, Differences& all) {
#ifdef __AVX2__
    if constexpr (sizeof(Word) == 2) {
        const __m256i one = _mm256_set1_epi32(1), sign = _mm256_set1_epi32(0x8000), bits = _mm256_set1_epi32(0xffff);
        const __m256i b = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(base)));
        const __m256i t = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(tuned)));
        const __m256i least = _mm256_set1_epi32(0x7fff), b_negative = _mm256_cmpgt_epi32(b, least), t_negative = _mm256_cmpgt_epi32(t, least);
        const __m256i b_ordered = _mm256_xor_si256(b, _mm256_blendv_epi8(sign, bits, b_negative));
        const __m256i t_ordered = _mm256_xor_si256(t, _mm256_blendv_epi8(sign, bits, t_negative));
        const __m256i apart = _mm256_sub_epi32(_mm256_xor_si256(_mm256_sub_epi32(t_ordered, b_ordered), b_negative), b_negative);
        const __m256i wrapped = _mm256_srai_epi32(_mm256_slli_epi32(apart, 16), 16), magnitude = _mm256_abs_epi32(wrapped);
        const __m256i shrinks = _mm256_srli_epi32(wrapped, 31);
        // Magnitudes of 16 bits are exact as f32, whose exponent is their highest bit.
        const __m256i exponent = _mm256_srli_epi32(_mm256_castps_si256(_mm256_cvtepi32_ps(magnitude)), 23);
        const __m256i low_bits = _mm256_max_epi32(_mm256_sub_epi32(exponent, _mm256_set1_epi32(128)), _mm256_setzero_si256());
        const __m256i second = _mm256_and_si256(_mm256_srlv_epi32(magnitude, low_bits), one);
        const __m256i large = _mm256_cmpgt_epi32(magnitude, one);
        const __m256i kind = _mm256_blendv_epi8(magnitude, _mm256_or_si256(second, _mm256_slli_epi32(_mm256_add_epi32(low_bits, one), 1)), large);
        const __m256i symbol = _mm256_or_si256(_mm256_slli_epi32(kind, 1), shrinks);
        const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(symbol), _mm256_extracti128_si256(symbol, 1));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(all.symbol), _mm_packus_epi16(packed, packed));
        _mm256_store_si256(reinterpret_cast<__m256i*>(all.low),
                           _mm256_and_si256(magnitude, _mm256_sub_epi32(_mm256_sllv_epi32(one, low_bits), one)));
        _mm256_store_si256(reinterpret_cast<__m256i*>(all.low_bits), low_bits);
        return;
    }
#endif
    for (int i = 0; i < 8; ++i) {
        const Difference each = difference(base[i], tuned[i]);
        all.symbol[i] = uint8_t(each.symbol);
        all.low[i] = each.low;
        all.low_bits[i] = uint32_t(each.low_bits);
    }
}

// counts[exponent of the base][symbol]
template <typename Word>
void delta_count(const Word* base, const Word* tuned, size_t count, int mantissa, uint64_t* counts) {
    size_t i = 0;
    for (Differences all; count - i >= 8; i += 8) {
        differences(base + i, tuned + i, all);
        for (int k = 0; k < 8; ++k) ++counts[exponent_of(base[i + k], mantissa) * rans_symbols + all.symbol[k]];
    }
    for (; i < count; ++i) ++counts[exponent_of(base[i], mantissa) * rans_symbols + difference(base[i], tuned[i]).symbol];
}

// A stream of bits, at most 56 at a time, lowest first. Its bytes are written eight at a time, so that there must be room behind them.
struct BitWriter {
    uint8_t* next;
    uint64_t pending = 0;
    int bits = 0;  // pending, less than a byte

    void put(uint64_t value, int width) {
        pending |= value << bits;
        __builtin_memcpy(next, &pending, 8);
        bits += width;
        next += bits / 8;
        pending >>= bits / 8 * 8;
        bits %= 8;
    }
};

// The low bits of eight words.
template <typename Word>
inline void put_low(const Differences& all, BitWriter& low) {
#ifdef __AVX2__
    if constexpr (sizeof(Word) == 2) {  // four have at most 56 bits: they are put together in twos, and those in twos
        const __m256i half = _mm256_set1_epi64x(0xffffffff), each = _mm256_load_si256(reinterpret_cast<const __m256i*>(all.low));
        const __m256i widths = _mm256_load_si256(reinterpret_cast<const __m256i*>(all.low_bits)), even = _mm256_and_si256(widths, half);
        const __m256i twos = _mm256_or_si256(_mm256_and_si256(each, half), _mm256_sllv_epi64(_mm256_srli_epi64(each, 32), even));
        const __m256i of_twos = _mm256_add_epi64(even, _mm256_srli_epi64(widths, 32));
        const __m256i fours = _mm256_or_si256(twos, _mm256_sllv_epi64(_mm256_unpackhi_epi64(twos, twos), of_twos));
        const __m256i of_fours = _mm256_add_epi64(of_twos, _mm256_unpackhi_epi64(of_twos, of_twos));
        low.put(uint64_t(_mm256_extract_epi64(fours, 0)), int(_mm256_extract_epi64(of_fours, 0)));
        low.put(uint64_t(_mm256_extract_epi64(fours, 2)), int(_mm256_extract_epi64(of_fours, 2)));
        return;
    }
#endif
    for (int k = 0; k < 8; ++k) low.put(all.low[k], int(all.low_bits[k]));
}

// Symbols, and the low bits of each chunk from a byte on; a row of `low` has room for all words of a chunk.
template <typename Word>
void delta_split(const Word* base, const Word* tuned, size_t count, size_t chunk, uint8_t* symbols, uint8_t* low, uint64_t* sizes) {
    constexpr size_t at_once = 1024;
    uint8_t written[at_once * sizeof(Word) + 8];
    for (size_t first = 0; first < count; first += chunk, low += chunk * sizeof(Word), ++sizes) {
        const size_t stop = first + chunk_length(count, chunk, first);
        uint8_t* next = low;
        BitWriter bits{written};
        for (size_t i = first; i < stop;) {
            const size_t end = stop - i > at_once ? i + at_once : stop;
            bits.next = written;
            for (Differences all; end - i >= 8; i += 8) {
                differences(base + i, tuned + i, all);
                __builtin_memcpy(symbols + i, all.symbol, sizeof all.symbol);
                put_low<Word>(all, bits);
            }
            for (; i < end; ++i) {
                const Difference apart = difference(base[i], tuned[i]);
                symbols[i] = uint8_t(apart.symbol);
                bits.put(apart.low, apart.low_bits);
            }
            __builtin_memcpy(next, written, size_t(bits.next - written));
            next += bits.next - written;
        }
        if (bits.bits) *next++ = uint8_t(bits.pending);
        *sizes = uint64_t(next - low);
    }
}

#ifdef __AVX2__
// The exponents of 32 words, a byte each.
template <typename Word>
inline __m256i exponents_of(const Word* words, int mantissa) {
    const __m128i shift = _mm_cvtsi32_si128(mantissa);
    __m256i each[sizeof(Word)];
    for (size_t i = 0; i < sizeof(Word); ++i) {
        const __m256i read = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + 32 / sizeof(Word) * i));
        if constexpr (sizeof(Word) == 2)
            each[i] = _mm256_and_si256(_mm256_srl_epi16(_mm256_and_si256(read, _mm256_set1_epi16(0x7fff)), shift), _mm256_set1_epi16(0xff));
        else
            each[i] = _mm256_and_si256(_mm256_srl_epi32(_mm256_and_si256(read, _mm256_set1_epi32(0x7fffffff)), shift), _mm256_set1_epi32(0xff));
    }
    if constexpr (sizeof(Word) == 2)
        return _mm256_permute4x64_epi64(_mm256_packus_epi16(each[0], each[1]), 0b11'01'10'00);
    else
        return packed_bytes(each);
}
#endif

// The context of each word: what the map has for its exponent.
template <typename Word>
void delta_contexts(const Word* base, size_t count, const uint8_t* map, int mantissa, uint8_t* contexts) {
    size_t i = 0;
#ifdef __AVX2__
    // By rows of 16 exponents. Models have few exponents, so that most rows are zero, and left out.
    int first = 16, last = -1;
    for (int exponent = 0; exponent < 256; ++exponent)
        if (map[exponent]) first = exponent / 16 < first ? exponent / 16 : first, last = exponent / 16;
    for (; count - i >= 32; i += 32) {
        const __m256i exponents = exponents_of(base + i, mantissa);
        __m256i mapped = _mm256_setzero_si256();
        for (int row = first; row <= last; ++row) {
            const __m256i entries = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(map + 16 * row)));
            // 0 to 15 in this row; all else gets the highest bit, for which a shuffle gives zero.
            const __m256i places = _mm256_xor_si256(exponents, _mm256_set1_epi8(char(16 * row)));
            mapped = _mm256_or_si256(mapped, _mm256_shuffle_epi8(entries, _mm256_adds_epu8(places, _mm256_set1_epi8(0x70))));
        }
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(contexts + i), mapped);
    }
#endif
    for (; i < count; ++i) contexts[i] = map[exponent_of(base[i], mantissa)];
}

// Bits `at` to `at` + 31 of a stream; what lies behind its end is zero.
inline uint32_t bits_from(const uint8_t* stream, uint64_t nbytes, uint64_t at) {
    uint64_t word = 0;
    const uint64_t byte = at / 8;
    if (byte + 8 <= nbytes)
        __builtin_memcpy(&word, stream + byte, 8);
    else
        for (uint64_t i = byte; i < nbytes && i < byte + 8; ++i) word |= uint64_t(stream[i]) << 8 * (i - byte);
    return uint32_t(word >> at % 8);
}

#ifdef __AVX512BW__
// How many low bits come before each of 32 words, in words of 16 bits, and how many there are in all. Each has at most 14.
inline __m512i sums_before(__m256i low_bits, uint64_t& total) {
    __m256i sums = _mm256_add_epi8(low_bits, _mm256_slli_epi64(low_bits, 8));  // within eight bytes
    sums = _mm256_add_epi8(sums, _mm256_slli_epi64(sums, 16));
    sums = _mm256_add_epi8(sums, _mm256_slli_epi64(sums, 32));
    const __m256i eights = _mm256_srli_epi64(sums, 56);
    __m256i through = _mm256_add_epi64(eights, _mm256_maskz_permutex_epi64(0b1110, eights, 0b10'01'00'00));
    through = _mm256_add_epi64(through, _mm256_maskz_permutex_epi64(0b1100, through, 0b01'00'00'00));
    total = uint64_t(_mm256_extract_epi64(through, 3));
    const __m512i before_eights = _mm512_castsi256_si512(_mm256_sub_epi64(through, eights));
    const __m512i of_eight = _mm512_permutexvar_epi64(_mm512_set_epi64(3, 3, 2, 2, 1, 1, 0, 0), before_eights);
    const __m512i spread = _mm512_shuffle_epi8(of_eight, _mm512_set1_epi16(0x0100));
    return _mm512_add_epi16(_mm512_cvtepu8_epi16(_mm256_slli_epi64(sums, 8)), spread);
}

// 64 bytes of a stream, from the one with bit `at` on; those behind its end are not read, and zero.
inline __m512i stream_from(const uint8_t* stream, uint64_t nbytes, uint64_t at) {
    const uint64_t left = at / 8 < nbytes ? nbytes - at / 8 : 0;
    return _mm512_maskz_loadu_epi8(left < 64 ? (uint64_t(1) << left) - 1 : ~uint64_t(0), stream + (left ? at / 8 : 0));
}

// 32 words of 16 bits at once: the low bits of all lie within 64 bytes.
inline void join_32(const uint16_t* base, const uint8_t* symbols, const uint8_t* low, uint64_t nbytes, uint64_t& at, uint16_t* out) {
    const __m256i symbol_bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(symbols));
    const __m256i half_kinds = _mm256_and_si256(_mm256_srli_epi16(symbol_bytes, 2), _mm256_set1_epi8(15));
    const __m256i low_bytes = _mm256_subs_epu8(half_kinds, _mm256_set1_epi8(1));
    uint64_t total;
    const __m512i place = _mm512_add_epi16(sums_before(low_bytes, total), _mm512_set1_epi16(int16_t(at % 8)));
    const __m512i stream = stream_from(low, nbytes, at);
    at += total;

    const __m512i one = _mm512_set1_epi16(1), symbol = _mm512_cvtepu8_epi16(symbol_bytes), low_bits = _mm512_cvtepu8_epi16(low_bytes);
    const __m512i word = _mm512_srli_epi16(place, 4), shift = _mm512_and_si512(place, _mm512_set1_epi16(15));
    const __m512i lower = _mm512_permutexvar_epi16(word, stream), upper = _mm512_permutexvar_epi16(_mm512_add_epi16(word, one), stream);
    const __m512i read = _mm512_or_si512(_mm512_srlv_epi16(lower, shift), _mm512_sllv_epi16(upper, _mm512_sub_epi16(_mm512_set1_epi16(16), shift)));
    const __m512i below = _mm512_and_si512(read, _mm512_sub_epi16(_mm512_sllv_epi16(one, low_bits), one));
    const __m512i kind = _mm512_and_si512(_mm512_srli_epi16(symbol, 1), _mm512_set1_epi16(31));
    const __m512i two_bits = _mm512_or_si512(_mm512_and_si512(kind, one), _mm512_set1_epi16(2));
    const __m512i first_bits = _mm512_mask_blend_epi16(_mm512_cmpgt_epi16_mask(kind, one), kind, two_bits);
    const __m512i magnitude = _mm512_or_si512(_mm512_sllv_epi16(first_bits, low_bits), below);

    const __m512i sign = _mm512_set1_epi16(int16_t(0x8000)), all = _mm512_set1_epi16(-1), own = _mm512_loadu_si512(base);
    const __mmask32 negative = _mm512_movepi16_mask(own), falls = _mm512_test_epi16_mask(symbol, one) ^ negative;
    const __m512i ordered = _mm512_xor_si512(own, _mm512_mask_blend_epi16(negative, sign, all));
    const __m512i moved = _mm512_mask_sub_epi16(_mm512_add_epi16(ordered, magnitude), falls, ordered, magnitude);
    _mm512_storeu_si512(out, _mm512_xor_si512(moved, _mm512_mask_blend_epi16(_mm512_movepi16_mask(moved), all, sign)));
}

// The same of 16 words of 32 bits, which have at most 30 low bits each.
inline void join_16(const uint32_t* base, const uint8_t* symbols, const uint8_t* low, uint64_t nbytes, uint64_t& at, uint32_t* out) {
    const __m128i symbol_bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(symbols));
    const __m128i half_kinds = _mm_and_si128(_mm_srli_epi16(symbol_bytes, 2), _mm_set1_epi8(31));
    const __m128i low_bytes = _mm_subs_epu8(half_kinds, _mm_set1_epi8(1));
    __m128i sums = _mm_add_epi8(low_bytes, _mm_slli_epi64(low_bytes, 8));  // within eight bytes, at most 240
    sums = _mm_add_epi8(sums, _mm_slli_epi64(sums, 16));
    sums = _mm_add_epi8(sums, _mm_slli_epi64(sums, 32));
    const uint32_t first_eight = uint32_t(_mm_extract_epi8(sums, 7)), second_eight = uint32_t(_mm_extract_epi8(sums, 15));
    const __m512i start = _mm512_set1_epi32(int(at % 8)), before = _mm512_cvtepu8_epi32(_mm_slli_epi64(sums, 8));
    const __m512i place = _mm512_add_epi32(before, _mm512_mask_add_epi32(start, 0xff00, start, _mm512_set1_epi32(int(first_eight))));
    const __m512i stream = stream_from(low, nbytes, at);
    at += first_eight + second_eight;

    const __m512i one = _mm512_set1_epi32(1), symbol = _mm512_cvtepu8_epi32(symbol_bytes), low_bits = _mm512_cvtepu8_epi32(low_bytes);
    const __m512i word = _mm512_srli_epi32(place, 5), shift = _mm512_and_si512(place, _mm512_set1_epi32(31));
    const __m512i lower = _mm512_permutexvar_epi32(word, stream), upper = _mm512_permutexvar_epi32(_mm512_add_epi32(word, one), stream);
    const __m512i read = _mm512_or_si512(_mm512_srlv_epi32(lower, shift), _mm512_sllv_epi32(upper, _mm512_sub_epi32(_mm512_set1_epi32(32), shift)));
    const __m512i below = _mm512_and_si512(read, _mm512_sub_epi32(_mm512_sllv_epi32(one, low_bits), one));
    const __m512i kind = _mm512_and_si512(_mm512_srli_epi32(symbol, 1), _mm512_set1_epi32(63));
    const __m512i two_bits = _mm512_or_si512(_mm512_and_si512(kind, one), _mm512_set1_epi32(2));
    const __m512i first_bits = _mm512_mask_blend_epi32(_mm512_cmpgt_epi32_mask(kind, one), kind, two_bits);
    const __m512i magnitude = _mm512_or_si512(_mm512_sllv_epi32(first_bits, low_bits), below);

    const __m512i sign = _mm512_set1_epi32(int(0x80000000)), all = _mm512_set1_epi32(-1), own = _mm512_loadu_si512(base);
    const __mmask16 negative = _mm512_movepi32_mask(own), falls = _mm512_test_epi32_mask(symbol, one) ^ negative;
    const __m512i ordered = _mm512_xor_si512(own, _mm512_mask_blend_epi32(negative, sign, all));
    const __m512i moved = _mm512_mask_sub_epi32(_mm512_add_epi32(ordered, magnitude), falls, ordered, magnitude);
    _mm512_storeu_si512(out, _mm512_xor_si512(moved, _mm512_mask_blend_epi32(_mm512_movepi32_mask(moved), all, sign)));
}
#elif defined(__AVX2__)
// Sum over the lanes before each lane, and over all in `total`.
inline __m256i sums_before(__m256i lanes, uint64_t& total) {
    __m256i sums = _mm256_add_epi32(lanes, _mm256_slli_si256(lanes, 4));
    sums = _mm256_add_epi32(sums, _mm256_slli_si256(sums, 8));
    const __m256i half = _mm256_permutevar8x32_epi32(sums, _mm256_set1_epi32(3));
    sums = _mm256_add_epi32(sums, _mm256_blend_epi32(_mm256_setzero_si256(), half, 0xf0));
    total = uint32_t(_mm256_extract_epi32(sums, 7));
    return _mm256_sub_epi32(sums, lanes);
}

// Eight words of 16 bits at once. Reads four bytes from every place where low bits begin: 20 bytes from bit `at` on must be there.
inline void join_eight(const uint16_t* base, const uint8_t* symbols, const uint8_t* low, uint64_t& at, uint16_t* out) {
    const __m256i one = _mm256_set1_epi32(1), sign = _mm256_set1_epi32(0x8000), all = _mm256_set1_epi32(0xffff);
    const __m256i symbol = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(symbols)));
    const __m256i kind = _mm256_and_si256(_mm256_srli_epi32(symbol, 1), _mm256_set1_epi32(31));
    const __m256i low_bits = _mm256_sub_epi32(_mm256_max_epi32(_mm256_srli_epi32(kind, 1), one), one);
    uint64_t total;
    const __m256i place = _mm256_add_epi32(sums_before(low_bits, total), _mm256_set1_epi32(int(at % 8)));
    const __m256i read = _mm256_i32gather_epi32(reinterpret_cast<const int*>(low + at / 8), _mm256_srli_epi32(place, 3), 1);
    at += total;
    const __m256i below = _mm256_and_si256(_mm256_srlv_epi32(read, _mm256_and_si256(place, _mm256_set1_epi32(7))),
                                           _mm256_sub_epi32(_mm256_sllv_epi32(one, low_bits), one));
    const __m256i large = _mm256_cmpgt_epi32(kind, one), odd = _mm256_and_si256(kind, one);
    const __m256i top = _mm256_sllv_epi32(_mm256_blendv_epi8(kind, _mm256_or_si256(odd, _mm256_add_epi32(one, one)), large), low_bits);
    const __m256i magnitude = _mm256_or_si256(top, below);

    const __m256i word = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(base)));
    const __m256i negative = _mm256_cmpgt_epi32(word, _mm256_set1_epi32(0x7fff));
    const __m256i ordered = _mm256_xor_si256(word, _mm256_blendv_epi8(sign, all, negative));
    const __m256i shrinks = _mm256_cmpeq_epi32(_mm256_and_si256(symbol, one), one), falls = _mm256_xor_si256(shrinks, negative);
    const __m256i moved = _mm256_and_si256(_mm256_add_epi32(ordered, _mm256_sub_epi32(_mm256_xor_si256(magnitude, falls), falls)), all);
    const __m256i positive = _mm256_cmpgt_epi32(moved, _mm256_set1_epi32(0x7fff));
    const __m256i tuned = _mm256_xor_si256(moved, _mm256_blendv_epi8(all, sign, positive));
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(tuned), _mm256_extracti128_si256(tuned, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), packed);
}
#endif

// The tuned words. `used` says how many bytes of its low bits each chunk has read.
template <typename Word>
void delta_join(const Word* base, const uint8_t* symbols, const uint8_t* low, size_t nbytes, const uint64_t* ends, size_t chunk, Word* out,
                size_t count, uint64_t* used) {
    using O = Ordered<Word>;
    uint64_t start = 0;
    for (size_t first = 0; first < count; first += chunk, start = *ends++) {
        const size_t length = chunk_length(count, chunk, first);
        uint64_t at = 8 * start;
        size_t i = first;
#ifdef __AVX512BW__
        if constexpr (sizeof(Word) == 2)
            for (; first + length - i >= 32; i += 32) join_32(base + i, symbols + i, low, nbytes, at, out + i);
        else
            for (; first + length - i >= 16; i += 16) join_16(base + i, symbols + i, low, nbytes, at, out + i);
#elif defined(__AVX2__)
        if constexpr (sizeof(Word) == 2)
            for (; first + length - i >= 8 && at / 8 + 20 <= nbytes; i += 8) join_eight(base + i, symbols + i, low, at, out + i);
#endif
        for (; i < first + length; ++i) {
            const uint32_t kind = symbols[i] / 2 % (2 * O::bits);
            const int low_bits = kind < 2 ? 0 : int(kind / 2) - 1;
            const uint32_t top = kind < 2 ? kind : (2 | kind % 2) << low_bits;
            const uint32_t magnitude = top | (bits_from(low, nbytes, at) & ((1u << low_bits) - 1));
            at += uint64_t(low_bits);
            const bool falls = (symbols[i] & 1) != bool(base[i] & O::sign);
            out[i] = O::back(Word(O::of(base[i]) + (falls ? Word(-magnitude) : Word(magnitude))));
        }
        *used++ = (at + 7) / 8 - start;
    }
}

}  // namespace

#define KERNELS_OF_Entropy(X)                                                        \
    X(rans_encode, rans_encode) X(rans_decode, rans_decode) \
    X(rans_decode_floats_16, rans_decode_floats<uint16_t>) X(rans_decode_floats_32, rans_decode_floats<uint32_t>) \
    X(delta_count_16, delta_count<uint16_t>) X(delta_count_32, delta_count<uint32_t>)    \
    X(delta_split_16, delta_split<uint16_t>) X(delta_split_32, delta_split<uint32_t>)    \
    X(delta_contexts_16, delta_contexts<uint16_t>) X(delta_contexts_32, delta_contexts<uint32_t>) \
    X(delta_join_16, delta_join<uint16_t>) X(delta_join_32, delta_join<uint32_t>)
FLYWEIGHT_TABLE(Entropy)
