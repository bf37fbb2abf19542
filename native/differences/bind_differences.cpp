// The bindings of the kernels of differences.
#include "binding.hpp"
#include "differences/differences.hpp"

namespace flyweight {
namespace {

using Places = Matrix<const int64_t>;

template <typename... Arrays>
void require_one_row(const Arrays&... arrays) {
    require(((arrays.shape(0) == 1) && ...), "arrays are one row");
}

// Ascending, from `first`, and below first + size.
void require_places(const Places& places, size_t first, size_t size) {
    require_one_row(places);
    const int64_t* at = places.data();
    const size_t count = places.shape(1);
    bool ascending = true;
    for (size_t i = 1; i < count; ++i) ascending &= at[i - 1] < at[i];
    require(!count || (ascending && at[0] >= 0 && size_t(at[0]) >= first && size_t(at[count - 1]) - first < size),
            "places ascend within the range");
}

// A range that begins at column `first` lies in so many rows.
void require_rows_of(size_t count, size_t first, size_t columns, size_t rows) {
    require(first < columns && columns < size_t(1) << 62, "a range begins in a row");
    require(rows == (count ? (first + count - 1) / columns + 1 : 0), "rows disagree");
}

template <auto Kernel, typename T>
void difference(Matrix<const T> base, Matrix<const T> tuned, FloatsOut out) {
    require_one_row(base, tuned, out);
    require(base.shape(1) == out.shape(1) && tuned.shape(1) == out.shape(1), "arrays disagree in shape");
    run(Kernel, base.data(), tuned.data(), out.shape(1), out.data());
}

template <auto Kernel, typename T>
void error_sums(Matrix<const T> reference, Floats values, DoublesOut out) {
    require_one_row(reference, values);
    require(reference.shape(1) == values.shape(1), "arrays disagree in shape");
    require_shape(out, 1, 5);
    run(Kernel, reference.data(), values.data(), values.shape(1), out.data());
}

}  // namespace

void bind_differences(nb::module_& module) {
    define(module, "difference", difference<&Differences::difference_f32, float>, "base", "tuned", "out");
    define(module, "difference", difference<&Differences::difference_bf16, uint16_t>, "base", "tuned", "out");

    define(module, "error_sums", error_sums<&Differences::error_sums_f32, float>, "reference", "values", "out");
    define(module, "error_sums", error_sums<&Differences::error_sums_bf16, uint16_t>, "reference", "values", "out");

    define(module, "magnitude_counts", +[](Floats delta, uint32_t low, int shift, Matrix<uint64_t> counts, Matrix<uint32_t> largest) {
        require_one_row(delta, counts);
        require_shape(largest, 1, 1);
        require(delta.shape(1) < size_t(1) << 32, "a range has less than 2^32 values");
        require(low < 1u << 31 && shift >= 0 && shift < 31 && counts.shape(1) >= 1 && counts.shape(1) < size_t(1) << 32, "counters disagree");
        run(&Differences::magnitude_counts, delta.data(), delta.shape(1), low, shift, counts.data(), counts.shape(1), largest.data());
    }, "delta", "low", "shift", "counts", "largest");

    define(module, "keep_largest", +[](Floats delta, uint32_t threshold, size_t first, Matrix<int64_t> places, FloatsOut values,
                                       Matrix<uint64_t> state, FloatsOut rest) {
        require_one_row(delta);
        require(threshold < 1u << 31, "a magnitude has 31 bits");
        require_shape(places, 1, delta.shape(1));
        require_shape(values, 1, delta.shape(1));
        require_shape(state, 1, 2);
        require_shape(rest, 1, 2);
        run(&Differences::keep_largest, delta.data(), delta.shape(1), threshold, first, places.data(), values.data(), state.data(),
            rest.data());
    }, "delta", "threshold", "first", "places", "values", "state", "rest");

    define(module, "magnitude_sums", +[](Floats delta, size_t first, size_t columns, DoublesOut sums) {
        require_one_row(delta, sums);
        require_rows_of(delta.shape(1), first, columns, sums.shape(1));
        run(&Differences::magnitude_sums, delta.data(), delta.shape(1), first, columns, sums.data());
    }, "delta", "first", "columns", "sums");

    define(module, "add_signs", +[](Bytes packed, size_t first, size_t columns, Floats scales, FloatsOut values) {
        require_one_row(packed, scales, values);
        require_rows_of(values.shape(1), first, columns, scales.shape(1));
        require_stream(values.shape(1), 1, packed.shape(1));
        run(&Differences::add_signs, packed.data(), first, columns, scales.data(), values.data(), values.shape(1));
    }, "packed", "first", "columns", "scales", "values");

    define(module, "add_at", +[](Places places, size_t first, Floats addends, FloatsOut values) {
        require_one_row(values);
        require_places(places, first, values.shape(1));
        require_shape(addends, 1, places.shape(1));
        run(&Differences::add_at, places.data(), places.shape(1), first, addends.data(), values.data());
    }, "places", "first", "addends", "values");

    define(module, "drop_at", +[](Bytes codes, Places places, size_t first, BytesOut out) {
        require_one_row(codes);
        require_places(places, first, codes.shape(1));
        require_shape(out, 1, codes.shape(1) - places.shape(1));
        run(&Differences::drop_at, codes.data(), codes.shape(1), places.data(), places.shape(1), first, out.data());
    }, "codes", "places", "first", "out");

    define(module, "insert_at", +[](Floats rest, Places places, size_t first, Floats inserted, FloatsOut out) {
        require_one_row(out);
        require_places(places, first, out.shape(1));
        require_shape(rest, 1, out.shape(1) - places.shape(1));
        require_shape(inserted, 1, places.shape(1));
        run(&Differences::insert_at, rest.data(), places.data(), places.shape(1), first, inserted.data(), out.data(), out.shape(1));
    }, "rest", "places", "first", "inserted", "out");

    define(module, "pack_nibbles", +[](Bytes codes, BytesOut out) {
        require_one_row(codes);
        require_shape(out, 1, divided_up(codes.shape(1), 2));
        run(&Differences::pack_nibbles, codes.data(), codes.shape(1), out.data());
    }, "codes", "out");

    define(module, "nibble_levels", +[](Bytes packed, Floats levels, size_t skip, FloatsOut out) {
        require_one_row(packed, out);
        require_shape(levels, 1, 16);
        require(skip <= 1 && packed.shape(1) == divided_up(out.shape(1) + (out.shape(1) ? skip : 0), 2), "the codes do not fit the bytes");
        run(&Differences::nibble_levels, packed.data(), levels.data(), skip, out.data(), out.shape(1));
    }, "packed", "levels", "skip", "out");
}

}  // namespace flyweight
