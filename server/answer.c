/*
 * answer.c - a request to the model, from its body to the last byte of its answer. A worker reads
 * the body. Everything after that happens on the model thread, so an answer has one owner at a time
 * and needs no lock.
 *
 * Invariant: an answer is freed when its last prompt's last answer has ended, never before.
 */
#include <math.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "routes.h"
#include "state.h"
#include "view.h"

#define RETRY_MAX_S 60

/* One prompt. */
struct part {
    struct http_answer *answer;
    int32_t i;
    int64_t id;      /* the scheduler's */
    int32_t n_read;  /* as was told last */
    double *said_at; /* [n_answer] when an answer's last token came; 0: none did. Borrowed */
};

struct http_answer {
    struct http_answer *prev, *next; /* on the model thread, once it is there */
    struct server *server;
    struct exchange *ex;      /* a reference */
    struct serve_setup setup; /* of the request */
    struct serve_request *request;
    struct serve_reply *reply;
    struct part *part; /* [n_part] */
    double *said_at;   /* of all parts' answers; owned */
    int32_t n_part;
    int32_t n_pending; /* answers that have not ended */
    double since;      /* when its first prompt was submitted, of server_now */
    bool listed;
    bool submitting;        /* there are prompts that the scheduler does not have yet */
    atomic_int n_submitted; /* of part, whose ids may be read */
};

static void list(struct http_answer *a)
{
    struct server *s = a->server;
    a->next = s->answers;
    if (a->next != NULL)
        a->next->prev = a;
    s->answers = a;
    a->listed = true;
    s->n_progress += serve_request_wants_progress(a->request);
}

static void unlist(struct http_answer *a)
{
    if (!a->listed)
        return;
    a->server->n_progress -= serve_request_wants_progress(a->request);
    *(a->prev != NULL ? &a->prev->next : &a->server->answers) = a->next;
    if (a->next != NULL)
        a->next->prev = a->prev;
}

static void answer_free(struct http_answer *a)
{
    unlist(a);
    exchange_on_gone(a->ex, NULL, NULL);
    exchange_end_wait(a->ex);
    serve_reply_free(a->reply);
    serve_request_free(a->request);
    exchange_release(a->ex);
    free(a->part);
    free(a->said_at);
    free(a);
}

/* Hands what the reply wrote to the client. */
static void deliver(struct http_answer *a, struct serve_bytes *bytes, bool ok)
{
    int code = serve_reply_code(a->reply);
    if (!ok) {
        exchange_abort(a->ex);
    } else if (code != 0) {
        if (code == MHD_HTTP_OK && serve_reply_is_events(a->reply))
            exchange_open_events(a->ex, serve_reply_beat(a->reply));
        if (bytes->len > 0)
            exchange_send(a->ex, bytes->data, bytes->len);
        if (serve_reply_finished(a->reply))
            exchange_end(a->ex, code);
    }
    serve_bytes_free(bytes);
}

/* ---- callbacks of the scheduler ---- */

static void note_token(struct part *part, int32_t answer)
{
    struct http_answer *a = part->answer;
    double now = server_now(), *last = &part->said_at[answer];
    if (*last > 0.0)
        metrics_note(a->server, TIMING_TOKEN, now - *last);
    else
        metrics_note(a->server, TIMING_FIRST, now - a->ex->start);
    *last = now;
}

static bool on_token(void *user, const pith_answer_token *token)
{
    struct part *part = user;
    struct http_answer *a = part->answer;
    struct serve_bytes bytes = {0};
    if (token->token >= 0)
        note_token(part, token->answer);
    /* Where the client is gone the request was cancelled: it ends with this step. */
    if (!exchange_is_gone(a->ex) && !serve_reply_finished(a->reply))
        deliver(a, &bytes, serve_reply_token(a->reply, part->i, token, &bytes));
    return !serve_reply_is_over(a->reply, part->i, token->answer);
}

/* Logits of the prompt, for requests that ask how likely it was. */
static bool on_prompt(void *user, int64_t request, int32_t index, int32_t token,
                      const float *logits)
{
    const struct part *part = user;
    struct http_answer *a = part->answer;
    (void)request;
    (void)token;
    if (exchange_is_gone(a->ex) || serve_reply_finished(a->reply))
        return true;
    if (!serve_reply_prompt(a->reply, part->i, index, logits))
        exchange_abort(a->ex);
    return true;
}

static void on_done(void *user, const pith_answer_result *result)
{
    struct part *part = user;
    struct http_answer *a = part->answer;
    struct serve_bytes bytes = {0};
    /* At the end of the server a client is told so: its request itself is good. */
    pith_answer_result told = *result;
    if (result->status == PITH_CANCELLED && queue_closed(&a->server->to_model))
        told.message = "the server is shutting down";
    atomic_fetch_add(&a->server->count.evicted, (long long)result->n_evicted);
    if (result->status == PITH_OK) {
        metrics_note(a->server, TIMING_QUEUE, result->queue_s);
        metrics_note(a->server, TIMING_WHOLE, server_now() - a->ex->start);
    }
    a->n_pending--;
    if (!serve_reply_finished(a->reply))
        deliver(a, &bytes, serve_reply_done(a->reply, part->i, &told, &bytes));
    if (a->n_pending == 0 && !a->submitting)
        answer_free(a);
}

/* ---- submitting ---- */

/* Of a request that has none: another one each time (SplitMix64), below 2^53 so that it can be said
   in JSON. */
static uint64_t any_seed(struct server *s)
{
    uint64_t z = (uint64_t)strtoull(s->boot, NULL, 16);
    z += 0x9e3779b97f4a7c15u * (uint64_t)atomic_fetch_add(&s->next_id, 1);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) >> 11;
}

static void cancel_all(struct http_answer *a)
{
    int n = atomic_load(&a->n_submitted);
    for (int i = 0; i < n; i++)
        pith_scheduler_cancel(a->server->scheduler, a->part[i].id);
}

/* The exchange is locked, so the answer is still there. */
static void on_gone(void *user)
{
    cancel_all(user);
}

/* When a slot in the queue may be free: by the mean time of the running requests so far. */
static int32_t retry_after(struct server *s)
{
    pith_scheduler_stats stats;
    pith_scheduler_get_stats(s->scheduler, &stats);
    double each = stats.n_done > 0 ? stats.seconds / (double)stats.n_done : 1.0;
    double seconds = 1.0 + each * (double)(stats.n_waiting + stats.n_running) / 2.0;
    return seconds > RETRY_MAX_S ? RETRY_MAX_S : (int32_t)seconds;
}

static void refuse(struct http_answer *a, pith_status status, const pith_request *request,
                   const pith_error *err)
{
    struct serve_fault fault = {0};
    struct serve_bytes bytes = {0};
    if (status == PITH_BUSY) {
        a->ex->retry_after = retry_after(a->server);
        serve_fault_set(&fault, MHD_HTTP_TOO_MANY_REQUESTS, "rate_limit_error", NULL,
                        "the queue is full: %d requests wait already, which is the most (--queue)",
                        a->server->config.schedule.n_queue);
    } else {
        serve_fault_status(&fault, status, err->message, request->n_prompt,
                           pith_scheduler_room(a->server->scheduler, request));
    }
    deliver(a, &bytes, serve_reply_fail(a->reply, &fault, &bytes));
}

/* Fills in what the body says of caches, and the callbacks. A conversation is kept unless the
   request wants nothing reused, or all logits of its prompt. */
static void fill(struct http_answer *a, pith_request *request)
{
    bool one = !serve_request_wants_prompt(a->request) && serve_request_caches(a->request);
    request->on_token = on_token;
    request->on_done = on_done;
    request->slot = serve_request_caches(a->request) ? serve_request_slot(a->request) : -1;
    if (request->slot < 0 && one)
        request->slot = PITH_SLOT_ANY;
    request->session = a->ex->session != 0 ? a->ex->session : serve_request_session(a->request);
    request->cache_salt = serve_request_salt(a->request);
    /* cache_prompt false: under a salt of its own there is nothing to find. No slot keeps it, since
       no later request could find it there either. */
    if (!serve_request_caches(a->request))
        request->cache_salt = any_seed(a->server) | 1;
    if (serve_request_wants_prompt(a->request))
        request->on_prompt = on_prompt;
}

/* False: refused. */
static bool submit_part(struct http_answer *a, int32_t i)
{
    struct part *part = &a->part[i];
    struct server *s = a->server;
    pith_generate_params params;
    pith_request request;
    pith_error err;
    *part = (struct part){.answer = a, .i = i};
    part->said_at = a->said_at + i * (serve_request_answers(a->request) / a->n_part);
    serve_request_get(a->request, i, &params, &request);
    fill(a, &request);
    request.user = part;
    /* The time is the whole request's; what is left of none ends with the next step. */
    if (request.deadline_s > 0.0 && i > 0)
        request.deadline_s = fmax(request.deadline_s - (server_now() - a->since), 1e-9);
    pith_status status = pith_scheduler_submit(s->scheduler, &request, &part->id, &err);
    if (status != PITH_OK) {
        refuse(a, status, &request, &err);
        return false;
    }
    s->n_new++;
    a->n_pending += request.n_answer;
    atomic_store(&a->n_submitted, i + 1);
    view_note(s, request.session, part->id);
    return true;
}

static bool queue_is_full(const struct server *s)
{
    pith_scheduler_stats stats;
    pith_scheduler_get_stats(s->scheduler, &stats);
    return stats.n_waiting + s->n_new >= s->config.schedule.n_queue;
}

/* Submits prompts until the scheduler has all, or its queue is full of them: a request may have
   more than that has places. Returns whether it still wants an answer. */
static bool submit_parts(struct http_answer *a)
{
    for (int32_t i = atomic_load(&a->n_submitted); i < a->n_part; i++) {
        if (i > 0 && queue_is_full(a->server))
            return true;
        if (exchange_is_gone(a->ex) || serve_reply_finished(a->reply) || !submit_part(a, i))
            return false;
    }
    return true;
}

/* Frees the answer where nothing of it is left. */
static void end_submit(struct http_answer *a, bool ok)
{
    a->submitting = ok && atomic_load(&a->n_submitted) < a->n_part;
    if (!ok || exchange_is_gone(a->ex)) /* in the meantime */
        cancel_all(a);
    if (a->n_pending == 0 && !a->submitting)
        answer_free(a);
}

/* On the model thread. */
static void submit(struct exchange *ex)
{
    struct http_answer *a = ex->work;
    struct serve_bytes bytes = {0};
    list(a);
    a->since = server_now();
    bool ok = exchange_on_gone(ex, on_gone, a) && submit_parts(a);
    if (ok && !serve_reply_finished(a->reply)) /* nothing that can be known now is wrong */
        deliver(a, &bytes, serve_reply_open(a->reply, &bytes));
    end_submit(a, ok);
}

bool answer_go_on(struct server *s)
{
    bool any = false;
    struct http_answer *next;
    s->n_new = 0;
    for (struct http_answer *a = s->answers; a != NULL; a = next) {
        next = a->next;
        if (!a->submitting)
            continue;
        int n = atomic_load(&a->n_submitted);
        bool ok = submit_parts(a);
        any = any || atomic_load(&a->n_submitted) > n;
        end_submit(a, ok);
    }
    return any;
}

/* Prompts that the scheduler does not have yet are refused. The rest ends with its next step. */
void answer_cancel_all(struct server *s)
{
    struct http_answer *next;
    for (struct http_answer *a = s->answers; a != NULL; a = next) {
        struct serve_fault fault = {0};
        struct serve_bytes bytes = {0};
        next = a->next;
        serve_fault_status(&fault, PITH_CANCELLED, "the server is shutting down", 0, 0);
        if (a->submitting)
            deliver(a, &bytes, serve_reply_fail(a->reply, &fault, &bytes));
        end_submit(a, false);
    }
}

/* ---- progress ---- */

static bool tell_progress(void *user, const pith_scheduler_item *item)
{
    struct server *s = user;
    if (item->state != PITH_ITEM_READING || item->answer != 0)
        return item->state != PITH_ITEM_PARKED;
    for (struct http_answer *a = s->answers; a != NULL; a = a->next)
        for (int32_t i = 0; i < atomic_load(&a->n_submitted); i++) {
            struct serve_bytes bytes = {0};
            if (a->part[i].id != item->id || !serve_request_wants_progress(a->request) ||
                serve_reply_finished(a->reply) || a->part[i].n_read == item->n_done)
                continue;
            a->part[i].n_read = item->n_done;
            deliver(a, &bytes,
                    serve_reply_progress(a->reply, i, item->n_cached, item->n_done,
                                         server_now() - a->ex->start, &bytes));
        }
    return true;
}

void answer_tell_progress(struct server *s)
{
    if (s->n_progress > 0)
        pith_scheduler_each(s->scheduler, tell_progress, s);
}

/* ---- the body ---- */

/* setup is filled and must outlive the request. NULL: refused, or the client is gone. */
static struct serve_request *parse(struct exchange *ex, struct serve_setup *setup)
{
    struct serve_request *request = NULL;
    struct serve_fault fault = {0};
    const char *body = ex->body.data != NULL ? ex->body.data : "";
    if (exchange_is_gone(ex))
        return NULL;
    *setup = ex->server->requests;
    if (ex->route->answer != answer_request)
        setup->n_ctx = 0; /* counted and shown, however long */
    setup->any_seed = any_seed(ex->server);
    if (ex->server->config.random_seed)
        setup->params.sample.seed = setup->any_seed;
    if (serve_request_parse(setup, ex->route->api, body, ex->body.len, &request, &fault) == PITH_OK)
        return request;
    exchange_refuse(ex, &fault);
    return NULL;
}

static pith_status make_reply(struct http_answer *a)
{
    char id[33];
    snprintf(id, sizeof(id), "%.16s%llx", a->server->boot,
             (unsigned long long)atomic_fetch_add(&a->server->next_id, 1));
    return serve_reply_create(a->request, (int64_t)time(NULL), id, &a->reply);
}

/* False: no memory, or refused. */
static bool prepare(struct http_answer *a)
{
    a->request = parse(a->ex, &a->setup);
    if (a->request == NULL)
        return false;
    a->n_part = serve_request_count(a->request);
    a->part = calloc((size_t)a->n_part, sizeof(*a->part));
    a->said_at = calloc((size_t)serve_request_answers(a->request), sizeof(*a->said_at));
    if (a->part != NULL && a->said_at != NULL && make_reply(a) == PITH_OK)
        return true;
    exchange_abort(a->ex);
    return false;
}

void answer_request(struct exchange *ex)
{
    struct server *s = ex->server;
    struct http_answer *a = calloc(1, sizeof(*a));
    if (a == NULL) {
        exchange_abort(ex);
        return;
    }
    a->server = s;
    a->ex = ex;
    a->submitting = true;
    exchange_hold(ex);
    exchange_begin_wait(ex);
    ex->work = a;
    ex->task = submit;
    bool ok = prepare(a);
    if (ok && queue_push(&s->to_model, ex))
        return;
    if (ok)
        exchange_refuse_with(ex, MHD_HTTP_SERVICE_UNAVAILABLE, "unavailable_error", NULL,
                             "the server is shutting down");
    answer_free(a);
}

/* ---- what needs no engine ---- */

static void answer_parsed(struct exchange *ex,
                          bool (*write)(const struct serve_request *r, struct serve_bytes *out))
{
    struct serve_setup setup;
    struct serve_request *request = parse(ex, &setup);
    struct serve_bytes doc = {0};
    if (request == NULL)
        return;
    if (write(request, &doc) && exchange_send(ex, doc.data, doc.len))
        exchange_end(ex, MHD_HTTP_OK);
    else
        exchange_abort(ex);
    serve_bytes_free(&doc);
    serve_request_free(request);
}

void answer_count(struct exchange *ex)
{
    answer_parsed(ex, serve_count_write);
}

void answer_render(struct exchange *ex)
{
    answer_parsed(ex, serve_render_write);
}

void answer_template(struct exchange *ex)
{
    struct serve_setup setup;
    struct serve_request *request = parse(ex, &setup);
    size_t len = 0;
    if (request == NULL)
        return;
    const char *text = serve_request_text(request, &len);
    exchange_json(ex, MHD_HTTP_OK,
                  json_pack("{s:o}", "prompt", json_stringn(text != NULL ? text : "", len)));
    serve_request_free(request);
}
