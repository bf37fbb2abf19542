// Soft caps, and root-mean-square normalisation.
#pragma once

#include "simd/exponentials.hpp"

namespace {

inline F32x8 capped(F32x8 x, float cap) { return all8(cap) * tanh8(x / all8(cap)); }

void softcap(float* x, size_t count, float cap) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8) store8(x + i, capped(load8(x + i), cap));
    if (i == count) return;
    float rest[8] = {};
    for (size_t j = i; j < count; ++j) rest[j - i] = x[j];
    store8(rest, capped(load8(rest), cap));
    for (size_t j = i; j < count; ++j) x[j] = rest[j - i];
}

// 1 / √(mean x² + eps). A square of an f32 is exact in f64, and the eight sums have a fixed order: the same bits everywhere.
inline float inverse_rms(const float* x, size_t count, float eps) {
    double lanes[8] = {};
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        for (int j = 0; j < 8; ++j) lanes[j] += double(x[i + j]) * double(x[i + j]);
    for (int j = 0; i + j < count; ++j) lanes[j] += double(x[i + j]) * double(x[i + j]);
    const double sum = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
    return float(1.0 / __builtin_sqrt(sum / double(count) + double(eps)));
}

inline void normalise(const float* x, size_t count, const float* gain, float eps, float* out) {
    const float by = inverse_rms(x, count, eps);
    for (size_t i = 0; i < count; ++i) out[i] = x[i] * by * gain[i];
}

void rms_norm(const float* x, size_t rows, size_t columns, const float* gain, float eps, float* out, bool add) {
    for (; rows; --rows, x += columns, out += columns) {
        if (!add) {
            normalise(x, columns, gain, eps, out);
            continue;
        }
        const float by = inverse_rms(x, columns, eps);
        for (size_t i = 0; i < columns; ++i) out[i] += x[i] * by * gain[i];
    }
}

}  // namespace
