/*
 * test_events.c - KV events as a router gets them: batches and their counters, what was missed
 * again, a list that is full, and configurations that are wrong.
 */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

#include "testing.h"

#include "events.h"

#define PATIENCE_MS 10000

struct rig {
    void *context, *reader, *replay;
    struct events *events;
};

static void start(struct rig *r, const char *more)
{
    char endpoint[128], config[512];
    size_t len = sizeof(endpoint);
    int patience = PATIENCE_MS;
    r->context = zmq_ctx_new();
    r->reader = zmq_socket(r->context, ZMQ_SUB);
    zmq_setsockopt(r->reader, ZMQ_SUBSCRIBE, "kv@", 3);
    zmq_setsockopt(r->reader, ZMQ_RCVTIMEO, &patience, sizeof(patience));
    assert_int_equal(zmq_bind(r->reader, "tcp://127.0.0.1:*"), 0);
    zmq_getsockopt(r->reader, ZMQ_LAST_ENDPOINT, endpoint, &len);
    snprintf(config, sizeof(config),
             "{\"enable_kv_cache_events\": true, \"publisher\": \"zmq\", \"endpoint\": \"%s\", "
             "\"replay_endpoint\": \"ipc:///tmp/pith-replay-%ld\"%s}",
             endpoint, (long)time(NULL) * 100000 + clock() % 100000, more);
    struct events_setup setup = {config, "mini", 2};
    if (events_start(&setup, &r->events, &err) != PITH_OK)
        fail_msg("%s", err.message);
    r->replay = zmq_socket(r->context, ZMQ_DEALER);
    zmq_setsockopt(r->replay, ZMQ_RCVTIMEO, &patience, sizeof(patience));
    char *at = strstr(config, "ipc://");
    at[strcspn(at, "\"")] = '\0';
    assert_int_equal(zmq_connect(r->replay, at), 0);
}

static void stop(struct rig *r)
{
    int none = 0;
    events_stop(r->events);
    zmq_setsockopt(r->replay, ZMQ_LINGER, &none, sizeof(none));
    zmq_close(r->reader);
    zmq_close(r->replay);
    zmq_ctx_term(r->context);
}

static void note(struct rig *r, uint64_t hash)
{
    static const int32_t tokens[] = {1, 2};
    pith_prefix_event e = {PITH_PREFIX_STORED, true, hash, 0, tokens, 2};
    events_note(r->events, &e);
}

static uint64_t number(const unsigned char *bytes)
{
    uint64_t n = 0;
    for (int i = 0; i < 8; i++)
        n = n << 8 | bytes[i];
    return n;
}

/* A message whose topic begins with `first`: its counter, and the hash of its first event, below
   128. -1: nothing came. */
static int read_batch(void *socket, const char *first, size_t first_len, uint64_t *counter)
{
    unsigned char frame[512];
    int len = zmq_recv(socket, frame, sizeof(frame), 0);
    if (len < 0)
        return -1;
    assert_true((size_t)len >= first_len && memcmp(frame, first, first_len) == 0);
    assert_int_equal(zmq_recv(socket, frame, sizeof(frame), 0), 8);
    *counter = number(frame);
    assert_true(zmq_recv(socket, frame, sizeof(frame), 0) > 0);
    assert_int_equal(frame[0], 0x93);
    return frame[10 + 1 + 1 + 12 + 1];
}

/* A batch that was missed comes as it was sent, behind an empty frame. */
static int read_again(struct rig *r, uint64_t *counter)
{
    unsigned char frame[1];
    assert_int_equal(zmq_recv(r->replay, frame, sizeof(frame), 0), 0);
    return read_batch(r->replay, "kv@", 3, counter);
}

static void read_end(struct rig *r)
{
    static const int expected[] = {0, 0, 8, 0};
    unsigned char frame[8];
    for (int i = 0; i < 4; i++)
        assert_int_equal(zmq_recv(r->replay, frame, sizeof(frame), 0), expected[i]);
    assert_true(number(frame) == UINT64_MAX);
}

/* A batch of the two changes that the list had room for, and an AllBlocksCleared. */
static void read_cleared(struct rig *r, uint64_t counter)
{
    static const char last[] = "\x91\xb0"
                               "AllBlocksCleared\x00";
    unsigned char frame[512];
    size_t last_len = sizeof(last) - 1;
    zmq_recv(r->reader, frame, sizeof(frame), 0);
    zmq_recv(r->reader, frame, sizeof(frame), 0);
    assert_true(number(frame) == counter);
    int len = zmq_recv(r->reader, frame, sizeof(frame), 0);
    assert_int_equal(frame[10], 0x93); /* events */
    assert_memory_equal(frame + len - last_len, last, last_len);
}

/* A batch that is sent before the subscription has come is lost. Returns the first batch that was
   not. */
static uint64_t settle(struct rig *r, int *n_sent)
{
    int now = 0, patience = PATIENCE_MS, hash;
    uint64_t counter;
    zmq_setsockopt(r->reader, ZMQ_RCVTIMEO, &now, sizeof(now));
    do {
        struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
        note(r, (uint64_t)(1 + *n_sent) % 128);
        events_flush(r->events);
        ++*n_sent;
        nanosleep(&pause, NULL);
        hash = read_batch(r->reader, "kv@", 3, &counter);
        assert_true(*n_sent < 100);
    } while (hash < 0);
    zmq_setsockopt(r->reader, ZMQ_RCVTIMEO, &patience, sizeof(patience));
    return counter;
}

TEST(a_router_gets_batches_and_those_that_it_missed)
{
    struct rig r;
    unsigned char from[8] = {0};
    uint64_t counter;
    int64_t n_batch, n_lost;
    int n = 0;
    start(&r, "");
    uint64_t first = settle(&r, &n);
    while (first + 1 < (uint64_t)n) /* that were on their way */
        read_batch(r.reader, "kv@", 3, &first);
    note(&r, 111);
    note(&r, 112);
    events_flush(r.events);
    assert_int_equal(read_batch(r.reader, "kv@", 3, &counter), 111);
    assert_int_equal(counter, n);
    /* All from the first on, and then the end. */
    zmq_send(r.replay, "", 0, ZMQ_SNDMORE);
    zmq_send(r.replay, from, sizeof(from), 0);
    for (int i = 0; i < n; i++) {
        assert_int_equal(read_again(&r, &counter), 1 + i);
        assert_int_equal(counter, i);
    }
    assert_int_equal(read_again(&r, &counter), 111);
    read_end(&r);
    events_count(r.events, &n_batch, &n_lost);
    assert_int_equal(n_batch, n + 1);
    assert_int_equal(n_lost, 0);
    stop(&r);
}

TEST(a_full_list_makes_readers_forget_and_old_batches_are_forgotten)
{
    struct rig r;
    unsigned char from[8] = {0};
    uint64_t counter;
    int64_t n_batch, n_lost;
    int n = 0;
    start(&r, ", \"max_queue_size\": 2, \"buffer_steps\": 1, \"hwm\": 50, \"topic\": \"kv@a@b\"");
    uint64_t last = settle(&r, &n);
    while (last + 1 < (uint64_t)n)
        read_batch(r.reader, "kv@a@b", 6, &last);
    for (uint64_t i = 0; i < 5; i++)
        note(&r, 100 + i);
    events_flush(r.events);
    read_cleared(&r, last + 1);
    note(&r, 110);
    events_flush(r.events);
    assert_int_equal(read_batch(r.reader, "kv@a@b", 6, &counter), 110);
    assert_int_equal(counter, last + 2);
    events_count(r.events, &n_batch, &n_lost);
    assert_int_equal(n_lost, 3);
    /* A message that is no question is passed over. */
    zmq_send(r.replay, "nonsense", 8, 0);
    zmq_send(r.replay, "", 0, ZMQ_SNDMORE);
    zmq_send(r.replay, from, sizeof(from), 0);
    assert_int_equal(read_again(&r, &counter), 110);
    read_end(&r);
    stop(&r);
}

TEST(what_is_wrong_in_a_configuration_is_named)
{
    static const struct {
        const char *config, *says;
        pith_status status;
    } cases[] = {
        {"{", "no JSON", PITH_INVALID},
        {"[]", "no JSON object", PITH_INVALID},
        {"{\"hwm\": 0}", "hwm", PITH_INVALID},
        {"{\"topic\": 1}", "topic", PITH_INVALID},
        {"{\"publisher\": \"kafka\"}", "publisher", PITH_INVALID},
        {"{\"port\": 5557}", "port: there is no such key", PITH_INVALID},
        {"{\"endpoint\": \"nowhere\"}", "endpoint: does not begin with", PITH_INVALID},
        {"{\"endpoint\": \"tcp://*:65536\"}", "endpoint: ends with no port", PITH_INVALID},
        {"{\"endpoint\": \"ipc:///no/such/folder\"}", "ipc:///no/such/folder: ", PITH_IO},
        {"{\"enable_kv_cache_events\": false}", NULL, PITH_OK},
        {"{\"publisher\": \"null\"}", NULL, PITH_OK},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct events_setup setup = {cases[i].config, "mini", 64};
        struct events *e = NULL;
        assert_int_equal(events_start(&setup, &e, &err), cases[i].status);
        assert_null(e);
        if (cases[i].says != NULL)
            assert_non_null(strstr(err.message, cases[i].says));
    }
}
