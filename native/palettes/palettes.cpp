#include "palettes.hpp"

FLYWEIGHT_KERNELS(Palettes, FLYWEIGHT_PALETTES)
