// Blocks to f32, or rounded to bf16 (some in ways of their own: decode_bf16.hpp). The layouts are in docs/formats/ggml-blocks.md.
#pragma once

#include "blocks/layout.hpp"
#include "kernel.hpp"
#include "simd/outputs.hpp"

namespace {

// 32 elements a block: byte i of the codes holds elements i (low) and i + 16 (high) --------------

template <typename Out>
inline void q4_0(const uint8_t* block, Out out) {
    const float d = load_f16(block);
    const U8x16 q = load(block + 2);
    store_scaled(out, I8x16(q & 15) - 8, d);
    store_scaled(out + 16, I8x16(q >> 4) - 8, d);
}

template <typename Out>
inline void q4_1(const uint8_t* block, Out out) {
    const float d = load_f16(block), m = load_f16(block + 2);
    const U8x16 q = load(block + 4);
    store_scaled_plus(out, q & 15, d, m);
    store_scaled_plus(out + 16, q >> 4, d, m);
}

template <typename Out>
inline void q5_0(const uint8_t* block, Out out) {
    const float d = load_f16(block);
    const U8x16 q = load(block + 6);  // less 16: a clear fifth bit extends the sign
    store_scaled(out, I8x16(q & 15 | where_clear(load_u16(block + 2), 0xf0)), d);
    store_scaled(out + 16, I8x16(q >> 4 | where_clear(load_u16(block + 4), 0xf0)), d);
}

template <typename Out>
inline void q5_1(const uint8_t* block, Out out) {
    const float d = load_f16(block), m = load_f16(block + 2);
    const U8x16 q = load(block + 8);
    store_scaled_plus(out, q & 15 | where_set(load_u16(block + 4), 16), d, m);
    store_scaled_plus(out + 16, q >> 4 | where_set(load_u16(block + 6), 16), d, m);
}

template <int Count, typename Out>
inline void scaled_bytes(float d, const uint8_t* q, Out out) {
    for (int i = 0; i < Count; i += 16) store_scaled(out + i, I8x16(load(q + i)), d);
}

template <typename Out>
inline void q8_0(const uint8_t* block, Out out) { scaled_bytes<32>(load_f16(block), block + 2, out); }

template <typename Out>
inline void q8_1(const uint8_t* block, Out out) { scaled_bytes<32>(load_f16(block), block + 4, out); }

template <typename Out>
inline void scaled_levels(float d, const int8_t (&levels)[16], const uint8_t* codes, Out out) {
    const U8x16 q = load(codes);
    store_scaled(out, look_up(levels, q & 15), d);
    store_scaled(out + 16, look_up(levels, q >> 4), d);
}

template <typename Out>
inline void mxfp4(const uint8_t* block, Out out) { scaled_levels(half_e8m0(block[0]), e2m1_levels, block + 1, out); }

template <typename Out>
inline void iq4_nl(const uint8_t* block, Out out) { scaled_levels(load_f16(block), iq4_levels, block + 2, out); }

// 256 elements a block: planes of bits across runs of 32 or 64 bytes, the low bits first ---------

template <typename Out>
inline void q2_k(const uint8_t* block, Out out) {
    const float d = load_f16(block + 80), dmin = load_f16(block + 82);
    const uint8_t* sub = block;  // a scale and a minimum for every 16 elements
    for (int run = 16; run < 80; run += 32) {
        U8x16 q[2] = {load(block + run), load(block + run + 16)};
        for (int plane = 0; plane < 4; ++plane)
            for (U8x16& codes : q) {
                store_scaled_plus(out, codes & 3, d * float(*sub & 15), -(dmin * float(*sub >> 4)));
                codes >>= 2, ++sub, out += 16;
            }
    }
}

template <typename Out>
inline void q3_k(const uint8_t* block, Out out) {
    const float d = load_f16(block + 108);
    U8x16 third[2] = {load(block), load(block + 16)};
    int group = 0;
    for (int run = 32; run < 96; run += 32) {
        U8x16 q[2] = {load(block + run), load(block + run + 16)};
        for (int plane = 0; plane < 4; ++plane)
            for (int half = 0; half < 2; ++half, ++group, out += 16) {
                const int low = block[96 + group % 8] >> (group / 8 * 4) & 15;
                const int high = block[104 + group % 4] >> (group / 4 * 2) & 3;
                store_scaled(out, I8x16((q[half] & 3) | (third[half] & 1) << 2) - 4, d * float((low | high << 4) - 32));
                q[half] >>= 2, third[half] >>= 1;
            }
    }
}

// Scale and minimum of group g in q4_k and q5_k, six bits each in twelve bytes.
struct ScaleAndMin {
    float scale, min;

    [[gnu::always_inline]] ScaleAndMin(const uint8_t* packed, int g)
        : scale(float(g < 4 ? packed[g] & 63 : (packed[4 + g] & 15) | packed[g - 4] >> 6 << 4)),
          min(float(g < 4 ? packed[4 + g] & 63 : packed[4 + g] >> 4 | packed[g] >> 6 << 4)) {}
};

template <typename Out>
inline void q4_k(const uint8_t* block, Out out) {
    const float d = load_f16(block), dmin = load_f16(block + 2);
    for (int run = 0; run < 4; ++run, out += 64) {
        const ScaleAndMin low(block + 4, 2 * run), high(block + 4, 2 * run + 1);
        for (int i = 0; i < 32; i += 16) {
            const U8x16 q = load(block + 16 + 32 * run + i);
            store_scaled_plus(out + i, q & 15, d * low.scale, -(dmin * low.min));
            store_scaled_plus(out + 32 + i, q >> 4, d * high.scale, -(dmin * high.min));
        }
    }
}

template <typename Out>
inline void q5_k(const uint8_t* block, Out out) {
    const float d = load_f16(block), dmin = load_f16(block + 2);
    U8x16 fifth[2] = {load(block + 16), load(block + 32)};
    for (int run = 0; run < 4; ++run, out += 64) {
        const ScaleAndMin low(block + 4, 2 * run), high(block + 4, 2 * run + 1);
        for (int half = 0; half < 2; ++half) {
            const U8x16 q = load(block + 48 + 32 * run + 16 * half);
            store_scaled_plus(out + 16 * half, q & 15 | (fifth[half] & 1) << 4, d * low.scale, -(dmin * low.min));
            store_scaled_plus(out + 32 + 16 * half, q >> 4 | (fifth[half] & 2) << 3, d * high.scale, -(dmin * high.min));
            fifth[half] >>= 2;
        }
    }
}

template <typename Out>
inline void q6_k(const uint8_t* block, Out out) {
    const float d = load_f16(block + 208);
    const uint8_t* sub = block + 192;  // a scale for every 16 elements
    for (int run = 0; run < 2; ++run) {
        U8x16 low[4], high[2];
        for (int i = 0; i < 4; ++i) low[i] = load(block + 64 * run + 16 * i);
        for (int i = 0; i < 2; ++i) high[i] = load(block + 128 + 32 * run + 16 * i);
        for (int group = 0; group < 8; ++group, ++sub, out += 16) {
            U8x16 &four = low[group % 4], &two = high[group % 2];
            store_scaled(out, I8x16(four & 15 | (two & 3) << 4) - 32, d * float(int(int8_t(*sub))));
            four >>= 4, two >>= 2;
        }
    }
}

template <typename Out>
inline void q8_k(const uint8_t* block, Out out) { scaled_bytes<256>(float_of(load_u32(block)), block + 4, out); }

template <typename Out>
inline void iq4_xs(const uint8_t* block, Out out) {
    const float d = load_f16(block);
    const uint32_t high = load_u16(block + 2);
    for (int g = 0; g < 8; ++g) {
        const int step = int((block[4 + g / 2] >> (g % 2 * 4) & 15) | (high >> 2 * g & 3) << 4) - 32;
        scaled_levels(d * float(step), iq4_levels, block + 8 + 16 * g, out + 32 * g);
    }
}

// Each type as something a template can take.
#define X(type, ...)                                                     \
    struct block_##type {                                                \
        static constexpr size_t elements = ggml::type::elements, bytes = ggml::type::bytes; \
        template <typename Out>                                          \
        static void decode(const uint8_t* at, Out out) { type(at, out); } \
    };
FLYWEIGHT_GGML_DECODE(X)
#undef X

// To f32 (T float) or bf16 (T uint16_t).
template <typename Type, typename T>
void decode(const uint8_t* __restrict blocks, size_t count, T* __restrict out) {
    into(out, count * Type::elements, true, [=](auto to) {
        for (size_t i = 0; i < count; ++i) Type::decode(blocks + i * Type::bytes, to + i * Type::elements);
    });
}

}  // namespace

#define FLYWEIGHT_BLOCK_DECODER(type, X)          \
    X(decode_##type, decode<block_##type, float>) \
    X(decode_##type##_bf16, decode<block_##type, uint16_t>)
#define KERNELS_OF_BlockDecoders(X) FLYWEIGHT_GGML_DECODE(FLYWEIGHT_BLOCK_DECODER, X)
FLYWEIGHT_TABLE(BlockDecoders)
