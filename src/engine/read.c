/*
 * read.c - the read policy's side of an engine. It says how many tokens of an item a pass takes so
 * that no chunk is cut. It reserves the memory that a batch needs for that. The policy and
 * policy/read/run.c decide which entries are read. Invariant: chunks depend on the item and its
 * keep rounds alone.
 */
#include "engine/engine.h"

static bool has_read(const struct engine_traits *traits)
{
    return traits->reads_parts;
}

/* INVALID: an engine chunk that is shorter than the policy's. */
static pith_status open_read(struct pith_engine *e, const pith_engine_params *params,
                             const struct policy_model *model, pith_error *err)
{
    struct pi_pass_reader reader;
    (void)params;
    PI_TRY(read_create(&e->policies.read, model, e->n_thread, &e->read, err));
    read_reader(e->read, &reader);
    if (reader.chunk > e->chunk)
        return pi_fail(err, PITH_INVALID,
                       "read: chunk: %d tokens choose together, which a pass of at most %d tokens "
                       "(the engine's chunk) does not hold",
                       reader.chunk, e->chunk);
    if (e->policies.read.rules.phase != READ_PROMPT)
        pi_log(PITH_LOG_INFO, "read=%s step_gate=%lld", e->policies.read.policy->name,
               (long long)read_step_gate(&e->policies.read.rules));
    if (read_projection(e->read) != NULL)
        kv_cache_set_projection(e->kv, read_projection(e->read));
    return pi_pass_set_reader(e->pass, &reader, err);
}

/* The cache, which borrowed the projection, is gone. */
static void close_read(struct pith_engine *e)
{
    read_free(e->read);
    e->read = NULL;
}

/* ---- a sequence ---- */

static pith_status fork_read(const struct pith_seq *from, struct pith_seq *to, pith_error *err)
{
    (void)err;
    to->read = from->read;
    return PITH_OK;
}

/* Where all that is left was read whole, the tally begins anew. */
static void truncate_read(struct pith_seq *seq, int32_t n_token, bool whole)
{
    (void)whole;
    if (seq->read.n_sparse == 0 || n_token <= seq->read.first_at)
        seq->read = (struct read_tally){0};
}

/* Only what was read whole and would be again; of a file nothing is known. */
static int32_t reusable(const struct pith_seq *seq, int32_t same, int32_t n_token)
{
    return seq->is_loaded ? 0 : read_reusable(seq->engine->read, &seq->read, same, n_token);
}

/* ---- an evaluation ---- */

static void note_tally(const struct pith_seq *seq, struct pi_item_state *state)
{
    state->read = seq->read;
}

static pith_status reserve_chunks(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                                  pith_error *err)
{
    int64_t longest = 0, n_chunk = 0;
    struct pi_pass_reader reader;
    read_reader(e->read, &reader);
    for (int32_t i = 0; i < n; i++) {
        int32_t n_read = read_tokens(e->read, pi_item_tokens(&items[i]));
        n_read = (int32_t)pi_min(n_read, items[i].n_token);
        if (n_read == 0)
            continue;
        /* Chunks of one pass: only an item's last one in it is shorter. */
        n_chunk += pi_ceil_div(pi_min(n_read, e->chunk), reader.chunk);
        longest = pi_max(longest, pi_item_longest(e, &items[i]));
    }
    n_chunk = pi_min(n_chunk, e->chunk);
    if (n_chunk == 0)
        return PITH_OK;
    PI_TRY(read_reserve(e->read, (int32_t)n_chunk, longest, err));
    return pi_pass_reserve_read(e->pass, (int32_t)n_chunk, read_most(e->read, longest), err);
}

/* Cuts what the pass has room for where a chunk ends. */
static void plan_chunks(struct pith_engine *e, const pith_batch_item *item,
                        struct pi_item_plan *plan)
{
    int32_t n_chunked = read_tokens(e->read, pi_item_tokens(item));
    int32_t left = (int32_t)pi_max(0, n_chunked - plan->n_done);
    plan->n_take =
        read_take(e->read, plan->room, plan->left, (int32_t)pi_min(plan->left, left), plan->until);
    plan->n_read = (int32_t)pi_min(plan->n_take, left);
    plan->chunked = true;
}

static void add_tally(const pith_batch_item *item, const struct pi_pass_item *part)
{
    read_add_tally(item->seq->engine->read, part, &item->seq->read);
}

static void finish_tally(const pith_batch_item *item, const struct pi_item_state *state)
{
    if (!state->stays && state->cut)
        item->seq->read = state->read;
}

const struct seq_hooks pi_read_hooks = {
    .name = "read",
    .has = has_read,
    .open = open_read,
    .close = close_read,
    .fork = fork_read,
    .truncate = truncate_read,
    .reusable = reusable,
    .note = note_tally,
    .reserve_batch = reserve_chunks,
    .plan = plan_chunks,
    .passed = add_tally,
    .after = finish_tally,
};

/* ---- what others ask ---- */

bool pi_engine_reads_chunks(const struct pith_engine *e)
{
    return e->read != NULL;
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
                             .steps = t->n_step,
                             .steps_sparse = t->n_step_sparse,
                             .step_gate = seq->engine->traits.reads_parts
                                              ? read_step_gate(&seq->engine->policies.read.rules)
                                              : 0,
                             .stored = t->n_stored,
                             .read = t->n_read,
                             .seconds = t->seconds};
}
