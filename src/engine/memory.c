/*
 * memory.c - a sequence's memory as a whole: its lanes, and where the model has recurrent layers
 * its state. Each function says what of kv/ it comes to. It knows neither tokens nor policies.
 */
#include "engine/memory.h"

#include "base/ranks.h"

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

/* ---- states that are kept ---- */

/* In a long text the state is kept every STATE_EVERY tokens. In an evaluation it is also kept
   where the last page begins that STATE_BEFORE_END tokens follow. A chat's next turn often
   differs in the last few. */
#define STATE_EVERY 2048
#define STATE_BEFORE_END 8

/* Whether the state after n_token tokens is kept, of an evaluation up to `to`. All are at the ends
   of pages, where other sequences can begin with them. */
static bool is_kept(const struct pi_memory *m, int32_t page_len, int32_t n_token, int32_t to)
{
    int32_t last = (to - STATE_BEFORE_END) / page_len * page_len;
    return n_token % STATE_EVERY == 0 || n_token == last || n_token == kv_seq_wanted_state(m->kv);
}

int32_t pi_memory_until_state(const struct pi_memory *m, int32_t from, int32_t to)
{
    const struct kv_geometry *g = kv_seq_geometry(m->kv);
    if (g->state_bytes == 0 || to - from == 1)
        return to - from;
    int32_t at = (from / g->page_len + 1) * g->page_len;
    while (at < to && !is_kept(m, g->page_len, at, to))
        at += g->page_len;
    return (int32_t)pi_min(at, to) - from;
}

void pi_memory_note(struct pi_memory *m, int32_t n_token, int32_t to)
{
    int32_t page_len = kv_seq_geometry(m->kv)->page_len;
    kv_seq_note_state(m->kv, n_token);
    if (n_token % page_len == 0 && is_kept(m, page_len, n_token, to))
        kv_seq_keep_state(m->kv);
}

/* ---- going back ---- */

static int32_t reach(const struct pi_memory *m, int32_t n_token)
{
    int32_t n = kv_seq_state_reach(m->kv, n_token);
    return kv_seq_reaches(m->kv, n) ? n : 0;
}

/* Ranks with other layers may have kept other states: they go back to where all can. */
int32_t pi_memory_reach(const struct pi_memory *m, int32_t n_token)
{
    int32_t n = reach(m, n_token), before;
    if (!pi_ranks_by_layers())
        return n;
    do {
        before = (int32_t)pi_ranks_least(n);
        n = reach(m, before);
    } while (pi_ranks_least(n) < before);
    return before;
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
