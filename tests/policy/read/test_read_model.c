/*
 * test_read_model.c - QuoKA, SampleAttention, SnapKV and KeyDiff on a model. Bits are the same for
 * any pass, number of threads and other sequences, and equal the full cache where the budget is
 * never reached. A smaller budget reads a part.
 */
#include "testing.h"

#include "keep_engine.h"

#define N_PROMPT 150
#define N_STEP 20
#define N_TOKEN (N_PROMPT + N_STEP)

static const char *const forms[] = {
    "quoka:",
    "quoka:queries=3,pair=token,",
    "quoka:queries=4,pair=none,aggregate=mean,",
    "quoka:score=dot,",
    "quoka:index=int8,",
    "quoka:sinks=2,recent=3,dense-layers=1,tail=9,",
    "sampleattention:queries=5,",
    "sampleattention:weigh=logits,",
    "snapkv:queries=6,",
    "snapkv:pool=max,kernel=3,",
    "keydiff:",
};

static pith_engine *engine_of(const char *read, const char *type, int32_t chunk, int32_t n_thread)
{
    return engine_with(model, (pith_engine_params){.chunk = chunk,
                                                   .n_thread = n_thread,
                                                   .kv_tokens = 3 * N_TOKEN,
                                                   .page_len = PAGE_LEN,
                                                   .read = read,
                                                   .type_k = type,
                                                   .type_v = type});
}

/* Hashes of the logits after each token, of a prompt in one evaluation and of tokens one by one.
   With company another sequence runs beside it. Returns how many chunks read a part. */
static int64_t hashes_of(pith_engine *e, bool company, uint64_t *hashes)
{
    pith_seq *seq = seq_make(e), *other = seq_make(e);
    pith_read_stats stats;
    uint64_t unused[N_TOKEN];
    for (int32_t i = 0, n; i < N_TOKEN; i += n) {
        n = i == 0 ? N_PROMPT : 1;
        pith_batch_item items[2] = {{.seq = seq,
                                     .tokens = tokens + i,
                                     .n_token = n,
                                     .logits = PITH_LOGITS_ALL,
                                     .on_logits = keep_hash,
                                     .user = hashes},
                                    {.seq = other,
                                     .tokens = tokens + i + 7,
                                     .n_token = n,
                                     .logits = PITH_LOGITS_ALL,
                                     .on_logits = keep_hash,
                                     .user = unused}};
        check(pith_batch_eval(e, items, company ? 2 : 1, NULL, NULL, &err), &err);
    }
    pith_seq_read_stats(seq, &stats);
    assert_true(stats.read <= stats.stored);
    assert_true((stats.sparse > 0) == (stats.read < stats.stored));
    pith_seq_free(seq);
    pith_seq_free(other);
    pith_engine_free(e);
    return stats.sparse;
}

TEST(passes_threads_and_company_change_no_bit)
{
    for (size_t f = 0; f < PI_LEN(forms); f++) {
        static const char *const types[] = {"f32", "f16", "q8_0"};
        char read[128];
        uint64_t a[N_TOKEN], b[N_TOKEN], c[N_TOKEN];
        snprintf(read, sizeof(read), "%sbudget=24,chunk=20", forms[f]);
        int64_t sparse = hashes_of(engine_of(read, types[f % 3], 512, 1), false, a);
        assert_true(sparse > 0);
        assert_int_equal(hashes_of(engine_of(read, types[f % 3], 33, 2), false, b), sparse);
        assert_int_equal(hashes_of(engine_of(read, types[f % 3], 50, 2), true, c), sparse);
        for (int32_t i = 0; i < N_TOKEN; i++)
            if (a[i] != b[i] || a[i] != c[i])
                fail_msg("%s: position %d differs", read, i);
    }
}

TEST(a_budget_that_is_never_reached_is_the_full_cache)
{
    uint64_t full[N_TOKEN], got[N_TOKEN];
    hashes_of(engine_of(NULL, "f16", 64, 1), false, full);
    for (size_t f = 0; f < PI_LEN(forms); f++) {
        char read[128];
        snprintf(read, sizeof(read), "%sgate=1,budget=%d,chunk=20", forms[f], N_TOKEN);
        assert_int_equal(hashes_of(engine_of(read, "f16", 64, 2), false, got), 0);
        assert_memory_equal(got, full, sizeof(full));
        /* And not as much is not the same. */
        snprintf(read, sizeof(read), "%sgate=1,budget=24,chunk=20", forms[f]);
        assert_true(hashes_of(engine_of(read, "f16", 64, 2), false, got) > 0);
        assert_memory_not_equal(got, full, sizeof(full));
    }
}

static void setup(void)
{
    model_load(6);
}

TEST_GROUP(setup, model_free);
