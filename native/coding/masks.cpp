#include "masks.hpp"

FLYWEIGHT_KERNELS(Masks, FLYWEIGHT_MASKS)
