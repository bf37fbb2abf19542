// Values to affine codes, in one pass: extremes, scale and offset, nearest codes, packed.
//
// Eight groups share the work on scales, one in each lane. The definition divides by the scale; here codes come from products, and what
// a product cannot decide is divided after all.
#pragma once

#include "streams/affine_decode.hpp"

namespace {

enum class Stored : int { f32, f16, bf16 };

// Numbers rounded to the stored type, widened again.
inline F32x8 rounded_to(Stored type, F32x8 values) {
    if (type == Stored::f32) return values;
    if (type == Stored::f16) return f16_rounded(values);
    const I32x8 bits = I32x8(values);
    return F32x8((bits + 0x7fff + (bits >> 16 & 1)) & int32_t(0xffff0000));
}

inline F64x4 magnitudes(F64x4 values) { return values < 0 ? -values : values; }

// F32x4 numbers of double precision in each half of the lanes, rounded to the stored type: to bf16 by way of f32, as the definition's
// library does; for f16 to odd first, so that rounding again to the narrower type gives what rounding once would.
template <typename Make>
inline F32x8 rounded_doubles(Stored type, F32x8 a, F32x8 b, Make make) {
    F32x8 once;
    for (int half = 0; half < 2; ++half) {
        const auto first = load_as<F32x4>(reinterpret_cast<const char*>(&a) + 16 * half);
        const auto second = load_as<F32x4>(reinterpret_cast<const char*>(&b) + 16 * half);
        const F64x4 wide = make(__builtin_convertvector(first, F64x4), __builtin_convertvector(second, F64x4));
        const F32x4 near = __builtin_convertvector(wide, F32x4);
        I32x4 bits = I32x4(near);
        if (type == Stored::f16) {  // of two numbers of one sign the larger magnitude has the larger bits
            const F64x4 back = magnitudes(__builtin_convertvector(near, F64x4)), exact = magnitudes(wide);
            const I32x4 up = __builtin_convertvector(back < exact, I32x4), down = __builtin_convertvector(back > exact, I32x4);
            bits += (down - up) & ((bits & 1) - 1) & ((bits & 0x7fffffff) < 0x7f800000);
        }
        __builtin_memcpy(reinterpret_cast<char*>(&once) + 16 * half, &bits, sizeof bits);
    }
    return rounded_to(type, once);
}

inline F32x8 rounded_quotient(Stored type, F32x8 high, F32x8 low, double steps) {
    return rounded_doubles(type, high, low, [=](F64x4 to, F64x4 from) { return (to - from) / steps; });
}

// Of a group in each lane; any lane may be unused.
struct Extremes {
    F32x8 low, high;
    I32x8 nan;

    I32x8 finite() const { return ~nan & (magnitudes(low) < 0x7f800000) & (magnitudes(high) < 0x7f800000); }
};

// Of sixteen values or a multiple, lane by lane.
template <typename T>
inline Extremes lane_extremes(const T* values, size_t count) {
    F32x8 lows[2] = {load_values(values), load_values(values + 8)}, highs[2] = {lows[0], lows[1]};
    I32x8 nan = unordered(lows[0], lows[1]);
    for (size_t i = 16; i < count; i += 16) {
        const F32x8 lanes[2] = {load_values(values + i), load_values(values + i + 8)};
        for (int j = 0; j < 2; ++j) lows[j] = least(lanes[j], lows[j]), highs[j] = greatest(lanes[j], highs[j]);
        nan |= unordered(lanes[0], lanes[1]);
    }
    return {least(lows[0], lows[1]), greatest(highs[0], highs[1]), nan};
}

constexpr auto least_of = [](F32x8 a, F32x8 b) { return least(a, b); };
constexpr auto greatest_of = [](F32x8 a, F32x8 b) { return greatest(a, b); };

// Of one group, in the first lane.
template <typename T>
inline Extremes extremes_of(const T* values, size_t count) {
    float low = value_at(values), high = low;
    bool nan = low != low;
    size_t i = 0;
    if (count >= 16) {
        i = count & ~size_t(15);
        const Extremes lanes = lane_extremes(values, i);
        low = over_lanes(lanes.low, least_of), high = over_lanes(lanes.high, greatest_of), nan = bits_set(lanes.nan);
    }
    for (; i < count; ++i) {
        const float value = value_at(values + i);
        low = least(value, low), high = greatest(value, high);
        nan |= value != value;
    }
    return {F32x8{low}, F32x8{high}, I32x8{-nan}};
}

// Of eight groups that follow each other, of sixteen values or a multiple.
template <typename T>
inline Extremes extremes_of_groups(const T* values, size_t group) {
    F32x8 lows[8], highs[8];
    I32x8 nan{};
    for (int g = 0; g < 8; ++g) {
        const Extremes lanes = lane_extremes(values + g * group, group);
        lows[g] = lanes.low, highs[g] = lanes.high;
        nan[g] = -(bits_set(lanes.nan) != 0);
    }
    return {over_rows(lows, least_of), over_rows(highs, greatest_of), nan};
}

// Scale and offset of the groups in the lanes, already rounded to their stored type.
struct Maps {
    F32x8 scale, offset;
};

// A quotient is rounded to a whole number, ties to even, before half the range is added: the sum would round it first and move what
// is near a tie.
template <typename F>
inline F whole(F quotient) { return quotient + 0x1.8p23f - 0x1.8p23f; }

// Codes count from the least value: code = (w − b) / s + half, half the range for signed codes and 0 for others.
struct Biased {
    float half, top;
    template <typename F>
    F steps(F value, float s, float b) const { return whole<F>((value - b) / s) + half; }
    F32x8 code_of_zero(F32x8 inverse, F32x8 b) const { return half - b * inverse; }
    float steps_of_zero_scale(float) const { return half; }
    Maps maps(F32x8 low, F32x8 high, Stored type) const {
        const F32x8 step = rounded_quotient(type, high, low, double(top));
        const auto middle = [h = double(half)](F64x4 from, F64x4 by) { return from + h * by; };
        return {step, half > 0 ? rounded_doubles(type, low, step, middle) : rounded_to(type, low)};
    }
};

// As `Biased` without half the range, all of it in f32: a range under 1e-12 has the scale 1, and halves are rounded away from zero.
struct Afq {
    float half, top;
    template <typename F>
    F steps(F value, float s, float b) const {
        const F quotient = (value - b) / s, even = whole<F>(quotient);
        return even + (quotient - even == 0.5f ? F{} + 1.0f : F{});
    }
    F32x8 code_of_zero(F32x8 inverse, F32x8 b) const { return -b * inverse; }
    float steps_of_zero_scale(float) const { return 0.0f; }
    Maps maps(F32x8 low, F32x8 high, Stored) const {
        const F32x8 span = high - low;
        return {span < 1e-12f ? F32x8{} + 1.0f : span / top, low};
    }
};

// Codes count from the middle, z = half the range: code = w / s + z.
struct Centred {
    float half, top;
    template <typename F>
    F steps(F value, float s, float z) const { return whole<F>(value / s) + z; }
    F32x8 code_of_zero(F32x8, F32x8 z) const { return z; }
    float steps_of_zero_scale(float z) const { return z; }
    Maps maps(F32x8 low, F32x8 high, Stored type) const {
        return {rounded_quotient(type, greatest(high, -low), F32x8{}, half > 1 ? double(half) - 1 : 1.0), F32x8{} + half};
    }
};

// The nearest whole number, ties to even, held within 0..top; NaN gives 0. Adding 1.5 · 2^23 leaves it in the low bits.
template <typename F>
inline F clamped(F steps, float top) {
    return least(greatest(steps, F{}), F{} + top) + 0x1.8p23f;
}

#ifdef __AVX2__
// Sixteen values, neighbours by turns: f32 from eight and eight, bf16 from its own halves.
struct Turns {
    F32x8 even, odd;

    explicit Turns(const float* at) : even(load8(at)), odd(load8(at + 8)) {}
    explicit Turns(const uint16_t* at) {
        const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
        even = F32x8(_mm256_slli_epi32(halves, 16));
        odd = F32x8(_mm256_and_si256(halves, _mm256_set1_epi32(int(0xffff0000))));
    }
};

// In which order two registers of words, made of `Turns`, lie when their bytes are packed.
inline __m256i in_order(__m256i bytes, const uint16_t*) { return _mm256_permute4x64_epi64(bytes, 0xd8); }
inline __m256i in_order(__m256i bytes, const float*) {
    const __m256i sorted = _mm256_shuffle_epi8(bytes, _mm256_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15, 0, 2, 4,
                                                                       6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    return _mm256_permutevar8x32_epi32(sorted, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// The codes of eight groups by products in place of quotients, in steps of 2^-16: a code in the upper half of 32 bits, its fraction in
// the lower. Halves are added first, so that a fraction near 0 is a value near the middle between two codes. Sums and
// products here, and the definition's own, are together off by less than 2^-21 of what is added up.
struct Nearly {
    F32x8 inverse, zero;  // value · inverse + zero
    I32x8 unsure;     // how near 0 a fraction says nothing
    uint32_t usable;      // a bit for each group

    template <typename Form>
    Nearly(const Form& form, const Maps& maps) {
        const F32x8 by = 1.0f / maps.scale, from = form.code_of_zero(by, maps.offset);
        const F32x8 off = (F32x8(magnitudes(from)) + (form.top + 1.0f)) * 0x1p-5f + 2.0f;
        inverse = by * 0x1p16f, zero = from * 0x1p16f + 0x1p15f;
        unsure = I32x8(_mm256_cvttps_epi32(__m256(off)));
        usable = bits_set((maps.scale > 0x1p-100f) & (maps.scale < 0x1p100f) & (off < 0x1p10f));
    }
};

// 32 codes; false where one is not sure.
template <typename T>
[[gnu::always_inline]] inline bool nearly_codes(const T* values, const Nearly& nearly, size_t group, uint8_t top, __m256i& codes) {
    const __m256 inverse = _mm256_set1_ps(nearly.inverse[group]), zero = _mm256_set1_ps(nearly.zero[group]);
    const __m256i unsure = _mm256_set1_epi16(int16_t(nearly.unsure[group]));
    const auto fixed = [=](F32x8 value) {  // below 0 the upper half is negative: narrowing holds it at 0
        return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_fmadd_ps(__m256(value), inverse, zero), _mm256_set1_ps(0x1p30f)));
    };
    __m256i upper[2], lower[2];
    for (int i = 0; i < 2; ++i) {
        const Turns turns(values + 16 * i);
        const __m256i a = fixed(turns.even), b = fixed(turns.odd);
        upper[i] = _mm256_blend_epi16(_mm256_srli_epi32(a, 16), b, 0xaa);
        lower[i] = _mm256_add_epi16(_mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xaa), unsure);
    }
    const __m256i least = _mm256_min_epu16(lower[0], lower[1]);
    const __m256i doubt = _mm256_cmpeq_epi16(_mm256_min_epu16(least, _mm256_add_epi16(unsure, unsure)), least);
    codes = _mm256_min_epu8(in_order(_mm256_packus_epi16(upper[0], upper[1]), values), _mm256_set1_epi8(char(top)));
    return _mm256_testz_si256(doubt, doubt);
}
#endif

template <typename Form, typename T>
void codes_of(const Form form, const T* __restrict values, size_t count, float s, float o, uint8_t* __restrict codes) {
    const float top = form.top;
    size_t i = 0;
    if (s == 0.0f) {
        const uint8_t code = uint8_t(bits_of(clamped(form.steps_of_zero_scale(o), top)));
        for (; i < count; ++i) codes[i] = code;
    }
#ifdef __AVX2__
    const Nearly nearly(form, {F32x8{} + s, F32x8{} + o});
#endif
    for (; i + 32 <= count; i += 32) {
#ifdef __AVX2__
        __m256i sure;
        if (__builtin_expect((nearly.usable & 1) && nearly_codes(values + i, nearly, 0, uint8_t(top), sure), 1)) {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i), sure);
            continue;
        }
#endif
        I32x8 whole[4];
        for (int j = 0; j < 4; ++j) whole[j] = I32x8(clamped(form.steps(load_values(values + i + 8 * j), s, o), top)) & 0xff;
        store_narrowed(codes + i, whole);
    }
    for (; i < count; ++i) codes[i] = uint8_t(bits_of(clamped(form.steps(value_at(values + i), s, o), top)));
}

// `offset` may be null: a symmetric grid stores none. Signed codes have their sign bit, `flip`, inverted.
template <typename Form, typename T>
struct RowEncoder {
    Form form;
    int bits;
    size_t columns, group;
    Stored type;
    uint8_t flip;

    // Adding 0 makes every zero positive: of +0 and −0 either may be the extreme. A group that is not finite has a NaN scale.
    Maps keep(const Extremes& extremes, size_t count, float* scale, float* offset) const {
        const I32x8 finite = extremes.finite();
        Maps maps = form.maps(extremes.low + 0.0f, extremes.high + 0.0f, type);
        maps.scale = F32x8(I32x8(maps.scale) & finite | ~finite & 0x7fc00000);
        maps.offset = F32x8(I32x8(maps.offset) & finite);
        __builtin_memcpy(scale, &maps.scale, count * sizeof *scale);
        if (offset) __builtin_memcpy(offset, &maps.offset, count * sizeof *offset);
        return maps;
    }

#ifdef __AVX2__
    // Eight groups of 32 values or a multiple.
    void eight_groups(const T* values, uint8_t* packed, float* scale, float* offset) const {
        const Maps maps = keep(extremes_of_groups(values, group), 8, scale, offset);
        const Nearly nearly(form, maps);
        const int bits = this->bits;  // which bytes that are written might be, for all the compiler knows
        const uint8_t top = uint8_t(form.top);
        for (size_t g = 0; g < 8; ++g)
            for (size_t i = 0, end = group; i < end; i += 32, values += 32, packed += 4 * bits) {
                __m256i codes;
                const bool sure = nearly_codes(values, nearly, g, top, codes);
                if (__builtin_expect(!sure || !(nearly.usable >> g & 1), 0)) codes = one_by_one(values, maps.scale[g], maps.offset[g]);
                codes = _mm256_xor_si256(codes, _mm256_set1_epi8(char(flip)));
                if (bits == 4) {
                    store(packed, packed_nibbles(codes));
                } else if (bits == 8) {
                    _mm256_storeu_si256(reinterpret_cast<__m256i*>(packed), codes);
                } else {
                    alignas(32) uint8_t bytes[32];
                    _mm256_store_si256(reinterpret_cast<__m256i*>(bytes), codes);
                    pack_rows[bits - 1](bytes, packed, 32);
                }
            }
    }

    [[gnu::cold, gnu::noinline]] __m256i one_by_one(const T* values, float s, float o) const {
        alignas(32) uint8_t codes[32];
        codes_of(form, values, 32, s, o, codes);
        return _mm256_load_si256(reinterpret_cast<const __m256i*>(codes));
    }
#endif

    void row(const T* values, uint8_t* packed, float* scale, float* offset) const {
        alignas(64) uint8_t codes[run];
        size_t start = 0;
#ifdef __AVX2__
        for (; group % 32 == 0 && group <= (columns - start) / 8; start += 8 * group, scale += 8, offset += offset ? 8 : 0)
            eight_groups(values + start, packed + start * size_t(bits) / 8, scale, offset);
#endif
        Groups at(group);
        for (size_t column = start; column < columns;) {
            const size_t some = at.take(columns - column), g = at.index;
            keep(extremes_of(values + column, some), 1, scale + g, offset ? offset + g : nullptr);
            at.took(some), column += some;
        }
        at = Groups(group);
        for (size_t column = start; column < columns; column += run) {
            const size_t count = columns - column < run ? columns - column : run;
            for (size_t done = 0; done < count;) {
                const size_t some = at.take(count - done);
                codes_of(form, values + column + done, some, scale[at.index], offset ? offset[at.index] : form.half, codes + done);
                at.took(some), done += some;
            }
            for (size_t i = 0; flip && i < count; ++i) codes[i] ^= flip;
            pack_rows[bits - 1](codes, packed + column * size_t(bits) / 8, count);
        }
    }
};

template <typename Form, typename T>
void encode_affine(const T* values, size_t rows, size_t columns, int bits, size_t group, int stored, bool is_signed, uint8_t* packed,
                   size_t nbytes, float* scale, float* offset) {
    const size_t groups = columns / group + (columns % group != 0);
    const int half = is_signed ? 1 << (bits - 1) : 0;
    const RowEncoder<Form, T> encoder{{float(half), float((1 << bits) - 1)}, bits, columns, group, Stored(stored), uint8_t(half)};
    for (size_t row = 0; row < rows; ++row, values += columns, packed += nbytes, scale += groups) {
        encoder.row(values, packed, scale, offset);
        for (size_t i = (columns * size_t(bits) + 7) / 8; i < nbytes; ++i) packed[i] = 0;
        if (offset) offset += groups;
    }
}

template <typename T, bool Signed>
void encode_biased(const T* values, size_t rows, size_t columns, int bits, size_t group, int stored, uint8_t* packed, size_t nbytes,
                   float* scale, float* bias) {
    encode_affine<Biased>(values, rows, columns, bits, group, stored, Signed, packed, nbytes, scale, bias);
}

template <typename T>
void encode_afq(const T* values, size_t rows, size_t columns, int bits, size_t group, uint8_t* packed, size_t nbytes, float* scale,
                float* bias) {
    encode_affine<Afq>(values, rows, columns, bits, group, int(Stored::f32), false, packed, nbytes, scale, bias);
}

template <typename T>
void encode_symmetric(const T* values, size_t rows, size_t columns, int bits, size_t group, int stored, uint8_t* packed, size_t nbytes,
                      float* scale) {
    encode_affine<Centred>(values, rows, columns, bits, group, stored, true, packed, nbytes, scale, nullptr);
}

}  // namespace
