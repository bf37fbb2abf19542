// Products with rows whose mask says which blocks are not all zero: the others are not read.
//
// Kept blocks come from 64 bits of the mask at a time, lowest first, so that only the end of a word is a branch the processor cannot
// foresee: testing block by block costs as much as it saves. What is left of a row is no stream that the processor would see by
// itself, so with every block one that the next row keeps is fetched.
#pragma once

#include "products/spans.hpp"

namespace {

// The bits of 64 blocks from `from`, of which there are `blocks` in a row.
inline uint64_t kept_of(const uint8_t* mask, size_t from, size_t blocks) {
    if (blocks - from >= 64) return load_as<uint64_t>(mask + from / 8);
    uint64_t kept = 0;
    for (size_t byte = 0; 8 * byte < blocks - from; ++byte) kept |= uint64_t(mask[from / 8 + byte]) << 8 * byte;
    return kept & ((uint64_t(1) << (blocks - from)) - 1);
}

// Every kept block, with one of the next row: there are about as many.
template <class Use>
inline void each_kept(const Weights& w, size_t index, Use use) {
    const uint8_t *mask = w.mask + index * w.mask_bytes, *next = index + 1 < w.rows ? mask + w.mask_bytes : mask;
    const size_t blocks = (w.columns / 32 + w.block_chunks - 1) / w.block_chunks;
    for (size_t from = 0; from < blocks; from += 64) {
        uint64_t ahead = kept_of(next, from, blocks);
        for (uint64_t kept = kept_of(mask, from, blocks); kept; kept &= kept - 1, ahead &= ahead - 1)
            use(from + size_t(__builtin_ctzll(kept)), from + size_t(__builtin_ctzll(ahead | uint64_t(1) << 63)));
    }
}

// Products item to item + N of one row. `Run`: chunks of a run where blocks are one whole run each, or 0 for any.
template <class Row, bool Int8, int N, int Run>
void masked_tile(const Weights& w, const Activations& a, size_t index, size_t item, const Products& to) {
    const Row row(w, index);
    const size_t chunks = w.columns / 32, block_chunks = Run ? Run : w.block_chunks;
    const size_t run_chunks = Run ? Run : Row::floats ? w.block_chunks : w.group_chunks;
    const flyweight::Rounded& rounded = a.rounded[Row::order];
    const float *x = Int8 ? nullptr : a.x[Row::order] + item * a.columns, *x_sums = (Int8 ? rounded.sums : a.sums) + item * a.runs;
    F32x8 sums[N] = {};
    float biases[N] = {};

    const auto add = [&](size_t chunk, F32x8 (&run)[N]) {
        if constexpr (Int8) {
            const I8x32 own = row.codes(int(chunk));
            for (int n = 0; n < N; ++n) {
                const size_t at = (item + n) * a.columns + 32 * chunk;
                run[n] = fused(load8(rounded.scale + at / 4), dot32<Row::is_signed>(own, rounded.codes + at, nullptr), run[n]);
            }
        } else {
            F32x8 values[4];
            if constexpr (Row::floats) row.values(chunk, values);
            else widen32<Row::is_signed>(row.codes(int(chunk)), values);
            for (int n = 0; n < N; ++n) run[n] += dot8x4(values, x + n * a.columns + 32 * chunk);
        }
    };
    each_kept(w, index, [&](size_t block, size_t ahead) {
        for (size_t line = 0; line < block_chunks * Row::chunk_bytes; line += 64)
            __builtin_prefetch(row.row + w.stride + ahead * block_chunks * Row::chunk_bytes + line);
        if constexpr (!Row::floats) __builtin_prefetch(row.entry(w.groups + ahead * (block_chunks / run_chunks)));
        size_t chunk = block * block_chunks;
        const size_t end = Run || chunk + block_chunks <= chunks ? chunk + block_chunks : chunks;
        const uint8_t* entry = row.entry(chunk / run_chunks);
        for (; chunk < end; entry += Row::entry_bytes) {
            const size_t run_end = Run || chunk + run_chunks <= end ? chunk + run_chunks : end;
            F32x8 run[N] = {};
            float own_sum[N] = {};
            for (; chunk < run_end; ++chunk) {
                add(chunk, run);
                for (int n = 0; !Row::floats && n < N; ++n) own_sum[n] += x_sums[n * a.runs + chunk];
            }
            for (int n = 0; n < N; ++n) {
                if constexpr (Row::floats) {
                    sums[n] += run[n];
                } else {
                    sums[n] = fused(all8(Row::scale_of(entry)), run[n], sums[n]);
                    biases[n] += Row::bias_of(entry) * own_sum[n];
                }
            }
        }
    });
    for (int n = 0; n < N; ++n) put(to, item + n, index, sum8(sums[n]) + biases[n]);
}

template <class Row, bool Int8>
void masked_rows(const Weights& w, const Activations& a, size_t first, size_t last, const Products& to) {
    const auto one = w.block_chunks != w.group_chunks || w.columns / 32 % w.block_chunks ? masked_tile<Row, Int8, 1, 0>
                   : w.block_chunks == 2                                                ? masked_tile<Row, Int8, 1, 2>
                   : w.block_chunks == 4                                                ? masked_tile<Row, Int8, 1, 4>
                                                                                        : masked_tile<Row, Int8, 1, 0>;
    for (size_t index = first; index < last; ++index) {
        size_t item = 0;
        for (; item + 4 <= a.count; item += 4) masked_tile<Row, Int8, 4, 0>(w, a, index, item, to);
        for (; item < a.count; ++item) one(w, a, index, item, to);
    }
}

}  // namespace
