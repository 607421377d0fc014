/*
 * record.h - the tensors of a run, read from a file that recorder.c wrote: docs/record.md describes
 * its arrays. The reader checks a file and gives it a shape.
 */
#ifndef PI_EVAL_RECORD_H
#define PI_EVAL_RECORD_H

#include "file/safetensors.h"

#define EVAL_RECORD_FORMAT "pith.record"
#define EVAL_RECORD_VERSION "1"

/* The arrays of a layer, and how their names end. */
enum { EVAL_ROWS_Q_PRE, EVAL_ROWS_Q, EVAL_ROWS_K, EVAL_ROWS_V, EVAL_N_ROWS };
extern const char *const eval_record_rows[EVAL_N_ROWS];

struct eval_record_layer {
    const struct safetensor *q_pre; /* [n_token][n_head][dim_k], NULL when the file has none */
    const struct safetensor *q;     /* [n_token][n_head][dim_k] */
    const struct safetensor *k;     /* [n_token][n_head_kv][dim_k] */
    const struct safetensor *v;     /* [n_token][n_head_kv][dim_v] */
};

/* A checked file: every shape agrees, rows are of floats, positions ascend. */
struct eval_record {
    struct safetensors st; /* owned */
    void *map;             /* [map_size] the file; owned; NULL for eval_record_parse */
    size_t map_size;
    const char *model; /* "" when the file does not say */
    int32_t n_token;   /* at least 1 */
    int32_t n_layer;
    int32_t n_head;
    int32_t n_head_kv; /* divides n_head */
    int32_t dim_k;
    int32_t dim_v;
    float attn_scale;
    int32_t *position;               /* [n_token], owned */
    int32_t *token;                  /* [n_token], owned */
    struct eval_record_layer *layer; /* [n_layer], owned */
};

/* Reads path. IO, FORMAT, UNSUPPORTED (a later version), NOMEM. */
pith_status eval_record_open(const char *path, struct eval_record *out, pith_error *err);
/* The same of bytes in memory, borrowed until eval_record_close; path stands in messages. */
pith_status eval_record_parse(const char *path, const uint8_t *data, size_t size,
                              struct eval_record *out, pith_error *err);
void eval_record_close(struct eval_record *record); /* an empty one, too */

#endif
