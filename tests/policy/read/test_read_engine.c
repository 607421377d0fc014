/*
 * Reading a part, in the engine: chunks that do not depend on passes, threads or other sequences,
 * also beside keep policies of every kind. Also phases and the tail, counters, refusals, and the
 * state after cancelling, forking, truncating and files. test_read_quoka.c and the others test the
 * policies' choices, and test_read_roles.c the roles of layers.
 */
#define _POSIX_C_SOURCE 200809L

#include <unistd.h>

#include "testing.h"

#include "keep_engine.h"

#define N_TOKEN 400
#define QUOKA "quoka:budget=40,gate=1,chunk=32,queries=4"

/* The policies, and their input: a prompt, steps, another prompt, steps. */
struct form {
    const char *read, *keep, *type;
};

static pith_status engine_try(const char *read, const char *keep, const char *type, int32_t chunk,
                              int32_t n_thread, pith_engine **out, pith_error *why)
{
    pith_engine_params params;
    pith_engine_params_default(&params);
    params.chunk = chunk;
    params.n_thread = n_thread;
    params.kv_tokens = 4 * N_TOKEN;
    params.page_len = PAGE_LEN;
    params.read = read;
    params.keep = keep;
    if (type != NULL)
        params.type_k = params.type_v = type;
    return pith_engine_create(model, &params, out, why);
}

static pith_engine *engine_of(const char *read, const char *keep, const char *type, int32_t chunk,
                              int32_t n_thread)
{
    pith_engine *e = NULL;
    check(engine_try(read, keep, type, chunk, n_thread, &e, &err), &err);
    return e;
}

static pith_read_stats read_stats_of(const pith_seq *seq)
{
    pith_read_stats s;
    pith_seq_read_stats(seq, &s);
    return s;
}

/* Tokens that the next evaluation takes after n_done. */
static int32_t length_of_call(int32_t n_done)
{
    int32_t length = n_done == 0 ? 270 : n_done == 280 ? 70 : 1;
    return (int32_t)pi_min(length, N_TOKEN - n_done);
}

#define N_ALL 370 /* 270, ten steps, 70, twenty steps */

/* Hashes of the logits after each token; other, unless it is NULL, is evaluated in the same
   batches, before or behind. */
static void eval_calls(pith_seq *seq, pith_seq *other, uint64_t *hashes)
{
    for (int32_t i = pith_seq_length(seq), n, call = 0; i < N_ALL; i += n, call++) {
        n = length_of_call(i);
        pith_batch_item items[2] = {{.seq = seq,
                                     .tokens = tokens + i,
                                     .n_token = n,
                                     .logits = PITH_LOGITS_ALL,
                                     .on_logits = keep_hash,
                                     .user = hashes},
                                    {.seq = other, .tokens = tokens + 5, .n_token = 1 + i % 37}};
        if (call % 2 == 1 && other != NULL) {
            pith_batch_item first = items[0];
            items[0] = items[1];
            items[1] = first;
        }
        check(pith_batch_eval(pith_seq_engine(seq), items, other != NULL ? 2 : 1, NULL, NULL, &err),
              &err);
    }
}

static void expect_hashes(const uint64_t *got, const uint64_t *expected, int32_t n,
                          const char *what)
{
    for (int32_t i = 0; i < n; i++)
        if (got[i] != expected[i])
            fail_msg("%s: position %d differs", what, i);
}

static void load_model(void)
{
    model_load(77);
}

TEST_GROUP(load_model, model_free);

/* ---- the same bits ---- */

static const struct form forms[] = {
    {QUOKA, NULL, "f16"},
    {QUOKA, NULL, "q8_0"},
    {"quoka:budget=25%,gate=1,chunk=50,index=int8,tail=30,sinks=2,recent=3", NULL, "f32"},
    {"quest:quoka,budget=48,gate=1,chunk=32,sinks=0,dense-layers=0", NULL, "f16"},
    {"sparq:quoka,budget=40,gate=1,chunk=32", NULL, "f16"},
    {QUOKA, "streaming:budget=90,slack=38,sinks=4", "f16"},
    {QUOKA, "streaming:budget=90,slack=38,sinks=4,positions=cache", "f16"},
    {"sparq:quoka,budget=40,gate=1,chunk=32", "streaming:budget=90,slack=38,positions=cache", NULL},
    {QUOKA, "triattention:budget=96,slack=40,window=9,warmup=60,sinks=3", "f16"},
    {QUOKA, "snapkv:budget=100,slack=30,queries=8", "q8_0"},
    {QUOKA, "adakv:budget=100,slack=30,queries=8", "f16"},
    {QUOKA ",phase=prompt", "longflow:budget=100", "f16"},
    {QUOKA ",phase=decode", "knorm:budget=60%,slack=20", "f16"},
    {QUOKA ",phase=prompt", "tova:budget=100,overwrite=on,granularity=layer-head", "f16"},
};

TEST(passes_threads_and_company_change_no_bit)
{
    static const struct {
        int32_t chunk, n_thread;
        bool company;
    } cases[] = {{64, 2, false}, {128, 1, true}, {512, 3, true}};
    for (size_t f = 0; f < PI_LEN(forms); f++) {
        uint64_t expected[N_ALL], got[N_ALL];
        const struct form *form = &forms[f];
        pith_engine *e = engine_of(form->read, form->keep, form->type, 512, 1);
        pith_seq *seq = seq_make(e);
        eval_calls(seq, NULL, expected);
        pith_read_stats stats = read_stats_of(seq);
        assert_true(stats.sparse > 0 && stats.read < stats.stored);
        if (form->keep != NULL)
            assert_true(stats_of(seq).rounds > 0);
        pith_seq_free(seq);
        pith_engine_free(e);
        for (size_t c = 0; c < PI_LEN(cases); c++) {
            e = engine_of(form->read, form->keep, form->type, cases[c].chunk, cases[c].n_thread);
            seq = seq_make(e);
            pith_seq *other = cases[c].company ? seq_make(e) : NULL;
            eval_calls(seq, other, got);
            char what[160];
            snprintf(what, sizeof(what), "%s over %s, chunk %d", form->read,
                     form->keep != NULL ? form->keep : "all", cases[c].chunk);
            expect_hashes(got, expected, N_ALL, what);
            pith_read_stats again = read_stats_of(seq);
            assert_int_equal(again.chunks, stats.chunks);
            assert_int_equal(again.sparse, stats.sparse);
            assert_int_equal(again.stored, stats.stored);
            assert_int_equal(again.read, stats.read);
            pith_seq_free(other);
            pith_seq_free(seq);
            pith_engine_free(e);
        }
    }
}

/* A budget that holds everything, alone and beside what evicts; also where it is chosen from. */
TEST(reading_everything_is_the_full_cache)
{
    static const char *const keeps[] = {NULL, "streaming:budget=90,slack=38,positions=cache",
                                        "snapkv:budget=100,slack=30,queries=8"};
    static const char *const reads[] = {"quoka:budget=400,gate=1,chunk=32", "quoka:budget=100%",
                                        "keydiff:chunk=64,budget=330", "sparq:quoka,budget=400"};
    for (size_t k = 0; k < PI_LEN(keeps); k++)
        for (size_t r = 0; r < PI_LEN(reads); r++) {
            static const char *const types[] = {"f16", "f32", "q8_0"};
            uint64_t expected[N_ALL], got[N_ALL];
            const char *type = types[(k + r) % PI_LEN(types)];
            pith_engine *full = engine_of(NULL, keeps[k], type, 200, 1);
            pith_engine *e = engine_of(reads[r], keeps[k], type, 200, 2);
            pith_seq *a = seq_make(full), *b = seq_make(e);
            eval_calls(a, NULL, expected);
            eval_calls(b, NULL, got);
            expect_hashes(got, expected, N_ALL, reads[r]);
            assert_int_equal(read_stats_of(b).sparse, 0);
            assert_true(read_stats_of(b).read == read_stats_of(b).stored);
            assert_int_equal(read_stats_of(a).chunks, 0);
            pith_seq_free(a);
            pith_seq_free(b);
            pith_engine_free(full);
            pith_engine_free(e);
        }
}

/* ---- chunks that read a part ---- */

/* Tokens that read everything get the bits of steps of an engine whose steps do. */
TEST(a_tail_reads_everything)
{
    uint64_t expected[N_TOKEN] = {0}, got[N_TOKEN] = {0};
    pith_engine *e = engine_of(QUOKA ",tail=30", NULL, NULL, 64, 2);
    pith_seq *seq = eval_all(e, 250, got);
    pith_seq_free(seq);
    pith_engine_free(e);
    e = engine_of(QUOKA ",phase=prompt", NULL, NULL, 64, 2);
    seq = eval_all(e, 220, expected);
    int64_t n_sparse = read_stats_of(seq).sparse;
    assert_true(n_sparse > 0);
    for (int32_t i = 220; i < 250; i++) {
        eval(seq, i, i + 1);
        expected[i] = hash_of(seq);
    }
    assert_int_equal(read_stats_of(seq).sparse, n_sparse);
    expect_hashes(got, expected, 250, "tail=30");
    pith_seq_free(seq);
    pith_engine_free(e);
}

TEST(phases_say_when_to_read_a_part)
{
    uint64_t full[N_TOKEN] = {0}, got[N_TOKEN] = {0};
    pith_engine *dense = engine_of(NULL, NULL, NULL, 128, 1);
    pith_engine *e = engine_of(QUOKA ",phase=decode", NULL, NULL, 20, 1); /* below the rule's 32 */
    pith_seq *a = eval_all(dense, 200, full), *b = eval_all(e, 200, got);
    expect_hashes(got, full, 200, "phase=decode");
    assert_int_equal(read_stats_of(b).chunks, 0);
    eval(a, 200, 201);
    eval(b, 200, 201);
    assert_true(hash_of(a) != hash_of(b));
    pith_read_stats s = read_stats_of(b);
    assert_int_equal(s.chunks, n_lane);
    assert_int_equal(s.sparse, n_lane);
    assert_int_equal(s.stored, n_lane * 201);
    assert_int_equal(s.read, n_lane * 41);
    pith_seq_free(a);
    pith_seq_free(b);
    pith_engine_free(dense);
    pith_engine_free(e);
}

/* The counters are exact to the entry. */
TEST(counts_what_was_read_to_the_entry)
{
    enum { CHUNK = 32, N = 250, TAIL = 9 };
    uint64_t unused[N_TOKEN];
    static const char *const options[] = {"budget=40,gate=1", "budget=25%,gate=1", "budget=40",
                                          "budget=40,gate=1,dense-layers=2"};
    for (size_t o = 0; o < PI_LEN(options); o++) {
        char read[96];
        struct read_rules r = {.budget = {POLICY_UNIT_TOKENS, 40}, .gate = o == 2 ? 1.25 : 1.0};
        if (o == 1)
            r.budget = (struct policy_budget){POLICY_UNIT_SHARE, 250000};
        snprintf(read, sizeof(read), "quoka:chunk=32,tail=9,%s", options[o]);
        pith_engine *e = engine_of(read, NULL, NULL, 100, 2);
        pith_seq *seq = eval_all(e, N, unused);
        pith_read_stats expected = {0}, got = read_stats_of(seq);
        int32_t n_dense = o == 3 ? 2 * info.n_head_kv : 0;
        for (int32_t n = 0; n < N - TAIL; n += CHUNK) {
            int32_t own = (int32_t)pi_min(CHUNK, N - TAIL - n), part = read_budget_at(&r, n);
            int32_t n_sparse = part < n ? n_lane - n_dense : 0;
            expected.chunks += n_lane;
            expected.sparse += n_sparse;
            expected.stored += (int64_t)n_lane * (n + own);
            expected.read +=
                (int64_t)n_sparse * (part + own) + (int64_t)(n_lane - n_sparse) * (n + own);
        }
        assert_int_equal(got.chunks, expected.chunks);
        assert_int_equal(got.sparse, expected.sparse);
        assert_int_equal(got.stored, expected.stored);
        assert_int_equal(got.read, expected.read);
        assert_true(got.seconds > 0.0);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

/* ---- refusals, and memory ---- */

TEST(refuses_what_does_not_go_with_it)
{
    static const struct {
        const char *read, *keep;
        int32_t chunk;
        const char *first, *second; /* parts of the sentence */
    } cases[] = {
        {"quoka:chunk=200", NULL, 128, "200", "128"},
        {"quoka", NULL, 64, "128", "64"},
        {"quoka:budget=1GiB", NULL, 512, "1073741824 bytes", "budget"},
        {"quoka:budget=10,sinks=11", NULL, 512, "10", "11"},
        {"quoka", "h2o:budget=100,prompt=on", 512, "quoka", "h2o"},
        {"quoka:phase=prompt", "h2o:budget=100,overwrite=off", 512, "quoka", "h2o"},
        {"quoka", "longflow:budget=100", 512, "phase=prompt", "longflow"},
        {"keydiff:phase=decode", "tova:budget=100,overwrite=on", 512, "phase=prompt", "tova"},
        {"none:chunk=5", NULL, 512, "none", "chunk"},
        {"quokka", NULL, 512, "quokka", "quoka"},
    };
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        pith_engine *e = NULL;
        err = (pith_error){0};
        pith_status status =
            engine_try(cases[i].read, cases[i].keep, NULL, cases[i].chunk, 1, &e, &err);
        if (status != PITH_INVALID || strstr(err.message, cases[i].first) == NULL ||
            strstr(err.message, cases[i].second) == NULL)
            fail_msg("%s with %s: %s \"%s\"", cases[i].read, cases[i].keep,
                     pith_status_name(status), err.message);
        assert_null(e);
    }
}

/* Pages are as large as the index makes them, in the estimate and in the engine. */
TEST(pages_are_as_large_as_the_index_makes_them)
{
    static const char *const reads[] = {"quoka", "quoka:index=int8", "quest", "sparq"};
    pith_engine_params params;
    int64_t plain, n_page = (int64_t)n_lane * (300 / PAGE_LEN + 1);
    pith_engine_params_default(&params);
    params.page_len = PAGE_LEN;
    check(pith_kv_estimate(model, &params, 300, &plain, &err), &err);
    for (size_t r = 0; r < PI_LEN(reads); r++) {
        int64_t bytes;
        pith_kv_stats kv;
        uint64_t unused[N_TOKEN];
        params.read = reads[r];
        check(pith_kv_estimate(model, &params, 300, &bytes, &err), &err);
        assert_true(bytes > plain);
        pith_engine *e = engine_of(reads[r], NULL, NULL, 128, 1);
        pith_seq *seq = eval_all(e, 300, unused);
        pith_engine_kv_stats(e, &kv);
        assert_int_equal(kv.n_page_used, n_page);
        assert_int_equal(kv.used_bytes, bytes);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

/* Every allocation of an engine with a read policy, and of a long evaluation in it, fails once. */
TEST(failing_memory_loses_nothing)
{
    int64_t n_fail = 0;
    for (int64_t nth = 1;; nth++, n_fail++) {
        pith_engine *e = NULL;
        pith_seq *seq = NULL;
        pi_mem_fail_at(nth, false);
        pith_status status =
            engine_try("sparq:quoka,budget=40,gate=1", NULL, NULL, 256, 1, &e, &err);
        if (status == PITH_OK)
            status = pith_seq_create(e, &seq, &err);
        if (status == PITH_OK)
            status = pith_seq_eval(seq, tokens, 300, &err);
        if (status != PITH_OK && seq != NULL) {
            assert_int_equal(pith_seq_length(seq), 0);
            assert_int_equal(read_stats_of(seq).chunks, 0);
        }
        pi_mem_fail_at(0, false);
        pith_seq_free(seq);
        pith_engine_free(e);
        if (status == PITH_OK)
            break;
        assert_int_equal(status, PITH_NOMEM);
    }
    assert_true(n_fail > 20);
}

/* ---- back, beside and away ---- */

static bool stop_at_half(void *user, double fraction)
{
    (void)user;
    return fraction < 0.5;
}

TEST(a_cancelled_evaluation_leaves_no_trace)
{
    uint64_t unused[N_TOKEN];
    pith_engine *e = engine_of(QUOKA, NULL, NULL, 64, 2);
    pith_seq *b = eval_all(e, 100, unused), *c = eval_all(e, 100, unused);
    pith_read_stats before = read_stats_of(b), after;
    pith_batch_item item = {.seq = b, .tokens = tokens + 100, .n_token = 260};
    expect(pith_batch_eval(e, &item, 1, stop_at_half, NULL, &err), &err, PITH_CANCELLED, "cancel");
    assert_int_equal(pith_seq_length(b), 100);
    after = read_stats_of(b);
    assert_memory_equal(&after, &before, sizeof(before));
    /* Evaluated again, and elsewhere without an interruption. */
    eval(b, 100, 360);
    eval(c, 100, 360);
    assert_true(hash_of(b) == hash_of(c));
    assert_int_equal(read_stats_of(b).read, read_stats_of(c).read);
    pith_seq_free(b);
    pith_seq_free(c);
    pith_engine_free(e);
}

TEST(a_fork_goes_on_alike)
{
    uint64_t expected[N_ALL], got[N_ALL];
    for (size_t f = 0; f < 7; f++) {
        pith_engine *e = engine_of(forms[f].read, forms[f].keep, forms[f].type, 128, 1);
        pith_seq *a = seq_make(e), *b = NULL;
        eval_ids(a, tokens, 0, 270);
        check(pith_seq_fork(a, &b, &err), &err);
        pith_read_stats of_a = read_stats_of(a), of_b = read_stats_of(b);
        assert_memory_equal(&of_a, &of_b, sizeof(of_a));
        eval_calls(a, NULL, expected);
        eval_calls(b, a, got); /* which shares pages and goes elsewhere */
        expect_hashes(got + 270, expected + 270, N_ALL - 270, forms[f].read);
        pith_seq_free(a);
        pith_seq_free(b);
        pith_engine_free(e);
    }
}

/* Syncing to other tokens gives the result of a fresh sequence, and keeps as much as possible. */
TEST(a_sync_gives_what_a_fresh_sequence_gives)
{
    static const struct {
        const char *read, *keep;
        int32_t n, same, kept; /* evaluated before, common, not evaluated again */
    } cases[] = {
        {QUOKA, NULL, 300, 200, 32}, /* 40 are read whole, in chunks of 32 */
        {"quoka:budget=100,chunk=32", NULL, 300, 200, 96},
        {"quoka:budget=100,chunk=32", NULL, 300, 50, 32},
        {"quoka:budget=400,chunk=32", NULL, 300, 203, 203}, /* no chunk reads a part */
        {"quoka:budget=25%,gate=1,chunk=32", NULL, 300, 200, 0},
        {QUOKA ",tail=100", NULL, 250, 240, 32},
        {QUOKA ",phase=decode", NULL, 300, 203, 203},
        {QUOKA, "streaming:budget=60,slack=40,sinks=4", 300, 200, 0}, /* 4, cut to a chunk */
    };
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        int32_t ids[N_TOKEN], n = 340;
        memcpy(ids, tokens, sizeof(ids));
        for (int32_t t = cases[i].same; t < n; t++)
            ids[t] = (tokens[t] + 1) % info.n_vocab;
        pith_engine *e = engine_of(cases[i].read, cases[i].keep, NULL, 128, 2);
        pith_seq *a = seq_make(e), *fresh = seq_make(e);
        eval(a, 0, cases[i].n);
        assert_int_equal(pi_seq_reusable(a, ids, n), cases[i].kept);
        check(pith_seq_sync(a, ids, n, NULL, NULL, &err), &err);
        eval_ids(fresh, ids, 0, n);
        if (hash_of(a) != hash_of(fresh))
            fail_msg("%s, case %zu: differs from a fresh sequence", cases[i].read, i);
        pith_seq_free(a);
        pith_seq_free(fresh);
        pith_engine_free(e);
    }
}

/* A truncation drops steps that read a part; it keeps earlier ones that read everything. */
TEST(forgets_steps_that_read_a_part)
{
    int32_t ids[N_TOKEN];
    memcpy(ids, tokens, sizeof(ids));
    ids[110] = (ids[110] + 1) % info.n_vocab;
    pith_engine *e = engine_of("quoka:budget=80,phase=decode,gate=1.25", NULL, NULL, 128, 1);
    pith_seq *seq = seq_make(e);
    eval(seq, 0, 60);
    for (int32_t i = 60; i < 120; i++)
        eval(seq, i, i + 1);
    assert_int_equal(read_stats_of(seq).sparse, (120 - 101) * n_lane);
    assert_int_equal(pi_seq_reusable(seq, ids, 130), 101);
    check(pith_seq_truncate(seq, 110, &err), &err);
    assert_int_equal(read_stats_of(seq).sparse, (120 - 101) * n_lane);
    check(pith_seq_truncate(seq, 101, &err), &err);
    assert_int_equal(read_stats_of(seq).sparse, 0);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* A file goes on bit for bit where the policy is the same, and loads where it is another. */
TEST(goes_on_from_a_file)
{
    char path[] = "/tmp/pith_test_read_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    uint64_t expected[N_ALL], got[N_ALL];
    static const char *const others[] = {NULL, "keydiff:budget=30,gate=1,chunk=16", "quest:quoka",
                                         "quoka:index=int8,budget=50"};
    for (size_t f = 0; f < 6; f++) {
        pith_engine *e = engine_of(forms[f].read, forms[f].keep, forms[f].type, 128, 1);
        pith_seq *a = seq_make(e), *b = NULL;
        eval(a, 0, 270);
        check(pith_seq_save(a, path, &err), &err);
        check(pith_seq_load(e, path, &b, &err), &err);
        assert_int_equal(read_stats_of(b).chunks, 0);
        assert_int_equal(pi_seq_reusable(b, tokens, 100), 0);
        eval_calls(a, NULL, expected);
        eval_calls(b, NULL, got);
        expect_hashes(got + 270, expected + 270, N_ALL - 270, forms[f].read);
        pith_seq_free(b);
        for (size_t o = 0; o < PI_LEN(others); o++) {
            pith_engine *other = engine_of(others[o], NULL, forms[f].type, 128, 1);
            check(pith_seq_load(other, path, &b, &err), &err);
            eval_calls(b, NULL, got);
            pith_seq_free(b);
            pith_engine_free(other);
        }
        pith_seq_free(a);
        pith_engine_free(e);
    }
    unlink(path);
}

/* A tap sees the same as without a reader: each token once per layer. */
static bool count_rows(void *user, const pith_tap_rows *rows)
{
    int32_t *n = user;
    n[rows->layer] += rows->n_token;
    return true;
}

TEST(a_tap_changes_no_bit)
{
    uint64_t expected[N_TOKEN], got[N_TOKEN];
    int32_t n[64] = {0};
    pith_engine *e = engine_of(QUOKA, NULL, NULL, 64, 1);
    pith_seq *a = eval_all(e, 300, expected);
    check(pith_engine_set_tap(e, count_rows, n, &err), &err);
    pith_seq *b = eval_all(e, 300, got);
    expect_hashes(got, expected, 300, "with a tap");
    for (int32_t l = 0; l < info.n_layer; l++)
        assert_int_equal(n[l], 300);
    pith_seq_free(a);
    pith_seq_free(b);
    pith_engine_free(e);
}
