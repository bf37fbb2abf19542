#include "tiles.hpp"

FLYWEIGHT_KERNELS(FloatProducts, FLYWEIGHT_FLOAT_PRODUCTS)
