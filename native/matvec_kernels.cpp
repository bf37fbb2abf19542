// A part of the products for one instruction set: compiled as kernels.cpp is, and once for each FLYWEIGHT_PART.
#include "matvec.hpp"

#include "matvec_kernels.hpp"

namespace flyweight {
namespace {

static_assert(FLYWEIGHT_PART < matvec_parts);

template <MatvecForm form, class Row, Order order, bool Int8>
constexpr MatvecKernel dealt() {
    if constexpr (form % matvec_parts == FLYWEIGHT_PART) return matvec<Row, Int8, order>;
    return nullptr;
}

}  // namespace

extern const FormKernels FLYWEIGHT_PART_NAME(FLYWEIGHT_ISA, FLYWEIGHT_PART)[matvec_forms] = {
#define X(form, Row, order, ...) {dealt<form_##form, Row, order, false>(), dealt<form_##form, Row, order, true>()},
    FLYWEIGHT_MATVEC_CODES(X)
#undef X
#define X(form, Row, order, ...) {dealt<form_##form, Row, order, false>(), nullptr},
    FLYWEIGHT_MATVEC_FLOATS(X)
#undef X
};

}  // namespace flyweight
