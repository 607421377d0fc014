/*
 * kvzap.c - how important an entry is, predicted when it is written. Simon Jegou, Maximilian
 * Jeblick, "KVzap: Fast, Adaptive, and Faithful KV Cache Pruning", 2026 (arXiv 2601.07891):
 * a small model learns the logarithm of KVzip+'s score, which takes a second pass over the text,
 * from what the layer computes for the token anyway. The statistics file has the models, one per
 * lane, linear, with every feature clipped to the range it was fitted in (pith calibrate
 * importance, docs/stats.md):
 *
 *   features=key      score = w . [k before rotation, |k|, |v|] + b
 *   features=hidden   score = w . h + b, h the layer's input after its norm (the paper's linear
 * form)
 *   features=network  score = sum over j of w_j gelu(u_j . h + c_j) + b, one network u, c for the
 *                     lanes of a layer (the paper's other form, of which NVIDIA publishes weights)
 *
 * The score is the entry's mark, written with it, so that a round reads marks and nothing else. A
 * mark of 0 says that the policy was not shown the entry when it was written. That is so in a
 * replay, and in a sequence that was saved under other options. Such an entry is scored by its
 * stored key and value, whatever `features` says; they have what their storage type left of them.
 *
 * Departures. The paper drops entries that score below a threshold when they leave the window, so
 * that the text decides how many stay. Here the budget decides that, and scores say which. Networks
 * are read (scripts/kvzap_from_hf.py), not learnt.
 */
#include <float.h>
#include <math.h>

#include "base/mem.h"
#include "model/shape.h"
#include "policy/keep/rules/policy.h"
#include "policy/keep/stats/stats.h"

#define LANES 16 /* partial sums of a product with h */

enum { FEATURES_KEY, FEATURES_HIDDEN, FEATURES_NETWORK };

struct params {
    int32_t features;
};

/* The models on the lanes' device, which predicts. */
struct data {
    struct pi_device *device;
    struct pi_at weight, low, high, neuron; /* as kv/learn.h has them, of all lanes or layers */
};

/* ---- predictions ---- */

/* The models of a lane. */
struct lane_model {
    const float *weight; /* [n + 1] */
    const float *low;    /* [n] */
    const float *high;   /* [n] */
    int32_t n;
};

static struct lane_model key_model(const struct policy_model *model, int32_t layer, int32_t head)
{
    const struct stats_importance *m = model->stats->importance;
    size_t lane = (size_t)layer * (size_t)model->g.n_head + (size_t)head, n = (size_t)m->n_feature;
    return (struct lane_model){m->key_weight + lane * (n + 1), m->key_low + lane * n,
                               m->key_high + lane * n, m->n_feature};
}

static struct lane_model hidden_model(const struct policy_model *model, int32_t layer, int32_t head)
{
    const struct stats_importance *m = model->stats->importance;
    size_t lane = (size_t)layer * (size_t)model->g.n_head + (size_t)head, n = (size_t)m->n_embd;
    return (struct lane_model){m->hidden_weight + lane * (n + 1), m->hidden_low + (size_t)layer * n,
                               m->hidden_high + (size_t)layer * n, m->n_embd};
}

/* The network of a layer, as far as a lane reads it. */
struct network {
    const float *in;  /* [n_hidden][n + 1] */
    const float *out; /* [n_hidden + 1] */
    int32_t n_hidden, n;
};

static struct network network_of(const struct policy_model *model, int32_t layer, int32_t head)
{
    const struct stats_importance *m = model->stats->importance;
    size_t lane = (size_t)layer * (size_t)model->g.n_head + (size_t)head;
    size_t n = (size_t)m->n_embd + 1, n_hidden = (size_t)m->n_hidden;
    return (struct network){m->net_in + (size_t)layer * n_hidden * n,
                            m->net_out + lane * (n_hidden + 1), m->n_hidden, m->n_embd};
}

static double length_of(const float *x, int32_t n)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

/* A sum that may be no number as a mark: finite, and not 0. */
static float mark_of(double sum)
{
    float x = sum > -FLT_MAX ? (float)(sum < FLT_MAX ? sum : FLT_MAX) : -FLT_MAX;
    return x != 0.0f ? x : FLT_MIN;
}

static double term(const struct lane_model *m, int32_t i, double x)
{
    double low = (double)m->low[i], high = (double)m->high[i];
    x = x < low ? low : x > high ? high : x;
    return (double)m->weight[i] * x;
}

/* stats_importance_predict of a key before rotation and a value. */
static float predict_key(const struct lane_model *m, const float *k, const float *v, int32_t dim_v)
{
    int32_t dim = m->n - 2;
    double sum = (double)m->weight[m->n];
    for (int32_t i = 0; i < dim; i++)
        sum += term(m, i, (double)k[i]);
    sum += term(m, dim, (double)(float)length_of(k, dim));
    sum += term(m, dim + 1, (double)(float)length_of(v, dim_v));
    return mark_of(sum);
}

/* The same of h, in sixteen partial sums, part j of h[j], h[j + 16], ..., whose halves are
   added. */
static float predict_hidden(const struct lane_model *m, const float *restrict h)
{
    const float *restrict w = m->weight, *restrict low = m->low, *restrict high = m->high;
    float sum[LANES] = {0};
    int32_t i = 0;
    for (; i + LANES <= m->n; i += LANES)
        for (int32_t j = 0; j < LANES; j++) {
            float x = h[i + j] > low[i + j] ? h[i + j] : low[i + j];
            x = x < high[i + j] ? x : high[i + j];
            sum[j] += w[i + j] * x;
        }
    for (int32_t j = 0; i + j < m->n; j++) {
        float x = h[i + j] > low[i + j] ? h[i + j] : low[i + j];
        sum[j] += w[i + j] * (x < high[i + j] ? x : high[i + j]);
    }
    for (int32_t half = LANES / 2; half > 0; half /= 2)
        for (int32_t j = 0; j < half; j++)
            sum[j] += sum[j + half];
    return mark_of((double)sum[0] + (double)w[m->n]);
}

/* w . h + w[n], in the order of predict_hidden. */
static double neuron(const float *restrict w, const float *restrict h, int32_t n)
{
    float sum[LANES] = {0};
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int32_t j = 0; j < LANES; j++)
            sum[j] += w[i + j] * h[i + j];
    for (int32_t j = 0; i + j < n; j++)
        sum[j] += w[i + j] * h[i + j];
    for (int32_t half = LANES / 2; half > 0; half /= 2)
        for (int32_t j = 0; j < half; j++)
            sum[j] += sum[j + half];
    return (double)sum[0] + (double)w[n];
}

static double gelu(double x)
{
    return 0.5 * x * (1.0 + erf(x * sqrt(0.5)));
}

/* Neuron by neuron, so that each one's weights are read once for all tokens. A token's sum is in
   its mark and knows no other token. */
static void mark_by_network(const struct network *net, const struct pi_pass_written *w, float *mark)
{
    int32_t n_tok = w->item->n_tok;
    for (int32_t t = 0; t < n_tok; t++)
        mark[pi_pass_written_slot(w, t)] = net->out[net->n_hidden];
    for (int32_t j = 0; j < net->n_hidden; j++)
        for (int32_t t = 0; t < n_tok; t++) {
            const float *in = net->in + (size_t)j * ((size_t)net->n + 1);
            double x = neuron(in, w->h + (size_t)t * (size_t)net->n, net->n);
            mark[pi_pass_written_slot(w, t)] += net->out[j] * (float)gelu(x);
        }
    for (int32_t t = 0; t < n_tok; t++) {
        float *x = &mark[pi_pass_written_slot(w, t)];
        *x = mark_of((double)*x);
    }
}

/* ---- members ---- */

static uint32_t needs(const void *params)
{
    (void)params;
    return KEEP_NEED_WRITTEN;
}

static int32_t n_mark(const void *params)
{
    (void)params;
    return 1;
}

static void written(const void *params, const struct keep_view *view,
                    const struct pi_pass_written *w)
{
    const struct params *p = params;
    float *mark = keep_marks_to_write(view, w->layer, w->head, 0);
    bool hidden = p->features == FEATURES_HIDDEN;
    if (p->features == FEATURES_NETWORK) {
        const struct network net = network_of(view->model, w->layer, w->head);
        mark_by_network(&net, w, mark);
        return;
    }
    struct lane_model m = hidden ? hidden_model(view->model, w->layer, w->head)
                                 : key_model(view->model, w->layer, w->head);
    for (int32_t t = 0; t < w->item->n_tok; t++) {
        size_t row = (size_t)t;
        float x = hidden ? predict_hidden(&m, w->h + row * (size_t)m.n)
                         : predict_key(&m, w->k + row * w->k_stride, w->v + row * w->v_stride,
                                       view->model->g.dim_v);
        mark[pi_pass_written_slot(w, t)] = x;
    }
}

static void predict(const void *params, const struct keep_view *view,
                    const struct pi_pass_entries *rows, int32_t at, struct kv_predict_job *job)
{
    static const enum kv_predict_kind kinds[] = {[FEATURES_KEY] = KV_PREDICT_KEY,
                                                 [FEATURES_HIDDEN] = KV_PREDICT_HIDDEN,
                                                 [FEATURES_NETWORK] = KV_PREDICT_NETWORK};
    const struct params *p = params;
    const struct data *d = view->data;
    const struct stats_importance *m = view->model->stats->importance;
    const struct kv_append *a = &rows->append[at];
    size_t row = (size_t)rows->row0[at / view->model->g.n_head], layer = (size_t)a->layer;
    size_t lane = layer * (size_t)view->model->g.n_head + (size_t)a->head;
    size_t dim = (size_t)view->model->g.dim_k, n_embd = (size_t)m->n_embd;
    size_t n_key = (size_t)m->n_feature, n_neuron = (size_t)m->n_hidden;
    bool key = p->features == FEATURES_KEY, network = p->features == FEATURES_NETWORK;
    size_t n_weight = (key ? n_key : network ? n_neuron : n_embd) + 1;
    size_t first = key ? lane * n_key : network ? 0 : layer * n_embd;
    *job = (struct kv_predict_job){
        .seq = a->seq,
        .layer = a->layer,
        .head = a->head,
        .kind = kinds[p->features],
        .n_tok = a->n,
        .slot = a->slot,
        .k = pi_at_item(rows->k_pre, row * a->k_stride + (size_t)a->head * dim),
        .k_stride = a->k_stride,
        .v = a->v,
        .v_stride = a->v_stride,
        .h = pi_at_item(rows->h, row * n_embd),
        .n = key ? view->model->g.dim_k : m->n_embd,
        .dim_v = view->model->g.dim_v,
        .n_neuron = network ? m->n_hidden : 0,
        .weight = pi_at_item(d->weight, lane * n_weight),
        .low = pi_at_item(d->low, first),
        .high = pi_at_item(d->high, first),
        .neuron = pi_at_item(d->neuron, network ? layer * n_neuron * (n_embd + 1) : 0),
    };
}

static void weigh(const void *params, const struct keep_view *view, struct kv_weigh_job *job,
                  void *room)
{
    (void)params;
    (void)view;
    (void)room;
    job->kind = KV_WEIGH_MARK;
}

/* A call's scratch. */
struct work {
    float *keys;   /* [dim_k][page_len] of a run */
    float *values; /* [page_len][dim_v] */
    float *key;    /* [dim_k] */
    float *cs;     /* [n_pair][2] */
};

static size_t lay_out(const struct policy_model *m, void *base, struct work *w)
{
    size_t used = 0, dim = (size_t)m->g.dim_k, len = (size_t)m->g.page_len;
    w->keys = pi_mem_part(base, &used, dim * len, sizeof(float));
    w->values = pi_mem_part(base, &used, (size_t)m->g.dim_v * len, sizeof(float));
    w->key = pi_mem_part(base, &used, dim, sizeof(float));
    w->cs = pi_mem_part(base, &used, 2 * (size_t)m->rope->n_pair, sizeof(float));
    return used;
}

static size_t scratch_size(const void *params, const struct policy_model *model, const void *data,
                           int32_t n)
{
    struct work w;
    (void)params;
    (void)data;
    (void)n;
    return lay_out(model, NULL, &w);
}

static bool any_unknown(const float *mark, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (mark[i] == 0.0f)
            return true;
    return false;
}

/* Scores entries of a run that were written unseen. */
static void score_run(const struct keep_view *view, const struct keep_lane *lane, int32_t index,
                      const struct lane_model *m, struct work *w, float *out)
{
    const struct kv_geometry *g = &view->model->g;
    const struct pi_rope *rope = policy_rope(view->model, lane->layer);
    struct keep_run run = keep_run_at(view, lane, index);
    if (!any_unknown(out + run.slot, run.n))
        return;
    keep_run_keys(view, lane, index, w->keys);
    keep_run_values(view, lane, index, w->values);
    for (int32_t j = 0; j < run.n; j++) {
        int32_t slot = run.slot + j;
        if (out[slot] != 0.0f)
            continue;
        for (int32_t d = 0; d < g->dim_k; d++)
            w->key[d] = w->keys[(size_t)d * (size_t)g->page_len + (size_t)j];
        pi_rope_turn_back(rope, lane->pos[slot], w->key, g->dim_k, w->cs, w->key);
        out[slot] = predict_key(m, w->key, w->values + (size_t)j * (size_t)g->dim_v, g->dim_v);
    }
}

static void score(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *out)
{
    int32_t n_run = kv_lane_runs(view->kv, lane->layer, lane->head);
    struct lane_model m = key_model(view->model, lane->layer, lane->head);
    struct work w;
    (void)params;
    memcpy(out, keep_marks(view, lane->layer, lane->head, 0), (size_t)lane->n * sizeof(*out));
    if (!any_unknown(out, lane->n))
        return;
    lay_out(view->model, lane->scratch, &w);
    for (int32_t r = 0; r < n_run; r++)
        score_run(view, lane, r, &m, &w, out);
}

/* ---- statistics ---- */

/* Whether there are weights, which converted statistics may leave at 0. */
static bool any_weight(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (x[i] != 0.0f)
            return true;
    return false;
}

static pith_status check_features(int32_t features, const struct stats_importance *m,
                                  pith_error *err)
{
    size_t n_lane = (size_t)m->n_lane;
    if (features == FEATURES_KEY && !any_weight(m->key_weight, n_lane * ((size_t)m->n_feature + 1)))
        return pi_fail(err, PITH_INVALID,
                       "kvzap: features=key: the statistics have weights for layers' inputs alone");
    if (features != FEATURES_KEY && m->n_embd == 0)
        return pi_fail(err, PITH_INVALID,
                       "kvzap: features=%s: the statistics have weights for keys alone",
                       features == FEATURES_NETWORK ? "network" : "hidden");
    if (features == FEATURES_HIDDEN &&
        !any_weight(m->hidden_weight, n_lane * ((size_t)m->n_embd + 1)))
        return pi_fail(err, PITH_INVALID,
                       "kvzap: features=hidden: the statistics have a network alone");
    if (features == FEATURES_NETWORK && m->n_hidden == 0)
        return pi_fail(err, PITH_INVALID, "kvzap: features=network: the statistics have none");
    return PITH_OK;
}

static void close_data(void *data)
{
    struct data *d = data;
    struct pi_at *at[] = {&d->weight, &d->low, &d->high, &d->neuron};
    for (size_t i = 0; i < PI_LEN(at); i++)
        if (pi_at_some(*at[i]))
            d->device->unpack(d->device, *at[i]);
    pi_mem_free(d);
}

static bool pack(struct pi_device *device, const float *x, size_t n, struct pi_at *out)
{
    *out = device->pack_vector(device, x, n);
    return pi_at_some(*out);
}

/* The models of a device that predicts. */
static pith_status pack_models(const struct stats_importance *m, int32_t features,
                               struct pi_device *device, void **out, pith_error *err)
{
    size_t n_lane = (size_t)m->n_lane, n_layer = (size_t)m->n_layer, n_key = (size_t)m->n_feature;
    size_t n_embd = (size_t)m->n_embd, n_neuron = (size_t)m->n_hidden;
    bool ok;
    struct data *d = pi_mem_alloc(PI_MEM_OTHER, sizeof(*d));
    if (d == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the models of kvzap");
    d->device = device;
    if (features == FEATURES_KEY)
        ok = pack(device, m->key_weight, n_lane * (n_key + 1), &d->weight) &&
             pack(device, m->key_low, n_lane * n_key, &d->low) &&
             pack(device, m->key_high, n_lane * n_key, &d->high);
    else if (features == FEATURES_HIDDEN)
        ok = pack(device, m->hidden_weight, n_lane * (n_embd + 1), &d->weight) &&
             pack(device, m->hidden_low, n_layer * n_embd, &d->low) &&
             pack(device, m->hidden_high, n_layer * n_embd, &d->high);
    else
        ok = pack(device, m->net_out, n_lane * (n_neuron + 1), &d->weight) &&
             pack(device, m->net_in, n_layer * n_neuron * (n_embd + 1), &d->neuron);
    if (ok) {
        *out = d;
        return PITH_OK;
    }
    close_data(d);
    return pi_fail(err, PITH_NOMEM, "%s: no memory for the models of kvzap", device->name);
}

/* Whether the statistics, which are of the cache's lanes, have what the options want. Nothing else
   is shared. */
static pith_status open_data(const void *params, const struct policy_model *model, void **out,
                             pith_error *err)
{
    const struct kv_geometry *g = &model->g;
    int32_t features = ((const struct params *)params)->features;
    *out = NULL;
    if (model->stats == NULL || model->stats->importance == NULL)
        return pi_fail(err, PITH_INVALID,
                       "kvzap: stats: %s: importance is predicted by weights that pith calibrate "
                       "importance writes",
                       model->stats == NULL ? "no file is given" : "the file has no importance");
    const struct stats_importance *m = model->stats->importance;
    if (m->n_lane != g->n_layer * g->n_head || m->n_feature != g->dim_k + 2)
        return pi_fail(err, PITH_INVALID,
                       "kvzap: stats: the importance is of %d lanes and keys of %d dimensions; the "
                       "cache has %d and %d",
                       m->n_lane, m->n_feature - 2, g->n_layer * g->n_head, g->dim_k);
    PI_TRY(check_features(features, m, err));
    if (features != FEATURES_KEY && model->model != NULL &&
        m->n_embd != pi_model_hparams(model->model)->n_embd)
        return pi_fail(err, PITH_INVALID,
                       "kvzap: features: the statistics are of inputs of %d dimensions; the "
                       "model's have %d",
                       m->n_embd, pi_model_hparams(model->model)->n_embd);
    struct pi_device *device = kv_geometry_device(g);
    return device->predict != NULL ? pack_models(m, features, device, out, err) : PITH_OK;
}

static bool comparable(const void *params)
{
    (void)params;
    return true;
}

/* ---- the options ---- */

static const char *const features_words[] = {"key", "hidden", "network", NULL};

#define AT(member) offsetof(struct params, member)
static const struct policy_param own_params[] = {
    {"features", POLICY_TYPE_CHOICE, AT(features), 0, 0, "key",
     "what scores an entry: its key before rotation and both lengths (key), weights of the "
     "layer's input (hidden), or neurons over that input (network)",
     features_words},
    {0},
};
#undef AT

const struct keep_policy keep_kvzap = {
    .name = "kvzap",
    .summary = "entries of greatest predicted importance, ranked over all lanes",
    .citation = "Jegou, Jeblick, KVzap: Fast, Adaptive, and Faithful KV Cache Pruning, 2026, "
                "arXiv 2601.07891",
    .defaults = "sinks=4,window=128,recent=0.5,granularity=global",
    .params = own_params,
    .params_size = sizeof(struct params),
    .file = "stats=FILE, which pith calibrate importance writes",
    .comparable = comparable,
    .open = open_data,
    .close = close_data,
    .needs = needs,
    .n_mark = n_mark,
    .scratch_size = scratch_size,
    .written = written,
    .predict = predict,
    .marks_there = true,
    .score = score,
    .weigh = weigh,
    .weighs_shown = true,
};
