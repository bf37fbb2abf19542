// Products for many activations: rows of weights are put ready once for all of them.
//
// Codes of up to six bits are taken eight rows at a time, so that a register holds four columns of each and its sums belong to
// eight rows: one conversion and one multiplication with scales then serve 256 products. Everything else is decoded to f32, sixteen
// rows at a time, and multiplied in tiles of four rows and three activations. Columns are taken in spans that fit the nearest caches.
#pragma once

#include "matvec_forms.hpp"

namespace {

using flyweight::Activations;
using flyweight::Order;
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
        bias = -32.0f * scale;
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

// f32 ------------------------------------------------------------------------------------------

constexpr int tile_rows = 16, tile_height = 4, tile_width = 3;

template <class Row>
inline void decode_span(const Weights& w, size_t index, size_t first, size_t last, float* out) {
    Row row(w, index);
    F8 values[4];
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
            const F8 s = __builtin_shufflevector(all8(scale[0]), all8(scale[1]), 0, 0, 0, 0, 8, 8, 8, 8);
            const F8 b = __builtin_shufflevector(all8(bias[0]), all8(bias[1]), 0, 0, 0, 0, 8, 8, 8, 8);
            for (int i = 0; i < 4; ++i, out += 8) store8(out, fused(values[i], s, b));
        }
    }
}

template <int Height, int Width>
inline void f32_tile(const float* weights, size_t row_floats, const float* x, size_t columns, size_t count, size_t item, size_t index,
                     const Products& to) {
    F8 sums[Height][Width] = {};
    for (size_t i = 0; i < count; i += 8) {
        F8 lanes[Width];
        for (int n = 0; n < Width; ++n) lanes[n] = load8(x + n * columns + i);
        for (int r = 0; r < Height; ++r) {
            const F8 own = load8(weights + r * row_floats + i);
            for (int n = 0; n < Width; ++n) sums[r][n] = fused(own, lanes[n], sums[r][n]);
        }
    }
    for (int n = 0; n < Width; ++n)
        for (int r = 0; r < Height; ++r) put(to, item + n, index + r, sum8(sums[r][n]));
}

template <class Row, Order order>
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
                f32_tile<Height, Width>(weights[r], 32 * span_chunks, a.x[order] + item * a.columns + 32 * chunk, a.columns, count, item,
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

// int8 -----------------------------------------------------------------------------------------

#ifdef __AVX2__

constexpr int panel_rows = 8, most_items = 4;

// Eight rows of a span: step j of a chunk has its columns 4j … 4j + 3, of one row after the other.
template <int Halves>
struct Panel {
    __m256i codes[span_chunks][8];
    F8 scales[span_chunks][Halves], biases[span_chunks][Halves];
};

inline void transpose(const __m256i (&in)[8], __m256i (&out)[8]) {
    __m256i pair[8], quad[8];
    for (int i = 0; i < 8; i += 2) {
        pair[i] = _mm256_unpacklo_epi32(in[i], in[i + 1]);
        pair[i + 1] = _mm256_unpackhi_epi32(in[i], in[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int h = 0; h < 2; ++h) {
            quad[i + 2 * h] = _mm256_unpacklo_epi64(pair[i + h], pair[i + 2 + h]);
            quad[i + 2 * h + 1] = _mm256_unpackhi_epi64(pair[i + h], pair[i + 2 + h]);
        }
    for (int i = 0; i < 4; ++i) {
        out[i] = _mm256_permute2x128_si256(quad[i], quad[i + 4], 0x20);
        out[i + 4] = _mm256_permute2x128_si256(quad[i], quad[i + 4], 0x31);
    }
}

template <class Row>
void fill(Panel<1 + Row::halves>& panel, const Weights& w, size_t index, size_t first, size_t last) {
    Row row[panel_rows] = {{w, index}, {w, index + 1}, {w, index + 2}, {w, index + 3}, {w, index + 4}, {w, index + 5}, {w, index + 6},
                           {w, index + 7}};
    for (size_t chunk = first; chunk < last; ++chunk) {
        const int k = int(chunk % stretch);
        __m256i codes[panel_rows];
        float scale[1 + Row::halves][panel_rows], bias[1 + Row::halves][panel_rows];
        for (int r = 0; r < panel_rows; ++r) {
            if (k == 0) open_some(row[r], chunk / stretch, w.columns / 32 - chunk);
            codes[r] = __m256i(row[r].codes(k));
            for (int half = 0; half < 1 + Row::halves; ++half) scale_and_bias(row[r], k, half, scale[half][r], bias[half][r]);
        }
        transpose(codes, panel.codes[chunk - first]);
        for (int half = 0; half < 1 + Row::halves; ++half) {
            panel.scales[chunk - first][half] = load8(scale[half]);
            panel.biases[chunk - first][half] = load8(bias[half]);
        }
    }
}

// Sums of products of pairs stay below 2^15 for so many steps: 15 · 254 · 8, 31 · 254 · 4, 63 · 254 · 2.
constexpr int steps_in_16_bits(int bits) { return bits == 4 ? 8 : bits == 5 ? 4 : 2; }

template <class Row, int N>
inline void panel_tile(const Panel<1 + Row::halves>& panel, const Activations& a, const int8_t* x, size_t first, size_t last, size_t item,
                       size_t index, const Products& to) {
    constexpr int parts = 1 + Row::halves, steps = 8 / parts, few = steps_in_16_bits(Row::bits) < steps ? steps_in_16_bits(Row::bits) : steps;
    const __m256i ones = _mm256_set1_epi16(1);
    F8 sums[N] = {};
    for (size_t chunk = first; chunk < last; ++chunk)
        for (int part = 0; part < parts; ++part) {
            __m256i whole[N];
            for (int begin = 0; begin < steps; begin += few) {
                __m256i words[N];
                for (int step = begin; step < begin + few; ++step) {
                    const __m256i codes = panel.codes[chunk - first][part * steps + step];
                    for (int n = 0; n < N; ++n) {
                        int32_t four;
                        __builtin_memcpy(&four, x + (item + n) * a.columns + 32 * chunk + 4 * (part * steps + step), sizeof four);
                        const __m256i products = _mm256_maddubs_epi16(codes, _mm256_set1_epi32(four));
                        words[n] = step == begin ? products : _mm256_add_epi16(words[n], products);
                    }
                }
                for (int n = 0; n < N; ++n) {
                    const __m256i wide = _mm256_madd_epi16(words[n], ones);
                    whole[n] = begin == 0 ? wide : _mm256_add_epi32(whole[n], wide);
                }
            }
            const F8 scale = panel.scales[chunk - first][part], bias = panel.biases[chunk - first][part];
            for (int n = 0; n < N; ++n) {
                const size_t run = (item + n) * a.runs + chunk;
                const float sum = parts == 2 ? a.half_sums[2 * run + part] : a.sums[run];
                sums[n] = fused(scale * all8(a.scale[run]), F8(_mm256_cvtepi32_ps(whole[n])), fused(bias, all8(sum), sums[n]));
            }
        }
    for (int n = 0; n < N; ++n) {
        float* at = to.out + (item + n) * to.stride + index;
        F8 values = sums[n];
        if (to.bias) values += load8(to.bias + index);
        store8(at, to.add ? load8(at) + values : values);
    }
}

// Whole panels; returns the first row that is left.
template <class Row, Order order>
size_t int8_blocks(const Weights& w, const Activations& a, size_t first, size_t last, const Products& to) {
    Panel<1 + Row::halves> panel;
    const size_t chunks = w.columns / 32;
    for (; first + panel_rows <= last; first += panel_rows)
        for (size_t chunk = 0; chunk < chunks; chunk += span_chunks) {
            const size_t end = chunks - chunk < span_chunks ? chunks : chunk + span_chunks;
            fill<Row>(panel, w, first, chunk, end);
            const Products here = after(to, chunk);
            size_t item = 0;
            for (; item + most_items <= a.count; item += most_items)
                panel_tile<Row, most_items>(panel, a, a.codes[order], chunk, end, item, first, here);
            for (; item < a.count; ++item) panel_tile<Row, 1>(panel, a, a.codes[order], chunk, end, item, first, here);
        }
    return first;
}

#else

template <class, Order>
size_t int8_blocks(const Weights&, const Activations&, size_t first, size_t, const Products&) { return first; }

#endif

}  // namespace
