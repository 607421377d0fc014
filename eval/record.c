/*
 * record.c - queries, keys and values of a run: collected by the engine's tap, written as one
 * safetensors file, read back and checked. docs/record.md is the contract of both halves.
 *
 * Rows stand at their position, so a token that is evaluated again after a truncation replaces what
 * was recorded. It must not know what the file is used for.
 */
#define _POSIX_C_SOURCE 200809L

#include "record.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "eval.h"
#include "pith/inspect.h"

#define FORMAT "pith.record"
#define VERSION "1"
#define FIRST_CAP 256 /* tokens that the first rows are allocated for */

/* ---- collecting ---- */

enum { ROWS_Q_PRE, ROWS_Q, ROWS_K, ROWS_V, N_ROWS };

static const char *const row_names[N_ROWS] = {"q_pre", "q", "k", "v"};

struct eval_recorder {
    pith_seq *seq; /* borrowed */
    char *path;    /* owned */
    pith_model_info info;
    size_t row_len[N_ROWS]; /* floats of one token */
    float **rows;           /* [n_layer][N_ROWS] -> [cap][row_len], owned */
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

/* Room for n tokens in every array. What was grown before a failure stays: cap has not moved. */
static bool grow(struct eval_recorder *r, int32_t n)
{
    if (n <= r->cap)
        return true;
    int32_t cap = r->cap > INT32_MAX / 2 ? INT32_MAX : 2 * r->cap;
    cap = cap < FIRST_CAP ? FIRST_CAP : cap;
    cap = cap < n ? n : cap;
    r->cap_wanted = cap;
    for (int32_t i = 0; i < r->info.n_layer * N_ROWS; i++)
        if (!grow_rows(&r->rows[i], cap, r->row_len[i % N_ROWS]))
            return false;
    r->cap = cap;
    return true;
}

/* A pith_tap_fn; user is the recorder. */
static bool record_rows(void *user, const pith_tap_rows *in)
{
    struct eval_recorder *r = user;
    const float *const from[N_ROWS] = {in->q_pre, in->q, in->k, in->v};
    if (in->seq != r->seq)
        return true;
    if (!grow(r, in->pos0 + in->n_token)) {
        r->no_memory = true;
        return false;
    }
    for (int i = 0; i < N_ROWS; i++)
        memcpy(r->rows[in->layer * N_ROWS + i] + (size_t)in->pos0 * r->row_len[i], from[i],
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
    pith_status status = safetensors_check_path(path, err);
    if (status != PITH_OK)
        return status;
    struct eval_recorder *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return eval_fail(err, PITH_NOMEM, "%s: no memory for a recorder", path);
    pith_model_info *info = &r->info;
    pith_model_get_info(pith_engine_model(engine), info);
    r->row_len[ROWS_Q_PRE] = r->row_len[ROWS_Q] = (size_t)info->n_head * (size_t)info->head_dim_k;
    r->row_len[ROWS_K] = (size_t)info->n_head_kv * (size_t)info->head_dim_k;
    r->row_len[ROWS_V] = (size_t)info->n_head_kv * (size_t)info->head_dim_v;
    r->path = strdup(path);
    r->rows = calloc((size_t)info->n_layer * N_ROWS, sizeof(*r->rows));
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
    for (int32_t i = 0; r->rows != NULL && i < r->info.n_layer * N_ROWS; i++)
        free(r->rows[i]);
    free(r->rows);
    free(r->path);
    free(r);
}

pith_status eval_recorder_status(const struct eval_recorder *r, pith_error *err)
{
    if (!r->no_memory)
        return PITH_OK;
    size_t len =
        r->row_len[ROWS_Q_PRE] + r->row_len[ROWS_Q] + r->row_len[ROWS_K] + r->row_len[ROWS_V];
    return eval_fail(err, PITH_NOMEM, "%s: no memory to record %d tokens of %zu bytes each",
                     r->path, r->cap_wanted, len * sizeof(float) * (size_t)r->info.n_layer);
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
    add_text(m, "format", FORMAT);
    add_text(m, "version", VERSION);
    add_text(m, "pith", pith_version());
    add_text(m, "model", m->name);
    add_text(m, "architecture", m->architecture);
    add_int(m, "n_layer", info->n_layer);
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
    char (*name)[32];   /* [N_ROWS * n_layer] */
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
    int32_t at = layer * N_ROWS + i;
    int32_t dim = i == ROWS_V ? info->head_dim_v : info->head_dim_k;
    snprintf(w->name[at], sizeof(w->name[at]), "layers.%d.%s", layer, row_names[i]);
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
    size_t n_row = (size_t)r->info.n_layer * N_ROWS;
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
        for (int32_t l = 0; l < r->info.n_layer; l++)
            for (int32_t i = 0; i < N_ROWS; i++)
                add_rows(&w, r, l, i, n);
        status = safetensors_write(r->path, w.tensor, w.n, w.meta.pair, w.meta.n, err);
    }
    writing_free(&w);
    return status;
}

/* ---- reading ---- */

/* A whole number of the metadata, at least 1 and at most max. */
static pith_status read_count(const char *path, const struct safetensors *st, const char *key,
                              int32_t max, int32_t *out, pith_error *err)
{
    const char *text = safetensors_meta(st, key);
    char *end = NULL;
    errno = 0;
    long long n = text != NULL ? strtoll(text, &end, 10) : 0;
    if (text == NULL)
        return eval_fail(err, PITH_FORMAT, "%s: %s is missing in the metadata", path, key);
    if (end == text || *end != '\0' || errno != 0 || n < 1 || n > max)
        return eval_fail(err, PITH_FORMAT, "%s: %s: \"%.20s\" is not a whole number in 1..%d", path,
                         key, text, max);
    *out = (int32_t)n;
    return PITH_OK;
}

#define MAX_SIZE 1048576 /* heads, and dimensions of a head: far above any model */

static pith_status read_shape(const char *path, struct eval_record *record, pith_error *err)
{
    const struct safetensors *st = &record->st;
    const char *format = safetensors_meta(st, "format"), *version = safetensors_meta(st, "version");
    const char *scale = safetensors_meta(st, "attn_scale");
    int32_t max_layer = st->n_tensor > INT32_MAX ? INT32_MAX : (int32_t)st->n_tensor;
    char *end = NULL;
    if (format == NULL || strcmp(format, FORMAT) != 0)
        return eval_fail(err, PITH_FORMAT, "%s: the metadata's format is not \"" FORMAT "\"", path);
    if (version == NULL || strcmp(version, VERSION) != 0)
        return eval_fail(err, PITH_UNSUPPORTED,
                         "%s: version \"%.20s\" of the format is not " VERSION, path,
                         version != NULL ? version : "");
    PI_TRY(read_count(path, st, "n_layer", max_layer, &record->n_layer, err));
    PI_TRY(read_count(path, st, "n_head", MAX_SIZE, &record->n_head, err));
    PI_TRY(read_count(path, st, "n_head_kv", MAX_SIZE, &record->n_head_kv, err));
    PI_TRY(read_count(path, st, "head_dim_k", MAX_SIZE, &record->dim_k, err));
    PI_TRY(read_count(path, st, "head_dim_v", MAX_SIZE, &record->dim_v, err));
    if (record->n_head % record->n_head_kv != 0)
        return eval_fail(err, PITH_FORMAT, "%s: n_head %d is no multiple of n_head_kv %d", path,
                         record->n_head, record->n_head_kv);
    record->attn_scale = scale != NULL ? strtof(scale, &end) : 0.0f;
    if (scale == NULL || end == scale || *end != '\0' || !isfinite(record->attn_scale))
        return eval_fail(err, PITH_FORMAT, "%s: attn_scale: \"%.20s\" is not a number", path,
                         scale != NULL ? scale : "");
    record->model = safetensors_meta(st, "model");
    if (record->model == NULL)
        record->model = "";
    return PITH_OK;
}

/* A list of n_token whole numbers of int32_t, each at least 0; the caller frees *out. */
static pith_status read_list(const char *path, const struct eval_record *record, const char *name,
                             int32_t **out, pith_error *err)
{
    const struct safetensor *t = safetensors_find(&record->st, name);
    if (t == NULL || t->n_dim != 1 || t->dim[0] != record->n_token)
        return eval_fail(err, PITH_FORMAT, "%s: %s is missing or no list of %d numbers", path, name,
                         record->n_token);
    *out = malloc((size_t)record->n_token * sizeof(**out));
    if (*out == NULL)
        return eval_fail(err, PITH_NOMEM, "%s: no memory for %d %s", path, record->n_token, name);
    for (int32_t i = 0; i < record->n_token; i++) {
        int64_t n;
        if (!safetensor_read_i64(t, i, 1, &n))
            return eval_fail(err, PITH_FORMAT, "%s: %s are not whole numbers", path, name);
        if (n < 0 || n > INT32_MAX)
            return eval_fail(err, PITH_FORMAT, "%s: %s[%d] is %lld, not in 0..%d", path, name, i,
                             (long long)n, INT32_MAX);
        (*out)[i] = (int32_t)n;
    }
    return PITH_OK;
}

static pith_status read_lists(const char *path, struct eval_record *record, pith_error *err)
{
    const struct safetensor *t = safetensors_find(&record->st, "positions");
    if (t == NULL || t->n_dim != 1 || t->dim[0] < 1 || t->dim[0] > INT32_MAX)
        return eval_fail(err, PITH_FORMAT, "%s: positions is missing or no list of positions",
                         path);
    record->n_token = (int32_t)t->dim[0];
    PI_TRY(read_list(path, record, "positions", &record->position, err));
    for (int32_t i = 1; i < record->n_token; i++)
        if (record->position[i] <= record->position[i - 1])
            return eval_fail(err, PITH_FORMAT, "%s: positions[%d] is %d, not above %d", path, i,
                             record->position[i], record->position[i - 1]);
    return read_list(path, record, "tokens", &record->token, err);
}

/* Array "layers.L.NAME" [n_token][n_head][dim] of floats. */
static pith_status read_rows(const char *path, const struct eval_record *record, int32_t layer,
                             int32_t i, const struct safetensor **out, pith_error *err)
{
    char name[32];
    int64_t n_head = i == ROWS_K || i == ROWS_V ? record->n_head_kv : record->n_head;
    int64_t dim = i == ROWS_V ? record->dim_v : record->dim_k;
    snprintf(name, sizeof(name), "layers.%d.%s", layer, row_names[i]);
    const struct safetensor *t = safetensors_find(&record->st, name);
    *out = t;
    if (t == NULL && i == ROWS_Q_PRE)
        return PITH_OK;
    if (t == NULL)
        return eval_fail(err, PITH_FORMAT, "%s: %s is missing", path, name);
    if (t->n_dim != 3 || t->dim[0] != record->n_token || t->dim[1] != n_head || t->dim[2] != dim)
        return eval_fail(err, PITH_FORMAT, "%s: %s: the shape is not [%d][%lld][%lld]", path, name,
                         record->n_token, (long long)n_head, (long long)dim);
    if (!safetensor_read_f32(t, 0, 0, NULL))
        return eval_fail(err, PITH_FORMAT, "%s: %s: %s is not F32, F16, BF16 or F64", path, name,
                         safetensors_dtype_name(t->dtype));
    return PITH_OK;
}

static pith_status read_record(const char *path, struct eval_record *record, pith_error *err)
{
    PI_TRY(read_shape(path, record, err));
    PI_TRY(read_lists(path, record, err));
    record->layer = calloc((size_t)record->n_layer, sizeof(*record->layer));
    if (record->layer == NULL)
        return eval_fail(err, PITH_NOMEM, "%s: no memory for %d layers", path, record->n_layer);
    for (int32_t l = 0; l < record->n_layer; l++) {
        struct eval_record_layer *layer = &record->layer[l];
        PI_TRY(read_rows(path, record, l, ROWS_Q_PRE, &layer->q_pre, err));
        PI_TRY(read_rows(path, record, l, ROWS_Q, &layer->q, err));
        PI_TRY(read_rows(path, record, l, ROWS_K, &layer->k, err));
        PI_TRY(read_rows(path, record, l, ROWS_V, &layer->v, err));
    }
    return PITH_OK;
}

pith_status eval_record_parse(const char *path, const uint8_t *data, size_t size,
                              struct eval_record *out, pith_error *err)
{
    *out = (struct eval_record){0};
    pith_status status = safetensors_parse(path, data, size, &out->st, err);
    if (status == PITH_OK)
        status = read_record(path, out, err);
    if (status != PITH_OK)
        eval_record_close(out);
    return status;
}

pith_status eval_record_open(const char *path, struct eval_record *out, pith_error *err)
{
    struct stat st;
    *out = (struct eval_record){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return eval_fail(err, PITH_IO, "%s: cannot open: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return eval_fail(err, PITH_IO, "%s: not a regular file", path);
    }
    if (st.st_size == 0) {
        close(fd);
        return eval_fail(err, PITH_FORMAT, "%s: the file is empty", path);
    }
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    int why = errno;
    close(fd);
    if (map == MAP_FAILED)
        return eval_fail(err, PITH_IO, "%s: cannot map %lld bytes: %s", path, (long long)st.st_size,
                         strerror(why));
    pith_status status = eval_record_parse(path, map, (size_t)st.st_size, out, err);
    if (status != PITH_OK) {
        munmap(map, (size_t)st.st_size);
        return status;
    }
    out->map = map;
    out->map_size = (size_t)st.st_size;
    return PITH_OK;
}

void eval_record_close(struct eval_record *record)
{
    safetensors_free(&record->st);
    free(record->position);
    free(record->token);
    free(record->layer);
    if (record->map != NULL)
        munmap(record->map, record->map_size);
    *record = (struct eval_record){0};
}
