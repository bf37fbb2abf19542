// What every binding shares: the types of arrays, what is required of them, and the call with the GIL released.
//
// flyweight.kernels has checked the arrays; the types here and `require` hold even without it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>

#include "dispatch.hpp"

namespace flyweight {

namespace nb = nanobind;

template <typename T, size_t Dimensions>
using Array = nb::ndarray<T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Matrix = Array<T, 2>;
using Bytes = Matrix<const uint8_t>;
using Floats = Matrix<const float>;
using Doubles = Matrix<const double>;
using BytesOut = Matrix<uint8_t>;
using FloatsOut = Matrix<float>;
using DoublesOut = Matrix<double>;

inline void require(bool holds, const char* what) {
    if (!holds) throw nb::value_error(what);
}

template <typename A>
void require_shape(const A& array, size_t rows, size_t columns, const char* what = "arrays disagree in shape") {
    require(array.shape(0) == rows && array.shape(1) == columns, what);
}

inline size_t divided_up(size_t count, size_t by) { return count / by + (count % by != 0); }

inline size_t groups_of(size_t columns, size_t group) {
    require(group >= 1, "a group has at least one column");
    return divided_up(columns, group);
}

// A row of `nbytes` holds so many codes: count · bits ≤ nbytes · 8, without overflow.
inline void require_stream(size_t count, int bits, size_t nbytes) {
    const size_t whole = count / 8, rest = count % 8;
    require(bits >= 1 && bits <= 8 && whole <= nbytes / size_t(bits) &&
                (rest * size_t(bits) + 7) / 8 <= nbytes - whole * size_t(bits),
            "the codes do not fit the bytes");
}

// kernel(arguments …) of the set that runs; other Python threads run meanwhile. The arguments are evaluated before.
template <class Family, typename Kernel, typename... Arguments>
void run(Kernel Family::*kernel, Arguments... arguments) {
    const nb::gil_scoped_release release;
    (active<Family>().*kernel)(arguments...);
}

// None, or MemoryError where `work`, done with the GIL released, returns false: raised by Python, since throwing needs memory of
// its own (see parallel.hpp).
template <typename Work>
nb::object without_gil(Work work) {
    bool done;
    {
        const nb::gil_scoped_release release;
        done = work();
    }
    return done ? nb::none() : nb::steal(PyErr_NoMemory());
}

template <typename T>
struct Argument {
    static auto named(const char* name) { return nb::arg(name); }
};
template <typename... Ts>
struct Argument<nb::ndarray<Ts...>> {
    static auto named(const char* name) { return nb::arg(name).noconvert(); }
};
template <typename T>
struct Argument<std::optional<T>> {
    static auto named(const char* name) { return Argument<T>::named(name).none(); }
};

// A function of Python, with a name for each argument. An array of another type is refused, not copied: a copy of what is written
// would be lost. One name may have several functions, and the types of the arrays choose: what decodes does so to f32 or to the bits
// of bf16.
template <typename Result, typename... Arguments, typename... Names>
void define(nb::module_& module, const char* name, Result (*function)(Arguments...), Names... names) {
    static_assert(sizeof...(Names) == sizeof...(Arguments));
    module.def(name, function, Argument<Arguments>::named(names)...);
}

}  // namespace flyweight
