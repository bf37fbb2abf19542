// Codes of trellis-coded weights: the path of least error through the states of a window that slides over a stream of codes.
//
// A state is the last `window_bits` bits of the stream, the newest code lowest, and stands for a level. The states that a state can follow
// differ in their oldest code alone, so of each such set only the best goes on. Every state costs the same few operations, in the same
// order everywhere: the bits of a path are those of every machine.
#pragma once

#include <utility>

#include "kernel.hpp"
#include "simd/vectors.hpp"

namespace {

constexpr int window_bits = 12;
constexpr size_t states = size_t(1) << window_bits;

#if defined(__AVX512F__)
constexpr size_t lanes = 16;
#else
constexpr size_t lanes = 8;
#endif
using Floats = float __attribute__((vector_size(4 * lanes)));
using Whole = int32_t __attribute__((vector_size(4 * lanes)));
using Bytes = uint8_t __attribute__((vector_size(lanes)));

template <int Bits, size_t Part, size_t... I>
inline Floats spread(Floats best, std::index_sequence<I...>) {
    return __builtin_shufflevector(best, best, int(Part * lanes + I >> Bits)...);
}

// What is best for each window without its oldest code becomes the costs of the states that a new code leads to.
template <int Bits, size_t... Part>
inline void go_on(Floats best, const float* levels, float square, float linear, float* costs, std::index_sequence<Part...>) {
    const auto part = [&]<size_t P>() {
        const Floats level = load_as<Floats>(levels + P * lanes);
        const Floats cost = spread<Bits, P>(best, std::make_index_sequence<lanes>()) + level * (square * level + linear);
        __builtin_memcpy(costs + P * lanes, &cost, sizeof cost);
    };
    (part.template operator()<Part>(), ...);
}

// Σ (square · level² + linear · level) is least. `costs`: two times `states` floats; `from`: for each code, the oldest codes of the windows
// it came from, states >> Bits bytes.
template <int Bits>
void weave_strip(const float* square, const float* linear, size_t count, const float* levels, uint8_t* codes, float* reached,
                 float* costs, uint8_t* from) {
    constexpr size_t windows = states >> Bits, options = size_t(1) << Bits;
    float *was = costs, *is = costs + states;
    for (size_t i = 0; i < states; ++i) was[i] = i ? 0x1p100f : 0.0f;  // all codes before the first are zero
    for (size_t row = 0; row < count; ++row) {
        const float base = was[0];
        uint8_t* __restrict own = from + row * windows;
        for (size_t at = 0; at < windows; at += lanes) {
            Floats best = load_as<Floats>(was + at);
            Whole oldest = {};
            for (size_t option = 1; option < options; ++option) {
                const Floats cost = load_as<Floats>(was + option * windows + at);
                const Whole better = cost < best;
                best = better ? cost : best;
                oldest = better ? Whole{} + int32_t(option) : oldest;
            }
            const Bytes narrow = __builtin_convertvector(oldest, Bytes);
            __builtin_memcpy(own + at, &narrow, sizeof narrow);
            go_on<Bits>(best - base, levels + at * options, square[row], linear[row], is + at * options, std::make_index_sequence<options>());
        }
        std::swap(was, is);
    }
    size_t state = 0;
    for (size_t i = 1; i < states; ++i)
        if (was[i] < was[state]) state = i;
    for (size_t row = count; row-- > 0;) {
        codes[row] = uint8_t(state & (options - 1)), reached[row] = levels[state];
        state = state >> Bits | size_t(from[row * windows + (state >> Bits)]) << (window_bits - Bits);
    }
}

void weave(const float* square, const float* linear, size_t count, size_t strip, int bits, const float* levels, uint8_t* codes,
           float* reached, float* costs, uint8_t* from) {
    for (size_t at = 0; at < count; at += strip) {
        const size_t some = count - at < strip ? count - at : strip;
        const auto own = bits == 2 ? weave_strip<2> : bits == 3 ? weave_strip<3> : weave_strip<4>;
        own(square + at, linear + at, some, levels, codes + at, reached + at, costs, from);
    }
}

// A sum and a difference of each two lanes that are `Half` apart.
template <int Half>
inline F32x8 butterfly(F32x8 v) {
    constexpr auto sign = [](int lane) { return lane & Half ? int32_t(0x80000000) : 0; };
    const I32x8 signs = {sign(0), sign(1), sign(2), sign(3), sign(4), sign(5), sign(6), sign(7)};
    const F32x8 other = __builtin_shufflevector(v, v, 0 ^ Half, 1 ^ Half, 2 ^ Half, 3 ^ Half, 4 ^ Half, 5 ^ Half, 6 ^ Half, 7 ^ Half);
    return other + F32x8(I32x8(v) ^ signs);
}

// Of activations: each 64 columns with their signs by the matrix of Hadamard, of ±1 / 8.
void rotate(const float* x, size_t columns, float* out) {
    constexpr U32x8 lane = {1, 2, 3, 4, 5, 6, 7, 8};
    for (size_t from = 0; from < columns; from += 64) {
        F32x8 v[8];
        FLYWEIGHT_UNROLLED
        for (int i = 0; i < 8; ++i) {
            const U32x8 mixed = (uint32_t(from + 8 * i) + lane) * 0x9e3779b1u;
            v[i] = F32x8(U32x8(load8(x + from + 8 * i) * 0.125f) ^ (mixed ^ mixed << 15) & 0x80000000u);
        }
        FLYWEIGHT_UNROLLED
        for (int half = 4; half; half /= 2)
            FLYWEIGHT_UNROLLED
            for (int i = 0; i < 8; ++i)
                if (!(i & half)) {
                    const F32x8 sum = v[i] + v[i + half];
                    v[i + half] = v[i] - v[i + half], v[i] = sum;
                }
        FLYWEIGHT_UNROLLED
        for (int i = 0; i < 8; ++i) store8(out + from + 8 * i, butterfly<1>(butterfly<2>(butterfly<4>(v[i]))));
    }
}

}  // namespace

#define KERNELS_OF_Weaving(X) X(weave, weave) X(rotate, rotate)
FLYWEIGHT_TABLE(Weaving)
