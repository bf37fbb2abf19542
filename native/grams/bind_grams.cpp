// The binding of Gram matrices.
#include "binding.hpp"
#include "grams/grams.hpp"

namespace flyweight {

void bind_grams(nb::module_& module) {
    define(module, "add_gram", +[](Floats x, size_t first, FloatsOut out) {
        const size_t rows = out.shape(0), stop = out.shape(1);
        require(rows <= stop && first == stop - rows && stop <= x.shape(1), "the inputs have no such columns");
        run(&Grams::add_gram, x.data(), x.shape(0), x.shape(1), first, stop, out.data());
    }, "x", "first", "out");
}

}  // namespace flyweight
