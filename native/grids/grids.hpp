// The inner loops of the quantizers of uniform grids.
//
// Groups are columns of a matrix and lie side by side, so a sum runs down a column in order and the compiler takes as many
// columns at a time as the instruction set has lanes. A strip of columns is as wide as its running sums stay in the first
// cache.
#pragma once

#include "kernel.hpp"
#include "simd/f16.hpp"

namespace {

constexpr size_t strip = 256;

inline float clamped_code(float x, float top) { return x > 0.0f ? x < top ? x : top : 0.0f; }

// To nearest even; x is at most 255.
inline float whole_code(float x) { return x + 0x1.8p23f - 0x1.8p23f; }

// What to divide by for a scale: by infinity, which gives zero, for zero. (∞ / ∞ is NaN, which is held at zero too.)
inline float divisor_of(float scale) { return scale != 0.0f ? scale : float_of(0x7f800000); }

template <bool Biased>
inline float nearest_code(float w, float divisor, float offset, float top) {
    return whole_code(clamped_code(Biased ? (w - offset) / divisor : w / divisor + offset, top));
}

template <bool Biased>
inline float grid_value(float q, float scale, float offset) {
    return Biased ? scale * q + offset : scale * (q - offset);
}

template <bool Biased>
void grid_codes_of(const float* values, size_t rows, size_t columns, const float* scale, const float* offset, size_t group,
                   float top, uint8_t* out) {
    const size_t groups = columns / group + (columns % group != 0);
    for (size_t row = 0; row < rows; ++row)
        for (size_t g = 0; g < groups; ++g) {
            const size_t start = g * group, count = columns - start < group ? columns - start : group;
            const float s = divisor_of(scale[row * groups + g]), o = offset[row * groups + g];
            const float* __restrict from = values + row * columns + start;
            uint8_t* __restrict to = out + row * columns + start;
            for (size_t i = 0; i < count; ++i) to[i] = uint8_t(int(nearest_code<Biased>(from[i], s, o, top)));
        }
}

void grid_codes(const float* values, size_t rows, size_t columns, const float* scale, const float* offset, size_t group,
                bool biased, int levels, uint8_t* out) {
    (biased ? grid_codes_of<true> : grid_codes_of<false>)(values, rows, columns, scale, offset, group, float(levels), out);
}

// body(first column, how many) over strips of columns.
template <typename Body>
inline void over_strips(size_t groups, const Body& body) {
    for (size_t at = 0; at < groups; at += strip) body(at, groups - at < strip ? groups - at : strip);
}

template <bool Biased, bool Weighted>
void grid_loss_of(const float* values, const float* by, size_t size, size_t groups, const float* scale, const float* offset,
                  float top, double* loss) {
    over_strips(groups, [=](size_t at, size_t count) {
        const float *__restrict s = scale + at, *__restrict o = offset + at;
        double* __restrict total = loss + at;
        float divisor[strip];
        for (size_t i = 0; i < count; ++i) divisor[i] = divisor_of(s[i]);
        for (size_t i = 0; i < count; ++i) total[i] = 0.0;
        for (size_t row = 0; row < size; ++row) {
            const float *__restrict w = values + row * groups + at, *__restrict weight = by + (Weighted ? row * groups + at : 0);
            for (size_t i = 0; i < count; ++i) {
                const float q = nearest_code<Biased>(w[i], divisor[i], o[i], top);
                const double off = double(w[i] - grid_value<Biased>(q, s[i], o[i]));
                total[i] += Weighted ? double(weight[i]) * off * off : off * off;
            }
        }
    });
}

void grid_loss(const float* values, const float* by, size_t size, size_t groups, const float* scale, const float* offset,
               bool biased, int levels, double* loss) {
    constexpr decltype(&grid_loss_of<true, true>) forms[2][2] = {{grid_loss_of<false, false>, grid_loss_of<false, true>},
                                                                 {grid_loss_of<true, false>, grid_loss_of<true, true>}};
    forms[biased][by != nullptr](values, by, size, groups, scale, offset, float(levels), loss);
}

template <bool Biased, bool Weighted>
void grid_sums_of(const float* values, const float* by, size_t size, size_t groups, const float* scale, const float* offset,
                  float top, double centre, double* sums) {
    over_strips(groups, [=](size_t at, size_t count) {
        const float *__restrict s = scale + at, *__restrict o = offset + at;
        // Not in place: rows of `sums` a power of two apart would share their cache lines' places.
        double n[strip + 8] = {}, sx[strip + 8] = {}, sq[strip + 8] = {}, xq[strip + 8] = {}, qq[strip + 8] = {};
        float divisor[strip];
        for (size_t i = 0; i < count; ++i) divisor[i] = divisor_of(s[i]);
        for (size_t row = 0; row < size; ++row) {
            const float *__restrict w = values + row * groups + at, *__restrict weight = by + (Weighted ? row * groups + at : 0);
            for (size_t i = 0; i < count; ++i) {
                const double q = double(nearest_code<Biased>(w[i], divisor[i], o[i], top)) - centre;
                const double pull = Weighted ? double(weight[i]) : 1.0, x = double(w[i]);
                n[i] += pull;
                sx[i] += pull * x;
                sq[i] += pull * q;
                xq[i] += pull * x * q;
                qq[i] += pull * q * q;
            }
        }
        const double* totals[5] = {n, sx, sq, xq, qq};
        for (size_t k = 0; k < 5; ++k)
            for (size_t i = 0; i < count; ++i) sums[k * groups + at + i] = totals[k][i];
    });
}

void grid_sums(const float* values, const float* by, size_t size, size_t groups, const float* scale, const float* offset,
               bool biased, int levels, int centre, double* sums) {
    constexpr decltype(&grid_sums_of<true, true>) forms[2][2] = {{grid_sums_of<false, false>, grid_sums_of<false, true>},
                                                                 {grid_sums_of<true, false>, grid_sums_of<true, true>}};
    forms[biased][by != nullptr](values, by, size, groups, scale, offset, float(levels), double(centre), sums);
}

// Half-quadratic ---------------------------------------------------------------------------------

constexpr float surely_dense = 0.125f;
constexpr double ln2 = 0.6931471805599453, round_double = 0x1.8p52;

constexpr double factorial(int n) { return n < 2 ? 1.0 : n * factorial(n - 1); }

// x^-0.3 for x > 2^-126: exp(−0.3 · ln x), each step rounded to f32, both functions as series in double precision.
inline float power(float x) {
    const int32_t bits = int32_t(bits_of(x)), exponent = (bits - 0x3f3504f3) >> 23;
    const double m = double(float_of(uint32_t(bits) - (uint32_t(exponent) << 23))), s = (m - 1.0) / (m + 1.0), ss = s * s;
    double log = 0.0;
    for (int k = 10; k >= 0; --k) log = log * ss + 2.0 / ln2 / (2 * k + 1);
    const float natural = float((double(exponent) + s * log) * ln2);
    const double p = double(natural * -0.3f), whole = p / ln2 + round_double - round_double, r = p - whole * ln2;
    double exp = 0.0;
    for (int k = 13; k >= 0; --k) exp = exp * r + 1.0 / factorial(k);
    return float(exp) * float_of(uint32_t(int32_t(whole) + 127) << 23);
}

// Halves away from zero.
inline float away_code(float w, float t, float z, float top) {
    const float steps = clamped_code(w * t + z, top), whole = float(int(steps));
    return whole + float(int(2.0f * (steps - whole)));
}

void hqq_codes(const float* values, size_t size, size_t groups, const float* t, const float* z, int levels, uint8_t* out) {
    const float top = float(levels);
    over_strips(groups, [=](size_t at, size_t count) {
        const float *__restrict ts = t + at, *__restrict zs = z + at;
        for (size_t row = 0; row < size; ++row) {
            const float* __restrict w = values + row * groups + at;
            uint8_t* __restrict to = out + row * groups + at;
            for (size_t i = 0; i < count; ++i) to[i] = uint8_t(int(away_code(w[i], ts[i], zs[i], top)));
        }
    });
}

template <bool Weighted>
void hqq_round_of(const float* values, const float* by, size_t size, size_t groups, const float* t, const float* z,
                  float inverse, float top, float* error, float* mean) {
    over_strips(groups, [=](size_t at, size_t count) {
        const float *__restrict ts = t + at, *__restrict zs = z + at;
        float *__restrict es = error + at, *__restrict ms = mean + at;
        float codes[strip], off[strip], sparse[strip] = {};
        bool cleared = true;
        for (size_t i = 0; i < count; ++i) es[i] = ms[i] = 0.0f;
        for (size_t row = 0; row < size; ++row) {
            const float *__restrict w = values + row * groups + at, *__restrict weight = by + (Weighted ? row * groups + at : 0);
            uint32_t large = 0;
            for (size_t i = 0; i < count; ++i) {
                codes[i] = away_code(w[i], ts[i], zs[i], top);
                off[i] = w[i] - (codes[i] - zs[i]) / ts[i];
                large |= uint32_t(__builtin_fabsf(off[i]) > surely_dense);
            }
            if (large || !cleared)  // seldom above two bits: docs/decisions/0031
                for (size_t i = 0; i < count; ++i) {
                    const float x = __builtin_fabsf(off[i]), left = x > surely_dense ? x - inverse * power(x) : 0.0f;
                    sparse[i] = left > 0.0f ? __builtin_copysignf(left, off[i]) : 0.0f;
                }
            cleared = !large;
            for (size_t i = 0; i < count; ++i) {
                const float x = __builtin_fabsf(off[i]), target = codes[i] - (w[i] - sparse[i]) * ts[i];
                es[i] += Weighted ? x * weight[i] : x;
                ms[i] += Weighted ? target * weight[i] : target;
            }
        }
    });
}

void hqq_round(const float* values, const float* by, size_t size, size_t groups, const float* t, const float* z, float inverse,
               int levels, float* error, float* mean) {
    (by ? hqq_round_of<true> : hqq_round_of<false>)(values, by, size, groups, t, z, inverse, float(levels), error, mean);
}

}  // namespace

#define KERNELS_OF_Grids(X) X(grid_codes, grid_codes) X(grid_loss, grid_loss) X(grid_sums, grid_sums) X(hqq_codes, hqq_codes) X(hqq_round, hqq_round)
FLYWEIGHT_TABLE(Grids)
