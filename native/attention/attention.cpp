#include "attend.hpp"

FLYWEIGHT_KERNELS(AttentionKernels, FLYWEIGHT_ATTENTION)
