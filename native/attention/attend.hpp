// Attention of one query, and of tiles of queries. The bound they are held to is in docs/formats/attention.md.
//
// The query heads that share a key-value head are taken together. A single query works along the elements of a head: eight at a
// time, up to three heads for each key read. A tile has a row (a query of one head) in each lane: keys and values are then plain
// factors, a maximum or a sum over keys needs no shuffles, and one product serves both q·k and p·v.
// Keys are cut at multiples of 64 or 256 positions whatever the call, so no result depends on threads or neighbours.
#pragma once

#include "attention/cache.hpp"

namespace {

using flyweight::key_block;
using flyweight::one_chunk;
using flyweight::tile_rows;

constexpr float least_float = -0x1.fffffep127f, infinite = __builtin_inff();

// A single query ---------------------------------------------------------------------------------


// The sums of four registers' lanes.
inline F32x4 sum4(F32x8 a, F32x8 b, F32x8 c, F32x8 d) {
#ifdef __AVX2__
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(__m256(a), __m256(b)), _mm256_hadd_ps(__m256(c), __m256(d)));
    return F32x4(_mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
#else
    return F32x4{sum8(a), sum8(b), sum8(c), sum8(d)};
#endif
}

// scores[h · one_chunk + key] = q_h · k for H heads, N keys at a time.
template <class Stored, int H, int N>
inline void dots(const float* q, const typename Stored::Element* keys, size_t head, float* scores) {
    F32x8 sums[H][N];
#pragma GCC unroll 16
    for (int i = 0; i < H * N; ++i) sums[i / N][i % N] = F32x8{};
    for (size_t d = 0; d < head; d += 8)
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) {
            const F32x8 key = Stored::eight(keys + n * head + d);
#pragma GCC unroll 4
            for (int h = 0; h < H; ++h) sums[h][n] = fused(load8(q + h * head + d), key, sums[h][n]);
        }
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h)
        if constexpr (N == 4) {
            const F32x4 four = sum4(sums[h][0], sums[h][1], sums[h][2], sums[h][3]);
            __builtin_memcpy(scores + h * one_chunk, &four, sizeof four);
        } else {
            scores[h * one_chunk] = sum8(sums[h][0]);
        }
}

// acc_h = Σ weight · value over the keys, N registers of a head at a time.
template <class Stored, int H, int N>
inline void weigh(const float* weights, const typename Stored::Element* values, size_t count, size_t head, float* acc, size_t apart) {
    F32x8 sums[H][N];
#pragma GCC unroll 16
    for (int i = 0; i < H * N; ++i) sums[i / N][i % N] = F32x8{};
    for (size_t key = 0; key < count; ++key) {
        F32x8 weight[H];
#pragma GCC unroll 4
        for (int h = 0; h < H; ++h) weight[h] = all8(weights[h * one_chunk + key]);
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) {
            const F32x8 value = Stored::eight(values + key * head + 8 * n);
#pragma GCC unroll 4
            for (int h = 0; h < H; ++h) sums[h][n] = fused(weight[h], value, sums[h][n]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < H * N; ++i) store8(acc + i / N * apart + i % N * 8, sums[i / N][i % N]);
}

// H heads against `count` keys and values: max, sum and weighted values to `partial`.
template <class Stored, int H>
void one_chunk_of(const Attention& a, const float* q, const typename Stored::Element* keys, const typename Stored::Element* values,
                  size_t count, float* scores, float* partial) {
    const size_t head = a.head, apart = flyweight::partial_floats(head);
    size_t key = 0;
    for (; key + 4 <= count; key += 4) dots<Stored, H, 4>(q, keys + key * head, head, scores + key);
    for (; key < count; ++key) dots<Stored, H, 1>(q, keys + key * head, head, scores + key);
    const size_t padded = (count + 7) / 8 * 8;
    for (int h = 0; h < H; ++h) {
        float* row = scores + h * one_chunk;
        for (size_t i = count; i < padded; ++i) row[i] = -infinite;
        F32x8 peak = all8(least_float), sum = {};
        for (size_t i = 0; i < padded; i += 8) {
            if (a.cap > 0) store8(row + i, capped(load8(row + i), a.cap));
            if (a.cap > 0 && i + 8 > count)
                for (size_t j = count; j < padded; ++j) row[j] = -infinite;
            peak = greatest(load8(row + i), peak);
        }
        const float top = over_lanes(peak, [](F32x8 x, F32x8 y) { return greatest(x, y); });
        for (size_t i = 0; i < padded; i += 8) {
            const F32x8 weight = decay8(load8(row + i) - all8(top));
            store8(row + i, weight);
            sum += weight;
        }
        partial[h * apart] = top, partial[h * apart + 1] = sum8(sum);
    }
    size_t d = 0;
    for (; d + 32 <= head; d += 32) weigh<Stored, H, 4>(scores, values + d, count, head, partial + 8 + d, apart);
    for (; d < head; d += 8) weigh<Stored, H, 1>(scores, values + d, count, head, partial + 8 + d, apart);
}

template <class Stored>
void attend_one(const Attention& a, size_t first, size_t last, float* workspace, float* partials) {
    const size_t head = a.head, apart = flyweight::partial_floats(head), own = a.start / key_group, from = a.first_key(a.start);
    float *scores = workspace, *key_buffer = scores + 3 * one_chunk, *value_buffer = key_buffer + one_chunk * head;
    for (size_t item = first; item < last; ++item) {
        const size_t kv = item % a.kv_heads, chunk = item / a.kv_heads, begin = (from / one_chunk + chunk) * one_chunk;
        const size_t low = begin > from ? begin : from, high = begin + one_chunk < a.end() ? begin + one_chunk : a.end();
        const auto* keys = seen_keys<Stored>(a, kv, low, high - low, own, key_buffer);
        const auto* values = Stored::values(a, kv, low, high - low, value_buffer);
        const float* q = a.qkv + kv * a.group() * head;
        float* partial = partials + (chunk * a.heads + kv * a.group()) * apart;
        for (size_t left = a.group(); left;) {
            const size_t some = left == 4 ? 2 : left < 3 ? left : 3;
            const auto work = some == 3 ? one_chunk_of<Stored, 3> : some == 2 ? one_chunk_of<Stored, 2> : one_chunk_of<Stored, 1>;
            work(a, q, keys, values, high - low, scores, partial);
            q += some * head, partial += some * apart, left -= some;
        }
    }
}

void combine(const Attention& a, const float* partials) {
    const size_t head = a.head, apart = flyweight::partial_floats(head), chunks = a.chunks(), next = a.heads * apart;
    for (size_t h = 0; h < a.heads; ++h, partials += apart) {
        float top = least_float;
        for (size_t c = 0; c < chunks; ++c) top = greatest(partials[c * next], top);
        float* out = a.out + h * head;
        F32x8 sum = {};
        for (size_t d = 0; d < head; d += 8) store8(out + d, F32x8{});
        for (size_t c = 0; c < chunks; ++c) {
            const float* partial = partials + c * next;
            const F32x8 factor = decay8(all8(partial[0]) - all8(top));
            sum = fused(factor, all8(partial[1]), sum);
            for (size_t d = 0; d < head; d += 8) store8(out + d, fused(factor, load8(partial + 8 + d), load8(out + d)));
        }
        for (size_t d = 0; d < head; d += 8) store8(out + d, load8(out + d) / sum);
    }
}

// A tile of queries ------------------------------------------------------------------------------

// c[i][lane] = Σ_k a[i · row + k · column] · b[k][lane] (+ c · factor), for M rows of 8·V lanes.
template <int V, int M, bool Add>
inline void product(const float* a, size_t row, size_t column, size_t depth, const float* b, const F32x8* factor, float* c) {
    F32x8 sums[M][V];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sums[m][v] = Add ? load8(c + (m * V + v) * 8) * factor[v] : F32x8{};
    for (size_t k = 0; k < depth; ++k, a += column, b += 8 * V) {
        F32x8 lanes[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) lanes[v] = load8(b + 8 * v);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
            const F32x8 by = all8(a[m * row]);
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) sums[m][v] = fused(by, lanes[v], sums[m][v]);
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) store8(c + (m * V + v) * 8, sums[m][v]);
}

// `count` rows as f32, and zeros up to `padded`: where they lie if that serves, else in `buffer`.
template <class Stored>
inline const float* widened(const typename Stored::Element* from, size_t count, size_t padded, size_t head, float* buffer) {
    if constexpr (__is_same(typename Stored::Element, float))
        if (count == padded) return from;
    if (static_cast<const void*>(from) != buffer)
        for (size_t i = 0; i < count * head; i += 8) store8(buffer + i, Stored::eight(from + i));
    for (size_t i = count * head; i < padded * head; i += 8) store8(buffer + i, F32x8{});
    return buffer;
}

struct Tile {
    size_t kv, low, high;  // queries at positions low to high
    float *q, *acc, *scores, *keys, *values;
    // The keys and the values of some positions as f32, padded with zeros.
    const float* (*read_keys)(const Attention& a, const Tile& tile, size_t first, size_t count, size_t padded);
    const float* (*read_values)(const Attention& a, const Tile& tile, size_t first, size_t count, size_t padded);
};

template <class Stored>
const float* read_keys(const Attention& a, const Tile& t, size_t first, size_t count, size_t padded) {
    return widened<Stored>(seen_keys<Stored>(a, t.kv, first, count, t.low / key_group, t.keys), count, padded, a.head, t.keys);
}

template <class Stored>
const float* read_values(const Attention& a, const Tile& t, size_t first, size_t count, size_t padded) {
    return widened<Stored>(Stored::values(a, t.kv, first, count, t.values), count, padded, a.head, t.values);
}

// V registers of rows. Row query · group + head is lane `row`; lanes beyond the rows repeat the last and are not written.
template <int V>
void attend_tile(const Attention& a, const Tile& t) {
    constexpr size_t lanes = 8 * V;
    constexpr int M = V == 1 ? 8 : V < 4 ? 4 : 2;  // running sums enough to keep the processor busy, few enough for its registers
    const size_t head = a.head, group = a.group(), rows = (t.high - t.low) * group, queries = a.heads * head;
    F32x8 top[V], sum[V], factor[V];
    I32x8 position[V] = {};
    for (int v = 0; v < V; ++v) {
        top[v] = all8(least_float), sum[v] = F32x8{};
        for (int i = 0; i < 8; ++i) {
            const size_t row = size_t(8 * v + i) < rows ? size_t(8 * v + i) : rows - 1;
            position[v][i] = int32_t(t.low + row / group);
        }
    }
    for (size_t lane = 0; lane < lanes; ++lane) {
        const size_t row = lane < rows ? lane : rows - 1;
        const float* q = a.qkv + (t.low + row / group - a.start) * a.stride() + (t.kv * group + row % group) * head;
        for (size_t d = 0; d < head; ++d) t.q[d * lanes + lane] = q[d];
    }
    for (size_t i = 0; i < head * lanes; i += 8) store8(t.acc + i, F32x8{});

    const size_t from = a.first_key(t.low);
    for (size_t block = from / key_block * key_block; block < t.high; block += key_block) {
        const size_t count = t.high - block < key_block ? t.high - block : key_block, padded = (count + 7) / 8 * 8;
        const float *keys = t.read_keys(a, t, block, count, padded), *values = t.read_values(a, t, block, count, padded);
        for (size_t key = 0; key < padded; key += M)
            product<V, M, false>(keys + key * head, head, 1, head, t.q, nullptr, t.scores + key * lanes);

        F32x8 before[V];
        for (int v = 0; v < V; ++v) before[v] = top[v];
        const bool all_seen = block + padded <= t.low + 1 && block >= a.first_key(t.high - 1);
        const int32_t window = int32_t(a.window < (1u << 30) ? a.window : 1u << 30);
        for (size_t key = 0; key < padded; ++key)
            for (int v = 0; v < V; ++v) {
                float* at = t.scores + key * lanes + 8 * v;
                F32x8 score = load8(at);
                if (a.cap > 0) score = capped(score, a.cap);
                if (!all_seen) {
                    const int32_t here = int32_t(block + key);
                    const I32x8 unseen = I32x8(position[v] < here) | I32x8(position[v] - window >= here);
                    score = F32x8(I32x8(score) & ~unseen | I32x8(all8(-infinite)) & unseen);
                }
                if (a.cap > 0 || !all_seen) store8(at, score);
                top[v] = greatest(score, top[v]);
            }
        for (int v = 0; v < V; ++v) factor[v] = decay8(before[v] - top[v]), sum[v] *= factor[v];
        for (size_t key = 0; key < padded; ++key)
            for (int v = 0; v < V; ++v) {
                float* at = t.scores + key * lanes + 8 * v;
                const F32x8 weight = decay8(load8(at) - top[v]);
                store8(at, weight);
                sum[v] += weight;
            }
        for (size_t d = 0; d < head; d += M)
            product<V, M, true>(values + d, 1, head, padded, t.scores, factor, t.acc + d * lanes);
    }
    for (size_t d = 0; d < head; ++d)
        for (int v = 0; v < V; ++v) {
            float* at = t.acc + d * lanes + 8 * v;
            store8(at, load8(at) / sum[v]);
        }
    for (size_t row = 0; row < rows; ++row) {
        float* out = a.out + (t.low + row / group - a.start) * queries + (t.kv * group + row % group) * head;
        for (size_t d = 0; d < head; ++d) out[d] = t.acc[d * lanes + row];
    }
}

template <class Stored>
void attend_block(const Attention& a, size_t first, size_t last, float* workspace) {
    const size_t head = a.head, size = a.tile(), tiles = a.tiles();
    float *q = workspace, *acc = q + tile_rows * head, *scores = acc + tile_rows * head, *keys = scores + tile_rows * key_block;
    float* values = keys + key_block * head;
    for (size_t item = first; item < last; ++item) {
        const size_t begin = (a.start / size + (tiles - 1 - item / a.kv_heads)) * size;
        const Tile tile = {item % a.kv_heads, begin > a.start ? begin : a.start, begin + size < a.end() ? begin + size : a.end(),
                           q, acc, scores, keys, values, read_keys<Stored>, read_values<Stored>};
        switch (((tile.high - tile.low) * a.group() + 7) / 8) {
            case 1: attend_tile<1>(a, tile); break;
            case 2: attend_tile<2>(a, tile); break;
            case 3: attend_tile<3>(a, tile); break;
            case 4: attend_tile<4>(a, tile); break;
            case 5: attend_tile<5>(a, tile); break;
            default: attend_tile<6>(a, tile);
        }
    }
}

}  // namespace

#define KERNELS_OF_AttentionKernels(X)                                                                             \
    X(append_f32, append<StoredF32>) X(block_f32, attend_block<StoredF32>) X(one_f32, attend_one<StoredF32>)       \
    X(append_f16, append<StoredF16>) X(block_f16, attend_block<StoredF16>) X(one_f16, attend_one<StoredF16>)       \
    X(append_int8, append<StoredInt8>) X(block_int8, attend_block<StoredInt8>) X(one_int8, attend_one<StoredInt8>) \
    X(combine, combine)                                                                                            \
    X(close_groups, close_groups)                                                                                  \
    X(keep_tail, keep_tail)                                                                                        \
    X(rms_norm, rms_norm)                                                                                          \
    X(softcap, softcap)
FLYWEIGHT_TABLE(AttentionKernels)
