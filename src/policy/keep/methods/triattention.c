/*
 * triattention.c - keys by the attention that they will get, predicted from the centre of the
 * queries before rotation. Mao et al., "TriAttention: Efficient Long Reasoning with Trigonometric
 * KV Compression", and the V3 rules of its port to llama.cpp. The score is triattention_score.c's,
 * the centres come from a file (stats.c) or are gathered while the model runs. docs/policies.md
 * describes the options and what the presets take from whom.
 *
 * Self-calibration adds each token's queries in its layer's turn and counts them per layer; centres
 * are made at a round, after the pass. Rows of a state are as stats.h's.
 */
#include <math.h>

#include "base/mem.h"
#include "model/shape.h"
#include "policy/keep/rules/options.h"
#include "policy/keep/methods/triattention_score.h"

#define BLOCK 8         /* rows that are scored over keys decoded once */
#define TURN_LOW 256    /* positions whose angles are in a table */
#define EMA 0.1         /* weight of new queries, where self-calibration goes on */
#define EMA_QUERIES 128 /* that a centre must have got to move: rounds can come token by token */

enum { CENTRES_FILE, CENTRES_MEAN, CENTRES_RANDOM_PHASE };
enum { OFFSETS_GEOMETRIC, OFFSETS_LINEAR };
enum { OVER_MEAN, OVER_MAX };
enum { FLAT_AUTO, FLAT_OFF, FLAT_ON };
enum { GROUP_MAX, GROUP_MEAN };
enum { CALIBRATE_FROZEN, CALIBRATE_ADAPTIVE };
enum { SIGN_KEEP, SIGN_EVICT };

struct params {
    bool has_stats; /* the rule */
    int32_t centres;
    int32_t seed;
    int32_t offset_max;
    int32_t offsets;
    int32_t over;
    int32_t trig, norm, r, z; /* 1: on */
    int32_t flat;
    int32_t group;
    int32_t sign;
    int32_t n_layer; /* that are scored; 0: all */
    int32_t n_skip;  /* first layers that are not scored */
    int32_t warmup;
    int32_t calibrate;
    int32_t distance; /* of every key; 0: its own */
};

/* ---- what all sequences share ---- */

struct data {
    struct policy_model model;
    struct triattention_plans plans;
    const struct pith_stats *stats; /* NULL: self-calibration */
    const float *q;                 /* of stats, or turned */
    const float *centre;            /* likewise; NULL: the mean alone */
    float *random;                  /* owned; NULL: nothing is */
    float *turn; /* owned; [2][n_pair][TURN_LOW] cosines and sines of positions below TURN_LOW; NULL
                    where keys have their own distances */
    int32_t n_flat; /* of the rows */
    int32_t n_head; /* query heads */
    int32_t n_row;  /* rows that one KV head is scored by */
};

static void close_data(void *data)
{
    struct data *d = data;
    if (d == NULL)
        return;
    pi_mem_free(d->random);
    pi_mem_free(d->turn);
    triattention_plans_free(&d->plans);
    pi_mem_free(d);
}

/* Whether statistics have what the options want. */
static pith_status check_stats(const struct data *d, const struct params *p, pith_error *err)
{
    const struct policy_model *m = &d->model;
    if (p->flat == FLAT_ON && d->stats->n_flat == 0 && m->g.dim_k > 2 * m->rope->n_pair)
        return pi_fail(err, PITH_INVALID,
                       "flat=on: %s statistics hold no dimensions that are not rotated",
                       d->stats->format);
    return PITH_OK;
}

/* Means and centres with random directions, which all moduli of the file's stay. */
static pith_status turn_phases(struct data *d, const struct params *p, pith_error *err)
{
    const struct pith_stats *s = d->stats;
    size_t n_lane = (size_t)s->n_layer * (size_t)s->n_head, len = stats_row_len(s);
    size_t n_centre = s->centre != NULL ? n_lane * (size_t)s->n_centre : 0;
    d->random = pi_mem_alloc_n(PI_MEM_TABLE, (n_lane + n_centre) * len, sizeof(float));
    if (d->random == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a policy");
    d->q = d->random;
    triattention_random_phase(s, s->q, n_lane, (uint64_t)p->seed, d->random);
    if (n_centre == 0)
        return PITH_OK;
    d->centre = d->random + n_lane * len;
    triattention_random_phase(s, s->centre, n_centre, (uint64_t)p->seed, d->random + n_lane * len);
    return PITH_OK;
}

static pith_status take_stats(struct data *d, const struct params *p, pith_error *err)
{
    const struct pith_stats *s = d->stats;
    PI_TRY(check_stats(d, p, err));
    d->q = s->q;
    d->centre = s->centre;
    if (p->centres == CENTRES_RANDOM_PHASE)
        PI_TRY(turn_phases(d, p, err));
    d->n_flat = s->n_flat;
    if (s->centre != NULL && p->centres != CENTRES_MEAN) {
        if (p->group == GROUP_MEAN)
            return pi_fail(err, PITH_INVALID,
                           "group=mean: centres of several heads have no mean; say centres=mean");
        d->n_row = d->model.n_group * s->n_centre;
    }
    return PITH_OK;
}

/* Angles of the low parts of positions, which keys are turned back by. */
static pith_status make_turn(struct data *d, pith_error *err)
{
    const struct pi_rope *rope = d->model.rope;
    size_t n = (size_t)rope->n_pair * TURN_LOW;
    d->turn = pi_mem_alloc_n(PI_MEM_TABLE, 2 * n, sizeof(float));
    if (d->turn == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a policy");
    for (int32_t f = 0; f < rope->n_pair; f++)
        for (int32_t i = 0; i < TURN_LOW; i++) {
            d->turn[(size_t)f * TURN_LOW + (size_t)i] = (float)cos(i * rope->freq[f]);
            d->turn[n + (size_t)f * TURN_LOW + (size_t)i] = (float)sin(i * rope->freq[f]);
        }
    return PITH_OK;
}

/* Options that leave nothing to do. */
static pith_status check_params(const struct data *d, const struct params *p, pith_error *err)
{
    if (!p->trig && !p->norm && (p->flat == FLAT_OFF || d->n_flat == 0))
        return pi_fail(err, PITH_INVALID, "trig=off,norm=off leaves nothing to score keys by");
    if (p->has_stats && p->calibrate == CALIBRATE_ADAPTIVE)
        return pi_fail(err, PITH_INVALID,
                       "calibrate=adaptive gathers centres while the model runs: leave out stats");
    if (!p->has_stats && p->centres == CENTRES_RANDOM_PHASE)
        return pi_fail(err, PITH_INVALID, "centres=random-phase wants stats=FILE");
    return PITH_OK;
}

static pith_status open_data(const void *params, const struct policy_model *model, void **out,
                             pith_error *err)
{
    const struct params *p = params;
    if (model->rope == NULL)
        return pi_fail(err, PITH_INVALID,
                       "triattention: it is not known how the keys were rotated, so that no "
                       "attention can be predicted");
    struct data *d = pi_mem_alloc(PI_MEM_TABLE, sizeof(*d));
    if (d == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a policy");
    d->model = *model;
    d->n_head = model->n_group * model->g.n_head;
    d->n_row = p->group == GROUP_MEAN ? 1 : model->n_group;
    d->n_flat = p->flat == FLAT_OFF ? 0 : model->g.dim_k - 2 * model->rope->n_pair;
    d->stats = model->stats;
    pith_status status = d->stats != NULL ? take_stats(d, p, err) : PITH_OK;
    if (status == PITH_OK)
        status = check_params(d, p, err);
    if (status == PITH_OK && p->distance > 0)
        status = make_turn(d, err);
    const struct triattention_form form = {.offset_max = p->offset_max,
                                           .linear = p->offsets == OFFSETS_LINEAR,
                                           .max_offsets = p->over == OVER_MAX,
                                           .no_trig = !p->trig,
                                           .no_norm = !p->norm,
                                           .no_r = !p->r,
                                           .no_z = !p->z,
                                           .flat = p->flat != FLAT_OFF && d->n_flat > 0};
    if (status == PITH_OK)
        status = triattention_plans_make(model, &form, &d->plans, err);
    if (status != PITH_OK) {
        close_data(d);
        return status;
    }
    *out = d;
    return PITH_OK;
}

/* ---- self-calibration ---- */

/* A sequence's state. */
struct state {
    int64_t *count;   /* [n_layer] in sum */
    int64_t *settled; /* [n_layer] 1: the warm-up is over and has made centres */
    double *sum;      /* [n_layer][n_head][row] */
    float *centre;    /* [n_layer][n_head][row] */
};

static size_t row_len(const struct data *d)
{
    return 3 * (size_t)d->model.rope->n_pair + (size_t)d->n_flat;
}

static size_t state_size(const void *params, const struct policy_model *model, const void *data)
{
    const struct data *d = data;
    size_t n_layer = (size_t)model->g.n_layer;
    (void)params;
    if (d->stats != NULL)
        return 0;
    return 2 * n_layer * sizeof(int64_t) +
           n_layer * (size_t)d->n_head * row_len(d) * (sizeof(double) + sizeof(float));
}

static struct state state_at(const struct data *d, void *block)
{
    size_t n_layer = (size_t)d->model.g.n_layer, n = n_layer * (size_t)d->n_head * row_len(d);
    struct state s = {.count = block};
    s.settled = s.count + n_layer;
    s.sum = (double *)(void *)(s.settled + n_layer);
    s.centre = (float *)(void *)(s.sum + n);
    return s;
}

/* Counts that no sequence reaches could not go on counting. */
static bool sound(const void *params, const struct policy_model *model, const void *data,
                  const void *state)
{
    const int64_t *count = state;
    (void)params;
    (void)data;
    for (int32_t l = 0; l < model->g.n_layer; l++)
        if (count[l] < 0 || count[l] > INT64_MAX / 2)
            return false;
    return true;
}

static uint32_t needs(const void *params)
{
    const struct params *p = params;
    return p->has_stats ? 0 : KEEP_NEED_ROWS;
}

/* A layer's rows whose queries go into the sums, of n. */
static int32_t n_counted(const struct params *p, const struct state *s, int32_t layer, int32_t n)
{
    if (p->calibrate != CALIBRATE_FROZEN)
        return n;
    return (int32_t)pi_max(0, pi_min(n, p->warmup - s->count[layer]));
}

static void observe(const void *params, const struct keep_view *view,
                    const struct pi_pass_tap_rows *rows)
{
    const struct data *d = view->data;
    struct state s = state_at(d, view->state);
    size_t dim = (size_t)d->model.g.dim_k, n_head = (size_t)d->n_head, row = row_len(d);
    double *sum = s.sum + (size_t)rows->layer * n_head * row;
    int32_t n = n_counted(params, &s, rows->layer, rows->item->n_tok);
    for (int32_t t = 0; t < n; t++)
        for (size_t h = 0; h < n_head; h++)
            stats_add(d->model.rope, d->n_flat, rows->q_pre + ((size_t)t * n_head + h) * dim,
                      sum + h * row);
    s.count[rows->layer] += n;
}

static bool observes(const void *params, const struct keep_view *view, int32_t layer)
{
    struct state s = state_at(view->data, view->state);
    return n_counted(params, &s, layer, 1) > 0;
}

static void learn(const void *params, const struct keep_view *view, const struct pi_pass_rows *rows,
                  int32_t item, struct kv_learn_job *job)
{
    const struct data *d = view->data;
    struct state s = state_at(d, view->state);
    size_t n_head = (size_t)d->n_head, len = n_head * (size_t)d->model.g.dim_k;
    size_t before = (size_t)((uint8_t *)s.sum - (uint8_t *)view->state) +
                    (size_t)rows->layer * n_head * row_len(d) * sizeof(double);
    *job = (struct kv_learn_job){
        .kind = KV_LEARN_PAIRS,
        .from = pi_at_item(rows->q_pre, (size_t)rows->row0[item] * len),
        .to = pi_at_add(view->there, before),
        .n_tok = n_counted(params, &s, rows->layer, rows->items[item].n_tok),
        .n = (int32_t)len,
        .n_head = d->n_head,
        .n_pair = d->model.rope->n_pair,
        .n_flat = d->n_flat,
        .adjacent = d->model.rope->adjacent,
    };
    s.count[rows->layer] += job->n_tok;
}

/* Both counts: what the device makes of sums is asked for at the beginning of a round. */
static size_t learn_head(const void *params, const struct policy_model *model)
{
    (void)params;
    return 2 * (size_t)model->g.n_layer * sizeof(int64_t);
}

/* A layer's centres from what was seen; returns whether they changed. Until the warm-up is over
   they are the means so far: a round which comes early has an opinion, too. Then they stay, or,
   adaptive, move by a tenth towards the mean of the queries since they last did. */
static bool make_centres(const struct params *p, const struct data *d, struct state s,
                         int32_t layer)
{
    size_t n = (size_t)d->n_head * row_len(d);
    double *sum = s.sum + (size_t)layer * n, count = (double)s.count[layer];
    float *centre = s.centre + (size_t)layer * n;
    bool settled = s.settled[layer] != 0;
    if (s.count[layer] == 0)
        return false;
    if (settled && (p->calibrate == CALIBRATE_FROZEN || s.count[layer] < EMA_QUERIES))
        return false;
    double weight = settled ? EMA : 1.0;
    for (size_t i = 0; i < n; i++)
        centre[i] = (float)((1.0 - weight) * (double)centre[i] + weight * (sum[i] / count));
    if (!settled && s.count[layer] < p->warmup)
        return true;
    s.settled[layer] = 1;
    if (p->calibrate == CALIBRATE_ADAPTIVE) {
        memset(sum, 0, n * sizeof(*sum));
        s.count[layer] = 0;
    }
    return true;
}

static bool begin(const void *params, const struct keep_view *view)
{
    const struct data *d = view->data;
    bool changed = false;
    if (d->stats != NULL)
        return false;
    for (int32_t l = 0; l < d->model.g.n_layer; l++)
        changed |= make_centres(params, d, state_at(d, view->state), l);
    return changed;
}

/* ---- scores ---- */

/* A call's scratch, in floats. */
struct work {
    float *high; /* [2][n_pair] cosines and sines of the high part of a position */
    float *key;  /* [dim_k][page_len] */
    float *line; /* [n_query][page_len] */
    float *w;    /* [BLOCK][n_query][dim_k] */
    float *e;    /* [BLOCK][n_pair] */
    float *mean; /* [row] of a group */
    float *raw;  /* [BLOCK][n] */
};

static size_t lay_out(const struct data *d, int32_t n, float *base, struct work *w)
{
    size_t len = (size_t)d->model.g.page_len, dim = (size_t)d->model.g.dim_k;
    size_t n_pair = (size_t)d->model.rope->n_pair;
    size_t n_query = (size_t)triattention_plan_queries(&d->plans.rotated), at = 0;
    size_t size[] = {dim * len,      n_query * len, BLOCK * n_query * dim,
                     BLOCK * n_pair, row_len(d),    BLOCK * (size_t)n,
                     2 * n_pair};
    float **field[] = {&w->key, &w->line, &w->w, &w->e, &w->mean, &w->raw, &w->high};
    for (size_t i = 0; i < PI_LEN(size); i++) {
        if (base != NULL)
            *field[i] = base + at;
        at += pi_align(size[i], 16);
    }
    return at;
}

static size_t scratch_size(const void *params, const struct policy_model *model, const void *data,
                           int32_t n)
{
    struct work w;
    (void)params;
    (void)model;
    return lay_out(data, n, NULL, &w) * sizeof(float);
}

static struct stats_row parts_of(const struct data *d, const float *row)
{
    size_t n = (size_t)d->model.rope->n_pair;
    return (struct stats_row){row, row + n, row + 2 * n, row + 3 * n};
}

/* Floats of row i of those that a KV head is scored by; NULL: a centre that owns no query. */
static const float *row_at(const struct params *p, const struct keep_view *view,
                           const struct keep_lane *lane, int32_t i, float *mean)
{
    const struct data *d = view->data;
    const struct pith_stats *s = d->stats;
    size_t len = row_len(d), n_group = (size_t)d->model.n_group;
    size_t head = (size_t)lane->layer * (size_t)d->n_head + (size_t)lane->head * n_group;
    const float *rows = s != NULL ? d->q : state_at(d, view->state).centre;
    if (s != NULL && s->centre != NULL && p->centres != CENTRES_MEAN) {
        size_t c = head * (size_t)s->n_centre + (size_t)i;
        return s->weight[c] > 0.0f ? d->centre + c * len : NULL;
    }
    if (p->group == GROUP_MAX)
        return rows + (head + (size_t)i) * len;
    for (size_t j = 0; j < len; j++) {
        double sum = 0.0;
        for (size_t h = 0; h < n_group; h++)
            sum += (double)rows[(head + h) * len + j];
        mean[j] = (float)(sum / (double)n_group);
    }
    return mean;
}

/* Turns n keys that lie side by side back to position 0, where each is as far from a moment as the
   others. A position's angle is that of its high part, which neighbours share, and of its low
   one. */
static void turn_back(const struct data *d, const int32_t *pos, int32_t n, float *key, float *high)
{
    const struct pi_rope *rope = d->model.rope;
    size_t row = (size_t)d->model.g.page_len, n_pair = (size_t)rope->n_pair;
    int32_t of_high = -1;
    for (int32_t j = 0; j < n; j++) {
        if (pos[j] / TURN_LOW != of_high) {
            of_high = pos[j] / TURN_LOW;
            for (size_t f = 0; f < n_pair; f++) {
                double angle = (double)of_high * TURN_LOW * rope->freq[f];
                high[f] = (float)cos(angle);
                high[n_pair + f] = (float)sin(angle);
            }
        }
        const float *low = d->turn + pos[j] % TURN_LOW;
        for (size_t f = 0; f < n_pair; f++) {
            float lc = low[f * TURN_LOW], ls = low[(n_pair + f) * TURN_LOW];
            float c = high[f] * lc - high[n_pair + f] * ls;
            float s = high[n_pair + f] * lc + high[f] * ls;
            float *a = key + (rope->adjacent ? 2 * f : f) * row + j;
            float *b = a + (rope->adjacent ? 1 : n_pair) * row;
            float x = *a, y = *b;
            *a = x * c + y * s;
            *b = y * c - x * s;
        }
    }
}

static const struct triattention_plan *plan_of(const struct data *d, int32_t layer)
{
    return triattention_plan_of(&d->plans, &d->model, layer);
}

/* Raw scores of all entries by some rows, page by page. */
static void score_pages(const struct keep_view *view, const struct keep_lane *lane,
                        const struct triattention_queries *queries, struct work *w)
{
    const struct data *d = view->data;
    int32_t n_run = kv_lane_runs(view->kv, lane->layer, lane->head);
    struct triattention_keys keys = {w->key, (size_t)d->model.g.page_len, 0};
    const struct triattention_plan *plan = plan_of(d, lane->layer);
    for (int32_t r = 0; r < n_run; r++) {
        struct keep_run run = keep_run_at(view, lane, r);
        keep_run_keys(view, lane, r, w->key);
        if (d->turn != NULL && plan == &d->plans.rotated)
            turn_back(d, lane->pos + run.slot, run.n, w->key, w->high);
        keys.n = run.n;
        triattention_score(plan, queries, &keys, w->raw + run.slot, (size_t)lane->n, w->line);
    }
}

/* Scores by some rows, made comparable, into the greatest so far (first: there is none yet). */
static void score_block(const struct keep_view *view, const struct keep_lane *lane,
                        const struct triattention_queries *queries, bool first, struct work *w,
                        float *out)
{
    const struct data *d = view->data;
    score_pages(view, lane, queries, w);
    for (int32_t b = 0; b < queries->n; b++) {
        float *raw = w->raw + (size_t)b * (size_t)lane->n;
        if (!d->plans.rotated.form.no_z)
            triattention_standardise(raw, lane->evictable, lane->n);
        if (first && b == 0)
            memcpy(out, raw, (size_t)lane->n * sizeof(*out));
        else
            triattention_take_max(out, raw, lane->n);
    }
}

/* Layers that statistics leave out, that have seen no query yet, or that are not asked. */
static bool silent(const void *params, const struct keep_view *view, int32_t layer)
{
    const struct params *p = params;
    const struct data *d = view->data;
    const struct policy_whole all = policy_whole(&d->model);
    int32_t number = all.first_layer + layer;
    if (p->n_layer > 0 && number >= p->n_layer)
        return true;
    if (number < p->n_skip && p->n_skip < all.n_layer) /* else none would score */
        return true;
    if (d->stats != NULL)
        return d->stats->count[layer] == 0;
    struct state s = state_at(d, view->state);
    return s.count[layer] == 0 && s.settled[layer] == 0;
}

static void score(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *out)
{
    const struct params *p = params;
    const struct data *d = view->data;
    struct work w;
    bool scored = false;
    lay_out(d, lane->n, lane->scratch, &w);
    struct triattention_queries queries = {.w = w.w, .e = w.e};
    for (int32_t i = 0; i < d->n_row; i++) {
        const float *row = row_at(p, view, lane, i, w.mean);
        if (row != NULL) {
            struct stats_row parts = parts_of(d, row);
            triattention_queries_add(plan_of(d, lane->layer), &parts,
                                     p->distance > 0 ? p->distance : view->n_token, &queries);
        }
        if (queries.n == 0 || (queries.n < BLOCK && i + 1 < d->n_row))
            continue;
        score_block(view, lane, &queries, !scored, &w, out);
        scored = true;
        queries.n = 0;
    }
    for (int32_t i = 0; i < lane->n; i++) {
        float x = scored ? out[i] : 0.0f;
        out[i] = x == x ? (p->sign == SIGN_KEEP ? x : -x) : 0.0f;
    }
}

/* ---- scores of a device ---- */

/* The rows' vectors, and the mean of a group. */
static size_t weigh_size(const void *params, const struct policy_model *model, const void *data)
{
    const struct data *d = data;
    size_t n_query = (size_t)triattention_plan_queries(&d->plans.rotated);
    size_t n_row = (size_t)d->n_row, n_pair = (size_t)model->rope->n_pair;
    (void)params;
    return (n_row * (n_query * (size_t)model->g.dim_k + n_pair) + row_len(d)) * sizeof(float);
}

static void weigh(const void *params, const struct keep_view *view, struct kv_weigh_job *job,
                  void *room)
{
    const struct params *p = params;
    const struct data *d = view->data;
    const struct triattention_plan *plan = plan_of(d, job->layer);
    size_t n_query = (size_t)triattention_plan_queries(plan);
    const struct keep_lane lane = {.layer = job->layer, .head = job->head};
    struct triattention_queries queries = {.w = room};
    queries.e = queries.w + (size_t)d->n_row * n_query * (size_t)d->model.g.dim_k;
    float *mean = queries.e + (size_t)d->n_row * (size_t)d->model.rope->n_pair;
    for (int32_t i = 0; i < d->n_row; i++) {
        const float *row = row_at(p, view, &lane, i, mean);
        if (row == NULL)
            continue;
        struct stats_row parts = parts_of(d, row);
        triattention_queries_add(plan, &parts, p->distance > 0 ? p->distance : view->n_token,
                                 &queries);
    }
    job->kind = KV_WEIGH_WAVES;
    job->lowest = p->sign == SIGN_EVICT;
    job->waves = (struct kv_weigh_waves){.w = queries.w,
                                         .e = p->norm ? queries.e : NULL,
                                         .n_row = queries.n,
                                         .n_vector = (int32_t)n_query,
                                         .standard = p->z != 0,
                                         .still = d->turn != NULL && plan == &d->plans.rotated};
}

/* ---- the options ---- */

static const char *const centres_words[] = {"file", "mean", "random-phase", NULL};
static const char *const offsets_words[] = {"geometric", "linear", NULL};
static const char *const over_words[] = {"mean", "max", NULL};
static const char *const flat_words[] = {"auto", "off", "on", NULL};
static const char *const group_words[] = {"max", "mean", NULL};
static const char *const sign_words[] = {"keep", "evict", NULL};
static const char *const calibrate_words[] = {"frozen", "adaptive", NULL};

#define AT(member) offsetof(struct params, member)
static const struct policy_param own_params[] = {
    {"centres", POLICY_TYPE_CHOICE, AT(centres), 0, 0, "file",
     "file: all centres of the file. mean: their mean. random-phase: a control, with directions "
     "drawn from the seed",
     centres_words},
    {"seed", POLICY_TYPE_COUNT, AT(seed), 0, INT32_MAX, "0", "seed of random phases", NULL},
    {"offset-max", POLICY_TYPE_COUNT, AT(offset_max), 1, 1 << 30, "65536",
     "the largest future distance", NULL},
    {"offsets", POLICY_TYPE_CHOICE, AT(offsets), 0, 0, "geometric",
     "future distances: powers of two (geometric), or as many evenly spaced from 1 to the largest "
     "(linear)",
     offsets_words},
    {"over", POLICY_TYPE_CHOICE, AT(over), 0, 0, "mean",
     "distances count by mean, or by max, which takes one synthetic query per distance",
     over_words},
    {"trig", POLICY_TYPE_CHOICE, AT(trig), 0, 0, "on",
     "off: without the first sum, of directions and distances", policy_switch_words},
    {"norm", POLICY_TYPE_CHOICE, AT(norm), 0, 0, "on",
     "off: without the second sum, of the keys' moduli", policy_switch_words},
    {"r", POLICY_TYPE_CHOICE, AT(r), 0, 0, "on",
     "off: the second sum with a_f, as if no band's queries had a direction (Equation 7)",
     policy_switch_words},
    {"z", POLICY_TYPE_CHOICE, AT(z), 0, 0, "on",
     "off: scores of a head are not standardised; heads of long queries and keys then decide",
     policy_switch_words},
    {"flat", POLICY_TYPE_CHOICE, AT(flat), 0, 0, "auto",
     "dimensions that are not rotated count where statistics have them; on demands them, off "
     "leaves them out",
     flat_words},
    {"group", POLICY_TYPE_CHOICE, AT(group), 0, 0, "max",
     "max: the best score of a KV head's query heads counts. mean: they have one centre, the mean "
     "of theirs",
     group_words},
    {"sign", POLICY_TYPE_CHOICE, AT(sign), 0, 0, "keep",
     "evict: the keys of most predicted attention go first", sign_words},
    {"score-layers", POLICY_TYPE_COUNT, AT(n_layer), 0, 1 << 20, "0",
     "only this many first layers score; 0: all", NULL},
    {"boundary-skip", POLICY_TYPE_COUNT, AT(n_skip), 0, 1 << 20, "0",
     "this many first layers with a full cache do not score; as many as there are: all score",
     NULL},
    {"distance", POLICY_TYPE_COUNT, AT(distance), 0, 1 << 30, "0",
     "every key counts as if it stood this many positions back, so that its score never changes; "
     "0: its own distance",
     NULL},
    {"warmup", POLICY_TYPE_COUNT, AT(warmup), 1, 1 << 24, "1024",
     "queries per layer that are gathered where there is no file", NULL},
    {"calibrate", POLICY_TYPE_CHOICE, AT(calibrate), 0, 0, "frozen",
     "after the warm-up the centres stay (frozen) or follow the text (adaptive)", calibrate_words},
    {0},
};
#undef AT

#define V1 "pin-prompt=off,granularity=all,window=128"
#define V2 V1 ",segments=8"
#define V3 V2 ",prefix=128"

static const struct policy_preset presets[] = {
    {"paper", "pin-prompt=on,granularity=head,combine=mean,slack=128,window=0",
     "the runs of the paper: the prompt stays, one set per KV head over all layers"},
    {"v1", V1, "one set for all lanes, the last 128 positions stay"},
    {"v2", V2, "and each of 8 segments loses its share"},
    {"v3", V3, "and the first 128 positions stay"},
    {"v3-fork", V3 ",sign=evict,z=off,group=mean,flat=off,score-layers=1",
     "what the fork's code does: layer 0 decides, and what it predicts most attention goes first"},
    {"global", "pin-prompt=off,granularity=global,sinks=4,window=128",
     "one budget for all lanes, by a map in the statistics"},
    {0},
};

/* Scores that are to be compared over lanes are not standardised in each. */
static void settle(void *params, const struct keep_rules *rules)
{
    struct params *p = params;
    p->has_stats = rules->stats[0] != '\0';
    if (rules->granularity == KEEP_GLOBAL)
        p->z = 0;
}

const struct keep_policy keep_triattention = {
    .name = "triattention",
    .summary = "keys that the mean query predicts attention for",
    .citation = "Mao et al., TriAttention: Efficient Long Reasoning with Trigonometric KV "
                "Compression, 2026",
    .defaults = "pin-prompt=on,granularity=head,combine=mean",
    .params = own_params,
    .params_size = sizeof(struct params),
    .presets = presets,
    .settle = settle,
    .open = open_data,
    .close = close_data,
    .needs = needs,
    .state_size = state_size,
    .sound = sound,
    .scratch_size = scratch_size,
    .observe = observe,
    .observes = observes,
    .learn = learn,
    .learn_head = learn_head,
    .learns_before_rope = true,
    .begin = begin,
    .silent = silent,
    .score = score,
    .weigh = weigh,
    .weigh_size = weigh_size,
};
