#include "coding.hpp"

FLYWEIGHT_KERNELS(Coding, FLYWEIGHT_CODING)
