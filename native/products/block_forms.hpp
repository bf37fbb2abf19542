// How blocks give their columns: those of ggml, and f8q8.
#pragma once

#include "products/codes.hpp"

namespace {

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

// Codes that are the places of whole numbers in a table.
template <class Type, size_t CodesAt, const int8_t (&Levels)[16]>
struct Levelled32 : Signed32<Type, CodesAt> {
    using Signed32<Type, CodesAt>::Signed32;
    I8x32 codes(int k) const { return look_up(Levels, nibbles(this->packed(k))); }
};

namespace rows {
using q4_0 = FourBits<Centred32<ggml::q4_0, 2, 8>>;
using q4_1 = FourBits<Biased32<ggml::q4_1, 4>>;
using q5_0 = FiveBits<Centred32<ggml::q5_0, 6, 16>>;
using q5_1 = FiveBits<Biased32<ggml::q5_1, 8>>;

using q8_0 = Signed32<ggml::q8_0, 2>;
using iq4_nl = Levelled32<ggml::iq4_nl, 2, iq4_levels>;

struct mxfp4 : Levelled32<ggml::mxfp4, 1, e2m1_levels> {
    using Levelled32::Levelled32;

    template <bool Full>
    void open(size_t which, int chunks) {
        at = row + stretch_bytes * which;
        I32x8 exponents = {};
        for (int k = 0; k < (Full ? stretch : chunks); ++k) exponents[k] = at[k * bytes];
        scales = half_e8m0(exponents);
    }
};

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

struct q6_k : Halved<ggml::q6_k, 6> {
    using Halved::Halved;

    template <bool>
    void open(size_t which, int) {
        at = row + bytes * which;
        const float d = load_f16(at + 208);
        const I8x16 own = I8x16(load(at + 192));
        set(d, own, -32 * d, own);
    }

    I8x32 codes(int k) const {
        const uint8_t *low = at + 64 * (k / 4) + 32 * (k % 2), *high = at + 128 + 32 * (k / 4);
        return I8x32(loosely_down(load32(low), k % 4 / 2 * 4) & 15 | loosely_down(load32(high), k % 4 * 2 - 4) & 48);
    }
};

struct q2_k : Halved<ggml::q2_k, 2> {
    using Halved::Halved;

    template <bool>
    void open(size_t which, int) {
        at = row + bytes * which;
        const U8x16 both = load(at);
        set(load_f16(at + 80), I8x16(both & 15), -load_f16(at + 82), I8x16(both >> 4));
    }

    I8x32 codes(int k) const { return I8x32(loosely_down(load32(at + 16 + 32 * (k / 4)), k % 4 * 2) & 3); }
};

struct q3_k : Halved<ggml::q3_k, 3> {
    using Halved::Halved;

    template <bool>
    void open(size_t which, int) {
        at = row + bytes * which;
        // Six bits each, less 32: four of the first eight in low halves of bytes, of the last eight in high ones, two by two beyond them.
        const auto low = load_as<uint64_t>(at + 96), high = uint64_t(load_u32(at + 104));
        constexpr uint64_t four = 0x0f0f0f0f0f0f0f0f, two = 0x3030303030303030;
        const uint64_t first = low & four | (high << 4 | high << 34) & two, last = low >> 4 & four | (high | high << 30) & two;
        const I8x16 own = I8x16(U64x2{first, last}) - 32;
        const float d = load_f16(at + 108);
        set(d, own, -4 * d, own);
    }

    I8x32 codes(int k) const {
        return I8x32(loosely_down(load32(at + 32 + 32 * (k / 4)), k % 4 * 2) & 3 | loosely_down(load32(at), k - 2) & 4);
    }
};

struct iq4_xs : Codes, ggml::iq4_xs {
    static constexpr bool is_signed = true;
    static constexpr int bits = 8;
    static constexpr size_t stretch_bytes = bytes;
    using Codes::Codes;

    template <bool>
    void open(size_t which, int) {
        at = row + bytes * which;
        constexpr U32x8 apart = {0, 1, 2, 3, 4, 5, 6, 7};
        const U32x8 low = (U32x8{} + load_u32(at + 4)) >> 4 * apart & 15, high = (U32x8{} + load_u16(at + 2)) >> 2 * apart & 3;
        scales = all8(load_f16(at)) * to_floats(I32x8(low | high << 4) - 32);
    }

    I8x32 codes(int k) const { return look_up(iq4_levels, nibbles(at + 8 + 16 * k)); }
    F32x8 add_bias(const float*, const float*, F32x8 sum) const { return sum; }
};
}  // namespace rows

}  // namespace
