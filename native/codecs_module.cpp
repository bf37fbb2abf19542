// The bindings of the codecs' own kernels.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "codecs.hpp"
#include "dispatch.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace flyweight {
namespace {

template <typename T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

const CodecKernels& codecs() {
#ifdef FLYWEIGHT_AVX512
    if (&active() == &avx512) return codecs_avx512;
#endif
#ifdef FLYWEIGHT_X86
    if (&active() == &avx2) return codecs_avx2;
#endif
    return codecs_baseline;
}

void require(bool holds, const char* what) {
    if (!holds) throw nb::value_error(what);
}

template <typename Array>
void require_shape(const Array& array, size_t rows, size_t columns) {
    require(array.shape(0) == rows && array.shape(1) == columns, "arrays disagree");
}

size_t groups_of(size_t columns, size_t group) {
    require(group >= 1, "a group has at least one column");
    return columns / group + (columns % group != 0);
}

template <typename Mask>
void require_mask(const Mask& mask, size_t rows, size_t columns) {
    require(mask.shape(0) == rows && mask.shape(1) >= columns / 8 + (columns % 8 != 0), "a column has one bit");
}

template <auto Kernel, typename T>
void magnitudes(Matrix<const T> values, size_t group, Matrix<float> out) {
    const size_t rows = values.shape(0), columns = values.shape(1);
    require_shape(out, rows, groups_of(columns, group));
    const T* from = values.data();
    float* to = out.data();
    nb::gil_scoped_release release;
    (codecs().*Kernel)(from, rows, columns, group, to);
}

template <auto Kernel, typename T>
void fp8_codes(Matrix<const T> values, Matrix<const float> scale, size_t group, bool divide, bool wide, Matrix<uint8_t> out) {
    const size_t rows = values.shape(0), columns = values.shape(1);
    require_shape(scale, rows, groups_of(columns, group));
    require_shape(out, rows, columns);
    const T* from = values.data();
    const float* by = scale.data();
    uint8_t* to = out.data();
    nb::gil_scoped_release release;
    (codecs().*Kernel)(from, rows, columns, by, group, divide, wide, to);
}

template <auto Kernel, typename T>
void sign_encode(Matrix<const T> values, Matrix<uint8_t> packed, Matrix<double> sums) {
    const size_t rows = values.shape(0), columns = values.shape(1), nbytes = packed.shape(1);
    require_mask(packed, rows, columns);
    require_shape(sums, rows, 1);
    const T* from = values.data();
    uint8_t* bits = packed.data();
    double* to = sums.data();
    nb::gil_scoped_release release;
    (codecs().*Kernel)(from, rows, columns, bits, nbytes, to);
}

template <auto Kernel, typename Word>
void mark(Matrix<const Word> words, Word keep, Matrix<uint8_t> mask) {
    const size_t rows = words.shape(0), columns = words.shape(1), nbytes = mask.shape(1);
    require_mask(mask, rows, columns);
    const Word* from = words.data();
    uint8_t* to = mask.data();
    nb::gil_scoped_release release;
    (codecs().*Kernel)(from, rows, columns, keep, to, nbytes);
}

template <auto Kernel, typename Word>
void gather(Matrix<const uint8_t> mask, Matrix<const Word> words, Matrix<Word> out) {
    const size_t rows = words.shape(0), columns = words.shape(1), nbytes = mask.shape(1), count = out.shape(1);
    require_mask(mask, rows, columns);
    require_shape(out, 1, count);
    const uint8_t* bits = mask.data();
    const Word* from = words.data();
    Word* to = out.data();
    nb::gil_scoped_release release;
    (codecs().*Kernel)(bits, rows, nbytes, from, columns, to, count);
}

template <auto Kernel, typename Index>
void places(Matrix<const uint8_t> mask, size_t columns, Matrix<Index> out) {
    const size_t rows = mask.shape(0), nbytes = mask.shape(1), count = out.shape(1);
    require_mask(mask, rows, columns);
    require_shape(out, 1, count);
    const uint8_t* bits = mask.data();
    Index* to = out.data();
    nb::gil_scoped_release release;
    (codecs().*Kernel)(bits, rows, nbytes, columns, to, count);
}

void add_product(Matrix<const float> left, Matrix<const float> right, Matrix<float> out) {
    const size_t rows = left.shape(0), rank = left.shape(1), columns = right.shape(1);
    require_shape(right, rank, columns);
    require_shape(out, rows, columns);
    const float *l = left.data(), *r = right.data();
    float* to = out.data();
    nb::gil_scoped_release release;
    codecs().add_product(l, rows, rank, r, columns, to);
}

void palette_cuts(Matrix<const double> mass, Matrix<const double> moment, Matrix<double> best, Matrix<int32_t> out) {
    const size_t width = mass.shape(1), clusters = out.shape(0);
    require_shape(mass, 1, width);
    require_shape(moment, 1, width);
    require_shape(best, 2, width);
    require_shape(out, clusters, width);
    require(clusters >= 1 && width > clusters && width <= size_t(1) << 31, "there are more points than clusters, below 2^31");
    const double *w = mass.data(), *s = moment.data();
    double* room = best.data();
    int32_t* to = out.data();
    nb::gil_scoped_release release;
    codecs().palette_cuts(w, s, width - 1, room, to, clusters);
}

void palette_centres(Matrix<const float> values, Matrix<const float> weights, Matrix<uint64_t> order, Matrix<double> room,
                     Matrix<int32_t> cuts, Matrix<double> out) {
    const size_t tables = values.shape(0), count = values.shape(1), clusters = out.shape(1);
    const bool weighted = weights.shape(0) != 0;
    require_shape(weights, weighted ? tables : 0, count);
    require_shape(order, 2, count);
    require_shape(room, 6, count + 1);
    require_shape(cuts, clusters, count + 1);
    require_shape(out, tables, clusters);
    require(clusters >= 1 && count < size_t(1) << 31, "there are clusters, and points below 2^31");
    const float *from = values.data(), *by = weighted ? weights.data() : nullptr;
    uint64_t* o = order.data();
    double *r = room.data(), *to = out.data();
    int32_t* c = cuts.data();
    nb::gil_scoped_release release;
    codecs().palette_centres(from, by, tables, count, o, r, c, clusters, to);
}

}  // namespace

void bind_codecs(nb::module_& module) {
#define X(suffix, T)                                                                                                      \
    module.def("magnitudes", magnitudes<&CodecKernels::magnitudes##suffix, T>, "values"_a.noconvert(), "group"_a,         \
               "out"_a.noconvert());                                                                                      \
    module.def("fp8_codes", fp8_codes<&CodecKernels::fp8_codes##suffix, T>, "values"_a.noconvert(), "scale"_a.noconvert(), \
               "group"_a, "divide"_a, "wide"_a, "out"_a.noconvert());                                                     \
    module.def("sign_encode", sign_encode<&CodecKernels::sign_encode##suffix, T>, "values"_a.noconvert(),                 \
               "packed"_a.noconvert(), "sums"_a.noconvert());
    X(, float)
    X(_bf16, uint16_t)
#undef X
#define X(bits)                                                                                                           \
    module.def("mark_" #bits, mark<&CodecKernels::mark_##bits, uint##bits##_t>, "words"_a.noconvert(), "keep"_a,          \
               "mask"_a.noconvert());                                                                                     \
    module.def("gather_" #bits, gather<&CodecKernels::gather_##bits, uint##bits##_t>, "mask"_a.noconvert(),               \
               "words"_a.noconvert(), "out"_a.noconvert());
    X(8)
    X(16)
    X(32)
#undef X
    module.def("places", places<&CodecKernels::places_u32, uint32_t>, "mask"_a.noconvert(), "columns"_a, "out"_a.noconvert());
    module.def("places", places<&CodecKernels::places_i64, int64_t>, "mask"_a.noconvert(), "columns"_a, "out"_a.noconvert());
    module.def("add_product", add_product, "left"_a.noconvert(), "right"_a.noconvert(), "out"_a.noconvert());
    module.def("palette_cuts", palette_cuts, "mass"_a.noconvert(), "moment"_a.noconvert(), "best"_a.noconvert(),
               "out"_a.noconvert());
    module.def("palette_centres", palette_centres, "values"_a.noconvert(), "weights"_a.noconvert(), "order"_a.noconvert(),
               "room"_a.noconvert(), "cuts"_a.noconvert(), "out"_a.noconvert());
}

}  // namespace flyweight
