// f32 to blocks of the K types and iq4_xs: what the search found, in the layouts of docs/formats/ggml-blocks.md.
#pragma once

#include "blocks/search_one.hpp"
#include "blocks/search_range.hpp"

namespace {

// Bits From.. of `Count` codes, as planes: in each run of bytes, byte i holds elements i, i + Run … from its low bits up.
template <int Count, int Run, int Bits, int From>
inline void store_planes(const uint8_t* __restrict codes, uint8_t* __restrict at) {
    constexpr int planes = 8 / Bits;
    for (int run = 0; run < Count / (Run * planes); ++run)
        for (int i = 0; i < Run; ++i) {
            uint32_t byte = 0;
            for (int plane = 0; plane < planes; ++plane)
                byte |= uint32_t(codes[(run * planes + plane) * Run + i] >> From & ((1 << Bits) - 1)) << plane * Bits;
            at[run * Run + i] = uint8_t(byte);
        }
}

inline void store_u32(uint8_t* at, uint32_t value) {
    store_u16(at, value);
    store_u16(at + 2, value >> 16);
}

constexpr RangeTrial q2_k_trials[] = {{3.8, 0.375}, {3.6, 0.5}, {3.6, 0}, {3.2, 0}, {3.4, 0.5}};
constexpr double q2_k_ratios[] = {15, 14.5, 14, 13.5, 13, 12.5, 12};
constexpr double q3_k_trials[] = {2.6, 3.0, 3.4, 3.8, 4.2, 4.6}, q3_k_ratios[] = {32, 31, 29};
constexpr RangeTrial q4_k_trials[] = {{15.25, 0.125}, {15.25, -0.25}, {15.25, 0.375}, {15.25, 0}, {14.25, 0.125}};
constexpr RangeTrial q5_k_trials[] = {{31.25, 0.125}, {30.25, 0.125}, {31.25, 0.375}, {31.25, -0.125},
                                      {29.25, 0.125}, {30, -0.125},   {30, 0.125},    {31, 0}};
constexpr double q45_k_ratios[] = {63, 62, 61, 60, 59, 58, 57};
constexpr double q6_k_trials[] = {30.4, 30.8, 31.2, 31.6, 32.0, 32.4}, q6_k_ratios[] = {128, 127, 125};
constexpr double iq4_xs_trials[] = {103, 109, 115, 121, 127, 135}, iq4_xs_ratios[] = {32, 31, 29};

struct To_q2_k : RangeSearch<16, 3, 15, q2_k_trials, q2_k_ratios> {
    static constexpr int scale_at = 80;

    void store(int b, uint8_t* block) const {
        for (int g = 0; g < 16; ++g) block[g] = uint8_t(this->sc_of(b, g) | this->mn_of(b, g) << 4);
        store_planes<256, 32, 2, 0>(this->codes[b], block + 16);
        this->store_d(b, block + 80);
    }
};

struct To_q3_k : CentredSearch<16, Uniform<-4, 3>, -32, 31, q3_k_trials, q3_k_ratios> {
    static constexpr int scale_at = 108;

    void store(int b, uint8_t* block) const {
        store_planes<256, 32, 1, 2>(this->codes[b], block);
        store_planes<256, 32, 2, 0>(this->codes[b], block + 32);
        uint8_t steps[16];
        for (int g = 0; g < 16; ++g) steps[g] = uint8_t(this->step_of(b, g) + 32);
        store_planes<16, 8, 4, 0>(steps, block + 96);
        store_planes<16, 4, 2, 4>(steps, block + 104);
        this->store_d(b, block + 108);
    }
};

// d, dmin and the eight pairs of six bits of q4_k and q5_k.
template <typename Search>
inline void store_pairs(const Search& search, int b, uint8_t* block) {
    search.store_d(b, block);
    for (int g = 0; g < 4; ++g) {
        const int sc = search.sc_of(b, g + 4), mn = search.mn_of(b, g + 4);
        block[4 + g] = uint8_t(search.sc_of(b, g) | sc >> 4 << 6);
        block[8 + g] = uint8_t(search.mn_of(b, g) | mn >> 4 << 6);
        block[12 + g] = uint8_t((sc & 15) | (mn & 15) << 4);
    }
}

struct To_q4_k : RangeSearch<8, 15, 63, q4_k_trials, q45_k_ratios> {
    static constexpr int scale_at = 0;

    void store(int b, uint8_t* block) const {
        store_pairs(*this, b, block);
        store_planes<256, 32, 4, 0>(this->codes[b], block + 16);
    }
};

struct To_q5_k : RangeSearch<8, 31, 63, q5_k_trials, q45_k_ratios> {
    static constexpr int scale_at = 0;

    void store(int b, uint8_t* block) const {
        store_pairs(*this, b, block);
        store_planes<256, 32, 1, 4>(this->codes[b], block + 16);
        store_planes<256, 32, 4, 0>(this->codes[b], block + 48);
    }
};

struct To_q6_k : CentredSearch<16, Uniform<-32, 31>, -128, 127, q6_k_trials, q6_k_ratios> {
    static constexpr int scale_at = 208;

    void store(int b, uint8_t* block) const {
        store_planes<256, 64, 4, 0>(this->codes[b], block);
        store_planes<256, 32, 2, 4>(this->codes[b], block + 128);
        for (int g = 0; g < 16; ++g) block[192 + g] = uint8_t(this->step_of(b, g));
        this->store_d(b, block + 208);
    }
};

struct To_iq4_xs : CentredSearch<8, Iq4, -32, 31, iq4_xs_trials, iq4_xs_ratios> {
    static constexpr int scale_at = 0;

    void store(int b, uint8_t* block) const {
        this->store_d(b, block);
        uint8_t steps[8];
        for (int g = 0; g < 8; ++g) steps[g] = uint8_t(this->step_of(b, g) + 32);
        store_planes<8, 1, 2, 4>(steps, block + 2);
        store_planes<8, 1, 4, 0>(steps, block + 4);
        store_planes<256, 16, 4, 0>(this->codes[b], block + 8);
    }
};

constexpr double iq4_nl_trials[] = {97, 103, 109, 115, 121, 127, 133, 139}, q8_k_trials[] = {126.0, 126.5, 127.0, 127.5};

inline void to_iq4_nl(const float* values, const float* weights, uint8_t* block) {
    OneScale<32, Iq4, iq4_nl_trials> search;
    if (!search.run(values, weights) || search.overflows(search.scale)) return store_void<ggml::iq4_nl>(block);
    const float d = search.narrow(search.scale);
    uint8_t codes[32];
    search.codes(d, codes);
    store_f16(block, d * search.unit);
    store_planes<32, 16, 4, 0>(codes, block + 2);
}

inline void to_q8_k(const float* values, const float* weights, uint8_t* block) {
    OneScale<256, Uniform<-127, 127>, q8_k_trials> search;
    for (size_t i = 0; i < ggml::q8_k::bytes; ++i) block[i] = 0;
    if (!search.run(values, weights)) return store_u32(block, 0x7fc00000);
    uint8_t codes[256];
    search.codes(search.scale, codes);
    store_u32(block, bits_of(search.scale * search.unit));
    for (int run = 0; run < 16; ++run) {
        int sum = 0;
        for (int i = run * 16; i < run * 16 + 16; ++i) {
            block[4 + i] = uint8_t(codes[i] - 127);
            sum += codes[i] - 127;
        }
        store_u16(block + 260 + 2 * run, uint32_t(sum));
    }
}

// Block i is weighed by row i mod `rows` of the weights.
template <typename Type, void (*Block)(const float*, const float*, uint8_t*)>
void search(const float* values, size_t count, const float* weights, size_t rows, uint8_t* blocks) {
    constexpr size_t elements = Type::elements;
    for (size_t i = 0; i < count; ++i) Block(values + i * elements, weights + i % rows * elements, blocks + i * Type::bytes);
}

// The same for searches that take several blocks side by side; the last takes the place of those that are not there.
template <typename Type, typename Search>
void search_together(const float* values, size_t count, const float* weights, size_t rows, uint8_t* blocks) {
    for (size_t i = 0; i < count; i += together) {
        const float *x[together], *by[together];
        for (size_t b = 0; b < together; ++b) {
            const size_t at = i + b < count ? i + b : count - 1;
            x[b] = values + at * Type::elements, by[b] = weights + at % rows * Type::elements;
        }
        Search found;
        found.run(x, by);
        for (size_t b = 0; b < together && i + b < count; ++b) {
            uint8_t* block = blocks + (i + b) * Type::bytes;
            if (found.fits(int(b)))
                found.store(int(b), block);
            else
                store_void<Type>(block, Search::scale_at);
        }
    }
}

#define FLYWEIGHT_TOGETHER(type) constexpr auto search_##type = search_together<ggml::type, To_##type>;
FLYWEIGHT_TOGETHER(q2_k) FLYWEIGHT_TOGETHER(q3_k) FLYWEIGHT_TOGETHER(q4_k)
FLYWEIGHT_TOGETHER(q5_k) FLYWEIGHT_TOGETHER(q6_k) FLYWEIGHT_TOGETHER(iq4_xs)
#undef FLYWEIGHT_TOGETHER
constexpr auto search_iq4_nl = search<ggml::iq4_nl, to_iq4_nl>;
constexpr auto search_q8_k = search<ggml::q8_k, to_q8_k>;

}  // namespace

#define FLYWEIGHT_SEARCH_ENCODER(type, X) X(encode_##type, search_##type)
#define KERNELS_OF_SearchEncoders(X) FLYWEIGHT_GGML_SEARCH(FLYWEIGHT_SEARCH_ENCODER, X)
FLYWEIGHT_TABLE(SearchEncoders)
