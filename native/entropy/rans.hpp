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

// What coding a symbol needs. A state below 2²⁰ · frequency, divided by its frequency, is state · reciprocal >> 44: the reciprocal is too
// large by less than 1, and so the product by less than 2³², which is at most 2⁴⁴ / frequency. For the same reason it has 64 bits.
struct Coding {
    uint64_t reciprocal;
    uint16_t frequency, start;
};

// Symbols begin to end − 1, the last first. `next` is where the words begin that are there already. The word before the last is always
// written, and counts if the state was too large: a branch could not be foreseen.
inline void encode_each(const uint8_t* symbols, const uint8_t* contexts, size_t begin, size_t end, const Coding* codings, uint32_t* states,
                        uint16_t*& next) {
    constexpr size_t at_once = 1024;
    while (end > begin) {
        const size_t from = end - begin > at_once ? end - at_once : begin;
        uint16_t emitted[at_once + 1], *last = emitted + at_once + 1;
        for (; end > from; --end) {
            const size_t i = end - 1;
            const Coding& coding = codings[(contexts ? contexts[i] * rans_symbols : 0) + symbols[i]];
            uint32_t state = states[i % rans_states];
            const uint32_t large = state >> (32 - rans_bits) >= coding.frequency;
            last[-1] = uint16_t(state);
            last -= large;
            state >>= 16 * large;
            const uint32_t quotient = uint32_t((state * coding.reciprocal) >> 44);
            states[i % rans_states] = (quotient << rans_bits) + state - quotient * coding.frequency + coding.start;
        }
        const size_t count = size_t(emitted + at_once + 1 - last);
        next -= count;
        __builtin_memcpy(next, last, count * sizeof *next);
    }
}

#ifdef __AVX512BW__
// 16 states; those that were too large give a word each.
inline __m512i encode_16(__m512i states, const uint8_t* symbols, const uint8_t* contexts, const Coding* codings, uint16_t*& next) {
    static_assert(sizeof(Coding) == 16 && offsetof(Coding, frequency) == 8 && offsetof(Coding, start) == 10);
    __m512i place = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(symbols)));
    if (contexts) {
        const __m512i table = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(contexts)));
        place = _mm512_or_si512(place, _mm512_slli_epi32(table, 8));
    }
    const __m512i entries = _mm512_i32gather_epi32(_mm512_add_epi32(place, place), &codings->frequency, 8);
    const __m512i frequency = _mm512_and_si512(entries, _mm512_set1_epi32(0xffff)), start = _mm512_srli_epi32(entries, 16);

    const __mmask16 large = _mm512_cmpge_epu32_mask(_mm512_srli_epi32(states, 32 - rans_bits), frequency);
    const int count = __builtin_popcount(large);
    next -= count;
    _mm256_mask_storeu_epi16(next, __mmask16((1u << count) - 1), _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(large, states)));
    const __m512i state = _mm512_mask_srli_epi32(states, large, states, 16);

    // Rounded down twice, a quotient below 2²⁰ is at most 1/8 too small: its integer is right, or one too small.
    constexpr int down = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
    const __m512 ratio = _mm512_div_round_ps(_mm512_cvt_roundepu32_ps(state, down), _mm512_cvtepi32_ps(frequency), down);
    const __m512i quotient = _mm512_cvttps_epi32(ratio), remainder = _mm512_sub_epi32(state, _mm512_mullo_epi32(quotient, frequency));
    const __m512i coded = _mm512_add_epi32(_mm512_add_epi32(_mm512_slli_epi32(quotient, rans_bits), remainder), start);
    const __m512i one_more = _mm512_sub_epi32(_mm512_set1_epi32(rans_slots), frequency);
    return _mm512_mask_add_epi32(coded, _mm512_cmpge_epu32_mask(remainder, frequency), coded, one_more);
}
#endif

// Each chunk from its last symbol to its first, so that it is read from its first. Its words end where its row of `words` does. A
// symbol of frequency 0 is coded as if it had 1, and does not come back.
void rans_encode(const uint8_t* symbols, const uint8_t* contexts, size_t count, const uint16_t* frequencies, size_t tables, size_t chunk,
                 uint32_t* states, uint16_t* words, uint64_t* counts) {
    constexpr uint64_t one = uint64_t(1) << 44;
    Coding codings[rans_contexts * rans_symbols];
    for (size_t table = 0; table < tables; ++table)
        for (size_t entry = table * rans_symbols, start = 0; entry < (table + 1) * rans_symbols; start += frequencies[entry++]) {
            const uint16_t frequency = frequencies[entry];
            codings[entry] = {one, 1, uint16_t(start)};
            if (frequency > 1) codings[entry] = {(one + frequency - 1) / frequency, frequency, uint16_t(start)};
        }
    for (size_t first = 0; first < count; first += chunk, states += rans_states, words += chunk, ++counts) {
        const uint8_t *own = symbols + first, *context = contexts ? contexts + first : nullptr;
        const size_t length = chunk_length(count, chunk, first);
        size_t in_vectors = 0;
        uint16_t* next = words + chunk;
        for (size_t i = 0; i < rans_states; ++i) states[i] = rans_least;
#ifdef __AVX512BW__
        in_vectors = length / rans_states * rans_states;
#endif
        encode_each(own, context, in_vectors, length, codings, states, next);
#ifdef __AVX512BW__
        __m512i lower = _mm512_loadu_si512(states), upper = _mm512_loadu_si512(states + 16);
        for (size_t i = in_vectors; i > 0;) {
            i -= rans_states;
            upper = encode_16(upper, own + i + 16, context ? context + i + 16 : nullptr, codings, next);
            lower = encode_16(lower, own + i, context ? context + i : nullptr, codings, next);
        }
        _mm512_storeu_si512(states, lower);
        _mm512_storeu_si512(states + 16, upper);
#endif
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
// Integers below 256 as bytes, in order.
inline __m256i packed_bytes(const __m256i (&each)[4]) {
    const __m256i packed = _mm256_packus_epi16(_mm256_packus_epi32(each[0], each[1]), _mm256_packus_epi32(each[2], each[3]));
    return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// A step of all states: the symbols in order. Reads 32 words from `next` on, and moves it behind those that were taken.
#ifdef __AVX512BW__
using States = __m512i[2];

inline __m256i rans_step_all(States& states, const uint32_t* tables, const uint8_t* contexts, const uint16_t*& next) {
    const __m512i slots = _mm512_set1_epi32(rans_slots - 1), least = _mm512_set1_epi32(rans_least), one = _mm512_set1_epi32(1);
    __m512i entries[2];
    FLYWEIGHT_UNROLLED
    for (int i = 0; i < 2; ++i) {
        __m512i place = _mm512_and_si512(states[i], slots);
        if (contexts) {
            const __m512i table = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(contexts + 16 * i)));
            place = _mm512_or_si512(place, _mm512_slli_epi32(table, rans_bits));
        }
        entries[i] = _mm512_i32gather_epi32(place, tables, 4);
    }
    FLYWEIGHT_UNROLLED
    for (int i = 0; i < 2; ++i) {
        const __m512i frequency = _mm512_add_epi32(_mm512_and_si512(_mm512_srli_epi32(entries[i], 12), slots), one);
        const __m512i state = _mm512_add_epi32(_mm512_mullo_epi32(frequency, _mm512_srli_epi32(states[i], rans_bits)),
                                               _mm512_and_si512(entries[i], slots));
        const __mmask16 small = _mm512_cmplt_epu32_mask(state, least);
        const __m512i read = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(next)));
        states[i] = _mm512_mask_or_epi32(state, small, _mm512_slli_epi32(state, 16), _mm512_maskz_expand_epi32(small, read));
        next += __builtin_popcount(small);
    }
    return _mm256_set_m128i(_mm512_cvtepi32_epi8(_mm512_srli_epi32(entries[1], 24)), _mm512_cvtepi32_epi8(_mm512_srli_epi32(entries[0], 24)));
}
#else
using States = __m256i[4];

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

inline __m256i rans_step_all(States& states, const uint32_t* tables, const uint8_t* contexts, const uint16_t*& next) {
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
    return packed_bytes(entries);
}
#endif
#endif

// Where the symbols of a chunk go: as they are, or as the upper byte of words whose other bytes are stored, `low`, and whose bits are moved
// by one so that the sign of a float is its lowest.
struct Symbols {
    uint8_t* out;

    Symbols from(size_t first) const { return {out + first}; }
    void put(size_t at, uint8_t symbol) const { out[at] = symbol; }
#ifdef __AVX2__
    void put_all(size_t at, __m256i symbols) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + at), symbols); }
#endif
};

template <typename Word>
struct Floats {
    const uint8_t* low;
    Word* out;

    Floats from(size_t first) const { return {low + first * (sizeof(Word) - 1), out + first}; }
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

// Chunks whose words lie behind one another. `finals` and `taken` say how each chunk ended: as it was written, every state is 2¹⁶ and every
// word is taken. A word behind the last is zero.
struct Coded {
    const uint32_t* states;
    const uint16_t* words;
    size_t total;
    const uint64_t* ends;
    const uint8_t* contexts;  // or null, where all symbols have the first table
    const uint32_t* tables;
    size_t chunk, count;
    uint32_t* finals;
    uint64_t* taken;
};

// How far a chunk is decoded.
template <typename Output>
struct Decoding {
    const uint8_t* contexts;
    Output out;
    uint32_t* finals;
    size_t length, at, start, next;

    Decoding(const Coded& coded, size_t number, Output whole)
        : contexts(coded.contexts ? coded.contexts + number * coded.chunk : nullptr), out(whole.from(number * coded.chunk)),
          finals(coded.finals + number * rans_states), length(chunk_length(coded.count, coded.chunk, number * coded.chunk)), at(0),
          start(number ? size_t(coded.ends[number - 1]) : 0), next(start) {
        __builtin_memcpy(finals, coded.states + number * rans_states, rans_states * sizeof *finals);
    }
#ifdef __AVX2__
    bool has_step(size_t total) const { return length - at >= rans_states && next <= total && total - next >= rans_states; }

    void step(States& states, const uint16_t* words, const uint32_t* tables) {
        const uint16_t* read = words + next;
        out.put_all(at, rans_step_all(states, tables, contexts ? contexts + at : nullptr, read));
        next = size_t(read - words);
        at += rans_states;
    }
#endif
};

// The last symbols, one by one. By value: the one that was stepped can then stay in registers.
template <typename Output>
inline void decode_rest(const Coded& coded, size_t number, Decoding<Output> one) {
    for (; one.at < one.length; ++one.at) {
        const uint32_t* table = coded.tables + (one.contexts ? one.contexts[one.at] * rans_slots : 0);
        one.out.put(one.at, rans_step(one.finals[one.at % rans_states], table, coded.words, coded.total, one.next));
    }
    coded.taken[number] = uint64_t(one.next - one.start);
}

template <typename Output>
inline void decode_chunks(const Coded& coded, Output out) {
    const size_t chunks = coded.count / coded.chunk + (coded.count % coded.chunk != 0);
    size_t number = 0;
#ifdef __AVX2__
    const size_t total = coded.total;
    const uint16_t* words = coded.words;
    const uint32_t* tables = coded.tables;
    // Every step waits for the one before: two chunks at a time take little longer than one.
    for (; number < chunks; number += 2) {
        const bool two = chunks - number >= 2;
        Decoding<Output> one(coded, number, out), other(coded, number + two, out);
        States states, others;
        __builtin_memcpy(states, one.finals, sizeof states);
        __builtin_memcpy(others, other.finals, sizeof others);
        while (two && one.has_step(total) && other.has_step(total)) {
            one.step(states, words, tables);
            other.step(others, words, tables);
        }
        while (one.has_step(total)) one.step(states, words, tables);
        while (two && other.has_step(total)) other.step(others, words, tables);
        __builtin_memcpy(other.finals, others, sizeof others);
        __builtin_memcpy(one.finals, states, sizeof states);
        decode_rest(coded, number, one);
        if (two) decode_rest(coded, number + 1, other);
    }
#endif
    for (; number < chunks; ++number) decode_rest(coded, number, Decoding<Output>(coded, number, out));
}

void rans_decode(const uint32_t* states, const uint16_t* words, size_t total, const uint64_t* ends, const uint8_t* contexts,
                 const uint32_t* tables, size_t chunk, uint8_t* out, size_t count, uint32_t* finals, uint64_t* taken) {
    decode_chunks({states, words, total, ends, contexts, tables, chunk, count, finals, taken}, Symbols{out});
}

template <typename Word>
void rans_decode_floats(const uint32_t* states, const uint16_t* words, size_t total, const uint64_t* ends, const uint32_t* table,
                        const uint8_t* low, size_t chunk, Word* out, size_t count, uint32_t* finals, uint64_t* taken) {
    decode_chunks({states, words, total, ends, nullptr, table, chunk, count, finals, taken}, Floats<Word>{low, out});
}

}  // namespace
