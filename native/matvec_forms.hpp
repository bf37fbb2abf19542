// How each form of weights gives 32 columns at a time. The definition is in kernels/reference_matvec.py.
//
// A form's Row walks one row of weights, block by block:
//   open(block)              read the block's scales
//   chunks                   runs of 32 columns in a block
//   centre                   weights are scale · (code − centre), codes below 64; if negative, codes are signed bytes
//   codes(k), scale(k)       the codes of run k, and what they count
//   times(k)                 null, or whole numbers that count again for the first and the last sixteen columns
//   values(k, out)           instead of these, where weights are not integers times a scale
//   block_bias, row_bias     add bias · Σx, the sums of the activations over a run being known
#pragma once

#include "matvec.hpp"
#include "matvec_lanes.hpp"

namespace {

using flyweight::Weights;

constexpr int signed_bytes = -1, no_codes = -2;

template <int Centre>
struct Form {
    static constexpr int centre = Centre;
    const int16_t* times(int) const { return nullptr; }
    F8 block_bias(size_t, const float*, F8 sum) const { return sum; }
    F8 row_bias(const float*, F8 sum) const { return sum; }
};

inline I8x32 nibbles(const uint8_t* at) {
    const U8 q = load(at);
    return join(q, loosely_down(q, 4)) & 15;
}

// Blocks of ggml -------------------------------------------------------------------------------

struct Q4_0 : Form<8> {
    static constexpr int chunks = 1;
    const uint8_t *row, *at;

    Q4_0(const Weights& w, size_t index) : row(w.codes + index * w.stride), at(row) {}
    void open(size_t block) { at = row + 18 * block; }
    I8x32 codes(int) const { return nibbles(at + 2); }
    float scale(int) const { return half(at); }
};

struct Q8_0 : Form<signed_bytes> {
    static constexpr int chunks = 1;
    const uint8_t *row, *at;

    Q8_0(const Weights& w, size_t index) : row(w.codes + index * w.stride), at(row) {}
    void open(size_t block) { at = row + 34 * block; }
    I8x32 codes(int) const { return I8x32(load32(at + 2)); }
    float scale(int) const { return half(at); }
};

struct Q4_K : Form<0> {
    static constexpr int chunks = 8;
    const uint8_t *row, *at;
    F8 scales, minus;

    Q4_K(const Weights& w, size_t index) : row(w.codes + index * w.stride), at(row), scales(), minus() {}

    void open(size_t block) {
        at = row + 144 * block;
        // Four six-bit numbers to a word of bytes; the last four keep their top bits above those of the first.
        const uint32_t first = load_u32(at + 4), second = load_u32(at + 8), third = load_u32(at + 12);
        constexpr uint32_t six = 0x3f3f3f3f, four = 0x0f0f0f0f, two = 0x30303030;
        const uint64_t low = first & six | uint64_t(second & six) << 32;
        const uint64_t high = (third & four | first >> 2 & two) | uint64_t(third >> 4 & four | second >> 2 & two) << 32;
        const I8x32 quads = join(U8(U64{low, 0}), U8(U64{high, 0}));
        F8 wide[4];
        widen32<false>(quads, wide);
        scales = all8(half(at)) * wide[0];
        minus = all8(-half(at + 2)) * wide[1];
    }

    I8x32 codes(int k) const {
        return I8x32(loosely_down(load32(at + 16 + 32 * (k / 2)), k % 2 * 4) & 15);
    }

    float scale(int k) const { return scales[k]; }
    F8 block_bias(size_t block, const float* sums, F8 sum) const { return fused(minus, load8(sums + 8 * block), sum); }
};

struct Q6_K : Form<32> {
    static constexpr int chunks = 8;
    const uint8_t *row, *at;
    float d;
    int16_t steps[16];  // a scale for every sixteen columns

    Q6_K(const Weights& w, size_t index) : row(w.codes + index * w.stride), at(row), d(0), steps() {}

    void open(size_t block) {
        at = row + 210 * block;
        d = half(at + 208);
        for (int i = 0; i < 16; ++i) steps[i] = int8_t(at[192 + i]);
    }

    I8x32 codes(int k) const {
        const uint8_t *low = at + 64 * (k / 4) + 32 * (k % 2), *high = at + 128 + 32 * (k / 4);
        return I8x32(loosely_down(load32(low), k % 4 / 2 * 4) & 15 | loosely_down(load32(high), k % 4 * 2 - 4) & 48);
    }

    float scale(int) const { return d; }
    const int16_t* times(int k) const { return steps + 2 * k; }
};

// The affine codec: a scale, and for scale_bias a bias, per group ------------------------------

template <class Scale, int Centre, size_t ChunkBytes>
struct Grouped : Form<Centre> {
    static constexpr int chunks = 1;
    const uint8_t *row, *at, *scales, *biases;  // biases: of all rows
    size_t groups, before, group_chunks, left = 0, group = 0;
    float s = 0;

    Grouped(const Weights& w, size_t index)
        : row(w.codes + index * w.stride), at(row), scales(w.scale + index * w.groups * Scale::bytes), biases(w.bias),
          groups(w.groups), before(index * w.groups), group_chunks(w.group / 32) {}

    void open(size_t block) {
        at = row + block * ChunkBytes;
        if (left-- == 0) {
            s = Scale::one(scales + group++ * Scale::bytes);
            left = group_chunks - 1;
        }
    }

    float scale(int) const { return s; }

    // Σ (bias + centre · scale) · Σx: codes taken as code − centre.
    F8 add_biases(float centre, const float* sums, F8 sum) const {
        const uint8_t* own = biases + before * Scale::bytes;
        size_t g = 0;
        for (; g + 8 <= groups; g += 8) {
            F8 bias = Scale::eight(own + g * Scale::bytes);
            if (centre != 0) bias = fused(all8(centre), Scale::eight(scales + g * Scale::bytes), bias);
            sum = fused(bias, load8(sums + g), sum);
        }
        for (; g < groups; ++g) {
            F8 bias = {Scale::one(own + g * Scale::bytes)};
            if (centre != 0) bias = fused(all8(centre), F8{Scale::one(scales + g * Scale::bytes)}, bias);
            sum = fused(bias, F8{sums[g]}, sum);
        }
        return sum;
    }
};

template <class Scale>
struct Affine4 : Grouped<Scale, 0, 16> {
    using Grouped<Scale, 0, 16>::Grouped;
    I8x32 codes(int) const { return nibbles(this->at); }
    F8 row_bias(const float* sums, F8 sum) const { return this->add_biases(0, sums, sum); }
};

template <class Scale>
struct Affine8 : Grouped<Scale, signed_bytes, 32> {
    using Grouped<Scale, signed_bytes, 32>::Grouped;
    I8x32 codes(int) const { return I8x32(load32(this->at) ^ 128); }
    F8 row_bias(const float* sums, F8 sum) const { return this->add_biases(128, sums, sum); }
};

template <class Scale>
struct Symmetric8 : Grouped<Scale, signed_bytes, 32> {
    using Grouped<Scale, signed_bytes, 32>::Grouped;
    I8x32 codes(int) const { return I8x32(load32(this->at)); }
};

// Weights that are floats or stand for floats --------------------------------------------------

template <F8 (*Load)(const uint8_t*)>
struct Raw16 : Form<no_codes> {
    static constexpr int chunks = 1;
    const uint8_t *row, *at;

    Raw16(const Weights& w, size_t index) : row(w.codes + index * w.stride), at(row) {}
    void open(size_t block) { at = row + 64 * block; }
    void values(int, F8 (&out)[4]) const {
        for (int i = 0; i < 4; ++i) out[i] = Load(at + 16 * i);
    }
};

using Bf16 = Raw16<brains8>;
using F16 = Raw16<halves8>;

struct Palette4 : Form<no_codes> {
    static constexpr int chunks = 1;
    const uint8_t *row, *at, *planes;

    Palette4(const Weights& w, size_t index) : row(w.codes + index * w.stride), at(row), planes(w.planes) {}
    void open(size_t block) { at = row + 16 * block; }
    void values(int, F8 (&out)[4]) const { look_up32(planes, nibbles(at), out); }
};

}  // namespace
