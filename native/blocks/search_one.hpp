// A search for the one scale of a block: iq4_nl and q8_k.
//
// Element i of a block is in lane i mod 8: a lane adds in order, then the lanes by halves.
#pragma once

#include "blocks/search.hpp"

namespace {

template <int Elements, typename Grid, const auto& Trials>
struct OneScale : Unit {
    static constexpr int size = Elements / 8;
    F32x8 x[size], weight[size];
    float scale = 0.0f, best = 0.0f;

    // Finds the scale; false for a block that does not fit.
    bool run(const float* __restrict values, const float* __restrict weights) {
        if (!find(values, Elements)) return false;
        for (int i = 0; i < size; ++i) x[i] = scaled(load8(values + 8 * i)), weight[i] = load8(weights + 8 * i);
        const float reach = peak > 0.0f ? 1.0f / peak : 0.0f;
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
        const float pull = over_groups(xq)[0], tried = ratio(pull, over_groups(qq)[0]), gain = tried * pull;
        if (gain > best) best = gain, scale = tried;
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
