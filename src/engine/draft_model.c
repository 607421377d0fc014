/*
 * draft_model.c - drafts from a smaller model: its likeliest token, again and again. Its sequence is
 * kept in step by cutting what did not come true and reading what came instead.
 *
 * A token is worth drafting while it is likely enough that all before it and itself come true. The
 * model's own probabilities tell: where it is unsure, the draft ends.
 */
#include <math.h>

#include "base/os.h"
#include "engine/draft.h"

/* The first tokens of a vocabulary are the frequent ones: merges are numbered in the order in which
   they were learnt. A small model spends a third of its time on the output matrix, and what it does
   not find among the first 40,960 it drafts wrong at worst (Zhao et al., "FR-Spec", arXiv 2502.14856). */
#define FREQUENT 40960

/* Tokens that the model is behind when it follows: the one that was chosen in place of its own, and
   its own last. More is a prompt, or what was written without it, and says nothing of drafts. */
#define BEHIND_MOST 2

/* The likeliest of the first n, and its share of the probability of all. */
static int32_t likeliest(const float *logits, int32_t n, double *share)
{
    int32_t best = 0;
    float sum = 0.0f;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    for (int32_t i = 0; i < n; i++)
        sum += expf(logits[i] - logits[best]);
    *share = 1.0 / (double)sum;
    return best;
}

static int32_t find(struct pith_seq *model, const int32_t *tokens, int32_t n, int32_t n_vocab,
                    int32_t most, const struct draft_limits *limits, int32_t *out, double *seconds)
{
    const struct pith_model *m = model->engine->model;
    int32_t n_out = 0;
    double chance = 1.0, share, start = pi_thread_time_s();
    int32_t behind = n - pi_seq_reusable(model, tokens, n);
    if (pith_seq_sync(model, tokens, n, NULL, NULL, NULL) != PITH_OK)
        return -1;
    for (;;) {
        int32_t id = likeliest(pith_seq_logits(model), n_vocab, &share);
        chance *= share;
        if (!(chance >= limits->row) || pith_token_is_end(m, id))
            break;
        out[n_out++] = id;
        if (n_out == most || chance < limits->next)
            break;
        if (pith_seq_eval(model, &id, 1, NULL) != PITH_OK)
            break;
    }
    *seconds = behind <= BEHIND_MOST ? pi_thread_time_s() - start : 0.0;
    return n_out;
}

int32_t draft_model_find(struct pith_seq *model, const int32_t *tokens, int32_t n, int32_t below,
                         int32_t most, const struct draft_limits *limits, int32_t *out,
                         double *seconds)
{
    struct pi_pass *pass = model->engine->pass;
    int32_t n_vocab = (int32_t)pi_min(pi_min(below, model->engine->model->hp.n_vocab), FREQUENT);
    pi_pass_limit_logits(pass, n_vocab);
    int32_t n_out = find(model, tokens, n, n_vocab, most, limits, out, seconds);
    pi_pass_limit_logits(pass, 0);
    return n_out;
}
