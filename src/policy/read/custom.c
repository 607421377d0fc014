/*
 * custom.c - entries that the program chooses. A function of the program that made the engine
 * scores them. Every policy has the same rules (budget, sinks, recent, gate). It is in no list of
 * policies, as its name alone is none.
 *
 * The function may be of a language that runs one thread at a time. So lanes are scored on the
 * evaluating thread alone. Once it has returned false it is not called again in the evaluation,
 * which the engine ends behind the pass (read_stopped).
 */
#include <math.h>

#include "base/mem.h"
#include "policy/read/read.h"
#include "policy/rows.h"

struct params {
    int32_t values;
    pith_read_score_fn *fn;
    void *user;
};

static const struct policy_param own_params[] = {
    {"values", POLICY_TYPE_CHOICE, offsetof(struct params, values), 0, 0, "off",
     "on: the function sees the values of entries, too", policy_switch_words},
    {0},
};

pith_status read_config_set_custom(const pith_engine_params *params, struct read_config *out,
                                   pith_error *err)
{
    const char *options;
    PI_TRY(policy_find_custom("read", params->read, &options, err));
    PI_TRY(read_config_set(&read_custom, options, out, err));
    struct params *p = (struct params *)&out->params;
    p->fn = params->read_score;
    p->user = params->read_user;
    return PITH_OK;
}

/* The data: whether the function has returned false. */
static pith_status open_custom(const void *params, const struct policy_model *model, void **data,
                               pith_error *err)
{
    (void)params;
    (void)model;
    *data = pi_mem_alloc(PI_MEM_OTHER, sizeof(bool));
    return *data != NULL ? PITH_OK : pi_fail(err, PITH_NOMEM, "no memory for a read policy");
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

/* A call's scratch. */
struct work {
    int32_t *pos; /* [n] */
    float *page;  /* of policy_rows */
    float *q;     /* [n_tok][n_group][dim_k] */
    float *k;     /* [n][dim_k] */
    float *v;     /* [n][dim_v] */
};

static size_t lay_out(const struct params *p, const struct policy_model *model, int32_t n,
                      int32_t n_tok, void *base, struct work *w)
{
    const struct kv_geometry *g = &model->g;
    size_t used = 0, rows = (size_t)n, n_query = (size_t)n_tok * (size_t)model->n_group;
    w->pos = pi_mem_part(base, &used, rows, sizeof(int32_t));
    w->page = pi_mem_part(base, &used, policy_rows_page(g), sizeof(float));
    w->q = pi_mem_part(base, &used, n_query * (size_t)g->dim_k, sizeof(float));
    w->k = pi_mem_part(base, &used, rows * (size_t)g->dim_k, sizeof(float));
    w->v = pi_mem_part(base, &used, p->values ? rows * (size_t)g->dim_v : 0, sizeof(float));
    return used;
}

static size_t scratch_size(const void *params, const struct policy_model *model, int32_t n,
                           int32_t n_tok)
{
    struct work w;
    return lay_out(params, model, n, n_tok, NULL, &w);
}

static void fill(const struct params *p, const struct read_view *view, const struct read_chunk *c,
                 struct work *w)
{
    const struct policy_model *m = view->model;
    size_t row = (size_t)m->n_group * (size_t)m->g.dim_k;
    for (size_t t = 0; t < (size_t)c->n_tok; t++)
        memcpy(w->q + t * row, c->q + t * c->q_stride, row * sizeof(float));
    kv_lane_positions(view->kv, c->layer, c->head, w->pos, c->n);
    policy_rows(m, view->kv, c->layer, c->head, 0, c->n, w->page, w->k, p->values ? w->v : NULL);
}

static void score(const void *params, const struct read_view *view, const struct read_chunk *c,
                  float *out)
{
    const struct params *p = params;
    const struct policy_model *m = view->model;
    bool *has_stopped = (bool *)(uintptr_t)view->data;
    struct work w;
    if (!*has_stopped) {
        lay_out(p, m, c->n, c->n_tok, c->scratch, &w);
        fill(p, view, c, &w);
        pith_read_chunk seen = {.layer = c->layer,
                                .head = c->head,
                                .n = c->n,
                                .n_token = c->n_tok,
                                .pos0 = c->pos0,
                                .n_group = c->n_group,
                                .dim_k = m->g.dim_k,
                                .dim_v = m->g.dim_v,
                                .n_choose = c->n_choose,
                                .attn_scale = m->scale,
                                .pos = w.pos,
                                .q = w.q,
                                .k = w.k,
                                .v = p->values ? w.v : NULL};
        *has_stopped = !p->fn(p->user, &seen, out);
    }
    for (int32_t i = 0; i < c->n; i++) /* a NaN has no place in an order */
        out[i] = *has_stopped ? 0.0f : isnan(out[i]) ? -INFINITY : out[i];
}

const struct read_policy read_custom = {
    .name = "custom",
    .summary = "scores that the program computes",
    .citation = "",
    .params = own_params,
    .params_size = sizeof(struct params),
    .open = open_custom,
    .close = close_custom,
    .scratch_size = scratch_size,
    .score = score,
    .stopped = stopped,
};
