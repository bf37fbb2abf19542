// How each form of weights gives its columns: the others, and the list of all.
#pragma once

#include "products/affine_forms.hpp"
#include "products/block_forms.hpp"

namespace {

namespace rows {
// MXFP4: E2M1, doubled to be whole numbers, and half of a power of two for every chunk.
struct e2m1 : Codes {
    static constexpr size_t elements = 2, bytes = 1, stretch_bytes = stretch * 16;
    static constexpr int bits = 8, scale_parts = 1;
    static constexpr bool is_signed = true;
    static constexpr Order order = flyweight::pairs;
    const uint8_t* exponents;

    e2m1(const Weights& w, size_t index) : Codes(w, index), exponents(w.scale + index * w.groups) {}

    template <bool Full>
    void open(size_t which, int chunks) {
        at = row + which * stretch_bytes;
        const uint8_t* own = exponents + stretch * which;
        if (Full) {
            scales = half_e8m0(widen8(own));
        } else {
            scales = F32x8{};
            for (int k = 0; k < chunks; ++k) scales[k] = half_e8m0(own[k]);
        }
    }

    I8x32 codes(int k) const { return look_up(e2m1_levels, nibbles(at + 16 * k)); }
    F32x8 add_bias(const float*, const float*, F32x8 sum) const { return sum; }
};
}  // namespace rows

// The tabled codec: an entry of 16 bytes per run, of which the last eight are scale and zero. What makes a code unsigned is
// part of the bias.
template <size_t Elements, int Centre>
struct Tabled : Codes {
    static constexpr bool maskable = true;
    static constexpr size_t elements = Elements, bytes = 1, chunk_bytes = 32 / Elements, stretch_bytes = stretch * chunk_bytes;
    static constexpr size_t entry_bytes = 16;
    const uint8_t* entries;
    size_t groups, group_chunks;

    Tabled(const Weights& w, size_t index)
        : Codes(w, index), entries(w.scale + index * w.groups * entry_bytes), groups(w.groups), group_chunks(w.group_chunks) {}

    const uint8_t* entry(size_t which) const { return entries + which * entry_bytes; }
    static float scale_of(const uint8_t* entry) { return float_of(load_u32(entry + 8)); }
    static float zero_of(const uint8_t* entry) { return float_of(load_u32(entry + 12)); }
    static float bias_of(const uint8_t* entry) { return zero_of(entry) - float(Centre) * scale_of(entry); }

    // A number of the entries of eight chunks, the first of which is in entry `first`, as so many of its chunks are left.
    template <bool Full, float (*Of)(const uint8_t*)>
    F32x8 some(size_t first, size_t left, int chunks) const {
        const auto of = [&](size_t which) { return Of(entry(first + which)); };
        if (left >= stretch) return all8(of(0));
        if (Full && group_chunks == 4) return __builtin_shufflevector(all8(of(0)), all8(of(1)), 0, 0, 0, 0, 8, 8, 8, 8);
        if (Full && group_chunks == 2) return F32x8{of(0), of(0), of(1), of(1), of(2), of(2), of(3), of(3)};
        if (Full && group_chunks == 1) return F32x8{of(0), of(1), of(2), of(3), of(4), of(5), of(6), of(7)};
        F32x8 lanes = {};
        for (int k = 0, which = 0; k < (Full ? stretch : chunks); ++k) {
            lanes[k] = of(which);
            if (--left == 0) ++which, left = group_chunks;
        }
        return lanes;
    }

    template <bool Full>
    void open(size_t which, int chunks) {
        at = row + which * stretch_bytes;
        const size_t chunk = stretch * which;
        // The most frequent lengths, 64 and 128, without a division.
        const size_t first = group_chunks == 4 ? chunk / 4 : group_chunks == 2 ? chunk / 2 : chunk / group_chunks;
        const size_t left = group_chunks - (chunk - first * group_chunks);
        __builtin_prefetch(entry(first + 2 * groups));  // two rows are taken at a time
        scales = some<Full, scale_of>(first, left, chunks);
        biases = some<Full, zero_of>(first, left, chunks) - all8(Centre) * scales;
    }
};

namespace rows {
struct tabled4 : Tabled<2, 8> {
    static constexpr Order order = flyweight::pairs;
    using Tabled::Tabled;
    I8x32 codes(int k) const { return nibbles(at + 16 * k) ^ 8; }
};

struct tabled2 : Tabled<4, 0> {
    static constexpr Order order = flyweight::fours;
    static constexpr int bits = 2;
    using Tabled::Tabled;
    I8x32 codes(int k) const { return two_bit_codes(at + 8 * k); }
};
}  // namespace rows

// Weights that are floats or stand for floats --------------------------------------------------

template <size_t Bytes, F32x8 (*Load)(const void*)>
struct Raw {
    static constexpr bool floats = true, is_signed = false, maskable = true;
    static constexpr int bits = 0, scale_parts = 0;
    static constexpr Order order = flyweight::straight;
    static constexpr size_t elements = 1, bytes = Bytes, chunk_bytes = 32 * Bytes, entry_bytes = 0;
    const uint8_t* row;

    const uint8_t* entry(size_t) const { return nullptr; }

    Raw(const Weights& w, size_t index) : row(w.codes + index * w.stride) {}
    [[gnu::always_inline]] void values(size_t chunk, F32x8 (&out)[4]) const {
        for (int i = 0; i < 4; ++i) out[i] = Load(row + chunk_bytes * chunk + 8 * Bytes * i);
    }
};

namespace rows {
using f32 = Raw<4, load_as<F32x8>>;
using f16 = Raw<2, f16x8>;
using bf16 = Raw<2, bf16x8>;

struct palette4 {
    static constexpr bool floats = true;
    static constexpr int bits = 0, scale_parts = 0;
    static constexpr Order order = flyweight::pairs;
    static constexpr size_t elements = 2, bytes = 1, chunk_bytes = 16;
    const uint8_t *row, *planes;

    palette4(const Weights& w, size_t index) : row(w.codes + index * w.stride), planes(w.planes) {}
    [[gnu::always_inline]] void values(size_t chunk, F32x8 (&out)[4]) const { look_up32(planes, nibbles(row + 16 * chunk), out); }
};

// E4M3 with an f32 scale for every row.
struct e4m3 {
    static constexpr bool floats = true;
    static constexpr int bits = 0, scale_parts = 1;
    static constexpr Order order = flyweight::straight;
    static constexpr size_t elements = 1, bytes = 1, chunk_bytes = 32;
    const uint8_t* row;
    const F32x8 scale;

    e4m3(const Weights& w, size_t index) : row(w.codes + index * w.stride), scale(all8(0x1p8f * F32Scale::one(w.scale + 4 * index))) {}
    [[gnu::always_inline]] void values(size_t chunk, F32x8 (&out)[4]) const {
        e4m3x32(row + chunk_bytes * chunk, out);
        for (F32x8& lanes : out) lanes *= scale;
    }
};
}  // namespace rows

// HQQ: s·(q − z), with groups across the rows (across.hpp). Codes of four bits are two rows to a byte: the first half of the rows has the high
// bits. Scales and zeros are those of row index % groups.
template <int Bits>
struct Across {
    static constexpr bool floats = true, across = true;
    static constexpr int bits = 0, code_bits = Bits, scale_parts = 2;
    static constexpr Order order = flyweight::straight;
    static constexpr size_t elements = 1, bytes = 1, chunk_bytes = 32;
    const flyweight::ScaleType type;
    const uint8_t *row, *own_scales, *own_zeros;
    const int shift;

    Across(const Weights& w, size_t index) : Across(w, index, w.rows * Bits / 8, index % w.groups * w.columns) {}

    Across(const Weights& w, size_t index, size_t stored, size_t first)
        : type(w.scale_type), row(w.codes + index % stored * w.stride), own_scales(w.scale + first * scale_bytes(type)),
          own_zeros(w.bias + first * scale_bytes(type)), shift(Bits == 4 && index < stored ? 4 : 0) {}

    F32x8 eight(const uint8_t* from, size_t column) const {
        switch (type) {
            case flyweight::ScaleType::f16: return F16Scale::eight(from + 2 * column);
            case flyweight::ScaleType::bf16: return Bf16Scale::eight(from + 2 * column);
            default: return F32Scale::eight(from + 4 * column);
        }
    }
    F32x8 scales(size_t column) const { return eight(own_scales, column); }
    F32x8 zeros(size_t column) const { return eight(own_zeros, column); }

    [[gnu::always_inline]] void values(size_t chunk, F32x8 (&out)[4]) const {
        for (int i = 0; i < 4; ++i) {
            const size_t column = 32 * chunk + 8 * i;
            const I32x8 codes = widen8(row + column) >> shift & ((1 << Bits) - 1);
            out[i] = (to_floats(codes) - zeros(column)) * scales(column);
        }
    }
};

namespace rows {
using hqq4 = Across<4>;
using hqq8 = Across<8>;
}  // namespace rows

}  // namespace

// X(form, …): those whose weights are codes, and those whose weights are or stand for floats; these have no products with int8.
#define FLYWEIGHT_FORMS_OF_CODES(X, ...)                                                                             \
    FLYWEIGHT_GGML_PRODUCT(X, __VA_ARGS__)                                                                           \
    X(affine2, __VA_ARGS__) X(affine3, __VA_ARGS__) X(affine4, __VA_ARGS__) X(affine5, __VA_ARGS__) X(affine6, __VA_ARGS__) \
    X(affine7, __VA_ARGS__) X(affine8, __VA_ARGS__) X(symmetric8, __VA_ARGS__) X(tabled4, __VA_ARGS__) X(tabled2, __VA_ARGS__) \
    X(f8q8, __VA_ARGS__) X(e2m1, __VA_ARGS__)
#define FLYWEIGHT_FORMS_OF_FLOATS(X, ...) \
    X(f32, __VA_ARGS__) X(f16, __VA_ARGS__) X(bf16, __VA_ARGS__) X(palette4, __VA_ARGS__) X(e4m3, __VA_ARGS__) \
    X(hqq4, __VA_ARGS__) X(hqq8, __VA_ARGS__)
