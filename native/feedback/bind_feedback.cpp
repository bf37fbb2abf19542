// The bindings of quantizing with error feedback.
#include "binding.hpp"
#include "feedback/feedback.hpp"

namespace flyweight {
namespace {

// Columns of a matrix, a row for each, with what belongs to each of its rows: codes and errors; scales and biases of groups.
struct Columns {
    size_t columns, rows;

    Columns(const FloatsOut& values, const Floats& between, size_t first, const Floats& scale, const Floats& bias, size_t group,
            const Floats& levels, const BytesOut& codes, const FloatsOut& error)
        : columns(values.shape(0)), rows(values.shape(1)) {
        require(first <= between.shape(0) && first <= between.shape(1) && between.shape(0) - first >= columns &&
                    between.shape(1) - first >= columns,
                "the columns are not among those of the square matrix");
        const size_t groups = groups_of(columns, group);
        require_shape(scale, groups, rows, "columns and groups disagree");
        require_shape(bias, groups, rows, "columns and groups disagree");
        require(levels.shape(1) >= 1 && levels.shape(1) <= 256, "there are 1 to 256 levels");
        require(levels.shape(0) >= 1 && rows % levels.shape(0) == 0, "every table of levels is of as many rows");
        require_shape(codes, columns, rows, "a value has one code");
        require_shape(error, columns, rows, "a value has one error");
    }
};

const float* corner(const Floats& square, size_t at) { return square.data() + at * square.shape(1) + at; }

}  // namespace

void bind_feedback(nb::module_& module) {
    define(module, "feedback_codes", +[](Floats values, FloatsOut adjusted, Floats feedback, size_t first, Floats scale, Floats bias,
                                         size_t group, Floats levels, BytesOut codes, FloatsOut error) {
        const Columns all(adjusted, feedback, first, scale, bias, group, levels, codes, error);
        require_shape(values, all.columns, all.rows, "values and adjusted values disagree");
        run(&Feedback::feedback_codes, values.data(), adjusted.data(), all.columns, all.rows, corner(feedback, first),
            feedback.shape(1), scale.data(), bias.data(), group, levels.data(), levels.shape(0), levels.shape(1), codes.data(), error.data());
    }, "values", "adjusted", "feedback", "first", "scale", "bias", "group", "levels", "codes", "error");

    define(module, "descend_codes", +[](FloatsOut pull, Floats gram, size_t first, Floats scale, Floats bias, size_t group,
                                        Floats levels, BytesOut codes, FloatsOut error) {
        const Columns all(pull, gram, first, scale, bias, group, levels, codes, error);
        run(&Feedback::descend_codes, pull.data(), all.columns, all.rows, corner(gram, first), gram.shape(1), scale.data(),
            bias.data(), group, levels.data(), levels.shape(0), levels.shape(1), codes.data(), error.data());
    }, "pull", "gram", "first", "scale", "bias", "group", "levels", "codes", "error");

    define(module, "add_products", +[](Floats a, size_t row, size_t column, Floats b, FloatsOut out) {
        const size_t height = out.shape(0), width = out.shape(1), terms = b.shape(0);
        require(row <= a.shape(0) && a.shape(0) - row >= height && column <= a.shape(1) && a.shape(1) - column >= terms,
                "the first matrix has no such rows and columns");
        require_shape(b, terms, width, "the product has other columns");
        run(&Feedback::add_products, a.data() + row * a.shape(1) + column, a.shape(1), b.data(), terms, out.data(), height, width);
    }, "a", "row", "column", "b", "out");

    define(module, "factorize", +[](FloatsOut gram) {
        require(gram.shape(0) == gram.shape(1), "the matrix is not square");
        run(&Feedback::factorize, gram.data(), gram.shape(0));
    }, "gram");
}

}  // namespace flyweight
