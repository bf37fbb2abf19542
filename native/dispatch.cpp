#include "dispatch.hpp"

#include <atomic>
#include <cstring>

namespace flyweight {
namespace {

struct Runnable {
    const Kernels* sets[3] = {&baseline};
    size_t count = 1;

    Runnable() {
#ifdef FLYWEIGHT_X86
        // The flags kernels.cpp is compiled with; the compiler's test includes that the system saves the registers.
        __builtin_cpu_init();
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
            sets[count++] = &avx2;
            if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
                sets[count++] = &avx512;
        }
#endif
    }
};

const Runnable& all() {
    static const Runnable found;
    return found;
}

std::atomic<const Kernels*> running = &baseline;

}  // namespace

std::span<const Kernels* const> runnable() { return {all().sets, all().count}; }

const Kernels& active() { return *running.load(std::memory_order_acquire); }

bool use(const char* name) {
    for (const Kernels* set : runnable())
        if (std::strcmp(set->name, name) == 0) {
            running.store(set, std::memory_order_release);
            return true;
        }
    return false;
}

}  // namespace flyweight
