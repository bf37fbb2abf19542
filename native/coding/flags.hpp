// Bytes that are 0 or 255, as bits.
#pragma once

#include "kernel.hpp"

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

}  // namespace
