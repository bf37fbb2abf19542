// The kernels for one instruction set. Compiled once per set, with that set's compiler flags and
// FLYWEIGHT_ISA as its name.
//
// Everything but the table has internal linkage, and no library function is used: a function
// shared between the copies could be merged by the linker into the copy with the wider
// instructions, and then run on a processor that lacks them.
#include "kernels.hpp"

#include "affine.hpp"
#include "bits.hpp"
#include "decode.hpp"
#include "encode.hpp"
#include "matvec_kernels.hpp"

#define FLYWEIGHT_TEXT_OF(name) #name
#define FLYWEIGHT_TEXT(name) FLYWEIGHT_TEXT_OF(name)

namespace flyweight {

extern const Kernels FLYWEIGHT_ISA = {
    FLYWEIGHT_TEXT(FLYWEIGHT_ISA),
#define X(type, elements, bytes) decode<elements, bytes, type>,
    FLYWEIGHT_DECODED(X)
#undef X
#define X(type, elements, bytes) encode<elements, bytes, to_##type>,
    FLYWEIGHT_ENCODED(X)
#undef X
    unpack_bits,
    pack_bits,
    affine_decode,
    matvec_kernels,
};

}  // namespace flyweight
