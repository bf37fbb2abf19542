// A search for the scales and minimums of q2_k, q4_k and q5_k: w = (d · sc) · q − dmin · mn.
#pragma once

#include "blocks/search.hpp"

namespace {

// A grid tried for a group: its range as so many steps, beginning so many of them above its low end.
struct RangeTrial {
    double steps, above;
};

template <int Groups, int Top, int Greatest, const auto& Trials, const auto& Ratios>
struct RangeSearch {
    Blocks<Groups> blocks;
    static constexpr int halves = Blocks<Groups>::halves, size = Blocks<Groups>::size;
    static constexpr int tried = sizeof Ratios / sizeof Ratios[0];

    struct Fit {
        PerGroup q, qq, xq;
    };

    PerGroup w[halves], wx[halves], inverse_w[halves];  // Σ weight, Σ weight · x
    PerGroup scale[halves], minimum[halves];
    Fit found[halves];  // of the codes of each group alone
    PerGroup d, dmin;  // of each block, in all its lanes
    PerGroup sc[halves], mn[halves];
    uint8_t codes[together][256];

    Fit fit(int half, PerGroup inverse, PerGroup low) const {
        Fit sums{};
        FLYWEIGHT_UNROLLED
        for (int i = 0; i < size; ++i) {
            const PerGroup x = blocks.x[half][i];
            const PerGroup code = nearest((x - low) * inverse, 0, Top);
            const PerGroup weighted = blocks.weight[half][i] * code;
            sums.q = i ? sums.q + weighted : weighted;
            sums.qq = i ? sums.qq + weighted * code : weighted * code;
            sums.xq = i ? sums.xq + weighted * x : weighted * x;
        }
        return sums;
    }

    // What of a loss is the scale's, and what a minimum adds; `beyond` is s·q − wx. Together Σ weight · (x − s·q + m)², less Σ weight · x².
    static PerGroup scale_loss(PerGroup s, const Fit& sums) { return s * (s * sums.qq - (sums.xq + sums.xq)); }
    PerGroup minimum_loss(int half, PerGroup m, PerGroup beyond) const { return m * (m * w[half] - (beyond + beyond)); }

    void find_scale(int half) {
        const PerGroup(&x)[size] = blocks.x[half];
        PerGroup low = x[0], high = x[0];
        w[half] = blocks.weight[half][0];
        wx[half] = blocks.weight[half][0] * x[0];
        for (int i = 1; i < size; ++i) {
            low = choose(x[i] < low, x[i], low);
            high = choose(x[i] > high, x[i], high);
            w[half] = w[half] + blocks.weight[half][i];
            wx[half] = wx[half] + blocks.weight[half][i] * x[i];
        }
        inverse_w[half] = inverse_of(w[half]);
        low = choose(low < 0.0f, low, PerGroup{});
        const PerGroup extent = high - low, reach = inverse_of(extent);
        PerGroup best = all<PerGroup>(float_of(infinity)), best_s{}, best_m{};
        found[half] = Fit{};
        const auto offer = [&](PerGroup inverse, PerGroup from) {
            const Fit sums = fit(half, inverse, from);
            PerGroup s = ratios(w[half] * sums.xq - wx[half] * sums.q, w[half] * sums.qq - sums.q * sums.q);
            PerGroup m = ratios(s * sums.q - wx[half], w[half]);
            s = choose(m > 0.0f, s, ratios(sums.xq, sums.qq));
            m = choose(m > 0.0f, m, PerGroup{});
            const PerGroup lost = scale_loss(s, sums) + minimum_loss(half, m, s * sums.q - wx[half]);
            const auto better = lost < best;
            best = choose(better, lost, best);
            best_s = choose(better, s, best_s);
            best_m = choose(better, m, best_m);
            found[half].q = choose(better, sums.q, found[half].q);
            found[half].qq = choose(better, sums.qq, found[half].qq);
            found[half].xq = choose(better, sums.xq, found[half].xq);
        };
        for (const RangeTrial& trial : Trials) offer(reach * float(trial.steps), low + extent * float(trial.above / trial.steps));
        offer(inverse_of(best_s), -best_m);
        scale[half] = greatest(best_s, PerGroup{});
        minimum[half] = best_m;
    }

    // The trial d and dmin of least loss for the codes of the groups alone, and their scales and minimums.
    void find_steps(PerGroup s_top, PerGroup m_top) {
        PerGroup m[tried], per_minimum[tried][halves];  // 1 / (w · dmin)
        for (int i = 0; i < tried; ++i) {
            m[i] = narrowed(m_top, Ratios[i]);
            for (int half = 0; half < halves; ++half) per_minimum[i][half] = inverse_w[half] * inverse_of(m[i]);
        }
        PerGroup least = all<PerGroup>(float_of(infinity));
        d = dmin = PerGroup{};
        for (int half = 0; half < halves; ++half) sc[half] = mn[half] = PerGroup{};
        for (const double ratio : Ratios) {
            const PerGroup s_tried = narrowed(s_top, ratio), inverse = inverse_of(s_tried);
            PerGroup at[halves], lost_by_scale[halves], beyond[halves];
            for (int half = 0; half < halves; ++half) {
                at[half] = nearest(scale[half] * inverse, 0, Greatest);
                const PerGroup s = s_tried * at[half];
                lost_by_scale[half] = scale_loss(s, found[half]);
                beyond[half] = s * found[half].q - wx[half];
            }
            for (int i = 0; i < tried; ++i) {
                PerGroup loss[halves], from[halves];
                for (int half = 0; half < halves; ++half) {
                    from[half] = nearest(beyond[half] * per_minimum[i][half], 0, Greatest);
                    loss[half] = lost_by_scale[half] + minimum_loss(half, m[i] * from[half], beyond[half]);
                }
                const PerGroup lost = over_groups(loss);
                const auto better = lost < least;
                least = choose(better, lost, least);
                d = choose(better, s_tried, d);
                dmin = choose(better, m[i], dmin);
                for (int half = 0; half < halves; ++half) {
                    sc[half] = choose(better, at[half], sc[half]);
                    mn[half] = choose(better, from[half], mn[half]);
                }
            }
        }
    }

    // A number of each block, in all its lanes, as f16 will hold it.
    PerGroup narrowed(PerGroup lanes, double ratio = 1.0) const {
        EachBlock narrow;
        for (int b = 0; b < together; ++b) narrow.at[b] = blocks.units[b].narrow(lanes[8 * b] * float(1.0 / ratio));
        return narrow.lanes();
    }

    // The d and dmin of least loss for the codes found.
    void refit() {
        PerGroup ss[halves], sm[halves], mm[halves], sx[halves], mx[halves];
        for (int h = 0; h < halves; ++h) {
            ss[h] = sc[h] * sc[h] * found[h].qq;
            sm[h] = sc[h] * mn[h] * found[h].q;
            mm[h] = mn[h] * mn[h] * w[h];
            sx[h] = sc[h] * found[h].xq;
            mx[h] = mn[h] * wx[h];
        }
        const PerGroup a = over_groups(ss), b = over_groups(sm), c = over_groups(mm), e = over_groups(sx), f = over_groups(mx);
        const PerGroup det = a * c - b * b, new_d = ratios(e * c - f * b, det), new_dmin = ratios(e * b - f * a, det);
        const auto sound = (new_d > 0.0f) & (new_dmin > 0.0f);
        d = narrowed(choose(sound, new_d, d));
        dmin = narrowed(choose(sound, new_dmin, dmin));
    }

    // The best of the three scales around each, with the best minimum for its own codes.
    void settle(int half) {
        const PerGroup per_minimum = inverse_w[half] * inverse_of(dmin), middle = sc[half];
        const auto best_minimum = [&](PerGroup beyond) { return nearest(beyond * per_minimum, 0, Greatest); };
        PerGroup best = all<PerGroup>(float_of(infinity));
        sc[half] = mn[half] = PerGroup{};
        for (const float move : moves) {
            const PerGroup tried = clamped(middle + move, 0, Greatest), s = d * tried;
            const Fit sums = fit(half, inverse_of(s), -(dmin * best_minimum(s * found[half].q - wx[half])));
            const PerGroup beyond = s * sums.q - wx[half], from = best_minimum(beyond);
            const PerGroup lost = scale_loss(s, sums) + minimum_loss(half, dmin * from, beyond);
            const auto better = lost < best;
            best = choose(better, lost, best);
            sc[half] = choose(better, tried, sc[half]);
            mn[half] = choose(better, from, mn[half]);
        }
    }

    void run(const float* const (&values)[together], const float* const (&weights)[together]) {
        blocks.load(values, weights);
        for (int half = 0; half < halves; ++half) find_scale(half);
        const auto greater = [](PerGroup a, PerGroup b) { return greatest(a, b); };
        const PerGroup s_top = over_groups(scale, greater), m_top = over_groups(minimum, greater);
        constexpr float first = float(1.0 / Ratios[0]);
        for (int b = 0; b < together; ++b)
            if (blocks.units[b].overflows(s_top[8 * b] * first) || blocks.units[b].overflows(m_top[8 * b] * first)) blocks.fits[b] = false;
        find_steps(s_top, m_top);
        refit();
        for (int half = 0; half < halves; ++half) {
            settle(half);
            const PerGroup inverse = inverse_of(d * sc[half]), from = dmin * mn[half];
            blocks.store_codes(half, [&](int i) { return nearest((blocks.x[half][i] + from) * inverse, 0, Top); }, codes);
        }
    }

    bool fits(int b) const { return blocks.fits[b]; }
    void store_d(int b, uint8_t* at) const {
        store_f16(at, d[8 * b] * blocks.units[b].unit);
        store_f16(at + 2, dmin[8 * b] * blocks.units[b].unit);
    }
    int sc_of(int b, int g) const { return int(sc[g / 8][8 * b + g % 8]); }
    int mn_of(int b, int g) const { return int(mn[g / 8][8 * b + g % 8]); }
};

}  // namespace
