/*
 * scheduler_slot.c - what is parked: sequences of answers that ended, each in its slot, until the
 * next request of the slot goes on from it, somebody needs the memory, or it goes to a file. Who
 * needs memory, and when, is scheduler_admit.c's.
 *
 * What was parked longest ago is dropped first, and only after the cached prefixes that nobody uses:
 * those can be had again from their tokens alone, and are mostly what dropped slots leave behind.
 * What a keep policy or recall knows of a session is lost with it.
 *
 * Invariant: a sequence is parked whole, between two evaluations, and with no page that holds
 * nothing.
 */
#include "serve/scheduler.h"

#include "base/mem.h"

/* ---- whose it is ---- */

struct slot *scheduler_slot_of(const struct pith_scheduler *s, const struct answer *a)
{
    return a->request->slot >= 0 ? &s->slot[a->request->slot] : NULL;
}

bool scheduler_slot_is_free(const struct pith_scheduler *s, const struct answer *a)
{
    const struct slot *slot = scheduler_slot_of(s, a);
    return slot == NULL || slot->runs == NULL || slot->runs == a;
}

static void changed(struct pith_scheduler *s)
{
    s->parked_changed = true;
    s->prefixes_changed = true;
}

void scheduler_slot_clear(struct pith_scheduler *s, struct slot *slot)
{
    slot->dropped = false;
    if (slot->seq == NULL)
        return;
    pith_seq_free(slot->seq);
    slot->seq = NULL;
    s->stats.n_parked--;
    changed(s);
}

static void put(struct pith_scheduler *s, struct slot *slot, pith_seq *seq, uint64_t salt)
{
    scheduler_slot_clear(s, slot);
    slot->seq = seq;
    slot->salt = salt;
    slot->parked_at = ++s->n_park;
    s->stats.n_parked++;
    changed(s);
}

void scheduler_slot_park(struct pith_scheduler *s, struct answer *a)
{
    struct slot *slot = scheduler_slot_of(s, a);
    pi_seq_trim(a->seq);
    pi_seq_rest_draft(a->seq);
    put(s, slot, a->seq, a->request->salt);
    slot->request = a->request->id;
    slot->n_prompt = a->request->n_prompt;
    slot->n_generated = a->out.n_generated;
    slot->n_cached = a->n_cached;
    a->seq = NULL;
    a->untouched = false;
}

/* ---- memory ---- */

/* Of all slots, pages that were counted already left out. */
static int64_t count_parked(const struct pith_scheduler *s)
{
    int64_t bytes = 0;
    for (int32_t i = 0; i < s->params.n_slot; i++)
        if (s->slot[i].seq != NULL)
            bytes += pi_seq_count_bytes(s->slot[i].seq);
    return bytes;
}

static void uncount_parked(const struct pith_scheduler *s)
{
    for (int32_t i = 0; i < s->params.n_slot; i++)
        if (s->slot[i].seq != NULL)
            pi_seq_uncount(s->slot[i].seq);
}

int64_t scheduler_parked_bytes(struct pith_scheduler *s)
{
    if (s->parked_changed) {
        s->parked_bytes = count_parked(s);
        uncount_parked(s);
        s->parked_changed = false;
    }
    return s->parked_bytes;
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

bool scheduler_slot_drop(struct pith_scheduler *s)
{
    struct slot *oldest = NULL;
    for (int32_t i = 0; i < s->params.n_slot && s->stats.n_parked > 0; i++) {
        struct slot *slot = &s->slot[i];
        if (slot->seq != NULL && (oldest == NULL || slot->parked_at < oldest->parked_at))
            oldest = slot;
    }
    if (oldest == NULL)
        return false;
    pi_log(PITH_LOG_DEBUG, "scheduler dropped slot=%d tokens=%d", (int)(oldest - s->slot),
           pith_seq_length(oldest->seq));
    scheduler_slot_clear(s, oldest);
    oldest->dropped = true;
    s->stats.parked_dropped++;
    return true;
}

/* ---- what the next request reuses ---- */

static int32_t count_common(const pith_seq *seq, const struct request *r)
{
    int32_t n = 0, most = (int32_t)pi_min(r->n_prompt, seq->n_token);
    while (n < most && seq->tokens[n] == r->prompt[n])
        n++;
    return n;
}

/* Of the parked tokens those that need not be evaluated again, and not those whose logits are to be
   shown: a row of logits that was kept is not asked for then. */
static int32_t reusable(pith_seq *seq, const struct answer *a)
{
    const struct request *r = a->request;
    int32_t n = (int32_t)pi_min(r->n_prompt, (int64_t)a->n_shown + 1);
    int32_t same = pi_seq_reusable(seq, r->prompt, n);
    if (r->on_prompt == NULL || same <= a->n_shown)
        return same;
    seq->has_logits = false;
    return pi_seq_reusable(seq, r->prompt, n);
}

/* The mark of a parked sequence of which n tokens are left: its own, as long as they hold that. */
static int32_t mark_of(const pith_seq *seq, const struct request *r, int32_t n)
{
    bool lost = seq->n_prompt == 0 || seq->n_prompt > n;
    return r->n_pin > 0 || lost ? r->mark : seq->n_prompt;
}

/* Whether entries may be gone that the request wants to be pinned. */
static bool lost_pins(const pith_seq *seq, const struct request *r)
{
    bool evicted = seq->foreign || seq->tally.n_round > 0 || seq->tally.n_overwritten > 0;
    return evicted && r->n_pin > 0 && r->mark > seq->n_prompt;
}

/* Tokens of what is parked that the answer can go on from, and why not more. */
static int32_t compare(const struct slot *slot, struct answer *a)
{
    const struct request *r = a->request;
    if (slot->salt != r->salt) {
        a->reuse = PITH_REUSE_SALT;
        return 0;
    }
    int32_t common = count_common(slot->seq, r);
    bool lost = lost_pins(slot->seq, r);
    int32_t n = lost ? 0 : reusable(slot->seq, a);
    if (n == slot->seq->n_token) {
        a->reuse = PITH_REUSE_NONE;
        return n;
    }
    bool exact = n >= pi_min(common, r->n_prompt - 1);
    if (!exact && !lost && scheduler_retell(slot->seq, a)) {
        a->reuse = PITH_REUSE_NONE;
        return slot->seq->n_token;
    }
    a->reuse = exact ? PITH_REUSE_DIFFERS : PITH_REUSE_POLICY;
    a->differs_at = common;
    return n;
}

static bool others_have_more(const struct pith_scheduler *s, const struct answer *a, int32_t n)
{
    int32_t n_unused;
    return s->prefix != NULL && scheduler_find_prefix(s, a, &n_unused) > n;
}

int32_t scheduler_slot_match(struct pith_scheduler *s, struct answer *a)
{
    struct slot *slot = scheduler_slot_of(s, a);
    if (slot == NULL || a->seq != NULL || a->swapped != NULL)
        return 0;
    scheduler_untell(a); /* the slot may hold something else by now */
    if (a->known != NULL)
        return 0;
    if (slot->seq == NULL) {
        if (slot->dropped)
            a->reuse = PITH_REUSE_DROPPED;
        return 0;
    }
    a->differs_at = -1;
    int32_t n = compare(slot, a);
    if (n > 0 && !others_have_more(s, a, n)) {
        a->mark = mark_of(slot->seq, a->request, n);
        return n;
    }
    scheduler_untell(a);
    scheduler_slot_clear(s, slot);
    a->mark = a->request->mark;
    return 0;
}

pith_status scheduler_slot_take(struct pith_scheduler *s, struct answer *a, int32_t n,
                                pith_error *err)
{
    struct slot *slot = scheduler_slot_of(s, a);
    pith_seq *seq = slot->seq;
    pith_status status = PITH_OK;
    if (n < seq->n_token) { /* a fresh sequence reads all of it as a prompt */
        status = pith_seq_truncate(seq, n, err);
        pi_seq_forget_steps(seq);
        a->parts = true;
    }
    if (status == PITH_OK)
        status = pith_seq_mark_prompt(seq, a->mark, err);
    if (status != PITH_OK) {
        scheduler_slot_clear(s, slot);
        return status;
    }
    slot->seq = NULL;
    s->stats.n_parked--;
    changed(s);
    a->seq = seq;
    a->untouched = true;
    a->n_before = n;
    a->read_before = seq->read;
    return PITH_OK;
}

/* ---- the public part ---- */

/* A slot that nobody runs in, between steps. */
static pith_status find_slot(struct pith_scheduler *s, const char *what, int32_t i, pith_error *err)
{
    if (s == NULL)
        return pi_fail(err, PITH_INVALID, "%s: scheduler must not be NULL", what);
    if (i < 0 || i >= s->params.n_slot)
        return pi_fail(err, PITH_INVALID, "slot: %d is not in 0..%d", i, s->params.n_slot - 1);
    if (s->stepping)
        return pi_fail(err, PITH_BUSY, "%s: a step is running", what);
    if (s->slot[i].runs != NULL)
        return pi_fail(err, PITH_BUSY, "slot: request %lld runs in slot %d",
                       (long long)s->slot[i].runs->request->id, i);
    return PITH_OK;
}

static pith_status find_parked(struct pith_scheduler *s, const char *what, int32_t i,
                               struct slot **out, pith_error *err)
{
    PI_TRY(find_slot(s, what, i, err));
    if (s->slot[i].seq == NULL)
        return pi_fail(err, PITH_NOT_FOUND, "slot: nothing is parked in slot %d", i);
    *out = &s->slot[i];
    return PITH_OK;
}

pith_status pith_scheduler_slot_save(pith_scheduler *s, int32_t i, const char *path,
                                     int32_t *n_token, pith_error *err)
{
    struct slot *slot = NULL;
    PI_TRY(find_parked(s, "pith_scheduler_slot_save", i, &slot, err));
    if (path == NULL)
        return pi_fail(err, PITH_INVALID, "pith_scheduler_slot_save: path must not be NULL");
    PI_TRY(pith_seq_save(slot->seq, path, err));
    if (n_token != NULL)
        *n_token = pith_seq_length(slot->seq);
    return PITH_OK;
}

/* The sequence of a file. Prefixes that nobody uses and, one by one, other slots give way for it;
   whoever runs does not, and takes it back where it needs that. */
static pith_status load(struct pith_scheduler *s, const char *path, pith_seq **out, pith_error *err)
{
    pith_status status = pith_seq_load(s->engine, path, out, err);
    s->prefixes_changed = true;
    if (status == PITH_KV_FULL && s->prefix != NULL && prefix_reclaim(s->prefix, INT64_MAX) > 0)
        status = pith_seq_load(s->engine, path, out, err);
    while (status == PITH_KV_FULL && scheduler_slot_drop(s))
        status = pith_seq_load(s->engine, path, out, err);
    return status;
}

pith_status pith_scheduler_slot_restore(pith_scheduler *s, int32_t i, const char *path,
                                        uint64_t cache_salt, int32_t *n_token, pith_error *err)
{
    pith_seq *seq = NULL;
    PI_TRY(find_slot(s, "pith_scheduler_slot_restore", i, err));
    if (path == NULL)
        return pi_fail(err, PITH_INVALID, "pith_scheduler_slot_restore: path must not be NULL");
    struct slot *slot = &s->slot[i];
    PI_TRY(load(s, path, &seq, err));
    put(s, slot, seq, cache_salt);
    slot->request = 0;
    slot->n_prompt = pith_seq_length(seq);
    slot->n_generated = slot->n_cached = 0;
    if (n_token != NULL)
        *n_token = pith_seq_length(seq);
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
    scheduler_slot_clear(s, slot);
    scheduler_show(s);
    return PITH_OK;
}
