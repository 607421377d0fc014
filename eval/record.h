/*
 * record.h - tensors of a run as a file, and back: docs/record.md describes its arrays. The
 * recorder collects what the tap of an engine shows; the reader checks a file and gives it a shape.
 */
#ifndef PI_EVAL_RECORD_H
#define PI_EVAL_RECORD_H

#include "file/safetensors.h"

/* ---- writing ---- */

struct eval_recorder;

/* Records every token that is evaluated into seq, which must be empty, by the engine's tap, until
   the recorder is freed; other sequences are left out. path is tried first, so that a run need not
   end in "no such folder". seq is borrowed. INVALID, IO, NOMEM. */
pith_status eval_recorder_create(pith_seq *seq, const char *path, struct eval_recorder **out,
                                 pith_error *err);
void eval_recorder_free(struct eval_recorder *r); /* takes the tap away; NULL is ignored */

/* NOMEM with a sentence once memory lacked for a token; the evaluation was then CANCELLED. */
pith_status eval_recorder_status(const struct eval_recorder *r, pith_error *err);

/* Writes the tokens that the sequence holds now. INVALID (no token), IO, NOMEM. */
pith_status eval_recorder_write(const struct eval_recorder *r, pith_error *err);

/* ---- reading ---- */

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
