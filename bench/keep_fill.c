/*
 * keep_fill.c - see keep_fill.h. It does with a sequence what engine/eval.c does between passes:
 * room until the next round, append, round. Invariant: after fill_to the sequence is as after an
 * evaluation of as many tokens, except that its entries are random and it has no logits.
 */
#include "keep_fill.h"

#include "base/mem.h"
#include "rig.h"

pith_status fill_open(struct fill *f, struct pi_device *device, int32_t most_tokens,
                      pith_error *err)
{
    *f = (struct fill){.device = device, .cap = most_tokens};
    f->noise = pi_mem_alloc_n(PI_MEM_OTHER, FILL_NOISE, sizeof(float));
    f->pos = pi_mem_alloc_n(PI_MEM_OTHER, 2 * (size_t)most_tokens, sizeof(int32_t));
    if (!device->in_host)
        f->room = device->alloc(device, PI_MEM_OTHER, FILL_NOISE * sizeof(float));
    if (f->noise == NULL || f->pos == NULL || (!device->in_host && !pi_at_some(f->room))) {
        fill_close(f);
        return pi_fail(err, PITH_NOMEM, "no memory for random keys");
    }
    fill_random(f->noise, FILL_NOISE, 1);
    f->at = device->lend(device, f->noise, FILL_NOISE * sizeof(float), f->room);
    return PITH_OK;
}

void fill_close(struct fill *f)
{
    if (pi_at_some(f->room))
        f->device->free(f->device, f->room);
    pi_mem_free(f->noise);
    pi_mem_free(f->pos);
    *f = (struct fill){0};
}

/* ---- entries ---- */

struct append {
    const struct fill *f;
    const struct kv_geometry *g;
    struct kv_seq *kv;
    int32_t pos0;
    int32_t n;
};

/* Where in the noise n rows begin: anywhere, so that hardly two rows of a lane are alike. */
static struct pi_at rows_for(const struct append *a, uint64_t key, int32_t dim)
{
    key *= 0x9e3779b97f4a7c15u;
    key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
    return pi_at_item(a->f->at, (key >> 20) % (FILL_NOISE - (size_t)(a->n * dim)));
}

/* Lanes of one call of the device. */
#define LANES 64

static void append_lanes(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct append *a = ctx;
    struct kv_append jobs[LANES];
    (void)thread;
    for (int64_t lane = begin; lane < end;) {
        int32_t n = 0;
        for (; n < LANES && lane < end; n++, lane++) {
            uint64_t key = ((uint64_t)lane << 32 | (uint32_t)a->pos0) * 2;
            jobs[n] = (struct kv_append){.seq = a->kv,
                                         .layer = (int32_t)(lane / a->g->n_head),
                                         .head = (int32_t)(lane % a->g->n_head),
                                         .pos0 = a->pos0,
                                         .n = a->n,
                                         .k = rows_for(a, key, a->g->dim_k),
                                         .k_stride = (size_t)a->g->dim_k,
                                         .v = rows_for(a, key + 1, a->g->dim_v),
                                         .v_stride = (size_t)a->g->dim_v};
        }
        kv_append_place(jobs, n);
        a->f->device->append(NULL, jobs, n);
    }
}

static pith_status append(const struct fill *f, struct pith_seq *seq, int32_t n, pith_error *err)
{
    const struct kv_geometry *g = kv_cache_geometry(seq->engine->kv);
    struct append a = {f, g, seq->memory.kv, seq->n_token, n};
    PI_TRY(kv_seq_reserve(seq->memory.kv, n, err));
    pi_parallel_ranges(pi_thread_count(), (int64_t)g->n_layer * g->n_head, append_lanes, &a);
    for (int32_t i = 0; i < n; i++) /* which tokens they are changes nothing */
        seq->tokens[seq->n_token + i] = (seq->n_token + i) % seq->engine->model->hp.n_vocab;
    seq->n_token += n;
    seq->has_logits = false;
    return PITH_OK;
}

/* ---- rounds ---- */

double fill_entry_bytes(const struct kv_geometry *g)
{
    return (double)kv_page_bytes(g) / g->page_len * g->n_layer * g->n_head;
}

double fill_key_bytes(const struct kv_geometry *g)
{
    static const double bits[KV_N_TYPE] = {32, 16, 8.5};
    return bits[g->type_k] / 8.0 * g->dim_k * g->n_layer * g->n_head;
}

/* The positions of the first lane; every lane has as many, the policy being asked for the same set
   everywhere. */
static int32_t read_positions(const struct kv_seq *kv, int32_t *pos)
{
    int32_t n = kv_lane_len(kv, 0, 0);
    kv_lane_positions(kv, 0, 0, pos, n);
    return n;
}

static pith_status run_round(const struct fill *f, struct pith_seq *seq, struct fill_rounds *rounds,
                             pith_error *err)
{
    const struct kv_geometry *g = kv_cache_geometry(seq->engine->kv);
    struct keep_view view = {.kv = seq->memory.kv,
                             .tokens = seq->tokens,
                             .n_token = seq->n_token,
                             .n_prompt = seq->n_prompt};
    int32_t *before = f->pos, *after = f->pos + f->cap, n_same = 0;
    double start = seq->keep.tally.seconds;
    int32_t n = read_positions(seq->memory.kv, before);
    PI_TRY(keep_round(seq->engine->keep.handle, seq->memory.kv, &view, &seq->keep.tally, err));
    int32_t n_kept = read_positions(seq->memory.kv, after);
    while (n_same < n_kept && before[n_same] == after[n_same])
        n_same++;
    rounds->n++;
    rounds->seconds += seq->keep.tally.seconds - start;
    rounds->scored_bytes += n * fill_key_bytes(g);
    rounds->moved_bytes += 2.0 * (n_kept - n_same) * fill_entry_bytes(g);
    return PITH_OK;
}

static struct keep_point point_of(const struct pith_seq *seq)
{
    return (struct keep_point){seq->n_token, seq->n_prompt, 0.0};
}

pith_status fill_to(struct fill *f, struct pith_seq *seq, int32_t n_token,
                    struct fill_rounds *rounds, pith_error *err)
{
    struct keep *keep = seq->engine->keep.handle;
    int32_t left = n_token - seq->n_token;
    if (left <= 0)
        return PITH_OK;
    if (n_token > f->cap)
        return pi_fail(err, PITH_INVALID, "%d tokens are more than the fill's %d", n_token, f->cap);
    if (keep != NULL &&
        (keep_state_size(keep) > 0 || keep_get_config(keep)->rules.granularity != KEEP_ALL))
        return pi_fail(err, PITH_INVALID, "the policy must have statistics and one set of lanes");
    PI_TRY(pi_seq_grow(seq, left, err));
    if (keep != NULL)
        PI_TRY(keep_prepare(keep, seq->memory.kv, point_of(seq), left, err));
    while (seq->n_token < n_token) {
        int32_t n = (int32_t)pi_min(n_token - seq->n_token, APPEND);
        if (keep != NULL)
            n = keep_room(keep, seq->memory.kv, point_of(seq), n);
        PI_TRY(append(f, seq, n, err));
        if (keep != NULL && keep_due(keep, seq->memory.kv, point_of(seq), n_token - seq->n_token))
            PI_TRY(run_round(f, seq, rounds, err));
    }
    return PITH_OK;
}

pith_status fill_without_rounds(struct fill *f, struct pith_seq *seq, int32_t n, pith_error *err)
{
    struct keep *keep = seq->engine->keep.handle;
    if (keep != NULL && keep_room(keep, seq->memory.kv, point_of(seq), n + 1) <= n)
        return pi_fail(err, PITH_INVALID, "a keep round is due within %d tokens", n);
    PI_TRY(pi_seq_grow(seq, n, err));
    for (int32_t left = n; left > 0; left -= (int32_t)pi_min(left, APPEND))
        PI_TRY(append(f, seq, (int32_t)pi_min(left, APPEND), err));
    return PITH_OK;
}
