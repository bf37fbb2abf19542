#include "searched.hpp"

FLYWEIGHT_KERNELS(SearchEncoders, FLYWEIGHT_SEARCH_ENCODERS)
