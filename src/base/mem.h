/*
 * mem.h - every byte the library allocates, with a tag. The only caller of malloc.
 * Blocks are zeroed and aligned to 64 bytes (a cache line, an AVX-512 register).
 */
#ifndef PI_MEM_H
#define PI_MEM_H

#include "base/base.h"

enum pi_mem_tag {
    PI_MEM_MODEL,   /* metadata, vocabulary */
    PI_MEM_WEIGHTS, /* packed weights */
    PI_MEM_KV,      /* the page pool */
    PI_MEM_TABLE,   /* lanes and page tables */
    PI_MEM_SCRATCH, /* buffers of a pass */
    PI_MEM_OTHER,
    PI_MEM_DEVICE, /* what the host notes of a GPU, which stays as long as it is open */
    PI_MEM_N_TAG
};

/* Returns size zeroed bytes (size 0: a valid block), or NULL. Thread-safe, as all of these. */
void *pi_mem_alloc(enum pi_mem_tag tag, size_t size);

/* n * size bytes, NULL also when the product overflows. */
void *pi_mem_alloc_n(enum pi_mem_tag tag, size_t n, size_t size);

/* Like realloc of n * size bytes: keeps the contents, zeroes what is new; on failure returns NULL
   and leaves the old block. old may be NULL. */
void *pi_mem_grow(enum pi_mem_tag tag, void *old, size_t n, size_t size);

/* A terminated copy of len bytes. */
char *pi_mem_strndup(enum pi_mem_tag tag, const char *text, size_t len);

void pi_mem_free(void *block);

/* The size that a block was asked for; 0 for NULL. */
size_t pi_mem_size(const void *block);

/* The next n elements of a block that holds several arrays, each on cache lines of its own; *used
   counts its bytes. With base NULL they are only counted. */
static inline void *pi_mem_part(uint8_t *base, size_t *used, size_t n, size_t size)
{
    void *part = base == NULL ? NULL : base + *used;
    *used += pi_align(n * size, 64);
    return part;
}

/* size zeroed bytes straight from the system, which gives memory only for bytes that are touched,
   in its small pages. So a large map that is little used costs little. Not a pi_mem_alloc block:
   free with pi_mem_unmap. */
void *pi_mem_map(enum pi_mem_tag tag, size_t size);
/* The same of a block that will be touched whole, as weights are. It is in huge pages where the
   system has them and rounding is small. */
void *pi_mem_map_whole(enum pi_mem_tag tag, size_t size);
void pi_mem_unmap(enum pi_mem_tag tag, void *block, size_t size);
/* Gives the memory of the system's pages that lie within [at, at + size) of a mapped block back:
   what they held stays or becomes zero. Touching them takes memory again. */
void pi_mem_drop(void *at, size_t size);

/*
 * The first touch of a block from pi_mem_map_whole, part by part, by any threads. Huge pages of a
 * virtual machine may have been given back to its host, which takes them again one small page after
 * the other. Small pages come from memory that was in use before, in a fraction of the time. So
 * where huge pages turn out to be slow, the rest of the block is taken in small ones.
 */
struct pi_mem_fresh {
    void *block;
    size_t size;
    _Atomic int32_t slow; /* huge pages that were slow, less those that were not; below 0: small
                             pages from here on */
};

static inline struct pi_mem_fresh pi_mem_fresh(void *block, size_t size)
{
    return (struct pi_mem_fresh){block, size, 0};
}

/* The calling thread will write [at, at + size) next, for the first time. */
void pi_mem_fresh_touch(struct pi_mem_fresh *fresh, void *at, size_t size);

/* Says what processor time a huge page took. For pi_mem_fresh_touch, and for tests. */
void pi_mem_fresh_took(struct pi_mem_fresh *fresh, double seconds);

/* Bytes in use now under a tag. */
int64_t pi_mem_used(enum pi_mem_tag tag);

/* For tests: the n-th allocation from now (1 = the next) fails, and all later ones too when
   for_ever; n 0 switches it off. Returns the allocations counted since the last call. */
int64_t pi_mem_fail_at(int64_t n, bool for_ever);

#endif
