#include "nearest.hpp"

FLYWEIGHT_KERNELS(NearestEncoders, FLYWEIGHT_NEAREST_ENCODERS)
