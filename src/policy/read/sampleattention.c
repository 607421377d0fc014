/*
 * sampleattention.c - keys that a sample of the chunk's queries looks at. Zhu, Duan, Chen, Liu,
 * Feng, Lv, Xiao, Lin, Yang, "SampleAttention: Near-Lossless Acceleration of Long Context LLM
 * Inference with Adaptive Structured Sparse Attention", 2024 (arXiv 2406.15486), in the form that
 * the paper of QuoKA compares itself with (section 4 and appendix C): N of the chunk's C queries,
 * evenly spread, logits of every query head by itself, one number per key from all of them. Neither
 * code is public; the reduction is our reading.
 *
 *   c[j]     = floor(j C / N), j < N; every query where C <= N
 *   a[h][j]  = softmax over the keys t before the chunk of scale q[h][c[j]].k[t]
 *   score(t) = mean over the N queries of the mean over the group's heads of a[h][j][t]
 *
 * weigh=logits leaves the softmax out. Both means are then linear in the queries, so that their
 * mean is multiplied with every key once, to the same scores but for rounding.
 *
 * The method was published as a share of all rows of a prompt at once. It takes as many columns as
 * hold 95 % of their weights beside a local window. That has no fixed budget and needs the whole
 * prompt before it begins; it is not here.
 */
#include "base/mem.h"
#include "cpu/kernels.h"
#include "policy/read/together.h"

enum weigh { WEIGH_SOFTMAX, WEIGH_LOGITS };

struct params {
    int32_t n_query; /* N */
    int32_t weigh;   /* enum weigh */
};

/* Rows of weights that are there at the same time. They are enough to make the decoding of a page
   small beside the work on it, and few enough for lanes of any length. */
#define ROWS 32

/* A call's scratch. */
struct work {
    float *q;      /* [block][n_group][dim_k] the sampled queries side by side */
    float *weight; /* [block][n_group][stride] */
    void *attend;  /* of kv_attend */
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
    size_t used = 0, dim = (size_t)model->g.dim_k;
    int32_t n_row = block_of(p, model) * model->n_group;
    w->q = pi_mem_part(base, &used, (size_t)n_row * dim, sizeof(float));
    w->weight = pi_mem_part(base, &used, (size_t)n_row * pi_align(len, 16), sizeof(float));
    w->attend = pi_mem_part(base, &used, kv_attend_scratch_bytes(&model->g, n_row), 1);
    return used;
}

static size_t scratch_size(const void *params, const struct policy_model *model, int32_t n,
                           int32_t n_tok)
{
    const struct params *p = params;
    struct work w;
    (void)n_tok;
    return p->weigh == WEIGH_LOGITS ? 0 : lay_out(p, model, (size_t)n, NULL, &w);
}

/* The token of sampled query j of n. */
static int32_t token_of(const struct read_chunk *c, int32_t j, int32_t n)
{
    return (int32_t)((int64_t)j * c->n_tok / n);
}

static const float *query_of(const struct read_chunk *c, int32_t token)
{
    return c->q + (size_t)token * c->q_stride;
}

/* Adds the weights of sampled queries j0 .. j0 + count - 1 of n to out. To kv_attend their rows are
   one token's heads, at the last position before the chunk. So each sees the keys before the chunk
   and no others. */
static void add_block(const struct read_view *view, const struct read_chunk *c, int32_t j0,
                      int32_t count, int32_t n, size_t stride, struct work *w, float *out)
{
    const struct policy_model *m = view->model;
    size_t len = (size_t)m->n_group * (size_t)m->g.dim_k;
    struct kv_attend_tap tap = {.weight = w->weight, .row_stride = stride};
    struct kv_attend_job job = {
        .seq = view->kv,
        .layer = c->layer,
        .head = c->head,
        .n_tok = 1,
        .n_group = count * m->n_group,
        .pos0 = c->pos0 - 1,
        .q = w->q,
        .q_stride = (size_t)count * len,
        .scale = m->scale,
        .rope = policy_rope(m, c->layer),
        .tap = &tap,
    };
    for (int32_t j = 0; j < count; j++)
        memcpy(w->q + (size_t)j * len, query_of(c, token_of(c, j0 + j, n)), len * sizeof(float));
    kv_attend(&job, w->attend);
    for (int32_t r = 0; r < job.n_group; r++)
        pi_kernels()->vec.add(out, w->weight + (size_t)r * stride, c->n);
}

static void score_weights(const struct params *p, const struct read_view *view,
                          const struct read_chunk *c, int32_t n, float *out)
{
    size_t len = (size_t)kv_lane_len(view->kv, c->layer, c->head);
    int32_t block = block_of(p, view->model);
    struct work w;
    lay_out(p, view->model, len, c->scratch, &w);
    memset(out, 0, (size_t)c->n * sizeof(*out));
    for (int32_t j = 0; j < n; j += block)
        add_block(view, c, j, (int32_t)pi_min(block, n - j), n, pi_align(len, 16), &w, out);
    for (int32_t s = 0; s < c->n; s++)
        out[s] /= (float)(n * c->n_group);
}

static int32_t n_set(const void *params, const struct policy_model *model, int32_t n_tok)
{
    (void)model;
    (void)n_tok;
    return ((const struct params *)params)->weigh == WEIGH_LOGITS;
}

static int32_t n_vector(const void *params, const struct policy_model *model, int32_t n_tok)
{
    (void)params;
    (void)model;
    (void)n_tok;
    return 1;
}

static int32_t count_of(const struct params *p, const struct read_chunk *c)
{
    return (int32_t)pi_min(p->n_query, c->n_tok);
}

/* The same where the device has the queries: their weights over the keys before the chunk, or their
   mean. */
static void pick_sample(const struct params *p, const struct read_view *view,
                        const struct read_chunk *c, int32_t n, struct kv_score_job *job)
{
    bool soft = p->weigh == WEIGH_SOFTMAX;
    job->pick = read_pick(c, soft ? KV_PICK_ALL : KV_PICK_MEAN);
    job->pick.n = n;
    job->pick.factor = view->model->scale;
    if (!soft)
        return;
    job->reduce = KV_SCORE_SOFTMAX;
    job->n_q = n * c->n_group;
    job->soft.n_seen = c->n;
}

/* The mean of the sampled queries. */
static void ask(const void *params, const struct read_view *view, const struct read_chunk *c,
                struct kv_score_job *jobs)
{
    const struct policy_model *m = view->model;
    int32_t dim = m->g.dim_k, n = count_of(params, c);
    float *mean = read_vector(view, c, 0);
    *jobs =
        (struct kv_score_job){.kind = KV_SCORE_DOT, .reduce = KV_SCORE_MEAN, .q = mean, .n_q = 1};
    if (c->q == NULL) {
        pick_sample(params, view, c, n, jobs);
        return;
    }
    memset(mean, 0, (size_t)dim * sizeof(*mean));
    for (int32_t j = 0; j < n; j++)
        for (int32_t g = 0; g < c->n_group; g++) {
            const float *q = query_of(c, token_of(c, j, n)) + (size_t)g * (size_t)dim;
            for (int32_t d = 0; d < dim; d++)
                mean[d] += q[d];
        }
    for (int32_t d = 0; d < dim; d++)
        mean[d] *= m->scale / (float)(n * c->n_group);
}

static void score(const void *params, const struct read_view *view, const struct read_chunk *c,
                  float *out)
{
    const struct params *p = params;
    if (p->weigh == WEIGH_LOGITS)
        read_clean(out, c->n);
    else
        score_weights(p, view, c, count_of(p, c), out);
}

static bool picks(const void *params, const struct policy_model *model, int32_t n_tok)
{
    const struct params *p = params;
    int32_t n = (int32_t)pi_min(p->n_query, n_tok);
    return read_can_pick(model, n * model->n_group, p->weigh == WEIGH_SOFTMAX);
}

static const char *const weigh_words[] = {
    [WEIGH_SOFTMAX] = "softmax", [WEIGH_LOGITS] = "logits", NULL};

static const struct policy_param own_params[] = {
    {"queries", POLICY_TYPE_COUNT, offsetof(struct params, n_query), 1, 4096, "16",
     "queries of a chunk that are sampled, evenly spread", NULL},
    {"weigh", POLICY_TYPE_CHOICE, offsetof(struct params, weigh), 0, 0, "softmax",
     "softmax: averages weights over the keys before the chunk. logits: averages logits instead, "
     "which one product with the mean query gives",
     weigh_words},
    {0},
};

const struct read_policy read_sampleattention = {
    .name = "sampleattention",
    .summary = "keys that a sample of the queries attends to",
    .citation = "Zhu et al., SampleAttention: Near-Lossless Acceleration of Long Context LLM "
                "Inference with Adaptive Structured Sparse Attention, 2024, arXiv 2406.15486",
    .params = own_params,
    .params_size = sizeof(struct params),
    .scratch_size = scratch_size,
    .n_set = n_set,
    .ask = ask,
    .n_vector = n_vector,
    .picks = picks,
    .score = score,
};
