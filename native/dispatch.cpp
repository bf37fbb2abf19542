#include "dispatch.hpp"

#include <atomic>
#include <cstring>

namespace flyweight {

#define DECLARED(Family, isa) extern const Family Family##_##isa;
#define TAKEN(Family, isa) set.of_##Family = &Family##_##isa;
FLYWEIGHT_BASELINE(DECLARED)
#ifdef FLYWEIGHT_AVX2
FLYWEIGHT_AVX2(DECLARED)
#endif
#ifdef FLYWEIGHT_AVX512
FLYWEIGHT_AVX512(DECLARED)
FLYWEIGHT_AVX512VNNI(DECLARED)
FLYWEIGHT_AVX512BF16(DECLARED)
#endif

namespace {

struct Runnable {
    KernelSet sets[5];
    size_t count = 0;

    Runnable() {
        KernelSet set = {};
        const auto add = [&](const char* name) { set.name = name, sets[count++] = set; };
        FLYWEIGHT_BASELINE(TAKEN)
        add("baseline");
#ifdef FLYWEIGHT_AVX2
        // The flags the sets are compiled with, each on top of the one before; the compiler's test includes that the system
        // saves the registers.
        __builtin_cpu_init();
        if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))) return;
        FLYWEIGHT_AVX2(TAKEN)
        add("avx2");
#endif
#ifdef FLYWEIGHT_AVX512
        if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vl")))
            return;
        FLYWEIGHT_AVX512(TAKEN)
        add("avx512");
        if (!__builtin_cpu_supports("avx512vnni")) return;
        FLYWEIGHT_AVX512VNNI(TAKEN)
        add("avx512vnni");
        if (!__builtin_cpu_supports("avx512bf16")) return;
        FLYWEIGHT_AVX512BF16(TAKEN)
        add("avx512bf16");
#endif
    }
};

const Runnable& all() {
    static const Runnable sets;
    return sets;
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
        if (std::strcmp(set.name, name) == 0) {
            running.store(&set, std::memory_order_release);
            return true;
        }
    return false;
}

}  // namespace flyweight
