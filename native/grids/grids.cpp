#include "grids.hpp"

FLYWEIGHT_KERNELS(Grids, FLYWEIGHT_GRIDS)
