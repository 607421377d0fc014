/*
 * generate.c - what most callers want: prompt in, tokens and text out, pulled one by one or in a
 * loop. It stands on the public functions (sync, evaluate, sample, token bytes) and knows nothing
 * of passes or pages. Only for the count of cached tokens it asks how many the sync will reuse. A
 * prompt that is to be recalled in has its own way here: it is read up to its question, then with
 * what was found. Where tokens are drafted, they are evaluated before they are chosen (draft.h).
 *
 * Order of one round: evaluate the token that was handed out last, choose the next, hand out its
 * text. The last token is therefore never evaluated, and a caller that stops loses no work.
 * Invariant: a generation and its sequence know each other, and either may be freed first.
 */
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/ranks.h"
#include "cpu/kernels.h"
#include "engine/draft.h"
#include "engine/output.h"
#include "engine/over_ranks.h"
#include "engine/question.h"

struct pith_generation {
    pith_seq *seq; /* borrowed; NULL once it is freed or has begun another generation */
    const pith_model *model;
    pith_generate_params params;
    struct pi_output out; /* owned */
    pith_generate_result result;
    struct draft_cost cost; /* of this generation's passes */
    double pass_s;          /* the running draft's, so far */
    float *rows;            /* [n_max + 1][n_vocab] of the running draft; owned; NULL: nothing
                                      is drafted */
    int32_t first;          /* position of the first of them */
    int32_t draft[DRAFT_MOST + 1]; /* the token before the draft, and the draft */
    int32_t token;                 /* handed out and not yet evaluated; -1: none */
    int32_t n_token;               /* of the sequence, while no other call changes it */
    bool ended;
};

void pith_generate_params_default(pith_generate_params *out)
{
    *out = (pith_generate_params){.n_predict = -1};
    pith_sample_params_default(&out->sample);
}

uint64_t pith_logits_hash(const float *logits, int32_t n)
{
    uint64_t hash = PI_HASH_EMPTY;
    for (int32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof(bits));
        hash = pi_hash_number(hash, bits, sizeof(bits));
    }
    return hash;
}

/* The end of the text by anything but a stop string or the caller. */
static pith_status flush_text(struct pith_generation *g, pith_stop_reason reason,
                              struct pi_output_part *part, pith_error *err)
{
    PI_TRY(pi_output_flush(&g->out, reason, part, err));
    part->ended = true;
    return PITH_OK;
}

double pith_logits_logprob(const float *logits, int32_t n, int32_t token, bool *best)
{
    const struct pi_vec_kernels *vec = &pi_kernels()->vec;
    if (best != NULL)
        *best = false;
    if (token < 0 || token >= n)
        return -INFINITY;
    float max = vec->largest(logits, n);
    double sum = vec->exp_sum(logits, n, max);
    if (best != NULL)
        *best = logits[token] == max;
    return (double)logits[token] - (double)max - log(sum);
}

/* ---- drafts ---- */

/* Room for the rows of a draft. Nothing is drafted while a tap listens to what is computed. */
static pith_status start_drafts(struct pith_generation *g, pith_error *err)
{
    const pith_draft_params *p = g->params.draft;
    const struct pith_engine *e = g->seq->engine;
    if (p == NULL)
        return PITH_OK;
    PI_TRY(pi_seq_start_draft(g->seq, p, err));
    if (e->tap.fn != NULL)
        return PITH_OK;
    size_t n = (size_t)p->n_max + 1, n_vocab = (size_t)e->model->hp.n_vocab;
    g->rows = pi_mem_alloc_n(PI_MEM_SCRATCH, n * n_vocab, sizeof(*g->rows));
    return g->rows != NULL ? PITH_OK
                           : pi_fail(err, PITH_NOMEM, "no memory for %zu rows of logits", n);
}

static bool keep_row(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    struct pith_generation *g = user;
    size_t n_vocab = (size_t)seq->engine->model->hp.n_vocab;
    memcpy(g->rows + (size_t)(pos - g->first) * n_vocab, logits, n_vocab * sizeof(*logits));
    return true;
}

/* Gives the sequence the row of logits behind its last token, which stands in a draft's pass. */
static void show_row(struct pith_generation *g)
{
    size_t n_vocab = (size_t)g->seq->engine->model->hp.n_vocab;
    size_t i = (size_t)(g->seq->n_token - 1 - g->first);
    pi_seq_set_logits(g->seq, g->rows + i * n_vocab);
}

/* The draft has shown what it can: what did not come true goes. */
static void end_draft(struct pith_generation *g)
{
    double start = pi_thread_time_s();
    int32_t n = g->seq->ahead.is_ahead ? g->seq->draft->n : 0;
    pi_seq_drop_ahead(g->seq);
    if (n > 0)
        draft_cost_note(&g->cost, n + 1,
                        pi_over_ranks_seconds(g->pass_s + pi_thread_time_s() - start));
}

/* Evaluates a token, and a draft of n tokens behind it. */
static pith_status evaluate_draft(struct pith_generation *g, int32_t n, pith_error *err)
{
    pith_batch_item item = {.seq = g->seq,
                            .tokens = g->draft,
                            .n_token = n + 1,
                            .logits = PITH_LOGITS_ALL,
                            .on_logits = keep_row,
                            .user = g};
    double start = pi_thread_time_s();
    g->first = g->seq->n_token;
    pi_seq_begin_ahead(g->seq, n);
    pith_status status = pith_batch_eval(g->seq->engine, &item, 1, NULL, NULL, err);
    pi_seq_end_ahead(g->seq, status == PITH_OK);
    g->pass_s = pi_thread_time_s() - start;
    if (status == PITH_OK)
        show_row(g);
    return status;
}

/* Makes a token that was chosen a part of the sequence, with the logits behind it. A draft
   without memory is left out. */
static pith_status advance(struct pith_generation *g, int32_t token, pith_error *err)
{
    pith_status status = PITH_KV_FULL;
    int32_t left = g->params.n_predict - g->out.n_generated, n = 0;
    if (pi_seq_take_ahead(g->seq, token)) {
        show_row(g);
        return PITH_OK;
    }
    end_draft(g);
    g->draft[0] = token;
    if (g->rows != NULL)
        n = pi_draft_find(g->seq, &g->cost, token, 1, left > 0 ? left - 1 : DRAFT_MOST,
                          g->draft + 1);
    if (n > 0)
        status = evaluate_draft(g, n, err);
    if (status != PITH_KV_FULL && status != PITH_CONTEXT && status != PITH_NOMEM)
        return status;
    double start = pi_thread_time_s();
    status = pith_seq_eval(g->seq, &token, 1, err);
    draft_cost_note(&g->cost, 1, pi_over_ranks_seconds(pi_thread_time_s() - start));
    return status;
}

/* ---- the loop ---- */

/* Evaluates the token that was handed out last, chooses the next one, and makes its text. */
static pith_status next_part(struct pith_generation *g, struct pi_output_part *part,
                             pith_error *err)
{
    if (pi_output_is_full(&g->out))
        return flush_text(g, PITH_STOP_LENGTH, part, err);
    if (g->token >= 0) {
        pith_status status = advance(g, g->token, err);
        if (status == PITH_KV_FULL || status == PITH_CONTEXT)
            return flush_text(g, PITH_STOP_FULL, part, err);
        PI_TRY(status);
    }
    PI_TRY(pi_output_next(&g->out, g->seq, part, err));
    g->token = part->token;
    return part->token >= 0 ? PITH_OK : flush_text(g, g->out.reason, part, err);
}

/* ---- the prompt ---- */

/* Progress of the part of a prompt that begins at a fraction of it. */
struct part {
    const pith_generate_params *params;
    double begin;
    double share;
};

static bool part_progress(void *user, double fraction)
{
    const struct part *p = user;
    return p->params->progress(p->params->progress_user, p->begin + p->share * fraction);
}

static pith_status evaluate(struct pith_generation *g, const int32_t *ids, int32_t n,
                            struct part part, pith_error *err)
{
    pith_batch_item item = {.seq = g->seq, .tokens = ids, .n_token = n};
    bool heard = g->params.progress != NULL;
    return pith_batch_eval(g->seq->engine, &item, 1, heard ? part_progress : NULL, &part, err);
}

/* The mark of a prompt that n_text tokens are put into; false where that many cannot be pinned. */
static bool widen_mark(struct pith_generation *g, int32_t n_prompt, int32_t n_text)
{
    struct keep_point at = {.n_prompt = n_prompt + n_text, .scale = g->seq->keep.scale};
    if (g->seq->n_prompt != n_prompt) /* that of an earlier prompt */
        return true;
    if (keep_check_prompt(g->seq->engine->keep.handle, at, NULL) != PITH_OK)
        return false;
    g->seq->n_prompt = n_prompt + n_text;
    return true;
}

/* Reads the prompt from its question on, with the text that was found for it in front, pinned
   until the question is answered. Where nothing is found, or the two do not fit, the prompt is
   read as it is. */
static pith_status read_rest(struct pith_generation *g, const struct pi_question *q,
                             const int32_t *prompt, int32_t n_prompt, struct part part,
                             pith_error *err)
{
    char *text = NULL;
    int32_t *ids = NULL, n_text = 0, n_rest = n_prompt - q->at, marked = g->seq->n_prompt;
    int32_t n_before = 0;
    pith_status status = pi_seq_find_text(g->seq, q->text, q->len, n_rest + PI_TEXT_LINE_TOKENS,
                                          &text, &n_before, err);
    if (status == PITH_OK && text != NULL)
        status = pi_seq_text_tokens(g->seq, text, 0, n_rest, &ids, &n_text, err);
    pith_recall_free(text);
    PI_TRY(status);
    if (n_text > 0 && widen_mark(g, n_prompt, n_text)) {
        memcpy(ids + n_text, prompt + q->at, (size_t)n_rest * sizeof(*ids));
        g->seq->pinned = (int32_t)pi_max(1, g->seq->n_token - n_before);
        status = evaluate(g, ids, n_text + n_rest, part, err);
        if (status == PITH_OK) {
            g->result.n_recalled = n_text;
            pi_output_accept(&g->out, ids, n_text);
        }
        if (status != PITH_KV_FULL && status != PITH_CONTEXT) {
            pi_mem_free(ids);
            return status;
        }
        g->seq->n_prompt = marked;
        g->seq->pinned = 0;
    }
    pi_mem_free(ids);
    return evaluate(g, prompt + q->at, n_rest, part, err);
}

/* Makes the sequence hold the prompt, of which it holds n_cached tokens that need not be read
   again. In front of a question comes the text that is recalled for it. */
static pith_status sync_prompt(struct pith_generation *g, const int32_t *prompt, int32_t n_prompt,
                               pith_error *err)
{
    const pith_generate_params *p = &g->params;
    int32_t n_cached = g->result.n_cached;
    struct pi_question q = {0};
    if (p->message != NULL && pi_engine_finds_text(g->seq->engine))
        PI_TRY(pi_question_find(g->model, prompt, n_prompt, p->message, p->message_len, &q, err));
    if (q.at == 0 || q.at < n_cached) /* a question that was read already is not asked anew */
        return pith_seq_sync(g->seq, prompt, n_prompt, p->progress, p->progress_user, err);
    double share = (double)(q.at - n_cached) / (n_prompt - n_cached);
    PI_TRY(pith_seq_truncate(g->seq, n_cached, err));
    if (q.at > n_cached)
        PI_TRY(evaluate(g, prompt + n_cached, q.at - n_cached, (struct part){p, 0.0, share}, err));
    return read_rest(g, &q, prompt, n_prompt, (struct part){p, share, 1.0 - share}, err);
}

static pith_status read_prompt(struct pith_generation *g, const int32_t *prompt, int32_t n_prompt,
                               pith_error *err)
{
    g->result.n_cached = pi_seq_reusable(g->seq, prompt, n_prompt);
    g->result.n_prompt = n_prompt - g->result.n_cached;
    int32_t marked = g->seq->n_prompt;
    int32_t pinned = 0;
    if (g->params.recalled != NULL && pi_engine_finds_text(g->seq->engine))
        PI_TRY(pi_prompt_find(g->model, prompt, n_prompt, g->params.recalled, &pinned, err));
    g->seq->pinned = pinned; /* what was is of a question that is answered */
    if (marked == 0 || marked > g->result.n_cached) {
        /* The first prompt, or one in place of it. */
        struct keep_point at = {.n_prompt = n_prompt, .scale = g->seq->keep.scale};
        PI_TRY(keep_check_prompt(g->seq->engine->keep.handle, at, err));
        PI_TRY(pith_seq_truncate(g->seq, g->result.n_cached, err));
        marked = g->seq->n_prompt; /* 0 where a part of the old prompt went */
        g->seq->n_prompt = n_prompt;
    }
    g->seq->engine->batch.keeps_read = g->params.keep_read;
    pith_status status = sync_prompt(g, prompt, n_prompt, err);
    g->seq->engine->batch.keeps_read = false;
    if (status != PITH_OK) {
        g->seq->n_prompt = marked;
        return status;
    }
    pi_output_accept(&g->out, prompt, n_prompt);
    return PITH_OK;
}

/* ---- the calls ---- */

static void fill_result(struct pith_generation *g)
{
    g->result.reason = g->out.reason;
    g->result.n_generated = g->out.n_generated;
    if (g->rows != NULL && g->seq != NULL) {
        g->result.n_draft = g->seq->draft->n_draft;
        g->result.n_draft_accepted = g->seq->draft->n_accepted;
    }
}

static void end_generation(struct pith_generation *g)
{
    if (g->seq != NULL && !g->ended)
        end_draft(g);
    g->ended = true;
}

void pi_generation_settle(struct pith_seq *seq)
{
    if (seq->generation != NULL && !seq->generation->ended)
        end_draft(seq->generation);
}

void pi_generation_detach(struct pith_seq *seq)
{
    struct pith_generation *g = seq->generation;
    if (g == NULL)
        return;
    if (!g->ended)
        end_draft(g);
    fill_result(g);
    g->seq = NULL;
    seq->generation = NULL;
}

/* Begins in *g, which is zero. */
static pith_status begin(struct pith_generation *g, pith_seq *seq, const int32_t *prompt,
                         int32_t n_prompt, bool wants_text, pith_error *err)
{
    double start = pi_time_s();
    pi_generation_detach(seq);
    g->model = pith_engine_model(pith_seq_engine(seq));
    g->token = -1;
    PI_TRY(pi_output_init(&g->out, g->model, &g->params, 0, wants_text, err));
    g->seq = seq;
    seq->generation = g;
    PI_TRY(start_drafts(g, err));
    PI_TRY(read_prompt(g, prompt, n_prompt, err));
    g->n_token = seq->n_token;
    g->result.prompt_s = pi_time_s() - start;
    return PITH_OK;
}

static pith_status check_and_begin(struct pith_generation *g, pith_seq *seq, const int32_t *prompt,
                                   int32_t n_prompt, const pith_generate_params *params,
                                   bool wants_text, pith_error *err)
{
    pith_generate_params_default(&g->params);
    if (params != NULL)
        g->params = *params;
    if (prompt == NULL || n_prompt < 1)
        return pi_fail(err, PITH_INVALID, "n_prompt: a prompt has at least one token, not %d",
                       n_prompt);
    if (g->params.n_predict < -1)
        return pi_fail(err, PITH_INVALID, "n_predict: %d is below -1", g->params.n_predict);
    PI_TRY(pi_engine_enter(seq->engine, err));
    return pi_engine_leave(seq->engine, begin(g, seq, prompt, n_prompt, wants_text, err));
}

/* The sequence goes on; nothing else does. */
static void release(struct pith_generation *g)
{
    if (g->seq != NULL)
        pi_generation_detach(g->seq);
    pi_output_free(&g->out);
    pi_mem_free(g->rows);
}

static pith_status make_part(struct pith_generation *g, struct pi_output_part *part,
                             pith_error *err)
{
    double start = pi_time_s();
    if (g->seq->n_token != g->n_token || !g->seq->has_logits)
        return pi_fail(err, PITH_INVALID,
                       "the sequence has changed since this generation's last token");
    pith_status status = next_part(g, part, err);
    g->n_token = g->seq->n_token;
    if (status != PITH_OK || part->ended)
        end_generation(g);
    fill_result(g);
    g->result.generate_s += pi_time_s() - start;
    return status;
}

pith_status pith_generation_next(pith_generation *g, pith_token *out, pith_error *err)
{
    struct pi_output_part part = {.token = -1, .ended = true};
    if (!g->ended && g->seq == NULL)
        return pi_fail(err, PITH_INVALID,
                       "the generation's sequence was freed, or has begun another");
    if (!g->ended) {
        struct pith_engine *e = g->seq->engine;
        PI_TRY(pi_engine_enter(e, err));
        PI_TRY(pi_engine_leave(e, make_part(g, &part, err)));
    }
    *out = (pith_token){part.token, part.text, part.len, part.ended, g->result.reason};
    return PITH_OK;
}

pith_status pith_generation_create(pith_seq *seq, const int32_t *prompt, int32_t n_prompt,
                                   const pith_generate_params *params, pith_generation **out,
                                   pith_error *err)
{
    struct pith_generation *g = pi_mem_alloc(PI_MEM_OTHER, sizeof(*g));
    if (g == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a generation");
    pith_status status = check_and_begin(g, seq, prompt, n_prompt, params, true, err);
    if (status != PITH_OK) {
        pith_generation_free(g);
        return status;
    }
    *out = g;
    return PITH_OK;
}

void pith_generation_free(pith_generation *g)
{
    if (g == NULL)
        return;
    release(g);
    pi_mem_free(g);
}

void pith_generation_result(const pith_generation *g, pith_generate_result *out)
{
    *out = g->result;
}

/* Hands out tokens until something ends the text. */
static pith_status generate_all(struct pith_generation *g, pith_text_fn *on_text, void *user,
                                pith_error *err)
{
    pith_token token = {0};
    while (!token.ended) {
        PI_TRY(pith_generation_next(g, &token, err));
        bool goes_on = token.len == 0 || on_text == NULL || on_text(user, token.text, token.len);
        pi_ranks_tell(&goes_on, sizeof(goes_on)); /* only rank 0 may have a reader who stops it */
        if (!goes_on) {
            g->out.reason = PITH_STOP_CALLER;
            return PITH_OK;
        }
    }
    return PITH_OK;
}

pith_status pith_generate(pith_seq *seq, const int32_t *prompt, int32_t n_prompt,
                          const pith_generate_params *params, pith_text_fn *on_text, void *user,
                          pith_generate_result *result, pith_error *err)
{
    struct pith_generation g = {0};
    pith_status status = check_and_begin(&g, seq, prompt, n_prompt, params, on_text != NULL, err);
    if (status == PITH_OK)
        status = generate_all(&g, on_text, user, err);
    release(&g);
    if (status == PITH_OK && result != NULL)
        *result = g.result;
    return status;
}
