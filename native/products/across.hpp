// Products with weights whose groups run across the rows, as HQQ's do: of R rows in J groups, the rows j, j + J, j + 2J … share the scales
// and the zeros of column after column. What a group shares is worked out once for all its rows:
//
//   Σ s(q − z)x = Σ q·y − Σ z·y,  y = s·x
//
// So rows are taken group by group. Row i of the walk is the (i % G)th of group i / G, G = R / J; a tile is eight of them.
#pragma once

#include "products/spans.hpp"

namespace {

constexpr size_t across_columns = 256, across_rows = 64;  // of a span of y, and of what has sums at once
constexpr int across_tile = 8;

// What eight rows add up over one span, in eight sums each. Codes of four bits are two rows to a byte: the high half's, then the low half's.
template <int Bits>
[[gnu::noinline]] void add_across(const uint8_t* codes, size_t apart, const float* y, size_t count, F32x8 (&totals)[across_tile]) {
    for (int i = 0; i < Bits; ++i)  // the codes that the next tile takes
        for (size_t line = 0; line < count; line += 64) __builtin_prefetch(codes + (Bits + i) * apart + line);
    F32x8 sums[across_tile] = {};
    for (size_t column = 0; column < count; column += 8) {
        const F32x8 own = load8(y + column);
        for (int i = 0; i < Bits; ++i) {
            const I32x8 bytes = widen8(codes + i * apart + column);
            if constexpr (Bits == 8) {
                sums[i] = fused(to_floats(bytes), own, sums[i]);
            } else {
                sums[2 * i] = fused(to_floats(bytes >> 4), own, sums[2 * i]);
                sums[2 * i + 1] = fused(to_floats(bytes & 15), own, sums[2 * i + 1]);
            }
        }
    }
    for (int i = 0; i < across_tile; ++i) totals[i] += sums[i];
}

// Some rows of a group, by their places in the walk; at most across_rows.
template <class Row>
void group_across(const Weights& w, const Activations& a, size_t item, size_t group, size_t first, size_t last, const Products& to) {
    constexpr int bits = Row::code_bits, in_byte = 8 / bits;
    const size_t halves_apart = w.rows / in_byte, apart = w.groups * w.stride;
    const uint8_t* codes = w.codes + group * w.stride;
    const float* x = a.x[flyweight::straight] + item * a.columns;
    const Row shared(w, group);
    alignas(32) float y[across_columns];
    F32x8 totals[across_rows / across_tile][across_tile] = {}, zeros = {};
    for (size_t from = 0; from < w.columns; from += across_columns) {
        const size_t count = w.columns - from < across_columns ? w.columns - from : across_columns;
        F32x8 part = {};
        for (size_t i = 0; i < count; i += 8) {
            const F32x8 own = load8(x + from + i) * shared.scales(from + i);
            store8(y + i, own);
            part = fused(own, shared.zeros(from + i), part);
        }
        zeros += part;
        for (size_t row = first; row < last; row += across_tile)
            add_across<bits>(codes + row / in_byte * apart + from, apart, y, count, totals[(row - first) / across_tile]);
    }
    const float shift = sum8(zeros);
    for (size_t row = first; row < last; ++row) {
        const size_t stored = row / across_tile * bits + row % across_tile / in_byte;  // the row of bytes, of this group
        const size_t index = stored * w.groups + group + row % in_byte * halves_apart;
        put(to, item, index, sum8(totals[(row - first) / across_tile][row % across_tile]) - shift);
    }
}

// Rows first to last of the walk.
template <class Row>
void across(const Weights& w, const Activations& a, size_t first, size_t last, const Products& to) {
    while (first < last) {
        const size_t rows = w.rows / w.groups, group = first / rows, begin = first % rows;
        size_t count = rows - begin < last - first ? rows - begin : last - first;
        if (count > across_rows) count = across_rows;
        for (size_t item = 0; item < a.count; ++item) group_across<Row>(w, a, item, group, begin, begin + count, to);
        first += count;
    }
}

}  // namespace
