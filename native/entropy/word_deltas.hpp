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

// counts[exponent of the base][symbol]
template <typename Word>
void delta_count(const Word* base, const Word* tuned, size_t count, int mantissa, uint64_t* counts) {
    for (size_t i = 0; i < count; ++i)
        ++counts[exponent_of(base[i], mantissa) * rans_symbols + difference(base[i], tuned[i]).symbol];
}

// Symbols, and the low bits of each chunk from a byte on; a row of `low` has room for all words of a chunk.
template <typename Word>
void delta_split(const Word* base, const Word* tuned, size_t count, size_t chunk, uint8_t* symbols, uint8_t* low, uint64_t* sizes) {
    for (size_t first = 0; first < count; first += chunk, low += chunk * sizeof(Word), ++sizes) {
        const size_t length = chunk_length(count, chunk, first);
        uint64_t pending = 0;
        int bits = 0;
        uint8_t* next = low;
        for (size_t i = first; i < first + length; ++i) {
            const Difference apart = difference(base[i], tuned[i]);
            symbols[i] = uint8_t(apart.symbol);
            pending |= uint64_t(apart.low) << bits;
            bits += apart.low_bits;
            if (bits >= 32) {
                const uint32_t ready = uint32_t(pending);
                __builtin_memcpy(next, &ready, 4);
                next += 4;
                pending >>= 32;
                bits -= 32;
            }
        }
        for (; bits > 0; bits -= 8, pending >>= 8) *next++ = uint8_t(pending);
        *sizes = uint64_t(next - low);
    }
}

// The context of each word: what the map has for its exponent.
template <typename Word>
void delta_contexts(const Word* base, size_t count, const uint8_t* map, int mantissa, uint8_t* contexts) {
    for (size_t i = 0; i < count; ++i) contexts[i] = map[exponent_of(base[i], mantissa)];
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

// The tuned words. `used` says how many bytes of its low bits each chunk has read.
template <typename Word>
void delta_join(const Word* base, const uint8_t* symbols, const uint8_t* low, size_t nbytes, const uint64_t* ends, size_t chunk, Word* out,
                size_t count, uint64_t* used) {
    using O = Ordered<Word>;
    uint64_t start = 0;
    for (size_t first = 0; first < count; first += chunk, start = *ends++) {
        const size_t length = chunk_length(count, chunk, first);
        uint64_t at = 8 * start;
        for (size_t i = first; i < first + length; ++i) {
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
