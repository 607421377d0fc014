/*
 * mem.c - allocation with tags, exact counters and failure on demand. Each block carries a 64-byte
 * head with its size and tag, so that freeing needs neither. Invariant: the counters equal the
 * blocks that are alive.
 *
 * A large block comes from calloc, which knows that fresh memory of the system is zero and does not
 * touch it. A short text uses little of the buffers of a pass.
 */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/os.h"

#define HEAD_SIZE 64 /* keeps the payload on a cache line */
#define LARGE ((size_t)256 << 10)
/* From here on what huge pages of 2 MiB round a block up by is less than a sixteenth of it. */
#define HUGE_FROM ((size_t)32 << 20)
#define HUGE_SIZE ((size_t)2 << 20)
/* Hardware clears a huge page in half a millisecond. Slower ones come from a virtual machine's
   host. */
#define HUGE_SLOW_S 2e-3
#define HUGE_MOST_SLOW 3 /* the next one changes to small pages */

struct head {
    size_t size; /* payload bytes */
    enum pi_mem_tag tag;
    void *start; /* of the C library's block */
};

static _Atomic int64_t used[PI_MEM_N_TAG];
static _Atomic int64_t n_alloc;
static _Atomic int64_t fail_at; /* 0: never */
static _Atomic bool fail_for_ever;

static bool must_fail(void)
{
    int64_t n = atomic_fetch_add(&n_alloc, 1) + 1;
    int64_t at = atomic_load(&fail_at);
    return at != 0 && (n == at || (n > at && atomic_load(&fail_for_ever)));
}

void *pi_mem_alloc(enum pi_mem_tag tag, size_t size)
{
    if (size > SIZE_MAX - 3 * HEAD_SIZE || must_fail())
        return NULL;
    size_t whole = pi_align(HEAD_SIZE + size, HEAD_SIZE);
    bool large = whole >= LARGE;
    char *start = large ? calloc(1, whole + HEAD_SIZE) : aligned_alloc(HEAD_SIZE, whole);
    if (start == NULL)
        return NULL;
    char *base = start + (HEAD_SIZE - (uintptr_t)start % HEAD_SIZE) % HEAD_SIZE;
    if (!large)
        memset(base, 0, whole);
    struct head *head = (struct head *)base;
    head->start = start;
    head->size = size;
    head->tag = tag;
    atomic_fetch_add(&used[tag], (int64_t)size);
    return base + HEAD_SIZE;
}

void *pi_mem_alloc_n(enum pi_mem_tag tag, size_t n, size_t size)
{
    size_t whole;
    return pi_mul_size(n, size, &whole) ? pi_mem_alloc(tag, whole) : NULL;
}

void *pi_mem_grow(enum pi_mem_tag tag, void *old, size_t n, size_t size)
{
    void *block = pi_mem_alloc_n(tag, n, size);
    if (block == NULL || old == NULL)
        return block;
    size_t old_size = ((struct head *)((char *)old - HEAD_SIZE))->size;
    memcpy(block, old, old_size < n * size ? old_size : n * size);
    pi_mem_free(old);
    return block;
}

char *pi_mem_strndup(enum pi_mem_tag tag, const char *text, size_t len)
{
    if (len == SIZE_MAX)
        return NULL;
    char *copy = pi_mem_alloc(tag, len + 1);
    if (copy != NULL && len > 0)
        memcpy(copy, text, len);
    return copy;
}

void pi_mem_free(void *block)
{
    if (block == NULL)
        return;
    struct head *head = (struct head *)((char *)block - HEAD_SIZE);
    atomic_fetch_sub(&used[head->tag], (int64_t)head->size);
    free(head->start);
}

size_t pi_mem_size(const void *block)
{
    return block == NULL ? 0 : ((const struct head *)((const char *)block - HEAD_SIZE))->size;
}

void *pi_mem_map(enum pi_mem_tag tag, size_t size)
{
    if (size == 0 || must_fail())
        return NULL;
    void *block = mmap(NULL, size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block == MAP_FAILED)
        return NULL;
    atomic_fetch_add(&used[tag], (int64_t)size);
    return block;
}

void *pi_mem_map_whole(enum pi_mem_tag tag, size_t size)
{
    void *block = pi_mem_map(tag, size);
#if defined(MADV_HUGEPAGE)
    if (block != NULL && size >= HUGE_FROM)
        madvise(block, size, MADV_HUGEPAGE); /* a hint */
#endif
    return block;
}

void pi_mem_fresh_took(struct pi_mem_fresh *fresh, double seconds)
{
    int32_t slow = atomic_load(&fresh->slow), next;
    do {
        if (slow < 0)
            return;
        if (seconds < HUGE_SLOW_S)
            next = slow > 0 ? slow - 1 : 0;
        else
            next = slow < HUGE_MOST_SLOW ? slow + 1 : -1;
    } while (!atomic_compare_exchange_weak(&fresh->slow, &slow, next));
#if defined(MADV_NOHUGEPAGE)
    if (next < 0)
        madvise(fresh->block, fresh->size, MADV_NOHUGEPAGE); /* a hint */
#endif
}

void pi_mem_fresh_touch(struct pi_mem_fresh *fresh, void *at, size_t size)
{
    uintptr_t begin = (uintptr_t)at, first = pi_align(begin, HUGE_SIZE);
    if (fresh->size < HUGE_FROM)
        return;
    for (uintptr_t p = first; p < begin + size && atomic_load(&fresh->slow) >= 0; p += HUGE_SIZE) {
        double start = pi_thread_time_s();
        *((volatile uint8_t *)at + (p - begin)) = 0;
        pi_mem_fresh_took(fresh, pi_thread_time_s() - start);
    }
}

void pi_mem_unmap(enum pi_mem_tag tag, void *block, size_t size)
{
    if (block == NULL)
        return;
    munmap(block, size);
    atomic_fetch_sub(&used[tag], (int64_t)size);
}

void pi_mem_drop(void *at, size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), skip = (page - (uintptr_t)at % page) % page;
    if (skip + page <= size)
        madvise((uint8_t *)at + skip, (size - skip) / page * page, MADV_DONTNEED);
}

int64_t pi_mem_used(enum pi_mem_tag tag)
{
    return atomic_load(&used[tag]);
}

int64_t pi_mem_fail_at(int64_t n, bool for_ever)
{
    atomic_store(&fail_at, n);
    atomic_store(&fail_for_ever, for_ever);
    return atomic_exchange(&n_alloc, 0);
}
