// How a family of kernels is declared: bodies in a header, each a function of the unnamed namespace, and one list of them.
//
//     #define FLYWEIGHT_GRIDS(X) X(grid_codes, grid_codes) …    X(kernel, its body)
//     FLYWEIGHT_TABLE(Grids, FLYWEIGHT_GRIDS)                   struct flyweight::Grids, a pointer per kernel
//     FLYWEIGHT_KERNELS(Grids, FLYWEIGHT_GRIDS)                 the table of one instruction set, in a source of its own
//
// That source is compiled for every instruction set that makes a difference to the family (CMakeLists.txt lists them), under
// that set's flags and with its name as FLYWEIGHT_ISA.
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

#define FLYWEIGHT_MEMBER(kernel, ...) decltype(&::__VA_ARGS__) kernel;
#define FLYWEIGHT_ENTRY(kernel, ...) .kernel = ::__VA_ARGS__,
#define FLYWEIGHT_JOINED(a, b) a##_##b
#define FLYWEIGHT_JOIN(a, b) FLYWEIGHT_JOINED(a, b)

#define FLYWEIGHT_TABLE(Family, LIST) \
    namespace flyweight {             \
    struct Family {                   \
        LIST(FLYWEIGHT_MEMBER)        \
    };                                \
    }

#define FLYWEIGHT_KERNELS(Family, LIST)                                                      \
    namespace flyweight {                                                                    \
    extern const Family FLYWEIGHT_JOIN(Family, FLYWEIGHT_ISA) = {LIST(FLYWEIGHT_ENTRY)};     \
    }
