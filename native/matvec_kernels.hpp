// Products of stored weights with f32 or int8 activations. The bound they are held to is in docs/formats/matvec.md.
//
// Each row has eight running sums. Every 32 columns give eight partial sums, which the scale multiplies once; the eight are
// added up at the end. Rows and products are taken in tiles only to keep the processor busy: no sum depends on its neighbours.
#pragma once

#include "matvec_forms.hpp"

namespace {

using flyweight::Activations;

inline F8 dot8x4(const F8 (&w)[4], const float* x) {
    F8 sum = w[0] * load8(x);
    for (int i = 1; i < 4; ++i) sum = fused(w[i], load8(x + 8 * i), sum);
    return sum;
}

template <class Row>
inline void weights32(const Row& row, int k, F8 (&out)[4]) {
    if constexpr (Row::centre == no_codes)
        row.values(k, out);
    else
        widen32<Row::centre != 0>(row.codes(k) - int8_t(Row::centre > 0 ? Row::centre : 0), out);
}

template <class Row>
inline F8 add_f32(const Row& row, int k, const F8 (&w)[4], const float* x, F8 sum) {
    const F8 dot = dot8x4(w, x);
    if constexpr (Row::centre == no_codes) return sum + dot;
    else if (const int16_t* times = row.times(k)) {
        const float a = row.scale(k) * float(times[0]), b = row.scale(k) * float(times[1]);
        return fused(F8{a, a, a, a, b, b, b, b}, dot, sum);  // in quads the first half of a register is the first sixteen columns
    } else {
        return fused(all8(row.scale(k)), dot, sum);
    }
}

// Products item to item + N of the row `index`, and of the next one if there are two.
template <class Row, bool Int8, int Rows, int N>
void matvec_tile(const Weights& w, const Activations& a, size_t index, size_t item, float* out) {
    Row row[2] = {Row(w, index), Row(w, index + Rows - 1)};
    F8 sums[Rows][N] = {};
    size_t chunk = 0;
    for (size_t block = 0; block < w.blocks; ++block) {
        for (int r = 0; r < Rows; ++r) {
            row[r].open(block);
            // The same place in the rows that come next. Two streams side by side are more than the processor foresees by itself
            // (measured from memory: q4_0 6.8 to 9.9 GB/s, q6_k 4.6 to 10.4). A hint beyond the last row is no access.
            for (size_t line = 0; line < 32 * Row::chunks; line += 64) __builtin_prefetch(row[r].at + Rows * w.stride + line);
        }
#pragma GCC unroll 8  // in blocks of 256 the shifts of a run then are constants
        for (int k = 0; k < Row::chunks; ++k, ++chunk)
            for (int r = 0; r < Rows; ++r) {
                if constexpr (Int8) {
                    const I8x32 codes = row[r].codes(k);
                    for (int n = 0; n < N; ++n) {
                        const size_t at = (item + n) * (a.columns / 32) + chunk;
                        const F8 dot = dot32<Row::centre>(codes, a.codes + 32 * at, a.offsets + 16 * at, row[r].times(k));
                        sums[r][n] = fused(all8(row[r].scale(k)) * all8(a.scale[at]), dot, sums[r][n]);
                    }
                } else {
                    F8 values[4];
                    weights32(row[r], k, values);
                    for (int n = 0; n < N; ++n)
                        sums[r][n] = add_f32(row[r], k, values, a.x + (item + n) * a.columns + 32 * chunk, sums[r][n]);
                }
            }
        for (int r = 0; r < Rows; ++r)
            for (int n = 0; n < N; ++n) sums[r][n] = row[r].block_bias(block, a.sums + (item + n) * a.runs, sums[r][n]);
    }
    for (int r = 0; r < Rows; ++r)
        for (int n = 0; n < N; ++n)
            out[(item + n) * w.rows + index + r] = sum8(row[r].row_bias(a.sums + (item + n) * a.runs, sums[r][n]));
}

// A row's weights come from memory once; further tiles of its products find them in the nearest cache. A single product
// takes two rows at a time: one running sum alone would wait for its own additions.
template <class Row, bool Int8>
void matvec(const Weights& w, const Activations& a, size_t first, size_t last, float* out) {
    size_t index = first;
    if (a.count == 1)
        for (; index + 2 <= last; index += 2) matvec_tile<Row, Int8, 2, 1>(w, a, index, 0, out);
    for (; index < last; ++index) {
        size_t item = 0;
        for (; item + 4 <= a.count; item += 4) matvec_tile<Row, Int8, 1, 4>(w, a, index, item, out);
        for (; item < a.count; ++item) matvec_tile<Row, Int8, 1, 1>(w, a, index, item, out);
    }
}

// Activations ----------------------------------------------------------------------------------

// To quads, the order of widen32. Where the low and the high halves of sixteen bytes hold the even and the odd columns, that is
// the even ones of every eight first.
void reorder(const float* __restrict x, size_t columns, bool pairs, float* __restrict out) {
    for (; columns; columns -= 32, x += 32, out += 32)
        for (int quad = 0; quad < 4; ++quad)
            for (int i = 0; i < 4; ++i) {
                out[8 * quad + i] = x[pairs ? 8 * quad + 2 * i : 4 * quad + i];
                out[8 * quad + 4 + i] = x[pairs ? 8 * quad + 2 * i + 1 : 16 + 4 * quad + i];
            }
}

// code = rint(x · (127 / peak)), scale = peak / 127. A peak too small for its inverse gives zeros, one that is not finite a NaN scale.
void quantize(const float* __restrict x, size_t columns, bool pairs, int8_t* __restrict codes, float* __restrict scale) {
    constexpr float round = 0x1.8p23f;  // added and taken away, it leaves a whole number, ties to even
    for (; columns; columns -= 32, x += 32, codes += 32, ++scale) {
        const uint32_t bits = peak_bits(x);
        const float peak = float_of(bits), steps = 127.0f / peak;
        const bool fits = bits < infinity && bits_of(steps) < infinity;
        *scale = bits >= infinity ? float_of(0x7fc00000) : fits ? peak / 127.0f : 0.0f;
        int8_t whole[32];
        for (int i = 0; i < 32; ++i) whole[i] = int8_t(int32_t(fits ? x[i] * steps + round - round : 0.0f));
        if (pairs)
            for (int i = 0; i < 16; ++i) codes[i] = whole[2 * i], codes[16 + i] = whole[2 * i + 1];
        else
            __builtin_memcpy(codes, whole, sizeof whole);
    }
}

// What dot32 takes off for codes that are not centred on zero.
void offset(const int8_t* codes, size_t columns, int centre, int16_t* offsets) {
    for (size_t i = 0; i < columns / 2; ++i) offsets[i] = int16_t(centre * (codes[2 * i] + codes[2 * i + 1]));
}

void sum(const float* x, size_t columns, size_t runs, float* sums) {
    const size_t run = runs ? columns / runs : 0;
    for (size_t r = 0; r < runs; ++r, x += run) {
        F8 lanes = {};
        for (size_t i = 0; i < run; i += 8) lanes += load8(x + i);
        sums[r] = sum8(lanes);
    }
}

void sum_int8(const int8_t* codes, const float* scale, size_t columns, size_t runs, float* sums) {
    const size_t chunks = runs ? columns / runs / 32 : 0;
    for (size_t r = 0; r < runs; ++r) {
        float total = 0;
        for (size_t k = 0; k < chunks; ++k, codes += 32, ++scale) {
            int32_t whole = 0;
            for (int i = 0; i < 32; ++i) whole += codes[i];
            total += *scale * float(whole);
        }
        sums[r] = total;
    }
}

constexpr flyweight::MatvecKernels matvec_kernels = {
#define X(form, type, pairs, centre) matvec<type, false>, matvec<type, true>,
    FLYWEIGHT_MATVEC_CODES(X)
#undef X
#define X(form, type, pairs) matvec<type, false>,
    FLYWEIGHT_MATVEC_FLOATS(X)
#undef X
    reorder,
    quantize,
    offset,
    sum,
    sum_int8,
};

}  // namespace
