// The products for one instruction set: a source of its own, because they take long to compile.
#include "kernels.hpp"
#include "matvec_kernels.hpp"

namespace flyweight {

#define FLYWEIGHT_PRODUCTS_OF(isa) products_##isa
#define FLYWEIGHT_PRODUCTS(isa) FLYWEIGHT_PRODUCTS_OF(isa)

extern const MatvecKernels FLYWEIGHT_PRODUCTS(FLYWEIGHT_ISA) = {
    {
#define X(form, Row, order, ...) {matvec<Row, false, order>, matvec<Row, true, order>},
        FLYWEIGHT_MATVEC_CODES(X)
#undef X
#define X(form, Row, order, ...) {matvec<Row, false, order>, nullptr},
        FLYWEIGHT_MATVEC_FLOATS(X)
#undef X
    },
    normalize,
    reorder,
    sum_chunks,
    quantize,
    reorder_codes,
    gate_with<silu>,
    gate_with<gelu_tanh>,
};

}  // namespace flyweight
