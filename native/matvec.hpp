// out = x · Wᵀ with W as it is stored: what the kernels take, and the forms there are.
#pragma once

#include <cstddef>
#include <cstdint>

// X(form, type, whether a byte holds a pair of neighbouring columns, the code that stands for zero)
// The first list has products with f32 and with int8 activations, the second with f32 alone.
#define FLYWEIGHT_MATVEC_CODES(X)                       \
    X(q4_0, Q4_0, false, 8)                             \
    X(q8_0, Q8_0, false, 0)                             \
    X(q4_k, Q4_K, false, 0)                             \
    X(q6_k, Q6_K, false, 32)                            \
    X(affine4_f32, Affine4<F32Scale>, true, 0)          \
    X(affine4_f16, Affine4<F16Scale>, true, 0)          \
    X(affine4_bf16, Affine4<Bf16Scale>, true, 0)        \
    X(affine8_f32, Affine8<F32Scale>, false, 0)         \
    X(affine8_f16, Affine8<F16Scale>, false, 0)         \
    X(affine8_bf16, Affine8<Bf16Scale>, false, 0)       \
    X(symmetric8_f32, Symmetric8<F32Scale>, false, 0)   \
    X(symmetric8_f16, Symmetric8<F16Scale>, false, 0)   \
    X(symmetric8_bf16, Symmetric8<Bf16Scale>, false, 0)

// X(form, type, whether activations are put in quads, for bytes that hold pairs of columns)
#define FLYWEIGHT_MATVEC_FLOATS(X) \
    X(bf16, Bf16, false)           \
    X(f16, F16, false)             \
    X(palette4, Palette4, true)

namespace flyweight {

struct Weights {
    const uint8_t* codes;          // or blocks, or 16-bit floats
    size_t rows, columns, stride;  // stride: bytes of a row of codes
    size_t blocks;                 // of a row; without blocks, runs of 32 columns
    const uint8_t *scale = nullptr, *bias = nullptr;  // (rows, groups)
    size_t group = 0, groups = 0;  // columns that share a scale; groups of a row
    const uint8_t* planes = nullptr;  // byte i of sixteen floats, for i = 0 … 3
};

// Activations made ready, one row per product: as f32, or as int8 with a scale per 32 columns.
struct Activations {
    size_t count, columns, runs;
    const float* x;          // (count, columns), in the order the form wants
    const int8_t* codes;     // (count, columns)
    const int16_t* offsets;  // (count, columns / 2): the form's centre times the sum of two codes
    const float* scale;      // (count, columns / 32)
    const float* sums;       // (count, runs): Σx over equal shares of the columns
};

// Rows first to last of every product; out is (count, rows).
using MatvecKernel = void (*)(const Weights&, const Activations&, size_t first, size_t last, float* out);

struct MatvecKernels {
#define X(form, type, pairs, centre) MatvecKernel form, form##_int8;
    FLYWEIGHT_MATVEC_CODES(X)
#undef X
#define X(form, type, pairs) MatvecKernel form;
    FLYWEIGHT_MATVEC_FLOATS(X)
#undef X
    // One row of activations: reordered, quantised, summed.
    void (*reorder)(const float* x, size_t columns, bool pairs, float* out);
    void (*quantize)(const float* x, size_t columns, bool pairs, int8_t* codes, float* scale);
    void (*offset)(const int8_t* codes, size_t columns, int centre, int16_t* offsets);
    void (*sum)(const float* x, size_t columns, size_t runs, float* sums);
    void (*sum_int8)(const int8_t* codes, const float* scale, size_t columns, size_t runs, float* sums);
};

}  // namespace flyweight
