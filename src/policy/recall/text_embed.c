/*
 * text_embed.c - an embedding model and an engine over it, with room for one text. The vector
 * itself is engine/embed.c's.
 */
#include "policy/recall/text_embed.h"

#include "base/mem.h"
#include "model/model.h"
#include "policy/identity.h"

struct text_embed {
    pith_model *model;   /* owned */
    pith_engine *engine; /* owned */
    int32_t most;        /* tokens of a text */
    uint64_t maker;
};

static pith_status open_all(struct text_embed *e, const char *path, int32_t n_thread,
                            pith_error *err)
{
    pith_model_params model_params;
    pith_engine_params params;
    pith_model_params_default(&model_params);
    model_params.n_thread = n_thread;
    PI_TRY(pith_model_load(path, &model_params, &e->model, err));
    e->most = (int32_t)pi_min(TEXT_EMBED_TOKENS, e->model->hp.n_ctx_train);
    e->maker = policy_fingerprint(e->model);
    pith_engine_params_default(&params);
    params.n_thread = n_thread;
    params.kv_tokens = e->most;
    params.chunk = (int32_t)pi_min(params.chunk, e->most);
    PI_TRY(pith_engine_create(e->model, &params, &e->engine, err));
    /* Whether it has a tokenizer, and gives vectors. */
    float *vector = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)text_embed_dim(e), sizeof(*vector));
    if (vector == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a vector");
    pith_status status = text_embed_text(e, "a", 1, vector, err);
    pi_mem_free(vector);
    return status;
}

pith_status text_embed_open(const char *path, int32_t n_thread, struct text_embed **out,
                            pith_error *err)
{
    struct text_embed *e = pi_mem_alloc(PI_MEM_OTHER, sizeof(*e));
    if (e == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for an embedding model");
    pith_status status = open_all(e, path, n_thread, err);
    if (status != PITH_OK) {
        text_embed_close(e);
        return status;
    }
    *out = e;
    return PITH_OK;
}

void text_embed_close(struct text_embed *e)
{
    if (e == NULL)
        return;
    pith_engine_free(e->engine);
    pith_model_free(e->model);
    pi_mem_free(e);
}

int32_t text_embed_dim(const struct text_embed *e)
{
    return e->model->hp.n_embd;
}
uint64_t text_embed_maker(const struct text_embed *e)
{
    return e->maker;
}

pith_status text_embed_text(struct text_embed *e, const char *text, size_t len, float *out,
                            pith_error *err)
{
    int32_t n = 0;
    pith_status status = pith_tokenize(e->model, text, len, PITH_TOKENIZE_BOS, NULL, 0, &n, err);
    if (status != PITH_OK && status != PITH_RANGE)
        return status;
    memset(out, 0, (size_t)text_embed_dim(e) * sizeof(*out));
    if (n == 0)
        return PITH_OK;
    int32_t *ids = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)n, sizeof(*ids));
    if (ids == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for %d tokens", n);
    status = pith_tokenize(e->model, text, len, PITH_TOKENIZE_BOS, ids, n, &n, err);
    if (status == PITH_OK && n > e->most) {
        /* The pooled token of many models is an end that the tokenizer adds. */
        ids[e->most - 1] = ids[n - 1];
        n = e->most;
    }
    if (status == PITH_OK)
        status = pith_embed(e->engine, ids, n, out, err);
    pi_mem_free(ids);
    return status;
}
