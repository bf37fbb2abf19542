// The bindings of bit streams, casts and affine codes.
#include <algorithm>
#include <string_view>

#include "binding.hpp"
#include "streams/streams.hpp"

namespace flyweight {
namespace {

template <auto Kernel, typename In, typename Out>
void cast(Matrix<const In> values, Matrix<Out> out) {
    require_shape(out, values.shape(0), values.shape(1));
    run(Kernel, values.data(), values.size(), out.data());
}

template <class Codes, class Numbers>
void require_groups(const Codes& packed, size_t rows, size_t columns, int bits, size_t group, const Numbers& scale, const Numbers& offset) {
    require(packed.shape(0) == rows, "arrays differ in their number of rows");
    require_stream(columns, bits, packed.shape(1));
    require_shape(scale, rows, groups_of(columns, group), "columns and groups disagree");
    require_shape(offset, rows, groups_of(columns, group), "columns and groups disagree");
}

template <auto Kernel, typename Out>
void decode_grouped(Bytes packed, int bits, Floats scale, Floats offset, size_t group, Matrix<Out> out) {
    require_groups(packed, out.shape(0), out.shape(1), bits, group, scale, offset);
    run(Kernel, packed.data(), packed.shape(0), packed.shape(1), bits, scale.data(), offset.data(), group, out.data(), out.shape(1));
}

template <auto Kernel, typename Out>
void decode_symmetric(Bytes packed, int bits, Floats scale, size_t group, Matrix<Out> out) {
    decode_grouped<Kernel, Out>(packed, bits, scale, scale, group, out);
}

// A type that a scale may be rounded to.
int stored_type(std::string_view name) {
    constexpr const char* names[] = {"f32", "f16", "bf16"};  // as `Stored` has them
    const auto at = std::find(std::begin(names), std::end(names), name) - std::begin(names);
    require(at < 3, "scales are stored as f32, f16 or bf16");
    return int(at);
}

template <auto Kernel, typename In>
void encode_biased(Matrix<const In> values, int bits, size_t group, const char* stored, BytesOut packed, FloatsOut scale, FloatsOut bias) {
    require_groups(packed, values.shape(0), values.shape(1), bits, group, scale, bias);
    run(Kernel, values.data(), values.shape(0), values.shape(1), bits, group, stored_type(stored), packed.data(), packed.shape(1), scale.data(),
        bias.data());
}

template <auto Kernel, typename In>
void encode_afq(Matrix<const In> values, int bits, size_t group, BytesOut packed, FloatsOut scale, FloatsOut bias) {
    require_groups(packed, values.shape(0), values.shape(1), bits, group, scale, bias);
    run(Kernel, values.data(), values.shape(0), values.shape(1), bits, group, packed.data(), packed.shape(1), scale.data(), bias.data());
}

template <auto Kernel, typename In>
void encode_symmetric(Matrix<const In> values, int bits, size_t group, const char* stored, BytesOut packed, FloatsOut scale) {
    require_groups(packed, values.shape(0), values.shape(1), bits, group, scale, scale);
    run(Kernel, values.data(), values.shape(0), values.shape(1), bits, group, stored_type(stored), packed.data(), packed.shape(1), scale.data());
}

}  // namespace

void bind_streams(nb::module_& module) {
    define(module, "unpack_bits", +[](Bytes packed, int bits, BytesOut out) {
        require_shape(out, packed.shape(0), out.shape(1));
        require_stream(out.shape(1), bits, packed.shape(1));
        run(&Streams::unpack_bits, packed.data(), packed.shape(0), packed.shape(1), bits, out.data(), out.shape(1));
    }, "packed", "bits", "out");
    define(module, "pack_bits", +[](Bytes codes, int bits, BytesOut out) {
        require_shape(out, codes.shape(0), out.shape(1));
        require_stream(codes.shape(1), bits, out.shape(1));
        run(&Streams::pack_bits, codes.data(), codes.shape(0), codes.shape(1), bits, out.data(), out.shape(1));
    }, "codes", "bits", "out");
    define(module, "bf16_to_f32", cast<&Streams::bf16_to_f32, uint16_t, float>, "values", "out");
    define(module, "f32_to_bf16", cast<&Streams::f32_to_bf16, float, uint16_t>, "values", "out");
    define(module, "f16_to_f32", cast<&Streams::f16_to_f32, uint16_t, float>, "values", "out");
    define(module, "f32_to_f16", cast<&Streams::f32_to_f16, float, uint16_t>, "values", "out");
#define X(kernel, offset)                                                                                                     \
    define(module, #kernel, decode_grouped<&Streams::kernel, float>, "packed", "bits", "scale", offset, "group", "out");      \
    define(module, #kernel, decode_grouped<&Streams::kernel##_bf16, uint16_t>, "packed", "bits", "scale", offset, "group", "out");
    X(decode_scale_bias, "bias") X(decode_scale_zero, "zero") X(decode_signed_bias, "bias")
#undef X
#define X(kernel) define(module, #kernel, decode_grouped<&Streams::kernel, float>, "packed", "bits", "scale", "zero", "group", "out");
    X(decode_scale_zero_f16) X(decode_signed_zero) X(decode_signed_zero_f16)
#undef X
#define X(suffix, T)                                                                                                                \
    define(module, "decode_symmetric", decode_symmetric<&Streams::decode_symmetric##suffix, T>, "packed", "bits", "scale", "group", \
           "out");                                                                                                                  \
    define(module, "encode_scale_bias", encode_biased<&Streams::encode_scale_bias##suffix, T>, "values", "bits", "group", "stored", \
           "packed", "scale", "bias");                                                                                              \
    define(module, "encode_signed_bias", encode_biased<&Streams::encode_signed_bias##suffix, T>, "values", "bits", "group",         \
           "stored", "packed", "scale", "bias");                                                                                    \
    define(module, "encode_afq", encode_afq<&Streams::encode_afq##suffix, T>, "values", "bits", "group", "packed", "scale", "bias"); \
    define(module, "encode_symmetric", encode_symmetric<&Streams::encode_symmetric##suffix, T>, "values", "bits", "group",          \
           "stored", "packed", "scale");
    X(, float) X(_bf16, uint16_t)
#undef X
}

}  // namespace flyweight
