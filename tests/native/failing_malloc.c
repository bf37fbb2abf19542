// Preloaded: after fail_allocations(n, count), allocations n to n + count - 1 fail, in whatever thread they are made.
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stddef.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

static atomic_long made = LONG_MIN, first = 1, last = 0, failed = 0;

void fail_allocations(long n, long count) {
    atomic_store(&first, n);
    atomic_store(&last, n + count - 1);
    atomic_store(&failed, 0);
    atomic_store(&made, count ? 0 : LONG_MIN);
}

long allocations_failed(void) { return atomic_load(&failed); }

static int fails(void) {
    if (atomic_load_explicit(&made, memory_order_relaxed) < 0) return 0;
    const long now = atomic_fetch_add(&made, 1) + 1;
    if (now < atomic_load(&first) || now > atomic_load(&last)) return 0;
    atomic_fetch_add(&failed, 1);
    errno = ENOMEM;
    return 1;
}

void* malloc(size_t size) { return fails() ? NULL : __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return fails() ? NULL : __libc_calloc(count, size); }
void* realloc(void* old, size_t size) { return fails() ? NULL : __libc_realloc(old, size); }
void* aligned_alloc(size_t alignment, size_t size) { return fails() ? NULL : __libc_memalign(alignment, size); }
