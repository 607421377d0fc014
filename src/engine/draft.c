/*
 * draft.c - where a sequence's drafts come from, and which engines allow any. Of the two that
 * draft, the text itself and a smaller model, the one goes first that seems to gain more
 * (draft_gauge.h).
 *
 * Invariant: a draft that fails is no draft. Nothing here changes a sequence but the places behind
 * the end of its list of tokens.
 */
#include "engine/draft.h"

#include "base/mem.h"
#include "engine/over_ranks.h"

#define MODEL_FIRST 1.15 /* what lookup gains is known less well than what the model does */
#define DRAFT_DEFAULT 15 /* with the token before them one batch of rows of logits */

void pith_draft_params_default(pith_draft_params *out)
{
    *out = (pith_draft_params){.lookup = true, .n_max = DRAFT_DEFAULT};
}

/* ---- which engines ---- */

static pith_status check_model(const struct pith_engine *e, const struct pith_engine *draft,
                               pith_error *err)
{
    if (draft == e)
        return pi_fail(err, PITH_INVALID, "draft: engine: an engine cannot draft for itself");
    return pi_vocab_check_same(e->model->vocab, draft->model->vocab, err);
}

pith_status pith_draft_check(const pith_engine *e, const pith_draft_params *params, pith_error *err)
{
    if (e == NULL)
        return pi_fail(err, PITH_INVALID, "pith_draft_check: engine must not be NULL");
    if (params != NULL && (params->n_max < 1 || params->n_max > DRAFT_MOST))
        return pi_fail(err, PITH_INVALID, "draft: n_max: %d is not in 1..%d", params->n_max,
                       DRAFT_MOST);
    PI_TRY(engine_traits_check(&e->traits, PITH_USE_DRAFT, err));
    if (kv_cache_geometry(e->kv)->state_bytes > 0)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "draft: the model's recurrent layers remember every token that they saw, so "
                       "that there is no way back from a draft");
    if (params != NULL && params->engine != NULL)
        PI_TRY(check_model(e, params->engine, err));
    return PITH_OK;
}

/* ---- a sequence's ---- */

static void stop(struct pith_seq *seq)
{
    struct pi_draft *d = seq->draft;
    if (d == NULL)
        return;
    draft_lookup_free(&d->lookup);
    pith_seq_free(d->model);
    pi_mem_free(d);
    seq->draft = NULL;
}

static int64_t bytes_of(const struct pith_seq *seq)
{
    const struct pi_draft *d = seq->draft;
    return d == NULL ? 0 : (int64_t)(sizeof(*d) + draft_lookup_bytes(&d->lookup));
}

const struct seq_hooks pi_draft_hooks = {
    .name = "draft",
    .stop = stop,
    .draft_bytes = bytes_of,
};

pith_status pi_seq_start_draft(struct pith_seq *seq, const pith_draft_params *params,
                               pith_error *err)
{
    PI_TRY(pith_draft_check(seq->engine, params, err));
    struct pi_draft *d = seq->draft;
    if (d != NULL && d->params.engine != params->engine) {
        stop(seq);
        d = NULL;
    }
    if (d == NULL) {
        d = pi_mem_alloc(PI_MEM_OTHER, sizeof(*d));
        if (d == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for drafts");
        d->lookup.source = -1;
        draft_gauge_start(&d->gauge);
        seq->draft = d;
    }
    d->params = *params;
    d->model_failed = false;
    d->n_draft = d->n_accepted = 0;
    return PITH_OK;
}

void pi_seq_rest_draft(struct pith_seq *seq)
{
    if (seq->draft == NULL)
        return;
    pith_seq_free(seq->draft->model);
    seq->draft->model = NULL;
}

/* ---- a draft ---- */

/* Tokens that may be drafted before a keep round. One behind the last would be too late, too:
   the round would come whether the draft comes true or not. */
static int32_t most_of(const struct pith_seq *seq, int32_t most)
{
    const struct pith_engine *e = seq->engine;
    most = (int32_t)pi_min(most, pi_min(seq->draft->params.n_max, e->chunk - 1));
    return most < 1 ? most : pi_seq_until_round(seq, most + 2) - 2;
}

/* Room for a row of logits, and in the list for what is drafted. */
static bool has_room(struct pith_seq *seq, int32_t most)
{
    if (seq->logits == NULL)
        seq->logits = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)seq->engine->model->hp.n_vocab,
                                     sizeof(*seq->logits));
    return seq->logits != NULL && pi_seq_grow(seq, most + 1, NULL) == PITH_OK;
}

/* The time of a token of the model's drafts, as a part of a pass of one row. Before any draft it
   follows from the bytes that both models read for a token. */
static double model_each(const struct pi_draft *d, const struct pith_seq *seq,
                         const struct draft_cost *cost)
{
    pith_model_info own, other;
    if (d->gauge.each_s > 0.0 && cost->one_s > 0.0)
        return d->gauge.each_s / cost->one_s;
    pith_model_get_info(seq->engine->model, &own);
    pith_model_get_info(d->params.engine->model, &other);
    return own.token_bytes > 0 ? (double)other.token_bytes / (double)own.token_bytes : 1.0;
}

/* Time that is spent on a draft could be spent as before, with `gain`. The model's next token is as
   sure as its tokens were so far. */
static struct draft_limits limits_of(const struct pi_draft *d, const struct draft_cost *cost,
                                     double each, int32_t n_row, double gain)
{
    double row = (draft_cost_rows(cost, n_row + 4) - draft_cost_rows(cost, n_row)) / 4;
    double chance = draft_gauge_chance(&d->gauge, DRAFT_KIND_MODEL);
    return (struct draft_limits){gain * row, gain * (row + each) / chance};
}

static int32_t find_by_model(struct pi_draft *d, const struct pith_seq *seq, int32_t n_token,
                             int32_t most, double each_s, const struct draft_limits *limits,
                             int32_t *out)
{
    double seconds = 0.0;
    if (d->model == NULL && pith_seq_create(d->params.engine, &d->model, NULL) != PITH_OK) {
        d->model_failed = true;
        return 0;
    }
    int32_t n = draft_model_find(d->model, seq->tokens, n_token, seq->engine->model->hp.n_vocab,
                                 most, limits, out, &seconds);
    d->model_failed = n < 0;
    /* Also a token that was thought of and not drafted takes its time. */
    seconds = pi_over_ranks_seconds(seconds);
    if (n >= 0 && seconds > 0.0)
        draft_gauge_note_each(&d->gauge, n > 0 ? n : 1, seconds, each_s);
    return n > 0 ? n : 0;
}

int32_t pi_draft_find(struct pith_seq *seq, const struct draft_cost *cost, int32_t next,
                      int32_t n_row, int32_t most, int32_t *out)
{
    struct pi_draft *d = seq->draft;
    double gain = 0.0, by_model = 0.0, each = 0.0;
    int32_t n = 0, n_model = 0, n_token = seq->n_token + 1;
    int kind = 0;
    d->n = d->n_came = 0;
    most = most_of(seq, most);
    draft_gauge_note(&d->gauge, 0, 0, 0);
    if (most < 1 || (cost->one_s <= 0.0 && !d->params.always) || !has_room(seq, most))
        return 0;
    seq->tokens[seq->n_token] = next;
    if (d->params.lookup && draft_lookup_set(&d->lookup, seq->tokens, n_token) == PITH_OK)
        n = draft_lookup_find(&d->lookup, most, out, &kind);
    if (n > 0 && !d->params.always)
        n = draft_gauge_plan(&d->gauge, cost, kind, 0.0, n_row, n, &gain);
    if (d->params.engine != NULL && !d->model_failed && !(d->params.always && n > 0)) {
        each = model_each(d, seq, cost);
        n_model = draft_gauge_plan(&d->gauge, cost, DRAFT_KIND_MODEL, each, n_row, most, &by_model);
        n_model = d->params.always ? most : n_model;
    }
    if (n_model > 0 && MODEL_FIRST * by_model >= gain) {
        struct draft_limits limits = {0};
        if (!d->params.always)
            limits = limits_of(d, cost, each, n_row, by_model);
        kind = DRAFT_KIND_MODEL;
        n = find_by_model(d, seq, n_token, n_model, each * cost->one_s, &limits, out);
    }
    d->kind = kind;
    d->n = n;
    return n;
}
