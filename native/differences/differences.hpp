// Differences of two arrays: taken, measured, selected by magnitude, stored and added.
//
// Places are flat positions in an array, in order; an argument `first` is the position at which a range of it begins.
#pragma once

#include "kernel.hpp"
#include "simd/lanes.hpp"

namespace {

constexpr size_t difference_lanes = 16;

inline uint32_t magnitude_of(float value) { return bits_of(value) & 0x7fffffff; }

template <typename T>
void difference(const T* __restrict base, const T* __restrict tuned, size_t count, float* __restrict out) {
    for (size_t i = 0; i < count; ++i) out[i] = value_at(tuned + i) - value_at(base + i);
}

// Eight sums of squares, each of its own lane, in f64. A square is exact there, so a fused sum is rounded as one that is not.
class SquareSums {
#ifdef __AVX512F__
    __m512d sums = _mm512_setzero_pd();

public:
    void add(F32x8 values) {
        const __m512d wide = _mm512_cvtps_pd(__m256(values));
        sums = _mm512_fmadd_pd(wide, wide, sums);
    }

    double lane(int i) const { return sums[i]; }
#else
    F64x4 sums[2] = {};

public:
    void add(F32x8 values) {
        const F32x4 halves[2] = {__builtin_shufflevector(values, values, 0, 1, 2, 3), __builtin_shufflevector(values, values, 4, 5, 6, 7)};
        for (int half = 0; half < 2; ++half) {
            const F64x4 wide = __builtin_convertvector(halves[half], F64x4);
#ifdef __AVX2__
            sums[half] = F64x4(_mm256_fmadd_pd(__m256d(wide), __m256d(wide), __m256d(sums[half])));
#else
            sums[half] += wide * wide;
#endif
        }
    }

    double lane(int i) const { return sums[i / 4][i % 4]; }
#endif
};

// For e = x − y, in f32: Σe², Σx², Σy², the greatest |e| (NaN above all others), and how many e are not zero. Every sum is eight of
// every eighth, then theirs in order.
template <typename T>
void error_sums(const T* reference, const float* values, size_t count, double* out) {
    SquareSums sums[3];
    I32x8 largest = {};
    uint64_t differing = 0;
    const auto add = [&](F32x8 x, F32x8 y) {
        const F32x8 error = x - y;
        sums[0].add(error), sums[1].add(x), sums[2].add(y);
        const I32x8 size = magnitudes(error);
        largest = greatest(size, largest);
        differing += uint64_t(__builtin_popcount(bits_set(size != 0)));
    };
    size_t start = 0;
    for (; start + 8 <= count; start += 8) add(load_values(reference + start), load8(values + start));
    if (start < count) {
        T x[8] = {};
        float y[8] = {};
        for (size_t lane = 0; start + lane < count; ++lane) x[lane] = reference[start + lane], y[lane] = values[start + lane];
        add(load_values(x), load8(y));
    }
    for (int sum = 0; sum < 3; ++sum) {
        out[sum] = 0;
        for (int lane = 0; lane < 8; ++lane) out[sum] += sums[sum].lane(lane);
    }
    out[3] = double(float_of(uint32_t(over_lanes(largest, [](I32x8 a, I32x8 b) { return greatest(a, b); }))));
    out[4] = double(differing);
}

// Bit i is set where lane i of the 64 values is in test(eight of them).
template <typename Test>
[[gnu::always_inline]] inline uint64_t bits_of_64(const float* values, const Test& test) {
    uint64_t bits = 0;
    for (size_t i = 0; i < 8; ++i) bits |= uint64_t(bits_set(test(load8(values + 8 * i)))) << 8 * i;
    return bits;
}

// Counters are of 1 << shift magnitudes each, from `low`; the last is of all beyond. `largest` is the greatest magnitude so far.
void magnitude_counts(const float* delta, size_t count, uint32_t low, int shift, uint64_t* counts, size_t counters, uint32_t* largest) {
    const uint64_t span = uint64_t(counters - 1) << shift;
    const int32_t last = span < 0x80000000 ? int32_t(span) - 1 : 0x7fffffff;  // there are no more magnitudes
    const auto counted = [=](size_t i) { ++counts[(magnitude_of(delta[i]) - low) >> shift]; };
    I32x8 top = {}, beyond = {};
    size_t start = 0;
    for (; start + 64 <= count; start += 64) {
        uint64_t bits = bits_of_64(delta + start, [&](F32x8 values) {
            const I32x8 size = magnitudes(values), from_low = size - int32_t(low);
            top = greatest(size, top);
            beyond -= from_low > last;
            return (from_low >= 0) & (from_low <= last);
        });
        for (; bits; bits &= bits - 1) counted(start + size_t(__builtin_ctzll(bits)));
    }
    for (int lane = 0; lane < 8; ++lane) {
        counts[counters - 1] += uint32_t(beyond[lane]);
        *largest = uint32_t(top[lane]) > *largest ? uint32_t(top[lane]) : *largest;
    }
    for (; start < count; ++start) {
        const uint32_t size = magnitude_of(delta[start]);
        *largest = size > *largest ? size : *largest;
        if (size >= low && int32_t(size - low) > last)
            ++counts[counters - 1];
        else if (size >= low)
            counted(start);
    }
}

// Values above the threshold, and of those at it the first `ties`: their places and they themselves. state: how many they are, and
// the ties that are left. rest: the least and the greatest of the others so far.
void keep_largest(const float* delta, size_t count, uint32_t threshold, size_t first, int64_t* __restrict places,
                  float* __restrict values, uint64_t* state, float* rest) {
    size_t kept = 0;
    uint64_t ties = state[1];
    float lowest = rest[0], highest = rest[1];
    const auto take = [&](size_t i) {
        const bool tie = magnitude_of(delta[i]) == threshold, keep = magnitude_of(delta[i]) >= threshold && (!tie || ties);
        ties -= tie && ties;
        if (!keep) lowest = least(delta[i], lowest), highest = greatest(delta[i], highest);
        places[kept] = int64_t(first + i);  // overwritten by the next where this one is not kept
        values[kept] = delta[i];
        kept += keep;
    };
    F32x8 low = all8(lowest), high = all8(highest);
    size_t start = 0;
    for (; start + 64 <= count; start += 64) {
        uint64_t bits = bits_of_64(delta + start, [&](F32x8 eight) {
            const I32x8 below = magnitudes(eight) < int32_t(threshold);
            low = least(below ? eight : low, low), high = greatest(below ? eight : high, high);
            return ~below;
        });
        for (; bits; bits &= bits - 1) take(start + size_t(__builtin_ctzll(bits)));
    }
    for (; start < count; ++start) take(start);
    for (int lane = 0; lane < 8; ++lane) lowest = least(low[lane], lowest), highest = greatest(high[lane], highest);
    rest[0] = lowest, rest[1] = highest;
    state[0] = kept, state[1] = ties;
}

// each(row, start, stop) for the rows that a range lies in; it begins at column `first`.
template <typename Each>
inline void over_rows_of(size_t count, size_t first, size_t columns, const Each& each) {
    size_t row = 0;
    for (size_t start = 0, stop = columns - first; start < count; start = stop, stop += columns, ++row)
        each(row, start, stop < count ? stop : count);
}

// The sum of the magnitudes in each row: sixteen sums of every sixteenth, then theirs in order.
void magnitude_sums(const float* delta, size_t count, size_t first, size_t columns, double* sums) {
    over_rows_of(count, first, columns, [=](size_t row, size_t start, size_t stop) {
        double lanes[difference_lanes] = {};
        for (; start + difference_lanes <= stop; start += difference_lanes)
            for (size_t lane = 0; lane < difference_lanes; ++lane) lanes[lane] += double(float_of(magnitude_of(delta[start + lane])));
        for (size_t lane = 0; start < stop; ++start, ++lane) lanes[lane] += double(float_of(magnitude_of(delta[start])));
        double sum = 0;
        for (double lane : lanes) sum += lane;
        sums[row] += sum;
    });
}

// Bits, high ones first: + scale of the row where set, else − scale.
void add_signs(const uint8_t* packed, size_t first, size_t columns, const float* scales, float* values, size_t count) {
    over_rows_of(count, first, columns, [=](size_t row, size_t start, size_t stop) {
        const uint32_t scale = bits_of(scales[row]);
        const auto add = [=](size_t i) {
            values[i] += float_of(scale ^ ((uint32_t(packed[i / 8]) << (24 + i % 8) & 0x80000000) ^ 0x80000000));
        };
        for (; start < stop && start % 8; ++start) add(start);
        for (; start + 8 <= stop; start += 8) {
            const uint32_t byte = packed[start / 8];
            float* __restrict to = values + start;
            for (uint32_t lane = 0; lane < 8; ++lane) to[lane] += float_of(scale ^ ((byte << (24 + lane) & 0x80000000) ^ 0x80000000));
        }
        for (; start < stop; ++start) add(start);
    });
}

void add_at(const int64_t* __restrict places, size_t count, size_t first, const float* __restrict addends, float* __restrict values) {
    for (size_t i = 0; i < count; ++i) values[size_t(places[i]) - first] += addends[i];
}

// between(start, stop, how many places before) for what lies between the places of a range, at(place, index) for each place.
template <typename Between, typename At>
inline void over_places(const int64_t* places, size_t count, size_t first, size_t size, const Between& between, const At& at) {
    size_t start = 0;
    for (size_t i = 0; i < count; ++i) {
        const size_t place = size_t(places[i]) - first;
        between(start, place, i);
        at(place, i);
        start = place + 1;
    }
    between(start, size, count);
}

void drop_at(const uint8_t* __restrict codes, size_t size, const int64_t* places, size_t count, size_t first, uint8_t* __restrict out) {
    over_places(places, count, first, size, [=](size_t start, size_t stop, size_t before) {
        for (size_t i = start; i < stop; ++i) out[i - before] = codes[i];
    }, [](size_t, size_t) {});
}

void insert_at(const float* __restrict rest, const int64_t* places, size_t count, size_t first, const float* __restrict inserted,
               float* __restrict out, size_t size) {
    over_places(places, count, first, size, [=](size_t start, size_t stop, size_t before) {
        for (size_t i = start; i < stop; ++i) out[i] = rest[i - before];
    }, [=](size_t place, size_t index) { out[place] = inserted[index]; });
}

// Two codes a byte, the first in the high half; a byte that has only one has zero in its low half.
void pack_nibbles(const uint8_t* __restrict codes, size_t count, uint8_t* __restrict out) {
    for (size_t i = 0; i < count / 2; ++i) out[i] = uint8_t(codes[2 * i] << 4 | (codes[2 * i + 1] & 15));
    if (count % 2) out[count / 2] = uint8_t(codes[count - 1] << 4);
}

// The level of each code, from code `skip` on, which is 0 or 1. Both codes of a byte are looked up at once.
void nibble_levels(const uint8_t* packed, const float* levels, size_t skip, float* out, size_t count) {
    float pairs[256][2];
    for (size_t byte = 0; byte < 256; ++byte) pairs[byte][0] = levels[byte >> 4], pairs[byte][1] = levels[byte & 15];
    size_t i = 0;
    if (skip && count) out[i++] = pairs[*packed++][1];
    for (; i + 2 <= count; i += 2) __builtin_memcpy(out + i, pairs[*packed++], sizeof pairs[0]);
    if (i < count) out[i] = pairs[*packed][0];
}

}  // namespace

#define KERNELS_OF_Differences(X)                                                                                       \
    X(difference_f32, difference<float>) X(difference_bf16, difference<uint16_t>) X(error_sums_f32, error_sums<float>)  \
    X(error_sums_bf16, error_sums<uint16_t>) X(magnitude_counts, magnitude_counts)                                      \
    X(keep_largest, keep_largest) X(magnitude_sums, magnitude_sums) X(add_signs, add_signs) X(add_at, add_at)           \
    X(drop_at, drop_at) X(insert_at, insert_at) X(pack_nibbles, pack_nibbles) X(nibble_levels, nibble_levels)
FLYWEIGHT_TABLE(Differences)
