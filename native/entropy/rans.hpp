// Asymmetric numeral systems (rANS): 32 interleaved states a chunk, frequencies of 12 bits, renormalised by words of 16.
// kernels/entropy/rans.py has the definition.
#pragma once

#include "kernel.hpp"
#include "simd/vectors.hpp"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace {

constexpr size_t rans_states = 32, rans_symbols = 256, rans_contexts = 16;
constexpr int rans_bits = 12;
constexpr uint32_t rans_slots = 1u << rans_bits, rans_least = 1u << 16;

inline size_t chunk_length(size_t count, size_t chunk, size_t at) { return count - at < chunk ? count - at : chunk; }

// Each chunk from its last symbol to its first, so that it is read from its first. Its words end where its row of `words` does. A
// symbol of frequency 0 is coded as if it had 1, and does not come back.
void rans_encode(const uint8_t* symbols, const uint8_t* contexts, size_t count, const uint16_t* frequencies, size_t tables, size_t chunk,
                 uint32_t* states, uint16_t* words, uint64_t* counts) {
    uint32_t starts[rans_contexts * rans_symbols];
    for (size_t table = 0; table < tables; ++table)
        for (size_t symbol = 0, sum = 0; symbol < rans_symbols; ++symbol) {
            starts[table * rans_symbols + symbol] = uint32_t(sum);
            sum += frequencies[table * rans_symbols + symbol];
        }
    for (size_t first = 0; first < count; first += chunk, states += rans_states, words += chunk, ++counts) {
        const size_t length = chunk_length(count, chunk, first);
        uint16_t* next = words + chunk;
        for (size_t i = 0; i < rans_states; ++i) states[i] = rans_least;
        for (size_t i = length; i-- > 0;) {
            const size_t entry = (contexts ? contexts[first + i] : 0) * rans_symbols + symbols[first + i];
            const uint32_t frequency = frequencies[entry] ? frequencies[entry] : 1;
            uint32_t state = states[i % rans_states];
            if (state >= uint64_t(frequency) << (32 - rans_bits)) {
                *--next = uint16_t(state);
                state >>= 16;
            }
            states[i % rans_states] = (state / frequency << rans_bits) + state % frequency + starts[entry];
        }
        *counts = uint64_t(words + chunk - next);
    }
}

// One symbol: the entry of the table is symbol << 24 | frequency − 1 << 12 | slot − start.
inline uint8_t rans_step(uint32_t& state, const uint32_t* table, const uint16_t* words, size_t total, size_t& next) {
    const uint32_t entry = table[state & (rans_slots - 1)];
    state = ((entry >> 12 & 0xfff) + 1) * (state >> rans_bits) + (entry & 0xfff);
    if (state < rans_least) {
        state = state << 16 | (next < total ? words[next] : 0);
        ++next;
    }
    return uint8_t(entry >> 24);
}

#ifdef __AVX2__
// Byte i of entry `mask`: how many bits of the mask are set below bit i.
struct Ranks {
    uint8_t of[256][8];
    constexpr Ranks() : of() {
        for (int mask = 0; mask < 256; ++mask)
            for (int i = 0, rank = 0; i < 8; ++i) {
                of[mask][i] = uint8_t(rank);
                rank += mask >> i & 1;
            }
    }
};
constexpr Ranks ranks;

// A step of all states. Reads 32 words from `next` on, and moves it behind those that were taken; the symbols in order.
inline __m256i rans_step_all(__m256i (&states)[4], const uint32_t* tables, const uint8_t* contexts, const uint16_t*& next) {
    const __m256i slots = _mm256_set1_epi32(rans_slots - 1), below = _mm256_set1_epi32(rans_least - 1), one = _mm256_set1_epi32(1);
    __m256i entries[4];
    FLYWEIGHT_UNROLLED
    for (int i = 0; i < 4; ++i) {
        __m256i place = _mm256_and_si256(states[i], slots);
        if (contexts) {
            const __m256i table = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(contexts + 8 * i)));
            place = _mm256_or_si256(place, _mm256_slli_epi32(table, rans_bits));
        }
        entries[i] = _mm256_i32gather_epi32(reinterpret_cast<const int*>(tables), place, 4);
    }
    FLYWEIGHT_UNROLLED
    for (int i = 0; i < 4; ++i) {
        const __m256i frequency = _mm256_add_epi32(_mm256_and_si256(_mm256_srli_epi32(entries[i], 12), slots), one);
        const __m256i state = _mm256_add_epi32(_mm256_mullo_epi32(frequency, _mm256_srli_epi32(states[i], rans_bits)),
                                               _mm256_and_si256(entries[i], slots));
        const __m256i small = _mm256_cmpeq_epi32(_mm256_min_epu32(state, below), state);
        const uint32_t mask = uint32_t(_mm256_movemask_ps(_mm256_castsi256_ps(small)));
        const __m256i read = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(next)));
        const __m256i rank = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(ranks.of[mask])));
        const __m256i larger = _mm256_or_si256(_mm256_slli_epi32(state, 16), _mm256_permutevar8x32_epi32(read, rank));
        states[i] = _mm256_blendv_epi8(state, larger, small);
        next += __builtin_popcount(mask);
    }
    for (__m256i& entry : entries) entry = _mm256_srli_epi32(entry, 24);
    const __m256i packed = _mm256_packus_epi16(_mm256_packus_epi32(entries[0], entries[1]), _mm256_packus_epi32(entries[2], entries[3]));
    return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
#endif

// Where symbols go: as they are, or as the upper byte of words whose other bytes are stored, `low`, and whose bits are moved by one so
// that the sign of a float is its lowest.
struct Symbols {
    uint8_t* out;

    void put(size_t at, uint8_t symbol) const { out[at] = symbol; }
#ifdef __AVX2__
    void put_all(size_t at, __m256i symbols) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + at), symbols); }
#endif
};

template <typename Word>
struct Floats {
    const uint8_t* low;
    Word* out;

    void put(size_t at, uint8_t symbol) const {
        constexpr size_t bytes = sizeof(Word) - 1;
        Word word = Word(Word(symbol) << 8 * bytes);
        for (size_t i = 0; i < bytes; ++i) word |= Word(Word(low[bytes * at + i]) << 8 * i);
        out[at] = Word(word >> 1 | word << (8 * sizeof(Word) - 1));
    }
#ifdef __AVX2__
    void put_all(size_t at, __m256i symbols) const {
        if constexpr (sizeof(Word) == 2) {
            const __m256i rest = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(low + at));
            const __m256i even = _mm256_unpacklo_epi8(rest, symbols), odd = _mm256_unpackhi_epi8(rest, symbols);
            store(at, _mm256_permute2x128_si256(even, odd, 0x20));
            store(at + 16, _mm256_permute2x128_si256(even, odd, 0x31));
        } else {
            alignas(32) uint8_t each[rans_states];
            _mm256_store_si256(reinterpret_cast<__m256i*>(each), symbols);
            for (size_t i = 0; i < rans_states; ++i) put(at + i, each[i]);
        }
    }
    void store(size_t at, __m256i words) const {
        const __m256i moved = _mm256_or_si256(_mm256_srli_epi16(words, 1), _mm256_slli_epi16(words, 15));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + at), moved);
    }
#endif
};

// `finals` and `taken` say how each chunk ended: of chunks as they were written, every state is 2¹⁶ and every word is taken. A word
// behind the last is zero.
template <typename Output>
inline void decode_chunks(const uint32_t* states, const uint16_t* words, size_t total, const uint64_t* ends, const uint8_t* contexts,
                          const uint32_t* tables, size_t chunk, Output out, size_t count, uint32_t* finals, uint64_t* taken) {
    size_t start = 0;
    for (size_t first = 0; first < count; first += chunk, states += rans_states, finals += rans_states, start = size_t(*ends++)) {
        const size_t length = chunk_length(count, chunk, first);
        const uint8_t* context = contexts ? contexts + first : nullptr;
        size_t next = start, at = 0;
        __builtin_memcpy(finals, states, rans_states * sizeof *states);
#ifdef __AVX2__
        __m256i wide[4];
        __builtin_memcpy(wide, finals, sizeof wide);
        for (; length - at >= rans_states && next <= total && total - next >= rans_states; at += rans_states) {
            const uint16_t* read = words + next;
            out.put_all(first + at, rans_step_all(wide, tables, context ? context + at : nullptr, read));
            next = size_t(read - words);
        }
        __builtin_memcpy(finals, wide, sizeof wide);
#endif
        for (; at < length; ++at) {
            const uint32_t* table = tables + (context ? context[at] * rans_slots : 0);
            out.put(first + at, rans_step(finals[at % rans_states], table, words, total, next));
        }
        *taken++ = uint64_t(next - start);
    }
}

void rans_decode(const uint32_t* states, const uint16_t* words, size_t total, const uint64_t* ends, const uint8_t* contexts,
                 const uint32_t* tables, size_t chunk, uint8_t* out, size_t count, uint32_t* finals, uint64_t* taken) {
    decode_chunks(states, words, total, ends, contexts, tables, chunk, Symbols{out}, count, finals, taken);
}

template <typename Word>
void rans_decode_floats(const uint32_t* states, const uint16_t* words, size_t total, const uint64_t* ends, const uint32_t* table,
                        const uint8_t* low, size_t chunk, Word* out, size_t count, uint32_t* finals, uint64_t* taken) {
    decode_chunks(states, words, total, ends, nullptr, table, chunk, Floats<Word>{low, out}, count, finals, taken);
}

}  // namespace
