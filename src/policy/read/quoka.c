/*
 * quoka.c - keys that the most unusual queries of a chunk point to. Jones, Park, Morse, Lee, Lott,
 * Langston, "QuoKA: Query-oriented KV selection for Efficient LLM Prefill", Algorithm 1. The
 * authors published no code. For a chunk of C queries q[h][c], after rope, and G query heads h of a
 * KV head:
 *
 *   M[h]     = (1/C) sum_c q[h][c]
 *
 *   s[h][c]  = q[h][c].M[h] / (|q[h][c]| |M[h]|)
 *
 *   R[h]     = the N_Q tokens c of smallest s[h][c]; where C <= N_Q all of them, in order
 *
 *   qbar[j]  = (1/G) sum_h q[h][R[h][j]] / |q[h][R[h][j]]|, not normalised again
 *
 *   score(t) = max_j qbar[j].k[t] / |k[t]|
 *
 * A token that is evaluated alone has one query and skips the first half. The mean over heads
 * before the product is the mean of the heads' scores after it, both being linear. The division by
 * |k|, the same for all j, comes after the maximum and is a number that is stored beside the key.
 *
 * Which queries of the heads share an index j the paper leaves open. pair=rank reads the algorithm
 * as it stands. It takes the least similar query of every head, then the second, whatever tokens
 * they are of, in the order of (s, c) ascending. pair=token and pair=none are ours. With token the
 * heads choose tokens together, by the sum of their s. With none no queries are averaged: each head
 * scores by its own, max first and then the mean over heads, for G times the work. score=dot
 * (queries and keys as they are) and aggregate=mean are the paper's ablations (appendix I).
 * index=int8 scores by 8-bit codes of the unit keys, a fourth or half of the keys' bytes; ours.
 *
 * A vector of zeros, and one whose squared length is beyond the range of f32, counts as the zero
 * vector and is similar to nothing. (That is ours; the paper divides by zero there.)
 */
#include <float.h>
#include <math.h>

#include "base/mem.h"
#include "policy/read/quoka.h"
#include "policy/read/together.h"

/* ---- the queries ---- */

/* Tokens of a chunk whose queries a device picks. */
#define MOST_PICKED 4096
#define LANES 16 /* partial sums of a product: several registers at every level */

/* Scratch of quoka_queries_make. */
struct choice {
    float *mean;       /* [dim_k] of one head */
    float *similarity; /* [n_group][n_tok] s */
    float *inverse;    /* [n_group][n_tok] 1 / |q|, 0 for none */
    int32_t *kept;     /* [n_group][n] */
    float *q;          /* [n_set][n][dim_k] */
};

static int32_t count_of(const struct quoka_form *form, int32_t n_tok)
{
    return n_tok < form->n_query ? n_tok : form->n_query;
}

static int32_t sets_of(const struct quoka_form *form, const struct policy_model *model)
{
    return form->pair == QUOKA_NONE ? model->n_group : 1;
}

static size_t lay_out(const struct quoka_form *form, const struct policy_model *model,
                      int32_t n_tok, void *base, struct choice *w)
{
    size_t used = 0, dim = (size_t)model->g.dim_k, group = (size_t)model->n_group;
    size_t n = (size_t)count_of(form, n_tok), n_set = (size_t)sets_of(form, model);
    w->mean = pi_mem_part(base, &used, dim, sizeof(float));
    w->similarity = pi_mem_part(base, &used, group * (size_t)n_tok, sizeof(float));
    w->inverse = pi_mem_part(base, &used, group * (size_t)n_tok, sizeof(float));
    w->kept = pi_mem_part(base, &used, group * n, sizeof(int32_t));
    w->q = pi_mem_part(base, &used, n_set * n * dim, sizeof(float));
    return used;
}

size_t quoka_queries_scratch(const struct quoka_form *form, const struct policy_model *model,
                             int32_t n_tok)
{
    struct choice w;
    return lay_out(form, model, n_tok, NULL, &w);
}

/* 1 / sqrt(square); 0 for a length that is 0 or beyond the range. */
static float inverse_root(float square)
{
    return square > 0.0f ? 1.0f / sqrtf(square) : 0.0f;
}

/* Halves are added: 8, 4, 2, 1. */
static float fold(float *sum)
{
    for (int32_t half = LANES / 2; half > 0; half /= 2)
        for (int32_t j = 0; j < half; j++)
            sum[j] += sum[j + half];
    return sum[0];
}

/* *qq = q.q and *qm = q.m, term i to partial sum i % LANES. */
static void products(const float *q, const float *m, int32_t dim, float *qq, float *qm)
{
    float a[LANES] = {0}, b[LANES] = {0};
    int32_t i = 0;
    for (; i + LANES <= dim; i += LANES)
        for (int32_t j = 0; j < LANES; j++) {
            a[j] += q[i + j] * q[i + j];
            b[j] += q[i + j] * m[i + j];
        }
    for (int32_t j = 0; i + j < dim; j++) {
        a[j] += q[i + j] * q[i + j];
        b[j] += q[i + j] * m[i + j];
    }
    *qq = fold(a);
    *qm = fold(b);
}

/* M of one head, whose query of token t is at q + t * stride. */
static void take_mean(const float *q, size_t stride, int32_t n_tok, int32_t dim,
                      float *restrict mean)
{
    memset(mean, 0, (size_t)dim * sizeof(*mean));
    for (int32_t t = 0; t < n_tok; t++) {
        const float *row = q + (size_t)t * stride;
        for (int32_t d = 0; d < dim; d++)
            mean[d] += row[d];
    }
    for (int32_t d = 0; d < dim; d++)
        mean[d] /= (float)n_tok;
}

/* s and 1 / |q| of one head's queries. The cosine of vectors whose product is beyond the range of
   f32 is 0. */
static void take_similarity(const float *q, size_t stride, int32_t n_tok, int32_t dim,
                            const float *mean, float *similarity, float *inverse)
{
    float mm, qq, qm;
    products(mean, mean, dim, &mm, &qm);
    mm = inverse_root(mm);
    for (int32_t t = 0; t < n_tok; t++) {
        products(q + (size_t)t * stride, mean, dim, &qq, &qm);
        inverse[t] = inverse_root(qq);
        similarity[t] = qm * inverse[t] * mm;
        if (!(fabsf(similarity[t]) <= FLT_MAX))
            similarity[t] = 0.0f;
    }
}

/* kept = the n tokens of smallest s, ascending; of equal ones the lower first. n is small, and most
   tokens are turned away by one comparison. */
static void keep_least(const float *s, int32_t n_tok, int32_t n, int32_t *kept)
{
    for (int32_t t = 0; t < n_tok; t++) {
        int32_t at = t < n ? t : n - 1;
        if (t >= n && !(s[t] < s[kept[at]]))
            continue;
        for (; at > 0 && s[kept[at - 1]] > s[t]; at--)
            kept[at] = kept[at - 1];
        kept[at] = t;
    }
}

/* w->kept from w->similarity, of which pair=token makes one for all heads. */
static void keep_queries(const struct quoka_form *form, int32_t n_group, int32_t n_tok, int32_t n,
                         struct choice *w)
{
    bool together = form->pair == QUOKA_TOKEN;
    for (int32_t g = 1; together && g < n_group; g++)
        for (int32_t t = 0; t < n_tok; t++)
            w->similarity[t] += w->similarity[(size_t)g * (size_t)n_tok + (size_t)t];
    for (int32_t g = 0; g < n_group; g++) {
        const float *s = w->similarity + (together ? 0 : (size_t)g * (size_t)n_tok);
        keep_least(s, n_tok, n, w->kept + (size_t)g * (size_t)n);
    }
}

/* Adds query head g's kept queries, divided by their lengths where cosines are wanted, to its
   set. */
static void add_head(const struct quoka_form *form, const struct read_chunk *c, int32_t dim,
                     int32_t g, int32_t n, struct choice *w)
{
    float *set = w->q + (form->pair == QUOKA_NONE ? (size_t)g * (size_t)n * (size_t)dim : 0);
    for (int32_t j = 0; j < n; j++) {
        int32_t t = w->kept[(size_t)g * (size_t)n + (size_t)j];
        const float *q = c->q + (size_t)t * c->q_stride + (size_t)g * (size_t)dim;
        float by =
            form->score == QUOKA_DOT ? 1.0f : w->inverse[(size_t)g * (size_t)c->n_tok + (size_t)t];
        float *restrict to = set + (size_t)j * (size_t)dim;
        for (int32_t d = 0; d < dim; d++)
            to[d] += q[d] * by;
    }
}

void quoka_queries_make(const struct quoka_form *form, const struct policy_model *model,
                        const struct read_chunk *c, void *scratch, struct quoka_queries *out)
{
    int32_t n_tok = c->n_tok, n_group = c->n_group, dim = model->g.dim_k;
    int32_t n = count_of(form, n_tok), n_set = sets_of(form, model);
    size_t len = (size_t)n_set * (size_t)n * (size_t)dim;
    struct choice w;
    lay_out(form, model, n_tok, scratch, &w);
    for (int32_t g = 0; g < n_group; g++) {
        const float *q = c->q + (size_t)g * (size_t)dim;
        size_t row = (size_t)g * (size_t)n_tok;
        take_mean(q, c->q_stride, n_tok, dim, w.mean);
        take_similarity(q, c->q_stride, n_tok, dim, w.mean, w.similarity + row, w.inverse + row);
    }
    if (n_tok > form->n_query)
        keep_queries(form, n_group, n_tok, n, &w);
    else
        for (int32_t i = 0; i < n_group * n; i++)
            w.kept[i] = i % n;
    memset(w.q, 0, len * sizeof(*w.q));
    for (int32_t g = 0; g < n_group; g++)
        add_head(form, c, dim, g, n, &w);
    for (size_t i = 0; n_set == 1 && i < len; i++)
        w.q[i] /= (float)n_group;
    *out = (struct quoka_queries){.n_set = n_set, .n = n, .q = w.q, .kept = w.kept};
}

/* ---- the keys ---- */

static size_t scratch_size(const void *params, const struct policy_model *model, int32_t n,
                           int32_t n_tok)
{
    (void)n;
    return quoka_queries_scratch(params, model, n_tok);
}

static enum kv_score_kind kind_of(const struct quoka_form *form)
{
    if (form->score == QUOKA_DOT)
        return KV_SCORE_DOT;
    return form->index == QUOKA_INT8 ? KV_SCORE_UNIT8 : KV_SCORE_COSINE;
}

static int32_t n_set(const void *params, const struct policy_model *model, int32_t n_tok)
{
    (void)n_tok;
    return sets_of(params, model);
}

static int32_t n_vector(const void *params, const struct policy_model *model, int32_t n_tok)
{
    return sets_of(params, model) * count_of(params, n_tok);
}

/* The device averages over heads, and takes cosines. */
static bool picks(const void *params, const struct policy_model *model, int32_t n_tok)
{
    const struct quoka_form *form = params;
    return form->pair == QUOKA_RANK && form->score == QUOKA_COSINE && n_tok <= MOST_PICKED &&
           model->g.dim_k <= READ_MOST_PICKED_DIM;
}

static void ask(const void *params, const struct read_view *view, const struct read_chunk *c,
                struct kv_score_job *jobs)
{
    const struct quoka_form *form = params;
    struct quoka_queries queries;
    if (c->q == NULL) {
        *jobs = (struct kv_score_job){
            .kind = kind_of(form),
            .reduce = form->aggregate == QUOKA_MEAN ? KV_SCORE_MEAN : KV_SCORE_MAX,
            .n_q = count_of(form, c->n_tok),
            .pick = read_pick(c, KV_PICK_UNUSUAL),

        };
        jobs->pick.scaled = true;
        return;
    }
    quoka_queries_make(form, view->model, c, c->scratch, &queries);
    memcpy(c->vector, queries.q,
           (size_t)(queries.n_set * queries.n) * (size_t)view->model->g.dim_k * sizeof(float));
    for (int32_t i = 0; i < queries.n_set; i++)
        jobs[i] = (struct kv_score_job){
            .kind = kind_of(form),
            .reduce = form->aggregate == QUOKA_MEAN ? KV_SCORE_MEAN : KV_SCORE_MAX,
            .q = read_vector(view, c, i * queries.n),
            .n_q = queries.n,
        };
}

/* The mean over the sets. */
static void score(const void *params, const struct read_view *view, const struct read_chunk *c,
                  float *out)
{
    const struct quoka_form *form = params;
    int32_t n_set = sets_of(form, view->model);
    for (int32_t i = 1; i < n_set; i++)
        for (int32_t s = 0; s < c->n; s++)
            out[s] += out[(size_t)i * (size_t)c->n + (size_t)s];
    for (int32_t s = 0; n_set > 1 && s < c->n; s++)
        out[s] /= (float)n_set;
    if (form->score == QUOKA_DOT)
        read_clean(out, c->n);
}

/* ---- the policy ---- */

static uint32_t index_of(const void *params, const struct kv_geometry *g, int32_t *dim)
{
    const struct quoka_form *form = params;
    (void)g;
    *dim = 0;
    if (form->score == QUOKA_DOT)
        return 0;
    return form->index == QUOKA_INT8 ? KV_INDEX_UNIT8 : KV_INDEX_NORM;
}

static pith_status check(const void *params, const struct read_rules *rules,
                         const struct kv_geometry *g, pith_error *err)
{
    const struct quoka_form *form = params;
    (void)rules;
    (void)g;
    if (form->score == QUOKA_DOT && form->index == QUOKA_INT8)
        return pi_fail(err, PITH_INVALID,
                       "read: index=int8 holds keys without their lengths, which score=dot needs");
    return PITH_OK;
}

static const char *const pair_words[] = {
    [QUOKA_RANK] = "rank", [QUOKA_TOKEN] = "token", [QUOKA_NONE] = "none", NULL};
static const char *const score_words[] = {[QUOKA_COSINE] = "cosine", [QUOKA_DOT] = "dot", NULL};
static const char *const aggregate_words[] = {[QUOKA_MAX] = "max", [QUOKA_MEAN] = "mean", NULL};
static const char *const index_words[] = {[QUOKA_NORM] = "norm", [QUOKA_INT8] = "int8", NULL};

static const struct policy_param own_params[] = {
    {"queries", POLICY_TYPE_COUNT, offsetof(struct quoka_form, n_query), 1, 4096, "16",
     "queries of a chunk and query head that choose, the ones least like their mean", NULL},
    {"pair", POLICY_TYPE_CHOICE, offsetof(struct quoka_form, pair), 0, 0, "rank",
     "rank: queries of one rank are averaged over heads, the least similar of every head first "
     "(the algorithm). token: the heads choose tokens together, by the sum of their cosines "
     "(ours). none: each head scores by its own N, and scores are averaged (ours; G times the "
     "work)",
     pair_words},
    {"score", POLICY_TYPE_CHOICE, offsetof(struct quoka_form, score), 0, 0, "cosine",
     "cosine, or dot: queries and keys with their lengths", score_words},
    {"aggregate", POLICY_TYPE_CHOICE, offsetof(struct quoka_form, aggregate), 0, 0, "max",
     "the scores of several queries become their max or mean", aggregate_words},
    {"index", POLICY_TYPE_CHOICE, offsetof(struct quoka_form, index), 0, 0, "norm",
     "beside the keys: norm, 1/|k|, 4 bytes per entry. int8: the unit key in 8 bits, d + 4 bytes, "
     "which alone is read to score (ours)",
     index_words},
    {0},
};

const struct read_policy read_quoka = {
    .name = "quoka",
    .summary = "keys that the chunk's most unusual queries point to",
    .citation = "Jones et al., QuoKA: Query-oriented KV selection for Efficient LLM Prefill",
    .params = own_params,
    .params_size = sizeof(struct quoka_form),
    .check = check,
    .index = index_of,
    .scratch_size = scratch_size,
    .n_set = n_set,
    .ask = ask,
    .picks = picks,
    .n_vector = n_vector,
    .score = score,
};
