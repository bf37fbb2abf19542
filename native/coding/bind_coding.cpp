// The bindings of the kernels of single codecs.
#include "binding.hpp"
#include "coding/coding.hpp"
#include "coding/masks.hpp"

namespace flyweight {
namespace {

// Groups of 64 values and runs of 4096.
template <typename C, typename Planes, typename Low, typename Runs>
void require_runs(size_t count, int base, const Planes& planes, const Low& low, const Runs& runs) {
    require(base >= 0 && base <= 249, "seven exponents begin at the base");
    require_shape(planes, divided_up(count, group_size), C::planes, "groups disagree");
    require_shape(low, divided_up(count, group_size), C::low_bytes * group_size, "groups disagree");
    require_shape(runs, 1, divided_up(count, run_size), "runs disagree");
}

template <typename C, auto Kernel>
void lossless_count(Matrix<const typename C::Word> words, Matrix<uint64_t> counts) {
    require_shape(words, 1, words.shape(1));
    require_shape(counts, 1, 256, "there are 256 exponents");
    run(Kernel, words.data(), words.shape(1), counts.data());
}

template <typename C, auto Kernel>
void lossless_encode(Matrix<const typename C::Word> words, int base, Matrix<uint64_t> planes, BytesOut low, BytesOut escapes,
                     Matrix<uint32_t> counts) {
    require(words.shape(0) == 1 && escapes.shape(0) == 1, "words and escapes are one row");
    require_runs<C>(words.shape(1), base, planes, low, counts);
    run(Kernel, words.data(), words.shape(1), base, planes.data(), low.data(), escapes.data(), escapes.shape(1), counts.data());
}

template <typename C, auto Kernel>
void lossless_decode(Matrix<const uint64_t> planes, Bytes low, Matrix<const uint32_t> starts, Bytes escapes, int base,
                     Matrix<uint32_t> counts, Matrix<typename C::Word> out) {
    require(out.shape(0) == 1 && escapes.shape(0) == 1, "words and escapes are one row");
    require_runs<C>(out.shape(1), base, planes, low, starts);
    require_runs<C>(out.shape(1), base, planes, low, counts);
    run(Kernel, planes.data(), low.data(), starts.data(), escapes.data(), escapes.shape(1), base, counts.data(), out.data(),
        out.shape(1));
}

template <auto Kernel, typename T>
void magnitudes(Matrix<const T> values, size_t group, FloatsOut out) {
    require_shape(out, values.shape(0), groups_of(values.shape(1), group));
    run(Kernel, values.data(), values.shape(0), values.shape(1), group, out.data());
}

template <auto Kernel, typename T>
void fp8_codes(Matrix<const T> values, Floats scale, size_t group, bool divide, bool wide, BytesOut out) {
    const size_t rows = values.shape(0), columns = values.shape(1);
    require_shape(scale, rows, groups_of(columns, group));
    require_shape(out, rows, columns);
    run(Kernel, values.data(), rows, columns, scale.data(), group, divide, wide, out.data());
}

template <typename Mask>
void require_mask(const Mask& mask, size_t rows, size_t columns) {
    require(mask.shape(0) == rows, "arrays disagree in shape");
    require_stream(columns, 1, mask.shape(1));
}

template <auto Kernel, typename T>
void sign_encode(Matrix<const T> values, BytesOut packed, DoublesOut sums) {
    require_mask(packed, values.shape(0), values.shape(1));
    require_shape(sums, values.shape(0), 1);
    run(Kernel, values.data(), values.shape(0), values.shape(1), packed.data(), packed.shape(1), sums.data());
}

template <auto Kernel, typename Word>
void mark(Matrix<const Word> words, Word keep, BytesOut mask) {
    require_mask(mask, words.shape(0), words.shape(1));
    run(Kernel, words.data(), words.shape(0), words.shape(1), keep, mask.data(), mask.shape(1));
}

template <auto Kernel, typename Word>
void gather(Bytes mask, Matrix<const Word> words, Matrix<Word> out) {
    require_mask(mask, words.shape(0), words.shape(1));
    require_shape(out, 1, out.shape(1));
    run(Kernel, mask.data(), mask.shape(0), mask.shape(1), words.data(), words.shape(1), out.data(), out.shape(1));
}

template <auto Kernel, typename Word>
void expand(Bytes mask, Matrix<const Word> values, Matrix<Word> out) {
    require_mask(mask, out.shape(0), out.shape(1));
    require_shape(values, 1, values.shape(1));
    run(Kernel, mask.data(), mask.shape(0), mask.shape(1), values.data(), values.shape(1), out.data(), out.shape(1));
}

template <auto Kernel, typename Index>
void places(Bytes mask, size_t columns, Matrix<Index> out) {
    require_mask(mask, mask.shape(0), columns);
    require_shape(out, 1, out.shape(1));
    run(Kernel, mask.data(), mask.shape(0), mask.shape(1), columns, out.data(), out.shape(1));
}

}  // namespace

void bind_coding(nb::module_& module) {
#define X(type, Cut)                                                                                                                 \
    define(module, "lossless_count_" #type, lossless_count<Cut, &Coding::lossless_count_##type>, "words", "counts");                 \
    define(module, "lossless_encode_" #type, lossless_encode<Cut, &Coding::lossless_encode_##type>, "words", "base", "planes",       \
           "low", "escapes", "counts");                                                                                              \
    define(module, "lossless_decode_" #type, lossless_decode<Cut, &Coding::lossless_decode_##type>, "planes", "low", "starts",       \
           "escapes", "base", "counts", "out");
    X(bf16, CutBf16) X(f16, CutF16) X(f32, CutF32)
#undef X
#define X(suffix, T)                                                                                                          \
    define(module, "magnitudes", magnitudes<&Coding::magnitudes##suffix, T>, "values", "group", "out");                       \
    define(module, "fp8_codes", fp8_codes<&Coding::fp8_codes##suffix, T>, "values", "scale", "group", "divide", "wide", "out"); \
    define(module, "sign_encode", sign_encode<&Coding::sign_encode##suffix, T>, "values", "packed", "sums");
    X(, float) X(_bf16, uint16_t)
#undef X
#define X(bits)                                                                                  \
    define(module, "mark", mark<&Masks::mark_##bits, uint##bits##_t>, "words", "keep", "mask");      \
    define(module, "gather", gather<&Masks::gather_##bits, uint##bits##_t>, "mask", "words", "out"); \
    define(module, "expand", expand<&Masks::expand_##bits, uint##bits##_t>, "mask", "values", "out");
    X(8) X(16) X(32)
#undef X
    define(module, "places", places<&Masks::places_u32, uint32_t>, "mask", "columns", "out");
    define(module, "places", places<&Masks::places_i64, int64_t>, "mask", "columns", "out");

    define(module, "table_decode", +[](Bytes codes, Floats table, Floats scale, size_t group, FloatsOut out) {
        const size_t rows = codes.shape(0), columns = codes.shape(1);
        require_shape(table, 1, 256);
        require_shape(scale, rows, groups_of(columns, group), "columns and groups disagree");
        require_shape(out, rows, columns);
        run(&Coding::table_decode, codes.data(), rows, columns, table.data(), scale.data(), group, out.data());
    }, "codes", "table", "scale", "group", "out");

    define(module, "f8q8_decode", +[](Bytes blocks, Floats scales, FloatsOut out) {
        require_shape(scales, 1, 256);
        require_shape(blocks, out.shape(0), f8q8_bytes, "a row is not one block");
        require_shape(out, blocks.shape(0), f8q8_size, "a row is not one block");
        run(&Coding::f8q8_decode, blocks.data(), blocks.shape(0), scales.data(), out.data());
    }, "blocks", "scales", "out");

    define(module, "f8q8_encode", +[](Floats values, Bytes first, Floats inverse, BytesOut blocks) {
        require_shape(values, blocks.shape(0), f8q8_size, "a row is not one block");
        require_shape(first, values.shape(0), 1, "a block has one of each");
        require_shape(inverse, values.shape(0), 1, "a block has one of each");
        require_shape(blocks, values.shape(0), f8q8_bytes, "a row is not one block");
        run(&Coding::f8q8_encode, values.data(), values.shape(0), first.data(), inverse.data(), blocks.data());
    }, "values", "first", "inverse", "blocks");

    define(module, "mxfp4_codes", +[](Floats values, Floats inverse, BytesOut out) {
        require_shape(values, out.shape(0), 32, "a row is not one block");
        require_shape(inverse, values.shape(0), 1, "a block has one of each");
        require_shape(out, values.shape(0), 16, "a row is not one block");
        run(&Coding::mxfp4_codes, values.data(), values.shape(0), inverse.data(), out.data());
    }, "values", "inverse", "out");

    define(module, "add_product", +[](Floats left, Floats right, FloatsOut out) {
        const size_t rows = left.shape(0), rank = left.shape(1), columns = right.shape(1);
        require_shape(right, rank, columns);
        require_shape(out, rows, columns);
        run(&Coding::add_product, left.data(), rows, rank, right.data(), columns, out.data());
    }, "left", "right", "out");
}

}  // namespace flyweight
