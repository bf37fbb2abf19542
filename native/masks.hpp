// Bits of rows: which words are not zero, which numbers are not negative, and the words that bits name.
// The definition is in kernels/reference_codecs.py.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fp8.hpp"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace {

constexpr size_t flags = 64;

// Bit i of the result is the top bit of byte i, of 64.
inline uint64_t top_bits(const uint8_t* bytes) {
    uint64_t bits = 0;
#ifdef __SSE2__
    for (int i = 0; i < 4; ++i) {
        const __m128i lanes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + 16 * i));
        bits |= uint64_t(uint32_t(_mm_movemask_epi8(lanes))) << 16 * i;
    }
#else
    for (size_t i = 0; i < flags; ++i) bits |= uint64_t(bytes[i] >> 7) << i;
#endif
    return bits;
}

// Sets the bits of a row by 64 flags at a time; fill(start, count, bytes) sets the first `count` bytes to 0 or 255.
template <typename Fill>
inline void pack_flags(size_t columns, uint8_t* row, size_t nbytes, Fill fill) {
    size_t at = 0;
    for (size_t start = 0; start < columns; start += flags) {
        const size_t count = columns - start < flags ? columns - start : flags;
        uint8_t bytes[flags] = {};
        fill(start, count, bytes);
        uint64_t bits = top_bits(bytes);
        for (size_t end = at + (count + 7) / 8; at < end; ++at, bits >>= 8) row[at] = uint8_t(bits);
    }
    for (; at < nbytes; ++at) row[at] = 0;
}

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

// put(next, row, column) for the first `count` bits of the mask, in order; how many there were. With room to spare it is
// also called for places without a bit, and the next call overwrites what it put.
template <typename Put>
inline size_t at_bits(const uint8_t* mask, size_t rows, size_t nbytes, size_t columns, size_t count, Put put) {
    size_t next = 0;
    for (size_t row = 0; row < rows; ++row, mask += nbytes)
        for (size_t at = 0; at < columns; at += 8) {
            const size_t here = columns - at < 8 ? columns - at : 8;
            uint32_t bits = mask[at / 8] & ((1u << here) - 1);
            if (!bits) continue;
            if (here == 8 && count - next >= 8) {  // at most 7 were put before each, so there is always room for one
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

constexpr size_t sum_lanes = 16;

// A bit where a number is 0 or more, and the sum of the magnitudes: sixteen sums of every sixteenth, then theirs in order.
template <typename T>
void sign_encode(const T* values, size_t rows, size_t columns, uint8_t* packed, size_t nbytes, double* sums) {
    for (size_t row = 0; row < rows; ++row, values += columns, packed += nbytes) {
        double lanes[sum_lanes] = {};
        pack_flags(columns, packed, nbytes, [=, &lanes](size_t start, size_t count, uint8_t* bytes) {
            const T* __restrict from = values + start;
            float wide[flags] = {};
            if (count == flags)
                for (size_t i = 0; i < flags; ++i) wide[i] = widened(from[i]);
            else
                for (size_t i = 0; i < count; ++i) wide[i] = widened(from[i]);
            for (size_t i = 0; i < flags; ++i) bytes[i] = wide[i] >= 0.0f ? 255 : 0;
            for (size_t i = count; i < flags; ++i) bytes[i] = 0;
            for (size_t i = 0; i < flags; i += sum_lanes)
                for (size_t lane = 0; lane < sum_lanes; ++lane) lanes[lane] += double(float_of(magnitude_bits(wide[i + lane])));
        });
        double sum = 0;
        for (double lane : lanes) sum += lane;
        sums[row] = sum;
    }
}

}  // namespace
