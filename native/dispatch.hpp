// Which kernels this processor can run, and which one runs.
#pragma once

#include <span>

#include "kernels.hpp"

namespace flyweight {

std::span<const Kernels* const> runnable();  // slowest first; the baseline always
const Kernels& active();
bool use(const char* name);  // false if not runnable

}  // namespace flyweight
