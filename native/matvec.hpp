// out = f(x) · Wᵀ with W as it is stored: what the kernels take, and the forms there are.
#pragma once

#include <cstddef>
#include <cstdint>

// X(form, type, the order of its columns, elements and bytes of a block, bytes of a scale or 0, bits of a code or 0)
// The first list has products with f32 and with int8 activations, the second with f32 alone.
#define FLYWEIGHT_MATVEC_CODES(X)                             \
    X(q4_0, Q4_0, halves, 32, 18, 0, 4)                          \
    X(q4_1, Q4_1, halves, 32, 20, 0, 4)                          \
    X(q5_0, Q5_0, halves, 32, 22, 0, 5)                          \
    X(q5_1, Q5_1, halves, 32, 24, 0, 5)                          \
    X(q8_0, Q8_0, halves, 32, 34, 0, 8)                          \
    X(q4_k, Q4_K, halves, 256, 144, 0, 4)                        \
    X(q5_k, Q5_K, halves, 256, 176, 0, 5)                        \
    X(q6_k, Q6_K, halves, 256, 210, 0, 6)                        \
    X(affine4_f32, Affine4<F32Scale>, pairs, 2, 1, 4, 4)         \
    X(affine4_f16, Affine4<F16Scale>, pairs, 2, 1, 2, 4)         \
    X(affine4_bf16, Affine4<Bf16Scale>, pairs, 2, 1, 2, 4)       \
    X(affine8_f32, Affine8<F32Scale>, halves, 1, 1, 4, 8)        \
    X(affine8_f16, Affine8<F16Scale>, halves, 1, 1, 2, 8)        \
    X(affine8_bf16, Affine8<Bf16Scale>, halves, 1, 1, 2, 8)      \
    X(symmetric8_f32, Symmetric8<F32Scale>, halves, 1, 1, 4, 8)  \
    X(symmetric8_f16, Symmetric8<F16Scale>, halves, 1, 1, 2, 8)  \
    X(symmetric8_bf16, Symmetric8<Bf16Scale>, halves, 1, 1, 2, 8) \
    X(tabled4, Tabled4, pairs, 2, 1, 0, 4)                       \
    X(tabled2, Tabled2, fours, 4, 1, 0, 2)

#define FLYWEIGHT_MATVEC_FLOATS(X)       \
    X(f32, F32, straight, 1, 4, 0, 0)       \
    X(f16, F16, straight, 1, 2, 0, 0)       \
    X(bf16, Bf16, straight, 1, 2, 0, 0)     \
    X(palette4, Palette4, pairs, 2, 1, 0, 0)

// The forms are dealt in turn to so many parts, compiled side by side: together they take minutes.
#define FLYWEIGHT_MATVEC_PARTS(X) X(0) X(1) X(2) X(3) X(4) X(5)
#define FLYWEIGHT_PART_OF(isa, part) products_##isa##_##part
#define FLYWEIGHT_PART_NAME(isa, part) FLYWEIGHT_PART_OF(isa, part)

namespace flyweight {

#define X(part) +1
constexpr int matvec_parts = FLYWEIGHT_MATVEC_PARTS(X);
#undef X

// The order in which a form gives 32 columns as floats: as they are; the first half of a register from the first sixteen
// columns and the second from the last sixteen; that with the even and the odd columns for halves; or that with every fourth
// column for a quarter.
enum Order { straight, halves, pairs, fours, orders };

enum MatvecForm {
#define X(form, ...) form_##form,
    FLYWEIGHT_MATVEC_CODES(X) FLYWEIGHT_MATVEC_FLOATS(X)
#undef X
    matvec_forms
};

// From so many activations on, weights are put ready for all of them: codes of up to six bits as codes, all others as f32.
constexpr size_t many = 12;

struct Weights {
    MatvecForm form;
    const uint8_t* codes;          // or blocks, or floats
    size_t rows, columns, stride;  // stride: bytes of a row of codes
    const uint8_t *scale = nullptr, *bias = nullptr;  // (rows, groups); of tabled forms, scale points to entries
    size_t groups = 0, group_chunks = 0;              // groups of a row; runs of 32 columns in one
    // Of a masked row: a bit per block, 0 where all its weights are zero, in so many bytes; and runs of 32 columns in a block.
    const uint8_t* mask = nullptr;
    size_t mask_bytes = 0, block_chunks = 0;
    uint8_t planes[64] = {};                          // byte i of sixteen floats, for i = 0 … 3
};

// Activations made ready, one row per product: as f32, as int8 with a scale per 32 columns, or as bf16. What no form of the call asks
// for is null.
struct Activations {
    size_t count, columns, runs;  // runs: columns / 32, rounded up to whole eights; what is beyond is zero
    const float* x[orders];       // (count, columns)
    const int8_t* codes[orders];  // (count, columns), in every order but straight
    const uint16_t* brains;       // (count, columns), bf16
    const float* scale;           // (count, runs)
    const float* sums;            // (count, runs): Σx over each 32 columns
    const float* half_sums;       // (count, 2 · runs): and over each 16
};

struct Products {
    float* out;          // (count, stride)
    size_t stride;
    const float* bias;   // per row of weights, or null
    bool add;            // to what is there
};

// Rows first to last of every product.
using MatvecKernel = void (*)(const Weights&, const Activations&, size_t first, size_t last, const Products&);

struct FormKernels {
    MatvecKernel f32, int8;
};

struct MatvecKernels {
    const char* name;
    const FormKernels* parts[matvec_parts];  // a part has the forms dealt to it, and nulls

    const FormKernels& of(MatvecForm form) const { return parts[form % matvec_parts][form]; }

    // Whether codes of eight bits are faster as int8 for many activations too.
    bool int8_for_many;
    // bf16 weights and activations for many; null where the processor does not multiply them.
    MatvecKernel bf16_for_many;

    // One row of activations.
    void (*normalize)(const float* x, size_t columns, const float* gain, float eps, float* out);
    void (*reorder)(const float* x, size_t columns, Order order, float* out);
    void (*sum)(const float* x, size_t columns, float* sums, float* half_sums);
    void (*quantize)(const float* x, size_t columns, int8_t* codes, float* scale, float* sums, float* half_sums);
    void (*reorder_codes)(const int8_t* codes, size_t columns, Order order, int8_t* out);

    // gate = act(gate) · up
    void (*silu)(float* gate, const float* up, size_t count);
    void (*gelu_tanh)(float* gate, const float* up, size_t count);
};

extern const MatvecKernels products_baseline;
#ifdef FLYWEIGHT_X86
extern const MatvecKernels products_avx2, products_avx512, products_avx512vnni, products_avx512bf16;
#endif

}  // namespace flyweight
