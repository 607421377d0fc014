/*
 * scheduler_step.c - one step. It ends requests that were cancelled or are late, plans how many
 * tokens each answer gives, and makes room for all of them. It evaluates them as one batch, and
 * hands out the results.
 *
 * Invariant: when the batch is evaluated, its memory is there. Making room can put an answer back
 * or end it. Then the step is planned anew, and memory that was reserved for the others is still
 * theirs.
 */
#include "serve/scheduler/scheduler.h"

#include <math.h>

#include "base/mem.h"
#include "base/os.h"
#include "engine/over_ranks.h"
#include "tensor/finite.h"

#define BUSY_STEP_TOKENS 128 /* of a step in which something is generated, by default */

/* ---- ends ---- */

/* Links a request of which an answer is somewhere to those that are late, once. */
static struct request *add_late(struct pith_scheduler *s, const struct sched_answer *a, double now,
                                struct request *late)
{
    struct request *r = a->request;
    if (r->deadline > now) {
        s->step.next_deadline = fmin(s->step.next_deadline, r->deadline);
        return late;
    }
    if (r->is_late)
        return late;
    r->is_late = true;
    r->next_late = late;
    return r;
}

static struct request *find_late(struct pith_scheduler *s, double now)
{
    struct request *late = NULL;
    s->step.next_deadline = INFINITY;
    for (int32_t i = 0; i < s->n_running; i++)
        late = add_late(s, s->running[i], now, late);
    for (const struct sched_answer *a = s->room.first; a != NULL; a = a->room.next)
        late = add_late(s, a, now, late);
    return late;
}

static void end_unwanted(struct pith_scheduler *s)
{
    pith_error why;
    double now = scheduler_ranks_now(s, pi_time_s());
    struct request *r = scheduler_collect(s, now), *next;
    pi_fail(&why, PITH_CANCELLED, "the request was cancelled");
    for (; r != NULL; r = next) {
        next = r->next_ending;
        scheduler_fail_request(s, r, &why);
    }
    if (now < s->step.next_deadline)
        return;
    for (r = find_late(s, now); r != NULL; r = next) {
        next = r->next_late;
        pi_fail(&why, PITH_CANCELLED, "deadline_s: %g s have passed",
                r->deadline - r->submitted_at);
        scheduler_fail_request(s, r, &why);
    }
}

/* ---- the plan ---- */

/* Shows a row of a prompt's logits, once, and keeps the last, which the first token is chosen
   from. */
static bool show_prompt(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    struct sched_answer *a = user;
    const struct request *r = a->request;
    if (pos == r->n_prompt - 1) {
        memcpy(seq->logits, logits, (size_t)seq->engine->model->hp.n_vocab * sizeof(*logits));
        pi_row_is_here(seq);
    }
    if (pos < a->step.n_shown || a->step.unwanted || a->step.not_finite)
        return true;
    if (pi_max_magnitude(logits, seq->engine->model->hp.n_vocab) >= PI_FINITE_END) {
        a->step.not_finite = true;
        return true;
    }
    a->step.n_shown = pos + 1;
    a->step.unwanted = !r->on_prompt(r->user, r->id, pos, r->prompt[pos], logits);
    return true; /* false would stop the others of the batch, too */
}

/* Whether n more tokens that are read have rows to be shown. */
static bool shows(const struct sched_answer *a, int32_t n)
{
    return a->state == ANSWER_READING && a->step.n_shown < a->request->n_prompt &&
           pith_seq_length(a->seq) + n > a->step.n_shown;
}

static pith_batch_item item_for(struct sched_answer *a, int32_t n)
{
    pith_batch_item item = {.seq = a->seq, .n_token = n, .logits = PITH_LOGITS_LAST};
    if (shows(a, n)) {
        item.logits = PITH_LOGITS_ALL;
        item.on_logits = show_prompt;
        item.user = a;
    }
    if (a->state == ANSWER_GENERATING && n > 1)
        return scheduler_draft_item(a, n);
    if (a->state == ANSWER_GENERATING) {
        item.tokens = &a->next;
        return item;
    }
    int32_t len = pith_seq_length(a->seq);
    item.n_rest = scheduler_ask_end(a) - len - n;
    item.tokens = (a->known.list != NULL ? a->known.list : a->request->prompt) + len;
    bool known = len + n < a->known.n || a->has_next; /* the token behind them */
    if (known && item.logits == PITH_LOGITS_LAST)
        item.logits = PITH_LOGITS_NONE;
    return item;
}

/* It cannot go on, and no answer gives way: the text so far is the answer. */
static void give_up(struct pith_scheduler *s, struct sched_answer *a, const pith_error *why)
{
    if ((why->status == PITH_KV_FULL || why->status == PITH_CONTEXT) && a->tally.first_at > 0.0)
        scheduler_end(s, a, PITH_STOP_FULL);
    else
        scheduler_fail(s, a, why);
}

bool scheduler_is_roomy(struct pith_scheduler *s, int32_t n)
{
    const struct kv_geometry *g = kv_cache_geometry(s->engine->kv);
    if (s->engine->traits.bounded) /* each can take all that it has set aside once more */
        return s->room.first == NULL && scheduler_reserve(s) == 1.0 &&
               scheduler_ranks_fit(s, kv_cache_free_bytes(s->engine->kv) >= s->room.set_aside);
    /* One page that is begun, and the copy of another. They count whether or not they are taken
       at once: those behind it cannot have them. */
    s->step.spare -= kv_bytes_for_tokens(g, (int64_t)n + 2 * g->page_len) + kv_bytes_of_state(g);
    return s->room.first == NULL && scheduler_ranks_fit(s, s->step.spare >= 0);
}

/* Room for the row that show_prompt keeps. */
static pith_status reserve_row(struct pith_scheduler *s, struct sched_answer *a, int32_t n,
                               pith_error *err)
{
    size_t n_vocab = (size_t)s->engine->model->hp.n_vocab;
    if (!shows(a, n) || a->seq->logits != NULL)
        return PITH_OK;
    a->seq->logits = pi_mem_alloc_n(PI_MEM_OTHER, n_vocab, sizeof(float));
    return a->seq->logits != NULL
               ? PITH_OK
               : pi_fail(err, PITH_NOMEM, "no memory for a row of %zu logits", n_vocab);
}

static pith_status reserve_tokens(struct pith_scheduler *s, struct sched_answer *a, int32_t n,
                                  pith_error *err)
{
    pith_batch_item item = item_for(a, n);
    return scheduler_ranks_status(s, pi_item_reserve(s->engine, &item, err), err);
}

/* Takes the memory of n tokens of *a. Where it is the first of the plan to do so, those before it,
   which were sure of theirs, take theirs first. *a: the answer for which there was none. */
static pith_status take_memory(struct pith_scheduler *s, struct sched_answer **a, int32_t n,
                               pith_error *err)
{
    struct sched_answer *own = *a;
    for (int32_t i = 0; i < s->n_running && !s->step.takes_memory; i++) {
        *a = s->running[i];
        if (*a != own && (*a)->step.n_take > 0)
            PI_TRY(reserve_tokens(s, *a, (*a)->step.n_take, err));
    }
    s->step.takes_memory = true;
    *a = own;
    return reserve_tokens(s, own, n, err);
}

/* Plans n tokens of an answer, and makes room for them where that is not sure. False: an
   answer ended or was put back for that. */
static bool plan_tokens(struct pith_scheduler *s, struct sched_answer *a, int32_t n)
{
    pith_error why;
    struct sched_answer *needy = a;
    pith_status status = reserve_row(s, a, n, &why);
    if (status == PITH_OK && !scheduler_is_roomy(s, n))
        status = take_memory(s, &needy, n, &why);
    if (status == PITH_OK) {
        a->step.n_take = n;
        s->step.tokens_left -= n;
        return true;
    }
    int32_t n_needy = needy == a ? n : needy->step.n_take;
    if (status != PITH_KV_FULL ||
        !scheduler_relieve(s, needy, kv_seq_takes(needy->seq->memory.kv, n_needy)))
        give_up(s, needy, &why);
    return false;
}

/* Of n tokens those up to where a page ends, if one does. Entries that windows see there are
   held only then, and go with the page into the cache of prefixes. */
static int32_t whole_pages(const struct pith_scheduler *s, const struct sched_answer *a, int32_t n)
{
    const struct kv_geometry *g = kv_cache_geometry(s->engine->kv);
    int32_t len = pith_seq_length(a->seq), whole = (len + n) / g->page_len * g->page_len - len;
    return s->prefix != NULL && g->window != NULL && whole > 0 ? whole : n;
}

/* Of n tokens those before the first round, if one comes: so that their pages can be published. */
static int32_t before_round(const struct pith_scheduler *s, const struct sched_answer *a, int32_t n)
{
    const struct pith_engine *e = s->engine;
    if (s->prefix == NULL || !e->traits.bounded || a->seq->keep.tally.n_round > 0)
        return n;
    int32_t room = pi_seq_until_round(a->seq, n);
    return room > 0 ? room : n;
}

/* Of n of the tokens that are left as many as leave those together that recall together, or all; at
   least two. The first of a step gives two, however few fit. */
static int32_t before_recall(const struct pith_scheduler *s, const struct sched_answer *a,
                             int32_t n, int32_t left, bool first)
{
    int32_t fit = (int32_t)pi_max(n, first ? 2 : 0);
    int32_t most = pi_verbs_leave(s->engine, fit, left);
    if (most < 2) /* hardly more than what recalls */
        return n == left || first ? left : 0;
    int32_t part = before_round(s, a, most), whole = whole_pages(s, a, part);
    if (n == left && part == most)
        return left;
    return whole >= 2 ? whole : part >= 2 ? part : most;
}

/* Of the tokens that are left to read as many as fit into the step. Where the cut of a prompt
   matters it is read whole; where steps count no part is a single token, which would be one.
   Under a keep policy the part before the first round is by itself, so that its pages can be
   published. */
static int32_t part_of(const struct pith_scheduler *s, const struct sched_answer *a, bool first)
{
    const struct pith_engine *e = s->engine;
    int32_t left = scheduler_ask_end(a) - pith_seq_length(a->seq);
    int32_t n = (int32_t)pi_min(left, s->step.tokens_left);
    if (s->step.tokens_left < 1 || left < 1)
        return 0;
    if (!e->traits.cuts_prompts)
        return n == left || first ? left : 0;
    if (pi_engine_ends_together(e))
        return before_recall(s, a, n, left, first);
    if (pi_engine_reads_chunks(e))
        return pi_engine_part(e, n, left, first);
    if (e->traits.counts_steps && left > 1) {
        if (n < 2 && !(first && s->step.tokens_left == s->params.step_tokens))
            return 0;
        n = (int32_t)pi_max(n, 2);
        return left - n != 1 ? n : n > 2 ? n - 1 : left;
    }
    int32_t hidden = a->step.n_shown - pith_seq_length(a->seq); /* of these no logits are made */
    if (a->step.n_shown < a->request->n_prompt && hidden > 0 && !e->traits.counts_steps)
        n = (int32_t)pi_min(n, hidden);
    return whole_pages(s, a, before_round(s, a, n));
}

/* The items of the plan: generated tokens first, then prompts, each in the order of admission. */
static void list_items(struct pith_scheduler *s)
{
    s->step.n_item = 0;
    for (int32_t reading = 0; reading < 2; reading++)
        for (int32_t i = 0; i < s->n_running; i++) {
            struct sched_answer *a = s->running[i];
            if (a->step.n_take == 0 || (a->state == ANSWER_READING) != reading)
                continue;
            s->step.item_of[s->step.n_item] = a;
            s->step.items[s->step.n_item++] = item_for(a, a->step.n_take);
        }
}

/* Whether the keep rounds of the plan have their pages; false: an answer gave way. */
static bool check_rounds(struct pith_scheduler *s)
{
    pith_error why;
    if (!s->engine->traits.bounded || scheduler_is_roomy(s, 0))
        return true;
    list_items(s);
    struct kv_need lacks = pi_items_lack(s->engine, s->step.items, s->step.n_item);
    if (scheduler_ranks_fit(s, kv_cache_fits(s->engine->kv, &lacks)))
        return true;
    if (!scheduler_relieve(s, NULL, lacks.all)) {
        pi_fail(&why, PITH_KV_FULL,
                "keep rounds can take %lld more bytes of pages, and %lld are free",
                (long long)lacks.all, (long long)kv_cache_free_bytes(s->engine->kv));
        give_up(s, s->step.item_of[s->step.n_item - 1], &why);
    }
    return false;
}

static int32_t step_tokens(const struct pith_scheduler *s)
{
    bool generates = false;
    for (int32_t i = 0; i < s->n_running; i++)
        generates = generates || s->running[i]->state == ANSWER_GENERATING;
    if (s->params.step_tokens > 0)
        return s->params.step_tokens;
    return generates ? BUSY_STEP_TOKENS : s->engine->chunk;
}

/* Plans the answers that run. False: to be done anew. */
static bool plan_running(struct pith_scheduler *s)
{
    bool first = true;
    for (int32_t i = 0; i < s->n_running; i++)
        s->running[i]->step.n_take = 0;
    s->step.tokens_left = step_tokens(s);
    s->step.takes_memory = false;
    scheduler_beside_settle(s);
    s->step.spare = kv_cache_free_bytes(s->engine->kv);
    for (int32_t i = 0; i < s->n_running; i++)
        if (s->running[i]->state == ANSWER_GENERATING && !plan_tokens(s, s->running[i], 1))
            return false;
    for (int32_t i = 0; i < s->n_running; i++) {
        struct sched_answer *a = s->running[i];
        if (a->state == ANSWER_READING)
            scheduler_ask(s, a);
        int32_t n = a->state == ANSWER_READING ? part_of(s, a, first) : 0;
        if (n > 0 && !plan_tokens(s, a, n))
            return false;
        first = first && n == 0;
    }
    return check_rounds(s);
}

static bool reads_any(const struct pith_scheduler *s)
{
    for (int32_t i = 0; i < s->n_running; i++)
        if (s->running[i]->state == ANSWER_READING && s->running[i]->step.n_take > 0)
            return true;
    return false;
}

/* Admits from the queue while there are tokens left in the step. True: the plan is to be made anew,
   because rounds of those that came were not thought of. */
static bool plan_queue(struct pith_scheduler *s)
{
    bool any = false, again = true;
    while (s->step.tokens_left > 0 && !s->room.put_back && again) {
        if (!scheduler_admit_first(s, &again))
            continue;
        struct sched_answer *a = s->running[s->n_running - 1];
        scheduler_ask(s, a);
        int32_t n = a->state == ANSWER_GENERATING ? 1 : part_of(s, a, !reads_any(s));
        any = again = true;
        if (n > 0 && !plan_tokens(s, a, n))
            return true;
    }
    return any && s->engine->traits.bounded;
}

static void plan(struct pith_scheduler *s)
{
    s->room.put_back = false;
    for (int32_t i = 0; i < s->n_running; i++)
        s->running[i]->room.new_here = false;
    do {
        while (!plan_running(s)) {
        }
    } while (plan_queue(s));
    scheduler_plan_drafts(s);
    list_items(s);
}

/* ---- what came of it ---- */

static void count_share(struct pith_scheduler *s, struct sched_answer *a)
{
    pith_share_stats share;
    pith_seq_share_stats(a->seq, &share);
    s->stats.share_s += share.seconds - a->tally.share_s;
    a->tally.share_s = share.seconds;
}

/* Tokens of a prompt, or tokens that are read again, were evaluated. */
static void note_read(struct pith_scheduler *s, struct sched_answer *a)
{
    int32_t len = pith_seq_length(a->seq), begin = len - a->step.n_take;
    int32_t n_again = (int32_t)pi_max(0, pi_min(len, a->known.n_computed) - begin);
    int32_t end = (int32_t)pi_min(len, a->known.retold ? a->known.n : a->request->n_prompt);
    int32_t n_new = (int32_t)pi_max(0, end - pi_max(begin, a->known.n_computed));
    s->stats.prompt_tokens += n_again + n_new;
    s->stats.recomputed_tokens += n_again;
    a->tally.n_prompt += n_new;
    /* Under a keep policy what others may use is copied by a round: not where memory is short. */
    if (!s->engine->traits.bounded ||
        kv_cache_free_bytes(s->engine->kv) >= pi_seq_held_bytes(a->seq))
        scheduler_publish(s, a);
}

/* Of item i. */
static void use_result(struct pith_scheduler *s, int32_t i)
{
    struct sched_answer *a = s->step.item_of[i];
    count_share(s, a);
    a->park.untouched = false;
    if (a->request->on_prompt != NULL) { /* rank 0 alone has the rows, and who sees them */
        scheduler_ranks_share(s, &a->step.not_finite, sizeof(a->step.not_finite));
        scheduler_ranks_share(s, &a->step.unwanted, sizeof(a->step.unwanted));
    }
    if (a->step.not_finite) {
        pith_error why;
        pi_model_not_finite(s->engine->model, &why);
        scheduler_fail(s, a, &why);
        return;
    }
    if (a->step.unwanted) {
        scheduler_end(s, a, PITH_STOP_CALLER);
        return;
    }
    if (a->state == ANSWER_GENERATING && a->step.n_take > 1) {
        scheduler_use_draft(s, a);
        return;
    }
    if (a->state == ANSWER_GENERATING) {
        scheduler_choose(s, a);
        return;
    }
    note_read(s, a);
    if (pith_seq_length(a->seq) < a->known.n)
        return;
    if (a->park.parts && a->request->n_prompt > 1)
        pi_verbs_as_prompt(a->seq);
    a->park.parts = false;
    if (s->step.items[i].logits == PITH_LOGITS_ALL)
        a->seq->has_logits = true; /* the last row is there */
    if (a->has_next)
        a->state = ANSWER_GENERATING;
    else
        scheduler_start_answers(s, a);
}

/* ---- evaluating ---- */

struct reading {
    struct pith_scheduler *s;
    const struct request *request;
};

/* Between the passes of a long prompt: whether its request still wants it. */
static bool goes_on(void *user, double fraction)
{
    const struct reading *reading = user;
    return fraction >= 1.0 || scheduler_is_wanted(reading->s, reading->request);
}

/* The time of steps in which no prompt is read says how much drafts are worth. */
static void note_cost(struct pith_scheduler *s, int32_t begin, int32_t n, double seconds)
{
    int32_t n_row = 0;
    for (int32_t i = begin; i < begin + n; i++) {
        if (s->step.item_of[i]->state != ANSWER_GENERATING)
            return;
        n_row += s->step.items[i].n_token;
    }
    draft_cost_note(&s->draft.cost, n_row, seconds);
}

static pith_status evaluate(struct pith_scheduler *s, int32_t begin, int32_t n, pith_error *err)
{
    const struct sched_answer *a = s->step.item_of[begin];
    struct reading reading = {s, a->request};
    bool is_long = n == 1 && s->step.items[begin].n_token > s->engine->chunk;
    double start = pi_time_s(), start_own = pi_thread_time_s();
    for (int32_t i = begin; i < begin + n; i++)
        if (s->step.item_of[i]->state == ANSWER_GENERATING && s->step.items[i].n_token > 1)
            pi_seq_begin_ahead(s->step.items[i].seq, s->step.items[i].n_token - 1);
    pith_status status = pith_batch_eval(s->engine, &s->step.items[begin], n,
                                         is_long ? goes_on : NULL, &reading, err);
    for (int32_t i = begin; i < begin + n; i++)
        if (s->step.items[i].seq->ahead.n_draft > 0)
            pi_seq_end_ahead(s->step.items[i].seq, status == PITH_OK);
    if (status == PITH_OK && s->draft.rows != NULL)
        note_cost(s, begin, n, pi_over_ranks_seconds(pi_thread_time_s() - start_own));
    s->step.user_s += pi_time_s() - start;
    return status;
}

/* The item without its draft. */
static void leave_draft(struct pith_scheduler *s, int32_t i)
{
    struct sched_answer *a = s->step.item_of[i];
    if (a->state != ANSWER_GENERATING)
        return;
    a->step.n_take = 1;
    s->step.items[i] = item_for(a, 1);
}

/* Whether an item that had no pages is to try again in the next step. It is where others were in
   this one, which may have ended, and where something gives way. */
static bool tries_again(struct pith_scheduler *s, struct sched_answer *a)
{
    return s->n_running > 1 || s->step.n_item > 1 ||
           scheduler_relieve(s, a, kv_seq_takes(a->seq->memory.kv, a->step.n_take));
}

/* Items that failed together. Where pages are short and others run, they try again in the next
   step. A prompt whose request was cancelled was stopped on its way, and ends with the next step.
   Where policies have seen a part of it, no other request may use its sequence. Anything else came
   from outside (the tap), and how far it got is not known. len: tokens of the first before. */
static void use_failure(struct pith_scheduler *s, int32_t begin, int32_t n, int32_t len,
                        const pith_error *why)
{
    for (int32_t i = begin; i < begin + n; i++) {
        struct sched_answer *a = s->step.item_of[i];
        if (why->status == PITH_CANCELLED && !scheduler_is_wanted(s, a->request))
            a->park.torn =
                n > 1 || pith_seq_length(a->seq) != len || pi_engine_ends_together(s->engine);
        else if (why->status != PITH_KV_FULL || !tries_again(s, a))
            give_up(s, a, why);
    }
}

static void use_results(struct pith_scheduler *s, int32_t begin, int32_t n)
{
    scheduler_ranks_open(s);
    for (int32_t i = begin; i < begin + n; i++)
        use_result(s, i);
    scheduler_ranks_close(s);
}

/* An item without its draft, alone. */
static void evaluate_one(struct pith_scheduler *s, int32_t i)
{
    pith_error why;
    int32_t len = pith_seq_length(s->step.items[i].seq);
    leave_draft(s, i);
    if (evaluate(s, i, 1, &why) == PITH_OK)
        use_results(s, i, 1);
    else
        use_failure(s, i, 1, len, &why);
}

/* Without memory for all of it each item goes alone, and only items without memory fail. */
static void evaluate_group(struct pith_scheduler *s, int32_t begin, int32_t n)
{
    pith_error why;
    int32_t len = pith_seq_length(s->step.items[begin].seq);
    pith_status status = evaluate(s, begin, n, &why);
    bool each = status == PITH_KV_FULL || status == PITH_NOMEM;
    for (int32_t i = begin; each && i < begin + n; i++)
        evaluate_one(s, i);
    if (status == PITH_OK)
        use_results(s, begin, n);
    else if (!each)
        use_failure(s, begin, n, len, &why);
}

/* Evaluates the step's items, as many at a time as a pass holds, so that a cancelled request waits
   for no more than that. An item that is longer goes alone, and its request is asked between its
   passes. Nothing that is computed depends on it. */
static void evaluate_items(struct pith_scheduler *s)
{
    for (int32_t begin = 0, n; begin < s->step.n_item; begin += n) {
        int64_t n_token = s->step.items[begin].n_token;
        bool wanted = begin == 0 || scheduler_is_wanted(s, s->step.item_of[begin]->request);
        for (n = 1; wanted && begin + n < s->step.n_item; n++) {
            n_token += s->step.items[begin + n].n_token;
            if (n_token > s->engine->chunk ||
                (begin > 0 && !scheduler_is_wanted(s, s->step.item_of[begin + n]->request)))
                break;
        }
        if (wanted)
            evaluate_group(s, begin, n);
    }
}

/* Answers whose slot held all of the prompt, with logits. */
static void start_ready(struct pith_scheduler *s)
{
    for (int32_t i = 0; i < s->n_running;) {
        struct sched_answer *a = s->running[i];
        bool ready = a->state == ANSWER_READING && pith_seq_length(a->seq) >= a->known.n &&
                     a->seq->has_logits;
        if (ready) { /* it generates then, or has ended and is not in the list */
            a->park.untouched = false;
            scheduler_ranks_open(s);
            scheduler_start_answers(s, a);
            scheduler_ranks_close(s);
        }
        i = ready ? 0 : i + 1;
    }
}

/* ---- the step ---- */

static void update_stats(struct pith_scheduler *s)
{
    pith_scheduler_stats *t = &s->stats;
    t->n_running = s->n_running;
    t->n_reading = 0;
    for (int32_t i = 0; i < s->n_running; i++)
        t->n_reading += s->running[i]->state == ANSWER_READING;
    t->peak_running = (int32_t)pi_max(t->peak_running, s->n_running);
    t->swapped_bytes = s->room.swapped;
    t->parked_bytes = scheduler_parked_bytes(s);
    scheduler_look_at_prefixes(s);
}

void scheduler_show(struct pith_scheduler *s)
{
    update_stats(s);
    pi_lock_take(&s->inbox.lock);
    s->inbox.shown = s->stats;
    s->inbox.stirred_at = pi_time_s();
    s->inbox.shown.n_waiting = s->inbox.n_waiting;
    s->inbox.shown.n_parked -= s->park.n_return;
    pi_lock_give(&s->inbox.lock);
}

void scheduler_run_step(struct pith_scheduler *s)
{
    double start = pi_time_s();
    s->stepping = true;
    s->step.user_s = 0.0;
    end_unwanted(s);
    plan(s);
    int32_t n_running = s->n_running;
    if (s->step.n_item > 0) {
        evaluate_items(s);
        s->stats.n_step++;
    }
    start_ready(s);
    scheduler_free_dead(s);
    s->stats.peak_running = (int32_t)pi_max(s->stats.peak_running, n_running);
    double seconds = pi_time_s() - start;
    s->stats.seconds += seconds;
    s->stats.schedule_s += seconds - s->step.user_s;
    s->stepping = false;
    scheduler_show(s);
}

pith_status pith_scheduler_step(pith_scheduler *s, bool *idle, pith_error *err)
{
    if (s == NULL)
        return pi_fail(err, PITH_INVALID, "pith_scheduler_step: scheduler must not be NULL");
    if (s->stepping)
        return pi_fail(err, PITH_BUSY, "pith_scheduler_step: a step is running");
    if (scheduler_ranks_follows(s))
        return pi_fail(err, PITH_INVALID, "pith_scheduler_step: steps are rank 0's to begin");
    scheduler_run_step(s);
    pi_lock_take(&s->inbox.lock);
    if (idle != NULL)
        *idle = s->inbox.n_live == 0;
    pi_lock_give(&s->inbox.lock);
    return PITH_OK;
}
