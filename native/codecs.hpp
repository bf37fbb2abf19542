// The kernels of single codecs, a second table per instruction set beside kernels.hpp: fp8, masks, signs, low ranks, and
// the best cuts of a line. A source of its own keeps their rebuild to seconds. The rules of kernels.hpp hold.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flyweight {

struct CodecKernels {
#define X(suffix, T)                                                                                                        \
    void (*magnitudes##suffix)(const T* values, size_t rows, size_t columns, size_t group, float* out);                     \
    void (*fp8_codes##suffix)(const T* values, size_t rows, size_t columns, const float* scale, size_t group, bool divide,  \
                              bool wide, uint8_t* out);                                                                     \
    void (*sign_encode##suffix)(const T* values, size_t rows, size_t columns, uint8_t* packed, size_t nbytes, double* sums);
    X(, float) X(_bf16, uint16_t)
#undef X
#define X(bits)                                                                                                             \
    void (*mark_##bits)(const uint##bits##_t* words, size_t rows, size_t columns, uint##bits##_t keep, uint8_t* mask,       \
                        size_t nbytes);                                                                                     \
    void (*gather_##bits)(const uint8_t* mask, size_t rows, size_t nbytes, const uint##bits##_t* words, size_t columns,     \
                          uint##bits##_t* out, size_t count);
    X(8) X(16) X(32)
#undef X
    void (*places_u32)(const uint8_t* mask, size_t rows, size_t nbytes, size_t columns, uint32_t* out, size_t count);
    void (*places_i64)(const uint8_t* mask, size_t rows, size_t nbytes, size_t columns, int64_t* out, size_t count);
    void (*add_product)(const float* left, size_t rows, size_t rank, const float* right, size_t columns, float* out);
    void (*palette_cuts)(const double* mass, const double* moment, size_t points, double* best, int32_t* out, size_t clusters);
    void (*palette_centres)(const float* values, const float* weights, size_t tables, size_t count, uint64_t* order,
                            double* room, int32_t* cuts, size_t clusters, double* out);
};

extern const CodecKernels codecs_baseline;
#ifdef FLYWEIGHT_X86
extern const CodecKernels codecs_avx2;
extern const CodecKernels codecs_avx512;
#endif

}  // namespace flyweight
