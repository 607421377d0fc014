/*
 * http.c - requests as libmicrohttpd hands them over: head, pieces of a body, end; and responses as
 * it takes them. Everything here runs on its one thread, which must never wait.
 *
 * A request that is refused is answered when its body has come: a client that still sends would
 * not read the answer. Two are answered at once: of a client that waits for the word to send, and
 * one whose body has no certain end.
 */
#define _POSIX_C_SOURCE 200809L

#include "http.h"

#include <errno.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "access.h"
#include "door.h"
#include "routes.h"
#include "state.h"

#define HEAD_BYTES (32u << 10)  /* of a connection's buffers: a head that is longer is 431 */
#define BLOCK_BYTES (16u << 10) /* that a response takes at once */
#define BODIES_MAX 4            /* all bodies in memory, as multiples of the largest */

/* ---- responses ---- */

static ssize_t read_answer(void *user, uint64_t pos, char *buf, size_t max)
{
    (void)pos;
    ssize_t n = exchange_take(user, buf, max);
    return n == EXCHANGE_END    ? MHD_CONTENT_READER_END_OF_STREAM
           : n == EXCHANGE_LOST ? MHD_CONTENT_READER_END_WITH_ERROR
                                : n;
}

static void give_back(void *user)
{
    exchange_release(user);
}

static void add(struct MHD_Response *response, const char *name, const char *value)
{
    if (value != NULL)
        MHD_add_response_header(response, name, value);
}

/* Headers that let pages of other origins use the API, as llama-server says it. */
static void add_cors(const struct exchange *ex, struct MHD_Response *response)
{
    const char *origin = MHD_lookup_connection_value(ex->connection, MHD_HEADER_KIND, "Origin");
    if (!access_shares(ex))
        return;
    add(response, "Access-Control-Allow-Origin", origin != NULL ? origin : "*");
    add(response, "Vary", origin != NULL ? "Origin" : NULL);
}

static enum MHD_Result respond(struct exchange *ex, int64_t size)
{
    exchange_hold(ex);
    struct MHD_Response *response = MHD_create_response_from_callback(
        size >= 0 ? (uint64_t)size : MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_answer, ex, give_back);
    if (response == NULL) {
        exchange_release(ex);
        return MHD_NO;
    }
    char after[16];
    int after_s = ex->retry_after > 0                        ? ex->retry_after
                  : ex->code == MHD_HTTP_SERVICE_UNAVAILABLE ? 1
                                                             : 0;
    snprintf(after, sizeof(after), "%d", after_s);
    add(response, "Content-Type",
        ex->content_type != NULL ? ex->content_type
        : ex->events             ? "text/event-stream"
                                 : "application/json; charset=utf-8");
    add(response, "Cache-Control", ex->events ? "no-cache" : NULL);
    add(response, "X-Accel-Buffering", ex->events ? "no" : NULL); /* of proxies that collect */
    add(response, "Server", "pith");
    add(response, "Allow", ex->allow);
    add(response, "WWW-Authenticate", ex->challenge);
    add(response, "Retry-After", after_s > 0 ? after : NULL);
    add(response, "X-Request-Id", ex->request_id[0] != '\0' ? ex->request_id : NULL);
    add(response, "traceparent", ex->trace[0] != '\0' ? ex->trace : NULL);
    /* A client of a server that ends is to ask another one next. */
    bool ends = ex->closes || atomic_load(&ex->server->stage) != SERVER_RUNS;
    add(response, "Connection", ends ? "close" : NULL);
    add_cors(ex, response);
    enum MHD_Result result = MHD_queue_response(ex->connection, (unsigned)ex->code, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result respond_or_wait(struct exchange *ex)
{
    bool lost;
    int64_t size;
    if (exchange_ready(ex, &lost, &size))
        return respond(ex, size);
    return lost ? MHD_NO : MHD_YES;
}

/* A browser asks this before it lets a page of another origin use the API. To it "*" is all headers
   but Authorization, so what it asks for is given back. */
static enum MHD_Result respond_options(struct exchange *ex)
{
    const char *asked = MHD_lookup_connection_value(ex->connection, MHD_HEADER_KIND,
                                                    "Access-Control-Request-Headers");
    struct MHD_Response *response =
        MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT);
    if (response == NULL)
        return MHD_NO;
    add_cors(ex, response);
    add(response, "Access-Control-Allow-Credentials", "true");
    add(response, "Access-Control-Allow-Methods", "GET, POST");
    add(response, "Access-Control-Allow-Headers",
        asked != NULL && asked[0] != '\0' ? asked : "*, Authorization");
    add(response, "Content-Type", "text/html");
    enum MHD_Result result = MHD_queue_response(ex->connection, MHD_HTTP_OK, response);
    MHD_destroy_response(response);
    exchange_end(ex, MHD_HTTP_OK);
    return result;
}

/* ---- requests ---- */

static void refuse_late(struct exchange *ex, int code, const char *type, const char *what)
{
    ex->retry_after = 1;
    serve_fault_set(&ex->fault, code, type, NULL, "%s", what);
}

/* Whether there is room for one more request to the model. */
static void check_room(struct exchange *ex)
{
    struct server *s = ex->server;
    int limit = s->config.schedule.n_queue + s->config.schedule.n_seq;
    char what[128];
    if (ex->route->answer != answer_request || atomic_load(&s->count.n_answer) < limit)
        return;
    snprintf(what, sizeof(what), "%d requests run or wait, which is the most: try again later",
             limit);
    refuse_late(ex, MHD_HTTP_TOO_MANY_REQUESTS, "rate_limit_error", what);
}

/* Finds out all that can be known from the head. */
static void judge_head(struct exchange *ex, const char *method)
{
    ex->route = route_find(method, ex->path, &ex->slot, &ex->allow);
    if (ex->route == NULL && ex->allow != NULL) {
        serve_fault_set(&ex->fault, MHD_HTTP_METHOD_NOT_ALLOWED, "invalid_request_error", NULL,
                        "%.16s %.64s: the path has other methods: %s", method, ex->path, ex->allow);
        return;
    }
    if (ex->route == NULL) {
        serve_fault_set(&ex->fault, MHD_HTTP_NOT_FOUND, "not_found_error", NULL,
                        "%.16s %.64s: there is no such path", method, ex->path);
        return;
    }
    access_check(ex);
    if (ex->fault.code == 0 && ex->route->thread != ROUTE_HTTP &&
        atomic_load(&ex->server->stage) != SERVER_RUNS)
        refuse_late(ex, MHD_HTTP_SERVICE_UNAVAILABLE, "unavailable_error",
                    "the server is shutting down and takes no new requests");
    if (ex->fault.code == 0)
        check_room(ex);
}

/* ---- the size of the body ---- */

struct framing {
    const char *length; /* Content-Length; NULL: not said */
    bool differs;       /* and said otherwise, or in a line that others may not read as such */
    bool encoded;       /* Transfer-Encoding */
    bool other;         /* and that is not chunked alone */
};

/* Whether a line has this name; *odd where blanks stand behind it. To libmicrohttpd they are a part
   of the name, and not so to some proxies. */
static bool is_named(const char *name, const char *wanted, bool *odd)
{
    size_t len = strlen(wanted);
    if (strncasecmp(name, wanted, len) != 0 || name[len + strspn(name + len, " \t")] != '\0')
        return false;
    *odd = *odd || name[len] != '\0';
    return true;
}

static enum MHD_Result note_framing(void *user, enum MHD_ValueKind kind, const char *name,
                                    const char *value)
{
    struct framing *f = user;
    (void)kind;
    if (is_named(name, MHD_HTTP_HEADER_CONTENT_LENGTH, &f->differs) && value != NULL) {
        f->differs = f->differs || (f->length != NULL && strcmp(f->length, value) != 0);
        f->length = value;
    } else if (is_named(name, MHD_HTTP_HEADER_TRANSFER_ENCODING, &f->differs)) {
        f->other = f->other || f->encoded || value == NULL || strcasecmp(value, "chunked") != 0;
        f->encoded = true;
    }
    return MHD_YES;
}

static void refuse_long(struct exchange *ex)
{
    serve_fault_set(&ex->fault, MHD_HTTP_CONTENT_TOO_LARGE, "invalid_request_error", NULL,
                    "the body has more than %lld bytes, which is the most",
                    (long long)ex->server->config.body_max);
}

/* A proxy may read a head with two sizes of the body otherwise: a part of the body is then the next
   request to it. So the connection ends. It does where a body is encoded otherwise, too: it would
   have no end. */
static void judge_size(struct exchange *ex)
{
    struct framing f = {0};
    MHD_get_connection_values(ex->connection, MHD_HEADER_KIND, note_framing, &f);
    bool twice = f.differs || (f.length != NULL && f.encoded);
    ex->closes = twice || f.other;
    if (ex->closes)
        ex->fault = (struct serve_fault){0};
    if (twice) {
        serve_fault_set(&ex->fault, MHD_HTTP_BAD_REQUEST, "invalid_request_error", NULL,
                        "the head says two sizes of the body: Content-Length twice, or beside "
                        "Transfer-Encoding, or with a blank behind the name");
    } else if (f.other) {
        serve_fault_set(&ex->fault, MHD_HTTP_NOT_IMPLEMENTED, "not_supported_error", NULL,
                        "Transfer-Encoding: only chunked is supported");
    } else if (f.length != NULL &&
               strtoull(f.length, NULL, 10) > (unsigned long long)ex->server->config.body_max) {
        refuse_long(ex);
    }
}

/* Whether there is memory for the JSON of the body when `len` more bytes have come. */
static bool weigh(struct exchange *ex, const char *data, size_t len)
{
    struct server *s = ex->server;
    long long most = s->config.json_max;
    body_weigh(&ex->weight, data, len);
    int64_t weight = body_weight_most(&ex->weight);
    if (weight > most) {
        serve_fault_set(&ex->fault, MHD_HTTP_CONTENT_TOO_LARGE, "invalid_request_error", NULL,
                        "the values of the body take more than %lld bytes of memory as JSON, which "
                        "is the limit",
                        most);
        return false;
    }
    if (atomic_load(&s->count.json_bytes) + weight - ex->weighed > JSONS_MAX * most) {
        refuse_late(ex, MHD_HTTP_SERVICE_UNAVAILABLE, "unavailable_error",
                    "the bodies of other requests take all memory for them: try again later");
        return false;
    }
    atomic_fetch_add(&s->count.json_bytes, (long long)(weight - ex->weighed));
    ex->weighed = weight;
    return true;
}

/* Adds what came to the body, unless that is refused. */
static void take_body(struct exchange *ex, const char *data, size_t len)
{
    struct server *s = ex->server;
    int64_t most = s->config.body_max;
    if ((int64_t)(ex->body.len + len) > most) {
        refuse_long(ex);
        return;
    }
    if (atomic_load(&s->count.body_bytes) > BODIES_MAX * most) {
        refuse_late(ex, MHD_HTTP_SERVICE_UNAVAILABLE, "unavailable_error",
                    "the bodies of other requests take all memory for them: try again later");
        return;
    }
    if (!weigh(ex, data, len))
        return;
    if (!serve_bytes_add(&ex->body, data, len))
        serve_fault_set(&ex->fault, MHD_HTTP_INTERNAL_SERVER_ERROR, "server_error", NULL,
                        "no memory for the body");
    else
        atomic_fetch_add(&s->count.body_bytes, (long long)len);
}

/* The rest of a body that was refused is read and thrown away. The bytes of it that were kept leave
   their room to the bodies of others at once. */
static void add_body(struct exchange *ex, const char *data, size_t len)
{
    if (ex->fault.code != 0 || len == 0)
        return;
    take_body(ex, data, len);
    if (ex->fault.code != 0)
        exchange_drop_body(ex);
}

/* A drain waits for answers of a worker or of the model thread. */
static void begin_work(struct exchange *ex)
{
    struct server *s = ex->server;
    if (ex->route->thread == ROUTE_HTTP || ex->route->answer == view_events)
        return;
    pthread_mutex_lock(&s->lock);
    ex->counts = true;
    s->n_open++;
    pthread_mutex_unlock(&s->lock);
}

static void end_work(struct exchange *ex)
{
    struct server *s = ex->server;
    if (!ex->counts)
        return;
    pthread_mutex_lock(&s->lock);
    if (--s->n_open == 0)
        pthread_cond_broadcast(&s->quiet);
    pthread_mutex_unlock(&s->lock);
}

/* The request is whole: it is answered, or handed to the thread that does. */
static void dispatch(struct exchange *ex)
{
    struct server *s = ex->server;
    ex->dispatched = true;
    link_whole(s, ex->link);
    if (ex->fault.code == 0 && ex->route->answer == answer_request)
        check_room(ex); /* bodies take their time */
    if (ex->fault.code != 0) {
        exchange_refuse(ex, &ex->fault);
        return;
    }
    ex->task = ex->route->answer;
    begin_work(ex);
    if (ex->route->thread == ROUTE_HTTP)
        ex->task(ex);
    else if (!queue_push(ex->route->thread == ROUTE_MODEL ? &s->to_model : &s->to_workers, ex))
        exchange_refuse_with(ex, MHD_HTTP_SERVICE_UNAVAILABLE, "unavailable_error", NULL,
                             "the server is shutting down");
}

/* A number of the query from 0 to most; what is none is as if it were absent. */
static int64_t query_number(const struct exchange *ex, const char *name, int64_t absent,
                            int64_t most)
{
    const char *text = MHD_lookup_connection_value(ex->connection, MHD_GET_ARGUMENT_KIND, name);
    char *end;
    if (text == NULL || text[0] < '0' || text[0] > '9')
        return absent;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    return *end == '\0' && errno == 0 && value <= most ? value : absent;
}

/* A header that is given back and logged: one word of visible ASCII, or none. */
static void read_name(const struct exchange *ex, const char *header, char *out, size_t size)
{
    const char *text = MHD_lookup_connection_value(ex->connection, MHD_HEADER_KIND, header);
    size_t len = text != NULL ? strlen(text) : 0;
    if (len >= size)
        return;
    for (size_t i = 0; i < len; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return;
    if (len > 0)
        memcpy(out, text, len + 1);
}

/* Here, as only this thread may ask the connection. */
static void read_query(struct exchange *ex)
{
    const char *action =
        MHD_lookup_connection_value(ex->connection, MHD_GET_ARGUMENT_KIND, "action");
    snprintf(ex->action, sizeof(ex->action), "%s", action != NULL ? action : "");
    const char *session =
        MHD_lookup_connection_value(ex->connection, MHD_HEADER_KIND, "X-Session-ID");
    if (session != NULL && session[0] != '\0')
        ex->session = serve_name_hash(session, strlen(session));
    read_name(ex, "x-request-id", ex->request_id, sizeof(ex->request_id));
    read_name(ex, "traceparent", ex->trace, sizeof(ex->trace));
    ex->query_id = query_number(ex, "id", -1, INT64_MAX);
    ex->query_answer = (int32_t)query_number(ex, "answer", 0, INT32_MAX);
}

static enum MHD_Result begin(struct server *s, struct MHD_Connection *connection, const char *url,
                             const char *method, void **state)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct exchange *ex = exchange_create(s, connection, url);
    if (ex == NULL)
        return MHD_NO;
    *state = ex;
    atomic_fetch_add(&s->count.n_request, 1);
    read_query(ex);
    ex->link = info != NULL ? info->socket_context : NULL;
    link_begin(s, ex->link, ex);
    if (strcmp(method, "OPTIONS") == 0) {
        int32_t slot;
        ex->route = route_find("GET", url, &slot, &ex->allow);
        ex->counts = false;
        return MHD_YES;
    }
    judge_head(ex, method);
    judge_size(ex);
    /* A client that waits to be told to send need not send in vain. */
    if (ex->closes || (ex->fault.code != 0 && MHD_lookup_connection_value(
                                                  connection, MHD_HEADER_KIND, "Expect") != NULL)) {
        exchange_refuse(ex, &ex->fault);
        return respond_or_wait(ex);
    }
    return MHD_YES;
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *len, void **state)
{
    struct exchange *ex = *state;
    (void)version;
    if (ex == NULL)
        return begin(user, connection, url, method, state);
    if (*len > 0) {
        add_body(ex, data, *len);
        *len = 0;
        return MHD_YES;
    }
    if (strcmp(method, "OPTIONS") == 0)
        return respond_options(ex);
    if (!ex->dispatched)
        dispatch(ex);
    return respond_or_wait(ex);
}

static void log_request(const struct exchange *ex)
{
    const char *id = ex->request_id, *trace = ex->trace;
    fprintf(stderr, "path=%.200s code=%d ms=%.0f body=%lld%s%s%s%s%s\n", ex->path, ex->code,
            1e3 * (server_now() - ex->start), (long long)ex->weight.len,
            ex->aborted ? " cut=1" : "", id[0] != '\0' ? " id=" : "", id,
            trace[0] != '\0' ? " trace=" : "", trace);
}

static void on_completed(void *user, struct MHD_Connection *connection, void **state,
                         enum MHD_RequestTerminationCode how)
{
    struct server *s = user;
    struct exchange *ex = *state;
    (void)connection;
    if (ex == NULL)
        return;
    *state = NULL;
    link_begin(s, ex->link, NULL);
    /* Of a stream, HEAD takes the head alone. */
    exchange_finish(ex, how == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    if (ex->code >= 400)
        atomic_fetch_add(&s->count.n_refused, 1);
    if (s->config.log)
        log_request(ex);
    end_work(ex);
    exchange_release(ex);
}

static void on_connection(void *user, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode how)
{
    struct server *s = user;
    if (how == MHD_CONNECTION_NOTIFY_CLOSED) {
        link_remove(s, *context);
        *context = NULL;
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    *context = info != NULL ? link_add(s, info->connect_fd) : NULL;
}

/* ---- listening ---- */

pith_status http_start(struct server *s, pith_error *err)
{
    const struct server_config *c = &s->config;
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)c->tls_key},
        {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)c->tls_cert},
        {MHD_OPTION_END, 0, NULL},
    };
    s->port = door_port(c->door);
    int fd = door_take(c->door);
    unsigned flags = MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC |
                     (c->tls_key != NULL ? MHD_USE_TLS : 0);
    s->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, s, MHD_OPTION_LISTEN_SOCKET, fd,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_NOTIFY_CONNECTION, on_connection,
        s, MHD_OPTION_CONNECTION_LIMIT, (unsigned)c->n_connection, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)(c->timeout_s + 1.0), MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEAD_BYTES,
        MHD_OPTION_ARRAY, c->tls_key != NULL ? tls : tls + 2, MHD_OPTION_END);
    if (s->daemon != NULL)
        return PITH_OK;
    close(fd);
    err->status = PITH_NOMEM;
    snprintf(err->message, sizeof(err->message), "no memory to listen on port %d", s->port);
    return PITH_NOMEM;
}

void http_close(struct server *s)
{
    if (s->daemon == NULL)
        return;
    s->listen_fd = MHD_quiesce_daemon(s->daemon);
}

void http_stop(struct server *s)
{
    if (s->daemon != NULL)
        MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
    if (s->listen_fd >= 0)
        close(s->listen_fd);
    s->listen_fd = -1;
}
