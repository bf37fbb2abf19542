// Packed codes and a scale per group of columns, to values in one pass; affine_encode.hpp has the way back.
//
//     scale_bias   code · s + b            scale_zero   (code − z) · s
//     signed_bias  signed code · s + b     signed_zero  (signed code − z) · s
//                                          symmetric    signed code · s
//
// Each operation rounds to f32, and those named `…_f16` the last result to f16. A row of codes is a little-endian bit stream. Rows are worked on in runs that stay in the first-level
// cache: codes a byte each lie between the bit stream and the floats.
#pragma once

#include <type_traits>

#include "simd/outputs.hpp"
#include "streams/bits.hpp"

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

// F is a float or eight of them.
struct ScaleBias {
    static constexpr bool is_signed = false;
    template <typename F>
    static F value(F code, float s, float b) { return code * s + b; }
};

struct ScaleZero {
    static constexpr bool is_signed = false;
    template <typename F>
    static F value(F code, float s, float z) { return (code - z) * s; }
};

struct SignedBias : ScaleBias {
    static constexpr bool is_signed = true;
};

struct SignedZero : ScaleZero {
    static constexpr bool is_signed = true;
};

template <typename Form>
struct RoundedToF16 : Form {
    template <typename F>
    static F value(F code, float s, float o) { return f16_rounded(Form::value(code, s, o)); }
};

struct Symmetric {
    static constexpr bool is_signed = true;
    template <typename F>
    static F value(F code, float s, float) { return code * s; }
};

// Codes of which the bit `sign` says that they are negative; a whole byte says it itself.
template <typename Form, bool Bytes>
inline auto codes_in(U8x16 codes, uint8_t sign) {
    if constexpr (Form::is_signed)
        return Bytes ? I8x16(codes) : I8x16((codes ^ sign) - sign);
    else
        return codes;
}

// A number whose significand ends in eight zero bits, as one of a sixteen-bit float does, times a code.
inline bool exact_products(float s) { return (bits_of(s) & 0xff) == 0; }

template <typename Form, bool Bytes, typename Out>
[[gnu::always_inline]] inline void values_of(const uint8_t* __restrict codes, size_t count, uint8_t sign, float s, float o, Out out) {
    const bool numbers = tame(s) && tame(o);
    size_t i = 0;
#ifdef __AVX2__
    if constexpr (std::is_same_v<Out, ToBf16> && std::is_same_v<Form, ScaleBias>)
        if (numbers && exact_products(s))
            for (; i + 32 <= count; i += 32)
                put_crossed(out + i, crossed_bytes(codes + i), true, [=](F32x8 code) { return exact_product_plus(code, s, o); });
#endif
    for (; i + 16 <= count; i += 16) {
        const typename Out::Wide wide(codes_in<Form, Bytes>(load(codes + i), sign));
        (out + i).put(Form::value(wide.low, s, o), Form::value(wide.high, s, o), numbers);
    }
    for (; i < count; ++i) (out + i).put(Form::value(float(codes_in<Form, Bytes>(U8x16{codes[i]}, sign)[0]), s, o));
}

// A row in runs, each unpacked first.
template <typename Form, bool Bytes, typename Out>
void decode_runs(const uint8_t* packed, int bits, size_t columns, const float* s, const float* o, size_t group, Out out) {
    alignas(64) uint8_t unpacked[run];
    Groups at(group);
    for (size_t column = 0; column < columns; column += run) {
        const size_t count = columns - column < run ? columns - column : run;
        const uint8_t* codes = packed + column * size_t(bits) / 8;
        if (bits < 8) {
            unpack_rows[bits - 1](codes, unpacked, count);
            codes = unpacked;
        }
        for (size_t done = 0; done < count;) {
            const size_t some = at.take(count - done);
            values_of<Form, Bytes>(codes + done, some, uint8_t(1 << (bits - 1)), s[at.index], o ? o[at.index] : 0, out);
            at.took(some), done += some, out += some;
        }
    }
}

#ifdef __AVX2__
// A row by a table for each group, 32 codes of up to four bits at a time. Only the last group may leave a rest.
template <int Bits, typename Form>
void decode_tables(const uint8_t* packed, size_t columns, const float* s, const float* o, size_t group, ToBf16 out) {
    constexpr int sign = Form::is_signed ? 1 << (Bits - 1) : 0;
    constexpr I32x8 even = {0, 2, 4, 6, 8, 10, 12, 14};
    constexpr F32x8 codes[2] = {__builtin_convertvector((even ^ sign) - sign, F32x8),
                                __builtin_convertvector((even + 1 ^ sign) - sign, F32x8)};
    for (size_t left = columns; left; ++s) {
        const float offset = o ? *o++ : 0;
        const Bf16Table table(Form::value(codes[0], *s, offset), Form::value(codes[1], *s, offset));
        size_t some = group < left ? group : left;
        left -= some;
        for (; some >= 32; some -= 32, packed += 4 * Bits, out += 32) table.put(out, crossed_stream<Bits>(packed));
        if (some) decode_runs<Form, false>(packed, Bits, some, s, o ? &offset : nullptr, some, out);
    }
}
#endif

// `offset` has a number per group; Symmetric does not read it.
template <typename Form, typename T>
void decode_affine(const uint8_t* packed, size_t rows, size_t nbytes, int bits, const float* scale, const float* offset, size_t group,
                   T* out, size_t columns) {
    const size_t groups = columns / group + (columns % group != 0);
    const auto aligned_to = [=](size_t count) { return group % count == 0 || group >= columns; };
    into(out, rows * columns, columns % 16 == 0 && aligned_to(16), [=](auto to) {
        for (size_t row = 0; row < rows; ++row, to += columns) {
            const uint8_t* codes = packed + row * nbytes;
            const float *s = scale + row * groups, *o = std::is_same_v<Form, Symmetric> ? nullptr : offset + row * groups;
#ifdef __AVX2__
            if constexpr (std::is_same_v<decltype(to), ToBf16>)
                if (bits <= 4 && aligned_to(32)) {
                    constexpr decltype(&decode_tables<1, Form>) by_width[] = {decode_tables<1, Form>, decode_tables<2, Form>,
                                                                              decode_tables<3, Form>, decode_tables<4, Form>};
                    by_width[bits - 1](codes, columns, s, o, group, to);
                    continue;
                }
#endif
            if (Form::is_signed && bits == 8)
                decode_runs<Form, Form::is_signed>(codes, bits, columns, s, o, group, to);
            else
                decode_runs<Form, false>(codes, bits, columns, s, o, group, to);
        }
    });
}

}  // namespace
