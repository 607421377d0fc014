/*
 * kept.c - reads a text through a policy and writes down what every lane holds on the way.
 *
 * Rounds depend on the sequence alone, not on how many tokens are evaluated at once: looking more
 * often shows more and changes nothing. Policies differ that treat a token which is evaluated
 * alone, as generated ones are, unlike a prompt's tokens (overwrite=on, a sum over steps alone).
 * They see a text as generated where it is read a token at a time. Otherwise they see turns of a
 * prompt: no part of several is then of one token.
 */
#include "kept.h"
#include "pith/inspect.h"

#include <stdlib.h>

#define TOKEN_BYTES_MAX 64 /* of a token on average, in any text that has words */

struct kept_run {
    const struct eval_kept_params *params;
    struct eval_run *run;
    pith_seq *seq;
    pith_model_info info;
    int32_t *ids; /* [n_id] */
    int32_t n_id;
    int32_t *positions; /* [n_id] */
    struct eval_text text;
    json_t *rows;
    struct eval_answer cost;
};

void eval_kept_ranges(struct eval_text *t, const int32_t *positions, int32_t n)
{
    eval_text_add(t, ""); /* a text without a range is "", not NULL */
    for (int32_t i = 0, j; i < n; i = j + 1) {
        j = i;
        while (j + 1 < n && positions[j + 1] == positions[j] + 1)
            j++;
        eval_text_printf(t, i > 0 ? ",%d" : "%d", (int)positions[i]);
        if (j > i)
            eval_text_printf(t, "-%d", (int)positions[j]);
    }
}

static pith_status add_row(struct kept_run *r, int32_t layer, int32_t head, pith_error *err)
{
    pith_lane_info lane;
    pith_status status = pith_seq_lane(r->seq, layer, head, &lane, r->positions, r->n_id);
    if (status != PITH_OK)
        return eval_fail(err, status, "kept: layer %d, head %d: %s", (int)layer, (int)head,
                         pith_status_text(status));
    /* Slots of a lane that was overwritten are in no order. */
    qsort(r->positions, (size_t)lane.n_entry, sizeof(*r->positions), eval_by_size);
    eval_text_clear(&r->text);
    eval_kept_ranges(&r->text, r->positions, lane.n_entry);
    json_t *row = NULL;
    if (!r->text.failed)
        row = json_pack("{s:i, s:i, s:i, s:i, s:s}", "tokens", (int)pith_seq_length(r->seq),
                        "layer", (int)layer, "head", (int)head, "entries", (int)lane.n_entry,
                        "kept", r->text.data);
    if (row == NULL || json_array_append_new(r->rows, row) != 0)
        return eval_fail(err, PITH_NOMEM, "kept: no memory for results");
    return PITH_OK;
}

static pith_status record(struct kept_run *r, pith_error *err)
{
    pith_status status = PITH_OK;
    for (int32_t l = 0; l < r->info.n_layer_kv && status == PITH_OK; l++)
        for (int32_t h = 0; h < r->info.n_head_kv && status == PITH_OK; h++)
            status = add_row(r, l, h, err);
    return status;
}

/* Tokens that are evaluated next, of n that are left. One that would be left over comes along. */
static int32_t portion(int32_t n, int32_t every)
{
    return n <= every || (every > 1 && n == every + 1) ? n : every;
}

static pith_status read_text(struct kept_run *r, pith_error *err)
{
    pith_kv_stats kv;
    pith_status status = PITH_OK;
    for (int32_t at = 0; at < r->n_id && status == PITH_OK;) {
        int32_t n = portion(r->n_id - at, r->params->every);
        double start = eval_clock_s();
        status = pith_seq_eval(r->seq, r->ids + at, n, err);
        r->cost.prompt_s += eval_clock_s() - start;
        at += n;
        if (status == PITH_OK)
            status = record(r, err);
        if (status == PITH_OK)
            status = eval_progress(r->run, (double)at / r->n_id, err, "%d of %d tokens", (int)at,
                                   (int)r->n_id);
    }
    pith_engine_kv_stats(eval_run_engine(r->run), &kv);
    r->cost.n_prompt = pith_seq_length(r->seq);
    eval_account(r->seq, &r->cost);
    r->cost.kv_peak_bytes = kv.peak_bytes;
    eval_run_add(r->run, &r->cost);
    return status;
}

static pith_status prepare(struct kept_run *r, const struct eval_setup *setup, pith_error *err)
{
    const struct eval_kept_params *p = r->params;
    if (p->n_token < 1 || p->every < 1)
        return eval_fail(err, PITH_INVALID, "kept: n_ctx = %d and every = %d must be positive",
                         (int)p->n_token, (int)p->every);
    /* The rest of a long text need not be tokenized. */
    size_t most = (size_t)p->n_token * TOKEN_BYTES_MAX;
    pith_status status = eval_check_recall(setup, "kept", err);
    if (status == PITH_OK)
        status = eval_tokenize(setup->model, p->text, p->text_len < most ? p->text_len : most,
                               PITH_TOKENIZE_BOS, &r->ids, &r->n_id, err);
    if (status != PITH_OK)
        return status;
    if (r->n_id > p->n_token)
        r->n_id = p->n_token;
    if (p->text_len == 0) /* but for the token that begins every text */
        return eval_fail(err, PITH_INVALID, "kept: the text has no token");
    pith_model_get_info(setup->model, &r->info);
    r->positions = calloc((size_t)r->n_id, sizeof(*r->positions));
    r->rows = json_array();
    if (r->positions == NULL || r->rows == NULL)
        return eval_fail(err, PITH_NOMEM, "kept: no memory for %d positions", (int)r->n_id);
    status = eval_run_create(setup, r->n_id, &r->run, err);
    if (status == PITH_OK)
        status = pith_seq_create(eval_run_engine(r->run), &r->seq, err);
    return status;
}

pith_status eval_kept(const struct eval_setup *setup, const struct eval_kept_params *params,
                      json_t **result, pith_error *err)
{
    struct kept_run r = {.params = params};
    json_t *out = NULL;
    pith_status status = prepare(&r, setup, err);
    if (status == PITH_OK)
        status = read_text(&r, err);
    if (status == PITH_OK) {
        json_t *settings =
            json_pack("{s:i, s:i, s:I}", "n_ctx", (int)r.n_id, "every", (int)params->every,
                      "text_bytes", (json_int_t)params->text_len);
        out = eval_result(r.run, "kept", r.n_id, settings, r.rows);
        r.rows = NULL;
        status = out != NULL ? PITH_OK : eval_fail(err, PITH_NOMEM, "kept: no memory for results");
    }
    pith_seq_free(r.seq);
    eval_run_free(r.run);
    eval_text_free(&r.text);
    json_decref(r.rows);
    free(r.positions);
    free(r.ids);
    if (status == PITH_OK)
        *result = out;
    return status;
}
