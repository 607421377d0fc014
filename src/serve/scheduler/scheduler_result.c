/*
 * scheduler_result.c - tokens of a step's logits: they are handed out, answers are forked from one
 * prompt, and end. Callbacks are called here and nowhere else, on the thread that steps and without
 * the lock.
 *
 * Invariant: on_done is called once for each answer, after everything that the answer held is free.
 * A request whose last answer it was can no longer be found then.
 */
#include "serve/scheduler/scheduler.h"

#include "base/mem.h"
#include "base/os.h"

/* ---- text ---- */

/* Hands a part out; false: the caller wants no more. */
static bool deliver(struct pith_scheduler *s, struct sched_answer *a,
                    const struct pi_output_part *part)
{
    const struct request *r = a->request;
    if (r->on_token == NULL || (part->token < 0 && part->len == 0))
        return true;
    const pith_answer_token token = {
        .request = r->id,
        .answer = a->index,
        .token = part->token,
        .text = part->text,
        .len = part->len,
        .logits = part->token >= 0 && !r->no_logits ? pith_seq_logits(a->seq) : NULL,
        .sampler = part->token >= 0 ? a->out.sampler : NULL,
    };
    double start = pi_time_s();
    bool more = r->on_token(r->user, &token);
    s->step.user_s += pi_time_s() - start;
    return more;
}

/* An answer's next token, and whether the text ends. */
struct choice {
    int32_t token;  /* -1: the text ends without one */
    int32_t reason; /* a pith_stop_reason that ends it; -1: none */
    int32_t status; /* of choosing: not OK, and the rest says nothing */
};

/* Chooses a token, and hands it out. */
static struct choice choose(struct pith_scheduler *s, struct sched_answer *a, pith_error *why)
{
    struct pi_output_part part;
    double start = pi_time_s();
    struct choice c = {-1, -1, (int32_t)pi_output_next(&a->out, a->seq, &part, why)};
    s->step.user_s += pi_time_s() - start;
    if (c.status != PITH_OK)
        return c;
    c.token = part.token;
    if (c.token < 0)
        c.reason = PITH_STOP_END;
    else if (!deliver(s, a, &part))
        c.reason = PITH_STOP_CALLER;
    else if (part.ended)
        c.reason = PITH_STOP_STRING;
    return c;
}

void scheduler_choose(struct pith_scheduler *s, struct sched_answer *a)
{
    pith_error why;
    struct choice c = {0};
    if (pi_output_is_full(&a->out)) {
        scheduler_end(s, a, PITH_STOP_LENGTH);
        return;
    }
    if (!scheduler_ranks_follows(s))
        c = choose(s, a, &why);
    scheduler_ranks_share(s, &c, sizeof(c));
    if (a->tally.first_at == 0.0)
        a->tally.first_at = pi_time_s();
    if (c.status != PITH_OK) {
        if (scheduler_ranks_follows(s))
            pi_fail(&why, (pith_status)c.status, "rank 0 has no next token");
        scheduler_fail(s, a, &why);
        return;
    }
    if (c.token >= 0) {
        s->stats.generated_tokens++;
        a->out.n_generated += scheduler_ranks_follows(s);
        a->next = c.token;
        a->has_next = true;
    }
    if (c.reason >= 0)
        scheduler_end(s, a, (pith_stop_reason)c.reason);
    else if (pi_output_is_full(&a->out))
        scheduler_end(s, a, PITH_STOP_LENGTH);
}

/* ---- one prompt, several answers ---- */

static int64_t evicted_of(const struct sched_answer *a)
{
    pith_keep_stats keep;
    pith_seq_keep_stats(a->seq, &keep);
    return keep.evicted;
}

static void start_sibling(struct pith_scheduler *s, const struct sched_answer *a,
                          struct sched_answer *b, int64_t set_aside)
{
    const struct request *r = a->request;
    pith_error why;
    b->has_out = true;
    pith_status status = pith_seq_fork(a->seq, &b->seq, &why);
    if (status == PITH_OK)
        status = pi_output_init(&b->out, s->engine->model, &r->params, (uint64_t)b->index,
                                r->on_token != NULL, &why);
    b->state = ANSWER_GENERATING;
    b->room.set_aside = set_aside;
    b->room.target = a->room.target;
    b->room.admission = ++s->room.n_admission;
    b->tally.n_cached = r->n_prompt;
    b->tally.n_evicted = evicted_of(a);
    b->known.n_more = a->known.n_more;
    b->ask = a->ask;
    b->out.forced = r->forced;
    b->out.n_forced = r->n_forced;
    s->running[s->n_running++] = b; /* a's slots had one for it */
    if (status == PITH_OK)
        pi_output_accept(&b->out, r->prompt, r->n_prompt);
    else
        scheduler_fail(s, b, &why);
}

void scheduler_start_answers(struct pith_scheduler *s, struct sched_answer *a)
{
    struct request *r = a->request;
    int32_t n = scheduler_group_size(a);
    int64_t part = a->room.set_aside / n;
    a->state = ANSWER_GENERATING;
    scheduler_slot_mark_return(s, a);
    for (int32_t i = 1; a->index == 0 && i < r->n_answer; i++)
        if (r->answer[i].state == ANSWER_SIBLING) {
            a->room.set_aside -= part;
            start_sibling(s, a, &r->answer[i], part);
        }
    for (int32_t i = 0; i < r->n_answer; i++)
        if (r->answer[i].state == ANSWER_GENERATING && !r->answer[i].has_next)
            scheduler_choose(s, &r->answer[i]);
}

/* ---- ends ---- */

void scheduler_publish(struct pith_scheduler *s, struct sched_answer *a)
{
    int32_t page_len = kv_cache_geometry(s->engine->kv)->page_len;
    if (s->prefix == NULL)
        return;
    int32_t n = pi_seq_unaltered(a->seq);
    if (n / page_len <= a->tally.n_published / page_len)
        return;
    prefix_publish(s->prefix, a->request->salt, pith_seq_tokens(a->seq), n, a->seq->memory.kv);
    a->tally.n_published = n;
    s->prefixes_changed = true;
}

static void fill_result(const struct sched_answer *a, const pith_error *why,
                        pith_answer_result *out)
{
    const struct request *r = a->request;
    double now = pi_time_s();
    *out = (pith_answer_result){
        .request = r->id,
        .answer = a->index,
        .status = why != NULL ? why->status : PITH_OK,
        .message = why != NULL ? why->message : "",
        .reason = a->out.reason,
        .n_prompt = a->tally.n_prompt,
        .n_cached = a->tally.n_cached,
        .reuse = a->tally.reuse,
        .differs_at = a->tally.differs_at,
        .n_generated = a->out.n_generated,
        .n_preempted = a->room.n_preempted,
        .n_draft = a->draft.n,
        .n_draft_accepted = a->draft.n_accepted,
        .slot = a->park.slot,
        .n_from_park = a->tally.n_from_park,
        .n_predict = r->params.n_predict,
        .n_recalled = a->ask.n,
    };
    double admitted = a->tally.admitted_at > 0.0 ? a->tally.admitted_at : now;
    double first = a->tally.first_at > 0.0 ? a->tally.first_at : now;
    out->queue_s = admitted - r->submitted_at;
    out->prompt_s = first - admitted;
    out->generate_s = now - first;
    out->keep.first_round_at = out->keep.first_overwrite_at = out->keep.budget = -1;
    if (a->seq != NULL) {
        pith_seq_keep_stats(a->seq, &out->keep);
        out->n_evicted = pi_max(0, out->keep.evicted - a->tally.n_evicted);
        pith_seq_share_stats(a->seq, &out->share);
        pith_seq_read_stats(a->seq, &out->read);
        pith_seq_recall_stats(a->seq, &out->recall);
        out->full_bytes = pi_seq_full_bytes(a->seq);
    }
    if (a->seq != NULL && a->swapped == NULL)
        out->held_bytes = pi_seq_held_bytes(a->seq);
}

/* A prompt that was stopped between its parts. Where its question was asked, no other goes on from
   there. With a read policy no later one does, but from what the slot had. */
static void take_back(const struct pith_scheduler *s, struct sched_answer *a)
{
    a->park.torn = a->park.torn || (a->state == ANSWER_READING && a->ask.found);
    if (!pi_engine_reads_chunks(s->engine) || a->state != ANSWER_READING || a->seq == NULL ||
        a->swapped != NULL || a->park.torn || a->park.n_before >= a->seq->n_token)
        return;
    a->park.torn = pith_seq_truncate(a->seq, a->park.n_before, NULL) != PITH_OK;
    a->seq->read = a->park.read_before;
}

/* Whether the answer's sequence stays in its slot: it is what one of its tokens would be that was
   never stopped, and nothing failed. */
static bool stays(const struct sched_answer *a, const pith_error *why)
{
    if (a->park.slot < 0 || a->seq == NULL || a->swapped != NULL || a->seq->n_token == 0)
        return false;
    return !a->park.torn && (why == NULL || why->status == PITH_CANCELLED);
}

/* Takes the answer from where it is, and frees what it holds. */
static void release(struct pith_scheduler *s, struct sched_answer *a)
{
    scheduler_slot_leave(s, a);
    if (a->state == ANSWER_QUEUED)
        scheduler_dequeue(s, a);
    else if (a->state != ANSWER_SIBLING)
        scheduler_stop_running(s, a);
    else if (a->request->answer[0].state == ANSWER_READING)
        s->room.n_active--;
    a->state = ANSWER_ENDED;
    if (a->swapped != NULL) {
        s->room.swapped -= kv_swapped_host_bytes(a->swapped);
        scheduler_beside_away(s, &a->beside.own, -1);
        s->stats.n_swapped--;
        kv_swapped_free(a->swapped);
        a->swapped = NULL;
    }
    pith_seq_free(a->seq);
    a->seq = NULL;
    pi_mem_free(a->known.list);
    a->known.list = NULL;
    if (a->has_out)
        pi_output_free(&a->out);
}

/* The request's last answer has ended. */
static void finish_request(struct pith_scheduler *s, struct request *r)
{
    s->stats.n_done++;
    s->stats.n_failed += r->any_failed;
    s->stats.n_cancelled += !r->any_failed && r->any_cancelled;
    scheduler_forget(s, r);
    r->next = s->dead;
    s->dead = r;
}

/* why NULL: as OK. */
static void finish(struct pith_scheduler *s, struct sched_answer *a, const pith_error *why)
{
    struct request *r = a->request;
    pith_answer_result result;
    scheduler_end_draft(s, a);
    fill_result(a, why, &result);
    if (a->seq != NULL && a->swapped == NULL)
        scheduler_publish(s, a);
    take_back(s, a);
    if (stays(a, why))
        scheduler_slot_park(s, a);
    release(s, a);
    r->any_cancelled = r->any_cancelled || result.status == PITH_CANCELLED;
    r->any_failed = r->any_failed || (result.status != PITH_OK && result.status != PITH_CANCELLED);
    if (--r->n_left == 0)
        finish_request(s, r);
    double start = pi_time_s();
    if (r->on_done != NULL)
        r->on_done(r->user, &result);
    s->step.user_s += pi_time_s() - start;
}

void scheduler_end(struct pith_scheduler *s, struct sched_answer *a, pith_stop_reason reason)
{
    struct pi_output_part part;
    pith_error why;
    a->out.reason = reason;
    if (reason != PITH_STOP_STRING && reason != PITH_STOP_CALLER) {
        pith_status status = pi_output_flush(&a->out, reason, &part, &why);
        if (status != PITH_OK) {
            scheduler_fail(s, a, &why);
            return;
        }
        if (!deliver(s, a, &part))
            a->out.reason = PITH_STOP_CALLER;
    }
    finish(s, a, NULL);
}

void scheduler_fail(struct pith_scheduler *s, struct sched_answer *a, const pith_error *why)
{
    struct request *r = a->request;
    for (int32_t i = r->n_answer - 1; a->index == 0 && i > 0; i--)
        if (r->answer[i].state == ANSWER_SIBLING)
            finish(s, &r->answer[i], why);
    finish(s, a, why);
}

void scheduler_fail_request(struct pith_scheduler *s, struct request *r, const pith_error *why)
{
    for (int32_t i = r->n_answer - 1; i >= 0; i--)
        if (r->answer[i].state != ANSWER_ENDED)
            finish(s, &r->answer[i], why);
}
