// What forms of codes have in common.
//
// A form's Row walks one row of weights in stretches of eight chunks, a chunk being 32 columns. A weight is s·q + b, q a code
// of at most seven bits or a signed byte. So that a centre (q − 8) costs nothing per code, it is part of b, and b counts Σx:
//   open<Full>(stretch, n)     read the scales of its n chunks (eight if Full); what is beyond n is zero
//   scales, biases             s and b of the eight chunks
//   codes(k)                   the codes of chunk k
//   times(k)                   null, or (if `halves`) whole numbers that s counts again for the first and the last sixteen columns
//   half_biases                then, instead of biases: b of the sixteens
//   add_bias(sums, half_sums)  add Σ b·Σx over the stretch
//   at, stretch_bytes          where the stretch begins, for prefetches
//   order, elements, bytes     the order of its columns; elements and bytes of a block
//   bits                       of a code
//   scale_parts                2 where scales and biases are arrays of their own, 1 for scales alone
// A Row of floats has no bits, and of the functions only values(chunk, out). A form's Row is rows::form.
#pragma once

#include "blocks/layout.hpp"
#include "products/products.hpp"
#include "simd/lanes8.hpp"

namespace {

using flyweight::Order;
using flyweight::Weights;

constexpr int stretch = 8;

inline I8x32 nibbles(const uint8_t* at) {
    return low_then_high(at) & 15;
}

struct Codes {
    static constexpr bool floats = false, is_signed = false, halves = false;
    static constexpr int bits = 4, scale_parts = 0;
    static constexpr Order order = flyweight::halves;
    const uint8_t *row, *at;
    F32x8 scales = {}, biases = {};

    Codes(const Weights& w, size_t index) : row(w.codes + index * w.stride), at(row) {}
    const int16_t* times(int) const { return nullptr; }
    F32x8 add_bias(const float* sums, const float*, F32x8 sum) const { return fused(biases, load8(sums), sum); }
};

// Codes with a whole number and a bias for every sixteen columns, of blocks that are a stretch each.
template <class Type, int Bits>
struct Halved : Codes, Type {
    static constexpr bool halves = true;
    static constexpr int bits = Bits;
    static constexpr size_t stretch_bytes = Type::bytes;
    int16_t steps[16] = {};
    F32x8 half_biases[2] = {};  // of four chunks each

    using Codes::Codes;
    const int16_t* times(int k) const { return steps + 2 * k; }

    // s = scale · own, b = bias · counts
    void set(float scale, I8x16 own, float bias, I8x16 counts) {
        using Steps = int16_t __attribute__((vector_size(32)));
        const Steps wide_steps = __builtin_convertvector(own, Steps);
        __builtin_memcpy(steps, &wide_steps, sizeof steps);
        const Widened wide(counts);
        scales = all8(scale);
        half_biases[0] = all8(bias) * wide.low, half_biases[1] = all8(bias) * wide.high;
    }

    F32x8 add_bias(const float*, const float* half_sums, F32x8 sum) const {
        return fused(half_biases[1], load8(half_sums + 8), fused(half_biases[0], load8(half_sums), sum));
    }
};

}  // namespace
