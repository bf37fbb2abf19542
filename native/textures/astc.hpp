// The decoder of ASTC textures. One body for every instruction set: a block is a walk along its bits, which wider vectors do
// not shorten.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flyweight {

struct Image {
    float* values;
    size_t rows, columns;
};

// illegal: one for each block. Blocks are width × height texels of 4 to 12, as many as cover the image.
void astc_decode(const uint8_t* blocks, size_t width, size_t height, float scale, float zero, Image out, uint8_t* illegal);

}  // namespace flyweight
