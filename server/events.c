/*
 * events.c - events.h over ZeroMQ. A batch has three frames: the topic, a counter of 8 bytes with
 * the highest first, and what events_pack.c wrote. Readers that miss a counter ask the replay
 * socket from there on. Their message is an empty frame and a counter. The answers are an empty
 * frame and the three frames of a batch each. At the end topic and batch are empty, and the counter
 * is -1.
 *
 * No counter is left out. llm-d 0.10 gives up a server whose replay has a gap, and without a replay
 * it looks at no counter. Where changes were lost, readers are told to forget everything.
 *
 * Threads: the list of changes is guarded by the lock, and filled by the thread that has the model.
 * The sockets, the counter and the batches for replay are the sending thread's. It sleeps until a
 * byte comes through the pipe or a message through the replay socket.
 */
#define _POSIX_C_SOURCE 200809L

#include "events.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "events_pack.h"

#define LINGER_MS 200 /* in which the last batches leave */
#define TOPIC_BYTES 512
#define COUNTER_BYTES 8

struct options {
    bool on;
    const char *endpoint, *replay, *topic; /* of the JSON; NULL: none, or the default */
    int32_t n_kept;                        /* batches for replay */
    int32_t hwm;                           /* of messages that wait in a socket */
    int32_t n_queue;                       /* changes that wait to be sent */
};

struct events {
    void *context, *publisher, *replay; /* replay NULL: none */
    char topic[TOPIC_BYTES];
    int32_t page_len;
    int32_t n_queue;
    int wake[2]; /* a pipe; -1: not made */
    pthread_t thread;
    bool runs;

    struct serve_bytes *kept; /* [n_kept] owned; batch i is in place i % n_kept */
    int32_t n_kept;
    uint64_t n_batch; /* sent so far, so the counter of the next one */

    pthread_mutex_t lock; /* of the fields below */
    struct serve_bytes list;
    int32_t n_listed;
    bool lost; /* changes behind the list's */
    bool ends;
    int64_t n_sent, n_lost;
};

static pith_status fail(pith_error *err, pith_status status, const char *what, const char *why)
{
    err->status = status;
    snprintf(err->message, sizeof(err->message), "--kv-events-config: %.100s: %.80s", what, why);
    return status;
}

/* ---- options ---- */

static pith_status read_option(struct options *o, const char *key, const json_t *value,
                               pith_error *err)
{
    const struct {
        const char *key;
        const char **text;
        int32_t *number;
    } known[] = {
        {"endpoint", &o->endpoint, NULL}, {"replay_endpoint", &o->replay, NULL},
        {"topic", &o->topic, NULL},       {"buffer_steps", NULL, &o->n_kept},
        {"hwm", NULL, &o->hwm},           {"max_queue_size", NULL, &o->n_queue},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(known[i].key, key) != 0)
            continue;
        json_int_t n = json_integer_value(value);
        if (known[i].text != NULL && !json_is_string(value) && !json_is_null(value))
            return fail(err, PITH_INVALID, key, "is no text");
        if (known[i].number != NULL && (!json_is_integer(value) || n < 1 || n > INT32_MAX))
            return fail(err, PITH_INVALID, key, "is no whole number above 0");
        if (known[i].text != NULL)
            *known[i].text = json_string_value(value);
        else
            *known[i].number = (int32_t)n;
        return PITH_OK;
    }
    if (strcmp(key, "enable_kv_cache_events") == 0) {
        if (!json_is_boolean(value))
            return fail(err, PITH_INVALID, key, "is not true or false");
        o->on = o->on && json_is_true(value);
    } else if (strcmp(key, "publisher") == 0) {
        const char *name = json_is_string(value) ? json_string_value(value) : "";
        if (strcmp(name, "zmq") != 0 && strcmp(name, "null") != 0)
            return fail(err, PITH_INVALID, key, "is not \"zmq\" or \"null\"");
        o->on = o->on && name[0] == 'z';
    } else {
        return fail(err, PITH_INVALID, key, "there is no such key");
    }
    return PITH_OK;
}

/* A port that libzmq would take for another one, or a way that no other process can come. */
static pith_status check_endpoint(const char *key, const char *endpoint, pith_error *err)
{
    static const char tcp[] = "tcp://", ipc[] = "ipc://";
    char *end = NULL;
    const char *colon = strrchr(endpoint, ':');
    if (strncmp(endpoint, ipc, strlen(ipc)) == 0 && endpoint[strlen(ipc)] != '\0')
        return PITH_OK;
    if (strncmp(endpoint, tcp, strlen(tcp)) != 0)
        return fail(err, PITH_INVALID, key, "does not begin with tcp:// or ipc://");
    long port = isdigit((unsigned char)colon[1]) ? strtol(colon + 1, &end, 10) : 0;
    if (port < 1 || port > 65535 || *end != '\0')
        return fail(err, PITH_INVALID, key, "ends with no port from 1 to 65535");
    return PITH_OK;
}

/* Defaults are vLLM's, but for the topic. */
static pith_status read_options(const json_t *json, struct options *o, pith_error *err)
{
    const char *key;
    json_t *value;
    *o = (struct options){
        .on = true, .endpoint = "tcp://*:5557", .n_kept = 10000, .hwm = 100000, .n_queue = 100000};
    if (!json_is_object(json))
        return fail(err, PITH_INVALID, "the value", "is no JSON object");
    json_object_foreach((json_t *)json, key, value)
    {
        pith_status status = read_option(o, key, value, err);
        if (status != PITH_OK)
            return status;
    }
    if (o->endpoint == NULL)
        return fail(err, PITH_INVALID, "endpoint", "is null");
    pith_status status = check_endpoint("endpoint", o->endpoint, err);
    if (status == PITH_OK && o->replay != NULL)
        status = check_endpoint("replay_endpoint", o->replay, err);
    return status;
}

/* ---- the sending thread ---- */

static void write_counter(uint64_t counter, unsigned char *bytes)
{
    for (int i = 0; i < COUNTER_BYTES; i++)
        bytes[i] = (unsigned char)(counter >> 8 * (COUNTER_BYTES - 1 - i));
}

static uint64_t read_counter(const unsigned char *bytes)
{
    uint64_t counter = 0;
    for (int i = 0; i < COUNTER_BYTES; i++)
        counter = counter << 8 | bytes[i];
    return counter;
}

static void keep(struct events *e, struct serve_bytes *bytes)
{
    struct serve_bytes *place = &e->kept[e->n_batch++ % (uint64_t)e->n_kept];
    serve_bytes_free(place);
    *place = *bytes;
}

static void send_frames(void *socket, const char *topic, uint64_t counter,
                        const struct serve_bytes *bytes)
{
    unsigned char number[COUNTER_BYTES];
    write_counter(counter, number);
    zmq_send(socket, topic, strlen(topic), ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(socket, number, sizeof(number), ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(socket, bytes->data != NULL ? bytes->data : "", bytes->len, ZMQ_DONTWAIT);
}

/* Without subscribers, or a reader is too far behind, the socket drops: it never waits. False: no
   memory, nothing was sent. */
static bool publish(struct events *e, const struct serve_bytes *records)
{
    struct serve_bytes bytes = {0};
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double time = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    if (!pack_batch(records, e->page_len, time, &bytes)) {
        serve_bytes_free(&bytes);
        return false;
    }
    send_frames(e->publisher, e->topic, e->n_batch, &bytes);
    keep(e, &bytes);
    return true;
}

/* False: there will be no more. */
static bool send_list(struct events *e)
{
    const pith_prefix_event cleared = {.change = PITH_PREFIX_CLEARED, .page_len = e->page_len};
    char bytes[64];
    while (read(e->wake[0], bytes, sizeof(bytes)) > 0)
        continue;
    pthread_mutex_lock(&e->lock);
    struct serve_bytes list = e->list;
    bool lost = e->lost, ends = e->ends;
    e->list = (struct serve_bytes){0};
    e->n_listed = 0;
    e->lost = false;
    pthread_mutex_unlock(&e->lock);
    bool sent = !lost || pack_add(&list, &cleared);
    if (sent && list.len > 0)
        sent = publish(e, &list);
    pthread_mutex_lock(&e->lock);
    e->n_sent = (int64_t)e->n_batch;
    e->lost = e->lost || !sent;
    pthread_mutex_unlock(&e->lock);
    serve_bytes_free(&list);
    return !ends;
}

static void send_kept(struct events *e, const void *client, size_t client_len, const char *topic,
                      uint64_t counter, const struct serve_bytes *bytes)
{
    zmq_send(e->replay, client, client_len, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(e->replay, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    send_frames(e->replay, topic, counter, bytes);
}

static void replay_from(struct events *e, const void *client, size_t client_len, uint64_t from)
{
    static const struct serve_bytes none;
    uint64_t n_kept = (uint64_t)e->n_kept;
    uint64_t first = e->n_batch > n_kept ? e->n_batch - n_kept : 0;
    for (uint64_t i = from > first ? from : first; i < e->n_batch; i++)
        send_kept(e, client, client_len, e->topic, i, &e->kept[i % n_kept]);
    send_kept(e, client, client_len, "", UINT64_MAX, &none);
}

/* A message of other frames than a client's name, nothing and a counter is passed over. */
static void answer_replay(struct events *e)
{
    unsigned char frame[3][256];
    int len[3] = {-1, -1, -1}, more = 1, n = 0;
    size_t size = sizeof(more);
    for (; more; n++) {
        unsigned char rest[256];
        int got = zmq_recv(e->replay, n < 3 ? frame[n] : rest, sizeof(rest), ZMQ_DONTWAIT);
        if (got < 0)
            return;
        if (n < 3)
            len[n] = got;
        zmq_getsockopt(e->replay, ZMQ_RCVMORE, &more, &size);
    }
    if (n == 3 && len[0] <= (int)sizeof(frame[0]) && len[1] == 0 && len[2] == COUNTER_BYTES)
        replay_from(e, frame[0], (size_t)len[0], read_counter(frame[2]));
}

static void *send_loop(void *user)
{
    struct events *e = user;
    zmq_pollitem_t items[] = {{NULL, e->wake[0], ZMQ_POLLIN, 0}, {e->replay, 0, ZMQ_POLLIN, 0}};
    for (bool goes_on = true; goes_on;) {
        if (zmq_poll(items, e->replay != NULL ? 2 : 1, -1) < 0)
            continue; /* a signal */
        if (items[1].revents != 0)
            answer_replay(e);
        if (items[0].revents != 0)
            goes_on = send_list(e);
    }
    return NULL;
}

/* ---- the thread that has the model ---- */

void events_note(void *user, const pith_prefix_event *event)
{
    struct events *e = user;
    pthread_mutex_lock(&e->lock);
    /* Behind a change that is lost no other one may stand in the same batch. */
    bool taken = !e->lost && e->n_listed < e->n_queue && pack_add(&e->list, event);
    e->n_listed += taken;
    e->lost = !taken;
    e->n_lost += !taken;
    pthread_mutex_unlock(&e->lock);
}

/* A pipe that is full wakes the thread, too. */
static void wake(struct events *e)
{
    ssize_t n;
    do
        n = write(e->wake[1], "", 1);
    while (n < 0 && errno == EINTR);
}

void events_flush(struct events *e)
{
    if (e == NULL)
        return;
    pthread_mutex_lock(&e->lock);
    bool any = e->n_listed > 0 || e->lost;
    pthread_mutex_unlock(&e->lock);
    if (any)
        wake(e);
}

void events_count(struct events *e, int64_t *n_sent, int64_t *n_lost)
{
    *n_sent = *n_lost = 0;
    if (e == NULL)
        return;
    pthread_mutex_lock(&e->lock);
    *n_sent = e->n_sent;
    *n_lost = e->n_lost;
    pthread_mutex_unlock(&e->lock);
}

/* ---- the life ---- */

/* vLLM's rule: an endpoint of all addresses, or of this machine's processes, is bound. */
static bool binds(const char *endpoint)
{
    return strchr(endpoint, '*') != NULL || strstr(endpoint, "::") != NULL ||
           strncmp(endpoint, "ipc://", 6) == 0;
}

static pith_status open_socket(struct events *e, int type, const char *endpoint, bool bound,
                               int hwm, void **out, pith_error *err)
{
    int linger = LINGER_MS;
    *out = zmq_socket(e->context, type);
    if (*out == NULL)
        return fail(err, PITH_NOMEM, endpoint, "no memory for a socket");
    zmq_setsockopt(*out, ZMQ_SNDHWM, &hwm, sizeof(hwm));
    zmq_setsockopt(*out, ZMQ_LINGER, &linger, sizeof(linger));
    int failed = bound ? zmq_bind(*out, endpoint) : zmq_connect(*out, endpoint);
    return failed ? fail(err, PITH_IO, endpoint, zmq_strerror(errno)) : PITH_OK;
}

/* "kv@POD@MODEL" as llm-d reads it: in Kubernetes a pod's name is its host's. */
static void write_topic(struct events *e, const struct options *o, const char *model)
{
    char host[256] = "";
    if (gethostname(host, sizeof(host) - 1) != 0)
        host[0] = '\0';
    if (o->topic != NULL)
        snprintf(e->topic, sizeof(e->topic), "%s", o->topic);
    else
        snprintf(e->topic, sizeof(e->topic), "kv@%s@%.200s", host, model);
}

static pith_status open_all(struct events *e, const struct options *o, pith_error *err)
{
    e->kept = calloc((size_t)o->n_kept, sizeof(*e->kept));
    e->context = zmq_ctx_new();
    if (e->kept == NULL || e->context == NULL || pipe(e->wake) != 0)
        return fail(err, PITH_NOMEM, "the publisher", "no memory, or no pipe");
    for (int i = 0; i < 2; i++)
        fcntl(e->wake[i], F_SETFL, O_NONBLOCK);
    pith_status status =
        open_socket(e, ZMQ_PUB, o->endpoint, binds(o->endpoint), o->hwm, &e->publisher, err);
    if (status == PITH_OK && o->replay != NULL)
        status = open_socket(e, ZMQ_ROUTER, o->replay, true, o->hwm, &e->replay, err);
    if (status != PITH_OK)
        return status;
    e->runs = pthread_create(&e->thread, NULL, send_loop, e) == 0;
    return e->runs ? PITH_OK : fail(err, PITH_NOMEM, "the publisher", "no memory for its thread");
}

static pith_status start(const struct events_setup *setup, const json_t *json, struct events **out,
                         pith_error *err)
{
    struct options o;
    pith_status status = read_options(json, &o, err);
    if (status != PITH_OK || !o.on)
        return status;
    struct events *e = calloc(1, sizeof(*e));
    if (e == NULL)
        return fail(err, PITH_NOMEM, "the publisher", "no memory");
    pthread_mutex_init(&e->lock, NULL);
    e->wake[0] = e->wake[1] = -1;
    e->page_len = setup->page_len;
    e->n_kept = o.n_kept;
    e->n_queue = o.n_queue;
    write_topic(e, &o, setup->model);
    status = open_all(e, &o, err);
    if (status == PITH_OK)
        *out = e;
    else
        events_stop(e);
    return status;
}

/* The configuration, for the caller; NULL: it is no JSON. */
static json_t *load(const char *config, pith_error *err)
{
    json_error_t why;
    json_t *json = json_loads(config, JSON_REJECT_DUPLICATES, &why);
    if (json == NULL)
        (void)fail(err, PITH_INVALID, "the value is no JSON", why.text);
    return json;
}

pith_status events_check(const char *config, pith_error *err)
{
    struct options o;
    json_t *json = load(config, err);
    pith_status status = json != NULL ? read_options(json, &o, err) : PITH_INVALID;
    json_decref(json);
    return status;
}

pith_status events_start(const struct events_setup *setup, struct events **out, pith_error *err)
{
    *out = NULL;
    json_t *json = load(setup->config, err);
    pith_status status = json != NULL ? start(setup, json, out, err) : PITH_INVALID;
    json_decref(json);
    return status;
}

void events_stop(struct events *e)
{
    if (e == NULL)
        return;
    pthread_mutex_lock(&e->lock);
    e->ends = true;
    pthread_mutex_unlock(&e->lock);
    if (e->runs) {
        wake(e);
        pthread_join(e->thread, NULL);
    }
    if (e->publisher != NULL)
        zmq_close(e->publisher);
    if (e->replay != NULL)
        zmq_close(e->replay);
    if (e->context != NULL)
        zmq_ctx_term(e->context);
    for (int i = 0; i < 2; i++)
        if (e->wake[i] >= 0)
            close(e->wake[i]);
    for (int32_t i = 0; e->kept != NULL && i < e->n_kept; i++)
        serve_bytes_free(&e->kept[i]);
    serve_bytes_free(&e->list);
    free(e->kept);
    pthread_mutex_destroy(&e->lock);
    free(e);
}
