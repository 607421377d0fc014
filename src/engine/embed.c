/*
 * embed.c - a text as one vector: the model's hidden states after the last norm, pooled as the
 * model's file says, with length 1. The text is read in a sequence of its own, which is gone
 * afterwards. Means are sums in order of position, so that no bit depends on the chunk.
 */
#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "engine/engine.h"

/* Values of the key ARCH.pooling_type in GGUF files. */
enum pooling { POOLING_NONE, POOLING_MEAN, POOLING_CLS, POOLING_LAST, POOLING_RANK };

#define KEY_SIZE 128

/* Whether the file says something: a key that is not there is no error. */
static pith_status settle(pith_status status, const pith_error *found, pith_error *err)
{
    if (status == PITH_OK || status == PITH_NOT_FOUND)
        return PITH_OK;
    if (err != NULL)
        *err = *found;
    return status;
}

/* A file that says nothing is of a model that generates: the last token alone has seen the text. */
static pith_status read_pooling(const struct pith_model *m, enum pooling *out, pith_error *err)
{
    char key[KEY_SIZE];
    uint32_t type = POOLING_NONE;
    bool causal = true;
    pith_error found;
    snprintf(key, sizeof(key), "%s.pooling_type", m->arch_name);
    PI_TRY(settle(pi_gguf_u32(&m->gguf, key, &type, &found), &found, err));
    if (type > POOLING_LAST)
        return pi_fail(
            err, PITH_UNSUPPORTED,
            "%s: %u: only pooling by mean (1), the first (2) or the last token (3) gives "
            "a vector",
            key, type);
    *out = type == POOLING_NONE ? POOLING_LAST : (enum pooling)type;
    snprintf(key, sizeof(key), "%s.attention.causal", m->arch_name);
    PI_TRY(settle(pi_gguf_bool(&m->gguf, key, &causal, &found), &found, err));
    if (!causal)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "%s: false: Pith does not run models whose tokens see those behind them",
                       key);
    return PITH_OK;
}

static pith_status check_tokens(const struct pith_engine *e, const int32_t *tokens, int32_t n,
                                pith_error *err)
{
    const struct pi_hparams *hp = &e->model->hp;
    if (e->traits.hides != NULL)
        return pi_fail(
            err, PITH_INVALID,
            "an embedding needs all that was read: the engine has a keep or read policy");
    if (n < 1 || tokens == NULL)
        return pi_fail(err, PITH_INVALID, "n_token %d: there is nothing to embed", n);
    if (n > hp->n_ctx_train)
        return pi_fail(err, PITH_CONTEXT, "n_token %d is beyond the model's context of %d", n,
                       hp->n_ctx_train);
    for (int32_t t = 0; t < n; t++)
        if (tokens[t] < 0 || tokens[t] >= hp->n_vocab)
            return pi_fail(err, PITH_INVALID, "token %d: id %d is not in 0..%d", t, tokens[t],
                           hp->n_vocab - 1);
    return PITH_OK;
}

/* A text that is being read. */
struct embedding {
    struct pith_engine *engine;
    enum pooling pooling;
    int32_t n_token;
    double *sum; /* [n_embd] */
    float *row;  /* [n_embd] */
};

/* Adds the rows of a pass over tokens [pos0, pos0 + n_tok) that the pooling takes. */
static void take_rows(struct embedding *m, int32_t pos0, int32_t n_tok)
{
    int32_t n_embd = m->engine->model->hp.n_embd;
    for (int32_t t = 0; t < n_tok; t++) {
        if ((m->pooling == POOLING_CLS && pos0 + t != 0) ||
            (m->pooling == POOLING_LAST && pos0 + t != m->n_token - 1))
            continue;
        pi_pass_hidden(m->engine->pass, &t, 1, m->row);
        for (int32_t i = 0; i < n_embd; i++)
            m->sum[i] += m->row[i];
    }
}

static pith_status read_text(struct embedding *m, const int32_t *tokens, pith_error *err)
{
    struct pith_engine *e = m->engine;
    struct pith_seq *seq = NULL;
    PI_TRY(pith_seq_create(e, &seq, err));
    pith_status status = pi_memory_reserve(&seq->memory, m->n_token, err);
    for (int32_t done = 0; status == PITH_OK && done < m->n_token;) {
        int32_t n = (int32_t)pi_min(e->chunk, m->n_token - done);
        struct pi_pass_item item = {
            .kv = seq->memory.kv, .tokens = tokens + done, .n_tok = n, .pos0 = done, .owner = seq};
        e->tap.stopped = false;
        pi_pass_run(e->pass, &item, 1);
        take_rows(m, done, n);
        pi_memory_note(&seq->memory, done + n, m->n_token);
        pi_memory_settle(&seq->memory, true);
        done += n;
        status = pi_pass_check(e->pass, err);
        if (e->tap.stopped)
            status = pi_fail(err, PITH_CANCELLED, "the tap stopped the embedding");
    }
    pith_seq_free(seq);
    return status;
}

static bool is_finite(const double *sum, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(sum[i]))
            return false;
    return true;
}

/* The direction of the sum; a sum of zeros stays that. */
static void normalise(const double *sum, int32_t n, float *out)
{
    double square = 0;
    for (int32_t i = 0; i < n; i++)
        square += sum[i] * sum[i];
    double scale = square > 0 ? 1 / sqrt(square) : 0;
    for (int32_t i = 0; i < n; i++)
        out[i] = (float)(sum[i] * scale);
}

pith_status pith_embed(pith_engine *e, const int32_t *tokens, int32_t n_token, float *out,
                       pith_error *err)
{
    struct embedding m = {.engine = e, .n_token = n_token};
    if (e == NULL || out == NULL)
        return pi_fail(err, PITH_INVALID, "pith_embed: engine and out must not be NULL");
    PI_TRY(read_pooling(e->model, &m.pooling, err));
    PI_TRY(check_tokens(e, tokens, n_token, err));
    size_t n_embd = (size_t)e->model->hp.n_embd;
    m.sum = pi_mem_alloc_n(PI_MEM_OTHER, n_embd, sizeof(*m.sum));
    m.row = pi_mem_alloc_n(PI_MEM_OTHER, n_embd, sizeof(*m.row));
    pith_status status =
        m.sum == NULL || m.row == NULL
            ? pi_fail(err, PITH_NOMEM, "no memory for a vector of %d floats", e->model->hp.n_embd)
            : read_text(&m, tokens, err);
    if (status == PITH_OK && !is_finite(m.sum, n_embd))
        status = pi_model_not_finite(e->model, err);
    if (status == PITH_OK)
        normalise(m.sum, e->model->hp.n_embd, out);
    pi_mem_free(m.sum);
    pi_mem_free(m.row);
    return status;
}
