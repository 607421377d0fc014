/*
 * memory.c - memory that the host cannot see. Each block is pages of the system of its own. Outside
 * of the device's operations they are poisoned for AddressSanitizer, or in other builds protected.
 * So code that takes an address for a pointer crashes there. The bytes that round a block up stay
 * poisoned. Invariant: memory is open while some thread is inside, and closed otherwise. Weights
 * alone may stay open: closing them took a quarter of a test's time. They close at each eighth
 * leave, which suffices: code that reads them wrongly does so at each step.
 */
#define _DEFAULT_SOURCE

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device/checked/checked.h"

#if defined(__SANITIZE_ADDRESS__)
#define POISONS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define POISONS 1
#endif
#endif

#if defined(POISONS)
#include <sanitizer/asan_interface.h>
#define JOINS false /* the bytes after a block stay poisoned */
#else
#define JOINS true
#endif

struct block {
    struct block *next; /* of the next higher address */
    uint8_t *at;
    size_t size;
    size_t mapped; /* whole pages of the system */
    enum pi_mem_tag tag;
};

/* Pages of the store, weights, and all else: most operations of the store open the first alone. */
enum { PAGES, WEIGHTS, OTHERS, N_PART };

/* Leaves after which weights close. */
#define WEIGHTS_TURN 8

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* All of the lock. */
static struct {
    struct block *first;
    int32_t n_inside; /* threads */
    uint32_t n_left;  /* how often the last one left */
    bool open;
} parts[N_PART];

static int part_of(enum pi_mem_tag tag)
{
    if (tag == PI_MEM_KV)
        return PAGES;
    return tag == PI_MEM_WEIGHTS ? WEIGHTS : OTHERS;
}

/* ---- open and closed ---- */

/* `size` bytes of a block or of several side by side, which take `mapped` bytes. */
static void set_bytes(uint8_t *at, size_t size, size_t mapped, bool open)
{
#if defined(POISONS)
    if (open)
        ASAN_UNPOISON_MEMORY_REGION(at, size);
    else
        ASAN_POISON_MEMORY_REGION(at, mapped);
#else
    (void)size;
    if (mprotect(at, mapped, open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
        abort(); /* a test that goes on would prove nothing */
#endif
}

/* Opens or closes a part. Blocks that lie side by side take one call of the system. */
static void set_part(int part, bool open)
{
    const struct block *b = parts[part].first;
    if (parts[part].open == open)
        return;
    parts[part].open = open;
    while (b != NULL) {
        uint8_t *at = b->at;
        size_t size = b->size, mapped = b->mapped;
        for (b = b->next; b != NULL && b->at == at + mapped && JOINS; b = b->next)
            mapped += b->mapped;
        set_bytes(at, size, mapped, open);
    }
}

static int n_parts(enum checked_what what)
{
    return what == CHECKED_ALL ? N_PART : PAGES + 1;
}

void checked_enter(enum checked_what what)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_parts(what); i++) {
        parts[i].n_inside++;
        set_part(i, true);
    }
    pthread_mutex_unlock(&lock);
}

void checked_leave(enum checked_what what)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_parts(what); i++)
        if (--parts[i].n_inside == 0 && (i != WEIGHTS || ++parts[i].n_left % WEIGHTS_TURN == 0))
            set_part(i, false);
    pthread_mutex_unlock(&lock);
}

/* ---- a part of a block ---- */

/* The unit in which memory opens. */
#if defined(POISONS)
#define UNIT 64
#else
#define UNIT ((size_t)sysconf(_SC_PAGESIZE))
#endif

/* Whether the block of an address is open. */
static bool is_open(struct pi_at where)
{
    for (int i = 0; i < N_PART; i++)
        for (const struct block *b = parts[i].first; b != NULL; b = b->next)
            if (where.at - (uintptr_t)b->at < b->mapped)
                return parts[i].open;
    return true; /* of no block: the operation will crash */
}

static void set_range(struct pi_at from, size_t size, bool open)
{
    uintptr_t unit = UNIT, begin = from.at / unit * unit;
    size_t n = pi_align(from.at + size - begin, unit);
    set_bytes((uint8_t *)begin, n, n, open);
}

void checked_enter_range(struct pi_at from, size_t size)
{
    pthread_mutex_lock(&lock);
    if (!is_open(from))
        set_range(from, size, true);
}

void checked_leave_range(struct pi_at from, size_t size)
{
    if (!is_open(from))
        set_range(from, size, false);
    pthread_mutex_unlock(&lock);
}

void checked_copy_out(struct pi_at from, size_t size, void *out)
{
    checked_enter_range(from, size);
    if (size > 0)
        memcpy(out, (const void *)from.at, size);
    checked_leave_range(from, size);
}

void checked_copy_in(const void *in, size_t size, struct pi_at to)
{
    checked_enter_range(to, size);
    if (size > 0)
        memcpy((void *)to.at, in, size);
    checked_leave_range(to, size);
}

/* ---- blocks ---- */

/* Puts a block in its place among the others, open or closed as these are. */
static void add(struct block *b)
{
    int part = part_of(b->tag);
    struct block **at = &parts[part].first;
    pthread_mutex_lock(&lock);
    while (*at != NULL && (*at)->at < b->at)
        at = &(*at)->next;
    set_bytes(b->at, b->size, b->mapped, parts[part].open);
    b->next = *at;
    *at = b;
    pthread_mutex_unlock(&lock);
}

/* The block at an address, which is no longer among the others. */
static struct block *take_out(struct pi_at where)
{
    struct block *found = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < N_PART && found == NULL; i++) {
        struct block **at = &parts[i].first;
        while (*at != NULL && (uintptr_t)(*at)->at != where.at)
            at = &(*at)->next;
        found = *at;
        if (found != NULL)
            *at = found->next;
    }
    pthread_mutex_unlock(&lock);
    if (found == NULL)
        abort(); /* no address that the device gave out, or one that was given back */
    return found;
}

struct pi_at checked_alloc(struct pi_device *d, enum pi_mem_tag tag, size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), mapped = size > 0 ? pi_align(size, page) : page;
    struct block *b = size <= SIZE_MAX / 2 ? pi_mem_alloc(PI_MEM_OTHER, sizeof(*b)) : NULL;
    if (b == NULL)
        return (struct pi_at){0};
    *b = (struct block){.size = size, .mapped = mapped, .tag = tag};
    b->at = pi_mem_map(tag, mapped);
    if (b->at == NULL) {
        pi_mem_free(b);
        return (struct pi_at){0};
    }
    add(b);
    atomic_fetch_add(&d->bytes, (int64_t)size);
    return (struct pi_at){(uintptr_t)b->at};
}

void checked_free(struct pi_device *d, struct pi_at at)
{
    if (!pi_at_some(at))
        return;
    checked_wait(NULL);
    struct block *b = take_out(at);
    atomic_fetch_sub(&d->bytes, (int64_t)b->size);
#if defined(POISONS)
    ASAN_UNPOISON_MEMORY_REGION(b->at, b->mapped); /* others may get the addresses */
#endif
    pi_mem_unmap(b->tag, b->at, b->mapped);
    pi_mem_free(b);
}

void checked_unmap(struct pi_device *d, enum pi_mem_tag tag, struct pi_at at, size_t size)
{
    (void)tag;
    (void)size;
    checked_free(d, at);
}
