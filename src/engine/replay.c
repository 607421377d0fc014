/*
 * replay.c - the policies of an engine on recorded tensors. It must not score or choose anything
 * itself: it appends rows as they come. It calls a round where keep/ says that one is due, as
 * engine/eval.c does after each pass, and asks the reader as a pass does. Invariants: the lanes
 * depend on the tokens that were read, not on how many calls read them. Looking leaves them alone,
 * because it is done to a fork.
 */
#include "engine/replay.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/threads.h"
#include "policy/keep/rules/keep.h"
#include "policy/read/read.h"

struct pi_replay {
    struct kv_geometry g;
    struct kv_cache *cache; /* owned */
    struct kv_seq *kv;      /* owned */
    struct keep *keep;      /* owned; NULL for the full cache */
    void *state;            /* the policy's block, owned; NULL without */
    int32_t most;           /* tokens that there is memory for */
    int32_t n_token;        /* tokens read */
    struct keep_tally tally;
    struct pi_rope rope; /* freq owned */

    /* Of pi_replay_look. */
    struct read *read;            /* owned; NULL: everything is read */
    struct pi_pass_reader reader; /* of it */
    struct pi_pass_item item;     /* the chunk; its kv is owned, NULL where none is looked at */
    int32_t n_group;
    int32_t layer;   /* that chose last */
    int32_t cap;     /* slots that a chunk selects in a lane, at most */
    int32_t *slots;  /* [n_head][cap] owned */
    int32_t *n_slot; /* [n_head] owned; -1: everything */
};

static pith_status make_geometry(const struct pi_replay_shape *shape, struct kv_geometry *g,
                                 pith_error *err)
{
    *g = (struct kv_geometry){.n_layer = shape->n_layer,
                              .n_head = shape->n_head,
                              .dim_k = shape->dim_k,
                              .dim_v = shape->dim_v,
                              .page_len = shape->page_len};
    struct kv_type_choice k; /* there is no model whose heads could speak against a type */
    PI_TRY(kv_geometry_read_types(g, shape->type_k, shape->type_v, &k, err));
    if (k.centre)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "type_k: centre is computed from a model's key bias, which records lack");
    return kv_geometry_check(g, err);
}

/* The model as the policy is told of it. */
static pith_status make_model(struct pi_replay *r, const struct pi_replay_shape *shape,
                              struct policy_model *out, pith_error *err)
{
    if (shape->n_group < 0 || shape->n_pair < 0 || shape->n_pair > shape->dim_k / 2 ||
        (shape->n_pair > 0 && shape->freq == NULL))
        return pi_fail(err, PITH_INVALID,
                       "n_group %d, n_pair %d: no heads of %d dimensions are like that",
                       shape->n_group, shape->n_pair, shape->dim_k);
    *out = (struct policy_model){
        .g = r->g,
        .n_group = shape->n_group > 0 ? shape->n_group : 1,
        .scale = shape->scale > 0.0f ? shape->scale : 1.0f / sqrtf((float)shape->dim_k),
    };
    if (shape->n_pair == 0)
        return PITH_OK;
    r->rope =
        (struct pi_rope){.n_pair = shape->n_pair, .adjacent = shape->adjacent, .magnitude = 1.0f};
    r->rope.freq = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)shape->n_pair, sizeof(double));
    if (r->rope.freq == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for %d frequencies", shape->n_pair);
    memcpy(r->rope.freq, shape->freq, (size_t)shape->n_pair * sizeof(double));
    out->rope = &r->rope;
    return PITH_OK;
}

/* The read policy, with room for one chunk. */
static pith_status make_reader(struct pi_replay *r, const struct read_config *config,
                               const struct policy_model *model, pith_error *err)
{
    PI_TRY(read_create(config, model, pi_thread_count(), &r->read, err));
    if (r->read == NULL)
        return PITH_OK;
    PI_TRY(read_reserve(r->read, 1, r->most, err));
    read_reader(r->read, &r->reader);
    r->cap = (int32_t)read_most(r->read, r->most);
    r->slots = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)r->g.n_head * (size_t)r->cap, sizeof(int32_t));
    r->n_slot = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)r->g.n_head, sizeof(int32_t));
    return r->slots != NULL && r->n_slot != NULL
               ? PITH_OK
               : pi_fail(err, PITH_NOMEM, "no memory for %d slots", r->cap);
}

static pith_status make_parts(struct pi_replay *r, const struct pi_replay_shape *shape,
                              const char *keep, const char *read, pith_error *err)
{
    struct keep_config config;
    struct read_config reading;
    struct policy_model model;
    PI_TRY(keep_config_parse(keep, &config, err));
    PI_TRY(read_config_parse(read, &reading, err));
    PI_TRY(keep_config_fit(&config, &r->g, err));
    PI_TRY(read_config_fit(&reading, &r->g, err));
    PI_TRY(make_model(r, shape, &model, err));
    r->n_group = model.n_group;
    PI_TRY(make_reader(r, &reading, &model, err));
    /* Where the first entries get pages of their own, a lane takes one more. */
    int64_t most = (int64_t)r->most + (keep_config_places(&config) ? r->g.page_len : 0);
    if (r->read != NULL) /* a fork copies its last page */
        most += r->g.page_len;
    PI_TRY(kv_cache_create(&r->g, kv_bytes_for_tokens(&r->g, most), &r->cache, err));
    PI_TRY(keep_create(&config, &model, pi_thread_count(), &r->keep, err));
    uint32_t needs = r->keep != NULL ? keep_needs(r->keep) : 0;
    if ((needs &
         (KEEP_NEED_ROWS | KEEP_NEED_WEIGHTS | KEEP_NEED_STEP_WEIGHTS | KEEP_NEED_REPEAT)) != 0)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "keep policy %s learns from queries while it runs, which are not replayed",
                       config.policy->name);
    if (r->keep != NULL)
        kv_cache_set_marks(r->cache, keep_n_mark(r->keep), (needs & KEEP_NEED_VALUE_NORM) != 0);
    if (r->read != NULL && read_projection(r->read) != NULL)
        kv_cache_set_projection(r->cache, read_projection(r->read));
    PI_TRY(kv_seq_create(r->cache, &r->kv, err));
    size_t size = r->keep != NULL ? keep_state_size(r->keep) : 0;
    if (size == 0)
        return PITH_OK;
    r->state = pi_mem_alloc(PI_MEM_OTHER, size);
    return r->state != NULL
               ? PITH_OK
               : pi_fail(err, PITH_NOMEM, "no memory for the policy's %zu bytes", size);
}

pith_status pi_replay_create(const struct pi_replay_shape *shape, const char *keep,
                             const char *read, struct pi_replay **out, pith_error *err)
{
    struct kv_geometry g;
    if (shape->n_token < 1)
        return pi_fail(err, PITH_INVALID, "n_token: %d tokens cannot be replayed", shape->n_token);
    PI_TRY(make_geometry(shape, &g, err));
    struct pi_replay *r = pi_mem_alloc(PI_MEM_OTHER, sizeof(*r));
    if (r == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a replay");
    r->g = g;
    r->most = shape->n_token;
    pith_status status = make_parts(r, shape, keep, read, err);
    if (status != PITH_OK) {
        pi_replay_free(r);
        return status;
    }
    *out = r;
    return PITH_OK;
}

void pi_replay_free(struct pi_replay *r)
{
    if (r == NULL)
        return;
    keep_free(r->keep);
    pi_mem_free(r->state);
    kv_seq_free(r->item.kv);
    kv_seq_free(r->kv);
    kv_cache_free(r->cache);
    read_free(r->read);
    pi_mem_free(r->slots);
    pi_mem_free(r->n_slot);
    pi_mem_free(r->rope.freq);
    pi_mem_free(r);
}

/* Appends the next n tokens to every lane of kv; room was reserved. */
static void append(const struct pi_replay *r, struct kv_seq *kv, int32_t n, const float *const *k,
                   const float *const *v)
{
    const struct kv_geometry *g = &r->g;
    size_t k_stride = (size_t)g->n_head * (size_t)g->dim_k;
    size_t v_stride = (size_t)g->n_head * (size_t)g->dim_v;
    size_t row = (size_t)r->n_token;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            kv_seq_append(kv, l, h, r->n_token, n,
                          k[l] + row * k_stride + (size_t)h * (size_t)g->dim_k, k_stride,
                          v[l] + row * v_stride + (size_t)h * (size_t)g->dim_v, v_stride);
}

static struct keep_point point_of(const struct pi_replay *r)
{
    return (struct keep_point){.n_token = r->n_token};
}

/* Whether a round is due, n_left of n_read tokens before the end. */
static bool round_due(const struct pi_replay *r, int32_t n_read, int32_t n_left)
{
    if (keep_waits(r->keep, n_read))
        return n_left == 0 && keep_over_budget(r->keep, r->kv, point_of(r));
    return keep_due(r->keep, r->kv, point_of(r), n_left);
}

static pith_status run_round(struct pi_replay *r, const int32_t *tokens, int32_t n_read,
                             int32_t n_left, pith_error *err)
{
    struct keep_view view = {
        .kv = r->kv, .tokens = tokens, .n_token = r->n_token, .state = r->state};
    if (r->keep == NULL || !round_due(r, n_read, n_left))
        return PITH_OK;
    return keep_round(r->keep, r->kv, &view, &r->tally, err);
}

pith_status pi_replay_read(struct pi_replay *r, int32_t n_token, const int32_t *tokens,
                           const float *const *k, const float *const *v, pith_error *err)
{
    int32_t n_read = n_token - r->n_token;
    if (n_token < r->n_token || n_token > r->most)
        return pi_fail(err, PITH_INVALID, "n_token: %d is not in %d..%d", n_token, r->n_token,
                       r->most);
    if (r->keep != NULL)
        PI_TRY(keep_prepare(r->keep, r->kv, point_of(r), n_read, err));
    PI_TRY(run_round(r, tokens, n_read, n_read, err));
    while (r->n_token < n_token) {
        int32_t n = n_token - r->n_token;
        if (r->keep != NULL && !keep_waits(r->keep, n_read))
            n = keep_room(r->keep, r->kv, point_of(r), n);
        PI_TRY(kv_seq_reserve(r->kv, n, err));
        append(r, r->kv, n, k, v);
        r->n_token += n;
        PI_TRY(run_round(r, tokens, n_read, n_token - r->n_token, err));
    }
    return PITH_OK;
}

int32_t pi_replay_lane(const struct pi_replay *r, int32_t layer, int32_t head, int32_t *positions)
{
    int32_t n = kv_lane_len(r->kv, layer, head);
    keep_positions(r->keep, r->kv, layer, head, positions, n);
    return n;
}

/* ---- the entries that a chunk reads ---- */

pith_status pi_replay_look(struct pi_replay *r, int32_t n_token, const float *const *k,
                           const float *const *v, pith_error *err)
{
    kv_seq_free(r->item.kv);
    r->item.kv = NULL;
    if (r->read == NULL)
        return PITH_OK;
    if (n_token < 1 || n_token > r->reader.chunk)
        return pi_fail(err, PITH_INVALID,
                       "n_token: %d tokens are no chunk of read policy %s, which is of 1 to %d",
                       n_token, read_get_config(r->read)->policy->name, r->reader.chunk);
    if (n_token > r->most - r->n_token)
        return pi_fail(err, PITH_INVALID, "n_token: %d more than %d are beyond %d", n_token,
                       r->n_token, r->most);
    PI_TRY(kv_seq_fork(r->kv, &r->item.kv, err));
    r->item.n_tok = r->item.n_read = n_token;
    r->item.pos0 = r->n_token;
    PI_TRY(kv_seq_reserve(r->item.kv, n_token, err));
    append(r, r->item.kv, n_token, k, v);
    return PITH_OK;
}

void pi_replay_choose(struct pi_replay *r, int32_t layer, const float *q)
{
    r->layer = layer;
    if (r->item.kv == NULL)
        return;
    const struct pi_pass_chunk chunk = {
        .item = &r->item,
        .layer = layer,
        .n_tok = r->item.n_tok,
        .q = q,
        .q_stride = (size_t)r->g.n_head * (size_t)r->n_group * (size_t)r->g.dim_k,
        .cap = (int32_t)r->cap,
        .slots = r->slots,
        .n_slot = r->n_slot,
    };
    r->reader.select(r->reader.user, &chunk, 1);
}

static int by_position(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

int32_t pi_replay_chosen(const struct pi_replay *r, int32_t head, int32_t *positions)
{
    int32_t n = 0;
    if (r->item.kv == NULL || r->n_slot[head] < 0)
        return pi_replay_lane(r, r->layer, head, positions);
    const int32_t *slots = r->slots + (size_t)head * (size_t)r->cap;
    for (int32_t i = 0; i < r->n_slot[head]; i++) {
        int32_t pos = keep_position(r->keep, r->item.kv, r->layer, head, slots[i]);
        if (pos < r->n_token)
            positions[n++] = pos;
    }
    qsort(positions, (size_t)n, sizeof(*positions), by_position); /* of a lane in no order */
    return n;
}

void pi_replay_get_stats(const struct pi_replay *r, struct pi_replay_stats *out)
{
    pith_kv_stats kv;
    kv_cache_stats(r->cache, &kv);
    *out = (struct pi_replay_stats){
        .n_round = r->tally.n_round,
        .n_evicted = r->tally.n_evicted,
        .kv_peak_bytes = kv.peak_bytes,
    };
}
