/*
 * record.c - queries, keys and values of a run, as recorder.c wrote them: read back and checked.
 * docs/record.md is the contract. It must not know what the file is used for.
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

const char *const eval_record_rows[EVAL_N_ROWS] = {"q_pre", "q", "k", "v"};

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
    if (format == NULL || strcmp(format, EVAL_RECORD_FORMAT) != 0)
        return eval_fail(err, PITH_FORMAT,
                         "%s: the metadata's format is not \"" EVAL_RECORD_FORMAT "\"", path);
    if (version == NULL || strcmp(version, EVAL_RECORD_VERSION) != 0)
        return eval_fail(err, PITH_UNSUPPORTED,
                         "%s: version \"%.20s\" of the format is not " EVAL_RECORD_VERSION, path,
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
    int64_t n_head = i == EVAL_ROWS_K || i == EVAL_ROWS_V ? record->n_head_kv : record->n_head;
    int64_t dim = i == EVAL_ROWS_V ? record->dim_v : record->dim_k;
    snprintf(name, sizeof(name), "layers.%d.%s", layer, eval_record_rows[i]);
    const struct safetensor *t = safetensors_find(&record->st, name);
    *out = t;
    if (t == NULL && i == EVAL_ROWS_Q_PRE)
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
        PI_TRY(read_rows(path, record, l, EVAL_ROWS_Q_PRE, &layer->q_pre, err));
        PI_TRY(read_rows(path, record, l, EVAL_ROWS_Q, &layer->q, err));
        PI_TRY(read_rows(path, record, l, EVAL_ROWS_K, &layer->k, err));
        PI_TRY(read_rows(path, record, l, EVAL_ROWS_V, &layer->v, err));
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
