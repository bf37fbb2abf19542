#include "dispatch.hpp"

#include <atomic>
#include <cstring>

namespace flyweight {
namespace {

struct Runnable {
    KernelSet sets[5] = {{&baseline, &products_baseline}};
    size_t count = 1;

    Runnable() {
#ifdef FLYWEIGHT_X86
        // The flags the sets are compiled with, each on top of the one before; the compiler's test includes that the system
        // saves the registers.
        __builtin_cpu_init();
        if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))) return;
        sets[count++] = {&avx2, &products_avx2};
#ifdef FLYWEIGHT_AVX512
        if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vl")))
            return;
        sets[count++] = {&avx512, &products_avx512};
        if (!__builtin_cpu_supports("avx512vnni")) return;
        sets[count++] = {&avx512, &products_avx512vnni};
        if (!__builtin_cpu_supports("avx512bf16")) return;
        sets[count++] = {&avx512, &products_avx512bf16};
#endif
#endif
    }
};

const Runnable& all() {
    static const Runnable found;
    return found;
}

std::atomic<const KernelSet*> running = nullptr;

}  // namespace

std::span<const KernelSet> runnable() { return {all().sets, all().count}; }

const KernelSet& active_set() {
    const KernelSet* set = running.load(std::memory_order_acquire);
    return set ? *set : all().sets[0];
}

bool use(const char* name) {
    for (const KernelSet& set : runnable())
        if (std::strcmp(set.name(), name) == 0) {
            running.store(&set, std::memory_order_release);
            return true;
        }
    return false;
}

}  // namespace flyweight
