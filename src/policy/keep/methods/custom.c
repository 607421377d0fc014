/*
 * custom.c - scores that the program computes. Every policy has the same rules (budget, granularity,
 * protected entries); the scores are a function of the program that made the engine. It is in no
 * list of policies, as its name alone is none.
 *
 * The function may be of a language that runs one thread at a time. So its lanes are scored on the
 * evaluating thread alone, in order. A lane for which it returns false has scores of 0, and the
 * engine asks keep_stopped behind the round.
 */
#include "base/mem.h"
#include "policy/keep/rules/keep.h"

#define CUSTOM_QUERIES_MAX 512

struct custom_params {
    int32_t n_query;
    pith_keep_score_fn *fn;
    void *user;
};

static const struct policy_param params_table[] = {
    {"queries", POLICY_TYPE_COUNT, offsetof(struct custom_params, n_query), 0, CUSTOM_QUERIES_MAX,
     "0", "last queries whose attention the function sees", NULL},
    {0},
};

pith_status keep_config_set_custom(const pith_engine_params *params, struct keep_config *out,
                                   pith_error *err)
{
    static const char name[] = "custom";
    const char *text = params->keep != NULL ? params->keep : name;
    size_t n = sizeof(name) - 1;
    if (strncmp(text, name, n) != 0 || (text[n] != 0 && text[n] != ':'))
        return pi_fail(err, PITH_INVALID, "keep: %.64s: with keep_score the policy is %s", text,
                       name);
    PI_TRY(keep_config_set(&keep_custom, text[n] == ':' ? text + n + 1 : NULL, out, err));
    struct custom_params *p = (struct custom_params *)&out->params;
    p->fn = params->keep_score;
    p->user = params->keep_user;
    return PITH_OK;
}

/* The data: whether the function has returned false. */
static pith_status open_custom(const void *params, const struct policy_model *model, void **data,
                               pith_error *err)
{
    (void)params;
    (void)model;
    *data = pi_mem_alloc(PI_MEM_OTHER, sizeof(bool));
    return *data != NULL ? PITH_OK : pi_fail(err, PITH_NOMEM, "no memory for a keep policy");
}

static void close_custom(void *data)
{
    pi_mem_free(data);
}

static bool stopped(void *data)
{
    bool *flag = data, was = *flag;
    *flag = false;
    return was;
}

static uint32_t needs(const void *params)
{
    const struct custom_params *p = params;
    return p->n_query > 0 ? KEEP_NEED_ROWS : 0;
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

/* A call's scratch. */
struct work {
    float *page;      /* [dim][page_len] */
    float *k;         /* [n][dim_k] */
    float *v;         /* [n + page_len][dim_v] */
    float *attention; /* [n] */
    void *queries;    /* of keep_queries_sums */
};

static size_t lay_out(const struct custom_params *p, const struct policy_model *model, int32_t n,
                      void *base, struct work *w)
{
    size_t used = 0, rows = (size_t)n, len = (size_t)model->g.page_len;
    w->page = pi_mem_part(base, &used, (size_t)model->g.dim_k * len, sizeof(float));
    w->k = pi_mem_part(base, &used, rows * (size_t)model->g.dim_k, sizeof(float));
    w->v = pi_mem_part(base, &used, (rows + len) * (size_t)model->g.dim_v, sizeof(float));
    w->attention = pi_mem_part(base, &used, rows, sizeof(float));
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

/* Keys as rows, which callers' libraries like, from entries side by side. */
static void read_lane(const struct keep_view *view, const struct keep_lane *lane,
                      const struct work *w)
{
    const struct kv_geometry *g = &view->model->g;
    size_t dim_k = (size_t)g->dim_k, len = (size_t)g->page_len;
    int32_t n_run = kv_lane_runs(view->kv, lane->layer, lane->head);
    for (int32_t r = 0; r < n_run; r++) {
        struct keep_run run = keep_run_at(view, lane, r);
        keep_run_keys(view, lane, r, w->page);
        for (size_t j = 0; j < (size_t)run.n; j++)
            for (size_t d = 0; d < dim_k; d++)
                w->k[((size_t)run.slot + j) * dim_k + d] = w->page[d * len + j];
        keep_run_values(view, lane, r, w->v + (size_t)run.slot * (size_t)g->dim_v);
    }
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
    keep_queries_sums(view, lane, p->n_query, w->queries, &sum, &stride);
    for (int32_t g = 0; g < n_group; g++)
        for (int32_t i = 0; i < lane->n; i++)
            w->attention[i] += sum[(size_t)g * stride + (size_t)i] / (float)(count * n_group);
}

static void score(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *out)
{
    const struct custom_params *p = params;
    bool *has_stopped = (bool *)(uintptr_t)view->data;
    struct work w;
    lay_out(p, view->model, lane->n, lane->scratch, &w);
    read_lane(view, lane, &w);
    if (p->n_query > 0)
        read_attention(p, view, lane, &w);
    pith_keep_lane seen = {.layer = lane->layer,
                           .head = lane->head,
                           .n = lane->n,
                           .n_token = view->n_token,
                           .n_prompt = view->n_prompt,
                           .dim_k = view->model->g.dim_k,
                           .dim_v = view->model->g.dim_v,
                           .pos = lane->pos,
                           .evictable = lane->evictable,
                           .tokens = view->tokens,
                           .k = w.k,
                           .v = w.v,
                           .attention = p->n_query > 0 ? w.attention : NULL};
    if (!*has_stopped && p->fn(p->user, &seen, out))
        return;
    *has_stopped = true;
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
    .state_size = state_size,
    .observe = observe,
    .scratch_size = scratch_size,
    .score = score,
    .comparable = comparable,
    .alone = true,
    .stopped = stopped,
};
