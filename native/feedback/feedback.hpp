// The inner loops of quantizing with error feedback.
//
// Rows of a matrix do not concern each other: they are the columns here, side by side, and the compiler takes as many at a time as the
// instruction set has lanes. A strip of them stays in the first cache while the columns of the matrix are walked.
// Every sum runs in the order of its index, a product is rounded before it is added: the bits are the same on every machine.
#pragma once

#include "kernel.hpp"
#include "simd/vectors.hpp"

namespace {

constexpr size_t strip = 64;  // rows of a matrix worked on at a time

struct Rows {
    size_t from, to;
};

template <typename Body>
inline void over_strips(Rows some, const Body& body) {
    for (size_t at = some.from; at < some.to; at += strip) body(at, some.to - at < strip ? some.to - at : strip);
}

// The code of the level nearest to x, of uniform levels; halves to even.
struct UniformLevels {
    float low, high;
    explicit UniformLevels(const float* levels, size_t count) : low(levels[0]), high(levels[count - 1]) {}
    float code(float x) const {
        const float held = x > low ? x < high ? x : high : low;
        return (held + 0x1.8p23f - 0x1.8p23f) - low;
    }
    float value(float code) const { return code + low; }
};

// The same for any levels, from the least up; of two equally near the lower.
struct AnyLevels {
    const float* levels;
    size_t count;
    AnyLevels(const float* levels, size_t count) : levels(levels), count(count) {}
    float code(float x) const {
        float code = 0.0f;
        for (size_t i = 0; i + 1 < count; ++i) code += x > (levels[i] + levels[i + 1]) * 0.5f ? 1.0f : 0.0f;
        return code;
    }
    float value(float code) const {
        float value = levels[0];
        for (size_t i = 1; i < count; ++i) value = code >= float(i) ? levels[i] : value;
        return value;
    }
};

// The same for so many that halving is faster than looking at each, which registers of several rows do at once.
constexpr size_t few_levels = 32, most_levels = 256;

struct ManyLevels {
    const float* levels;
    const float* middles;  // between neighbours, then infinity: one fewer than twice `half`
    size_t half;
    ManyLevels(const float* levels, size_t count, float* room) : levels(levels), middles(room), half(1) {
        while (2 * half < count) half *= 2;
        for (size_t i = 0; i + 1 < 2 * half; ++i)
            room[i] = i + 1 < count ? (levels[i] + levels[i + 1]) * 0.5f : __builtin_inff();
    }
    float code(float x) const {
        size_t code = 0;
        for (size_t step = half; step > 0; step /= 2) code += x > middles[code + step - 1] ? step : 0;
        return float(code);
    }
    float value(float code) const { return levels[size_t(code)]; }
};

// Whole numbers one after the other, near zero.
inline bool are_uniform(const float* levels, size_t count) {
    if (!(levels[0] >= -256.0f && levels[0] <= 256.0f && levels[0] == float(int(levels[0])))) return false;
    for (size_t i = 1; i < count; ++i)
        if (levels[i] != levels[0] + float(i)) return false;
    return true;
}

inline float inverse_of(float scale) { return scale != 0.0f ? 1.0f / scale : 0.0f; }

// The rows in as many equal runs as there are tables of levels: body(rows of a run, its levels).
template <typename Body>
inline void over_tables(size_t rows, const float* levels, size_t tables, size_t count, const Body& body) {
    const size_t each = rows / tables;
    for (size_t table = 0; table < tables; ++table) {
        const Rows some{table * each, (table + 1) * each};
        const float* own = levels + table * count;
        float room[most_levels];
        if (are_uniform(own, count))
            body(some, UniformLevels(own, count));
        else if (count <= few_levels)
            body(some, AnyLevels(own, count));
        else
            body(some, ManyLevels(own, count, room));
    }
}

// x[k] += error of column j · feedback[k, j], for the columns k before j, which are coded after it.
template <class Levels>
void feedback_codes_of(const float* values, float* adjusted, size_t columns, size_t rows, const float* feedback, size_t stride,
                       const float* scale, const float* bias, size_t group, Rows some, const Levels levels, uint8_t* codes,
                       float* error) {
    over_strips(some, [=](size_t at, size_t count) {
        float inverse[strip], off[strip];
        for (size_t j = columns; j-- > 0;) {
            const float *__restrict s = scale + j / group * rows + at, *__restrict b = bias + j / group * rows + at;
            const float *__restrict x = adjusted + j * rows + at, *__restrict w = values + j * rows + at;
            float* __restrict e = error + j * rows + at;
            uint8_t* __restrict c = codes + j * rows + at;
            if (j == columns - 1 || (j + 1) % group == 0)
                for (size_t i = 0; i < count; ++i) inverse[i] = inverse_of(s[i]);
            for (size_t i = 0; i < count; ++i) {
                const float code = levels.code((x[i] - b[i]) * inverse[i]);
                c[i] = uint8_t(int(code));
                off[i] = w[i] - (s[i] * levels.value(code) + b[i]);
                e[i] = off[i];
            }
            for (size_t k = 0; k < j; ++k) {
                const float by = feedback[k * stride + j];
                float* __restrict later = adjusted + k * rows + at;
                for (size_t i = 0; i < count; ++i) later[i] = later[i] + off[i] * by;
            }
        }
    });
}

void feedback_codes(const float* values, float* adjusted, size_t columns, size_t rows, const float* feedback, size_t stride,
                    const float* scale, const float* bias, size_t group, const float* levels, size_t tables, size_t count,
                    uint8_t* codes, float* error) {
    over_tables(rows, levels, tables, count, [=](Rows some, auto grid) {
        feedback_codes_of(values, adjusted, columns, rows, feedback, stride, scale, bias, group, some, grid, codes, error);
    });
}

// Column by column the code of least loss beside all the others: where the pull (error · gram) of the column would be zero.
template <class Levels>
void descend_codes_of(float* pull, size_t columns, size_t rows, const float* gram, size_t stride, const float* scale, const float* bias,
                      size_t group, Rows some, const Levels levels, uint8_t* codes, float* error) {
    over_strips(some, [=](size_t at, size_t count) {
        float inverse[strip], change[strip];
        for (size_t j = columns; j-- > 0;) {
            const float *__restrict s = scale + j / group * rows + at, *__restrict b = bias + j / group * rows + at;
            const float* __restrict g = pull + j * rows + at;
            float* __restrict e = error + j * rows + at;
            uint8_t* __restrict c = codes + j * rows + at;
            const float curvature = inverse_of(gram[j * stride + j]);
            if (j == columns - 1 || (j + 1) % group == 0)
                for (size_t i = 0; i < count; ++i) inverse[i] = inverse_of(s[i]);
            for (size_t i = 0; i < count; ++i) {
                const float was = s[i] * levels.value(float(c[i])) + b[i];
                const float code = levels.code((was + g[i] * curvature - b[i]) * inverse[i]);
                c[i] = uint8_t(int(code));
                change[i] = (s[i] * levels.value(code) + b[i]) - was;
                e[i] = e[i] - change[i];
            }
            for (size_t k = 0; k < columns; ++k) {
                const float by = gram[k * stride + j];
                float* __restrict other = pull + k * rows + at;
                for (size_t i = 0; i < count; ++i) other[i] = other[i] - change[i] * by;
            }
        }
    });
}

void descend_codes(float* pull, size_t columns, size_t rows, const float* gram, size_t stride, const float* scale, const float* bias,
                   size_t group, const float* levels, size_t tables, size_t count, uint8_t* codes, float* error) {
    over_tables(rows, levels, tables, count, [=](Rows some, auto grid) {
        descend_codes_of(pull, columns, rows, gram, stride, scale, bias, group, some, grid, codes, error);
    });
}

// As many floats as a register has; rows and registers of a product that are summed at a time.
#if defined(__AVX512F__)
using Lanes = float __attribute__((vector_size(64)));
constexpr size_t tile_height = 8, tile_registers = 3;
#elif defined(__AVX2__)
using Lanes = float __attribute__((vector_size(32)));
constexpr size_t tile_height = 6, tile_registers = 2;
#else
using Lanes = float __attribute__((vector_size(16)));
constexpr size_t tile_height = 4, tile_registers = 2;
#endif
constexpr size_t tile_lanes = sizeof(Lanes) / sizeof(float), tile_width = tile_registers * tile_lanes;
constexpr size_t chunk = 256;  // terms that are summed before the sum is added

// out += a · b, or out −= a · b, for some rows of it and as many columns as b has side by side.
template <bool Minus, size_t Height>
inline void add_tile(const float* a, size_t a_stride, const float (*b)[tile_width], size_t terms, float* out, size_t out_stride) {
    Lanes sums[Height][tile_registers] = {};
    for (size_t k = 0; k < terms; ++k) {
        Lanes row[tile_registers];
        FLYWEIGHT_UNROLLED
        for (size_t j = 0; j < tile_registers; ++j) row[j] = load_as<Lanes>(b[k] + j * tile_lanes);
        FLYWEIGHT_UNROLLED
        for (size_t i = 0; i < Height; ++i) {
            const float by = a[i * a_stride + k];
            FLYWEIGHT_UNROLLED
            for (size_t j = 0; j < tile_registers; ++j) sums[i][j] = sums[i][j] + by * row[j];
        }
    }
    for (size_t i = 0; i < Height; ++i)
        for (size_t j = 0; j < tile_registers; ++j) {
            float* at = out + i * out_stride + j * tile_lanes;
            const Lanes was = load_as<Lanes>(at), is = Minus ? was - sums[i][j] : was + sums[i][j];
            __builtin_memcpy(at, &is, sizeof is);
        }
}

// The same for fewer columns.
template <bool Minus>
inline void add_rest(const float* a, size_t a_stride, const float* b, size_t b_stride, size_t terms, float* out, size_t out_stride,
                     size_t height, size_t width) {
    for (size_t i = 0; i < height; ++i) {
        float sums[tile_width] = {};
        for (size_t k = 0; k < terms; ++k)
            for (size_t j = 0; j < width; ++j) sums[j] = sums[j] + a[i * a_stride + k] * b[k * b_stride + j];
        for (size_t j = 0; j < width; ++j) {
            float& to = out[i * out_stride + j];
            to = Minus ? to - sums[j] : to + sums[j];
        }
    }
}

// a (height, terms), b (terms, width), each with the stride of its rows.
template <bool Minus>
inline void add_product(const float* a, size_t a_stride, const float* b, size_t b_stride, size_t all_terms, float* out,
                        size_t out_stride, size_t height, size_t width) {
    for (size_t first = 0; first < all_terms; first += chunk) {
        const size_t terms = all_terms - first < chunk ? all_terms - first : chunk;
        const float *left = a + first, *right = b + first * b_stride;
        size_t j = 0;
        for (; j + tile_width <= width; j += tile_width) {
            alignas(64) float packed[chunk][tile_width];
            for (size_t k = 0; k < terms; ++k) __builtin_memcpy(packed[k], right + k * b_stride + j, sizeof packed[k]);
            size_t i = 0;
            for (; i + tile_height <= height; i += tile_height)
                add_tile<Minus, tile_height>(left + i * a_stride, a_stride, packed, terms, out + i * out_stride + j, out_stride);
            for (; i < height; ++i)
                add_tile<Minus, 1>(left + i * a_stride, a_stride, packed, terms, out + i * out_stride + j, out_stride);
        }
        if (j < width) add_rest<Minus>(left, a_stride, right + j, b_stride, terms, out + j, out_stride, height, width - j);
    }
}

void add_products(const float* a, size_t a_stride, const float* b, size_t terms, float* out, size_t height, size_t width) {
    add_product<false>(a, a_stride, b, width, terms, out, width, height, width);
}

// gram = Uᵀ · D · U with ones on the diagonal of U, in place: D on the diagonal, U above it. What is below is not read,
// and what is left there means nothing.
constexpr size_t together = 64, panel = 48;

void factorize(float* gram, size_t n) {
    for (size_t from = 0; from < n; from += together) {
        const size_t to = n - from < together ? n : from + together;
        for (size_t k = from; k < to; ++k) {
            float* __restrict row = gram + k * n;
            const float d = row[k], inverse = inverse_of(d);
            for (size_t i = k + 1; i < to; ++i) {
                const float by = row[i];
                const float* __restrict u = row;
                float* __restrict other = gram + i * n;
                for (size_t j = i; j < n; ++j) other[j] = other[j] - by * inverse * u[j];
            }
            for (size_t j = k + 1; j < n; ++j) row[j] = row[j] * inverse;
        }
        // The rest, less the product of these rows: some rows of it at a time, what they multiply by put side by side.
        float by[panel * together];
        for (size_t i = to; i < n; i += panel) {
            const size_t height = n - i < panel ? n - i : panel;
            for (size_t k = from; k < to; ++k)
                for (size_t r = 0; r < height; ++r) by[r * together + (k - from)] = gram[k * n + i + r] * gram[k * n + k];
            add_product<true>(by, together, gram + from * n + i, n, to - from, gram + i * n + i, n, height, n - i);
        }
    }
}

}  // namespace

#define KERNELS_OF_Feedback(X)       \
    X(feedback_codes, feedback_codes) \
    X(descend_codes, descend_codes)   \
    X(add_products, add_products)     \
    X(factorize, factorize)
FLYWEIGHT_TABLE(Feedback)
