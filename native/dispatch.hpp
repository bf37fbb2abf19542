// Which kernels this processor can run, and which ones run.
#pragma once

#include <span>

#include "kernels.hpp"
#include "matvec.hpp"

namespace flyweight {

// Products are compiled for more instruction sets than the other kernels, and name the set.
struct KernelSet {
    const Kernels* kernels;
    const MatvecKernels* products;
    const char* name() const { return products->name; }
};

std::span<const KernelSet> runnable();  // slowest first; the baseline always
const KernelSet& active_set();
inline const Kernels& active() { return *active_set().kernels; }
bool use(const char* name);  // false if not runnable

}  // namespace flyweight
