/*
 * A keep policy that remembers something of each sequence, in the engine: self-calibrating
 * TriAttention, whose centres change with every token until its warm-up is over. What it remembers
 * must depend on the tokens alone: not on chunks, threads, company, forks, or an evaluation that
 * was cancelled, refused or forgotten.
 */
#define _POSIX_C_SOURCE 200809L

#include <string.h>

#include "testing.h"

#include "base/mem.h"
#include "engine/engine.h"
#include "status.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define N_TOKEN 260
#define PAGE_LEN 16

/* Rounds at 88, 112, ... tokens, most of them before the warm-up is over; after it the second goes
   on learning. */
#define FROZEN "triattention:budget=64,slack=24,warmup=170"
#define ADAPTIVE                                                                                   \
    "triattention:v2,budget=64,slack=24,window=9,segments=3,warmup=40,calibrate=adaptive"
static const char *const policies[] = {FROZEN, ADAPTIVE};
#define N_POLICY 2
#define FIRST_ROUND 88

static pith_model *model;
static pith_model_info info;
static int32_t tokens[N_TOKEN];
static uint64_t reference[N_POLICY][N_TOKEN]; /* hash of the logits after each token */
static uint8_t *last_state[N_POLICY];         /* the block after all of them */
static size_t state_size;

static pith_engine *engine_make(const char *keep, int32_t chunk, int32_t n_thread,
                                int32_t kv_tokens)
{
    pith_engine_params params;
    pith_engine *e = NULL;
    pith_error err;
    pith_engine_params_default(&params);
    params.chunk = chunk;
    params.n_thread = n_thread;
    params.kv_tokens = kv_tokens;
    params.page_len = PAGE_LEN;
    params.keep = keep;
    check(pith_engine_create(model, &params, &e, &err), &err);
    return e;
}

static pith_seq *seq_make(pith_engine *e)
{
    pith_seq *seq = NULL;
    pith_error err;
    check(pith_seq_create(e, &seq, &err), &err);
    assert_non_null(seq->keep_state);
    return seq;
}

static void eval(pith_seq *seq, const int32_t *ids, int32_t begin, int32_t end)
{
    pith_error err;
    assert_int_equal(pith_seq_length(seq), begin);
    check(pith_seq_eval(seq, ids + begin, end - begin, &err), &err);
}

static uint64_t hash_of(const pith_seq *seq)
{
    assert_non_null(pith_seq_logits(seq));
    return pith_logits_hash(pith_seq_logits(seq), info.n_vocab);
}

static bool keep_hash(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    (void)seq;
    ((uint64_t *)user)[pos] = pith_logits_hash(logits, info.n_vocab);
    return true;
}

static pith_seq *eval_all(pith_engine *e, uint64_t *hashes)
{
    pith_error err;
    pith_seq *seq = seq_make(e);
    pith_batch_item item = {.seq = seq,
                            .tokens = tokens,
                            .n_token = N_TOKEN,
                            .logits = PITH_LOGITS_ALL,
                            .on_logits = keep_hash,
                            .user = hashes};
    check(pith_batch_eval(e, &item, 1, NULL, NULL, &err), &err);
    return seq;
}

static int64_t rounds_of(const pith_seq *seq)
{
    pith_keep_stats s;
    pith_seq_keep_stats(seq, &s);
    return s.rounds;
}

static int64_t pages_of(pith_engine *e)
{
    pith_kv_stats s;
    pith_engine_kv_stats(e, &s);
    return s.n_page_used;
}

/* The sequence's block is that of a fresh one after the first n of ids. */
static void expect_fresh_state(const pith_seq *seq, const char *keep, const int32_t *ids, int32_t n)
{
    pith_engine *e = engine_make(keep, 512, 1, 512);
    pith_seq *fresh = seq_make(e);
    eval(fresh, ids, 0, n);
    assert_int_equal(pith_seq_length(seq), n);
    assert_memory_equal(seq->keep_state, fresh->keep_state, state_size);
    pith_seq_free(fresh);
    pith_engine_free(e);
}

static int load_model(void **state)
{
    (void)state;
    pith_error err;
    uint64_t rng = 31;
    check(pith_model_load(MODEL, NULL, &model, &err), &err);
    pith_model_get_info(model, &info);
    for (int32_t i = 0; i < N_TOKEN; i++)
        tokens[i] = (int32_t)rng_below(&rng, (uint64_t)info.n_vocab);
    for (size_t p = 0; p < N_POLICY; p++) {
        pith_engine *e = engine_make(policies[p], 512, 1, 0);
        state_size = keep_state_size(e->keep);
        pith_seq *seq = eval_all(e, reference[p]);
        assert_true(rounds_of(seq) >= 7);
        last_state[p] = malloc(state_size);
        memcpy(last_state[p], seq->keep_state, state_size);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
    assert_true(reference[0][N_TOKEN - 1] != reference[1][N_TOKEN - 1]);
    return 0;
}

static int free_model(void **state)
{
    (void)state;
    pith_model_free(model);
    for (size_t p = 0; p < N_POLICY; p++)
        free(last_state[p]);
    for (int32_t tag = 0; tag < PI_MEM_N_TAG; tag++)
        if (pi_mem_used((enum pi_mem_tag)tag) != 0)
            fail_msg("tag %d: %lld bytes leaked", tag,
                     (long long)pi_mem_used((enum pi_mem_tag)tag));
    return 0;
}

/* ---- the same bits ---- */

static void test_chunks_and_threads(void **state)
{
    (void)state;
    static const struct {
        int32_t chunk, n_thread;
    } cases[] = {{1, 1}, {7, 2}, {33, 3}, {512, 2}};
    for (size_t p = 0; p < N_POLICY; p++)
        for (size_t c = 0; c < PI_LEN(cases); c++) {
            uint64_t hashes[N_TOKEN] = {0};
            pith_engine *e = engine_make(policies[p], cases[c].chunk, cases[c].n_thread, 0);
            pith_seq *seq = eval_all(e, hashes);
            for (int32_t i = 0; i < N_TOKEN; i++)
                if (hashes[i] != reference[p][i])
                    fail_msg("%s, chunk %d, %d threads: position %d differs", policies[p],
                             cases[c].chunk, cases[c].n_thread, i);
            assert_memory_equal(seq->keep_state, last_state[p], state_size);
            pith_seq_free(seq);
            pith_engine_free(e);
        }
}

/* Sequences that are at different places, in one batch, and each alone in calls of any size. */
static void test_company(void **state)
{
    (void)state;
    enum { N = 3 };
    static const int32_t portion[N] = {1, 50, 86};
    for (size_t p = 0; p < N_POLICY; p++) {
        pith_engine *e = engine_make(policies[p], 40, 2, 512);
        pith_seq *seq[N];
        pith_error err;
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

/* Both sides of a fork go on from what was learned, each for itself. */
static void test_fork(void **state)
{
    (void)state;
    int32_t other[N_TOKEN];
    memcpy(other, tokens, sizeof(other));
    for (int32_t i = 120; i < N_TOKEN; i++)
        other[i] = tokens[N_TOKEN - 1 - i];
    for (size_t p = 0; p < N_POLICY; p++) {
        pith_engine *e = engine_make(policies[p], 64, 2, 512);
        pith_error err;
        pith_seq *a = seq_make(e), *b = NULL;
        eval(a, tokens, 0, 120);
        check(pith_seq_fork(a, &b, &err), &err);
        assert_memory_equal(a->keep_state, b->keep_state, state_size);
        pith_batch_item both[2] = {{.seq = b, .tokens = other + 120, .n_token = 100},
                                   {.seq = a, .tokens = tokens + 120, .n_token = 60}};
        check(pith_batch_eval(e, both, 2, NULL, NULL, &err), &err);
        assert_memory_not_equal(a->keep_state, b->keep_state, state_size);
        expect_fresh_state(b, policies[p], other, 220);
        eval(a, tokens, 180, N_TOKEN);
        assert_true(hash_of(a) == reference[p][N_TOKEN - 1]);
        assert_memory_equal(a->keep_state, last_state[p], state_size);
        pith_seq *fresh = seq_make(e);
        eval(fresh, other, 0, 220);
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

/* What a cancelled pass showed the policy is forgotten with it; after a round it stays with the
   tokens. Either way the sequence goes on to the same bits. */
static void test_cancel(void **state)
{
    (void)state;
    for (size_t p = 0; p < N_POLICY; p++) {
        pith_engine *e = engine_make(policies[p], 8, 2, 512);
        pith_error err;
        pith_seq *a = seq_make(e), *b = seq_make(e);
        eval(a, tokens, 0, 30);
        int32_t stop = 70;
        check(pith_engine_set_tap(e, stop_tap, &stop, &err), &err);
        assert_int_equal(pith_seq_eval(a, tokens + 30, 100, &err), PITH_CANCELLED);
        check(pith_engine_set_tap(e, NULL, NULL, &err), &err);
        expect_fresh_state(a, policies[p], tokens, 30);

        double fraction = 0.5;
        eval(b, tokens, 0, 10);
        pith_batch_item both[2] = {{.seq = a, .tokens = tokens + 30, .n_token = 200},
                                   {.seq = b, .tokens = tokens + 10, .n_token = 50}};
        assert_int_equal(pith_batch_eval(e, both, 2, stop_late, &fraction, &err), PITH_CANCELLED);
        assert_true(rounds_of(b) == 0 && rounds_of(a) > 0);
        expect_fresh_state(b, policies[p], tokens, 10);
        int32_t n = pith_seq_length(a);
        assert_true(n >= FIRST_ROUND && n < 230);
        expect_fresh_state(a, policies[p], tokens, n);
        eval(a, tokens, n, N_TOKEN);
        eval(b, tokens, 10, N_TOKEN);
        assert_true(hash_of(a) == reference[p][N_TOKEN - 1]);
        assert_true(hash_of(b) == reference[p][N_TOKEN - 1]);
        assert_memory_equal(a->keep_state, last_state[p], state_size);
        pith_seq_free(a);
        pith_seq_free(b);
        pith_engine_free(e);
    }
}

/* A batch that is refused for its memory has taught nobody anything. */
static void test_refused(void **state)
{
    (void)state;
    pith_engine *e = engine_make(FROZEN, 64, 2, FIRST_ROUND + 2 * PAGE_LEN);
    pith_error err;
    pith_seq *a = seq_make(e), *b = seq_make(e);
    eval(a, tokens, 0, 40);
    eval(b, tokens, 0, 20);
    int64_t pages = pages_of(e);
    pith_batch_item both[2] = {{.seq = a, .tokens = tokens + 40, .n_token = 100},
                               {.seq = b, .tokens = tokens + 20, .n_token = 100}};
    assert_int_equal(pith_batch_eval(e, both, 2, NULL, NULL, &err), PITH_KV_FULL);
    assert_int_equal(pages_of(e), pages);
    expect_fresh_state(a, FROZEN, tokens, 40);
    expect_fresh_state(b, FROZEN, tokens, 20);
    pith_seq_free(b);
    eval(a, tokens, 40, N_TOKEN);
    assert_true(hash_of(a) == reference[0][N_TOKEN - 1]);
    pith_seq_free(a);
    pith_engine_free(e);
}

/* ---- going back ---- */

/* A sync gives what a fresh sequence gives, and leaves what one would have learned. */
static void test_sync(void **state)
{
    (void)state;
    static const int32_t lengths[] = {229, 60, 61, 88, 1, 200};
    for (size_t p = 0; p < N_POLICY; p++) {
        pith_engine *e = engine_make(policies[p], 50, 2, 512);
        pith_error err;
        pith_seq *seq = seq_make(e);
        eval(seq, tokens, 0, 230);
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
            assert_int_equal(((const uint8_t *)seq->keep_state)[i], 0);
        eval(seq, tokens, 0, 130);
        assert_true(hash_of(seq) == reference[p][129]);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

/* Generation reads a shorter prompt anew, and says so. */
static void test_generate(void **state)
{
    (void)state;
    pith_engine *e = engine_make(FROZEN ",pin-prompt=off", 64, 2, 512);
    pith_seq *seq = seq_make(e), *fresh = seq_make(e);
    pith_generate_params params;
    pith_generate_result result;
    pith_error err;
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
    assert_memory_equal(seq->keep_state, fresh->keep_state, state_size);
    pith_seq_free(fresh);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* ---- files and accounts ---- */

static void test_files(void **state)
{
    (void)state;
    char path[] = "/tmp/pith-test-state-XXXXXX";
    close(mkstemp(path));
    pith_engine *e = engine_make(FROZEN, 64, 2, 512), *full = engine_make(NULL, 64, 2, 512);
    pith_error err;
    pith_seq *a = seq_make(e), *b = NULL;
    eval(a, tokens, 0, 100);
    assert_int_equal(pith_seq_save(a, path, &err), PITH_UNSUPPORTED);
    assert_string_equal(err.message,
                        "a sequence with the state of keep policy triattention cannot be saved");
    pith_seq_free(a);

    /* What was read without the policy, it has learned nothing from. */
    check(pith_seq_create(full, &a, &err), &err);
    check(pith_seq_eval(a, tokens, 100, &err), &err);
    check(pith_seq_save(a, path, &err), &err);
    check(pith_seq_load(e, path, &b, &err), &err);
    for (size_t i = 0; i < state_size; i++)
        assert_int_equal(((const uint8_t *)b->keep_state)[i], 0);
    eval(b, tokens, 100, 130);
    assert_int_equal(rounds_of(b), 2); /* one at once, one of 24 tokens later */
    check(pith_seq_sync(b, tokens, 120, NULL, NULL, &err), &err);
    assert_true(hash_of(b) == reference[0][119]);
    pith_seq_free(b);
    pith_seq_free(a);
    pith_engine_free(full);
    pith_engine_free(e);
    remove(path);
}

static void test_account(void **state)
{
    (void)state;
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

static pith_status live(pith_error *err)
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
    pith_status status = pith_engine_create(model, &params, &e, err);
    if (status == PITH_OK)
        status = pith_seq_create(e, &a, err);
    if (status == PITH_OK)
        status = pith_seq_eval(a, tokens, 100, err);
    if (status == PITH_OK)
        status = pith_seq_fork(a, &b, err);
    pith_batch_item both[2] = {{.seq = a, .tokens = tokens + 100, .n_token = 20},
                               {.seq = b, .tokens = tokens + 100, .n_token = 40}};
    if (status == PITH_OK) {
        status = pith_batch_eval(e, both, 2, NULL, NULL, err);
        if (status != PITH_OK)
            assert_memory_equal(a->keep_state, b->keep_state, state_size);
    }
    if (status == PITH_OK)
        status = pith_seq_sync(a, tokens, 60, NULL, NULL, err);
    pith_seq_free(b);
    pith_seq_free(a);
    pith_engine_free(e);
    return status;
}

static void test_every_allocation_fails(void **state)
{
    (void)state;
    int64_t before[PI_MEM_N_TAG];
    pith_error err;
    for (int32_t tag = 0; tag < PI_MEM_N_TAG; tag++)
        before[tag] = pi_mem_used((enum pi_mem_tag)tag);
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
        for (int32_t tag = 0; tag < PI_MEM_N_TAG; tag++)
            assert_int_equal(pi_mem_used((enum pi_mem_tag)tag), before[tag]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks_and_threads),
        cmocka_unit_test(test_company),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_sync),
        cmocka_unit_test(test_generate),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_account),
        cmocka_unit_test(test_every_allocation_fails),
    };
    return cmocka_run_group_tests(tests, load_model, free_model);
}
