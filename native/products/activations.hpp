// One row of activations made ready for products, and the gate between two of them.
#pragma once

#include "products/products.hpp"
#include "simd/exponentials.hpp"

namespace {

using flyweight::Order;

constexpr uint32_t infinite_bits = 0x7f800000;

// out = x · r · gain, r = 1 / √(mean x² + eps)
void normalize(const float* x, size_t columns, const float* gain, float eps, float* out) {
    F32x8 squares[2] = {};
    for (size_t i = 0; i < columns; i += 16)
        for (int half = 0; half < 2; ++half) {
            const F32x8 lanes = load8(x + i + 8 * half);
            squares[half] = fused(lanes, lanes, squares[half]);
        }
    const F32x8 r = all8(1.0f / __builtin_sqrtf(sum8(squares[0] + squares[1]) / float(columns) + eps));
    for (size_t i = 0; i < columns; i += 8) store8(out + i, load8(x + i) * r * load8(gain + i));
}

// Which of 32 columns a byte of codes is.
template <Order order>
constexpr int column_of(int lane) {
    return order == flyweight::pairs ? lane % 16 * 2 + lane / 16 : order == flyweight::fours ? lane % 8 * 4 + lane / 8 : lane;
}

template <class Use>
inline void with_order(Order order, Use use) {
    if (order == flyweight::pairs) use.template operator()<flyweight::pairs>();
    else if (order == flyweight::fours) use.template operator()<flyweight::fours>();
    else use.template operator()<flyweight::halves>();
}

// To quads, the order in which widen32 gives the bytes.
void reorder(const float* __restrict x, size_t columns, Order order, float* __restrict out) {
    with_order(order, [=]<Order own>() {
        for (size_t from = 0; from < columns; from += 32)
            for (int i = 0; i < 32; ++i) out[from + i] = x[from + column_of<own>(i / 8 * 4 + i % 4 + i % 8 / 4 * 16)];
    });
}

void sum_chunks(const float* x, size_t columns, float* sums, float* half_sums) {
    for (; columns; columns -= 32, x += 32, half_sums += 2) {
        for (int half = 0; half < 2; ++half) half_sums[half] = sum8(load8(x + 16 * half) + load8(x + 16 * half + 8));
        *sums++ = half_sums[0] + half_sums[1];
    }
}

// code = rint(x · (127 / peak)), scale = peak / 127. A peak too small for its inverse gives zeros, one that is not finite a NaN scale.
void quantize(const float* __restrict x, size_t columns, int8_t* __restrict codes, float* __restrict scale, float* __restrict sums,
              float* __restrict half_sums) {
    for (; columns; columns -= 32, x += 32, codes += 32, half_sums += 2) {
        I32x8 peaks = magnitudes(load8(x));
        for (int i = 8; i < 32; i += 8) peaks = greatest(peaks, magnitudes(load8(x + i)));
        const uint32_t bits = uint32_t(over_lanes(peaks, [](I32x8 a, I32x8 b) { return greatest(a, b); }));
        const float peak = float_of(bits), steps = 127.0f / peak;
        const bool fits = bits < infinite_bits && bits_of(steps) < infinite_bits;
        *scale = bits >= infinite_bits ? float_of(0x7fc00000) : fits ? peak / 127.0f : 0.0f;
        int32_t whole[2] = {};
        if (fits)
            for (int half = 0; half < 2; ++half) whole[half] = round16(x + 16 * half, steps, codes + 16 * half);
        else
            for (int i = 0; i < 32; ++i) codes[i] = 0;
        for (int half = 0; half < 2; ++half) half_sums[half] = *scale * float(whole[half]);
        *sums++ = *scale++ * float(whole[0] + whole[1]);
    }
}

void reorder_codes(const int8_t* __restrict codes, size_t columns, Order order, int8_t* __restrict out) {
    with_order(order, [=]<Order own>() {
        for (size_t from = 0; from < columns; from += 32)
            for (int i = 0; i < 32; ++i) out[from + i] = codes[from + column_of<own>(i)];
    });
}

// z / (1 + e^−t). Where t is beyond ±87 the exponential is held there: what is lost is below 2^-125 of z.
inline F32x8 sigmoid_times(F32x8 z, F32x8 t) {
    const F32x8 clamped = greatest(all8(-87), least(all8(87), t));
    return z / (all8(1) + exp8(-clamped));
}

inline F32x8 silu(F32x8 z) { return sigmoid_times(z, z); }

// ½z·(1 + tanh u) = z / (1 + e^(−2u)), u = √(2/π)·(z + 0.044715·z³)
inline F32x8 gelu_tanh(F32x8 z) {
    return sigmoid_times(z, all8(1.5957691216f) * fused(all8(0.044715f) * z * z, z, z));
}

template <F32x8 (*Activation)(F32x8)>
void gate_with(float* gate, const float* up, size_t count) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8) store8(gate + i, Activation(load8(gate + i)) * load8(up + i));
    if (i == count) return;
    float some[8] = {};
    for (size_t k = 0; i + k < count; ++k) some[k] = gate[i + k];
    const F32x8 last = Activation(load8(some));
    for (size_t k = 0; i + k < count; ++k) gate[i + k] = last[k] * up[i + k];
}

}  // namespace

#define KERNELS_OF_ActivationKernels(X) \
    X(normalize, normalize)             \
    X(reorder, reorder)                 \
    X(sum, sum_chunks)                  \
    X(quantize, quantize)               \
    X(reorder_codes, reorder_codes)     \
    X(silu, gate_with<::silu>)          \
    X(gelu_tanh, gate_with<::gelu_tanh>)
FLYWEIGHT_TABLE(ActivationKernels)
