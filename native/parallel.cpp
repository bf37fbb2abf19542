// A product takes some hundred microseconds and a model calls for thousands a second: starting threads, or waking sleeping
// ones each time, would cost a good part of the work. Helpers therefore watch for work for a while before they sleep, and the caller never
// waits for one that has not begun: it takes the pieces itself.
#include "parallel.hpp"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <system_error>
#include <thread>

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

    void run(const Job& next) {
        while (started_ < next.helpers) {
            try {
                std::thread([this, index = started_] { help(index); }).detach();
            } catch (const std::system_error&) {
                break;  // the system gives no more threads: the caller does more itself
            }
            ++started_;
        }
        job_ = next;
        row_.store(0);
        open_.store(true);
        called_.fetch_add(1);
        called_.notify_all();
        take();
        // A helper says it is inside before it looks whether the job is open, so after this none begins and none is missed.
        open_.store(false);
        until_changed(inside_, [](unsigned inside) { return inside == 0; });
    }

  private:
    void take() {
        for (;;) {
            const size_t first = row_.fetch_add(job_.piece);
            if (first >= job_.rows) return;
            job_.work(job_.what, first, job_.rows - first < job_.piece ? job_.rows : first + job_.piece);
        }
    }

    [[noreturn]] void help(unsigned index) {
        unsigned seen = 0;
        for (;;) {
            seen = until_changed(called_, [seen](unsigned called) { return called != seen; });
            inside_.fetch_add(1);
            if (open_.load() && index < job_.helpers) take();
            inside_.fetch_sub(1);
            inside_.notify_all();
        }
    }

    Job job_{};
    unsigned started_ = 0;
    std::atomic<size_t> row_ = 0;
    std::atomic<bool> open_ = false;
    std::atomic<unsigned> called_ = 0, inside_ = 0;
};

// Never destroyed: helpers watch it until the process ends. A forked child has none of them and makes its own.
std::atomic<Pool*> latest = nullptr;

Pool& current() {
    Pool* found = latest.load();
    if (found && found->owner == getpid()) return *found;
    Pool* made = new Pool;
    if (latest.compare_exchange_strong(found, made)) return *made;
    delete made;
    return *found;
}

}  // namespace

void over_rows(size_t rows, size_t piece, unsigned threads, RowWork work, const void* what) {
    if (threads > 1 && rows > piece) {
        Pool& pool = current();
        const std::unique_lock<std::mutex> mine(pool.mutex, std::try_to_lock);
        if (mine.owns_lock()) return pool.run({work, what, rows, piece, threads - 1});
    }
    work(what, 0, rows);
}

}  // namespace flyweight
