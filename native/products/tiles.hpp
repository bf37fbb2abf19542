// Products of stored weights with f32 or int8 activations. The bound they are held to is in docs/formats/matvec.md.
//
// Each row has eight running sums. Every 32 columns give eight partial sums, which the scale multiplies once; the eight are
// added up at the end. Rows and products are taken in tiles only to keep the processor busy: no sum depends on its neighbours.
#pragma once

#include "products/across.hpp"
#include "products/masked.hpp"

namespace {

// A stretch of Rows rows times N products. Scales of rows come eight chunks at a time, those of activations eight to a chunk.
template <bool Full, bool Int8, class Row, int Rows, int N>
[[gnu::always_inline]] inline void add_stretch(Row* row, const Activations& a, size_t item, size_t which, int chunks, F32x8 (&sums)[Rows][N]) {
    const flyweight::Rounded& rounded = a.rounded[Row::order];
    float scale[Rows][stretch];
    for (int r = 0; r < Rows; ++r) {
        row[r].template open<Full>(which, chunks);
        store8(scale[r], row[r].scales);
        for (int n = 0; n < N; ++n) {
            const size_t run = (item + n) * a.runs + stretch * which;
            sums[r][n] = row[r].add_bias((Int8 ? rounded.sums : a.sums) + run, (Int8 ? rounded.half_sums : a.half_sums) + 2 * run, sums[r][n]);
        }
    }
    // Unrolled, the shifts of a chunk in blocks of 256 are constants.
    FLYWEIGHT_UNROLLED
    for (int k = 0; k < (Full ? stretch : chunks); ++k)
        for (int r = 0; r < Rows; ++r) {
            const I8x32 codes = row[r].codes(k);
            const size_t column = 32 * (stretch * which + k);
            if constexpr (Int8) {
                for (int n = 0; n < N; ++n) {
                    const size_t at = (item + n) * a.columns + column;
                    const F32x8 dot = dot32<Row::is_signed>(codes, rounded.codes + at, row[r].times(k));
                    sums[r][n] = fused(all8(scale[r][k]), dot * load8(rounded.scale + at / 4), sums[r][n]);
                }
            } else {
                F32x8 values[4];
                widen32<Row::is_signed>(codes, values);
                for (int n = 0; n < N; ++n) {
                    F32x8 s = all8(scale[r][k]);
                    if (const int16_t* times = row[r].times(k)) {  // the first half of a register is the first sixteen columns
                        const float first = times[0], last = times[1];
                        s *= F32x8{first, first, first, first, last, last, last, last};
                    }
                    sums[r][n] = fused(s, dot8x4(values, a.x[Row::order] + (item + n) * a.columns + column), sums[r][n]);
                }
            }
        }
}

template <class Row, int Rows, int N>
[[gnu::always_inline]] inline void add_floats(const Row* row, const Activations& a, size_t item, size_t chunk, F32x8 (&sums)[Rows][N]) {
    for (int r = 0; r < Rows; ++r) {
        F32x8 values[4];
        row[r].values(chunk, values);
        for (int n = 0; n < N; ++n) sums[r][n] += dot8x4(values, a.x[Row::order] + (item + n) * a.columns + 32 * chunk);
    }
}

// The same place in the rows that come next. Two streams side by side are more than the processor foresees by itself
// (measured from memory: q4_0 6.8 to 9.9 GB/s, q6_k 4.6 to 10.4). A hint beyond the last row is no access.
template <size_t Bytes>
inline void prefetch(const uint8_t* at) {
    for (size_t line = 0; line < Bytes; line += 64) __builtin_prefetch(at + line);
}

// Products item to item + N of the rows from `index`.
template <class Row, bool Int8, int Rows, int N>
[[gnu::noinline]] void product_tile(const Weights& w, const Activations& a, size_t index, size_t item, const Products& to) {
    static_assert(Rows <= 2);
    Row row[2] = {Row(w, index), Row(w, index + Rows - 1)};
    F32x8 sums[Rows][N] = {};
    const size_t chunks = w.columns / 32;
    if constexpr (Row::floats) {
        for (size_t chunk = 0; chunk < chunks; ++chunk) {
            for (int r = 0; r < Rows; ++r) prefetch<Row::chunk_bytes>(row[r].row + Row::chunk_bytes * chunk + Rows * w.stride);
            add_floats(row, a, item, chunk, sums);
        }
    } else {
        size_t which = 0;
        for (; stretch * (which + 1) <= chunks; ++which) {
            for (int r = 0; r < Rows; ++r) prefetch<Row::stretch_bytes>(row[r].row + Row::stretch_bytes * which + Rows * w.stride);
            add_stretch<true, Int8>(row, a, item, which, stretch, sums);
        }
        if constexpr (Row::elements < 32 * stretch)  // else a row is whole stretches
            if (stretch * which < chunks) add_stretch<false, Int8>(row, a, item, which, int(chunks - stretch * which), sums);
    }
    for (int r = 0; r < Rows; ++r)
        for (int n = 0; n < N; ++n) put(to, item + n, index + r, sum8(sums[r][n]));
}

// A row's weights come from memory once; further tiles of its products find them in the nearest cache. A single product
// takes two rows at a time: one running sum alone would wait for its own additions.
template <class Row, bool Int8>
void row_by_row(const Weights& w, const Activations& a, size_t first, size_t last, const Products& to) {
    size_t index = first;
    if constexpr (requires { Row::maskable; })
        if (w.mask && a.count < flyweight::many) return masked_rows<Row, Int8>(w, a, first, last, to);
    if constexpr (!Int8)
        if (a.count >= flyweight::many) return f32_blocks<Row>(w, a, first, last, to);
    if (a.count == 1)
        for (; index + 2 <= last; index += 2) product_tile<Row, Int8, 2, 1>(w, a, index, 0, to);
    for (; index < last; ++index) {
        size_t item = 0;
        for (; item + 4 <= a.count; item += 4) product_tile<Row, Int8, 1, 4>(w, a, index, item, to);
        for (; item < a.count; ++item) product_tile<Row, Int8, 1, 1>(w, a, index, item, to);
    }
}

// Of groups across the rows, few activations take pieces of the walk, many pieces of the rows: either way every row is in one piece.
template <class Row, bool Int8>
void product(const Weights& w, const Activations& a, size_t first, size_t last, const Products& to) {
    if constexpr (requires { Row::across; }) return (a.count < flyweight::many ? across<Row> : f32_blocks<Row>)(w, a, first, last, to);
    else return row_by_row<Row, Int8>(w, a, first, last, to);
}

}  // namespace

#define FLYWEIGHT_FLOAT_PRODUCT(form, X) X(form, product<rows::form, false>)
#define KERNELS_OF_FloatProducts(X) \
    FLYWEIGHT_FORMS_OF_CODES(FLYWEIGHT_FLOAT_PRODUCT, X) FLYWEIGHT_FORMS_OF_FLOATS(FLYWEIGHT_FLOAT_PRODUCT, X)
FLYWEIGHT_TABLE(FloatProducts)

#define FLYWEIGHT_INT8_PRODUCT(form, X) X(form, product<rows::form, true>)
#define KERNELS_OF_Int8Products(X) FLYWEIGHT_FORMS_OF_CODES(FLYWEIGHT_INT8_PRODUCT, X)
FLYWEIGHT_TABLE(Int8Products)
