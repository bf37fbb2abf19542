// The bindings of the quantizers' inner loops.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "dispatch.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace flyweight {
namespace {

template <typename T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = Matrix<const float>;

void require(bool holds, const char* what) {
    if (!holds) throw nb::value_error(what);
}

void require_levels(int levels) { require(levels >= 1 && levels <= 255, "there are 1 to 255 levels"); }

template <typename Array>
void require_row(const Array& array, size_t groups) {
    require(array.shape(0) == 1 && array.shape(1) == groups, "a group has one of each");
}

const float* weights_of(const Floats& values, const Floats& by) {
    require(by.shape(1) == values.shape(1) && (by.shape(0) == 0 || by.shape(0) == values.shape(0)), "an element has one weight");
    return by.shape(0) ? by.data() : nullptr;
}

void grid_codes(Floats values, Floats scale, Floats offset, size_t group, bool biased, int levels, Matrix<uint8_t> out) {
    const size_t rows = values.shape(0), columns = values.shape(1);
    require(group >= 1, "a group has at least one column");
    const size_t groups = columns / group + (columns % group != 0);
    require_levels(levels);
    require(scale.shape(0) == rows && offset.shape(0) == rows && scale.shape(1) == groups && offset.shape(1) == groups,
            "columns and groups disagree");
    require(out.shape(0) == rows && out.shape(1) == columns, "a value has one code");
    const float *from = values.data(), *s = scale.data(), *o = offset.data();
    uint8_t* to = out.data();
    nb::gil_scoped_release release;
    active().grid_codes(from, rows, columns, s, o, group, biased, levels, to);
}

void grid_loss(Floats values, Floats by, Floats scale, Floats offset, bool biased, int levels, Matrix<double> loss) {
    const size_t size = values.shape(0), groups = values.shape(1);
    const float *from = values.data(), *weights = weights_of(values, by), *s = scale.data(), *o = offset.data();
    require_levels(levels);
    require_row(scale, groups);
    require_row(offset, groups);
    require_row(loss, groups);
    double* to = loss.data();
    nb::gil_scoped_release release;
    active().grid_loss(from, weights, size, groups, s, o, biased, levels, to);
}

void grid_sums(Floats values, Floats by, Floats scale, Floats offset, bool biased, int levels, int centre, Matrix<double> sums) {
    const size_t size = values.shape(0), groups = values.shape(1);
    const float *from = values.data(), *weights = weights_of(values, by), *s = scale.data(), *o = offset.data();
    require_levels(levels);
    require_row(scale, groups);
    require_row(offset, groups);
    require(sums.shape(0) == 5 && sums.shape(1) == groups, "a group has five sums");
    double* to = sums.data();
    nb::gil_scoped_release release;
    active().grid_sums(from, weights, size, groups, s, o, biased, levels, centre, to);
}

void hqq_codes(Floats values, Floats t, Floats z, int levels, Matrix<uint8_t> out) {
    const size_t size = values.shape(0), groups = values.shape(1);
    require_levels(levels);
    require_row(t, groups);
    require_row(z, groups);
    require(out.shape(0) == size && out.shape(1) == groups, "a value has one code");
    const float *from = values.data(), *ts = t.data(), *zs = z.data();
    uint8_t* to = out.data();
    nb::gil_scoped_release release;
    active().hqq_codes(from, size, groups, ts, zs, levels, to);
}

void hqq_round(Floats values, Floats by, Floats t, Floats z, float beta, int levels, Matrix<float> error, Matrix<float> mean) {
    const size_t size = values.shape(0), groups = values.shape(1);
    const float *from = values.data(), *weights = weights_of(values, by), *ts = t.data(), *zs = z.data();
    require_levels(levels);
    require_row(t, groups);
    require_row(z, groups);
    require_row(error, groups);
    require_row(mean, groups);
    float *e = error.data(), *m = mean.data();
    nb::gil_scoped_release release;
    active().hqq_round(from, weights, size, groups, ts, zs, beta, levels, e, m);
}

}  // namespace

void bind_grids(nb::module_& module) {
    module.def("grid_codes", grid_codes, "values"_a.noconvert(), "scale"_a.noconvert(), "offset"_a.noconvert(), "group"_a,
               "biased"_a, "levels"_a, "out"_a.noconvert());
    module.def("grid_loss", grid_loss, "values"_a.noconvert(), "by"_a.noconvert(), "scale"_a.noconvert(), "offset"_a.noconvert(),
               "biased"_a, "levels"_a, "loss"_a.noconvert());
    module.def("grid_sums", grid_sums, "values"_a.noconvert(), "by"_a.noconvert(), "scale"_a.noconvert(), "offset"_a.noconvert(),
               "biased"_a, "levels"_a, "centre"_a, "sums"_a.noconvert());
    module.def("hqq_codes", hqq_codes, "values"_a.noconvert(), "t"_a.noconvert(), "z"_a.noconvert(), "levels"_a,
               "out"_a.noconvert());
    module.def("hqq_round", hqq_round, "values"_a.noconvert(), "by"_a.noconvert(), "t"_a.noconvert(), "z"_a.noconvert(), "beta"_a,
               "levels"_a, "error"_a.noconvert(), "mean"_a.noconvert());
}

}  // namespace flyweight
