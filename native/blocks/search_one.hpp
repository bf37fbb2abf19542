// A search for the one scale of a block: iq4_nl and q8_k.
//
// Element i of a block is in lane i mod 8: a lane adds in order, then the lanes by halves.
#pragma once

#include "search.hpp"

namespace {

template <int Elements, typename Grid, const auto& Trials>
struct OneScale {
    static constexpr int size = Elements / 8;
    F32x8 x[size], weight[size];
    float unit = 1.0f, scale = 0.0f, best = 0.0f;

    // Finds the scale; false for a block with a NaN, an infinity or a value of 2^40 and more.
    bool load(const float* __restrict values, const float* __restrict weights) {
        uint32_t peak = 0;
        for (int i = 0; i < Elements; ++i) {
            const uint32_t magnitude = bits_of(values[i]) & 0x7fffffff;
            peak = magnitude > peak ? magnitude : peak;
        }
        if (peak >= bits_of(0x1p40f)) return false;
        const bool ordinary = peak >= bits_of(0x1p-40f);
        if (ordinary) unit = float_of(peak & infinity);
        const float down = 1.0f / unit;
        for (int i = 0; i < size; ++i) {
            x[i] = ordinary ? load8(values + 8 * i) * down : F32x8{};
            weight[i] = load8(weights + 8 * i);
        }
        const float reach = ordinary ? 1.0f / (float_of(peak) * down) : 0.0f;
        for (const double trial : Trials) {
            offer(reach * float(trial));
            offer(reach * -float(trial));
        }
        for (int again = 0; again < 2; ++again) offer(scale != 0.0f ? 1.0f / scale : 0.0f);
        return true;
    }

    // Codes on the grid of this inverse scale, and the scale of least squares for them.
    void offer(float inverse) {
        F32x8 xq[1], qq[1];
        for (int i = 0; i < size; ++i) {
            const F32x8 q = Grid::value(x[i] * inverse), weighted = weight[i] * q;
            xq[0] = i ? xq[0] + weighted * x[i] : weighted * x[i];
            qq[0] = i ? qq[0] + weighted * q : weighted * q;
        }
        const float pull = over_groups(xq), tried = ratio(pull, over_groups(qq)), gain = tried * pull;
        if (gain > best) best = gain, scale = tried;
    }

    bool block_overflows() const { return __builtin_fabsf(scale * unit) >= 65520.0f; }

    // The scale as f16 will hold it: zero only if it is zero.
    float narrowed() const {
        const float half = f16_value(f16_bits(scale * unit));
        const float least = scale > 0.0f ? 0x1p-24f : scale < 0.0f ? -0x1p-24f : 0.0f;
        const float bounded = half < -65504.0f ? -65504.0f : half > 65504.0f ? 65504.0f : half;
        return (bounded != 0.0f ? bounded : least) * (1.0f / unit);
    }

    void codes(float d, uint8_t* out) const {
        const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
        for (int i = 0; i < size; ++i) {
            const F32x8 code = Grid::code(x[i] * inverse);
            for (int lane = 0; lane < 8; ++lane) out[8 * i + lane] = uint8_t(int(code[lane]));
        }
    }
};

}  // namespace
