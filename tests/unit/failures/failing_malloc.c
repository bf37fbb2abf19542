/* malloc and its kin, of which one call can be made to fail.
 *
 * Loaded with LD_PRELOAD. Calls for at least `least` bytes are counted; the one with number `failing` gives NULL and ENOMEM.
 * Counting is per process and over all threads. Small calls are left to succeed: they are the interpreter's own.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static atomic_long count, failing = -1;
static atomic_size_t least = (size_t)-1;

/* From now on the call `number` (0 is the next) fails; -1 for none. Returns how many calls there were since the last time. */
long failing_malloc_set(long number, size_t bytes)
{
    long before = atomic_exchange(&count, 0);
    atomic_store(&failing, number);
    atomic_store(&least, bytes);
    return before;
}

static int fails(size_t size)
{
    if (size < atomic_load_explicit(&least, memory_order_relaxed))
        return 0;
    if (atomic_fetch_add(&count, 1) != atomic_load(&failing))
        return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t size) { return fails(size) ? NULL : __libc_malloc(size); }

void *calloc(size_t items, size_t size)
{
    size_t whole;
    if (!__builtin_mul_overflow(items, size, &whole) && fails(whole))
        return NULL;
    return __libc_calloc(items, size);
}

void *realloc(void *block, size_t size) { return fails(size) ? NULL : __libc_realloc(block, size); }
void *memalign(size_t alignment, size_t size) { return fails(size) ? NULL : __libc_memalign(alignment, size); }
void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **block, size_t alignment, size_t size)
{
    void *made = memalign(alignment, size);
    if (made == NULL)
        return ENOMEM;
    *block = made;
    return 0;
}
