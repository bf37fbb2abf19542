// How keys and values lie in a cache: written, and read back as f32.
#pragma once

#include "attention/attention.hpp"
#include "attention/normalise.hpp"
#include "simd/casts.hpp"

namespace {

using flyweight::Attention;
using flyweight::key_group;

// Eight bytes as floats.
inline F32x8 codes8(const uint8_t* at) {
#ifdef __AVX2__
    return F32x8(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)))));
#else
    F32x8 lanes;
    for (int i = 0; i < 8; ++i) lanes[i] = float(int(at[i]));
    return lanes;
#endif
}

// A grid of 256 steps from the least to the greatest value, both exact in range; a run that is not finite gives low = NaN, one too
// narrow for the inverse of its step gives all low.
struct Grid {
    float low, step, inverse;

    Grid(float least, float greatest, bool finite) {
        const float range = greatest - least;
        finite = finite && bits_of(range) < 0x7f800000;
        const float steps = 255.0f / range;
        const bool fits = finite && range > 0 && bits_of(steps) < 0x7f800000;
        low = finite ? least : float_of(0x7fc00000);
        step = fits ? range / 255.0f : 0.0f;
        inverse = fits ? steps : 0.0f;
    }

    uint8_t code(float value) const {
        constexpr float round = 0x1.8p23f;
        return inverse > 0 ? uint8_t(int32_t((value - low) * inverse + round - round)) : 0;
    }
};

// The key of `position`, one the tail or this call holds as f32.
inline const float* fresh_key(const Attention& a, size_t kv, size_t position) {
    if (position < a.start) return a.tail + (kv * key_group + position % key_group) * a.head;
    return a.qkv + (position - a.start) * a.stride() + (a.heads + kv) * a.head;
}

struct StoredF32 {
    using Element = float;
    static void put(const Attention& a, size_t row, const float* key, const float* value) {
        __builtin_memcpy(a.keys + row * a.head * 4, key, a.head * 4);
        __builtin_memcpy(a.values + row * a.head * 4, value, a.head * 4);
    }
    static F32x8 eight(const float* at) { return load8(at); }
    static const float* keys(const Attention& a, size_t kv, size_t first, size_t, float*) {
        return reinterpret_cast<const float*>(a.keys) + (kv * a.context + first) * a.head;
    }
    static const float* values(const Attention& a, size_t kv, size_t first, size_t, float*) {
        return reinterpret_cast<const float*>(a.values) + (kv * a.context + first) * a.head;
    }
};

struct StoredF16 {
    using Element = uint16_t;
    static void put(const Attention& a, size_t row, const float* key, const float* value) {
        f32_to_f16(key, a.head, reinterpret_cast<uint16_t*>(a.keys) + row * a.head);
        f32_to_f16(value, a.head, reinterpret_cast<uint16_t*>(a.values) + row * a.head);
    }
    static F32x8 eight(const uint16_t* at) { return f16x8(at); }
    static const uint16_t* keys(const Attention& a, size_t kv, size_t first, size_t, float*) {
        return reinterpret_cast<const uint16_t*>(a.keys) + (kv * a.context + first) * a.head;
    }
    static const uint16_t* values(const Attention& a, size_t kv, size_t first, size_t, float*) {
        return reinterpret_cast<const uint16_t*>(a.values) + (kv * a.context + first) * a.head;
    }
};

// Codes are read through f32 in `buffer`, decoded as low + step · code.
struct StoredInt8 {
    using Element = float;
    static void put(const Attention& a, size_t row, const float*, const float* value) {
        float low = value[0], high = value[0];
        uint32_t peak = 0;
        for (size_t i = 0; i < a.head; ++i) {
            low = least(value[i], low), high = greatest(value[i], high);
            const uint32_t bits = bits_of(value[i]) & 0x7fffffff;
            peak = bits > peak ? bits : peak;
        }
        const Grid grid(low, high, peak < 0x7f800000);
        a.value_grid[2 * row] = grid.low, a.value_grid[2 * row + 1] = grid.step;
        for (size_t i = 0; i < a.head; ++i) a.values[row * a.head + i] = grid.code(value[i]);
    }
    static F32x8 eight(const float* at) { return load8(at); }
    // `first` to `first + count` lie in groups that are closed for the query, or all in its own.
    static const float* keys(const Attention& a, size_t kv, size_t first, size_t count, float* buffer) {
        for (size_t i = 0; i < count; ++i) {
            const size_t position = first + i;
            const uint8_t* codes = a.keys + (kv * a.context + position) * a.head;
            const float* low = a.key_grid + (kv * (a.context / key_group) + position / key_group) * 2 * a.head;
            for (size_t d = 0; d < a.head; d += 8)
                store8(buffer + i * a.head + d, load8(low + d) + load8(low + a.head + d) * codes8(codes + d));
        }
        return buffer;
    }
    static const float* values(const Attention& a, size_t kv, size_t first, size_t count, float* buffer) {
        for (size_t i = 0; i < count; ++i) {
            const size_t row = kv * a.context + first + i;
            const float low = a.value_grid[2 * row], step = a.value_grid[2 * row + 1];
            const uint8_t* codes = a.values + row * a.head;
            for (size_t d = 0; d < a.head; d += 8)
                store8(buffer + i * a.head + d, all8(low) + all8(step) * codes8(codes + d));
        }
        return buffer;
    }
};

// Keys as the query in group `own` sees them: with int8 its own group as f32.
template <class Stored>
inline const typename Stored::Element* seen_keys(const Attention& a, size_t kv, size_t first, size_t count, size_t own, float* buffer) {
    if constexpr (!__is_same(Stored, StoredInt8)) {
        return Stored::keys(a, kv, first, count, buffer);
    } else {
        const size_t from = own * key_group, closed = first >= from ? 0 : from - first < count ? from - first : count;
        Stored::keys(a, kv, first, closed, buffer);
        for (size_t i = closed; i < count; ++i)
            __builtin_memcpy(buffer + i * a.head, fresh_key(a, kv, first + i), a.head * sizeof(float));
        return buffer;
    }
}

inline void rotate(const Attention& a, size_t position, float* x) {
    const float *cos = a.cos + position * a.half, *sin = a.sin + position * a.half;
    if (a.pairs)
        for (size_t i = 0; i < a.half; ++i) {
            const float one = x[2 * i], other = x[2 * i + 1];
            x[2 * i] = one * cos[i] - other * sin[i], x[2 * i + 1] = other * cos[i] + one * sin[i];
        }
    else
        for (size_t i = 0; i < a.half; ++i) {
            const float one = x[i], other = x[a.half + i];
            x[i] = one * cos[i] - other * sin[i], x[a.half + i] = other * cos[i] + one * sin[i];
        }
}

template <class Stored>
void append(const Attention& a, size_t first, size_t last) {
    for (size_t token = first; token < last; ++token) {
        const size_t position = a.start + token;
        float *q = a.qkv + token * a.stride(), *k = q + a.heads * a.head, *v = k + a.kv_heads * a.head;
        for (float* x = q; x < k; x += a.head) {
            if (a.q_gain) normalise(x, a.head, a.q_gain, a.eps, x);
            rotate(a, position, x);
            for (size_t i = 0; i < a.head; ++i) x[i] *= a.scale;
        }
        for (size_t kv = 0; kv < a.kv_heads; ++kv) {
            float* x = k + kv * a.head;
            if (a.k_gain) normalise(x, a.head, a.k_gain, a.eps, x);
            rotate(a, position, x);
            Stored::put(a, kv * a.context + position, x, v + kv * a.head);
        }
    }
}

void close_groups(const Attention& a) {
    const size_t last = (a.end() - 1) / key_group;
    for (size_t group = a.start ? (a.start - 1) / key_group : 0; group < last; ++group)
        for (size_t kv = 0; kv < a.kv_heads; ++kv) {
            float* grids = a.key_grid + (kv * (a.context / key_group) + group) * 2 * a.head;
            uint8_t* codes = a.keys + (kv * a.context + group * key_group) * a.head;
            for (size_t d = 0; d < a.head; ++d) {
                float low = fresh_key(a, kv, group * key_group)[d], high = low;
                uint32_t peak = 0;
                for (size_t i = 0; i < key_group; ++i) {
                    const float value = fresh_key(a, kv, group * key_group + i)[d];
                    low = least(value, low), high = greatest(value, high);
                    const uint32_t bits = bits_of(value) & 0x7fffffff;
                    peak = bits > peak ? bits : peak;
                }
                const Grid grid(low, high, peak < 0x7f800000);
                grids[d] = grid.low, grids[a.head + d] = grid.step;
                for (size_t i = 0; i < key_group; ++i)
                    codes[i * a.head + d] = grid.code(fresh_key(a, kv, group * key_group + i)[d]);
            }
        }
}

void keep_tail(const Attention& a) {
    const size_t own = (a.end() - 1) / key_group * key_group;
    for (size_t position = own > a.start ? own : a.start; position < a.end(); ++position)
        for (size_t kv = 0; kv < a.kv_heads; ++kv)
            __builtin_memcpy(a.tail + (kv * key_group + position % key_group) * a.head, fresh_key(a, kv, position), a.head * 4);
}

}  // namespace
