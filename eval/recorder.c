/*
 * recorder.c - queries, keys and values of a run: collected by the engine's tap, written as one
 * safetensors file. docs/record.md is the contract; record.c reads what is written here.
 *
 * Rows stand at their position, so a token that is evaluated again after a truncation replaces what
 * was recorded. It must not know what the file is used for.
 */
#define _POSIX_C_SOURCE 200809L

#include "recorder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval.h"
#include "record.h"
#include "pith/inspect.h"

#define FIRST_CAP 256 /* tokens that the first rows are allocated for */

/* ---- collecting ---- */

struct eval_recorder {
    pith_seq *seq; /* borrowed */
    char *path;    /* owned */
    pith_model_info info;
    size_t row_len[EVAL_N_ROWS]; /* floats of one token */
    float **rows;                /* [n_layer][EVAL_N_ROWS] -> [cap][row_len], owned */
    int32_t cap;
    bool no_memory; /* for cap_wanted tokens */
    int32_t cap_wanted;
};

static bool grow_rows(float **rows, int32_t cap, size_t row_len)
{
    if ((size_t)cap > SIZE_MAX / sizeof(float) / row_len)
        return false;
    float *grown = realloc(*rows, (size_t)cap * row_len * sizeof(float));
    if (grown == NULL)
        return false;
    *rows = grown;
    return true;
}

/* Room for n tokens in every array. Arrays that grew before a failure stay: cap has not moved. */
static bool grow(struct eval_recorder *r, int32_t n)
{
    if (n <= r->cap)
        return true;
    int32_t cap = r->cap > INT32_MAX / 2 ? INT32_MAX : 2 * r->cap;
    cap = cap < FIRST_CAP ? FIRST_CAP : cap;
    cap = cap < n ? n : cap;
    r->cap_wanted = cap;
    for (int32_t i = 0; i < r->info.n_layer_kv * EVAL_N_ROWS; i++)
        if (!grow_rows(&r->rows[i], cap, r->row_len[i % EVAL_N_ROWS]))
            return false;
    r->cap = cap;
    return true;
}

/* A pith_tap_fn; user is the recorder. */
static bool record_rows(void *user, const pith_tap_rows *in)
{
    struct eval_recorder *r = user;
    const float *const from[EVAL_N_ROWS] = {in->q_pre, in->q, in->k, in->v};
    if (in->seq != r->seq)
        return true;
    if (!grow(r, in->pos0 + in->n_token)) {
        r->no_memory = true;
        return false;
    }
    for (int i = 0; i < EVAL_N_ROWS; i++)
        memcpy(r->rows[in->layer * EVAL_N_ROWS + i] + (size_t)in->pos0 * r->row_len[i], from[i],
               (size_t)in->n_token * r->row_len[i] * sizeof(float));
    return true;
}

pith_status eval_recorder_create(pith_seq *seq, const char *path, struct eval_recorder **out,
                                 pith_error *err)
{
    pith_engine *engine = pith_seq_engine(seq);
    if (pith_seq_length(seq) > 0)
        return eval_fail(err, PITH_INVALID,
                         "%s: the sequence holds %d tokens already; a record begins with the first",
                         path, pith_seq_length(seq));
    pith_status status = eval_check_file(path, err);
    if (status != PITH_OK)
        return status;
    struct eval_recorder *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return eval_fail(err, PITH_NOMEM, "%s: no memory for a recorder", path);
    pith_model_info *info = &r->info;
    pith_model_get_info(pith_engine_model(engine), info);
    r->row_len[EVAL_ROWS_Q_PRE] = r->row_len[EVAL_ROWS_Q] =
        (size_t)info->n_head * (size_t)info->head_dim_k;
    r->row_len[EVAL_ROWS_K] = (size_t)info->n_head_kv * (size_t)info->head_dim_k;
    r->row_len[EVAL_ROWS_V] = (size_t)info->n_head_kv * (size_t)info->head_dim_v;
    r->path = strdup(path);
    r->rows = calloc((size_t)info->n_layer_kv * EVAL_N_ROWS, sizeof(*r->rows));
    status = r->path == NULL || r->rows == NULL
                 ? eval_fail(err, PITH_NOMEM, "%s: no memory for a recorder", path)
                 : pith_engine_set_tap(engine, record_rows, r, err);
    if (status != PITH_OK) {
        eval_recorder_free(r);
        return status;
    }
    r->seq = seq;
    *out = r;
    return PITH_OK;
}

void eval_recorder_free(struct eval_recorder *r)
{
    if (r == NULL)
        return;
    if (r->seq != NULL)
        pith_engine_set_tap(pith_seq_engine(r->seq), NULL, NULL, NULL);
    for (int32_t i = 0; r->rows != NULL && i < r->info.n_layer_kv * EVAL_N_ROWS; i++)
        free(r->rows[i]);
    free(r->rows);
    free(r->path);
    free(r);
}

pith_status eval_recorder_status(const struct eval_recorder *r, pith_error *err)
{
    if (!r->no_memory)
        return PITH_OK;
    size_t len = r->row_len[EVAL_ROWS_Q_PRE] + r->row_len[EVAL_ROWS_Q] + r->row_len[EVAL_ROWS_K] +
                 r->row_len[EVAL_ROWS_V];
    return eval_fail(err, PITH_NOMEM, "%s: no memory to record %d tokens of %zu bytes each",
                     r->path, r->cap_wanted, len * sizeof(float) * (size_t)r->info.n_layer_kv);
}

/* ---- writing ---- */

enum { N_META = 15, NUMBER_SIZE = 32 };

/* The metadata's texts. A model's name may be any bytes: what is not UTF-8 becomes U+FFFD. */
struct meta {
    struct safetensors_pair pair[N_META];
    size_t n;
    char number[N_META][NUMBER_SIZE];
    char *name; /* owned */
    char *architecture;
};

static void add_text(struct meta *m, const char *key, const char *value)
{
    m->pair[m->n++] = (struct safetensors_pair){key, value};
}

static void add_int(struct meta *m, const char *key, int32_t value)
{
    snprintf(m->number[m->n], NUMBER_SIZE, "%d", value);
    add_text(m, key, m->number[m->n]);
}

/* Nine digits give the same float back. */
static void add_float(struct meta *m, const char *key, float value)
{
    snprintf(m->number[m->n], NUMBER_SIZE, "%.9g", (double)value);
    add_text(m, key, m->number[m->n]);
}

/* The caller frees name and architecture; false: no memory. */
static bool make_meta(const struct eval_recorder *r, const pith_attention_info *attention,
                      struct meta *m)
{
    const pith_model_info *info = &r->info;
    *m =
        (struct meta){.name = eval_utf8(info->name), .architecture = eval_utf8(info->architecture)};
    if (m->name == NULL || m->architecture == NULL)
        return false;
    add_text(m, "format", EVAL_RECORD_FORMAT);
    add_text(m, "version", EVAL_RECORD_VERSION);
    add_text(m, "pith", pith_version());
    add_text(m, "model", m->name);
    add_text(m, "architecture", m->architecture);
    add_int(m, "n_layer", info->n_layer_kv);
    add_int(m, "n_head", info->n_head);
    add_int(m, "n_head_kv", info->n_head_kv);
    add_int(m, "head_dim_k", info->head_dim_k);
    add_int(m, "head_dim_v", info->head_dim_v);
    add_float(m, "attn_scale", attention->attn_scale);
    add_text(m, "rope_pairing", attention->adjacent ? "adjacent" : "half");
    add_int(m, "rope_n_rot", 2 * attention->n_pair);
    add_float(m, "rope_theta", info->rope_theta);
    add_float(m, "rope_magnitude", attention->magnitude);
    return true;
}

/* Everything that one file needs while it is written. */
struct writing {
    struct safetensor *tensor; /* [n] */
    size_t n;
    char (*name)[32];   /* [EVAL_N_ROWS * n_layer] */
    int32_t *positions; /* [n_token] */
    struct meta meta;
};

static void writing_free(struct writing *w)
{
    free(w->tensor);
    free(w->name);
    free(w->positions);
    free(w->meta.name);
    free(w->meta.architecture);
}

static void add_vector(struct writing *w, const char *name, enum safetensors_dtype dtype,
                       const void *data, int64_t n)
{
    w->tensor[w->n++] = (struct safetensor){
        .name = name,
        .dtype = dtype,
        .n_dim = 1,
        .dim = {n},
        .data = data,
        .size = (size_t)n * safetensors_dtype_size(dtype),
    };
}

/* Array i of a layer, of n tokens. */
static void add_rows(struct writing *w, const struct eval_recorder *r, int32_t layer, int32_t i,
                     int32_t n)
{
    const pith_model_info *info = &r->info;
    int32_t at = layer * EVAL_N_ROWS + i;
    int32_t dim = i == EVAL_ROWS_V ? info->head_dim_v : info->head_dim_k;
    snprintf(w->name[at], sizeof(w->name[at]), "layers.%d.%s", layer, eval_record_rows[i]);
    w->tensor[w->n++] = (struct safetensor){
        .name = w->name[at],
        .dtype = SAFETENSORS_F32,
        .n_dim = 3,
        .dim = {n, (int64_t)r->row_len[i] / dim, dim},
        .data = r->rows[at],
        .size = (size_t)n * r->row_len[i] * sizeof(float),
    };
}

pith_status eval_recorder_write(const struct eval_recorder *r, pith_error *err)
{
    int32_t n = pith_seq_length(r->seq);
    size_t n_row = (size_t)r->info.n_layer_kv * EVAL_N_ROWS;
    struct writing w = {0};
    pith_attention_info attention;
    if (n == 0 || n > r->cap)
        return eval_fail(err, PITH_INVALID, "%s: no token was recorded", r->path);
    pith_model_get_attention(pith_engine_model(pith_seq_engine(r->seq)), &attention);
    w.tensor = calloc(n_row + 3, sizeof(*w.tensor));
    w.name = calloc(n_row, sizeof(*w.name));
    w.positions = malloc((size_t)n * sizeof(*w.positions));
    pith_status status = PITH_OK;
    if (w.tensor == NULL || w.name == NULL || w.positions == NULL ||
        !make_meta(r, &attention, &w.meta)) {
        status =
            eval_fail(err, PITH_NOMEM, "%s: no memory for the list of %zu arrays", r->path, n_row);
    } else {
        for (int32_t i = 0; i < n; i++)
            w.positions[i] = i;
        add_vector(&w, "positions", SAFETENSORS_I32, w.positions, n);
        add_vector(&w, "tokens", SAFETENSORS_I32, pith_seq_tokens(r->seq), n);
        add_vector(&w, "rope.freq", SAFETENSORS_F64, attention.freq, attention.n_pair);
        for (int32_t l = 0; l < r->info.n_layer_kv; l++)
            for (int32_t i = 0; i < EVAL_N_ROWS; i++)
                add_rows(&w, r, l, i, n);
        status = safetensors_write(r->path, w.tensor, w.n, w.meta.pair, w.meta.n, err);
    }
    writing_free(&w);
    return status;
}
