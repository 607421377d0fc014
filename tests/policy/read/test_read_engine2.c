/*
 * SparQ, Loki, LessIsMore, TidalDecode and Quest in an engine. A budget that is never reached is
 * the full cache bit for bit, and a smaller one reads less. The output depends on the tokens alone,
 * not on threads, passes or other sequences.
 */
#define _POSIX_C_SOURCE 200809L

#include <unistd.h>

#include "keep_engine.h"

#define N_PROMPT 240
#define N_STEP 8

static char bases[] = "/tmp/pith-test-XXXXXX";

/* A policy's options but budget and the like: its own in several forms. */
static const char *const policies[] = {
    "sparq:r=8",
    "sparq:r=8,columns=off,rank=softmax,recent=0",
    "sparq:quoka,r=4",
    "loki:r=8",
    "loki:r=60%,phase=decode",
    "loki:rank=softmax,r=16",
    "lessismore:source=1,phase=both",
    "lessismore:source=0,sinks=4",
    "tidaldecode:source=1,phase=both",
    "tidaldecode:source=0,heads=max",
    "tidaldecode:source=1,phase=both,heads=max,rank=softmax",
    "lessismore:source=0,phase=both,rank=softmax",
    "quest",
    "quest:dense-layers=0,phase=both,heads=max",
};

static pith_engine *read_engine(const char *policy, const char *more, const char *keep,
                                int32_t chunk, int32_t n_thread)
{
    char text[160];
    bool loki = policy != NULL && strncmp(policy, "loki", 4) == 0;
    if (policy != NULL)
        snprintf(text, sizeof(text), "%s%s%s%s%s", policy, strchr(policy, ':') ? "," : ":", more,
                 loki ? ",projection=" : "", loki ? bases : "");
    return engine_with(model, (pith_engine_params){.chunk = chunk,
                                                   .n_thread = n_thread,
                                                   .kv_tokens = 3 * TOKENS_MAX,
                                                   .page_len = PAGE_LEN,
                                                   .read = policy != NULL ? text : NULL,
                                                   .keep = keep});
}

/* The logits after a prompt and after each of some steps; *stats may be NULL. */
static void run(pith_engine *e, uint64_t *hashes, pith_read_stats *stats)
{
    pith_seq *seq = seq_make(e);
    eval(seq, 0, N_PROMPT);
    hashes[0] = hash_of(seq);
    for (int32_t i = 0; i < N_STEP; i++) {
        eval(seq, N_PROMPT + i, N_PROMPT + i + 1);
        hashes[i + 1] = hash_of(seq);
    }
    if (stats != NULL)
        pith_seq_read_stats(seq, stats);
    pith_seq_free(seq);
}

TEST(a_budget_that_is_never_reached_is_the_full_cache)
{
    uint64_t full[N_STEP + 1], hashes[N_STEP + 1];
    pith_engine *e = read_engine(NULL, "", NULL, 128, 2);
    run(e, full, NULL);
    pith_engine_free(e);
    for (size_t i = 0; i < PI_LEN(policies); i++) {
        pith_read_stats stats;
        e = read_engine(policies[i], "budget=600", NULL, 128, 2);
        run(e, hashes, &stats);
        assert_memory_equal(full, hashes, sizeof(full));
        assert_true(stats.read == stats.stored);
        pith_engine_free(e);
    }
}

TEST(a_small_budget_reads_less)
{
    uint64_t full[N_STEP + 1], hashes[N_STEP + 1];
    pith_engine *e = read_engine(NULL, "", NULL, 128, 2);
    run(e, full, NULL);
    pith_engine_free(e);
    for (size_t i = 0; i < PI_LEN(policies); i++) {
        pith_read_stats stats;
        e = read_engine(policies[i], "budget=48", NULL, 128, 2);
        run(e, hashes, &stats);
        assert_true(stats.read < stats.stored && stats.sparse > 0);
        assert_true(hashes[N_STEP] != full[N_STEP]);
        pith_engine_free(e);
    }
}

/* Passes of another size, other threads, and a second sequence beside. */
TEST(passes_threads_and_company_change_no_bit)
{
    static const struct {
        int32_t chunk, n_thread;
    } way[] = {{40, 1}, {512, 3}};
    uint64_t first[N_STEP + 1], hashes[N_STEP + 1];
    for (size_t i = 0; i < PI_LEN(policies); i++) {
        pith_engine *e = read_engine(policies[i], "budget=48,chunk=40", NULL, 128, 2);
        run(e, first, NULL);
        pith_engine_free(e);
        for (size_t j = 0; j < PI_LEN(way); j++) {
            e = read_engine(policies[i], "budget=48,chunk=40", NULL, way[j].chunk, way[j].n_thread);
            run(e, hashes, NULL);
            assert_memory_equal(first, hashes, sizeof(first));
            pith_engine_free(e);
        }
        e = read_engine(policies[i], "budget=48,chunk=40", NULL, 128, 2);
        pith_seq *a = seq_make(e), *b = seq_make(e);
        pith_batch_item item[] = {
            {.seq = b, .tokens = tokens + 7, .n_token = 201, .logits = PITH_LOGITS_LAST},
            {.seq = a, .tokens = tokens, .n_token = N_PROMPT, .logits = PITH_LOGITS_LAST}};
        check(pith_batch_eval(e, item, 2, NULL, NULL, &err), &err);
        assert_true(hash_of(a) == first[0]);
        for (int32_t s = 0; s < N_STEP; s++) {
            item[0].tokens = tokens + s;
            item[1].tokens = tokens + N_PROMPT + s;
            item[0].n_token = item[1].n_token = 1;
            check(pith_batch_eval(e, item, 2, NULL, NULL, &err), &err);
            assert_true(hash_of(a) == first[s + 1]);
        }
        pith_seq_free(a);
        pith_seq_free(b);
        pith_engine_free(e);
    }
}

/* Over lanes that a keep policy thins, it is the same for any threads. */
TEST(reads_lanes_that_a_keep_policy_thinned)
{
    uint64_t one[N_STEP + 1], three[N_STEP + 1];
    for (size_t i = 0; i < PI_LEN(policies); i++) {
        pith_read_stats stats;
        pith_engine *e =
            read_engine(policies[i], "budget=48,chunk=40", "knorm:budget=120,slack=20", 64, 1);
        run(e, one, &stats);
        assert_true(stats.sparse > 0);
        pith_engine_free(e);
        e = read_engine(policies[i], "budget=48,chunk=40", "knorm:budget=120,slack=20", 64, 3);
        run(e, three, NULL);
        assert_memory_equal(one, three, sizeof(one));
        pith_engine_free(e);
    }
}

/* Whichever allocation fails while a policy opens, it is said, and nothing is left. */
TEST(failing_memory_opens_nothing)
{
    char text[160];
    pith_engine_params params;
    pith_engine *e = NULL;
    snprintf(text, sizeof(text), "loki:r=90%%,projection=%s", bases);
    pith_engine_params_default(&params);
    params.kv_tokens = 64;
    params.n_thread = 1;
    params.read = text;
    pi_mem_fail_at(0, false);
    check(pith_engine_create(model, &params, &e, &err), &err);
    int64_t n = pi_mem_fail_at(0, false), before = 0;
    pith_engine_free(e);
    for (int32_t tag = 0; tag < PI_MEM_N_TAG; tag++)
        before += pi_mem_used((enum pi_mem_tag)tag);
    assert_true(n >= 10);
    for (int64_t i = 1; i <= n; i++) {
        int64_t after = 0;
        e = NULL;
        pi_mem_fail_at(i, false);
        pith_status status = pith_engine_create(model, &params, &e, &err);
        pi_mem_fail_at(0, false);
        assert_true(status != PITH_OK);
        if (status == PITH_INVALID) /* the share of the variance was not known at first */
            expect(status, &err, PITH_INVALID, "was unreadable then");
        else
            expect(status, &err, PITH_NOMEM, "no memory");
        for (int32_t tag = 0; tag < PI_MEM_N_TAG; tag++)
            after += pi_mem_used((enum pi_mem_tag)tag);
        assert_int_equal(before, after);
    }
}

/* Pages are as long as what looks at whole pages wants them, unless the params say. */
TEST(pages_are_short_where_whole_pages_are_looked_at)
{
    static const struct {
        const char *read, *share;
        int32_t page_len, expected;
    } cases[] = {
        {NULL, NULL, 0, 64},     {"quoka", NULL, 0, 64},  {"quest", NULL, 0, 16},
        {"quest", NULL, 32, 32}, {NULL, "random", 0, 16},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        pith_kv_stats kv;
        pith_engine *e = engine_with(model, (pith_engine_params){.kv_tokens = TOKENS_MAX,
                                                                 .read = cases[i].read,
                                                                 .share = cases[i].share,
                                                                 .page_len = cases[i].page_len});
        pith_engine_kv_stats(e, &kv);
        assert_int_equal(kv.page_len, cases[i].expected);
        pith_engine_free(e);
    }
}

static void set_up(void)
{
    pith_projection *p = NULL;
    model_load(19);
    close(mkstemp(bases));
    pith_engine *e = engine_make(NULL, 64, 2, 512);
    check(pith_projection_fit(e, tokens, N_PROMPT, NULL, &p, &err), &err);
    check(pith_projection_save(p, bases, &err), &err);
    pith_projection_free(p);
    pith_engine_free(e);
}

static void tear_down(void)
{
    unlink(bases);
    model_free();
}

TEST_GROUP(set_up, tear_down);
