// Products for many activations of two bytes, on processors that multiply bytes (VNNI): rows of codes are put side by side once for all of
// them. Others take f32, which is as fast there (spans.hpp).
//
// A register has four columns of each of sixteen rows, or of eight at the end, so that its sums belong to rows: one conversion and
// one multiplication with scales then serve 512 products. Columns are taken in spans that fit the nearest cache. A row depends on
// nothing beside it: eight and sixteen at a time give the same bits.
#pragma once

#include "products/spans.hpp"

namespace {

#ifdef __AVX512VNNI__

constexpr int most_items = 4;

struct EightRows {
    static constexpr int rows = 8;
    using Floats = F32x8;
    using Whole = __m256i;
    static Floats all(float value) { return all8(value); }
    static Floats floats(Whole low, Whole high) { return __builtin_convertvector(I32x8(low) + (I32x8(high) << 7), F32x8); }
    static Whole repeated(int32_t four) { return _mm256_set1_epi32(four); }
    static Whole add_dots(Whole sums, Whole bytes, Whole signed_bytes) { return _mm256_dpbusd_epi32(sums, bytes, signed_bytes); }
};

struct SixteenRows {
    static constexpr int rows = 16;
    using Floats = F32x16;
    using Whole = __m512i;
    static Floats all(float value) { return F32x16(_mm512_set1_ps(value)); }
    static Floats floats(Whole low, Whole high) { return __builtin_convertvector(I32x16(low) + (I32x16(high) << 7), F32x16); }
    static Whole repeated(int32_t four) { return _mm512_set1_epi32(four); }
    static Whole add_dots(Whole sums, Whole bytes, Whole signed_bytes) { return _mm512_dpbusd_epi32(sums, bytes, signed_bytes); }
};

// A span of rows: step j of a chunk has its columns 4j … 4j + 3, of one row after the other.
template <class Side, int Halves>
struct Panel {
    alignas(64) uint8_t codes[span_chunks][8][4 * Side::rows];
    alignas(64) float scales[span_chunks][Halves][Side::rows], biases[span_chunks][Halves][Side::rows];
    alignas(64) int32_t starts[span_chunks][Side::rows];  // of signed codes: what takes 128 off each activation
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

template <class Row, class Side>
void fill(Panel<Side, 1 + Row::halves>& panel, const Weights& w, size_t index, size_t first, size_t last) {
    for (int side = 0; side < Side::rows; side += 8, index += 8) {
        const auto at_most = [&](size_t own) { return own < w.rows ? own : w.rows - 1; };
        Row row[8] = {{w, at_most(index)}, {w, at_most(index + 1)}, {w, at_most(index + 2)}, {w, at_most(index + 3)},
                      {w, at_most(index + 4)}, {w, at_most(index + 5)}, {w, at_most(index + 6)}, {w, at_most(index + 7)}};
        for (size_t chunk = first; chunk < last; ++chunk) {
            const int k = int(chunk % stretch);
            const size_t at = chunk - first;
            __m256i codes[8], steps[8];
            for (int r = 0; r < 8; ++r) {
                if (k == 0) open_some(row[r], chunk / stretch, w.columns / 32 - chunk);
                codes[r] = __m256i(row[r].codes(k));
                for (int half = 0; half < 1 + Row::halves; ++half)
                    scale_and_bias(row[r], k, half, panel.scales[at][half][side + r], panel.biases[at][half][side + r]);
            }
            transpose(codes, steps);
            for (int step = 0; step < 8; ++step) __builtin_memcpy(panel.codes[at][step] + 4 * side, &steps[step], sizeof steps[step]);
            if constexpr (Row::is_signed) {
                __m256i sums = _mm256_setzero_si256();
                for (int step = 0; step < 8; ++step) sums = _mm256_dpbusd_epi32(sums, _mm256_set1_epi8(-128), steps[step]);
                const __m256i start = _mm256_sub_epi32(_mm256_setzero_si256(), sums);
                __builtin_memcpy(panel.starts[at] + side, &start, sizeof start);
            }
        }
    }
}

// Σ q·x over some steps. The instruction multiplies bytes with signed bytes: signed codes are those, and the activations count
// from −128 on, Σ q·x = Σ q·(x + 128) − 128·Σ q.
template <bool Signed, class Side, int Steps, int N>
inline void add_products(const uint8_t (*codes)[4 * Side::rows], const int8_t* x, size_t stride, const int32_t* starts,
                         typename Side::Whole (&whole)[N]) {
    using Whole = typename Side::Whole;
    for (int n = 0; n < N; ++n) whole[n] = Signed ? load_as<Whole>(starts) : Whole{};
    for (int step = 0; step < Steps; ++step) {
        const Whole own = load_as<Whole>(codes[step]);
        for (int n = 0; n < N; ++n) {
            const int32_t four = load_as<int32_t>(x + n * stride + 4 * step);
            if constexpr (Signed)
                whole[n] = Side::add_dots(whole[n], Side::repeated(four ^ int32_t(0x80808080)), own);
            else
                whole[n] = Side::add_dots(whole[n], own, Side::repeated(four));
        }
    }
}

// Not inline: it is the same for many forms.
template <bool Signed, class Side, int Halves, int N>
[[gnu::noinline]] void panel_tile(const Panel<Side, Halves>& panel, const Activations& a, const flyweight::Rounded& x, size_t first, size_t last,
                                  size_t item, size_t index, size_t rows, const Products& to) {
    using Floats = typename Side::Floats;
    using Whole = typename Side::Whole;
    constexpr int parts = Halves, steps = 8 / parts;
    Floats sums[N] = {};
    for (size_t chunk = first; chunk < last; ++chunk)
        for (int part = 0; part < parts; ++part) {
            const size_t at = chunk - first, column = item * a.columns + 32 * chunk + 4 * part * steps;
            Whole low[N], high[N];
            add_products<Signed, Side, steps>(panel.codes[at] + part * steps, x.codes + column, a.columns, panel.starts[at], low);
            add_products<Signed, Side, steps>(panel.codes[at] + part * steps, x.high + column, a.columns, panel.starts[at], high);
            const Floats scale = load_as<Floats>(panel.scales[at][part]), bias = load_as<Floats>(panel.biases[at][part]);
            for (int n = 0; n < N; ++n) {
                const size_t run = (item + n) * a.runs + chunk;
                const float sum = parts == 2 ? x.half_sums[2 * run + part] : x.sums[run];
                sums[n] = fused(scale * Side::all(x.scale[run]), Side::floats(low[n], high[n]), fused(bias, Side::all(sum), sums[n]));
            }
        }
    for (int n = 0; n < N; ++n) {
        float* at = to.out + (item + n) * to.stride + index;
        Floats values = sums[n];
        if (rows < Side::rows) {
            for (size_t r = 0; r < rows; ++r) put(to, item + n, index + r, values[r]);
            continue;
        }
        if (to.bias) values += load_as<Floats>(to.bias + index);
        if (to.add) values += load_as<Floats>(at);
        __builtin_memcpy(at, &values, sizeof values);
    }
}

// Panels with at least `least` rows; returns the first row that is left. What a panel has beyond the rows is their last one again.
template <class Row, class Side>
size_t panels(const Weights& w, const Activations& a, size_t first, size_t last, size_t least, const Products& to) {
    Panel<Side, 1 + Row::halves> panel;
    const size_t chunks = w.columns / 32;
    for (; first + least <= last; first += Side::rows) {
        const size_t rows = last - first < Side::rows ? last - first : Side::rows;
        for (size_t chunk = 0; chunk < chunks; chunk += span_chunks) {
            const size_t end = chunks - chunk < span_chunks ? chunks : chunk + span_chunks;
            fill<Row>(panel, w, first, chunk, end);
            const Products here = after(to, chunk);
            const flyweight::Rounded& x = a.rounded[Row::order];
            constexpr int halves = 1 + Row::halves;
            size_t item = 0;
            for (; item + most_items <= a.count; item += most_items)
                panel_tile<Row::is_signed, Side, halves, most_items>(panel, a, x, chunk, end, item, first, rows, here);
            for (; item < a.count; ++item) panel_tile<Row::is_signed, Side, halves, 1>(panel, a, x, chunk, end, item, first, rows, here);
        }
    }
    return first;
}

template <class Row>
void panels_of(const Weights& w, const Activations& a, size_t first, size_t last, const Products& to) {
    first = panels<Row, SixteenRows>(w, a, first, last, SixteenRows::rows, to);
    panels<Row, EightRows>(w, a, first, last, 1, to);
}

bool take_codes() { return true; }

#else

template <class Row>
constexpr flyweight::ProductKernel panels_of = nullptr;

bool take_codes() { return false; }

#endif

}  // namespace

#define FLYWEIGHT_INT8_PANEL(form, X) X(form, panels_of<rows::form>)
#define KERNELS_OF_Int8Panels(X) X(take_codes, take_codes) FLYWEIGHT_FORMS_OF_CODES(FLYWEIGHT_INT8_PANEL, X)
FLYWEIGHT_TABLE(Int8Panels)
