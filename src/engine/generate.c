/*
 * generate.c - the loop that most callers want: prompt in, text out. It stands on the public
 * functions (sync, evaluate, sample, token bytes) and knows nothing of passes or pages; only for
 * the count of cached tokens it asks what the sync will reuse. A prompt that is to be recalled in
 * has its own way here: it is read up to its question, then with what was found.
 *
 * Order of one round: choose a token from the last logits, hand out its text, evaluate it. The last
 * token is therefore never evaluated, and a caller that stops loses no work.
 */
#include "base/mem.h"
#include "base/os.h"
#include "engine/engine.h"
#include "engine/question.h"
#include "engine/stop.h"

#define PIECE_CAP 256 /* bytes of one token; grows for the rare longer one */

struct generation {
    pith_seq *seq;
    const pith_model *model;
    const pith_generate_params *params;
    pith_text_fn *on_text; /* NULL: no text is made */
    void *user;
    pith_sampler *sampler; /* owned */
    struct pi_stop stop;   /* owned */
    pith_utf8_stream utf8;
    char *piece; /* [piece_cap] bytes of one token, owned */
    size_t piece_cap;
    char *chars; /* [3 * (piece_cap + 4)] whole characters, owned */
    pith_generate_result result;
};

void pith_generate_params_default(pith_generate_params *out)
{
    *out = (pith_generate_params){.n_predict = -1};
    pith_sample_params_default(&out->sample);
}

uint64_t pith_logits_hash(const float *logits, int32_t n)
{
    /* FNV-1a, 64 bits (draft-eastlake-fnv, section 2), over the little-endian bytes of the row. */
    uint64_t hash = 0xcbf29ce484222325u;
    for (int32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof(bits));
        for (int shift = 0; shift < 32; shift += 8)
            hash = (hash ^ (bits >> shift & 0xff)) * 0x100000001b3u;
    }
    return hash;
}

static pith_status grow_piece(struct generation *g, size_t cap, pith_error *err)
{
    char *piece = pi_mem_grow(PI_MEM_OTHER, g->piece, cap, 1);
    if (piece != NULL)
        g->piece = piece;
    char *chars = pi_mem_grow(PI_MEM_OTHER, g->chars, cap + 4, 3);
    if (chars != NULL)
        g->chars = chars;
    if (piece == NULL || chars == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a token of %zu bytes", cap);
    g->piece_cap = cap;
    return PITH_OK;
}

/* Hands out what is certain; *ended says whether the text is over, and result.reason why. */
static pith_status push_text(struct generation *g, const char *text, size_t len, bool *ended,
                             pith_error *err)
{
    size_t n_certain;
    bool found;
    PI_TRY(pi_stop_push(&g->stop, text, len, &n_certain, &found, err));
    if (found)
        g->result.reason = PITH_STOP_STRING;
    *ended = found;
    if (n_certain > 0 && g->on_text != NULL && !g->on_text(g->user, g->stop.held, n_certain)) {
        g->result.reason = PITH_STOP_CALLER;
        *ended = true;
    }
    pi_stop_drop(&g->stop, n_certain);
    return PITH_OK;
}

static pith_status push_token(struct generation *g, int32_t id, bool *ended, pith_error *err)
{
    size_t len;
    *ended = false;
    if (g->on_text == NULL && g->stop.n_string == 0)
        return PITH_OK; /* also serves models without a tokenizer */
    pith_status status =
        pith_token_bytes(g->model, id, g->params->special, g->piece, g->piece_cap, &len);
    if (status == PITH_RANGE) {
        PI_TRY(grow_piece(g, len, err));
        status = pith_token_bytes(g->model, id, g->params->special, g->piece, g->piece_cap, &len);
    }
    if (status != PITH_OK)
        return pi_fail(err, status, "token %d: %s", id, pith_status_text(status));
    len = pith_utf8_push(&g->utf8, g->piece, len, g->chars, 3 * (g->piece_cap + 4));
    return push_text(g, g->chars, len, ended, err);
}

/* The end of the text by anything but a stop string or the caller: what was held back is text. A
   character that the model itself left unfinished shows as U+FFFD; one that we cut off does not. */
static pith_status flush_text(struct generation *g, pith_error *err)
{
    bool ended = false;
    pith_stop_reason reason = g->result.reason;
    if (reason == PITH_STOP_END) {
        size_t len = pith_utf8_push(&g->utf8, NULL, 0, g->chars, 3 * (g->piece_cap + 4));
        PI_TRY(push_text(g, g->chars, len, &ended, err));
    }
    if (!ended && g->stop.len > 0 && g->on_text != NULL &&
        !g->on_text(g->user, g->stop.held, g->stop.len))
        g->result.reason = PITH_STOP_CALLER;
    return PITH_OK;
}

/* Chooses and hands out tokens until something ends the text. */
static pith_status generate_tokens(struct generation *g, pith_error *err)
{
    for (;;) {
        if (g->result.n_generated == g->params->n_predict) {
            g->result.reason = PITH_STOP_LENGTH;
            return flush_text(g, err);
        }
        int32_t id = pith_sampler_sample(g->sampler, pith_seq_logits(g->seq));
        pith_sampler_accept(g->sampler, id);
        if (pith_token_is_end(g->model, id) && !g->params->ignore_end) {
            g->result.reason = PITH_STOP_END;
            return flush_text(g, err);
        }
        bool ended;
        g->result.n_generated++;
        PI_TRY(push_token(g, id, &ended, err));
        if (ended)
            return PITH_OK;
        if (g->result.n_generated == g->params->n_predict)
            continue;
        pith_status status = pith_seq_eval(g->seq, &id, 1, err);
        if (status == PITH_KV_FULL || status == PITH_CONTEXT) {
            g->result.reason = PITH_STOP_FULL;
            return flush_text(g, err);
        }
        PI_TRY(status);
    }
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

static pith_status evaluate(struct generation *g, const int32_t *ids, int32_t n, struct part part,
                            pith_error *err)
{
    pith_batch_item item = {.seq = g->seq, .tokens = ids, .n_token = n};
    bool heard = g->params->progress != NULL;
    return pith_batch_eval(g->seq->engine, &item, 1, heard ? part_progress : NULL, &part, err);
}

/* Tokens that may stand between a question and what was evicted before it: more than the keep
   policy leaves would push itself out, the best of it first. */
static int32_t room_before(const struct generation *g, int32_t n_rest)
{
    pith_keep_stats keep;
    pith_seq_keep_stats(g->seq, &keep);
    return keep.budget >= 0 ? (int32_t)pi_max(0, keep.budget - n_rest) : INT32_MAX;
}

/* Tokenizes text [len] as lines, and of it no more than `most` tokens of its beginning, up to the
   end of a word. text has room for one character more. ids has room for cap tokens. */
static pith_status tokenize_lines(struct generation *g, char *text, size_t len, int32_t most,
                                  int32_t *ids, int32_t cap, int32_t *n, pith_error *err)
{
    for (;;) {
        while (len > 0 && (text[len - 1] == ' ' || text[len - 1] == '\n'))
            len--;
        *n = 0;
        if (len == 0)
            return PITH_OK;
        char after = text[len];
        text[len] = '\n';
        PI_TRY(pith_tokenize(g->model, text, len + 1, 0, ids, cap, n, err));
        text[len] = after;
        if (*n <= most)
            return PITH_OK;
        len = (size_t)((double)len * most / *n); /* below len: most is below *n */
        while (len > 0 && text[len] != ' ' && text[len] != '\n')
            len--;
    }
}

/* Tokens [n_text] of what was found, and those of the prompt's rest behind them; n_text 0: there is
   no room for any. The caller frees. */
static pith_status join(struct generation *g, char *text, const int32_t *rest, int32_t n_rest,
                        int32_t **out, int32_t *n_text, pith_error *err)
{
    size_t len = strlen(text);
    int32_t cap = len < INT32_MAX / 2 ? (int32_t)len + 8 : 0; /* few tokens are below a byte */
    int32_t *ids = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)cap + (size_t)n_rest, sizeof(*ids));
    if (ids == NULL || cap == 0) {
        pi_mem_free(ids);
        return pi_fail(err, PITH_NOMEM, "no memory for %zu bytes of recalled text", len);
    }
    /* The terminator is the character that a line's end can stand in for. */
    pith_status status =
        tokenize_lines(g, text, len, room_before(g, n_rest), ids, cap, n_text, err);
    if (status != PITH_OK) {
        pi_mem_free(ids);
        return status;
    }
    memcpy(ids + *n_text, rest, (size_t)n_rest * sizeof(*ids));
    *out = ids;
    return PITH_OK;
}

/* The mark of a prompt that n_text tokens are put into; false where so many cannot be pinned. */
static bool widen_mark(struct generation *g, int32_t n_prompt, int32_t n_text)
{
    const struct keep *keep = g->seq->engine->keep;
    if (g->seq->n_prompt != n_prompt) /* that of an earlier prompt */
        return true;
    if (keep != NULL && keep_check_prompt(keep, n_prompt + n_text, NULL) != PITH_OK)
        return false;
    g->seq->n_prompt = n_prompt + n_text;
    return true;
}

/* Reads the prompt from its question on, with what is found for that in front; as it is where
   nothing is, or where the two do not fit. */
static pith_status read_rest(struct generation *g, const struct pi_question *q,
                             const int32_t *prompt, int32_t n_prompt, struct part part,
                             pith_error *err)
{
    char *text = NULL;
    int32_t *ids = NULL, n_text = 0, n_rest = n_prompt - q->at, marked = g->seq->n_prompt;
    pith_status status = pith_seq_recall_text(g->seq, q->text, q->len, &text, err);
    if (status == PITH_OK && text != NULL)
        status = join(g, text, prompt + q->at, n_rest, &ids, &n_text, err);
    pith_recall_free(text);
    PI_TRY(status);
    if (n_text > 0 && widen_mark(g, n_prompt, n_text)) {
        status = evaluate(g, ids, n_text + n_rest, part, err);
        if (status == PITH_OK) {
            g->result.n_recalled = n_text;
            for (int32_t i = 0; i < n_text; i++)
                pith_sampler_accept(g->sampler, ids[i]);
        }
        if (status != PITH_KV_FULL && status != PITH_CONTEXT) {
            pi_mem_free(ids);
            return status;
        }
        g->seq->n_prompt = marked;
    }
    pi_mem_free(ids);
    return evaluate(g, prompt + q->at, n_rest, part, err);
}

/* Makes the sequence hold the prompt, of which it holds n_cached tokens that need not be read
   again; in front of a question what is recalled for it. */
static pith_status sync_prompt(struct generation *g, const int32_t *prompt, int32_t n_prompt,
                               pith_error *err)
{
    const pith_generate_params *p = g->params;
    int32_t n_cached = g->result.n_cached;
    struct pi_question q = {0};
    if (p->message != NULL && g->seq->recall.text != NULL)
        PI_TRY(pi_question_find(g->model, prompt, n_prompt, p->message, p->message_len, &q, err));
    if (q.at == 0 || q.at < n_cached) /* a question that was read already is not asked anew */
        return pith_seq_sync(g->seq, prompt, n_prompt, p->progress, p->progress_user, err);
    double share = (double)(q.at - n_cached) / (n_prompt - n_cached);
    PI_TRY(pith_seq_truncate(g->seq, n_cached, err));
    if (q.at > n_cached)
        PI_TRY(evaluate(g, prompt + n_cached, q.at - n_cached, (struct part){p, 0.0, share}, err));
    return read_rest(g, &q, prompt, n_prompt, (struct part){p, share, 1.0 - share}, err);
}

static pith_status read_prompt(struct generation *g, const int32_t *prompt, int32_t n_prompt,
                               pith_error *err)
{
    g->result.n_cached = pi_seq_reusable(g->seq, prompt, n_prompt);
    g->result.n_prompt = n_prompt - g->result.n_cached;
    int32_t marked = g->seq->n_prompt;
    if (marked == 0 || marked > g->result.n_cached) {
        /* The first prompt, or one in place of it. */
        if (g->seq->engine->keep != NULL)
            PI_TRY(keep_check_prompt(g->seq->engine->keep, n_prompt, err));
        PI_TRY(pith_seq_truncate(g->seq, g->result.n_cached, err));
        marked = g->seq->n_prompt; /* 0 where a part of the old prompt went */
        g->seq->n_prompt = n_prompt;
    }
    pith_status status = sync_prompt(g, prompt, n_prompt, err);
    if (status != PITH_OK) {
        g->seq->n_prompt = marked;
        return status;
    }
    for (int32_t i = 0; i < n_prompt; i++)
        pith_sampler_accept(g->sampler, prompt[i]);
    return PITH_OK;
}

static pith_status run(struct generation *g, const int32_t *prompt, int32_t n_prompt,
                       pith_error *err)
{
    pith_model_info info;
    pith_model_get_info(g->model, &info);
    PI_TRY(pith_sampler_create(&g->params->sample, info.n_vocab, &g->sampler, err));
    PI_TRY(pi_stop_init(&g->stop, g->params->stop, g->params->n_stop, err));
    PI_TRY(grow_piece(g, PIECE_CAP, err));

    double start = pi_time_s();
    PI_TRY(read_prompt(g, prompt, n_prompt, err));
    double read = pi_time_s();
    g->result.prompt_s = read - start;
    PI_TRY(generate_tokens(g, err));
    g->result.generate_s = pi_time_s() - read;
    return PITH_OK;
}

pith_status pith_generate(pith_seq *seq, const int32_t *prompt, int32_t n_prompt,
                          const pith_generate_params *params, pith_text_fn *on_text, void *user,
                          pith_generate_result *result, pith_error *err)
{
    pith_generate_params defaults;
    pith_generate_params_default(&defaults);
    if (params == NULL)
        params = &defaults;
    if (prompt == NULL || n_prompt < 1)
        return pi_fail(err, PITH_INVALID, "n_prompt: a prompt has at least one token, not %d",
                       n_prompt);
    if (params->n_predict < -1)
        return pi_fail(err, PITH_INVALID, "n_predict: %d is below -1", params->n_predict);

    struct generation g = {
        .seq = seq,
        .model = pith_engine_model(pith_seq_engine(seq)),
        .params = params,
        .on_text = on_text,
        .user = user,
    };
    pith_status status = run(&g, prompt, n_prompt, err);
    if (status == PITH_OK && result != NULL)
        *result = g.result;
    pi_mem_free(g.piece);
    pi_mem_free(g.chars);
    pi_stop_free(&g.stop);
    pith_sampler_free(g.sampler);
    return status;
}
