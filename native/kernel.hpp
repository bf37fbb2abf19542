// How a family of kernels is declared: bodies in a header, each a function of the unnamed namespace, and one list of them.
//
//     #define KERNELS_OF_Grids(X) X(grid_codes, grid_codes) …    X(kernel, its body)
//     FLYWEIGHT_TABLE(Grids)                                     struct flyweight::Grids, a pointer per kernel
//
// family.cpp fills such a table. The build compiles it for every instruction set that makes a difference to the family
// (CMakeLists.txt lists them), under that set's flags and with its name as FLYWEIGHT_ISA.
//
// A kernel is total: it allocates nothing, throws nothing, and touches only the bytes its arguments span; its binding has checked the
// lengths. Everything but the table has internal linkage, and no library function is used: a function shared between the copies could
// be merged by the linker into the copy with the wider instructions, and then run on a processor that lacks them.
#pragma once

#include <cstddef>
#include <cstdint>

// For loops over eight registers. An x86 without AVX2 gets them as they are: unrolled, they take twice as long to compile and run no faster.
#if defined(__x86_64__) && !defined(__AVX2__)
#define FLYWEIGHT_UNROLLED _Pragma("GCC unroll 1")
#else
#define FLYWEIGHT_UNROLLED _Pragma("GCC unroll 8")
#endif

// The plus makes of a function a pointer to it.
#define FLYWEIGHT_MEMBER(kernel, ...) decltype(+::__VA_ARGS__) kernel;
#define FLYWEIGHT_TABLE(Family)               \
    namespace flyweight {                     \
    struct Family {                           \
        KERNELS_OF_##Family(FLYWEIGHT_MEMBER) \
    };                                        \
    }
