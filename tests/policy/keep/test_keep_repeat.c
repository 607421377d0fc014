/*
 * test_keep_repeat.c - kvzip on a model. Its marks equal the sums of importance_target.c over the
 * text and its repetition in one pass. Bits are the same for any chunk, any number of threads and
 * any other sequences. Also texts of several parts and prompts, forks, the full cache where a
 * budget is never reached, and the memory that it asks for. Only the policy sees the repetition.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "testing.h"

#include "keep_engine.h"
#include "policy/keep/learn/importance_prompt.h"
#include "policy/keep/learn/importance_target.h"

#define N_TOKEN 160
#define N_LONG (KEEP_REPEAT_PART + 80)

static int32_t long_text[N_LONG + 1]; /* the same tokens again and again, in turn cut short */

static const char *const forms[] = {
    "kvzip:budget=60,window=16",
    "kvzip:budget=60,window=16,score=plus",
    "kvzip:budget=40%,window=8,granularity=layer-head",
};
#define N_FORM PI_LEN(forms)

static void set_up(void)
{
    model_load(17);
    for (int32_t i = 0; i <= N_LONG; i++)
        long_text[i] = tokens[i % (TOKENS_MAX - i / TOKENS_MAX)];
}

TEST_GROUP(set_up, model_free);

/* ---- marks ---- */

static void show_rows(void *user, const struct pi_pass_tap_rows *rows)
{
    importance_target_rows(user, rows, 1);
}

static void show_weights(void *user, const struct pi_pass_attention *a, int32_t thread)
{
    (void)thread;
    importance_target_attended(user, a);
}

static void plan(void *user, struct pi_pass_watched *lanes, int32_t n)
{
    (void)user;
    for (int32_t i = 0; i < n; i++)
        lanes[i].rows = true;
}

/* out [n_lane][n]: targets of the first n tokens, in an engine without a policy. */
static void read_twice(const struct importance_gram *gram, int32_t n, float *out)
{
    struct importance_prompt prompt;
    struct importance_target *target = NULL;
    int32_t all[3 * TOKENS_MAX];
    check(importance_prompt_create(model, &prompt, &err), &err);
    int32_t n_all = 2 * n + prompt.n_middle;
    struct importance_span span = {0, n, n + prompt.n_middle, n_all};
    memcpy(all, tokens, (size_t)n * sizeof(*all));
    memcpy(all + n, prompt.middle, (size_t)prompt.n_middle * sizeof(*all));
    memcpy(all + n + prompt.n_middle, tokens, (size_t)n * sizeof(*all));
    check(importance_target_create(model, gram, &span, &target, &err), &err);
    pith_engine *e = engine_make_typed(NULL, "f32", 512, 1, 1024);
    pith_seq *seq = seq_make(e);
    struct pi_pass_watch watch = {target, plan, show_weights, NULL, 0};
    struct pi_pass_item item = {
        .kv = seq->memory.kv, .tokens = all, .n_tok = n_all, .owner = seq, .watched = true};
    check(pi_pass_set_tap(e->pass, &(struct pi_pass_tap){.fn = show_rows, .user = target}, &err),
          &err);
    check(pi_pass_set_watch(e->pass, &watch, &err), &err);
    check(pi_pass_reserve_watch(e->pass, n_all, &err), &err);
    check(kv_seq_reserve(seq->memory.kv, n_all, &err), &err);
    pi_pass_run(e->pass, &item, 1);
    for (int32_t i = 0; i < n_lane; i++)
        importance_target_lane(target, i / info.n_head_kv, i % info.n_head_kv, out + i * n);
    pith_seq_free(seq);
    pith_engine_free(e);
    importance_target_free(target);
    importance_prompt_free(&prompt);
}

TEST(marks_are_those_of_a_text_read_twice)
{
    static const char *const texts[] = {
        "kvzip:budget=100,window=8,granularity=layer-head",
        "kvzip:budget=100,window=8,granularity=layer-head,score=plus"};
    static float want[64 * N_TOKEN];
    assert_true(n_lane <= 64);
    for (int plus = 0; plus < 2; plus++) {
        struct importance_gram *gram = NULL;
        if (plus)
            check(importance_gram_create(model, 1, &gram, &err), &err);
        read_twice(gram, N_TOKEN, want);
        pith_engine *e = engine_make_typed(texts[plus], "f32", 64, 2, 1024);
        pith_seq *seq = seq_make(e);
        eval(seq, 0, N_TOKEN);
        for (int32_t i = 0; i < n_lane; i++) {
            int32_t l = i / info.n_head_kv, h = i % info.n_head_kv;
            const float *mark = kv_lane_marks(seq->memory.kv, l, h, 0);
            assert_int_equal(kv_lane_len(seq->memory.kv, l, h), 100);
            for (int32_t j = 0; j < 100; j++) {
                double x = (double)want[i * N_TOKEN + kv_lane_pos(seq->memory.kv, l, h, j)];
                if (fabs((double)mark[j] - x) > 1e-3)
                    fail_msg("%s, lane %d, entry %d: %g is not %g", texts[plus], i, j,
                             (double)mark[j], x);
            }
        }
        pith_seq_free(seq);
        pith_engine_free(e);
        importance_gram_free(gram);
    }
}

/* ---- the same bits ---- */

/* A prompt, steps, another prompt, steps; hashes of the logits after each token. */
static void read_turns(pith_seq *seq, uint64_t *hashes)
{
    static const int32_t ends[] = {110, 111, 112, 113, 150, 151, N_TOKEN};
    for (size_t i = 0; i < PI_LEN(ends); i++) {
        int32_t n = pith_seq_length(seq);
        pith_batch_item item = {.seq = seq,
                                .tokens = tokens + n,
                                .n_token = ends[i] - n,
                                .logits = PITH_LOGITS_ALL,
                                .on_logits = keep_hash,
                                .user = hashes};
        check(pith_batch_eval(seq->engine, &item, 1, NULL, NULL, &err), &err);
    }
}

TEST(chunks_and_threads_change_no_bit)
{
    static const int32_t cases[][2] = {{512, 1}, {7, 2}, {64, 2}};
    for (size_t f = 0; f < N_FORM; f++) {
        static uint64_t hashes[PI_LEN(cases)][TOKENS_MAX];
        for (size_t c = 0; c < PI_LEN(cases); c++) {
            pith_engine *e = engine_make(forms[f], cases[c][0], cases[c][1], 1024);
            pith_seq *seq = seq_make(e);
            read_turns(seq, hashes[c]);
            assert_int_equal(stats_of(seq).rounds, 3);
            assert_memory_equal(hashes[c], hashes[0], N_TOKEN * sizeof(uint64_t));
            pith_seq_free(seq);
            pith_engine_free(e);
        }
    }
}

TEST(company_changes_no_bit)
{
    for (size_t f = 0; f < N_FORM; f++) {
        static uint64_t want[TOKENS_MAX], got[TOKENS_MAX], other[TOKENS_MAX];
        pith_engine *e = engine_make(forms[f], 64, 2, 2048);
        pith_seq *a = eval_all(e, 110, want), *b = seq_make(e), *c = seq_make(e);
        pith_batch_item item[2] = {{.seq = b, .tokens = tokens + 200, .n_token = 90},
                                   {.seq = c, .tokens = tokens, .n_token = 110}};
        for (int i = 0; i < 2; i++) {
            item[i].logits = PITH_LOGITS_ALL;
            item[i].on_logits = keep_hash;
            item[i].user = i == 0 ? other : got;
        }
        check(pith_batch_eval(e, item, 2, NULL, NULL, &err), &err);
        assert_memory_equal(want, got, 110 * sizeof(*want));
        for (int32_t t = 110; t < 130; t++) {
            eval(a, t, t + 1);
            eval(c, t, t + 1);
        }
        assert_true(hash_of(a) == hash_of(c));
        pith_seq_free(a);
        pith_seq_free(b);
        pith_seq_free(c);
        pith_engine_free(e);
    }
}

/* A fork of a scored sequence goes on in the same way, also over another prompt. */
TEST(a_fork_goes_on_alike)
{
    for (size_t f = 0; f < N_FORM; f++) {
        pith_engine *e = engine_make(forms[f], 64, 2, 2048);
        pith_seq *a = seq_make(e), *b = NULL;
        eval(a, 0, 110);
        check(pith_seq_fork(a, &b, &err), &err);
        eval(b, 110, N_TOKEN);
        eval(a, 110, N_TOKEN);
        assert_true(hash_of(a) == hash_of(b));
        for (int32_t i = 0; i < n_lane; i++) {
            int32_t l = i / info.n_head_kv, h = i % info.n_head_kv,
                    n = kv_lane_len(a->memory.kv, l, h);
            assert_int_equal(n, kv_lane_len(b->memory.kv, l, h));
            assert_memory_equal(kv_lane_marks(a->memory.kv, l, h, 0),
                                kv_lane_marks(b->memory.kv, l, h, 0), (size_t)n * sizeof(float));
            for (int32_t j = 0; j < n; j++)
                assert_true(kv_lane_marks(a->memory.kv, l, h, 0)[j] != 0.0f);
        }
        pith_seq_free(a);
        pith_seq_free(b);
        pith_engine_free(e);
    }
}

/* More than one part. */
TEST(judges_a_text_of_several_parts)
{
    uint64_t want = 0;
    for (int32_t chunk = 512; chunk >= 100; chunk -= 411) {
        pith_engine *e = engine_make("kvzip:budget=10%", chunk, 2, 2 * N_LONG + 256);
        pith_seq *seq = seq_make(e);
        eval_ids(seq, long_text, 0, N_LONG);
        assert_int_equal(stats_of(seq).rounds, 1);
        eval_ids(seq, long_text, N_LONG, N_LONG + 1);
        assert_true(want == 0 || hash_of(seq) == want);
        want = hash_of(seq);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

TEST(a_budget_that_is_never_reached_is_the_full_cache)
{
    static uint64_t want[TOKENS_MAX], got[TOKENS_MAX];
    pith_engine *full = engine_make(NULL, 64, 1, 512), *e = engine_make("kvzip", 64, 2, N_TOKEN);
    pith_seq *a = eval_all(full, N_TOKEN, want), *b = eval_all(e, N_TOKEN, got);
    assert_memory_equal(want, got, N_TOKEN * sizeof(*want));
    assert_int_equal(stats_of(b).rounds, 0);
    pith_seq_free(a);
    pith_seq_free(b);
    pith_engine_free(full);
    pith_engine_free(e);
}

/* ---- memory, and observers ---- */

TEST(the_memory_that_it_asks_for_is_enough)
{
    pith_engine_params params;
    pith_engine *e = NULL;
    int64_t bytes = 0;
    pith_engine_params_default(&params);
    params.page_len = PAGE_LEN;
    params.chunk = 64;
    params.keep = forms[0];
    check(pith_kv_estimate(model, &params, N_TOKEN, &bytes, &err), &err);
    for (int fits = 0; fits < 2; fits++) {
        pith_kv_stats kv;
        params.kv_bytes = fits ? bytes : 0;
        params.kv_tokens = fits ? 0 : N_TOKEN + 64;
        check(pith_engine_create(model, &params, &e, &err), &err);
        pith_seq *seq = seq_make(e);
        pith_status status = pith_seq_eval(seq, tokens, N_TOKEN, &err);
        assert_int_equal(status, fits ? PITH_OK : PITH_KV_FULL);
        assert_int_equal(pith_seq_length(seq), fits ? N_TOKEN : 0);
        pith_engine_kv_stats(e, &kv);
        assert_true(kv.peak_bytes <= kv.reserved_bytes);
        if (fits) {
            pith_seq *other = NULL; /* the repetition's memory is free again */
            pith_seq_free(seq);
            seq = NULL;
            check(pith_seq_create(e, &other, &err), &err);
            check(pith_seq_eval(other, tokens, N_TOKEN, &err), &err);
            seq = other;
        }
        pith_seq_free(seq);
        assert_int_equal(used_pages(e), 0);
        pith_engine_free(e);
    }
}

static bool count_rows(void *user, const pith_tap_rows *rows)
{
    *(int32_t *)user += rows->n_token;
    return true;
}

TEST(a_tap_does_not_see_the_repetition)
{
    int32_t n = 0;
    pith_engine *e = engine_make(forms[1], 64, 2, 1024);
    pith_seq *seq = seq_make(e);
    check(pith_engine_set_tap(e, count_rows, &n, &err), &err);
    eval(seq, 0, N_TOKEN);
    assert_int_equal(n, N_TOKEN * info.n_layer);
    assert_int_equal(stats_of(seq).rounds, 1);
    pith_seq_free(seq);
    pith_engine_free(e);
}

TEST(refuses_rounds_while_it_reads)
{
    assert_int_equal(pith_policy_check(PITH_KEEP, "kvzip:rounds=stream", &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "rounds=prompt-end"));
}
