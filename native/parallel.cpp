// A product takes some hundred microseconds and a model calls for thousands a second: starting threads, or waking sleeping
// ones each time, would cost a good part of the work. Helpers therefore watch for work for a while before they sleep, and the caller never
// waits for one that has not begun: it takes the pieces itself.
#include "parallel.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>

namespace flyweight {
namespace {

constexpr auto watch = std::chrono::microseconds(200);  // longer than choosing a token takes

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Watches, then sleeps: on a busy machine the thread waited for may need this very core. Whoever changes it must notify.
template <typename Done>
unsigned until_changed(const std::atomic<unsigned>& number, Done done) {
    const auto begun = std::chrono::steady_clock::now();
    for (;;) {
        const unsigned now = number.load();
        if (done(now)) return now;
        if (std::chrono::steady_clock::now() - begun > watch) number.wait(now);
        pause();
    }
}

struct Job {
    RowWork work;
    const void* what;
    size_t rows, piece;
    unsigned helpers;
};

class Pool {
  public:
    const pid_t owner = getpid();
    std::mutex mutex;  // held by the one call that has the helpers

    void run(const Job& next) noexcept {
        while (started_ < next.helpers && start()) {}  // where the system gives no more threads, the caller does more itself
        job_ = next;
        row_.store(0);
        open_.store(true);
        called_.fetch_add(1);
        called_.notify_all();
        take(0);
        // A helper says it is inside before it looks whether the job is open, so after this none begins and none is missed.
        open_.store(false);
        until_changed(inside_, [](unsigned inside) { return inside == 0; });
    }

  private:
    // Not by std::thread, which throws when it cannot.
    bool start() noexcept {
        pthread_t thread;
        const auto begin = [](void* pool) -> void* { static_cast<Pool*>(pool)->help(); };
        if (pthread_create(&thread, nullptr, begin, this)) return false;
        pthread_detach(thread);
        ++started_;
        return true;
    }

    void take(unsigned worker) noexcept {
        for (;;) {
            const size_t first = row_.fetch_add(job_.piece);
            if (first >= job_.rows) return;
            job_.work(job_.what, first, job_.rows - first < job_.piece ? job_.rows : first + job_.piece, worker);
        }
    }

    [[noreturn]] void help() noexcept {
        const unsigned worker = numbered_.fetch_add(1) + 1;
        unsigned seen = 0;
        for (;;) {
            seen = until_changed(called_, [seen](unsigned called) { return called != seen; });
            inside_.fetch_add(1);
            if (open_.load() && worker <= job_.helpers) take(worker);
            inside_.fetch_sub(1);
            inside_.notify_all();
        }
    }

    Job job_{};
    unsigned started_ = 0;
    std::atomic<size_t> row_ = 0;
    std::atomic<bool> open_ = false;
    std::atomic<unsigned> numbered_ = 0, called_ = 0, inside_ = 0;
};

// Never destroyed: helpers watch it until the process ends. A forked child has none of them and makes its own.
std::atomic<Pool*> latest = nullptr;

Pool* current() noexcept {  // null: no memory for one
    Pool* pool = latest.load();
    if (pool && pool->owner == getpid()) return pool;
    void* memory = std::malloc(sizeof(Pool));
    if (!memory) return nullptr;
    Pool* made = new (memory) Pool;
    if (latest.compare_exchange_strong(pool, made)) return made;
    made->~Pool();
    std::free(memory);
    return pool;
}

// The block of memory that is kept. A child forked while another thread has it allocates anew for every call.
std::mutex keeping;
unsigned char* block = nullptr;
size_t block_bytes = 0;

}  // namespace

void over_rows(size_t rows, size_t piece, unsigned threads, RowWork work, const void* what) noexcept {
    Pool* pool = threads > 1 && rows > piece ? current() : nullptr;
    if (pool) {
        const std::unique_lock<std::mutex> mine(pool->mutex, std::try_to_lock);
        if (mine.owns_lock()) return pool->run({work, what, rows, piece, threads - 1});
    }
    work(what, 0, rows, 0);
}

Workspace::Workspace(size_t bytes) noexcept : kept_(keeping, std::try_to_lock) {
    bytes = bytes / alignment * alignment + alignment;
    if (!kept_.owns_lock()) {
        data_ = static_cast<unsigned char*>(std::aligned_alloc(alignment, bytes));
    } else {
        if (block_bytes < bytes) {
            std::free(block);
            block = static_cast<unsigned char*>(std::aligned_alloc(alignment, bytes));
            block_bytes = block ? bytes : 0;
        }
        data_ = block;
    }
    next_ = data_;
}

Workspace::~Workspace() {
    if (!kept_.owns_lock()) std::free(data_);
}

}  // namespace flyweight
