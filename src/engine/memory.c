/*
 * memory.c - a sequence's memory as a whole. Today that is its lanes, and each function says what
 * of kv/ it comes to. It knows neither tokens nor policies.
 */
#include "engine/memory.h"

pith_status pi_memory_create(struct pi_memory *m, struct kv_cache *cache, pith_error *err)
{
    return kv_seq_create(cache, &m->kv, err);
}

pith_status pi_memory_fork(const struct pi_memory *from, struct pi_memory *m, pith_error *err)
{
    return kv_seq_fork(from->kv, &m->kv, err);
}

pith_status pi_memory_save(const struct pi_memory *m, const void *extra, size_t size,
                           const char *path, pith_error *err)
{
    return kv_seq_save(m->kv, extra, size, path, err);
}

pith_status pi_memory_load(struct pi_memory *m, struct kv_cache *cache, const char *path,
                           void **extra, size_t *size, pith_error *err)
{
    PI_TRY(kv_seq_load(cache, path, &m->kv, extra, size, err));
    pi_memory_settle(m, false); /* a file may hold more than a window */
    return PITH_OK;
}

void pi_memory_free(struct pi_memory *m)
{
    kv_seq_free(m->kv);
    m->kv = NULL;
}

pith_status pi_memory_reserve(struct pi_memory *m, int32_t n, pith_error *err)
{
    return kv_seq_reserve(m->kv, n, err);
}

void pi_memory_settle(struct pi_memory *m, bool more)
{
    kv_seq_slide(m->kv, more);
}

int32_t pi_memory_reach(const struct pi_memory *m, int32_t n_token)
{
    return kv_seq_reaches(m->kv, n_token) ? n_token : 0;
}

void pi_memory_truncate(struct pi_memory *m, int32_t n_token)
{
    kv_seq_truncate(m->kv, n_token);
}

pith_status pi_memory_swap_out(struct pi_memory *m, struct kv_swapped **out, pith_error *err)
{
    return kv_seq_swap_out(m->kv, out, err);
}

pith_status pi_memory_swap_in(struct pi_memory *m, struct kv_swapped *swapped, pith_error *err)
{
    return kv_seq_swap_in(m->kv, swapped, err);
}

int64_t pi_memory_bytes(const struct pi_memory *m)
{
    return kv_seq_held_bytes(m->kv);
}
