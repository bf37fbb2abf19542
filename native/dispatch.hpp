// Which instruction sets this processor can run, and which one runs.
//
// families.hpp, which the build writes, has a list X(family, set) for each instruction set: FLYWEIGHT_BASELINE(X), all families, and
// for every other set the families compiled for it. All else a set takes from the one before.
#pragma once

#include <span>

#include "families.hpp"

namespace flyweight {

#define X(Family, isa) struct Family;
FLYWEIGHT_BASELINE(X)
#undef X

struct KernelSet {
    const char* name;
#define X(Family, isa) const Family* of_##Family;
    FLYWEIGHT_BASELINE(X)
#undef X
};

std::span<const KernelSet> runnable();  // slowest first; the baseline always
const KernelSet& active_set();
bool use(const char* name);  // false if not runnable

// The kernels of a family that run.
template <class Family>
const Family& active();
#define X(Family, isa) \
    template <>        \
    inline const Family& active() { return *active_set().of_##Family; }
FLYWEIGHT_BASELINE(X)
#undef X

}  // namespace flyweight
