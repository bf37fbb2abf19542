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

// What rounds values of these peaks to steps of them: the scale, and its inverse. A peak too small for its inverse gives zeros, one that
// is not finite a NaN scale.
struct Steps {
    F32x8 scale, inverse;

    Steps(I32x8 peaks, float count) {
        const F32x8 peak = F32x8(peaks), steps = all8(count) / peak;
        const I32x8 finite = peaks < int32_t(infinite_bits), fits = finite & (I32x8(steps) < int32_t(infinite_bits));
        scale = F32x8(I32x8(peak / all8(count)) & fits | 0x7fc00000 & ~finite);
        inverse = F32x8(I32x8(steps) & fits);
        used = fits;
    }
    I32x8 codes(F32x8 values) const { return rounded(F32x8(I32x8(values) & used) * inverse); }

  private:
    I32x8 used;
};

inline F32x8 blend(I32x8 where, F32x8 one, F32x8 other) { return F32x8(where & I32x8(one) | ~where & I32x8(other)); }

// Eight lanes of four values as whole numbers, as floats, times a scale. Of the numbers of steps to their peak, `most` and a few fewer, that
// with the least sum of squared errors.
struct Nearest {
    static constexpr int most = 127, fewest = 124;
    F32x8 scale = {}, codes[4] = {};

    Nearest(const F32x8 (&values)[4], I32x8 peaks) {
        const F32x8 peak = F32x8(peaks), inverse = all8(1) / peak;
        const I32x8 finite = peaks < int32_t(infinite_bits), fits = finite & (I32x8(all8(most) * inverse) < int32_t(infinite_bits));
        F32x8 kept[4], least_error = {};
        for (int i = 0; i < 4; ++i) kept[i] = F32x8(I32x8(values[i]) & fits);
        for (int count = most; count >= fewest; --count) {
            const F32x8 steps = F32x8(I32x8(all8(float(count)) * inverse) & fits), own_scale = peak * all8(1.0f / float(count));
            F32x8 own[4], error = {};
            for (int i = 0; i < 4; ++i) {
                own[i] = to_floats(rounded(kept[i] * steps));
                const F32x8 off = kept[i] - own[i] * own_scale;
                error += off * off;
            }
            const I32x8 nearer = count == most ? ~I32x8{} : error < least_error;
            least_error = blend(nearer, error, least_error), scale = blend(nearer, own_scale, scale);
            for (int i = 0; i < 4; ++i) codes[i] = blend(nearer, own[i], codes[i]);
        }
        scale = F32x8(I32x8(scale) & fits | 0x7fc00000 & ~finite);
    }
};

// Bytes in the order of a form, with a scale for every four: code = rint(x · (count / peak)), scale = peak / count.
template <Order order>
void quantize_few(const float* __restrict x, size_t columns, const flyweight::Rounded& out) {
    int8_t* codes = out.codes;
    float *scale = out.scale, *sums = out.sums, *half_sums = out.half_sums;
    for (; columns; columns -= 32, x += 32, codes += 32, scale += 8, half_sums += 2) {
        F32x8 values[4];  // the first of each four, their second, third and fourth
        for (int i = 0; i < 4; ++i)
            values[i] = F32x8{x[column_of<order>(i)], x[column_of<order>(4 + i)], x[column_of<order>(8 + i)], x[column_of<order>(12 + i)],
                              x[column_of<order>(16 + i)], x[column_of<order>(20 + i)], x[column_of<order>(24 + i)], x[column_of<order>(28 + i)]};
        I32x8 peaks = magnitudes(values[0]);
        for (int i = 1; i < 4; ++i) peaks = greatest(peaks, magnitudes(values[i]));
        const Nearest nearest(values, peaks);
        I32x8 bytes = {}, sum = {};
        for (int i = 0; i < 4; ++i) {
            const I32x8 whole = __builtin_convertvector(nearest.codes[i], I32x8);
            bytes |= (whole & 255) << 8 * i, sum += whole;
        }
        __builtin_memcpy(codes, &bytes, sizeof bytes);
        store8(scale, nearest.scale);
        const F32x8 each = nearest.scale * to_floats(sum);
        for (int half = 0; half < 2; ++half)
            half_sums[half] = (each[4 * half] + each[4 * half + 1]) + (each[4 * half + 2] + each[4 * half + 3]);
        *sums++ = half_sums[0] + half_sums[1];
    }
}

// Two bytes in the order of a form, with a scale for every 32: 128 · high + code = rint(x · (16256 / peak)), scale = peak / 16256.
template <Order order>
void quantize_many(const float* __restrict x, size_t columns, const flyweight::Rounded& out) {
    int8_t *codes = out.codes, *high = out.high;
    float *scale = out.scale, *sums = out.sums, *half_sums = out.half_sums;
    for (; columns; columns -= 32, x += 32, codes += 32, high += 32, half_sums += 2) {
        I32x8 peaks = magnitudes(load8(x));
        for (int i = 8; i < 32; i += 8) peaks = greatest(peaks, magnitudes(load8(x + i)));
        const int32_t peak = over_lanes(peaks, [](I32x8 a, I32x8 b) { return greatest(a, b); });
        const Steps steps(I32x8{} + peak, 127 * 128);
        int32_t whole[32], sum[2] = {};
        for (int i = 0; i < 32; i += 8) {
            const I32x8 some = steps.codes(load8(x + i));
            __builtin_memcpy(whole + i, &some, sizeof some);
        }
        for (int i = 0; i < 32; ++i) {
            const int32_t own = whole[column_of<order>(i)], above = own + 64 >> 7;
            codes[i] = int8_t(own - (above << 7)), high[i] = int8_t(above);
        }
        for (int i = 0; i < 32; ++i) sum[i / 16] += whole[i];
        *scale++ = steps.scale[0];
        for (int half = 0; half < 2; ++half) half_sums[half] = steps.scale[0] * float(sum[half]);
        *sums++ = steps.scale[0] * float(sum[0] + sum[1]);
    }
}

void quantize(const float* x, size_t columns, Order order, const flyweight::Rounded& out) {
    with_order(order, [&]<Order own>() { out.high ? quantize_many<own>(x, columns, out) : quantize_few<own>(x, columns, out); });
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
    X(silu, gate_with<::silu>)          \
    X(gelu_tanh, gate_with<::gelu_tanh>)
FLYWEIGHT_TABLE(ActivationKernels)
