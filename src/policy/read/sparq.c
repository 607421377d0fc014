/*
 * sparq.c - the dimensions in which a query is large tell which keys matter. Ribar, Chelombiev,
 * Hudlass-Galley, Blake, Luschi, Orr, "SparQ Attention: Bandwidth-Efficient LLM Inference", ICML
 * 2024 (arXiv 2312.04985), Algorithm 1, and the authors' code (graphcore-research,
 * llm-inference-research: llminference/methods/ann_attention.py; sparq-llama.cpp). For the query
 * heads h of a KV head, with d dimensions:
 *
 *   c      = the r dimensions of largest sum over h of |q_h|
 *   l_h(t) = sum over c of q_h k_t / sqrt(d sum over c of |q_h| / sum of |q_h|)
 *   score  = sum over h of l_h                      (rank=logits, the code; summing softmax(l_h)
 *                                                    instead is the paper's: rank=softmax)
 *   read   = the last local_k keys (the rule `recent`) and of the others the best, k in all
 *   a_h    = what softmax(l_h) gives to the keys that are read
 *   out_h  = a_h attention(what is read) + (1 - a_h) mean of all values         (mean=on)
 *
 * Instead of 1 / sqrt(d) the model's own scale is taken, which is the same but where a model has
 * another. k = 64 and local_k = 16 are the code's, r = 32 that of its CPU port, both of which leave
 * prompts dense. columns=on keeps K a second time with its dimensions apart, as the authors do, so
 * that r of d dimensions are read. Without it the scores are about the same and all of K is read.
 *
 * Departures. The token's own key always is read and comes on top of k. Over a chunk, which the
 * authors do not know, scores are the mean over its queries, each with its own dimensions. That
 * mean is linear in logits, so one vector makes it; rank=softmax goes through the lane once for
 * each query. Values are corrected where a token is alone (n_tok = 1), not in chunks. QuoKA's
 * comparison has no correction, and a_h would be needed of every query.
 */
#include <math.h>

#include "base/mem.h"
#include "policy/read/together.h"

enum { OFF, ON }; /* policy_switch_words */

struct params {
    int32_t n_dim; /* r */
    int32_t rank;
    int32_t mean;
    int32_t columns;
};

/* A call's scratch. score leaves weight and sum to chosen. */
struct work {
    float
        *weight; /* [n_group][n + n_tok] of a token that is alone, exp(l - max); of chunks, a row */
    double *sum; /* [n_group] of a row of weight */
    float *q;    /* [dim_k] what the lane is scored by */
    float *length; /* [dim_k] sum over the group of |q| */
    int32_t *dims; /* [dim_k] */
    uint8_t *used; /* [dim_k] whether some query has the dimension */
    float *value;  /* [dim_v] */
    void *top;     /* of kv_top over dimensions */
    void *score;   /* of kv_score */
};

static size_t lay_out(const struct policy_model *model, int32_t n, int32_t n_tok, void *base,
                      struct work *w)
{
    size_t used = 0, dim = (size_t)model->g.dim_k, n_group = (size_t)model->n_group;
    w->weight = pi_mem_part(base, &used, n_group * ((size_t)n + (size_t)n_tok), sizeof(float));
    w->sum = pi_mem_part(base, &used, n_group, sizeof(double));
    w->q = pi_mem_part(base, &used, dim, sizeof(float));
    w->length = pi_mem_part(base, &used, dim, sizeof(float));
    w->dims = pi_mem_part(base, &used, dim, sizeof(int32_t));
    w->used = pi_mem_part(base, &used, dim, 1);
    w->value = pi_mem_part(base, &used, (size_t)model->g.dim_v, sizeof(float));
    w->top = pi_mem_part(base, &used, kv_top_scratch_bytes(model->g.dim_k), 1);
    w->score = pi_mem_part(base, &used, kv_score_scratch_bytes(&model->g, 1), 1);
    return used;
}

static size_t scratch_size(const void *params, const struct policy_model *model, int32_t n,
                           int32_t n_tok)
{
    struct work w;
    (void)params;
    return lay_out(model, n, n_tok, NULL, &w);
}

static uint32_t index_of(const void *params, const struct kv_geometry *g, int32_t *dim)
{
    const struct params *p = params;
    (void)g;
    *dim = 0;
    return (p->columns == ON ? KV_INDEX_COLUMNS : 0u) | (p->mean == ON ? KV_INDEX_VALUE_SUM : 0u);
}

/* ---- dimensions ---- */

static const float *query(const struct read_chunk *c, int32_t dim, int32_t t, int32_t g)
{
    return c->q + (size_t)t * c->q_stride + (size_t)g * (size_t)dim;
}

/* The dimensions that count for token t, ascending into w->dims; returns their number. */
static int32_t choose_dims(const struct params *p, const struct read_chunk *c, int32_t dim,
                           int32_t t, struct work *w)
{
    int32_t n = (int32_t)pi_min(p->n_dim, dim);
    memset(w->length, 0, (size_t)dim * sizeof(*w->length));
    for (int32_t g = 0; g < c->n_group; g++) {
        const float *q = query(c, dim, t, g);
        for (int32_t d = 0; d < dim; d++)
            w->length[d] += fabsf(q[d]);
    }
    kv_top(w->length, dim, n, w->dims, w->top);
    return n;
}

/* Adds query head g's part of token t, in the n dimensions of w->dims alone and with its
   temperature, to w->q. The product with a key is l_h. */
static void add_query(const struct read_chunk *c, const struct policy_model *model, int32_t t,
                      int32_t g, int32_t n, struct work *w)
{
    const float *q = query(c, model->g.dim_k, t, g);
    float part = 0.0f, all = 0.0f;
    for (int32_t d = 0; d < model->g.dim_k; d++)
        all += fabsf(q[d]);
    for (int32_t i = 0; i < n; i++)
        part += fabsf(q[w->dims[i]]);
    if (!(part > 0.0f))
        return;
    float factor = model->scale / sqrtf(part / all);
    for (int32_t i = 0; i < n; i++)
        w->q[w->dims[i]] += q[w->dims[i]] * factor;
}

static void clear_query(const struct policy_model *model, struct work *w)
{
    memset(w->q, 0, (size_t)model->g.dim_k * sizeof(*w->q));
}

/* ---- scores ---- */

static void score_columns(const struct read_view *view, const struct read_chunk *c, int32_t n_dim,
                          int32_t n, struct work *w, float *out)
{
    struct kv_score_job job = read_score_job(view, c, KV_SCORE_COLUMNS, w->q, 1, n, out);
    job.dims = w->dims;
    job.n_dim = n_dim;
    kv_score(&job, w->score);
    read_clean(out, n);
}

/* A token that is alone leaves its weights to chosen. */
static bool keeps_weights(const struct params *p, int32_t n_tok)
{
    return p->mean == ON && n_tok == 1;
}

static int32_t n_set(const void *params, const struct policy_model *model, int32_t n_tok)
{
    const struct params *p = params;
    (void)model;
    return p->rank == READ_RANK_LOGITS && !keeps_weights(p, n_tok);
}

/* Its dimensions lie behind the vector. */
static int32_t n_vector(const void *params, const struct policy_model *model, int32_t n_tok)
{
    (void)params;
    (void)model;
    (void)n_tok;
    return 2;
}

/* Where the device has the queries. One vector gives the sums of logits. A vector of each query
   gives weights, and with them the logits of a token that is alone. */
static void pick_large(const struct params *p, const struct read_view *view,
                       const struct read_chunk *c, struct kv_score_job *job)
{
    int64_t n_dim = pi_min(p->n_dim, view->model->g.dim_k);
    bool keeps = keeps_weights(p, c->n_tok), soft = p->rank == READ_RANK_SOFTMAX || keeps;
    *job = (struct kv_score_job){
        .kind = KV_SCORE_COLUMNS,
        .reduce = soft ? KV_SCORE_SOFTMAX : KV_SCORE_MEAN,
        .n_q = soft ? c->n_tok * c->n_group : 1,
        .n_dim = (int32_t)pi_min(n_dim * c->n_tok, view->model->g.dim_k),
        .pick = read_pick(c, KV_PICK_LARGE),
        .soft = {.n_seen = c->n + 1, .grows = true, .keeps = keeps},
    };
    job->soft.take = p->rank == READ_RANK_LOGITS ? KV_TAKE_LOGITS : KV_TAKE_MEAN;
    job->pick.n_dim = (int32_t)n_dim;
    job->pick.factor = view->model->scale;
}

static bool picks(const void *params, const struct policy_model *model, int32_t n_tok)
{
    (void)params;
    return read_can_pick(model, n_tok * model->n_group, true);
}

static bool blends(const void *params, int32_t n_tok)
{
    return keeps_weights(params, n_tok);
}

/* The mean over the chunk of the sums over heads of logits, which one vector gives. */
static void ask(const void *params, const struct read_view *view, const struct read_chunk *c,
                struct kv_score_job *jobs)
{
    const struct params *p = params;
    struct work place, *w = &place;
    int32_t dim = view->model->g.dim_k, n_dim = 0;
    if (c->q == NULL) {
        pick_large(p, view, c, jobs);
        return;
    }
    int32_t *dims = (int32_t *)(void *)read_vector(view, c, 1);
    lay_out(view->model, c->n, c->n_tok, c->scratch, w);
    w->q = read_vector(view, c, 0);
    clear_query(view->model, w);
    memset(w->used, 0, (size_t)dim);
    for (int32_t t = 0; t < c->n_tok; t++) {
        int32_t n = choose_dims(p, c, dim, t, w);
        for (int32_t i = 0; i < n; i++)
            w->used[w->dims[i]] = 1;
        for (int32_t g = 0; g < c->n_group; g++)
            add_query(c, view->model, t, g, n, w);
    }
    for (int32_t d = 0; d < dim; d++)
        if (w->used[d])
            dims[n_dim++] = d;
    *jobs = (struct kv_score_job){.kind = KV_SCORE_COLUMNS,
                                  .reduce = KV_SCORE_MEAN,
                                  .q = w->q,
                                  .n_q = 1,
                                  .dims = dims,
                                  .n_dim = n_dim};
}

/* The mean over the chunk of the sums over heads of weights, each over what its query sees. */
static void score_weights(const struct params *p, const struct read_view *view,
                          const struct read_chunk *c, struct work *w, float *out)
{
    memset(out, 0, (size_t)c->n * sizeof(*out));
    for (int32_t t = 0; t < c->n_tok; t++) {
        int32_t n = choose_dims(p, c, view->model->g.dim_k, t, w), n_seen = c->n + t + 1;
        for (int32_t g = 0; g < c->n_group; g++) {
            clear_query(view->model, w);
            add_query(c, view->model, t, g, n, w);
            score_columns(view, c, n, n_seen, w, w->weight);
            float factor = (float)(1.0 / (read_soften(w->weight, n_seen) * c->n_tok));
            for (int32_t i = 0; i < c->n; i++)
                out[i] += w->weight[i] * factor;
        }
    }
}

/* A token that is alone: its weights are kept for chosen. */
static void score_token(const struct params *p, const struct read_view *view,
                        const struct read_chunk *c, struct work *w, float *out)
{
    int32_t n = choose_dims(p, c, view->model->g.dim_k, 0, w), n_seen = c->n + 1;
    memset(out, 0, (size_t)c->n * sizeof(*out));
    for (int32_t g = 0; g < c->n_group; g++) {
        float *row = w->weight + (size_t)g * (size_t)n_seen, factor = 1.0f;
        clear_query(view->model, w);
        add_query(c, view->model, 0, g, n, w);
        score_columns(view, c, n, n_seen, w, row);
        for (int32_t i = 0; p->rank == READ_RANK_LOGITS && i < c->n; i++)
            out[i] += row[i];
        w->sum[g] = read_soften(row, n_seen);
        factor = (float)(1.0 / w->sum[g]);
        for (int32_t i = 0; p->rank == READ_RANK_SOFTMAX && i < c->n; i++)
            out[i] += row[i] * factor;
    }
}

static void score(const void *params, const struct read_view *view, const struct read_chunk *c,
                  float *out)
{
    const struct params *p = params;
    struct work w;
    lay_out(view->model, c->n, c->n_tok, c->scratch, &w);
    if (keeps_weights(p, c->n_tok)) {
        score_token(p, view, c, &w, out);
        return;
    }
    if (p->rank == READ_RANK_SOFTMAX) {
        score_weights(p, view, c, &w, out);
        return;
    }
    read_clean(out, c->n);
    for (int32_t i = 0; c->n_tok > 1 && i < c->n; i++)
        out[i] /= (float)c->n_tok;
}

/* ---- the values that were not read ---- */

/* beside [n_group] = a_h */
static void chosen(const void *params, const struct read_view *view, const struct read_chunk *c,
                   const int32_t *slots, int32_t n_slot)
{
    const struct params *p = params;
    struct work w;
    if (!keeps_weights(p, c->n_tok))
        return;
    lay_out(view->model, c->n, c->n_tok, c->scratch, &w);
    for (int32_t g = 0; g < c->n_group; g++) {
        const float *row = w.weight + (size_t)g * ((size_t)c->n + 1);
        double read = (double)row[c->n];
        for (int32_t i = 0; i < n_slot; i++)
            read += (double)row[slots[i]];
        c->beside[g] = (float)(read / w.sum[g]);
    }
}

static void adjust(const void *params, const struct read_view *view, const struct read_chunk *c,
                   float *out, size_t out_stride)
{
    const struct params *p = params;
    int32_t dim = view->model->g.dim_v, n = c->n + 1;
    struct work w;
    (void)out_stride;
    if (!keeps_weights(p, c->n_tok))
        return;
    lay_out(view->model, c->n, c->n_tok, c->scratch, &w);
    kv_lane_value_sum(view->kv, c->layer, c->head, n, w.value);
    for (int32_t g = 0; g < c->n_group; g++) {
        float *row = out + (size_t)g * (size_t)dim, a = c->beside[g];
        for (int32_t d = 0; d < dim; d++)
            row[d] = a * row[d] + (1.0f - a) * (w.value[d] / (float)n);
    }
}

#define AT(member) offsetof(struct params, member)
static const struct policy_param own_params[] = {
    {"r", POLICY_TYPE_COUNT, AT(n_dim), 1, 8192, "32",
     "dimensions that approximate a logit; a head with fewer takes all", NULL},
    {"rank", POLICY_TYPE_CHOICE, AT(rank), 0, 0, "logits",
     "the heads of a group add up logits, as the authors' code, or softmax of them, as the paper",
     read_rank_words},
    {"mean", POLICY_TYPE_CHOICE, AT(mean), 0, 0, "on",
     "on: the mean of all values stands in for the unread ones, for a token that is alone; in "
     "chunks there is none",
     policy_switch_words},
    {"columns", POLICY_TYPE_CHOICE, AT(columns), 0, 0, "on",
     "on: K is stored a second time, dimension by dimension, so that r of d are read. off: all of "
     "K is read",
     policy_switch_words},
    {0},
};
#undef AT

static const struct policy_preset presets[] = {
    {"script", "r=16", "the setting of the authors' evaluation script"},
    {"quoka", "phase=both,gate=0,budget=1024,recent=0,r=64,rank=softmax,mean=off",
     "as QuoKA compares with it: prompts, too, and 64 dimensions"},
    {0},
};

const struct read_policy read_sparq = {
    .name = "sparq",
    .summary = "keys by the dimensions in which the query is large",
    .citation =
        "Ribar et al., SparQ Attention: Bandwidth-Efficient LLM Inference, ICML 2024, arXiv "
        "2312.04985",
    .defaults = "budget=64,recent=16,gate=1,phase=decode",
    .params = own_params,
    .params_size = sizeof(struct params),
    .presets = presets,
    .index = index_of,
    .scratch_size = scratch_size,
    .n_set = n_set,
    .ask = ask,
    .n_vector = n_vector,
    .picks = picks,
    .blends = blends,
    .score = score,
    .chosen = chosen,
    .adjust = adjust,
};
