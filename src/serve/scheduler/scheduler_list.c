/*
 * scheduler_list.c - shows what is there: answers that run, that wait, and what slots hold. It
 * changes nothing.
 */
#include "serve/scheduler/scheduler.h"

static pith_item_state state_of(const struct sched_answer *a)
{
    if (a->swapped != NULL)
        return PITH_ITEM_SWAPPED;
    if (a->state == ANSWER_GENERATING)
        return PITH_ITEM_GENERATING;
    return a->state == ANSWER_READING ? PITH_ITEM_READING : PITH_ITEM_WAITING;
}

/* Bytes that are set aside beyond what the answer's sequence holds. */
static int64_t aside_bytes(const struct pith_scheduler *s, const struct sched_answer *a,
                           int64_t held)
{
    int32_t n = a->seq->n_token;
    if (s->engine->traits.bounded)
        return pi_max(0, a->room.set_aside - held);
    if (n >= a->room.target)
        return 0;
    return scheduler_bytes(s, a->request, a->known.mark, a->room.target) -
           scheduler_bytes(s, a->request, a->known.mark, n);
}

static bool show_answer(const struct pith_scheduler *s, const struct sched_answer *a, bool runs,
                        pith_scheduler_item_fn *fn, void *user)
{
    pith_scheduler_item item = {
        .id = a->request->id,
        .answer = a->index,
        .slot = a->park.slot,
        .state = state_of(a),
        .n_prompt = a->request->n_prompt,
        .n_generated = a->out.n_generated,
        .n_cached = a->tally.n_cached,
        .seq = a->swapped == NULL ? a->seq : NULL,
    };
    if (a->seq != NULL)
        item.n_done = a->seq->n_token;
    if (a->seq != NULL)
        item.full_bytes = pi_seq_full_bytes(a->seq);
    if (item.seq != NULL)
        item.held_bytes = pi_seq_held_bytes(a->seq);
    if (runs)
        item.aside_bytes = aside_bytes(s, a, item.held_bytes);
    return fn(user, &item);
}

static bool show_slot(const struct pith_scheduler *s, int32_t i, pith_scheduler_item_fn *fn,
                      void *user)
{
    const struct slot *slot = &s->park.slot[i];
    if (slot->seq == NULL || slot->is_return)
        return true;
    const pith_scheduler_item item = {
        .id = slot->request,
        .slot = i,
        .state = PITH_ITEM_PARKED,
        .n_prompt = slot->n_prompt,
        .n_done = slot->seq->n_token,
        .n_generated = slot->n_generated,
        .n_cached = slot->n_cached,
        .held_bytes = pi_seq_held_bytes(slot->seq),
        .full_bytes = pi_seq_full_bytes(slot->seq),
        .seq = slot->swapped == NULL ? slot->seq : NULL,
    };
    return fn(user, &item);
}

void pith_scheduler_each(pith_scheduler *s, pith_scheduler_item_fn *fn, void *user)
{
    bool more = true;
    for (int32_t i = 0; i < s->n_running && more; i++)
        more = show_answer(s, s->running[i], true, fn, user);
    for (const struct sched_answer *a = s->room.first; a != NULL && more; a = a->room.next)
        more = show_answer(s, a, false, fn, user);
    for (int32_t i = 0; i < s->park.n_slot && more; i++)
        more = show_slot(s, i, fn, user);
}
