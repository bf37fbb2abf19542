// The binding of what codes trellis-coded weights.
#include "binding.hpp"
#include "parallel.hpp"
#include "weaving/weaving.hpp"

namespace flyweight {

void bind_weaving(nb::module_& module) {
    define(module, "weave", +[](Floats square, Floats linear, size_t strip, int bits, Floats levels, BytesOut codes, FloatsOut reached) {
        const size_t count = codes.shape(1);
        require_shape(codes, 1, count);
        require_shape(square, 1, count, "a value has one cost");
        require_shape(linear, 1, count, "a value has one cost");
        require_shape(reached, 1, count, "a value has one level");
        require_shape(levels, 1, ::states, "a window has one level");
        require(bits >= 2 && bits <= 4, "bits must be 2 to 4");
        require(strip >= 1 && strip <= 1 << 12, "a strip has 1 to 4096 values");
        return without_gil([&] {
            Workspace workspace(2 * ::states * sizeof(float) + strip * (::states >> bits) + 2 * 64);
            if (!workspace) return false;
            auto* costs = workspace.take<float>(2 * ::states);
            active<Weaving>().weave(square.data(), linear.data(), count, strip, bits, levels.data(), codes.data(), reached.data(), costs,
                                    workspace.take<uint8_t>(strip * (::states >> bits)));
            return true;
        });
    }, "square", "linear", "strip", "bits", "levels", "codes", "reached");
}

}  // namespace flyweight
