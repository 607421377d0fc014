/*
 * output.c - from logits to text. It owns the sampler, the stop strings' stream and the bytes of
 * one token. Of a sequence it knows the row of logits behind it, or the best tokens of that
 * (row.h).
 *
 * Invariant: text is handed out once, in order. It never has a byte that a later token could make
 * part of a stop string or of another character.
 */
#include "engine/output.h"

#include "base/mem.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "pith/inspect.h"

#define PIECE_CAP 256 /* bytes of one token; grows for the rare longer one */

static pith_status grow_piece(struct pi_output *out, size_t cap, pith_error *err)
{
    char *piece = pi_mem_grow(PI_MEM_OTHER, out->piece, cap, 1);
    if (piece != NULL)
        out->piece = piece;
    char *chars = pi_mem_grow(PI_MEM_OTHER, out->chars, cap + 4, 3);
    if (chars != NULL)
        out->chars = chars;
    if (piece == NULL || chars == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a token of %zu bytes", cap);
    out->piece_cap = cap;
    return PITH_OK;
}

/* The control token whose name a stop string is: it is not printed, and so no text would show it.
   -1: none. */
static int32_t hidden_token(const pith_model *model, const char *name, size_t name_len)
{
    int32_t id, n;
    char byte[1];
    size_t len = 0;
    if (pith_tokenize(model, name, name_len, PITH_TOKENIZE_SPECIAL, &id, 1, &n, NULL) != PITH_OK ||
        n != 1 || pith_token_bytes(model, id, false, byte, 0, &len) != PITH_OK || len > 0)
        return -1;
    return id;
}

static pith_status find_stop_tokens(struct pi_output *out, pith_error *err)
{
    int32_t n = out->stop.n_string;
    if (n == 0)
        return PITH_OK;
    out->stop_id = pi_mem_alloc(PI_MEM_OTHER, (size_t)n * sizeof(*out->stop_id));
    if (out->stop_id == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for %d stop strings", n);
    for (int32_t i = 0; i < n; i++)
        out->stop_id[i] =
            hidden_token(out->model, out->stop.strings[i], pi_stop_len(&out->stop, i));
    return PITH_OK;
}

static bool is_stop_token(const struct pi_output *out, int32_t id)
{
    for (int32_t i = 0; out->stop_id != NULL && i < out->stop.n_string; i++)
        if (out->stop_id[i] == id)
            return true;
    return false;
}

pith_status pi_output_init(struct pi_output *out, const pith_model *model,
                           const pith_generate_params *params, uint64_t seed, bool wants_text,
                           pith_error *err)
{
    pith_model_info info;
    pith_model_get_info(model, &info);
    *out = (struct pi_output){.model = model, .params = params, .wants_text = wants_text};
    pith_sample_params sample = params->sample;
    sample.seed += seed;
    PI_TRY(pi_sampler_create(&sample, info.n_vocab, &out->sampler, err));
    PI_TRY(pi_stop_init(&out->stop, params->stop, params->stop_len, params->n_stop, err));
    PI_TRY(find_stop_tokens(out, err));
    return grow_piece(out, PIECE_CAP, err);
}

void pi_output_free(struct pi_output *out)
{
    pi_mem_free(out->piece);
    pi_mem_free(out->chars);
    pi_stop_free(&out->stop);
    pi_mem_free(out->stop_id);
    pith_sampler_free(out->sampler);
    *out = (struct pi_output){0};
}

void pi_output_accept(struct pi_output *out, const int32_t *tokens, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        pith_sampler_accept(out->sampler, tokens[i]);
}

bool pi_output_is_full(const struct pi_output *out)
{
    return out->n_generated == out->params->n_predict;
}

/* The text of the last call is gone. */
static void begin_part(struct pi_output *out, struct pi_output_part *part)
{
    if (out->n_given > 0)
        pi_stop_drop(&out->stop, out->n_given);
    out->n_given = 0;
    *part = (struct pi_output_part){.token = -1};
}

static pith_status push_text(struct pi_output *out, const char *text, size_t len,
                             struct pi_output_part *part, pith_error *err)
{
    bool found;
    PI_TRY(pi_stop_push(&out->stop, text, len, &out->n_given, &found, err));
    if (found)
        out->reason = PITH_STOP_STRING;
    part->ended = found;
    part->text = out->stop.held;
    part->len = out->n_given;
    return PITH_OK;
}

static pith_status push_token(struct pi_output *out, int32_t id, struct pi_output_part *part,
                              pith_error *err)
{
    size_t len;
    bool special = out->params->special;
    if (!out->wants_text && out->stop.n_string == 0)
        return PITH_OK; /* also serves models without a tokenizer */
    pith_status status =
        pith_token_bytes(out->model, id, special, out->piece, out->piece_cap, &len);
    if (status == PITH_RANGE) {
        PI_TRY(grow_piece(out, len, err));
        status = pith_token_bytes(out->model, id, special, out->piece, out->piece_cap, &len);
    }
    if (status != PITH_OK)
        return pi_fail(err, status, "token %d: %s", id, pith_status_text(status));
    len = pith_utf8_push(&out->utf8, out->piece, len, out->chars, 3 * (out->piece_cap + 4));
    return push_text(out, out->chars, len, part, err);
}

/* Behind a token that ends the text what was held back is text. */
static pith_status end_at_token(struct pi_output *out, struct pi_output_part *part, pith_error *err)
{
    size_t len = pith_utf8_push(&out->utf8, NULL, 0, out->chars, 3 * (out->piece_cap + 4));
    PI_TRY(push_text(out, out->chars, len, part, err));
    if (!part->ended)
        out->n_given = out->stop.len;
    part->len = out->n_given;
    part->ended = true;
    out->reason = PITH_STOP_STRING;
    return PITH_OK;
}

/* By the best tokens of the row where these decide, else by the row. */
static pith_status choose(struct pi_output *out, const struct pith_seq *seq, int32_t *id,
                          pith_error *err)
{
    const struct pi_best *best = pi_row_best(seq);
    pith_error why;
    if (best != NULL && pi_sampler_sample_best(out->sampler, best, id))
        return PITH_OK;
    const float *logits = pith_seq_logits(seq);
    if (pith_logits_check(out->model, logits, &why) != PITH_OK)
        return pi_fail(err, why.status, "token %d of the answer: %s", out->n_generated,
                       why.message);
    *id = pi_sampler_sample(out->sampler, logits, seq->engine->sample_row);
    return *id >= 0 ? PITH_OK
                    : pi_fail(err, pi_sampler_error(out->sampler)->status, "%s",
                              pi_sampler_error(out->sampler)->message);
}

pith_status pi_output_next(struct pi_output *out, const struct pith_seq *seq,
                           struct pi_output_part *part, pith_error *err)
{
    begin_part(out, part);
    bool forced = out->n_generated < out->n_forced;
    bool must_end = !forced && pi_sampler_must_end(out->sampler);
    int32_t id = forced ? out->forced[out->n_generated] : -1;
    if (!forced && !must_end)
        PI_TRY(choose(out, seq, &id, err));
    pi_sampler_answers(out->sampler);
    if (!must_end)
        pith_sampler_accept(out->sampler, id);
    if (!must_end && is_stop_token(out, id)) {
        out->n_generated++;
        part->token = id;
        return end_at_token(out, part, err);
    }
    if (must_end || (pith_token_is_end(out->model, id) && !out->params->ignore_end)) {
        out->reason = PITH_STOP_END;
        part->ended = true;
        return PITH_OK;
    }
    out->n_generated++;
    part->token = id;
    return push_token(out, id, part, err);
}

pith_status pi_output_flush(struct pi_output *out, pith_stop_reason reason,
                            struct pi_output_part *part, pith_error *err)
{
    begin_part(out, part);
    out->reason = reason;
    if (reason == PITH_STOP_END) {
        size_t len = pith_utf8_push(&out->utf8, NULL, 0, out->chars, 3 * (out->piece_cap + 4));
        PI_TRY(push_text(out, out->chars, len, part, err));
    }
    if (!part->ended) /* certain or not, all of it */
        out->n_given = out->stop.len;
    part->text = out->stop.held;
    part->len = out->wants_text ? out->n_given : 0;
    part->ended = true;
    return PITH_OK;
}
