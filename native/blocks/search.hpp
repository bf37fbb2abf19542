// A search for the scales of the K types and iq4_xs. The definition, step by step, is in kernels/blocks/scale_search.py.
//
// A group to a lane: no sum ever crosses lanes inside a group, and every lane adds in the order of the definition. So the vector
// types of the compiler do, on every instruction set. Registers of sixteen lanes take two blocks side by side: lanes 8 · b … 8 · b + 7
// belong to block b.
#pragma once

#include "blocks/layout.hpp"
#include "kernel.hpp"

namespace {

constexpr float moves[3] = {0.0f, -1.0f, 1.0f};  // around a rounded ratio

#ifdef __AVX512F__
constexpr int together = 2;
#else
constexpr int together = 1;
#endif
using PerGroup = float __attribute__((vector_size(32 * together)));

#ifdef __AVX512F__
inline PerGroup least(PerGroup a, PerGroup b) { return PerGroup(_mm512_min_ps(__m512(a), __m512(b))); }
inline PerGroup greatest(PerGroup a, PerGroup b) { return PerGroup(_mm512_max_ps(__m512(a), __m512(b))); }
inline PerGroup sizes(PerGroup a) { return PerGroup(_mm512_abs_ps(__m512(a))); }
#else
inline PerGroup sizes(PerGroup a) { return PerGroup(magnitudes(a)); }
#endif

template <typename V>
inline V all(float value) { return V{} + value; }

template <typename Which, typename V>
inline V choose(Which which, V a, V b) { return which ? a : b; }

template <typename V>
inline V inverse_of(V a) { return choose(a != 0.0f, 1.0f / choose(a != 0.0f, a, all<V>(1.0f)), V{}); }

template <typename V>
inline V ratios(V a, V b) { return choose(b > 0.0f, a / choose(b > 0.0f, b, all<V>(1.0f)), V{}); }

inline float ratio(float a, float b) { return b > 0.0f ? a / b : 0.0f; }

template <typename V>
inline V clamped(V a, float low, float high) { return least(greatest(a, all<V>(low)), all<V>(high)); }

// To nearest even, held within low..high; NaN gives low.
template <typename V>
inline V nearest(V a, float low, float high) { return clamped(a, low, high) + 0x1.8p23f - 0x1.8p23f; }

// A number of each block.
struct EachBlock {
    float at[together];

    PerGroup lanes() const {
        PerGroup wide;
        for (int lane = 0; lane < 8 * together; ++lane) wide[lane] = at[lane / 8];
        return wide;
    }
};

// Lanes i and i ^ By change places.
template <int By>
inline F32x8 exchanged(F32x8 v) {
    return __builtin_shufflevector(v, v, 0 ^ By, 1 ^ By, 2 ^ By, 3 ^ By, 4 ^ By, 5 ^ By, 6 ^ By, 7 ^ By);
}
#ifdef __AVX512F__
template <int By>
inline PerGroup exchanged(PerGroup v) {
    return __builtin_shufflevector(v, v, 0 ^ By, 1 ^ By, 2 ^ By, 3 ^ By, 4 ^ By, 5 ^ By, 6 ^ By, 7 ^ By, 8 ^ By, 9 ^ By, 10 ^ By, 11 ^ By,
                                   12 ^ By, 13 ^ By, 14 ^ By, 15 ^ By);
}
#endif

// What `join` makes of the groups of each block, by halves, in all lanes of the block.
template <int Halves, typename V, typename Join>
inline V over_groups(const V (&terms)[Halves], const Join& join) {
    V t = terms[0];
    if (Halves == 2) t = join(t, terms[Halves - 1]);
    t = join(t, exchanged<4>(t));
    t = join(t, exchanged<2>(t));
    return join(t, exchanged<1>(t));
}

template <int Halves, typename V>
inline V over_groups(const V (&terms)[Halves]) {
    return over_groups(terms, [](V a, V b) { return a + b; });
}

// Eight rows of eight floats, `step` apart: out[i] has element i of each.
inline void load_columns(const float* at, size_t step, F32x8 (&out)[8]) {
    F32x8 two[2][4], four[2][4];  // of two and of four rows
    for (int i = 0; i < 4; ++i) {
        const F32x8 a = load8(at + 2 * i * step), b = load8(at + (2 * i + 1) * step);
        two[0][i] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
        two[1][i] = __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 4; ++i) {
        const F32x8(&from)[4] = two[i / 2];
        for (int rows = 0; rows < 2; ++rows)
            four[rows][i] = i % 2 ? __builtin_shufflevector(from[2 * rows], from[2 * rows + 1], 2, 3, 10, 11, 6, 7, 14, 15)
                                  : __builtin_shufflevector(from[2 * rows], from[2 * rows + 1], 0, 1, 8, 9, 4, 5, 12, 13);
        out[i] = __builtin_shufflevector(four[0][i], four[1][i], 0, 1, 2, 3, 8, 9, 10, 11);
        out[4 + i] = __builtin_shufflevector(four[0][i], four[1][i], 4, 5, 6, 7, 12, 13, 14, 15);
    }
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

    template <typename V>
    V scaled(V values) const { return peak > 0.0f ? values * inverse : V{}; }

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

// The 256 values of each block and their weights: [half][element], a group to a lane.
template <int Groups>
struct Blocks {
    static constexpr int halves = Groups / 8, size = 256 / Groups;
    Unit units[together];
    bool fits[together];
    PerGroup x[halves][size], weight[halves][size];

    // A block that does not fit is searched as zeros.
    void load(const float* const (&values)[together], const float* const (&weights)[together]) {
        for (int b = 0; b < together; ++b) {
            fits[b] = units[b].find(values[b], 256);
            for (int h = 0; h < halves; ++h)
                for (int start = 0; start < size; start += 8) {
                    const int at = h * 8 * size + start;
                    F32x8 columns[8], of_weights[8];
                    load_columns(values[b] + at, size, columns);
                    load_columns(weights[b] + at, size, of_weights);
                    for (int i = 0; i < 8; ++i) {
                        put(units[b].scaled(columns[i]), b, x[h][start + i]);
                        put(of_weights[i], b, weight[h][start + i]);
                    }
                }
        }
    }

    static void put(F32x8 lanes, int b, PerGroup& to) { __builtin_memcpy(reinterpret_cast<char*>(&to) + 32 * b, &lanes, 32); }

    // code(i) is of element i of every group. Four are joined in a lane before they are stored, three of them exactly in f32.
    template <typename Code>
    void store_codes(int half, const Code& code, uint8_t (&out)[together][256]) const {
        using Words = int32_t __attribute__((vector_size(32 * together)));
        for (int i = 0; i < size; i += 4) {
            const PerGroup three = code(i) + 0x1p8f * code(i + 1) + 0x1p16f * code(i + 2);
            const Words words = __builtin_convertvector(three, Words) | __builtin_convertvector(code(i + 3), Words) << 24;
            for (int lane = 0; lane < 8 * together; ++lane) {
                const int32_t word = words[lane];
                __builtin_memcpy(out[lane / 8] + (half * 8 + lane % 8) * size + i, &word, 4);
            }
        }
    }
};

// w = (d · step) · q ----------------------------------------------------------------------------

// The whole numbers from Low to High.
template <int Low, int High>
struct Uniform {
    template <typename V>
    static V value(V x) { return nearest(x, Low, High); }
    template <typename V>
    static V code(V x) { return value(x) - float(Low); }
};

// The sixteen levels of iq4_xs; the lower of two equally near.
struct Iq4 {
    template <typename V>
    static V value(V x) {
        V level = all<V>(iq4_levels[0]);
        for (int i = 0; i < 15; ++i) level = level + choose(x > middle(i), all<V>(float(iq4_levels[i + 1] - iq4_levels[i])), V{});
        return level;
    }
    template <typename V>
    static V code(V x) {
        V code{};
        for (int i = 0; i < 15; ++i) code = code + choose(x > middle(i), all<V>(1.0f), V{});
        return code;
    }
    static constexpr float middle(int i) { return 0.5f * float(iq4_levels[i] + iq4_levels[i + 1]); }
};

template <int Groups, typename Grid, int Least, int Greatest, const auto& Trials, const auto& Ratios>
struct CentredSearch {
    Blocks<Groups> blocks;
    static constexpr int halves = Blocks<Groups>::halves, size = Blocks<Groups>::size;

    PerGroup scale[halves];
    EachBlock d{};
    PerGroup loss[halves], step[halves], xq[halves], qq[halves];  // of the best steps
    uint8_t codes[together][256];

    struct Fit {
        PerGroup xq, qq;
    };

    Fit fit(int half, PerGroup inverse) const {
        Fit sums{};
        FLYWEIGHT_UNROLLED
        for (int i = 0; i < size; ++i) {
            const PerGroup x = blocks.x[half][i];
            const PerGroup q = Grid::value(x * inverse);
            const PerGroup weighted = blocks.weight[half][i] * q;
            sums.xq = i ? sums.xq + weighted * x : weighted * x;
            sums.qq = i ? sums.qq + weighted * q : weighted * q;
        }
        return sums;
    }

    void find_scale(int half) {
        PerGroup peak{}, best{}, best_scale{};
        for (int i = 0; i < size; ++i) peak = greatest(sizes(blocks.x[half][i]), peak);
        const PerGroup reach = inverse_of(peak);
        const auto offer = [&](PerGroup inverse) {
            const Fit sums = fit(half, inverse);
            const PerGroup tried = ratios(sums.xq, sums.qq), gain = tried * sums.xq;
            best_scale = choose(gain > best, tried, best_scale);
            best = choose(gain > best, gain, best);
        };
        for (const float trial : Trials) {
            offer(reach * trial);
            offer(reach * -trial);
        }
        for (int again = 0; again < 2; ++again) offer(inverse_of(best_scale));
        scale[half] = best_scale;
    }

    EachBlock find_steps(const EachBlock& each) {
        const PerGroup d = each.lanes();
        for (int half = 0; half < halves; ++half) {
            const PerGroup middle = nearest(scale[half] * inverse_of(d), Least, Greatest);
            loss[half] = all<PerGroup>(float_of(infinity));
            step[half] = xq[half] = qq[half] = PerGroup{};
            for (const float move : moves) {
                const PerGroup tried = clamped(middle + move, Least, Greatest), v = d * tried;
                const Fit sums = fit(half, inverse_of(v));
                const PerGroup lost = v * (v * sums.qq - (sums.xq + sums.xq));
                const auto better = lost < loss[half];
                loss[half] = choose(better, lost, loss[half]);
                step[half] = choose(better, tried, step[half]);
                xq[half] = choose(better, sums.xq, xq[half]);
                qq[half] = choose(better, sums.qq, qq[half]);
            }
        }
        return lost_by_all();
    }

    EachBlock lost_by_all() const {
        const PerGroup lanes = over_groups(loss);
        EachBlock total;
        for (int b = 0; b < together; ++b) total.at[b] = lanes[8 * b];
        return total;
    }

    void run(const float* const (&values)[together], const float* const (&weights)[together]) {
        blocks.load(values, weights);
        for (int half = 0; half < halves; ++half) find_scale(half);
        EachBlock largest, least;
        for (int b = 0; b < together; ++b) {
            least.at[b] = float_of(infinity), largest.at[b] = scale[0][8 * b];
            for (int g = 1; g < Groups; ++g) {
                const float other = scale[g / 8][8 * b + g % 8];
                if (__builtin_fabsf(other) > __builtin_fabsf(largest.at[b])) largest.at[b] = other;
            }
            if (blocks.units[b].overflows(largest.at[b] * float(-1.0 / Ratios[0]))) blocks.fits[b] = false;
        }
        for (const double ratio : Ratios) {
            EachBlock tried;
            for (int b = 0; b < together; ++b) tried.at[b] = blocks.units[b].narrow(largest.at[b] * float(-1.0 / ratio));
            const EachBlock lost = find_steps(tried);
            for (int b = 0; b < together; ++b)
                if (lost.at[b] < least.at[b]) least.at[b] = lost.at[b], d.at[b] = tried.at[b];
        }
        find_steps(d);
        PerGroup a[halves], c[halves];
        for (int half = 0; half < halves; ++half) {
            a[half] = step[half] * xq[half];
            c[half] = step[half] * step[half] * qq[half];
        }
        const PerGroup refits = ratios(over_groups(a), over_groups(c));
        for (int b = 0; b < together; ++b) {
            const float refit = refits[8 * b];
            d.at[b] = blocks.units[b].narrow(refit != 0.0f ? refit : d.at[b]);
        }
        find_steps(d);
        for (int half = 0; half < halves; ++half) {
            const PerGroup inverse = inverse_of(d.lanes() * step[half]);
            blocks.store_codes(half, [&](int i) { return Grid::code(blocks.x[half][i] * inverse); }, codes);
        }
    }

    bool fits(int b) const { return blocks.fits[b]; }
    void store_d(int b, uint8_t* at) const { store_f16(at, d.at[b] * blocks.units[b].unit); }
    int step_of(int b, int g) const { return int(step[g / 8][8 * b + g % 8]); }
};

}  // namespace
