// Floats of eight bits, and bytes that stand for any 256 floats.
#pragma once

#include "kernel.hpp"
#include "simd/f16.hpp"

namespace {

inline uint32_t magnitude_bits(float value) { return bits_of(value) & 0x7fffffffu; }
inline uint32_t magnitude_bits(uint16_t bf16) { return uint32_t(bf16 & 0x7fffu) << 16; }
inline float widened(float value) { return value; }
inline float widened(uint16_t bf16) { return float_of(uint32_t(bf16) << 16); }

// The greatest magnitude of each group of columns, by its bits: a NaN is greater than all numbers.
template <typename T>
void magnitudes(const T* values, size_t rows, size_t columns, size_t group, float* out) {
    for (size_t row = 0; row < rows; ++row)
        for (size_t start = 0; start < columns;) {
            const size_t count = columns - start < group ? columns - start : group;
            int32_t most = 0;  // signed, as the comparison every instruction set has
            for (size_t i = 0; i < count; ++i) {
                const int32_t bits = int32_t(magnitude_bits(values[i]));
                most = bits > most ? bits : most;
            }
            *out++ = float_of(uint32_t(most));
            start += count, values += count;
        }
}

// E4M3 and E5M2: where normal numbers begin, the greatest number, and bits below the kept mantissa.
struct E4M3 {
    static constexpr float normal = 0x1p-6f, top = 448.0f, unit = 0x1p14f;  // unit: a float whose last place is the least step
    static constexpr int dropped = 20, bias = (127 - 7) << 3;
};
struct E5M2 {
    static constexpr float normal = 0x1p-14f, top = 57344.0f, unit = 0x1p7f;
    static constexpr int dropped = 21, bias = (127 - 15) << 2;
};

// The nearest code, ties to even; what is greater than the greatest takes it; NaN is 0x7f.
template <typename F>
inline uint32_t fp8_code(float value) {
    const uint32_t sign = bits_of(value) >> 24 & 0x80u, bits = magnitude_bits(value);
    const float size = float_of(bits), clamped = size > F::top ? F::top : size;
    const uint32_t at = bits_of(clamped);
    const uint32_t above = ((at + (1u << (F::dropped - 1)) - 1 + (at >> F::dropped & 1)) >> F::dropped) - uint32_t(F::bias);
    const uint32_t below = bits_of(clamped + F::unit) - bits_of(F::unit);  // the addition rounds to whole steps
    const uint32_t code = sign | (clamped < F::normal ? below : above);
    return bits > 0x7f800000u ? 0x7fu : code;
}

template <typename F, bool Divide, typename T>
void fp8_run(const T* __restrict values, size_t count, float scale, uint8_t* __restrict out) {
    for (size_t i = 0; i < count; ++i) {
        const float w = widened(values[i]);
        out[i] = uint8_t(fp8_code<F>(Divide ? w * scale : w / scale));
    }
}

// One scale per `group` columns; `divide`: the scale is one that decoding divides by; `wide`: E5M2, else E4M3.
template <typename T>
void fp8_codes(const T* values, size_t rows, size_t columns, const float* scale, size_t group, bool divide, bool wide,
               uint8_t* out) {
    constexpr decltype(&fp8_run<E4M3, false, T>) forms[2][2] = {{fp8_run<E4M3, false, T>, fp8_run<E4M3, true, T>},
                                                                {fp8_run<E5M2, false, T>, fp8_run<E5M2, true, T>}};
    const auto run = forms[wide][divide];
    for (size_t row = 0; row < rows; ++row)
        for (size_t start = 0; start < columns;) {
            const size_t count = columns - start < group ? columns - start : group;
            run(values, count, *scale++, out);
            start += count, values += count, out += count;
        }
}

constexpr size_t f8q8_size = 32, f8q8_bytes = 1 + f8q8_size;

// Blocks of a byte, which scales[byte] stands for, and 32 codes.
void f8q8_decode(const uint8_t* __restrict blocks, size_t count, const float* __restrict scales, float* __restrict out) {
    for (size_t block = 0; block < count; ++block, blocks += f8q8_bytes, out += f8q8_size) {
        const float scale = scales[blocks[0]];
        for (size_t i = 0; i < f8q8_size; ++i) out[i] = float(int8_t(blocks[1 + i])) * scale;
    }
}

// The first byte as given, then values · inverse to whole numbers, halves away from zero; NaN gives 0.
void f8q8_encode(const float* __restrict values, size_t count, const uint8_t* __restrict first, const float* __restrict inverse,
                 uint8_t* __restrict blocks) {
    for (size_t block = 0; block < count; ++block, blocks += f8q8_bytes, values += f8q8_size) {
        const float each = inverse[block];
        blocks[0] = first[block];
        for (size_t i = 0; i < f8q8_size; ++i) {
            const float raw = values[i] * each, number = raw == raw ? raw : 0.0f;
            const float above = number > -128.0f ? number : -128.0f, steps = above < 127.0f ? above : 127.0f;
            const float whole = float(int(steps));
            blocks[1 + i] = uint8_t(int(whole) + int(2.0f * (steps - whole)));
        }
    }
}

// E2M1 of values · inverse, two in a byte, the first in the low bits: the nearest, the larger of two equally near.
void mxfp4_codes(const float* __restrict values, size_t count, const float* __restrict inverse, uint8_t* __restrict out) {
    constexpr float middles[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    for (size_t block = 0; block < count; ++block, values += 32, out += 16) {
        int32_t codes[32];
        for (size_t i = 0; i < 32; ++i) {
            const float steps = values[i] * inverse[block], magnitude = __builtin_fabsf(steps);
            int32_t code = steps < 0.0f ? 8 : 0;
            for (float middle : middles) code += magnitude >= middle;
            codes[i] = code;
        }
        for (size_t i = 0; i < 16; ++i) out[i] = uint8_t(codes[2 * i] | codes[2 * i + 1] << 4);
    }
}

// table[code] · scale, one scale per `group` columns.
void table_decode(const uint8_t* __restrict codes, size_t rows, size_t columns, const float* __restrict table,
                  const float* __restrict scale, size_t group, float* __restrict out) {
    for (size_t row = 0; row < rows; ++row)
        for (size_t start = 0; start < columns; ++scale) {
            const size_t count = columns - start < group ? columns - start : group;
            const float s = *scale;
            for (size_t i = 0; i < count; ++i) out[i] = table[codes[i]] * s;
            start += count, codes += count, out += count;
        }
}

}  // namespace
