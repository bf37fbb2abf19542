// The products for one instruction set: the parts of matvec_kernels.cpp, and what is done to activations.
#include "matvec.hpp"

#include "matvec_activations.hpp"
#include "matvec_bf16.hpp"

#define FLYWEIGHT_TEXT_OF(name) #name
#define FLYWEIGHT_TEXT(name) FLYWEIGHT_TEXT_OF(name)
#define FLYWEIGHT_PRODUCTS_OF(isa) products_##isa
#define FLYWEIGHT_PRODUCTS(isa) FLYWEIGHT_PRODUCTS_OF(isa)

#ifndef FLYWEIGHT_PARTS_ISA  // whose parts these are, if not its own
#define FLYWEIGHT_PARTS_ISA FLYWEIGHT_ISA
#endif

namespace flyweight {
namespace {

#ifdef __AVX512VNNI__
constexpr bool int8_for_many = true;
#else
constexpr bool int8_for_many = false;
#endif

}  // namespace

#define X(part) extern const FormKernels FLYWEIGHT_PART_NAME(FLYWEIGHT_PARTS_ISA, part)[matvec_forms];
FLYWEIGHT_MATVEC_PARTS(X)
#undef X

extern const MatvecKernels FLYWEIGHT_PRODUCTS(FLYWEIGHT_ISA) = {
    FLYWEIGHT_TEXT(FLYWEIGHT_ISA),
#define X(part) FLYWEIGHT_PART_NAME(FLYWEIGHT_PARTS_ISA, part),
    {FLYWEIGHT_MATVEC_PARTS(X)},
#undef X
    int8_for_many,
    bf16_for_many,
    normalize,
    reorder,
    sum_chunks,
    quantize,
    reorder_codes,
    gate_with<silu>,
    gate_with<gelu_tanh>,
};

}  // namespace flyweight
