// Products with trellis-coded weights (docs/formats/woven.md) and rotated activations. A level is looked up by the code of its own row
// and those of the rows above it:
//
//     e[r] = the code, and above its bits the low ones of the code before, as far as four bits go
//     h[r] = e[r] ^ S[e[r − apart]]
//     level = A[e[r]] + B[h[r]] + C[h[r − step]] + D[h[r] ^ R[h[r − step]]]        A of two bits, and D of three, are zero
//
// Rows are taken four or eight at a time, which have most of that in common. Where the processor multiplies bytes, 128 more than a level
// is an unsigned one, and 128 · Σx is taken off at the end.
#pragma once

#include "products/panels.hpp"
#include "products/tiles.hpp"

namespace {

constexpr size_t woven_strip = 256;  // rows; above the first all codes are zero
#ifdef __AVX512VNNI__
template <int Bits>
constexpr int woven_rows = 8;
constexpr int woven_centre = 128;
#else
template <int Bits>
constexpr int woven_rows = Bits == 4 ? 4 : 8;
constexpr int woven_centre = 0;
#endif

// A loop over registers that stay in registers only if nothing of it is left.
#define WOVEN_UNROLLED _Pragma("GCC unroll 16")

struct WovenTables {
    int8_t level[4][16], shuffle[2][16];
};

// Codes of two bits with a third one.
inline I8x32 with_third(I8x32 codes, const uint8_t* bits) {
#ifdef __AVX512VNNI__
    return I8x32(_mm256_mask_add_epi8(__m256i(codes), load_as<uint32_t>(bits), __m256i(codes), _mm256_set1_epi8(4)));
#else
    return codes | I8x32(loosely_down(sixteens(load_u32(bits)), 2));
#endif
}

// Codes of 32 columns in order, `Bits` each.
template <int Bits>
inline I8x32 woven_codes(const uint8_t* at) {
    if constexpr (Bits == 4) return low_then_high(at) & 15;
    else if constexpr (Bits == 2) return two_bit_codes(at);
    else return with_third(two_bit_codes(at), at + 8);
}

// Codes, and above their bits the low ones of the codes before.
template <int Bits>
inline I8x32 four_bits(I8x32 codes, I8x32 before) {
    const I8x32 above = I8x32(loosely_down(U8x32(before), -Bits));
    if constexpr (Bits == 2) return codes | above;
#ifdef __AVX512VNNI__
    return I8x32(_mm256_ternarylogic_epi32(__m256i(codes), __m256i(above), _mm256_set1_epi8(8), 0xf8));
#else
    return codes | above & 8;
#endif
}

template <int Bits, int Rows>
struct WovenWalk {
    static constexpr int step = Bits == 2 ? 2 : 1, apart = Bits == 4 ? 1 : 2, above = 12 / Bits - 1, all = above + Rows;
    static constexpr size_t bytes = 4 * Bits;
    WovenTables tables;
    const uint8_t* row[all];
    size_t kept[above];  // all ones, or zero where there is no such row

    // `more` than they are, modulo 256, are the levels.
    WovenWalk(const Weights& w, size_t index, int more = 0) {
        __builtin_memcpy(&tables, w.bias, sizeof tables);
        for (int8_t& entry : tables.level[1]) entry = int8_t(entry + more);
        static constexpr uint8_t none[bytes] = {};
        for (int i = 0; i < all; ++i) {
            const bool is_there = i >= above || index % woven_strip >= size_t(above - i);
            row[i] = is_there ? w.codes + (index + i - above) * w.stride : none;
            if (i < above) kept[i] = is_there ? ~size_t(0) : 0;
        }
    }

    [[gnu::always_inline]] void levels(size_t chunk, I8x32 (&out)[Rows]) const {
        I8x32 e[all], h[all];
        WOVEN_UNROLLED
        for (int i = 0; i < all; ++i)
            e[i] = woven_codes<Bits>(row[i] + (i < above ? bytes * chunk & kept[i] : bytes * chunk));
        if constexpr (Bits != 4) {
            WOVEN_UNROLLED
            for (int i = all - 1; i > 0; --i) e[i] = four_bits<Bits>(e[i], e[i - 1]);
        }
        WOVEN_UNROLLED
        for (int i = above - step; i < all; ++i) h[i] = e[i] ^ look_up(tables.shuffle[0], e[i - apart]);
        WOVEN_UNROLLED
        for (int r = 0; r < Rows; ++r) {
            const int i = above + r;
            out[r] = look_up(tables.level[1], h[i]) + look_up(tables.level[2], h[i - step]);
            if (Bits != 3) out[r] += look_up(tables.level[3], h[i] ^ look_up(tables.shuffle[1], h[i - step]));
            if (Bits != 2) out[r] += look_up(tables.level[0], e[i]);
        }
    }
};

// As forms.hpp says, for spans and panels.
template <int Bits>
struct WovenRow {
    static constexpr bool floats = false, is_signed = true, halves = false;
    static constexpr int bits = 8, scale_parts = 1;
    static constexpr Order order = flyweight::halves;
    static constexpr size_t elements = 32, bytes = 4 * Bits;
    const WovenWalk<Bits, 1> walk;
    const F32x8 scales;
    F32x8 biases = {};
    size_t first = 0;

    WovenRow(const Weights& w, size_t index) : walk(w, index), scales(all8(F16Scale::one(w.scale + 2 * index))) {}

    template <bool>
    void open(size_t which, int) { first = stretch * which; }

    I8x32 codes(int k) const {
        I8x32 levels[1];
        walk.levels(first + size_t(k), levels);
        return levels[0];
    }

    const int16_t* times(int) const { return nullptr; }
};

namespace rows {
using woven2 = WovenRow<2>;
using woven3 = WovenRow<3>;
using woven4 = WovenRow<4>;
}  // namespace rows

template <int Bits, bool Int8, int Rows, int N>
[[gnu::noinline]] void woven_tile(const Weights& w, const Activations& a, size_t index, size_t item, const Products& to) {
    constexpr int centre = Int8 ? woven_centre : 0;
    const WovenWalk<Bits, Rows> walk(w, index, centre);
    const flyweight::Rounded& rounded = a.rounded[flyweight::halves];
    F32x8 sums[Rows][N] = {}, off[N] = {};
    if (centre)
        for (int n = 0; n < N; ++n)
            for (size_t run = 0; run < a.runs; run += 8) off[n] -= all8(centre) * load8(rounded.sums + (item + n) * a.runs + run);
    for (size_t chunk = 0; chunk < w.columns / 32; ++chunk) {
        I8x32 levels[Rows];
        walk.levels(chunk, levels);
        for (int r = 0; r < Rows; ++r) {
            if (chunk % 4 == 0) __builtin_prefetch(walk.row[walk.above + r] + walk.bytes * chunk + Rows * w.stride);
            F32x8 values[4];
            if (!Int8) widen32<true>(levels[r], values);
            for (int n = 0; n < N; ++n) {
                const size_t at = (item + n) * a.columns + 32 * chunk;
                if (Int8) sums[r][n] = fused(dot32<centre == 0>(levels[r], rounded.codes + at, nullptr), load8(rounded.scale + at / 4), sums[r][n]);
                else sums[r][n] += dot8x4(values, a.x[flyweight::halves] + at);
            }
        }
    }
    for (int r = 0; r < Rows; ++r)
        for (int n = 0; n < N; ++n) put(to, item + n, index + r, F16Scale::one(w.scale + 2 * (index + r)) * sum8(sums[r][n] + off[n]));
}

template <int Bits, bool Int8>
void woven_product(const Weights& w, const Activations& a, size_t first, size_t last, const Products& to) {
    if constexpr (!Int8)
        if (a.count >= flyweight::many) return f32_blocks<WovenRow<Bits>>(w, a, first, last, to);
    constexpr int rows = woven_rows<Bits>;
    size_t index = first;
    for (; index + rows <= last; index += rows) {
        size_t item = 0;
        for (; item + 2 <= a.count; item += 2) woven_tile<Bits, Int8, rows, 2>(w, a, index, item, to);
        if (item < a.count) woven_tile<Bits, Int8, rows, 1>(w, a, index, item, to);
    }
    for (; index < last; ++index)
        for (size_t item = 0; item < a.count; ++item) woven_tile<Bits, Int8, 1, 1>(w, a, index, item, to);
}

}  // namespace

#define FLYWEIGHT_WOVEN_FORMS(X) X(woven2) X(woven3) X(woven4)
#define FLYWEIGHT_WOVEN_PRODUCTS(X, form, bits) \
    X(form##_f32, woven_product<bits, false>) X(form##_int8, woven_product<bits, true>) X(form##_panels, panels_of<rows::form>)
#define KERNELS_OF_WovenProducts(X) \
    FLYWEIGHT_WOVEN_PRODUCTS(X, woven2, 2) FLYWEIGHT_WOVEN_PRODUCTS(X, woven3, 3) FLYWEIGHT_WOVEN_PRODUCTS(X, woven4, 4)
FLYWEIGHT_TABLE(WovenProducts)
