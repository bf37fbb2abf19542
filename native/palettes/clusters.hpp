// Points in several dimensions: the nearest entry of a table, and the sums of the clusters that so arise. The definition is in
// kernels/palettes/clusters.py.
#pragma once

#include "kernel.hpp"
#include "simd/f16.hpp"
#include "simd/vectors.hpp"

namespace {

// As many lanes as a register has. The results do not depend on it.
#ifdef __AVX512F__
constexpr size_t register_bytes = 64;
#else
constexpr size_t register_bytes = 32;
#endif
using Lanes = float __attribute__((vector_size(register_bytes)));
using LaneCodes = int32_t __attribute__((vector_size(register_bytes)));
constexpr size_t lanes = register_bytes / sizeof(float), registers = 4, points_at_once = lanes * registers;

struct Nearest {
    int32_t code[points_at_once];
    float distance[points_at_once];
};

// Of `count` points, at most points_at_once; where no distance is finite the code is 0. `Vector` is 0 for a length only known at run time.
template <size_t Vector>
inline void nearest_entries(const float* points, size_t count, size_t vector, const float* table, size_t entries, Nearest& out) {
    if (Vector) vector = Vector;
    float coordinates[16][points_at_once] = {};
    for (size_t i = 0; i < count; ++i)
        for (size_t v = 0; v < vector; ++v) coordinates[v][i] = points[i * vector + v];
    Lanes least[registers];
    LaneCodes code[registers] = {};
    for (auto& each : least) each = float_of(0x7f800000) - Lanes{};
    for (size_t entry = 0; entry < entries; ++entry, table += vector) {
        Lanes distance[registers];
        for (size_t v = 0; v < vector; ++v)
            for (size_t r = 0; r < registers; ++r) {
                const Lanes apart = load_as<Lanes>(coordinates[v] + r * lanes) - table[v];
                distance[r] = v ? distance[r] + apart * apart : apart * apart;
            }
        for (size_t r = 0; r < registers; ++r) {
            const LaneCodes nearer = distance[r] < least[r];
            code[r] = nearer ? int32_t(entry) - LaneCodes{} : code[r];
            least[r] = nearer ? distance[r] : least[r];
        }
    }
    __builtin_memcpy(out.code, code, sizeof code);
    __builtin_memcpy(out.distance, least, sizeof least);
}

// Calls take(first, count, nearest) for some points at a time.
template <size_t Vector, typename Take>
inline void over_points(const float* points, size_t count, size_t vector, const float* table, size_t entries, Take take) {
    Nearest nearest;
    for (size_t at = 0; at < count; at += points_at_once) {
        const size_t some = count - at < points_at_once ? count - at : points_at_once;
        nearest_entries<Vector>(points + at * vector, some, vector, table, entries, nearest);
        take(at, some, nearest);
    }
}

template <typename Take>
inline void each_nearest(const float* points, size_t count, size_t vector, const float* table, size_t entries, Take take) {
    switch (vector) {
        case 2: return over_points<2>(points, count, vector, table, entries, take);
        case 4: return over_points<4>(points, count, vector, table, entries, take);
        case 5: return over_points<5>(points, count, vector, table, entries, take);
        default: return over_points<0>(points, count, vector, table, entries, take);
    }
}

void palette_nearest_vector(const float* points, size_t count, size_t vector, const float* table, size_t entries, uint8_t* out) {
    each_nearest(points, count, vector, table, entries, [=](size_t at, size_t some, const Nearest& nearest) {
        for (size_t i = 0; i < some; ++i) out[at + i] = uint8_t(nearest.code[i]);
    });
}

// A row of `out` for each entry: the sums of weight, of weight · coordinate and of weight · squared distance of the points it is nearest to.
void palette_cluster_sums(const float* points, const float* weights, size_t count, size_t vector, const float* table, size_t entries,
                          double* out) {
    for (size_t i = 0; i < entries * (vector + 2); ++i) out[i] = 0;
    each_nearest(points, count, vector, table, entries, [=](size_t at, size_t some, const Nearest& nearest) {
        for (size_t i = 0; i < some; ++i) {
            const double mass = weights ? double(weights[at + i]) : 1.0;
            const float* point = points + (at + i) * vector;
            double* sums = out + size_t(nearest.code[i]) * (vector + 2);
            sums[0] += mass;
            for (size_t v = 0; v < vector; ++v) sums[1 + v] += mass * double(point[v]);
            sums[1 + vector] += mass * double(nearest.distance[i]);
        }
    });
}

}  // namespace
