// Masks: which words are not zero, the words that bits name, and where they are.
#pragma once

#include "coding/flags.hpp"

namespace {

// A bit where a word has any of the bits `keep`.
template <typename Word>
void mark(const Word* words, size_t rows, size_t columns, Word keep, uint8_t* mask, size_t nbytes) {
    for (size_t row = 0; row < rows; ++row, words += columns, mask += nbytes)
        pack_flags(columns, mask, nbytes, [=](size_t start, size_t count, uint8_t* bytes) {
            const Word* __restrict from = words + start;
            if (count == flags)
                for (size_t i = 0; i < flags; ++i) bytes[i] = from[i] & keep ? 255 : 0;
            else
                for (size_t i = 0; i < count; ++i) bytes[i] = from[i] & keep ? 255 : 0;
        });
}

// put(next, row, column) for the first `count` bits of the mask, in order; how many there were. With space to spare it is
// also called for places without a bit, and the next call overwrites what it put.
template <typename Put>
inline size_t at_bits(const uint8_t* mask, size_t rows, size_t nbytes, size_t columns, size_t count, Put put) {
    size_t next = 0;
    for (size_t row = 0; row < rows; ++row, mask += nbytes)
        for (size_t at = 0; at < columns; at += 8) {
            const size_t here = columns - at < 8 ? columns - at : 8;
            uint32_t bits = mask[at / 8] & ((1u << here) - 1);
            if (!bits) continue;
            if (here == 8 && count - next >= 8) {  // at most 7 were put before each, so there is always space for one
                for (size_t i = 0; i < 8; ++i, bits >>= 1) {
                    put(next, row, at + i);
                    next += bits & 1;
                }
            } else {
                for (size_t i = 0; i < here; ++i, bits >>= 1)
                    if (bits & 1 && next < count) put(next++, row, at + i);
            }
        }
    return next;
}

template <typename Word>
void gather(const uint8_t* mask, size_t rows, size_t nbytes, const Word* words, size_t columns, Word* out, size_t count) {
    size_t next = at_bits(mask, rows, nbytes, columns, count, [=](size_t to, size_t row, size_t column) {
        out[to] = words[row * columns + column];
    });
    for (; next < count; ++next) out[next] = 0;
}

template <typename Index>
void places(const uint8_t* mask, size_t rows, size_t nbytes, size_t columns, Index* out, size_t count) {
    size_t next = at_bits(mask, rows, nbytes, columns, count, [=](size_t to, size_t row, size_t column) {
        out[to] = Index(row * columns + column);
    });
    for (; next < count; ++next) out[next] = 0;
}

// The k-th set bit of the mask takes values[k]; what has none is zero.
template <typename Word>
void expand(const uint8_t* __restrict mask, size_t rows, size_t nbytes, const Word* __restrict values, size_t count,
            Word* __restrict out, size_t columns) {
    size_t next = 0;
    for (size_t row = 0; row < rows; ++row, mask += nbytes, out += columns)
        for (size_t at = 0; at < columns; at += 8) {
            const size_t here = columns - at < 8 ? columns - at : 8;
            uint32_t bits = mask[at / 8] & ((1u << here) - 1);
            if (here == 8 && count - next >= 8) {  // at most 7 are taken before each read, so there is always one to read
                for (int i = 0; i < 8; ++i, bits >>= 1) {
                    out[at + i] = Word(values[next] & Word(-Word(bits & 1)));
                    next += bits & 1;
                }
            } else {
                for (size_t i = 0; i < here; ++i, bits >>= 1) out[at + i] = bits & 1 && next < count ? values[next++] : Word(0);
            }
        }
}

}  // namespace

#define KERNELS_OF_Masks(X)                                                                    \
    X(mark_8, mark<uint8_t>) X(mark_16, mark<uint16_t>) X(mark_32, mark<uint32_t>)             \
    X(gather_8, gather<uint8_t>) X(gather_16, gather<uint16_t>) X(gather_32, gather<uint32_t>) \
    X(expand_8, expand<uint8_t>) X(expand_16, expand<uint16_t>) X(expand_32, expand<uint32_t>) \
    X(places_u32, places<uint32_t>) X(places_i64, places<int64_t>)
FLYWEIGHT_TABLE(Masks)
