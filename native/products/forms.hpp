// How each form of weights gives its columns.
//
// A form's Row walks one row of weights in stretches of eight chunks, a chunk being 32 columns. A weight is s·q + b, q a code
// of at most six bits or a signed byte. So that a centre (q − 8) costs nothing per code, it is part of b, and b counts Σx:
//   open<Full>(stretch, n)     read the scales of its n chunks (eight if Full); what is beyond n is zero
//   scales                     s of the eight chunks
//   codes(k)                   the codes of chunk k
//   times(k)                   null, or (if `halves`) whole numbers that count again for the first and the last sixteen columns
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

// Blocks of ggml -------------------------------------------------------------------------------

// Blocks of 32 begin with an f16, the scale; some have another one, the bias, and some a fifth bit for every code.
template <class Type, size_t CodesAt>
struct Blocks32 : Codes, Type {
    static constexpr size_t stretch_bytes = stretch * Type::bytes;
    using Codes::Codes;

    template <bool Full>
    void open(size_t which, int chunks) {
        at = row + stretch_bytes * which;
        scales = some<Full>(0, chunks);
    }

    template <bool Full>
    F32x8 some(size_t offset, int chunks) const {
        if (Full) return f16_apart(at + offset, Type::bytes);
        F32x8 lanes = {};
        for (int k = 0; k < chunks; ++k) lanes[k] = load_f16(at + offset + k * Type::bytes);
        return lanes;
    }

    const uint8_t* packed(int k) const { return at + k * Type::bytes + CodesAt; }
};

template <class Type, size_t CodesAt, int Centre>
struct Centred32 : Blocks32<Type, CodesAt> {
    using Blocks32<Type, CodesAt>::Blocks32;

    template <bool Full>
    void open(size_t which, int chunks) {
        Blocks32<Type, CodesAt>::template open<Full>(which, chunks);
        this->biases = all8(-Centre) * this->scales;
    }
};

template <class Type, size_t CodesAt>
struct Biased32 : Blocks32<Type, CodesAt> {
    using Blocks32<Type, CodesAt>::Blocks32;

    template <bool Full>
    void open(size_t which, int chunks) {
        if (Full) {
            this->at = this->row + this->stretch_bytes * which;
            f16_pairs_apart(this->at, Type::bytes, this->scales, this->biases);
        } else {
            Blocks32<Type, CodesAt>::template open<Full>(which, chunks);
            this->biases = this->template some<Full>(2, chunks);
        }
    }
};

template <class Base>
struct FourBits : Base {
    using Base::Base;
    I8x32 codes(int k) const { return nibbles(this->packed(k)); }
};

template <class Base>
struct FiveBits : Base {
    static constexpr int bits = 5;
    using Base::Base;
    I8x32 codes(int k) const { return nibbles(this->packed(k)) | I8x32(sixteens(load_u32(this->packed(k) - 4))); }
};

template <class Type, size_t CodesAt>
struct Signed32 : Blocks32<Type, CodesAt> {
    static constexpr bool is_signed = true;
    static constexpr int bits = 8;
    using Blocks32<Type, CodesAt>::Blocks32;
    I8x32 codes(int k) const { return I8x32(load32(this->packed(k))); }
    F32x8 add_bias(const float*, const float*, F32x8 sum) const { return sum; }
};

struct F8q8Block {
    static constexpr size_t elements = 32, bytes = 33;
};

namespace rows {
using q4_0 = FourBits<Centred32<ggml::q4_0, 2, 8>>;
using q4_1 = FourBits<Biased32<ggml::q4_1, 4>>;
using q5_0 = FiveBits<Centred32<ggml::q5_0, 6, 16>>;
using q5_1 = FiveBits<Biased32<ggml::q5_1, 8>>;

using q8_0 = Signed32<ggml::q8_0, 2>;

// Of mistral.rs: the scale is E4M3(d) / 416, d the first byte.
struct f8q8 : Signed32<F8q8Block, 1> {
    using Signed32::Signed32;

    template <bool Full>
    void open(size_t which, int chunks) {
        at = row + stretch_bytes * which;
        const U16x8 halves = e4m3_to_f16(high_bytes_apart(at, bytes, Full ? stretch : chunks));
        scales = f16x8(&halves) / all8(416 * 0x1p-8f);
    }
};
}  // namespace rows

template <class Type>
struct ScaledTwice : Codes, Type {
    static constexpr size_t stretch_bytes = Type::bytes;
    using Codes::Codes;

    template <bool>
    void open(size_t which, int) {
        at = row + stretch_bytes * which;
        // Four six-bit numbers to a word of bytes; the last four keep their top bits above those of the first.
        const uint32_t first = load_u32(at + 4), second = load_u32(at + 8), third = load_u32(at + 12);
        constexpr uint32_t six = 0x3f3f3f3f, four = 0x0f0f0f0f, two = 0x30303030;
        const uint64_t low = first & six | uint64_t(second & six) << 32;
        const uint64_t high = (third & four | first >> 2 & two) | uint64_t(third >> 4 & four | second >> 2 & two) << 32;
        const I8x32 quads = join(U8x16(U64x2{low, 0}), U8x16(U64x2{high, 0}));
        F32x8 wide[4];
        widen32<false>(quads, wide);
        scales = all8(load_f16(at)) * wide[0];
        biases = all8(-load_f16(at + 2)) * wide[1];
    }
};

namespace rows {
struct q4_k : ScaledTwice<ggml::q4_k> {
    using ScaledTwice::ScaledTwice;
    I8x32 codes(int k) const { return I8x32(loosely_down(load32(at + 16 + 32 * (k / 2)), k % 2 * 4) & 15); }
};

struct q5_k : ScaledTwice<ggml::q5_k> {
    static constexpr int bits = 5;
    using ScaledTwice::ScaledTwice;
    I8x32 codes(int k) const {
        return I8x32(loosely_down(load32(at + 48 + 32 * (k / 2)), k % 2 * 4) & 15 | loosely_down(load32(at + 16), k - 4) & 16);
    }
};

struct q6_k : Codes, ggml::q6_k {
    static constexpr bool halves = true;
    static constexpr int bits = 6;
    static constexpr size_t stretch_bytes = bytes;
    int16_t steps[16];  // a scale for every sixteen columns

    q6_k(const Weights& w, size_t index) : Codes(w, index), steps() {}

    template <bool>
    void open(size_t which, int) {
        at = row + bytes * which;
        scales = all8(load_f16(at + 208));
        for (int i = 0; i < 16; ++i) steps[i] = int8_t(at[192 + i]);
    }

    I8x32 codes(int k) const {
        const uint8_t *low = at + 64 * (k / 4) + 32 * (k % 2), *high = at + 128 + 32 * (k / 4);
        return I8x32(loosely_down(load32(low), k % 4 / 2 * 4) & 15 | loosely_down(load32(high), k % 4 * 2 - 4) & 48);
    }

    const int16_t* times(int k) const { return steps + 2 * k; }

    F32x8 add_bias(const float*, const float* half_sums, F32x8 sum) const {
        const Widened wide(I8x16(load(at + 192)));
        const F32x8 centre = all8(-32) * scales;
        sum = fused(centre * wide.low, load8(half_sums), sum);
        return fused(centre * wide.high, load8(half_sums + 8), sum);
    }
};
}  // namespace rows

// The affine codec: a scale, and for scale_bias a bias, per group ------------------------------

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

template <size_t Elements, int Bits, int ScaleParts>
struct Grouped : Codes {
    static constexpr size_t elements = Elements, bytes = 1, chunk_bytes = 32 / Elements, stretch_bytes = stretch * chunk_bytes;
    static constexpr int bits = Bits, scale_parts = ScaleParts;
    static constexpr bool is_signed = Bits == 8;
    static constexpr Order order = Elements == 2 ? flyweight::pairs : flyweight::halves;
    const flyweight::ScaleType scale_type;
    const size_t group_chunks;
    const uint8_t *own_scales, *own_biases;

    Grouped(const Weights& w, size_t index) : Codes(w, index), scale_type(w.scale_type), group_chunks(w.group_chunks) {
        const size_t at = index * w.groups * scale_bytes(w.scale_type);
        own_scales = w.scale + at, own_biases = w.bias + (ScaleParts == 2 ? at : 0);
    }

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

    template <bool Full>
    void open(size_t which, int chunks) {
        at = row + which * stretch_bytes;
        switch (scale_type) {
            case flyweight::ScaleType::f32: open_as<Full, F32Scale>(which, chunks); break;
            case flyweight::ScaleType::f16: open_as<Full, F16Scale>(which, chunks); break;
            case flyweight::ScaleType::bf16: open_as<Full, Bf16Scale>(which, chunks); break;
        }
    }
};

namespace rows {
struct affine4 : Grouped<2, 4, 2> {
    using Grouped::Grouped;
    I8x32 codes(int k) const { return nibbles(at + 16 * k); }
};

struct affine8 : Grouped<1, 8, 2> {
    using Grouped::Grouped;
    template <bool Full>
    void open(size_t which, int chunks) {
        Grouped::template open<Full>(which, chunks);
        biases = fused(all8(128), scales, biases);
    }
    I8x32 codes(int k) const { return I8x32(load32(at + 32 * k) ^ 128); }
};

struct symmetric8 : Grouped<1, 8, 1> {
    using Grouped::Grouped;
    I8x32 codes(int k) const { return I8x32(load32(at + 32 * k)); }
    F32x8 add_bias(const float*, const float*, F32x8 sum) const { return sum; }
};

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
            const I32x8 e = widen8(own);
            scales = F32x8(e < 2 ? (e + 1) << 21 : (e - 1) << 23);  // as half_e8m0
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
    X(affine4, __VA_ARGS__) X(affine8, __VA_ARGS__) X(symmetric8, __VA_ARGS__) X(tabled4, __VA_ARGS__) X(tabled2, __VA_ARGS__) \
    X(f8q8, __VA_ARGS__) X(e2m1, __VA_ARGS__)
#define FLYWEIGHT_FORMS_OF_FLOATS(X, ...) \
    X(f32, __VA_ARGS__) X(f16, __VA_ARGS__) X(bf16, __VA_ARGS__) X(palette4, __VA_ARGS__) X(e4m3, __VA_ARGS__) \
    X(hqq4, __VA_ARGS__) X(hqq8, __VA_ARGS__)
