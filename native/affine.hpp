// out = code · scale + bias, one scale and bias per group of columns, rounded after each step.
#pragma once

#include <cstddef>
#include <cstdint>

namespace {

void affine_decode(const uint8_t* __restrict codes, size_t rows, size_t columns, const float* __restrict scale,
                   const float* __restrict bias, size_t group, float* __restrict out) {
    for (size_t row = 0; row < rows; ++row)
        for (size_t start = 0; start < columns; ++scale, ++bias) {
            const size_t count = columns - start < group ? columns - start : group;
            const float s = *scale, b = *bias;
            for (size_t i = 0; i < count; ++i) out[i] = float(int(codes[i])) * s + b;
            start += count, codes += count, out += count;
        }
}

}  // namespace
