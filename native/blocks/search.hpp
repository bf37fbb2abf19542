// A search for the scales of the K types and iq4_xs. The definition, step by step, is in kernels/blocks/scale_search.py.
//
// Eight groups at a time, one to a lane: no sum ever crosses lanes inside a group, and every lane adds in the order of the
// definition. So the vector types of the compiler do, on every instruction set.
#pragma once

#include "blocks/layout.hpp"
#include "kernel.hpp"

namespace {


constexpr float moves[3] = {0.0f, -1.0f, 1.0f};  // around a rounded ratio

inline F32x8 choose(I32x8 which, F32x8 a, F32x8 b) { return which ? a : b; }

inline F32x8 inverse8(F32x8 a) { return choose(a != 0.0f, 1.0f / choose(a != 0.0f, a, all8(1.0f)), F32x8{}); }

inline F32x8 ratio8(F32x8 a, F32x8 b) { return choose(b > 0.0f, a / choose(b > 0.0f, b, all8(1.0f)), F32x8{}); }

inline float ratio(float a, float b) { return b > 0.0f ? a / b : 0.0f; }

inline F32x8 clamped(F32x8 a, float low, float high) { return least(greatest(a, all8(low)), all8(high)); }

// To nearest even, held within low..high; NaN gives low.
inline F32x8 nearest(F32x8 a, float low, float high) { return clamped(a, low, high) + 0x1.8p23f - 0x1.8p23f; }

// Over the groups of a block, by halves.
template <int Halves>
inline float over_groups(const F32x8 (&terms)[Halves]) {
    F32x8 t = terms[0];
    if (Halves == 2) t = t + terms[Halves - 1];
    const float four[4] = {t[0] + t[4], t[1] + t[5], t[2] + t[6], t[3] + t[7]};
    return (four[0] + four[2]) + (four[1] + four[3]);
}

// Values of a block are searched in units of a power of two, so that the largest has a magnitude of 1 to 2.
struct Unit {
    float unit = 1.0f, inverse = 1.0f;
    float peak = 0.0f;  // in units; 0 where the block counts as zeros, as no f16 scale is small enough for it

    // False for a block with a NaN, an infinity or a value of 2^40 and more.
    bool find(const float* values, size_t count) {
        uint32_t most = 0;
        for (size_t i = 0; i < count; ++i) {
            const uint32_t magnitude = bits_of(values[i]) & 0x7fffffff;
            most = magnitude > most ? magnitude : most;
        }
        if (most >= bits_of(0x1p40f)) return false;
        if (most >= bits_of(0x1p-40f)) unit = float_of(most & infinity), inverse = 1.0f / unit, peak = float_of(most) * inverse;
        return true;
    }

    F32x8 scaled(F32x8 values) const { return peak > 0.0f ? values * inverse : F32x8{}; }

    // A scale as f16 will hold it: at most 65504, and zero only if it is zero.
    float narrow(float scale) const {
        float wide = scale * unit;
        wide = wide > -65504.0f ? wide : -65504.0f;
        wide = wide < 65504.0f ? wide : 65504.0f;
        const float half = f16_value(f16_bits(wide));
        const float least = scale > 0.0f ? 0x1p-24f : scale < 0.0f ? -0x1p-24f : 0.0f;
        return (half != 0.0f ? half : least) * inverse;
    }

    bool overflows(float scale) const { return __builtin_fabsf(scale * unit) >= 65520.0f; }
};

// The 256 values of a block and their weights: [half][element], a group to a lane.
template <int Groups>
struct Block : Unit {
    static constexpr int halves = Groups / 8, size = 256 / Groups;
    F32x8 x[halves][size], weight[halves][size];

    bool load(const float* __restrict values, const float* __restrict weights) {
        if (!find(values, 256)) return false;
        for (int h = 0; h < halves; ++h)
            for (int i = 0; i < size; ++i) {
                for (int lane = 0; lane < 8; ++lane) {
                    const int at = (h * 8 + lane) * size + i;
                    x[h][i][lane] = values[at];
                    weight[h][i][lane] = weights[at];
                }
                x[h][i] = scaled(x[h][i]);
            }
        return true;
    }

    void store_codes(int half, int i, F32x8 codes, uint8_t* out) const {
        for (int lane = 0; lane < 8; ++lane) out[(half * 8 + lane) * size + i] = uint8_t(int(codes[lane]));
    }
};

// w = (d · step) · q ----------------------------------------------------------------------------

// The whole numbers from Low to High.
template <int Low, int High>
struct Uniform {
    static F32x8 value(F32x8 x) { return nearest(x, Low, High); }
    static F32x8 code(F32x8 x) { return value(x) - float(Low); }
};

// The sixteen levels of iq4_xs; the lower of two equally near.
struct Iq4 {
    static F32x8 value(F32x8 x) {
        F32x8 level = all8(iq4_levels[0]);
        for (int i = 0; i < 15; ++i) level = level + choose(x > middle(i), all8(float(iq4_levels[i + 1] - iq4_levels[i])), F32x8{});
        return level;
    }
    static F32x8 code(F32x8 x) {
        F32x8 code{};
        for (int i = 0; i < 15; ++i) code = code + choose(x > middle(i), all8(1.0f), F32x8{});
        return code;
    }
    static constexpr float middle(int i) { return 0.5f * float(iq4_levels[i] + iq4_levels[i + 1]); }
};

template <int Groups, typename Grid, int Least, int Greatest, const auto& Trials, const auto& Ratios>
struct CentredSearch {
    Block<Groups> block;
    static constexpr int halves = Block<Groups>::halves, size = Block<Groups>::size;

    F32x8 scale[halves];
    float d = 0.0f;
    F32x8 loss[halves], step[halves], xq[halves], qq[halves];  // of the best steps
    uint8_t codes[256];

    struct Fit {
        F32x8 xq, qq;
    };

    Fit fit(int half, F32x8 inverse) const {
        Fit sums{};
        FLYWEIGHT_UNROLLED
        for (int i = 0; i < size; ++i) {
            const F32x8 x = block.x[half][i];
            const F32x8 q = Grid::value(x * inverse);
            const F32x8 weighted = block.weight[half][i] * q;
            sums.xq = i ? sums.xq + weighted * x : weighted * x;
            sums.qq = i ? sums.qq + weighted * q : weighted * q;
        }
        return sums;
    }

    void find_scale(int half) {
        F32x8 peak{}, best{}, best_scale{};
        for (int i = 0; i < size; ++i) peak = greatest(F32x8(magnitudes(block.x[half][i])), peak);
        const F32x8 reach = inverse8(peak);
        const auto offer = [&](F32x8 inverse) {
            const Fit sums = fit(half, inverse);
            const F32x8 tried = ratio8(sums.xq, sums.qq), gain = tried * sums.xq;
            best_scale = choose(gain > best, tried, best_scale);
            best = choose(gain > best, gain, best);
        };
        for (const float trial : Trials) {
            offer(reach * trial);
            offer(reach * -trial);
        }
        for (int again = 0; again < 2; ++again) offer(inverse8(best_scale));
        scale[half] = best_scale;
    }

    float find_steps(float d) {
        for (int half = 0; half < halves; ++half) {
            const F32x8 middle = nearest(scale[half] * inverse8(all8(d)), Least, Greatest);
            loss[half] = all8(float_of(infinity));
            step[half] = xq[half] = qq[half] = F32x8{};
            for (const float move : moves) {
                const F32x8 tried = clamped(middle + move, Least, Greatest), v = d * tried;
                const Fit sums = fit(half, inverse8(v));
                const F32x8 lost = v * (v * sums.qq - (sums.xq + sums.xq));
                const auto better = lost < loss[half];
                loss[half] = choose(better, lost, loss[half]);
                step[half] = choose(better, tried, step[half]);
                xq[half] = choose(better, sums.xq, xq[half]);
                qq[half] = choose(better, sums.qq, qq[half]);
            }
        }
        return over_groups(loss);
    }

    bool run(const float* values, const float* weights) {
        if (!block.load(values, weights)) return false;
        for (int half = 0; half < halves; ++half) find_scale(half);
        float largest = scale[0][0];
        for (int g = 1; g < Groups; ++g)
            if (__builtin_fabsf(scale[g / 8][g % 8]) > __builtin_fabsf(largest)) largest = scale[g / 8][g % 8];
        if (block.overflows(largest * float(-1.0 / Ratios[0]))) return false;
        float least = float_of(infinity);
        for (const double ratio : Ratios) {
            const float tried = block.narrow(largest * float(-1.0 / ratio)), lost = find_steps(tried);
            if (lost < least) least = lost, d = tried;
        }
        find_steps(d);
        F32x8 a[halves], b[halves];
        for (int half = 0; half < halves; ++half) {
            a[half] = step[half] * xq[half];
            b[half] = step[half] * step[half] * qq[half];
        }
        const float refit = ratio(over_groups(a), over_groups(b));
        d = block.narrow(refit != 0.0f ? refit : d);
        find_steps(d);
        for (int half = 0; half < halves; ++half) {
            const F32x8 inverse = inverse8(d * step[half]);
            for (int i = 0; i < size; ++i)
                block.store_codes(half, i, Grid::code(block.x[half][i] * inverse), codes);
        }
        return true;
    }

    void store_d(uint8_t* at) const { store_f16(at, d * block.unit); }

    int step_of(int g) const { return int(step[g / 8][g % 8]); }
};

// w = (d · sc) · q − dmin · mn --------------------------------------------------------------------

template <int Groups, int Top, int Greatest, const auto& Trials, const auto& Ratios>
struct RangeSearch {
    Block<Groups> block;
    static constexpr int halves = Block<Groups>::halves, size = Block<Groups>::size;

    F32x8 w[halves], wx[halves];  // Σ weight, Σ weight · x
    F32x8 scale[halves], minimum[halves];
    float d = 0.0f, dmin = 0.0f;
    F32x8 loss[halves], sc[halves], mn[halves], q[halves], qq[halves], xq[halves];  // of the best pairs
    uint8_t codes[256];

    struct Fit {
        F32x8 q, qq, xq;
    };

    Fit fit(int half, F32x8 inverse, F32x8 low) const {
        Fit sums{};
        FLYWEIGHT_UNROLLED
        for (int i = 0; i < size; ++i) {
            const F32x8 x = block.x[half][i];
            const F32x8 code = nearest((x - low) * inverse, 0, Top);
            const F32x8 weighted = block.weight[half][i] * code;
            sums.q = i ? sums.q + weighted : weighted;
            sums.qq = i ? sums.qq + weighted * code : weighted * code;
            sums.xq = i ? sums.xq + weighted * x : weighted * x;
        }
        return sums;
    }

    // Σ weight · (x − s·q + m)², less Σ weight · x².
    F32x8 loss_of(int half, F32x8 s, F32x8 m, const Fit& sums) const {
        return s * (s * sums.qq - (sums.xq + sums.xq) - (m + m) * sums.q) + m * (m * w[half] + (wx[half] + wx[half]));
    }

    void find_scale(int half) {
        const F32x8(&x)[size] = block.x[half];
        F32x8 low = x[0], high = x[0];
        w[half] = block.weight[half][0];
        wx[half] = block.weight[half][0] * x[0];
        for (int i = 1; i < size; ++i) {
            low = choose(x[i] < low, x[i], low);
            high = choose(x[i] > high, x[i], high);
            w[half] = w[half] + block.weight[half][i];
            wx[half] = wx[half] + block.weight[half][i] * x[i];
        }
        low = choose(low < 0.0f, low, F32x8{});
        const F32x8 reach = inverse8(high - low);
        F32x8 best = all8(float_of(infinity)), best_s{}, best_m{};
        const auto offer = [&](F32x8 inverse, F32x8 from) {
            const Fit sums = fit(half, inverse, from);
            F32x8 s = ratio8(w[half] * sums.xq - wx[half] * sums.q, w[half] * sums.qq - sums.q * sums.q);
            F32x8 m = ratio8(s * sums.q - wx[half], w[half]);
            s = choose(m > 0.0f, s, ratio8(sums.xq, sums.qq));
            m = choose(m > 0.0f, m, F32x8{});
            const F32x8 lost = loss_of(half, s, m, sums);
            best_s = choose(lost < best, s, best_s);
            best_m = choose(lost < best, m, best_m);
            best = choose(lost < best, lost, best);
        };
        for (const float trial : Trials) offer(reach * trial, low);
        for (int again = 0; again < 2; ++again) offer(inverse8(best_s), -best_m);
        scale[half] = greatest(best_s, F32x8{});
        minimum[half] = best_m;
    }

    // `tries`: how many of the moves are tried on the minimum.
    float find_steps(float d, float dmin, int tries) {
        for (int half = 0; half < halves; ++half) {
            const F32x8 at_s = nearest(scale[half] * inverse8(all8(d)), 0, Greatest);
            const F32x8 at_m = nearest(minimum[half] * inverse8(all8(dmin)), 0, Greatest);
            loss[half] = all8(float_of(infinity));
            sc[half] = mn[half] = q[half] = qq[half] = xq[half] = F32x8{};
            for (int i = 0; i < 3 * tries; ++i) {
                const F32x8 s_tried = clamped(at_s + moves[i / tries], 0, Greatest), m_tried = clamped(at_m + moves[i % tries], 0, Greatest);
                const F32x8 s = d * s_tried, m = dmin * m_tried;
                const Fit sums = fit(half, inverse8(s), -m);
                const F32x8 lost = loss_of(half, s, m, sums);
                const auto better = lost < loss[half];
                loss[half] = choose(better, lost, loss[half]);
                sc[half] = choose(better, s_tried, sc[half]);
                mn[half] = choose(better, m_tried, mn[half]);
                q[half] = choose(better, sums.q, q[half]);
                qq[half] = choose(better, sums.qq, qq[half]);
                xq[half] = choose(better, sums.xq, xq[half]);
            }
        }
        return over_groups(loss);
    }

    // The d and dmin of least loss for the codes found.
    void refit() {
        F32x8 ss[halves], sm[halves], mm[halves], sx[halves], mx[halves];
        for (int h = 0; h < halves; ++h) {
            ss[h] = sc[h] * sc[h] * qq[h];
            sm[h] = sc[h] * mn[h] * q[h];
            mm[h] = mn[h] * mn[h] * w[h];
            sx[h] = sc[h] * xq[h];
            mx[h] = mn[h] * wx[h];
        }
        const float a = over_groups(ss), b = over_groups(sm), c = over_groups(mm), e = over_groups(sx), f = over_groups(mx);
        const float det = a * c - b * b;
        const float new_d = ratio(e * c - f * b, det), new_dmin = ratio(e * b - f * a, det);
        const bool sound = new_d > 0.0f && new_dmin > 0.0f;
        d = block.narrow(sound ? new_d : d);
        dmin = block.narrow(sound ? new_dmin : dmin);
    }

    bool run(const float* values, const float* weights) {
        if (!block.load(values, weights)) return false;
        for (int half = 0; half < halves; ++half) find_scale(half);
        float s_top = scale[0][0], m_top = minimum[0][0];
        for (int g = 1; g < Groups; ++g) {
            const float s = scale[g / 8][g % 8], m = minimum[g / 8][g % 8];
            s_top = s > s_top ? s : s_top;
            m_top = m > m_top ? m : m_top;
        }
        constexpr float first = float(1.0 / Ratios[0]);
        if (block.overflows(s_top * first) || block.overflows(m_top * first)) return false;
        float least = float_of(infinity);
        for (const double s_ratio : Ratios)
            for (const double m_ratio : Ratios) {
                const float s = block.narrow(s_top * float(1.0 / s_ratio)), m = block.narrow(m_top * float(1.0 / m_ratio));
                const float lost = find_steps(s, m, 1);
                if (lost < least) least = lost, d = s, dmin = m;
            }
        find_steps(d, dmin, 3);
        refit();
        find_steps(d, dmin, 3);
        for (int half = 0; half < halves; ++half) {
            const F32x8 inverse = inverse8(d * sc[half]), from = dmin * mn[half];
            for (int i = 0; i < size; ++i)
                block.store_codes(half, i, nearest((block.x[half][i] + from) * inverse, 0, Top), codes);
        }
        return true;
    }

    void store_d(uint8_t* at) const {
        store_f16(at, d * block.unit);
        store_f16(at + 2, dmin * block.unit);
    }

    int sc_of(int g) const { return int(sc[g / 8][g % 8]); }
    int mn_of(int g) const { return int(mn[g / 8][g % 8]); }
};

}  // namespace
