// A call that lets other Python threads run, and may find no memory.
#pragma once

#include <nanobind/nanobind.h>

namespace flyweight {

// None, or MemoryError where `work` returns false: raised by Python, since throwing needs memory of its own (see parallel.hpp).
template <typename Work>
nanobind::object without_gil(Work work) {
    bool done;
    {
        const nanobind::gil_scoped_release release;
        done = work();
    }
    return done ? nanobind::none() : nanobind::steal(PyErr_NoMemory());
}

}  // namespace flyweight
