// Palettes: look-up, nearest entry and histogram. kmeans_1d.hpp finds the best tables of scalars, clusters.hpp serves those of vectors.
#pragma once

#include "kernel.hpp"
#include "palettes/clusters.hpp"
#include "palettes/kmeans_1d.hpp"
#include "simd/f16.hpp"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace {

// Calls piece(first, count, table) for neighbours that share a table: element i has table i % cycle / run.
template <typename Piece>
inline void by_table(size_t count, size_t run, size_t cycle, size_t start, Piece piece) {
    size_t place = count ? start % cycle : 0;
    for (size_t at = 0; at < count;) {
        const size_t left = least(run - place % run, cycle - place), length = least(left, count - at);
        piece(at, length, place / run);
        at += length;
        place = place + length == cycle ? 0 : place + length;
    }
}

// Look-up ----------------------------------------------------------------------------------------

#ifdef __AVX2__
// Tables of up to 16 entries fit two registers; a permutation looks up eight codes at once.
inline size_t look_up_small(const uint8_t* codes, size_t count, const float* table, size_t entries, float* out) {
    float repeated[16];
    for (size_t i = 0; i < 16; ++i) repeated[i] = table[i & (entries - 1)];
    const __m256 low = _mm256_loadu_ps(repeated), high = _mm256_loadu_ps(repeated + 8);
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const __m256i index = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + i)));
        const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));  // bit 3 decides, as the sign
        const __m256 values = _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, index), _mm256_permutevar8x32_ps(high, index), upper);
        _mm256_storeu_ps(out + i, values);
    }
    return i;
}
#endif

inline void look_up_run(const uint8_t* __restrict codes, size_t count, const float* __restrict table, size_t entries,
                        float* __restrict out) {
    size_t i = 0;
#ifdef __AVX2__
    if (entries <= 16) i = look_up_small(codes, count, table, entries, out);
#endif
    const size_t mask = entries - 1;
    for (; i < count; ++i) out[i] = table[codes[i] & mask];
}

void palette_decode(const uint8_t* codes, size_t count, const float* tables, size_t entries, size_t vector, size_t run,
                    size_t cycle, size_t start, float* out) {
    by_table(count, run, cycle, start, [=](size_t at, size_t length, size_t which) {
        const float* table = tables + which * entries * vector;
        if (vector == 1) return look_up_run(codes + at, length, table, entries, out + at);
        for (size_t i = at; i < at + length; ++i) {
            const float* entry = table + (codes[i] & (entries - 1)) * vector;
            for (size_t v = 0; v < vector; ++v) out[i * vector + v] = entry[v];
        }
    });
}

// Nearest entry ----------------------------------------------------------------------------------


// Few midpoints are all compared, eight values at a time; a comparison that holds is −1.
inline size_t count_below(const float* __restrict values, size_t count, const float* __restrict midpoints, size_t steps,
                          uint8_t* __restrict out) {
    F32x8 middle[15];
    for (size_t j = 0; j < steps; ++j) middle[j] = midpoints[j] - F32x8{};
    size_t at = 0;
    for (; at + 8 <= count; at += 8) {
        const F32x8 lanes = load8(values + at);
        I32x8 below = {};
        for (size_t j = 0; j < steps; ++j) below -= middle[j] < lanes;
        const U8x8 codes = __builtin_convertvector(below, U8x8);
        __builtin_memcpy(out + at, &codes, sizeof codes);
    }
    return at;
}

// midpoints has `steps` = 2^b − 1 of them: each comparison halves what is left, without a branch.
inline uint8_t search_below(float value, const float* midpoints, size_t steps) {
    size_t below = 0;
    for (size_t half = (steps + 1) / 2; half; half /= 2) below += half & -size_t(midpoints[below + half - 1] < value);
    return uint8_t(below);
}

void palette_nearest(const float* values, size_t count, const float* midpoints, size_t steps, size_t run, size_t cycle,
                     size_t start, uint8_t* out) {
    by_table(count, run, cycle, start, [=](size_t at, size_t length, size_t which) {
        const float* own = midpoints + which * steps;
        const size_t done = steps < 16 ? count_below(values + at, length, own, steps, out + at) : 0;
        for (size_t i = at + done; i < at + length; ++i) out[i] = search_below(values[i], own, steps);
    });
}

// Histogram --------------------------------------------------------------------------------------

void palette_histogram(const float* values, const float* weights, size_t count, double* out) {
    for (size_t i = 0; i < count; ++i) {
        const uint32_t bits = bits_of(values[i] + 0.0f);
        const uint32_t flip = uint32_t(-int32_t(bits >> 31)) | 0x80000000u;  // without a branch: signs are random
        double* bin = out + 2 * size_t((bits ^ flip) >> 13);
        const double mass = weights ? double(weights[i]) : 1.0;
        auto sums = load_as<F64x2>(bin);  // both at once: one load, one store
        sums += F64x2{mass, mass * double(values[i])};
        __builtin_memcpy(bin, &sums, sizeof sums);
    }
}

}  // namespace

#define KERNELS_OF_Palettes(X)                        \
    X(palette_decode, palette_decode)                 \
    X(palette_nearest, palette_nearest)               \
    X(palette_nearest_vector, palette_nearest_vector) \
    X(palette_cluster_sums, palette_cluster_sums)     \
    X(palette_histogram, palette_histogram)           \
    X(palette_cuts, palette_cuts)                     \
    X(palette_centres, palette_centres)
FLYWEIGHT_TABLE(Palettes)
