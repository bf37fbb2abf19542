// Signs as bits.
#pragma once

#include "coding/flags.hpp"
#include "coding/fp8.hpp"

namespace {

constexpr size_t sum_lanes = 16;

// A bit where a number is 0 or more, and the sum of the magnitudes: sixteen sums of every sixteenth, then theirs in order.
template <typename T>
void sign_encode(const T* values, size_t rows, size_t columns, uint8_t* packed, size_t nbytes, double* sums) {
    for (size_t row = 0; row < rows; ++row, values += columns, packed += nbytes) {
        double lanes[sum_lanes] = {};
        pack_flags(columns, packed, nbytes, [=, &lanes](size_t start, size_t count, uint8_t* bytes) {
            const T* __restrict from = values + start;
            float wide[flags] = {};
            if (count == flags)
                for (size_t i = 0; i < flags; ++i) wide[i] = widened(from[i]);
            else
                for (size_t i = 0; i < count; ++i) wide[i] = widened(from[i]);
            for (size_t i = 0; i < flags; ++i) bytes[i] = wide[i] >= 0.0f ? 255 : 0;
            for (size_t i = count; i < flags; ++i) bytes[i] = 0;
            for (size_t i = 0; i < flags; i += sum_lanes)
                for (size_t lane = 0; lane < sum_lanes; ++lane) lanes[lane] += double(float_of(magnitude_bits(wide[i + lane])));
        });
        double sum = 0;
        for (double lane : lanes) sum += lane;
        sums[row] = sum;
    }
}

}  // namespace
