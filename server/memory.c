/*
 * memory.c - memory that large bodies and answers took goes back to the system when they are done.
 * glibc else keeps it: from the first large block it learns to hold up to 64 MiB for each thread.
 * Small blocks, of which JSON has many, it never gives back by itself.
 */
#include <stdlib.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "state.h"

#define LARGE_BYTES (256u << 10)

void memory_keep_little(void)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, LARGE_BYTES);
    mallopt(M_TRIM_THRESHOLD, LARGE_BYTES);
#endif
}

void memory_note(struct server *s, size_t bytes)
{
    if (bytes >= LARGE_BYTES)
        atomic_store(&s->large_ended, true);
}

void memory_give_back(struct server *s)
{
    if (!atomic_exchange(&s->large_ended, false))
        return;
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}
