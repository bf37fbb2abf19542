// How the codecs affine and stepped give their columns: little streams of codes, with a scale, and most with a bias, per group.
#pragma once

#include "products/codes.hpp"
#include "products/stream_codes.hpp"

namespace {

// The scales of `count` chunks from `first`, each as often as its group has chunks. Not inline: it is the same for every form.
template <class Scale>
[[gnu::noinline]] F32x8 spread_scales(const uint8_t* from, size_t first, size_t group_chunks, int count) {
    size_t group = first / group_chunks, left = group_chunks - first % group_chunks;
    if (left >= stretch) return all8(Scale::one(from + group * Scale::bytes));
    F32x8 lanes = {};
    for (int k = 0; k < count; ++k) {
        lanes[k] = Scale::one(from + group * Scale::bytes);
        if (--left == 0) ++group, left = group_chunks;
    }
    return lanes;
}

// The same of what `stepped` has for scales: twelve bits for a group, its step and its minimum.
[[gnu::noinline]] I32x8 spread_steps(const uint8_t* from, size_t first, size_t group_chunks, int count) {
    size_t group = first / group_chunks, left = group_chunks - first % group_chunks;
    I32x8 lanes = {};
    for (int k = 0; k < count; ++k) {
        lanes[k] = int32_t(load_u16(from + group * 3 / 2) >> group % 2 * 4);
        if (--left == 0) ++group, left = group_chunks;
    }
    return lanes;
}

template <int Bits, int ScaleParts>
struct Grouped : Codes {
    static constexpr size_t elements = 32, bytes = 4 * Bits, stretch_bytes = stretch * bytes;
    static constexpr int bits = Bits, scale_parts = ScaleParts;
    static constexpr bool is_signed = Bits == 8;
    static constexpr Order order = Bits == 2 ? flyweight::fours : Bits == 4 ? flyweight::pairs : flyweight::halves;
    const flyweight::ScaleType scale_type;
    const size_t group_chunks;
    const uint8_t *own_scales, *own_biases;

    Grouped(const Weights& w, size_t index)
        : Codes(w, index), scale_type(w.scale_type), group_chunks(w.group_chunks), own_scales(w.scale + index * w.scale_stride),
          own_biases(w.bias + index * w.bias_stride) {}

    template <bool Full, class Scale>
    F32x8 some(const uint8_t* from, size_t which, int chunks) const {
        const size_t first = stretch * which;
        if (Full && group_chunks == 1) return Scale::eight(from + first * Scale::bytes);
        if (Full && group_chunks == 2) {
            const F32x8 four = Scale::four(from + first / 2 * Scale::bytes);
            return __builtin_shufflevector(four, four, 0, 0, 1, 1, 2, 2, 3, 3);
        }
        return spread_scales<Scale>(from, first, group_chunks, Full ? stretch : chunks);
    }

    template <bool Full, class Scale>
    void open_as(size_t which, int chunks) {
        this->scales = some<Full, Scale>(own_scales, which, chunks);
        if constexpr (ScaleParts == 2) this->biases = some<Full, Scale>(own_biases, which, chunks);
    }

    // d · step and −m · minimum
    template <bool Full>
    void open_steps(size_t which, int chunks) {
        const I32x8 both = Full && group_chunks == 1 ? twelves(own_scales + 12 * which)
                                                     : spread_steps(own_scales, stretch * which, group_chunks, Full ? stretch : chunks);
        scales = all8(load_f16(own_biases)) * to_floats(both & 63);
        biases = all8(-load_f16(own_biases + 2)) * to_floats(both >> 6 & 63);
    }

    template <bool Full>
    void open(size_t which, int chunks) {
        at = row + which * stretch_bytes;
        switch (scale_type) {
            case flyweight::ScaleType::f32: open_as<Full, F32Scale>(which, chunks); break;
            case flyweight::ScaleType::f16: open_as<Full, F16Scale>(which, chunks); break;
            case flyweight::ScaleType::bf16: open_as<Full, Bf16Scale>(which, chunks); break;
            case flyweight::ScaleType::steps:
                if constexpr (ScaleParts == 2) open_steps<Full>(which, chunks);
        }
    }
};

template <int Bits>
struct Affine : Grouped<Bits, 2> {
    using Grouped<Bits, 2>::Grouped;
    I8x32 codes(int k) const { return stream_codes<Bits>(this->at + 4 * Bits * k); }
};

namespace rows {
using affine3 = Affine<3>;
using affine5 = Affine<5>;
using affine6 = Affine<6>;
using affine7 = Affine<7>;

struct affine2 : Grouped<2, 2> {
    using Grouped::Grouped;
    I8x32 codes(int k) const { return two_bit_codes(at + 8 * k); }
};

struct affine4 : Grouped<4, 2> {
    using Grouped::Grouped;
    I8x32 codes(int k) const { return nibbles(at + 16 * k); }
};

struct affine8 : Grouped<8, 2> {
    using Grouped::Grouped;
    template <bool Full>
    void open(size_t which, int chunks) {
        Grouped::template open<Full>(which, chunks);
        biases = fused(all8(128), scales, biases);
    }
    I8x32 codes(int k) const { return I8x32(load32(at + 32 * k) ^ 128); }
};

struct symmetric8 : Grouped<8, 1> {
    using Grouped::Grouped;
    I8x32 codes(int k) const { return I8x32(load32(at + 32 * k)); }
    F32x8 add_bias(const float*, const float*, F32x8 sum) const { return sum; }
};
}  // namespace rows

}  // namespace
