/*
 * The policies that add attention up as it is computed, on a model. Bits and marks are the same for
 * any chunk, number of threads and other sequences, in prompts and in steps. A budget that is never
 * reached gives the full cache. Also forks, prompts of any length in the memory that the policy
 * asks for, and the state after a cancelled evaluation. test_keep_accum.c tests the policies' use
 * of weights.
 */
#include <math.h>
#include <string.h>

#include "testing.h"

#include "mem_used.h"
#include "engine/engine.h"
#include "status.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define N_TOKEN 140

/* Every policy, rounds and overwriting, and the forms that are computed otherwise. */
static const char *const forms[] = {
    "h2o:budget=48",
    "h2o:budget=48,granularity=layer,group=max",
    "h2o:budget=48,overwrite=off,slack=24,average=on",
    "h2o:budget=50%,overwrite=off,slack=24,prompt=off",
    "vatp:budget=48",
    "vatp:budget=48,overwrite=off,slack=24,sinks=4,granularity=all,group=sum",
    "scissorhands:budget=48,slack=24,history=30",
    "scissorhands:budget=48,slack=24,count=sum,history=20",
    "raas:budget=48,pin-prompt=off,prompt=on,threshold=0.02",
    "raas:budget=48,pin-prompt=off,looks=top",
    "lazyeviction:budget=48,window=20,slack=20,prompt=on,threshold=0.02",
    "lazyeviction:budget=48,window=20,slack=20,threshold=0.01,score=notes",
};
#define N_FORM PI_LEN(forms)

/* The lengths of the calls: a prompt, steps, another prompt, steps. */
static int32_t length_of_call(int32_t n_done)
{
    int32_t length = n_done == 0 ? 60 : n_done == 100 ? 26 : 1;
    return (int32_t)pi_min(length, N_TOKEN - n_done);
}

static pith_model *model;
static pith_model_info info;
static int32_t tokens[N_TOKEN];
static uint64_t reference[N_FORM][N_TOKEN]; /* hash of the logits after each token */
static uint64_t last_marks[N_FORM];

static pith_engine *engine_make(const char *keep, int32_t chunk, int32_t n_thread,
                                int32_t kv_tokens)
{
    return engine_with(model, (pith_engine_params){.chunk = chunk,
                                                   .n_thread = n_thread,
                                                   .kv_tokens = kv_tokens,
                                                   .page_len = 16,
                                                   .keep = keep});
}

/* Of every mark of every entry, bit by bit. */
static uint64_t digest_marks(const pith_seq *seq)
{
    uint64_t digest = 0;
    for (int32_t l = 0; l < info.n_layer; l++)
        for (int32_t h = 0; h < info.n_head_kv; h++)
            for (int32_t m = 0; m < keep_n_mark(seq->engine->keep.handle); m++) {
                const float *mark = kv_lane_marks(seq->memory.kv, l, h, m);
                for (int32_t i = 0; i < kv_lane_len(seq->memory.kv, l, h); i++) {
                    uint32_t bits;
                    memcpy(&bits, &mark[i], sizeof(bits));
                    digest ^= bits;
                    digest = rng_next(&digest);
                }
            }
    return digest;
}

static bool keep_hash(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    (void)seq;
    ((uint64_t *)user)[pos] = pith_logits_hash(logits, info.n_vocab);
    return true;
}

static pith_batch_item next_item(pith_seq *seq, int32_t n, uint64_t *hashes)
{
    return (pith_batch_item){.seq = seq,
                             .tokens = tokens + pith_seq_length(seq),
                             .n_token = n,
                             .logits = PITH_LOGITS_ALL,
                             .on_logits = keep_hash,
                             .user = hashes};
}

/* Goes on from where a sequence stands to n tokens, call by call. */
static void go_on(pith_seq *seq, int32_t n, uint64_t *hashes)
{
    while (pith_seq_length(seq) < n) {
        pith_batch_item item = next_item(seq, length_of_call(pith_seq_length(seq)), hashes);
        check(pith_batch_eval(seq->engine, &item, 1, NULL, NULL, &err), &err);
    }
}

/* The same while two other sequences, which are elsewhere, share every batch. */
static void go_on_in_company(pith_seq *seq, uint64_t *hashes)
{
    uint64_t other_hashes[N_TOKEN];
    pith_seq *other[2] = {seq_make(seq->engine), seq_make(seq->engine)};
    while (pith_seq_length(seq) < N_TOKEN) {
        pith_batch_item item[3] = {
            next_item(other[0], 1, other_hashes),
            next_item(seq, length_of_call(pith_seq_length(seq)), hashes),
            next_item(other[1], pith_seq_length(other[1]) == 0 ? 33 : 1, other_hashes)};
        check(pith_batch_eval(seq->engine, item, 3, NULL, NULL, &err), &err);
    }
    for (int32_t i = 0; i < 2; i++)
        pith_seq_free(other[i]);
}

static void expect_reference(size_t f, const uint64_t *hashes, int32_t begin, const char *what)
{
    for (int32_t i = begin; i < N_TOKEN; i++)
        if (hashes[i] != reference[f][i])
            fail_msg("%s, %s: position %d differs", forms[f], what, i);
}

static void load_model(void)
{
    uint64_t rng = 29;
    check(pith_model_load(MODEL, NULL, &model, &err), &err);
    pith_model_get_info(model, &info);
    for (int32_t i = 0; i < N_TOKEN; i++)
        tokens[i] = (int32_t)rng_below(&rng, (uint64_t)info.n_vocab);
    for (size_t f = 0; f < N_FORM; f++) {
        pith_engine *e = engine_make(forms[f], 512, 1, 2 * N_TOKEN);
        pith_seq *seq = seq_make(e);
        pith_keep_stats stats;
        go_on(seq, N_TOKEN, reference[f]);
        last_marks[f] = digest_marks(seq);
        pith_seq_keep_stats(seq, &stats);
        if (stats.rounds < 2 || (stats.overwritten > 0) != (strstr(forms[f], "slack") == NULL &&
                                                            strncmp(forms[f], "raas", 4) != 0))
            fail_msg("%s: %lld rounds, %lld overwritten", forms[f], (long long)stats.rounds,
                     (long long)stats.overwritten);
        for (size_t g = 0; g < f; g++)
            assert_true(reference[f][N_TOKEN - 1] != reference[g][N_TOKEN - 1]);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

static void free_model(void)
{
    pith_model_free(model);
    mem_check(NULL);
}

TEST_GROUP(load_model, free_model);

/* ---- the same bits ---- */

TEST(chunks_threads_and_company_change_no_bit)
{
    static const struct {
        int32_t chunk, n_thread;
        bool company;
    } cases[] = {{7, 2, false}, {33, 2, true}};
    for (size_t f = 0; f < N_FORM; f++)
        for (size_t c = 0; c < PI_LEN(cases); c++) {
            uint64_t hashes[N_TOKEN] = {0};
            pith_engine *e = engine_make(forms[f], cases[c].chunk, cases[c].n_thread, 4 * N_TOKEN);
            pith_seq *seq = seq_make(e);
            if (cases[c].company)
                go_on_in_company(seq, hashes);
            else
                go_on(seq, N_TOKEN, hashes);
            expect_reference(f, hashes, 0, cases[c].company ? "in company" : "in chunks");
            assert_true(digest_marks(seq) == last_marks[f]);
            pith_seq_free(seq);
            pith_engine_free(e);
        }
}

TEST(a_budget_that_is_never_reached_is_the_full_cache)
{
    static const char *const large[] = {
        "h2o:budget=140",
        "h2o:budget=140,overwrite=off,slack=1,average=on",
        "vatp:budget=140",
        "scissorhands:budget=140,slack=1",
        "raas:budget=140",
        "raas:budget=140,looks=top,prompt=on",
        "lazyeviction:budget=140,window=100,prompt=on",
    };
    uint64_t full[N_TOKEN], got[N_TOKEN];
    pith_engine *e = engine_make(NULL, 64, 2, N_TOKEN);
    pith_seq *seq = seq_make(e);
    go_on(seq, N_TOKEN, full);
    pith_seq_free(seq);
    pith_engine_free(e);
    for (size_t f = 0; f < PI_LEN(large); f++) {
        e = engine_make(large[f], 50, 2, N_TOKEN);
        seq = seq_make(e);
        go_on(seq, N_TOKEN, got);
        if (memcmp(got, full, sizeof(full)) != 0)
            fail_msg("%s: not the full cache", large[f]);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

/* Nothing is lost: each query's weights sum to 1. So the weights of all entries sum to the number
   of queries. With steps alone it is the number of steps, whether they overwrite or not. */
TEST(all_weights_are_seen)
{
    static const struct {
        const char *keep;
        double n_query;
    } cases[] = {
        {"h2o:budget=140", N_TOKEN},
        {"h2o:budget=140,prompt=off", 54.0},
        {"h2o:budget=140,overwrite=off,prompt=off", 54.0},
    };
    for (size_t c = 0; c < PI_LEN(cases); c++) {
        pith_engine *e = engine_make(cases[c].keep, 64, 2, N_TOKEN);
        pith_seq *seq = seq_make(e);
        uint64_t hashes[N_TOKEN];
        go_on(seq, N_TOKEN, hashes);
        for (int32_t l = 0; l < info.n_layer; l++)
            for (int32_t h = 0; h < info.n_head_kv; h++) {
                double sum = 0.0;
                for (int32_t i = 0; i < N_TOKEN; i++)
                    sum += kv_lane_marks(seq->memory.kv, l, h, 0)[i];
                if (fabs(sum - cases[c].n_query) > 1e-4 * cases[c].n_query)
                    fail_msg("%s, layer %d, head %d: %g of %g", cases[c].keep, l, h, sum,
                             cases[c].n_query);
            }
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

/* By default these two see the steps alone. So their marks tell a low threshold from a high one. */
TEST(steps_are_seen_where_prompts_are_not)
{
    static const char *const policies[][2] = {
        {"raas:budget=140,threshold=1e-6", "raas:budget=140,threshold=0.5"},
        {"raas:budget=140,looks=top,top=0.1", "raas:budget=140,looks=top,top=0.9"},
        {"lazyeviction:budget=140,window=20,slack=20,threshold=1e-6",
         "lazyeviction:budget=140,window=20,slack=20,threshold=0.5"},
    };
    for (size_t p = 0; p < PI_LEN(policies); p++) {
        uint64_t hashes[N_TOKEN], marks[2];
        for (int i = 0; i < 2; i++) {
            pith_engine *e = engine_make(policies[p][i], 64, 2, N_TOKEN);
            pith_seq *seq = seq_make(e);
            go_on(seq, 100, hashes);
            marks[i] = digest_marks(seq);
            pith_seq_free(seq);
            pith_engine_free(e);
        }
        if (marks[0] == marks[1])
            fail_msg("%s: no step is noted", policies[p][0]);
    }
}

/* ---- forks ---- */

/* Behind the prompt and in the middle of steps. */
TEST(a_fork_goes_on_to_the_same_bits)
{
    static const int32_t at[] = {60, 83};
    for (size_t f = 0; f < N_FORM; f++)
        for (size_t i = f % 2; i < PI_LEN(at); i += 2) {
            uint64_t hashes[2][N_TOKEN];
            pith_engine *e = engine_make(forms[f], 64, 1, 4 * N_TOKEN);
            pith_seq *seq[2] = {seq_make(e), NULL};
            go_on(seq[0], at[i], hashes[0]);
            check(pith_seq_fork(seq[0], &seq[1], &err), &err);
            assert_true(digest_marks(seq[0]) == digest_marks(seq[1]));
            while (pith_seq_length(seq[0]) < N_TOKEN) {
                pith_batch_item both[2];
                int32_t n = length_of_call(pith_seq_length(seq[0]));
                for (int32_t s = 0; s < 2; s++)
                    both[s] = next_item(seq[s], n, hashes[s]);
                check(pith_batch_eval(e, both, 2, NULL, NULL, &err), &err);
            }
            for (int32_t s = 0; s < 2; s++) {
                expect_reference(f, hashes[s], at[i], s == 0 ? "forked from" : "the fork");
                assert_true(digest_marks(seq[s]) == last_marks[f]);
                pith_seq_free(seq[s]);
            }
            pith_engine_free(e);
        }
}

/* ---- prompts of any length ---- */

/* Five steps after a prompt, in a pool of the size that the policy asks for. */
static void read_prompt(pith_engine *e, int32_t n, uint64_t *hashes)
{
    pith_seq *seq = seq_make(e);
    const struct keep_config *c = keep_get_config(e->keep.handle);
    for (int32_t i = 0; i < 6; i++) {
        pith_batch_item item = next_item(seq, i == 0 ? n : 1, hashes);
        check(pith_batch_eval(e, &item, 1, NULL, NULL, &err), &err);
        int32_t most = keep_budget_at(c, n + i) + (c->rules.overwrite ? 0 : c->rules.slack - 1);
        for (int32_t l = 0; l < info.n_layer; l++)
            for (int32_t h = 0; h < info.n_head_kv; h++)
                assert_true(kv_lane_len(seq->memory.kv, l, h) <= most);
    }
    pith_seq_free(seq);
}

TEST(takes_prompts_of_any_length)
{
    static const int32_t lengths[] = {1, 16, 47, 48, 49, 63, 64, 71, 72, 134};
    for (size_t f = 0; f < N_FORM; f++) {
        bool share = strstr(forms[f], "%") != NULL; /* grows with the text: the pool is given */
        pith_engine *a = engine_make(forms[f], 512, 1, share ? N_TOKEN : 0);
        pith_engine *b = engine_make(forms[f], 5, 2, share ? N_TOKEN : 0);
        for (size_t i = f % 2; i < PI_LEN(lengths); i += 2) {
            uint64_t hashes[2][N_TOKEN] = {{0}};
            read_prompt(a, lengths[i], hashes[0]);
            read_prompt(b, lengths[i], hashes[1]);
            if (memcmp(hashes[0], hashes[1], sizeof(hashes[0])) != 0)
                fail_msg("%s: a prompt of %d tokens differs in chunks", forms[f], lengths[i]);
        }
        pith_engine_free(a);
        pith_engine_free(b);
    }
}

/* ---- ends half-way ---- */

static bool stop_late(void *user, double fraction)
{
    return fraction < *(const double *)user;
}

static bool stop_tap(void *user, const pith_tap_rows *rows)
{
    return rows->layer < *(const int32_t *)user;
}

static bool stop_logits(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    (void)seq;
    (void)logits;
    return pos < *(const int32_t *)user;
}

static void expect_unchanged(const pith_seq *seq, const char *form, uint64_t marks)
{
    assert_int_equal(pith_seq_length(seq), 26);
    if (digest_marks(seq) != marks)
        fail_msg("%s: a cancelled evaluation changed marks", form);
}

/* A cancelled evaluation changed the marks of older entries. Where nothing was evicted, the marks
   are restored, and the sequence goes on to the same bits. */
TEST(a_cancelled_evaluation_restores_the_marks)
{
    for (size_t f = 0; f < N_FORM; f++) {
        uint64_t hashes[N_TOKEN];
        double fraction = 0.4;
        int32_t layer = 0, pos = 40;
        pith_engine *e = engine_make(forms[f], 8, 1, 2 * N_TOKEN);
        pith_seq *seq = seq_make(e);
        check(pith_seq_eval(seq, tokens, 20, &err), &err);
        for (int32_t i = 20; i < 26; i++)
            check(pith_seq_eval(seq, tokens + i, 1, &err), &err);
        uint64_t marks = digest_marks(seq);

        pith_batch_item item = next_item(seq, 20, hashes);
        assert_int_equal(pith_batch_eval(e, &item, 1, stop_late, &fraction, &err), PITH_CANCELLED);
        expect_unchanged(seq, forms[f], marks);
        item.on_logits = stop_logits;
        item.user = &pos;
        assert_int_equal(pith_batch_eval(e, &item, 1, NULL, NULL, &err), PITH_CANCELLED);
        expect_unchanged(seq, forms[f], marks);
        check(pith_engine_set_tap(e, stop_tap, &layer, &err), &err);
        assert_int_equal(pith_seq_eval(seq, tokens + 26, 1, &err), PITH_CANCELLED); /* a step */
        check(pith_engine_set_tap(e, NULL, NULL, &err), &err);
        expect_unchanged(seq, forms[f], marks);

        /* Beside one of which nothing was cancelled. */
        pith_engine *calm_engine = engine_make(forms[f], 8, 1, 2 * N_TOKEN);
        pith_seq *calm = seq_make(calm_engine);
        check(pith_seq_eval(calm, tokens, 20, &err), &err);
        for (int32_t i = 20; i < 26; i++)
            check(pith_seq_eval(calm, tokens + i, 1, &err), &err);
        uint64_t other[N_TOKEN];
        go_on(seq, 80, hashes);
        go_on(calm, 80, other);
        assert_memory_equal(hashes + 26, other + 26, (80 - 26) * sizeof(*other));
        assert_true(digest_marks(seq) == digest_marks(calm));
        pith_seq_free(calm);
        pith_engine_free(calm_engine);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

/* ---- the kept entries ---- */

/* Where no query attends to an entry, raas drops whole pages after the prompt, the oldest first. */
TEST(raas_drops_the_oldest_pages_behind_the_prompt)
{
    enum { PROMPT = 35, BUDGET = 70 };
    pith_engine *e = engine_make("raas:budget=70,threshold=1", 64, 2, 0);
    pith_seq *seq = seq_make(e);
    int32_t pos[N_TOKEN];
    check(pith_seq_mark_prompt(seq, PROMPT, &err), &err);
    check(pith_seq_eval(seq, tokens, PROMPT, &err), &err);
    for (int32_t n = PROMPT + 1; n <= N_TOKEN; n++) {
        check(pith_seq_eval(seq, tokens + n - 1, 1, &err), &err);
        int32_t n_gone = n < BUDGET + 16 ? 0 : 16 * (1 + (n - BUDGET - 16) / 16);
        pith_lane_info lane;
        assert_int_equal(pith_seq_lane(seq, info.n_layer - 1, 0, &lane, pos, N_TOKEN), PITH_OK);
        assert_int_equal(lane.n_entry, n - n_gone);
        for (int32_t i = 0; i < lane.n_entry; i++)
            assert_int_equal(pos[i], i < PROMPT ? i : i + n_gone);
    }
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* Half of the budget is recent under h2o, rounds or not, and sinks stay under vatp. */
TEST(h2o_keeps_half_recent_and_vatp_the_sinks)
{
    static const char *const texts[] = {"h2o:budget=48", "h2o:budget=48,overwrite=off,slack=9",
                                        "vatp:budget=48"};
    for (size_t f = 0; f < PI_LEN(texts); f++) {
        pith_engine *e = engine_make(texts[f], 64, 2, 0);
        pith_seq *seq = seq_make(e);
        uint64_t hashes[N_TOKEN];
        int32_t n_sink = f == 2 ? 20 : 0;
        for (int32_t n = 70; n <= N_TOKEN; n += 7) {
            go_on(seq, n, hashes);
            int32_t n_token = pith_seq_length(seq);
            for (int32_t l = 0; l < info.n_layer; l++)
                for (int32_t h = 0; h < info.n_head_kv; h++) {
                    int32_t pos[N_TOKEN], n_last = 0, n_first = 0;
                    kv_lane_positions(seq->memory.kv, l, h, pos, kv_lane_len(seq->memory.kv, l, h));
                    for (int32_t i = 0; i < kv_lane_len(seq->memory.kv, l, h); i++) {
                        n_last += pos[i] >= n_token - 24;
                        n_first += pos[i] < n_sink;
                    }
                    assert_int_equal(n_last, 24);
                    assert_int_equal(n_first, n_sink);
                }
        }
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}
