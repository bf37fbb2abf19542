// exp and tanh of eight floats, and root-mean-square normalisation.
#pragma once

#include "matvec_activations.hpp"

namespace {

using I32x8 = int32_t __attribute__((vector_size(32)));

// Eight bytes as floats.
inline F8 codes8(const uint8_t* at) {
#ifdef __AVX2__
    return F8(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)))));
#else
    F8 lanes;
    for (int i = 0; i < 8; ++i) lanes[i] = float(int(at[i]));
    return lanes;
#endif
}

// e^x for x ≤ 0: 0 below −87, NaN for NaN.
inline F8 decay8(F8 x) {
    const F8 lowest = all8(-87.0f);
    const F8 clamped = F8(greatest(Eight(lowest), Eight(x)));  // NaN stays
    return F8(I32x8(exp8(clamped)) & ~I32x8(x < lowest));
}

// tanh within 6 units in the last place: x + x³·Q(x²) near zero, else (1 − e^−2|x|) / (1 + e^−2|x|).
inline F8 tanh8(F8 x) {
    const I32x8 sign = I32x8(x) & int32_t(0x80000000);
    const F8 a = F8(I32x8(x) ^ sign), e = decay8(all8(-2.0f) * a), square = a * a;
    F8 q = all8(-0x1.b1eeaep-8f);
    q = fused(q, square, all8(0x1.5d3e28p-6f));
    q = fused(q, square, all8(-0x1.b9a2eep-5f));
    q = fused(q, square, all8(0x1.110ff4p-3f));
    q = fused(q, square, all8(-0x1.555554p-2f));
    const F8 near = fused(q * square, a, a), far = (all8(1.0f) - e) / (all8(1.0f) + e);
    const I32x8 small = I32x8(a < all8(0.55f));
    return F8((I32x8(near) & small | I32x8(far) & ~small) | sign);
}

inline F8 capped(F8 x, float cap) { return all8(cap) * tanh8(x / all8(cap)); }

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
