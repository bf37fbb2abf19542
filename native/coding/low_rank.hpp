// A product of low rank added to a matrix, one rank after the other: each product and each sum is rounded, so the bits
// are the same everywhere.
#pragma once

#include "simd/vectors.hpp"

namespace {

constexpr size_t tile_ranks = 64, tile_columns = 64, tile_rows = 4, tile_lanes = 16;


// `Rows` rows of a tile, sixteen columns of it. `right` is the tile's own copy: its rows would lie a power of two apart, in
// the same places of the caches.
template <size_t Rows>
inline void add_lanes(const float* left, size_t rank, size_t ranks, const float* right, float* out, size_t columns) {
    F32x8 low[Rows], high[Rows];
    for (size_t r = 0; r < Rows; ++r) low[r] = load8(out + r * columns), high[r] = load8(out + r * columns + 8);
    for (size_t k = 0; k < ranks; ++k, right += tile_columns) {
        const F32x8 first = load8(right), second = load8(right + 8);
        for (size_t r = 0; r < Rows; ++r) low[r] += left[r * rank + k] * first, high[r] += left[r * rank + k] * second;
    }
    for (size_t r = 0; r < Rows; ++r) store8(out + r * columns, low[r]), store8(out + r * columns + 8, high[r]);
}

template <size_t Rows>
inline void add_tile(const float* left, size_t rank, size_t ranks, const float* right, float* out, size_t columns, size_t width) {
    size_t at = 0;
    for (; at + tile_lanes <= width; at += tile_lanes) add_lanes<Rows>(left, rank, ranks, right + at, out + at, columns);
    if (at == width) return;
    float edge[Rows * tile_lanes] = {};
    for (size_t r = 0; r < Rows; ++r)
        for (size_t i = at; i < width; ++i) edge[r * tile_lanes + i - at] = out[r * columns + i];
    add_lanes<Rows>(left, rank, ranks, right + at, edge, tile_lanes);
    for (size_t r = 0; r < Rows; ++r)
        for (size_t i = at; i < width; ++i) out[r * columns + i] = edge[r * tile_lanes + i - at];
}

void add_product(const float* left, size_t rows, size_t rank, const float* right, size_t columns, float* out) {
    for (size_t first = 0; first < rank; first += tile_ranks)
        for (size_t at = 0; at < columns; at += tile_columns) {
            const size_t ranks = rank - first < tile_ranks ? rank - first : tile_ranks;
            const size_t width = columns - at < tile_columns ? columns - at : tile_columns;
            float tile[tile_ranks * tile_columns] = {};
            for (size_t k = 0; k < ranks; ++k)
                for (size_t i = 0; i < width; ++i) tile[k * tile_columns + i] = right[(first + k) * columns + at + i];
            size_t row = 0;
            for (; row + tile_rows <= rows; row += tile_rows)
                add_tile<tile_rows>(left + row * rank + first, rank, ranks, tile, out + row * columns + at, columns, width);
            for (; row < rows; ++row)
                add_tile<1>(left + row * rank + first, rank, ranks, tile, out + row * columns + at, columns, width);
        }
}

}  // namespace
