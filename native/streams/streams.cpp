#include "streams.hpp"

FLYWEIGHT_KERNELS(Streams, FLYWEIGHT_STREAMS)
