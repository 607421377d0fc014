/*
 * custom.c - scores that the program computes. Every policy has the same rules (budget,
 * granularity, protected entries); the scores are a function of the program that made the engine.
 * It is in no list of policies, as its name alone is none.
 *
 * By options the function sees more: the last queries and their attention (as snapkv does), and
 * sums of all attention (as h2o). A second function of the program may write numbers beside each
 * new entry (as kvzap). The sum is mark 0, and the program's numbers are the marks behind it.
 *
 * The functions may be of a language that runs one thread at a time. So lanes are shown on the
 * evaluating thread alone. A lane for which one returns false has scores or marks of 0, and the
 * engine asks keep_stopped behind the round or the pass.
 */
#include "base/mem.h"
#include "model/shape.h"
#include "policy/keep/rules/attention.h"
#include "policy/keep/rules/options.h"
#include "policy/rows.h"

#define CUSTOM_QUERIES_MAX 512
#define CUSTOM_MARKS_MAX 16384

/* Floats that new entries get in one call. */
#define CUSTOM_ROOM (1 << 18)

struct custom_params {
    int32_t n_query;
    int32_t sums;
    int32_t n_mark; /* of the program's */
    pith_keep_score_fn *fn;
    pith_keep_mark_fn *mark;
    void *user;
};

/* Of an engine. */
struct custom_data {
    bool stopped; /* a function has returned false since it was asked last */
    float *room;  /* [CUSTOM_ROOM] owned; NULL where nothing is marked */
};

static const struct policy_param params_table[] = {
    {"queries", POLICY_TYPE_COUNT, offsetof(struct custom_params, n_query), 0, CUSTOM_QUERIES_MAX,
     "0", "last queries that the function sees, and their attention", NULL},
    {"sums", POLICY_TYPE_CHOICE, offsetof(struct custom_params, sums), 0, 0, "off",
     "on: it sees what attention each entry got in all", policy_switch_words},
    {"marks", POLICY_TYPE_COUNT, offsetof(struct custom_params, n_mark), 0, CUSTOM_MARKS_MAX, "0",
     "numbers that keep_mark writes beside each entry", NULL},
    {0},
};

pith_status keep_config_set_custom(const pith_engine_params *params, struct keep_config *out,
                                   pith_error *err)
{
    const char *options;
    PI_TRY(policy_find_custom("keep", params->keep, &options, err));
    PI_TRY(keep_config_set(&keep_custom, options, out, err));
    struct custom_params *p = (struct custom_params *)&out->params;
    p->fn = params->keep_score;
    p->mark = params->keep_mark;
    p->user = params->keep_user;
    if (p->n_mark > 0 && p->mark == NULL)
        return pi_fail(err, PITH_INVALID, "keep: custom: marks: %d: there is no keep_mark",
                       p->n_mark);
    if (p->mark != NULL && p->n_mark == 0)
        p->n_mark = 1;
    return PITH_OK;
}

static void close_custom(void *data)
{
    struct custom_data *d = data;
    pi_mem_free(d->room);
    pi_mem_free(d);
}

static pith_status open_custom(const void *params, const struct policy_model *model, void **data,
                               pith_error *err)
{
    const struct custom_params *p = params;
    struct custom_data *d = pi_mem_alloc(PI_MEM_OTHER, sizeof(*d));
    (void)model;
    if (d != NULL && p->n_mark > 0)
        d->room = pi_mem_alloc_n(PI_MEM_SCRATCH, CUSTOM_ROOM, sizeof(float));
    if (d == NULL || (p->n_mark > 0 && d->room == NULL)) {
        if (d != NULL)
            close_custom(d);
        return pi_fail(err, PITH_NOMEM, "no memory for a keep policy");
    }
    *data = d;
    return PITH_OK;
}

static bool stopped(void *data)
{
    struct custom_data *d = data;
    bool was = d->stopped;
    d->stopped = false;
    return was;
}

/* The engine's; a view of it is read-only but for this. */
static struct custom_data *data_of(const struct keep_view *view)
{
    return (struct custom_data *)(uintptr_t)view->data;
}

static uint32_t needs(const void *params)
{
    const struct custom_params *p = params;
    return (p->n_query > 0 ? KEEP_NEED_ROWS : 0) | (p->sums ? KEEP_NEED_WEIGHTS : 0) |
           (p->n_mark > 0 ? KEEP_NEED_WRITTEN : 0);
}

static int32_t n_mark(const void *params)
{
    const struct custom_params *p = params;
    return p->sums + p->n_mark;
}

static int32_t words(const void *params, struct keep_word *out)
{
    out[0] = (struct keep_word){.word = KV_NOTE_SUM, .group = KV_GROUP_MEAN, .mark = 0};
    return ((const struct custom_params *)params)->sums;
}

static bool may_stop(const void *params)
{
    return ((const struct custom_params *)params)->n_mark > 0;
}

static size_t state_size(const void *params, const struct policy_model *model, const void *data)
{
    const struct custom_params *p = params;
    (void)data;
    return p->n_query > 0 ? keep_queries_size(model, p->n_query) : 0;
}

static void observe(const void *params, const struct keep_view *view,
                    const struct pi_pass_tap_rows *rows)
{
    keep_queries_observe(view, ((const struct custom_params *)params)->n_query, rows);
}

/* ---- marks ---- */

/* Tokens t .. t + n - 1 of the lane's new ones. */
static void mark_part(const struct custom_params *p, const struct keep_view *view,
                      const struct pi_pass_written *w, int32_t t, int32_t n)
{
    struct custom_data *d = data_of(view);
    const struct kv_geometry *g = &view->model->g;
    size_t n_embd = (size_t)pi_model_hparams(view->model->model)->n_embd, row = (size_t)t;
    pith_keep_new seen = {.layer = w->layer,
                          .head = w->head,
                          .n = n,
                          .pos0 = view->n_token + t,
                          .n_embd = (int32_t)n_embd,
                          .dim_k = g->dim_k,
                          .dim_v = g->dim_v,
                          .n_mark = p->n_mark,
                          .tokens = w->item->tokens + t,
                          .h = w->h + row * n_embd,
                          .k = w->k + row * w->k_stride,
                          .v = w->v + row * w->v_stride,
                          .k_stride = w->k_stride,
                          .v_stride = w->v_stride};
    memset(d->room, 0, (size_t)n * (size_t)p->n_mark * sizeof(float));
    d->stopped = d->stopped || !p->mark(p->user, &seen, d->room);
    for (int32_t i = 0; i < p->n_mark; i++) {
        float *mark = keep_marks_to_write(view, w->layer, w->head, p->sums + i);
        for (int32_t j = 0; j < n; j++)
            mark[pi_pass_written_slot(w, t + j)] =
                d->room[(size_t)j * (size_t)p->n_mark + (size_t)i];
    }
}

static void written(const void *params, const struct keep_view *view,
                    const struct pi_pass_written *w)
{
    const struct custom_params *p = params;
    int32_t most = CUSTOM_ROOM / p->n_mark, n_tok = w->item->n_tok;
    for (int32_t t = 0; t < n_tok; t += most)
        mark_part(p, view, w, t, (int32_t)pi_min(most, n_tok - t));
}

/* ---- scores ---- */

/* A call's scratch. */
struct work {
    float *page;      /* of policy_rows */
    float *k;         /* [n][dim_k] */
    float *v;         /* [n][dim_v] */
    float *attention; /* [n] */
    float *q;         /* [n_query][n_group][dim_k] */
    float *mark;      /* [n][n_mark] */
    void *queries;    /* of keep_queries_sums */
};

static size_t lay_out(const struct custom_params *p, const struct policy_model *model, int32_t n,
                      void *base, struct work *w)
{
    size_t used = 0, rows = (size_t)n;
    w->page = pi_mem_part(base, &used, policy_rows_page(&model->g), sizeof(float));
    w->k = pi_mem_part(base, &used, rows * (size_t)model->g.dim_k, sizeof(float));
    w->v = pi_mem_part(base, &used, rows * (size_t)model->g.dim_v, sizeof(float));
    w->attention = pi_mem_part(base, &used, rows, sizeof(float));
    w->q = pi_mem_part(base, &used, (size_t)p->n_query * (size_t)(model->n_group * model->g.dim_k),
                       sizeof(float));
    w->mark = pi_mem_part(base, &used, rows * (size_t)p->n_mark, sizeof(float));
    size_t size = p->n_query > 0 ? keep_queries_sums_scratch(model, p->n_query, n) : 0;
    w->queries = pi_mem_part(base, &used, size, 1);
    return used;
}

static size_t scratch_size(const void *params, const struct policy_model *model, const void *data,
                           int32_t n)
{
    struct work w;
    (void)data;
    return lay_out(params, model, n, NULL, &w);
}

static void read_attention(const struct custom_params *p, const struct keep_view *view,
                           const struct keep_lane *lane, const struct work *w)
{
    int32_t n_group = view->model->n_group, count = keep_queries_count(view, p->n_query);
    const float *sum;
    size_t stride;
    memset(w->attention, 0, (size_t)lane->n * sizeof(float));
    if (count == 0)
        return;
    keep_queries_copy(view, lane, p->n_query, w->q);
    keep_queries_sums(view, lane, p->n_query, w->queries, &sum, &stride);
    for (int32_t g = 0; g < n_group; g++)
        for (int32_t i = 0; i < lane->n; i++)
            w->attention[i] += sum[(size_t)g * stride + (size_t)i] / (float)(count * n_group);
}

static void read_marks(const struct custom_params *p, const struct keep_view *view,
                       const struct keep_lane *lane, const struct work *w)
{
    size_t n_mark = (size_t)p->n_mark;
    for (size_t i = 0; i < n_mark; i++) {
        const float *mark = keep_marks(view, lane->layer, lane->head, p->sums + (int32_t)i);
        for (size_t j = 0; j < (size_t)lane->n; j++)
            w->mark[j * n_mark + i] = mark[j];
    }
}

static pith_keep_lane lane_of(const struct custom_params *p, const struct keep_view *view,
                              const struct keep_lane *lane, const struct work *w)
{
    bool asks = p->n_query > 0;
    return (pith_keep_lane){
        .layer = lane->layer,
        .head = lane->head,
        .n = lane->n,
        .n_token = view->n_token,
        .n_prompt = view->n_prompt,
        .dim_k = view->model->g.dim_k,
        .dim_v = view->model->g.dim_v,
        .pos = lane->pos,
        .evictable = lane->evictable,
        .tokens = view->tokens,
        .k = w->k,
        .v = w->v,
        .attention = asks ? w->attention : NULL,
        .q = asks ? w->q : NULL,
        .n_query = asks ? keep_queries_count(view, p->n_query) : 0,
        .n_group = view->model->n_group,
        .attn_scale = view->model->scale,
        .n_mark = p->n_mark,
        .sum = p->sums ? keep_marks(view, lane->layer, lane->head, 0) : NULL,
        .mark = p->n_mark > 0 ? w->mark : NULL,
    };
}

static void score(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *out)
{
    const struct custom_params *p = params;
    struct custom_data *d = data_of(view);
    struct work w;
    lay_out(p, view->model, lane->n, lane->scratch, &w);
    policy_rows(view->model, view->kv, lane->layer, lane->head, 0, lane->n, w.page, w.k, w.v);
    if (p->n_query > 0)
        read_attention(p, view, lane, &w);
    read_marks(p, view, lane, &w);
    pith_keep_lane seen = lane_of(p, view, lane, &w);
    if (!d->stopped && p->fn(p->user, &seen, out))
        return;
    d->stopped = true;
    memset(out, 0, (size_t)lane->n * sizeof(*out));
}

static bool comparable(const void *params)
{
    (void)params;
    return true; /* a function that is told the lane can make them so */
}

const struct keep_policy keep_custom = {
    .name = "custom",
    .summary = "scores that the program computes",
    .citation = "",
    .params = params_table,
    .params_size = sizeof(struct custom_params),
    .open = open_custom,
    .close = close_custom,
    .needs = needs,
    .n_mark = n_mark,
    .words = words,
    .written = written,
    .state_size = state_size,
    .observe = observe,
    .scratch_size = scratch_size,
    .score = score,
    .comparable = comparable,
    .alone = true,
    .may_stop = may_stop,
    .stopped = stopped,
};
