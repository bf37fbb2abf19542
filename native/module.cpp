// flyweight.kernels._native: each kernel under its name, running the active set with the GIL released.
//
// flyweight.kernels has checked the arrays; the types below and `require` hold even without it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "dispatch.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace flyweight {
void bind_grids(nb::module_& module);
void bind_matvec(nb::module_& module);
void bind_attention(nb::module_& module);
void bind_codecs(nb::module_& module);
void bind_astc(nb::module_& module);
}

namespace {

template <typename T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes = Matrix<const uint8_t>;
using Floats = Matrix<const float>;
using BytesOut = Matrix<uint8_t>;
using FloatsOut = Matrix<float>;
using DoublesOut = Matrix<double>;

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

template <auto Kernel, size_t Elements, size_t BlockBytes, typename In>
void encode(Matrix<const In> values, BytesOut blocks) {
    require_rows(values.shape(0), blocks);
    require(values.shape(1) == Elements && blocks.shape(1) == BlockBytes, "a row is not one block");
    const In* from = values.data();
    uint8_t* to = blocks.data();
    const size_t count = values.shape(0);
    nb::gil_scoped_release release;
    (flyweight::active().*Kernel)(from, count, to);
}

template <auto Kernel, size_t Elements, size_t BlockBytes>
void search(Floats values, Floats weights, BytesOut blocks) {
    require_rows(values.shape(0), blocks);
    require(values.shape(1) == Elements && blocks.shape(1) == BlockBytes, "a row is not one block");
    require(weights.shape(0) >= 1 && weights.shape(1) == Elements, "the weights are not rows of one block");
    const float *from = values.data(), *by = weights.data();
    uint8_t* to = blocks.data();
    const size_t count = values.shape(0), rows = weights.shape(0);
    nb::gil_scoped_release release;
    (flyweight::active().*Kernel)(from, count, by, rows, to);
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

template <typename In>
void require_encodes(const Matrix<const In>& values, int bits, size_t group, int stored, const BytesOut& packed, const FloatsOut& scale) {
    require_rows(values.shape(0), packed, scale);
    require(bits >= 1 && bits <= 8 && fits(values.shape(1), bits, packed.shape(1)), "the codes do not fit the bytes");
    require(scale.shape(1) == groups_of(values.shape(1), group), "columns and groups disagree");
    require(stored >= 0 && stored <= 2, "no such stored type");
}

template <auto Kernel, typename In>
void encode_scale_bias(Matrix<const In> values, int bits, size_t group, int stored, BytesOut packed, FloatsOut scale, FloatsOut bias) {
    require_encodes(values, bits, group, stored, packed, scale);
    require_encodes(values, bits, group, stored, packed, bias);
    const In* from = values.data();
    uint8_t* to = packed.data();
    float *s = scale.data(), *b = bias.data();
    const size_t rows = values.shape(0), columns = values.shape(1), nbytes = packed.shape(1);
    nb::gil_scoped_release release;
    (flyweight::active().*Kernel)(from, rows, columns, bits, group, stored, to, nbytes, s, b);
}

template <auto Kernel, typename In>
void encode_symmetric(Matrix<const In> values, int bits, size_t group, int stored, BytesOut packed, FloatsOut scale) {
    require_encodes(values, bits, group, stored, packed, scale);
    const In* from = values.data();
    uint8_t* to = packed.data();
    float* s = scale.data();
    const size_t rows = values.shape(0), columns = values.shape(1), nbytes = packed.shape(1);
    nb::gil_scoped_release release;
    (flyweight::active().*Kernel)(from, rows, columns, bits, group, stored, to, nbytes, s);
}

bool is_table(size_t entries) { return entries >= 2 && entries <= 256 && !(entries & (entries - 1)); }

// Whether elements start .. start + count − 1 have a table each, without overflow.
bool have_tables(size_t count, size_t run, size_t start, size_t tables) {
    return run >= 1 && start + count >= start && (start + count) / run + ((start + count) % run != 0) <= tables;
}

void palette_decode(Bytes codes, Floats tables, size_t vector, size_t run, size_t start, FloatsOut out) {
    const size_t count = codes.shape(1), width = tables.shape(1);
    require(codes.shape(0) == 1 && out.shape(0) == 1, "the codes are one row");
    require(vector >= 1 && width % vector == 0 && is_table(width / vector), "a table has 2 to 256 entries, a power of two");
    require(out.shape(1) / vector == count && out.shape(1) % vector == 0, "codes and values disagree");
    require(have_tables(count, run, start, tables.shape(0)), "elements without a table");
    const uint8_t* from = codes.data();
    const float* table = tables.data();
    float* to = out.data();
    nb::gil_scoped_release release;
    flyweight::active().palette_decode(from, count, table, width / vector, vector, run, start, to);
}

void palette_nearest(Floats values, Floats midpoints, size_t run, size_t start, BytesOut out) {
    const size_t count = values.shape(1), steps = midpoints.shape(1);
    require(values.shape(0) == 1 && out.shape(0) == 1 && out.shape(1) == count, "the values are one row, a code each");
    require(steps < 256 && is_table(steps + 1), "a table has 2 to 256 entries, a power of two");
    require(have_tables(count, run, start, midpoints.shape(0)), "elements without a table");
    const float *from = values.data(), *middle = midpoints.data();
    uint8_t* to = out.data();
    nb::gil_scoped_release release;
    flyweight::active().palette_nearest(from, count, middle, steps, run, start, to);
}

void palette_nearest_vector(Floats points, Floats table, BytesOut out) {
    const size_t count = points.shape(0), vector = points.shape(1), entries = table.shape(0);
    require(vector >= 1 && vector <= 16 && table.shape(1) == vector, "points and entries have the same 1 to 16 coordinates");
    require(is_table(entries), "a table has 2 to 256 entries, a power of two");
    require(out.shape(0) == count && out.shape(1) == 1, "a point has one code");
    const float *from = points.data(), *entry = table.data();
    uint8_t* to = out.data();
    nb::gil_scoped_release release;
    flyweight::active().palette_nearest_vector(from, count, vector, entry, entries, to);
}

void palette_histogram(Floats values, Floats weights, DoublesOut out) {
    const size_t count = values.shape(1), weighted = weights.shape(1);
    require(values.shape(0) == 1 && weights.shape(0) == 1 && (weighted == 0 || weighted == count), "a value has one weight");
    require(out.shape(0) == size_t(1) << 19 && out.shape(1) == 2, "there are 2^19 bins of two sums");
    const float *from = values.data(), *weight = weighted ? weights.data() : nullptr;
    double* to = out.data();
    nb::gil_scoped_release release;
    flyweight::active().palette_histogram(from, weight, count, to);
}

// Groups of 64 values and runs of 4096, as kernels/reference_words.py lays them out.
template <typename Planes, typename Low, typename Runs>
void require_runs(size_t count, size_t planes, size_t low, const Planes& p, const Low& l, const Runs& r) {
    const size_t groups = count / 64 + (count % 64 != 0), runs = count / 4096 + (count % 4096 != 0);
    require(p.shape(0) == groups && l.shape(0) == groups && p.shape(1) == planes && l.shape(1) == 64 * low, "groups disagree");
    require(r.shape(0) == 1 && r.shape(1) == runs, "runs disagree");
}

template <auto Kernel, typename Word>
void lossless_count(Matrix<const Word> words, Matrix<uint64_t> counts) {
    require_rows(1, words, counts);
    require(counts.shape(1) == 256, "there are 256 exponents");
    const Word* from = words.data();
    uint64_t* to = counts.data();
    const size_t count = words.shape(1);
    nb::gil_scoped_release release;
    (flyweight::active().*Kernel)(from, count, to);
}

template <auto Kernel, typename Word, size_t PlaneCount, size_t LowBytes>
void lossless_encode(Matrix<const Word> words, int base, Matrix<uint64_t> planes, BytesOut low, BytesOut escapes,
                     Matrix<uint32_t> counts) {
    require_rows(1, words, escapes);
    require(base >= 0 && base <= 249, "seven exponents begin at the base");
    require_runs(words.shape(1), PlaneCount, LowBytes, planes, low, counts);
    const Word* from = words.data();
    const size_t count = words.shape(1), escape_count = escapes.shape(1);
    uint64_t* p = planes.data();
    uint8_t *l = low.data(), *e = escapes.data();
    uint32_t* c = counts.data();
    nb::gil_scoped_release release;
    (flyweight::active().*Kernel)(from, count, base, p, l, e, escape_count, c);
}

template <auto Kernel, typename Word, size_t PlaneCount, size_t LowBytes>
void lossless_decode(Matrix<const uint64_t> planes, Bytes low, Matrix<const uint32_t> starts, Bytes escapes, int base,
                     Matrix<uint32_t> counts, Matrix<Word> out) {
    require_rows(1, out, escapes);
    require(base >= 0 && base <= 249, "seven exponents begin at the base");
    require_runs(out.shape(1), PlaneCount, LowBytes, planes, low, starts);
    require_runs(out.shape(1), PlaneCount, LowBytes, planes, low, counts);
    const uint64_t* p = planes.data();
    const uint8_t *l = low.data(), *e = escapes.data();
    const uint32_t* s = starts.data();
    uint32_t* c = counts.data();
    Word* to = out.data();
    const size_t count = out.shape(1), escape_count = escapes.shape(1);
    nb::gil_scoped_release release;
    (flyweight::active().*Kernel)(p, l, s, e, escape_count, base, c, to, count);
}

template <auto Kernel, typename Word>
void expand(Bytes mask, Matrix<const Word> values, Matrix<Word> out) {
    require_rows(mask.shape(0), out);
    require_rows(1, values);
    require(fits(out.shape(1), 1, mask.shape(1)), "the mask is shorter than a row");
    const uint8_t* bits = mask.data();
    const Word* from = values.data();
    Word* to = out.data();
    const size_t rows = out.shape(0), nbytes = mask.shape(1), count = values.shape(1), columns = out.shape(1);
    nb::gil_scoped_release release;
    (flyweight::active().*Kernel)(bits, rows, nbytes, from, count, to, columns);
}

void table_decode(Bytes codes, Floats table, Floats scale, size_t group, FloatsOut out) {
    const size_t rows = codes.shape(0), columns = codes.shape(1);
    require(group >= 1, "a group has at least one column");
    const size_t groups = columns / group + (columns % group != 0);
    require_rows(rows, scale, out);
    require_rows(1, table);
    require(table.shape(1) == 256 && scale.shape(1) == groups && out.shape(1) == columns, "columns and groups disagree");
    const uint8_t* from = codes.data();
    const float *t = table.data(), *s = scale.data();
    float* to = out.data();
    nb::gil_scoped_release release;
    flyweight::active().table_decode(from, rows, columns, t, s, group, to);
}

nb::tuple available() {
    nb::list names;
    for (const flyweight::KernelSet& set : flyweight::runnable()) names.append(set.name());
    return nb::tuple(names);
}

}  // namespace

NB_MODULE(_native, module) {
    nb::set_leak_warnings(false);  // what an exiting interpreter still holds is for its system to free, not for people to read
    module.def("available", available);
    module.def("active", [] { return flyweight::active_set().name(); });
    module.def("use", [](const char* name) { require(flyweight::use(name), "no such kernel set on this processor"); }, "name"_a);

    // noconvert: an array of another type is refused, not copied (a copy of `out` would be lost). What decodes
    // does so under one name to f32 or to the bits of bf16, by the type of `out`; nearest encoders take both, by that of `values`.
#define X(type, elements, bytes)                                                                                  \
    module.def("decode_" #type, decode<&flyweight::Kernels::decode_##type, elements, bytes, float>,               \
               "blocks"_a.noconvert(), "out"_a.noconvert());                                                      \
    module.def("decode_" #type, decode<&flyweight::Kernels::decode_##type##_bf16, elements, bytes, uint16_t>,     \
               "blocks"_a.noconvert(), "out"_a.noconvert());
    FLYWEIGHT_DECODED(X)
#undef X
#define X(type, elements, bytes)                                                                    \
    module.def("encode_" #type, encode<&flyweight::Kernels::encode_##type, elements, bytes, float>, \
               "values"_a.noconvert(), "blocks"_a.noconvert());                                     \
    module.def("encode_" #type, encode<&flyweight::Kernels::encode_##type##_bf16, elements, bytes, uint16_t>, \
               "values"_a.noconvert(), "blocks"_a.noconvert());
    FLYWEIGHT_ENCODED(X)
#undef X
#define X(type, elements, bytes)                                                                    \
    module.def("encode_" #type, search<&flyweight::Kernels::encode_##type, elements, bytes>,        \
               "values"_a.noconvert(), "weights"_a.noconvert(), "blocks"_a.noconvert());
    FLYWEIGHT_SEARCHED(X)
#undef X
    module.def("unpack_bits", unpack_bits, "packed"_a.noconvert(), "bits"_a, "out"_a.noconvert());
    module.def("pack_bits", pack_bits, "codes"_a.noconvert(), "bits"_a, "out"_a.noconvert());
    module.def("palette_decode", palette_decode, "codes"_a.noconvert(), "tables"_a.noconvert(), "vector"_a, "run"_a, "start"_a,
               "out"_a.noconvert());
    module.def("palette_nearest", palette_nearest, "values"_a.noconvert(), "midpoints"_a.noconvert(), "run"_a, "start"_a,
               "out"_a.noconvert());
    module.def("palette_nearest_vector", palette_nearest_vector, "points"_a.noconvert(), "table"_a.noconvert(),
               "out"_a.noconvert());
    module.def("palette_histogram", palette_histogram, "values"_a.noconvert(), "weights"_a.noconvert(), "out"_a.noconvert());

#define X(type, Word, planes, low)                                                                                       \
    module.def("lossless_count_" #type, lossless_count<&flyweight::Kernels::lossless_count_##type, Word>,               \
               "words"_a.noconvert(), "counts"_a.noconvert());                                                           \
    module.def("lossless_encode_" #type, lossless_encode<&flyweight::Kernels::lossless_encode_##type, Word, planes, low>, \
               "words"_a.noconvert(), "base"_a, "planes"_a.noconvert(), "low"_a.noconvert(), "escapes"_a.noconvert(),    \
               "counts"_a.noconvert());                                                                                  \
    module.def("lossless_decode_" #type, lossless_decode<&flyweight::Kernels::lossless_decode_##type, Word, planes, low>, \
               "planes"_a.noconvert(), "low"_a.noconvert(), "starts"_a.noconvert(), "escapes"_a.noconvert(), "base"_a,   \
               "counts"_a.noconvert(), "out"_a.noconvert());
    X(bf16, uint16_t, 3, 1)
    X(f16, uint16_t, 6, 1)
    X(f32, uint32_t, 3, 3)
#undef X
#define X(bits)                                                                                                          \
    module.def("expand_" #bits, expand<&flyweight::Kernels::expand_##bits, uint##bits##_t>, "mask"_a.noconvert(),        \
               "values"_a.noconvert(), "out"_a.noconvert());
    X(8)
    X(16)
    X(32)
#undef X
    module.def("table_decode", table_decode, "codes"_a.noconvert(), "table"_a.noconvert(), "scale"_a.noconvert(), "group"_a,
               "out"_a.noconvert());
#define X(name, in, to) \
    module.def(#name, cast<&flyweight::Kernels::name, in, to>, "values"_a.noconvert(), "out"_a.noconvert());
    X(bf16_to_f32, uint16_t, float)
    X(f32_to_bf16, float, uint16_t)
    X(f16_to_f32, uint16_t, float)
    X(f32_to_f16, float, uint16_t)
#undef X
#define X(form, kernel, offset, to)                                                                            \
    module.def("decode_" #form, decode_grouped<&flyweight::Kernels::kernel, to>, "packed"_a.noconvert(), \
               "bits"_a, "scale"_a.noconvert(), #offset ""_a.noconvert(), "group"_a, "out"_a.noconvert());
    X(scale_bias, decode_scale_bias, bias, float)
    X(scale_bias, decode_scale_bias_bf16, bias, uint16_t)
    X(scale_zero, decode_scale_zero, zero, float)
    X(scale_zero, decode_scale_zero_bf16, zero, uint16_t)
    X(signed_bias, decode_signed_bias, bias, float)
    X(signed_bias, decode_signed_bias_bf16, bias, uint16_t)
#undef X
#define X(kernel, to)                                                                                     \
    module.def("decode_symmetric", decode_centred<&flyweight::Kernels::kernel, to>, "packed"_a.noconvert(), \
               "bits"_a, "scale"_a.noconvert(), "group"_a, "out"_a.noconvert());
    X(decode_symmetric, float)
    X(decode_symmetric_bf16, uint16_t)
#undef X
#define X(suffix, in)                                                                                                      \
    module.def("encode_scale_bias", encode_scale_bias<&flyweight::Kernels::encode_scale_bias##suffix, in>,                 \
               "values"_a.noconvert(), "bits"_a, "group"_a, "stored"_a, "packed"_a.noconvert(), "scale"_a.noconvert(),     \
               "bias"_a.noconvert());                                                                                      \
    module.def("encode_signed_bias", encode_scale_bias<&flyweight::Kernels::encode_signed_bias##suffix, in>,               \
               "values"_a.noconvert(), "bits"_a, "group"_a, "stored"_a, "packed"_a.noconvert(), "scale"_a.noconvert(),     \
               "bias"_a.noconvert());                                                                                      \
    module.def("encode_symmetric", encode_symmetric<&flyweight::Kernels::encode_symmetric##suffix, in>,                    \
               "values"_a.noconvert(), "bits"_a, "group"_a, "stored"_a, "packed"_a.noconvert(), "scale"_a.noconvert());
    X(, float)
    X(_bf16, uint16_t)
#undef X
    flyweight::bind_grids(module);
    flyweight::bind_matvec(module);
    flyweight::bind_attention(module);
    flyweight::bind_codecs(module);
    flyweight::bind_astc(module);
}
