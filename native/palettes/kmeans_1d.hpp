// K-means in one dimension: the best clusters of numbers. The definition is in kernels/palettes/kmeans_1d.py.
#pragma once

#include "kernel.hpp"
#include "simd/f16.hpp"
#include "simd/vectors.hpp"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace {


// Of a place as it is compared in lanes; by way of a signed one, for which there is an instruction.
inline double number(size_t place) { return double(int64_t(place)); }

inline size_t least(size_t a, size_t b) { return a < b ? a : b; }

struct Place {
    double worth;
    size_t at;
};

inline F64x4 four(const double* at) { return load_as<F64x4>(at); }

// Ascending points, as the running sums of their weight and of weight · value.
struct Points {
    const double *weight, *pull;

    double worth(size_t i, size_t j) const {
        const double w = weight[j] - weight[i], p = pull[j] - pull[i];
        return w > 0 ? p * p / w : 0;
    }

    // The first of the best places, first to last, for the last cluster of the first j points to begin: four at a time,
    // without a branch on what they are worth, since a wrong guess costs more than they do. The last four end at the last;
    // those before the first count for nothing.
    Place best(const double* before, size_t first, size_t last, size_t j) const {
        if (last < 3) return best_near_start(before, first, last, j);
        const F64x4 steps = {0, 1, 2, 3};
        F64x4 most = -1.0 - F64x4{}, place = number(first) - F64x4{};  // nothing is worth less than 0
        for (size_t i = first; i + 4 <= last; i += 4) keep_better(totals(before, i, j), number(i) + steps, most, place);
        const F64x4 index = number(last - 3) + steps, total = totals(before, last - 3, j);
        keep_better(index >= number(first) - F64x4{} ? total : -1.0 - F64x4{}, index, most, place);
        const F64x4 all = across(most, [](F64x4 a, F64x4 b) { return a > b ? a : b; });
        place = across(most == all ? place : number(last) - F64x4{}, [](F64x4 a, F64x4 b) { return a < b ? a : b; });
        return {all[0], size_t(int64_t(place[0]))};
    }

private:
    Place best_near_start(const double* before, size_t first, size_t last, size_t j) const {
        Place place{before[first] + worth(first, j), first};
        for (size_t i = first + 1; i <= last; ++i)
            if (const double total = before[i] + worth(i, j); total > place.worth) place = {total, i};
        return place;
    }

    F64x4 totals(const double* before, size_t i, size_t j) const {
        const F64x4 w = weight[j] - four(weight + i), p = pull[j] - four(pull + i);
        return four(before + i) + F64x4(I64x4(p * p / w) & I64x4(w > F64x4{}));
    }

    static void keep_better(F64x4 total, F64x4 index, F64x4& most, F64x4& place) {
        const I64x4 better = total > most;
        most = better ? total : most;
        place = better ? index : place;
    }

    // One of four, by a choice that two of them decide, in every lane.
    template <typename Choice>
    static F64x4 across(F64x4 lanes, Choice choice) {
        lanes = choice(lanes, __builtin_shufflevector(lanes, lanes, 2, 3, 0, 1));
        return choice(lanes, __builtin_shufflevector(lanes, lanes, 1, 0, 3, 2));
    }
};

// One more cluster: for every j the best place where it begins, in the row of `places`. It is no earlier than with one
// cluster less, in the row above. Every second j of a level lies between two whose places are known and bound its own; those
// of a level wait for nobody, so the processor works on several at once.
inline void cut_row(Points all, size_t row, size_t points, const double* before, double* after, int32_t* places) {
    const int32_t* above = places - (points + 1);
    const size_t count = points - row;
    size_t stride = 1;
    while (stride < count) stride *= 2;
    for (; stride; stride /= 2)
        for (size_t at = stride; at <= count; at += 2 * stride) {
            const size_t j = row + at;
            const size_t last = least(at + stride <= count ? size_t(places[j + stride]) : points - 1, j - 1);
            const size_t first = at > stride ? size_t(places[j - stride]) : row, fewer = size_t(above[j]);
            const Place place = all.best(before, least(first > fewer ? first : fewer, last), last, j);
            after[j] = place.worth;
            places[j] = int32_t(place.at);
        }
}

void palette_cuts(const double* mass, const double* moment, size_t points, double* best, int32_t* out, size_t clusters) {
    const Points all{mass, moment};
    const size_t width = points + 1;
    for (size_t i = 0; i < 2 * width; ++i) best[i] = 0;
    for (size_t i = 0; i < clusters * width; ++i) out[i] = 0;
    for (size_t j = 0; j <= points; ++j) best[j] = all.worth(0, j);
    for (size_t row = 1; row < clusters; ++row)
        cut_row(all, row, points, best + (row + 1) % 2 * width, best + row % 2 * width, out + row * width);
}

// From values to centres -------------------------------------------------------------------------

constexpr int digit = 11;

// Values ascend as these do. Both zeros share one.
inline uint32_t ascending(float value) {
    const uint32_t bits = bits_of(value + 0.0f);
    return bits ^ (uint32_t(-int32_t(bits >> 31)) | 0x80000000u);
}

inline float value_of(uint32_t key) { return float_of(key ^ (uint32_t(-int32_t(~key >> 31)) | 0x80000000u)); }

// Sorts `count` entries by the high 32 bits, equal ones in the order they came, by three digits; where they end up.
inline uint64_t* sort_by_key(uint64_t* from, uint64_t* to, size_t count) {
    for (int shift = 32; shift < 64; shift += digit) {
        size_t starts[(size_t(1) << digit) + 1] = {};
        constexpr uint64_t mask = (uint64_t(1) << digit) - 1;
        for (size_t i = 0; i < count; ++i) ++starts[(from[i] >> shift & mask) + 1];
        for (size_t d = 0; d < mask; ++d) starts[d + 1] += starts[d];
        for (size_t i = 0; i < count; ++i) to[starts[from[i] >> shift & mask]++] = from[i];
        uint64_t* swap = from;
        from = to, to = swap;
    }
    return from;
}

// Weight and weight · value of the distinct values that weigh anything, ascending; how many there are.
inline size_t distinct_points(const float* values, const float* weights, size_t count, uint64_t* order, double* mass,
                              double* moment) {
    for (size_t i = 0; i < count; ++i) order[i] = uint64_t(ascending(values[i])) << 32 | uint64_t(i);
    const uint64_t* sorted = sort_by_key(order, order + count, count);
    size_t points = 0;
    for (size_t i = 0; i < count;) {
        const uint32_t key = uint32_t(sorted[i] >> 32);
        double sum = 0;
        for (; i < count && uint32_t(sorted[i] >> 32) == key; ++i)
            sum += weights ? double(weights[uint32_t(sorted[i])]) : 1.0;
        if (!(sum > 0)) continue;
        mass[points] = sum;
        moment[points++] = sum * double(value_of(key));
    }
    return points;
}

// The running sums from 0 of mass and of moment − mass · mean: small sums keep their digits.
inline void running_sums(const double* mass, const double* moment, size_t points, double* weight, double* pull) {
    double all = 0, turn = 0;
    for (size_t i = 0; i < points; ++i) all += mass[i], turn += moment[i];
    const double mean = turn / all;
    weight[0] = pull[0] = 0;
    for (size_t i = 0; i < points; ++i) {
        weight[i + 1] = weight[i] + mass[i];
        pull[i + 1] = pull[i] + (moment[i] - mass[i] * mean);
    }
}

// The centres of one table. `workspace` is six rows of count + 1.
inline void centres_of(const float* values, const float* weights, size_t count, uint64_t* order, double* workspace, int32_t* cuts,
                       size_t clusters, double* out) {
    const size_t width = count + 1;
    double *mass = workspace, *moment = mass + width, *weight = moment + width, *pull = weight + width, *best = pull + width;
    const size_t points = distinct_points(values, weights, count, order, mass, moment);
    size_t used = points;
    if (points <= clusters) {
        for (size_t i = 0; i < points; ++i) out[i] = moment[i] / mass[i];
    } else {
        used = clusters;
        running_sums(mass, moment, points, weight, pull);
        palette_cuts(weight, pull, points, best, cuts, clusters);
        for (size_t cluster = clusters, end = points; cluster-- > 0;) {
            const size_t start = size_t(cuts[cluster * (points + 1) + end]);
            double all = 0, turn = 0;
            for (size_t i = start; i < end; ++i) all += mass[i], turn += moment[i];
            out[cluster] = turn / all;
            end = start;
        }
    }
    for (size_t i = used; i < clusters; ++i) out[i] = used ? out[used - 1] : 0.0;
}

void palette_centres(const float* values, const float* weights, size_t tables, size_t count, uint64_t* order, double* workspace,
                     int32_t* cuts, size_t clusters, double* out) {
    for (size_t table = 0; table < tables; ++table, values += count, weights += weights ? count : 0, out += clusters)
        centres_of(values, weights, count, order, workspace, cuts, clusters, out);
}

}  // namespace
