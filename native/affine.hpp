// The affine family: packed codes and a scale per group of columns, to values in one pass; affine_encode.hpp has the way back.
//
//     scale_bias   code · s + b            scale_zero   (code − z) · s
//     signed_bias  signed code · s + b     symmetric    signed code · s
//
// Each operation rounds to f32. A row of codes is a little-endian bit stream. The definition is in
// kernels/reference_affine.py. Rows are worked on in runs that stay in the first-level cache: codes a byte each
// lie between the bit stream and the floats.
#pragma once

#include <type_traits>

#include "bits.hpp"
#include "outputs.hpp"

namespace {

constexpr size_t run = 1024;  // codes between the bit stream and the floats

// Walks the groups of a row.
struct Groups {
    size_t size, index, left;  // columns left in this group

    explicit Groups(size_t group) : size(group), index(0), left(group) {}
    size_t take(size_t columns) const { return columns < left ? columns : left; }
    void took(size_t columns) {
        left -= columns;
        if (!left) left = size, ++index;
    }
};

// The maps and their inverses ------------------------------------------------------------------

// F is a float or eight of them. Decoding sees signed codes as they are, encoding as the code plus half the range: a quotient is
// rounded to a whole number, ties to even, before half is added, for the sum would round it first and move what is near a tie.
struct ScaleBias {
    static constexpr bool is_signed = false;
    template <typename F>
    static F value(F code, float s, float b) { return code * s + b; }
    template <typename F>
    static F steps(F value, float s, float b) { return (value - b) / s; }
    static Eight code_of_zero(Eight inverse, Eight b) { return -b * inverse; }
    static float steps_of_zero_scale(float) { return 0.0f; }
};

struct ScaleZero {
    static constexpr bool is_signed = false;
    template <typename F>
    static F value(F code, float s, float z) { return (code - z) * s; }
    template <typename F>
    static F steps(F value, float s, float z) { return value / s + 0x1.8p23f - 0x1.8p23f + z; }
    static Eight code_of_zero(Eight, Eight z) { return z; }
    static float steps_of_zero_scale(float z) { return z; }
};

template <int Bits>
struct SignedBias {
    static constexpr bool is_signed = true;
    static constexpr float half = float(1 << (Bits - 1));
    template <typename F>
    static F value(F code, float s, float b) { return code * s + b; }
    template <typename F>
    static F steps(F value, float s, float b) { return (value - b) / s + 0x1.8p23f - 0x1.8p23f + half; }
    static Eight code_of_zero(Eight inverse, Eight b) { return half - b * inverse; }
    static float steps_of_zero_scale(float) { return half; }
};

// Encoded as ScaleZero about half the range.
struct Signed {
    static constexpr bool is_signed = true;
    template <typename F>
    static F value(F code, float s, float) { return code * s; }
};

// Decoding -------------------------------------------------------------------------------------

template <int Bits, typename Form>
inline auto codes_in(U8 codes) {
    constexpr U8 half = U8{} + uint8_t(1 << (Bits - 1));
    if constexpr (Form::is_signed)
        return Bits < 8 ? I8((codes ^ half) - half) : I8(codes);
    else
        return codes;
}

// A number whose significand ends in eight zero bits, as one of a sixteen-bit float does, times a code.
inline bool exact_products(float s) { return (bits_of(s) & 0xff) == 0; }

template <int Bits, typename Form, typename Out>
inline void values_of(const uint8_t* __restrict codes, size_t count, float s, float o, Out out) {
    const bool numbers = tame(s) && tame(o);
    size_t i = 0;
#ifdef __AVX2__
    if constexpr (std::is_same_v<Out, ToBf16> && std::is_same_v<Form, ScaleBias>)
        if (numbers && exact_products(s))
            for (; i + 32 <= count; i += 32)
                put_crossed(out + i, crossed_bytes(codes + i), true, [=](Eight code) { return exact_product_plus(code, s, o); });
#endif
    for (; i + 16 <= count; i += 16) {
        const typename Out::Wide wide(codes_in<Bits, Form>(load(codes + i)));
        (out + i).put(Form::value(wide.low, s, o), Form::value(wide.high, s, o), numbers);
    }
    for (; i < count; ++i) (out + i).put(Form::value(float(codes_in<Bits, Form>(U8{codes[i]})[0]), s, o));
}

// A row in runs, each unpacked first.
template <int Bits, typename Form, typename Out>
inline void decode_runs(const uint8_t* packed, size_t columns, const float* s, const float* o, size_t group, Out out) {
    alignas(64) uint8_t unpacked[run];
    Groups at(group);
    for (size_t column = 0; column < columns; column += run) {
        const size_t count = columns - column < run ? columns - column : run;
        const uint8_t* codes = packed + column * Bits / 8;
        if (Bits < 8) {
            unpack_row<Bits>(codes, unpacked, count);
            codes = unpacked;
        }
        for (size_t done = 0; done < count;) {
            const size_t some = at.take(count - done);
            values_of<Bits, Form>(codes + done, some, s[at.index], o ? o[at.index] : 0, out);
            at.took(some), done += some, out += some;
        }
    }
}

#ifdef __AVX2__
// A row by a table for each group, 32 codes at a time. Only the last group may leave a rest.
template <int Bits, typename Form, typename Out>
inline void decode_tables(const uint8_t* packed, size_t columns, const float* s, const float* o, size_t group, Out out) {
    constexpr int sign = Form::is_signed ? 1 << (Bits - 1) : 0;
    constexpr EightBits even = {0, 2, 4, 6, 8, 10, 12, 14};
    constexpr Eight codes[2] = {__builtin_convertvector((even ^ sign) - sign, Eight),
                                __builtin_convertvector((even + 1 ^ sign) - sign, Eight)};
    for (size_t left = columns; left; ++s) {
        const float offset = o ? *o++ : 0;
        const Bf16Table table(Form::value(codes[0], *s, offset), Form::value(codes[1], *s, offset));
        size_t some = group < left ? group : left;
        left -= some;
        for (; some >= 32; some -= 32, packed += 4 * Bits, out += 32) table.put(out, crossed_stream<Bits>(packed));
        if (some) decode_runs<Bits, Form>(packed, some, s, o ? &offset : nullptr, some, out);
    }
}
#endif

// `offset` has a number per group, or is null.
template <int Bits, typename Form, typename T>
void decode_affine(const uint8_t* packed, size_t rows, size_t nbytes, size_t columns, const float* scale, const float* offset,
                   size_t group, T* out) {
    const size_t groups = columns / group + (columns % group != 0);
    const auto aligned_to = [=](size_t count) { return group % count == 0 || group >= columns; };
    into(out, rows * columns, columns % 16 == 0 && aligned_to(16), [=](auto to) {
        for (size_t row = 0; row < rows; ++row, to += columns) {
            const uint8_t* codes = packed + row * nbytes;
            const float* s = scale + row * groups;
            const float* o = offset ? offset + row * groups : nullptr;
#ifdef __AVX2__
            if constexpr (Bits <= 4 && std::is_same_v<decltype(to), ToBf16>)
                if (aligned_to(32)) {
                    decode_tables<Bits, Form>(codes, columns, s, o, group, to);
                    continue;
                }
#endif
            decode_runs<Bits, Form>(codes, columns, s, o, group, to);
        }
    });
}

template <typename T>
void decode_scale_bias(const uint8_t* packed, size_t rows, size_t nbytes, int bits, const float* scale, const float* bias,
                       size_t group, T* out, size_t columns) {
    with_bits(bits, [=](auto width) {
        decode_affine<width, ScaleBias>(packed, rows, nbytes, columns, scale, bias, group, out);
    });
}

template <typename T>
void decode_scale_zero(const uint8_t* packed, size_t rows, size_t nbytes, int bits, const float* scale, const float* zero,
                       size_t group, T* out, size_t columns) {
    with_bits(bits, [=](auto width) {
        decode_affine<width, ScaleZero>(packed, rows, nbytes, columns, scale, zero, group, out);
    });
}

template <typename T>
void decode_signed_bias(const uint8_t* packed, size_t rows, size_t nbytes, int bits, const float* scale, const float* bias,
                        size_t group, T* out, size_t columns) {
    with_bits(bits, [=](auto width) {
        decode_affine<width, SignedBias<width>>(packed, rows, nbytes, columns, scale, bias, group, out);
    });
}

template <typename T>
void decode_symmetric(const uint8_t* packed, size_t rows, size_t nbytes, int bits, const float* scale, const float*,
                      size_t group, T* out, size_t columns) {
    with_bits(bits, [=](auto width) {
        decode_affine<width, Signed>(packed, rows, nbytes, columns, scale, nullptr, group, out);
    });
}

}  // namespace
