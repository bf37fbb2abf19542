// The bindings of attention: check the arrays, append the tokens, share tiles or chunks between threads.
#include <algorithm>

#include "attention/attend.hpp"
#include "binding.hpp"
#include "parallel.hpp"

namespace flyweight {
namespace {

using Gain = std::optional<Array<const float, 1>>;
using Cached = nb::ndarray<nb::ndim<3>, nb::c_contig, nb::device::cpu>;

constexpr size_t most_threads = 256, most_context = size_t(1) << 30, most_group = 32;
constexpr size_t worth_sharing = 1 << 17;  // multiplications below which waking a helper costs more than it takes over
constexpr size_t tokens_at_once = 16;

// Where an array begins, or null for none.
template <typename A>
auto aligned(const A& array) {
    require(reinterpret_cast<uintptr_t>(array.data()) % 4 == 0, "an array is not aligned");
    return array.data();
}
template <typename A>
auto aligned(const std::optional<A>& array) {
    return array ? aligned(*array) : nullptr;
}

struct Task {
    const CacheKernels& kernels;
    const Attention& attention;
    float *own, *partials;  // memory of each worker, and of the call

    float* of(unsigned worker) const { return own + worker * workspace_floats(attention.head); }
};

// False: no memory.
bool attend_all(const Attention& a, const AttentionKernels& all, const CacheKernels& cache, size_t threads) {
    const bool one = a.tokens == 1;
    const size_t pieces = (one ? a.chunks() : a.tiles()) * a.kv_heads, seen = a.end() - a.first_key(a.start);
    const size_t sharing = one && seen * a.heads * a.head * 2 < worth_sharing ? 1 : std::min(threads, pieces);
    const size_t own = sharing * workspace_floats(a.head), partials = one ? a.chunks() * a.heads * partial_floats(a.head) : 0;
    Workspace workspace((own + partials) * sizeof(float) + 64 * 2);
    if (!workspace) return false;
    const Task task = {cache, a, workspace.take<float>(own), workspace.take<float>(partials)};
    over_rows(a.tokens, tokens_at_once, unsigned(threads), [](const void* what, size_t first, size_t last, unsigned) noexcept {
        const Task& t = *static_cast<const Task*>(what);
        t.kernels.append(t.attention, first, last);
    }, &task);
    if (a.tail) all.close_groups(a);
    if (one) {
        over_rows(pieces, 1, unsigned(sharing), [](const void* what, size_t first, size_t last, unsigned worker) noexcept {
            const Task& t = *static_cast<const Task*>(what);
            t.kernels.one(t.attention, first, last, t.of(worker), t.partials);
        }, &task);
        all.combine(a, task.partials);
    } else {
        over_rows(pieces, 1, unsigned(sharing), [](const void* what, size_t first, size_t last, unsigned worker) noexcept {
            const Task& t = *static_cast<const Task*>(what);
            t.kernels.block(t.attention, first, last, t.of(worker));
        }, &task);
    }
    if (a.tail) all.keep_tail(a);
    return true;
}

template <typename A>
bool has_shape(const A& array, std::initializer_list<size_t> shape) {
    return std::equal(shape.begin(), shape.end(), array.shape_ptr());
}

nb::object attend(FloatsOut qkv, size_t heads, Cached keys, Cached values, size_t start, Floats cos, Floats sin, FloatsOut out, bool pairs,
                  Gain q_gain, Gain k_gain, float eps, float scale, float cap, size_t window, size_t threads,
                  std::optional<Array<float, 4>> key_grid, std::optional<Array<float, 3>> value_grid, std::optional<Array<float, 3>> tail) {
    const bool f32 = keys.dtype() == nb::dtype<float>(), codes = keys.dtype() == nb::dtype<uint8_t>();
    const bool f16 = keys.dtype() == nb::dlpack::dtype{uint8_t(nb::dlpack::dtype_code::Float), 16, 1};
    if (!(f32 || f16 || codes) || values.dtype() != keys.dtype()) throw nb::type_error("keys and values are both f32, both f16 or both u8");
    Attention a = {};
    a.tokens = qkv.shape(0), a.heads = heads, a.kv_heads = keys.shape(0), a.context = keys.shape(1), a.head = keys.shape(2);
    a.start = start, a.window = window ? window : most_context, a.half = cos.shape(1), a.pairs = pairs;
    require(threads >= 1 && threads <= most_threads, "threads must be 1 to 256");
    require(a.head >= 8 && a.head % 8 == 0 && a.head <= most_heads, "a head has a multiple of 8 elements, at most 512");
    require(a.kv_heads >= 1 && heads >= 1 && heads % a.kv_heads == 0 && heads / a.kv_heads <= most_group, "1 to 32 heads share a key-value head");
    require(a.tokens >= 1 && qkv.shape(1) == a.stride(), "qkv is not (tokens, (heads + 2 kv_heads) head)");
    require(has_shape(out, {a.tokens, heads * a.head}), "out is not (tokens, heads head)");
    require(has_shape(values, {a.kv_heads, a.context, a.head}), "keys and values differ in shape");
    require(a.context <= most_context && start <= a.context && a.tokens <= a.context - start, "the tokens do not fit the cache");
    require(has_shape(sin, {cos.shape(0), a.half}) && 2 * a.half <= a.head, "cos and sin are not (positions, up to half a head)");
    require(!a.half || cos.shape(0) >= a.end(), "cos and sin end before the last position");
    require(!q_gain || q_gain->shape(0) == a.head, "q_gain is not one head");
    require(!k_gain || k_gain->shape(0) == a.head, "k_gain is not one head");
    require(codes == key_grid.has_value() && codes == value_grid.has_value() && codes == tail.has_value(), "grids and tail belong to a cache of u8");
    if (codes) {
        require(a.context % key_group == 0, "a cache of u8 holds whole groups of 64 tokens");
        require(has_shape(*key_grid, {a.kv_heads, a.context / key_group, 2, a.head}), "key_grid is not (kv_heads, context / 64, 2, head)");
        require(has_shape(*value_grid, {a.kv_heads, a.context, 2}), "value_grid is not (kv_heads, context, 2)");
        require(has_shape(*tail, {a.kv_heads, key_group, a.head}), "tail is not (kv_heads, 64, head)");
    }
    a.qkv = aligned(qkv), a.out = aligned(out), a.cos = aligned(cos), a.sin = aligned(sin);
    a.q_gain = aligned(q_gain), a.k_gain = aligned(k_gain);
    a.key_grid = aligned(key_grid), a.value_grid = aligned(value_grid), a.tail = aligned(tail);
    a.eps = eps, a.scale = scale, a.cap = cap;
    a.keys = static_cast<uint8_t*>(aligned(keys)), a.values = static_cast<uint8_t*>(aligned(values));
    const AttentionKernels& all = active<AttentionKernels>();
    const CacheKernels cache = codes ? CacheKernels{.append = all.append_int8, .block = all.block_int8, .one = all.one_int8}
                               : f32 ? CacheKernels{.append = all.append_f32, .block = all.block_f32, .one = all.one_f32}
                                     : CacheKernels{.append = all.append_f16, .block = all.block_f16, .one = all.one_f16};
    return without_gil([&] { return attend_all(a, all, cache, threads); });
}

}  // namespace

void bind_attention(nb::module_& module) {
    define(module, "attend", attend, "qkv", "heads", "keys", "values", "start", "cos", "sin", "out", "pairs", "q_gain", "k_gain", "eps",
           "scale", "cap", "window", "threads", "key_grid", "value_grid", "tail");

    define(module, "rms_norm", +[](Floats x, Array<const float, 1> gain, float eps, FloatsOut out, bool add) {
        const size_t rows = x.shape(0), columns = x.shape(1);
        require(gain.shape(0) == columns && has_shape(out, {rows, columns}), "x, gain and out differ in shape");
        require(columns >= 1, "a row has at least one column");
        run(&AttentionKernels::rms_norm, aligned(x), rows, columns, aligned(gain), eps, aligned(out), add);
    }, "x", "gain", "eps", "out", "add");

    define(module, "softcap", +[](FloatsOut x, float cap) {
        run(&AttentionKernels::softcap, aligned(x), x.size(), cap);
    }, "x", "cap");
}

}  // namespace flyweight
