/*
 * scheduler_ranks.c - see scheduler_ranks.h. A message is bytes, told in one or two parts. The
 * leader wakes its followers before each message that opens a step, so that they sleep meanwhile.
 * It knows nothing of plans.
 *
 * Invariant: every rank comes to the same calls in the same order. A follower whose state differs
 * from the leader's ends, and does not wait for a message that no rank sends.
 */
#include "serve/scheduler/scheduler_ranks.h"

#include "base/mem.h"
#include "base/ranks.h"
#include "engine/over_ranks.h"
#include "serve/scheduler/scheduler.h"

#define FIRST_BYTES 1024 /* of a message that are told together with its length */

enum message {
    MESSAGE_STEP,
    MESSAGE_ERASE,
    MESSAGE_END,
};

/* The begin of each message. */
struct message_head {
    int32_t what;
    int32_t slot; /* that is erased */
    int32_t n_request;
    int32_t n_cancelled;
    double now;
    uint64_t state; /* of the scheduler before it */
};

/* A request as rank 0 has it; its prompt follows. */
struct message_request {
    int64_t id;
    uint64_t session;
    uint64_t salt;
    double budget_scale;
    double submitted_at;
    double deadline;
    int32_t n_prompt;
    int32_t n_answer;
    int32_t n_predict;
    int32_t priority;
    int32_t slot;
    int32_t n_pin;
    int32_t n_shown; /* tokens of the prompt whose logits are not asked for */
    int32_t shows;   /* whether any are */
};

void scheduler_ranks_begin(struct pith_scheduler *s)
{
    const pith_ranks_info *ranks = pi_ranks();
    if (ranks->n_rank == 1)
        return;
    s->ranks.unlike = !pi_over_ranks_are_alike(s->engine);
    s->ranks.role = !s->params.led ? SCHED_EQUAL : ranks->rank == 0 ? SCHED_LEADS : SCHED_FOLLOWS;
    s->params.swap_bytes = pi_over_ranks_part(s->engine->model, s->params.swap_bytes);
    if (s->params.led) /* who chooses no token needs no logits */
        pi_pass_set_collect(s->engine->pass);
    if (s->ranks.role == SCHED_FOLLOWS)
        s->params.on_prefix = NULL;
    s->ranks.at_once = pi_ranks_by_layers() || s->engine->traits.bounded;
}

double scheduler_ranks_now(struct pith_scheduler *s, double now)
{
    if (s->ranks.role == SCHED_EQUAL)
        pi_ranks_tell(&now, sizeof(now));
    return s->ranks.role == SCHED_FOLLOWS ? s->ranks.now : now;
}

bool scheduler_ranks_agree(const struct pith_scheduler *s, bool answer)
{
    if (s->ranks.role != SCHED_ALONE)
        pi_ranks_tell(&answer, sizeof(answer));
    return answer;
}

int64_t scheduler_ranks_least(const struct pith_scheduler *s, int64_t number)
{
    return s->ranks.unlike && s->ranks.role == SCHED_EQUAL ? pi_ranks_least(number) : number;
}

void scheduler_ranks_choose(const struct pith_scheduler *s, int32_t *choice)
{
    if (s->ranks.unlike)
        pi_ranks_tell(choice, sizeof(*choice));
}

bool scheduler_ranks_fit(const struct pith_scheduler *s, bool fits)
{
    return s->ranks.unlike ? pi_ranks_least(fits) == 1 : fits;
}

pith_status scheduler_ranks_status(const struct pith_scheduler *s, pith_status status,
                                   pith_error *err)
{
    return s->ranks.unlike ? pi_ranks_agree(status, err) : status;
}

bool scheduler_ranks_follows(const struct pith_scheduler *s)
{
    return s->ranks.role == SCHED_FOLLOWS;
}

/* ---- messages ---- */

/* Others wait for this rank, which cannot go on: all of them end. */
static void end_all(const char *why)
{
    pi_log(PITH_LOG_WARN, "rank=%d %s", pi_ranks()->rank, why);
    pith_ranks_end(false);
}

static void reserve(struct sched_ranks *r, size_t n)
{
    if (n <= r->cap)
        return;
    size_t cap = (size_t)pi_max((int64_t)n, 2 * (int64_t)r->cap);
    uint8_t *bytes = pi_mem_grow(PI_MEM_OTHER, r->bytes, cap, 1);
    if (bytes == NULL)
        end_all("no memory for a message to other ranks");
    r->bytes = bytes;
    r->cap = cap;
}

static void put(struct sched_ranks *r, const void *data, size_t size)
{
    reserve(r, r->n + size);
    memcpy(r->bytes + r->n, data, size);
    r->n += size;
}

static void get(struct sched_ranks *r, void *data, size_t size)
{
    if (size > r->n - r->at)
        end_all("a step has more results than on rank 0");
    memcpy(data, r->bytes + r->at, size);
    r->at += size;
}

/* The leader's message becomes the followers', too. */
static void exchange(struct sched_ranks *r)
{
    uint8_t first[FIRST_BYTES] = {0};
    uint64_t n = r->n;
    size_t room = sizeof(first) - sizeof(n), n_first = r->n < room ? r->n : room;
    memcpy(first, &n, sizeof(n));
    if (n_first > 0)
        memcpy(first + sizeof(n), r->bytes, n_first);
    pi_ranks_tell(first, sizeof(first));
    memcpy(&n, first, sizeof(n));
    reserve(r, n);
    r->n = n;
    r->at = 0;
    n_first = r->n < room ? r->n : room;
    if (n_first > 0)
        memcpy(r->bytes, first + sizeof(n), n_first);
    if (r->n > room)
        pi_ranks_tell(r->bytes + room, r->n - room);
}

/* ---- results ---- */

static bool is_led(const struct pith_scheduler *s)
{
    return s->ranks.role == SCHED_LEADS || s->ranks.role == SCHED_FOLLOWS;
}

void scheduler_ranks_open(struct pith_scheduler *s)
{
    if (!is_led(s) || s->ranks.at_once)
        return;
    s->ranks.n = s->ranks.at = 0;
    if (s->ranks.role == SCHED_FOLLOWS)
        exchange(&s->ranks);
}

void scheduler_ranks_share(struct pith_scheduler *s, void *data, size_t size)
{
    if (is_led(s) && s->ranks.at_once)
        pi_ranks_tell(data, size);
    else if (s->ranks.role == SCHED_LEADS)
        put(&s->ranks, data, size);
    else if (s->ranks.role == SCHED_FOLLOWS)
        get(&s->ranks, data, size);
}

void scheduler_ranks_close(struct pith_scheduler *s)
{
    if (s->ranks.at_once)
        return;
    if (s->ranks.role == SCHED_LEADS)
        exchange(&s->ranks);
    else if (s->ranks.role == SCHED_FOLLOWS && s->ranks.at != s->ranks.n)
        end_all("a step has fewer results than on rank 0");
}

/* ---- steps ---- */

/* Of where every answer is. */
static uint64_t state_of(const struct pith_scheduler *s)
{
    uint64_t sum = scheduler_sum(PI_HASH_EMPTY, s->n_running);
    for (int32_t i = 0; i < s->n_running; i++) {
        const struct sched_answer *a = s->running[i];
        sum = scheduler_sum(scheduler_sum(sum, a->request->id), a->index);
        sum = scheduler_sum(scheduler_sum(sum, a->state),
                            a->seq != NULL ? pith_seq_length(a->seq) : -1);
        sum = scheduler_sum(sum, a->has_next ? a->next : -1);
    }
    for (const struct sched_answer *a = s->room.first; a != NULL; a = a->room.next)
        sum = scheduler_sum(scheduler_sum(sum, a->request->id), a->index);
    return scheduler_sum(sum, s->stats.n_parked);
}

static void tell(struct pith_scheduler *s, struct message_head head)
{
    head.state = state_of(s);
    memcpy(s->ranks.bytes, &head, sizeof(head));
    pi_ranks_wake();
    exchange(&s->ranks);
}

static void put_request(struct sched_ranks *ranks, const struct request *r)
{
    const struct message_request m = {
        .id = r->id,
        .session = r->session,
        .salt = r->salt,
        .budget_scale = r->budget_scale,
        .submitted_at = r->submitted_at,
        .deadline = r->deadline,
        .n_prompt = r->n_prompt,
        .n_answer = r->n_answer,
        .n_predict = r->params.n_predict,
        .priority = r->priority,
        .slot = r->slot,
        .n_pin = r->n_pin,
        .n_shown = r->answer[0].step.n_shown,
        .shows = r->on_prompt != NULL,
    };
    put(ranks, &m, sizeof(m));
    put(ranks, r->prompt, (size_t)r->n_prompt * sizeof(*r->prompt));
}

void scheduler_ranks_tell_step(struct pith_scheduler *s, const struct request *came,
                               const struct request *cancelled, double now)
{
    struct message_head head = {.what = MESSAGE_STEP, .now = now};
    if (s->ranks.role != SCHED_LEADS)
        return;
    s->ranks.n = 0;
    put(&s->ranks, &head, sizeof(head));
    for (; came != NULL; came = came->next, head.n_request++)
        put_request(&s->ranks, came);
    for (; cancelled != NULL; cancelled = cancelled->next_ending, head.n_cancelled++)
        put(&s->ranks, &cancelled->id, sizeof(cancelled->id));
    tell(s, head);
}

static void tell_alone(struct pith_scheduler *s, enum message what, int32_t slot)
{
    const struct message_head head = {.what = (int32_t)what, .slot = slot};
    if (s->ranks.role != SCHED_LEADS)
        return;
    s->ranks.n = 0;
    put(&s->ranks, &head, sizeof(head));
    tell(s, head);
}

void scheduler_ranks_tell_erase(struct pith_scheduler *s, int32_t i)
{
    tell_alone(s, MESSAGE_ERASE, i);
}

void scheduler_ranks_tell_end(struct pith_scheduler *s)
{
    tell_alone(s, MESSAGE_END, -1);
}

/* ---- following ---- */

/* Rank 0 has the caller. */
static bool shown_elsewhere(void *user, int64_t request, int32_t index, int32_t token,
                            const float *logits)
{
    (void)user, (void)request, (void)index, (void)token, (void)logits;
    return true;
}

/* Queues the next request of the message. */
static pith_status get_request(struct pith_scheduler *s, pith_error *err)
{
    struct message_request m;
    pith_generate_params params;
    pith_request q;
    get(&s->ranks, &m, sizeof(m));
    pith_generate_params_default(&params);
    pith_request_default(&q);
    params.n_predict = m.n_predict;
    q.params = &params;
    q.prompt = (const int32_t *)(const void *)(s->ranks.bytes + s->ranks.at);
    q.n_prompt = m.n_prompt;
    q.n_answer = m.n_answer;
    q.priority = m.priority;
    q.slot = m.slot;
    q.n_pin = m.n_pin;
    q.session = m.session;
    q.on_prompt = m.shows ? shown_elsewhere : NULL;
    q.prompt_from = m.n_shown;
    s->ranks.at += (size_t)m.n_prompt * sizeof(int32_t);
    const struct request as = {
        .id = m.id,
        .salt = m.salt,
        .budget_scale = m.budget_scale,
        .submitted_at = m.submitted_at,
        .deadline = m.deadline,
    };
    return scheduler_adopt(s, &q, &as, err);
}

static pith_status take_step(struct pith_scheduler *s, const struct message_head *head,
                             pith_error *err)
{
    for (int32_t i = 0; i < head->n_request; i++)
        PI_TRY(get_request(s, err));
    /* From the last: each becomes the first of the list. */
    for (int32_t i = head->n_cancelled - 1; i >= 0; i--) {
        int64_t id;
        memcpy(&id, s->ranks.bytes + s->ranks.at + (size_t)i * sizeof(id), sizeof(id));
        pith_scheduler_cancel(s, id);
    }
    s->ranks.now = head->now;
    scheduler_run_step(s);
    return PITH_OK;
}

pith_status pith_scheduler_follow(pith_scheduler *s, pith_error *err)
{
    struct message_head head;
    if (s == NULL || s->ranks.role != SCHED_FOLLOWS)
        return pi_fail(err, PITH_INVALID,
                       "pith_scheduler_follow: the scheduler is rank 0's, or not led");
    for (;;) {
        pi_ranks_sleep();
        exchange(&s->ranks);
        get(&s->ranks, &head, sizeof(head));
        if (head.what == MESSAGE_END)
            return PITH_OK;
        if (head.state != state_of(s))
            return pi_fail(err, PITH_INTERNAL, "its requests are not where rank 0 has them");
        if (head.what == MESSAGE_ERASE)
            scheduler_slot_clear(s, &s->park.slot[head.slot]);
        else
            PI_TRY(take_step(s, &head, err));
    }
}
