/*
 * scheduler_result.c - what a step's logits become: tokens handed out, answers that are forked from
 * one prompt, and ends. Callbacks are called here and nowhere else, on the thread that steps and
 * without the lock.
 *
 * Invariant: on_done is called once for each answer, after everything that the answer held is free
 * and nobody can find a request any more of which it was the last.
 */
#include "serve/scheduler.h"

#include "base/mem.h"
#include "base/os.h"

/* ---- text ---- */

/* Hands a part out; false: the caller wants no more. */
static bool deliver(struct pith_scheduler *s, struct answer *a, const struct pi_output_part *part)
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
        .logits = part->token >= 0 ? pith_seq_logits(a->seq) : NULL,
        .sampler = part->token >= 0 ? a->out.sampler : NULL,
    };
    double start = pi_time_s();
    bool more = r->on_token(r->user, &token);
    s->user_s += pi_time_s() - start;
    return more;
}

void scheduler_choose(struct pith_scheduler *s, struct answer *a)
{
    struct pi_output_part part;
    pith_error why;
    if (pi_output_is_full(&a->out)) {
        scheduler_end(s, a, PITH_STOP_LENGTH);
        return;
    }
    double start = pi_time_s();
    pith_status status = pi_output_next(&a->out, pith_seq_logits(a->seq), &part, &why);
    double now = pi_time_s();
    s->user_s += now - start;
    if (a->first_at == 0.0)
        a->first_at = now;
    if (status != PITH_OK) {
        scheduler_fail(s, a, &why);
        return;
    }
    if (part.token < 0) {
        scheduler_end(s, a, PITH_STOP_END);
        return;
    }
    s->stats.generated_tokens++;
    if (!deliver(s, a, &part))
        scheduler_end(s, a, PITH_STOP_CALLER);
    else if (part.ended)
        scheduler_end(s, a, PITH_STOP_STRING);
    else if (pi_output_is_full(&a->out))
        scheduler_end(s, a, PITH_STOP_LENGTH);
    a->next = part.token;
    a->has_next = true;
}

/* ---- one prompt, several answers ---- */

static int64_t evicted_of(const struct answer *a)
{
    pith_keep_stats keep;
    pith_seq_keep_stats(a->seq, &keep);
    return keep.evicted;
}

static void start_sibling(struct pith_scheduler *s, const struct answer *a, struct answer *b,
                          int64_t set_aside)
{
    const struct request *r = a->request;
    pith_error why;
    b->has_out = true;
    pith_status status = pith_seq_fork(a->seq, &b->seq, &why);
    if (status == PITH_OK)
        status = pi_output_init(&b->out, s->engine->model, &r->params, (uint64_t)b->index,
                                r->on_token != NULL, &why);
    b->state = ANSWER_GENERATING;
    b->set_aside = set_aside;
    b->target = a->target;
    b->admission = ++s->n_admission;
    b->n_cached = r->n_prompt;
    b->n_evicted = evicted_of(a);
    b->out.forced = r->forced;
    b->out.n_forced = r->n_forced;
    s->running[s->n_running++] = b; /* a's slots had one for it */
    if (status == PITH_OK)
        pi_output_accept(&b->out, r->prompt, r->n_prompt);
    else
        scheduler_fail(s, b, &why);
}

void scheduler_start_answers(struct pith_scheduler *s, struct answer *a)
{
    struct request *r = a->request;
    int32_t n = scheduler_places(a);
    int64_t part = a->set_aside / n;
    a->state = ANSWER_GENERATING;
    scheduler_slot_mark_return(s, a);
    for (int32_t i = 1; a->index == 0 && i < r->n_answer; i++)
        if (r->answer[i].state == ANSWER_SIBLING) {
            a->set_aside -= part;
            start_sibling(s, a, &r->answer[i], part);
        }
    for (int32_t i = 0; i < r->n_answer; i++)
        if (r->answer[i].state == ANSWER_GENERATING && !r->answer[i].has_next)
            scheduler_choose(s, &r->answer[i]);
}

/* ---- ends ---- */

void scheduler_publish(struct pith_scheduler *s, struct answer *a)
{
    int32_t page_len = kv_cache_geometry(s->engine->kv)->page_len;
    if (s->prefix == NULL)
        return;
    int32_t n = pi_seq_unaltered(a->seq);
    if (n / page_len <= a->n_published / page_len)
        return;
    prefix_publish(s->prefix, a->request->salt, pith_seq_tokens(a->seq), n, a->seq->memory.kv);
    a->n_published = n;
    s->prefixes_changed = true;
}

static void fill_result(const struct answer *a, const pith_error *why, pith_answer_result *out)
{
    const struct request *r = a->request;
    double now = pi_time_s();
    *out = (pith_answer_result){
        .request = r->id,
        .answer = a->index,
        .status = why != NULL ? why->status : PITH_OK,
        .message = why != NULL ? why->message : "",
        .reason = a->out.reason,
        .n_prompt = a->n_prompt,
        .n_cached = a->n_cached,
        .reuse = a->reuse,
        .differs_at = a->differs_at,
        .n_generated = a->out.n_generated,
        .n_preempted = a->n_preempted,
        .n_draft = a->n_draft,
        .n_draft_accepted = a->n_draft_accepted,
        .slot = a->slot,
        .n_from_park = a->n_from_park,
        .n_predict = r->params.n_predict,
    };
    double admitted = a->admitted_at > 0.0 ? a->admitted_at : now;
    double first = a->first_at > 0.0 ? a->first_at : now;
    out->queue_s = admitted - r->submitted_at;
    out->prompt_s = first - admitted;
    out->generate_s = now - first;
    out->keep.first_round_at = out->keep.first_overwrite_at = out->keep.budget = -1;
    if (a->seq != NULL) {
        pith_seq_keep_stats(a->seq, &out->keep);
        out->n_evicted = pi_max(0, out->keep.evicted - a->n_evicted);
        pith_seq_share_stats(a->seq, &out->share);
        pith_seq_recall_stats(a->seq, &out->recall);
        out->full_bytes = pi_seq_full_bytes(a->seq);
    }
    if (a->seq != NULL && a->swapped == NULL)
        out->held_bytes = pi_seq_held_bytes(a->seq);
}

/* A prompt that was stopped between its parts: with a read policy no later one goes on from there,
   but from what the slot had. */
static void take_back(const struct pith_scheduler *s, struct answer *a)
{
    if (!s->engine->traits.reads_parts || a->state != ANSWER_READING || a->seq == NULL ||
        a->swapped != NULL || a->torn || a->n_before >= a->seq->n_token)
        return;
    a->torn = pith_seq_truncate(a->seq, a->n_before, NULL) != PITH_OK;
    a->seq->read = a->read_before;
}

/* Whether the answer's sequence stays in its slot: it is what one of its tokens would be that was
   never stopped, and nothing failed. */
static bool stays(const struct answer *a, const pith_error *why)
{
    if (a->slot < 0 || a->seq == NULL || a->swapped != NULL || a->seq->n_token == 0)
        return false;
    return !a->torn && (why == NULL || why->status == PITH_CANCELLED);
}

/* Takes the answer from where it is, and frees what it holds. */
static void release(struct pith_scheduler *s, struct answer *a)
{
    scheduler_slot_leave(s, a);
    if (a->state == ANSWER_QUEUED)
        scheduler_dequeue(s, a);
    else if (a->state != ANSWER_SIBLING)
        scheduler_stop_running(s, a);
    else if (a->request->answer[0].state == ANSWER_READING)
        s->n_place--;
    a->state = ANSWER_ENDED;
    if (a->swapped != NULL) {
        s->swapped_bytes -= kv_swapped_host_bytes(a->swapped);
        s->stats.n_swapped--;
        kv_swapped_free(a->swapped);
        a->swapped = NULL;
    }
    pith_seq_free(a->seq);
    a->seq = NULL;
    pi_mem_free(a->known);
    a->known = NULL;
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
static void finish(struct pith_scheduler *s, struct answer *a, const pith_error *why)
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
    s->user_s += pi_time_s() - start;
}

void scheduler_end(struct pith_scheduler *s, struct answer *a, pith_stop_reason reason)
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

void scheduler_fail(struct pith_scheduler *s, struct answer *a, const pith_error *why)
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
