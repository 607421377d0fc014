/*
 * status.h - assertions on the status of a call, and models, engines and sequences for tests that
 * expect to get one.
 */
#ifndef PI_TEST_STATUS_H
#define PI_TEST_STATUS_H

#include <string.h>

#include "pith/pith.h"
#include "testing.h"

static inline void check(pith_status status, const pith_error *why)
{
    if (status != PITH_OK)
        fail_msg("%s: %s", pith_status_name(status), why->message);
}

/* A failure of this kind, whose sentence has the word. */
static inline void expect(pith_status status, const pith_error *why, pith_status wanted,
                          const char *word)
{
    if (status != wanted || why->status != wanted || strstr(why->message, word) == NULL)
        fail_msg("%s (%s) instead of %s with \"%s\"", pith_status_name(status), why->message,
                 pith_status_name(wanted), word);
}

static inline pith_model *model_at(const char *path)
{
    pith_model *model = NULL;
    check(pith_model_load(path, NULL, &model, &err), &err);
    return model;
}

static inline pith_seq *seq_make(pith_engine *e)
{
    pith_seq *seq = NULL;
    check(pith_seq_create(e, &seq, &err), &err);
    return seq;
}

/* An engine with these options. Chunk 0 and types NULL are the defaults. */
static inline pith_engine *engine_with(const pith_model *model, pith_engine_params params)
{
    pith_engine_params defaults;
    pith_engine *e = NULL;
    pith_engine_params_default(&defaults);
    params.chunk = params.chunk != 0 ? params.chunk : defaults.chunk;
    params.type_k = params.type_k != NULL ? params.type_k : defaults.type_k;
    params.type_v = params.type_v != NULL ? params.type_v : defaults.type_v;
    if (params.n_gpu_layers == 0)
        params.n_gpu_layers = test_gpu_layers();
    check(pith_engine_create(model, &params, &e, &err), &err);
    return e;
}

#endif
