/*
 * read.c - the read policy's side of an engine: how many tokens of an item a pass takes so that no
 * chunk is cut, and the memory that a batch needs for it. What is read is the policy's and
 * policy/read/run.c's. Invariant: chunks depend on the item and its keep rounds alone.
 */
#include "engine/engine.h"

pith_status pi_engine_start_read(struct pith_engine *e, const struct policy_model *model,
                                 pith_error *err)
{
    struct pi_pass_reader reader;
    if (!e->traits.reads_parts)
        return PITH_OK;
    PI_TRY(read_create(&e->policies.read, model, e->n_thread, &e->read, err));
    read_reader(e->read, &reader);
    if (reader.chunk > e->chunk)
        return pi_fail(err, PITH_INVALID,
                       "read: chunk: %d tokens choose together, which a pass of at most %d tokens "
                       "(the engine's chunk) does not hold",
                       reader.chunk, e->chunk);
    if (read_projection(e->read) != NULL)
        kv_cache_set_projection(e->kv, read_projection(e->read));
    return pi_pass_set_reader(e->pass, &reader, err);
}

/* The most entries that a lane comes to hold in an item's evaluation. */
static int64_t longest_of(const struct pith_engine *e, const pith_batch_item *item)
{
    const struct kv_geometry *g = &e->lanes;
    const struct kv_seq *kv = item->seq->memory.kv;
    int64_t longest = 0;
    if (e->traits.evicts)
        return keep_longest(e->keep, kv, pi_seq_point(item->seq, 0), item->n_token);
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            longest = pi_max(longest, kv_lane_len(kv, l, h));
    return longest + item->n_token;
}

pith_status pi_engine_reserve_read(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                                   pith_error *err)
{
    int64_t longest = 0, n_chunk = 0;
    struct pi_pass_reader reader;
    if (!e->traits.reads_parts)
        return PITH_OK;
    read_reader(e->read, &reader);
    for (int32_t i = 0; i < n; i++) {
        int32_t n_read = read_tokens(e->read, pi_item_tokens(&items[i]));
        n_read = (int32_t)pi_min(n_read, items[i].n_token);
        if (n_read == 0)
            continue;
        /* Those of one pass: only an item's last chunk in it is shorter. */
        n_chunk += pi_ceil_div(pi_min(n_read, e->chunk), reader.chunk);
        longest = pi_max(longest, longest_of(e, &items[i]));
    }
    n_chunk = pi_min(n_chunk, e->chunk);
    if (n_chunk == 0)
        return PITH_OK;
    PI_TRY(read_reserve(e->read, (int32_t)n_chunk, longest, err));
    return pi_pass_reserve_read(e->pass, (int32_t)n_chunk, read_most(e->read, longest), err);
}

int32_t pi_engine_take(const struct pith_engine *e, const pith_batch_item *item, int32_t n_done,
                       int32_t most, int32_t until, int32_t *n_read)
{
    int32_t left = item->n_token - n_done;
    *n_read = 0;
    if (!e->traits.reads_parts)
        return (int32_t)pi_min(pi_min(most, left), until);
    int32_t n_chunked = read_tokens(e->read, pi_item_tokens(item)), take;
    int32_t left_read = (int32_t)pi_max(0, n_chunked - n_done);
    take = read_take(e->read, most, left, (int32_t)pi_min(left, left_read), until);
    *n_read = (int32_t)pi_min(take, left_read);
    return take;
}

int32_t pi_engine_part(const struct pith_engine *e, int32_t n, int32_t left, bool some)
{
    struct pi_pass_reader reader;
    read_reader(e->read, &reader);
    int32_t chunk = (int32_t)pi_max(reader.chunk, 2); /* one token would be a step */
    if (n == left)
        return n;
    int32_t part = n / chunk * chunk;
    if (left - part == 1)
        part -= chunk;
    if (part > 0 || !some)
        return (int32_t)pi_max(part, 0);
    return left <= chunk + 1 ? left : chunk;
}

void pith_seq_read_stats(const pith_seq *seq, pith_read_stats *out)
{
    const struct read_tally *t = &seq->read;
    *out = (pith_read_stats){.chunks = t->n_chunk,
                             .sparse = t->n_sparse,
                             .stored = t->n_stored,
                             .read = t->n_read,
                             .seconds = t->seconds};
}
