// flyweight.kernels._native: each kernel under its name, running the active set with the GIL released.
#include "binding.hpp"

namespace flyweight {

void bind_attention(nb::module_&);
void bind_blocks(nb::module_&);
void bind_coding(nb::module_&);
void bind_differences(nb::module_&);
void bind_entropy(nb::module_&);
void bind_feedback(nb::module_&);
void bind_grams(nb::module_&);
void bind_grids(nb::module_&);
void bind_palettes(nb::module_&);
void bind_products(nb::module_&);
void bind_streams(nb::module_&);
void bind_textures(nb::module_&);
void bind_weaving(nb::module_&);

}  // namespace flyweight

NB_MODULE(_native, module) {
    using namespace flyweight;
    nb::set_leak_warnings(false);  // what an exiting interpreter still holds is for its system to free, not for people to read
    define(module, "available", +[] {
        nb::list names;
        for (const KernelSet& set : runnable()) names.append(set.name);
        return nb::tuple(names);
    });
    define(module, "active", +[] { return active_set().name; });
    define(module, "use", +[](const char* name) { require(use(name), "no such kernel set on this processor"); }, "name");
    for (const auto bind : {bind_attention, bind_blocks, bind_coding, bind_differences, bind_entropy, bind_feedback, bind_grams, bind_grids, bind_palettes, bind_products, bind_streams, bind_textures, bind_weaving})
        bind(module);
}
