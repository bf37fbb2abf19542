#include "activations.hpp"

FLYWEIGHT_KERNELS(ActivationKernels, FLYWEIGHT_ACTIVATIONS)
