// libFuzzer over the kernels that read stored bytes of untrusted tensors.
//
// An input chooses a kernel, sizes that its binding would let through, and the bytes. Every array ends where a page begins that
// may not be touched, so that one byte too far is a signal; the baseline is compiled with the address and undefined-behaviour
// sanitizers besides. The other instruction sets this processor has are compiled as they are shipped, and must give the same
// bits as the baseline, for any bytes at all.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "../../native/astc.hpp"
#include "../../native/codecs.hpp"
#include "../../native/kernels.hpp"

namespace {

using flyweight::CodecKernels;
using flyweight::Kernels;

struct Set {
    const char* name;
    const Kernels* kernels;
    const CodecKernels* codecs;
};

const std::vector<Set>& sets() {
    static const std::vector<Set> found = [] {
        std::vector<Set> runnable{{"baseline", &flyweight::baseline, &flyweight::codecs_baseline}};
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
            runnable.push_back({"avx2", &flyweight::avx2, &flyweight::codecs_avx2});
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vl"))
            runnable.push_back({"avx512", &flyweight::avx512, &flyweight::codecs_avx512});
        return runnable;
    }();
    return found;
}

// Memory that ends before a page without access. Arrays are handed out from its end, one at a time.
class Arena {
public:
    static constexpr size_t size = size_t(1) << 21;

    Arena() {
        const size_t page = size_t(sysconf(_SC_PAGESIZE));
        void* mapped = mmap(nullptr, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED || mprotect(static_cast<char*>(mapped) + size, page, PROT_NONE)) abort();
        end_ = static_cast<char*>(mapped) + size;
    }
    template <typename T>
    T* array(size_t count) const {
        if (count * sizeof(T) > size) abort();
        return reinterpret_cast<T*>(end_ - count * sizeof(T));
    }

private:
    char* end_;
};

class Input {
public:
    Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}

    size_t up_to(size_t most) {
        uint16_t raw = 0;
        read(&raw, sizeof raw);
        return raw % (most + 1);
    }
    size_t between(size_t least, size_t most) { return least + up_to(most - least); }

    // The next array of the input, with zeros where it is too short.
    template <typename T>
    const T* array(size_t count) {
        static const std::vector<Arena> arenas(8);
        if (used_ == arenas.size()) abort();
        T* made = arenas[used_++].array<T>(count);
        read(made, count * sizeof(T));
        return made;
    }

private:
    void read(void* to, size_t count) {
        const size_t there = count < left_ ? count : left_;
        if (there) memcpy(to, data_, there);
        memset(static_cast<char*>(to) + there, 0, count - there);
        data_ += there;
        left_ -= there;
    }

    const uint8_t* data_;
    size_t left_, used_ = 0;
};

// Which bits of an output count. Arithmetic may give any NaN for another: processors take the payload of one operand, and
// compilers choose which comes first.
enum class Bits { all, of_f32, of_bf16 };

bool is_nan(float value) { return value != value; }
bool is_nan(uint16_t bf16) { return (bf16 & 0x7FFF) > 0x7F80; }

template <Bits Counted, typename T>
bool agree(const T* a, const T* b, size_t count) {
    if (memcmp(a, b, count * sizeof(T)) == 0) return true;
    if constexpr (Counted != Bits::all) {
        for (size_t i = 0; i < count; ++i) {
            if (memcmp(a + i, b + i, sizeof(T)) != 0 && !(is_nan(a[i]) && is_nan(b[i]))) return false;
        }
        return true;
    }
    return false;
}

// Runs a kernel of every set into an array of `count` and compares what it writes.
template <Bits Counted, typename T>
void same(const char* kernel, size_t count, const std::function<void(const Set&, T*)>& run) {
    static const Arena arena, expected;
    T* first = expected.array<T>(count);
    for (const Set& set : sets()) {
        T* out = arena.array<T>(count);
        memset(out, 0xAA, count * sizeof(T));
        run(set, out);
        if (&set == &sets().front()) {
            memcpy(first, out, count * sizeof(T));
        } else if (!agree<Counted>(first, out, count)) {
            fprintf(stderr, "%s of %s differs from the baseline\n", kernel, set.name);
            abort();
        }
    }
}

template <typename Out>
constexpr Bits decoded = sizeof(Out) == 4 ? Bits::of_f32 : Bits::of_bf16;

size_t groups_of(size_t columns, size_t group) { return columns / group + (columns % group != 0); }
size_t bytes_of(size_t columns, int bits) { return (columns * size_t(bits) + 7) / 8; }

template <auto Kernel, size_t Elements, size_t Bytes, typename Out>
void decode_blocks(Input& in) {
    const size_t count = in.up_to(9);
    const uint8_t* blocks = in.array<uint8_t>(count * Bytes);
    same<decoded<Out>, Out>("decode", count * Elements, [&](const Set& set, Out* out) { (set.kernels->*Kernel)(blocks, count, out); });
}

template <auto Kernel, typename Out>
void decode_grouped(Input& in) {
    const size_t rows = in.up_to(3), columns = in.up_to(300), group = in.between(1, 130);
    const int bits = int(in.between(1, 8));
    const size_t nbytes = bytes_of(columns, bits) + in.up_to(5), groups = groups_of(columns, group);
    const float *scale = in.array<float>(rows * groups), *offset = in.array<float>(rows * groups);
    const uint8_t* packed = in.array<uint8_t>(rows * nbytes);
    same<decoded<Out>, Out>("decode_grouped", rows * columns, [&](const Set& set, Out* out) {
        (set.kernels->*Kernel)(packed, rows, nbytes, bits, scale, offset, group, out, columns);
    });
}

void unpack_bits(Input& in) {
    const size_t rows = in.up_to(3), count = in.up_to(400);
    const int bits = int(in.between(1, 8));
    const size_t nbytes = bytes_of(count, bits) + in.up_to(5);
    const uint8_t* packed = in.array<uint8_t>(rows * nbytes);
    same<Bits::all, uint8_t>("unpack_bits", rows * count,
                  [&](const Set& set, uint8_t* out) { set.kernels->unpack_bits(packed, rows, nbytes, bits, out, count); });
}

void pack_bits(Input& in) {
    const size_t rows = in.up_to(3), count = in.up_to(400);
    const int bits = int(in.between(1, 8));
    const size_t nbytes = bytes_of(count, bits) + in.up_to(5);
    const uint8_t* codes = in.array<uint8_t>(rows * count);
    same<Bits::all, uint8_t>("pack_bits", rows * nbytes,
                  [&](const Set& set, uint8_t* out) { set.kernels->pack_bits(codes, rows, count, bits, out, nbytes); });
}

void palette_decode(Input& in) {
    const size_t count = in.up_to(200), vector = in.between(1, 4), entries = size_t(1) << in.between(1, 8);
    const size_t run = in.between(1, 70), cycle = in.between(1, 200), start = in.up_to(90), tables = groups_of(cycle, run);
    const uint8_t* codes = in.array<uint8_t>(count);
    const float* table = in.array<float>(tables * entries * vector);
    same<Bits::all, float>("palette_decode", count * vector, [&](const Set& set, float* out) {
        set.kernels->palette_decode(codes, count, table, entries, vector, run, cycle, start, out);
    });
}

void table_decode(Input& in) {
    const size_t rows = in.up_to(3), columns = in.up_to(200), group = in.between(1, 100);
    const uint8_t* codes = in.array<uint8_t>(rows * columns);
    const float *table = in.array<float>(256), *scale = in.array<float>(rows * groups_of(columns, group));
    same<Bits::of_f32, float>("table_decode", rows * columns, [&](const Set& set, float* out) {
        set.kernels->table_decode(codes, rows, columns, table, scale, group, out);
    });
}

// The streams need not agree with one another: what they claim of escapes may be any number.
template <auto Kernel, typename Word, size_t Planes, size_t Low>
void lossless_decode(Input& in) {
    static const Arena arena;
    const size_t count = in.up_to(1) ? in.up_to(9000) : in.up_to(200), escapes = in.up_to(300);
    const size_t groups = groups_of(count, 64), runs = groups_of(count, 4096);
    const int base = int(in.up_to(249));
    const uint32_t* starts = in.array<uint32_t>(runs);
    const uint8_t* escaped = in.array<uint8_t>(escapes);
    const uint64_t* planes = in.array<uint64_t>(groups * Planes);
    const uint8_t* low = in.array<uint8_t>(groups * 64 * Low);
    same<Bits::all, Word>("lossless_decode", count, [&](const Set& set, Word* out) {
        (set.kernels->*Kernel)(planes, low, starts, escaped, escapes, base, arena.array<uint32_t>(runs), out, count);
    });
}

template <auto Kernel, typename Word>
void expand(Input& in) {
    const size_t rows = in.up_to(4), columns = in.up_to(200), count = in.up_to(300);
    const size_t nbytes = bytes_of(columns, 1) + in.up_to(3);
    const uint8_t* mask = in.array<uint8_t>(rows * nbytes);
    const Word* values = in.array<Word>(count);
    same<Bits::all, Word>("expand", rows * columns,
               [&](const Set& set, Word* out) { (set.kernels->*Kernel)(mask, rows, nbytes, values, count, out, columns); });
}

template <auto Kernel, typename Word>
void gather(Input& in) {
    const size_t rows = in.up_to(4), columns = in.up_to(200), count = in.up_to(300);
    const size_t nbytes = bytes_of(columns, 1) + in.up_to(3);
    const uint8_t* mask = in.array<uint8_t>(rows * nbytes);
    const Word* words = in.array<Word>(rows * columns);
    same<Bits::all, Word>("gather", count,
               [&](const Set& set, Word* out) { (set.codecs->*Kernel)(mask, rows, nbytes, words, columns, out, count); });
}

template <auto Kernel, typename Index>
void places(Input& in) {
    const size_t rows = in.up_to(4), columns = in.up_to(200), count = in.up_to(300);
    const size_t nbytes = bytes_of(columns, 1) + in.up_to(3);
    const uint8_t* mask = in.array<uint8_t>(rows * nbytes);
    same<Bits::all, Index>("places", count,
                [&](const Set& set, Index* out) { (set.codecs->*Kernel)(mask, rows, nbytes, columns, out, count); });
}

template <auto Kernel, typename From, typename To>
void cast(Input& in) {
    const size_t count = in.up_to(300);
    const From* values = in.array<From>(count);
    same<Bits::all, To>("cast", count, [&](const Set& set, To* out) { (set.kernels->*Kernel)(values, count, out); });
}

// One body for all sets: blocks of any bits, of which some are illegal, into images of any size.
void astc_decode(Input& in) {
    static const Arena values, flags;
    const size_t width = in.between(4, 12), height = in.between(4, 12), rows = in.up_to(30), columns = in.up_to(30);
    const size_t blocks = groups_of(rows, height) * groups_of(columns, width);
    const uint8_t* stored = in.array<uint8_t>(blocks * 16);
    flyweight::astc_decode(stored, width, height, 1.5f, -0.5f, {values.array<float>(rows * columns), rows, columns},
                           flags.array<uint8_t>(blocks));
}

using Case = void (*)(Input&);
const Case cases[] = {
#define X(type, elements, bytes)                                       \
    decode_blocks<&Kernels::decode_##type, elements, bytes, float>,    \
    decode_blocks<&Kernels::decode_##type##_bf16, elements, bytes, uint16_t>,
    FLYWEIGHT_DECODED(X)
#undef X
#define X(form) decode_grouped<&Kernels::form, float>, decode_grouped<&Kernels::form##_bf16, uint16_t>,
    X(decode_scale_bias) X(decode_scale_zero) X(decode_signed_bias) X(decode_symmetric)
#undef X
    decode_grouped<&Kernels::decode_scale_zero_f16, float>, decode_grouped<&Kernels::decode_signed_zero, float>,
    decode_grouped<&Kernels::decode_signed_zero_f16, float>,
    unpack_bits, pack_bits, palette_decode, table_decode,
    lossless_decode<&Kernels::lossless_decode_bf16, uint16_t, 3, 1>,
    lossless_decode<&Kernels::lossless_decode_f16, uint16_t, 6, 1>,
    lossless_decode<&Kernels::lossless_decode_f32, uint32_t, 3, 3>,
    expand<&Kernels::expand_8, uint8_t>, expand<&Kernels::expand_16, uint16_t>, expand<&Kernels::expand_32, uint32_t>,
    gather<&CodecKernels::gather_8, uint8_t>, gather<&CodecKernels::gather_16, uint16_t>,
    gather<&CodecKernels::gather_32, uint32_t>,
    places<&CodecKernels::places_u32, uint32_t>, places<&CodecKernels::places_i64, int64_t>,
    cast<&Kernels::bf16_to_f32, uint16_t, float>, cast<&Kernels::f16_to_f32, uint16_t, float>,
    cast<&Kernels::f32_to_bf16, float, uint16_t>, cast<&Kernels::f32_to_f16, float, uint16_t>,
    astc_decode,
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < 2) return 0;
    Input in(data + 1, size - 1);
    cases[data[0] % (sizeof cases / sizeof *cases)](in);
    return 0;
}
