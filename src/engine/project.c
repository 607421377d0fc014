/*
 * project.c - evaluates a text for Loki's bases: which tokens, in which sequences. The sums and the
 * eigenvectors are policy/read/loki_fit.c's. Invariant: the engine's tap is unset and its sequences
 * are gone afterwards, however it ends.
 */
#include "engine/engine.h"
#include "policy/read/loki_fit.h"

#define EVALUATING 0.9 /* the share of the whole that reading the tokens is taken for */

void pith_projection_params_default(pith_projection_params *out)
{
    *out = (pith_projection_params){.keys = PITH_KEYS_ROTATED, .text = ""};
}

/* A fit that runs. */
struct run {
    pith_engine *engine;
    const pith_projection_params *params;
    struct loki_fit *fit;
    const int32_t *tokens; /* [n_token] the text */
    int32_t n_token;
    int32_t piece; /* most tokens of a piece */
    int32_t begin; /* the running piece is tokens [begin, end) of the text */
    int32_t end;
};

static bool show(void *user, const pith_tap_rows *rows)
{
    struct run *r = user;
    loki_fit_add(r->fit, rows);
    return true;
}

static bool report(const struct run *r, double fraction)
{
    const pith_projection_params *p = r->params;
    return p->progress == NULL || p->progress(p->progress_user, fraction);
}

static bool go_on(void *user, double fraction)
{
    const struct run *r = user;
    double done = (double)r->begin + fraction * (double)(r->end - r->begin);
    return report(r, EVALUATING * done / (double)r->n_token);
}

static bool go_on_searching(void *user, double fraction)
{
    return report(user, EVALUATING + (1.0 - EVALUATING) * fraction);
}

static pith_status read_piece(struct run *r, pith_error *err)
{
    pith_seq *seq = NULL;
    PI_TRY(pith_seq_create(r->engine, &seq, err));
    pith_batch_item item = {.seq = seq,
                            .tokens = r->tokens + r->begin,
                            .n_token = r->end - r->begin,
                            .logits = PITH_LOGITS_NONE};
    pith_status status = pith_batch_eval(r->engine, &item, 1, go_on, r, err);
    pith_seq_free(seq);
    return status;
}

static pith_status read_all(struct run *r, pith_error *err)
{
    for (r->begin = 0; r->begin < r->n_token; r->begin = r->end) {
        r->end = (int32_t)pi_min(r->n_token, (int64_t)r->begin + r->piece);
        PI_TRY(read_piece(r, err));
    }
    return PITH_OK;
}

static pith_status fit(struct run *r, struct pith_projection **out, pith_error *err)
{
    pith_engine *e = r->engine;
    PI_TRY(loki_fit_create(e->model, r->params->keys, e->n_thread, &r->fit, err));
    PI_TRY(pith_engine_set_tap(e, show, r, err));
    pith_status status = read_all(r, err);
    pith_engine_set_tap(e, NULL, NULL, NULL);
    PI_TRY(status);
    return loki_fit_finish(r->fit, r->params->text, go_on_searching, r, out, err);
}

static pith_status check_params(const pith_projection_params *p, pith_error *err)
{
    if (p->keys != PITH_KEYS_ROTATED && p->keys != PITH_KEYS_PLAIN)
        return pi_fail(err, PITH_INVALID, "keys: %d is not in %d..%d", (int)p->keys,
                       PITH_KEYS_ROTATED, PITH_KEYS_PLAIN);
    if (p->n_ctx < 0)
        return pi_fail(err, PITH_INVALID, "n_ctx: %d is below 0", p->n_ctx);
    if (p->text != NULL && strlen(p->text) > PROJECTION_MAX_TEXT)
        return pi_fail(err, PITH_INVALID, "text: %zu bytes are more than %d", strlen(p->text),
                       PROJECTION_MAX_TEXT);
    return PITH_OK;
}

pith_status pith_projection_fit(pith_engine *engine, const int32_t *tokens, int32_t n_token,
                                const pith_projection_params *params, pith_projection **out,
                                pith_error *err)
{
    pith_projection_params defaults;
    pith_projection_params_default(&defaults);
    const pith_projection_params *p = params != NULL ? params : &defaults;
    if (engine == NULL || tokens == NULL || out == NULL)
        return pi_fail(err, PITH_INVALID,
                       "pith_projection_fit: engine, tokens and out must not be NULL");
    if (engine->traits.hides != NULL)
        return pi_fail(err, PITH_INVALID,
                       "an engine with a %s policy does not show what full attention sees",
                       engine->traits.hides);
    if (n_token < 2)
        return pi_fail(err, PITH_INVALID, "n_token: keys of %d tokens have no covariance", n_token);
    PI_TRY(check_params(p, err));
    struct run r = {.engine = engine,
                    .params = p,
                    .tokens = tokens,
                    .n_token = n_token,
                    .piece = p->n_ctx > 0 ? p->n_ctx : engine->model->hp.n_ctx_train};
    pith_status status = fit(&r, out, err);
    loki_fit_free(r.fit);
    return status;
}
