// The bindings of the products: check the arrays, make the activations ready, share the rows between threads.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "binding.hpp"
#include "parallel.hpp"
#include "products/activations.hpp"
#include "products/bf16_products.hpp"
#include "products/panels.hpp"
#include "products/tiles.hpp"
#include "products/woven_products.hpp"
#include "streams/streams.hpp"
#include "weaving/weaving.hpp"

#include <nanobind/stl/string.h>

namespace flyweight {
namespace {

constexpr double most_kept = 0.75;  // of the blocks: a mask that drops fewer costs more than it saves
constexpr size_t most_threads = 256, most_matrices = 64, few_items = 8;

// A form, and its kernels in the tables; the last two are null for floats.
struct Form {
    const char* name;
    Order order;
    size_t elements, bytes;
    int bits, scale_parts;
    bool maskable;
    int rows_in_byte;  // of groups across the rows, else 0
    ProductKernel FloatProducts::*f32;
    ProductKernel Int8Products::*int8;
    ProductKernel Int8Panels::*panels;
    ProductKernel WovenProducts::*woven[3] = {};  // instead of those: of f32, of few bytes, of many; activations are rotated
};

template <class Row>
constexpr int rows_in_byte() {
    if constexpr (requires { Row::across; }) return 8 / Row::code_bits;
    return 0;
}

template <class Row>
constexpr Form form_of(const char* name, ProductKernel FloatProducts::*f32, ProductKernel Int8Products::*int8 = nullptr,
                       ProductKernel Int8Panels::*panels = nullptr) {
    return {name, Row::order, Row::elements, Row::bytes, Row::bits, Row::scale_parts, requires { Row::maskable; },
            rows_in_byte<Row>(), f32, int8, panels};
}

template <class Row>
constexpr Form woven_form(const char* name, ProductKernel WovenProducts::*f32, ProductKernel WovenProducts::*int8, ProductKernel WovenProducts::*panels) {
    Form form = form_of<Row>(name, nullptr);
    form.woven[0] = f32, form.woven[1] = int8, form.woven[2] = panels;
    return form;
}

constexpr Form forms[] = {
#define X(form, ...) form_of<rows::form>(#form, &FloatProducts::form, &Int8Products::form, &Int8Panels::form),
    FLYWEIGHT_FORMS_OF_CODES(X)
#undef X
#define X(form, ...) form_of<rows::form>(#form, &FloatProducts::form),
    FLYWEIGHT_FORMS_OF_FLOATS(X)
#undef X
#define X(form) woven_form<rows::form>(#form, &WovenProducts::form##_f32, &WovenProducts::form##_int8, &WovenProducts::form##_panels),
    FLYWEIGHT_WOVEN_FORMS(X)
#undef X
};

constexpr size_t form_named(std::string_view name) {
    size_t index = 0;
    while (index < std::size(forms) && name != forms[index].name) ++index;
    return index;
}

constexpr size_t palette4 = form_named("palette4"), bf16_form = form_named("bf16"), e2m1 = form_named("e2m1"), e4m3 = form_named("e4m3");

ScaleType scale_type(const std::string& name) {
    require(name == "f32" || name == "f16" || name == "bf16", "scales are f32, f16 or bf16");
    return name == "f32" ? ScaleType::f32 : name == "f16" ? ScaleType::f16 : ScaleType::bf16;
}

// Weights and the arrays that hold them -------------------------------------------------------------

struct StoredMatrix {
    Weights weights;
    std::array<nb::object, 3> parts;  // keep what the weights point to

    // `scale`: the type of the scales, where they are an array. `length`: columns of a run of tabled forms, or 0 for one pair; of a group
    // where scales are steps.
    // `block`: columns of a block of the mask, the last array, or 0.
    StoredMatrix(const std::string& form_name, nb::object codes_array, nb::object second_array, nb::object third_array,
                 const std::string& scale_name, size_t length, size_t block)
        : weights{}, parts{codes_array, second_array, third_array} {
        const size_t index = form_named(form_name);
        require(index < std::size(forms), "no such form");
        const Form& form = forms[index];
        const bool tabled = form_name.rfind("tabled", 0) == 0;
        const Bytes codes = nb::cast<Bytes>(codes_array, false);
        Weights& w = weights;
        w.form = index;
        w.codes = codes.data(), w.rows = codes.shape(0), w.stride = codes.shape(1);
        w.columns = w.stride / form.bytes * form.elements;
        require(w.stride % form.bytes == 0 && w.columns % 32 == 0, "a row is not whole blocks");
        if (index == palette4) {
            const Bytes table = nb::cast<Bytes>(second_array, false);
            require(table.shape(0) == 1 && table.shape(1) == 64, "a palette has sixteen values");
            for (size_t i = 0; i < 64; ++i) w.planes[i] = table.data()[i % 16 * 4 + i / 16];
        } else if (tabled) {
            const Bytes entries = nb::cast<Bytes>(second_array, false);
            require(length % 32 == 0, "a run is whole chunks");
            w.scale = entries.data(), w.groups = length ? (w.columns + length - 1) / length : 0;
            w.group_chunks = std::max<size_t>(1, (length ? length : w.columns) / 32);
            require(length ? entries.shape(0) == w.rows && entries.shape(1) == 16 * w.groups : entries.size() == 16 || !w.columns,
                    "codes and entries disagree in shape");
        } else if (form.rows_in_byte) {
            const Bytes scale = nb::cast<Bytes>(second_array, false), zero = nb::cast<Bytes>(third_array, false);
            w.scale_type = scale_type(scale_name);
            w.rows *= size_t(form.rows_in_byte);
            w.scale = scale.data(), w.bias = zero.data(), w.groups = scale.shape(0);
            require(scale.shape(1) == w.columns * scale_bytes(w.scale_type), "codes and scales disagree in shape");
            require(zero.shape(0) == scale.shape(0) && zero.shape(1) == scale.shape(1), "scale and zero differ in shape");
            require(w.groups ? w.rows % (w.groups * across_tile) == 0 : !w.rows, "a group across the rows has a multiple of eight");
        } else if (scale_name == "steps") {
            const Bytes steps = nb::cast<Bytes>(second_array, false), common = nb::cast<Bytes>(third_array, false);
            require(form.scale_parts == 2 && length % 32 == 0 && (length || !w.columns), "a group is whole chunks");
            w.scale_type = ScaleType::steps;
            w.groups = length ? (w.columns + length - 1) / length : 0;
            w.group_chunks = std::max<size_t>(1, length / 32);
            w.scale = steps.data(), w.scale_stride = (12 * w.groups + 7) / 8;
            w.bias = common.data(), w.bias_stride = 4;
            require(steps.shape(0) == w.rows && steps.shape(1) == w.scale_stride, "codes and steps disagree in shape");
            require(common.shape(0) == w.rows && common.shape(1) == w.bias_stride, "codes and scales disagree in shape");
        } else if (index == e2m1 || index == e4m3) {
            const Bytes scale = nb::cast<Bytes>(second_array, false);
            require(scale_name == (index == e2m1 ? "e8m0" : "f32"), "e2m1 has exponents for scales, e4m3 f32");
            w.scale = scale.data(), w.groups = index == e2m1 ? w.columns / 32 : 1;
            require(scale.shape(0) == w.rows && scale.shape(1) == (index == e2m1 ? w.groups : sizeof(float)), "codes and scales disagree in shape");
        } else if (form.woven[0]) {
            const Bytes scale = nb::cast<Bytes>(second_array, false), tables = nb::cast<Bytes>(third_array, false);
            require(scale_name == "f16" && scale.shape(0) == w.rows && scale.shape(1) == 2, "a row of woven codes has one f16");
            require(tables.shape(0) == 1 && tables.shape(1) == sizeof(WovenTables) && w.columns % 64 == 0, "woven codes have six tables");
            w.scale = scale.data(), w.groups = 1, w.bias = tables.data();
        } else if (form.scale_parts) {
            const Bytes scale = nb::cast<Bytes>(second_array, false);
            w.scale_type = scale_type(scale_name);
            const size_t each = scale_bytes(w.scale_type);
            w.scale = scale.data(), w.scale_stride = scale.shape(1), w.groups = scale.shape(1) / each;
            w.group_chunks = w.groups ? w.columns / 32 / w.groups : 1;
            require(scale.shape(0) == w.rows && scale.shape(1) == w.groups * each && w.group_chunks > 0 &&
                    w.groups * w.group_chunks * 32 == w.columns, "codes and scales disagree in shape");
            if (form.scale_parts == 2) {
                const Bytes bias = nb::cast<Bytes>(third_array, false);
                require(bias.shape(0) == w.rows && bias.shape(1) == scale.shape(1), "scale and bias differ in shape");
                w.bias = bias.data(), w.bias_stride = bias.shape(1);
            }
        }
        if (block) {
            require(form.maskable && (!tabled || (length > 0 && block % length == 0)), "no mask for this form");
            const Bytes mask = nb::cast<Bytes>(tabled ? third_array : second_array, false);
            const size_t blocks = (w.columns + block - 1) / block;
            w.mask_bytes = mask.shape(1), w.block_chunks = block / 32;
            require(block % 32 == 0 && mask.shape(0) == w.rows && w.mask_bytes == (blocks + 7) / 8,
                    "the mask and the weights disagree in shape");
            size_t kept = 0;
            for (size_t i = 0; i < mask.size(); ++i) kept += size_t(__builtin_popcount(mask.data()[i]));
            if (double(kept) <= most_kept * double(w.rows * blocks)) w.mask = mask.data();
        }
    }
};

// An array of f32 as the buffer protocol gives it: a tenth of a microsecond, and products come by the thousand.
class FloatBuffer {
  public:
    FloatBuffer(nb::handle array, int dimensions, bool written) {
        if (array.is_none()) return;
        const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (written ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(array.ptr(), &view_, flags)) throw nb::python_error();
        held_ = true;
        if (!view_.format || std::strcmp(view_.format, "f") || view_.ndim != dimensions || uintptr_t(view_.buf) % alignof(float)) {
            PyBuffer_Release(&view_);
            throw nb::type_error("arrays of a product are f32, aligned, x and out of two dimensions");
        }
    }
    ~FloatBuffer() {
        if (held_) PyBuffer_Release(&view_);
    }
    FloatBuffer(const FloatBuffer&) = delete;

    float* data() const { return held_ ? static_cast<float*>(view_.buf) : nullptr; }
    size_t shape(int axis) const { return size_t(view_.shape[axis]); }

  private:
    Py_buffer view_;
    bool held_ = false;
};

// One call -----------------------------------------------------------------------------------------

struct Part {
    const Weights* weights;
    Products to;
    size_t rows, pieces;  // rows of a piece, pieces of the part
};

enum Type { f32, int8, bf16, types };

struct Call {
    Part parts[most_matrices];
    size_t count = 0;
    bool rounded = false;  // whether activations may be
    Activations activations{}, rotated{};  // as forms take them that are not, and that are woven
    // For a gate, the two parts are its and that of what it lets through. Where a piece's rows are not neighbours, it comes after all pieces.
    void (*gate)(float* gate, const float* up, size_t count) = nullptr;
    bool gate_last = false;

    // What activations are for a form. Many are f32 where that is as fast.
    Type type(size_t form, size_t items) const {
        const int bits = forms[form].bits;
        if (!rounded) return f32;
        if (bits) return items < many || active<Int8Panels>().take_codes() ? int8 : f32;
        return form == bf16_form && items >= many && active<Bf16Products>().many ? bf16 : f32;
    }

    void run(const Part& part, size_t piece) const {
        const Weights& w = *part.weights;
        const Form& form = forms[w.form];
        const size_t first = piece * part.rows;
        const size_t last = std::min(w.rows, first + part.rows);
        if (form.woven[0]) {
            const int which = type(w.form, activations.count) == f32 ? 0 : activations.count < many ? 1 : 2;
            return (active<WovenProducts>().*form.woven[which])(w, rotated, first, last, part.to);
        }
        switch (type(w.form, activations.count)) {
            case int8:
                if (activations.count >= many) return (active<Int8Panels>().*form.panels)(w, activations, first, last, part.to);
                return (active<Int8Products>().*form.int8)(w, activations, first, last, part.to);
            case bf16: return active<Bf16Products>().many(w, activations, first, last, part.to);
            default: return (active<FloatProducts>().*form.f32)(w, activations, first, last, part.to);
        }
    }

    void let_through(size_t row, size_t rows) const {
        const Products &own = parts[0].to, &up = parts[1].to;
        for (size_t i = 0; i < activations.count; ++i) gate(own.out + i * own.stride + row, up.out + i * up.stride + row, rows);
    }
};

struct Preparation {
    const ActivationKernels& kernels;
    const float *x, *gain;
    float eps;
    size_t columns, runs;
    float *straight = nullptr, *ordered[orders] = {}, *sums = nullptr, *half_sums = nullptr, *rotated = nullptr;
    Rounded rounded[orders] = {};
    uint16_t* narrow = nullptr;

    Preparation(const float* x, const float* gain, float eps, size_t columns)
        : kernels(active<ActivationKernels>()), x(x), gain(gain), eps(eps), columns(columns), runs((columns / 32 + 7) / 8 * 8) {}

    // Memory for `items` of x, for what is wanted of them. The rest stays null.
    void take(Workspace& workspace, size_t items, const bool (&wants)[types][orders]) {
        if (gain) straight = workspace.take<float>(items * columns);
        for (Order order : {halves, pairs, fours}) {
            if (wants[f32][order]) ordered[order] = workspace.take<float>(items * columns);
            if (!wants[int8][order]) continue;
            const bool few = items < many;
            Rounded& to = rounded[order];
            to.codes = workspace.take<int8_t>(items * columns);
            if (!few) to.high = workspace.take<int8_t>(items * columns);
            to.scale = workspace.take<float>(items * (few ? columns / 4 : runs));
            to.sums = workspace.take<float>(items * runs);
            to.half_sums = workspace.take<float>(2 * items * runs);
        }
        if (wants[f32][halves] || wants[f32][pairs] || wants[f32][fours]) {
            sums = workspace.take<float>(items * runs);
            half_sums = workspace.take<float>(2 * items * runs);
        }
        if (wants[bf16][Order::straight]) narrow = workspace.take<uint16_t>(items * columns);
    }

    Activations activations(size_t items) const {
        return {items, columns, runs, {gain ? straight : x, ordered[halves], ordered[pairs], ordered[fours]},
                {{}, rounded[halves], rounded[pairs], rounded[fours]}, narrow, sums, half_sums};
    }

    void row(size_t i) const {
        const float* from = x + i * columns;
        if (gain) {
            kernels.normalize(from, columns, gain, eps, straight + i * columns);
            from = straight + i * columns;
        }
        if (sums) {
            clear(sums + i * runs, half_sums + 2 * i * runs);
            kernels.sum(from, columns, sums + i * runs, half_sums + 2 * i * runs);
        }
        for (Order order : {halves, pairs, fours}) {
            if (ordered[order]) kernels.reorder(from, columns, order, ordered[order] + i * columns);
            const Rounded& to = rounded[order];
            if (!to.codes) continue;
            const Rounded own = {to.codes + i * columns, to.high ? to.high + i * columns : nullptr, to.scale + i * (to.high ? runs : columns / 4),
                                 to.sums + i * runs, to.half_sums + 2 * i * runs};
            clear(own.sums, own.half_sums);
            kernels.quantize(from, columns, order, own);
        }
        if (rotated) active<Weaving>().rotate(from, columns, rotated + i * columns);
        if (narrow) active<Streams>().f32_to_bf16(from, columns, narrow + i * columns);
    }

  private:
    // What is beyond the columns.
    void clear(float* own, float* own_halves) const {
        std::fill(own + columns / 32, own + runs, 0.0f);
        std::fill(own_halves + columns / 16, own_halves + 2 * runs, 0.0f);
    }
};

// False: no memory.
bool multiply_all(Call& call, const float* x, size_t items, const float* gain, float eps, bool gated, size_t threads) {
    const size_t columns = call.parts[0].weights->columns, runs = (columns / 32 + 7) / 8 * 8;
    bool wants[2][types][orders] = {};  // of x, and of x rotated
    bool rotates = false;
    for (size_t i = 0; i < call.count; ++i) {
        const size_t form = call.parts[i].weights->form;
        const bool is_woven = forms[form].woven[0];
        wants[is_woven][call.type(form, items)][forms[form].order] = true;
        rotates |= is_woven;
        call.gate_last |= gated && forms[form].rows_in_byte && items < many;
    }
    const size_t gate_floats = gated ? items * call.parts[0].weights->rows : 0;
    // Of a column, in floats and bytes, at most: four orders of x; three of codes, their second bytes and scales; bf16. And for what is rotated.
    Workspace workspace((1 + rotates) * items * (columns * (4 * sizeof(float) + 3 * (2 + sizeof(float) / 4) + sizeof(uint16_t)) + runs * (4 * 3 + 3) * sizeof(float)) +
                        gate_floats * sizeof(float) + (1 + rotates) * 64 * 24);
    if (!workspace) return false;
    Preparation both[2] = {{x, gain, eps, columns}, {nullptr, nullptr, eps, columns}};
    Preparation &ready = both[0], &rotated = both[1];
    ready.take(workspace, items, wants[0]);
    if (rotates) {
        rotated.x = ready.rotated = workspace.take<float>(items * columns);
        rotated.take(workspace, items, wants[1]);
    }
    if (gated) {
        call.parts[1].to.out = workspace.take<float>(gate_floats);
        call.parts[1].to.stride = call.parts[0].weights->rows;
    }
    over_rows(items, few_items, unsigned(threads), [](const void* what, size_t first, size_t last, unsigned) noexcept {
        const auto* both = static_cast<const Preparation*>(what);
        for (size_t i = first; i < last; ++i) {
            both[0].row(i);
            if (both[1].x) both[1].row(i);
        }
    }, both);
    call.activations = ready.activations(items), call.rotated = rotated.activations(items);

    // Small enough to be shared evenly, large enough not to be fetched often.
    size_t bytes = 0, pieces = 0;
    for (size_t i = 0; i < call.count; ++i) bytes += call.parts[i].weights->rows * call.parts[i].weights->stride;
    const size_t share = std::min<size_t>(64 << 10, std::max<size_t>(8 << 10, bytes / (threads * 4)));
    for (size_t i = 0; i < call.count; ++i) {
        Part& part = call.parts[i];
        part.rows = (share / (part.weights->stride + 1) / 16 + 1) * 16;
        part.pieces = (part.weights->rows + part.rows - 1) / part.rows;
        pieces += part.pieces;
    }
    if (gated) {
        call.parts[1].rows = call.parts[0].rows;
        pieces = call.parts[0].pieces;
    }
    over_rows(pieces, 1, unsigned(threads), [](const void* what, size_t first, size_t last, unsigned) noexcept {
        const Call& call = *static_cast<const Call*>(what);
        for (size_t piece = first; piece < last; ++piece) {
            if (call.gate) {
                const Part& gate = call.parts[0];
                call.run(gate, piece);
                call.run(call.parts[1], piece);
                const size_t row = piece * gate.rows;
                if (!call.gate_last) call.let_through(row, std::min(gate.rows, gate.weights->rows - row));
                continue;
            }
            size_t at = piece;
            const Part* part = call.parts;
            while (at >= part->pieces) at -= part++->pieces;
            call.run(*part, at);
        }
    }, &call);
    if (call.gate_last) call.let_through(0, call.parts[0].weights->rows);
    return true;
}

const Weights& weights_of(nb::handle matrix) {
    static PyObject* const name = PyUnicode_InternFromString("native");
    return nb::cast<const StoredMatrix&>(nb::steal<nb::object>(PyObject_GetAttr(matrix.ptr(), name))).weights;
}

void check(const Call& call, const FloatBuffer& x, const FloatBuffer& out, nb::handle gain, const FloatBuffer& gains, size_t rows, size_t threads) {
    const size_t columns = call.parts[0].weights->columns;
    for (size_t i = 1; i < call.count; ++i) require(call.parts[i].weights->columns == columns, "matrices differ in columns");
    require(x.data() && out.data(), "x and out must be arrays");
    require(x.shape(0) >= 1 && x.shape(1) == columns && out.shape(0) == x.shape(0) && out.shape(1) == rows,
            "x, out and the weights disagree in shape");
    require(gain.is_none() || gains.shape(0) == columns, "the gain and the weights disagree in columns");
    require(threads >= 1 && threads <= most_threads, "threads must be 1 to 256");
}

nb::object multiply(nb::sequence matrices, nb::handle x_array, nb::handle out_array, nb::handle gain_array, float eps, nb::handle bias_array,
                    bool add, bool int8, size_t threads) {
    const FloatBuffer x(x_array, 2, false), out(out_array, 2, true), gain(gain_array, 1, false), bias(bias_array, 1, false);
    Call call;
    call.rounded = int8;
    size_t rows = 0;
    for (nb::handle matrix : matrices) {
        require(call.count < most_matrices, "a product takes at most 64 matrices");
        const Weights& w = weights_of(matrix);
        call.parts[call.count++] = {&w, {out.data() + rows, 0, bias.data() ? bias.data() + rows : nullptr, add}, 0, 0};
        rows += w.rows;
    }
    require(call.count > 0, "a product needs a matrix");
    for (size_t i = 0; i < call.count; ++i) call.parts[i].to.stride = rows;
    check(call, x, out, gain_array, gain, rows, threads);
    require(bias_array.is_none() || bias.shape(0) == rows, "the bias and the weights disagree in rows");
    return without_gil([&] { return multiply_all(call, x.data(), x.shape(0), gain.data(), eps, false, threads); });
}

nb::object gated(nb::handle gate, nb::handle up, nb::handle x_array, nb::handle out_array, const char* activation, nb::handle gain_array,
                 float eps, bool int8, size_t threads) {
    const FloatBuffer x(x_array, 2, false), out(out_array, 2, true), gain(gain_array, 1, false);
    const Weights &first = weights_of(gate), &second = weights_of(up);
    Call call;
    call.rounded = int8;
    call.count = 2;
    call.parts[0] = {&first, {out.data(), first.rows, nullptr, false}, 0, 0};
    call.parts[1] = {&second, {nullptr, first.rows, nullptr, false}, 0, 0};
    call.gate = !std::strcmp(activation, "silu")        ? active<ActivationKernels>().silu
                : !std::strcmp(activation, "gelu_tanh") ? active<ActivationKernels>().gelu_tanh
                                                        : nullptr;
    require(call.gate, "no such activation");
    require(first.rows == second.rows, "gate and up differ in rows");
    check(call, x, out, gain_array, gain, first.rows, threads);
    return without_gil([&] { return multiply_all(call, x.data(), x.shape(0), gain.data(), eps, true, threads); });
}

}  // namespace

void bind_products(nb::module_& module) {
    using namespace nb::literals;
    nb::class_<StoredMatrix>(module, "_Matrix")
        .def(nb::init<const std::string&, nb::object, nb::object, nb::object, const std::string&, size_t, size_t>(), "form"_a, "codes"_a,
             "second"_a = nb::none(), "third"_a = nb::none(), nb::kw_only(), "scale"_a = "", "length"_a = 0, "block"_a = 0);
    module.def("multiply", multiply, "matrices"_a, "x"_a, "out"_a, nb::kw_only(), "gain"_a.none(), "eps"_a, "bias"_a.none(), "add"_a,
               "int8"_a, "threads"_a);
    module.def("gated", gated, "gate"_a, "up"_a, "x"_a, "out"_a, nb::kw_only(), "activation"_a, "gain"_a.none(), "eps"_a, "int8"_a,
               "threads"_a);
}

}  // namespace flyweight
