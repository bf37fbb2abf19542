// One table of kernels per instruction set.
//
// The list below is the native half of flyweight.kernels.KERNELS: the table, its three instances
// and the Python bindings are all made from it. A kernel is total: it allocates nothing, throws
// nothing, and touches only the bytes its arguments span. Lengths are checked by the caller.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention.hpp"

// X(type, elements of a block, bytes of a block)
#define FLYWEIGHT_DECODED(X) \
    X(q4_0, 32, 18)          \
    X(q4_1, 32, 20)          \
    X(q5_0, 32, 22)          \
    X(q5_1, 32, 24)          \
    X(q8_0, 32, 34)          \
    X(q8_1, 32, 36)          \
    X(q2_k, 256, 84)         \
    X(q3_k, 256, 110)        \
    X(q4_k, 256, 144)        \
    X(q5_k, 256, 176)        \
    X(q6_k, 256, 210)        \
    X(q8_k, 256, 292)        \
    X(mxfp4, 32, 17)         \
    X(iq4_nl, 32, 18)        \
    X(iq4_xs, 256, 136)

#define FLYWEIGHT_ENCODED(X) \
    X(q4_0, 32, 18)          \
    X(q4_1, 32, 20)          \
    X(q5_0, 32, 22)          \
    X(q5_1, 32, 24)          \
    X(q8_0, 32, 34)          \
    X(mxfp4, 32, 17)

// Encoders that search for scales and take weights
#define FLYWEIGHT_SEARCHED(X) \
    X(q2_k, 256, 84)          \
    X(q3_k, 256, 110)         \
    X(q4_k, 256, 144)         \
    X(q5_k, 256, 176)         \
    X(q6_k, 256, 210)         \
    X(iq4_xs, 256, 136)       \
    X(iq4_nl, 32, 18)         \
    X(q8_k, 256, 292)

// X(type, its word)
#define FLYWEIGHT_WORDS(X) \
    X(bf16, uint16_t)      \
    X(f16, uint16_t)       \
    X(f32, uint32_t)

namespace flyweight {

struct Kernels {
#define X(type, elements, bytes)                                               \
    void (*decode_##type)(const uint8_t* blocks, size_t count, float* out);    \
    void (*decode_##type##_bf16)(const uint8_t* blocks, size_t count, uint16_t* out);
    FLYWEIGHT_DECODED(X)
#undef X
#define X(type, elements, bytes)                                                \
    void (*encode_##type)(const float* values, size_t count, uint8_t* blocks);  \
    void (*encode_##type##_bf16)(const uint16_t* values, size_t count, uint8_t* blocks);
    FLYWEIGHT_ENCODED(X)
#undef X
#define X(type, elements, bytes) \
    void (*encode_##type)(const float* values, size_t count, const float* weights, size_t rows, uint8_t* blocks);
    FLYWEIGHT_SEARCHED(X)
#undef X

    void (*unpack_bits)(const uint8_t* packed, size_t rows, size_t nbytes, int bits, uint8_t* out, size_t count);
    void (*pack_bits)(const uint8_t* codes, size_t rows, size_t count, int bits, uint8_t* out, size_t nbytes);

    void (*palette_decode)(const uint8_t* codes, size_t count, const float* tables, size_t entries, size_t vector, size_t run,
                           size_t start, float* out);
    void (*palette_nearest)(const float* values, size_t count, const float* midpoints, size_t steps, size_t run, size_t start,
                            uint8_t* out);
    void (*palette_nearest_vector)(const float* points, size_t count, size_t vector, const float* table, size_t entries,
                                   uint8_t* out);
    void (*palette_histogram)(const float* values, const float* weights, size_t count, double* out);
#define X(type, Word)                                                                                                   \
    void (*lossless_count_##type)(const Word* words, size_t count, uint64_t* counts);                                   \
    void (*lossless_encode_##type)(const Word* words, size_t count, int base, uint64_t* planes, uint8_t* low,           \
                                   uint8_t* escapes, size_t escape_count, uint32_t* counts);                            \
    void (*lossless_decode_##type)(const uint64_t* planes, const uint8_t* low, const uint32_t* starts,                  \
                                   const uint8_t* escapes, size_t escape_count, int base, uint32_t* counts, Word* out,  \
                                   size_t count);
    FLYWEIGHT_WORDS(X)
#undef X
#define X(bits)                                                                                                         \
    void (*expand_##bits)(const uint8_t* mask, size_t rows, size_t nbytes, const uint##bits##_t* values, size_t count,  \
                          uint##bits##_t* out, size_t columns);
    X(8) X(16) X(32)
#undef X
    void (*table_decode)(const uint8_t* codes, size_t rows, size_t columns, const float* table, const float* scale,
                         size_t group, float* out);

    void (*bf16_to_f32)(const uint16_t* values, size_t count, float* out);
    void (*f32_to_bf16)(const float* values, size_t count, uint16_t* out);
    void (*f16_to_f32)(const uint16_t* values, size_t count, float* out);
    void (*f32_to_f16)(const float* values, size_t count, uint16_t* out);

#define X(form)                                                                                                             \
    void (*form)(const uint8_t* packed, size_t rows, size_t nbytes, int bits, const float* scale, const float* offset,       \
                 size_t group, float* out, size_t columns);                                                                  \
    void (*form##_bf16)(const uint8_t* packed, size_t rows, size_t nbytes, int bits, const float* scale, const float* offset, \
                        size_t group, uint16_t* out, size_t columns);
    X(decode_scale_bias)
    X(decode_scale_zero)
    X(decode_signed_bias)
    X(decode_symmetric)  // whose offset is not read
#undef X
#define X(name, T)                                                                                                \
    void (*name)(const T* values, size_t rows, size_t columns, int bits, size_t group, int stored, uint8_t* packed, \
                 size_t nbytes, float* scale, float* bias);
    X(encode_scale_bias, float) X(encode_scale_bias_bf16, uint16_t)
    X(encode_signed_bias, float) X(encode_signed_bias_bf16, uint16_t)
#undef X
#define X(suffix, T)                                                                                                      \
    void (*encode_symmetric##suffix)(const T* values, size_t rows, size_t columns, int bits, size_t group, int stored,    \
                                     uint8_t* packed, size_t nbytes, float* scale);
    X(, float) X(_bf16, uint16_t)
#undef X

    void (*grid_codes)(const float* values, size_t rows, size_t columns, const float* scale, const float* offset, size_t group,
                       bool biased, int levels, uint8_t* out);
    void (*grid_loss)(const float* values, const float* by, size_t size, size_t groups, const float* scale, const float* offset,
                      bool biased, int levels, double* loss);
    void (*grid_sums)(const float* values, const float* by, size_t size, size_t groups, const float* scale, const float* offset,
                      bool biased, int levels, int centre, double* sums);
    void (*hqq_codes)(const float* values, size_t size, size_t groups, const float* t, const float* z, int levels, uint8_t* out);
    void (*hqq_round)(const float* values, const float* by, size_t size, size_t groups, const float* t, const float* z,
                      float beta, int levels, float* error, float* mean);

    AttentionKernels attention;
};

extern const Kernels baseline;
#ifdef FLYWEIGHT_X86
extern const Kernels avx2;
extern const Kernels avx512;
#endif

}  // namespace flyweight
