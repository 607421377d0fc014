/*
 * scheduler_ask.c - recall of text in a scheduler. The place of a question follows from the
 * answer's known tokens alone, and what it finds from what the sequence before it has lost. So an
 * answer does not depend on the company, on steps, or on whether it was put back.
 *
 * Invariant: a question is asked once. Its sequence cannot be had again from its tokens then
 * (pi_seq_altered), so that an answer is never put back to before it. Memory for the most that can
 * be found was set aside when the answer was admitted.
 */
#include "serve/scheduler/scheduler.h"

#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "engine/question.h"

/* A text that comes back may have a few more tokens than it had: it is cut at other places. */
#define CUT_TOKENS 64

static bool asks(const struct pith_scheduler *s, const struct request *r)
{
    return r->params.message != NULL && r->on_prompt == NULL && pi_engine_finds_text(s->engine);
}

int32_t scheduler_ask_most(const struct pith_scheduler *s, const struct request *r)
{
    if (!asks(s, r))
        return 0;
    int64_t chars = s->engine->policies.recall.text.chars;
    return (int32_t)pi_min(chars, (int64_t)r->n_prompt) + CUT_TOKENS;
}

static const int32_t *known_tokens(const struct sched_answer *a)
{
    return a->known.list != NULL ? a->known.list : a->request->prompt;
}

void scheduler_ask_forget(struct sched_answer *a)
{
    a->ask = (struct answer_ask){.accepted = a->ask.accepted};
}

void scheduler_ask_look(struct pith_scheduler *s, struct sched_answer *a, int32_t n_parked)
{
    const struct request *r = a->request;
    struct pi_question q = {0};
    pith_error why;
    bool again = a->known.list != NULL && !a->known.retold; /* it was asked */
    if (a->seq != NULL || again || !asks(s, r))
        return;
    if (!a->ask.looked &&
        pi_question_find(s->engine->model, known_tokens(a), a->known.n, r->params.message,
                         r->params.message_len, &q, &why) != PITH_OK) {
        pi_log(PITH_LOG_WARN, "scheduler request=%lld recall=off reason=\"%s\"", (long long)r->id,
               why.message);
        return;
    }
    if (!a->ask.looked) {
        a->ask.place = q.at;
        a->ask.text = q.text;
        a->ask.len = q.len;
    }
    a->ask.looked = true;
    a->ask.at = a->ask.place >= n_parked ? a->ask.place : 0; /* else it was read already */
}

int32_t scheduler_ask_end(const struct sched_answer *a)
{
    return a->ask.at > 0 && !a->ask.found ? a->ask.at : a->known.n;
}

/* Puts n tokens at `at`, which stand in list [at + n + rest], between the known ones. */
static void insert(struct sched_answer *a, int32_t *list, int32_t n)
{
    int32_t at = a->ask.at;
    const int32_t *known = known_tokens(a);
    memcpy(list, known, (size_t)at * sizeof(*list));
    memcpy(list + at + n, known + at, (size_t)(a->known.n - at) * sizeof(*list));
    pi_mem_free(a->known.list);
    a->known.list = list;
    a->known.n += n;
    a->known.n_more += n;
    a->known.retold = true;
    if (!a->ask.accepted)
        pi_output_accept(&a->out, list + at, n);
    a->ask.accepted = true;
}

/* Whether the sequence's mark is of the prompt that is read, and not of an earlier one: what is
   found belongs to it. */
static bool widens(const struct sched_answer *a)
{
    return a->seq->n_prompt > a->ask.at;
}

/* Whether n more tokens are within what was set aside, the context, and what can be pinned. */
static bool fits(const struct pith_scheduler *s, const struct sched_answer *a, int32_t n)
{
    int64_t context = s->engine->model->hp.n_ctx_train;
    struct keep_point to = {.n_prompt = a->seq->n_prompt + n, .scale = a->seq->keep.scale};
    if (n > a->request->n_ask || (s->params.n_ctx > 0 && a->known.n + n > s->params.n_ctx) ||
        (!pi_engine_passes_context(s->engine) && (int64_t)a->known.n + n > context))
        return false;
    return !widens(a) || keep_check_prompt(s->engine->keep.handle, to, NULL) == PITH_OK;
}

static pith_status search(struct pith_scheduler *s, struct sched_answer *a, pith_error *err)
{
    char *text = NULL;
    int32_t *list = NULL, n = 0, n_before = 0, n_rest = a->known.n - a->ask.at;
    PI_TRY(pi_seq_find_text(a->seq, a->ask.text, a->ask.len, n_rest + PI_TEXT_LINE_TOKENS, &text,
                            &n_before, err));
    if (text == NULL)
        return PITH_OK;
    pith_status status = pi_seq_text_tokens(a->seq, text, a->ask.at, n_rest, &list, &n, err);
    pith_recall_free(text);
    if (status == PITH_OK && n > 0 && fits(s, a, n))
        status = pi_seq_note_insert(a->seq, n, err);
    else
        n = 0;
    if (status != PITH_OK || n == 0) {
        pi_mem_free(list);
        return status;
    }
    a->ask.n = n;
    a->seq->n_prompt += widens(a) ? n : 0;
    a->seq->pinned = (int32_t)pi_max(1, a->seq->n_token - n_before);
    insert(a, list, n);
    return PITH_OK;
}

void scheduler_ask(struct pith_scheduler *s, struct sched_answer *a)
{
    pith_error why;
    if (a->ask.at == 0 || a->ask.found || pith_seq_length(a->seq) != a->ask.at)
        return;
    double start = pi_time_s();
    a->ask.found = true;
    a->park.untouched = false;
    if (search(s, a, &why) != PITH_OK)
        pi_log(PITH_LOG_WARN, "scheduler request=%lld recall=off reason=\"%s\"",
               (long long)a->request->id, why.message);
    s->step.user_s += pi_time_s() - start;
}
