/*
 * queries.c - the last queries of a sequence, of every layer and query head, after rope. They are a
 * ring at the beginning of a policy's state. Also the attention that they give to a lane's entries.
 * It knows no policy, and no arithmetic: that is kv_attend's, the same as in the pass.
 *
 * Invariant: place p % n of a layer's ring holds the query of position p, and says so. Queries that
 * were forgotten (truncated, or rolled back) may still lie there, at positions that the sequence
 * has not reached again. Each is overwritten before it is. So a query counts when its place says
 * the position that it should hold, and nothing must be cleared. Bits depend on the tokens alone,
 * not on how they are cut into passes.
 */
#include "policy/keep/rules/keep.h"

/* A state's first bytes. */
struct ring {
    int32_t *mark; /* [n_layer][n_query] position + 1 of the query that lies there; 0: none */
    float *q;      /* [n_layer][n_query][n_head * n_group][dim_k] */
    size_t row;    /* floats of a position in a layer */
};

static size_t marks_size(const struct policy_model *model, int32_t n_query)
{
    return pi_align((size_t)model->g.n_layer * (size_t)n_query * sizeof(int32_t), 64);
}

static size_t row_len(const struct policy_model *model)
{
    return (size_t)model->g.n_head * (size_t)model->n_group * (size_t)model->g.dim_k;
}

size_t keep_queries_size(const struct policy_model *model, int32_t n_query)
{
    size_t n = (size_t)model->g.n_layer * (size_t)n_query * row_len(model);
    return marks_size(model, n_query) + pi_align(n * sizeof(float), 64);
}

static struct ring ring_of(const struct keep_view *view, int32_t n_query, int32_t layer)
{
    size_t first = (size_t)layer * (size_t)n_query;
    struct ring ring = {.mark = (int32_t *)view->state + first, .row = row_len(view->model)};
    ring.q = (float *)(void *)((uint8_t *)view->state + marks_size(view->model, n_query));
    ring.q += first * ring.row;
    return ring;
}

void keep_queries_observe(const struct keep_view *view, int32_t n_query,
                          const struct pi_pass_tap_rows *rows)
{
    struct ring ring = ring_of(view, n_query, rows->layer);
    int32_t n = rows->item->n_tok;
    /* Of more than the ring holds only the last would be left. */
    for (int32_t t = (int32_t)pi_max(0, n - n_query); t < n; t++) {
        int32_t pos = view->n_token + t, place = pos % n_query;
        memcpy(ring.q + (size_t)place * ring.row, rows->q + (size_t)t * ring.row,
               ring.row * sizeof(float));
        ring.mark[place] = pos + 1;
    }
}

int32_t keep_queries_count(const struct keep_view *view, int32_t n_query)
{
    struct ring ring = ring_of(view, n_query, 0);
    int32_t n = 0;
    while (n < n_query && n < view->n_token &&
           ring.mark[(view->n_token - 1 - n) % n_query] == view->n_token - n)
        n++;
    return n;
}

/* Floats from one query's row to the next: kernels write 16 at a time. */
static size_t stride_of(int32_t n)
{
    return pi_align((size_t)n + 16, 16);
}

static size_t weights_size(const struct policy_model *model, int32_t n_query, int32_t n)
{
    return pi_align((size_t)n_query * (size_t)model->n_group * stride_of(n) * sizeof(float), 64);
}

size_t keep_queries_scratch(const struct policy_model *model, int32_t n_query, int32_t n)
{
    return weights_size(model, n_query, n) +
           pi_align(kv_attend_scratch_bytes(&model->g, n_query * model->n_group), 64);
}

void keep_queries_weights(const struct keep_view *view, const struct keep_lane *lane,
                          int32_t n_query, bool logits, void *scratch, const float **weight,
                          size_t *stride)
{
    const struct policy_model *m = view->model;
    struct ring ring = ring_of(view, n_query, lane->layer);
    int32_t count = keep_queries_count(view, n_query), n_done = 0;
    float *rows = scratch;
    *stride = stride_of(lane->n);
    *weight = rows;
    while (n_done < count) {
        /* The queries that lie next to each other: all, or those before the ring's end. */
        int32_t pos = view->n_token - count + n_done, place = pos % n_query;
        int32_t n = (int32_t)pi_min(count - n_done, n_query - place);
        float *to = rows + (size_t)n_done * (size_t)m->n_group * *stride;
        struct kv_attend_tap tap = {.row_stride = *stride};
        if (logits)
            tap.logits = to;
        else
            tap.weight = to;
        struct kv_attend_job job = {
            .seq = view->kv,
            .layer = lane->layer,
            .head = lane->head,
            .n_tok = n,
            .n_group = m->n_group,
            .pos0 = pos,
            .q = ring.q + (size_t)place * ring.row +
                 (size_t)lane->head * (size_t)m->n_group * (size_t)m->g.dim_k,
            .q_stride = ring.row,
            .scale = m->scale,
            .rope = policy_rope(m, lane->layer),
            .tap = &tap,
        };
        kv_attend(&job, (uint8_t *)scratch + weights_size(m, n_query, lane->n));
        n_done += n;
    }
}
