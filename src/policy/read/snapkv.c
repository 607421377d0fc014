/*
 * snapkv.c - keys that the last queries of the chunk look at. Li, Huang, Yang, Venkitesh,
 * Locatelli, Ye, Cai, Lewis, Chen, "SnapKV: LLM Knows What You are Looking for Before Generation",
 * NeurIPS 2024 (arXiv 2404.14469), with the numbers of SnapKVPress in NVIDIA's kvpress. With the
 * chunk's last W queries, all of them where it has fewer, and alpha the causal softmax over all
 * keys, the chunk's own included:
 *
 *   vote(i)  = mean over the W queries t and the group's heads h of alpha[h][t][i]
 *   score(i) = mean of vote over `kernel` neighbours in the order of the text
 *
 * for the keys i before the W queries' own; neighbours beyond the ends are zeros and counted. Of
 * those the chunk's own are always read and need no score, but are neighbours.
 *
 * Departures. The method evicts, once, after the prompt; here nothing goes, and every chunk chooses
 * anew. The average over heads, which kvpress takes after pooling, and the one over neighbours are
 * linear and change places. pool=max, which the authors used on long texts, pools the group's
 * common scores. policy/keep/methods/snapkv.c is the method as it evicts.
 */
#include "base/mem.h"
#include "cpu/kernels.h"
#include "policy/pool.h"
#include "policy/read/together.h"

struct params {
    int32_t n_query; /* W */
    int32_t pool;    /* enum policy_pool_kind */
    int32_t kernel;
};

/* Rows of weights that are there at the same time. They are enough to make the decoding of a page
   small beside the work on it, and few enough for lanes of any length. */
#define ROWS 32

/* A call's scratch. */
struct work {
    float *weight;  /* [block][n_group][stride] */
    float *vote;    /* [len] by slot */
    float *sorted;  /* [len] in the order of the text */
    float *pooled;  /* [len], likewise */
    int32_t *pos;   /* [len] by slot */
    int32_t *order; /* [len] slots in the order of the text */
    void *attend;   /* of kv_attend */
};

/* Queries of a block: their heads are about ROWS rows. */
static int32_t block_of(const struct params *p, const struct policy_model *model)
{
    return (int32_t)pi_min(p->n_query, pi_max(1, ROWS / model->n_group));
}

/* For lanes of len entries, the chunk's own and later ones included. */
static size_t lay_out(const struct params *p, const struct policy_model *model, size_t len,
                      void *base, struct work *w)
{
    size_t used = 0;
    int32_t n_row = block_of(p, model) * model->n_group;
    w->weight = pi_mem_part(base, &used, (size_t)n_row * pi_align(len, 16), sizeof(float));
    w->vote = pi_mem_part(base, &used, len, sizeof(float));
    w->sorted = pi_mem_part(base, &used, len, sizeof(float));
    w->pooled = pi_mem_part(base, &used, len, sizeof(float));
    w->pos = pi_mem_part(base, &used, len, sizeof(int32_t));
    w->order = pi_mem_part(base, &used, len, sizeof(int32_t));
    w->attend = pi_mem_part(base, &used, kv_attend_scratch_bytes(&model->g, n_row), 1);
    return used;
}

static size_t scratch_size(const void *params, const struct policy_model *model, int32_t n,
                           int32_t n_tok)
{
    struct work w;
    (void)n_tok;
    return lay_out(params, model, (size_t)n, NULL, &w);
}

/* w->vote [n_vote] of the chunk's tokens from t0 on, as a sum. */
static void take_votes(const struct params *p, const struct read_view *view,
                       const struct read_chunk *c, int32_t t0, int32_t n_vote, size_t stride,
                       struct work *w)
{
    const struct policy_model *m = view->model;
    int32_t block = block_of(p, m);
    struct kv_attend_tap tap = {.weight = w->weight, .row_stride = stride};
    memset(w->vote, 0, (size_t)n_vote * sizeof(*w->vote));
    for (int32_t t = t0; t < c->n_tok; t += block) {
        struct kv_attend_job job = {
            .seq = view->kv,
            .layer = c->layer,
            .head = c->head,
            .n_tok = (int32_t)pi_min(block, c->n_tok - t),
            .n_group = m->n_group,
            .pos0 = c->pos0 + t,
            .q = c->q + (size_t)t * c->q_stride,
            .q_stride = c->q_stride,
            .scale = m->scale,
            .rope = policy_rope(m, c->layer),
            .tap = &tap,
        };
        kv_attend(&job, w->attend);
        for (int32_t r = 0; r < job.n_tok * m->n_group; r++)
            pi_kernels()->vec.add(w->vote, w->weight + (size_t)r * stride, n_vote);
    }
}

/* Where the device has the queries: the last ones' weights, pooled. */
static void ask(const void *params, const struct read_view *view, const struct read_chunk *c,
                struct kv_score_job *jobs)
{
    const struct params *p = params;
    int32_t n_query = (int32_t)pi_min(p->n_query, c->n_tok), t0 = c->n_tok - n_query;
    *jobs = read_soft_job(view, c, KV_SCORE_DOT, 0, c->n_group);
    jobs->pick.q = pi_at_item(c->q_at, (size_t)t0 * c->q_stride);
    jobs->pick.n_tok = jobs->pick.n = n_query;
    jobs->n_q = n_query * c->n_group;
    jobs->soft.n_seen = c->n + t0 + 1;
    jobs->soft.n_vote = c->n + t0;
    jobs->soft.kernel = p->kernel;
    jobs->soft.most = p->pool == POLICY_POOL_MAX;
}

static bool picks(const void *params, const struct policy_model *model, int32_t n_tok)
{
    int32_t n_query = (int32_t)pi_min(((const struct params *)params)->n_query, n_tok);
    return read_can_pick(model, n_query * model->n_group, true);
}

static void score(const void *params, const struct read_view *view, const struct read_chunk *c,
                  float *out)
{
    const struct params *p = params;
    size_t len = (size_t)kv_lane_len(view->kv, c->layer, c->head);
    int32_t n_query = (int32_t)pi_min(p->n_query, c->n_tok), t0 = c->n_tok - n_query;
    int32_t n_vote = c->n + t0; /* keys before the queries' own */
    float n_row = (float)(n_query * c->n_group);
    struct work w;
    lay_out(p, view->model, len, c->scratch, &w);
    take_votes(p, view, c, t0, n_vote, pi_align(len, 16), &w);
    kv_lane_positions(view->kv, c->layer, c->head, w.pos, n_vote);
    policy_pool_order(w.pos, n_vote, w.order);
    for (int32_t i = 0; i < n_vote; i++)
        w.sorted[i] = w.vote[w.order[i]] / n_row;
    policy_pool((enum policy_pool_kind)p->pool, p->kernel, w.sorted, n_vote, w.pooled);
    for (int32_t i = 0; i < n_vote; i++)
        if (w.order[i] < c->n)
            out[w.order[i]] = w.pooled[i];
}

static const char *const pool_words[] = {
    [POLICY_POOL_AVG] = "avg", [POLICY_POOL_MAX] = "max", NULL};

static const struct policy_param own_params[] = {
    {"queries", POLICY_TYPE_COUNT, offsetof(struct params, n_query), 1, 4096, "64",
     "the chunk's last queries, by whose attention keys are chosen; all where it has fewer", NULL},
    {"pool", POLICY_TYPE_CHOICE, offsetof(struct params, pool), 0, 0, "avg",
     "avg: the mean, with zeros beyond the ends. max: the largest", pool_words},
    {"kernel", POLICY_TYPE_COUNT, offsetof(struct params, kernel), 1, 4095, "5",
     "neighbours in the order of the text that are pooled; 1: none", NULL},
    {0},
};

const struct read_policy read_snapkv = {
    .name = "snapkv",
    .summary = "keys that the last queries attend to, pooled",
    .citation = "Li et al., SnapKV: LLM Knows What You are Looking for Before Generation, NeurIPS "
                "2024, arXiv 2404.14469",
    .params = own_params,
    .params_size = sizeof(struct params),
    .scratch_size = scratch_size,
    .ask = ask,
    .picks = picks,
    .score = score,
};
