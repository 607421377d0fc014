/*
 * test_view.c - watchers see the state of the lanes: snapshots against pith_seq_lane, deltas
 * against snapshots, the log against the policies' counts. While no one watches, nothing is
 * gathered.
 */
#include <stdlib.h>

#include <jansson.h>

#include "alloc_fail.h"
#include "keep_engine.h"
#include "serve/view/view.h"

#define LANES_MAX 16
#define HELD (-1)

/* A watcher that keeps its messages. */
struct watcher {
    int64_t epoch;
    int32_t n;
    int32_t went[LANES_MAX][TOKENS_MAX]; /* HELD, or the round */
    char text[TOKENS_MAX][64];
};

struct stage {
    pith_engine *engine;
    pith_seq *seq;
    struct serve_view *view;
    struct serve_view_item item[2];
    struct serve_view_source source;
    struct watcher seen;
};

static void setup(void)
{
    alloc_fail_begin();
    model_load(9);
}

TEST_GROUP(setup, model_free);

static void open_stage(struct stage *s, const char *keep)
{
    struct serve_view_setup setup_of = {.model = model, .keep = keep, .alias = "nano"};
    memset(s, 0, sizeof(*s));
    s->engine = engine_make(keep, 64, 1, 2048);
    s->seq = seq_make(s->engine);
    check(serve_view_create(&setup_of, &s->view, &err), &err);
    s->item[0] = (struct serve_view_item){.id = 7, .slot = -1, .state = "generating"};
    s->item[0].seq = s->seq;
    s->source = (struct serve_view_source){.engine = s->engine, .items = s->item, .n_item = 1};
}

static void close_stage(struct stage *s)
{
    serve_view_free(s->view);
    pith_seq_free(s->seq);
    pith_engine_free(s->engine);
}

/* ---- a watcher ---- */

static void read_lane(int32_t *went, int32_t n, const char *text)
{
    int32_t p = 0;
    while (*text != '\0') {
        int32_t run, round = HELD, used;
        assert_int_equal(sscanf(text, "%d%n", &run, &used), 1);
        text += used;
        if (*text == ':') {
            assert_int_equal(sscanf(text, ":%d%n", &round, &used), 1);
            text += used;
        }
        assert_true(run > 0 && p + run <= n);
        for (int32_t i = 0; i < run; i++)
            went[p++] = round;
        text += *text == ' ';
    }
    assert_int_equal(p, n);
}

static void read_gone(int32_t *went, int32_t n, const char *text)
{
    while (*text != '\0') {
        int32_t from, run, round, used;
        assert_int_equal(sscanf(text, "%d+%d:%d%n", &from, &run, &round, &used), 3);
        assert_true(from >= 0 && run > 0 && from + run <= n);
        for (int32_t i = 0; i < run; i++)
            went[from + i] = round;
        text += used;
        text += *text == ' ';
    }
}

static int64_t integer_of(const json_t *o, const char *key)
{
    assert_true(json_is_integer(json_object_get(o, key)));
    return json_integer_value(json_object_get(o, key));
}

static void read_text(struct watcher *w, const json_t *f)
{
    size_t from = (size_t)integer_of(f, "text_from");
    const json_t *text = json_object_get(f, "text");
    assert_true(from + json_array_size(text) <= TOKENS_MAX);
    for (size_t i = 0; i < json_array_size(text); i++)
        snprintf(w->text[from + i], sizeof(w->text[0]), "%s",
                 json_string_value(json_array_get(text, i)));
}

static void watch(struct watcher *w, const json_t *document)
{
    const json_t *f = json_object_get(document, "followed");
    const json_t *lanes = json_object_get(f, "lanes"), *lane;
    const char *key;
    int32_t n = (int32_t)integer_of(f, "n_token");
    assert_true(n <= TOKENS_MAX && n_lane <= LANES_MAX);
    assert_true(lanes != NULL || integer_of(f, "epoch") == w->epoch);
    for (int32_t i = 0; i < n_lane; i++)
        for (int32_t p = w->n; p < n; p++)
            w->went[i][p] = HELD;
    for (size_t i = 0; i < json_array_size(lanes); i++)
        read_lane(w->went[i], n, json_string_value(json_array_get(lanes, i)));
    json_object_foreach(json_object_get((json_t *)f, "whole"), key, lane)
        read_lane(w->went[atoi(key)], n, json_string_value(lane));
    json_object_foreach(json_object_get((json_t *)f, "gone"), key, lane)
        read_gone(w->went[atoi(key)], n, json_string_value(lane));
    read_text(w, f);
    w->n = n;
    w->epoch = integer_of(f, "epoch");
}

static json_t *document(struct stage *s, bool all)
{
    char *json = NULL;
    size_t len = 0;
    json_error_t why;
    pith_status status = all ? serve_view_snapshot(s->view, &s->source, &json, &len)
                             : serve_view_delta(s->view, &s->source, &json, &len);
    assert_int_equal(status, PITH_OK);
    json_t *out = json_loadb(json, len, JSON_ALLOW_NUL, &why);
    if (out == NULL)
        fail_msg("%s in %s", why.text, json);
    serve_view_text_free(json);
    return out;
}

static void step(struct stage *s)
{
    s->source.stats.n_step++;
    s->source.now_s += 0.5;
    serve_view_step(s->view, &s->source);
}

/* ---- against the lanes ---- */

static void expect_lane(const struct stage *s, const struct watcher *w, int32_t i)
{
    static int32_t positions[TOKENS_MAX];
    static bool held[TOKENS_MAX];
    pith_lane_info lane;
    int32_t n_held = 0;
    memset(held, 0, sizeof(held));
    assert_int_equal(
        pith_seq_lane(s->seq, i / info.n_head_kv, i % info.n_head_kv, &lane, positions, TOKENS_MAX),
        PITH_OK);
    for (int32_t e = 0; e < lane.n_entry; e++)
        held[positions[e]] = true;
    for (int32_t p = 0; p < w->n; p++) {
        if (held[p] != (w->went[i][p] == HELD))
            fail_msg("lane %d, position %d: held %d, and the watcher has %d", i, p, held[p],
                     w->went[i][p]);
        n_held += held[p];
    }
    assert_int_equal(n_held, lane.n_entry);
}

static void expect_lanes(const struct stage *s, const struct watcher *w)
{
    assert_int_equal(w->n, pith_seq_length(s->seq));
    for (int32_t i = 0; i < n_lane; i++)
        expect_lane(s, w, i);
}

static void expect_text(const struct watcher *w)
{
    for (int32_t p = 0; p < w->n; p++) {
        char bytes[64];
        size_t len = 0;
        assert_int_equal(pith_token_bytes(model, tokens[p], true, bytes, sizeof(bytes) - 1, &len),
                         PITH_OK);
        bytes[len] = '\0';
        if (len > 0 && (bytes[0] & 0x80) == 0 && (bytes[len - 1] & 0x80) == 0)
            assert_string_equal(w->text[p] + (strlen(w->text[p]) - len), bytes);
    }
}

static void expect_same(const struct watcher *a, const struct watcher *b)
{
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->epoch, b->epoch);
    for (int32_t i = 0; i < n_lane; i++)
        assert_memory_equal(a->went[i], b->went[i], (size_t)a->n * sizeof(a->went[i][0]));
    for (int32_t p = 0; p < a->n; p++)
        assert_string_equal(a->text[p], b->text[p]);
}

static void see(struct stage *s, bool all, struct watcher *w)
{
    json_t *d = document(s, all);
    watch(w, d);
    json_decref(d);
}

/* How many entries the log's events of a kind say. */
static int64_t logged(const json_t *snapshot, const char *kind)
{
    const json_t *events = json_object_get(snapshot, "events");
    int64_t n = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i);
        if (strcmp(json_string_value(json_object_get(e, "kind")), kind) == 0)
            n += integer_of(e, "n");
    }
    return n;
}

/* ---- tests ---- */

static const char *const policies[] = {
    "knorm:budget=48,slack=16,granularity=layer-head",
    "knorm:budget=48,slack=16,granularity=all",
    "streaming:budget=64,slack=32",
    "h2o:budget=48,slack=8,granularity=layer-head",
    "snapkv:budget=96,slack=32",
    "longflow:budget=64,overwrite=on",
};

static void run_policy(const char *keep)
{
    static struct stage s;
    static struct watcher late;
    int32_t n = 0;
    open_stage(&s, keep);
    serve_view_watch(s.view, true);
    see(&s, true, &s.seen);
    for (int32_t i = 0; n < 400; i++) {
        int32_t part = i % 7 == 0 ? 37 : 1;
        eval(s.seq, n, n + part);
        n += part;
        step(&s);
        if (i % 3 > 0)
            continue;
        see(&s, false, &s.seen);
        expect_lanes(&s, &s.seen);
        memset(&late, 0, sizeof(late));
        see(&s, true, &late);
        expect_same(&s.seen, &late);
    }
    see(&s, false, &s.seen);
    expect_lanes(&s, &s.seen);
    expect_text(&s.seen);
    json_t *all = document(&s, true);
    pith_keep_stats keep_stats = stats_of(s.seq);
    assert_true(keep_stats.evicted > 0);
    assert_int_equal(logged(all, "round") + logged(all, "overwrite"), keep_stats.evicted);
    assert_int_equal(integer_of(json_object_get(all, "totals"), "evicted"), keep_stats.evicted);
    json_decref(all);
    close_stage(&s);
}

TEST(watchers_see_what_lanes_hold_under_each_policy)
{
    for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++)
        run_policy(policies[i]);
}

/* A watcher whose snapshot is newer than the next delta loses and doubles nothing. */
TEST(a_late_watcher_loses_and_doubles_nothing)
{
    static struct stage s;
    static struct watcher late, again;
    open_stage(&s, policies[0]);
    serve_view_watch(s.view, true);
    eval(s.seq, 0, 60);
    step(&s);
    see(&s, false, &s.seen);
    eval(s.seq, 60, 200);
    step(&s);
    memset(&late, 0, sizeof(late));
    see(&s, true, &late);
    again = late;
    json_t *d = document(&s, false);
    watch(&again, d);
    expect_same(&late, &again);
    watch(&again, d);
    expect_same(&late, &again);
    watch(&s.seen, d);
    expect_same(&late, &s.seen);
    json_decref(d);
    expect_lanes(&s, &again);
    close_stage(&s);
}

TEST(gathers_nothing_while_none_watches)
{
    static struct stage s;
    open_stage(&s, policies[0]);
    eval(s.seq, 0, 200);
    step(&s);
    assert_false(serve_view_watched(s.view));
    json_t *all = document(&s, true); /* GET /kv */
    assert_false(serve_view_watched(s.view));
    assert_int_equal(json_array_size(json_object_get(all, "events")), 0);
    watch(&s.seen, all);
    expect_lanes(&s, &s.seen);
    for (int32_t i = 0; i < n_lane; i++) /* entries evicted before the first watcher have round 0 */
        for (int32_t p = 0; p < 200; p++)
            assert_true(s.seen.went[i][p] == HELD || s.seen.went[i][p] == 0);
    json_decref(all);
    serve_view_watch(s.view, true);
    serve_view_watch(s.view, false);
    step(&s);
    assert_false(serve_view_watched(s.view));
    close_stage(&s);
}

/* Another sequence, a shorter one, and one that went away: the picture is always that of one. */
TEST(follows_one_sequence_at_a_time)
{
    static struct stage s;
    open_stage(&s, policies[0]);
    pith_seq *first = s.seq, *second = seq_make(s.engine);
    eval(first, 0, 150);
    eval(second, 0, 100);
    s.item[1] = (struct serve_view_item){.id = 8, .slot = 2, .state = "parked", .seq = second};
    s.source.n_item = 2;
    serve_view_watch(s.view, true);
    see(&s, true, &s.seen);
    expect_lanes(&s, &s.seen); /* the generating request comes first */
    serve_view_follow(s.view, 8, 0);
    s.seq = second;
    see(&s, false, &s.seen);
    expect_lanes(&s, &s.seen);
    check(pith_seq_truncate(second, 40, &err), &err);
    see(&s, false, &s.seen);
    expect_lanes(&s, &s.seen);
    int64_t epoch = s.seen.epoch;
    s.source.n_item = 0;
    json_t *gone = document(&s, false);
    const json_t *f = json_object_get(gone, "followed");
    assert_true(json_is_false(json_object_get(f, "there")));
    assert_int_equal(integer_of(f, "epoch"), epoch); /* the last picture stays */
    assert_int_equal(integer_of(f, "n_token"), 40);
    json_decref(gone);
    pith_seq_free(second);
    s.seq = first;
    close_stage(&s);
}

/* A watcher of one conversation sees its request, and after it ends no other. */
TEST(follows_only_the_conversation_that_was_asked_for)
{
    static struct stage s;
    open_stage(&s, policies[2]);
    pith_seq *other = seq_make(s.engine);
    eval(s.seq, 0, 60);
    eval(other, 0, 90);
    int64_t id = s.item[0].id;
    s.item[0].full_bytes = 4321;
    s.item[1] = (struct serve_view_item){.id = 8, .slot = 2, .state = "generating", .seq = other};
    s.source.n_item = 2;
    serve_view_watch(s.view, true);
    serve_view_follow_only(s.view, id);
    json_t *own = document(&s, true);
    assert_int_equal(integer_of(json_object_get(own, "followed"), "n_token"), 60);
    const json_t *r = json_array_get(json_object_get(own, "requests"), 0);
    assert_int_equal(integer_of(r, "full"), 4321);
    assert_int_equal(integer_of(r, "tier"), 0);
    const json_t *rules = json_object_get(own, "rules");
    assert_string_equal(json_string_value(json_object_get(rules, "budget_unit")), "entries");
    assert_true(json_number_value(json_object_get(rules, "budget")) == 64.0);
    json_decref(own);
    s.item[0] = s.item[1];
    s.source.n_item = 1;
    json_t *gone = document(&s, false);
    const json_t *f = json_object_get(gone, "followed");
    assert_true(json_is_false(json_object_get(f, "there")));
    assert_int_equal(integer_of(f, "n_token"), 60);
    json_decref(gone);
    serve_view_follow(s.view, -1, 0); /* and then any running request */
    json_t *any = document(&s, false);
    assert_int_equal(integer_of(json_object_get(any, "followed"), "n_token"), 90);
    json_decref(any);
    pith_seq_free(other);
    close_stage(&s);
}

TEST(tells_the_memory_as_the_pool_counts_it)
{
    static struct stage s;
    pith_kv_stats kv;
    open_stage(&s, "streaming:budget=64,slack=32,sinks=4");
    eval(s.seq, 0, 150);
    pith_engine_kv_stats(s.engine, &kv);
    json_t *all = document(&s, true);
    const json_t *m = json_object_get(all, "memory");
    assert_int_equal(integer_of(m, "reserved"), kv.reserved_bytes);
    assert_int_equal(integer_of(m, "used") + integer_of(m, "free"), kv.reserved_bytes);
    assert_int_equal(integer_of(m, "live"), kv.live_bytes);
    assert_int_equal(integer_of(m, "peak"), kv.peak_bytes);
    assert_int_equal(integer_of(m, "pinned"), 4 * n_lane * (kv.page_bytes / PAGE_LEN));
    json_decref(all);
    close_stage(&s);
}

/* The ring holds the last 200 steps, numbered without a gap. */
TEST(holds_the_last_200_steps)
{
    static struct stage s;
    open_stage(&s, policies[0]);
    serve_view_watch(s.view, true);
    for (int32_t i = 0; i < 230; i++) {
        eval(s.seq, i, i + 1);
        step(&s);
    }
    json_t *all = document(&s, true);
    const json_t *frames = json_object_get(all, "frames");
    assert_int_equal(json_array_size(frames), 200);
    for (size_t i = 0; i < 200; i++) {
        const json_t *frame = json_array_get(frames, i);
        assert_int_equal(json_integer_value(json_array_get(frame, 0)), 31 + i);
        assert_int_equal(json_integer_value(json_array_get(frame, 4)), 31 + i);
    }
    json_decref(all);
    close_stage(&s);
}

/* Whether GET /kv can be answered, which it is with a whole document; nothing is kept of it. */
static bool can_answer(struct stage *s)
{
    char *json = NULL;
    size_t len = 0;
    pith_status status = serve_view_snapshot(s->view, &s->source, &json, &len);
    assert_false(serve_view_watched(s->view));
    if (status == PITH_OK)
        assert_non_null(strstr(json, "\"frames\""));
    else
        assert_int_equal(status, PITH_NOMEM);
    serve_view_text_free(json);
    return status == PITH_OK;
}

/* A document is whole or not there, whichever allocation fails. */
TEST(a_document_is_whole_or_not_there)
{
    static struct stage s;
    open_stage(&s, policies[0]);
    eval(s.seq, 0, 200);
    alloc_fail_at(0);
    assert_true(can_answer(&s));
    int64_t n = alloc_fail_at(0);
    assert_true(n > 100);
    for (int64_t i = 1; i <= n; i++) {
        alloc_fail_at(i);
        bool answered = can_answer(&s);
        alloc_fail_at(0);
        if (answered)
            fail_msg("a document without allocation %lld of %lld", (long long)i, (long long)n);
    }
    assert_true(can_answer(&s));
    close_stage(&s);
}

/* Names and options that are no UTF-8 do no harm. */
TEST(odd_names_do_no_harm)
{
    struct serve_view *view = NULL;
    struct serve_view_setup setup_of = {.model = model, .alias = "na\xffno", .recall = "\xc3"};
    struct serve_view_source source = {.now_s = 1.0};
    char *json = NULL;
    size_t len = 0;
    check(serve_view_create(&setup_of, &view, &err), &err);
    pith_engine *e = engine_make(NULL, 64, 1, 64);
    source.engine = e;
    assert_int_equal(serve_view_snapshot(view, &source, &json, &len), PITH_OK);
    assert_non_null(strstr(json, "\"name\":\"na\xef\xbf\xbdno\""));
    assert_non_null(strstr(json, "\"followed\":null"));
    serve_view_text_free(json);
    serve_view_free(view);
    pith_engine_free(e);
}

TEST(refuses_a_bad_policy)
{
    struct serve_view *view = NULL;
    struct serve_view_setup setup_of = {.model = model, .keep = "knorm:budget=many"};
    assert_int_equal(serve_view_create(&setup_of, &view, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "many"));
    assert_null(view);
}
