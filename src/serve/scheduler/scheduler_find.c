/*
 * scheduler_find.c - which parked conversation a request goes on from. Tokens decide: the one that
 * has most of the prompt. Names of slots and sessions only say which of several equals.
 *
 * A parked conversation goes on in one answer at a time. So a request takes the sequence where its
 * prompt goes on with all of it, and a copy where it only begins alike. The conversation then stays
 * for its own next turn. A copy shares its pages.
 *
 * Invariant: nothing of another salt is looked at, so that no time and no figure tells of it.
 */
#include "serve/scheduler/scheduler.h"

#include "base/mem.h"

int32_t scheduler_common(const pith_seq *seq, const struct request *r)
{
    int32_t n = 0, t = 0;
    for (int32_t i = 0; t < seq->n_token; n++, t++) {
        while (i < seq->text.n_insert && seq->text.insert[i].from == t)
            t += seq->text.insert[i++].n;
        if (t >= seq->n_token || n == r->n_prompt || seq->tokens[t] != r->prompt[n])
            break;
    }
    return n;
}

/* Of the parked tokens those that need not be evaluated again. Tokens whose logits are to be
   shown are not among them: a row of logits that was kept is not asked for then. */
static int32_t reusable(pith_seq *seq, const struct sched_answer *a)
{
    const struct request *r = a->request;
    int32_t n = (int32_t)pi_min(r->n_prompt, (int64_t)a->step.n_shown + 1);
    int32_t same = pi_seq_reusable(seq, r->prompt, n);
    if (r->on_prompt == NULL || same <= a->step.n_shown)
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
    bool evicted =
        seq->is_loaded || seq->keep.tally.n_round > 0 || seq->keep.tally.n_overwritten > 0;
    return evicted && r->n_pin > 0 && r->mark > seq->n_prompt;
}

/* ---- looking ---- */

/* A parked conversation beside the prompt. */
struct match {
    int32_t slot;   /* -1: none */
    int32_t n;      /* tokens that the answer can go on from */
    int32_t n_able; /* and before the rule that a copy saves a page */
    int32_t common; /* tokens that both begin with */
    bool told;      /* n counts what recall read in front of questions, too */
};

/* One that is shown logits of its prompt changes what it looks at, so that it has its slot
   alone. */
static bool may_look(const struct pith_scheduler *s, const struct sched_answer *a, int32_t i)
{
    const struct slot *slot = &s->park.slot[i];
    const struct request *r = a->request;
    if (slot->seq == NULL || (slot->runs != NULL && slot->runs != a) || slot->salt != r->salt)
        return false;
    return i == r->slot || (!s->params.no_prefix && r->on_prompt == NULL);
}

/* Whether the prompt goes on with all of a parked conversation in which recall read something: only
   that is not in the prompt. */
static bool is_told(const pith_seq *seq, const struct request *r, int32_t common)
{
    int32_t n_insert = pi_seq_inserted(seq, seq->n_token);
    return n_insert > 0 && r->on_prompt == NULL && common == seq->n_token - n_insert &&
           (common < r->n_prompt || seq->has_logits);
}

/* Of a conversation of others a copy is made, which has to be worth it: a page at least. */
static struct match look_at(const struct pith_scheduler *s, const struct sched_answer *a, int32_t i)
{
    const struct request *r = a->request;
    pith_seq *seq = s->park.slot[i].seq;
    struct match m = {.slot = i, .common = scheduler_common(seq, r)};
    if (!lost_pins(seq, r)) {
        m.told = is_told(seq, r, m.common);
        m.n = m.told ? seq->n_token : reusable(seq, a);
    }
    m.n_able = m.n;
    bool part = m.n < seq->n_token;
    if (part && i != r->slot && m.n < kv_cache_geometry(s->engine->kv)->page_len)
        m.n = 0;
    return m;
}

/* Whether x is to be preferred to y, which have as much of the prompt. The slot's own comes
   first, then the session's, then the one that was used last. */
static bool is_nearer(const struct pith_scheduler *s, const struct sched_answer *a, int32_t x,
                      int32_t y)
{
    const struct request *r = a->request;
    bool named_x = r->session != 0 && s->park.slot[x].session == r->session;
    bool named_y = r->session != 0 && s->park.slot[y].session == r->session;
    if ((x == r->slot) != (y == r->slot))
        return x == r->slot;
    return named_x != named_y ? named_x : s->park.slot[x].parked_at > s->park.slot[y].parked_at;
}

/* The conversation that has most to go on from, and the one that is most alike. */
static void look(const struct pith_scheduler *s, const struct sched_answer *a, struct match *best,
                 struct match *like)
{
    *best = *like = (struct match){.slot = -1};
    for (int32_t i = 0; i < s->park.n_slot; i++) {
        if (!may_look(s, a, i))
            continue;
        struct match m = look_at(s, a, i);
        if (best->slot < 0 || m.n > best->n || (m.n == best->n && is_nearer(s, a, i, best->slot)))
            *best = m;
        if (like->slot < 0 || m.common > like->common ||
            (m.common == like->common && is_nearer(s, a, i, like->slot)))
            *like = m;
    }
}

/* Whether a parked conversation is the request's, whatever became of it: it is named, or most of it
   is in the prompt. Templates begin alike, so that a few tokens say nothing. */
static bool is_its_own(const struct pith_scheduler *s, const struct sched_answer *a,
                       const struct match *m)
{
    const struct request *r = a->request;
    if (m->slot < 0)
        return false;
    const struct slot *slot = &s->park.slot[m->slot];
    return m->slot == r->slot || (r->session != 0 && slot->session == r->session) ||
           2 * (int64_t)m->common >= slot->seq->n_token;
}

/* Why no more than best was found. */
static void say_why(const struct pith_scheduler *s, struct sched_answer *a,
                    const struct match *best, const struct match *like)
{
    const struct request *r = a->request;
    const struct slot *own = r->slot >= 0 ? &s->park.slot[r->slot] : NULL;
    int32_t n_gone;
    a->tally.reuse = PITH_REUSE_NEW;
    if (is_its_own(s, a, like)) {
        int32_t n_exact = pi_min(like->common, r->n_prompt - 1);
        a->tally.reuse = best->n >= n_exact        ? PITH_REUSE_DIFFERS
                         : like->n_able >= n_exact ? PITH_REUSE_SHORT
                                                   : PITH_REUSE_POLICY;
        a->tally.differs_at = like->common;
    }
    if (own != NULL && own->seq != NULL && own->salt != r->salt)
        a->tally.reuse = PITH_REUSE_SALT;
    bool dropped = own != NULL && own->seq == NULL && own->dropped;
    if (dropped || (scheduler_is_gone(s, r, &n_gone) && n_gone > best->n)) {
        a->tally.reuse = PITH_REUSE_DROPPED;
        a->tally.differs_at = -1;
    }
}

/* Whether a prompt whose tokens differ may go on from a parked sequence by its text. That is for
   sequences which are what came of their history: a policy does not let them be cut there. Any
   other answers a prompt by its own tokens, and reads anew those that windows and recurrent layers
   forgot. more: tokens that can be had otherwise. */
static bool may_retell(const struct pith_scheduler *s, const struct sched_answer *a, int32_t i,
                       int32_t more)
{
    const struct request *r = a->request;
    const pith_seq *seq = s->park.slot[i].seq;
    if (!may_look(s, a, i) || seq->n_token <= more || lost_pins(seq, r))
        return false;
    int32_t most = (int32_t)pi_min(scheduler_common(seq, r), r->n_prompt - 1);
    int32_t exact = pi_verbs_leave(s->engine, most, r->n_prompt);
    return most > more && pi_seq_policies_reach(seq, most, r->n_prompt) < exact &&
           scheduler_can_retell(seq, r);
}

/* Where a policy allows no way back to where tokens differ, their text may not. Of several the one
   that has most of it goes on. */
static bool find_text(struct pith_scheduler *s, struct sched_answer *a, struct match *best,
                      const struct match *like)
{
    int32_t found = -1, n_found = 0;
    if (like->slot < 0 || best->n >= pi_min(like->common, a->request->n_prompt - 1))
        return false;
    for (int32_t i = 0; i < s->park.n_slot; i++) {
        if (!may_retell(s, a, i, best->n))
            continue;
        int32_t n = s->park.slot[i].seq->n_token;
        if (found < 0 || n > n_found || (n == n_found && is_nearer(s, a, i, found))) {
            found = i;
            n_found = n;
        }
    }
    if (found < 0 || !scheduler_retell(s->park.slot[found].seq, a))
        return false;
    *best = (struct match){.slot = found, .n = n_found};
    return true;
}

static bool others_have_more(const struct pith_scheduler *s, const struct sched_answer *a,
                             int32_t n)
{
    int32_t n_unused;
    return s->prefix != NULL && scheduler_find_prefix(s, a, &n_unused) > n;
}

int32_t scheduler_find(struct pith_scheduler *s, struct sched_answer *a)
{
    struct match best, like;
    if (a->request->slot == -1 || a->seq != NULL || a->swapped != NULL)
        return 0;
    scheduler_untell(a); /* something else may be parked by now */
    a->park.from = -1;
    if (a->known.list != NULL)
        return 0;
    a->tally.differs_at = -1;
    look(s, a, &best, &like);
    if (best.told && !scheduler_retell(s->park.slot[best.slot].seq, a))
        best = (struct match){.slot = -1};
    bool whole = best.n > 0 && best.n == s->park.slot[best.slot].seq->n_token;
    if (whole || find_text(s, a, &best, &like))
        a->tally.reuse = PITH_REUSE_NONE;
    else
        say_why(s, a, &best, &like);
    if (best.n > 0 && !others_have_more(s, a, best.n)) {
        a->park.from = best.slot;
        a->known.mark = mark_of(s->park.slot[best.slot].seq, a->request, best.n);
        return best.n;
    }
    scheduler_untell(a);
    a->known.mark = a->request->mark;
    return 0;
}

/* ---- taking ---- */

/* Whether the answer gets the sequence itself, of which it goes on from n tokens. A prompt that was
   only read, and one that several answers go on from, stay for others. */
static bool moves(const struct pith_scheduler *s, const struct sched_answer *a,
                  const struct slot *from, int32_t n)
{
    const struct request *r = a->request;
    bool whole = n == from->seq->n_token;
    if (r->slot >= 0 && from == &s->park.slot[r->slot])
        return whole || s->params.no_prefix || 2 * (int64_t)n >= from->seq->n_token;
    bool named = r->session != 0 && r->session == from->session;
    return whole && r->n_answer == 1 && (named || from->n_generated > 0 || from->is_return);
}

/* Lets a sequence go back to n tokens, for which shared pages may be copied. */
static pith_status cut(struct pith_scheduler *s, struct sched_answer *a, pith_seq *seq, int32_t n,
                       pith_error *err)
{
    if (n < seq->n_token) { /* a fresh sequence reads all of it as a prompt */
        int64_t copies = kv_seq_truncate_copies(seq->memory.kv, n);
        scheduler_make_room(s, copies);
        s->step.spare -= copies;
        PI_TRY(pith_seq_truncate(seq, n, err));
        pi_verbs_as_prompt(seq);
        a->park.parts = true;
    }
    return pith_seq_mark_prompt(seq, a->known.mark, err);
}

pith_status scheduler_take(struct pith_scheduler *s, struct sched_answer *a, int32_t n,
                           pith_error *err)
{
    struct slot *from = &s->park.slot[a->park.from];
    pith_seq *seq = NULL;
    PI_TRY(scheduler_slot_bring(s, from, err));
    a->park.branches = !moves(s, a, from, n);
    if (a->park.branches) {
        PI_TRY(pith_seq_fork(from->seq, &seq, err));
        kv_seq_borrow_state(seq->memory.kv, from->seq->memory.kv, n);
        from->parked_at = ++s->park.n_park;
        s->park.changed = s->prefixes_changed = true;
    } else {
        seq = scheduler_slot_empty(s, from);
    }
    from->held = true;
    pith_status status = cut(s, a, seq, n, err);
    from->held = false;
    if (status != PITH_OK) {
        pith_seq_free(seq);
        return status;
    }
    pith_keep_stats keep;
    pith_seq_keep_stats(seq, &keep);
    a->tally.n_evicted = keep.evicted;
    seq->pinned = 0; /* what was is of a question that is answered */
    a->seq = seq;
    a->park.untouched = true;
    a->park.n_before = n;
    a->park.read_before = seq->read;
    return PITH_OK;
}
