/*
 * scheduler.c - the queue between threads and the public functions. Submitted requests are checked
 * and copied here, cancelled ones are found here, and numbers are shown. It knows nothing of steps.
 *
 * Invariant: a request is in `live` from its submission until its last answer ends, and only then
 * can it be cancelled. No callback is called with the lock held.
 */
#include "serve/scheduler/scheduler.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "policy/identity.h"

#define MAX_SEQ 65536
#define MAX_QUEUE (1 << 24)
#define MAX_SLOT 65536
#define MAX_WAIT_S 1e9 /* some thirty years: a time that the clock can tell */

/* ---- params ---- */

void pith_scheduler_params_default(pith_scheduler_params *out)
{
    *out = (pith_scheduler_params){
        .n_seq = 256,
        .n_queue = 1024,
        .reserve = -1.0,
        .watermark = 0.01,
        .swap_bytes = INT64_C(1) << 30,
        .max_preempt = 3,
        .n_slot = 64,
    };
}

void pith_request_default(pith_request *out)
{
    *out = (pith_request){.n_answer = 1, .slot = -1};
}

/* Each comparison is written so that NaN fails it. */
static pith_status check_params(const pith_scheduler_params *p, pith_error *err)
{
    PI_TRY(pi_check_range("n_seq", p->n_seq, 1, MAX_SEQ, err));
    PI_TRY(pi_check_range("n_queue", p->n_queue, 1, MAX_QUEUE, err));
    PI_TRY(pi_check_range("step_tokens", p->step_tokens, 0, INT32_MAX, err));
    PI_TRY(pi_check_range("n_ctx", p->n_ctx, 0, INT32_MAX, err));
    PI_TRY(pi_check_range("swap_bytes", p->swap_bytes, 0, INT64_MAX, err));
    PI_TRY(pi_check_range("max_preempt", p->max_preempt, 0, INT32_MAX, err));
    PI_TRY(pi_check_range("n_slot", p->n_slot, 0, MAX_SLOT, err));
    if (!(p->reserve <= 1.0))
        return pi_fail(err, PITH_INVALID, "reserve: %g is above 1", p->reserve);
    if (!(p->watermark >= 0.0 && p->watermark <= 1.0))
        return pi_fail(err, PITH_INVALID, "watermark: %g is not between 0 and 1", p->watermark);
    return PITH_OK;
}

/* ---- making and freeing ---- */

/* A session with a name would let one conversation find what another one lost. */
static pith_status check_recall(const pith_engine *e, pith_error *err)
{
    const struct recall_text_options *o = &e->policies.recall.text;
    if (e->traits.recalls_text && o->session[0] != '\0')
        return pi_fail(err, PITH_UNSUPPORTED,
                       "recall: text: session=%.96s: a scheduler's conversations each have a "
                       "session of their own",
                       o->session);
    return PITH_OK;
}

/* All that entries depend on beside tokens: the model, and how they are stored. Policies do not
   belong to it, because only what they left alone is ever published. */
static pith_status make_prefixes(struct pith_scheduler *s, pith_error *err)
{
    const struct kv_geometry *g = kv_cache_geometry(s->engine->kv);
    char salt[256];
    if (s->params.no_prefix || s->ranks.unlike || !s->engine->traits.takes_prefixes)
        return PITH_OK;
    snprintf(salt, sizeof(salt),
             "model=%016llx,%dx%d,k=%s:%s=%d+%d,v=%s:%s=%d+%d,page=%d,index=%u:%d",
             (unsigned long long)pi_model_fingerprint(s->engine->model), g->n_layer, g->n_head,
             kv_type_name(g->type_k), kv_type_name(g->edge_k.type), g->edge_k.first, g->edge_k.last,
             kv_type_name(g->type_v), kv_type_name(g->edge_v.type), g->edge_v.first, g->edge_v.last,
             g->page_len, g->index, g->index_dim);
    PI_TRY(prefix_create(s->engine->kv, salt, &s->prefix, err));
    prefix_watch(s->prefix, s->params.on_prefix, s->params.prefix_user);
    return PITH_OK;
}

static pith_status make_lists(struct pith_scheduler *s, pith_error *err)
{
    size_t n = (size_t)s->params.n_seq;
    s->running = pi_mem_alloc_n(PI_MEM_OTHER, n, sizeof(*s->running));
    s->step.item_of = pi_mem_alloc_n(PI_MEM_OTHER, n, sizeof(*s->step.item_of));
    s->step.items = pi_mem_alloc_n(PI_MEM_OTHER, n, sizeof(*s->step.items));
    if (s->running == NULL || s->step.item_of == NULL || s->step.items == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for %d running answers", s->params.n_seq);
    if (s->params.n_slot > 0)
        s->park.slot =
            pi_mem_alloc_n(PI_MEM_OTHER, (size_t)s->params.n_slot, sizeof(*s->park.slot));
    if (s->park.slot == NULL && s->params.n_slot > 0)
        return pi_fail(err, PITH_NOMEM, "no memory for %d slots", s->params.n_slot);
    s->park.n_slot = s->params.n_slot;
    for (int32_t i = 0; i < s->park.n_slot; i++)
        s->park.slot[i].back = -1;
    return PITH_OK;
}

/* The parts that create made, the lock apart. */
static void free_parts(struct pith_scheduler *s)
{
    for (int32_t i = 0; i < s->park.n_slot; i++) {
        kv_swapped_free(s->park.slot[i].swapped);
        pith_seq_free(s->park.slot[i].seq);
    }
    prefix_free(s->prefix);
    pi_mem_free(s->park.slot);
    pi_mem_free(s->draft.rows);
    pi_mem_free(s->running);
    pi_mem_free(s->step.item_of);
    pi_mem_free(s->step.items);
    pi_mem_free(s->inbox.live);
    pi_mem_free(s->ranks.bytes);
    pith_engine_free(s->engine);
    pi_mem_free(s);
}

pith_status pith_scheduler_create(pith_engine *engine, const pith_scheduler_params *params,
                                  pith_scheduler **out, pith_error *err)
{
    pith_scheduler_params defaults;
    pith_scheduler_params_default(&defaults);
    if (params == NULL)
        params = &defaults;
    if (engine == NULL || out == NULL)
        return pi_fail(err, PITH_INVALID, "pith_scheduler_create: engine and out must not be NULL");
    PI_TRY(check_params(params, err));
    PI_TRY(check_recall(engine, err));
    struct pith_scheduler *s = pi_mem_alloc(PI_MEM_OTHER, sizeof(*s));
    if (s == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a scheduler");
    pith_kv_stats kv;
    pith_engine_kv_stats(engine, &kv);
    s->engine = engine;
    pi_engine_hold(engine);
    s->params = *params;
    s->kv_bytes = kv.reserved_bytes;
    s->step.next_deadline = INFINITY;
    s->inbox.stirred_at = pi_time_s();
    scheduler_beside_begin(s);
    scheduler_ranks_begin(s);
    pith_status status = make_lists(s, err);
    if (status == PITH_OK)
        status = make_prefixes(s, err);
    if (status == PITH_OK)
        status = scheduler_start_drafts(s, err);
    if (status == PITH_OK)
        status = pi_lock_init(&s->inbox.lock, err);
    if (status != PITH_OK) {
        free_parts(s);
        return status;
    }
    *out = s;
    return PITH_OK;
}

struct request *scheduler_collect(struct pith_scheduler *s, double now)
{
    pi_lock_take(&s->inbox.lock);
    struct request *r = s->inbox.first, *cancelled = s->inbox.cancelled;
    bool any = s->inbox.n_live > 0;
    s->inbox.first = NULL;
    s->inbox.cancelled = NULL;
    s->inbox.stirred_at = pi_time_s();
    pi_lock_give(&s->inbox.lock);
    if (any && !s->inbox.closing) /* else nothing happens in the step, and others sleep on */
        scheduler_ranks_tell_step(s, r, cancelled, now);
    for (struct request *next; r != NULL; r = next) {
        next = r->next;
        r->next = NULL;
        s->step.next_deadline = fmin(s->step.next_deadline, r->deadline);
        scheduler_enqueue(s, &r->answer[0]);
    }
    return cancelled;
}

void scheduler_free_dead(struct pith_scheduler *s)
{
    while (s->dead != NULL) {
        struct request *r = s->dead;
        s->dead = r->next;
        pi_mem_free(r);
    }
}

void pith_scheduler_free(pith_scheduler *s)
{
    pith_error why;
    if (s == NULL)
        return;
    pi_fail(&why, PITH_CANCELLED, "the scheduler was freed");
    pi_lock_take(&s->inbox.lock);
    s->inbox.closing = true;
    pi_lock_give(&s->inbox.lock);
    s->stepping = true; /* callbacks cannot step any more */
    scheduler_collect(s, 0.0);
    scheduler_ranks_tell_end(s);
    while (s->inbox.n_live > 0) /* none is added any more */
        scheduler_fail_request(s, s->inbox.live[0], &why);
    scheduler_free_dead(s);
    pi_lock_destroy(&s->inbox.lock);
    free_parts(s);
}

/* ---- submitting ---- */

static pith_status check_ids(const char *what, const int32_t *ids, int32_t n, int32_t n_vocab,
                             pith_error *err)
{
    for (int32_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= n_vocab)
            return pi_fail(err, PITH_INVALID, "%s: token %d: id %d is not in 0..%d", what, i,
                           ids[i], n_vocab - 1);
    return PITH_OK;
}

static int32_t mark_of(const struct pith_scheduler *s, const pith_request *q)
{
    return q->n_pin > 0 && pi_engine_pins(s->engine) ? q->n_pin : q->n_prompt;
}

/* A session under a keep policy goes on past the trained context, as pith_generate does. */
static pith_status check_prompt(const struct pith_scheduler *s, const pith_request *q,
                                pith_error *err)
{
    const struct pi_hparams *hp = &s->engine->model->hp;
    struct keep_point at = {.n_prompt = mark_of(s, q)};
    PI_TRY(pi_engine_read_budget(s->engine, q->budget, &at.scale, err));
    bool session = q->slot != -1 && pi_engine_passes_context(s->engine) && !isinf(at.scale);
    if (q->prompt == NULL || q->n_prompt < 1)
        return pi_fail(err, PITH_INVALID, "n_prompt: a prompt has at least one token, not %d",
                       q->n_prompt);
    if (s->params.n_ctx > 0 && q->n_prompt > s->params.n_ctx)
        return pi_fail(err, PITH_CONTEXT,
                       "n_prompt: %d tokens are more than the context of %d that each request has",
                       q->n_prompt, s->params.n_ctx);
    if (q->n_prompt > hp->n_ctx_train && !session)
        return pi_fail(err, PITH_CONTEXT,
                       "n_prompt: %d tokens are more than the model's context of %d", q->n_prompt,
                       hp->n_ctx_train);
    PI_TRY(check_ids("prompt", q->prompt, q->n_prompt, hp->n_vocab, err));
    PI_TRY(pi_check_range("n_pin", q->n_pin, 0, q->n_prompt, err));
    return keep_check_prompt(s->engine->keep.handle, at, err);
}

static pith_status check_slot(const struct pith_scheduler *s, const pith_request *q,
                              pith_error *err)
{
    int32_t last = s->params.n_slot > 0 ? PITH_SLOT_MAX - 1 : -1;
    PI_TRY(pi_check_range("slot", q->slot, PITH_SLOT_ANY, last, err));
    if (q->slot >= 0 && q->slot < s->params.n_slot && q->n_answer != 1)
        return pi_fail(err, PITH_INVALID, "n_answer: %d answers cannot be parked in one slot",
                       q->n_answer);
    if (q->on_prompt != NULL)
        PI_TRY(pi_check_range("prompt_from", q->prompt_from, 0, q->n_prompt, err));
    return PITH_OK;
}

static pith_status check_request(const struct pith_scheduler *s, const pith_request *q,
                                 const pith_generate_params *p, pith_error *err)
{
    struct pi_output out;
    PI_TRY(check_prompt(s, q, err));
    PI_TRY(pi_check_range("n_answer", q->n_answer, 1, s->params.n_seq, err));
    PI_TRY(check_slot(s, q, err));
    PI_TRY(pi_check_range("n_predict", p->n_predict, -1, INT32_MAX, err));
    PI_TRY(pi_check_range("n_forced", q->n_forced, 0, INT32_MAX - q->n_prompt, err));
    if (q->n_forced > 0 && q->forced == NULL)
        return pi_fail(err, PITH_INVALID, "n_forced: %d tokens without a list", q->n_forced);
    PI_TRY(check_ids("forced", q->forced, q->n_forced, s->engine->model->hp.n_vocab, err));
    PI_TRY(pi_check_range("n_stop", p->n_stop, 0, INT32_MAX, err));
    if (!(q->deadline_s >= 0.0))
        return pi_fail(err, PITH_INVALID, "deadline_s: %g is not 0 or more", q->deadline_s);
    if (p->n_stop > 0 && p->stop == NULL)
        return pi_fail(err, PITH_INVALID, "n_stop: %d strings without a list", p->n_stop);
    for (int32_t i = 0; i < p->n_stop; i++)
        if (p->stop[i] == NULL)
            return pi_fail(err, PITH_INVALID, "stop: string %d is NULL", i);
    /* The sampler and the stop strings say best what is wrong with them. */
    pith_status status = pi_output_init(&out, s->engine->model, p, 0, q->on_token != NULL, err);
    pi_output_free(&out);
    return status;
}

/* Most tokens of a sequence of the request that an empty pool holds, up to `most`. */
static int32_t room_for(const struct pith_scheduler *s, const struct request *r, int32_t most)
{
    int32_t low = 0;
    while (low < most) {
        int32_t mid = most - (most - low) / 2;
        if (scheduler_bytes(s, r, r->mark, mid) <= s->kv_bytes)
            low = mid;
        else
            most = mid - 1;
    }
    return low;
}

/* As far as a sequence may go whatever memory there is. */
static int32_t context_of(const struct pith_scheduler *s, int32_t n_prompt)
{
    int32_t most = s->params.n_ctx > 0 ? s->params.n_ctx : INT32_MAX;
    if (pi_engine_passes_context(s->engine))
        return most;
    return (int32_t)pi_min(most, pi_max(n_prompt, s->engine->model->hp.n_ctx_train));
}

/* The prompt has to fit in an empty pool. n_predict is a ceiling: it becomes what has room behind
   the prompt, where that is less. Without one an answer goes on until memory or the context ends
   it. Under a policy that evicts neither may, and one that repeats itself would never end. So it
   gets as many tokens as the model was trained on. The last token is never evaluated. */
static pith_status fit(const struct pith_scheduler *s, struct request *r, pith_error *err)
{
    int64_t bytes = scheduler_bytes(s, r, r->mark, r->n_prompt);
    if (scheduler_ranks_least(s, s->kv_bytes - bytes) < 0)
        return pi_fail(err, PITH_KV_FULL,
                       "a prompt of %d tokens takes %lld bytes of KV memory, and there are %lld, "
                       "which hold %d tokens",
                       r->n_prompt, (long long)bytes, (long long)s->kv_bytes,
                       room_for(s, r, r->n_prompt));
    while (r->n_ask > 0 &&
           scheduler_bytes(s, r, r->mark + r->n_ask, r->n_prompt + r->n_ask) > s->kv_bytes)
        r->n_ask /= 2; /* the question finds less */
    int32_t *n = &r->params.n_predict, context = context_of(s, r->n_prompt);
    bool endless = *n < 0 && context == INT32_MAX;
    if (*n == 0 || (*n < 0 && s->params.n_ctx == 0 && !endless))
        return PITH_OK;
    int64_t final = (int64_t)r->n_prompt + (*n < 0 ? INT32_MAX : *n) - 1;
    int32_t most = (int32_t)pi_min(final, context);
    most = (int32_t)scheduler_ranks_least(s, room_for(s, r, most));
    if (!endless)
        *n = most - r->n_prompt + 1;
    else if (most == INT32_MAX)
        *n = (int32_t)pi_max(1, s->engine->model->hp.n_ctx_train);
    return PITH_OK;
}

static size_t stop_len(const pith_generate_params *p, int32_t i)
{
    return p->stop_len != NULL ? p->stop_len[i] : strlen(p->stop[i]);
}

/* The request's parts in one block; with base NULL they are only counted. Returns their bytes. */
static size_t lay_out(struct request *r, const pith_request *q, const pith_generate_params *p,
                      const char ***stop, char **text, uint8_t *base)
{
    size_t used = pi_align(sizeof(*r), 64), n_text = 0;
    for (int32_t i = 0; i < p->n_stop; i++)
        n_text += stop_len(p, i) + 1;
    n_text += p->message != NULL ? p->message_len : 0;
    int32_t *prompt = pi_mem_part(base, &used, (size_t)q->n_prompt, sizeof(*prompt));
    int32_t *forced = pi_mem_part(base, &used, (size_t)q->n_forced, sizeof(*forced));
    struct sched_answer *answer = pi_mem_part(base, &used, (size_t)q->n_answer, sizeof(*answer));
    pith_logit_bias *bias = pi_mem_part(base, &used, (size_t)p->sample.n_bias, sizeof(*bias));
    *stop = pi_mem_part(base, &used, (size_t)p->n_stop, sizeof(**stop));
    size_t *lens = pi_mem_part(base, &used, (size_t)p->n_stop, sizeof(*lens));
    *text = pi_mem_part(base, &used, n_text, 1);
    if (base == NULL)
        return used;
    r->prompt = prompt;
    r->forced = forced;
    r->answer = answer;
    r->params = *p;
    r->params.sample.bias = bias;
    r->params.stop = *stop;
    r->params.stop_len = lens;
    for (int32_t i = 0; i < p->n_stop; i++)
        lens[i] = stop_len(p, i);
    memcpy(prompt, q->prompt, (size_t)q->n_prompt * sizeof(*prompt));
    if (q->n_forced > 0)
        memcpy(forced, q->forced, (size_t)q->n_forced * sizeof(*forced));
    if (p->sample.n_bias > 0)
        memcpy(bias, p->sample.bias, (size_t)p->sample.n_bias * sizeof(*bias));
    return used;
}

/* Where every prompt is to be computed whole, no request finds a conversation by its tokens. A
   place of the scheduler's own may be another conversation's by now: tokens decide there, too. */
static int32_t slot_of(const struct pith_scheduler *s, const pith_request *q)
{
    bool none = s->params.no_prefix || s->params.n_slot == 0;
    bool any = q->slot == PITH_SLOT_ANY || q->slot >= s->params.n_slot;
    return any ? (none ? -1 : PITH_SLOT_ANY) : q->slot;
}

/* A sequence's own budget, which was checked. A conversation that is parked or cached under one
   is never found under another: its salt is another, by the bits of the number. */
static void add_budget(const struct pith_scheduler *s, const pith_request *q, struct request *r)
{
    uint64_t bits = 0;
    if (pi_engine_read_budget(s->engine, q->budget, &r->budget_scale, NULL) != PITH_OK)
        return;
    memcpy(&bits, &r->budget_scale, sizeof(bits));
    r->salt ^= bits * 0x9e3779b97f4a7c15u;
}

static struct request *copy_request(const struct pith_scheduler *s, const pith_request *q,
                                    const pith_generate_params *p)
{
    const char **stop;
    char *text;
    struct request *r = pi_mem_alloc(PI_MEM_OTHER, lay_out(NULL, q, p, &stop, &text, NULL));
    if (r == NULL)
        return NULL;
    lay_out(r, q, p, &stop, &text, (uint8_t *)r);
    for (int32_t i = 0; i < p->n_stop; i++) {
        size_t len = stop_len(p, i);
        stop[i] = memcpy(text, p->stop[i], len);
        text += len + 1;
    }
    if (p->message != NULL)
        r->params.message = memcpy(text, p->message, p->message_len);
    r->priority = q->priority;
    r->n_prompt = q->n_prompt;
    r->n_forced = q->n_forced;
    r->n_answer = r->n_left = q->n_answer;
    r->slot = slot_of(s, q);
    r->session = q->session;
    r->mark = mark_of(s, q);
    r->n_pin = pi_engine_pins(s->engine) ? q->n_pin : 0;
    r->salt = q->cache_salt;
    add_budget(s, q, r);
    r->on_prompt = q->on_prompt;
    r->n_ask = scheduler_ask_most(s, r);
    r->no_logits = q->no_logits;
    r->on_token = q->on_token;
    r->on_done = q->on_done;
    r->user = q->user;
    for (int32_t i = 0; i < r->n_answer; i++)
        r->answer[i] = (struct sched_answer){
            .request = r,
            .index = i,
            .state = i == 0 ? ANSWER_QUEUED : ANSWER_SIBLING,
            .known = {.n = r->n_prompt, .mark = r->mark},
            .step.n_shown = q->on_prompt != NULL ? q->prompt_from : r->n_prompt,
            .park = {.slot = (int32_t)pi_max(r->slot, -1), .from = -1},
            .tally = {.reuse = r->slot == -1 ? PITH_REUSE_OFF : PITH_REUSE_NEW, .differs_at = -1},
        };
    r->submitted_at = pi_time_s();
    r->deadline = q->deadline_s > 0.0 ? r->submitted_at + q->deadline_s : INFINITY;
    return r;
}

/* Puts the request into the inbox; the lock is held. */
static pith_status add_request(struct pith_scheduler *s, struct request *r, pith_error *err)
{
    if (s->inbox.closing)
        return pi_fail(err, PITH_CANCELLED, "the scheduler is being freed");
    if (s->inbox.n_waiting >= s->params.n_queue)
        return pi_fail(err, PITH_BUSY, "n_queue: %d requests wait already", s->inbox.n_waiting);
    if (s->inbox.n_live == s->inbox.cap_live) {
        int32_t cap = 2 * s->inbox.cap_live + 16;
        struct request **live =
            pi_mem_grow(PI_MEM_OTHER, s->inbox.live, (size_t)cap, sizeof(*live));
        if (live == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for a list of %d requests", cap);
        s->inbox.live = live;
        s->inbox.cap_live = cap;
    }
    r->id = ++s->inbox.next_id;
    r->in_queue = true;
    s->inbox.live[s->inbox.n_live++] = r;
    s->inbox.n_waiting++;
    *(s->inbox.first != NULL ? &s->inbox.last->next : &s->inbox.first) = r;
    s->inbox.last = r;
    pi_lock_wake(&s->inbox.lock);
    return PITH_OK;
}

pith_status pith_scheduler_submit(pith_scheduler *s, const pith_request *request, int64_t *id,
                                  pith_error *err)
{
    struct request *r = NULL;
    pith_generate_params defaults;
    pith_generate_params_default(&defaults);
    if (s == NULL || request == NULL)
        return pi_fail(err, PITH_INVALID,
                       "pith_scheduler_submit: scheduler and request must not be NULL");
    const pith_generate_params *p = request->params != NULL ? request->params : &defaults;
    pith_status status = check_request(s, request, p, err);
    if (status == PITH_OK) {
        r = copy_request(s, request, p);
        status = r != NULL ? fit(s, r, err)
                           : pi_fail(err, PITH_NOMEM, "no memory for a request of %d tokens",
                                     request->n_prompt);
    }
    pi_lock_take(&s->inbox.lock);
    if (status == PITH_OK)
        status = add_request(s, r, err);
    if (status == PITH_OK && id != NULL)
        *id = r->id;
    s->inbox.n_refused += status != PITH_OK;
    pi_lock_give(&s->inbox.lock);
    if (status != PITH_OK)
        pi_mem_free(r);
    return status;
}

pith_status scheduler_adopt(struct pith_scheduler *s, const pith_request *request,
                            const struct request *as, pith_error *err)
{
    struct request *r = copy_request(s, request, request->params);
    if (r == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a request of %d tokens", request->n_prompt);
    r->salt = as->salt;
    r->budget_scale = as->budget_scale;
    r->submitted_at = as->submitted_at;
    r->deadline = as->deadline;
    pi_lock_take(&s->inbox.lock);
    s->inbox.next_id = as->id - 1;
    pith_status status = add_request(s, r, err);
    pi_lock_give(&s->inbox.lock);
    if (status != PITH_OK)
        pi_mem_free(r);
    return status;
}

int32_t pith_scheduler_room(const pith_scheduler *s, const pith_request *request)
{
    struct request r;
    if (s == NULL || request == NULL)
        return 0;
    r = (struct request){.n_prompt = request->n_prompt, .mark = mark_of(s, request)};
    return room_for(s, &r, (int32_t)pi_min(context_of(s, 0), INT32_MAX - 1));
}

/* ---- the list of all ---- */

/* The first of `live` with an id that is not below; the lock is held. */
static int32_t find_live(const struct pith_scheduler *s, int64_t id)
{
    int32_t low = 0, high = s->inbox.n_live;
    while (low < high) {
        int32_t mid = low + (high - low) / 2;
        if (s->inbox.live[mid]->id < id)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

bool scheduler_is_wanted(struct pith_scheduler *s, const struct request *r)
{
    pi_lock_take(&s->inbox.lock);
    bool cancelled = r->cancelled;
    s->inbox.stirred_at = pi_time_s();
    pi_lock_give(&s->inbox.lock);
    return scheduler_ranks_agree(s, !cancelled &&
                                        (r->deadline == INFINITY || pi_time_s() < r->deadline));
}

void scheduler_left_queue(struct pith_scheduler *s, struct request *r)
{
    if (!r->in_queue)
        return;
    r->in_queue = false;
    pi_lock_take(&s->inbox.lock);
    s->inbox.n_waiting--;
    pi_lock_give(&s->inbox.lock);
}

void scheduler_forget(struct pith_scheduler *s, struct request *r)
{
    scheduler_left_queue(s, r);
    pi_lock_take(&s->inbox.lock);
    int32_t i = find_live(s, r->id);
    memmove(&s->inbox.live[i], &s->inbox.live[i + 1],
            (size_t)(s->inbox.n_live - i - 1) * sizeof(*s->inbox.live));
    s->inbox.n_live--;
    for (struct request **at = &s->inbox.cancelled; *at != NULL; at = &(*at)->next_ending)
        if (*at == r) {
            *at = r->next_ending;
            break;
        }
    pi_lock_give(&s->inbox.lock);
}

pith_status pith_scheduler_cancel(pith_scheduler *s, int64_t id)
{
    pith_status status = PITH_NOT_FOUND;
    pi_lock_take(&s->inbox.lock);
    int32_t i = find_live(s, id);
    if (i < s->inbox.n_live && s->inbox.live[i]->id == id) {
        struct request *r = s->inbox.live[i];
        status = PITH_OK;
        if (!r->cancelled) {
            r->cancelled = true;
            r->next_ending = s->inbox.cancelled;
            s->inbox.cancelled = r;
            pi_lock_wake(&s->inbox.lock);
        }
    }
    pi_lock_give(&s->inbox.lock);
    return status;
}

bool pith_scheduler_wait(pith_scheduler *s, double seconds)
{
    double until = pi_time_s() + fmin(fmax(seconds, 0.0), MAX_WAIT_S);
    pi_lock_take(&s->inbox.lock);
    bool in_time = true;
    while (s->inbox.n_live == 0 && in_time)
        in_time = pi_lock_wait(&s->inbox.lock, until);
    bool any = s->inbox.n_live > 0;
    pi_lock_give(&s->inbox.lock);
    return any;
}

pith_status pith_scheduler_run(pith_scheduler *s, pith_error *err)
{
    for (bool idle = false; !idle;)
        PI_TRY(pith_scheduler_step(s, &idle, err));
    return PITH_OK;
}

void pith_scheduler_get_stats(pith_scheduler *s, pith_scheduler_stats *out)
{
    pi_lock_take(&s->inbox.lock);
    *out = s->inbox.shown;
    out->n_refused = s->inbox.n_refused;
    pi_lock_give(&s->inbox.lock);
}

double pith_scheduler_silence(pith_scheduler *s)
{
    pi_lock_take(&s->inbox.lock);
    double at = s->inbox.stirred_at;
    pi_lock_give(&s->inbox.lock);
    return fmax(0.0, pi_time_s() - at);
}
