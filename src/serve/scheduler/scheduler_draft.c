/*
 * scheduler_draft.c - drafts of answers that run: in which steps there are any, and what becomes of
 * their rows. Where drafts come from, and how long they are, is the engine's (draft.h).
 *
 * Invariant: a draft takes memory that no answer can come to need in the step. It ends before a
 * keep round is due, and is forgotten before the step ends. An answer gets the same tokens without
 * one.
 */
#include "serve/scheduler/scheduler.h"

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
    s->draft.params = *p;
    s->params.draft = &s->draft.params;
    s->draft.rows = pi_mem_alloc_n(PI_MEM_SCRATCH, n * n_vocab, sizeof(*s->draft.rows));
    return s->draft.rows != NULL ? PITH_OK
                                 : pi_fail(err, PITH_NOMEM, "no memory for %zu rows of logits", n);
}

/* ---- the plan ---- */

/* Whether the step is one for drafts: few answers, all of which generate, and none waits. */
static bool suits(const struct pith_scheduler *s)
{
    if (s->draft.rows == NULL || s->engine->tap.fn != NULL || s->room.first != NULL ||
        s->n_running > ANSWERS_MOST)
        return false;
    for (int32_t i = 0; i < s->n_running; i++)
        if (s->running[i]->state != ANSWER_GENERATING || s->running[i]->step.n_take != 1)
            return false;
    return true;
}

/* Tokens of an answer that a draft may have, where n are left to the step. */
static int32_t most_of(const struct sched_answer *a, int32_t n)
{
    int32_t n_predict = a->request->params.n_predict;
    return n_predict < 0 ? n : (int32_t)pi_min(n, n_predict - a->out.n_generated - 1);
}

void scheduler_plan_drafts(struct pith_scheduler *s)
{
    size_t n_vocab = (size_t)s->engine->model->hp.n_vocab;
    float *rows = s->draft.rows;
    int32_t left = s->draft.params.n_max;
    double start = pi_time_s();
    for (int32_t i = 0; suits(s) && i < s->n_running; i++) {
        struct sched_answer *a = s->running[i];
        int32_t most = most_of(a, left);
        a->draft.tokens[0] = a->next;
        if (!a->draft.started || a->seq->draft == NULL) /* it may be another sequence than before */
            a->draft.started = pi_seq_start_draft(a->seq, &s->draft.params, NULL) == PITH_OK;
        if (most < 1 || !a->draft.started)
            continue;
        int32_t n =
            pi_draft_find(a->seq, &s->draft.cost, a->next, s->n_running, most, a->draft.tokens + 1);
        a->draft.n_take = n > 0 && scheduler_is_roomy(s, n) ? n : 0;
        a->draft.rows = rows;
        left -= a->draft.n_take;
        rows += (size_t)(a->draft.n_take + 1) * n_vocab;
    }
    for (int32_t i = 0; i < s->n_running; i++) {
        s->running[i]->step.n_take += s->running[i]->draft.n_take;
        s->running[i]->draft.n_take = 0;
    }
    s->step.user_s += pi_time_s() - start;
}

/* ---- the rows ---- */

static bool keep_row(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    struct sched_answer *a = user;
    size_t n_vocab = (size_t)seq->engine->model->hp.n_vocab;
    memcpy(a->draft.rows + (size_t)(pos - a->draft.first_row) * n_vocab, logits,
           n_vocab * sizeof(*logits));
    return true;
}

pith_batch_item scheduler_draft_item(struct sched_answer *a, int32_t n)
{
    a->draft.first_row = pith_seq_length(a->seq);
    return (pith_batch_item){.seq = a->seq,
                             .tokens = a->draft.tokens,
                             .n_token = n,
                             .logits = PITH_LOGITS_ALL,
                             .on_logits = keep_row,
                             .user = a};
}

void scheduler_use_draft(struct pith_scheduler *s, struct sched_answer *a)
{
    size_t n_vocab = (size_t)s->engine->model->hp.n_vocab;
    const float *row = a->draft.rows;
    do {
        pi_seq_set_logits(a->seq, row);
        row += n_vocab;
        scheduler_choose(s, a);
    } while (a->state == ANSWER_GENERATING && pi_seq_take_ahead(a->seq, a->next));
    scheduler_end_draft(s, a);
}

void scheduler_end_draft(struct pith_scheduler *s, struct sched_answer *a)
{
    if (a->seq == NULL || !a->seq->ahead.is_ahead)
        return;
    const struct pi_draft *d = a->seq->draft;
    a->draft.n += d->n;
    a->draft.n_accepted += d->n_came;
    s->stats.drafted_tokens += d->n;
    s->stats.accepted_tokens += d->n_came;
    pi_seq_drop_ahead(a->seq);
}
