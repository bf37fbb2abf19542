// Products for many f32 activations: sixteen rows of weights are decoded once for all of them, in spans of columns that fit the
// nearest caches, and multiplied in tiles of four rows and three activations.
#pragma once

#include "products/forms.hpp"

namespace {

using flyweight::Activations;
using flyweight::Products;

constexpr size_t span_chunks = 32;  // of weights put ready at once

inline void put(const Products& to, size_t item, size_t row, float value) {
    float* at = to.out + item * to.stride + row;
    if (to.bias) value += to.bias[row];
    *at = to.add ? *at + value : value;
}

// The first span of columns stores its sums, with the bias if there is one; the others add to them.
inline Products after(const Products& to, size_t first_chunk) {
    return first_chunk ? Products{to.out, to.stride, nullptr, true} : to;
}

// Scale and bias of a chunk's first or last sixteen columns.
template <class Row>
inline void scale_and_bias(const Row& row, int k, int half, float& scale, float& bias) {
    scale = row.scales[k];
    if constexpr (Row::halves) {
        scale *= float(row.times(k)[half]);
        bias = row.half_biases[k / 4][k % 4 * 2 + half];
    } else {
        bias = row.biases[k];
    }
}

template <class Row>
inline void open_some(Row& row, size_t which, size_t left) {
    if (left >= stretch)
        row.template open<true>(which, stretch);
    else
        row.template open<false>(which, int(left));
}

constexpr int tile_rows = 16, tile_height = 4, tile_width = 3;

template <class Row>
inline void decode_span(const Weights& w, size_t index, size_t first, size_t last, float* out) {
    Row row(w, index);
    F32x8 values[4];
    if constexpr (Row::floats) {
        for (size_t chunk = first; chunk < last; ++chunk) {
            row.values(chunk, values);
            for (int i = 0; i < 4; ++i, out += 8) store8(out, values[i]);
        }
    } else {
        for (size_t chunk = first; chunk < last; ++chunk) {
            const int k = int(chunk % stretch);
            if (k == 0) open_some(row, chunk / stretch, w.columns / 32 - chunk);
            widen32<Row::is_signed>(row.codes(k), values);
            float scale[2], bias[2];
            for (int half = 0; half < 2; ++half) scale_and_bias(row, k, half, scale[half], bias[half]);
            const F32x8 s = __builtin_shufflevector(all8(scale[0]), all8(scale[1]), 0, 0, 0, 0, 8, 8, 8, 8);
            const F32x8 b = __builtin_shufflevector(all8(bias[0]), all8(bias[1]), 0, 0, 0, 0, 8, 8, 8, 8);
            for (int i = 0; i < 4; ++i, out += 8) store8(out, fused(values[i], s, b));
        }
    }
}

// Not inline: it is the same for every form.
template <int Height, int Width>
[[gnu::noinline]] void f32_tile(const float* weights, size_t row_floats, const float* x, size_t columns, size_t count, size_t item, size_t index,
                     const Products& to) {
    F32x8 sums[Height][Width] = {};
    for (size_t i = 0; i < count; i += 8) {
        F32x8 lanes[Width];
        for (int n = 0; n < Width; ++n) lanes[n] = load8(x + n * columns + i);
        for (int r = 0; r < Height; ++r) {
            const F32x8 own = load8(weights + r * row_floats + i);
            for (int n = 0; n < Width; ++n) sums[r][n] = fused(own, lanes[n], sums[r][n]);
        }
    }
    for (int n = 0; n < Width; ++n)
        for (int r = 0; r < Height; ++r) put(to, item + n, index + r, sum8(sums[r][n]));
}

template <class Row>
void f32_blocks(const Weights& w, const Activations& a, size_t first, size_t last, const Products& to) {
    alignas(32) float weights[tile_rows][32 * span_chunks];
    const size_t chunks = w.columns / 32;
    for (size_t index = first; index < last; index += tile_rows) {
        const size_t rows = last - index < tile_rows ? last - index : tile_rows;
        for (size_t chunk = 0; chunk < chunks; chunk += span_chunks) {
            const size_t end = chunks - chunk < span_chunks ? chunks : chunk + span_chunks, count = 32 * (end - chunk);
            for (size_t r = 0; r < rows; ++r) decode_span<Row>(w, index + r, chunk, end, weights[r]);
            const Products here = after(to, chunk);
            const auto tile = [&]<int Height, int Width>(size_t r, size_t item) {
                f32_tile<Height, Width>(weights[r], 32 * span_chunks, a.x[Row::order] + item * a.columns + 32 * chunk, a.columns, count, item,
                                        index + r, here);
            };
            size_t item = 0;
            for (; item + tile_width <= a.count; item += tile_width) {
                size_t r = 0;
                for (; r + tile_height <= rows; r += tile_height) tile.template operator()<tile_height, tile_width>(r, item);
                for (; r < rows; ++r) tile.template operator()<1, tile_width>(r, item);
            }
            for (; item < a.count; ++item)
                for (size_t r = 0; r < rows; ++r) tile.template operator()<1, 1>(r, item);
        }
    }
}

}  // namespace
