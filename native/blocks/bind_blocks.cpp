// The bindings of the blocks of ggml.
#include "binding.hpp"
#include "blocks/decode.hpp"
#include "blocks/nearest.hpp"
#include "blocks/searched.hpp"

namespace flyweight {
namespace {

template <typename Type, auto Kernel, typename Out>
void decode_blocks(Bytes blocks, Matrix<Out> out) {
    require_shape(blocks, out.shape(0), Type::bytes, "a row is not one block");
    require_shape(out, blocks.shape(0), Type::elements, "a row is not one block");
    run(Kernel, blocks.data(), blocks.shape(0), out.data());
}

template <typename Type, auto Kernel, typename In>
void encode_blocks(Matrix<const In> values, BytesOut blocks) {
    require_shape(values, blocks.shape(0), Type::elements, "a row is not one block");
    require_shape(blocks, values.shape(0), Type::bytes, "a row is not one block");
    run(Kernel, values.data(), values.shape(0), blocks.data());
}

template <typename Type, auto Kernel>
void search_blocks(Floats values, Floats weights, BytesOut blocks) {
    require_shape(values, blocks.shape(0), Type::elements, "a row is not one block");
    require_shape(blocks, values.shape(0), Type::bytes, "a row is not one block");
    require(weights.shape(0) >= 1 && weights.shape(1) == Type::elements, "the weights are not rows of one block");
    run(Kernel, values.data(), values.shape(0), weights.data(), weights.shape(0), blocks.data());
}

}  // namespace

void bind_blocks(nb::module_& module) {
#define X(type, ...)                                                                                                            \
    define(module, "decode_" #type, decode_blocks<ggml::type, &BlockDecoders::decode_##type, float>, "blocks", "out");          \
    define(module, "decode_" #type, decode_blocks<ggml::type, &BlockDecoders::decode_##type##_bf16, uint16_t>, "blocks", "out");
    FLYWEIGHT_GGML_DECODE(X)
#undef X
#define X(type, ...)                                                                                                               \
    define(module, "encode_" #type, encode_blocks<ggml::type, &NearestEncoders::encode_##type, float>, "values", "blocks");        \
    define(module, "encode_" #type, encode_blocks<ggml::type, &NearestEncoders::encode_##type##_bf16, uint16_t>, "values", "blocks");
    FLYWEIGHT_GGML_NEAREST(X)
#undef X
#define X(type, ...) \
    define(module, "encode_" #type, search_blocks<ggml::type, &SearchEncoders::encode_##type>, "values", "weights", "blocks");
    FLYWEIGHT_GGML_SEARCH(X)
#undef X
}

}  // namespace flyweight
