#include "bf16_products.hpp"

namespace flyweight {

extern const Bf16Products FLYWEIGHT_JOIN(Bf16Products, FLYWEIGHT_ISA) = {.many = many_bf16};

}  // namespace flyweight
