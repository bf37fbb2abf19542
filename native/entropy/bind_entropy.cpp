// The bindings of the entropy coder and of differences of words.
#include <cstring>

#include "binding.hpp"
#include "entropy/word_deltas.hpp"

namespace flyweight {
namespace {

using Contexts = std::optional<Bytes>;

template <typename A>
void require_chunks(const A& array, size_t count, size_t chunk, size_t columns) {
    require(chunk >= 1, "a chunk has at least one word");
    require_shape(array, divided_up(count, chunk), columns, "chunks disagree");
}

template <typename A>
void require_one_each(const A& array, size_t count, size_t chunk) {
    require(chunk >= 1, "a chunk has at least one word");
    require_shape(array, 1, divided_up(count, chunk), "chunks disagree");
}

// Whether all bytes are below a limit of at most 128, eight at a time: with 128 − limit added, those that are not have their highest bit.
inline bool all_below(const uint8_t* bytes, size_t count, uint8_t limit) {
    constexpr uint64_t ones = 0x0101010101010101;
    uint64_t found = 0, eight;
    size_t i = 0;
    for (; count - i >= 8; i += 8) {
        std::memcpy(&eight, bytes + i, 8);
        found |= eight | (eight + ones * (128u - limit));
    }
    for (; i < count; ++i) found |= bytes[i] | (bytes[i] + (128u - limit));
    return !(found & ones << 7);
}

// Contexts are numbers of tables.
template <typename Table>
const uint8_t* require_contexts(const Contexts& contexts, size_t count, const Table& tables) {
    require(tables.shape(0) >= 1 && tables.shape(0) <= rans_contexts, "there are 1 to 16 tables");
    if (!contexts) return nullptr;
    require_shape(*contexts, 1, count);
    require(all_below(contexts->data(), count, uint8_t(tables.shape(0))), "a context has no table");
    return contexts->data();
}

template <auto Kernel, typename Word>
void rans_decode_floats(Matrix<const uint32_t> states, Matrix<const uint16_t> words, Matrix<const uint64_t> ends, Matrix<const uint32_t> table,
                        Bytes low, size_t chunk, Matrix<Word> out, Matrix<uint32_t> finals, Matrix<uint64_t> taken) {
    const size_t count = out.shape(1);
    require_shape(out, 1, count);
    require_shape(low, count, sizeof(Word) - 1);
    require_shape(words, 1, words.shape(1));
    require_shape(table, 1, rans_slots);
    require_chunks(states, count, chunk, rans_states);
    require_chunks(finals, count, chunk, rans_states);
    require_one_each(ends, count, chunk);
    require_one_each(taken, count, chunk);
    run(Kernel, states.data(), words.data(), words.shape(1), ends.data(), table.data(), low.data(), chunk, out.data(), count, finals.data(),
        taken.data());
}

template <auto Kernel, typename Word>
void delta_count(Matrix<const Word> base, Matrix<const Word> tuned, int mantissa, Matrix<uint64_t> counts) {
    require_shape(base, 1, base.shape(1));
    require_shape(tuned, 1, base.shape(1));
    require_shape(counts, 256, rans_symbols, "counts are of 256 exponents and 256 symbols");
    require(mantissa >= 0 && mantissa < int(8 * sizeof(Word)), "the mantissa is longer than the word");
    run(Kernel, base.data(), tuned.data(), base.shape(1), mantissa, counts.data());
}

template <auto Kernel, typename Word>
void delta_split(Matrix<const Word> base, Matrix<const Word> tuned, size_t chunk, BytesOut symbols, BytesOut low, Matrix<uint64_t> sizes) {
    const size_t count = base.shape(1);
    require_shape(base, 1, count);
    require_shape(tuned, 1, count);
    require_shape(symbols, 1, count);
    require_chunks(low, count, chunk, chunk * sizeof(Word));
    require_one_each(sizes, count, chunk);
    run(Kernel, base.data(), tuned.data(), count, chunk, symbols.data(), low.data(), sizes.data());
}

template <auto Kernel, typename Word>
void delta_contexts(Matrix<const Word> base, Bytes map, int mantissa, BytesOut contexts) {
    require_shape(base, 1, base.shape(1));
    require_shape(map, 1, 256, "the map is of 256 exponents");
    require_shape(contexts, 1, base.shape(1));
    require(mantissa >= 0 && mantissa < int(8 * sizeof(Word)), "the mantissa is longer than the word");
    run(Kernel, base.data(), base.shape(1), map.data(), mantissa, contexts.data());
}

template <auto Kernel, typename Word>
void delta_join(Matrix<const Word> base, Bytes symbols, Bytes low, Matrix<const uint64_t> ends, size_t chunk, Matrix<Word> out,
                Matrix<uint64_t> used) {
    const size_t count = base.shape(1);
    require_shape(base, 1, count);
    require_shape(symbols, 1, count);
    require_shape(low, 1, low.shape(1));
    require_shape(out, 1, count);
    require_one_each(ends, count, chunk);
    require_one_each(used, count, chunk);
    run(Kernel, base.data(), symbols.data(), low.data(), low.shape(1), ends.data(), chunk, out.data(), count, used.data());
}

}  // namespace

void bind_entropy(nb::module_& module) {
    define(module, "rans_encode", +[](Bytes symbols, Contexts contexts, Matrix<const uint16_t> frequencies, size_t chunk,
                                      Matrix<uint32_t> states, Matrix<uint16_t> words, Matrix<uint64_t> counts) {
        const size_t count = symbols.shape(1);
        require_shape(symbols, 1, count);
        require_shape(frequencies, frequencies.shape(0), rans_symbols);
        const uint8_t* of_each = require_contexts(contexts, count, frequencies);
        require_chunks(states, count, chunk, rans_states);
        require_chunks(words, count, chunk, chunk);
        require_one_each(counts, count, chunk);
        run(&Entropy::rans_encode, symbols.data(), of_each, count, frequencies.data(), frequencies.shape(0), chunk, states.data(),
            words.data(), counts.data());
    }, "symbols", "contexts", "frequencies", "chunk", "states", "words", "counts");

    define(module, "rans_decode", +[](Matrix<const uint32_t> states, Matrix<const uint16_t> words, Matrix<const uint64_t> ends,
                                      Contexts contexts, Matrix<const uint32_t> tables, size_t chunk, BytesOut out,
                                      Matrix<uint32_t> finals, Matrix<uint64_t> taken) {
        const size_t count = out.shape(1);
        require_shape(out, 1, count);
        require_shape(words, 1, words.shape(1));
        require_shape(tables, tables.shape(0), rans_slots);
        const uint8_t* of_each = require_contexts(contexts, count, tables);
        require_chunks(states, count, chunk, rans_states);
        require_chunks(finals, count, chunk, rans_states);
        require_one_each(ends, count, chunk);
        require_one_each(taken, count, chunk);
        run(&Entropy::rans_decode, states.data(), words.data(), words.shape(1), ends.data(), of_each, tables.data(), chunk, out.data(),
            count, finals.data(), taken.data());
    }, "states", "words", "ends", "contexts", "tables", "chunk", "out", "finals", "taken");

#define X(bits)                                                                                                                         \
    define(module, "rans_decode_floats", rans_decode_floats<&Entropy::rans_decode_floats_##bits, uint##bits##_t>, "states", "words", "ends", \
           "table", "low", "chunk", "out", "finals", "taken");                                                                               \
    define(module, "delta_count", delta_count<&Entropy::delta_count_##bits, uint##bits##_t>, "base", "tuned", "mantissa", "counts");    \
    define(module, "delta_split", delta_split<&Entropy::delta_split_##bits, uint##bits##_t>, "base", "tuned", "chunk", "symbols", "low", \
           "sizes");                                                                                                                    \
    define(module, "delta_contexts", delta_contexts<&Entropy::delta_contexts_##bits, uint##bits##_t>, "base", "map", "mantissa",        \
           "contexts");                                                                                                                 \
    define(module, "delta_join", delta_join<&Entropy::delta_join_##bits, uint##bits##_t>, "base", "symbols", "low", "ends", "chunk",    \
           "out", "used");
    X(16) X(32)
#undef X
}

}  // namespace flyweight
