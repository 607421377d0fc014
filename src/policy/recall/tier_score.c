/*
 * tier_score.c - scores of stored entries by the queries of a recall. They are exact for entries in
 * memory, and bounds for pages in the file. It moves nothing and decides nothing. Invariant: a
 * score depends on the entry, the queries and, with statistics, on the scores of the row in memory;
 * never on the thread.
 */
#include <float.h>
#include <math.h>

#include "base/half.h"
#include "cpu/kernels.h"
#include "policy/keep/stats/stats.h"
#include "policy/recall/tier.h"

#define OFFSET_MAX 65536 /* of the folded score: the paper's, and keep's default */

/* ---- statistics ---- */

pith_status recall_score_open(struct recall_tier *tier, pith_error *err)
{
    const struct policy_model *m = &tier->model;
    struct recall_stats *stats = &tier->stats;
    if (tier->o.score != RECALL_TRIATTENTION)
        return PITH_OK;
    if (tier->o.stats[0] == '\0')
        return pi_fail(err, PITH_INVALID, "recall: score=triattention wants stats=FILE");
    if (m->rope == NULL)
        return pi_fail(err, PITH_INVALID,
                       "recall: score=triattention: it is not known how the keys were rotated");
    PI_TRY(stats_load_option("recall", tier->o.stats, &stats->stats, err));
    PI_TRY(stats_check_lanes(stats->stats, m, "recall: ", err));
    const struct triattention_form form = {.offset_max = OFFSET_MAX,
                                           .flat = stats->stats->n_flat > 0};
    stats->n_row = m->n_group * stats->stats->n_centre;
    return triattention_plans_make(m, &form, &stats->plans, err);
}

void recall_score_close(struct recall_tier *tier)
{
    pith_stats_free(tier->stats.stats);
    triattention_plans_free(&tier->stats.plans);
}

/* ---- scratch ---- */

/* QuoKA's queries. Layers without statistics are scored by them, too. */
static struct quoka_form form_of(const struct recall_tier *tier)
{
    return (struct quoka_form){
        .n_query = tier->o.queries,
        .pair = QUOKA_RANK,
        .score = tier->o.score == RECALL_BOUNDS ? QUOKA_DOT : QUOKA_COSINE,
        .aggregate = QUOKA_MAX,
        .index = QUOKA_NORM,
    };
}

void recall_score_place(const struct recall_tier *tier, int32_t n_tok, int32_t places,
                        uint8_t *base, size_t *used, struct recall_work *w)
{
    const struct quoka_form form = form_of(tier);
    size_t dim = (size_t)tier->model.g.dim_k, n_row = (size_t)tier->stats.n_row;
    size_t n_pair = n_row > 0 ? (size_t)tier->model.rope->n_pair : 0;
    /* Weights are of the queries as they are, one after the other. */
    bool weighs = tier->o.score == RECALL_ATTENTION;
    int32_t n_q = weighs ? 0 : (int32_t)pi_min(tier->o.queries, n_tok);
    size_t n_vector = (size_t)pi_max(n_q, 1), n_place = pi_align((size_t)places, 16);
    size_t queries = weighs ? 0 : quoka_queries_scratch(&form, &tier->model, n_tok);
    size_t score = weighs ? 0 : kv_score_scratch_bytes(&tier->kind[0], n_q);
    w->queries = pi_mem_part(base, used, queries, 1);
    w->score = pi_mem_part(base, used, score, 1);
    w->vector = pi_mem_part(base, used, n_vector * 2 * dim, sizeof(float));
    w->packed = pi_mem_part(base, used, pi_score_pack_len((int32_t)n_vector, 2 * (int32_t)dim),
                            sizeof(float));
    w->key = pi_mem_part(base, used, n_row > 0 ? dim * RECALL_PAGE_LEN : 0, sizeof(float));
    w->w = pi_mem_part(base, used, n_row * dim, sizeof(float));
    w->e = pi_mem_part(base, used, n_row * n_pair, sizeof(float));
    w->standard = pi_mem_part(base, used, n_row * 2, sizeof(double));
    recall_attend_place(tier, n_tok, base, used, w);
    w->line = pi_mem_part(base, used, n_place, sizeof(float));
    w->promise = pi_mem_part(base, used, n_place, sizeof(float));
}

/* ---- a recall ---- */

static const struct triattention_plan *plan_of(const struct recall_tier *tier, int32_t layer)
{
    return triattention_plan_of(&tier->stats.plans, &tier->model, layer);
}

/* The synthetic queries of a KV head's statistics; none where the layer has no statistics. */
static int32_t take_rows(const struct recall_tier *tier, const struct recall_query *query,
                         struct recall_work *w)
{
    const struct pith_stats *s = tier->stats.stats;
    struct triattention_queries rows = {.w = w->w, .e = w->e};
    if (s == NULL || s->count[query->layer] == 0)
        return 0;
    for (int32_t g = 0; g < tier->model.n_group; g++)
        for (int32_t c = 0; c < s->n_centre; c++) {
            int32_t head = query->head * tier->model.n_group + g;
            size_t at =
                ((size_t)query->layer * (size_t)s->n_head + (size_t)head) * (size_t)s->n_centre +
                (size_t)c;
            if (s->centre != NULL && !(s->weight[at] > 0.0f))
                continue;
            struct stats_row row = stats_centre(s, query->layer, head, c);
            triattention_queries_add(plan_of(tier, query->layer), &row, query->pos0, &rows);
        }
    return rows.n;
}

void recall_scorer_start(const struct recall_tier *tier, const struct recall_query *query,
                         struct recall_work *w, struct recall_scorer *out)
{
    const struct quoka_form form = form_of(tier);
    const struct read_chunk chunk = {
        .layer = query->layer,
        .head = query->head,
        .n_tok = query->n_tok,
        .n_group = query->n_group,
        .pos0 = query->pos0,
        .q = query->q,
        .q_stride = query->q_stride,
    };
    *out = (struct recall_scorer){.tier = tier, .query = query, .w = w};
    out->n_row = take_rows(tier, query, w);
    if (out->n_row == 0 && tier->o.score != RECALL_ATTENTION)
        quoka_queries_make(&form, &tier->model, &chunk, w->queries, &out->q);
}

/* Mean and 1 / deviation of a row's scores, by triattention_standardise's rule. */
static void measure(const float *x, int32_t n, double *standard)
{
    double sum = 0.0, square = 0.0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)x[i];
    double mean = n > 0 ? sum / n : 0.0;
    for (int32_t i = 0; i < n; i++)
        square += ((double)x[i] - mean) * ((double)x[i] - mean);
    double deviation = n > 0 ? sqrt(square / n) : 1.0;
    bool sound = isfinite(mean) && isfinite(deviation);
    standard[0] = sound ? mean : 0.0;
    standard[1] = sound ? 1.0 / fmax(deviation, TRIATTENTION_MIN_STD) : 0.0;
}

static float standardise(float x, const double *standard)
{
    float z = (float)(((double)x - standard[0]) * standard[1]);
    return z == z ? z : 0.0f;
}

/* Scores by rows [begin, begin + n) of the statistics; keys are decoded page by page, once for all
   of them. Heads are compared by z-scores, as keep does. */
static void score_rows(struct recall_scorer *s, const struct kv_seq *kv, int32_t begin, int32_t n,
                       bool first, float *out)
{
    const struct policy_model *m = &s->tier->model;
    struct recall_work *w = s->w;
    int32_t len = kv_lane_len(kv, 0, 0);
    const struct triattention_queries rows = {
        .w = w->w + (size_t)begin * (size_t)m->g.dim_k,
        .e = w->e + (size_t)begin * (size_t)m->rope->n_pair,
        .n = n,
    };
    for (int32_t i = 0; i < kv_lane_runs(kv, 0, 0); i++) {
        struct kv_run run = kv_lane_run(kv, 0, 0, i);
        const struct triattention_keys keys = {w->key, RECALL_PAGE_LEN, run.n};
        kv_lane_run_keys(kv, 0, 0, i, w->key);
        triattention_score(plan_of(s->tier, s->query->layer), &rows, &keys, w->raw + run.slot,
                           (size_t)len, NULL);
    }
    for (int32_t r = 0; r < n; r++) {
        const float *raw = w->raw + (size_t)r * (size_t)len;
        double *standard = w->standard + 2 * (size_t)(begin + r);
        if (first)
            measure(raw, len, standard);
        for (int32_t i = 0; i < len; i++) {
            float z = standardise(raw[i], standard);
            out[i] = (begin == 0 && r == 0) || z > out[i] ? z : out[i];
        }
    }
}

void recall_scorer_run(struct recall_scorer *s, const struct kv_seq *kv, bool first, float *out)
{
    struct kv_score_job job = {
        .seq = kv,
        .n = kv_lane_len(kv, 0, 0),
        .kind = s->tier->o.score == RECALL_BOUNDS ? KV_SCORE_BOUNDS : KV_SCORE_COSINE,
        .reduce = KV_SCORE_MAX,
        .q = s->q.q,
        .n_q = s->q.n,
        .out = out,
    };
    if (s->tier->o.score == RECALL_ATTENTION) {
        recall_attend_run(s, kv, first, out);
        return;
    }
    for (int32_t begin = 0; begin < s->n_row; begin += RECALL_ROWS)
        score_rows(s, kv, begin, (int32_t)pi_min(RECALL_ROWS, s->n_row - begin), first, out);
    if (s->n_row == 0 && job.n > 0)
        kv_score(&job, s->w->score);
}

/* ---- bounds ---- */

/* The half float at x or next to it, below or above. A value beyond the range becomes the
   largest. */
static uint16_t half_outwards(float x, bool below)
{
    uint16_t h = pi_f16_from_f32(fminf(fmaxf(x, -65504.0f), 65504.0f));
    float y = pi_f32_from_f16(h);
    if (below ? y <= x : y >= x)
        return h;
    if ((h & 0x7fffu) == 0)
        return below ? 0x8001u : 0x0001u;
    bool away = ((h & 0x8000u) != 0) == below; /* from zero */
    uint16_t next = (uint16_t)(away ? h + 1 : h - 1);
    return (next & 0x7fffu) > 0x7bffu ? h : next;
}

/* Cosines are of keys divided by their lengths: so are their bounds. */
static double key_factor(const struct recall_tier *tier, const struct recall_shelf *shelf,
                         const float *key)
{
    const struct pith_stats *stats = tier->stats.stats;
    double square = 0.0;
    if (tier->o.score == RECALL_BOUNDS || tier->o.score == RECALL_ATTENTION ||
        (stats != NULL && stats->count[shelf->layer] != 0))
        return 1.0;
    for (int32_t d = 0; d < tier->model.g.dim_k; d++)
        square += (double)key[d] * (double)key[d];
    return square > 0.0 ? 1.0 / sqrt(square) : 0.0;
}

void recall_bounds_make(const struct recall_tier *tier, const struct recall_shelf *shelf,
                        const struct kv_seq *kv, int32_t n, float *key, uint16_t *out)
{
    int32_t dim = tier->model.g.dim_k;
    float *least = key + dim, *most = key + 2 * dim;
    for (int32_t s = 0; s < n; s++) {
        kv_lane_key(kv, 0, 0, s, key);
        double factor = key_factor(tier, shelf, key);
        for (int32_t d = 0; d < dim; d++) {
            float x = (float)((double)key[d] * factor);
            least[d] = s == 0 || x < least[d] ? x : least[d];
            most[d] = s == 0 || x > most[d] ? x : most[d];
        }
    }
    for (int32_t d = 0; d < dim; d++) {
        out[d] = half_outwards(least[d], true);
        out[dim + d] = half_outwards(most[d], false);
    }
}

/* As kv_score has it (KV_SCORE_BOUNDS), of queries as attention has them where it is the score. */
void recall_score_bounds(const struct recall_scorer *s, const struct recall_shelf *shelf,
                         const float *vector, int32_t n, float *out)
{
    size_t dim = (size_t)s->tier->model.g.dim_k;
    struct recall_work *w = s->w;
    const struct pi_score_keys keys = {
        .k = shelf->bounds, .n = shelf->n_fresh, .dim = 2 * (int32_t)dim};
    const struct pi_score_vectors packed = {n, w->packed};
    for (size_t j = 0; j < (size_t)n; j++) {
        float *below = w->vector + j * 2 * dim, *above = below + dim;
        memcpy(above, vector + j * dim, dim * sizeof(float));
        if (s->tier->o.score == RECALL_ATTENTION)
            kv_query_met(s->tier->kind[shelf->kind].type_k, above, (int32_t)dim);
        for (size_t d = 0; d < dim; d++) {
            float x = above[d];
            below[d] = x < 0.0f ? x : 0.0f;
            above[d] = x < 0.0f ? 0.0f : x;
        }
    }
    pi_score_pack(w->vector, n, 2 * (int32_t)dim, w->packed);
    pi_kernels()->score.dot[PI_ATTEND_F16](&keys, &packed, out);
}

/* The largest square of a number between two. */
static double largest_square(const uint16_t *least, const uint16_t *most)
{
    double a = (double)pi_f32_from_f16(*least), b = (double)pi_f32_from_f16(*most);
    return fmax(a * a, b * b);
}

/* The most that a row's second term can be. The weights are >= 0, and the modulus of a band is at
   most that of the corner that lies farthest out. */
static double most_moduli(const struct recall_scorer *s, const struct recall_shelf *shelf,
                          int32_t place, int32_t row)
{
    const struct triattention_rope *rope = &s->tier->stats.plans.rotated.rope;
    const uint16_t *least = shelf->bounds + (size_t)place * 2 * (size_t)rope->dim;
    const uint16_t *most = least + rope->dim;
    const float *e = s->w->e + (size_t)row * (size_t)rope->n_pair;
    double sum = 0.0;
    for (int32_t f = 0; f < rope->n_pair; f++) {
        int32_t a = rope->adjacent ? 2 * f : f, b = rope->adjacent ? a + 1 : f + rope->n_pair;
        sum += (double)e[f] *
               sqrt(largest_square(least + a, most + a) + largest_square(least + b, most + b));
    }
    return sum;
}

void recall_scorer_promise(struct recall_scorer *s, const struct recall_shelf *shelf)
{
    struct recall_work *w = s->w;
    if (shelf->n_fresh == 0)
        return;
    if (s->tier->o.score == RECALL_ATTENTION) {
        recall_attend_promise(s, shelf);
        return;
    }
    if (s->n_row == 0)
        recall_score_bounds(s, shelf, s->q.q, s->q.n, w->promise);
    for (int32_t r = 0; r < s->n_row; r++) {
        recall_score_bounds(s, shelf, w->w + (size_t)r * (size_t)s->tier->model.g.dim_k, 1,
                            w->line);
        for (int32_t i = 0; i < shelf->n_fresh; i++) {
            float x = (float)((double)w->line[i] + most_moduli(s, shelf, i, r));
            float z = standardise(x, w->standard + 2 * (size_t)r);
            w->promise[i] = r == 0 || z > w->promise[i] ? z : w->promise[i];
        }
    }
}
