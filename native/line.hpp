// The best clusters of numbers on a line. The definition is in kernels/reference_palette.py.
#pragma once

#include <cstddef>
#include <cstdint>

#include "half.hpp"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace {

using F64x4 = double __attribute__((vector_size(32)));
using I64x4 = int64_t __attribute__((vector_size(32)));

struct Place {
    double worth;
    size_t at;
};

inline F64x4 four(const double* at) {
    F64x4 lanes;
    __builtin_memcpy(&lanes, at, sizeof lanes);
    return lanes;
}

struct Line {
    const double *weight, *pull;

    double worth(size_t i, size_t j) const {
        const double w = weight[j] - weight[i], p = pull[j] - pull[i];
        return w > 0 ? p * p / w : 0;
    }

    F64x4 worth_of_four(size_t i, size_t j) const {
        const F64x4 w = weight[j] - four(weight + i), p = pull[j] - four(pull + i);
        return F64x4(I64x4(p * p / w) & I64x4(w > F64x4{}));
    }

    // The first of the best places, first to last, for the last cluster of the first j points to begin.
    //
    // Dividing is what takes time, and most places are far from the best: with t to beat, before + p² / w can only be as much
    // where p² ≥ (t − before) · w, so a few places spread over the range are tried first, and of the others only those are
    // divided that pass this by a margin of 32 units in the last place, more than all roundings together.
    Place best(const double* before, size_t first, size_t last, size_t j) const {
        Place found{before[first] + worth(first, j), first};
        size_t i = first + 1;
        if (last - first >= 16) {
            const size_t step = (last - first) / 8;
            for (size_t at = first + step; at <= last; at += step) found = better(found, {before[at] + worth(at, j), at});
            F64x4 bar = barred(found.worth);
            for (; i + 4 <= last + 1; i += 4) {
                const F64x4 w = weight[j] - four(weight + i), p = pull[j] - four(pull + i), earlier = four(before + i);
                const I64x4 passes = p * p >= (bar - earlier) * w;
                if (!any(passes)) continue;
                const F64x4 total = earlier + worth_of_four(i, j);
                for (int lane = 0; lane < 4; ++lane) found = better(found, {total[lane], i + lane});
                bar = barred(found.worth);
            }
        }
        for (; i <= last; ++i) found = better(found, {before[i] + worth(i, j), i});
        return found;
    }

    static Place better(Place a, Place b) {
        return b.worth > a.worth || (b.worth == a.worth && b.at < a.at) ? b : a;
    }

    static F64x4 barred(double worth) { return worth - worth * 0x1p-48 - F64x4{}; }

    static bool any(I64x4 lanes) {
#ifdef __AVX2__
        return _mm256_movemask_pd(__m256d(lanes)) != 0;
#else
        return (lanes[0] | lanes[1] | lanes[2] | lanes[3]) != 0;
#endif
    }
};

struct Span {
    size_t from_j, to_j, from_i, to_i;
};

// One more cluster: for every j the best place where it begins. Halving needs one span per level of waiting work.
inline void cut_row(Line line, size_t row, size_t points, const double* before, double* after, int32_t* places) {
    Span waiting[64];
    size_t depth = 0;
    if (row + 1 <= points) waiting[depth++] = {row + 1, points, row, points - 1};
    while (depth) {
        const Span span = waiting[--depth];
        const size_t j = (span.from_j + span.to_j) >> 1;
        const Place found = line.best(before, span.from_i, span.to_i < j - 1 ? span.to_i : j - 1, j);
        after[j] = found.worth;
        places[j] = int32_t(found.at);
        if (span.from_j < j) waiting[depth++] = {span.from_j, j - 1, span.from_i, found.at};
        if (j < span.to_j) waiting[depth++] = {j + 1, span.to_j, found.at, span.to_i};
    }
}

void palette_cuts(const double* mass, const double* moment, size_t points, double* best, int32_t* out, size_t clusters) {
    const Line line{mass, moment};
    const size_t width = points + 1;
    for (size_t i = 0; i < 2 * width; ++i) best[i] = 0;
    for (size_t i = 0; i < clusters * width; ++i) out[i] = 0;
    for (size_t j = 0; j <= points; ++j) best[j] = line.worth(0, j);
    for (size_t row = 1; row < clusters; ++row)
        cut_row(line, row, points, best + (row + 1) % 2 * width, best + row % 2 * width, out + row * width);
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

// The centres of one table. `room` is six rows of count + 1.
inline void centres_of(const float* values, const float* weights, size_t count, uint64_t* order, double* room, int32_t* cuts,
                       size_t clusters, double* out) {
    const size_t width = count + 1;
    double *mass = room, *moment = room + width, *weight = room + 2 * width, *pull = room + 3 * width, *best = room + 4 * width;
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

void palette_centres(const float* values, const float* weights, size_t tables, size_t count, uint64_t* order, double* room,
                     int32_t* cuts, size_t clusters, double* out) {
    for (size_t table = 0; table < tables; ++table, values += count, weights += weights ? count : 0, out += clusters)
        centres_of(values, weights, count, order, room, cuts, clusters, out);
}

}  // namespace
