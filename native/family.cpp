// The table of one family for one instruction set: the build names the three.
#include FLYWEIGHT_HEADER

#define ENTRY(kernel, ...) .kernel = ::__VA_ARGS__,
#define JOINED(a, b) a##_##b
#define JOIN(a, b) JOINED(a, b)

namespace flyweight {

extern const FLYWEIGHT_FAMILY JOIN(FLYWEIGHT_FAMILY, FLYWEIGHT_ISA) = {JOIN(KERNELS_OF, FLYWEIGHT_FAMILY)(ENTRY)};

}  // namespace flyweight
