// flyweight.kernels._native: each kernel under its name, running the active set with the GIL released.
//
// flyweight.kernels has checked the arrays; the types below and `require` hold even without it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "dispatch.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace flyweight {
void bind_matvec(nb::module_& module);
}

namespace {

template <typename T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes = Matrix<const uint8_t>;
using Floats = Matrix<const float>;
using BytesOut = Matrix<uint8_t>;
using FloatsOut = Matrix<float>;

void require(bool holds, const char* what) {
    if (!holds) throw nb::value_error(what);
}

template <typename... Arrays>
void require_rows(size_t rows, const Arrays&... arrays) {
    require(((arrays.shape(0) == rows) && ...), "arrays differ in their number of rows");
}

template <auto Kernel, size_t Elements, size_t BlockBytes>
void decode(Bytes blocks, FloatsOut out) {
    require_rows(blocks.shape(0), out);
    require(blocks.shape(1) == BlockBytes && out.shape(1) == Elements, "a row is not one block");
    const uint8_t* from = blocks.data();
    float* to = out.data();
    const size_t count = blocks.shape(0);
    nb::gil_scoped_release release;
    (flyweight::active().*Kernel)(from, count, to);
}

template <auto Kernel, size_t Elements, size_t BlockBytes>
void encode(Floats values, BytesOut blocks) {
    require_rows(values.shape(0), blocks);
    require(values.shape(1) == Elements && blocks.shape(1) == BlockBytes, "a row is not one block");
    const float* from = values.data();
    uint8_t* to = blocks.data();
    const size_t count = values.shape(0);
    nb::gil_scoped_release release;
    (flyweight::active().*Kernel)(from, count, to);
}

// count · bits ≤ nbytes · 8, without overflow
bool fits(size_t count, int bits, size_t nbytes) {
    const size_t whole = count / 8, rest = count % 8;
    return whole <= nbytes / size_t(bits) && (rest * size_t(bits) + 7) / 8 <= nbytes - whole * size_t(bits);
}

void unpack_bits(Bytes packed, int bits, BytesOut out) {
    require_rows(packed.shape(0), out);
    require(bits >= 1 && bits <= 8 && fits(out.shape(1), bits, packed.shape(1)), "the codes do not fit the bytes");
    const uint8_t* from = packed.data();
    uint8_t* to = out.data();
    const size_t rows = packed.shape(0), nbytes = packed.shape(1), count = out.shape(1);
    nb::gil_scoped_release release;
    flyweight::active().unpack_bits(from, rows, nbytes, bits, to, count);
}

void pack_bits(Bytes codes, int bits, BytesOut out) {
    require_rows(codes.shape(0), out);
    require(bits >= 1 && bits <= 8 && fits(codes.shape(1), bits, out.shape(1)), "the codes do not fit the bytes");
    const uint8_t* from = codes.data();
    uint8_t* to = out.data();
    const size_t rows = codes.shape(0), count = codes.shape(1), nbytes = out.shape(1);
    nb::gil_scoped_release release;
    flyweight::active().pack_bits(from, rows, count, bits, to, nbytes);
}

void affine_decode(Bytes codes, Floats scale, Floats bias, size_t group, FloatsOut out) {
    const size_t rows = codes.shape(0), columns = codes.shape(1);
    require(group >= 1, "a group has at least one column");
    const size_t groups = columns / group + (columns % group != 0);
    require_rows(rows, scale, bias, out);
    require(scale.shape(1) == groups && bias.shape(1) == groups && out.shape(1) == columns, "columns and groups disagree");
    const uint8_t* from = codes.data();
    const float *s = scale.data(), *b = bias.data();
    float* to = out.data();
    nb::gil_scoped_release release;
    flyweight::active().affine_decode(from, rows, columns, s, b, group, to);
}

nb::tuple available() {
    nb::list names;
    for (const flyweight::Kernels* set : flyweight::runnable()) names.append(set->name);
    return nb::tuple(names);
}

}  // namespace

NB_MODULE(_native, module) {
    module.def("available", available);
    module.def("active", [] { return flyweight::active().name; });
    module.def("use", [](const char* name) { require(flyweight::use(name), "no such kernel set on this processor"); }, "name"_a);

    // noconvert: an array of another type is refused, not copied (a copy of `out` would be lost).
#define X(type, elements, bytes)                                                                    \
    module.def("decode_" #type, decode<&flyweight::Kernels::decode_##type, elements, bytes>,        \
               "blocks"_a.noconvert(), "out"_a.noconvert());
    FLYWEIGHT_DECODED(X)
#undef X
#define X(type, elements, bytes)                                                                    \
    module.def("encode_" #type, encode<&flyweight::Kernels::encode_##type, elements, bytes>,        \
               "values"_a.noconvert(), "blocks"_a.noconvert());
    FLYWEIGHT_ENCODED(X)
#undef X
    module.def("unpack_bits", unpack_bits, "packed"_a.noconvert(), "bits"_a, "out"_a.noconvert());
    module.def("pack_bits", pack_bits, "codes"_a.noconvert(), "bits"_a, "out"_a.noconvert());
    module.def("affine_decode", affine_decode, "codes"_a.noconvert(), "scale"_a.noconvert(), "bias"_a.noconvert(), "group"_a,
               "out"_a.noconvert());
    flyweight::bind_matvec(module);
}
