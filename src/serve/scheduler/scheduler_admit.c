/*
 * scheduler_admit.c - memory: which answers may begin, and which have to give way. Each answer that
 * runs has the tokens that it may grow to set aside. The first of the queue begins when its own fit
 * beside them. No answer behind it begins before, so that none starves.
 *
 * Two accounts. Under a keep policy a sequence's memory is bounded for any generated text, and
 * rounds copy the pages that it shares. The sum of these bounds stays within the memory, and then
 * no answer is ever put back. Without one pages are only added to. So pages of several sequences or
 * of the cache of prefixes count once, as the pool itself counts them. On top of that comes the
 * possible growth of each. Parked conversations are in the pool, and give way: for admission they
 * count as free, as prefixes do that are not in use. They go to host memory, or are dropped, when
 * their pages are needed, not before. One budget holds pages and all that sequences have beside
 * them (scheduler_beside.c).
 */
#include "serve/scheduler/scheduler.h"

#include <math.h>

#include "base/mem.h"
#include "base/os.h"

/* ---- the queue ---- */

/* Whether a comes before b. */
static bool precedes(const struct sched_answer *a, const struct sched_answer *b)
{
    const struct request *ra = a->request, *rb = b->request;
    if (ra->priority != rb->priority)
        return ra->priority > rb->priority;
    return ra->id != rb->id ? ra->id < rb->id : a->index < b->index;
}

/* From the end: most come in order. */
void scheduler_enqueue(struct pith_scheduler *s, struct sched_answer *a)
{
    struct sched_answer *before = s->room.last;
    while (before != NULL && precedes(a, before))
        before = before->room.prev;
    struct sched_answer *after = before != NULL ? before->room.next : s->room.first;
    a->state = ANSWER_QUEUED;
    a->room.prev = before;
    a->room.next = after;
    *(before != NULL ? &before->room.next : &s->room.first) = a;
    *(after != NULL ? &after->room.prev : &s->room.last) = a;
}

void scheduler_dequeue(struct pith_scheduler *s, struct sched_answer *a)
{
    *(a->room.prev != NULL ? &a->room.prev->room.next : &s->room.first) = a->room.next;
    *(a->room.next != NULL ? &a->room.next->room.prev : &s->room.last) = a->room.prev;
    a->room.prev = a->room.next = NULL;
}

/* ---- what answers take ---- */

/* Answers that wait for the prompt that a reads. */
static int32_t count_siblings(const struct sched_answer *a)
{
    const struct request *r = a->request;
    int32_t n = 0;
    for (int32_t i = 1; a->index == 0 && i < r->n_answer; i++)
        n += r->answer[i].state == ANSWER_SIBLING;
    return n;
}

int32_t scheduler_group_size(const struct sched_answer *a)
{
    return 1 + count_siblings(a);
}

/* The last token is never evaluated. */
int32_t scheduler_final(const struct pith_scheduler *s, const struct request *r)
{
    if (r->params.n_predict < 0)
        return (int32_t)pi_max(r->n_prompt, s->engine->model->hp.n_ctx_train);
    return r->n_prompt + (int32_t)pi_max(0, r->params.n_predict - 1);
}

/* Where rounds wait for a prompt's end, a prompt is held whole behind a smaller mark, too. */
int64_t scheduler_bytes(const struct pith_scheduler *s, const struct request *r, int32_t mark,
                        int32_t n)
{
    const struct pith_engine *e = s->engine;
    struct keep_point to = {n, mark, r->budget_scale, 0};
    int64_t bytes = pi_engine_bytes_at(e, to);
    if (mark < r->n_prompt && pi_engine_holds_prompts(e)) {
        to.n_prompt = r->n_prompt;
        bytes = pi_max(bytes, pi_engine_bytes_at(e, to));
    }
    return bytes;
}

/* The same of an answer's sequence. */
static int64_t bytes_of(const struct pith_scheduler *s, const struct sched_answer *a, int32_t n)
{
    int32_t n_ask = a->ask.at > 0 && a->known.mark > a->ask.at ? a->request->n_ask : 0;
    return scheduler_bytes(s, a->request, a->known.mark + n_ask, n);
}

double scheduler_reserve(const struct pith_scheduler *s)
{
    const struct engine_traits *traits = &s->engine->traits;
    if (s->params.reserve >= 0.0)
        return s->params.reserve;
    /* An answer that would be put back and cannot be computed again would end there. */
    bool stays = traits->counts_steps && s->params.swap_bytes == 0;
    return traits->bounded || stays ? 1.0 : 0.5;
}

/* Tokens that are set aside for an answer when it is admitted; least: those that it needs to go on
   at all. */
static int32_t target_of(const struct pith_scheduler *s, const struct sched_answer *a,
                         int32_t *least)
{
    double share = scheduler_reserve(s);
    int32_t n_ask = a->ask.at > 0 && !a->ask.found ? a->request->n_ask : 0;
    int32_t final = scheduler_final(s, a->request) + a->known.n_more + n_ask;
    int32_t known = a->known.n + a->has_next + n_ask;
    if (a->room.n_preempted >= s->params.max_preempt && a->room.n_preempted > 0)
        share = 1.0;
    *least = known;
    return known + (int32_t)ceil(share * (double)pi_max(0, final - known));
}

/* Bytes of the first n tokens, whole pages, that another's pages spare. Pages of windows give way
   to pages of its own, and spare none. */
static int64_t shared_bytes(const struct pith_scheduler *s, const struct sched_answer *a, int32_t n)
{
    const struct kv_geometry *g = kv_cache_geometry(s->engine->kv);
    if (g->window == NULL)
        return bytes_of(s, a, n);
    return n / g->page_len * kv_block_bytes(s->engine->kv);
}

/* Memory of a sibling beyond the prompt's full pages, which it shares: all of it where rounds
   may copy them. */
static int64_t sibling_bytes(const struct pith_scheduler *s, const struct sched_answer *a,
                             int32_t n)
{
    int32_t page_len = kv_cache_geometry(s->engine->kv)->page_len;
    if (s->engine->traits.bounded)
        return bytes_of(s, a, n);
    return bytes_of(s, a, n) - shared_bytes(s, a, a->request->n_prompt / page_len * page_len);
}

/* Bytes that an answer and its siblings take with n tokens each. */
static int64_t group_bytes(const struct pith_scheduler *s, const struct sched_answer *a, int32_t n)
{
    int64_t bytes = bytes_of(s, a, n);
    int32_t n_sibling = count_siblings(a);
    return n_sibling > 0 ? bytes + n_sibling * sibling_bytes(s, a, n) : bytes;
}

/* The possible growth of the answers that run, beyond their memory now. */
static int64_t growth(const struct pith_scheduler *s)
{
    int64_t bytes = 0;
    for (int32_t i = 0; i < s->n_running; i++) {
        const struct sched_answer *a = s->running[i];
        if (a->state == ANSWER_ENDED)
            continue;
        int32_t n = pith_seq_length(a->seq) + a->step.n_take;
        if (n < a->room.target)
            bytes += bytes_of(s, a, a->room.target) - bytes_of(s, a, n);
        int32_t n_sibling = a->state == ANSWER_READING ? count_siblings(a) : 0;
        if (n_sibling > 0)
            bytes += n_sibling * sibling_bytes(s, a, a->room.target);
    }
    return bytes;
}

int64_t scheduler_growth(const struct pith_scheduler *s)
{
    int64_t bytes = 0;
    if (!s->engine->traits.bounded)
        return growth(s);
    for (int32_t i = 0; i < s->n_running; i++)
        if (s->running[i]->state != ANSWER_ENDED)
            bytes +=
                pi_max(0, s->running[i]->room.set_aside - pi_seq_held_bytes(s->running[i]->seq));
    return bytes;
}

void scheduler_look_at_prefixes(struct pith_scheduler *s)
{
    if (s->prefix == NULL || !s->prefixes_changed)
        return;
    s->stats.prefix_pages = prefix_count(s->prefix);
    s->stats.prefix_bytes = prefix_unused_bytes(s->prefix) + prefix_rest_bytes(s->prefix);
    s->stats.prefix_dropped = prefix_dropped(s->prefix);
    s->prefixes_changed = false;
}

/* Bytes of pages that nothing which can be dropped holds. */
static int64_t used_bytes(struct pith_scheduler *s)
{
    scheduler_look_at_prefixes(s);
    return s->kv_bytes - kv_cache_unlimited_bytes(s->engine->kv) - s->stats.prefix_bytes;
}

int64_t pith_scheduler_claimed_bytes(pith_scheduler *s)
{
    return used_bytes(s) - scheduler_parked_alone_bytes(s);
}

/* ---- admission ---- */

/* Where nothing of the scheduler's runs, what it parked apart: counts what other sequences of the
   engine hold. */
static void look_outside(struct pith_scheduler *s)
{
    if (s->room.n_active == 0)
        s->room.outside = used_bytes(s) - scheduler_parked_bytes(s);
    if (s->room.n_active == 0)
        scheduler_beside_look_outside(s);
}

/* Whether `need` bytes of an answer's pages fit beside what runs, which has more or less set aside,
   and what stands beside all pages. Slots give way. */
static bool fits(struct pith_scheduler *s, struct sched_answer *a, int64_t need)
{
    int64_t limit =
        scheduler_beside_limit(s, a) - (int64_t)(s->params.watermark * (double)s->kv_bytes);
    int64_t others = s->room.outside + s->room.set_aside;
    if (!s->engine->traits.bounded)
        others = used_bytes(s) - scheduler_parked_alone_bytes(s) + growth(s);
    bool fits = scheduler_ranks_fit(s, others + need <= limit);
    return scheduler_ranks_agree(s, fits); /* shares are rounded on each */
}

static const int32_t *known_tokens(const struct sched_answer *a)
{
    return a->known.list != NULL ? a->known.list : a->request->prompt;
}

/* Of the answer's known tokens as many as the cache may have, but for the last. Where steps
   count two are left to evaluate. With recall the tokens that recall together are, and so are
   tokens whose logits are to be shown. */
static int32_t most_known(const struct pith_scheduler *s, const struct sched_answer *a)
{
    int32_t n = a->known.n - (s->engine->traits.counts_steps ? 1 : 0);
    n = pi_verbs_leave(s->engine, n, a->known.n);
    if (a->ask.at > 0) /* the question is read behind what it finds */
        n = (int32_t)pi_min(n, a->ask.at + (s->engine->traits.counts_steps ? -1 : 1));
    return a->step.n_shown < a->request->n_prompt ? (int32_t)pi_min(n, a->step.n_shown + 1) : n;
}

int32_t scheduler_find_prefix(const struct pith_scheduler *s, const struct sched_answer *a,
                              int32_t *n_unused)
{
    return prefix_find(s->prefix, a->request->salt, known_tokens(a), most_known(s, a), n_unused);
}

/* Begins the answer's fresh sequence with what the cache has; *n_found receives the tokens. NOMEM
   leaves it fresh. */
static pith_status adopt(struct pith_scheduler *s, struct sched_answer *a, int32_t *n_found,
                         pith_error *err)
{
    struct pith_seq *seq = a->seq;
    const int32_t *tokens = known_tokens(a);
    int32_t n = most_known(s, a);
    *n_found = 0;
    if (n < 1 || !s->engine->traits.takes_prefixes)
        return PITH_OK;
    PI_TRY(pi_seq_grow(seq, n, err));
    PI_TRY(prefix_append(s->prefix, a->request->salt, tokens, n, seq->memory.kv, n_found, err));
    memcpy(seq->tokens, tokens, (size_t)*n_found * sizeof(*tokens));
    seq->n_token = *n_found;
    return PITH_OK;
}

/* A fresh sequence that begins with what the cache has; *n_found: the tokens. */
static pith_status begin_seq(struct pith_scheduler *s, struct sched_answer *a, int32_t *n_found,
                             pith_error *err)
{
    *n_found = a->park.n_before = 0;
    a->tally.n_evicted = 0;
    PI_TRY(pith_seq_create(s->engine, &a->seq, err));
    pi_seq_set_scale(a->seq, a->request->budget_scale);
    PI_TRY(pith_seq_mark_prompt(a->seq, a->known.mark, err));
    if (s->prefix == NULL)
        return PITH_OK;
    s->prefixes_changed = true;
    return adopt(s, a, n_found, err);
}

bool scheduler_make_room(struct pith_scheduler *s, int64_t bytes)
{
    for (;;) {
        int64_t lacks = bytes - kv_cache_free_bytes(s->engine->kv);
        if (scheduler_ranks_fit(s, lacks <= 0))
            return true;
        s->prefixes_changed = true;
        if ((s->prefix == NULL || prefix_reclaim(s->prefix, lacks) == 0) &&
            !scheduler_slot_give(s) && (s->prefix == NULL || prefix_reclaim_rest(s->prefix) == 0))
            return false;
    }
}

/* Makes the answer's sequence, brings it back, or goes on from n_parked tokens that its slot holds.
   *waits: there is no room for it. */
static pith_status take_in(struct pith_scheduler *s, struct sched_answer *a, int32_t n_parked,
                           int64_t need, bool alone, bool *waits, pith_error *err)
{
    int32_t n_found = 0;
    *waits = false;
    if (n_parked > 0 && scheduler_take(s, a, n_parked, NULL) == PITH_OK) {
        /* Of the request's own tokens those that are not read. */
        int32_t n_read = a->known.n - n_parked;
        if (a->tally.admitted_at == 0.0)
            a->tally.n_cached = a->tally.n_from_park =
                (int32_t)pi_max(0, a->request->n_prompt - n_read);
        return PITH_OK;
    }
    if (n_parked > 0) { /* there was no memory for cutting it */
        a->park.from = -1;
        a->tally.reuse = PITH_REUSE_DROPPED;
        a->known.mark = a->request->mark;
        scheduler_untell(a);
    }
    if (a->swapped != NULL) {
        *waits = !scheduler_make_room(s, kv_swapped_pool_bytes(a->swapped));
        if (*waits)
            return PITH_OK;
        int64_t host = kv_swapped_host_bytes(a->swapped);
        s->step.spare -= kv_swapped_pool_bytes(a->swapped);
        PI_TRY(pi_seq_swap_in(a->seq, a->swapped, err));
        a->swapped = NULL;
        s->room.swapped -= host;
        scheduler_beside_away(s, &a->beside.own, -1);
        s->stats.n_swapped--;
        return PITH_OK;
    }
    PI_TRY(begin_seq(s, a, &n_found, err));
    if (!s->engine->traits.bounded)
        need -= shared_bytes(s, a, n_found);
    *waits = !alone && !fits(s, a, need);
    if (*waits) {
        pith_seq_free(a->seq);
        a->seq = NULL;
        s->prefixes_changed = true;
    } else if (a->tally.admitted_at == 0.0) {
        a->tally.n_cached = n_found;
    }
    return PITH_OK;
}

static pith_status start_output(struct pith_scheduler *s, struct sched_answer *a, pith_error *err)
{
    const struct request *r = a->request;
    if (a->has_out)
        return PITH_OK;
    a->has_out = true;
    PI_TRY(pi_output_init(&a->out, s->engine->model, &r->params, (uint64_t)a->index,
                          r->on_token != NULL, err));
    pi_output_accept(&a->out, r->prompt, r->n_prompt);
    a->out.forced = r->forced;
    a->out.n_forced = r->n_forced;
    return PITH_OK;
}

/* The answer runs from now on. */
static void start_running(struct pith_scheduler *s, struct sched_answer *a)
{
    double now = pi_time_s();
    scheduler_left_queue(s, a->request);
    scheduler_slot_enter(s, a);
    s->room.n_active += scheduler_group_size(a);
    s->running[s->n_running++] = a;
    a->room.admission = ++s->room.n_admission;
    a->room.new_here = true;
    bool read = pith_seq_length(a->seq) >= a->known.n && a->has_next;
    a->state = read ? ANSWER_GENERATING : ANSWER_READING;
    for (int32_t i = 0; i < a->request->n_answer && a->tally.admitted_at == 0.0; i++)
        if (a->request->answer[i].state == ANSWER_SIBLING)
            a->request->answer[i].tally.admitted_at = now;
    if (a->tally.admitted_at == 0.0) {
        a->tally.admitted_at = now;
        s->stats.cached_tokens += a->tally.n_cached;
        s->stats.parked_found += a->tally.n_from_park > 0;
        s->stats.parked_tokens += a->tally.n_from_park;
        s->stats.reuse_differs += a->tally.reuse == PITH_REUSE_DIFFERS;
        s->stats.reuse_policy += a->tally.reuse == PITH_REUSE_POLICY;
        s->stats.reuse_short += a->tally.reuse == PITH_REUSE_SHORT;
        s->stats.reuse_dropped += a->tally.reuse == PITH_REUSE_DROPPED;
    }
    if (s->engine->traits.bounded) {
        a->room.set_aside = pi_max(group_bytes(s, a, a->room.target), pi_seq_held_bytes(a->seq));
        s->room.set_aside += a->room.set_aside;
    }
    s->prefixes_changed = true;
}

/* Ends the first of the queue, which cannot go on even alone: other sequences of the engine took
   the memory, or the host's is short. Its text so far stands. */
static void refuse(struct pith_scheduler *s, struct sched_answer *a, const pith_error *why)
{
    pi_log(PITH_LOG_WARN, "scheduler request=%lld status=%s", (long long)a->request->id,
           pith_status_name(why->status));
    if (a->tally.first_at > 0.0 && why->status == PITH_KV_FULL)
        scheduler_end(s, a, PITH_STOP_FULL);
    else
        scheduler_fail(s, a, why);
}

/* Bytes that prefixes save the answer: pages that others use. Unused ones count as free until it
   takes them, and what is parked counts as free altogether. */
static int64_t found_bytes(const struct pith_scheduler *s, const struct sched_answer *a,
                           int32_t n_parked)
{
    int32_t n_unused;
    if (s->prefix == NULL || s->engine->traits.bounded || a->swapped != NULL || n_parked > 0)
        return 0;
    int32_t n = scheduler_find_prefix(s, a, &n_unused);
    return shared_bytes(s, a, n) - shared_bytes(s, a, n_unused);
}

/* Whether the memory that the answer asks for can be set aside. An answer that runs alone takes the
   free memory. KV_FULL: it is alone, and that is not enough. */
static pith_status find_room(struct pith_scheduler *s, struct sched_answer *a, int32_t n_parked,
                             bool alone, int64_t *need, bool *waits, pith_error *err)
{
    int32_t least;
    int64_t most = s->kv_bytes - s->room.outside;
    a->room.target = target_of(s, a, &least);
    *need = group_bytes(s, a, a->room.target);
    /* Until its first round, one that was restored may hold more than that. */
    const pith_seq *parked = n_parked > 0 ? s->park.slot[a->park.from].seq : NULL;
    if (parked != NULL && parked->n_token == n_parked)
        *need = pi_max(*need, scheduler_slot_bytes(&s->park.slot[a->park.from]));
    *waits = !fits(s, a, *need - found_bytes(s, a, n_parked));
    if (!*waits || !alone)
        return PITH_OK;
    *waits = false;
    if (!scheduler_ranks_fit(s, *need <= most))
        a->room.target = least;
    *need = bytes_of(s, a, least);
    if (!scheduler_ranks_fit(s, *need <= most))
        return pi_fail(err, PITH_KV_FULL,
                       "%d tokens take %lld bytes of KV memory, and %lld are not used by others",
                       least, (long long)*need, (long long)most);
    return PITH_OK;
}

/* The first of the queue whose slot is free. */
static struct sched_answer *first_of_queue(const struct pith_scheduler *s)
{
    struct sched_answer *a = s->room.first;
    while (a != NULL && !scheduler_slot_is_free(s, a))
        a = a->room.next;
    return a;
}

bool scheduler_admit_first(struct pith_scheduler *s, bool *again)
{
    struct sched_answer *a = first_of_queue(s);
    pith_error why;
    int64_t need;
    bool waits;
    *again = false;
    if (a == NULL || s->room.n_active + scheduler_group_size(a) > s->params.n_seq)
        return false;
    bool alone = s->room.n_active == 0;
    look_outside(s);
    int32_t n_parked = scheduler_find(s, a);
    scheduler_ask_look(s, a, n_parked);
    pith_status status = find_room(s, a, n_parked, alone, &need, &waits, &why);
    if (status == PITH_OK && !waits)
        status = take_in(s, a, n_parked, need, alone, &waits, &why);
    if (status == PITH_OK && waits && alone)
        status = pi_fail(&why, PITH_KV_FULL, "there is no room for %lld bytes from host memory",
                         (long long)need);
    if (status == PITH_OK && waits)
        return false;
    if (status == PITH_OK)
        status = start_output(s, a, &why);
    if (status != PITH_OK) {
        refuse(s, a, &why);
        *again = true;
        return false;
    }
    scheduler_dequeue(s, a);
    start_running(s, a);
    scheduler_beside_settle(s);
    return true;
}

/* ---- giving way ---- */

void scheduler_stop_running(struct pith_scheduler *s, struct sched_answer *a)
{
    s->room.n_active -= scheduler_group_size(a);
    s->room.set_aside -= a->room.set_aside;
    a->room.set_aside = 0;
    a->step.n_take = 0;
    s->prefixes_changed = true;
    int32_t i = 0;
    while (s->running[i] != a)
        i++;
    s->n_running--;
    memmove(&s->running[i], &s->running[i + 1],
            (size_t)(s->n_running - i) * sizeof(struct sched_answer *));
}

/* The tokens become a prompt again: the sequence's list is the answer's now. The token that was
   chosen last is in it, unless it has to be evaluated alone or the list has no room. */
static void keep_tokens(struct sched_answer *a)
{
    struct pith_seq *seq = a->seq;
    a->known.n_computed = (int32_t)pi_max(a->known.n_computed, seq->n_token);
    if (a->state == ANSWER_GENERATING) { /* all of them are there */
        pi_mem_free(a->known.list);
        a->has_next = seq->engine->traits.counts_steps || pi_seq_grow(seq, 1, NULL) != PITH_OK;
        if (!a->has_next)
            seq->tokens[seq->n_token] = a->next;
        a->known.list = seq->tokens;
        a->known.retold = false;
        a->known.n = seq->n_token + !a->has_next;
        seq->tokens = NULL;
        seq->n_token = seq->cap = 0;
    }
    pith_seq_free(seq);
    a->seq = NULL;
    a->tally.n_published = 0;
    a->tally.share_s = 0.0;
}

/* Puts the sequence's pages into host memory, where there is room. */
static bool put_away(struct pith_scheduler *s, struct sched_answer *a)
{
    struct pi_own own = pi_seq_own(a->seq);
    if (!scheduler_host_room(s, kv_seq_swap_bytes(a->seq->memory.kv) + pi_own_sum(&own)))
        return false;
    if (pi_seq_swap_out(a->seq, &a->swapped, NULL) != PITH_OK)
        return false;
    if (a->state == ANSWER_GENERATING) /* else what was to be read still is */
        a->known.n = a->seq->n_token;
    s->room.swapped += kv_swapped_host_bytes(a->swapped);
    a->beside.own = a->seq->away;
    scheduler_beside_away(s, &a->beside.own, 1);
    s->stats.preempted_swap++;
    s->stats.n_swapped++;
    return true;
}

/* Takes an answer's memory: it goes back to the queue, or ends where it cannot come back. */
static void preempt(struct pith_scheduler *s, struct sched_answer *a)
{
    s->room.put_back = true;
    if (a->park.untouched) {
        scheduler_slot_park(s, a);
        scheduler_slot_leave(s, a);
    } else if (pi_seq_altered(a->seq)) {
        if (!put_away(s, a)) {
            scheduler_end(s, a, PITH_STOP_FULL);
            return;
        }
    } else {
        scheduler_publish(s, a);
        s->stats.preempted_recompute++;
    }
    scheduler_stop_running(s, a);
    if (a->swapped == NULL && a->seq != NULL)
        keep_tokens(a);
    a->room.n_preempted++;
    scheduler_enqueue(s, a);
    pi_log(PITH_LOG_DEBUG, "scheduler preempted request=%lld answer=%d swapped=%d",
           (long long)a->request->id, a->index, a->swapped != NULL);
}

/* Whether some answer that runs is better taken from than another. It has a lower priority, was
   not put back so often that it is set aside for in full, or was admitted later. */
static bool is_better(const struct pith_scheduler *s, const struct sched_answer *a,
                      const struct sched_answer *than)
{
    bool full_a = a->room.n_preempted >= s->params.max_preempt;
    bool full_b = than->room.n_preempted >= s->params.max_preempt;
    if (a->request->priority != than->request->priority)
        return a->request->priority < than->request->priority;
    return full_a != full_b ? full_b : a->room.admission > than->room.admission;
}

/* NULL: there is at most one answer that runs, or none that was there before this step and can be
   put away. */
static struct sched_answer *find_victim(const struct pith_scheduler *s)
{
    struct sched_answer *victim = NULL;
    if (s->n_running < 2)
        return NULL;
    for (int32_t i = 0; i < s->n_running; i++) {
        struct sched_answer *a = s->running[i];
        if (a->room.new_here || !pi_seq_can_swap(a->seq))
            continue;
        if (victim == NULL || is_better(s, a, victim))
            victim = a;
    }
    return victim;
}

/* An early keep round on the largest that gains by one; over ranks on rank 0's. */
static bool relieve_keep(struct pith_scheduler *s)
{
    int32_t largest = -1;
    int64_t most = 0;
    for (int32_t i = 0; i < s->n_running; i++) {
        struct sched_answer *a = s->running[i];
        int64_t held = pi_seq_held_bytes(a->seq);
        if (held > most && pi_seq_is_over_budget(a->seq)) {
            largest = i;
            most = held;
        }
    }
    scheduler_ranks_choose(s, &largest);
    if (largest < 0)
        return false;
    int64_t freed = pi_seq_relieve_keep(s->running[largest]->seq);
    s->stats.pressure_rounds += freed > 0;
    return scheduler_ranks_agree(s, freed > 0);
}

static bool relieve_share(struct pith_scheduler *s)
{
    int64_t freed = 0;
    for (int32_t i = 0; i < s->n_running; i++) {
        pith_share_stats before, after;
        pith_seq_share_stats(s->running[i]->seq, &before);
        freed += pi_seq_relieve_share(s->running[i]->seq);
        pith_seq_share_stats(s->running[i]->seq, &after);
        s->stats.pressure_shared += after.pages_shared - before.pages_shared;
    }
    return freed > 0;
}

bool scheduler_relieve(struct pith_scheduler *s, struct sched_answer *needy, int64_t bytes)
{
    int64_t lacks = pi_max(1, bytes - kv_cache_free_bytes(s->engine->kv));
    s->prefixes_changed = true;
    if (s->prefix != NULL && prefix_reclaim(s->prefix, lacks) > 0)
        return true;
    /* Prefixes that the cache still has are in use, and a round would copy them: they are worth
       less than that. */
    if (s->prefix != NULL && s->engine->traits.bounded && prefix_clear(s->prefix) > 0)
        return true;
    if (scheduler_slot_give(s))
        return true;
    if (s->prefix != NULL && prefix_reclaim_rest(s->prefix) > 0)
        return true;
    if (s->params.pressure && s->engine->traits.bounded && relieve_keep(s))
        return true;
    if (s->params.pressure && relieve_share(s))
        return true;
    bool is_new = needy != NULL && needy->room.new_here && s->n_running > 1;
    struct sched_answer *victim = is_new ? needy : find_victim(s);
    if (victim != NULL)
        preempt(s, victim);
    return victim != NULL;
}
