// Where sixteen decoded values go: to memory, past the caches, or to bf16.
//
// An output is a pointer with its own way to store; kernels are written once over all of them. `numbers` promises that no value is NaN.
//
// An output much larger than the caches evicts what is useful, and makes the processor read every line before
// it overwrites it. `ToF32Streamed` goes round the caches, and is used from 16 MB up where every store can be
// aligned. A smaller output is about to be read again, and is left in the cache. Rounding to bf16 is bound by its
// instructions, not by memory: there such stores were slower (measured before decision 0012: 7 against 9 GB/s).
#pragma once

#include <cstddef>
#include <cstdint>

#include "casts.hpp"
#include "lanes.hpp"

namespace {

constexpr size_t streamed_from = size_t(16) << 20;  // bytes: half of a large shared cache

template <typename Self, typename T>
struct Output {
    T* at;

    Self operator+(size_t count) const { return {{at + count}}; }
    void operator+=(size_t count) { at += count; }
};

struct ToF32 : Output<ToF32, float> {
    using Wide = Widened;
    [[gnu::always_inline]] void put(float value) const { *at = value; }
    [[gnu::always_inline]] void put(Eight low, Eight high, bool) const {
        store_floats(at, low);
        store_floats(at + 8, high);
    }
};

#ifdef __AVX2__
// The sixteen values that a group's codes of four bits or fewer can have, rounded once, then looked up by their bytes.
class Bf16Table {
    __m256i low, high;  // twice each

public:
    // value(the even codes), value(the odd codes)
    template <typename Value>
    Bf16Table(const Value& value, bool numbers) {
        constexpr Eight even = {0, 2, 4, 6, 8, 10, 12, 14};
        const __m256i words = __m256i(bf16_of_turns(value(even), value(even + 1.0f), numbers));
        const __m256i bytes = _mm256_packus_epi16(_mm256_and_si256(words, _mm256_set1_epi16(0xff)), _mm256_srli_epi16(words, 8));
        low = _mm256_permute4x64_epi64(bytes, 0x88);
        high = _mm256_permute4x64_epi64(bytes, 0xdd);
    }

    // Sixteen codes to each of two places.
    [[gnu::always_inline]] void put(uint16_t* first, U8 a, uint16_t* second, U8 b) const {
        const __m256i codes = _mm256_inserti128_si256(_mm256_castsi128_si256(__m128i(a)), __m128i(b), 1);
        const __m256i lower = _mm256_shuffle_epi8(low, codes), upper = _mm256_shuffle_epi8(high, codes);
        const __m256i start = _mm256_unpacklo_epi8(lower, upper), end = _mm256_unpackhi_epi8(lower, upper);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(first), _mm256_castsi256_si128(start));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(first + 8), _mm256_castsi256_si128(end));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(second), _mm256_extracti128_si256(start, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(second + 8), _mm256_extracti128_si256(end, 1));
    }
};
#endif

template <typename Out>
concept Tabulates = requires { typename Out::Table; };

struct ToBf16 : Output<ToBf16, uint16_t> {
    [[gnu::always_inline]] void put(float value) const { *at = bf16_of(value); }
#ifdef __AVX2__
    using Wide = WidenedByTurns;
    using Table = Bf16Table;
    [[gnu::always_inline]] void put(Eight even, Eight odd, bool numbers) const {
        const Halves halves = bf16_of_turns(even, odd, numbers);
        __builtin_memcpy(at, &halves, sizeof halves);
    }
#else
    using Wide = Widened;
    void put(Eight low, Eight high, bool) const {
        const Halves halves = bf16_of(low, high);
        __builtin_memcpy(at, &halves, sizeof halves);
    }
#endif
};

#ifdef __x86_64__
// Sixteen-byte stores: NumPy aligns large arrays to no more than that, and neighbours still leave as one line.
template <typename Vector>
inline void stream(void* at, Vector lanes) {
    __m128i parts[2];
    static_assert(sizeof parts == sizeof lanes);
    __builtin_memcpy(parts, &lanes, sizeof lanes);
    for (int i = 0; i < 2; ++i) _mm_stream_si128(static_cast<__m128i*>(at) + i, parts[i]);
}

struct ToF32Streamed : Output<ToF32Streamed, float> {
    using Wide = Widened;
    [[gnu::always_inline]] void put(float value) const { *at = value; }
    [[gnu::always_inline]] void put(Eight low, Eight high, bool) const {
        stream(at, low);
        stream(at + 8, high);
    }
};

inline void end_stream() { _mm_sfence(); }  // a thread that is told "done" must see every line
#else
using ToF32Streamed = ToF32;
inline void end_stream() {}
#endif

// fill(output) with the output that suits `count` elements at `out`; `whole`: every group of values starts sixteen-aligned.
template <typename Fill>
void into(float* out, size_t count, bool whole, const Fill& fill) {
    const bool aligned = whole && reinterpret_cast<uintptr_t>(out) % 16 == 0;
    if (!aligned || count < streamed_from / sizeof *out) return fill(ToF32{{out}});
    fill(ToF32Streamed{{out}});
    end_stream();
}

template <typename Fill>
void into(uint16_t* out, size_t, bool, const Fill& fill) {
    fill(ToBf16{{out}});
}

}  // namespace
