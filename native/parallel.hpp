// Work on rows shared between the caller and a few threads that stay, and the memory it needs.
//
// A call out of memory ends in an error of its caller. That has to be arranged: an exception in a helper ends the process, and so does
// glibc where a thread's first use of thread-local data, which throwing is too, finds no memory. So pieces of work neither
// allocate nor throw, workspaces are allocated by the caller before the work starts, and nothing here is thread-local or throws.
#pragma once

#include <cstddef>
#include <mutex>

namespace flyweight {

// `worker` is 0 for the caller, 1 to threads − 1 for helpers: no two of one number work at once.
using RowWork = void (*)(const void* what, size_t first, size_t last, unsigned worker) noexcept;

// work(what, …) over all rows, in pieces of `piece` rows, by at most `threads` threads with the caller among them. Which thread
// takes which piece is left to chance, so no result may depend on it. A call made while another one has the threads, or
// to which the system gives none, runs on its caller alone.
void over_rows(size_t rows, size_t piece, unsigned threads, RowWork work, const void* what) noexcept;

// Memory for one call: a block that is kept, since calls come by the thousand, or one of its own while another call has that.
class Workspace {
  public:
    explicit Workspace(size_t bytes) noexcept;
    ~Workspace();
    Workspace(const Workspace&) = delete;

    explicit operator bool() const { return data_; }  // false: no memory
    template <typename T>
    T* take(size_t count) {  // the next so many, of what was asked for with at most 64 bytes more for each taking
        T* taken = reinterpret_cast<T*>(next_);
        next_ += (count * sizeof(T) + alignment - 1) / alignment * alignment;
        return taken;
    }

  private:
    static constexpr size_t alignment = 64;
    std::unique_lock<std::mutex> kept_;  // owned while this is the block that is kept
    unsigned char *data_ = nullptr, *next_ = nullptr;
};

}  // namespace flyweight
