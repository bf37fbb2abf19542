#include "decode_bf16.hpp"

FLYWEIGHT_KERNELS(BlockDecoders, FLYWEIGHT_BLOCK_DECODERS)
