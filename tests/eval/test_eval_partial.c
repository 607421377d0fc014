/*
 * test_eval_partial.c - models that rotate a part of each head (rope.dimension_count below the head
 * size). Positions, calibration, keep policies, storage types and recall work on random weights as
 * on any other model.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <string.h>

#include <eval.h>

#include "eval_read.h"
#include "model_maker.h"
#include "pith/calibrate.h"
#include "pith/inspect.h"
#include "pith/policy.h"

#define NANO PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define DEMO_TEXT PITH_SOURCE_DIR "/models/demo/prompt-2k.txt"
#define DIM 32
#define ROT 12
#define N_IDS 96

static char *text;
static size_t text_len;

/* One model of each way to pair dimensions: halves (qwen3) and neighbours (llama). */
static const struct {
    const char *file, *words;
    bool adjacent;
} kinds[] = {
    {"qwen3.gguf", "arch=qwen3 seed=1", false},
    {"llama.gguf", "arch=llama seed=2", true},
};
enum { N_KIND = 2 };
static pith_model *models[N_KIND];

static pith_model *make(const char *file, const char *words)
{
    struct model_spec spec;
    pith_model *model = NULL;
    pith_model_params params;
    pith_model_params_default(&params);
    params.n_thread = 1;
    model_spec_default(&spec);
    snprintf(spec.vocab_file, sizeof(spec.vocab_file), "%s", NANO);
    check(model_spec_parse(&spec, "layers=2 width=64 heads=4 kv_heads=2 head_dim=32 ff=96 ctx=1024",
                           &err),
          &err);
    check(model_spec_parse(&spec, words, &err), &err);
    check(model_make(&spec, in_folder(file), &err), &err);
    check(pith_model_load(in_folder(file), &params, &model, &err), &err);
    return model;
}

static void set_up(void)
{
    char words[64];
    make_folder();
    check(eval_read_file(DEMO_TEXT, &text, &text_len, &err), &err);
    for (int i = 0; i < N_KIND; i++) {
        snprintf(words, sizeof(words), "%s rot=%d", kinds[i].words, ROT);
        models[i] = make(kinds[i].file, words);
    }
}

static void tear_down(void)
{
    for (int i = 0; i < N_KIND; i++)
        pith_model_free(models[i]);
    free(text);
    remove_folder();
}

TEST_GROUP(set_up, tear_down);

static struct eval_setup setup_of(const pith_model *model, const char *type, const char *keep)
{
    struct eval_setup setup = {.model = model};
    pith_engine_params_default(&setup.engine);
    setup.engine.n_thread = 1;
    setup.engine.page_len = 16;
    setup.engine.type_k = type;
    setup.engine.type_v = type;
    setup.engine.keep = keep;
    return setup;
}

static pith_engine *make_engine(const struct eval_setup *setup, int32_t n_token)
{
    pith_engine *engine = NULL;
    pith_engine_params params = setup->engine;
    params.kv_tokens = n_token;
    check(pith_engine_create(setup->model, &params, &engine, &err), &err);
    return engine;
}

static void draw_ids(const pith_model *model, uint64_t seed, int32_t *ids, int32_t n)
{
    pith_model_info info;
    pith_model_get_info(model, &info);
    for (int32_t i = 0; i < n; i++)
        ids[i] = (int32_t)rng_below(&seed, (uint64_t)info.n_vocab);
}

/* ---- positions ---- */

struct turn {
    pith_attention_info attention;
    int32_t n_head;
    int32_t n_seen;
};

/* Dimensions behind the rotated ones stay bit for bit, each pair is turned by its angle. */
static bool see_rows(void *user, const pith_tap_rows *rows)
{
    struct turn *t = user;
    for (int32_t i = 0; i < rows->n_token * t->n_head; i++) {
        const float *before = rows->q_pre + (size_t)i * DIM, *after = rows->q + (size_t)i * DIM;
        for (int32_t f = 0; f < t->attention.n_pair; f++) {
            int32_t a = t->attention.adjacent ? 2 * f : f;
            int32_t b = t->attention.adjacent ? 2 * f + 1 : f + t->attention.n_pair;
            double angle = (rows->pos0 + i / t->n_head) * t->attention.freq[f];
            double x = before[a] * cos(angle) - before[b] * sin(angle);
            double y = before[a] * sin(angle) + before[b] * cos(angle);
            assert_true(fabs(x - after[a]) < 1e-4 && fabs(y - after[b]) < 1e-4);
        }
        assert_memory_equal(before + ROT, after + ROT, (DIM - ROT) * sizeof(float));
        t->n_seen++;
    }
    return true;
}

TEST(positions_turn_a_part_of_each_head)
{
    for (int k = 0; k < N_KIND; k++) {
        const struct eval_setup setup = setup_of(models[k], "f16", NULL);
        pith_engine *engine = make_engine(&setup, N_IDS);
        struct turn t = {.n_head = 4};
        int32_t ids[N_IDS];
        pith_model_info info;
        pith_model_get_info(models[k], &info);
        pith_model_get_attention(models[k], &t.attention);
        assert_int_equal(info.n_rot, ROT);
        assert_int_equal(info.head_dim_k, DIM);
        assert_int_equal(t.attention.n_pair, ROT / 2);
        assert_true(t.attention.adjacent == kinds[k].adjacent);
        draw_ids(models[k], 7, ids, N_IDS);
        check(pith_engine_set_tap(engine, see_rows, &t, &err), &err);
        pith_seq *seq = seq_make(engine);
        check(pith_seq_eval(seq, ids, N_IDS, &err), &err);
        assert_int_equal(t.n_seen, N_IDS * 4 * 2);
        pith_seq_free(seq);
        pith_engine_free(engine);
    }
}

/* rot = 0 and rot = head size are the same model; other values are refused where they cannot be. */
TEST(the_maker_rotates_what_it_is_told)
{
    struct model_spec spec;
    err = (pith_error){0};
    pith_model *whole = make("whole.gguf", "seed=3"), *said = make("said.gguf", "seed=3 rot=32");
    pith_model_info a, b;
    pith_model_get_info(whole, &a);
    pith_model_get_info(said, &b);
    assert_int_equal(a.n_rot, DIM);
    assert_int_equal(b.n_rot, DIM);
    assert_int_equal(a.file_bytes, b.file_bytes);
    model_spec_default(&spec);
    spec.rot = 7;
    expect(model_make(&spec, in_folder("x.gguf"), &err), &err, PITH_INVALID, "rot: 7");
    spec.rot = spec.head_dim + 2;
    expect(model_make(&spec, in_folder("x.gguf"), &err), &err, PITH_INVALID, "head size 64");
    pith_model_free(whole);
    pith_model_free(said);
}

/* ---- measuring ---- */

static json_t *stack(const struct eval_setup *setup, const char *budget)
{
    json_t *result = NULL;
    const struct eval_stack_params params = {.text = text,
                                             .text_len = text_len,
                                             .n_ctx = 256,
                                             .n_batch = 64,
                                             .n_chunk = 1,
                                             .budgets = &budget,
                                             .n_budget = 1,
                                             .n_repeat = 1};
    check(eval_stack(setup, &params, &result, &err), &err);
    return result;
}

/* Every policy that needs no file. A budget that is never reached changes no bit of any token's
   nll; a small one evicts, and the results are finite. */
TEST(every_keep_policy_runs_on_them)
{
    pith_policy_info info;
    int n = 0;
    for (int32_t i = 0; pith_policy_get(PITH_KEEP, i, &info) == PITH_OK; i++) {
        const pith_model *model = models[i % N_KIND];
        char keep[64];
        if (strcmp(info.name, "kvzap") == 0)
            continue;
        snprintf(keep, sizeof(keep), "%s:slack=16", info.name);
        struct eval_setup setup = setup_of(model, "f16", keep);
        json_t *wide = stack(&setup, "8000"), *small = stack(&setup, "192");
        const json_t *row = row_of(small, 1);
        if (number(row_of(wide, 1), "diff") != 0.0 || number(row_of(wide, 1), "diff_se") != 0.0)
            fail_msg("%s: a budget that is never reached changes the text's nll by %g", info.name,
                     number(row_of(wide, 1), "diff"));
        if (!(number(row, "evicted") > 0.0) || !(number(row, "perplexity") > 1.0))
            fail_msg("%s: %g entries are evicted, perplexity is %g", info.name,
                     number(row, "evicted"), number(row, "perplexity"));
        json_decref(wide);
        json_decref(small);
        n++;
    }
    assert_true(n >= 16);
}

/* Statistics of the rotated pairs and of the unrotated dimensions; V3 with them, over every
   type. */
TEST(statistics_are_of_rotated_pairs)
{
    char keep[256];
    for (int k = 0; k < N_KIND; k++) {
        const struct eval_setup plain = setup_of(models[k], "f16", NULL);
        pith_engine *engine = make_engine(&plain, 512);
        pith_stats *stats = NULL;
        pith_stats_info info;
        int32_t ids[512];
        draw_ids(models[k], 9, ids, 512);
        check(pith_calibrate(engine, ids, 512, NULL, &stats, &err), &err);
        pith_stats_get_info(stats, &info);
        assert_int_equal(info.n_pair, ROT / 2);
        const char *path = in_folder(k == 0 ? "qwen3.stats" : "llama.stats");
        check(pith_stats_save(stats, path, &err), &err);
        pith_stats_free(stats);
        pith_engine_free(engine);
        snprintf(keep, sizeof(keep),
                 "triattention:v3,prefix=16,window=16,slack=16,flat=on,stats=%s", path);
        struct eval_setup setup = setup_of(models[k], "q8_0", keep);
        json_t *result = stack(&setup, "25%");
        assert_int_equal(json_array_size(json_object_get(result, "rows")), 4);
        for (size_t i = 2; i < 4; i++) {
            assert_true(number(row_of(result, i), "evicted") > 0.0);
            assert_true(isfinite(number(row_of(result, i), "diff")));
            assert_true(number(row_of(result, i), "end_fewer") > 2.0);
        }
        json_decref(result);
    }
}

/* ---- recall ---- */

enum { N_TEXT = 200, N_TURN = 10 };

/* The logits of the last token of a text and a turn, [n_vocab]; the caller frees. */
static float *logits_of(const struct eval_setup *setup, int64_t *guests)
{
    pith_engine *engine = make_engine(setup, 2 * N_TEXT);
    pith_model_info info;
    pith_recall_stats recall;
    int32_t ids[N_TEXT + N_TURN];
    pith_model_get_info(setup->model, &info);
    draw_ids(setup->model, 11, ids, N_TEXT + N_TURN);
    pith_seq *seq = seq_make(engine);
    check(pith_seq_eval(seq, ids, N_TEXT, &err), &err);
    check(pith_seq_eval(seq, ids + N_TEXT, N_TURN, &err), &err);
    size_t size = (size_t)info.n_vocab * sizeof(float);
    float *out = malloc(size);
    assert_non_null(out);
    memcpy(out, pith_seq_logits(seq), size);
    pith_seq_recall_stats(seq, &recall);
    *guests = recall.guests;
    pith_seq_free(seq);
    pith_engine_free(engine);
    return out;
}

static double most_apart(const pith_model *model, const float *a, const float *b)
{
    pith_model_info info;
    double most = 0.0;
    pith_model_get_info(model, &info);
    for (int32_t i = 0; i < info.n_vocab; i++)
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

/* A text is cut to half when it has been read. The next turn reads all evicted tokens again, at
   their own positions. The result equals the full cache except for the order of sums. */
TEST(recall_brings_all_entries_back)
{
    for (int k = 0; k < N_KIND; k++) {
        int64_t n_full, n_cut, n_back;
        struct eval_setup setup = setup_of(models[k], "f32", NULL);
        float *full = logits_of(&setup, &n_full);
        setup.engine.keep = "streaming:budget=100,slack=100,sinks=4";
        float *cut = logits_of(&setup, &n_cut);
        setup.engine.keep = "streaming:budget=200,slack=100,sinks=4";
        setup.engine.recall = "kv:take=50%,last=64,type=stored";
        float *back = logits_of(&setup, &n_back);
        assert_true(n_full == 0 && n_cut == 0);
        assert_int_equal(n_back, 2 * 2 * 100);
        double lost = most_apart(models[k], full, cut), left = most_apart(models[k], full, back);
        if (!(lost > 0.05 && left < 1e-3))
            fail_msg("logits are %g apart without recall, and %g with it", lost, left);
        free(full);
        free(cut);
        free(back);
    }
}

/* Keep, recall and every pair of types together: chosen, evicted, brought back, and smaller. */
TEST(keep_recall_and_types_work_together)
{
    static const char *const types[] = {"q8_0", "q4_0", "turbo4", "turbo3", "turbo2"};
    double before = 1.0;
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        struct eval_setup setup =
            setup_of(models[i % N_KIND], types[i], "triattention:v3,prefix=16,window=16,slack=16");
        setup.engine.recall = "kv:last=16,block=4";
        json_t *result = stack(&setup, "40%");
        const json_t *store = row_of(result, 1), *all = row_of(result, 4);
        assert_int_equal(json_array_size(json_object_get(result, "rows")), 5);
        assert_true(number(all, "evicted") > 0.0 && number(all, "recall_bytes") > 0.0);
        assert_true(isfinite(number(all, "diff")) && number(all, "recall_seconds") > 0.0);
        assert_true(number(store, "end_fewer") > 1.5);
        assert_true(number(all, "end_fewer") > number(store, "end_fewer"));
        if (i != 1 && i != 2) /* q4_0 and turbo4 take nearly the same */
            assert_true(number(store, "end_fewer") > before);
        before = number(store, "end_fewer");
        json_decref(result);
    }
}
