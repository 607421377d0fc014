/*
 * scheduler_slot.c - parked conversations: sequences of answers that ended, each in its slot or in
 * a place of its own. They stay until a request goes on from them, the memory is needed, or they go
 * to a file. When memory is needed is scheduler_admit.c's, and which request goes on from what
 * scheduler_find.c's.
 *
 * Where pages are short, or bytes beside them, what was used longest ago goes to host memory. It is
 * dropped where that has no room. Cached prefixes that are not in use go before: they can be had
 * again from their tokens alone, and are mostly what slots leave behind. With a dropped session
 * everything is lost that a keep policy or recall knows of it.
 *
 * Under a keep policy a sequence cannot be cut where entries are gone. Under a read policy it can
 * hardly be cut at all, and recurrent layers go back to few places. So a copy from before the last
 * answer is parked beside it, which shares its pages until they are written to. Another answer to
 * the same prompt, or a history that leaves the answer's thoughts out, goes on from there.
 *
 * Invariant: a sequence is parked whole, between two evaluations, and with no page that holds
 * nothing.
 */
#include "serve/scheduler/scheduler.h"

#include "base/mem.h"
#include "engine/over_ranks.h"

#define PLACES_MORE 16 /* that are added at a time */
#define RETURNS_ROWS 8 /* places to return to that keep a row of logits */

/* ---- slots of answers ---- */

struct slot *scheduler_slot_of(const struct pith_scheduler *s, const struct sched_answer *a)
{
    return a->park.slot >= 0 ? &s->park.slot[a->park.slot] : NULL;
}

bool scheduler_slot_is_free(const struct pith_scheduler *s, const struct sched_answer *a)
{
    if (a->request->slot < 0)
        return true;
    const struct slot *slot = &s->park.slot[a->request->slot];
    return slot->runs == NULL || slot->runs == a;
}

static void changed(struct pith_scheduler *s)
{
    s->park.changed = true;
    s->prefixes_changed = true;
}

/* The place to return to that belongs to a slot goes. */
static void forget_return(struct pith_scheduler *s, struct slot *slot)
{
    int32_t back = slot->back;
    slot->back = -1;
    if (back >= 0 && s->park.slot[back].is_return && s->park.slot[back].stamp == slot->back_stamp)
        scheduler_slot_clear(s, &s->park.slot[back]);
}

pith_seq *scheduler_slot_empty(struct pith_scheduler *s, struct slot *slot)
{
    pith_seq *seq = slot->seq;
    scheduler_beside_park(s, slot, -1);
    slot->seq = NULL;
    s->park.n_return -= slot->is_return;
    slot->is_return = false;
    s->stats.n_parked--;
    changed(s);
    return seq;
}

void scheduler_slot_clear(struct pith_scheduler *s, struct slot *slot)
{
    slot->dropped = false;
    if (slot->swapped != NULL) {
        s->room.swapped -= kv_swapped_host_bytes(slot->swapped);
        s->stats.n_parked_swapped--;
        kv_swapped_free(slot->swapped);
        slot->swapped = NULL;
        scheduler_beside_away(s, &slot->own, -1);
        slot->own = (struct pi_own){0}; /* nothing of it is counted as parked */
    }
    if (slot->seq != NULL)
        pith_seq_free(scheduler_slot_empty(s, slot));
}

static void park(struct pith_scheduler *s, struct slot *slot, pith_seq *seq, uint64_t salt)
{
    scheduler_slot_clear(s, slot);
    slot->seq = seq;
    slot->salt = salt;
    slot->session = 0;
    slot->stamp = slot->parked_at = ++s->park.n_park;
    scheduler_beside_park(s, slot, 1);
    s->stats.n_parked++;
    changed(s);
}

static void describe(struct slot *slot, const struct sched_answer *a)
{
    slot->session = a->request->session;
    slot->request = a->request->id;
    slot->n_prompt = a->request->n_prompt;
    slot->n_generated = a->out.n_generated;
    slot->n_cached = a->tally.n_cached;
}

/* A row of logits is as large as a vocabulary, and of use only where the same is asked again. */
static void drop_logits(pith_seq *seq)
{
    pi_mem_free(seq->logits);
    seq->logits = NULL;
    seq->has_logits = false;
    pi_row_free(seq);
}

void scheduler_slot_park(struct pith_scheduler *s, struct sched_answer *a)
{
    struct slot *slot = scheduler_slot_of(s, a);
    pith_seq *seq = a->seq;
    bool again = a->park.untouched && a->park.branches; /* the sequence that it is a copy of is
                                                           still there */
    a->seq = NULL;
    a->park.untouched = false;
    if (slot == NULL || again) {
        pith_seq_free(seq);
        return;
    }
    pi_seq_trim(seq);
    pi_seq_rest_draft(seq);
    if (a->request->slot < 0 && a->out.n_generated > 0)
        drop_logits(seq);
    park(s, slot, seq, a->request->salt);
    describe(slot, a);
}

/* ---- places ---- */

/* A place that is no slot's, and empty; -1: there is no memory for one more. */
static int32_t find_place(struct pith_scheduler *s)
{
    for (int32_t i = s->params.n_slot; i < s->park.n_slot; i++)
        if (s->park.slot[i].seq == NULL && s->park.slot[i].runs == NULL)
            return i;
    int32_t n = s->park.n_slot + PLACES_MORE;
    struct slot *slot = n <= PITH_SLOT_MAX
                            ? pi_mem_grow(PI_MEM_OTHER, s->park.slot, (size_t)n, sizeof(*slot))
                            : NULL;
    if (slot == NULL)
        return -1;
    for (int32_t i = s->park.n_slot; i < n; i++)
        slot[i] = (struct slot){.back = -1};
    s->park.slot = slot;
    s->park.n_slot = n;
    return n - PLACES_MORE;
}

/* A conversation in a slot that another one wants goes to a place. */
static void move_out(struct pith_scheduler *s, int32_t i)
{
    int32_t to = find_place(s);
    if (to < 0) {
        scheduler_slot_clear(s, &s->park.slot[i]);
        return;
    }
    s->park.slot[to] = s->park.slot[i];
    s->park.slot[to].runs = NULL;
    s->park.slot[i] = (struct slot){.runs = s->park.slot[i].runs, .back = -1};
}

void scheduler_slot_enter(struct pith_scheduler *s, struct sched_answer *a)
{
    const struct request *r = a->request;
    struct slot *slot = scheduler_slot_of(s, a);
    if (slot != NULL && slot->runs == a) /* it was put back meanwhile */
        return;
    if (r->slot == -1 || r->n_answer > 1)
        return;
    bool moved = a->park.from >= 0 && !a->park.branches;
    a->park.slot = r->slot >= 0 ? r->slot : moved ? a->park.from : find_place(s);
    if (a->park.slot < 0)
        return;
    slot = &s->park.slot[a->park.slot];
    if (slot->seq != NULL) {
        bool same = slot->salt == r->salt &&
                    2 * (int64_t)scheduler_common(slot->seq, r) >= slot->seq->n_token;
        if (same || s->params.no_prefix)
            scheduler_slot_clear(s, slot);
        else
            move_out(s, a->park.slot);
        slot = &s->park.slot[a->park.slot];
    }
    if (!moved || a->park.from != a->park.slot)
        forget_return(s, slot);
    a->park.from = -1;
    slot->runs = a;
    slot->dropped = false;
}

void scheduler_slot_leave(struct pith_scheduler *s, struct sched_answer *a)
{
    struct slot *slot = scheduler_slot_of(s, a);
    if (slot != NULL && slot->runs == a)
        slot->runs = NULL;
    if (a->request->slot < 0)
        a->park.slot = -1;
}

/* A request that asks the same again goes on from the row of logits. Of the last few that is
   likely. */
static void thin_rows(struct pith_scheduler *s)
{
    struct slot *oldest = NULL;
    int32_t n = 0;
    for (int32_t i = s->params.n_slot; i < s->park.n_slot; i++) {
        struct slot *slot = &s->park.slot[i];
        if (!slot->is_return || slot->seq->logits == NULL)
            continue;
        n++;
        if (oldest == NULL || slot->parked_at < oldest->parked_at)
            oldest = slot;
    }
    if (n >= RETURNS_ROWS)
        drop_logits(oldest->seq);
}

void scheduler_slot_mark_return(struct pith_scheduler *s, struct sched_answer *a)
{
    pith_seq *seq = NULL;
    if (a->park.slot < 0 || pi_engine_goes_back(s->engine) || s->params.no_prefix ||
        a->request->on_prompt != NULL)
        return;
    forget_return(s, &s->park.slot[a->park.slot]);
    int32_t i = scheduler_beside_fits_copy(s, a) ? find_place(s) : -1;
    if (i < 0 || pith_seq_fork(a->seq, &seq, NULL) != PITH_OK)
        return;
    thin_rows(s);
    park(s, &s->park.slot[i], seq, a->request->salt);
    describe(&s->park.slot[i], a);
    s->park.slot[i].is_return = true;
    s->park.n_return++;
    s->park.slot[a->park.slot].back = i;
    s->park.slot[a->park.slot].back_stamp = s->park.slot[i].stamp;
}

/* ---- memory ---- */

/* Of all slots, pages that were counted already left out. */
static int64_t count_parked(const struct pith_scheduler *s)
{
    int64_t bytes = 0;
    for (int32_t i = 0; i < s->park.n_slot; i++)
        if (s->park.slot[i].seq != NULL)
            bytes += pi_seq_count_bytes(s->park.slot[i].seq);
    return bytes;
}

static void uncount_parked(const struct pith_scheduler *s)
{
    for (int32_t i = 0; i < s->park.n_slot; i++)
        if (s->park.slot[i].seq != NULL)
            pi_seq_uncount(s->park.slot[i].seq);
}

int64_t scheduler_parked_bytes(struct pith_scheduler *s)
{
    if (s->park.changed) {
        s->park.bytes = count_parked(s);
        uncount_parked(s);
        s->park.changed = false;
    }
    return s->park.bytes;
}

int64_t scheduler_parked_alone_bytes(const struct pith_scheduler *s)
{
    if (s->stats.n_parked == 0)
        return 0;
    for (int32_t i = 0; i < s->n_running; i++)
        pi_seq_count_bytes(s->running[i]->seq);
    int64_t bytes = count_parked(s);
    uncount_parked(s);
    for (int32_t i = 0; i < s->n_running; i++)
        pi_seq_uncount(s->running[i]->seq);
    return bytes;
}

/* ---- what made room ---- */

static void note_gone(struct pith_scheduler *s, const struct slot *slot)
{
    struct gone *gone = &s->park.gone[s->park.next_gone];
    s->park.next_gone = (s->park.next_gone + 1) % N_GONE;
    *gone = (struct gone){.salt = slot->salt, .hash = PI_HASH_EMPTY, .n = slot->seq->n_token};
    for (int32_t i = 0; i < gone->n; i++)
        gone->hash = scheduler_sum(gone->hash, slot->seq->tokens[i]);
}

bool scheduler_is_gone(const struct pith_scheduler *s, const struct request *r, int32_t *n)
{
    bool any = false;
    for (int32_t i = 0; i < N_GONE; i++)
        any = any || (s->park.gone[i].n > 0 && s->park.gone[i].n <= r->n_prompt);
    *n = 0;
    uint64_t hash = PI_HASH_EMPTY;
    for (int32_t t = 0; t < r->n_prompt && any; t++) {
        hash = scheduler_sum(hash, r->prompt[t]);
        for (int32_t i = 0; i < N_GONE; i++)
            if (s->park.gone[i].n == t + 1 && s->park.gone[i].hash == hash &&
                s->park.gone[i].salt == r->salt)
                *n = t + 1;
    }
    return *n > 0;
}

/* Whether x makes room before y. */
static bool goes_before(const struct slot *x, const struct slot *y)
{
    return x->is_return != y->is_return ? x->is_return : x->parked_at < y->parked_at;
}

/* The conversation that makes room first, of those with pages or of those in host memory; NULL:
   none. */
static struct slot *find_oldest(struct pith_scheduler *s, bool swapped)
{
    struct slot *first = NULL;
    for (int32_t i = 0; i < s->park.n_slot && s->stats.n_parked > 0; i++) {
        struct slot *slot = &s->park.slot[i];
        if (slot->seq != NULL && !slot->held && (slot->swapped != NULL) == swapped &&
            (first == NULL || goes_before(slot, first)))
            first = slot;
    }
    return first;
}

static void drop(struct pith_scheduler *s, struct slot *slot)
{
    bool counts = !slot->is_return;
    pi_log(PITH_LOG_DEBUG, "scheduler dropped slot=%d tokens=%d", (int)(slot - s->park.slot),
           pith_seq_length(slot->seq));
    if (counts)
        note_gone(s, slot);
    scheduler_slot_clear(s, slot);
    slot->dropped = counts;
    s->stats.parked_dropped += counts;
}

bool scheduler_host_room(struct pith_scheduler *s, int64_t bytes)
{
    int64_t parked = 0;
    for (int32_t i = 0; i < s->park.n_slot && s->stats.n_parked_swapped > 0; i++)
        if (s->park.slot[i].swapped != NULL && !s->park.slot[i].held)
            parked +=
                kv_swapped_host_bytes(s->park.slot[i].swapped) + pi_own_sum(&s->park.slot[i].own);
    bool fits = bytes <= s->params.swap_bytes - (s->room.swapped - parked);
    if (!scheduler_ranks_agree(s, scheduler_ranks_fit(s, fits)))
        return false;
    while (!scheduler_ranks_fit(s, bytes <= s->params.swap_bytes - s->room.swapped))
        drop(s, find_oldest(s, true));
    return true;
}

/* A place to return to is a copy, which is not worth it. */
static bool swap_out(struct pith_scheduler *s, struct slot *slot)
{
    if (slot->is_return || !pi_seq_can_swap(slot->seq) ||
        !scheduler_host_room(s, kv_seq_swap_bytes(slot->seq->memory.kv) + pi_own_sum(&slot->own)) ||
        pi_seq_swap_out(slot->seq, &slot->swapped, NULL) != PITH_OK)
        return false;
    s->room.swapped += kv_swapped_host_bytes(slot->swapped);
    scheduler_beside_park(s, slot, -1);
    slot->own = slot->seq->away;
    scheduler_beside_away(s, &slot->own, 1);
    s->stats.n_parked_swapped++;
    changed(s);
    pi_log(PITH_LOG_DEBUG, "scheduler swapped slot=%d tokens=%d", (int)(slot - s->park.slot),
           pith_seq_length(slot->seq));
    return true;
}

bool scheduler_slot_give(struct pith_scheduler *s)
{
    struct slot *first = find_oldest(s, false);
    if (first != NULL && !swap_out(s, first))
        drop(s, first);
    scheduler_beside_bound(s); /* what it had beside pages may be pages now */
    return first != NULL;
}

pith_status scheduler_slot_bring(struct pith_scheduler *s, struct slot *slot, pith_error *err)
{
    struct kv_swapped *swapped = slot->swapped;
    bool held = slot->held;
    if (swapped == NULL)
        return PITH_OK;
    int64_t host = kv_swapped_host_bytes(swapped), pool = kv_swapped_pool_bytes(swapped);
    slot->held = true;
    bool fits = scheduler_make_room(s, pool + (s->beside.room > 0 ? pi_own_sum(&slot->own) : 0));
    slot->held = held;
    if (!fits)
        return pi_fail(err, PITH_KV_FULL, "a parked sequence takes %lld bytes of pages",
                       (long long)pool);
    PI_TRY(pi_seq_swap_in(slot->seq, swapped, err));
    slot->swapped = NULL;
    s->step.spare -= pool;
    s->room.swapped -= host;
    scheduler_beside_away(s, &slot->own, -1);
    scheduler_beside_park(s, slot, 1);
    s->stats.n_parked_swapped--;
    changed(s);
    return PITH_OK;
}

int64_t scheduler_slot_bytes(const struct slot *slot)
{
    return slot->swapped != NULL ? kv_swapped_pool_bytes(slot->swapped)
                                 : pi_seq_held_bytes(slot->seq);
}

/* ---- the public part ---- */

/* Whether slot i is one of n in which no answer runs, between steps. */
static pith_status check_slot(const struct pith_scheduler *s, const char *what, int32_t i,
                              int32_t n, pith_error *err)
{
    if (i < 0 || i >= n)
        return pi_fail(err, PITH_INVALID, "slot: %d is not in 0..%d", i, n - 1);
    if (s->stepping)
        return pi_fail(err, PITH_BUSY, "%s: a step is running", what);
    if (s->park.slot[i].runs != NULL)
        return pi_fail(err, PITH_BUSY, "slot: request %lld runs in slot %d",
                       (long long)s->park.slot[i].runs->request->id, i);
    return PITH_OK;
}

/* The conversation in a slot, or in a place of its own. */
static pith_status find_parked(struct pith_scheduler *s, const char *what, int32_t i,
                               struct slot **out, pith_error *err)
{
    if (s == NULL)
        return pi_fail(err, PITH_INVALID, "%s: scheduler must not be NULL", what);
    PI_TRY(check_slot(s, what, i, s->park.n_slot, err));
    if (s->park.slot[i].seq == NULL)
        return pi_fail(err, PITH_NOT_FOUND, "slot: nothing is parked in slot %d", i);
    *out = &s->park.slot[i];
    return PITH_OK;
}

pith_status pith_scheduler_slot_save(pith_scheduler *s, int32_t i, const char *path,
                                     int32_t *n_token, pith_error *err)
{
    struct slot *slot = NULL;
    PI_TRY(find_parked(s, "pith_scheduler_slot_save", i, &slot, err));
    if (path == NULL)
        return pi_fail(err, PITH_INVALID, "pith_scheduler_slot_save: path must not be NULL");
    PI_TRY(pi_over_ranks_check_file(err));
    PI_TRY(scheduler_slot_bring(s, slot, err));
    PI_TRY(pith_seq_save(slot->seq, path, err));
    if (n_token != NULL)
        *n_token = pith_seq_length(slot->seq);
    return PITH_OK;
}

/* The sequence of a file. Prefixes that are not in use and, one by one, other slots give way for
   it. Answers that run do not, and may take its memory back later. */
static pith_status load(struct pith_scheduler *s, const char *path, pith_seq **out, pith_error *err)
{
    pith_status status = pith_seq_load(s->engine, path, out, err);
    s->prefixes_changed = true;
    if (status == PITH_KV_FULL && s->prefix != NULL && prefix_reclaim(s->prefix, INT64_MAX) > 0)
        status = pith_seq_load(s->engine, path, out, err);
    while (status == PITH_KV_FULL && scheduler_slot_give(s))
        status = pith_seq_load(s->engine, path, out, err);
    return status;
}

pith_status pith_scheduler_slot_restore(pith_scheduler *s, int32_t i, const char *path,
                                        uint64_t cache_salt, int32_t *n_token, pith_error *err)
{
    pith_seq *seq = NULL;
    if (s == NULL)
        return pi_fail(err, PITH_INVALID,
                       "pith_scheduler_slot_restore: scheduler must not be NULL");
    PI_TRY(check_slot(s, "pith_scheduler_slot_restore", i, s->park.n_slot, err));
    if (path == NULL)
        return pi_fail(err, PITH_INVALID, "pith_scheduler_slot_restore: path must not be NULL");
    PI_TRY(pi_over_ranks_check_file(err));
    struct slot *slot = &s->park.slot[i];
    PI_TRY(load(s, path, &seq, err));
    park(s, slot, seq, cache_salt);
    slot->request = 0;
    slot->n_prompt = pith_seq_length(seq);
    slot->n_generated = slot->n_cached = 0;
    if (n_token != NULL)
        *n_token = pith_seq_length(seq);
    scheduler_beside_settle(s);
    scheduler_show(s);
    return PITH_OK;
}

pith_status pith_scheduler_slot_erase(pith_scheduler *s, int32_t i, int32_t *n_token,
                                      pith_error *err)
{
    struct slot *slot = NULL;
    PI_TRY(find_parked(s, "pith_scheduler_slot_erase", i, &slot, err));
    if (n_token != NULL)
        *n_token = pith_seq_length(slot->seq);
    scheduler_ranks_tell_erase(s, i);
    scheduler_slot_clear(s, slot);
    scheduler_show(s);
    return PITH_OK;
}
