// The codecs' kernels for one instruction set, compiled as kernels.cpp is and under its rules.
#include "codecs.hpp"

#include "fp8.hpp"
#include "line.hpp"
#include "low_rank.hpp"
#include "masks.hpp"

#define FLYWEIGHT_JOIN_OF(a, b) a##b
#define FLYWEIGHT_JOIN(a, b) FLYWEIGHT_JOIN_OF(a, b)

namespace flyweight {

extern const CodecKernels FLYWEIGHT_JOIN(codecs_, FLYWEIGHT_ISA) = {
    magnitudes<float>, fp8_codes<float>, sign_encode<float>,
    magnitudes<uint16_t>, fp8_codes<uint16_t>, sign_encode<uint16_t>,
    mark<uint8_t>, gather<uint8_t>,
    mark<uint16_t>, gather<uint16_t>,
    mark<uint32_t>, gather<uint32_t>,
    places<uint32_t>,
    places<int64_t>,
    add_product,
    palette_cuts,
    palette_centres,
};

}  // namespace flyweight
