/*
 * exchange.c - the bytes between the model and a client. It knows no API and no route, and of
 * libmicrohttpd only that connections are suspended and resumed.
 *
 * Invariant: a connection is suspended only while `suspended` is set, both under the lock, so that
 * it is resumed exactly once.
 */
#define _POSIX_C_SOURCE 200809L

#include "exchange.h"

#include <microhttpd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "routes.h"
#include "state.h"

/* A reader that is this many times the bound behind is given up at once. */
#define FAR_BEHIND 4

/* Bytes of memory behind each of an answer: what its tokens were, and its values as JSON. */
#define OUT_WEIGHT 8

struct exchange *exchange_create(struct server *s, struct MHD_Connection *connection,
                                 const char *path)
{
    struct exchange *ex = calloc(1, sizeof(*ex));
    char *copy = ex != NULL ? strdup(path) : NULL;
    if (copy == NULL) {
        free(ex);
        return NULL;
    }
    ex->server = s;
    ex->connection = connection;
    ex->path = copy;
    ex->slot = -1;
    ex->start = server_now();
    ex->refs = 1;
    pthread_mutex_init(&ex->lock, NULL);
    return ex;
}

void exchange_hold(struct exchange *ex)
{
    pthread_mutex_lock(&ex->lock);
    ex->refs++;
    pthread_mutex_unlock(&ex->lock);
}

void exchange_drop_body(struct exchange *ex)
{
    size_t len = ex->body.len;
    atomic_fetch_sub(&ex->server->count.body_bytes, (long long)len);
    atomic_fetch_sub(&ex->server->count.json_bytes, (long long)ex->weighed);
    ex->weighed = 0;
    serve_bytes_free(&ex->body);
    memory_note(ex->server, len);
}

void exchange_release(struct exchange *ex)
{
    if (ex == NULL)
        return;
    pthread_mutex_lock(&ex->lock);
    bool last = --ex->refs == 0;
    pthread_mutex_unlock(&ex->lock);
    if (!last)
        return;
    exchange_drop_body(ex);
    serve_bytes_free(&ex->out);
    memory_note(ex->server, OUT_WEIGHT * ex->n_out);
    pthread_mutex_destroy(&ex->lock);
    free(ex->path);
    free(ex);
}

/* ---- under the lock ---- */

static void wake(struct exchange *ex)
{
    if (!ex->suspended)
        return;
    ex->suspended = false;
    MHD_resume_connection(ex->connection);
}

static void lose(struct exchange *ex)
{
    exchange_gone_fn *fn = ex->on_gone;
    ex->gone = true;
    ex->on_gone = NULL;
    if (fn != NULL)
        fn(ex->on_gone_user);
}

static void give_up(struct exchange *ex)
{
    ex->aborted = true;
    lose(ex);
    wake(ex);
}

static size_t unread(const struct exchange *ex)
{
    return ex->out.len - ex->sent;
}

/* Takes away what was sent, where that is worth the copy. */
static void compact(struct exchange *ex)
{
    if (ex->sent == 0 || ex->sent < ex->out.len / 2)
        return;
    memmove(ex->out.data, ex->out.data + ex->sent, unread(ex));
    ex->out.len = unread(ex);
    ex->sent = 0;
}

static bool append(struct exchange *ex, const char *data, size_t len)
{
    size_t bound = (size_t)ex->server->config.stream_max;
    if (ex->gone || ex->aborted || ex->ended)
        return false;
    compact(ex);
    if (!serve_bytes_add(&ex->out, data, len)) {
        give_up(ex);
        return false;
    }
    ex->said_at = server_now();
    ex->n_out += len;
    if (!ex->events || unread(ex) <= bound)
        return true;
    if (ex->behind_since == 0.0)
        ex->behind_since = server_now();
    if (unread(ex) <= FAR_BEHIND * bound)
        return true;
    atomic_fetch_add(&ex->server->count.n_dropped, 1);
    give_up(ex);
    return false;
}

/* ---- the answer ---- */

void exchange_open_events(struct exchange *ex, const char *beat)
{
    pthread_mutex_lock(&ex->lock);
    if (ex->code == 0) {
        ex->code = MHD_HTTP_OK;
        ex->events = true;
        ex->beat = beat;
        ex->said_at = server_now();
        wake(ex);
    }
    pthread_mutex_unlock(&ex->lock);
}

bool exchange_send(struct exchange *ex, const char *data, size_t len)
{
    pthread_mutex_lock(&ex->lock);
    bool ok = append(ex, data, len);
    if (ok && ex->events)
        wake(ex);
    pthread_mutex_unlock(&ex->lock);
    return ok;
}

static void stop_waiting(struct exchange *ex)
{
    if (ex->waits)
        atomic_fetch_sub(&ex->server->count.n_answer, 1);
    ex->waits = false;
}

void exchange_begin_wait(struct exchange *ex)
{
    pthread_mutex_lock(&ex->lock);
    ex->waits = true;
    atomic_fetch_add(&ex->server->count.n_answer, 1);
    pthread_mutex_unlock(&ex->lock);
}

void exchange_end_wait(struct exchange *ex)
{
    pthread_mutex_lock(&ex->lock);
    stop_waiting(ex);
    pthread_mutex_unlock(&ex->lock);
}

void exchange_end(struct exchange *ex, int code)
{
    pthread_mutex_lock(&ex->lock);
    /* Without a client no code is sent, and what was cancelled with its client is no error. */
    if (ex->code == 0 && !ex->gone && !ex->aborted)
        ex->code = code;
    ex->ended = true;
    ex->on_gone = NULL;
    stop_waiting(ex); /* first: a client that has the answer may send its next request at once */
    wake(ex);
    pthread_mutex_unlock(&ex->lock);
}

void exchange_abort(struct exchange *ex)
{
    pthread_mutex_lock(&ex->lock);
    give_up(ex);
    pthread_mutex_unlock(&ex->lock);
}

void exchange_json(struct exchange *ex, int code, json_t *value)
{
    char *text = value != NULL ? json_dumps(value, JSON_COMPACT) : NULL;
    json_decref(value);
    if (text == NULL || !exchange_send(ex, text, strlen(text)))
        exchange_abort(ex);
    else
        exchange_end(ex, code);
    free(text);
}

void exchange_text(struct exchange *ex, const char *content_type, const char *text, size_t len)
{
    ex->content_type = content_type;
    if (len > 0 && !exchange_send(ex, text, len))
        exchange_abort(ex);
    else
        exchange_end(ex, MHD_HTTP_OK);
}

void exchange_refuse(struct exchange *ex, const struct serve_fault *fault)
{
    struct serve_bytes doc = {0};
    enum serve_api api = ex->route != NULL ? ex->route->api : SERVE_CHAT;
    if (serve_fault_write(fault, api, &doc) && exchange_send(ex, doc.data, doc.len))
        exchange_end(ex, fault->code);
    else
        exchange_abort(ex);
    serve_bytes_free(&doc);
}

void exchange_refuse_with(struct exchange *ex, int code, const char *type, const char *param,
                          const char *fmt, ...)
{
    struct serve_fault fault = {.code = code, .type = type, .param = param};
    va_list args;
    va_start(args, fmt);
    vsnprintf(fault.message, sizeof(fault.message), fmt, args);
    va_end(args);
    exchange_refuse(ex, &fault);
}

bool exchange_is_gone(struct exchange *ex)
{
    pthread_mutex_lock(&ex->lock);
    bool gone = ex->gone || ex->aborted;
    pthread_mutex_unlock(&ex->lock);
    return gone;
}

bool exchange_on_gone(struct exchange *ex, exchange_gone_fn *fn, void *user)
{
    pthread_mutex_lock(&ex->lock);
    bool here = !ex->gone && !ex->aborted;
    ex->on_gone = here ? fn : NULL;
    ex->on_gone_user = user;
    pthread_mutex_unlock(&ex->lock);
    return here;
}

void exchange_gone(struct exchange *ex)
{
    pthread_mutex_lock(&ex->lock);
    if (!ex->ended && !ex->gone)
        atomic_fetch_add(&ex->server->count.n_gone, 1);
    give_up(ex);
    pthread_mutex_unlock(&ex->lock);
}

/* A client that has not read what was sent needs no sign of life. */
void exchange_tell(struct exchange *ex, double now)
{
    pthread_mutex_lock(&ex->lock);
    bool silent = ex->beat != NULL && unread(ex) == 0 && now - ex->said_at >= EXCHANGE_BEAT_S;
    if (silent && append(ex, ex->beat, strlen(ex->beat)))
        wake(ex);
    pthread_mutex_unlock(&ex->lock);
}

bool exchange_must_shut(struct exchange *ex, double now, double timeout_s)
{
    pthread_mutex_lock(&ex->lock);
    if (ex->behind_since > 0.0 && now - ex->behind_since > timeout_s && !ex->aborted) {
        atomic_fetch_add(&ex->server->count.n_dropped, 1);
        give_up(ex);
    }
    bool shut = ex->aborted;
    pthread_mutex_unlock(&ex->lock);
    return shut;
}

/* ---- on the HTTP thread ---- */

void exchange_finish(struct exchange *ex, bool whole)
{
    pthread_mutex_lock(&ex->lock);
    bool ended = whole && ex->ended;
    pthread_mutex_unlock(&ex->lock);
    if (!ended)
        exchange_gone(ex);
}

/* Once the server stops nothing may be suspended: no thread is left to resume it. */
static bool may_wait(const struct exchange *ex)
{
    return atomic_load(&ex->server->stage) != SERVER_STOPS;
}

bool exchange_ready(struct exchange *ex, bool *lost, int64_t *size)
{
    pthread_mutex_lock(&ex->lock);
    bool ready = ex->ended || (ex->code != 0 && ex->events);
    *lost = ex->aborted || (!ready && !may_wait(ex));
    *size = ex->ended ? (int64_t)unread(ex) : -1;
    if (!ready && !*lost) {
        ex->suspended = true;
        MHD_suspend_connection(ex->connection);
    }
    pthread_mutex_unlock(&ex->lock);
    return ready && !*lost;
}

ssize_t exchange_take(struct exchange *ex, char *buf, size_t max)
{
    ssize_t n = EXCHANGE_LOST;
    pthread_mutex_lock(&ex->lock);
    if (!ex->aborted && unread(ex) > 0) {
        size_t len = unread(ex) < max ? unread(ex) : max;
        memcpy(buf, ex->out.data + ex->sent, len);
        ex->sent += len;
        if (unread(ex) <= (size_t)ex->server->config.stream_max)
            ex->behind_since = 0.0;
        n = (ssize_t)len;
    } else if (!ex->aborted && ex->ended) {
        n = EXCHANGE_END;
    } else if (!ex->aborted && may_wait(ex)) {
        ex->suspended = true;
        MHD_suspend_connection(ex->connection);
        n = 0;
    }
    pthread_mutex_unlock(&ex->lock);
    return n;
}
