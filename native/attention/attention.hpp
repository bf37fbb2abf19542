// Attention of new tokens over a key-value cache: what the kernels take. Formulas and bound: docs/formats/attention.md.
#pragma once

#include "kernel.hpp"

namespace flyweight {

constexpr size_t key_group = 64;    // tokens whose int8 keys share a grid
constexpr size_t key_block = 64;    // keys a tile of queries meets at a time
constexpr size_t tile_rows = 48;    // rows (a query of one head each) of a tile, at most: six registers of eight
constexpr size_t one_chunk = 256;   // keys of a piece of work for a single query
constexpr size_t most_heads = 512;  // elements of a head, at most

struct Attention {
    float* qkv;  // (tokens, (heads + 2 · kv_heads) · head): q | k | v; queries and keys are normalised and rotated in place
    size_t tokens, heads, kv_heads, head, start, context, window;
    const float *cos, *sin;  // (positions, half)
    size_t half;             // pairs that are rotated
    bool pairs;              // neighbours make a pair, not the two halves
    const float *q_gain, *k_gain;  // (head) or null
    float eps, scale, cap;
    uint8_t *keys, *values;  // (kv_heads, context, head): f32, f16 or codes
    float* key_grid;         // (kv_heads, context / 64, 2, head): low, step
    float* tail;             // (kv_heads, 64, head): the keys of the newest token's group
    float* value_grid;       // (kv_heads, context, 2): low, step
    float* out;              // (tokens, heads · head)

    size_t stride() const { return (heads + 2 * kv_heads) * head; }
    size_t group() const { return heads / kv_heads; }
    size_t end() const { return start + tokens; }
    // The first key the query at `position` sees.
    size_t first_key(size_t position) const { return position < window ? 0 : position + 1 - window; }
    // Queries of a tile: a power of two, so that no tile straddles a group of keys.
    size_t tile() const {
        size_t queries = 32;
        while (queries > 1 && queries * group() > tile_rows) queries /= 2;
        return queries;
    }
    size_t tiles() const { return (end() - 1) / tile() - start / tile() + 1; }
    size_t chunks() const { return start / one_chunk - first_key(start) / one_chunk + 1; }
};

// Floats of working memory a thread needs, and a single query's partial results.
inline size_t workspace_floats(size_t head) { return 2 * (tile_rows + one_chunk) * head + (one_chunk + 8) * tile_rows; }
inline size_t partial_floats(size_t head) { return head + 8; }  // max, sum, six to stay aligned, then the weighted values

// What is done for a kind of cache.
struct CacheKernels {
    // Tokens first to last: normalise, rotate, append to the cache (int8: values alone).
    void (*append)(const Attention&, size_t first, size_t last);
    // Items first to last of tiles() · kv_heads, the longest first.
    void (*block)(const Attention&, size_t first, size_t last, float* workspace);
    // Items first to last of chunks() · kv_heads; partials is (chunks, heads, partial_floats).
    void (*one)(const Attention&, size_t first, size_t last, float* workspace, float* partials);
};

}  // namespace flyweight
