// Gram matrices of a model's inputs: some rows of xᵀ·x, added to what is there.
//
// A term is what one instruction multiplies and adds of a column: one token, or two that are rounded to bf16 where the processor
// multiplies those. Terms of some columns are put side by side once and then serve every tile of the result.
#pragma once

#include "kernel.hpp"
#include "simd/lanes.hpp"

namespace {

#if defined(__AVX512BF16__)
using GramTerm = uint32_t;
using GramLanes = __m512;
constexpr size_t gram_height = 8, gram_registers = 3, gram_tokens = 2;
inline GramLanes gram_add(GramLanes sum, GramTerm by, const GramTerm* row) {
    return _mm512_dpbf16_ps(sum, __m512bh(_mm512_set1_epi32(int(by))), __m512bh(_mm512_loadu_si512(row)));
}
#elif defined(__AVX512F__)
using GramTerm = float;
using GramLanes = __m512;
constexpr size_t gram_height = 8, gram_registers = 3, gram_tokens = 1;
inline GramLanes gram_add(GramLanes sum, GramTerm by, const GramTerm* row) {
    return _mm512_fmadd_ps(_mm512_set1_ps(by), _mm512_loadu_ps(row), sum);
}
#elif defined(__AVX2__)
using GramTerm = float;
using GramLanes = __m256;
constexpr size_t gram_height = 6, gram_registers = 2, gram_tokens = 1;
inline GramLanes gram_add(GramLanes sum, GramTerm by, const GramTerm* row) {
    return _mm256_fmadd_ps(_mm256_set1_ps(by), _mm256_loadu_ps(row), sum);
}
#else
using GramTerm = float;
using GramLanes = F32x4;
constexpr size_t gram_height = 4, gram_registers = 2, gram_tokens = 1;
inline GramLanes gram_add(GramLanes sum, GramTerm by, const GramTerm* row) { return sum + by * load_as<F32x4>(row); }
#endif

constexpr size_t gram_lanes = sizeof(GramLanes) / sizeof(float), gram_width = gram_registers * gram_lanes;
constexpr size_t gram_rows = 96;    // of the result, whose columns of x are put side by side
constexpr size_t gram_terms = 128;  // that are summed before the sum is added
static_assert(gram_rows % gram_height == 0);

// The bits of a value rounded to bf16; halves to even. No input is NaN.
inline uint32_t bf16_bits(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline void put_term(float& to, float first, float) { to = first; }
inline void put_term(uint32_t& to, float first, float second) { to = bf16_bits(first) | bf16_bits(second) << 16; }

// Terms of `width` columns of x side by side, zeros behind them.
template <size_t Width>
inline void put_terms(const float* x, size_t stride, size_t tokens, size_t width, GramTerm (*terms)[Width]) {
    for (size_t t = 0; t < tokens; t += gram_tokens, ++terms, x += gram_tokens * stride) {
        const float* next = t + 1 < tokens ? x + stride : nullptr;
        size_t c = 0;
        if (next)
            for (; c < width; ++c) put_term((*terms)[c], x[c], next[c]);
        else
            for (; c < width; ++c) put_term((*terms)[c], x[c], 0.0f);
        for (; c < Width; ++c) (*terms)[c] = GramTerm(0);
    }
}

inline void gram_tile(const GramTerm (*a)[gram_rows], const GramTerm (*b)[gram_width], size_t count, float* out, size_t stride,
                      size_t height, size_t width) {
    GramLanes sums[gram_height][gram_registers] = {};
    for (size_t k = 0; k < count; ++k) {
        FLYWEIGHT_UNROLLED
        for (size_t i = 0; i < gram_height; ++i) {
            FLYWEIGHT_UNROLLED
            for (size_t j = 0; j < gram_registers; ++j) sums[i][j] = gram_add(sums[i][j], a[k][i], b[k] + j * gram_lanes);
        }
    }
    for (size_t i = 0; i < height; ++i) {
        float row[gram_width];
        __builtin_memcpy(row, sums[i], sizeof row);
        for (size_t j = 0; j < width; ++j) out[i * stride + j] += row[j];
    }
}

// out (stop − first, stop) += the columns first … stop of x, turned, times the columns 0 … stop.
void add_gram(const float* x, size_t tokens, size_t columns, size_t first, size_t stop, float* out) {
    alignas(64) GramTerm a[gram_terms][gram_rows];
    alignas(64) GramTerm b[gram_terms][gram_width];
    for (size_t at = 0; at < tokens; at += gram_terms * gram_tokens) {
        const float* own = x + at * columns;
        const size_t some = tokens - at < gram_terms * gram_tokens ? tokens - at : gram_terms * gram_tokens;
        const size_t count = (some + gram_tokens - 1) / gram_tokens;
        for (size_t row = first; row < stop; row += gram_rows) {
            const size_t height = stop - row < gram_rows ? stop - row : gram_rows;
            put_terms<gram_rows>(own + row, columns, some, height, a);
            for (size_t column = 0; column < stop; column += gram_width) {
                const size_t width = stop - column < gram_width ? stop - column : gram_width;
                put_terms<gram_width>(own + column, columns, some, width, b);
                for (size_t i = 0; i < height; i += gram_height) {
                    const auto* left = reinterpret_cast<const GramTerm(*)[gram_rows]>(&a[0][i]);
                    float* to = out + (row - first + i) * stop + column;
                    gram_tile(left, b, count, to, stop, height - i < gram_height ? height - i : gram_height, width);
                }
            }
        }
    }
}

}  // namespace

#define KERNELS_OF_Grams(X) X(add_gram, add_gram)
FLYWEIGHT_TABLE(Grams)
