// The kernels for one instruction set. Compiled once per set, with that set's compiler flags and
// FLYWEIGHT_ISA as its name.
//
// Everything but the table has internal linkage, and no library function is used: a function
// shared between the copies could be merged by the linker into the copy with the wider
// instructions, and then run on a processor that lacks them.
#include "kernels.hpp"

#include "affine_encode.hpp"
#include "bits.hpp"
#include "casts.hpp"
#include "decode_bf16.hpp"
#include "encode.hpp"
#include "grids.hpp"
#include "palette.hpp"
#include "encode_k.hpp"
#include "words.hpp"
#include "attention_kernels.hpp"

namespace flyweight {

extern const Kernels FLYWEIGHT_ISA = {
#define X(type, elements, bytes) decode<decode_##type, float>, decode<decode_##type, uint16_t>,
    FLYWEIGHT_DECODED(X)
#undef X
#define X(type, elements, bytes)                                                   \
    encode<elements, bytes, float, to_##type, eight_##type<float>>,                \
    encode<elements, bytes, uint16_t, to_##type, eight_##type<uint16_t>>,
    FLYWEIGHT_ENCODED(X)
#undef X
#define X(type, elements, bytes) search<elements, bytes, to_##type>,
    FLYWEIGHT_SEARCHED(X)
#undef X
    unpack_bits,
    pack_bits,
    palette_decode,
    palette_nearest,
    palette_nearest_vector,
    palette_histogram,
    lossless_count<CutBf16>, lossless_encode<CutBf16>, lossless_decode<CutBf16>,
    lossless_count<CutF16>, lossless_encode<CutF16>, lossless_decode<CutF16>,
    lossless_count<CutF32>, lossless_encode<CutF32>, lossless_decode<CutF32>,
    expand<uint8_t>,
    expand<uint16_t>,
    expand<uint32_t>,
    table_decode,
    bf16_to_f32,
    f32_to_bf16,
    f16_to_f32,
    f32_to_f16,
    decode_scale_bias<float>, decode_scale_bias<uint16_t>,
    decode_scale_zero<float>, decode_scale_zero<uint16_t>,
    decode_signed_bias<float>, decode_signed_bias<uint16_t>,
    decode_symmetric<float>, decode_symmetric<uint16_t>,
    encode_scale_bias<float>, encode_scale_bias<uint16_t>,
    encode_signed_bias<float>, encode_signed_bias<uint16_t>,
    encode_symmetric<float>, encode_symmetric<uint16_t>,
    grid_codes,
    grid_loss,
    grid_sums,
    hqq_codes,
    hqq_round,
    attention_kernels,
};

}  // namespace flyweight
