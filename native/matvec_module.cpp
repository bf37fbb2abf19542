// The bindings of the products: check the arrays, make the activations ready, share the rows between threads.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <vector>

#include "dispatch.hpp"
#include "parallel.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace flyweight {
namespace {

template <typename T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes = Matrix<const uint8_t>;
using Halves = Matrix<const uint16_t>;
using Floats = Matrix<const float>;
using FloatsOut = Matrix<float>;
using Table = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Scales = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;  // f32, f16, or bf16 as u16

constexpr size_t most_items = 16, most_threads = 256, piece_bytes = 64 << 10;

void require(bool holds, const char* what) {
    if (!holds) throw nb::value_error(what);
}

struct Plan {
    MatvecKernel MatvecKernels::*f32;
    MatvecKernel MatvecKernels::*int8;  // null: there is none
    bool quads, pairs;
    int centre;
};

#define X(form, type, pairs, centre) constexpr Plan form##_plan = {&MatvecKernels::form, &MatvecKernels::form##_int8, true, pairs, centre};
FLYWEIGHT_MATVEC_CODES(X)
#undef X
#define X(form, type, pairs) constexpr Plan form##_plan = {&MatvecKernels::form, nullptr, pairs, pairs, 0};
FLYWEIGHT_MATVEC_FLOATS(X)
#undef X

struct Task {
    MatvecKernel kernel;
    Weights weights;
    Activations activations;
    float* out;
};

void multiply(const Plan& plan, const Weights& w, size_t runs, Floats x, FloatsOut out, bool int8, size_t threads) {
    const size_t count = x.shape(0), columns = w.columns;
    require(count >= 1 && count <= most_items, "x has 1 to 16 rows");
    require(x.shape(1) == columns && out.shape(0) == count && out.shape(1) == w.rows, "x, out and the weights disagree in shape");
    require(threads >= 1 && threads <= most_threads, "threads must be 1 to 256");
    const float* from = x.data();
    float* to = out.data();

    nb::gil_scoped_release release;
    const MatvecKernels& kernels = active().matvec;
    thread_local std::vector<float> room;  // kept: it is a few pages, and products come by the thousand
    const size_t chunks = columns / 32, code_floats = columns / 4;
    const size_t each = runs + (int8 ? chunks + code_floats + code_floats : plan.quads ? columns : 0);
    if (room.size() < count * each) room.resize(count * each);
    float *sums = room.data(), *scale = sums + count * runs, *ordered = scale;
    int8_t* codes = reinterpret_cast<int8_t*>(scale + count * chunks);
    int16_t* offsets = reinterpret_cast<int16_t*>(codes + count * columns);
    for (size_t i = 0; i < count; ++i) {
        const float* row = from + i * columns;
        if (int8) {
            kernels.quantize(row, columns, plan.pairs, codes + i * columns, scale + i * chunks);
            if (plan.centre) kernels.offset(codes + i * columns, columns, plan.centre, offsets + i * columns / 2);
            kernels.sum_int8(codes + i * columns, scale + i * chunks, columns, runs, sums + i * runs);
        } else {
            if (plan.quads) kernels.reorder(row, columns, plan.pairs, ordered + i * columns);
            kernels.sum(row, columns, runs, sums + i * runs);
        }
    }
    const Task task = {kernels.*(int8 ? plan.int8 : plan.f32), w,
                       {count, columns, runs, plan.quads && !int8 ? ordered : from, codes, offsets, scale, sums}, to};
    const size_t piece = w.stride < piece_bytes ? piece_bytes / (w.stride + 1) + 1 : 1;
    over_rows(w.rows, piece, unsigned(threads), [](const void* what, size_t first, size_t last) {
        const Task& t = *static_cast<const Task*>(what);
        t.kernel(t.weights, t.activations, first, last, t.out);
    }, &task);
}

template <const Plan& Which, size_t Elements, size_t BlockBytes, bool Sums>
void blocks(Bytes blocks, Floats x, FloatsOut out, bool int8, size_t threads) {
    const size_t stride = blocks.shape(1), count = stride / BlockBytes;
    require(stride % BlockBytes == 0, "a row is not whole blocks");
    const size_t columns = count * Elements;
    multiply(Which, {blocks.data(), blocks.shape(0), columns, stride, count}, Sums ? columns / 32 : 0, x, out, int8, threads);
}

const Plan& by_scale(const Scales& scale, const Plan& f32, const Plan& f16, const Plan& bf16) {
    if (scale.dtype() == nb::dtype<float>()) return f32;
    if (scale.dtype() == nb::dlpack::dtype{uint8_t(nb::dlpack::dtype_code::Float), 16, 1}) return f16;
    if (scale.dtype() == nb::dtype<uint16_t>()) return bf16;
    throw nb::type_error("scales are f32, f16, or bf16 as u16");
}

Weights grouped(Bytes codes, size_t columns, const Scales& scale, const uint8_t* bias, size_t group) {
    const size_t rows = codes.shape(0);
    require(group >= 32 && group % 32 == 0 && columns % group == 0, "groups are multiples of 32 columns and fill a row");
    const size_t groups = columns / group;
    require(scale.shape(0) == rows && scale.shape(1) == groups, "codes and scales disagree in shape");
    return {codes.data(), rows, columns, codes.shape(1), columns / 32, static_cast<const uint8_t*>(scale.data()), bias, group, groups};
}

template <size_t PerByte>
void affine(const Plan& plan, Bytes codes, const Scales& scale, const Scales& bias, size_t group, Floats x, FloatsOut out, bool int8,
            size_t threads) {
    require(bias.dtype() == scale.dtype(), "scale and bias differ in type");
    require(bias.shape(0) == scale.shape(0) && bias.shape(1) == scale.shape(1), "scale and bias differ in shape");
    const Weights w = grouped(codes, codes.shape(1) * PerByte, scale, static_cast<const uint8_t*>(bias.data()), group);
    multiply(plan, w, w.groups, x, out, int8, threads);
}

void affine4(Bytes codes, Scales scale, Scales bias, size_t group, Floats x, FloatsOut out, bool int8, size_t threads) {
    affine<2>(by_scale(scale, affine4_f32_plan, affine4_f16_plan, affine4_bf16_plan), codes, scale, bias, group, x, out, int8, threads);
}

void affine8(Bytes codes, Scales scale, Scales bias, size_t group, Floats x, FloatsOut out, bool int8, size_t threads) {
    affine<1>(by_scale(scale, affine8_f32_plan, affine8_f16_plan, affine8_bf16_plan), codes, scale, bias, group, x, out, int8, threads);
}

void symmetric8(Bytes codes, Scales scale, size_t group, Floats x, FloatsOut out, bool int8, size_t threads) {
    const Plan& plan = by_scale(scale, symmetric8_f32_plan, symmetric8_f16_plan, symmetric8_bf16_plan);
    multiply(plan, grouped(codes, codes.shape(1), scale, nullptr, group), 0, x, out, int8, threads);
}

template <const Plan& Which>
void raw16(Halves weights, Floats x, FloatsOut out, size_t threads) {
    const size_t columns = weights.shape(1);
    require(columns % 32 == 0, "columns must be a multiple of 32");
    const auto* bytes = reinterpret_cast<const uint8_t*>(weights.data());
    multiply(Which, {bytes, weights.shape(0), columns, 2 * columns, columns / 32}, 0, x, out, false, threads);
}

void palette4(Bytes codes, Table table, Floats x, FloatsOut out, size_t threads) {
    const size_t columns = codes.shape(1) * 2;
    require(columns % 32 == 0, "columns must be a multiple of 32");
    require(table.shape(0) == 16, "a palette has sixteen values");
    Weights w = {codes.data(), codes.shape(0), columns, codes.shape(1), columns / 32};
    uint8_t planes[64];
    for (size_t i = 0; i < 64; ++i) planes[i] = reinterpret_cast<const uint8_t*>(table.data())[i % 16 * 4 + i / 16];
    w.planes = planes;
    multiply(palette4_plan, w, 0, x, out, false, threads);
}

}  // namespace

void bind_matvec(nb::module_& module) {
#define BLOCKS(form, elements, bytes, sums)                                                                                       \
    module.def("matvec_" #form, blocks<form##_plan, elements, bytes, sums>, "blocks"_a.noconvert(), "x"_a.noconvert(),            \
               "out"_a.noconvert(), "int8"_a, "threads"_a)
    BLOCKS(q4_0, 32, 18, false);
    BLOCKS(q8_0, 32, 34, false);
    BLOCKS(q4_k, 256, 144, true);
    BLOCKS(q6_k, 256, 210, false);
#undef BLOCKS
    module.def("matvec_affine4", affine4, "codes"_a.noconvert(), "scale"_a.noconvert(), "bias"_a.noconvert(), "group"_a,
               "x"_a.noconvert(), "out"_a.noconvert(), "int8"_a, "threads"_a);
    module.def("matvec_affine8", affine8, "codes"_a.noconvert(), "scale"_a.noconvert(), "bias"_a.noconvert(), "group"_a,
               "x"_a.noconvert(), "out"_a.noconvert(), "int8"_a, "threads"_a);
    module.def("matvec_symmetric8", symmetric8, "codes"_a.noconvert(), "scale"_a.noconvert(), "group"_a, "x"_a.noconvert(),
               "out"_a.noconvert(), "int8"_a, "threads"_a);
    module.def("matvec_bf16", raw16<bf16_plan>, "weights"_a.noconvert(), "x"_a.noconvert(), "out"_a.noconvert(), "threads"_a);
    module.def("matvec_f16", raw16<f16_plan>, "weights"_a.noconvert(), "x"_a.noconvert(), "out"_a.noconvert(), "threads"_a);
    module.def("matvec_palette4", palette4, "codes"_a.noconvert(), "table"_a.noconvert(), "x"_a.noconvert(), "out"_a.noconvert(),
               "threads"_a);
}

}  // namespace flyweight
