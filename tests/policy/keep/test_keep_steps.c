/*
 * Overwriting in the engine: a lane that holds its budget stores each token of a step in the place
 * of one entry. It promises B entries at every step, and no byte more or less once a lane is full.
 * Tokens are the same for any chunk, threads, other sequences and fork. Truncation works wherever
 * nothing was overwritten. The bits equal the full cache where the budget is never reached.
 */
#define _POSIX_C_SOURCE 200809L

#include <string.h>

#include "keep_engine.h"
#include "testing.h"

#define N_TOKEN 200
#define N_PROMPT 50
#define BUDGET 40

/* Policies with and without a state, with marks and without, one and many lanes in a decision. */
static const char *const policies[] = {
    "longflow:budget=40,slack=8",
    "longflow:budget=40,slack=8,prompt-window=16,granularity=layer-head,score=exact,newest=on",
    "longflow:budget=40,slack=5,normalise=off,sinks=4,window=6",
    "tova:budget=40,slack=8",
    "h2o:budget=40,slack=8,overwrite=on,granularity=layer-head",
};
#define N_POLICY ((int32_t)PI_LEN(policies))

static uint64_t reference[PI_LEN(policies)][N_TOKEN]; /* of a prompt and then steps */

/* Single tokens up to end; hashes [N_TOKEN] may be NULL. */
static void walk(pith_seq *seq, int32_t end, uint64_t *hashes)
{
    for (int32_t t = pith_seq_length(seq); t < end; t++) {
        eval(seq, t, t + 1);
        if (hashes != NULL)
            hashes[t] = hash_of(seq);
    }
}

static int32_t lane_len(const pith_seq *seq, int32_t layer, int32_t head)
{
    pith_lane_info lane;
    assert_int_equal(pith_seq_lane(seq, layer, head, &lane, NULL, 0), PITH_OK);
    return lane.n_entry;
}

static void expect_lanes(const pith_seq *seq, int32_t n)
{
    for (int32_t i = 0; i < n_lane; i++)
        assert_int_equal(lane_len(seq, i / info.n_head_kv, i % info.n_head_kv), n);
}

/* Evicted entries and held entries sum to all entries. */
static void expect_account(const pith_seq *seq)
{
    pith_keep_stats s;
    pith_seq_keep_stats(seq, &s);
    assert_int_equal(s.evicted + s.live, (int64_t)n_lane * pith_seq_length(seq));
    assert_true(s.overwritten <= s.evicted);
}

static void setup(void)
{
    model_load(77);
    for (int32_t p = 0; p < N_POLICY; p++) {
        pith_engine *e = engine_make(policies[p], 512, 1, 0);
        pith_seq *seq = seq_make(e);
        eval(seq, 0, N_PROMPT);
        reference[p][N_PROMPT - 1] = hash_of(seq);
        walk(seq, N_TOKEN, reference[p]);
        expect_account(seq);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

TEST_GROUP(setup, model_free);

/* ---- never reached ---- */

TEST(a_budget_that_is_never_reached_is_the_full_cache)
{
    static const char *const roomy[] = {
        "longflow:budget=201",  "longflow:budget=201,score=exact,granularity=layer-head",
        "longflow:budget=100%", "tova:budget=201",
        "vatp:budget=201",      "h2o:budget=201,overwrite=on,granularity=layer"};
    uint64_t full[N_TOKEN] = {0};
    pith_engine *e = engine_make(NULL, 512, 2, 256);
    pith_seq *seq = seq_make(e);
    eval(seq, 0, N_PROMPT);
    walk(seq, N_TOKEN, full);
    pith_seq_free(seq);
    pith_engine_free(e);
    for (size_t p = 0; p < PI_LEN(roomy); p++) {
        uint64_t hashes[N_TOKEN] = {0};
        pith_keep_stats s;
        e = engine_make(roomy[p], 512, 2, 256);
        seq = seq_make(e);
        eval(seq, 0, N_PROMPT);
        walk(seq, N_TOKEN, hashes);
        for (int32_t t = N_PROMPT; t < N_TOKEN; t++)
            if (hashes[t] != full[t])
                fail_msg("%s: position %d differs from the full cache", roomy[p], t);
        pith_seq_keep_stats(seq, &s);
        assert_int_equal(s.evicted, 0);
        assert_int_equal(s.first_overwrite_at, -1);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

/* ---- the life of a lane ---- */

/* Prompts around the budget: the entries after them, and before each step. */
TEST(prompts_around_the_budget_leave_room_for_a_step)
{
    static const int32_t n_prompt[] = {1, 2, BUDGET - 1, BUDGET, BUDGET + 1, 48, 49, 120};
    for (int32_t p = 0; p < N_POLICY; p++)
        for (size_t i = 0; i < PI_LEN(n_prompt); i++) {
            int32_t n = n_prompt[i], kept = n < BUDGET ? n : BUDGET - 1;
            pith_keep_stats s;
            pith_engine *e = engine_make(policies[p], 512, 2, 0);
            pith_seq *seq = seq_make(e);
            eval(seq, 0, n);
            expect_lanes(seq, kept);
            pith_seq_keep_stats(seq, &s);
            assert_int_equal(s.rounds > 0, n >= BUDGET);
            for (int32_t t = n; t < n + BUDGET + 10; t++) {
                eval(seq, t, t + 1);
                kept = kept < BUDGET ? kept + 1 : BUDGET;
                expect_lanes(seq, kept);
                expect_account(seq);
            }
            pith_seq_keep_stats(seq, &s);
            assert_int_equal(s.first_overwrite_at, n < BUDGET ? BUDGET : n + 1);
            pith_seq_free(seq);
            pith_engine_free(e);
        }
}

/* The smallest budget: a token that is evaluated alone sees itself only. */
TEST(a_budget_of_one_holds_one_entry)
{
    static const char *const tiny[] = {"tova:budget=1,slack=3",
                                       "tova:budget=1,granularity=layer-head"};
    for (size_t p = 0; p < PI_LEN(tiny); p++) {
        pith_engine *e = engine_make(tiny[p], 512, 2, 0);
        pith_seq *seq = seq_make(e);
        int32_t position;
        pith_lane_info lane;
        eval(seq, 0, 9);
        expect_lanes(seq, 0);
        for (int32_t t = 9; t < 30; t++) {
            eval(seq, t, t + 1);
            expect_lanes(seq, 1);
            assert_int_equal(pith_seq_lane(seq, 1, 1, &lane, &position, 1), PITH_OK);
            assert_int_equal(position, t);
        }
        expect_account(seq);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

/* A pool of the announced size holds any number of steps, and nothing moves in it. */
TEST(the_pool_holds_any_number_of_steps)
{
    for (int32_t p = 0; p < N_POLICY; p++) {
        pith_engine_params params;
        pith_kv_stats full = {0}, now;
        int64_t said = 0;
        pith_engine_params_default(&params);
        params.page_len = PAGE_LEN;
        params.keep = policies[p];
        check(pith_kv_estimate(model, &params, 100000, &said, &err), &err);
        params.kv_bytes = said;
        pith_engine *e = NULL;
        check(pith_engine_create(model, &params, &e, &err), &err);
        pith_seq *seq = seq_make(e);
        eval(seq, 0, N_PROMPT);
        for (int32_t t = N_PROMPT; t < N_TOKEN; t++) {
            eval(seq, t, t + 1);
            pith_engine_kv_stats(e, &now);
            if (t == N_PROMPT + 1)
                full = now;
            if (t <= N_PROMPT)
                continue;
            assert_int_equal(now.used_bytes, full.used_bytes);
            assert_int_equal(now.peak_bytes, full.peak_bytes);
            assert_int_equal(now.live_bytes, full.live_bytes);
            assert_int_equal(now.table_bytes, full.table_bytes);
        }
        assert_true(full.peak_bytes <= said);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

/* Protected entries are never overwritten. */
TEST(what_is_protected_is_never_overwritten)
{
    pith_engine *e = engine_make(
        "longflow:budget=44,slack=8,prefix=3,sinks=5,window=7,granularity=layer-head", 64, 2, 0);
    pith_seq *seq = seq_make(e);
    pith_lane_info lane;
    int32_t pos[64];
    eval(seq, 0, N_PROMPT);
    for (int32_t t = N_PROMPT; t < N_TOKEN; t++) {
        eval(seq, t, t + 1);
        for (int32_t i = 0; i < info.n_layer * info.n_head_kv; i++) {
            bool first[5] = {false}, last[7] = {false};
            assert_int_equal(
                pith_seq_lane(seq, i / info.n_head_kv, i % info.n_head_kv, &lane, pos, 64),
                PITH_OK);
            for (int32_t j = 0; j < lane.n_entry; j++) {
                if (pos[j] < 5)
                    first[pos[j]] = true;
                if (pos[j] > t - 7)
                    last[t - pos[j]] = true;
            }
            for (int32_t j = 0; j < 5; j++)
                assert_true(first[j]);
            for (int32_t j = 0; j < 7; j++)
                assert_true(last[j]);
        }
    }
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* A pinned prompt stays whole. */
TEST(a_pinned_prompt_stays_whole)
{
    pith_engine *e = engine_make("longflow:budget=100,slack=8,pin-prompt=on", 64, 2, 0);
    pith_seq *seq = seq_make(e);
    int32_t pos[128];
    pith_lane_info lane;
    check(pith_seq_mark_prompt(seq, N_PROMPT, &err), &err);
    eval(seq, 0, N_PROMPT);
    walk(seq, 120, NULL);
    expect_lanes(seq, 100);
    assert_int_equal(pith_seq_lane(seq, 0, 0, &lane, pos, 128), PITH_OK);
    for (int32_t i = 0; i < N_PROMPT; i++)
        assert_int_equal(pos[i], i);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* A share of the tokens grows: a lane is overwritten only where it is above it. */
TEST(a_share_of_the_tokens_grows)
{
    pith_engine *e = engine_make("tova:budget=50%,slack=4", 64, 2, 0);
    pith_seq *seq = seq_make(e);
    eval(seq, 0, 20);
    expect_lanes(seq, 9);
    for (int32_t t = 20; t < 100; t++) {
        eval(seq, t, t + 1);
        assert_in_range(lane_len(seq, 0, 0), (t + 1) / 2 - 1, (t + 1) / 2);
        expect_account(seq);
    }
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* ---- the same tokens ---- */

TEST(chunks_and_threads_change_no_bit)
{
    static const struct {
        int32_t chunk, n_thread;
    } cases[] = {{1, 2}, {7, 3}, {33, 1}};
    for (int32_t p = 0; p < N_POLICY; p++)
        for (size_t c = 0; c < PI_LEN(cases); c++) {
            uint64_t hashes[N_TOKEN] = {0};
            pith_engine *e = engine_make(policies[p], cases[c].chunk, cases[c].n_thread, 0);
            pith_seq *seq = seq_make(e);
            eval(seq, 0, N_PROMPT);
            hashes[N_PROMPT - 1] = hash_of(seq);
            walk(seq, N_TOKEN, hashes);
            for (int32_t t = N_PROMPT - 1; t < N_TOKEN; t++)
                if (hashes[t] != reference[p][t])
                    fail_msg("%s, chunk %d, %d threads: position %d differs", policies[p],
                             cases[c].chunk, cases[c].n_thread, t);
            pith_seq_free(seq);
            pith_engine_free(e);
        }
}

/* A step among prompts and other steps; a chunk of one cuts prompts into single tokens, which are
   no steps. */
TEST(company_changes_no_bit)
{
    for (int32_t p = 0; p < N_POLICY; p++)
        for (int32_t chunk = 1; chunk < 100; chunk += 40) {
            pith_engine *e = engine_make(policies[p], chunk, 2, 1024);
            pith_seq *a = seq_make(e), *b = seq_make(e), *c = seq_make(e);
            eval(a, 0, N_PROMPT);
            for (int32_t t = N_PROMPT; t < 100; t++) {
                pith_batch_item items[3] = {
                    {.seq = c, .tokens = tokens + pith_seq_length(c), .n_token = 3},
                    {.seq = a, .tokens = tokens + t, .n_token = 1}};
                int32_t n = 2;
                if (t == 60)
                    items[n++] = (pith_batch_item){.seq = b, .tokens = tokens, .n_token = N_PROMPT};
                else if (t > 60)
                    items[n++] = (pith_batch_item){
                        .seq = b, .tokens = tokens + pith_seq_length(b), .n_token = 1};
                check(pith_batch_eval(e, items, n, NULL, NULL, &err), &err);
                assert_true(hash_of(a) == reference[p][t]);
                if (t >= 60)
                    assert_true(hash_of(b) == reference[p][pith_seq_length(b) - 1]);
            }
            pith_seq_free(a);
            pith_seq_free(b);
            pith_seq_free(c);
            pith_engine_free(e);
        }
}

/* Both sides of a fork go on as the original would have. */
TEST(both_sides_of_a_fork_go_on_alike)
{
    static const int32_t at[] = {20, N_PROMPT, N_PROMPT + 1, 100};
    for (int32_t p = 0; p < N_POLICY; p++)
        for (size_t i = 0; i < PI_LEN(at); i++) {
            pith_engine *e = engine_make(policies[p], 512, 2, 1024);
            pith_seq *a = seq_make(e), *b = NULL, *c = NULL;
            int32_t begin = at[i] < N_PROMPT ? at[i] : N_PROMPT;
            eval(a, 0, begin);
            if (at[i] >= N_PROMPT)
                walk(a, at[i], NULL);
            check(pith_seq_fork(a, &b, &err), &err);
            if (at[i] < N_PROMPT) {
                eval(a, begin, N_PROMPT);
                eval(b, begin, N_PROMPT);
            }
            walk(b, 130, NULL);
            check(pith_seq_fork(b, &c, &err), &err);
            walk(a, N_TOKEN, NULL);
            walk(b, N_TOKEN, NULL);
            walk(c, N_TOKEN, NULL);
            assert_true(hash_of(a) == hash_of(b) && hash_of(b) == hash_of(c));
            if (at[i] >= N_PROMPT)
                assert_true(hash_of(a) == reference[p][N_TOKEN - 1]);
            expect_account(c);
            pith_seq_free(a);
            pith_seq_free(b);
            pith_seq_free(c);
            pith_engine_free(e);
        }
}

/* ---- ends half-way ---- */

static bool stop(void *user, double fraction)
{
    (void)fraction;
    return --*(int32_t *)user > 0;
}

/* Tokens that were not begun, or that overwrote nothing, are undone; a token that overwrote an
   entry stays. */
TEST(a_cancelled_step_leaves_what_was)
{
    for (int32_t p = 0; p < N_POLICY; p++) {
        pith_engine *e = engine_make(policies[p], 8, 2, 1024);
        pith_seq *a = seq_make(e), *b = seq_make(e), *c = seq_make(e);
        int32_t n_pass = 1;
        eval(a, 0, N_PROMPT);
        walk(a, 80, NULL);
        eval(b, 0, 20);
        eval(c, 0, N_PROMPT);
        walk(c, 70, NULL);
        /* The prompt of b fills the first pass: a and c are not begun. */
        pith_batch_item items[3] = {{.seq = b, .tokens = tokens + 20, .n_token = 12},
                                    {.seq = a, .tokens = tokens + 80, .n_token = 1},
                                    {.seq = c, .tokens = tokens + 70, .n_token = 1}};
        assert_int_equal(pith_batch_eval(e, items, 3, stop, &n_pass, &err), PITH_CANCELLED);
        assert_int_equal(pith_seq_length(a), 80);
        assert_int_equal(pith_seq_length(b), 20);
        pith_seq *whole = seq_make(e);
        eval(whole, 0, 20);
        eval(whole, 20, N_PROMPT);
        eval(b, 20, N_PROMPT); /* as if the twelve had never been seen */
        walk(whole, 100, NULL);
        walk(b, 100, NULL);
        assert_true(hash_of(b) == hash_of(whole));
        pith_seq_free(whole);
        walk(a, 90, NULL);
        assert_true(hash_of(a) == reference[p][89]);
        n_pass = 1;
        assert_int_equal(pith_batch_eval(e, items + 2, 1, stop, &n_pass, &err), PITH_CANCELLED);
        assert_int_equal(pith_seq_length(c), 71);
        assert_null(pith_seq_logits(c));
        expect_account(c);
        walk(c, N_TOKEN, NULL);
        assert_true(hash_of(c) == reference[p][N_TOKEN - 1]);
        /* A step below the budget: nothing is gone, so that it is taken back, its victim too. */
        pith_seq *d = seq_make(e), *f = seq_make(e);
        eval(d, 0, BUDGET - 1);
        eval(f, 0, BUDGET - 1);
        pith_batch_item last = {.seq = d, .tokens = tokens + 100, .n_token = 1};
        n_pass = 1;
        assert_int_equal(pith_batch_eval(e, &last, 1, stop, &n_pass, &err), PITH_CANCELLED);
        assert_int_equal(pith_seq_length(d), BUDGET - 1);
        walk(d, N_TOKEN, NULL);
        walk(f, N_TOKEN, NULL);
        assert_true(hash_of(d) == hash_of(f));
        pith_seq_free(f);
        pith_seq_free(d);
        pith_seq_free(c);
        pith_seq_free(b);
        pith_seq_free(a);
        pith_engine_free(e);
    }
}

/* The N-th allocation fails, of a step of each kind and of a fork: nothing has changed then. */
TEST(failing_allocations_change_nothing)
{
    for (int32_t p = 0; p < N_POLICY; p++) {
        int32_t n_failed = 0;
        for (int64_t n = 1;; n++) {
            pith_engine *e = engine_make(policies[p], 64, 1, 512);
            pith_seq *a = seq_make(e), *b = NULL;
            eval(a, 0, N_PROMPT);
            pi_mem_fail_at(n, true);
            pith_status status = pith_seq_eval(a, tokens + N_PROMPT, 1, &err);
            if (status == PITH_OK)
                status = pith_seq_eval(a, tokens + N_PROMPT + 1, 1, &err);
            if (status == PITH_OK)
                status = pith_seq_fork(a, &b, &err);
            if (status == PITH_OK)
                status = pith_seq_eval(b, tokens + N_PROMPT + 2, 1, &err);
            pi_mem_fail_at(0, false);
            assert_true(status == PITH_OK || status == PITH_NOMEM);
            walk(a, 70, NULL);
            assert_true(hash_of(a) == reference[p][69]);
            if (b != NULL) {
                walk(b, 70, NULL);
                assert_true(hash_of(b) == reference[p][69]);
            }
            pith_seq_free(b);
            pith_seq_free(a);
            pith_engine_free(e);
            if (status == PITH_OK)
                break;
            n_failed++;
        }
        assert_true(n_failed > 2);
    }
}

/* A fork's step copies the pages that it writes to. Where none is free the step is refused, and
   both sides keep their choice of the next entry to overwrite. */
TEST(a_full_pool_refuses_a_step_and_keeps_its_victim)
{
    for (int32_t p = 0; p < N_POLICY; p++) {
        pith_engine *e = engine_make(policies[p], 64, 2, 48 + PAGE_LEN);
        pith_seq *a = seq_make(e), *b = NULL, *c = NULL;
        eval(a, 0, N_PROMPT);
        walk(a, 80, NULL);
        check(pith_seq_fork(a, &b, &err), &err);
        check(pith_seq_fork(a, &c, &err), &err);
        int32_t n = 80;
        pith_status status = PITH_OK;
        while (status == PITH_OK && n < 120) {
            status = pith_seq_eval(b, tokens + n, 1, &err);
            n += status == PITH_OK;
        }
        assert_int_equal(status, PITH_KV_FULL);
        assert_int_equal(pith_seq_length(b), n);
        pith_seq_free(c);
        pith_seq_free(a);
        walk(b, N_TOKEN, NULL);
        assert_true(hash_of(b) == reference[p][N_TOKEN - 1]);
        pith_seq_free(b);
        pith_engine_free(e);
    }
}

/* ---- going back and on ---- */

/* A sync gives the result of a fresh sequence; a chat goes on from its end. */
TEST(a_sync_gives_what_a_fresh_sequence_gives)
{
    for (int32_t p = 0; p < N_POLICY; p++) {
        pith_engine *e = engine_make(policies[p], 64, 2, 512);
        pith_seq *seq = seq_make(e), *fresh = seq_make(e);
        eval(seq, 0, N_PROMPT);
        walk(seq, 90, NULL);
        /* The next turn: a prompt behind steps. */
        check(pith_seq_sync(seq, tokens, 140, NULL, NULL, &err), &err);
        eval(fresh, 0, N_PROMPT);
        walk(fresh, 90, NULL);
        eval(fresh, 90, 140);
        assert_true(hash_of(seq) == hash_of(fresh));
        expect_lanes(seq, BUDGET - 1);
        expect_account(seq);
        walk(seq, 180, NULL);
        walk(fresh, 180, NULL);
        assert_true(hash_of(seq) == hash_of(fresh));
        /* Back into the text. */
        check(pith_seq_sync(seq, tokens, 150, NULL, NULL, &err), &err);
        pith_seq_free(fresh);
        fresh = seq_make(e);
        eval(fresh, 0, 150);
        assert_true(hash_of(seq) == hash_of(fresh));
        pith_seq_free(fresh);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

/* A prompt behind steps has its rounds at the same tokens for any chunk. */
TEST(turns_may_come_in_chunks)
{
    for (int32_t p = 0; p < N_POLICY; p++) {
        uint64_t last = 0;
        for (int32_t chunk = 1; chunk <= 64; chunk += chunk == 1 ? 5 : 58) {
            pith_engine *e = engine_make(policies[p], chunk, 2, 512);
            pith_seq *seq = seq_make(e);
            eval(seq, 0, N_PROMPT);
            walk(seq, 90, NULL);
            eval(seq, 90, 160);
            walk(seq, 180, NULL);
            assert_true(last == 0 || hash_of(seq) == last);
            last = hash_of(seq);
            pith_seq_free(seq);
            pith_engine_free(e);
        }
    }
}

/* Forgetting tokens leaves lanes of different lengths; they fill up again and no further. */
TEST(truncated_lanes_fill_up_again)
{
    for (int32_t p = 0; p < N_POLICY; p++)
        for (int32_t to = 0; to < 100; to += 33) {
            pith_engine *e = engine_make(policies[p], 64, 2, 512);
            pith_seq *seq = seq_make(e);
            eval(seq, 0, N_PROMPT);
            walk(seq, 100, NULL);
            check(pith_seq_truncate(seq, to, &err), &err);
            for (int32_t l = 0; l < info.n_layer; l++)
                assert_true(lane_len(seq, l, 0) <= (to < BUDGET ? to : BUDGET));
            for (int32_t t = to; t < N_TOKEN; t++) {
                eval(seq, t, t + 1);
                for (int32_t l = 0; l < info.n_layer; l++)
                    for (int32_t h = 0; h < info.n_head_kv; h++)
                        assert_true(lane_len(seq, l, h) <= BUDGET);
            }
            expect_lanes(seq, BUDGET);
            pith_seq_free(seq);
            pith_engine_free(e);
        }
}

TEST(a_round_that_is_asked_for_changes_nothing)
{
    pith_engine *e = engine_make("tova:budget=40,slack=8", 64, 2, 512);
    pith_seq *seq = seq_make(e);
    pith_keep_stats before, after;
    eval(seq, 0, N_PROMPT);
    walk(seq, 100, NULL);
    pith_seq_keep_stats(seq, &before);
    check(pith_seq_keep_round(seq, &err), &err); /* each lane knows whom to overwrite */
    pith_seq_keep_stats(seq, &after);
    assert_int_equal(after.rounds, before.rounds);
    walk(seq, N_TOKEN, NULL);
    assert_true(hash_of(seq) == reference[3][N_TOKEN - 1]);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* ---- files ---- */

/* The lanes of a layer together hold no more than the budget. They hold the same positions if they
   did when they were loaded. */
static void expect_one_set(const pith_seq *seq, int32_t layer, bool same)
{
    int32_t pos[TOKENS_MAX], n_of[TOKENS_MAX] = {0}, n_all = 0, n_common = 0;
    for (int32_t h = 0; h < info.n_head_kv; h++) {
        pith_lane_info lane;
        assert_int_equal(pith_seq_lane(seq, layer, h, &lane, pos, TOKENS_MAX), PITH_OK);
        for (int32_t i = 0; i < lane.n_entry; i++)
            n_of[pos[i]]++;
    }
    for (int32_t i = 0; i < TOKENS_MAX; i++) {
        n_all += n_of[i] > 0;
        n_common += n_of[i] == info.n_head_kv;
    }
    assert_int_equal(n_all, BUDGET);
    if (same)
        assert_int_equal(n_common, BUDGET);
}

/* A sequence was saved without a policy, or its lanes hold different positions. It is cut to the
   budget before the next step, and each layer to one set. A sequence that overwrites goes on from
   its file as if it had never been saved. */
TEST(goes_on_from_files_of_other_policies)
{
    static const char *const savers[] = {NULL, "knorm:budget=30,slack=8", "knorm:budget=70"};
    static const char *const loaders[] = {"tova:budget=40,slack=8", "longflow:budget=40,slack=8",
                                          "longflow:budget=40,slack=8,granularity=layer-head"};
    char path[] = "/tmp/pith_steps_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (size_t s = 0; s < PI_LEN(savers); s++)
        for (size_t i = 0; i < PI_LEN(loaders); i++) {
            pith_engine *from = engine_make(savers[s], 64, 2, 512);
            pith_engine *to = engine_make(loaders[i], 64, 2, 512);
            pith_seq *seq = seq_make(from), *loaded = NULL;
            eval(seq, 0, 100);
            check(pith_seq_save(seq, path, &err), &err);
            check(pith_seq_load(to, path, &loaded, &err), &err);
            for (int32_t t = 100; t < N_TOKEN; t++) {
                eval(loaded, t, t + 1);
                for (int32_t l = 0; l < info.n_layer; l++)
                    for (int32_t h = 0; h < info.n_head_kv; h++)
                        assert_true(lane_len(loaded, l, h) <= BUDGET);
            }
            for (int32_t l = 0; i < 2 && l < info.n_layer; l++)
                expect_one_set(loaded, l, s == 0);
            check(pith_seq_save(loaded, path, &err), &err); /* knows whom to overwrite */
            pith_seq *again = NULL;
            check(pith_seq_load(to, path, &again, &err), &err);
            eval(loaded, N_TOKEN, N_TOKEN + 1);
            eval(again, N_TOKEN, N_TOKEN + 1);
            assert_true(hash_of(again) == hash_of(loaded));
            pith_seq_free(again);
            pith_seq_free(loaded);
            pith_seq_free(seq);
            pith_engine_free(to);
            pith_engine_free(from);
        }
    unlink(path);
}
