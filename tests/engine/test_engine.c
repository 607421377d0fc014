/*
 * The engine on the repository's model. The same tokens give the same bits for any chunk, threads,
 * batch, processor level and history of the sequence. A failure loses nothing and leaks nothing.
 */
#define _POSIX_C_SOURCE 200809L

#include <string.h>

#include "testing.h"

#include "mem_used.h"
#include "pith/inspect.h"
#include "status.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define N_TOKEN 333
#define MAX_SEQ 4

static pith_model *model;
static int32_t n_vocab;
static int32_t tokens[N_TOKEN];     /* a prompt */
static uint64_t reference[N_TOKEN]; /* hash of the logits after each of its tokens */

static pith_engine *engine_make(int32_t chunk, int32_t n_thread, int32_t kv_tokens)
{
    return engine_with(
        model, (pith_engine_params){
                   .chunk = chunk, .n_thread = n_thread, .kv_tokens = kv_tokens, .page_len = 16});
}

static void eval(pith_seq *seq, const int32_t *ids, int32_t n)
{
    check(pith_seq_eval(seq, ids, n, &err), &err);
}

static uint64_t hash_of(const pith_seq *seq)
{
    assert_non_null(pith_seq_logits(seq));
    return pith_logits_hash(pith_seq_logits(seq), n_vocab);
}

/* Writes the hash of every row to user, indexed by position. */
static bool keep_hash(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    (void)seq;
    ((uint64_t *)user)[pos] = pith_logits_hash(logits, n_vocab);
    for (int32_t i = 0; i < n_vocab; i++)
        assert_true(logits[i] == logits[i] && logits[i] - logits[i] == 0.0f);
    return true;
}

static void eval_all(pith_engine *e, uint64_t *hashes)
{
    pith_seq *seq = seq_make(e);
    pith_batch_item item = {.seq = seq,
                            .tokens = tokens,
                            .n_token = N_TOKEN,
                            .logits = PITH_LOGITS_ALL,
                            .on_logits = keep_hash,
                            .user = hashes};
    check(pith_batch_eval(e, &item, 1, NULL, NULL, &err), &err);
    assert_int_equal(pith_seq_length(seq), N_TOKEN);
    assert_memory_equal(pith_seq_tokens(seq), tokens, sizeof(tokens));
    pith_seq_free(seq);
}

static void load_model(void)
{
    pith_model_info info;
    uint64_t rng = 11;
    check(pith_model_load(MODEL, NULL, &model, &err), &err);
    pith_model_get_info(model, &info);
    n_vocab = info.n_vocab;
    for (int32_t i = 0; i < N_TOKEN; i++)
        tokens[i] = (int32_t)rng_below(&rng, (uint64_t)n_vocab);
    pith_engine *e = engine_make(512, 1, 4096);
    eval_all(e, reference);
    pith_engine_free(e);
}

static void free_model(void)
{
    pith_model_free(model);
    mem_check(NULL);
}

TEST_GROUP(load_model, free_model);

TEST(chunks_and_threads_change_no_bit)
{
    static const struct {
        int32_t chunk, n_thread;
    } cases[] = {{1, 2}, {7, 1}, {64, 2}, {64, 3}, {100, 1}, {512, 2}};
    for (size_t c = 0; c < sizeof(cases) / sizeof(*cases); c++) {
        uint64_t hashes[N_TOKEN] = {0};
        pith_engine *e = engine_make(cases[c].chunk, cases[c].n_thread, 1024);
        eval_all(e, hashes);
        pith_engine_free(e);
        for (int32_t i = 0; i < N_TOKEN; i++)
            if (hashes[i] != reference[i])
                fail_msg("chunk %d, %d threads: position %d differs", cases[c].chunk,
                         cases[c].n_thread, i);
    }
}

TEST(every_processor_level_gives_the_same_bits)
{
    static const char *const levels[] = {"scalar", "avx2", "avx512", "amx", "neon"};
    int32_t n = 0;
    for (size_t i = 0; i < sizeof(levels) / sizeof(*levels); i++) {
        uint64_t hashes[N_TOKEN] = {0};
        if (pith_cpu_level_set(levels[i], &err) != PITH_OK)
            continue;
        pith_engine *e = engine_make(64, 2, 1024);
        eval_all(e, hashes);
        pith_engine_free(e);
        for (int32_t j = 0; j < N_TOKEN; j++)
            if (hashes[j] != reference[j])
                fail_msg("level %s: position %d differs", levels[i], j);
        n++;
    }
    assert_true(n >= 1);
    assert_int_equal(pith_cpu_level_set(NULL, NULL), PITH_OK);
}

/* Sequences of several lengths, fed together in uneven portions, give the results that each gives
   alone. */
TEST(company_in_a_batch_changes_no_bit)
{
    static const int32_t portion[MAX_SEQ] = {1, 5, 33, 90};
    pith_engine *e = engine_make(64, 2, 4096);
    pith_seq *seq[MAX_SEQ];
    for (int32_t i = 0; i < MAX_SEQ; i++)
        seq[i] = seq_make(e);
    for (int32_t round = 0; round < 3; round++) {
        pith_batch_item item[MAX_SEQ] = {{0}};
        for (int32_t i = 0; i < MAX_SEQ; i++)
            item[i] = (pith_batch_item){
                .seq = seq[i], .tokens = tokens + pith_seq_length(seq[i]), .n_token = portion[i]};
        check(pith_batch_eval(e, item, MAX_SEQ, NULL, NULL, &err), &err);
        for (int32_t i = 0; i < MAX_SEQ; i++)
            assert_true(hash_of(seq[i]) == reference[pith_seq_length(seq[i]) - 1]);
    }
    for (int32_t i = 0; i < MAX_SEQ; i++)
        pith_seq_free(seq[i]);
    pith_engine_free(e);
}

TEST(a_fork_shares_pages_and_goes_its_own_way)
{
    pith_engine *e = engine_make(64, 2, 2048);
    pith_seq *a = seq_make(e), *b = NULL;
    eval(a, tokens, 100);
    pith_kv_stats before, after;
    pith_engine_kv_stats(e, &before);
    check(pith_seq_fork(a, &b, &err), &err);
    pith_engine_kv_stats(e, &after);
    assert_true(after.used_bytes == before.used_bytes);
    assert_true(after.shared_bytes == after.used_bytes);
    assert_true(hash_of(b) == reference[99]);
    int32_t other = (tokens[100] + 1) % n_vocab;
    eval(b, &other, 1); /* writes to a shared page */
    assert_true(hash_of(b) != reference[100]);
    eval(a, tokens + 100, 1);
    assert_true(hash_of(a) == reference[100]);
    check(pith_seq_truncate(b, 100, &err), &err);
    assert_null(pith_seq_logits(b));
    pith_seq_free(a);
    eval(b, tokens + 100, N_TOKEN - 100);
    assert_true(hash_of(b) == reference[N_TOKEN - 1]);
    pith_seq_free(b);
    pith_engine_kv_stats(e, &after);
    assert_int_equal(after.used_bytes, 0);
    pith_engine_free(e);
}

TEST(truncating_and_syncing_go_on_alike)
{
    pith_engine *e = engine_make(50, 2, 1024);
    pith_seq *seq = seq_make(e);
    eval(seq, tokens, 200);
    for (int32_t n = 199; n > 0; n -= 33) {
        check(pith_seq_truncate(seq, n, &err), &err);
        eval(seq, tokens + n, 200 - n);
        assert_true(hash_of(seq) == reference[199]);
    }
    int32_t changed[150];
    memcpy(changed, tokens, sizeof(changed));
    changed[77] = (changed[77] + 1) % n_vocab;
    check(pith_seq_sync(seq, changed, 150, NULL, NULL, &err), &err);
    assert_int_equal(pith_seq_length(seq), 150);
    assert_true(hash_of(seq) != reference[149]);
    check(pith_seq_sync(seq, tokens, 150, NULL, NULL, &err), &err);
    assert_true(hash_of(seq) == reference[149]);
    check(pith_seq_sync(seq, tokens, 20, NULL, NULL, &err),
          &err); /* only forgets, but has logits */
    assert_true(hash_of(seq) == reference[19]);
    assert_int_equal(pith_seq_truncate(seq, 21, &err), PITH_INVALID);
    assert_int_equal(pith_seq_truncate(seq, -1, &err), PITH_INVALID);
    pith_seq_free(seq);
    pith_engine_free(e);
}

TEST(a_saved_sequence_goes_on_alike)
{
    char path[] = "/tmp/pith-test-engine-XXXXXX";
    close(mkstemp(path));
    pith_engine *e = engine_make(64, 2, 1024), *other = engine_make(31, 1, 512);
    pith_seq *a = seq_make(e), *b = NULL;
    eval(a, tokens, 123);
    check(pith_seq_save(a, path, &err), &err);
    check(pith_seq_load(other, path, &b, &err), &err);
    assert_int_equal(pith_seq_length(b), 123);
    assert_memory_equal(pith_seq_tokens(b), tokens, 123 * sizeof(int32_t));
    eval(b, tokens + 123, N_TOKEN - 123);
    assert_true(hash_of(b) == reference[N_TOKEN - 1]);
    pith_seq_free(b);
    pith_seq_free(a);
    pith_engine_free(other);
    pith_engine_free(e);
    remove(path);
}

/* A budget too small for the batch: the status, and every sequence as it was. */
TEST(a_full_budget_leaves_every_sequence_as_it_was)
{
    pith_engine *e = engine_make(64, 2, 160);
    pith_seq *a = seq_make(e), *b = seq_make(e);
    eval(a, tokens, 100);
    eval(b, tokens, 32);
    pith_kv_stats before, after;
    pith_engine_kv_stats(e, &before);
    pith_batch_item item[2] = {{.seq = b, .tokens = tokens + 32, .n_token = 10},
                               {.seq = a, .tokens = tokens + 100, .n_token = 200}};
    assert_int_equal(pith_batch_eval(e, item, 2, NULL, NULL, &err), PITH_KV_FULL);
    assert_true(strlen(err.message) > 20);
    pith_engine_kv_stats(e, &after);
    assert_int_equal(after.used_bytes, before.used_bytes);
    assert_int_equal(pith_seq_length(a), 100);
    assert_int_equal(pith_seq_length(b), 32);
    assert_true(hash_of(a) == reference[99] && hash_of(b) == reference[31]);
    pith_seq_free(a);
    eval(b, tokens + 32, 128);
    assert_true(hash_of(b) == reference[159]);
    assert_int_equal(pith_seq_eval(b, tokens + 160, 1, &err), PITH_KV_FULL);
    assert_true(hash_of(b) == reference[159]);
    pith_engine_kv_stats(e, &after);
    assert_true(after.used_bytes <= after.reserved_bytes);
    pith_seq_free(b);
    pith_engine_free(e);
}

static bool stop_late(void *user, double fraction)
{
    (void)user;
    return fraction < 0.5;
}

static bool stop_at_50(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    (void)user;
    (void)seq;
    (void)logits;
    return pos < 50;
}

TEST(a_cancelled_evaluation_changes_nothing)
{
    pith_engine *e = engine_make(16, 2, 1024);
    pith_seq *seq = seq_make(e);
    eval(seq, tokens, 20);
    pith_batch_item item = {.seq = seq, .tokens = tokens + 20, .n_token = 200};
    assert_int_equal(pith_batch_eval(e, &item, 1, stop_late, NULL, &err), PITH_CANCELLED);
    assert_int_equal(pith_seq_length(seq), 20);
    item.logits = PITH_LOGITS_ALL;
    item.on_logits = stop_at_50;
    assert_int_equal(pith_batch_eval(e, &item, 1, NULL, NULL, &err), PITH_CANCELLED);
    assert_int_equal(pith_seq_length(seq), 20);
    eval(seq, tokens + 20, 80);
    assert_true(hash_of(seq) == reference[99]);
    pith_seq_free(seq);
    pith_engine_free(e);
}

static void expect_params(pith_engine_params params, pith_status want, const char *part)
{
    pith_engine *e = NULL;
    assert_int_equal(pith_engine_create(model, &params, &e, &err), want);
    assert_null(e);
    if (strstr(err.message, part) == NULL)
        fail_msg("\"%s\" does not name %s", err.message, part);
}

TEST(refuses_bad_arguments)
{
    pith_engine_params p;
    pith_engine_params_default(&p);
    p.kv_tokens = 64;
#define EXPECT(field, value, want, part)                                                           \
    do {                                                                                           \
        pith_engine_params bad = p;                                                                \
        bad.field = value;                                                                         \
        expect_params(bad, want, part);                                                            \
    } while (0)
    EXPECT(n_thread, -1, PITH_INVALID, "n_thread: -1");
    EXPECT(chunk, 0, PITH_INVALID, "chunk: 0");
    EXPECT(kv_bytes, -5, PITH_INVALID, "kv_bytes: -5");
    EXPECT(kv_bytes, 100, PITH_INVALID, "100");
    EXPECT(kv_tokens, -2, PITH_INVALID, "kv_tokens: -2");
    EXPECT(page_len, 48, PITH_INVALID, "48");
    EXPECT(type_k, "q9", PITH_INVALID, "type_k: \"q9\"");
    EXPECT(type_v, "", PITH_INVALID, "type_v: \"\"");
#undef EXPECT
    pith_engine *e = engine_make(16, 1, 64);
    pith_seq *seq = seq_make(e);
    int32_t bad[2] = {0, n_vocab};
    assert_int_equal(pith_seq_eval(seq, bad, 2, &err), PITH_INVALID);
    bad[1] = -1;
    assert_int_equal(pith_seq_eval(seq, bad, 2, &err), PITH_INVALID);
    assert_int_equal(pith_seq_eval(seq, bad, 0, &err), PITH_INVALID);
    pith_batch_item twice[2] = {{.seq = seq, .tokens = tokens, .n_token = 1},
                                {.seq = seq, .tokens = tokens, .n_token = 1}};
    assert_int_equal(pith_batch_eval(e, twice, 2, NULL, NULL, &err), PITH_INVALID);
    assert_int_equal(pith_seq_length(seq), 0);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* A whole life: load, engine, prompt, fork, file, generation. Returns the first failure. */
static pith_status live(const char *path, pith_error *why)
{
    pith_model *m = NULL;
    pith_engine *e = NULL;
    pith_seq *a = NULL, *b = NULL, *c = NULL;
    pith_engine_params params;
    pith_generate_params generate;
    pith_engine_params_default(&params);
    params.kv_tokens = 256;
    params.chunk = 32;
    params.page_len = 16;
    params.n_thread = 1;
    pith_generate_params_default(&generate);
    generate.n_predict = 3;
    generate.sample.temperature = 0.0f;
    pith_status status = pith_model_load(MODEL, NULL, &m, why);
    if (status == PITH_OK)
        status = pith_engine_create(m, &params, &e, why);
    if (status == PITH_OK)
        status = pith_seq_create(e, &a, why);
    if (status == PITH_OK)
        status = pith_seq_eval(a, tokens, 40, why);
    if (status == PITH_OK)
        status = pith_seq_fork(a, &b, why);
    if (status == PITH_OK)
        status = pith_seq_save(a, path, why);
    if (status == PITH_OK)
        status = pith_seq_load(e, path, &c, why);
    if (status == PITH_OK)
        status = pith_generate(b, tokens, 50, &generate, NULL, NULL, NULL, why);
    if (status == PITH_OK)
        status = pith_seq_eval(c, tokens + 40, 10, why);
    if (status == PITH_OK)
        assert_true(pith_logits_hash(pith_seq_logits(c), n_vocab) == reference[49]);
    pith_seq_free(c);
    pith_seq_free(b);
    pith_seq_free(a);
    pith_engine_free(e);
    pith_model_free(m);
    return status;
}

TEST(survives_every_failing_allocation)
{
    char path[] = "/tmp/pith-test-alloc-XXXXXX";
    int64_t before[PI_MEM_N_TAG];
    close(mkstemp(path));
    mem_used(before);
    pi_mem_fail_at(0, false);
    check(live(path, &err), &err);
    int64_t n = pi_mem_fail_at(0, false);
    assert_true(n > 20);
    int64_t n_tolerated = 0;
    for (int64_t i = 1; i <= 2 * n; i++) {
        memset(&err, 0, sizeof(err));
        pi_mem_fail_at((i + 1) / 2, i % 2 == 0); /* that one; that one and all after it */
        pith_status status = live(path, &err);
        pi_mem_fail_at(0, false);
        /* Patterns are matched more slowly, but as well, where their compiler got no memory; live()
           has then checked the result. */
        n_tolerated += status == PITH_OK;
        if (status != PITH_NOMEM && status != PITH_OK)
            fail_msg("allocation %lld of %lld: %s, \"%s\"", (long long)i, (long long)n,
                     pith_status_name(status), err.message);
        assert_true(status == PITH_OK || strlen(err.message) > 10);
        mem_check(before);
    }
    assert_true(n_tolerated < n / 4);
    remove(path);
}
