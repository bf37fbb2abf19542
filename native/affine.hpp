// The affine family: packed codes and a scale per group of columns, to values and back in one pass.
//
//     scale_bias   code · s + b            scale_zero   (code − z) · s          symmetric   signed code · s
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

// The two maps and their inverses -------------------------------------------------------------------------------------

// F is a float or eight of them.
struct ScaleBias {
    template <typename F>
    static F value(F code, float s, float b) { return code * s + b; }
    template <typename F>
    static F steps(F value, float s, float b) { return (value - b) / s; }
    static Eight nearly_steps(Eight value, float inverse, float b) { return (value - b) * inverse; }
    static float steps_of_zero_scale(float) { return 0.0f; }
};

struct ScaleZero {
    template <typename F>
    static F value(F code, float s, float z) { return (code - z) * s; }
    template <typename F>
    static F steps(F value, float s, float z) { return value / s + z; }
    static Eight nearly_steps(Eight value, float inverse, float z) { return value * inverse + z; }
    static float steps_of_zero_scale(float z) { return z; }
};

// Two's complement, which decodes as it is; encoding treats it as (code + half − half) · s.
struct Signed {
    template <typename F>
    static F value(F code, float s, float) { return code * s; }
};

// Decoding -------------------------------------------------------------------------------------

template <int Bits, typename Form>
inline auto codes_in(U8 codes) {
    constexpr U8 half = U8{} + uint8_t(1 << (Bits - 1));
    if constexpr (std::is_same_v<Form, Signed>)
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
    constexpr int sign = std::is_same_v<Form, Signed> ? 1 << (Bits - 1) : 0;
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
void decode_symmetric(const uint8_t* packed, size_t rows, size_t nbytes, int bits, const float* scale, const float*,
                      size_t group, T* out, size_t columns) {
    with_bits(bits, [=](auto width) {
        decode_affine<width, Signed>(packed, rows, nbytes, columns, scale, nullptr, group, out);
    });
}

// Encoding -------------------------------------------------------------------------------------

enum class Stored : int { f32, f16, bf16 };

// A double rounded to the stored type, widened again. To bf16 by way of f32, as the definition's library does.
inline float rounded_to(Stored type, double wide) {
    const float once = float(wide);
    if (type == Stored::f32) return once;
    if (type == Stored::bf16) return float_of(uint32_t(bf16_of(once)) << 16);
    // Rounded to odd first, so that rounding again to the narrower f16 gives what rounding once would. Without a
    // branch: which way a number was rounded cannot be predicted.
    uint32_t bits = bits_of(once);
    const double back = double(once);
    const uint32_t moves = uint32_t(back != wide) & ~bits & uint32_t((bits & 0x7fffffff) < 0x7f800000);
    bits += moves * ((back < wide) == (wide > 0) ? 1u : ~0u);
    return f16_value(f16_bits(float_of(bits)));
}

inline float rounded_to(Stored type, float value) {
    if (type == Stored::f32) return value;
    return type == Stored::bf16 ? float_of(uint32_t(bf16_of(value)) << 16) : f16_value(f16_bits(value));
}

struct Extremes {
    float low, high;
    bool finite;
};

// Of sixteen values or a multiple, lane by lane.
struct LaneExtremes {
    Eight low, high;
    EightBits nan;

    template <typename T>
    LaneExtremes(const T* values, size_t count) {
        Eight lows[2] = {load_values(values), load_values(values + 8)}, highs[2] = {lows[0], lows[1]};
        nan = unordered(lows[0], lows[1]);
        for (size_t i = 16; i < count; i += 16) {
            const Eight lanes[2] = {load_values(values + i), load_values(values + i + 8)};
            for (int j = 0; j < 2; ++j) lows[j] = least(lanes[j], lows[j]), highs[j] = greatest(lanes[j], highs[j]);
            nan |= unordered(lanes[0], lanes[1]);
        }
        low = least(lows[0], lows[1]), high = greatest(highs[0], highs[1]);
    }
};

constexpr auto least_of = [](Eight a, Eight b) { return least(a, b); };
constexpr auto greatest_of = [](Eight a, Eight b) { return greatest(a, b); };

inline Extremes extremes(float low, float high, bool nan) {
    const bool finite = !nan && (bits_of(low) & 0x7fffffff) < 0x7f800000 && (bits_of(high) & 0x7fffffff) < 0x7f800000;
    return {low + 0.0f, high + 0.0f, finite};  // of +0 and −0 either may have won
}

template <typename T>
inline Extremes extremes_of(const T* values, size_t count) {
    float low = value_at(values), high = low;
    bool nan = low != low;
    size_t i = 0;
    if (count >= 16) {
        i = count & ~size_t(15);
        const LaneExtremes lanes(values, i);
        low = over_lanes(lanes.low, least_of), high = over_lanes(lanes.high, greatest_of), nan = bits_set(lanes.nan);
    }
    for (; i < count; ++i) {
        const float value = value_at(values + i);
        low = least(value, low), high = greatest(value, high);
        nan |= value != value;
    }
    return extremes(low, high, nan);
}

// Of eight groups that follow each other, of sixteen values or a multiple.
template <typename T>
inline void extremes_of_groups(const T* values, size_t group, Extremes (&found)[8]) {
    Eight lows[8], highs[8];
    uint32_t nan = 0;
    for (int g = 0; g < 8; ++g) {
        const LaneExtremes lanes(values + g * group, group);
        lows[g] = lanes.low, highs[g] = lanes.high;
        nan |= uint32_t(bits_set(lanes.nan) != 0) << g;
    }
    const Eight low = over_rows(lows, least_of), high = over_rows(highs, greatest_of);
    for (int g = 0; g < 8; ++g) found[g] = extremes(low[g], high[g], nan >> g & 1);
}

// The nearest whole number, ties to even, held within 0..top; NaN gives 0. Adding 1.5 · 2^23 leaves it in the low bits.
template <typename F>
inline F held(F steps, float top) {
    return least(greatest(steps, F{}), F{} + top) + 0x1.8p23f;
}

#ifdef __AVX2__
// The codes of 32 values by a product in place of a quotient; false where one of them is too near the middle between two codes
// to be sure: sums and products here are off by less than top · 2^-22.
template <typename Form, typename T>
inline bool nearly_codes_of(const T* values, float inverse, float o, float top, EightBits (&whole)[4]) {
    Eight worst{};
    for (int j = 0; j < 4; ++j) {
        const Eight steps = least(Form::nearly_steps(load_values(values + 8 * j), inverse, o), Eight{} + top);
        whole[j] = EightBits(_mm256_cvtps_epi32(__m256(steps)));
        worst = greatest(Eight(magnitudes(steps - __builtin_convertvector(whole[j], Eight))), worst);
    }
    return !bits_set(worst > 0.5f - top * 0x1p-21f);
}
#endif

template <typename Form, typename T>
inline void codes_of(const T* __restrict values, size_t count, float s, float o, float top, uint8_t* __restrict codes) {
    size_t i = 0;
    if (s == 0.0f) {
        const uint8_t code = uint8_t(bits_of(held(Form::steps_of_zero_scale(o), top)));
        for (; i < count; ++i) codes[i] = code;
    }
#ifdef __AVX2__
    const bool invertible = tame(s) && tame(o) && s > 0x1p-100f;
    const float inverse = 1.0f / s;
#endif
    for (; i + 32 <= count; i += 32) {
        EightBits whole[4];
#ifdef __AVX2__
        if (__builtin_expect(invertible && nearly_codes_of<Form>(values + i, inverse, o, top, whole), 1)) {
            store_narrowed(codes + i, whole);
            continue;
        }
#endif
        for (int j = 0; j < 4; ++j) whole[j] = EightBits(held(Form::steps(load_values(values + i + 8 * j), s, o), top)) & 0xff;
        store_narrowed(codes + i, whole);
    }
    for (; i < count; ++i) codes[i] = uint8_t(bits_of(held(Form::steps(value_at(values + i), s, o), top)));
}

// Scale and offset of a group, already rounded to their stored type. A group that is not finite has a NaN scale.
struct Map {
    float scale, offset;
};

template <int Bits>
inline Map map_of(ScaleBias, Extremes range, Stored type) {
    const double step = (double(range.high) - double(range.low)) / double((1 << Bits) - 1);
    return {rounded_to(type, step), rounded_to(type, range.low)};
}

template <int Bits>
inline Map map_of(ScaleZero, Extremes range, Stored type) {
    constexpr int half = 1 << (Bits - 1);
    const double peak = double(range.high) > -double(range.low) ? double(range.high) : -double(range.low);
    return {rounded_to(type, peak / double(half > 1 ? half - 1 : 1)), float(half)};
}

// `offset` may be null: a symmetric grid stores none, and its codes have their sign bit, `flip`, inverted.
template <int Bits, typename Form, typename T>
void encode_affine(const T* values, size_t rows, size_t columns, size_t group, Stored type, uint8_t flip, uint8_t* packed,
                   size_t nbytes, float* scale, float* offset) {
    const size_t groups = columns / group + (columns % group != 0);
    constexpr float top = float((1 << Bits) - 1);
    alignas(64) uint8_t codes[run];
    for (size_t row = 0; row < rows; ++row, values += columns, packed += nbytes, scale += groups) {
        const auto keep = [=](size_t g, Extremes range) {
            const Map map = map_of<Bits>(Form{}, range, type);
            scale[g] = range.finite ? map.scale : float_of(0x7fc00000);
            if (offset) offset[g] = range.finite ? map.offset : 0.0f;
        };
        size_t g = 0;
        for (; group % 16 == 0 && (g + 8) * group <= columns; g += 8) {
            Extremes found[8];
            extremes_of_groups(values + g * group, group, found);
            for (size_t i = 0; i < 8; ++i) keep(g + i, found[i]);
        }
        for (; g < groups; ++g) {
            const size_t start = g * group;
            keep(g, extremes_of(values + start, columns - start < group ? columns - start : group));
        }
        Groups at(group);
        for (size_t column = 0; column < columns; column += run) {
            const size_t count = columns - column < run ? columns - column : run;
            for (size_t done = 0; done < count;) {
                const size_t some = at.take(count - done);
                const float o = offset ? offset[at.index] : float(flip);
                codes_of<Form>(values + column + done, some, scale[at.index], o, top, codes + done);
                at.took(some), done += some;
            }
            for (size_t i = 0; flip && i < count; ++i) codes[i] ^= flip;
            pack_row<Bits>(codes, packed + column * Bits / 8, count);
        }
        for (size_t i = (columns * Bits + 7) / 8; i < nbytes; ++i) packed[i] = 0;
        if (offset) offset += groups;
    }
}

template <typename T>
void encode_scale_bias(const T* values, size_t rows, size_t columns, int bits, size_t group, int stored, uint8_t* packed,
                       size_t nbytes, float* scale, float* bias) {
    with_bits(bits, [=](auto width) {
        encode_affine<width, ScaleBias>(values, rows, columns, group, Stored(stored), 0, packed, nbytes, scale, bias);
    });
}

template <typename T>
void encode_symmetric(const T* values, size_t rows, size_t columns, int bits, size_t group, int stored, uint8_t* packed,
                      size_t nbytes, float* scale) {
    with_bits(bits, [=](auto width) {
        constexpr int half = 1 << (width - 1);
        encode_affine<width, ScaleZero>(values, rows, columns, group, Stored(stored), half, packed, nbytes, scale, nullptr);
    });
}

}  // namespace
