#include "panels.hpp"

FLYWEIGHT_KERNELS(Int8Panels, FLYWEIGHT_INT8_PANELS)
