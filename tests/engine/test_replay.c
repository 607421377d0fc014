/*
 * Replay: the loss of attention by hand and against numpy, and the engine's own policy. Every fault
 * of a file or an argument is one sentence.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <string.h>

#include "folder.h"

#include "alloc_fail.h"
#include "mem_used.h"
#include "engine/replay.h"
#include "eval/eval.h"
#include "eval/lost.h"
#include "eval/record.h"
#include "pith/inspect.h"
#include "eval/recorder.h"
#include "json_read.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define GOLDEN PITH_SOURCE_DIR "/tests/golden/replay.safetensors"
#define GOLDEN_JSON PITH_SOURCE_DIR "/tests/golden/replay.json"

static void expect_near(const char *what, double value, double wanted, double most)
{
    if (!(fabs(value - wanted) <= most))
        fail_msg("%s: %.17g instead of %.17g", what, value, wanted);
}

/* ---- the arithmetic ---- */

/* One query head of size 1, and values of size 2. Keys have logits ln 1, ln 2, ln 4, ln 1, so the
   weights are 1/8, 2/8, 4/8, 1/8. Without key 2 the weights are 1/4, 2/4, 1/4. */
TEST(loss_is_that_computed_by_hand)
{
    const float q[] = {2.0f};
    const float k[] = {0.0f, (float)log(2.0), (float)log(4.0), 0.0f};
    static const float v[] = {1, 0, 0, 1, 2, 0, 0, 3};
    static const bool kept[] = {true, true, false};
    struct lost_job job = {
        .q = q,
        .q_stride = 1,
        .k = k,
        .k_stride = 1,
        .v = v,
        .v_stride = 2,
        .n_query = 1,
        .n_group = 1,
        .n_read = 3,
        .dim_k = 1,
        .dim_v = 2,
        .scale = 0.5,
        .kept = kept,
    };
    double scratch[64], mean[3];
    struct lost lost;
    assert_true(lost_scratch_len(&job) <= 64);
    lost_measure(&job, scratch, mean, &lost);
    expect_near("mean 0", mean[0], 0.125, 1e-7);
    expect_near("mean 1", mean[1], 0.25, 1e-7);
    expect_near("mean 2", mean[2], 0.5, 1e-7);
    expect_near("mass", lost.mass, 0.5, 1e-7);
    expect_near("most mass", lost.mass_max, 0.5, 1e-7);
    /* Two of the three may stay: the best choice loses key 0. */
    expect_near("best mass", lost.mass_best, 0.125, 1e-7);
    /* o = (1/8 + 8/8, 2/8 + 3/8) = (9/8, 5/8); o' = (1/4, 2/4 + 3/4) = (2/8, 10/8). */
    expect_near("error", lost.error, sqrt((49.0 + 25.0) / (81.0 + 25.0)), 1e-6);
    expect_near("most error", lost.error_max, lost.error, 1e-15);
}

/* Every entry is evicted. There are two queries of two heads: the first query has only its own key
   left, and the second its own and the first's. Logits far apart must not vanish in the sum. */
TEST(losing_everything_costs_everything)
{
    static const float q[] = {1000, 0, -1000, 0}; /* [2][2][1] */
    static const float k[] = {1, -1, 0, 0};
    static const float v[] = {1, 2, 4, 8};
    static const bool kept[] = {false, false};
    struct lost_job job = {
        .q = q,
        .q_stride = 2,
        .k = k,
        .k_stride = 1,
        .v = v,
        .v_stride = 1,
        .n_query = 2,
        .n_group = 2,
        .n_read = 2,
        .dim_k = 1,
        .dim_v = 1,
        .scale = 1.0,
        .kept = kept,
    };
    double scratch[64], mean[2];
    struct lost lost;
    lost_measure(&job, scratch, mean, &lost);
    /* Head 0: query 0 is on key 0 alone, query 1 on key 1. Head 1: uniform over 3 and 4 keys. */
    expect_near("mass", lost.mass, (1.0 + 2.0 / 3 + 1.0 + 2.0 / 4) / 4, 1e-12);
    expect_near("most mass", lost.mass_max, 1.0, 1e-12);
    expect_near("mean 0", mean[0], (1.0 + 1.0 / 3 + 0.0 + 1.0 / 4) / 4, 1e-12);
    expect_near("best mass", lost.mass_best, lost.mass, 1e-12);
    /* |4 - 1| / 1; |4 - 7/3| / (7/3); |6 - 2| / 2; |6 - 15/4| / (15/4) */
    expect_near("error", lost.error, (3.0 + 5.0 / 7 + 2.0 + 0.6) / 4, 1e-12);
    expect_near("most error", lost.error_max, 3.0, 1e-12);
}

TEST(losing_nothing_costs_nothing)
{
    static const float q[] = {1}, k[] = {1, 2, 3}, v[] = {0, 0, 0}, w[] = {1, 0, 0};
    static const bool all[] = {true, true}, one[] = {false, true};
    struct lost_job job = {
        .q = q,
        .q_stride = 1,
        .k = k,
        .k_stride = 1,
        .v = v,
        .v_stride = 1,
        .n_query = 1,
        .n_group = 1,
        .n_read = 2,
        .dim_k = 1,
        .dim_v = 1,
        .scale = 1.0,
        .kept = all,
    };
    double scratch[64], mean[2];
    struct lost lost;
    lost_measure(&job, scratch, mean, &lost);
    assert_true(lost.mass == 0.0 && lost.error == 0.0 && lost.mass_best == 0.0);
    job.kept = one; /* an output of 0 that stays 0 is no error */
    lost_measure(&job, scratch, mean, &lost);
    assert_true(lost.mass > 0.0 && lost.error == 0.0);
    job.v = w; /* the whole output goes */
    lost_measure(&job, scratch, mean, &lost);
    expect_near("error", lost.error, 1.0, 1e-12);
}

/* ---- the task ---- */

static struct eval_setup setup_of(const char *keep)
{
    struct eval_setup setup = {0};
    pith_engine_params_default(&setup.engine);
    setup.engine.keep = keep;
    setup.engine.type_k = setup.engine.type_v = "f32";
    setup.engine.page_len = 16;
    return setup;
}

static json_t *replay(const char *path, const char *keep, const int32_t *at, int32_t n_at,
                      int32_t n_query)
{
    json_t *result = NULL;
    const struct eval_setup setup = setup_of(keep);
    const struct eval_replay_params params = {
        .path = path, .at = at, .n_at = n_at, .n_query = n_query, .n_missing = 5};
    check(eval_replay(&setup, &params, &result, &err), &err);
    return result;
}

/* Positions as a result writes them. */
static void ranges_of(const json_t *positions, char *out, size_t cap)
{
    size_t n = json_array_size(positions), len = 0;
    out[0] = '\0';
    for (size_t i = 0, end; i < n; i = end) {
        json_int_t first = json_integer_value(json_array_get(positions, i)), last = first;
        for (end = i + 1; end < n && json_integer_value(json_array_get(positions, end)) == last + 1;
             end++)
            last++;
        len += (size_t)snprintf(out + len, cap - len, "%s%lld", i > 0 ? "," : "", (long long)first);
        if (last > first)
            len += (size_t)snprintf(out + len, cap - len, "-%lld", (long long)last);
    }
}

static void compare_rows(const json_t *row, const json_t *wanted)
{
    static const char *const exact[] = {"tokens", "queries", "layer", "head", "entries"};
    static const char *const near[] = {"lost_mass", "lost_mass_max", "lost_mass_best",
                                       "output_error", "output_error_max"};
    char ranges[1024];
    size_t i;
    json_t *item;
    for (i = 0; i < sizeof(exact) / sizeof(*exact); i++)
        assert_int_equal((int)number(row, exact[i]), (int)number(wanted, exact[i]));
    for (i = 0; i < sizeof(near) / sizeof(*near); i++)
        expect_near(near[i], number(row, near[i]), number(wanted, near[i]), 1e-12);
    ranges_of(json_object_get(wanted, "positions"), ranges, sizeof(ranges));
    assert_string_equal(json_string_value(json_object_get(row, "kept")), ranges);
    const json_t *missing = json_object_get(row, "missing");
    assert_int_equal(json_array_size(missing), json_array_size(json_object_get(wanted, "missing")));
    json_array_foreach(json_object_get(wanted, "missing"), i, item)
    {
        const json_t *mine = json_array_get(missing, i);
        assert_int_equal((int)number(mine, "position"), (int)number(item, "position"));
        expect_near("missing mass", number(mine, "mass"), number(item, "mass"), 1e-12);
    }
}

/* Against numpy: tests/golden/replay.json. */
TEST(agrees_with_numpy)
{
    size_t i, j;
    json_t *one, *row;
    json_t *golden = json_load_file(GOLDEN_JSON, 0, NULL);
    assert_non_null(golden);
    json_array_foreach(json_object_get(golden, "cases"), i, one)
    {
        int32_t at[8], n_at = 0;
        json_array_foreach(json_object_get(one, "at"), j, row) at[n_at++] =
            (int32_t)json_integer_value(row);
        const char *keep = json_string_value(json_object_get(one, "keep"));
        json_t *result = replay(GOLDEN, keep, at, n_at, (int32_t)number(golden, "queries"));
        const json_t *rows = json_object_get(result, "rows"),
                     *wanted = json_object_get(one, "rows");
        assert_int_equal(json_array_size(rows), json_array_size(wanted));
        json_array_foreach(wanted, j, row) compare_rows(json_array_get(rows, j), row);
        assert_string_equal(json_string_value(json_object_get(result, "policy")), keep);
        json_decref(result);
    }
    json_decref(golden);
}

/* The full cache, and a budget that is never reached. */
TEST(without_an_eviction_nothing_is_lost)
{
    static const char *const keeps[] = {NULL, "none", "streaming:budget=1000"};
    for (size_t i = 0; i < 3; i++) {
        size_t j;
        json_t *row;
        json_t *result = replay(GOLDEN, keeps[i], NULL, 0, 32);
        const json_t *summary = json_object_get(result, "summary");
        assert_int_equal((int)number(summary, "n"), 4);
        assert_true(number(summary, "score") == 1.0 && number(summary, "output_error") == 0.0);
        assert_true(number(summary, "evicted") == 0.0 && number(summary, "rounds") == 0.0);
        assert_true(number(summary, "kept_share") == 1.0);
        json_array_foreach(json_object_get(result, "rows"), j, row)
        {
            assert_string_equal(json_string_value(json_object_get(row, "kept")), "0-27");
            assert_int_equal((int)number(row, "queries"), 32);
        }
        json_decref(result);
    }
}

/* The summary is the mean of its rows, and the counters match the rounds. */
TEST(the_summary_is_the_mean_of_its_rows)
{
    static const int32_t at[] = {20, 53};
    size_t i;
    json_t *row;
    double mass = 0.0, error = 0.0, share = 0.0;
    json_t *result = replay(GOLDEN, "streaming:budget=16,slack=4,sinks=2", at, 2, 7);
    const json_t *summary = json_object_get(result, "summary");
    json_array_foreach(json_object_get(result, "rows"), i, row)
    {
        mass += number(row, "lost_mass") / 8;
        error += number(row, "output_error") / 8;
        share += number(row, "entries") / number(row, "tokens") / 8;
        assert_true(number(row, "lost_mass") >= number(row, "lost_mass_best"));
    }
    expect_near("mass", number(summary, "lost_mass"), mass, 1e-12);
    expect_near("score", number(summary, "score"), 1.0 - mass, 1e-12);
    expect_near("error", number(summary, "output_error"), error, 1e-12);
    expect_near("share", number(summary, "kept_share"), share, 1e-12);
    /* Rounds at 20, 24, .. 52 tokens, each of 4 entries in each of 4 lanes. */
    assert_int_equal((int)number(summary, "rounds"), 9);
    assert_int_equal((int)number(summary, "evicted"), 9 * 4 * 4);
    assert_int_equal((int)number(summary, "prompt_tokens"), 53);
    /* Lanes of at most 20 entries take two pages of 16: f32, 8 + 6 dimensions, and the
       positions. */
    assert_int_equal((int)number(summary, "kv_peak_bytes"), 4 * 2 * (8 * 16 * 4 + 6 * 16 * 4 + 64));
    json_decref(result);
}

/* Several policies at once: the rows of each as alone, and its figures in the summary. */
TEST(several_policies_give_what_each_gives_alone)
{
    static const char *const keeps[] = {"streaming:budget=16,slack=4", "none",
                                        "streaming:budget=30,slack=1"};
    static const char *const figures[] = {"score",   "output_error", "kept_share",
                                          "evicted", "rounds",       "kv_peak_bytes"};
    static const int32_t at[] = {20, 53};
    json_t *all = NULL;
    const struct eval_setup setup = setup_of("streaming:budget=1,slack=1"); /* not asked for */
    const struct eval_replay_params params = {.path = GOLDEN,
                                              .policies = keeps,
                                              .n_policy = 3,
                                              .at = at,
                                              .n_at = 2,
                                              .n_query = 7,
                                              .n_missing = 5};
    check(eval_replay(&setup, &params, &all, &err), &err);
    const json_t *rows = json_object_get(all, "rows"), *summary = json_object_get(all, "summary");
    double evicted = 0.0;
    assert_string_equal(json_string_value(json_object_get(all, "policy")),
                        "streaming:budget=16,slack=4 | full | streaming:budget=30,slack=1");
    assert_int_equal(json_array_size(rows), 3 * 8);
    for (size_t p = 0; p < 3; p++) {
        json_t *one = replay(GOLDEN, keeps[p], at, 2, 7);
        const json_t *mine = json_array_get(json_object_get(summary, "policies"), p);
        for (size_t i = 0; i < 8; i++) {
            json_t *row = json_array_get(rows, 8 * p + i);
            const char *name = json_string_value(json_object_get(row, "policy"));
            assert_string_equal(name, p == 1 ? "full" : keeps[p]);
            json_object_del(row, "policy");
            assert_true(json_equal(row, json_array_get(json_object_get(one, "rows"), i)));
        }
        for (size_t i = 0; i < sizeof(figures) / sizeof(*figures); i++)
            assert_true(number(mine, figures[i]) ==
                        number(json_object_get(one, "summary"), figures[i]));
        evicted += number(mine, "evicted");
        json_decref(one);
    }
    assert_true(number(summary, "evicted") == evicted && evicted > 0.0);
    assert_int_equal((int)number(summary, "n"), 24);
    assert_null(json_object_get(summary, "score"));
    json_decref(all);
}

/* Looking on the way changes nothing, and neither does the storage type under `streaming`. */
TEST(stops_do_not_matter)
{
    static const int32_t all[] = {1, 2, 19, 20, 21, 35, 36, 50}, last[] = {50};
    const char *keep = "streaming:budget=50%,slack=5";
    json_t *a = replay(GOLDEN, keep, all, 8, 10), *b = replay(GOLDEN, keep, last, 1, 10);
    for (size_t i = 0; i < 4; i++)
        assert_true(json_equal(json_array_get(json_object_get(a, "rows"), 7 * 4 + i),
                               json_array_get(json_object_get(b, "rows"), i)));
    json_decref(a);
    json_decref(b);
}

/* ---- the very policy ---- */

/* A run of the model with a policy, recorded: replay of the file keeps the entries of the run. */
TEST(same_as_the_engine)
{
    static const char *const keeps[] = {"streaming:budget=40,slack=16,sinks=4",
                                        "streaming:budget=25%,slack=7,prefix=3,window=9"};
    enum { N = 203 };
    pith_model_info info;
    int32_t tokens[N], positions[N];
    uint64_t rng = 3;
    pith_model *model = model_at(MODEL);
    pith_model_get_info(model, &info);
    for (int32_t i = 0; i < N; i++)
        tokens[i] = (int32_t)rng_below(&rng, (uint64_t)info.n_vocab);
    for (size_t c = 0; c < 2; c++) {
        struct eval_recorder *r = NULL;
        int32_t at = 180;
        pith_engine *e = engine_with(
            model, (pith_engine_params){.keep = keeps[c], .kv_tokens = 512, .chunk = 50});
        pith_seq *seq = seq_make(e);
        check(eval_recorder_create(seq, in_folder("run"), &r, &err), &err);
        check(pith_seq_eval(seq, tokens, at, &err), &err);
        pith_seq *before = NULL;
        check(pith_seq_fork(seq, &before, &err), &err);
        check(pith_seq_eval(seq, tokens + at, N - at, &err), &err);
        check(eval_recorder_write(r, &err), &err);
        json_t *result = replay(in_folder("run"), keeps[c], &at, 1, 8);
        for (int32_t l = 0; l < info.n_layer; l++)
            for (int32_t h = 0; h < info.n_head_kv; h++) {
                const json_t *row = json_array_get(json_object_get(result, "rows"),
                                                   (size_t)(l * info.n_head_kv + h));
                pith_lane_info lane;
                char ranges[1024];
                json_t *list = json_array();
                assert_int_equal(pith_seq_lane(before, l, h, &lane, positions, N), PITH_OK);
                for (int32_t i = 0; i < lane.n_entry; i++)
                    json_array_append_new(list, json_integer(positions[i]));
                ranges_of(list, ranges, sizeof(ranges));
                assert_true(lane.n_entry < at);
                assert_string_equal(json_string_value(json_object_get(row, "kept")), ranges);
                assert_true(number(row, "lost_mass") > 0.0 && number(row, "lost_mass") < 1.0);
                assert_true(number(row, "output_error") > 0.0);
                json_decref(list);
            }
        json_decref(result);
        eval_recorder_free(r);
        pith_seq_free(before);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
    pith_model_free(model);
}

/* ---- refusals ---- */

static pith_status try_both(const char *path, const char *keep, const char *read, const int32_t *at,
                            int32_t n_at, int32_t n_query, int32_t n_missing, pith_error *why)
{
    json_t *result = NULL;
    struct eval_setup setup = setup_of(keep);
    setup.engine.read = read;
    const struct eval_replay_params params = {
        .path = path, .at = at, .n_at = n_at, .n_query = n_query, .n_missing = n_missing};
    memset(why, 0, sizeof(*why));
    pith_status status = eval_replay(&setup, &params, &result, why);
    if ((status == PITH_OK) != (result != NULL))
        fail_msg("%s, and %s result", pith_status_name(status), result != NULL ? "a" : "no");
    json_decref(result);
    return status;
}

static pith_status try_replay(const char *path, const char *keep, const int32_t *at, int32_t n_at,
                              int32_t n_query, int32_t n_missing, pith_error *why)
{
    return try_both(path, keep, NULL, at, n_at, n_query, n_missing, why);
}

TEST(refuses_bad_arguments)
{
    static const int32_t zero[] = {0}, end[] = {60}, falling[] = {20, 20}, last[] = {59};
    expect(try_replay(NULL, NULL, NULL, 0, 8, 0, &err), &err, PITH_INVALID, "no file");
    expect(try_replay(in_folder("none"), NULL, NULL, 0, 8, 0, &err), &err, PITH_IO, "cannot open");
    expect(try_replay(GOLDEN, NULL, NULL, 0, 0, 0, &err), &err, PITH_INVALID, "0 queries");
    expect(try_replay(GOLDEN, NULL, NULL, 0, 8, -1, &err), &err, PITH_INVALID, "-1 missing");
    expect(try_replay(GOLDEN, NULL, NULL, 0, 60, 0, &err), &err, PITH_INVALID,
           "has 60 tokens, and the last 60 are to be queries");
    expect(try_replay(GOLDEN, NULL, zero, 1, 8, 0, &err), &err, PITH_INVALID,
           "stop 0 is not in 1..59");
    expect(try_replay(GOLDEN, NULL, end, 1, 8, 0, &err), &err, PITH_INVALID,
           "stop 60 is not in 1..59");
    expect(try_replay(GOLDEN, NULL, falling, 2, 8, 0, &err), &err, PITH_INVALID,
           "stop 20 is not in 21..59");
    expect(try_replay(GOLDEN, "nonsense", last, 1, 8, 0, &err), &err, PITH_INVALID, "nonsense");
    expect(try_replay(GOLDEN, "streaming:budget=2,sinks=4", last, 1, 8, 0, &err), &err,
           PITH_INVALID, "budget of 2");
    check(try_replay(GOLDEN, NULL, last, 1, 8, 0, &err), &err);
}

static void write_record(const int32_t *positions, const float *q, const float *k)
{
    static const int32_t tokens[3];
    static const float v[3] = {1, 2, 3};
    const struct safetensor t[] = {
        {"positions", SAFETENSORS_I32, 1, {3}, positions, 12},
        {"tokens", SAFETENSORS_I32, 1, {3}, tokens, 12},
        {"layers.0.q", SAFETENSORS_F32, 3, {3, 1, 1}, q, 12},
        {"layers.0.k", SAFETENSORS_F32, 3, {3, 1, 1}, k, 12},
        {"layers.0.v", SAFETENSORS_F32, 3, {3, 1, 1}, v, 12},
    };
    const struct safetensors_pair m[] = {
        {"format", "pith.record"}, {"version", "1"},    {"n_layer", "1"},    {"n_head", "1"},
        {"n_head_kv", "1"},        {"head_dim_k", "1"}, {"head_dim_v", "1"}, {"attn_scale", "1"},
    };
    check(safetensors_write(in_folder("tiny"), t, 5, m, 8, &err), &err);
}

TEST(refuses_numbers_that_are_none)
{
    static const int32_t straight[] = {0, 1, 2}, gap[] = {0, 2, 3}, late[] = {1, 2, 3};
    static const float good[] = {1, 2, 3}, bad[] = {1, NAN, 3}, worse[] = {1, 2, INFINITY};
    write_record(straight, good, good);
    check(try_replay(in_folder("tiny"), NULL, NULL, 0, 1, 3, &err), &err);
    write_record(straight, good, bad);
    expect(try_replay(in_folder("tiny"), NULL, NULL, 0, 1, 3, &err), &err, PITH_FORMAT,
           "layers.0.k of token 1 is not finite");
    write_record(straight, worse, good);
    expect(try_replay(in_folder("tiny"), NULL, NULL, 0, 1, 3, &err), &err, PITH_FORMAT,
           "layers.0.q of token 2 is not finite");
    write_record(gap, good, good);
    expect(try_replay(in_folder("tiny"), NULL, NULL, 0, 1, 3, &err), &err, PITH_INVALID,
           "positions[1] is 2");
    write_record(late, good, good);
    expect(try_replay(in_folder("tiny"), NULL, NULL, 0, 1, 3, &err), &err, PITH_INVALID,
           "positions[0] is 1");
}

static bool cancel(void *user, double fraction, const char *what)
{
    int32_t *n = user;
    assert_true(fraction >= 0.0 && fraction < 1.0);
    assert_non_null(strstr(what, "28 tokens, layer "));
    return ++*n < 2;
}

TEST(a_replay_may_be_cancelled)
{
    json_t *result = NULL;
    int32_t n = 0;
    struct eval_setup setup = setup_of(NULL);
    const struct eval_replay_params params = {.path = GOLDEN, .n_query = 32};
    setup.progress = cancel;
    setup.progress_user = &n;
    expect(eval_replay(&setup, &params, &result, &err), &err, PITH_CANCELLED, "cancelled");
    assert_int_equal(n, 2);
    assert_null(result);
}

static void fail_allocations(const char *read)
{
    static const char keep[] = "streaming:budget=16,slack=4,sinks=2";
    static const int32_t at[] = {20, 53};
    alloc_fail_at(0);
    pi_mem_fail_at(0, false);
    check(try_both(GOLDEN, keep, read, at, 2, 7, 3, &err), &err);
    int64_t n = alloc_fail_at(0), n_mem = pi_mem_fail_at(0, false);
    assert_true(n > 100 && n_mem > 5);
    for (int64_t i = 1; i <= n; i++) {
        alloc_fail_at(i);
        pith_status status = try_both(GOLDEN, keep, read, at, 2, 7, 3, &err);
        alloc_fail_at(0);
        expect(status, &err, PITH_NOMEM, "no memory");
    }
    for (int64_t i = 1; i <= n_mem; i++) {
        pi_mem_fail_at(i, true);
        pith_status status = try_both(GOLDEN, keep, read, at, 2, 7, 3, &err);
        pi_mem_fail_at(0, false);
        expect(status, &err, PITH_NOMEM, "no memory");
    }
}

TEST(survives_every_failing_allocation)
{
    fail_allocations(NULL);
    fail_allocations("quoka:budget=4");
}

/* ---- the library's half ---- */

TEST(replay_reads_forward)
{
    enum { N = 20 };
    struct pi_replay *r = NULL;
    static const float rows[N];
    static const int32_t tokens[N];
    const float *const k[] = {rows}, *const v[] = {rows};
    int32_t positions[N];
    struct pi_replay_stats stats;
    struct pi_replay_shape shape = {.n_layer = 1,
                                    .n_head = 1,
                                    .dim_k = 1,
                                    .dim_v = 1,
                                    .page_len = 16,
                                    .type_k = "f16",
                                    .type_v = NULL,
                                    .n_token = N};
    check(pi_replay_create(&shape, "streaming:budget=8,slack=2,sinks=1", NULL, &r, &err), &err);
    check(pi_replay_read(r, 9, tokens, k, v, &err), &err);
    assert_int_equal(pi_replay_lane(r, 0, 0, positions), 9);
    check(pi_replay_read(r, 9, tokens, k, v, &err), &err);
    expect(pi_replay_read(r, 8, tokens, k, v, &err), &err, PITH_INVALID, "8 is not in 9..20");
    expect(pi_replay_read(r, 21, tokens, k, v, &err), &err, PITH_INVALID, "21 is not in 9..20");
    check(pi_replay_read(r, 10, tokens, k, v, &err), &err);
    assert_int_equal(pi_replay_lane(r, 0, 0, positions), 8);
    assert_int_equal(positions[0], 0);
    assert_int_equal(positions[1], 3);
    assert_int_equal(positions[7], 9);
    check(pi_replay_read(r, N, tokens, k, v, &err), &err);
    pi_replay_get_stats(r, &stats);
    assert_int_equal(stats.n_round, 6);
    assert_int_equal(stats.n_evicted, 12);
    pi_replay_free(r);
    pi_replay_free(NULL);
    shape.type_k = "f11";
    expect(pi_replay_create(&shape, NULL, NULL, &r, &err), &err, PITH_INVALID, "type_k: \"f11\"");
    shape.type_k = "q8_0";
    expect(pi_replay_create(&shape, NULL, NULL, &r, &err), &err, PITH_UNSUPPORTED, "q8_0");
    shape.type_k = "f16";
    shape.n_token = 0;
    expect(pi_replay_create(&shape, NULL, NULL, &r, &err), &err, PITH_INVALID, "n_token: 0");
}

/* ---- setup ---- */

static void setup(void)
{
    alloc_fail_begin();
    make_folder();
}

static void teardown(void)
{
    mem_check(NULL);
    remove_folder();
}

TEST_GROUP(setup, teardown);
