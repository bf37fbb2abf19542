// The vector types of GCC and Clang, named by element and lanes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace {

using U8x8 = uint8_t __attribute__((vector_size(8)));
using U8x16 = uint8_t __attribute__((vector_size(16)));
using U8x32 = uint8_t __attribute__((vector_size(32)));
using I8x16 = int8_t __attribute__((vector_size(16)));
using I8x32 = int8_t __attribute__((vector_size(32)));
using U16x8 = uint16_t __attribute__((vector_size(16)));
using U16x16 = uint16_t __attribute__((vector_size(32)));
using U32x8 = uint32_t __attribute__((vector_size(32)));
using I32x4 = int32_t __attribute__((vector_size(16)));
using I32x8 = int32_t __attribute__((vector_size(32)));
using U64x2 = uint64_t __attribute__((vector_size(16)));
using U64x4 = uint64_t __attribute__((vector_size(32)));
using I64x4 = int64_t __attribute__((vector_size(32)));
using F32x4 = float __attribute__((vector_size(16)));
using F32x8 = float __attribute__((vector_size(32)));
using F64x2 = double __attribute__((vector_size(16)));
using F64x4 = double __attribute__((vector_size(32)));

// From any address.
template <typename T>
inline T load_as(const void* at) {
    T lanes;
    __builtin_memcpy(&lanes, at, sizeof lanes);
    return lanes;
}

inline U8x16 load(const uint8_t* at) { return load_as<U8x16>(at); }
inline void store(uint8_t* at, U8x16 lanes) { __builtin_memcpy(at, &lanes, sizeof lanes); }
inline F32x8 load8(const float* at) { return load_as<F32x8>(at); }
inline void store8(float* at, F32x8 lanes) { __builtin_memcpy(at, &lanes, sizeof lanes); }
inline F32x8 all8(float value) { return F32x8{value, value, value, value, value, value, value, value}; }

}  // namespace
