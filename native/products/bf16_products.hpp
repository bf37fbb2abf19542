// bf16 weights times many activations rounded to bf16, as the processor multiplies them: each of sixteen lanes adds two products at a
// time, the odd column first. Tiles of rows and activations only keep it busy: no sum depends on its neighbours.
#pragma once

#include "products/spans.hpp"

namespace {

#ifdef __AVX512BF16__

constexpr size_t bf16_height = 4, bf16_width = 4;

template <size_t Height, size_t Width>
inline void bf16_tile(const Weights& w, const Activations& a, size_t index, size_t item, const Products& to) {
    const uint8_t* weights = w.codes + index * w.stride;
    const uint16_t* x = a.bf16 + item * a.columns;
    __m512 sums[Height][Width];
    for (auto& row : sums)
        for (__m512& sum : row) sum = _mm512_setzero_ps();
    for (size_t i = 0; i < w.columns; i += 32) {
        __m512bh lanes[Width];
        for (size_t n = 0; n < Width; ++n) lanes[n] = __m512bh(_mm512_loadu_si512(x + n * a.columns + i));
        for (size_t r = 0; r < Height; ++r) {
            const __m512bh own = __m512bh(_mm512_loadu_si512(weights + r * w.stride + 2 * i));
            for (size_t n = 0; n < Width; ++n) sums[r][n] = _mm512_dpbf16_ps(sums[r][n], own, lanes[n]);
        }
    }
    for (size_t n = 0; n < Width; ++n)
        for (size_t r = 0; r < Height; ++r) {
            float lanes[16];
            _mm512_storeu_ps(lanes, sums[r][n]);
            put(to, item + n, index + r, sum8(load8(lanes) + load8(lanes + 8)));
        }
}

void many_bf16(const Weights& w, const Activations& a, size_t first, size_t last, const Products& to) {
    const auto rows = [&]<size_t Height>(size_t index) {
        size_t item = 0;
        for (; item + bf16_width <= a.count; item += bf16_width) bf16_tile<Height, bf16_width>(w, a, index, item, to);
        for (; item < a.count; ++item) bf16_tile<Height, 1>(w, a, index, item, to);
    };
    for (; first + bf16_height <= last; first += bf16_height) rows.template operator()<bf16_height>(first);
    for (; first < last; ++first) rows.template operator()<1>(first);
}

#else

constexpr flyweight::ProductKernel many_bf16 = nullptr;  // the processor does not multiply bf16

#endif

}  // namespace

#define KERNELS_OF_Bf16Products(X) X(many, many_bf16)
FLYWEIGHT_TABLE(Bf16Products)
