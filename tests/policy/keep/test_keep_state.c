/*
 * A keep policy with a state per sequence, in the engine: self-calibrating TriAttention, whose
 * centres change with every token until its warm-up is over. The state must depend on the tokens
 * alone. Chunks, threads, other sequences, forks, and cancelled, refused or truncated evaluations
 * must not change it.
 */
#define _POSIX_C_SOURCE 200809L

#include <string.h>

#include "testing.h"

#include "keep_engine.h"
#include "kv_check.h"
#include "mem_used.h"

#define N_TOKEN 260

/* Rounds at 88, 112, ... tokens, most of them before the warm-up is over; after it the second goes
   on learning. */
#define FROZEN "triattention:budget=64,slack=24,warmup=170"
#define ADAPTIVE                                                                                   \
    "triattention:v2,budget=64,slack=24,window=9,segments=3,warmup=40,calibrate=adaptive"
static const char *const policies[] = {FROZEN, ADAPTIVE};
#define N_POLICY 2
#define FIRST_ROUND 88

static uint64_t reference[N_POLICY][N_TOKEN]; /* hash of the logits after each token */
static uint8_t *last_state[N_POLICY];         /* the block after all of them */
static size_t state_size;

/* The sequence's block is that of a fresh one after the first n of ids. */
static void expect_fresh_state(const pith_seq *seq, const char *keep, const int32_t *ids, int32_t n)
{
    pith_engine *e = engine_make(keep, 512, 1, 512);
    pith_seq *fresh = seq_make(e);
    eval_ids(fresh, ids, 0, n);
    assert_int_equal(pith_seq_length(seq), n);
    assert_memory_equal(pi_seq_keep_state(seq), pi_seq_keep_state(fresh), state_size);
    pith_seq_free(fresh);
    pith_engine_free(e);
}

static void load_model(void)
{
    model_load(31);
    for (size_t p = 0; p < N_POLICY; p++) {
        pith_engine *e = engine_make(policies[p], 512, 1, 0);
        state_size = keep_state_size(e->keep.handle);
        assert_true(state_size > 0);
        pith_seq *seq = eval_all(e, N_TOKEN, reference[p]);
        assert_true(stats_of(seq).rounds >= 7);
        last_state[p] = malloc(state_size);
        memcpy(last_state[p], pi_seq_keep_state(seq), state_size);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
    assert_true(reference[0][N_TOKEN - 1] != reference[1][N_TOKEN - 1]);
}

static void free_model(void)
{
    for (size_t p = 0; p < N_POLICY; p++)
        free(last_state[p]);
    model_free();
}

TEST_GROUP(load_model, free_model);

/* ---- the same bits ---- */

TEST(chunks_and_threads_change_no_bit)
{
    static const struct {
        int32_t chunk, n_thread;
    } cases[] = {{1, 1}, {7, 2}, {33, 3}, {512, 2}};
    for (size_t p = 0; p < N_POLICY; p++)
        for (size_t c = 0; c < PI_LEN(cases); c++) {
            uint64_t hashes[N_TOKEN] = {0};
            pith_engine *e = engine_make(policies[p], cases[c].chunk, cases[c].n_thread, 0);
            pith_seq *seq = eval_all(e, N_TOKEN, hashes);
            for (int32_t i = 0; i < N_TOKEN; i++)
                if (hashes[i] != reference[p][i])
                    fail_msg("%s, chunk %d, %d threads: position %d differs", policies[p],
                             cases[c].chunk, cases[c].n_thread, i);
            assert_memory_equal(pi_seq_keep_state(seq), last_state[p], state_size);
            pith_seq_free(seq);
            pith_engine_free(e);
        }
}

/* Sequences that are at different places, in one batch, and each alone in calls of any size. */
TEST(company_changes_no_bit_and_no_state)
{
    enum { N = 3 };
    static const int32_t portion[N] = {1, 50, 86};
    for (size_t p = 0; p < N_POLICY; p++) {
        pith_engine *e = engine_make(policies[p], 40, 2, 512);
        pith_seq *seq[N];
        for (int32_t i = 0; i < N; i++)
            seq[i] = seq_make(e);
        for (int32_t round = 0; round < 3; round++) {
            pith_batch_item item[N] = {{0}};
            for (int32_t i = 0; i < N; i++)
                item[i] = (pith_batch_item){.seq = seq[i],
                                            .tokens = tokens + pith_seq_length(seq[i]),
                                            .n_token = portion[i]};
            check(pith_batch_eval(e, item, N, NULL, NULL, &err), &err);
            for (int32_t i = 0; i < N; i++)
                assert_true(hash_of(seq[i]) == reference[p][pith_seq_length(seq[i]) - 1]);
        }
        for (int32_t i = 0; i < N; i++) {
            expect_fresh_state(seq[i], policies[p], tokens, 3 * portion[i]);
            pith_seq_free(seq[i]);
        }
        pith_engine_free(e);
    }
}

/* Both sides of a fork go on from the common state, each for itself. */
TEST(both_sides_of_a_fork_remember)
{
    int32_t other[N_TOKEN];
    memcpy(other, tokens, sizeof(other));
    for (int32_t i = 120; i < N_TOKEN; i++)
        other[i] = tokens[N_TOKEN - 1 - i];
    for (size_t p = 0; p < N_POLICY; p++) {
        pith_engine *e = engine_make(policies[p], 64, 2, 512);
        pith_seq *a = seq_make(e), *b = NULL;
        eval(a, 0, 120);
        check(pith_seq_fork(a, &b, &err), &err);
        assert_memory_equal(pi_seq_keep_state(a), pi_seq_keep_state(b), state_size);
        pith_batch_item both[2] = {{.seq = b, .tokens = other + 120, .n_token = 100},
                                   {.seq = a, .tokens = tokens + 120, .n_token = 60}};
        check(pith_batch_eval(e, both, 2, NULL, NULL, &err), &err);
        assert_memory_not_equal(pi_seq_keep_state(a), pi_seq_keep_state(b), state_size);
        expect_fresh_state(b, policies[p], other, 220);
        eval(a, 180, N_TOKEN);
        assert_true(hash_of(a) == reference[p][N_TOKEN - 1]);
        assert_memory_equal(pi_seq_keep_state(a), last_state[p], state_size);
        pith_seq *fresh = seq_make(e);
        eval_ids(fresh, other, 0, 220);
        assert_true(hash_of(fresh) == hash_of(b));
        pith_seq_free(fresh);
        pith_seq_free(b);
        pith_seq_free(a);
        pith_engine_free(e);
    }
}

/* ---- ends half-way ---- */

static bool stop_tap(void *user, const pith_tap_rows *rows)
{
    return rows->pos0 + rows->n_token < *(const int32_t *)user;
}

static bool stop_late(void *user, double fraction)
{
    return fraction < *(const double *)user;
}

/* The policy forgets what it saw in a cancelled pass; after a round it stays with the tokens.
   Either way the sequence goes on to the same bits. */
TEST(a_cancelled_pass_is_forgotten)
{
    for (size_t p = 0; p < N_POLICY; p++) {
        pith_engine *e = engine_make(policies[p], 8, 2, 512);
        pith_seq *a = seq_make(e), *b = seq_make(e);
        eval(a, 0, 30);
        int32_t stop = 70;
        check(pith_engine_set_tap(e, stop_tap, &stop, &err), &err);
        assert_int_equal(pith_seq_eval(a, tokens + 30, 100, &err), PITH_CANCELLED);
        check(pith_engine_set_tap(e, NULL, NULL, &err), &err);
        expect_fresh_state(a, policies[p], tokens, 30);

        double fraction = 0.5;
        eval(b, 0, 10);
        pith_batch_item both[2] = {{.seq = a, .tokens = tokens + 30, .n_token = 200},
                                   {.seq = b, .tokens = tokens + 10, .n_token = 50}};
        assert_int_equal(pith_batch_eval(e, both, 2, stop_late, &fraction, &err), PITH_CANCELLED);
        assert_true(stats_of(b).rounds == 0 && stats_of(a).rounds > 0);
        expect_fresh_state(b, policies[p], tokens, 10);
        int32_t n = pith_seq_length(a);
        assert_true(n >= FIRST_ROUND && n < 230);
        expect_fresh_state(a, policies[p], tokens, n);
        eval(a, n, N_TOKEN);
        eval(b, 10, N_TOKEN);
        assert_true(hash_of(a) == reference[p][N_TOKEN - 1]);
        assert_true(hash_of(b) == reference[p][N_TOKEN - 1]);
        assert_memory_equal(pi_seq_keep_state(a), last_state[p], state_size);
        pith_seq_free(a);
        pith_seq_free(b);
        pith_engine_free(e);
    }
}

/* A batch that is refused for its memory changes no policy's state. */
TEST(a_refused_batch_teaches_nothing)
{
    pith_engine *e = engine_make(FROZEN, 64, 2, FIRST_ROUND + 2 * PAGE_LEN);
    pith_seq *a = seq_make(e), *b = seq_make(e);
    eval(a, 0, 40);
    eval(b, 0, 20);
    int64_t pages = used_pages(e);
    pith_batch_item both[2] = {{.seq = a, .tokens = tokens + 40, .n_token = 100},
                               {.seq = b, .tokens = tokens + 20, .n_token = 100}};
    assert_int_equal(pith_batch_eval(e, both, 2, NULL, NULL, &err), PITH_KV_FULL);
    assert_int_equal(used_pages(e), pages);
    expect_fresh_state(a, FROZEN, tokens, 40);
    expect_fresh_state(b, FROZEN, tokens, 20);
    pith_seq_free(b);
    eval(a, 40, N_TOKEN);
    assert_true(hash_of(a) == reference[0][N_TOKEN - 1]);
    pith_seq_free(a);
    pith_engine_free(e);
}

/* ---- going back ---- */

/* A sync gives the result of a fresh sequence, and leaves the same state. */
TEST(a_sync_gives_what_a_fresh_sequence_gives)
{
    static const int32_t lengths[] = {229, 60, 61, 88, 1, 200};
    for (size_t p = 0; p < N_POLICY; p++) {
        pith_engine *e = engine_make(policies[p], 50, 2, 512);
        pith_seq *seq = seq_make(e);
        eval(seq, 0, 230);
        for (size_t i = 0; i < PI_LEN(lengths); i++) {
            check(pith_seq_sync(seq, tokens, lengths[i], NULL, NULL, &err), &err);
            assert_true(hash_of(seq) == reference[p][lengths[i] - 1]);
            expect_fresh_state(seq, policies[p], tokens, lengths[i]);
        }
        /* The same tokens, whose logits are there: nothing to do. */
        check(pith_seq_sync(seq, tokens, 200, NULL, NULL, &err), &err);
        expect_fresh_state(seq, policies[p], tokens, 200);
        int32_t changed[N_TOKEN];
        memcpy(changed, tokens, sizeof(changed));
        changed[3] = (changed[3] + 1) % info.n_vocab;
        check(pith_seq_sync(seq, changed, 120, NULL, NULL, &err), &err);
        assert_true(hash_of(seq) != reference[p][119]);
        expect_fresh_state(seq, policies[p], changed, 120);
        check(pith_seq_truncate(seq, 0, &err), &err);
        for (size_t i = 0; i < state_size; i++)
            assert_int_equal(((const uint8_t *)pi_seq_keep_state(seq))[i], 0);
        eval(seq, 0, 130);
        assert_true(hash_of(seq) == reference[p][129]);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

/* Generation reads a shorter prompt anew, and says so. */
TEST(generation_reads_a_shorter_prompt_anew)
{
    pith_engine *e = engine_make(FROZEN ",pin-prompt=off", 64, 2, 512);
    pith_seq *seq = seq_make(e), *fresh = seq_make(e);
    pith_generate_params params;
    pith_generate_result result;
    pith_generate_params_default(&params);
    params.n_predict = 30;
    params.ignore_end = true;
    params.sample.temperature = 0.0f;
    check(pith_generate(seq, tokens, 150, &params, NULL, NULL, &result, &err), &err);
    assert_int_equal(result.n_cached, 0);
    check(pith_generate(seq, tokens, 140, &params, NULL, NULL, &result, &err), &err);
    assert_int_equal(result.n_cached, 0);
    check(pith_generate(fresh, tokens, 140, &params, NULL, NULL, &result, &err), &err);
    assert_int_equal(pith_seq_length(seq), pith_seq_length(fresh));
    assert_true(hash_of(seq) == hash_of(fresh));
    assert_memory_equal(pi_seq_keep_state(seq), pi_seq_keep_state(fresh), state_size);
    pith_seq_free(fresh);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* ---- files and accounts ---- */

#define N_PROMPT 50
#define N_SAVED 131
#define N_STEPPED 170 /* the rest is read in one call */

/* Every kind of memory: states, marks, marks that are bits, victims, and a pinned prompt; the same
   options said twice. */
static const struct {
    const char *keep, *again;
} saved[] = {
    {FROZEN, "triattention:warmup=170,slack=24,budget=64"},
    {ADAPTIVE, ADAPTIVE},
    {"snapkv:budget=64,slack=24", "snapkv:slack=24,budget=64"},
    {"h2o:budget=64,slack=24", "h2o:budget=64,slack=24,sinks=0"},
    {"scissorhands:budget=64,slack=24", "scissorhands:budget=64,slack=24"},
    {"longflow:budget=64", "longflow:budget=64"},
    {"streaming:budget=64,slack=24,pin-prompt=on", "streaming:pin-prompt=on,slack=24,budget=64"},
};

static const char *file_path(void)
{
    static char path[64];
    snprintf(path, sizeof(path), "/tmp/pith-test-state-%d", (int)getpid());
    return path;
}

/* Tokens one by one, as they are generated. */
static void step(pith_seq *seq, int32_t begin, int32_t end)
{
    for (int32_t i = begin; i < end; i++)
        eval(seq, i, i + 1);
}

/* A sequence that was prompted, went on by steps and was saved. */
static pith_seq *save_one(pith_engine *e)
{
    pith_seq *seq = seq_make(e);
    check(pith_seq_mark_prompt(seq, N_PROMPT, &err), &err);
    eval(seq, 0, N_PROMPT);
    step(seq, N_PROMPT, N_SAVED);
    check(pith_seq_save(seq, file_path(), &err), &err);
    return seq;
}

static pith_seq *load_one(pith_engine *e)
{
    pith_seq *seq = NULL;
    check(pith_seq_load(e, file_path(), &seq, &err), &err);
    assert_int_equal(pith_seq_length(seq), N_SAVED);
    return seq;
}

/* The same entries, marks, victims and state. */
static void expect_same(const pith_seq *a, const pith_seq *b)
{
    const struct keep *keep = a->engine->keep.handle;
    assert_int_equal(a->n_prompt, b->n_prompt);
    kv_check_same(a->memory.kv, b->memory.kv);
    if (pi_seq_keep_state(a) != NULL)
        assert_memory_equal(pi_seq_keep_state(a), pi_seq_keep_state(b), keep_state_size(keep));
    for (int32_t l = 0; l < info.n_layer; l++)
        for (int32_t h = 0; h < info.n_head_kv; h++) {
            size_t size = (size_t)kv_lane_len(a->memory.kv, l, h) * sizeof(float);
            assert_int_equal(kv_lane_victim(a->memory.kv, l, h),
                             kv_lane_victim(b->memory.kv, l, h));
            for (int32_t i = 0; i < keep_n_mark(keep); i++)
                assert_memory_equal(kv_lane_marks(a->memory.kv, l, h, i),
                                    kv_lane_marks(b->memory.kv, l, h, i), size);
        }
}

/* A loaded sequence goes on as the one that was saved: by steps, and by another prompt. */
TEST(a_loaded_sequence_goes_on_alike)
{
    int32_t n_victim = 0, n_mark = 0, n_state = 0;
    for (size_t p = 0; p < PI_LEN(saved); p++) {
        pith_engine *e = engine_make(saved[p].keep, 64, 2, 512);
        pith_engine *other = engine_make(saved[p].again, 17, 1, 512);
        pith_seq *a = save_one(e), *b = load_one(other);
        expect_same(a, b);
        n_victim += kv_lane_victim(b->memory.kv, 0, 0) >= 0;
        n_mark += keep_n_mark(e->keep.handle) > 0;
        n_state += pi_seq_keep_state(b) != NULL;
        assert_int_equal(b->n_prompt, N_PROMPT);
        for (int32_t i = N_SAVED; i < N_STEPPED; i++) {
            step(a, i, i + 1);
            step(b, i, i + 1);
            if (hash_of(a) != hash_of(b))
                fail_msg("%s: token %d differs", saved[p].keep, i);
        }
        eval(a, N_STEPPED, N_TOKEN);
        eval(b, N_STEPPED, N_TOKEN);
        assert_true(hash_of(a) == hash_of(b));
        expect_same(a, b);
        pith_seq_free(a);
        pith_seq_free(b);
        pith_engine_free(other);
        pith_engine_free(e);
    }
    assert_true(n_victim > 0 && n_mark > 1 && n_state > 2);
    remove(file_path());
}

/* Under another policy, other options or none, a file gives entries and tokens alone, and the state
   begins anew. */
TEST(another_policy_learns_anew_from_a_file)
{
    pith_engine *e = engine_make(FROZEN, 64, 2, 512), *full = engine_make(NULL, 64, 2, 512);
    pith_engine *wider = engine_make("triattention:budget=64,slack=24,warmup=171", 64, 2, 512);
    pith_seq *a = save_one(e), *b = load_one(full);
    assert_null(pi_seq_keep_state(b));
    kv_check_same(a->memory.kv, b->memory.kv);
    eval(b, N_SAVED, N_TOKEN);
    pith_seq_free(b);
    b = load_one(wider);
    kv_check_same(a->memory.kv, b->memory.kv);
    assert_int_equal(b->n_prompt, 0);
    for (size_t i = 0; i < state_size; i++)
        assert_int_equal(((const uint8_t *)pi_seq_keep_state(b))[i], 0);
    pith_seq_free(b);
    pith_seq_free(a);

    /* Tokens that were read without the policy have not changed its state. */
    a = seq_make(full);
    eval(a, 0, 100);
    check(pith_seq_save(a, file_path(), &err), &err);
    check(pith_seq_load(e, file_path(), &b, &err), &err);
    for (size_t i = 0; i < state_size; i++)
        assert_int_equal(((const uint8_t *)pi_seq_keep_state(b))[i], 0);
    eval(b, 100, 130);
    assert_int_equal(stats_of(b).rounds, 2); /* one at once, one of 24 tokens later */
    check(pith_seq_sync(b, tokens, 120, NULL, NULL, &err), &err);
    assert_true(hash_of(b) == reference[0][119]);
    pith_seq_free(b);
    pith_seq_free(a);
    pith_engine_free(wider);
    pith_engine_free(full);
    pith_engine_free(e);
    remove(file_path());
}

/* Writes the file anew with other bytes of the caller's, and loads it. */
static pith_status load_changed(pith_engine *e, const struct kv_seq *kv, const void *extra,
                                size_t size, pith_error *why)
{
    pith_seq *seq = NULL;
    check(kv_seq_save(kv, extra, size, file_path(), why), why);
    pith_status status = pith_seq_load(e, file_path(), &seq, why);
    if (status == PITH_OK)
        pith_seq_free(seq);
    return status;
}

/* No bytes do harm: each is refused, or they are what some sequence has. */
TEST(damaged_files_do_no_harm)
{
    static const char *const keeps[] = {FROZEN, "longflow:budget=64"};
    for (size_t p = 0; p < PI_LEN(keeps); p++) {
        pith_engine *e = engine_make(keeps[p], 64, 2, 512);
        struct kv_seq *kv = NULL;
        void *extra = NULL;
        size_t size;
        uint64_t rng = 9;
        int32_t n_refused = 0;
        pith_seq_free(save_one(e));
        check(kv_seq_load(e->kv, file_path(), &kv, &extra, &size, &err), &err);
        uint8_t *bytes = malloc(size + 8);
        for (size_t i = 0; i < 32; i++) { /* the head */
            memcpy(bytes, extra, size);
            bytes[i] ^= (uint8_t)(1u << rng_below(&rng, 8));
            pith_status status = load_changed(e, kv, bytes, size, &err);
            assert_true(status == PITH_OK || status == PITH_FORMAT || status == PITH_UNSUPPORTED);
            assert_true(status != PITH_OK || (i >= 12 && i < 16)); /* n_prompt may be smaller */
        }
        for (int32_t i = 0; i < 60; i++) {
            size_t at = 32 + rng_below(&rng, i % 2 == 0 ? size - 32 : 600);
            memcpy(bytes, extra, size);
            bytes[at] ^= (uint8_t)(1u << rng_below(&rng, 8));
            pith_status status = load_changed(e, kv, bytes, size, &err);
            assert_true(status == PITH_OK || status == PITH_FORMAT);
            n_refused += status != PITH_OK;
        }
        assert_true(n_refused > 0);
        static const int32_t cuts[] = {-1, 1, 4, 8, -4, -32};
        for (size_t i = 0; i < PI_LEN(cuts); i++) {
            memcpy(bytes, extra, size);
            memset(bytes + size, 0, 8);
            pith_status status = load_changed(e, kv, bytes, size + (size_t)cuts[i], &err);
            expect(status, &err, PITH_FORMAT, "bytes");
        }
        free(bytes);
        pi_mem_free(extra);
        kv_seq_free(kv);
        pith_engine_free(e);
    }
    remove(file_path());
}

TEST(the_state_is_counted)
{
    pith_engine *e = engine_make(FROZEN, 64, 2, 512);
    pith_kv_stats one, two;
    int64_t used = pi_mem_used(PI_MEM_TABLE);
    pith_seq *a = seq_make(e);
    pith_engine_kv_stats(e, &one);
    int64_t first = pi_mem_used(PI_MEM_TABLE) - used;
    pith_seq *b = seq_make(e);
    pith_engine_kv_stats(e, &two);
    assert_int_equal(two.table_bytes - one.table_bytes, first);
    assert_true(first > (int64_t)state_size);
    pith_seq_free(b);
    pith_seq_free(a);
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
    params.keep = FROZEN;
    pith_status status = pith_engine_create(model, &params, &e, why);
    if (status == PITH_OK)
        status = pith_seq_create(e, &a, why);
    if (status == PITH_OK)
        status = pith_seq_eval(a, tokens, 100, why);
    if (status == PITH_OK)
        status = pith_seq_save(a, file_path(), why);
    if (status == PITH_OK)
        status = pith_seq_load(e, file_path(), &b, why);
    pith_seq_free(b);
    b = NULL;
    if (status == PITH_OK)
        status = pith_seq_fork(a, &b, why);
    pith_batch_item both[2] = {{.seq = a, .tokens = tokens + 100, .n_token = 20},
                               {.seq = b, .tokens = tokens + 100, .n_token = 40}};
    if (status == PITH_OK) {
        status = pith_batch_eval(e, both, 2, NULL, NULL, why);
        if (status != PITH_OK)
            assert_memory_equal(pi_seq_keep_state(a), pi_seq_keep_state(b), state_size);
    }
    if (status == PITH_OK)
        status = pith_seq_sync(a, tokens, 60, NULL, NULL, why);
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
    assert_true(n > 30);
    for (int64_t i = 1; i <= n; i++) {
        memset(&err, 0, sizeof(err));
        pi_mem_fail_at(i, i % 2 == 0);
        pith_status status = live(&err);
        pi_mem_fail_at(0, false);
        if (status != PITH_NOMEM)
            fail_msg("allocation %lld of %lld: %s", (long long)i, (long long)n,
                     pith_status_name(status));
        assert_true(strlen(err.message) > 10);
        mem_check(before);
    }
    remove(file_path());
}
