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
#include "policy/keep/rules/policy.h"

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

struct pi_at keep_queries_there(const struct keep_view *view, int32_t n_query, int32_t layer)
{
    size_t first = (size_t)layer * (size_t)n_query * row_len(view->model);
    if (!pi_at_some(view->there))
        return view->there;
    return pi_at_item(pi_at_add(view->there, marks_size(view->model, n_query)), first);
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

size_t keep_queries_head(const struct policy_model *model, int32_t n_query)
{
    return marks_size(model, n_query);
}

void keep_queries_learn(const struct keep_view *view, int32_t n_query,
                        const struct pi_pass_rows *rows, int32_t item, struct kv_learn_job *job)
{
    struct ring ring = ring_of(view, n_query, rows->layer);
    int32_t n = rows->items[item].n_tok;
    for (int32_t t = (int32_t)pi_max(0, n - n_query); t < n; t++)
        ring.mark[(view->n_token + t) % n_query] = view->n_token + t + 1;
    *job = (struct kv_learn_job){
        .kind = KV_LEARN_RING,
        .from = pi_at_item(rows->q, (size_t)rows->row0[item] * ring.row),
        .to = keep_queries_there(view, n_query, rows->layer),
        .n_tok = n,
        .n = (int32_t)ring.row,
        .pos = view->n_token,
        .n_ring = n_query,
    };
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

void keep_queries_copy(const struct keep_view *view, const struct keep_lane *lane, int32_t n_query,
                       float *out)
{
    const struct policy_model *m = view->model;
    struct ring ring = ring_of(view, n_query, lane->layer);
    size_t group = (size_t)m->n_group * (size_t)m->g.dim_k;
    int32_t count = keep_queries_count(view, n_query);
    for (int32_t i = 0; i < count; i++) {
        int32_t place = (view->n_token - count + i) % n_query;
        memcpy(out + (size_t)i * group,
               ring.q + (size_t)place * ring.row + (size_t)lane->head * group,
               group * sizeof(float));
    }
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

/* A call in a lane for the next of the last count queries, behind n_done of them. It takes those
   that lie next to each other in the ring, n_most at most. */
static struct kv_attend_job job_of(const struct keep_view *view, const struct keep_lane *lane,
                                   int32_t n_query, int32_t count, int32_t n_done, int32_t n_most)
{
    const struct policy_model *m = view->model;
    struct ring ring = ring_of(view, n_query, lane->layer);
    int32_t pos = view->n_token - count + n_done, place = pos % n_query;
    int32_t n = (int32_t)pi_min(pi_min(count - n_done, n_query - place), n_most);
    return (struct kv_attend_job){
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
    };
}

/* ---- sums ---- */

/* Rows of weights that are there at once: few enough to stay in a cache. */
#define SUM_ROWS 32

/* Queries of a call. */
static int32_t tile_of(const struct policy_model *model, int32_t n_query)
{
    return (int32_t)pi_min(n_query, pi_max(1, SUM_ROWS / model->n_group));
}

size_t keep_queries_sums_scratch(const struct policy_model *model, int32_t n_query, int32_t n)
{
    int32_t tile = tile_of(model, n_query);
    return weights_size(model, 1, n) + weights_size(model, tile, n) +
           pi_align(kv_attend_scratch_bytes(&model->g, tile * model->n_group), 64);
}

void keep_queries_sums(const struct keep_view *view, const struct keep_lane *lane, int32_t n_query,
                       void *scratch, const float **sum, size_t *stride)
{
    const struct policy_model *m = view->model;
    int32_t count = keep_queries_count(view, n_query), tile = tile_of(m, n_query);
    uint8_t *rows = (uint8_t *)scratch + weights_size(m, 1, lane->n);
    uint8_t *attend = rows + weights_size(m, tile, lane->n);
    *stride = stride_of(lane->n);
    *sum = scratch;
    struct kv_attend_tap tap = {.weight = (float *)(void *)rows, .row_stride = *stride};
    const struct kv_note note = {.word = KV_NOTE_SUM,
                                 .group = KV_GROUP_EACH,
                                 .n = lane->n,
                                 .to = scratch,
                                 .stride = *stride};
    memset(scratch, 0, weights_size(m, 1, lane->n));
    for (int32_t n_done = 0; n_done < count;) {
        struct kv_attend_job job = job_of(view, lane, n_query, count, n_done, tile);
        job.tap = &tap;
        job.notes = &note;
        job.n_note = 1;
        job.n_later = -1;
        job.notes_only = true;
        kv_attend(&job, attend);
        n_done += job.n_tok;
    }
}

/* ---- rows ---- */

size_t keep_queries_logits_scratch(const struct policy_model *model, int32_t n_query, int32_t n)
{
    return weights_size(model, n_query, n) +
           pi_align(kv_attend_scratch_bytes(&model->g, n_query * model->n_group), 64);
}

void keep_queries_logits(const struct keep_view *view, const struct keep_lane *lane,
                         int32_t n_query, void *scratch, const float **logit, size_t *stride)
{
    const struct policy_model *m = view->model;
    int32_t count = keep_queries_count(view, n_query);
    *stride = stride_of(lane->n);
    *logit = scratch;
    for (int32_t n_done = 0; n_done < count;) {
        struct kv_attend_job job = job_of(view, lane, n_query, count, n_done, count);
        float *to = (float *)scratch + (size_t)n_done * (size_t)m->n_group * *stride;
        struct kv_attend_tap tap = {.logits = to, .row_stride = *stride};
        job.tap = &tap;
        kv_attend(&job, (uint8_t *)scratch + weights_size(m, n_query, lane->n));
        n_done += job.n_tok;
    }
}

/* ---- votes ---- */

void keep_queries_votes(const struct keep_view *view, int32_t n_query, struct kv_weigh_job *job)
{
    const struct policy_model *m = view->model;
    size_t head = (size_t)job->head * (size_t)m->n_group * (size_t)m->g.dim_k;
    job->kind = KV_WEIGH_VOTES;
    job->votes = (struct kv_weigh_votes){
        .q = pi_at_item(keep_queries_there(view, n_query, job->layer), head),
        .stride = row_len(m),
        .n_ring = n_query,
        .count = keep_queries_count(view, n_query),
        .next = view->n_token,
        .n_group = m->n_group,
        .scale = m->scale,
        .kernel = 1,
        .before = INT32_MAX,
    };
}
