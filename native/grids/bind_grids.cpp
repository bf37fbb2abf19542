// The bindings of the quantizers' inner loops.
#include "binding.hpp"
#include "grids/grids.hpp"

namespace flyweight {
namespace {

void require_levels(int levels) { require(levels >= 1 && levels <= 255, "there are 1 to 255 levels"); }

// One row each, with a number for every group.
template <typename... Rows>
void require_rows(size_t groups, const Rows&... rows) {
    (require_shape(rows, 1, groups, "a group has one of each"), ...);
}

const float* weights_of(const Floats& values, const Floats& by) {
    const bool weighted = by.shape(0) != 0;
    require_shape(by, weighted ? values.shape(0) : 0, values.shape(1), "an element has one weight");
    return weighted ? by.data() : nullptr;
}

}  // namespace

void bind_grids(nb::module_& module) {
    define(module, "grid_codes", +[](Floats values, Floats scale, Floats offset, size_t group, bool biased, int levels, BytesOut out) {
        const size_t rows = values.shape(0), columns = values.shape(1), groups = groups_of(columns, group);
        require_levels(levels);
        require_shape(scale, rows, groups, "columns and groups disagree");
        require_shape(offset, rows, groups, "columns and groups disagree");
        require_shape(out, rows, columns, "a value has one code");
        run(&Grids::grid_codes, values.data(), rows, columns, scale.data(), offset.data(), group, biased, levels, out.data());
    }, "values", "scale", "offset", "group", "biased", "levels", "out");

    define(module, "grid_loss", +[](Floats values, Floats by, Floats scale, Floats offset, bool biased, int levels, DoublesOut loss) {
        const size_t size = values.shape(0), groups = values.shape(1);
        require_levels(levels);
        require_rows(groups, scale, offset, loss);
        run(&Grids::grid_loss, values.data(), weights_of(values, by), size, groups, scale.data(), offset.data(), biased, levels,
            loss.data());
    }, "values", "by", "scale", "offset", "biased", "levels", "loss");

    define(module, "grid_sums", +[](Floats values, Floats by, Floats scale, Floats offset, bool biased, int levels, int centre,
                                    DoublesOut sums) {
        const size_t size = values.shape(0), groups = values.shape(1);
        require_levels(levels);
        require_rows(groups, scale, offset);
        require_shape(sums, 5, groups, "a group has five sums");
        run(&Grids::grid_sums, values.data(), weights_of(values, by), size, groups, scale.data(), offset.data(), biased, levels, centre,
            sums.data());
    }, "values", "by", "scale", "offset", "biased", "levels", "centre", "sums");

    define(module, "hqq_codes", +[](Floats values, Floats t, Floats z, int levels, BytesOut out) {
        const size_t size = values.shape(0), groups = values.shape(1);
        require_levels(levels);
        require_rows(groups, t, z);
        require_shape(out, size, groups, "a value has one code");
        run(&Grids::hqq_codes, values.data(), size, groups, t.data(), z.data(), levels, out.data());
    }, "values", "t", "z", "levels", "out");

    define(module, "hqq_round", +[](Floats values, Floats by, Floats t, Floats z, float inverse, int levels, FloatsOut error,
                                    FloatsOut mean) {
        const size_t size = values.shape(0), groups = values.shape(1);
        require_levels(levels);
        require_rows(groups, t, z, error, mean);
        run(&Grids::hqq_round, values.data(), weights_of(values, by), size, groups, t.data(), z.data(), inverse, levels, error.data(),
            mean.data());
    }, "values", "by", "t", "z", "inverse", "levels", "error", "mean");
}

}  // namespace flyweight
