/*
 * text_embed.c - an embedding model and an engine over it, with room for one text, as recall asks
 * for it. The vector itself is embed.c's.
 */
#include "engine/text_embed.h"

#include "base/mem.h"
#include "model/model.h"
#include "policy/identity.h"

struct embedder {
    struct text_embed face; /* first: what recall holds points to it */
    pith_model *model;      /* owned */
    pith_engine *engine;    /* owned */
    int32_t most;           /* tokens of a text */
};

static void close_all(struct text_embed *face)
{
    struct embedder *e = (struct embedder *)face;
    pith_engine_free(e->engine);
    pith_model_free(e->model);
    pi_mem_free(e);
}

static pith_status embed_ids(struct embedder *e, int32_t *ids, int32_t n, float *out,
                             pith_error *err)
{
    if (n > e->most) {
        /* The pooled token of many models is an end that the tokenizer adds. */
        ids[e->most - 1] = ids[n - 1];
        n = e->most;
    }
    return pith_embed(e->engine, ids, n, out, err);
}

static pith_status embed_text(struct text_embed *face, const char *text, size_t len, float *out,
                              pith_error *err)
{
    struct embedder *e = (struct embedder *)face;
    int32_t n = 0;
    pith_status status = pith_tokenize(e->model, text, len, PITH_TOKENIZE_BOS, NULL, 0, &n, err);
    if (status != PITH_OK && status != PITH_RANGE)
        return status;
    memset(out, 0, (size_t)face->dim * sizeof(*out));
    if (n == 0)
        return PITH_OK;
    int32_t *ids = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)n, sizeof(*ids));
    if (ids == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for %d tokens", n);
    status = pith_tokenize(e->model, text, len, PITH_TOKENIZE_BOS, ids, n, &n, err);
    if (status == PITH_OK)
        status = embed_ids(e, ids, n, out, err);
    pi_mem_free(ids);
    return status;
}

static pith_status open_all(struct embedder *e, const char *path, int32_t n_thread, pith_error *err)
{
    pith_model_params model_params;
    pith_engine_params params;
    pith_model_params_default(&model_params);
    model_params.n_thread = n_thread;
    PI_TRY(pith_model_load(path, &model_params, &e->model, err));
    e->most = (int32_t)pi_min(PI_TEXT_EMBED_TOKENS, e->model->hp.n_ctx_train);
    e->face.dim = e->model->hp.n_embd;
    e->face.maker = pi_model_fingerprint(e->model);
    pith_engine_params_default(&params);
    params.n_thread = n_thread;
    params.kv_tokens = e->most;
    params.chunk = (int32_t)pi_min(params.chunk, e->most);
    PI_TRY(pith_engine_create(e->model, &params, &e->engine, err));
    /* Whether it has a tokenizer, and gives vectors. */
    float *vector = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)e->face.dim, sizeof(*vector));
    if (vector == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a vector");
    pith_status status = embed_text(&e->face, "a", 1, vector, err);
    pi_mem_free(vector);
    return status;
}

pith_status pi_text_embed_open(const char *path, int32_t n_thread, struct text_embed **out,
                               pith_error *err)
{
    struct embedder *e = pi_mem_alloc(PI_MEM_OTHER, sizeof(*e));
    if (e == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for an embedding model");
    e->face = (struct text_embed){.text = embed_text, .close = close_all};
    pith_status status = open_all(e, path, n_thread, err);
    if (status != PITH_OK) {
        close_all(&e->face);
        return status;
    }
    *out = &e->face;
    return PITH_OK;
}
