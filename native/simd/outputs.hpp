// Where decoded values go: to memory, past the caches, or to bf16.
//
// An output is a pointer with its own way to store; kernels are written once over all of them. `numbers` promises that no value is NaN.
//
// An output much larger than the caches evicts what is useful, and makes the processor read every line before
// it overwrites it. `ToF32Streamed` goes round the caches, and is used from 16 MB up where every store can be
// aligned. A smaller output is about to be read again, and is left in the cache. Rounding to bf16 is bound by its
// instructions as much as by memory: there such stores are slower, and lines are asked for early instead (decision 0013).
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/casts.hpp"
#include "simd/crossed.hpp"
#include "simd/lanes.hpp"

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
    [[gnu::always_inline]] void put(F32x8 low, F32x8 high, bool) const {
        store8(at, low);
        store8(at + 8, high);
    }
};

struct ToBf16 : Output<ToBf16, uint16_t> {
    [[gnu::always_inline]] void put(float value) const { *at = bf16_of(value); }
    [[gnu::always_inline]] void put(U16x16 narrow) const {
        __builtin_memcpy(at, &narrow, sizeof narrow);
        __builtin_prefetch(at + 2048, 1);  // 4 KB on; a prefetch past the end does nothing
    }
#ifdef __AVX2__
    using Wide = WidenedByTurns;
    [[gnu::always_inline]] void put(F32x8 even, F32x8 odd, bool numbers) const { put(bf16_of_turns(even, odd, numbers)); }
#else
    using Wide = Widened;
    void put(F32x8 low, F32x8 high, bool) const { put(bf16_of(low, high)); }
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
    [[gnu::always_inline]] void put(F32x8 low, F32x8 high, bool) const {
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
