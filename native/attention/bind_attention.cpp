// The bindings of attention: check the arrays, append the tokens, share tiles or chunks between threads.
#include <algorithm>

#include "attention/attend.hpp"
#include "binding.hpp"
#include "parallel.hpp"

namespace flyweight {
namespace {

using Gain = std::optional<Array<const float, 1>>;
using Stored = nb::ndarray<nb::ndim<3>, nb::c_contig, nb::device::cpu>;

constexpr size_t most_threads = 256, most_context = size_t(1) << 30, most_group = 32;
constexpr size_t worth_sharing = 1 << 17;  // multiplications below which waking a helper costs more than it takes over
constexpr size_t tokens_at_once = 16;

template <typename A>
void require_aligned(const A& array) {
    require(reinterpret_cast<uintptr_t>(array.data()) % 4 == 0, "an array is not aligned");
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

// What both kinds of cache share; keys is (kv_heads, context, head).
template <typename Keys, typename Values>
Attention checked(const FloatsOut& qkv, size_t heads, const Keys& keys, const Values& values, size_t start, const Floats& cos, const Floats& sin,
                  const FloatsOut& out, bool pairs, const Gain& q_gain, const Gain& k_gain, float eps, float scale, float cap, size_t window,
                  size_t threads) {
    Attention a = {};
    a.tokens = qkv.shape(0), a.heads = heads, a.kv_heads = keys.shape(0), a.context = keys.shape(1), a.head = keys.shape(2);
    a.start = start, a.window = window ? window : most_context, a.half = cos.shape(1), a.pairs = pairs;
    require(threads >= 1 && threads <= most_threads, "threads must be 1 to 256");
    require(a.head >= 8 && a.head % 8 == 0 && a.head <= most_heads, "a head has a multiple of 8 elements, at most 512");
    require(a.kv_heads >= 1 && heads >= 1 && heads % a.kv_heads == 0 && heads / a.kv_heads <= most_group, "1 to 32 heads share a key-value head");
    require(a.tokens >= 1 && qkv.shape(1) == a.stride(), "qkv is not (tokens, (heads + 2 kv_heads) head)");
    require(out.shape(0) == a.tokens && out.shape(1) == heads * a.head, "out is not (tokens, heads head)");
    require(values.shape(0) == a.kv_heads && values.shape(1) == a.context && values.shape(2) == a.head, "keys and values differ in shape");
    require(a.context <= most_context && start <= a.context && a.tokens <= a.context - start, "the tokens do not fit the cache");
    require(sin.shape(0) == cos.shape(0) && sin.shape(1) == a.half && 2 * a.half <= a.head, "cos and sin are not (positions, up to half a head)");
    require(!a.half || cos.shape(0) >= a.end(), "cos and sin end before the last position");
    require(!q_gain || q_gain->shape(0) == a.head, "q_gain is not one head");
    require(!k_gain || k_gain->shape(0) == a.head, "k_gain is not one head");
    require_aligned(qkv), require_aligned(out), require_aligned(keys), require_aligned(values), require_aligned(cos), require_aligned(sin);
    if (q_gain) require_aligned(*q_gain);
    if (k_gain) require_aligned(*k_gain);
    a.qkv = qkv.data(), a.out = out.data(), a.cos = cos.data(), a.sin = sin.data();
    a.q_gain = q_gain ? q_gain->data() : nullptr, a.k_gain = k_gain ? k_gain->data() : nullptr;
    a.eps = eps, a.scale = scale, a.cap = cap;
    a.keys = static_cast<uint8_t*>(static_cast<void*>(keys.data())), a.values = static_cast<uint8_t*>(static_cast<void*>(values.data()));
    return a;
}

nb::object attend(FloatsOut qkv, size_t heads, Stored keys, Stored values, size_t start, Floats cos, Floats sin, FloatsOut out, bool pairs,
                  Gain q_gain, Gain k_gain, float eps, float scale, float cap, size_t window, size_t threads) {
    const bool f32 = keys.dtype() == nb::dtype<float>();
    const bool f16 = keys.dtype() == nb::dlpack::dtype{uint8_t(nb::dlpack::dtype_code::Float), 16, 1};
    if (!(f32 || f16) || values.dtype() != keys.dtype()) throw nb::type_error("keys and values are both f32 or both f16");
    const Attention a = checked(qkv, heads, keys, values, start, cos, sin, out, pairs, q_gain, k_gain, eps, scale, cap, window, threads);
    const AttentionKernels& all = active<AttentionKernels>();
    const CacheKernels cache = f32 ? CacheKernels{.append = all.append_f32, .block = all.block_f32, .one = all.one_f32}
                                   : CacheKernels{.append = all.append_f16, .block = all.block_f16, .one = all.one_f16};
    return without_gil([&] { return attend_all(a, all, cache, threads); });
}

nb::object attend_int8(FloatsOut qkv, size_t heads, Array<uint8_t, 3> keys, Array<uint8_t, 3> values, Array<float, 4> key_grid,
                       Array<float, 3> value_grid, Array<float, 3> tail, size_t start, Floats cos, Floats sin, FloatsOut out, bool pairs,
                       Gain q_gain, Gain k_gain, float eps, float scale, float cap, size_t window, size_t threads) {
    Attention a = checked(qkv, heads, keys, values, start, cos, sin, out, pairs, q_gain, k_gain, eps, scale, cap, window, threads);
    require(a.context % key_group == 0, "an int8 cache holds whole groups of 64 tokens");
    require(key_grid.shape(0) == a.kv_heads && key_grid.shape(1) == a.context / key_group && key_grid.shape(2) == 2 && key_grid.shape(3) == a.head,
            "key_grid is not (kv_heads, context / 64, 2, head)");
    require(value_grid.shape(0) == a.kv_heads && value_grid.shape(1) == a.context && value_grid.shape(2) == 2, "value_grid is not (kv_heads, context, 2)");
    require(tail.shape(0) == a.kv_heads && tail.shape(1) == key_group && tail.shape(2) == a.head, "tail is not (kv_heads, 64, head)");
    require_aligned(key_grid), require_aligned(value_grid), require_aligned(tail);
    a.key_grid = key_grid.data(), a.value_grid = value_grid.data(), a.tail = tail.data();
    const AttentionKernels& all = active<AttentionKernels>();
    const CacheKernels cache = {.append = all.append_int8, .block = all.block_int8, .one = all.one_int8};
    return without_gil([&] { return attend_all(a, all, cache, threads); });
}

}  // namespace

void bind_attention(nb::module_& module) {
    define(module, "attend", attend, "qkv", "heads", "keys", "values", "start", "cos", "sin", "out", "pairs", "q_gain", "k_gain", "eps",
           "scale", "cap", "window", "threads");
    define(module, "attend_int8", attend_int8, "qkv", "heads", "keys", "values", "key_grid", "value_grid", "tail", "start", "cos", "sin",
           "out", "pairs", "q_gain", "k_gain", "eps", "scale", "cap", "window", "threads");

    define(module, "rms_norm", +[](Floats x, Array<const float, 1> gain, float eps, FloatsOut out, bool add) {
        const size_t rows = x.shape(0), columns = x.shape(1);
        require(gain.shape(0) == columns && out.shape(0) == rows && out.shape(1) == columns, "x, gain and out differ in shape");
        require(columns >= 1, "a row has at least one column");
        require_aligned(x), require_aligned(gain), require_aligned(out);
        run(&AttentionKernels::rms_norm, x.data(), rows, columns, gain.data(), eps, out.data(), add);
    }, "x", "gain", "eps", "out", "add");

    define(module, "softcap", +[](FloatsOut x, float cap) {
        require_aligned(x);
        run(&AttentionKernels::softcap, x.data(), x.size(), cap);
    }, "x", "cap");
}

}  // namespace flyweight
