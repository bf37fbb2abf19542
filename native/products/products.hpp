// out = f(x) · Wᵀ with W as it is stored: what the kernels take.
#pragma once

#include "kernel.hpp"

namespace flyweight {

// The order in which a form gives 32 columns as floats: as they are; the first half of a register from the first sixteen
// columns and the second from the last sixteen; that with the even and the odd columns for halves; or that with every fourth
// column for a quarter.
enum Order { straight, halves, pairs, fours, orders };

// From so many activations on, weights are put ready for all of them: as f32, or as codes where the processor multiplies bytes (panels.hpp).
constexpr size_t many = 12;

// Steps: six bits each for step and minimum of a group, times two f16 that a row has in common.
enum class ScaleType { f32, f16, bf16, steps };
constexpr size_t scale_bytes(ScaleType type) { return type == ScaleType::f32 ? 4 : 2; }

struct Weights {
    size_t form;                   // its place among the forms of forms.hpp
    const uint8_t* codes;          // or blocks, or floats
    size_t rows, columns, stride;  // stride: bytes of a row of codes
    ScaleType scale_type = {};
    // (rows, groups); of tabled forms, scale points to entries; of groups across the rows, (groups, columns), and bias points to zeros
    const uint8_t *scale = nullptr, *bias = nullptr;
    size_t scale_stride = 0, bias_stride = 0;  // bytes of a row of them, of affine forms
    size_t groups = 0, group_chunks = 0;  // groups of a row, or across the rows; runs of 32 columns in one
    // Of a masked row: a bit per block, 0 where all its weights are zero, in so many bytes; and runs of 32 columns in a block.
    const uint8_t* mask = nullptr;
    size_t mask_bytes = 0, block_chunks = 0;
    uint8_t planes[64] = {};                          // byte i of sixteen floats, for i = 0 … 3
};

// Activations as whole numbers, in the order of a form. Few are bytes with a scale for every four of them, that is for a lane of a sum.
// Of many a lane is a row: they have a scale for every 32, and two bytes, 128 · high + codes.
struct Rounded {
    int8_t *codes, *high;     // (count, columns); high is of many alone
    float* scale;             // (count, columns / 4) or (count, runs)
    float *sums, *half_sums;  // (count, runs), (count, 2 · runs): Σx over each 32 columns, and over each 16
};

// Activations made ready, one row per product: as f32, as whole numbers, or as bf16. What no form of the call asks for is null.
struct Activations {
    size_t count, columns, runs;  // runs: columns / 32, rounded up to whole eights; sums beyond are zero
    const float* x[orders];       // (count, columns)
    Rounded rounded[orders];      // in every order but straight
    const uint16_t* bf16;         // (count, columns)
    const float *sums, *half_sums;  // of x as f32
};

struct Products {
    float* out;          // (count, stride)
    size_t stride;
    const float* bias;   // per row of weights, or null
    bool add;            // to what is there
};

// Rows first to last of every product.
using ProductKernel = void (*)(const Weights&, const Activations&, size_t first, size_t last, const Products&);

}  // namespace flyweight
