// One table of kernels per instruction set.
//
// The list below is the native half of flyweight.kernels.KERNELS: the table, its three instances
// and the Python bindings are all made from it. A kernel is total: it allocates nothing, throws
// nothing, and touches only the bytes its arguments span. Lengths are checked by the caller.
#pragma once

#include <cstddef>
#include <cstdint>

#include "matvec.hpp"

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

namespace flyweight {

struct Kernels {
    const char* name;

#define X(type, elements, bytes) void (*decode_##type)(const uint8_t* blocks, size_t count, float* out);
    FLYWEIGHT_DECODED(X)
#undef X
#define X(type, elements, bytes) void (*encode_##type)(const float* values, size_t count, uint8_t* blocks);
    FLYWEIGHT_ENCODED(X)
#undef X

    void (*unpack_bits)(const uint8_t* packed, size_t rows, size_t nbytes, int bits, uint8_t* out, size_t count);
    void (*pack_bits)(const uint8_t* codes, size_t rows, size_t count, int bits, uint8_t* out, size_t nbytes);
    void (*affine_decode)(const uint8_t* codes, size_t rows, size_t columns, const float* scale, const float* bias,
                          size_t group, float* out);

    MatvecKernels matvec;
};

extern const Kernels baseline;
#ifdef FLYWEIGHT_X86
extern const Kernels avx2;
extern const Kernels avx512;
#endif

}  // namespace flyweight
