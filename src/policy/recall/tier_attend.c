/*
 * tier_attend.c - the score `attention`. It is the weight that the queries of a recall would give
 * to each stored entry if all were read, beside the lane's own. So a query that finds its match
 * among the lane's own entries asks for nothing. One that misses something asks for that with all
 * its weight. It moves nothing and decides nothing.
 *
 * x(r, i) is the scaled logit of row r (a query head of a token) and entry i. Over the entries that
 * are in memory and the lane's own,
 *
 *     M(r) = max x(r, .)    L(r) = sum exp(x(r, .) - M(r))
 *     score(i) = sum over r of exp(x(r, i) - M(r)) / L(r)
 *
 * rows in ascending order. Pages of the file have no part in M and L. Their entries are compared
 * with entries in memory, and score more than 1 where they are larger. Invariant: as
 * tier_score.c's.
 */
#include <float.h>
#include <math.h>

#include "base/half.h"
#include "cpu/kernels.h"
#include "policy/recall/tier.h"

/* Tokens of one call of attention, whose weights must have room. */
static int32_t tile_of(const struct recall_tier *tier, int32_t n_tok)
{
    return (int32_t)pi_min(n_tok, pi_max(1, RECALL_ATTEND_ROWS / tier->model.n_group));
}

size_t recall_attend_rows(const struct recall_tier *tier, int32_t n_tok)
{
    bool wanted = tier->o.score == RECALL_ATTENTION;
    return wanted ? (size_t)(tile_of(tier, n_tok) * tier->model.n_group) : 0;
}

void recall_attend_place(const struct recall_tier *tier, int32_t n_tok, uint8_t *base, size_t *used,
                         struct recall_work *w)
{
    size_t rows = recall_attend_rows(tier, n_tok), scratch = 0;
    int32_t n_row = (int32_t)rows;
    bool wanted = n_row > 0;
    size_t all = wanted ? (size_t)n_tok * (size_t)tier->model.n_group : 0;
    if (wanted)
        scratch = kv_attend_scratch_bytes(&tier->model.g, n_row);
    for (int32_t k = 0; wanted && k < tier->n_kind; k++)
        scratch = (size_t)pi_max((int64_t)scratch,
                                 (int64_t)kv_attend_scratch_bytes(&tier->kind[k], n_row));
    w->attend = pi_mem_part(base, used, scratch, 1);
    w->tile_max = pi_mem_part(base, used, rows, sizeof(float));
    w->tile_sum = pi_mem_part(base, used, rows, sizeof(float));
    w->missed = pi_mem_part(base, used, rows, sizeof(double));
    w->row_max = pi_mem_part(base, used, all, sizeof(double));
    w->row_sum = pi_mem_part(base, used, all, sizeof(double));
}

/* Attention of tokens t0.. of the query over a lane, of which maximum and sum are wanted, and its
   weights where stride > 0. */
static void attend(const struct recall_scorer *s, const struct kv_seq *kv, int32_t layer,
                   int32_t head, int32_t t0, int32_t n_tok, size_t stride)
{
    const struct recall_query *query = s->query;
    const struct policy_model *m = &s->tier->model;
    struct kv_attend_tap tap = {
        .weight = stride > 0 ? s->w->weight : NULL,
        .row_stride = stride,
        .max = s->w->tile_max,
        .sum = s->w->tile_sum,
    };
    const struct kv_attend_job job = {
        .seq = kv,
        .layer = layer,
        .head = head,
        .n_tok = n_tok,
        .n_group = query->n_group,
        .pos0 = query->pos0 + t0,
        .q = query->q + (size_t)t0 * query->q_stride,
        .q_stride = query->q_stride,
        .scale = m->scale,
        .rope = policy_rope(m, query->layer),
        .tap = &tap,
    };
    kv_attend(&job, s->w->attend);
}

/* q.m of the row's centre m, which the logits of stored keys lack; token t of the query, head g. */
static double centre_logit(const struct recall_scorer *s, int32_t t, int32_t g)
{
    int32_t dim = s->tier->model.g.dim_k;
    const float *q = s->query->q + (size_t)t * s->query->q_stride + (size_t)g * (size_t)dim;
    double sum = 0.0;
    for (int32_t d = 0; s->centre != NULL && d < dim; d++)
        sum += (double)q[d] * (double)s->centre[d];
    return sum * (double)s->tier->model.scale;
}

/* Attention over stored entries. */
static void attend_stored(const struct recall_scorer *s, const struct kv_seq *kv, int32_t t0,
                          int32_t n_tok, size_t stride)
{
    int32_t n_group = s->query->n_group;
    attend(s, kv, 0, 0, t0, n_tok, stride);
    for (int32_t r = 0; s->centre != NULL && r < n_tok * n_group; r++)
        s->w->tile_max[r] += (float)centre_logit(s, t0 + r / n_group, r % n_group);
}

/* Makes the lane's own entries a part of M and L, or begins with them. */
static void take_own(const struct recall_scorer *s, int32_t t0, int32_t n_tok)
{
    const struct recall_query *query = s->query;
    size_t first = (size_t)t0 * (size_t)query->n_group, n = (size_t)(n_tok * query->n_group);
    for (size_t r = 0; r < n; r++) {
        s->w->row_max[first + r] = -(double)FLT_MAX;
        s->w->row_sum[first + r] = 0.0;
    }
    if (query->own == NULL || kv_lane_len(query->own, query->layer, query->head) == 0)
        return;
    attend(s, query->own, query->layer, query->head, t0, n_tok, 0);
    for (size_t r = 0; r < n; r++) {
        s->w->row_max[first + r] = fmax((double)s->w->tile_max[r], -(double)FLT_MAX);
        s->w->row_sum[first + r] = (double)s->w->tile_sum[r];
    }
}

/* The same of entries in memory, row r of the tile that begins at row `first`. */
static void take_stored(const struct recall_scorer *s, size_t first, size_t r)
{
    double *max = &s->w->row_max[first + r], *sum = &s->w->row_sum[first + r];
    double x = fmax((double)s->w->tile_max[r], -(double)FLT_MAX), both = fmax(*max, x);
    *sum = *sum * exp(*max - both) + (double)s->w->tile_sum[r] * exp(x - both);
    *max = both;
}

/* The weights that a row gives to each entry, added to the weights of the rows before it. */
static void add_row(int32_t combine, const float *weight, float factor, int32_t n, float *out)
{
    if (combine == RECALL_SUM) {
        for (int32_t i = 0; i < n; i++)
            out[i] += weight[i] * factor;
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        float x = weight[i] * factor;
        out[i] = x > out[i] ? x : out[i];
    }
}

void recall_attend_run(const struct recall_scorer *s, const struct kv_seq *kv, bool first,
                       float *out)
{
    const struct recall_query *query = s->query;
    int32_t len = kv_lane_len(kv, 0, 0), step = tile_of(s->tier, query->n_tok);
    size_t stride = pi_align((size_t)len, 16);
    memset(out, 0, (size_t)len * sizeof(*out));
    for (int32_t t = 0; t < query->n_tok; t += step) {
        int32_t n_tok = (int32_t)pi_min(step, query->n_tok - t);
        size_t begin = (size_t)t * (size_t)query->n_group;
        if (first)
            take_own(s, t, n_tok);
        if (len == 0)
            continue;
        attend_stored(s, kv, t, n_tok, stride);
        for (size_t r = 0; r < (size_t)(n_tok * query->n_group); r++) {
            if (first)
                take_stored(s, begin, r);
            double share = (double)s->w->tile_sum[r] *
                           exp((double)s->w->tile_max[r] - s->w->row_max[begin + r]) /
                           s->w->row_sum[begin + r];
            float factor = share < FLT_MAX ? (float)share : share > 0.0 ? FLT_MAX : 0.0f;
            add_row(s->tier->o.combine, s->w->weight + r * stride, factor, len, out);
        }
    }
    for (int32_t i = 0; i < len; i++)
        out[i] = out[i] < FLT_MAX ? out[i] : FLT_MAX;
}

void recall_attend_promise(struct recall_scorer *s, const struct recall_shelf *shelf)
{
    const struct recall_query *query = s->query;
    struct recall_work *w = s->w;
    size_t dim = (size_t)s->tier->model.g.dim_k;
    bool sums = s->tier->o.combine == RECALL_SUM;
    memset(w->promise, 0, (size_t)shelf->n_fresh * sizeof(*w->promise));
    for (int32_t t = 0; t < query->n_tok; t++)
        for (int32_t g = 0; g < query->n_group; g++) {
            size_t r = (size_t)t * (size_t)query->n_group + (size_t)g;
            recall_score_bounds(s, shelf, query->q + (size_t)t * query->q_stride + (size_t)g * dim,
                                1, w->line);
            double centre = centre_logit(s, t, g);
            for (int32_t i = 0; i < shelf->n_fresh; i++) {
                double x = (double)w->line[i] * (double)s->tier->model.scale + centre;
                double more = exp(x - w->row_max[r]) / w->row_sum[r];
                double both =
                    sums ? (double)w->promise[i] + more : fmax((double)w->promise[i], more);
                w->promise[i] = (float)fmin(both, FLT_MAX);
            }
        }
}

/* ---- what is missed ---- */

/* exp(max - M) * sum of row r over a lane that was just attended. */
static double weight_of(const struct recall_work *w, size_t r, double most)
{
    double max = fmax((double)w->tile_max[r], -(double)FLT_MAX);
    return (double)w->tile_sum[r] * exp(max - most);
}

/* Guests are copies of stored entries: the attention that they get is no longer missed. */
float recall_store_missed(const struct recall_store *store, const struct recall_query *query,
                          const struct kv_seq *guests, int32_t thread)
{
    struct recall_tier *tier = store->tier;
    struct recall_work *w = &tier->work[thread];
    const struct recall_row *stored =
        &store->row[query->layer * tier->model.g.n_head + query->head];
    const struct recall_scorer s = {
        .tier = tier, .query = query, .w = w, .centre = recall_row_centre(stored)};
    const struct kv_seq *row = stored->kv;
    int32_t step = tile_of(tier, query->n_tok);
    double most = 0.0;
    if (tier->o.score != RECALL_ATTENTION || kv_lane_len(row, 0, 0) == 0)
        return 0.0f;
    for (int32_t t = 0; t < query->n_tok; t += step) {
        int32_t n_tok = (int32_t)pi_min(step, query->n_tok - t);
        size_t begin = (size_t)t * (size_t)query->n_group, n = (size_t)(n_tok * query->n_group);
        take_own(&s, t, n_tok);
        attend_stored(&s, row, t, n_tok, 0);
        for (size_t r = 0; r < n; r++) {
            take_stored(&s, begin, r);
            w->missed[r] = weight_of(w, r, w->row_max[begin + r]);
        }
        bool any = kv_lane_len(guests, query->layer, query->head) > 0;
        if (any)
            attend(&s, guests, query->layer, query->head, t, n_tok, 0);
        for (size_t r = 0; r < n; r++) {
            double back = any ? weight_of(w, r, w->row_max[begin + r]) : 0.0;
            most = fmax(most, (w->missed[r] - back) / w->row_sum[begin + r]);
        }
    }
    return (float)most;
}
