/*
 * Keep policies in the engine, on the repository's model: the positions that stay at each token,
 * and the same bits for any split of evaluations. Also that memory falls and suffices, and the
 * state after an evaluation that ends half-way.
 */
#define _POSIX_C_SOURCE 200809L

#include <string.h>

#include "testing.h"

#include "keep_engine.h"
#include "mem_used.h"

#define N_TOKEN 400
#define MAX_LANE 64

/* The policy of most tests: rounds at 96, 128, 160, ... tokens. */
#define POLICY "streaming:budget=64,slack=32"
#define BUDGET 64
#define SLACK 32
#define SINKS 4

static uint64_t reference[N_TOKEN]; /* hash of the logits after each token under POLICY */

/* Entries of a lane under POLICY. */
static int32_t entries_at(int32_t n_token)
{
    return n_token < BUDGET + SLACK ? n_token : BUDGET + (n_token - BUDGET - SLACK) % SLACK;
}

/* Every lane holds the first SINKS positions and the last ones, n in all. */
static void expect_streaming(const pith_seq *seq, int32_t n)
{
    int32_t pos[N_TOKEN], n_token = pith_seq_length(seq);
    for (int32_t l = 0; l < info.n_layer; l++)
        for (int32_t h = 0; h < info.n_head_kv; h++) {
            pith_lane_info lane;
            assert_int_equal(pith_seq_lane(seq, l, h, &lane, pos, N_TOKEN), PITH_OK);
            assert_int_equal(lane.n_entry, n);
            assert_int_equal(lane.n_page, (n + PAGE_LEN - 1) / PAGE_LEN);
            for (int32_t i = 0; i < n; i++)
                assert_int_equal(pos[i], i < SINKS ? i : n_token - n + i);
        }
}

static void load_model(void)
{
    model_load(12);
    assert_true(n_lane <= MAX_LANE);
    pith_engine *e = engine_make(POLICY, 512, 1, 0);
    pith_seq_free(eval_all(e, N_TOKEN, reference));
    pith_engine_free(e);
}

TEST_GROUP(load_model, model_free);

/* ---- the kept positions ---- */

TEST(keeps_sinks_and_the_end_at_every_token)
{
    pith_engine *e = engine_make(POLICY, 64, 2, 0);
    pith_seq *seq = seq_make(e);
    int64_t freed = 0, before = 0;
    for (int32_t n = 1; n <= N_TOKEN; n++) {
        eval(seq, n - 1, n);
        int32_t want = entries_at(n);
        int32_t rounds = n < BUDGET + SLACK ? 0 : (n - BUDGET - SLACK) / SLACK + 1;
        expect_streaming(seq, want);
        assert_true(hash_of(seq) == reference[n - 1]);
        assert_int_equal(used_pages(e), n_lane * ((want + PAGE_LEN - 1) / PAGE_LEN));
        pith_keep_stats s = stats_of(seq);
        assert_int_equal(s.rounds, rounds);
        assert_int_equal(s.evicted, (int64_t)rounds * SLACK * n_lane);
        assert_int_equal(s.live, (int64_t)want * n_lane);
        assert_int_equal(s.longest, want);
        assert_int_equal(s.budget, BUDGET);
        assert_int_equal(s.first_round_at, rounds > 0 ? BUDGET + SLACK : -1);
        assert_true(s.seconds >= 0.0 && (rounds == 0 || s.seconds > 0.0));
        if (want == BUDGET && n > BUDGET) /* a round just ran: SLACK entries are two pages */
            freed += n_lane * (SLACK / PAGE_LEN);
        before = s.bytes_freed;
        pith_kv_stats kv;
        pith_engine_kv_stats(e, &kv);
        assert_int_equal(before, freed * kv.page_bytes);
    }
    pith_seq_free(seq);
    assert_int_equal(used_pages(e), 0);
    pith_engine_free(e);
}

/* The full cache with the same entries taken out by hand gives the same bits. */
TEST(rounds_are_those_done_by_hand)
{
    pith_engine *e = engine_make(NULL, 64, 2, 512);
    pith_seq *seq = seq_make(e);
    for (int32_t n = 1; n <= N_TOKEN; n++) {
        eval(seq, n - 1, n);
        assert_true(hash_of(seq) == reference[n - 1]);
        if (n < BUDGET + SLACK || (n - BUDGET - SLACK) % SLACK != 0)
            continue;
        int32_t slots[BUDGET];
        for (int32_t i = 0; i < BUDGET; i++)
            slots[i] = i < SINKS ? i : SLACK + i;
        for (int32_t l = 0; l < n_lane; l++)
            check(kv_seq_compact(seq->memory.kv, l / info.n_head_kv, l % info.n_head_kv, slots,
                                 BUDGET, &err),
                  &err);
    }
    pith_seq_free(seq);
    pith_engine_free(e);
}

TEST(a_budget_that_is_never_reached_is_the_full_cache)
{
    static const char *const policies[] = {"none", "streaming:budget=400", "streaming:budget=100%",
                                           "streaming:budget=1GiB",
                                           "streaming:budget=369,slack=32"};
    uint64_t full[N_TOKEN], hashes[N_TOKEN];
    pith_engine *e = engine_make(NULL, 100, 2, N_TOKEN);
    pith_seq_free(eval_all(e, N_TOKEN, full));
    pith_engine_free(e);
    assert_memory_equal(full, reference, (BUDGET + SLACK) * sizeof(*full));
    assert_true(full[N_TOKEN - 1] != reference[N_TOKEN - 1]);
    for (size_t i = 0; i < PI_LEN(policies); i++) {
        e = engine_make(policies[i], 100, 2, N_TOKEN);
        pith_seq *seq = eval_all(e, N_TOKEN, hashes);
        assert_int_equal(stats_of(seq).rounds, 0);
        assert_memory_equal(hashes, full, sizeof(full));
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

/* ---- the same bits ---- */

TEST(chunks_and_threads_change_no_bit)
{
    static const char *const policies[] = {POLICY, "streaming:budget=30%,slack=16,window=8",
                                           "streaming:budget=48,slack=1,sinks=0",
                                           "streaming:budget=100,slack=77,prefix=30"};
    static const struct {
        int32_t chunk, n_thread;
    } cases[] = {{512, 2}, {1, 3}, {7, 1}, {32, 2}, {33, 3}, {100, 1}};
    for (size_t p = 0; p < PI_LEN(policies); p++) {
        uint64_t want[N_TOKEN];
        pith_engine *e = engine_make(policies[p], 512, 1, 0);
        pith_seq *first = eval_all(e, N_TOKEN, want);
        assert_true(stats_of(first).rounds >= 3);
        for (size_t c = 0; c < PI_LEN(cases); c++) {
            uint64_t hashes[N_TOKEN] = {0};
            pith_engine *other = engine_make(policies[p], cases[c].chunk, cases[c].n_thread, 0);
            pith_seq *seq = eval_all(other, N_TOKEN, hashes);
            for (int32_t i = 0; i < N_TOKEN; i++)
                if (hashes[i] != want[i])
                    fail_msg("%s, chunk %d, %d threads: position %d differs", policies[p],
                             cases[c].chunk, cases[c].n_thread, i);
            assert_int_equal(stats_of(seq).rounds, stats_of(first).rounds);
            pith_seq_free(seq);
            pith_engine_free(other);
        }
        pith_seq_free(first);
        pith_engine_free(e);
    }
}

TEST(company_in_a_batch_changes_no_bit)
{
    static const int32_t portion[4] = {1, 40, 110, 133};
    pith_engine *e = engine_make(POLICY, 50, 2, 4 * (BUDGET + SLACK));
    pith_seq *seq[4];
    for (int32_t i = 0; i < 4; i++)
        seq[i] = seq_make(e);
    for (int32_t round = 0; round < 3; round++) {
        pith_batch_item item[4] = {{0}};
        for (int32_t i = 0; i < 4; i++)
            item[i] = (pith_batch_item){
                .seq = seq[i], .tokens = tokens + pith_seq_length(seq[i]), .n_token = portion[i]};
        check(pith_batch_eval(e, item, 4, NULL, NULL, &err), &err);
        for (int32_t i = 0; i < 4; i++) {
            assert_true(hash_of(seq[i]) == reference[pith_seq_length(seq[i]) - 1]);
            expect_streaming(seq[i], entries_at(pith_seq_length(seq[i])));
        }
    }
    for (int32_t i = 0; i < 4; i++)
        pith_seq_free(seq[i]);
    pith_engine_free(e);
}

TEST(a_fork_goes_its_own_way)
{
    pith_engine *e = engine_make(POLICY, 64, 2, 2 * (BUDGET + SLACK));
    pith_seq *a = seq_make(e), *b = NULL;
    eval(a, 0, 150);
    int64_t pages = used_pages(e);
    check(pith_seq_fork(a, &b, &err), &err);
    assert_int_equal(used_pages(e), pages);
    assert_int_equal(stats_of(b).rounds, stats_of(a).rounds);
    eval(b, 150, 300);
    eval(a, 150, 170);
    expect_streaming(a, entries_at(170));
    expect_streaming(b, entries_at(300));
    assert_true(hash_of(b) == reference[299] && hash_of(a) == reference[169]);
    pith_batch_item both[2] = {{.seq = a, .tokens = tokens + 170, .n_token = 230},
                               {.seq = b, .tokens = tokens + 300, .n_token = 100}};
    check(pith_batch_eval(e, both, 2, NULL, NULL, &err), &err);
    assert_true(hash_of(a) == reference[N_TOKEN - 1] && hash_of(b) == reference[N_TOKEN - 1]);
    pith_seq_free(a);
    pith_seq_free(b);
    assert_int_equal(used_pages(e), 0);
    pith_engine_free(e);
}

/* ---- memory ---- */

static bool watch_memory(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    (void)logits;
    (void)pos;
    assert_true(stats_of(seq).longest <= BUDGET + SLACK);
    assert_true(used_pages(user) <= n_lane * (BUDGET + SLACK) / PAGE_LEN);
    return true;
}

/* A text of four times the pool goes through it. With a page less it is refused, and nothing has
   changed. */
TEST(a_pool_of_the_budget_holds_any_text)
{
    pith_engine *e = engine_make(POLICY, 512, 2, BUDGET + SLACK);
    pith_seq *seq = seq_make(e);
    pith_kv_stats kv;
    pith_engine_kv_stats(e, &kv);
    assert_true(N_TOKEN >= 4 * (BUDGET + SLACK));
    assert_int_equal(kv.n_page, n_lane * (BUDGET + SLACK) / PAGE_LEN);
    pith_batch_item item = {.seq = seq,
                            .tokens = tokens,
                            .n_token = N_TOKEN,
                            .logits = PITH_LOGITS_ALL,
                            .on_logits = watch_memory,
                            .user = e};
    check(pith_batch_eval(e, &item, 1, NULL, NULL, &err), &err);
    pith_seq_free(seq);
    pith_engine_free(e);

    e = engine_with(model, (pith_engine_params){.page_len = PAGE_LEN,
                                                .kv_bytes = kv.reserved_bytes - kv.page_bytes,
                                                .keep = POLICY});
    seq = seq_make(e);
    eval(seq, 0, 50);
    int64_t pages = used_pages(e);
    assert_int_equal(pith_seq_eval(seq, tokens + 50, 100, &err), PITH_KV_FULL);
    assert_true(strlen(err.message) > 20);
    assert_int_equal(pith_seq_length(seq), 50);
    assert_int_equal(used_pages(e), pages);
    assert_true(hash_of(seq) == reference[49]);
    eval(seq, 50, 80);
    assert_true(hash_of(seq) == reference[79]);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* The pool of an engine that is told no size, and the estimate. */
TEST(sizes_the_pool_by_the_budget)
{
    static const struct {
        const char *keep;
        int32_t n_token; /* entries per lane that the pool holds */
    } cases[] = {
        {NULL, 0},
        {"streaming:budget=200,slack=56", 256},
        {"streaming:budget=1000000", 0},
        {"streaming:budget=25%,slack=64", -4},
    };
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        pith_engine_params params;
        pith_kv_stats kv;
        int64_t bytes, want = cases[i].n_token > 0    ? cases[i].n_token
                              : cases[i].n_token == 0 ? info.n_ctx_train
                                                      : info.n_ctx_train / 4 + 64;
        pith_engine *e = engine_make(cases[i].keep, 16, 1, 0);
        pith_engine_kv_stats(e, &kv);
        assert_int_equal(kv.n_page, (want + PAGE_LEN - 1) / PAGE_LEN * n_lane);
        pith_engine_params_default(&params);
        params.page_len = PAGE_LEN;
        params.keep = cases[i].keep;
        check(pith_kv_estimate(model, &params, info.n_ctx_train, &bytes, &err), &err);
        assert_int_equal(bytes, kv.reserved_bytes);
        pith_engine_free(e);
    }
    pith_engine_params params;
    pith_engine *e = NULL;
    pith_engine_params_default(&params);
    params.keep = "streaming:budget=16kB,slack=20";
    assert_int_equal(pith_engine_create(model, &params, &e, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "16000 bytes"));
    params.keep = "nonsense";
    assert_int_equal(pith_engine_create(model, &params, &e, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "\"nonsense\" is not a policy"));
}

/* A budget in bytes is never exceeded, and used as far as whole pages go. */
TEST(holds_a_budget_in_bytes)
{
    pith_engine *e = engine_make("streaming:budget=100kB,slack=8", 64, 2, 512);
    pith_seq *seq = seq_make(e);
    pith_kv_stats kv;
    for (int32_t n = 0; n < N_TOKEN; n += 5) {
        eval(seq, n, n + 5);
        pith_engine_kv_stats(e, &kv);
        assert_true(kv.used_bytes <= 100000);
    }
    assert_true(stats_of(seq).rounds > 0);
    assert_true(kv.peak_bytes <= 100000 && kv.peak_bytes > 100000 - n_lane * kv.page_bytes);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* ---- ends half-way ---- */

static bool stop_late(void *user, double fraction)
{
    return fraction < *(const double *)user;
}

static bool stop_tap(void *user, const pith_tap_rows *rows)
{
    return rows->pos0 + rows->n_token < *(const int32_t *)user;
}

/* Before a round a cancelled evaluation leaves nothing, after one the passes that were done; either
   way the sequence goes on to the same bits. */
TEST(a_cancelled_evaluation_goes_on_to_the_same_bits)
{
    pith_engine *e = engine_make(POLICY, 16, 2, 512);
    pith_seq *a = seq_make(e), *b = seq_make(e);
    eval(a, 0, 60);
    double fraction = 0.1;
    pith_batch_item item = {.seq = a, .tokens = tokens + 60, .n_token = 300};
    assert_int_equal(pith_batch_eval(e, &item, 1, stop_late, &fraction, &err), PITH_CANCELLED);
    assert_int_equal(pith_seq_length(a), 60);
    expect_streaming(a, 60);

    fraction = 0.5;
    eval(b, 0, 10);
    pith_batch_item both[2] = {item, {.seq = b, .tokens = tokens + 10, .n_token = 50}};
    assert_int_equal(pith_batch_eval(e, both, 2, stop_late, &fraction, &err), PITH_CANCELLED);
    assert_int_equal(pith_seq_length(b), 10); /* had no round */
    expect_streaming(b, 10);
    int32_t n = pith_seq_length(a);
    assert_true(n >= 150 && n < 360);
    assert_memory_equal(pith_seq_tokens(a), tokens, (size_t)n * sizeof(*tokens));
    assert_null(pith_seq_logits(a));
    expect_streaming(a, entries_at(n));

    int32_t stop = n + 60;
    check(pith_engine_set_tap(e, stop_tap, &stop, &err), &err);
    assert_int_equal(pith_seq_eval(a, tokens + n, N_TOKEN - n, &err), PITH_CANCELLED);
    check(pith_engine_set_tap(e, NULL, NULL, &err), &err);
    n = pith_seq_length(a);
    assert_true(n >= stop && n < stop + 16);
    expect_streaming(a, entries_at(n));
    eval(a, n, N_TOKEN);
    assert_true(hash_of(a) == reference[N_TOKEN - 1]);
    pith_seq_free(a);
    pith_seq_free(b);
    pith_engine_free(e);
}

static pith_status live(pith_error *why)
{
    pith_engine *e = NULL;
    pith_seq *a = NULL, *b = NULL;
    pith_engine_params params;
    pith_engine_params_default(&params);
    params.kv_tokens = 512;
    params.chunk = 32;
    params.page_len = PAGE_LEN;
    params.n_thread = 1;
    params.keep = "streaming:budget=50%,slack=8";
    pith_status status = pith_engine_create(model, &params, &e, why);
    if (status == PITH_OK)
        status = pith_seq_create(e, &a, why);
    /* The second call takes many more pages at its last round than until its first. */
    for (int32_t n = 0, part = 10; n < 250 && status == PITH_OK; n += part, part = 240) {
        status = pith_seq_eval(a, tokens + n, part, why);
        if (status != PITH_OK)
            assert_int_equal(pith_seq_length(a), n);
    }
    if (status == PITH_OK)
        status = pith_seq_fork(a, &b, why);
    if (status == PITH_OK)
        status = pith_seq_eval(b, tokens + 250, 60, why);
    if (status == PITH_OK)
        status = pith_seq_sync(a, tokens, 60, NULL, NULL, why);
    if (status == PITH_OK)
        assert_true(stats_of(b).rounds > 5);
    pith_seq_free(b);
    pith_seq_free(a);
    pith_engine_free(e);
    return status;
}

TEST(survives_every_failing_allocation)
{
    int64_t before[PI_MEM_N_TAG];
    mem_used(before);
    pi_mem_fail_at(0, false);
    check(live(&err), &err);
    int64_t n = pi_mem_fail_at(0, false);
    assert_true(n > 20);
    for (int64_t i = 1; i <= 2 * n; i++) {
        memset(&err, 0, sizeof(err));
        pi_mem_fail_at((i + 1) / 2, i % 2 == 0);
        pith_status status = live(&err);
        pi_mem_fail_at(0, false);
        if (status != PITH_NOMEM)
            fail_msg("allocation %lld of %lld: %s", (long long)i, (long long)n,
                     pith_status_name(status));
        assert_true(strlen(err.message) > 10);
        mem_check(before);
    }
}

/* ---- going back ---- */

/* Where entries were overwritten, tokens to forget lie in any slot, so pages that a fork shares
   must be copied. Without a free page nothing is forgotten. */
TEST(truncating_may_need_pages)
{
    pith_engine *e = engine_make("tova:budget=40,slack=8", 64, 2, 48); /* 3 pages of every lane */
    pith_seq *a = seq_make(e), *b = NULL;
    pith_lane_info lane;
    int32_t before[48], after[48];
    eval(a, 0, 30);
    for (int32_t t = 30; t < 100; t++)
        eval(a, t, t + 1);
    check(pith_seq_fork(a, &b, &err), &err);
    uint64_t hash = hash_of(a);
    int64_t n_page = used_pages(e);
    assert_int_equal(n_page, 3 * n_lane);
    assert_int_equal(pith_seq_lane(a, 0, 0, &lane, before, 48), PITH_OK);
    expect(pith_seq_truncate(a, 70, &err), &err, PITH_KV_FULL, " are free");
    assert_int_equal(pith_seq_length(a), 100);
    assert_true(hash_of(a) == hash);
    assert_int_equal(pith_seq_lane(a, 0, 0, &lane, after, 48), PITH_OK);
    assert_int_equal(lane.n_entry, 40);
    assert_memory_equal(before, after, 40 * sizeof(*before));
    assert_int_equal(used_pages(e), n_page);

    pith_seq_free(b); /* the pages are its own now */
    check(pith_seq_truncate(a, 70, &err), &err);
    assert_int_equal(pith_seq_length(a), 70);
    assert_int_equal(pith_seq_lane(a, 0, 0, &lane, after, 48), PITH_OK);
    assert_true(lane.n_entry > 0 && lane.n_entry < 40);
    for (int32_t i = 0; i < lane.n_entry; i++)
        assert_true(after[i] < 70);
    eval(a, 70, 71);
    pith_seq_free(a);
    pith_engine_free(e);
}

TEST(truncating_and_syncing_go_on_alike)
{
    pith_engine *e = engine_make(POLICY, 50, 2, 512);
    pith_seq *seq = seq_make(e);
    eval(seq, 0, 300);

    /* Evicted entries stay away: the sinks, a gap, and the rest of the window. */
    int32_t n = entries_at(300) - 20;
    check(pith_seq_truncate(seq, 280, &err), &err);
    assert_int_equal(stats_of(seq).longest, n);
    assert_int_equal(stats_of(seq).rounds, 7);
    expect_streaming(seq, n);
    check(pith_seq_truncate(seq, SINKS, &err), &err); /* nothing is missing of the first four */
    assert_int_equal(stats_of(seq).rounds, 0);
    assert_int_equal(stats_of(seq).first_round_at, -1);
    eval(seq, SINKS, 300);
    assert_true(hash_of(seq) == reference[299]);

    /* A sync gives the result of a fresh sequence, from any length. */
    static const int32_t lengths[] = {299, 250, 300, 301, 96, 95, 94, 130, 4, 3, 399, 1, 200};
    for (size_t i = 0; i < PI_LEN(lengths); i++) {
        check(pith_seq_sync(seq, tokens, lengths[i], NULL, NULL, &err), &err);
        assert_int_equal(pith_seq_length(seq), lengths[i]);
        assert_true(hash_of(seq) == reference[lengths[i] - 1]);
        expect_streaming(seq, entries_at(lengths[i]));
    }
    int32_t changed[N_TOKEN];
    memcpy(changed, tokens, sizeof(changed));
    changed[190] = (changed[190] + 1) % info.n_vocab;
    check(pith_seq_sync(seq, changed, 200, NULL, NULL, &err), &err);
    assert_true(hash_of(seq) != reference[199]);
    check(pith_seq_sync(seq, tokens, 200, NULL, NULL, &err), &err);
    assert_true(hash_of(seq) == reference[199]);

    /* The counts in the result of generation. */
    pith_generate_params params;
    pith_generate_result result;
    pith_generate_params_default(&params);
    params.n_predict = 1;
    params.sample.temperature = 0.0f;
    check(pith_generate(seq, tokens, 350, &params, NULL, NULL, &result, &err), &err);
    assert_int_equal(result.n_cached, 200);
    check(pith_generate(seq, tokens, 349, &params, NULL, NULL, &result, &err), &err);
    assert_int_equal(result.n_cached, SINKS);
    check(pith_generate(seq, tokens, 349, &params, NULL, NULL, &result, &err), &err);
    assert_int_equal(result.n_cached, 349);
    assert_int_equal(result.n_prompt, 0);
    pith_seq_free(seq);
    pith_engine_free(e);
}

TEST(a_saved_sequence_goes_on_alike)
{
    char path[] = "/tmp/pith-test-keep-XXXXXX";
    close(mkstemp(path));
    pith_engine *e = engine_make(POLICY, 64, 2, 0), *full = engine_make(NULL, 64, 1, 512);
    pith_engine *roomy = engine_make(POLICY, 64, 2, 512);
    pith_seq *a = seq_make(e), *b = NULL;
    eval(a, 0, 222);
    check(pith_seq_save(a, path, &err), &err);
    pith_seq_free(a);
    check(pith_seq_load(e, path, &b, &err), &err);
    expect_streaming(b, entries_at(222));
    assert_int_equal(stats_of(b).rounds, 0); /* since it was loaded */
    eval(b, 222, N_TOKEN);
    assert_true(hash_of(b) == reference[N_TOKEN - 1]);
    pith_seq_free(b);

    /* An engine without a policy goes on with the present entries, and reads again where it
       must. */
    check(pith_seq_load(full, path, &b, &err), &err);
    eval(b, 222, 223);
    assert_true(hash_of(b) == reference[222]);
    assert_int_equal(stats_of(b).budget, -1);
    check(pith_seq_sync(b, tokens, 96, NULL, NULL, &err), &err);
    assert_true(hash_of(b) == reference[95]);
    assert_int_equal(stats_of(b).longest, 96);
    eval(b, 96, 300);
    check(pith_seq_save(b, path, &err), &err);
    pith_seq_free(b);

    /* 300 entries come into an engine that keeps 64. */
    check(pith_seq_load(roomy, path, &b, &err), &err);
    assert_int_equal(stats_of(b).longest, 300);
    eval(b, 300, 301);
    expect_streaming(b, BUDGET + 1);
    assert_int_equal(stats_of(b).first_round_at, 300);
    eval(b, 301, 301 + SLACK);
    expect_streaming(b, BUDGET + 1);
    pith_seq_free(b);
    pith_engine_free(roomy);
    pith_engine_free(full);
    pith_engine_free(e);
    remove(path);
}
