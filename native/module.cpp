// flyweight.kernels._native: each kernel under its name, running the active set with the GIL released.
//
// flyweight.kernels has checked the arrays; the types below and `require` hold even without it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "dispatch.hpp"

namespace nb = nanobind;
using namespace nb::literals;

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

template <auto Kernel, size_t Elements, size_t BlockBytes, typename Out>
void decode(Bytes blocks, Matrix<Out> out) {
    require_rows(blocks.shape(0), out);
    require(blocks.shape(1) == BlockBytes && out.shape(1) == Elements, "a row is not one block");
    const uint8_t* from = blocks.data();
    Out* to = out.data();
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

template <auto Kernel, typename In, typename Out>
void cast(Matrix<const In> values, Matrix<Out> out) {
    require_rows(values.shape(0), out);
    require(values.shape(1) == out.shape(1), "arrays differ in their number of columns");
    const In* from = values.data();
    Out* to = out.data();
    const size_t count = values.size();
    nb::gil_scoped_release release;
    (flyweight::active().*Kernel)(from, count, to);
}

size_t groups_of(size_t columns, size_t group) {
    require(group >= 1, "a group has at least one column");
    return columns / group + (columns % group != 0);
}

template <auto Kernel, typename Out>
void decode_grouped(Bytes packed, int bits, Floats scale, Floats offset, size_t group, Matrix<Out> out) {
    const size_t rows = packed.shape(0), nbytes = packed.shape(1), columns = out.shape(1), groups = groups_of(columns, group);
    require_rows(rows, scale, offset, out);
    require(bits >= 1 && bits <= 8 && fits(columns, bits, nbytes), "the codes do not fit the bytes");
    require(scale.shape(1) == groups && offset.shape(1) == groups, "columns and groups disagree");
    const uint8_t* from = packed.data();
    const float *s = scale.data(), *o = offset.data();
    Out* to = out.data();
    nb::gil_scoped_release release;
    (flyweight::active().*Kernel)(from, rows, nbytes, bits, s, o, group, to, columns);
}

template <auto Kernel, typename Out>
void decode_centred(Bytes packed, int bits, Floats scale, size_t group, Matrix<Out> out) {
    decode_grouped<Kernel, Out>(packed, bits, scale, scale, group, out);
}

void require_encodes(const Floats& values, int bits, size_t group, int stored, const BytesOut& packed, const FloatsOut& scale) {
    require_rows(values.shape(0), packed, scale);
    require(bits >= 1 && bits <= 8 && fits(values.shape(1), bits, packed.shape(1)), "the codes do not fit the bytes");
    require(scale.shape(1) == groups_of(values.shape(1), group), "columns and groups disagree");
    require(stored >= 0 && stored <= 2, "no such stored type");
}

void encode_scale_bias(Floats values, int bits, size_t group, int stored, BytesOut packed, FloatsOut scale, FloatsOut bias) {
    require_encodes(values, bits, group, stored, packed, scale);
    require_encodes(values, bits, group, stored, packed, bias);
    const float* from = values.data();
    uint8_t* to = packed.data();
    float *s = scale.data(), *b = bias.data();
    const size_t rows = values.shape(0), columns = values.shape(1), nbytes = packed.shape(1);
    nb::gil_scoped_release release;
    flyweight::active().encode_scale_bias(from, rows, columns, bits, group, stored, to, nbytes, s, b);
}

void encode_symmetric(Floats values, int bits, size_t group, int stored, BytesOut packed, FloatsOut scale) {
    require_encodes(values, bits, group, stored, packed, scale);
    const float* from = values.data();
    uint8_t* to = packed.data();
    float* s = scale.data();
    const size_t rows = values.shape(0), columns = values.shape(1), nbytes = packed.shape(1);
    nb::gil_scoped_release release;
    flyweight::active().encode_symmetric(from, rows, columns, bits, group, stored, to, nbytes, s);
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

    // noconvert: an array of another type is refused, not copied (a copy of `out` would be lost). What decodes
    // does so under one name to f32 or to the bits of bf16, by the type of `out`.
#define X(type, elements, bytes)                                                                                  \
    module.def("decode_" #type, decode<&flyweight::Kernels::decode_##type, elements, bytes, float>,               \
               "blocks"_a.noconvert(), "out"_a.noconvert());                                                      \
    module.def("decode_" #type, decode<&flyweight::Kernels::decode_##type##_bf16, elements, bytes, uint16_t>,     \
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
#define X(name, in, to) \
    module.def(#name, cast<&flyweight::Kernels::name, in, to>, "values"_a.noconvert(), "out"_a.noconvert());
    X(bf16_to_f32, uint16_t, float)
    X(f32_to_bf16, float, uint16_t)
    X(f16_to_f32, uint16_t, float)
    X(f32_to_f16, float, uint16_t)
#undef X
#define X(kernel, offset, to)                                                                                  \
    module.def("decode_scale_" #offset, decode_grouped<&flyweight::Kernels::kernel, to>, "packed"_a.noconvert(), \
               "bits"_a, "scale"_a.noconvert(), #offset ""_a.noconvert(), "group"_a, "out"_a.noconvert());
    X(decode_scale_bias, bias, float)
    X(decode_scale_bias_bf16, bias, uint16_t)
    X(decode_scale_zero, zero, float)
    X(decode_scale_zero_bf16, zero, uint16_t)
#undef X
#define X(kernel, to)                                                                                     \
    module.def("decode_symmetric", decode_centred<&flyweight::Kernels::kernel, to>, "packed"_a.noconvert(), \
               "bits"_a, "scale"_a.noconvert(), "group"_a, "out"_a.noconvert());
    X(decode_symmetric, float)
    X(decode_symmetric_bf16, uint16_t)
#undef X
    module.def("encode_scale_bias", encode_scale_bias, "values"_a.noconvert(), "bits"_a, "group"_a, "stored"_a,
               "packed"_a.noconvert(), "scale"_a.noconvert(), "bias"_a.noconvert());
    module.def("encode_symmetric", encode_symmetric, "values"_a.noconvert(), "bits"_a, "group"_a, "stored"_a,
               "packed"_a.noconvert(), "scale"_a.noconvert());
}
