/*
 * scheduler_draft.c - drafts of answers that run: in which steps there are any, and what becomes of
 * their rows. Where drafts come from, and how long they are, is the engine's (draft.h).
 *
 * Invariant: a draft takes memory that nobody can come to need in the step, ends before a keep round
 * is due, and is forgotten before the step ends. Whoever has none gets what he would get alone.
 */
#include "serve/scheduler.h"

#include "base/mem.h"
#include "base/os.h"

/* Answers of a step with drafts: in longer ones a row is worth about what it costs. */
#define ANSWERS_MOST 4

/* ---- the scheduler's ---- */

pith_status scheduler_start_drafts(struct pith_scheduler *s, pith_error *err)
{
    const pith_draft_params *p = s->params.draft;
    if (p == NULL)
        return PITH_OK;
    PI_TRY(pith_draft_check(s->engine, p, err));
    size_t n = (size_t)p->n_max + ANSWERS_MOST, n_vocab = (size_t)s->engine->model->hp.n_vocab;
    s->draft = *p;
    s->params.draft = &s->draft;
    s->rows = pi_mem_alloc_n(PI_MEM_SCRATCH, n * n_vocab, sizeof(*s->rows));
    return s->rows != NULL ? PITH_OK
                           : pi_fail(err, PITH_NOMEM, "no memory for %zu rows of logits", n);
}

/* ---- the plan ---- */

/* Whether the step is one for drafts: few answers, all of which generate, and nobody waits. */
static bool suits(const struct pith_scheduler *s)
{
    if (s->rows == NULL || s->engine->tap != NULL || s->first != NULL ||
        s->n_running > ANSWERS_MOST)
        return false;
    for (int32_t i = 0; i < s->n_running; i++)
        if (s->running[i]->state != ANSWER_GENERATING || s->running[i]->n_take != 1)
            return false;
    return true;
}

/* Tokens of an answer that a draft may have, where n are left to the step. */
static int32_t most_of(const struct answer *a, int32_t n)
{
    int32_t n_predict = a->request->params.n_predict;
    return n_predict < 0 ? n : (int32_t)pi_min(n, n_predict - a->out.n_generated - 1);
}

void scheduler_plan_drafts(struct pith_scheduler *s)
{
    size_t n_vocab = (size_t)s->engine->model->hp.n_vocab;
    float *rows = s->rows;
    int32_t left = s->draft.n_max;
    double start = pi_time_s();
    for (int32_t i = 0; suits(s) && i < s->n_running; i++) {
        struct answer *a = s->running[i];
        int32_t most = most_of(a, left);
        a->draft[0] = a->next;
        if (!a->drafts || a->seq->draft == NULL) /* it may be another sequence than before */
            a->drafts = pi_seq_start_draft(a->seq, &s->draft, NULL) == PITH_OK;
        if (most < 1 || !a->drafts)
            continue;
        int32_t n = pi_draft_find(a->seq, &s->cost, a->next, s->n_running, most, a->draft + 1);
        a->n_draft_take = n > 0 && scheduler_is_roomy(s, n) ? n : 0;
        a->rows = rows;
        left -= a->n_draft_take;
        rows += (size_t)(a->n_draft_take + 1) * n_vocab;
    }
    for (int32_t i = 0; i < s->n_running; i++) {
        s->running[i]->n_take += s->running[i]->n_draft_take;
        s->running[i]->n_draft_take = 0;
    }
    s->user_s += pi_time_s() - start;
}

/* ---- the rows ---- */

static bool keep_row(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    struct answer *a = user;
    size_t n_vocab = (size_t)seq->engine->model->hp.n_vocab;
    memcpy(a->rows + (size_t)(pos - a->first_row) * n_vocab, logits, n_vocab * sizeof(*logits));
    return true;
}

pith_batch_item scheduler_draft_item(struct answer *a, int32_t n)
{
    a->first_row = pith_seq_length(a->seq);
    return (pith_batch_item){.seq = a->seq,
                             .tokens = a->draft,
                             .n_token = n,
                             .logits = PITH_LOGITS_ALL,
                             .on_logits = keep_row,
                             .user = a};
}

void scheduler_use_draft(struct pith_scheduler *s, struct answer *a)
{
    size_t n_vocab = (size_t)s->engine->model->hp.n_vocab;
    const float *row = a->rows;
    do {
        pi_seq_set_logits(a->seq, row);
        row += n_vocab;
        scheduler_choose(s, a);
    } while (a->state == ANSWER_GENERATING && pi_seq_take_ahead(a->seq, a->next));
    scheduler_end_draft(s, a);
}

void scheduler_end_draft(struct pith_scheduler *s, struct answer *a)
{
    if (a->seq == NULL || !a->seq->is_ahead)
        return;
    const struct pi_draft *d = a->seq->draft;
    a->n_draft += d->n;
    a->n_draft_accepted += d->n_came;
    s->stats.drafted_tokens += d->n;
    s->stats.accepted_tokens += d->n_came;
    pi_seq_drop_ahead(a->seq);
}
